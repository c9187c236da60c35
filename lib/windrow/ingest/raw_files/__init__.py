"""Ingest raw files: append their bytes as chunks to a raw depot, in commits of bounded size, each file once."""

from windrow.ingest.raw_files.ingest import RawIngested, ingest

__all__ = ["RawIngested", "ingest"]
