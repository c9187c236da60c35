"""Errors that name a format whose code failed: that of another package, or Windrow's own."""

from __future__ import annotations

from windrow.errors import FormatFailed, first_line

TRANSIENT = (OSError, MemoryError)  # the next try may succeed, so no record is to blame
HINT = "Nothing was written. Fix its package, and run again."


class FormatInterrupted(FormatFailed):
    """The format failed for a reason that may pass, so the microbatch is tried again."""

    retryable = True


def failed(name: str | None, what: str, error: Exception) -> FormatFailed:
    """Return the error for a format that could not do something."""
    kind = FormatInterrupted if isinstance(error, TRANSIENT) else FormatFailed
    return kind(f"the format {name!r} cannot {what}: {type(error).__name__}: {first_line(error)}", HINT)
