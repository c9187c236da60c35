"""Raw files in: their octets as chunks of a raw depot, a file in one commit, each once."""

from windrow.rawfiles.ingest import Coded, RawIngested, ingest

__all__ = ["Coded", "RawIngested", "ingest"]
