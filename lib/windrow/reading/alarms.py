"""Parse and evaluate conditions on a status, for alarms: `lag>5m`, `rejected>0`, `paused`. Pure."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from windrow.errors import SettingsError
from windrow.model import durations
from windrow.model.durations import SECOND
from windrow.reading.status import Status

SHAPE = re.compile(r"\s*([a-z_]+)\s*(?:(>=|<=|==|>|<)\s*(\S.*?)\s*)?")
COMPARISONS: dict[str, Callable[[int, int], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    ">": operator.gt,
    "<": operator.lt,
}
EXAMPLE = "Write it like lag>5m, lag_messages>100000, rejected>0 or paused"


@dataclass(frozen=True, slots=True)
class StatusMetric:
    """A figure in a status: a time (microseconds), a count, or a flag (0 or 1); None when unknown."""

    unit: Literal["time", "count", "flag"]
    meaning: str
    of: Callable[[Any], int | None]  # a Status


COMMON = {
    "lag": StatusMetric("time", "how long the oldest message waits", lambda now: round(now.lag.seconds * SECOND)),
    "lag_messages": StatusMetric("count", "messages that wait", lambda now: now.lag.message_count),
    "lag_versions": StatusMetric("count", "depot versions that wait", lambda now: now.versions_waiting),
    "rejected": StatusMetric("count", "rejected messages", lambda now: now.totals.rejected),
    "rejected_recently": StatusMetric(
        "count",
        "messages rejected in the last 10 microbatches",
        lambda now: sum(row.rejected for row in now.microbatches),
    ),
    "depot_rewritten": StatusMetric(
        "flag",
        "an unread depot version removed or changed rows, which stops a run",
        lambda now: int(any(depot.changed_version is not None for depot in now.depots)),
    ),
    "paused": StatusMetric("flag", "the ledger is paused", lambda now: int(now.ledger.paused)),
}
OF_BATCHER = {
    "open_batches": StatusMetric("count", "open batches", lambda now: now.open.batch_count),
    "open_messages": StatusMetric("count", "messages in open batches", lambda now: now.open.message_count),
    "oldest_open_age": StatusMetric(
        "time",
        "how long ago the window that is open longest began, by its source's clock",
        lambda now: round(now.open.oldest_age_seconds * SECOND),
    ),
    "kafka_lag": StatusMetric(
        "count",
        "offsets of Kafka that the depot does not have, with --kafka",
        lambda now: None if now.kafka is None else now.kafka.lag,
    ),
}
FIGURES = COMMON | OF_BATCHER


@dataclass(frozen=True, slots=True)
class Condition:
    """A figure compared with a bound (microseconds or a count); `text` is the condition as given."""

    text: str
    figure: str
    comparison: str
    bound: int

    def holds(self, status: Status) -> str | None:
        """Return a sentence with the figure when the condition holds, None when it does not.

        A condition on an unknown figure holds: a missing alarm is worse than a false one.
        """
        figure = FIGURES[self.figure]
        value = figure.of(status)
        if value is None:
            why = "without --kafka" if self.figure == "kafka_lag" else "because a commit of the depot has no row count"
            return f"{self.text} may hold: {self.figure} is unknown, {why}"
        if not COMPARISONS[self.comparison](value, self.bound):
            return None
        return self.text if figure.unit == "flag" else f"{self.text} holds: {self.figure} is {_text(figure, value)}"


def parse(text: str, of_topology: bool = False) -> Condition:
    """Read a condition on the status of a batcher or topology. Raises SettingsError, which names the known figures."""
    known = COMMON if of_topology else FIGURES
    parts = SHAPE.fullmatch(text)
    if not parts:
        raise SettingsError(f"--fail-if {text!r} is not a condition", f"{EXAMPLE}. {_list_metrics(known)}")
    name, comparison, bound = parts.groups()
    if name not in known:
        wrong = f"a topology has no {name}" if name in FIGURES else f"there is no figure {name!r}"
        raise SettingsError(f"--fail-if {text!r}: {wrong}", _list_metrics(known))
    is_flag = FIGURES[name].unit == "flag"
    if is_flag != (comparison is None):
        wrong = "takes no comparison" if is_flag else "needs a comparison"
        raise SettingsError(f"--fail-if {text!r}: {name} {wrong}", f"{EXAMPLE}.")
    return Condition(text.strip(), name, comparison or "==", _bound(text, name, bound))


def _bound(text: str, name: str, bound: str | None) -> int:
    if bound is None:
        return 1
    if FIGURES[name].unit == "time":
        return durations.microseconds(bound, f"--fail-if {text!r}: the bound")
    if not re.fullmatch(r"\d[\d_]*", bound):
        raise SettingsError(f"--fail-if {text!r}: {bound!r} is not a count", f"Give a whole number, like {name}>1000.")
    return int(bound)


def _list_metrics(known: Mapping[str, StatusMetric]) -> str:
    return "Known are " + "; ".join(f"{name} ({figure.meaning})" for name, figure in known.items()) + "."


def _text(figure: StatusMetric, value: int) -> str:
    """Format a value for people; times of a second or more are cut to whole seconds."""
    if figure.unit == "count":
        return f"{value:,}"
    return durations.format_duration(value - value % SECOND if value >= SECOND else value)
