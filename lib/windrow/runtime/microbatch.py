"""Run one microbatch: prime, plan, process and commit, in this order.

A microbatch knows depots, a ledger and an *algorithm*, but not what the algorithm does with the messages. A batcher
has one depot, a topology may have several, and one commit moves all of them. A `Source` reads and a `Ledger` writes;
all decisions here are made on Arrow tables.

1. `prime` reads the state of the ledger, all from one table version.
2. `plan` counts the messages, checks the count against the depot's own log, and computes the floors.
3. `process` calls the algorithm, which reads the rows that can change, from the same table version.
4. `commit` writes all changes in one transaction, fenced by the primed token.

A failure before the commit leaves nothing behind; the next `prime` finds a commit whose reply was lost.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, TypeVar
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.columnar.arrow import combine_chunks
from windrow.errors import ConcurrentCommitError, PhaseTimeoutError, TableUnwritableError, ensure
from windrow.ledger import Ledger
from windrow.ledger.result import MicrobatchResult
from windrow.ledger.versions import Growth, record_growth
from windrow.model import tables
from windrow.model.chain import CHAIN, link_rows
from windrow.model.clock import UNKNOWN, Clock
from windrow.model.commits import Commit
from windrow.model.floors import Cuts, Floors, FloorsByVersion
from windrow.model.messages import times
from windrow.model.results import CommittedMicrobatch, Kind
from windrow.runtime.algorithm import Algorithm, DepotPlan, MicrobatchPlan
from windrow.runtime.ledger_state import STATE_TOKEN, DepotPosition, LedgerState, Sources, control_rows, prime
from windrow.runtime.phase_timeout import HINT, phase_timeout, run_with_timeout
from windrow.runtime.saved_plan import SavedPlan
from windrow.runtime.version_part import plan_version_part
from windrow.source import Source
from windrow.source.slices import Slice, require_whole
from windrow.version import VERSION

KEEPS_RULES = ("pause", "resume", "skip", "rollback", "option", "amend")
KEEPS_STATE = ("pause", "resume", "option", "rules")
T = TypeVar("T")
COUNTED = ("accepted", "rejected", "opened", "closed")  # of the whole microbatch


@dataclass(frozen=True, slots=True)
class DepotRead:
    """What a microbatch reads from a depot: the next versions, and the fingerprints of their commits."""

    arrived: Slice
    fingerprints: Mapping[int, str]


class MicrobatchAttempt:
    """One attempt at one microbatch. The constructor primes it: it reads the live rows that the attempt works on."""

    def __init__(
        self,
        ledger: Ledger,
        sources: Mapping[str | None, Source],
        algorithm: Algorithm,
        clock: Clock,
        attempt: int = 1,
        timeout: int | None = None,
    ) -> None:
        """Read the live rows within `timeout` microseconds; `sources` has depots by name, a batcher's under None."""
        self._ledger, self._sources, self._algorithm = ledger, sources, algorithm
        self._clock, self.attempt = clock, attempt
        self._phase_began = clock.elapsed()
        self._phases: dict[str, float] = {}
        self.started_at = clock.now()
        self._timeout = timeout
        self.primed: LedgerState = self._in_time("prime", lambda: prime(ledger, list(sources)))
        self._timeout = algorithm.options(self.primed).phase_timeout
        self._end_phase("prime_ms")

    def require_latest(self) -> None:
        """Raise ConcurrentCommitError if the ledger's version is no longer the primed one."""
        table = self._ledger.table()
        if table is None or table.version != self.primed.fence.table_version:
            raise ConcurrentCommitError(
                "the ledger moved while a microbatch was planned",
                "Another driver committed first; nothing was written.",
            )

    def restart_clock(self) -> None:
        """Set `started_at` to now: messages that arrived since prime must not count as ahead of the clock."""
        self.started_at = self._clock.now()

    def run_messages(
        self,
        read: Mapping[str | None, DepotRead],
        latest: int,
        planned: SavedPlan | None = None,
        passed: Mapping[str | None, DepotPosition] | None = None,
        until: int | None = None,
    ) -> CommittedMicrobatch:
        """Process what was read from the depots; messages stamped after `latest` are ahead of the clock.

        `planned` is what all attempts of a topology have in common, `passed` the positions in depots that had no rows.
        In step, messages after `until` (microseconds) are left for later.
        """
        self._phase_began = self._clock.elapsed()
        depots = self._in_time(
            "plan",
            lambda: {name: self._plan_depot(name, depot_read, latest, until) for name, depot_read in read.items()},
        )
        plan = self._plan("data", depots, latest, planned)
        processed = self._process(plan)
        now = self._clock.now()
        moved = {
            name: self.primed.depots[name].sources.move_clocks(_select_moved(depot), now)
            for name, depot in depots.items()
        }
        return self._commit(plan, processed, moved, passed or {})

    def _plan_depot(self, name: str | None, read: DepotRead, latest: int, until: int | None) -> DepotPlan:
        """Return what the microbatch takes from a depot, after counting it.

        The ledger records the fingerprint of the last version's commit.
        """
        known = self.primed.depots[name]
        arrived = read.arrived.parse(known.partial)
        summary = arrived.summarise(latest)
        counted = {row["version"]: row["messages"] for row in _per_version(summary).to_pylist()}
        # guard: whole-read
        require_whole(counted, arrived.expected)
        version = max(arrived.expected)
        # guard: commit-fingerprint
        reached = known.reached.to(version, read.fingerprints.get(version))
        floors = FloorsByVersion.plan(summary, known.sources.floors)
        plan = DepotPlan(reached, floors, arrived, summary, read.fingerprints)
        return plan_version_part(plan, known, latest, until)

    def run_change(self, cuts: Cuts) -> CommittedMicrobatch:
        """Put the algorithm's settings into force, with the effect of the change on the sources."""
        return self.run_tick(Floors(cuts.source, cuts.floor), "rules", cuts=Floors(cuts.source, cuts.cut))

    def run_tick(
        self,
        floors: Floors,
        kind: Kind = "tick",
        planned: SavedPlan | None = None,
        cuts: Floors | None = None,
    ) -> CommittedMicrobatch:
        """Raise floors without messages, which closes overdue batches; a `flush` closes all open batches.

        In a topology, which has no floors to raise, a tick fires events. `cuts` come from a change of the rules.
        """
        self._phase_began = self._clock.elapsed()
        depots = self._raise_floors(floors)
        plan = self._plan(kind, depots, planned=planned)
        processed = self._process(plan)
        moved = {}
        for name, depot in depots.items():
            known, flushed = self.primed.depots[name].sources, processed.cuts
            after = depot.floors.after.raised(flushed.source, flushed.floor)
            # guard: cut-recorded
            moved[name] = known.raise_floors(after, (cuts or Floors.empty()).raised(flushed.source, flushed.cut))
        return self._commit(plan, processed, moved)

    def _raise_floors(self, floors: Floors) -> dict[str | None, DepotPlan]:
        """Return the plan of a batcher's depot with raised floors; nothing in a topology."""
        known = self.primed.depots.get(None)
        if known is None:
            return {}
        after = known.sources.floors.raised(floors.source, floors.floor)
        return {None: DepotPlan(known.reached, FloorsByVersion.none(after))}

    def run_accept(self, commit: Commit, depot: str | None = None) -> CommittedMicrobatch:
        """Skip a version of a depot: read none of its rows."""
        known = self.primed.depots[depot].reached
        reached = known.to(commit.version, commit.fingerprint)
        return self.run_without_messages("skip", reached={depot: reached})

    def run_without_messages(
        self, kind: Kind, processed: MicrobatchResult | None = None, reached: Mapping[Any, DepotPosition] | None = None
    ) -> CommittedMicrobatch:
        """Commit rows that do not come from messages, or none; `reached` moves the positions in depots.

        A pause or resume changes nothing else, but fences a microbatch in progress. The recorded rules stay in force,
        because new rules must come with the floors that belong to them.
        """
        self._phase_began = self._clock.elapsed()
        depots = self._raise_floors(Floors.empty())
        depots |= {name: DepotPlan(at, FloorsByVersion.none(Floors.empty())) for name, at in (reached or {}).items()}
        plan = self._plan(kind, depots)
        self._end_phase("process_ms")
        return self._commit(plan, processed or MicrobatchResult.nothing(self.primed.progress.schema), {})

    def _plan(
        self,
        kind: Kind,
        depots: Mapping[str | None, DepotPlan],
        latest: int = UNKNOWN,
        planned: SavedPlan | None = None,
    ) -> MicrobatchPlan:
        common = planned or SavedPlan(self.primed.microbatch + 1, self.started_at, {})
        same = common.microbatch, common.events, common.until, common.overtook or ()
        plan = MicrobatchPlan(
            kind, self.primed, self._ledger, self.attempt, common.now, depots, latest, *same, common.transaction
        )
        self._end_phase("plan_ms")
        return plan

    def _process(self, plan: MicrobatchPlan) -> MicrobatchResult:
        """Call the algorithm within the limit; commits that call none have no limit, so that the option can be raised.

        If it cannot write because another driver was faster, that is not a failure: raises ConcurrentCommitError.
        """
        self._require_in_time()
        try:
            with phase_timeout("process", self._timeout, self._ledger.engine.session_at_work):
                processed = self._algorithm.process(plan)
        except TableUnwritableError:
            # guard: faster-driver-is-no-failure
            self.require_latest()
            raise
        self._end_phase("process_ms")
        self._require_in_time()
        return processed

    def _commit(
        self,
        plan: MicrobatchPlan,
        processed: MicrobatchResult,
        moved: Mapping[str | None, Sources],
        passed: Mapping[str | None, DepotPosition] = MappingProxyType({}),
    ) -> CommittedMicrobatch:
        """Write the microbatch in one commit.

        The fence makes the commit fail if another driver has committed since prime, because counting the same messages
        twice is worse than a failed run.
        """
        # guard: token-of-its-own
        token = uuid4().hex
        committed = self._describe_commit(plan, processed)
        # guard: rejected-at-most-read
        ensure(committed.accepted >= 0, f"{committed.rejected} of {committed.message_count} messages were rejected")
        advanced: dict[str, object] = {
            "microbatch": plan.microbatch,
            "token": token,
            # guard: pause-outlasts
            "paused": plan.kind == "pause" or (self.primed.paused and plan.kind != "resume"),
            "rules": processed.rules or self._rules(plan),
        }
        # guard: state-of-a-plan
        if plan.kind not in KEEPS_STATE:
            advanced[STATE_TOKEN] = token
        reached = {**passed, **{name: depot.reached for name, depot in plan.depots.items()}}
        history = self._history(plan, processed, committed, moved, token)
        # guard: chain-goes-on
        advanced[CHAIN] = history[CHAIN][-1].as_py()
        control = control_rows(self.primed, moved, processed.open, advanced, reached)
        control = record_growth(control, Growth.by(processed.counts, control, self.primed.fence.rows))
        rows = pa.concat_tables([control, history])
        note = _commit_note(committed, token)
        if plan.kind in KEEPS_RULES:
            self._timeout = None  # no function was called, and this commit may be raising the limit
        written = self._in_time(
            "commit", lambda: self._ledger.commit(processed, rows, self.primed.fence, self.primed.token, note)
        )
        meant = processed.counts.rows + rows.num_rows
        # guard: expected-counts
        ensure(written in (None, meant), f"the commit wrote {written} rows, {meant} were meant")
        self._end_phase("commit_ms")
        return replace(committed, lag_ms=_lag(plan, self._clock.now()), commit_ms=self._phases["commit_ms"])

    def _describe_commit(self, plan: MicrobatchPlan, processed: MicrobatchResult) -> CommittedMicrobatch:
        """Describe the commit before it happens, without what is known only afterwards."""
        messages, counts = plan.messages, processed.counts
        versions = {name: depot.reached.depot_version for name, depot in plan.depots.items()}
        depot_version = versions.pop(None, None)
        return CommittedMicrobatch(
            microbatch=plan.microbatch,
            kind=plan.kind,
            attempt=self.attempt,
            depot_version=depot_version,
            depots={str(name): version for name, version in versions.items()},
            message_count=messages,
            accepted=messages - counts.rejected,
            rejected=counts.rejected,
            reasons=counts.reasons,
            opened=counts.opened,
            closed=counts.closed,
            open_batch_count=self.primed.open.total[0] + counts.opened - counts.closed,
            processed_on=processed.processed_on,
            commit_mode=self._ledger.commit_mode,
            **self._phases,
        )

    def _rules(self, plan: MicrobatchPlan) -> str:
        """Return the rules in force after the commit; a pause does not change them."""
        # guard: pause-keeps-rules-of-commit
        return self.primed.rules if plan.kind in KEEPS_RULES else self._algorithm.settings

    def _history(
        self,
        plan: MicrobatchPlan,
        processed: MicrobatchResult,
        committed: CommittedMicrobatch,
        moved: Mapping[str | None, Sources],
        token: str,
    ) -> pa.Table:
        """Return the history: what was read, decided and moved, under which rules, and how long it took.

        There is a row for each depot that was read; the first has the counts of the whole microbatch. The token
        distinguishes this microbatch from one with the same number after a RESTORE. Each row continues the chain.
        """
        common: dict[str, object] = {
            **committed.history(),
            "state": "microbatch",
            "rules": processed.rules or self._rules(plan),
            "engine": self._ledger.engine_name,
            "token": token,
            "planned_microbatch": plan.id,
            "planned_at": times(np.array([plan.now])),
            "started_at": times(np.array([self.started_at])),
        }
        by_depot = [
            _of_depot(self._sources.get(name), name, depot, moved.get(name, Sources.none()), plan.flush)
            for name, depot in plan.depots.items()
        ]
        schema, rows = self.primed.progress.schema, []
        for number, own in enumerate(by_depot or [{}]):
            id_ = f"microbatch/{plan.microbatch}" + (f"/{own['depot']}" if number else "")
            counted = dict.fromkeys(COUNTED, 0) if number else processed.history
            rows.append(tables.rows(schema, {**common, **own, **counted, "id": id_}, 1))
        return link_rows(pa.concat_tables(rows), self.primed.chain)

    def _in_time(self, phase: str, work: Callable[[], T]) -> T:
        """Return the result of reading or committing. Raises PhaseTimeoutError."""
        try:
            return run_with_timeout(phase, self._timeout, self._ledger.engine.session_at_work, work)
        except PhaseTimeoutError:
            self._ledger.reopen()
            raise

    def _end_phase(self, name: str) -> None:
        now = self._clock.elapsed()
        self._phases[name] = round((now - self._phase_began) * 1_000, 3)
        self._phase_began = now

    def _require_in_time(self) -> None:
        """Raise PhaseTimeoutError if a phase took too long."""
        for name, took in self._phases.items():
            if self._timeout is not None and took * 1_000 > self._timeout:
                raise PhaseTimeoutError(f"{name.removesuffix('_ms')} took {took:,.0f} ms", HINT)


