"""Declare a topology: its depots, its states, the functions of its microbatches, its events and outputs."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args

import pyarrow as pa

from windrow.delta.locations import require_safe
from windrow.errors import TopologyError
from windrow.model import tables
from windrow.model.durations import microseconds
from windrow.topology.columns import columns_of, keys_of
from windrow.topology.event import Event, OnMissed
from windrow.topology.state import DUE, Migrate, State, Timer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OWN = {"id", "state", "known", "changed", "due", *(name for name, _ in tables.ROW_FIELDS)}
NAME = re.compile(r"[a-zA-Z][a-zA-Z0-9_-]*")
# A key is forgotten up to a hundredth of its time to live late: nobody minds, and the functions are not called for each
# time of a message. A guess.
TTL_PARTS = 100
# Spark would send the ids of millions of keys, which compress well, to the driver, whose heap they may fill.
SORTED = "/*+ MERGE(latest) */ "
NO_COLUMNS = pa.schema([])
Form = Literal["arrow", "spark"]
F = TypeVar("F", bound=Callable[[Any], None])


@dataclass(frozen=True, slots=True)
class Depot:
    """An append-only Delta table. `location` is a path or catalog name, `start_from` is as in `windrow.toml`.

    A table with the columns of messages is read as messages, after mapping `columns` (as `[depot.columns]`). A raw
    depot is read by the `[format]` of the settings, the ledger of a batcher as its closed batches, and any other table
    as its own rows. With `state`, a topology's table of states is read as what each of its microbatches changed in this
    state.

    If several depots have reached the same time, the one with the smallest `priority` is read first. `fed_by` is the
    topology whose output or state the depot is. In step, other depots do not overtake it: they wait for what that
    topology has not read yet, but not longer than `wait` after it stopped (such as `10m`; forever by default).
    """

    location: str
    start_from: str | None = None
    columns: Mapping[str, str] = field(default_factory=dict)
    priority: int = 0
    state: str | None = None
    fed_by: Topology | None = None
    wait: str | None = None


@dataclass(frozen=True, slots=True)
class Function:
    """A function of microbatches, on Arrow tables or on Spark DataFrames."""

    call: Callable[[Any], None]
    form: Form

    @property
    def name(self) -> str:
        """Return its name."""
        return str(getattr(self.call, "__name__", self.call))


class Topology:
    """Depots, and the states that functions compute from them.

    `states` is the path or catalog name of the table of all states. `depots` are locations, or locations or `Depot`s by
    name; a location without a name is named by its last part. `outputs` are the locations, by name, of depots to which
    functions append. With `in_step`, no depot is read beyond the time that all others have reached.
    """

    def __init__(
        self,
        name: str,
        depots: Iterable[str] | Mapping[str, str | Depot],
        states: str,
        in_step: bool = False,
        outputs: Mapping[str, str] | None = None,
    ) -> None:
        """Declare a topology without states.

        Args:
            name: The name of the topology.
            depots: Locations, or locations or `Depot`s by name; a location without a name is named by its last part.
            states: The path or catalog name of the table of all states.
            in_step: Read no depot beyond the time that all others have reached.
            outputs: The locations, by name, of depots to which functions append.

        Raises:
            TopologyError: A name is invalid, or two tables are one.

        Example:
            >>> windrow.Topology("counts", {"readings": "data/depot"}, "data/states").name
            'counts'
        """
        _require_name(name, "topology")
        self.name, self.location, self.in_step = name, states, in_step
        self.depots, self.outputs = _name_depots(depots), dict(outputs or {})
        for output, location in self.outputs.items():
            _require_name(output, "output")
            require_safe(f"output {output}", location)
        for depot, declared in self.depots.items():
            require_safe(f"depot {depot}", declared.location)
            _require_fed(depot, declared)
        require_safe("states", states)
        self.states: dict[str, State] = {}
        self.functions: list[Function] = []
        self.events: dict[str, Event] = {}

    def state(
        self,
        name: str,
        value: str,
        key: str = "",
        initial: Mapping[str, Any] | None = None,
        ttl: str | None = None,
        version: int = 1,
        migrate: Migrate | None = None,
    ) -> None:
        """Declare a state with SQL columns; without a `key` it is one row.

        `initial` has the values of a key that was never written, by column. With a time to live such as `ttl="1h"`, a
        key that was not written for that long is deleted; its column `due` says when.

        Columns that are added later start with their initial values. Any other change of the columns needs a greater
        `version`, and `migrate` if a key or a type changes: it gets all rows with their old columns, and returns them
        with the new ones. Raises TopologyError.
        """
        keys, values = self._columns(name, key, columns_of(value))
        lives = None if ttl is None else _interval(ttl, f"{name}: ttl")
        shown = values if lives is None else values.append(DUE)
        self._declare(State(name, keys, shown, _initial(name, values, initial or {}), lives, version, migrate))

    def timer(
        self,
        name: str,
        key: str = "",
        payload: str = "",
        cancel_after: str | None = None,
        min_delay: str = "0s",
        version: int = 1,
        migrate: Migrate | None = None,
    ) -> None:
        """Declare a timer with SQL columns: functions set it with `Microbatch.schedule`, one for each key.

        Without a `key` there is one. A timer that is overdue by more than `cancel_after` does not fire; by default each
        fires once, however late. `min_delay` promises that each is due at least that long after the message that sets
        it; with `in_step`, a function then gets the messages of such a span at once. `version` and `migrate` are as in
        a state. Raises TopologyError.
        """
        keys, values = self._columns(name, key, columns_of(payload) if payload else NO_COLUMNS)
        late = None if cancel_after is None else microseconds(cancel_after, f"{name}: cancel_after")
        delay = microseconds(min_delay, f"{name}: min_delay")
        declared = pa.schema([DUE, *values])
        self._declare(Timer(name, keys, declared, version=version, migrate=migrate, cancel_after=late, min_delay=delay))

    @property
    def step_length(self) -> int:
        """Return how long a step may be (microseconds) so that no timer is both set and due in it."""
        due = [state for state in self.states.values() if state.falls_due]
        return min(
            (
                declared.min_delay if isinstance(declared, Timer) else (declared.ttl or 0) // TTL_PARTS
                for declared in due
            ),
            default=0,
        )

    def _declare(self, state: State) -> None:
        if state.version < 1:
            raise TopologyError(
                f"{state.name}: version={state.version!r} is not a version", "Use a whole number of at least 1."
            )
        self.states[state.name] = state
        self.schema()

    def _columns(self, name: str, key: str, values: pa.Schema) -> tuple[pa.Schema, pa.Schema]:
        """Return the columns of a new state. Raises TopologyError."""
        _require_name(name, "state")
        if name in self.states or name in self.events:
            raise TopologyError(f"there are two states or events {name!r}", "Rename one.")
        if name in (*tables.FINAL, *tables.CONTROL, tables.OPEN):
            raise TopologyError(f"a state cannot be called {name!r}", "Windrow reserves this name: choose another.")
        keys = keys_of(key) if key else NO_COLUMNS
        both = set(keys.names) & set(values.names)
        if both:
            raise TopologyError(f"{name}: {min(both)!r} is both key and value", "Rename one of them.")
        for column in (*keys.names, *values.names):
            if column.lower() in OWN or tables.OF_VERSION in column:
                raise TopologyError(
                    f"{name}: a column cannot be called {column!r}", "Windrow reserves this name: choose another."
                )
        return keys, values

    def function(self, function: F) -> F:
        """Decorate a function of the microbatches; functions are called in the order of their declaration.

        The annotation of its parameter says what it works with: `Microbatch` (Arrow tables, on both engines) or
        `SparkMicrobatch` (DataFrames, on Spark). Raises TopologyError.
        """
        self.functions.append(Function(function, _form(function)))
        return function

    def event(self, name: str, every: str, on_missed: OnMissed = "once") -> None:
        """Declare an event that is due `every` interval; missed ones fire `once` or are left out (`skip`).

        Raises TopologyError.
        """
        _require_name(name, "event")
        if name in self.events or name in self.states:
            raise TopologyError(f"there are two events or states {name!r}", "Rename one.")
        if on_missed not in get_args(OnMissed):
            raise TopologyError(f"event {name}: on_missed={on_missed!r}", f"Use {' or '.join(get_args(OnMissed))}.")
        self.events[name] = Event(name, _interval(every, f"event {name}: every"), on_missed)

    def with_locations(
        self, depots: Mapping[str, Depot], states: str, outputs: Mapping[str, str] | None = None
    ) -> Topology:
        """Return the same topology with other tables."""
        other = Topology(self.name, depots, states, self.in_step, outputs or self.outputs)
        other.states, other.functions, other.events = self.states, self.functions, self.events
        return other

    def read(
        self,
        state: str,
        keys: Iterable[Mapping[str, Any]] | None = None,
        at: int | None = None,
        spark: SparkSession | None = None,
    ) -> pa.Table:
        """Return the rows of a state in the order of their keys, all or those under some `keys` (column to value).

        Keys may leave out their last columns. A state without a key has one row, with its initial values until it is
        written. With `at`, rows and columns are those after this microbatch. A table in a catalog is read with Spark.
        Raises NotFoundError, TableMissingError, TopologyError.
        """
        from windrow.topology.reading import rows_of

        if state not in self.states:
            raise TopologyError(f"there is no state {state!r}", f"The states are {', '.join(self.states)}.")
        return self.states[state].fill_initial(rows_of(self.location, self.states[state], keys, at, spark))

    @property
    def settings(self) -> str:
        """Return what the history records of it: its depots, states and events (JSON)."""
        states = {
            state.name: {field.name: str(field.type) for field in state.columns} for state in self.states.values()
        }
        timers = [state.name for state in self.states.values() if isinstance(state, Timer)]
        events = {event.name: {"every_us": event.every, "overdue": event.on_missed} for event in self.events.values()}
        recorded = {
            "topology": self.name,
            "depots": list(self.depots),
            "states": states,
            "keys": {state.name: state.keys.names for state in self.states.values()},
            "versions": {state.name: state.version for state in self.states.values() if state.version > 1},
            "events": events,
            "timers": timers,
        }
        return json.dumps(recorded, sort_keys=True)

    def schema(self, *, raw: bool = False) -> pa.Schema:
        """Return the columns of the table of states. Raises TopologyError for a name with two types."""
        fields = {field.name.lower(): (field, "Windrow's own table") for field in tables.topology_schema(raw=raw)}
        for state in self.states.values():
            for column in state.stored:
                known, where = fields.setdefault(column.name.lower(), (column, f"the state {state.name}"))
                if (known.name, known.type) != (column.name, column.type):
                    raise TopologyError(
                        f"{state.name}: the column {column.name!r} is {column.type} here, but in {where} "
                        f"{known.name!r} is {known.type}",
                        "Give columns of different types different names, since all states are in one table.",
                    )
        return pa.schema([field for field, _ in fields.values()])

    def views(self, table: str) -> dict[str, str]:
        """Return the SQL of a view over each state, `<topology>_<state>`, of a table reference."""
        result = {}
        for state in self.states.values():
            rows = tables.live_rows(table, _of(state.name), SORTED)
            # without a key there is always one row
            rows = f"({rows})" if state.keys.names else f"(SELECT 1 AS one) LEFT JOIN ({rows}) ON true"
            result[f"{self.name}_{state.name}".replace("-", "_")] = (
                f"SELECT {', '.join(_select_columns(state))} FROM {rows}"
            )
        return result


def _select_columns(state: State) -> Iterator[str]:
    """Yield the SQL of each column of a state; one without a key has its initial values until it is written."""
    for name, stored in zip(state.columns.names, state.stored.names, strict=True):
        if name in state.initial and not state.keys.names:
            yield f"if(id IS NULL, {_sql(state.initial[name], state.values.field(name).type)}, `{stored}`) AS `{name}`"
        else:
            yield f"`{name}`" if name == stored else f"`{stored}` AS `{name}`"


def _sql(value: Any, type_: pa.DataType) -> str:
    """Return a value as Spark SQL."""
    from pyspark.sql.pandas.types import from_arrow_type

    kind, nested = from_arrow_type(type_).simpleString(), pa.types.is_nested(type_)
    if value is None:
        return f"CAST(NULL AS {kind})"
    if pa.types.is_binary(type_):
        return f"X'{value.hex()}'"
    plain = dict(value) if pa.types.is_map(type_) else value
    text = (json.dumps(plain, default=str) if nested else str(value)).replace("\\", "\\\\").replace("'", "\\'")
    return f"from_json('{text}', '{kind}')" if nested else f"CAST('{text}' AS {kind})"


def _of(state: str) -> str:
    """Return the SQL condition for the rows of a state."""
    return f"state = '{state}'"


def _initial(state: str, values: pa.Schema, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return initial values. Raises TopologyError for those that are not of the declared types."""
    for name, value in options.items():
        if name not in values.names:
            raise TopologyError(f"{state}: initial has no value {name!r}", f"The values are {', '.join(values.names)}.")
        try:
            pa.scalar(value, values.field(name).type)
        except (pa.ArrowInvalid, pa.ArrowTypeError, TypeError) as error:
            raise TopologyError(
                f"{state}: the initial {name} is {value!r}: {error}", "Give it the declared type."
            ) from error
    return dict(options)


