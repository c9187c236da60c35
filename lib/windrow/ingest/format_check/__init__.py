"""Check a format: read files with it as a run would, piece by piece and without a depot."""

from windrow.ingest.format_check.trial import Check, Checked, CheckedFile, Rejected

__all__ = ["Check", "Checked", "CheckedFile", "Rejected"]