def _commit_note(committed: CommittedMicrobatch, token: str) -> str:
    """Return the user metadata of the commit, which identifies the microbatch in Delta's own history."""
    noted = {name: getattr(committed, name) for name in ("microbatch", "kind", "depot_version", "depots")}
    counts = {"messages": committed.message_count, "closed": committed.closed, "rejected": committed.rejected}
    return json.dumps({"windrow": VERSION} | noted | counts | {"token": token})


def _lag(plan: MicrobatchPlan, now: int) -> float | None:
    """Return how long before `now` the newest message arrived, in milliseconds."""
    stamps = [pc.max(depot.summary["stamp"]).cast(pa.int64()).as_py() for depot in plan.depots.values()]
    newest = max((stamp for stamp in stamps if stamp is not None), default=None)
    return None if newest is None else max(0, now - newest) / 1_000


def _of_depot(
    source: Source | None, name: str | None, plan: DepotPlan, moved: Sources, flush: bool
) -> dict[str, object]:
    """Return what the history records of a depot: how and what was read, and of a raw depot how many bytes.

    A rollback also moves depots that are no longer read, which have no source.
    """
    volume = None if plan.arrived is None else plan.arrived.volume
    counted = ("read", "framed", "rejected", "repeated") if volume is not None else ()
    return {
        "depot": name,
        "column_mapping": source and source.columns,
        "format": source and source.format,
        "depot_version": plan.reached.depot_version,
        "messages_read": plan.messages,
        "versions": _as_one_list(_versions(plan), tables.VERSIONS),
        "clocks": _as_one_list(_clocks(moved, plan.floors.after if flush else None), tables.CLOCKS),
        **{f"bytes_{count}": getattr(volume, count) for count in counted},
    }


