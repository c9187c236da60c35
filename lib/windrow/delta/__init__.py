"""Delta tables without Spark: open, create, lock, sync, mend, compact and clean them, and read their logs."""
