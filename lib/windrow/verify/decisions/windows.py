"""The microbatches of a ledger in order, what each source sees of them, and the resulting batches of streams."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from duckdb import DuckDBPyConnection

from windrow.verify.columns import NONE, Ints, explode, numbers
from windrow.verify.decisions.reference_model import (
    DERIVED,
    Batch,
    Messages,
    RecordedRules,
    ReferenceStream,
    ReferenceWindow,
    RulesChange,
    SourceHistory,
)
from windrow.verify.snapshot import LedgerContents

CHUNK = 200_000  # messages between two reports of progress
NOBODY = 1 << 62
CUTS = "SELECT source, list(microbatch ORDER BY microbatch), list(cut ORDER BY microbatch) FROM cuts GROUP BY source"
FLUSHED = "SELECT microbatch, source, flushed_at FROM clocks WHERE flushed_at IS NOT NULL"
HEIGHTS = """
SELECT source, list(microbatch ORDER BY microbatch, version), list(height ORDER BY microbatch, version)
FROM moves GROUP BY source
"""
# The accepted messages of the chosen streams in the order in which the rules process them. A type is a number, in the
# byte order of types.
ACCEPTED = """
SELECT s.stream, j.row, j.event_time, j.now AS processing_time, t.kind, j.content_bytes AS byte_count, j.microbatch,
    coalesce(j.batch, -1) AS batch
FROM judged AS j JOIN streams AS s ON s.source = j.source AND s.key = j.key
JOIN (SELECT type, row_number() OVER (ORDER BY type) AS kind FROM (SELECT DISTINCT type FROM judged)) AS t
    ON t.type = j.type
