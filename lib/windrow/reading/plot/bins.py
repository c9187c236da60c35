"""Compute histograms with numpy: edges at round numbers, and stacked counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Numbers = npt.NDArray[Any]

BINS, MIN_BINS = 50, 9  # of a histogram; fewer bins are drawn with room on both sides
WIDE = 40  # times the median: above it a logarithmic scale shows more
STEPS = [factor * 10**power for power in range(18) for factor in (1, 2, 5)]
EVEN_UP_TO = 20.0  # milliseconds: nearer to 0 the scale of times is even, beyond it logarithmic
UNITS = {"ms": 1, "s": 1_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
ROUND_TIMES = [1, 10, 100, 1_000, 10_000, 60_000, 600_000, 3_600_000, 36_000_000, 86_400_000]
ROUND_TIMES += [864_000_000 * 10**power for power in range(6)]

# How axes of counts and of milliseconds are labelled, in Vega's expressions.
SHORT_COUNTS = "format(datum.value, '~s')"
SHORT_TIMES = "datum.value < 1000 ? datum.value + (datum.value ? ' ms' : '') : format(datum.value / 1000, ',') + ' s'"


@dataclass(frozen=True, slots=True)
class Edges:
    """Where each bin begins and the last one ends; `scale` and `axis` are Vega's."""

    at: Numbers
    scale: dict[str, Any]
    axis: dict[str, Any] = field(default_factory=lambda: {"tickCount": 6})


def counts(values: Numbers) -> Edges:
    """Return edges for counts from 0: even, or logarithmic if the largest is far above the median."""
    low, high, middle = int(values.min()), int(values.max()), float(np.median(values))
    if high <= WIDE * max(middle, 1):
        return even(low, high)
    at = np.unique(np.rint(np.geomspace(max(low, 1), high + 1, BINS // 2)).astype(np.int64))
    powers = [10**power for power in range(19) if low <= 10**power <= high]
    scale = {"type": "symlog", "constant": 1, "domain": [low, high + 1], "nice": False}
    return Edges(np.unique(np.append(at, low)), scale, {"values": powers})


def even(low: int, high: int) -> Edges:
    """Return even edges from one whole number to another."""
    step = next(step for step in STEPS if step * BINS > high - low)
    at = np.arange(low // step * step, high + step, step)
    at = np.append(at, at[-1] + step) if at[-1] <= high else at
    room = max(0, MIN_BINS - len(at) + 1) * step // 2
    return Edges(at, {"domain": [max(0, int(at[0]) - room) if low >= 0 else int(at[0]), int(at[-1]) + room]})


def times(low: float, high: float, borders: Sequence[float] = ()) -> Edges:
    """Return edges in whole milliseconds, logarithmic on both sides of 0, with an edge at each border."""
    ends = np.array([low, high, *borders])
    first, last, *at_borders = np.sign(ends) * np.log1p(np.abs(ends) / EVEN_UP_TO)  # as Vega's symlog scale
    places = np.linspace(first, last, BINS + 10)
    gap = (places[1] - places[0]) / 2
    apart = np.abs(places[:, None] - np.array(at_borders)[None, :]).min(axis=1, initial=np.inf) > gap
    spaced = np.rint(np.sign(places) * np.expm1(np.abs(places)) * EVEN_UP_TO)[apart]
    at = np.unique(np.concatenate([spaced, np.floor([low]), np.floor([high]) + 1, np.asarray(borders, np.float64)]))
    domain = [float(at[0]), float(at[-1])]
    scale = {"type": "symlog", "constant": EVEN_UP_TO, "domain": domain, "nice": False, "zero": False}
    return Edges(at, scale, ticks(domain[0], domain[1], least=10) | {"labelSeparation": 8})


def ticks(low: float, high: float, least: int = 1) -> dict[str, Any]:
    """Return an axis of milliseconds labelled at the round times between low and high; `least` is the shortest."""
    above = [at for at in ROUND_TIMES if at >= least]
    values = sorted(at for at in (0, *above, *(-at for at in above)) if low <= at <= high)
    words = ", ".join(f"'{at}': '{time_text(at)}'" for at in values)
    return {"values": values, "labelExpr": f"({{{words}}})[datum.value]", "labelOverlap": "greedy"}


def time_text(milliseconds: float) -> str:
    """Return a time as people say it: `250 ms`, `7.2 s`, `3 min`."""
    if not milliseconds:
        return "0"
    size = abs(milliseconds)
    unit = max((unit for unit in UNITS if UNITS[unit] <= size), key=UNITS.__getitem__, default="ms")
    return f"{milliseconds / UNITS[unit]:.3g} {unit}".replace("-", "\N{MINUS SIGN}")


def stacked(values: Numbers, names: Numbers, order: Sequence[str], weights: Numbers, edges: Edges) -> pa.Table:
    """Return a row for each bin and name that is not empty: low, high, name, count, and base and top in the stack.

    Each value has a name and a weight; `order` lists the names from the bottom of the stack.
    """
    kinds = np.arange(max(len(order), 1) + 1) - 0.5
    sorter = np.argsort(np.array(order, np.str_))
    code = sorter[np.searchsorted(np.array(order, np.str_), names.astype(np.str_), sorter=sorter)]
    counted, _, _ = np.histogram2d(code, values, (kinds, edges.at), weights=weights)
    tops = counted.cumsum(axis=0)
    kind, place = np.nonzero(counted)
    columns: dict[str, Numbers] = {
        "low": edges.at[place].astype(np.float64),
        "high": edges.at[place + 1].astype(np.float64),
    }
    columns["name"] = np.array(order, np.str_)[kind]
    numbers = {"count": counted, "base": tops - counted, "top": tops}
    return pa.table(columns | {name: number[kind, place].astype(np.int64) for name, number in numbers.items()})
