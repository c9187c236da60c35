"""The one table that microbatches write: its live rows, and how new ones are committed and folded."""
