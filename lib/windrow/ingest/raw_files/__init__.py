"""Raw files in: their bytes as chunks of a raw depot, in commits of bounded size, each once."""

from windrow.ingest.raw_files.ingest import RawIngested, ingest
from windrow.ingest.raw_files.reading import Coded

__all__ = ["Coded", "RawIngested", "ingest"]
