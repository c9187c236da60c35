"""Raw files in: their octets as chunks of a raw depot, in commits of bounded size, each once."""

from windrow.rawfiles.ingest import RawIngested, ingest
from windrow.rawfiles.reading import Coded

__all__ = ["Coded", "RawIngested", "ingest"]
