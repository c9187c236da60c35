"""Which Windrow this is, for whom the whole package would be too much to import."""

VERSION = "0.1.0"
