"""A part of a depot version: in step, a microbatch takes only its messages no later than other depots have come.

The position in the depot then says up to which time its next version has been read. Later the whole version is read
again, and messages already taken are recognised by their processing time, which is the same in every read: no clock
that the part moved is later than any message that is left. Messages without a processing time, rejects of formats and
unfinished records come with the last part. A version on the executors is taken whole.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa

from windrow.errors import DepotChangedError
from windrow.model import clock
from windrow.model.floors import FloorsByVersion, times_of
from windrow.model.messages import microseconds
from windrow.rows.arrow import ArrowRows
from windrow.runtime.algorithm import DepotPlan
from windrow.runtime.ledger_state import DepotState
from windrow.source.slices import MessageSlice


def plan_version_part(plan: DepotPlan, known: DepotState, latest: int, until: int | None) -> DepotPlan:
    """Return what a microbatch takes from a depot's next version, up to the time `until` (microseconds; None: all).

    `plan` covers the whole version, with what an earlier microbatch took. Raises DepotChangedError if the version was
    replaced.
    """
    before, whole = known.reached, plan.arrived
    if not isinstance(whole, MessageSlice):
        return plan
    ends = until is None or whole.processed_on != "driver" or last_time(plan.summary, plan.floors) <= until
    if ends and before.part_until is None:
        return plan
    fingerprint = plan.reached.commit_fingerprint
    # guard: rest-of-the-same-version
    if before.part_until is not None and before.part_fingerprint != fingerprint:
        raise DepotChangedError(
            f"version {min(whole.expected)} of the depot is not the one that was partly read",
            "The depot was set back. Restore it, or roll the states back to before that part.",
        )
    rows = whole.rows.table()
    at = times_of(rows, plan.floors, latest)
    after = clock.UNKNOWN if before.part_until is None else before.part_until
    # guard: part-taken-once
    left = (rows["version"].to_numpy() != min(whole.expected)) | (at == clock.UNKNOWN) | (at > after)
    if until is not None and not ends:
        left &= (at != clock.UNKNOWN) & (at <= until)
    part = replace(whole, rows=ArrowRows(rows.filter(pa.array(left))), parsed=whole.parsed if ends else None)
    summary = part.summarise(latest)
    reached = plan.reached if ends else replace(before, part_until=until, part_fingerprint=fingerprint)
    return replace(
        plan, reached=reached, floors=FloorsByVersion.plan(summary, known.sources.floors), arrived=part, summary=summary
    )


def first_time(summary: pa.Table, known: DepotState) -> int:
    """Return a lower bound of the times of the messages left in a version (microseconds)."""
    moving = summary.filter(summary["earliest"].is_valid())
    floor = known.sources.floors.of(moving["source"].combine_chunks())
    first = int(np.min(np.maximum(floor, microseconds(moving["earliest"])), initial=np.iinfo(np.int64).max))
    return first if known.reached.part_until is None else max(first, known.reached.part_until + 1)


def last_time(summary: pa.Table, floors: FloorsByVersion) -> int:
    """Return the greatest clock after some messages (microseconds), UNKNOWN if they move none."""
    sources = summary["source"].drop_null().combine_chunks().unique()
    return int(np.max(floors.after.of(sources), initial=clock.UNKNOWN))
