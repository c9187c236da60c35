"""What `combine` does with a value: the aggregate of the new rows, and how it joins the previous value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from windrow.topology.state import State

Operation = Literal["sum", "min", "max", "count", "first", "last"]
OPERATIONS = get_args(Operation)
Given: TypeAlias = "Operation | tuple[str, Operation] | tuple[str, Operation, str]"


@dataclass(frozen=True, slots=True)
class Aggregation:
    """An operation on the column `input` (None: `count` of all rows); `first` and `last` in the order of `by`."""

    value: str
    input: str | None
    operation: str
    by: str | None


def parse_aggregations(state: State, aggregations: Mapping[str, Given], columns: list[str]) -> list[Aggregation]:
    """Return what `combine` was asked to do with rows that have these columns. Raises TopologyError."""
    unknown = [name for name in aggregations if name not in state.values.names]
    if unknown:
        hint = f"The values of the state are {', '.join(state.values.names)}."
        raise state.refusal("combine", f"has no value {unknown[0]!r}", hint)
    aggregations_ = [_combined(state, value, aggregation) for value, aggregation in aggregations.items()]
    if not aggregations_:
        raise state.refusal("combine", "combines nothing", 'Write for example total=("amount", "sum").')
    for aggregation in aggregations_:
        for name in (aggregation.input, aggregation.by):
            if name is not None and name not in columns:
                hint = f"The rows have {', '.join(columns)}."
                raise state.refusal(
                    "combine", f"takes {aggregation.value} from a column {name!r} that does not exist", hint
                )
    if len({aggregation.by for aggregation in aggregations_ if aggregation.operation in ("first", "last")}) > 1:
        raise state.refusal("combine", "orders rows in two ways", "Use one column for all of first and last.")
    return aggregations_


def _combined(state: State, value: str, aggregation: Given) -> Aggregation:
    match aggregation:
        case "count":
            return Aggregation(value, None, "count", None)
        case (str(column), operation) if operation in OPERATIONS:
            return Aggregation(value, column, operation, None)
        case (str(column), "first" | "last" as operation, str(by)):
            return Aggregation(value, column, operation, by)
    raise state.refusal(
        "combine",
        f"cannot read {value}={aggregation!r}",
        f'Write {value}=("column", "sum"), with {", ".join(OPERATIONS)}; "count" alone counts rows.',
    )
