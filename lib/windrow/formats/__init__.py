"""Input formats: raw bytes in, however they were cut, and records, values and reasons out."""
