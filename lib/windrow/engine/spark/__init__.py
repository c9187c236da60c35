"""The Spark engine: the depot as a stream, and commits by Spark."""