def _interval(text: str, name: str) -> int:
    """Return an interval in microseconds. Raises TopologyError if it is none."""
    if interval := microseconds(text, name):
        return interval
    raise TopologyError(f"{name}={text!r} is not an interval", "Use a positive one, such as 1h.")


def _require_name(name: str, what: str) -> None:
    if not NAME.fullmatch(name):
        raise TopologyError(f"{name!r} cannot name a {what}", "Use letters, digits, _ and -, with a letter first.")


def _name_depots(depots: Iterable[str] | Mapping[str, str | Depot]) -> dict[str, Depot]:
    """Return depots by their names."""
    if isinstance(depots, str):
        raise TopologyError(f"depots={depots!r} is not a list", f"Write depots=[{depots!r}].")
    if isinstance(depots, Mapping):
        depots_by_name = dict(depots)
    else:
        listed = list(depots)
        depots_by_name = {re.split(r"[/.]", location.rstrip("/"))[-1]: location for location in listed}
        if len(depots_by_name) < len(listed):
            raise TopologyError(
                "two depot locations have the same last part", "Name them: depots={'name': 'location', ...}."
            )
    if not depots_by_name:
        raise TopologyError("the topology has no depot", "Add at least one: depots=[...].")
    for name in depots_by_name:
        _require_name(name, "depot")
    return {name: depot if isinstance(depot, Depot) else Depot(depot) for name, depot in depots_by_name.items()}


