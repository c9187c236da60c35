"""Every error Windrow raises on purpose, as one tree.

::

    WindrowError
    ├── UsageError                 the caller can mend it (exit status 2)
    │   ├── SettingsError          WINDROW-SETTINGS
    │   ├── RulesError             WINDROW-RULES
    │   ├── ExpressionError        WINDROW-EXPRESSION
    │   ├── MessagesError          WINDROW-MESSAGES
    │   ├── MissingExtra           WINDROW-MISSING-EXTRA
    │   ├── EngineUnavailable      WINDROW-ENGINE
    │   ├── FileRefused            WINDROW-FILE
    │   ├── NotFound               WINDROW-NOT-FOUND
    │   ├── OutputRefused          WINDROW-OUTPUT
    │   ├── StartFromChanged       WINDROW-START-FROM
    │   ├── Paused                 WINDROW-PAUSED
    │   ├── MessageRefused         WINDROW-MESSAGE
    │   ├── ProducerClosed         WINDROW-PRODUCER-CLOSED
    │   ├── ProducerInUse          WINDROW-PRODUCER-IN-USE
    │   ├── OtherInput             WINDROW-OTHER-INPUT
    │   └── TopologyRefused        WINDROW-TOPOLOGY
    └── OutsideError               the world failed (exit status 3)
        ├── TableMissing           WINDROW-TABLE-MISSING
        ├── TableRefused           WINDROW-TABLE-REFUSED
        ├── TableUnreadable        WINDROW-TABLE-UNREADABLE
        ├── TableUnwritable        WINDROW-TABLE-UNWRITABLE
        ├── OtherDepot             WINDROW-OTHER-DEPOT
        ├── DepotChanged           WINDROW-DEPOT-CHANGED
        ├── DepotUnreadable        WINDROW-DEPOT-UNREADABLE
        ├── ShortRead              WINDROW-SHORT-READ
        ├── LedgerMoved            WINDROW-LEDGER-MOVED
        ├── PhaseTimeout           WINDROW-PHASE-TIMEOUT
        ├── LedgerBehind           WINDROW-LEDGER-BEHIND
        ├── LedgerRestored         WINDROW-LEDGER-RESTORED
        ├── TableLocked            WINDROW-TABLE-LOCKED
        ├── MicrobatchFailed       WINDROW-MICROBATCH-FAILED
        ├── ProducerFenced         WINDROW-PRODUCER-FENCED
        ├── ProducerFull           WINDROW-PRODUCER-FULL
        ├── DeliveryTimeout        WINDROW-DELIVERY-TIMEOUT
        ├── BrokerRefused          WINDROW-BROKER-REFUSED
        ├── FileUnreadable         WINDROW-FILE-UNREADABLE
        ├── ExpectationBroken      WINDROW-EXPECTATION-BROKEN
        └── BrokenPromise          WINDROW-BROKEN-PROMISE

An error carries what happened and what to do next; it is put into words once, at the edge.
"""

from __future__ import annotations

import re
from typing import ClassVar

COLOUR = re.compile(r"\x1b\[[0-9;]*m")
CAUSE = "\u21b3 "
LONGEST_LINE = 400


class WindrowError(Exception):
    """Base of all errors: a stable `code`, what happened, and a `hint` that says what to do."""

    code: ClassVar[str] = "WINDROW"
    retryable: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        """Take the code from the class's name, unless it has its own: what is below a branch; kinds of it share it."""
        if "code" not in vars(cls) and cls.__mro__[2] is WindrowError:
            words = re.findall("[A-Z][a-z]+", cls.__name__.removesuffix("Error"))
            cls.code = "-".join(["WINDROW", *words]).upper()

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message, hint)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        """Give code, message and hint on one or two lines."""
        first = f"{self.code}: {self.message}"
        return f"{first}\n{self.hint}" if self.hint else first


class UsageError(WindrowError):
    """The caller asked for something that cannot be done; asking again changes nothing."""


class OutsideError(WindrowError):
    """A table, an engine or the disk did not do what it should."""


class SettingsError(UsageError):
    """A setting has no meaning, or nobody knows its name: `setting` is that name, part by part, where it is known."""

    setting: tuple[str, ...] = ()


class RulesError(UsageError):
    """A rule of batching is out of its range."""


class ExpressionError(UsageError):
    """A column expression cannot be read, or not on this engine."""


class MessagesError(UsageError):
    """A table of messages lacks a column or holds it in another type."""


class MissingExtra(UsageError):
    """A feature needs packages of an extra that is not installed."""


class EngineUnavailable(UsageError):
    """The engine asked for cannot run here."""

    code = "WINDROW-ENGINE"


class FileRefused(UsageError):
    """A file to ingest cannot be read."""

    code = "WINDROW-FILE"


class NotFound(UsageError):
    """No batch, message or version answers to what was asked for."""


class OutputRefused(UsageError):
    """A file cannot be written there, or not in this format."""

    code = "WINDROW-OUTPUT"


