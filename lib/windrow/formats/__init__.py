"""Input formats: raw octets in, however they were cut, and records, values and reasons out."""
