"""Windrow's errors and their codes, as one tree.

::

    WindrowError
    ├── UsageError                   the caller can fix it (exit status 2)
    │   ├── SettingsError            WINDROW-SETTINGS
    │   ├── RulesError               WINDROW-RULES
    │   ├── ExpressionError          WINDROW-EXPRESSION
    │   ├── MessagesError            WINDROW-MESSAGES
    │   ├── MissingExtraError        WINDROW-MISSING-EXTRA
    │   ├── EngineUnavailableError   WINDROW-ENGINE
    │   ├── InputFileError           WINDROW-FILE
    │   ├── NotFoundError            WINDROW-NOT-FOUND
    │   ├── OutputFileError          WINDROW-OUTPUT
    │   ├── StartFromMismatchError   WINDROW-START-FROM
    │   ├── PausedError              WINDROW-PAUSED
    │   ├── InvalidMessageError      WINDROW-MESSAGE
    │   ├── FormatPluginError        WINDROW-FORMAT-PLUGIN
    │   ├── ProducerClosedError      WINDROW-PRODUCER-CLOSED
    │   ├── ProducerInUseError       WINDROW-PRODUCER-IN-USE
    │   ├── InputMismatchError       WINDROW-INPUT-MISMATCH
    │   └── TopologyError            WINDROW-TOPOLOGY
    └── OperationalError             the world failed (exit status 3)
        ├── TableMissingError        WINDROW-TABLE-MISSING
        ├── IncompatibleTableError   WINDROW-INCOMPATIBLE-TABLE
        ├── TableUnreadableError     WINDROW-TABLE-UNREADABLE
        ├── TableUnwritableError     WINDROW-TABLE-UNWRITABLE
        ├── DepotMismatchError       WINDROW-DEPOT-MISMATCH
        ├── DepotChangedError        WINDROW-DEPOT-CHANGED
        ├── DepotUnreadableError     WINDROW-DEPOT-UNREADABLE
        ├── RowCountMismatchError    WINDROW-ROW-COUNT-MISMATCH
        ├── ConcurrentCommitError    WINDROW-CONCURRENT-COMMIT
        ├── PhaseTimeoutError        WINDROW-PHASE-TIMEOUT
        ├── LedgerBehindError        WINDROW-LEDGER-BEHIND
        ├── LedgerRestoredError      WINDROW-LEDGER-RESTORED
        ├── TableLockedError         WINDROW-TABLE-LOCKED
        ├── RetriesExhaustedError    WINDROW-RETRIES-EXHAUSTED
        ├── ProducerFencedError      WINDROW-PRODUCER-FENCED
        ├── BufferFullError          WINDROW-BUFFER-FULL
        ├── DeliveryTimeoutError     WINDROW-DELIVERY-TIMEOUT
        ├── BrokerError              WINDROW-BROKER
        ├── OffsetOutOfRangeError    WINDROW-OFFSET-OUT-OF-RANGE
        ├── FileUnreadableError      WINDROW-FILE-UNREADABLE
        ├── ExpectationBrokenError   WINDROW-EXPECTATION-BROKEN
        └── InternalError            WINDROW-INTERNAL

An error carries a message and a hint that says what to do. Only the command line and calling programs print it.
"""

from __future__ import annotations

import re
from typing import ClassVar

COLOUR = re.compile(r"\x1b\[[0-9;]*m")
CAUSE = "\u21b3 "
MAX_LINE = 400
REPORT = "Please report this. `windrow verify` says whether the ledger is sound."


class WindrowError(Exception):
    """Base of all errors: a stable `code`, what happened, and a `hint` that says what to do."""

    code: ClassVar[str] = "WINDROW"
    retryable: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        """Derive the code from the class name, unless the class sets one; subclasses of an error share its code."""
        if "code" not in vars(cls) and cls.__mro__[2] is WindrowError:
            words = re.findall("[A-Z][a-z]+", cls.__name__.removesuffix("Error"))
            cls.code = "-".join(["WINDROW", *words]).upper()

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message, hint)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        """Return code, message and hint on one or two lines."""
        first = f"{self.code}: {self.message}"
        return f"{first}\n{self.hint}" if self.hint else first


class UsageError(WindrowError):
    """The caller asked for something that cannot be done; trying again does not help.

    If a setting is at fault, `setting` is its name, part by part.
    """

    setting: tuple[str, ...] = ()


class OperationalError(WindrowError):
    """A table, an engine or the disk failed."""


class SettingsError(UsageError):
    """A setting is unknown or has an invalid value."""


class RulesError(UsageError):
    """A batching rule is out of range."""


class ExpressionError(UsageError):
    """A column expression cannot be parsed, is not supported on this engine, or fails for a `row` of its input."""

    row: int | None = None


class MessagesError(UsageError):
    """A table of messages lacks a column, or a column has the wrong type."""


class MissingExtraError(UsageError):
    """A feature needs an extra that is not installed."""


class EngineUnavailableError(UsageError):
    """The requested engine cannot run here."""

    code = "WINDROW-ENGINE"


class InputFileError(UsageError):
    """A file to ingest cannot be read."""

    code = "WINDROW-FILE"


class NotFoundError(UsageError):
    """There is no such batch, message or version."""


class OutputFileError(UsageError):
    """An output file cannot be written, or not in the requested format."""

    code = "WINDROW-OUTPUT"


