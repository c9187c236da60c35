"""One microbatch: prime, plan, process, commit, in this order, on one page.

It knows a depot, a ledger and an *algorithm*, and nothing of what the algorithm does with the messages. An `Engine`
reads and writes; everything decided here is decided over Arrow tables.

1. `prime` reads where the ledger stands, of one table version.
2. `plan` counts what came, checks the count against the depot's own log, and computes the floors.
3. `process` lets the algorithm decide, which reads of the same version what can change.
4. `commit` writes all that changed in one transaction, fenced by the token that was primed.

Failure before the commit leaves nothing; failure after it is found by the next `prime`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.engine.arrivals import Arrived, Slice
from windrow.engine.protocol import Engine, Merged
from windrow.engine.result import Counts, MicrobatchResult
from windrow.errors import PhaseTimeout, ShortRead, require
from windrow.formats.raw.byte_counts import Volume
from windrow.model import tables
from windrow.model.clock import UNKNOWN, Clock
from windrow.model.floors import Floors, FloorsByVersion
from windrow.model.messages import SUMMARY, times
from windrow.model.results import Committed, Kind
from windrow.runtime.algorithm import Algorithm, MicrobatchInput
from windrow.runtime.progress import LedgerState, Reached, Sources, control_rows, prime
from windrow.version import VERSION

KEEPS_RULES = ("pause", "resume", "rollback", "option")


@dataclass(frozen=True, slots=True)
class Plan:
    """What a microbatch will do: rows by version and source, the floors that follow, the sources that move."""

    kind: Kind
    summary: pa.Table
    floors: FloorsByVersion
    depot_version: int
    commit_fingerprint: str | None
    volume: Volume | None = None

    @property
    def messages(self) -> int:
        """Return how many messages it reads."""
        return int(pc.sum(self.summary["messages"]).as_py() or 0)


class Microbatch:
    """One attempt at one microbatch. Making it primes it: what follows holds against the live rows read here."""

    def __init__(
        self, engine: Engine, algorithm: Algorithm, clock: Clock, attempt: int = 1, depot: str | None = None
    ) -> None:
        """Read the live rows; `depot` is the name of the one that `engine` reads, in a ledger of several."""
        self._engine, self._algorithm, self._clock, self.attempt = engine, algorithm, clock, attempt
        self._begun = clock.elapsed()
        self._phases: dict[str, float] = {}
        self.started_at = clock.now()
        self.primed: LedgerState = prime(engine, depot)
        self._timeout = algorithm.options(self.primed).phase_timeout
        self._phase("prime_ms")

    def run_messages(self, read: Arrived, latest: int, marks: Mapping[int, str]) -> Committed:
        """Process the messages of the next depot versions; those stamped after `latest` are ahead of the clock.

        The ledger remembers the last version by its commit's mark.
        """
        self._begin()
        arrived = read.formatted(self.primed.partial)
        # guard: commit-fingerprint
        plan = _plan(arrived, latest, self.primed, marks.get(max(arrived.expected)))
        self._phase("plan_ms")
        processed = self._process(plan, arrived, latest)
        moved = plan.summary.filter(pc.is_valid(plan.summary["stamp"]))["source"].combine_chunks().unique()
        after = Floors(moved, plan.floors.after.of(moved))
        return self._commit(plan, processed, self.primed.sources.seen(after, self._clock.now()))

    def run_tick(self, floors: Floors, kind: Kind = "tick", flush: bool = False) -> Committed:
        """Raise floors without messages, which closes what lies below them; `flush` closes all that is open."""
        after = self.primed.sources.floors.raised(floors.source, floors.floor)
        plan = self._nothing_read(kind, after)
        processed = self._process(plan, None, UNKNOWN, flush)
        ticked = self.primed.sources.ticked(after.raised(processed.cuts.source, processed.cuts.floor))
        return self._commit(plan, processed, ticked, after if flush else None)

    def run_switch(self, paused: bool) -> Committed:
        """Pause or resume the ledger: a commit that moves nothing else, so that whoever is at work is fenced.

        The recorded rules stay in force as well. Other rules may only come with the floors that go with them.
        """
        return self.run_alone("pause" if paused else "resume", MicrobatchResult.nothing(self.primed.progress.schema))

    def run_alone(self, kind: Kind, processed: MicrobatchResult, reached: Reached | None = None) -> Committed:
        """Commit rows that come of no messages, and with `reached` another position in the depot."""
        sources = self.primed.sources
        plan = self._nothing_read(kind, sources.floors)
        if reached is not None:
            plan = replace(plan, depot_version=reached.version, commit_fingerprint=reached.mark)
        self._phase("process_ms")
        return self._commit(plan, processed, sources.ticked(sources.floors))

    def _nothing_read(self, kind: Kind, after: Floors) -> Plan:
        """Return the plan of a microbatch without messages, at the floors that hold after it."""
        self._begin()
        primed = self.primed
        plan = Plan(
            kind, SUMMARY.empty_table(), FloorsByVersion.none(after), primed.depot_version, primed.commit_fingerprint
        )
        self._phase("plan_ms")
        return plan

    def _process(self, plan: Plan, arrived: Slice | None, latest: int, flush: bool = False) -> MicrobatchResult:
        turn = MicrobatchInput(
            self.primed, arrived, plan.floors, latest, self.started_at, self.attempt, self._engine, flush
        )
        processed = self._algorithm.process(turn)
        self._phase("process_ms")
        return processed

    def _commit(
        self, plan: Plan, processed: MicrobatchResult, moved: Sources, flushed_at: Floors | None = None
    ) -> Committed:
        """Write the microbatch in one commit.

        The fence makes the commit fail when another driver moved the ledger since prime, because a second count of
        the same messages is worse than a failed run.
        """
        # guard: token-of-its-own
        counts, number, token = processed.counts, self.primed.microbatch + 1, uuid4().hex
        accepted = plan.messages - counts.rejected
        # guard: rejected-at-most-read
        require(accepted >= 0, f"{counts.rejected} messages were rejected of {plan.messages} read")
        advanced: dict[str, object] = {
            "microbatch": number,
            "token": token,
            # guard: pause-outlasts
            "paused": plan.kind == "pause" or (self.primed.paused and plan.kind != "resume"),
            "rules": self._rules(plan),
        }
        reached = replace(self.primed.reached, version=plan.depot_version, mark=plan.commit_fingerprint)
        control = control_rows(self.primed, moved, processed.open, advanced, reached)
        form = self._engine.commit_form(processed)
        history = self._history(plan, processed, form, moved, flushed_at, token)
        rows, note = pa.concat_tables([control, history]), _note(number, plan, counts, token, self.primed.depot)
        merged = self._engine.merge(processed, rows, self.primed.fence, self.primed.token, note)
        if merged is not None:
            # guard: expected-counts
            _require_expected(merged, counts, control, self.primed)
        self._phase("commit_ms")
        return Committed(
            microbatch=number,
            kind=plan.kind,
            attempt=self.attempt,
            depot=self.primed.depot,
            depot_version=plan.depot_version,
            messages=plan.messages,
            accepted=accepted,
            rejected=counts.rejected,
            reasons=counts.reasons,
            opened=counts.opened,
            closed=counts.closed,
            open_batches=self.primed.open.total[0] + counts.opened - counts.closed,
            path=processed.path,
            commit_form=form,
            lag_ms=_lag(plan, self._clock.now()),
            **self._phases,
        )

    def _rules(self, plan: Plan) -> str:
        """Return the rules in force afterwards: a pause leaves those that were."""
        # guard: pause-keeps-rules-of-commit
        return self.primed.rules if plan.kind in KEEPS_RULES else self._algorithm.settings

    def _history(
        self, plan: Plan, processed: MicrobatchResult, form: str, moved: Sources, flushed_at: Floors | None, token: str
    ) -> pa.Table:
        """Return the history row: what was read, decided and moved, under which rules, and how long it took.

        Its token tells readers this microbatch from one of the same number after a RESTORE.
        """
        number, counts = self.primed.microbatch + 1, processed.counts
        columns: dict[str, object] = {
            "id": f"microbatch/{number}",
            "state": "microbatch",
            "microbatch": number,
            "attempt": self.attempt,
            "kind": plan.kind,
            "versions": _one_list(_per_version(plan.summary), tables.VERSIONS),
            "messages_read": plan.messages,
            "accepted": plan.messages - counts.rejected,
            "rejected": counts.rejected,
            "opened": counts.opened,
            "closed": counts.closed,
            "depot": self.primed.depot,
            "depot_version": plan.depot_version,
            "clocks": _one_list(_clocks(moved, flushed_at), tables.CLOCKS),
            "rules": self._rules(plan),
            "columns": self._engine.columns,
            "format": self._engine.format,
            "engine": self._engine.name,
            "path": processed.path,
            "commit_form": form,
            "token": token,
            "started_at": times(np.array([self.started_at])),
            **_bytes(plan.volume),
            **self._phases,
            **processed.history,
        }
        return tables.rows(self.primed.progress.schema, columns, 1)

    def _begin(self) -> None:
        self._begun = self._clock.elapsed()

    def _phase(self, name: str) -> None:
        """Note how long the phase that ends here took. Raises PhaseTimeout while nothing is committed."""
        now = self._clock.elapsed()
        took = self._phases[name] = round((now - self._begun) * 1_000, 3)
        self._begun = now
        if self._timeout is not None and name != "commit_ms" and took * 1_000 > self._timeout:
            phase = name.removesuffix("_ms")
            raise PhaseTimeout(f"{phase} took {took:,.0f} ms", "Raise the option phase_timeout, or lower max_messages.")


def _plan(arrived: Slice, latest: int, primed: LedgerState, mark: str | None) -> Plan:
    """Count the messages, check that the feed gave every row that the depot says it added, compute the floors."""
    summary = arrived.summarise(latest)
    counted = {row["version"]: row["messages"] for row in _per_version(summary).to_pylist()}
    for version, expected in arrived.expected.items():
        # guard: whole-read
        if expected is not None and counted.get(version, 0) != expected:
            raise ShortRead(
                f"depot version {version} gave {counted.get(version, 0)} rows, its commit added {expected}",
                "Nothing was written. If it stays so, the depot's files do not match its log.",
            )
    floors = FloorsByVersion.plan(summary, primed.sources.floors)
    return Plan("data", summary, floors, max(arrived.expected), mark, arrived.volume)


def _bytes(volume: Volume | None) -> dict[str, object]:
    """Return what the history says of the bytes of a raw depot."""
    if volume is None:
        return {}
    return {f"bytes_{name}": getattr(volume, name) for name in ("read", "framed", "rejected", "repeated")}


def _note(number: int, plan: Plan, counts: Counts, token: str, depot: str | None) -> str:
    """Return what Delta's own history shows beside the commit, so that it tells a microbatch without being read."""
    note = {
        "windrow": VERSION,
        "microbatch": number,
        "kind": plan.kind,
        "depot": depot,
        "depot_version": plan.depot_version,
        "messages": plan.messages,
        "closed": counts.closed,
        "rejected": counts.rejected,
        "token": token,
    }
    return json.dumps(note)


