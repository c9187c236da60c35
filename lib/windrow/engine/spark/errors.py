"""Translate Spark's errors into Windrow's."""

from __future__ import annotations

import builtins
import re

from pyspark.errors import PythonException

from windrow.errors import (
    ConcurrentCommitError,
    DepotUnreadableError,
    EngineUnavailableError,
    ExpressionError,
    FormatPluginError,
    TopologyError,
    first_line,
)

MOVED = ("WINDROW-CONCURRENT-COMMIT", "DELTA_CONCURRENT_", "DELTA_METADATA_CHANGED", "DELTA_PROTOCOL_CHANGED")
UNREADABLE = (
    "DELTA_VERSION_NOT_FOUND",
    "DELTA_MISSING_CHANGE_DATA",
    "DELTA_CHANGE_TABLE_FEED_DISABLED",
    "DELTA_SCHEMA_CHANGED",
    "VERSION_NOT_CONTIGUOUS",
)
CHANGED_ROWS = ("DELTA_SOURCE_IGNORE_DELETE", "DELTA_SOURCE_TABLE_IGNORE_CHANGES")
BAD_VALUE = "SQLSTATE: 22"  # the class of errors that a value causes
FORMAT = re.compile(rf"{FormatPluginError.code}: (.+)")
REFUSED = re.compile(rf"{TopologyError.code}: ([^\n]+?)(?: SQLSTATE|$)", re.MULTILINE)
RAISED = re.compile(r"^([A-Z]\w+): (.*)$", re.MULTILINE)
ABSENT = re.compile(r"ModuleNotFoundError: No module named '([^']+)'")


def translate_error(error: Exception) -> Exception:
    """Return Windrow's error for an error of Spark, or the same error if there is none."""
    text = str(error)
    if isinstance(error, PythonException) and (own_error := _of_python(text)):
        return own_error
    if BAD_VALUE in text:
        return ExpressionError(
            f"[depot.columns] cannot convert a value of the depot: {first_line(error)}",
            "Nothing was written. Use try_divide, try_to_timestamp and the like: a message with NULL is rejected.",
        )
    if any(code in text for code in MOVED):
        return ConcurrentCommitError(
            "the ledger moved between prime and commit",
            "Another driver, tick or flush committed first. Nothing was written.",
        )
    if any(code in text for code in CHANGED_ROWS):
        return DepotUnreadableError(
            f"a depot version changed rows while the change data feed was off: {first_line(error)}",
            'Begin a new ledger (--ledger) after it: start_from = "version:N".',
        )
    if any(code in text for code in UNREADABLE):
        return DepotUnreadableError(
            f"the depot's change feed cannot be read: {first_line(error)}",
            'Restore its log and files; or begin a new ledger (--ledger) with start_from = "version:N". '
            "`windrow doctor` shows the first version that can be read.",
        )
    return error


def of_functions(error: Exception, bugs: tuple[type[Exception], ...]) -> Exception | None:
    """Return the error for a refused `combine` or a Python bug on an executor, None for any other error."""
    if refused := REFUSED.search(str(error)):
        return TopologyError(refused[1], "Check its type.")
    raised = RAISED.findall(str(error)) if isinstance(error, PythonException) else []
    kind = getattr(builtins, raised[-1][0], None) if raised else None
    # guard: bugs-on-executors-not-retried
    if not (isinstance(kind, type) and issubclass(kind, bugs)):
        return None
    hint = "Nothing was committed. Fix the function and run again; the log shows the lines."
    return TopologyError(f"a function failed on an executor: {': '.join(raised[-1])}", hint)


def _of_python(text: str) -> Exception | None:
    """Return the error for a known failure in an executor's Python, None for any other."""
    if absent := ABSENT.search(text):
        return EngineUnavailableError(
            f"the Python of Spark's executors has no module {absent[1]!r}",
            "Install Windrow, and the packages of your formats, on every machine, and name the Python there: "
            "--conf spark.pyspark.python=/path/to/python.",
        )
    failed = FORMAT.search(text)
    return FormatPluginError(failed[1], "Nothing was written. Fix its package, and run again.") if failed else None
