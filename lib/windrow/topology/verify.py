"""Verify a topology: its depots were read row by row without gap or overlap, and the files of its states are sound.

The rows of a depot are counted again, version by version, and compared with what the history says was taken. The files
of the states are read with Arrow: each key has one row, under the id of this key, in a file with correct statistics, by
which the embedded engine finds keys. `replay` runs the functions again and compares the states.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from windrow.delta.database import database
from windrow.delta.table import open_table
from windrow.errors import DepotChangedError, DepotMismatchError, WindrowError
from windrow.ledger import Ledger
from windrow.model import tables
from windrow.model.chain import CHAIN, LINKED
from windrow.replaying.digest_tables import RECORDED, DigestTables
from windrow.runtime.ledger_state import DepotPosition, prime
from windrow.runtime.opening import require_depot
from windrow.settings.settings import Settings
from windrow.source import Source
from windrow.topology.migration import recorded_states
from windrow.topology.reading import Row, counting, history_of, history_rows, pieces_of
from windrow.topology.replay import digests_of, replay_topology
from windrow.topology.running import tables_of
from windrow.topology.state import State
from windrow.topology.state_parts import parts_of
from windrow.topology.states_table import states_of
from windrow.topology.status import require_run
from windrow.topology.topology import Topology
from windrow.topology.work import application
from windrow.verify.files import check_table
from windrow.verify.log import check_links, read_log
from windrow.verify.report import (
    Difference,
    Found,
    ReportStatus,
    difference_in_numbers,
    difference_in_rows,
    merge_findings,
    split_findings,
)


@dataclass(frozen=True, slots=True)
class DepotBooks:
    """The rows of a depot, from version `first` to `last`: as the history says they were taken, and as counted again.

    `depot_row_count` is None if they could not be counted.
    """

    name: str
    first: int | None
    last: int
    recorded_row_count: int
    depot_row_count: int | None


@dataclass(frozen=True, slots=True)
class StateBooks:
    """The rows of a state, in how many files, and their digest; `replayed` is the digest of a replay."""

    name: str
    row_count: int
    file_count: int
    digest: str
    replayed: str | None


@dataclass(frozen=True, slots=True)
class TopologyReport(ReportStatus):
    """The result: the books, what is wrong, and what could not be checked."""

    topology: str
    microbatch: int
    depots: tuple[DepotBooks, ...]
    states: tuple[StateBooks, ...]
    differences: tuple[Difference, ...]
    findings: tuple[str, ...]


def verify_topology(
    topology: Topology,
    settings: Settings,
    replay: bool = False,
    spark: Any = None,
    progress: Callable[[str], None] = lambda what: None,
) -> TopologyReport:
    """Verify a topology; `progress` is called with what is verified. Raises NotFoundError if it never ran."""
    sources, ledger = tables_of(topology, settings, spark)
    require_run(topology, ledger)
    primed, history = prime(ledger, list(sources)), history_of(ledger)
    result: list[Found] = [*_check_numbers(history, primed.microbatch)]
    result += check_links(history_rows(states_of(ledger), ["microbatch", "depot", *LINKED, CHAIN]), primed.chain)
    depots, states = [], []
    for name, source in sources.items():
        progress(f"the depot {name}")
        books, more = _check_depot(name, source, counting(history), primed.depots[name].reached, topology.in_step)
        depots.append(books)
        result += more
    for name, place in topology.outputs.items():
        progress(f"the output {name}")
        notes = ledger.engine.log(ledger.engine.place(place)).notes()
        result += _check_output(name, notes, application(ledger, name, ()), history)
    progress("the table of states")
    files, more = _check_files(ledger, primed.microbatch)
    result += more
    recorded = topology.states | recorded_states(topology.states, primed.rules, primed.progress.schema)
    recorded = {name: recorded[name] for name in topology.states}  # a declared change comes with the next run
    again = _replay_states(topology, settings, spark, result, progress) if replay else {}
    for state in recorded.values():
        rows, digest, more = _check_state(state, ledger, settings.max_memory_bytes, progress)
        states.append(StateBooks(state.name, rows, files[state.name], digest, again.get(state.name)))
        result += more
    known = {*topology.states, *tables.FINAL, *tables.CONTROL}
    result += [f"the state {name}, which is not declared" for name in sorted(files.keys() - known)]
    return TopologyReport(topology.name, primed.microbatch, tuple(depots), tuple(states), *split_findings(result))


def _check_files(ledger: Ledger, microbatch: int) -> tuple[Counter[str], list[Found]]:
    """Check the files of the states; return also how many each state has."""
    path = ledger.path
    if path is None:
        return Counter(), ["the files of the states, which only Spark reaches"]
    table = open_table(path, "ledger")
    findings = check_table(read_log(table, path, "ledger"), table, path, "ledger", (), "state=microbatch", microbatch)
    return Counter(pa.table(table.get_add_actions(flatten=True))["partition.state"].to_pylist()), [*findings]


def _check_numbers(history: list[Row], last: int) -> Iterator[Difference]:
    """Check that the history has each microbatch."""
    numbers = {row["microbatch"] for row in history}
    yield from difference_in_numbers(
        "the history has each microbatch", last, len(numbers & {*range(1, last + 1)}), "microbatches"
    )
    yield from difference_in_numbers(
        "the history ends with the last microbatch", last, max(numbers, default=0), "is the number"
    )


def _check_depot(
    name: str, source: Source, history: list[Row], reached: DepotPosition, in_parts: bool
) -> tuple[DepotBooks, list[Found]]:
    """Compare what was taken from a depot with its rows; return also its books."""
    own = [row for row in history if row["depot"] == name]
    taken = [(part["version"], part["messages"]) for row in own for part in row["versions"] or ()]
    versions = [version for version, _ in taken]
    # In step a version may be read in parts: then their sum is compared, below.
    twice = [version for version, times in Counter(versions).items() if times > 1 and not in_parts]
    rows = pa.table({"version": pa.array(twice, pa.int64())})
    result: list[Found] = [
        *difference_in_rows(f"each version of the depot {name} is taken once", "once", rows, "versions taken again")
    ]
    if versions != sorted(versions):
        result.append(Difference(f"the versions of the depot {name} are taken in order", "in order", "another order"))
    if own and reached.depot_version < own[-1]["depot_version"]:  # later versions may have had no rows
        check = f"the position in the depot {name} is not before that of the last microbatch that read it"
        result += difference_in_numbers(check, own[-1]["depot_version"], reached.depot_version, "is the version")
    begin = _begin(reached.start_from, versions)
    sums = Counter[int]()
    for version, rows_taken in taken:
        before = sums[version] if in_parts else 0
        sums[version] = before + rows_taken if version <= reached.depot_version or not in_parts else 0
    try:
        result += _check_identity(name, source, reached)
        accepted = [row["depot_version"] for row in own if row["kind"] == "skip"]
        counted = None if source.depot().raw else _count_depot_rows(source, begin, reached.depot_version, accepted)
    except WindrowError as error:
        counted, unread = None, f": {error.message}"
    else:
        unread = " of a raw depot, whose records depend on each other"
    books = DepotBooks(
        name,
        begin if versions else None,
        reached.depot_version,
        sum(sums.values()),
        None if counted is None else sum(counted.values()),
    )
    if counted is None:
        return books, [*result, f"the rows of the depot {name}{unread}"]
    wrong = [
        {"version": version, "rows": counted.get(version, 0), "taken": sums.get(version, 0)}
        for version in sorted(counted | sums)
        if counted.get(version, 0) != sums.get(version, 0)
    ]
    result += difference_in_rows(
        f"all rows of the depot {name} are taken", "as in the depot", pa.Table.from_pylist(wrong), "versions"
    )
    return books, result


def _check_output(
    name: str, notes: list[tuple[dict[str, Any], int | None]], by: str, history: list[Row]
) -> Iterator[Found]:
    """Compare the appends in the log of an output with those in the history.

    Two plans may have appended under one number, if a RESTORE brought the first one back; each has its transaction.
    """
    own = [(note, rows) for note, rows in notes if _is_append(note, by)]
    recorded = {
        row["planned_microbatch"]: part["rows"]
        for row in history
        for part in row["appended"] or ()
        if part["output"] == name
    }
    there: dict[int, list[int | None]] = {}
    for note, rows in own:
        there.setdefault(note["number"], []).append(rows)
    times = Counter((note["output"], note["number"], note.get("transaction")) for note, _ in own)
    first = min(there, default=0)
    twice = [{"append": id_, "number": number} for (id_, number, _), count in times.items() if count > 1]
    wrong = [
        {"number": number, "rows in the history": rows, "rows in the output": there.get(number)}
        for number, rows in recorded.items()
        if number >= first and not {rows, None} & {*there.get(number, ())} and not (rows is None and number in there)
    ]
    yield from difference_in_rows(
        f"each append to the output {name} is there once", "once", pa.Table.from_pylist(twice), "appends"
    )
    yield from difference_in_rows(
        f"the output {name} has what the history says", "these rows", pa.Table.from_pylist(wrong), "appends"
    )
    others = 0
    for number, appends in there.items():
        appended, known = sum(rows or 0 for rows in appends), recorded.get(number, 0)
        others += 0 if known is None else max(0, appended - known)
    if others:
        yield (
            f"{others:,} rows of the output {name} that no microbatch of the history appended: a RESTORE of the states "
            "took it back, or an attempt is not finished"
        )
    if cleaned := [number for number in recorded if number < first]:
        yield f"{len(cleaned)} appends to the output {name}, which are no longer in its log"


def _is_append(note: Mapping[str, Any], by: str) -> bool:
    """Tell whether the note of a commit is that of an append by these states, whatever depots they read then."""
    return str(note.get("output")).rpartition(":")[0] == by.rpartition(":")[0]


def _check_identity(name: str, source: Source, reached: DepotPosition) -> list[Difference]:
    """Check that a depot is the table that was read, and has the last commit that was read."""
    try:
        if reached.depot_id:
            # guard: verified-depot-is-read-one
            require_depot(source, reached)
    except (DepotMismatchError, DepotChangedError) as error:
        return [Difference(f"the depot {name} is the one that was read", "its id and its commits", error.message)]
    return []


def _begin(start_from: str, versions: list[int]) -> int:
    """Return the version from which a depot was read: as `start_from` says, or else the first that was taken."""
    if start_from == "beginning":
        return 0
    if start_from.startswith("version:"):
        return int(start_from.removeprefix("version:"))
    return min(versions, default=0)


def _count_depot_rows(source: Source, first: int, last: int, accepted: list[int]) -> dict[int, int]:
    """Count the rows of a depot by version, from `first` to `last` without those that were `accepted`."""
    counted: dict[int, int] = {}

    for begin, end in zip([first, *(at + 1 for at in accepted)], [*(at - 1 for at in accepted), last], strict=True):
        at = begin - 1
        with source.arrivals(at, end) if begin <= end else nullcontext() as arrivals:
            while arrivals is not None and (arrived := arrivals.after(at, 1_000_000, end)) is not None:
                summary = arrived.parse(lambda _sources: pa.table({})).summarise(0)
                for version, rows in zip(summary["version"].to_pylist(), summary["messages"].to_pylist(), strict=True):
                    counted[version] = counted.get(version, 0) + rows
                at = max(arrived.expected)
    return {version: rows for version, rows in counted.items() if rows}


def _check_state(
    state: State, ledger: Ledger, max_memory_bytes: int, progress: Callable[[str], None]
) -> tuple[int, str, list[Found]]:
    """Check the keys of a state; return also how many rows it has, and their digest."""
    count, findings = 0, list[Found]()
    with database(max_memory_bytes) as connection:
        digests = DigestTables(connection)
        for part in parts_of(state, [pieces_of(states_of(ledger), state)], max_memory_bytes, keep_doubles=True):
            progress(f"the state {state.name}, part {part.number} of {part.count}")
            [rows] = part.rows
            findings += _check_keys(state, rows)
            digests.add(RECORDED, digests_of(state, rows).rows)
            count += rows.num_rows
        return count, digests.total(RECORDED), merge_findings(findings)


def _check_keys(state: State, rows: pa.Table) -> Iterator[Difference]:
    """Check that each key has one row, under its own id."""
    counted = rows.group_by("id").aggregate([([], "count_all")])
    twice = counted.filter(pc.greater(counted["count_all"], 1))
    yield from difference_in_rows(
        f"each key of the state {state.name} has one row", "one row", twice, "keys with several"
    )
    other = rows.filter(pc.invert(pc.equal(rows["id"].combine_chunks(), state.ids(rows))))
    yield from difference_in_rows(
        f"a row of the state {state.name} has the id of its key", "its id", other.select(["id"]), "rows"
    )


def _replay_states(
    topology: Topology, settings: Settings, spark: Any, findings: list[Found], progress: Callable[[str], None]
) -> Mapping[str, str]:
    """Return the digests of the replayed states, and add the differences to the findings."""
    try:
        replayed = replay_topology(
            topology,
            settings,
            spark=spark,
            progress=lambda done, of: progress(f"the replay, microbatch {done} of {of}"),
        )
    except WindrowError as error:
        findings.append(f"the replay: {error.message}")
        return {}
    for difference in replayed.differences:
        check = f"a replay gives the rows of the state {difference.state}"
        findings.append(
            Difference(check, "the same", f"{difference.key_count} keys with others", examples=(*difference.examples,))
        )
    return replayed.digests
