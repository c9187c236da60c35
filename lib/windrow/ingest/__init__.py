"""Ingest files into a depot: Parquet and Delta tables as messages, other files as raw chunks; and check formats."""
