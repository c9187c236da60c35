"""Compute histograms with numpy: edges that are even near 0 and logarithmic beyond, and counts between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt
import numpy as np
import numpy.typing as npt

from windrow.reading.plot.theme import Rows

Numbers = npt.NDArray[Any]

BINS = 50  # of a histogram
STEPS = [factor * 10**power for power in range(18) for factor in (1, 2, 5)]
UNITS = {"ms": 1, "s": 1_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
ROUND_TIMES = [count * 10**power for power in range(3) for count in (1, 2, 5)]
ROUND_TIMES += [count * UNITS[unit] for unit in ("s", "min") for count in (1, 2, 5, 10, 20, 30)]
ROUND_TIMES += [count * UNITS["h"] for count in (1, 2, 6, 12)] + [10**power * UNITS["d"] for power in range(8)]

# Vega expressions for the labels of axes of counts and of milliseconds.
SHORT_COUNTS = "format(datum.value, '~s')"
SHORT_TIMES = "datum.value < 1000 ? datum.value + (datum.value ? ' ms' : '') : format(datum.value / 1000, ',') + ' s'"


@dataclass(frozen=True, slots=True)
class Edges:
    """Where each bin begins and the last one ends, with a matching `scale` and `axis`."""

    at: Numbers
    scale: alt.Scale
    axis: alt.Axis


def counts(values: Numbers) -> Edges:
    """Return edges for counts."""
    at = _edges(0.9 * values.min(), 1.1 * values.max(), 1.0)
    labelled = [step for step in STEPS if at[0] <= step <= at[-1]]
    return Edges(at, _scale(at, 1.0), alt.Axis(values=labelled, labelExpr=SHORT_COUNTS, title=None))


def times(low: float, high: float, borders: Sequence[float] = ()) -> Edges:
    """Return edges in whole milliseconds on both sides of 0, with an edge at each border."""
    at = _edges(low, high, 20.0, borders)
    return Edges(at, _scale(at, 20.0), ticks(float(at[0]), float(at[-1]), least=10))


def _edges(low: float, high: float, even: float, borders: Sequence[float] = ()) -> Numbers:
    """Return whole numbers spaced like Vega's symlog scale, which is nearly even up to `even`."""
    ends = np.array([low, high, *borders])
    first, last, *at_borders = np.sign(ends) * np.log1p(np.abs(ends) / even)
    places = np.linspace(first, last, BINS + 10)
    gap = (places[1] - places[0]) / 2
    apart = np.abs(places[:, None] - np.array(at_borders)[None, :]).min(axis=1, initial=np.inf) > gap
    spaced = np.rint(np.sign(places) * np.expm1(np.abs(places)) * even)[apart]
    return np.unique(np.concatenate([spaced, np.floor([low]), np.floor([high]) + 1, np.asarray(borders, np.float64)]))


def _scale(at: Numbers, even: float) -> alt.Scale:
    return alt.Scale(type="symlog", constant=even, domain=[float(at[0]), float(at[-1])], nice=False, zero=False)


def ticks(low: float, high: float, least: int = 1) -> alt.Axis:
    """Return an axis of milliseconds, labelled at the round times between low and high that are at least `least`."""
    above = [at for at in ROUND_TIMES if at >= least]
    values = [at for at in (*(-at for at in reversed(above)), 0, *above) if low <= at <= high]
    words = ", ".join(f"'{at}': '{time_text(at)}'" for at in values)
    expression = f"({{{words}}})[datum.value]"
    return alt.Axis(values=values, labelExpr=expression, labelOverlap="greedy", labelSeparation=8, title=None)


def time_text(milliseconds: float) -> str:
    """Return a time as people say it: `250 ms`, `7.2 s`, `3 min`."""
    if not milliseconds:
        return "0"
    size = abs(milliseconds)
    unit = max((unit for unit in UNITS if UNITS[unit] <= size), key=UNITS.__getitem__, default="ms")
    return f"{milliseconds / UNITS[unit]:.3g} {unit}".replace("-", "\N{MINUS SIGN}")


def count_by_bin(values: Numbers, names: Numbers, weights: Numbers, edges: Edges) -> Rows:
    """Return a row for each non-empty bin of each name; each value has a name and a weight."""
    rows: Rows = []
    for name in np.unique(names).tolist():
        mine = names == name
        count, _ = np.histogram(values[mine], edges.at, weights=weights[mine])
        for place in np.flatnonzero(count).tolist():
            low, high = edges.at[place : place + 2].tolist()
            rows.append({"name": name, "low": low, "high": high, "count": int(count[place])})
    return rows
