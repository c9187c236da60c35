"""The Spark engine: it reads the depot as a stream and commits with Spark."""
