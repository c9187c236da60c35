"""Files into a depot: Parquet and Delta tables as messages, other files as raw chunks; and trying a format first."""
