"""Declare a topology: its depots, its states with their functions, and its events."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, get_args, get_type_hints

import pyarrow as pa

from windrow.errors import TopologyRefused
from windrow.model import tables
from windrow.model.durations import microseconds
from windrow.topology.columns import columns_of, keys_of
from windrow.topology.depot import Depot
from windrow.topology.event import Event, Overdue
from windrow.topology.state import DELETED, Form, State

OWN = {"id", "state", "known", "changed", DELETED}
NAME = re.compile(r"[a-zA-Z][a-zA-Z0-9_-]*")
Function = Callable[[Any], Any]


class Topology:
    """Depots, and the states computed from them. `state` is the path or catalog name of the table of all states.

    `depots` are locations, or locations or `Depot`s by name; a location without a name is named by its last part. With
    `in_step`, no depot is read beyond the time that all others have reached.
    """

    def __init__(
        self,
        name: str,
        depots: Iterable[str] | Mapping[str, str | Depot],
        state: str,
        in_step: bool = False,
    ) -> None:
        """Declare a topology without states. Raises TopologyRefused."""
        _require_name(name, "topology")
        self.name, self.state, self.in_step = name, state, in_step
        self.depots = _named(depots)
        self.states: dict[str, State] = {}
        self.events: dict[str, Event] = {}

    def pstate(self, name: str, key: str, value: str, depot: str | None = None) -> Callable[[Function], Function]:
        """Declare a partitioned state with SQL columns, and decorate the function that changes it.

        The function gets each microbatch (with `depot`, only those of that depot) and returns the rows to write: key
        and value columns, and optionally `deleted` to delete keys. Its return annotation says whether it works with
        Arrow tables (`pa.Table`, on both engines) or Spark DataFrames (`DataFrame`). Raises TopologyRefused.
        """
        _require_name(name, "state")
        if name in self.states:
            raise TopologyRefused(f"there are two states {name!r}", "Rename one; each state has one function.")
        if name in (*tables.FINAL, *tables.CONTROL, tables.OPEN, tables.GONE):
            raise TopologyRefused(f"a state cannot be called {name!r}", "Windrow reserves this name: choose another.")
        self._require_depot(depot)
        keys, values = keys_of(key), columns_of(value)
        both = set(keys.names) & set(values.names)
        if both:
            raise TopologyRefused(f"{name}: {min(both)!r} is both key and value", "Rename one of them.")
        for column in (*keys.names, *values.names):
            if column.lower() in OWN:
                raise TopologyRefused(
                    f"{name}: a column cannot be called {column!r}", "Windrow reserves this name: choose another."
                )

        def declare(function: Function) -> Function:
            self.states[name] = State(name, keys, values, function, _form(name, function), depot)
            self.schema()
            return function

        return declare

    def event(self, name: str, every: str, overdue: Overdue = "once") -> None:
        """Declare an event that is due `every` interval; missed ones fire `once` or are left out (`skip`)."""
        _require_name(name, "event")
        if overdue not in get_args(Overdue):
            raise TopologyRefused(f"event {name}: overdue={overdue!r}", f"Use {' or '.join(get_args(Overdue))}.")
        if microseconds(every, f"event {name}: every") == 0:
            raise TopologyRefused(f"event {name}: every={every!r} is no interval", "Use a positive one, such as 1h.")
        self.events[name] = Event(name, microseconds(every, f"event {name}: every"), overdue)

    def placed(self, depots: Mapping[str, Depot], state: str) -> Topology:
        """Return the same topology with other tables."""
        other = Topology(self.name, depots, state, self.in_step)
        other.states, other.events = self.states, self.events
        return other

    @property
    def settings(self) -> str:
        """Return what the history records of it: its depots, states and events (JSON)."""
        states = {
            state.name: {field.name: str(field.type) for field in (*state.keys, *state.values)}
            for state in self.states.values()
        }
        events = {event.name: event.recorded() for event in self.events.values()}
        return json.dumps(
            {"topology": self.name, "depots": list(self.depots), "states": states, "events": events}, sort_keys=True
        )

    def schema(self, *, raw: bool = False) -> pa.Schema:
        """Return the columns of the table of states. Raises TopologyRefused for a name with two types."""
        fields = {field.name.lower(): (field, "Windrow's own table") for field in tables.topology_schema(raw=raw)}
        for state in self.states.values():
            for field in (*state.keys, *state.values):
                known, where = fields.setdefault(field.name.lower(), (field, f"the state {state.name}"))
                if (known.name, known.type) != (field.name, field.type):
                    raise TopologyRefused(
                        f"{state.name}: the column {field.name!r} is {field.type} here, in {where} {known.name!r} is "
                        f"{known.type}",
                        "Give columns of different types different names, since all states are in one table.",
                    )
        return pa.schema([field for field, _ in fields.values()])

    def views(self, table: str) -> dict[str, str]:
        """Return the SQL of a view over each state, `<topology>_<state>`, of a table reference."""
        return {
            f"{self.name}_{state.name}".replace("-", "_"): (
                f"SELECT {', '.join(f'`{name}`' for name in state.columns.names)} FROM {table} "
                f"WHERE state = '{state.name}'"
            )
            for state in self.states.values()
        }

    def _require_depot(self, name: str | None) -> None:
        if name is not None and name not in self.depots:
            raise TopologyRefused(f"there is no depot {name!r}", f"The depots are {', '.join(self.depots)}.")


def _require_name(name: str, what: str) -> None:
    if not NAME.fullmatch(name):
        raise TopologyRefused(f"{name!r} cannot name a {what}", "Use letters, digits, _ and -, with a letter first.")


def _named(depots: Iterable[str] | Mapping[str, str | Depot]) -> dict[str, Depot]:
    """Return depots by their names."""
    if isinstance(depots, str):
        raise TopologyRefused(f"depots={depots!r} is not a list", f"Write depots=[{depots!r}].")
    if isinstance(depots, Mapping):
        given = dict(depots)
    else:
        listed = list(depots)
        given = {re.split(r"[/.]", location.rstrip("/"))[-1]: location for location in listed}
        if len(given) < len(listed):
            raise TopologyRefused("two depots have the same last part", "Name them: depots={'name': 'location', ...}.")
    if not given:
        raise TopologyRefused("the topology has no depot", "Add at least one: depots=[...].")
    for name in given:
        _require_name(name, "depot")
    return {name: depot if isinstance(depot, Depot) else Depot(depot) for name, depot in given.items()}


def _form(state: str, function: Function) -> Form:
    """Return whether a function works with Arrow or Spark, by its return annotation."""
    annotation = getattr(function, "__annotations__", {}).get("return")
    if isinstance(annotation, str):
        try:
            annotation = get_type_hints(function).get("return")
        except NameError:
            annotation = str(annotation).strip("'\"").rsplit(".", 1)[-1]  # imported for type checkers only
    name = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", None)
    if name == "Table":
        return "arrow"
    if name == "DataFrame":
        return "spark"
    raise TopologyRefused(
        f"the function of the state {state} has no return annotation",
        "Annotate it: -> pa.Table for Arrow tables on both engines, -> DataFrame for Spark DataFrames.",
    )
