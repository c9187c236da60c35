"""Ingest raw files: append their bytes as chunks to a raw depot, in commits of bounded size, each file once."""

from windrow.ingest.raw_files.ingest import RawIngestResult, ingest

__all__ = ["RawIngestResult", "ingest"]
