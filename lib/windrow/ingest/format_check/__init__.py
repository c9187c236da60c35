"""Check a format: read files with it as a run would, piece by piece and without a depot."""

from windrow.ingest.format_check.trial import CheckedFile, FormatChecker, FormatCheckResult, Rejected

__all__ = ["CheckedFile", "FormatCheckResult", "FormatChecker", "Rejected"]
