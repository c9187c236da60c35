"""The benchmarks: each a module with a function `measure`, whose docstring begins with what it is about."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from benchmarks.conditions import Conditions
from benchmarks.row import Measurement
from benchmarks.suite import (
    backlog,
    batch,
    commands,
    counts,
    delay,
    extremes,
    folds,
    formats,
    growth,
    kernel,
    memory,
    producer,
    proofs,
    small,
    soak,
    sources,
    start,
    state,
    store,
    topology,
    versions,
    window,
)


@dataclass(frozen=True, slots=True)
class Benchmark:
    """Its name, what it is about in a line, and the rows that it measures, each as soon as it is there."""

    name: str
    about: str
    measure: Callable[[Conditions], Iterator[Measurement]]


SUITES = (
    kernel, batch, backlog, small, delay, window, sources, versions, growth, commands, proofs, extremes, state,
    topology, folds, counts, store, memory, start, producer, formats, soak,
)  # fmt: skip
BENCHMARKS = {
    benchmark.name: benchmark
    for benchmark in (
        Benchmark(module.__name__.rpartition(".")[2], (module.__doc__ or "").splitlines()[0], module.measure)
        for module in SUITES
    )
}