def _lag(plan: Plan, now: int) -> float | None:
    """Return how long before `now` the newest message arrived, in milliseconds."""
    stamp = pc.max(plan.summary["stamp"]).cast(pa.int64()).as_py()
    return None if stamp is None else max(0, now - stamp) / 1_000


def _require_expected(merged: Merged, counts: Counts, control: pa.Table, primed: LedgerState) -> None:
    """Compare what the commit says it did with what it had to do."""
    moved_before = pc.is_in(control["source"], primed.sources.source)
    known = counts.known + (1 if primed.depot is None else 2) + int(pc.sum(moved_before).as_py() or 0)
    new = counts.rows + control.num_rows + 1 - known
    require(
        (merged.updated + merged.deleted, merged.inserted) == (known, new),
        f"the commit replaced {merged.updated + merged.deleted} rows and added {merged.inserted}, "
        f"it had to replace {known} and add {new}",
    )


def _per_version(summary: pa.Table) -> pa.Table:
    grouped = summary.group_by("version").aggregate([("messages", "sum")]).sort_by("version")
    return grouped.select(["version", "messages_sum"]).rename_columns(["version", "messages"])


def _clocks(moved: Sources, flushed_at: Floors | None) -> pa.Table:
    flushed = flushed_at.of(moved.source) if flushed_at else None
    return pa.table(
        {
            "source": moved.source,
            "clock": times(moved.clock),
            "floor": times(moved.floor),
            "flushed_at": pa.nulls(len(moved.source), times(moved.clock).type) if flushed is None else times(flushed),
        }
    )


def _one_list(elements: pa.Table, type_: pa.DataType) -> pa.Array:
    """Return the rows of a table as one list."""
    struct = elements.to_struct_array()
    whole = pa.concat_arrays(struct.chunks) if struct.num_chunks else pa.array([], struct.type)
    return pa.ListArray.from_arrays(pa.array([0, len(whole)], pa.int32()), whole).cast(type_)