WHERE s.chosen AND j.reason IS NULL
ORDER BY s.stream, j.version, j.now, j.sequence NULLS FIRST, j.event_time, j.type
"""
SOURCES = """
SELECT DISTINCT s.stream, s.source FROM judged AS j JOIN streams AS s ON s.source = j.source AND s.key = j.key
WHERE s.chosen AND j.reason IS NULL
"""
# The windows that were open after what is verified, and the microbatch that last changed each.
OPENED = """
SELECT b.row, b.window_start, b.window_end, b.open_reason, b.opened_microbatch, h.microbatch
FROM batches_open AS b ASOF JOIN history_rows AS h ON h.revision <= b.revision
"""


@dataclass(frozen=True, slots=True)
class MicrobatchHistory:
    """The microbatches of a ledger. `kinds`, `rules` and `raised` are indexed by microbatch; 0 is before the first.

    `raised` is the sum by which changes of `max_delay` have raised every floor so far. `version` lists the depot
    versions that were read, in order, `read_in` the microbatch of each. `clocks` has `microbatch, source, clock, floor,
    cut, flushed_at` as recorded. `gone` is the last microbatch with a version that can no longer be read, or the one up
    to which all is `verified`; what was open after the latter is taken as correct.
    """

    kinds: list[str]
    rules: list[RecordedRules]
    raised: Ints
    version: Ints
    read_in: Ints
    clocks: pa.Table
    gone: int
    verified: int

    @property
    def table(self) -> pa.Table:
        """Return a row for each microbatch, with kind and rules; `readable` is false for those up to `gone`.

        `reach` is how far after the clock a window may end.
        """
        rules = {name: [getattr(rule, name) for rule in self.rules] for name in ("max_delay", "max_lead")}
        rules["reach"] = [rule.max_lead + rule.window for rule in self.rules]
        number = np.arange(len(self.kinds))
        columns = {"microbatch": number, "kind": self.kinds, "raised": self.raised, "readable": number > self.gone}
        return pa.table(columns | rules)

    def changes(self) -> list[int]:
        """Return the microbatches that changed the rules or flushed."""
        return [
            number
            for number in range(1, len(self.kinds))
            if self.kinds[number] in ("flush", "rules") or (number > 1 and self.rules[number] != self.rules[number - 1])
        ]


def is_whole(snapshot: LedgerContents) -> bool:
    """Tell whether the history is complete: every microbatch and every version once and in order."""
    number = numbers(snapshot.history["microbatch"])
    version = numbers(snapshot.versions_read["version"])
    in_order = np.array_equal(number, np.arange(1, number.size + 1)) and bool(np.all(np.diff(version) > 0))
    return in_order and not snapshot.history["kind"].null_count


def read_history(snapshot: LedgerContents, readable: int, verified: int = 0) -> MicrobatchHistory:
    """Return the microbatches of a ledger whose history is complete; `readable` is the first readable depot version."""
    history, read = snapshot.history, snapshot.versions_read
    kinds = ["", *history["kind"].to_pylist()]
    encoded = pc.fill_null(history["rules"], "").combine_chunks().dictionary_encode()
    known = [RecordedRules.from_json(text) for text in encoded.dictionary.to_pylist()]
    rules = [known[index] for index in encoded.indices.to_pylist()]
    rules = [rules[0] if rules else RecordedRules.from_json(snapshot.progress.rules), *rules]
    delays = np.array([rule.max_delay for rule in rules], np.int64)
    # A larger `max_delay` raises every floor, so that what was too old stays too old.
    raises = np.where(np.array(kinds) == "rules", np.diff(delays, prepend=delays[0]).clip(min=0), 0)
    version, read_in = numbers(read["version"]), numbers(read["microbatch"])
    clocks = explode(history, "clocks")
    return MicrobatchHistory(
        kinds=kinds,
        rules=rules,
        raised=np.cumsum(raises),
        version=version,
        read_in=read_in,
        clocks=clocks.append_column("microbatch", history["microbatch"].take(clocks["row"])),
        gone=int(read_in[version < readable].max(initial=verified)),
        verified=verified,
    )


def derive(
    connection: DuckDBPyConnection, sources: Mapping[str, SourceHistory], progress: Callable[[int], None]
) -> int:
    """Derive the batches of a part's chosen streams, as table `derived`, and the batch of each message, as `placed`.

    `progress` is called with the number of messages done; returns their total.
    """
    columns_of = connection.sql(ACCEPTED).fetchnumpy()
    source_of = dict(connection.sql(SOURCES).fetchall())
    opened = {place: ReferenceWindow(*window) for place, *window in connection.sql(OPENED).fetchall()}
    stream, row, batch = columns_of["stream"], columns_of["row"], columns_of["batch"]
    columns = np.stack([columns_of.pop(name) for name in Messages.__dataclass_fields__])
    begins = np.flatnonzero(np.diff(stream, prepend=-1)).tolist()
    batches, batch_of, reported = list[Batch](), list[int](), 0
    for start, end in pairwise([*begins, row.size]):
        number = int(stream[start])
        messages = Messages(*columns[:, start:end].tolist())
        batch_of_row = batch[start:end]
        windows = [opened[place] for place in batch_of_row[batch_of_row >= 0].tolist()]
        batch_of += ReferenceStream(number, messages, sources[source_of[number]], batches, windows).derive()
        if end - reported >= CHUNK:
            progress(end)
            reported = end
    values = [pa.array([batch[at] for batch in batches], type_) for at, type_ in enumerate(DERIVED.types)]
    derived = pa.table(values, DERIVED).append_column("batch", pa.array(np.arange(len(batches))))
    connection.register("derived", derived)
    connection.register("placed", pa.table({"row": row, "batch": pa.array(batch_of, pa.int64())}))
    return int(row.size)


def source_histories(connection: DuckDBPyConnection, history: MicrobatchHistory) -> dict[str, SourceHistory]:
    """Return the history of each source as its streams see it: its floor, changes of the rules, and flushes."""
    cuts, flushed = (
        {(microbatch, source): at for microbatch, source, at in connection.sql(query).fetchall()}
        for query in ("SELECT microbatch, source, cut FROM flush_cuts", FLUSHED)
    )
    calendar: dict[str, list[list[int]]] = {source: lists for source, *lists in connection.sql(CUTS).fetchall()}
    changed = [change for change in history.changes() if change > history.gone]
    raised = history.raised.tolist()
    histories = {}
    for source, reached_in, heights in connection.sql(HEIGHTS).fetchall():
        at = np.array(changed, np.int64)
        before, after = (_floors(history, np.array(reached_in), np.array(heights), version) for version in (at - 1, at))
        changes = []
        for place, microbatch in enumerate(changed):
            floor, flush = before[place], history.kinds[microbatch] == "flush"
            now = max(floor, flushed.get((microbatch, source), NONE)) if flush else after[place]
            changes.append(RulesChange(microbatch, floor, now, flush, cuts.get((microbatch, source), NOBODY)))
        cut_in, at_cut = calendar.get(source, [[], []])
        heard = history.rules, raised, heights, reached_in, changes, heights[-1] + raised[-1]
        histories[source] = SourceHistory(*heard, cut_in, at_cut, history.verified)
    return histories


def _floors(history: MicrobatchHistory, reached_in: Ints, heights: Ints, microbatch: Ints) -> list[int]:
    """Return the floors of a source after microbatches; before its first floor, a value lower than any floor."""
    place = np.searchsorted(reached_in, microbatch, side="right") - 1
    floors: list[int] = (np.append(heights, NONE)[place] + history.raised[microbatch]).tolist()
    return floors
