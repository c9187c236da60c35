"""The microbatches of a ledger in order: their rules, the versions they read, and the clocks they recorded."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.reading.tables import recorded_rules
from windrow.verify.columns import Ints, explode, numbers
from windrow.verify.snapshot import LedgerContents


@dataclass(frozen=True, slots=True)
class RecordedRules:
    """The rules that a microbatch recorded; durations in microseconds."""

    window: int
    max_delay: int
    max_lead: int
    max_batch_bytes: int
    at_arrival: bool
    keeps: bool
    at_midpoint: bool
    on_calendar: bool = False
    window_offset: int = 0

    @classmethod
    def recorded(cls, text: str) -> RecordedRules:
        """Read them from JSON. Raises IncompatibleTableError for anything else."""
        result = recorded_rules(text)
        return cls(
            window=result["window"],
            max_delay=result["max_delay"],
            max_lead=result["max_lead"],
            max_batch_bytes=int(result.get("max_batch_bytes") or 0),
            at_arrival=result.get("window_anchor") == "arrival",
            keeps=result.get("on_repeat") == "keep",
            at_midpoint=result.get("split_at") == "midpoint",
            on_calendar=result.get("window_anchor") == "aligned",
            window_offset=int(result.get("window_offset") or 0),
        )


@dataclass(frozen=True, slots=True)
class MicrobatchHistory:
    """The microbatches of a ledger. `kinds`, `rules` and `raised` are indexed by microbatch; 0 is before the first.

    `raised` is the sum by which changes of `max_delay` have raised every floor so far. `version` lists the depot
    versions that were read, in order, `read_in` the microbatch of each. `clocks` has `microbatch, source, clock, floor,
    cut, flushed_at` as recorded. `gone` is the last microbatch with a version that can no longer be read, or the one up
    to which all is `verified`: what was open after that one is given.
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
        """Return a row for each microbatch with kind and rules; `readable` is false for those up to `gone`.

        `reach` is how far behind the clock a window may end.
        """
        rules = {name: [getattr(rule, name) for rule in self.rules] for name in ("max_delay", "max_lead")}
        rules["reach"] = [rule.max_lead + rule.window for rule in self.rules]
        number = np.arange(len(self.kinds))
        columns = {"microbatch": number, "kind": self.kinds, "raised": self.raised, "readable": number > self.gone}
        return pa.table(columns | rules)

    def changes(self) -> list[int]:
        """Return the microbatches that changed the rules, and those that flushed."""
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
    known = [RecordedRules.recorded(text) for text in encoded.dictionary.to_pylist()]
    rules = [known[index] for index in encoded.indices.to_pylist()]
    version, read_in = numbers(read["version"]), numbers(read["microbatch"])
    clocks = explode(history, "clocks")
    return MicrobatchHistory(
        kinds=kinds,
        rules=[rules[0] if rules else RecordedRules.recorded(snapshot.progress.rules), *rules],
        raised=_raised(kinds, rules),
        version=version,
        read_in=read_in,
        clocks=clocks.append_column("microbatch", history["microbatch"].take(clocks["row"])),
        gone=int(read_in[version < readable].max(initial=verified)),
        verified=verified,
    )


def _raised(kinds: list[str], rules: list[RecordedRules]) -> Ints:
    """Return the sum of raises: a larger `max_delay` raises every floor, so that what was too old stays too old."""
    more = np.zeros(len(kinds), np.int64)
    for number in range(2, len(kinds)):
        if kinds[number] == "rules":
            more[number] = max(0, rules[number - 1].max_delay - rules[number - 2].max_delay)
    return np.cumsum(more)