class StartFromChanged(UsageError):
    """`start_from` differs from the one the ledger began with."""

    code = "WINDROW-START-FROM"


class Paused(UsageError):
    """The ledger was paused, and this would change it."""


class MessageRefused(UsageError):
    """A message that was to be sent is none, or is too large. Nothing of it was sent."""

    code = "WINDROW-MESSAGE"


class ProducerClosed(UsageError):
    """A producer is closed, or was when a message of it could still not be committed."""


class ProducerInUse(UsageError):
    """In this process a producer of this id is open with other settings, or this one is a copy in a forked process."""


class OtherInput(UsageError):
    """The input of `windrow produce` is not the one from which its producer has sent so far."""


class TopologyRefused(UsageError):
    """A topology is declared as none can be, or one of its functions returned what its state cannot take."""

    code = "WINDROW-TOPOLOGY"


class TableMissing(OutsideError):
    """There is no Delta table at the path."""


class TableRefused(OutsideError):
    """A Delta table is there, but it is none of ours or of another schema version."""


class TableUnreadable(OutsideError):
    """A Delta table is there, but its log or a file of it is damaged, gone, or not ours to read."""

    retryable = True


class TableUnwritable(OutsideError):
    """Nothing can be written to a table: the disk is full or read-only, or the rights are missing."""

    retryable = True


class NotKept(TableUnwritable):
    """The disk failed to keep a commit that stands in the log: a power cut may take it."""

    retryable = False


class OtherDepot(OutsideError):
    """The ledger belongs to another depot."""


class DepotChanged(OutsideError):
    """Somebody deleted from, updated or set back a depot, which must only grow."""


class DepotUnreadable(OutsideError):
    """A version that must be read next is no longer, or not yet, in the depot's change feed."""


class ShortRead(OutsideError):
    """The change feed gave another number of rows than the depot's own commit says it added."""

    retryable = True


class LedgerMoved(OutsideError):
    """Somebody else committed to the ledger between our prime and our commit."""

    retryable = True


class PhaseTimeout(OutsideError):
    """A phase of a microbatch took longer than the option `phase_timeout` allows. Nothing was committed."""

    retryable = True


class LedgerBehind(OutsideError):
    """The ledger stands before the begin of the stream that is read: it was restored or made anew."""

    retryable = True


class LedgerRestored(OutsideError):
    """Closed batches that were handed out were taken back: RESTORE, a new ledger at the place, rows deleted."""


class TableLocked(OutsideError):
    """Another process kept the lock of a local table for too long."""

    retryable = True


class MicrobatchFailed(OutsideError):
    """A microbatch failed as often as `retries` allows."""


class ProducerFenced(OutsideError):
    """Another process writes under the id of this producer, which therefore stopped."""


class ProducerFull(OutsideError):
    """The buffer of a producer had no room for a message: the depot takes less than is sent."""


class DeliveryTimeout(OutsideError):
    """A message was not committed within `delivery_timeout`."""


class BrokerRefused(OutsideError):
    """A broker refuses the bridge, or the bridge the broker: credentials, certificates, rights, the client's id."""


class FileUnreadable(OutsideError):
    """A file to check cannot be read, or not to its end."""


class ExpectationBroken(OutsideError):
    """An expectation could not be run, so that nobody knows whether it holds."""


class BrokenPromise(OutsideError):
    """A check of our own failed, before or after a commit. This is a bug."""


def require(holds: bool, promise: str) -> None:
    """Raise BrokenPromise unless `holds`: used in pairs, before something is written and after it was."""
    if not holds:
        raise BrokenPromise(promise, "Please report this. `windrow verify` says whether the ledger is sound.")


def first_line(error: BaseException) -> str:
    """Return what an error of another library says, in one line of at most 400 characters.

    A bridge to Java says it in its second line, or further down where a cause has an error class of Spark's; delta-rs
    puts each cause on a line of its own, in colours.
    """
    lines = [line.strip() for line in COLOUR.sub("", str(error)).splitlines() if line.strip()]
    said = [line for line in lines if not line.startswith("An error occurred while calling")]
    classified = [line for line in said if line.startswith("Caused by: ") and ": [" in line]
    ours = [line[line.index("WINDROW-") :] for line in said if "WINDROW-" in line]  # from a Python worker of Spark
    if said and "awaitResult" in said[0]:  # another thread failed, and PySpark keeps its error, or has it in the text
        if isinstance(cause := getattr(error, "_cause", None), BaseException):
            return first_line(cause)
        said = [line for line in said if line.startswith("Caused by: ")] or said
    first = (ours or classified or said or [type(error).__name__])[0].removeprefix("Caused by: ").removeprefix(": ")
    causes = [line.removeprefix(CAUSE) for line in said[1:] if line.startswith(CAUSE)]
    whole = ": ".join([first, *causes])
    return whole if len(whole) <= LONGEST_LINE else f"{whole[:LONGEST_LINE]}..."
