"""A Delta table without Spark: opened, its log, made, locked, synced to disk, mended, compacted and cleaned."""
