"""A depot that is read: its commits, and the next slice of its rows."""
