"""Windrow with more than one machine should hold: run by hand, `python -m benchmarks.scale NAME`."""
