"""A trial of a format: what it makes of files, piece by piece and without a depot, as a run would."""

from windrow.ingest.format_check.trial import Check, Checked, CheckedFile, Rejected

__all__ = ["Check", "Checked", "CheckedFile", "Rejected"]
