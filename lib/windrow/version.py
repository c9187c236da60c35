"""Windrow's version, for code that should not import the whole package."""

VERSION = "0.1.0"
