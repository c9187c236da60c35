"""Check the history against itself, the progress and the rows: what each microbatch recorded."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.verify.columns import NONE, exploded, fewer, flags, kept, numbers, pairwise
from windrow.verify.report import Difference, differing, unequal
from windrow.verify.snapshot import Snapshot

KINDS = ("data", "tick", "flush", "rules", "pause", "resume", "accept")
COUNTS = ["microbatch", "kind", "messages_read", "accepted", "rejected", "opened", "closed"]


def check_history(snapshot: Snapshot) -> Iterator[Difference]:
    """Check numbers, counts and clocks of the history."""
    yield from unequal("progress row", 1, snapshot.progress_rows, "progress rows")
    yield from _books(snapshot)
    yield from _numbers(snapshot)
    yield from _progress(snapshot)
    yield from _counts(snapshot)
    yield from _rows_by_microbatch(snapshot)
    yield from _versions(snapshot)
    yield from _clocks(snapshot)


def _books(snapshot: Snapshot) -> Iterator[Difference]:
    """Check that the books balance: messages read = messages in batches + rejected."""
    held = snapshot.messages.num_rows + snapshot.rejections.num_rows
    what = "messages in batches and rejections"
    yield from unequal("balance", messages_read(snapshot), held, what)


def _numbers(snapshot: Snapshot) -> Iterator[Difference]:
    """Check that microbatches count from 1 to the one in the progress, and never go back in the depot."""
    history = snapshot.history
    number, reached = numbers(history["microbatch"]), numbers(history["depot_version"])
    wrong = number != np.arange(1, number.size + 1)
    first = kept(history, wrong, ["id", "microbatch", "kind"]).slice(0, 1)
    yield from differing("microbatch numbers", "1, 2, 3, ...", first, "gap or repetition")
    yield from unequal("last microbatch", snapshot.progress.microbatch, history.num_rows, "microbatches")
    rows = kept(history, pairwise(reached, np.less, first=False), ["id", "microbatch", "depot_version"])
    yield from differing("depot versions", "never decreasing", rows, "microbatches that go back")


def _progress(snapshot: Snapshot) -> Iterator[Difference]:
    """Check that the progress is as the last microbatch left it."""
    last = snapshot.history.slice(max(snapshot.history.num_rows - 1, 0)).select(
        ["microbatch", "depot_version", "rules"]
    )
    progress = snapshot.progress
    here = pc.and_(pc.equal(last["depot_version"], progress.depot_version), pc.equal(last["rules"], progress.rules))
    expected = f"depot version {progress.depot_version} and rules {progress.rules}, as in the progress"
    yield from differing("progress", expected, kept(last, ~flags(here)), "last microbatch that left another")


def _counts(snapshot: Snapshot) -> Iterator[Difference]:
    """Check the counts of each row, and the sums of opened and closed against the batches."""
    history = snapshot.history
    columns = {name: numbers(history[name]) for name in COUNTS if name != "kind"}
    sums = columns["accepted"] + columns["rejected"] == columns["messages_read"]
    sensible = np.logical_and.reduce([column >= 0 for column in columns.values()])
    rows = kept(history, ~(sums & sensible), COUNTS)
    yield from differing("counts", "accepted + rejected = messages read", rows, "microbatches")
    known = flags(pc.is_in(history["kind"], pa.array(KINDS)))
    silent = flags(pc.equal(history["kind"], "data")) | (columns["messages_read"] == 0)
    rows = kept(history, ~(known & silent), COUNTS)
    yield from differing("kinds", "messages only in data microbatches", rows, "microbatches")
    states = snapshot.batches["state"]
    still_open, closed = (int(pc.sum(pc.equal(states, state)).as_py() or 0) for state in ("open", "closed"))
    left = int(columns["opened"].sum() - columns["closed"].sum())
    yield from unequal("open batches", left, still_open, "open batches")
    yield from unequal("closed batches", int(columns["closed"].sum()), closed, "closed batches")


def _rows_by_microbatch(snapshot: Snapshot) -> Iterator[Difference]:
    """Check that each microbatch left as many rejections and closed batches as it recorded."""
    number = numbers(snapshot.history["microbatch"])
    closed = snapshot.batches.filter(pc.equal(snapshot.batches["state"], "closed"))
    for what, by in (("rejected", snapshot.rejections["microbatch"]), ("closed", closed["closed_in"])):
        of = numbers(by)
        place = np.searchsorted(number, of)
        named = np.isin(of, number)
        found = np.bincount(place[named], minlength=number.size)
        wrong = found != numbers(snapshot.history[what])
        rows = kept(snapshot.history, wrong, COUNTS).append_column("found", pa.array(found[wrong]))
        yield from differing(f"{what} by microbatch", f"as many rows as {what} says", rows, "microbatches")
        strays = int((~named).sum())
        yield from unequal(f"{what} by microbatch", 0, strays, "rows of microbatches that never were")


def _versions(snapshot: Snapshot) -> Iterator[Difference]:
    """Check that the depot versions of a microbatch follow those of the one before, and that their messages add up."""
    history, lists = snapshot.history, versions_read(snapshot)
    reached = numbers(history["depot_version"])
    before = np.concatenate([[NONE], reached])
    row, version = numbers(lists["row"]), numbers(lists["version"])
    follows = pairwise(version, np.greater, first=True)
    within = (version > before[row]) & (version <= reached[row])
    rows = kept(lists, ~(follows & within), ["microbatch", "version", "messages"])
    expected = "each once, in order, up to the depot version reached"
    yield from differing("versions read", expected, rows, "versions")
    total = np.zeros(history.num_rows, np.int64)
    np.add.at(total, row, numbers(lists["messages"]))
    rows = kept(history, total != numbers(history["messages_read"]), COUNTS)
    yield from differing("versions read", "their messages = messages read", rows, "microbatches")


def messages_read(snapshot: Snapshot) -> int:
    """Return how many messages the history says were read."""
    return int(pc.sum(snapshot.history["messages_read"]).as_py() or 0)


def versions_read(snapshot: Snapshot) -> pa.Table:
    """Return `version, messages` of every depot version that a microbatch read, with the `microbatch` and its `row`."""
    lists = exploded(snapshot.history, "versions")
    return lists.append_column("microbatch", snapshot.history["microbatch"].take(lists["row"]))


def _clocks(snapshot: Snapshot) -> Iterator[Difference]:
    """Check that the progress holds the clock and floor of each source as the history recorded them last."""
    recorded = exploded(snapshot.history, "clocks")
    order = pa.array(np.arange(recorded.num_rows))
    last = recorded.append_column("at", order).group_by("source", use_threads=False).aggregate([("at", "max")])
    latest = recorded.take(last["at_max"]).select(["source", "clock", "floor"])
    held = snapshot.sources.select(["source", "clock", "floor"])
    expected = "clock and floor of each source as the history recorded them last"
    yield from differing("clocks", expected, fewer(latest, held), "sources that differ or are missing")
    yield from differing("clocks", expected, fewer(held, latest), "sources in the progress")