def _require_fed(name: str, depot: Depot) -> None:
    """Raise TopologyError if a topology does not feed the depot that it is declared to feed."""
    if depot.wait is not None:
        microseconds(depot.wait, f"depot {name}: wait")
    if depot.fed_by is None:
        if depot.wait is not None:
            raise TopologyError(f"depot {name}: wait needs the topology to wait for", "Declare it: fed_by=topology.")
        return
    fed = [depot.fed_by.location] if depot.state else list(depot.fed_by.outputs.values())
    if depot.location.rstrip("/") not in [place.rstrip("/") for place in fed]:
        what = "has its states" if depot.state else "has no output"
        where = f"at {fed[0]}, not" if depot.state else "at"
        raise TopologyError(
            f"depot {name}: the topology {depot.fed_by.name} {what} {where} {depot.location}",
            "Write the location as that topology does.",
        )


def _form(function: Callable[[Any], None]) -> Form:
    """Return what a function works with, by the annotation of its parameter."""
    annotations = [value for name, value in getattr(function, "__annotations__", {}).items() if name != "return"]
    annotation = annotations[0] if annotations else None
    name = (
        annotation.strip("'\"").rsplit(".", 1)[-1]
        if isinstance(annotation, str)
        else getattr(annotation, "__name__", None)
    )
    if name == "Microbatch":
        return "arrow"
    if name == "SparkMicrobatch":
        return "spark"
    raise TopologyError(
        f"the parameter of the function {getattr(function, '__name__', function)} has no annotation",
        "Annotate it: microbatch: Microbatch for Arrow tables, microbatch: SparkMicrobatch for Spark DataFrames.",
    )
