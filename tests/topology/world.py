"""The bank in the place of the batcher: a world on which the fault tests of the batcher run as they are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pyarrow.compute as pc
from deltalake import DeltaTable, write_deltalake

from tests.engine.factory import EngineFactory
from tests.engine.world import World
from tests.messages import Row, table
from tests.probes import Tables
from tests.topology.banks import ACCOUNTS, BEGIN, HERE, OF_BRANCH, Random, bank, expected, transfer
from windrow.delta.creation import create_depot
from windrow.model.clock import Clock
from windrow.runtime.loop import Runner
from windrow.runtime.microbatch import MicrobatchAttempt
from windrow.settings.settings import Settings
from windrow.testing.points import ProbedAlgorithm, ProbedLedger
from windrow.topology.functions import FunctionAlgorithm
from windrow.topology.running import runner_of, tables_of

NAME = "transfers"


class BankSettings(Settings):
    """Settings of a driver of the bank: whether it reads the depot of the branch as well."""

    branch: bool = False


class BankWorld(World):
    """Depots of transfers and the states of the bank. Whatever messages a test publishes, transfers come instead."""

    order: ClassVar[Mapping[str, Any]] = {"topology": "bank"}
    live: ClassVar[Sequence[str]] = ("funds", "moved")
    final: ClassVar[Sequence[str]] = ("microbatch",)
    read_by_rivals: ClassVar[list[list[int]]] = [[1, 2], [3]]  # the plan of the first one stands
    attempts_of_rivals: ClassVar[set[int]] = {1, 2}  # both call the functions for the plan of the first one
    rules: ClassVar[Sequence[Mapping[str, Any]]] = ({"branch": False}, {"branch": True})

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._random, self._numbers = Random(3), iter(range(1_000_000))
        create_depot(self.branch, self.payload)

    @property
    def branch(self) -> str:
        """Return where the depot of the branch is."""
        return str(Path(self.depot).parent / "branch")

    def publish(self, *versions: Iterable[Row]) -> None:
        """Append as many transfers as there are messages."""
        super().publish(*(self._transfers(rows, HERE) for rows in versions))

    def publish_in_branch(self, rows: Iterable[Row]) -> None:
        """Append as many transfers of the branch as there are messages."""
        write_deltalake(self.branch, table(self._transfers(rows, OF_BRANCH), self.payload), mode="append")

    def settings(self, factory: EngineFactory, **settings: Any) -> BankSettings:
        """Return the settings of these tables."""
        return BankSettings(depot=self.depot, ledger=self.ledger, engine=factory.name, **settings)

    def tables(self, factory: EngineFactory, **settings: Any) -> Tables:
        """Open the tables with an engine."""
        all_settings = self.settings(factory, **settings)
        return bank_tables(all_settings, factory.session, self.branch if all_settings.branch else None)

    def made(self, tables: Tables, **called: Any) -> Runner:
        """Return the runner of the bank on tables."""
        return bank_runner(tables, called.pop("clock", self.clock), **called)

    def microbatch(self, factory: EngineFactory) -> MicrobatchAttempt:
        """Return a primed microbatch."""
        tables = self.tables(factory)
        functions = FunctionAlgorithm(bank(self.depot, self.ledger), tables.sources, tables.ledger)
        return MicrobatchAttempt(tables.ledger, tables.sources, functions, self.clock)

    def canonical(self, version: int | None = None) -> list[Row]:
        """Return the states."""
        funds = [{"account": row["account"], "amount": row["amount"]} for row in self.rows("funds", version=version)]
        names = ("holder", "sent", "received")
        return funds + [{name: row[name] for name in names} for row in self.rows("moved", version=version)]

    def expected(self, after: int = 0, now: int | None = None, flush: bool = False) -> list[Row]:
        """Return the states after all transfers from a version of the depot on, one by one."""
        versions = [(self.depot, after), (self.branch, 0)]
        payloads = [payload for depot, start in versions for payload in self._arrived_from(depot, start)]
        funds, moved = expected(payloads)
        return [{"account": account, "amount": amount} for account, amount in sorted(funds.items())] + [
            {"holder": holder, "sent": sent, "received": received} for holder, (sent, received) in sorted(moved.items())
        ]

    def assert_balanced(self) -> None:
        """At every version all money is there, and no more was read than there is; microbatches have no gaps."""
        super().assert_balanced()
        there = sum(DeltaTable(depot).count() for depot in (self.depot, self.branch))
        assert sum(row["messages_read"] for row in self.history()) <= there

    def check_balance(self, version: int, rows: Iterable[Row]) -> None:
        """All money is there in the rows of a version, and what moved explains who has it."""
        funds = {row["account"]: row["amount"] for row in rows if row["state"] == "funds"}
        assert not funds or sum(funds.values()) == BEGIN * len(ACCOUNTS), f"money was lost or made in {version}"
        gained = {row["holder"]: row["received"] - row["sent"] for row in rows if row["state"] == "moved"}
        assert all(amount == BEGIN + gained.get(account, 0) for account, amount in funds.items())

    def check_totals(self, version: int, rows: Iterable[Row]) -> None:
        """A topology has no open batches, and keeps no totals of them."""

    def check_result(self, after: int, plain: bool) -> None:
        """The states are those of the transfers one by one, whatever else happened."""
        assert self.canonical() == self.expected(after)

    def _transfers(self, rows: Iterable[Row], among: Sequence[str]) -> list[Row]:
        return [row | transfer(self._random, next(self._numbers), among) for row in rows]

    def _arrived_from(self, depot: str, start: int) -> list[str]:
        """Return the payloads of a depot from a version on, in their order."""
        arrived = self.arrived(depot).sort_by([("version", "ascending"), ("sequence", "ascending")])
        return arrived.filter(pc.greater_equal(arrived["version"], start))["payload"].to_pylist()


def bank_tables(settings: Settings, session: Any = None, branch: str | None = None) -> Tables:
    """Open the tables of a bank, with the depot of its branch if one is given."""
    return Tables(*tables_of(bank(settings.depot, settings.ledger, branch), settings, session))


def bank_runner(tables: Tables, clock: Clock, **called: Any) -> Runner:
    """Return a runner of the bank, of its branch too if that is open; `called` is what `Runner` calls."""
    sources, ledger = tables.sources, tables.ledger
    branch = sources["branch"].settings.depot if "branch" in sources else None
    topology = bank(sources[NAME].settings.depot, ledger.settings.ledger, branch)
    functions: Any = FunctionAlgorithm(topology, sources, ledger)
    if isinstance(ledger, ProbedLedger):
        functions = ProbedAlgorithm(functions, ledger.at)
    return runner_of(topology, sources, ledger, clock, functions, **called)
