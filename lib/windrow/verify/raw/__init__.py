"""Verify ledgers over raw depots: read what they hold besides messages, format the depot again, and compare."""
