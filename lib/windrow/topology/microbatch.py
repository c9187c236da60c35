"""The microbatch that the functions of a topology get: the new rows of its depots, and the states to change."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Generic, TypeVar

import pyarrow as pa

from windrow.topology.arrow_state import ArrowState

Rows = TypeVar("Rows")
StateOf = TypeVar("StateOf")


@dataclass(frozen=True, slots=True)
class _Microbatch(Generic[Rows, StateOf]):
    """One microbatch. Each attempt at it has the same `id`, `clock`, events and rows; only `attempt` differs.

    `id` is its number. Use it when a function writes to another system: a later attempt writes again under the same id.
    In a topology in step with timers the functions are called several times; `step` counts these calls from 0.
    `clock` is the wall time (UTC) at the start of the first attempt. `events` are the names of the events and timers
    that fire, `depots` those of the depots that have new rows.
    """

    id: int
    step: int
    attempt: int
    clock: datetime
    events: tuple[str, ...]
    depots: tuple[str, ...]
    _rows: Callable[[str], Rows] = field(repr=False)
    _state: Callable[[str], StateOf] = field(repr=False)
    _append: Callable[[str, Rows], None] = field(repr=False)
    _in_order: Callable[[], Rows] = field(repr=False)
    _due: Callable[[str], Rows] = field(repr=False)

    def rows(self, depot: str) -> Rows:
        """Return the new rows of a depot, if any: its columns, and `version`. Raises TopologyError."""
        return self._rows(depot)

    def in_order(self) -> Rows:
        """Return the messages of all depots and the events that fire, by `processing_time`, then by `priority`.

        They have the columns of messages, `version`, these two, `depot` and `event`: the name of an event or timer,
        whose key is in `key`. A message that is invalid, or stamped ahead of the clock, has no processing time and
        comes last. Raises TopologyError for a depot without messages.
        """
        return self._in_order()

    def state(self, name: str) -> StateOf:
        """Return a state, as the functions before this one have left it. Raises TopologyError."""
        return self._state(name)

    def schedule(self, timer: str, rows: Rows) -> None:
        """Set a timer at the time in the column `due` of each row; a timer that its key already has is moved.

        The rows also have the key and the payload of the timer. Raises TopologyError.
        """
        self._due(timer)
        self._state(timer).put(rows)  # type: ignore[attr-defined]

    def cancel(self, timer: str, keys: Rows | None = None) -> None:
        """Cancel a timer for some keys, even if they have none. Raises TopologyError."""
        self._due(timer)
        self._state(timer).delete(keys)  # type: ignore[attr-defined]

    def due(self, timer: str) -> Rows:
        """Return the rows of a timer that fire, in the order of their times: key, `due`, payload.

        They are no longer set, and may be set again. Raises TopologyError.
        """
        return self._due(timer)

    def append(self, output: str, rows: Rows) -> None:
        """Append rows to an output of the topology, once, however often the microbatch is attempted.

        The commit follows when all functions have returned, before that of the states. Raises TopologyError.
        """
        self._append(output, rows)


class Microbatch(_Microbatch[pa.Table, ArrowState]):
    """A microbatch for functions on Arrow tables, on both engines."""

    __slots__ = ()


class SparkMicrobatch(_Microbatch[Any, Any]):
    """A microbatch for functions on Spark DataFrames, whose rows stay on the executors.

    Its states are those of `windrow.topology.frame_state`.
    """

    __slots__ = ()
