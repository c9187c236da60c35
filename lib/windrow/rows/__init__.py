"""Rows, wherever they are: in an Arrow table of this process, or in a frame on Spark's executors."""
