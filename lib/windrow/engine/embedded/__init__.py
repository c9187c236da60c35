"""The embedded engine: delta-rs, no JVM."""
