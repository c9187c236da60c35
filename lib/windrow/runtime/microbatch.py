"""Run one microbatch: prime, plan, process and commit, in this order.

A microbatch knows a depot, a ledger and an *algorithm*, but not what the algorithm does with the messages. An `Engine`
reads and writes; everything decided here is decided over Arrow tables.

1. `prime` reads the state of the ledger, all of one table version.
2. `plan` counts the messages, checks the count against the depot's own log, and computes the floors.
3. `process` calls the algorithm, which reads the rows that can change, of the same table version.
4. `commit` writes all changes in one transaction, fenced by the primed token.

A failure before the commit leaves nothing behind; the next `prime` finds a commit whose reply was lost.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.columnar.arrow import whole
from windrow.engine.arrivals import Arrived, Slice
from windrow.engine.protocol import Engine, Merged
from windrow.engine.result import Counts, MicrobatchResult
from windrow.errors import PhaseTimeout, ShortRead, require
from windrow.model import tables
from windrow.model.clock import Clock
from windrow.model.floors import Floors, FloorsByVersion
from windrow.model.messages import times
from windrow.model.results import Committed, Kind
from windrow.runtime.algorithm import Algorithm, Plan
from windrow.runtime.progress import LedgerState, Reached, Sources, control_rows, prime
from windrow.version import VERSION

KEEPS_RULES = ("pause", "resume", "rollback", "option")


class Microbatch:
    """One attempt at one microbatch. The constructor primes it: it reads the live rows that the attempt works on."""

    def __init__(
        self, engine: Engine, algorithm: Algorithm, clock: Clock, attempt: int = 1, depot: str | None = None
    ) -> None:
        """Read the live rows; in a ledger of several depots, `depot` is the name of the one that `engine` reads."""
        self._engine, self._algorithm, self._clock, self.attempt = engine, algorithm, clock, attempt
        self._begun = clock.elapsed()
        self._phases: dict[str, float] = {}
        self.started_at = clock.now()
        self.primed: LedgerState = prime(engine, depot)
        self._timeout = algorithm.options(self.primed).phase_timeout
        self._phase("prime_ms")

    def run_messages(self, read: Arrived, latest: int, fingerprints: Mapping[int, str]) -> Committed:
        """Process the messages of the next depot versions; those stamped after `latest` are ahead of the clock.

        The ledger records the fingerprint of the last version's commit.
        """
        self._begun = self._clock.elapsed()
        arrived = read.parse(self.primed.partial)
        summary = _whole_summary(arrived, latest)
        version = max(arrived.expected)
        # guard: commit-fingerprint
        reached = replace(self.primed.reached, depot_version=version, commit_fingerprint=fingerprints.get(version))
        floors = FloorsByVersion.plan(summary, self.primed.sources.floors)
        plan = self._plan("data", reached, floors, arrived=arrived, latest=latest, summary=summary)
        processed = self._process(plan)
        moved = whole(summary.filter(pc.is_valid(summary["stamp"]))["source"]).unique()
        after = Floors(moved, floors.after.of(moved))
        return self._commit(plan, processed, self.primed.sources.seen(after, self._clock.now()))

    def run_tick(self, floors: Floors, kind: Kind = "tick") -> Committed:
        """Raise floors without messages, which closes overdue batches; a `flush` closes all open batches."""
        self._begun = self._clock.elapsed()
        after = self.primed.sources.floors.raised(floors.source, floors.floor)
        plan = self._plan(kind, self.primed.reached, FloorsByVersion.none(after))
        processed = self._process(plan)
        ticked = self.primed.sources.ticked(after.raised(processed.cuts.source, processed.cuts.floor))
        return self._commit(plan, processed, ticked)

    def run_switch(self, paused: bool) -> Committed:
        """Pause or resume the ledger in a commit that changes nothing else but fences a microbatch in progress.

        The recorded rules stay in force, because new rules must come with the floors that belong to them.
        """
        return self.run_alone("pause" if paused else "resume", MicrobatchResult.nothing(self.primed.progress.schema))

    def run_alone(self, kind: Kind, processed: MicrobatchResult, reached: Reached | None = None) -> Committed:
        """Commit rows that do not come from messages; `reached` moves the position in the depot."""
        self._begun = self._clock.elapsed()
        sources = self.primed.sources
        plan = self._plan(kind, reached or self.primed.reached, FloorsByVersion.none(sources.floors))
        self._phase("process_ms")
        return self._commit(plan, processed, sources.ticked(sources.floors))

    def _plan(self, kind: Kind, reached: Reached, floors: FloorsByVersion, **read: Any) -> Plan:
        """Return the plan; `read` is what it has of messages."""
        plan = Plan(kind, self.primed, self._engine, self.attempt, self.started_at, reached, floors, **read)
        self._phase("plan_ms")
        return plan

    def _process(self, plan: Plan) -> MicrobatchResult:
        processed = self._algorithm.process(plan)
        self._phase("process_ms")
        return processed

    def _commit(self, plan: Plan, processed: MicrobatchResult, moved: Sources) -> Committed:
        """Write the microbatch in one commit.

        The fence makes the commit fail if another driver has committed since prime, because counting the same messages
        twice is worse than a failed run.
        """
        # guard: token-of-its-own
        token = uuid4().hex
        done = self._done(plan, processed)
        # guard: rejected-at-most-read
        require(done.accepted >= 0, f"{done.rejected} of {done.messages} messages were rejected")
        advanced: dict[str, object] = {
            "microbatch": plan.microbatch,
            "token": token,
            # guard: pause-outlasts
            "paused": plan.kind == "pause" or (self.primed.paused and plan.kind != "resume"),
            "rules": self._rules(plan),
        }
        control = control_rows(self.primed, moved, processed.open, advanced, plan.reached)
        rows = pa.concat_tables([control, self._history(plan, processed, done, moved, token)])
        merged = self._engine.merge(processed, rows, self.primed.fence, self.primed.token, _commit_note(done, token))
        if merged is not None:
            # guard: expected-counts
            _require_expected(merged, processed.counts, control, self.primed)
        self._phase("commit_ms")
        return replace(done, lag_ms=_lag(plan, self._clock.now()), commit_ms=self._phases["commit_ms"])

    def _done(self, plan: Plan, processed: MicrobatchResult) -> Committed:
        """Return what the commit will have done, without what is known only afterwards."""
        messages, counts = plan.messages, processed.counts
        return Committed(
            microbatch=plan.microbatch,
            kind=plan.kind,
            attempt=self.attempt,
            depot=self.primed.depot,
            depot_version=plan.reached.depot_version,
            messages=messages,
            accepted=messages - counts.rejected,
            rejected=counts.rejected,
            reasons=counts.reasons,
            opened=counts.opened,
            closed=counts.closed,
            open_batches=self.primed.open.total[0] + counts.opened - counts.closed,
            path=processed.path,
            commit_form=self._engine.commit_form(processed),
            **self._phases,
        )

    def _rules(self, plan: Plan) -> str:
        """Return the rules in force after the commit; a pause does not change them."""
        # guard: pause-keeps-rules-of-commit
        return self.primed.rules if plan.kind in KEEPS_RULES else self._algorithm.settings

    def _history(
        self, plan: Plan, processed: MicrobatchResult, done: Committed, moved: Sources, token: str
    ) -> pa.Table:
        """Return the history row: what was read, decided and moved, under which rules, and how long it took.

        The token tells this microbatch from one that gets the same number after a RESTORE.
        """
        columns: dict[str, object] = {
            **done.history(),
            "id": f"microbatch/{plan.microbatch}",
            "state": "microbatch",
            "versions": _one_list(_per_version(plan.summary), tables.VERSIONS),
            "clocks": _one_list(_clocks(moved, plan.floors.after if plan.flush else None), tables.CLOCKS),
            "rules": self._rules(plan),
            "columns": self._engine.columns,
            "format": self._engine.format,
            "engine": self._engine.name,
            "token": token,
            "started_at": times(np.array([self.started_at])),
            **_byte_columns(plan.arrived),
            **processed.history,
        }
        return tables.rows(self.primed.progress.schema, columns, 1)

    def _phase(self, name: str) -> None:
        """Record how long the phase that ends here took. Raises PhaseTimeout unless the commit was made."""
        now = self._clock.elapsed()
        took = self._phases[name] = round((now - self._begun) * 1_000, 3)
        self._begun = now
        if self._timeout is not None and name != "commit_ms" and took * 1_000 > self._timeout:
            phase = name.removesuffix("_ms")
            raise PhaseTimeout(f"{phase} took {took:,.0f} ms", "Raise the option phase_timeout, or lower max_messages.")


def _whole_summary(arrived: Slice, latest: int) -> pa.Table:
    """Summarise the messages by version and source. Raises ShortRead if the depot added more rows than arrived."""
    summary = arrived.summarise(latest)
    counted = {row["version"]: row["messages"] for row in _per_version(summary).to_pylist()}
    for version, expected in arrived.expected.items():
        # guard: whole-read
        if expected is not None and counted.get(version, 0) != expected:
            raise ShortRead(
                f"depot version {version} gave {counted.get(version, 0)} rows, its commit added {expected}",
                "Nothing was written. If this happens again, the depot's files do not match its log.",
            )
    return summary


def _byte_columns(arrived: Slice | None) -> dict[str, object]:
    """Return the byte counts that the history records for a raw depot."""
    if arrived is None or arrived.volume is None:
        return {}
    return {f"bytes_{name}": getattr(arrived.volume, name) for name in ("read", "framed", "rejected", "repeated")}


def _commit_note(done: Committed, token: str) -> str:
    """Return the user metadata of the commit, which identifies the microbatch in Delta's own history."""
    noted = ("microbatch", "kind", "depot", "depot_version", "messages", "closed", "rejected")
    return json.dumps({"windrow": VERSION} | {name: getattr(done, name) for name in noted} | {"token": token})


def _lag(plan: Plan, now: int) -> float | None:
    """Return how long before `now` the newest message arrived, in milliseconds."""
    stamp = pc.max(plan.summary["stamp"]).cast(pa.int64()).as_py()
    return None if stamp is None else max(0, now - stamp) / 1_000


def _require_expected(merged: Merged, counts: Counts, control: pa.Table, primed: LedgerState) -> None:
    """Compare the row counts that the commit reports with the expected ones."""
    moved_before = pc.is_in(control["source"], primed.sources.source)
    known = counts.known + (1 if primed.depot is None else 2) + int(pc.sum(moved_before).as_py() or 0)
    new = counts.rows + control.num_rows + 1 - known
    require(
        (merged.updated + merged.deleted, merged.inserted) == (known, new),
        f"the commit replaced {merged.updated + merged.deleted} rows and added {merged.inserted}, "
        f"expected were {known} and {new}",
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
