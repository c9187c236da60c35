"""Compute histograms with numpy: edges at round numbers, and stacked counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Numbers = npt.NDArray[Any]

BINS, FEWEST = 50, 9  # of a histogram; fewer bins are drawn with room on both sides
WIDE = 40  # times the median: above it a logarithmic scale shows more
STEPS = [factor * 10**power for power in range(18) for factor in (1, 2, 5)]
NEAR = 20.0  # milliseconds: nearer to 0 the scale of times is even, beyond it logarithmic
UNITS = {"ms": 1, "s": 1_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
EVEN = {"ms": (1, 2, 5, 10, 20, 50, 100, 200, 500), "s": (1, 2, 5, 10, 15, 30), "min": (1, 2, 5, 10, 15, 30)}
EVEN |= {"h": (1, 2, 3, 6, 12), "d": (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000)}
LADDER = [1, 10, 100, 1_000, 10_000, 60_000, 600_000, 3_600_000, 36_000_000, 86_400_000]
LADDER += [864_000_000 * 10**power for power in range(6)]


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
    if high > WIDE * max(middle, 1):
        at = np.unique(np.rint(np.geomspace(max(low, 1), high + 1, BINS // 2)).astype(np.int64))
        powers = [10**power for power in range(19) if low <= 10**power <= high]
        scale = {"type": "symlog", "constant": 1, "domain": [low, high + 1], "nice": False}
        return Edges(np.unique(np.append(at, low)), scale, {"values": powers})
    return even(low, high)


def even(low: int, high: int) -> Edges:
    """Return even edges from one whole number to another."""
    step = next(step for step in STEPS if step * BINS > high - low)
    at = np.arange(low // step * step, high + step, step)
    at = np.append(at, at[-1] + step) if at[-1] <= high else at
    room = max(0, FEWEST - len(at) + 1) * step // 2
    return Edges(at, {"domain": [max(0, int(at[0]) - room) if low >= 0 else int(at[0]), int(at[-1]) + room]})


def times(low: float, high: float, borders: Sequence[float] = ()) -> Edges:
    """Return edges in whole milliseconds, logarithmic on both sides of 0, with an edge at each border."""
    first, last, *at_borders = _bent(np.array([low, high, *borders]))
    places = np.linspace(first, last, BINS + 10)
    gap = (places[1] - places[0]) / 2
    apart = np.abs(places[:, None] - np.array(at_borders)[None, :]).min(axis=1, initial=np.inf) > gap
    spaced = np.rint(np.sign(places) * np.expm1(np.abs(places)) * NEAR)[apart]
    at = np.unique(np.concatenate([spaced, np.floor([low]), np.floor([high]) + 1, np.asarray(borders, np.float64)]))
    scale = {"type": "symlog", "constant": NEAR, "domain": [float(at[0]), float(at[-1])], "nice": False, "zero": False}
    return Edges(at, scale, ticks(at[0], at[-1], least=10) | {"labelSeparation": 8})


def _bent(milliseconds: Numbers) -> Numbers:
    """Return the positions of times on Vega's symlog scale."""
    return np.sign(milliseconds) * np.log1p(np.abs(milliseconds) / NEAR)


def ticks(low: float, high: float, least: int = 1) -> dict[str, Any]:
    """Return an axis of milliseconds labelled at the round times between low and high; `least` is the shortest."""
    ladder = [at for at in LADDER if at >= least]
    around = [0, *ladder, *(-at for at in ladder)]
    return _worded(sorted(at for at in around if low <= at <= high)) | {"labelOverlap": "greedy"}


def even_ticks(high: float) -> dict[str, Any]:
    """Return an axis of milliseconds from 0 on an even scale, labelled at a few round times."""
    sizes = [number * UNITS[unit] for unit, numbers in EVEN.items() for number in numbers]
    step = next((size for size in sizes if size * 5 >= high), high)
    return _worded([place * step for place in range(int(high // step) + 1)])


def _worded(there: Sequence[float]) -> dict[str, Any]:
    words = "{" + ", ".join(f"'{at}': '{time_text(at)}'" for at in there) + "}"
    return {"values": there, "labelExpr": f"({words})[datum.value]"}


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
    return pa.table(
        {
            "low": edges.at[place].astype(np.float64),
            "high": edges.at[place + 1].astype(np.float64),
            "name": np.array(order, np.str_)[kind],
            "count": counted[kind, place].astype(np.int64),
            "base": (tops - counted)[kind, place].astype(np.int64),
            "top": tops[kind, place].astype(np.int64),
        }
    )
