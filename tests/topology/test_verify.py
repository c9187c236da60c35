"""The books of a topology, checked from outside: what was taken of its depots, and the files of its states."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.engine.factory import EngineFactory
from tests.topology.banks import bank, transfers
from tests.topology.test_chains import Chain
from windrow.settings.settings import Settings
from windrow.testing import DriverCrash, Harness, Point
from windrow.topology.verify import TopologyReport, verify_topology
from windrow.verify import parts

pytestmark = pytest.mark.ci

EMBEDDED = Settings(engine="embedded")


@pytest.fixture
def harness(tmp_path: Path) -> Harness:
    """A bank after crashes, a pause and a rollback."""
    harness = Harness(bank(), tmp_path, max_messages=10)
    for number, version in enumerate(transfers(versions=8, size=5)):
        harness.append(version)
        harness.crash_at(list(Point)[number % 5])
        with pytest.raises(DriverCrash):
            harness.run()
        harness.restart()
        if number == 4:
            harness.run()
            harness.rollback(2)
            harness.pause()
            harness.resume()
    harness.run()
    return harness


def verified(harness: Harness, **values: Any) -> TopologyReport:
    """Verify the topology of a harness."""
    return verify_topology(harness.topology, EMBEDDED, **values)


def checks(report: TopologyReport) -> list[str]:
    """Return which checks failed."""
    return [difference.check for difference in report.differences]


def rewrite(harness: Harness, state: str, change: Any) -> None:
    """Change the rows of a state behind Windrow's back."""
    table = DeltaTable(harness.topology.location)
    rows = table.to_pyarrow_table(filters=[("state", "=", state)])
    write_deltalake(table, change(rows), mode="overwrite", predicate=f"state = '{state}'")


def doubled(rows: pa.Table) -> pa.Table:
    """Return rows of which one is there twice."""
    return pa.concat_tables([rows, rows.slice(0, 1)])


def raised(rows: pa.Table) -> pa.Table:
    """Return rows with another value in each."""
    amount = pc.add(rows["amount"], pa.scalar(1, pa.int64()))
    return rows.set_column(rows.column_names.index("amount"), "amount", amount)


class TestSound:
    def test_bank(self, harness: Harness) -> None:
        """After crashes, a pause and a rollback each row is taken once, and a replay gives the same digests."""
        report = verified(harness, replay=True)
        assert report.ok, report.differences
        assert report.complete
        [depot] = report.depots
        assert (depot.first, depot.recorded_row_count, depot.depot_row_count) == (0, 40, 40)
        assert [state.digest for state in report.states] == [state.replayed for state in report.states]
        assert {state.name: state.row_count for state in report.states}["funds"] == 10

    @pytest.mark.slow_on_spark
    def test_chain(self, tmp_path: Path, engine: EngineFactory) -> None:
        """The changes of a state are counted as the depot that they are; once it is rolled back, nobody can count
        them.
        """
        chain = Chain(tmp_path, engine)
        for text in ("a b", "b -a", "c d"):
            chain.say(text)
            chain.mirror.run()
        settings = EMBEDDED.model_copy(update={"engine": engine.name})
        report = verify_topology(chain.mirror.topology, settings, spark=engine.session)
        assert report.ok, report.differences
        assert (report.complete, report.depots[0].recorded_row_count, report.depots[0].depot_row_count) == (True, 6, 6)
        chain.words.rollback(2)
        chain.words.run()
        assert verify_topology(chain.words.topology, settings, spark=engine.session).ok


class TestWrong:
    @pytest.mark.parametrize(
        ("change", "failed_check"),
        [
            (doubled, "each key of the state funds has one row"),
            (
                lambda rows: rows.set_column(
                    rows.column_names.index("account"), "account", pc.utf8_reverse(rows["account"].cast(pa.string()))
                ),
                "a row of the state funds has the id of its key",
            ),
        ],
        ids=["twice", "other-id"],
    )
    def test_keys(self, harness: Harness, change: Any, failed_check: str) -> None:
        """A key with two rows, and a row under another id, are found."""
        rewrite(harness, "funds", change)
        assert failed_check in checks(verified(harness))

    @pytest.mark.parametrize("change", ["none", "values", "twice"])
    def test_parts(self, harness: Harness, monkeypatch: pytest.MonkeyPatch, change: str) -> None:
        """The report is the same if each part has the rows of few keys, however many parts there are."""
        if change != "none":
            rewrite(harness, "funds", {"values": raised, "twice": doubled}[change])
        together = verified(harness, replay=change != "twice")
        monkeypatch.setattr(parts, "PART_SHARE", 1 << 60)
        progress = list[str]()
        assert verified(harness, replay=change != "twice", progress=progress.append) == together
        assert together.ok == (change == "none")
        assert {"the state funds, part 1 of 10", "the state funds, part 10 of 10"} <= {*progress}

    def test_values(self, harness: Harness) -> None:
        """A value that somebody changed is found by a replay only."""
        rewrite(harness, "funds", raised)
        assert verified(harness).ok
        report = verified(harness, replay=True)
        assert checks(report) == ["a replay gives the rows of the state funds"]
        digests = {state.name: (state.digest, state.replayed) for state in report.states}
        assert digests["funds"][0] != digests["funds"][1]
        assert digests["moved"][0] == digests["moved"][1]

    @pytest.mark.parametrize("lost", [True, False])
    def test_taken(self, harness: Harness, lost: bool) -> None:
        """A microbatch that is missing in the history, and versions that two microbatches say they took, are found."""

        def change(rows: pa.Table) -> pa.Table:
            last = pc.equal(rows["microbatch"], pc.max(rows["microbatch"]))
            if lost:
                return rows.filter(pc.invert(last))
            copied = rows.filter(last)
            number = pc.add(copied["microbatch"], 1)
            return pa.concat_tables(
                [rows, copied.set_column(copied.column_names.index("microbatch"), "microbatch", number)]
            )

        rewrite(harness, "microbatch", change)
        failed_checks = checks(verified(harness))
        if lost:
            assert "all rows of the depot transfers are taken" in failed_checks
            assert "the history has each microbatch" in failed_checks
        else:
            assert failed_checks == [
                "the history ends with the last microbatch", "chain",
                "each version of the depot transfers is taken once",
                "the versions of the depot transfers are taken in order",
            ]  # fmt: skip

    def test_statistics(self, harness: Harness) -> None:
        """A log that says another number of rows than a file of a state has is found."""
        log = sorted((Path(harness.topology.location) / "_delta_log").glob("*.json"))
        rewrite(harness, "funds", lambda rows: rows)
        [entry] = {*(Path(harness.topology.location) / "_delta_log").glob("*.json")} - {*log}
        content = entry.read_text()
        entry.write_text(content.replace('numRecords\\":', 'numRecords\\":1', 1))
        assert entry.read_text() != content
        assert checks(verified(harness)) == ["files"]

    @pytest.mark.parametrize("damage", ["another", "shorter", "other rows"])
    def test_depot(self, harness: Harness, damage: str) -> None:
        """Another depot with as many rows in each version, a lost version and one with other rows are found."""
        location = Path(harness.topology.depots["transfers"].location)
        if damage == "another":
            shutil.rmtree(location)
            for version in transfers(versions=8, size=5):
                harness.append(version)
        else:
            (location / "_delta_log" / f"{8:020}.json").unlink()
        if damage == "other rows":
            harness.append(transfers(versions=9, size=5)[8])
        assert checks(verified(harness)) == ["the depot transfers is the one that was read"]