def _select_moved(plan: DepotPlan) -> Floors:
    sources = combine_chunks(plan.summary.filter(pc.is_valid(plan.summary["stamp"]))["source"]).unique()
    return Floors(sources, plan.floors.after.of(sources))


def _per_version(summary: pa.Table) -> pa.Table:
    grouped = summary.group_by("version").aggregate([("messages", "sum")]).sort_by("version")
    return grouped.select(["version", "messages_sum"]).rename_columns(["version", "messages"])


def _versions(plan: DepotPlan) -> pa.Table:
    """Return `version, messages, fingerprint` of each version that was read."""
    counted = _per_version(plan.summary)
    fingerprints = [plan.fingerprints.get(version) for version in counted["version"].to_pylist()]
    return counted.append_column("fingerprint", pa.array(fingerprints, pa.string()))


def _clocks(moved: Sources, flushed_at: Floors | None) -> pa.Table:
    flushed = flushed_at.of(moved.source) if flushed_at else None
    return pa.table(
        {
            "source": moved.source,
            "clock": times(moved.clock),
            "floor": times(moved.floor),
            "cut": times(moved.cut, moved.cut != UNKNOWN),
            "flushed_at": pa.nulls(len(moved.source), times(moved.clock).type) if flushed is None else times(flushed),
        }
    )


def _as_one_list(elements: pa.Table, type_: pa.DataType) -> pa.Array:
    """Return the rows of a table as one list."""
    chunked = elements.to_struct_array()
    structs = pa.concat_arrays(chunked.chunks) if chunked.num_chunks else pa.array([], chunked.type)
    return pa.ListArray.from_arrays(pa.array([0, len(structs)], pa.int32()), structs).cast(type_)