class StartFromMismatchError(UsageError):
    """`start_from` differs from the value that the ledger began with."""

    code = "WINDROW-START-FROM"


class PausedError(UsageError):
    """The ledger is paused, and the command would change it."""


class InvalidMessageError(UsageError):
    """A message to send is invalid or too large. It was not sent."""

    code = "WINDROW-MESSAGE"


class FormatPluginError(UsageError):
    """A format from another package cannot be loaded, or breaks the rules for formats."""


class ProducerClosedError(UsageError):
    """A producer is closed, or was closed before a message could be committed."""


class ProducerInUseError(UsageError):
    """A producer with this id is already open with other settings, or this one is a copy in a forked process."""


class InputMismatchError(UsageError):
    """The input of `windrow produce` differs from the input that its producer has sent so far."""


class TopologyError(UsageError):
    """A topology is declared wrongly, or one of its functions returned rows that do not fit its state."""

    code = "WINDROW-TOPOLOGY"


class TableMissingError(OperationalError):
    """There is no Delta table at the path."""


class IncompatibleTableError(OperationalError):
    """A Delta table exists, but Windrow did not create it, or it has another schema version."""


class TableUnreadableError(OperationalError):
    """A Delta table exists, but its log or one of its files is damaged, missing or not readable."""

    retryable = True


class TableUnwritableError(OperationalError):
    """A table cannot be written: the disk is full or read-only, or permissions are missing."""

    retryable = True


class CommitNotDurableError(TableUnwritableError):
    """A commit is in the log, but syncing it to disk failed: a power cut may remove it."""

    retryable = False


class DepotMismatchError(OperationalError):
    """The ledger belongs to another depot."""


class DepotChangedError(OperationalError):
    """Rows of the depot were deleted or updated, or it was restored to an older version; a depot must only grow."""


class DepotUnreadableError(OperationalError):
    """The next version to read is no longer, or not yet, in the depot's change data feed."""


class RowCountMismatchError(OperationalError):
    """The change data feed returned a different number of rows than the depot's commit added."""

    retryable = True


class ConcurrentCommitError(OperationalError):
    """Another driver committed to the ledger between prime and commit."""

    retryable = True


class PhaseTimeoutError(OperationalError):
    """A phase of a microbatch exceeded `phase_timeout`. The next attempt finds out what it left behind."""

    retryable = True


class LedgerBehindError(OperationalError):
    """The ledger is behind the start of the stream, because it was restored or created again during the run."""

    retryable = True


class LedgerRestoredError(OperationalError):
    """Closed batches that a reader received are gone: after a RESTORE, a new ledger at the same place or a deletion."""


class TableLockedError(OperationalError):
    """Another process held the lock of a local table for too long."""

    retryable = True


class RetriesExhaustedError(OperationalError):
    """A microbatch failed more often than `max_retries` allows."""


class ProducerFencedError(OperationalError):
    """Another process writes with the id of this producer, so this producer stopped."""


class BufferFullError(OperationalError):
    """The buffer of a producer is full: messages are sent faster than the depot accepts them."""


class DeliveryTimeoutError(OperationalError):
    """A message was not committed within `delivery_timeout`."""


class BrokerError(OperationalError):
    """The broker rejected the bridge, or the bridge the broker: credentials, certificates, permissions, client id."""


class OffsetOutOfRangeError(OperationalError):
    """A Kafka partition no longer has the records that the depot needs next, or no longer matches the depot."""


class FileUnreadableError(OperationalError):
    """A file to check cannot be read completely."""


class ExpectationBrokenError(OperationalError):
    """An expectation could not be checked."""


class InternalError(OperationalError):
    """An internal check failed, before or after a commit. This is a bug."""


def ensure(holds: bool, promise: str) -> None:
    """Raise InternalError unless `holds`. Checks come in pairs: before and after a write."""
    if not holds:
        raise InternalError(promise, REPORT)


def is_panic(error: BaseException) -> bool:
    """Tell whether an error is a panic in a Rust library. Each library has its own class for panics."""
    return type(error).__name__ == "PanicException"


def first_line(error: BaseException) -> str:
    """Return the message of another library's error, on one line of at most 400 characters.

    The bridge to Java puts it on the second line, or further down in a cause with a Spark error class. delta-rs puts
    each cause on a separate line, in colour.
    """
    lines = [line.strip() for line in COLOUR.sub("", str(error)).splitlines() if line.strip()]
    messages = [line for line in lines if not line.startswith("An error occurred while calling")]
    classified = [line for line in messages if line.startswith("Caused by: ") and ": [" in line]
    ours = [line[line.index("WINDROW-") :] for line in messages if "WINDROW-" in line]  # from Spark's Python worker
    if messages and "awaitResult" in messages[0]:  # another thread failed: its error is the cause, or in the text
        if isinstance(cause := getattr(error, "_cause", None), BaseException):
            return first_line(cause)
        messages = [line for line in messages if line.startswith("Caused by: ")] or messages
    first = (ours or classified or messages or [type(error).__name__])[0].removeprefix("Caused by: ").removeprefix(": ")
    causes = [line.removeprefix(CAUSE) for line in messages[1:] if line.startswith(CAUSE)]
    whole = ": ".join([first, *causes])
    whole = whole.encode(errors="backslashreplace").decode()  # Arrow refuses lone surrogates
    return whole if len(whole) <= MAX_LINE else f"{whole[:MAX_LINE]}..."
