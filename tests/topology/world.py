"""The bank in the place of the batcher: a world on which the fault tests of the batcher run as they are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from deltalake import DeltaTable

from tests.conftest import EngineFactory
from tests.engine.world import World
from tests.messages import Row
from tests.topology.banks import ACCOUNTS, BEGIN, Random, bank, expected, transfer
from windrow.clock import Clock
from windrow.engine import Engine
from windrow.runner import Runner
from windrow.settings import Settings
from windrow.testing.points import Probed, ProbedAlgorithm
from windrow.topology import Depot
from windrow.topology.functions import Functions
from windrow.topology.running import engine_of, inlets_of

NAME = "transfers"


class BankWorld(World):
    """A depot of transfers and the states of the bank. Whatever messages a test publishes, transfers come instead."""

    order: ClassVar[Mapping[str, Any]] = {"topology": "bank"}

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._random, self._numbers = Random(3), iter(range(1_000_000))

    def publish(self, *versions: Iterable[Row]) -> None:
        """Append as many transfers as there are messages."""
        super().publish(*([row | transfer(self._random, next(self._numbers)) for row in rows] for rows in versions))

    def engine(self, factory: EngineFactory, **settings: Any) -> Engine:
        """Open an engine on the tables."""
        return bank_engine(self.settings(factory, **settings), factory.session)

    def made(self, engine: Engine, settings: Settings, **called: Any) -> Runner:
        """Return the runner of the bank on an engine."""
        return bank_runner(engine, settings, called.pop("clock", self.clock), **called)

    def canonical(self, version: int | None = None) -> list[Row]:
        """Return the states."""
        funds = [{"account": row["account"], "amount": row["amount"]} for row in self.rows("funds", version=version)]
        names = ("holder", "sent", "received")
        return funds + [{name: row[name] for name in names} for row in self.rows("moved", version=version)]

    def expected(self, after: int = 0, now: int | None = None, flush: bool = False) -> list[Row]:
        """Return the states after all transfers of the depot, one by one."""
        arrived = self.arrived().sort_by([("version", "ascending"), ("sequence", "ascending")])
        funds, moved = expected(arrived["payload"].to_pylist())
        return [{"account": account, "amount": amount} for account, amount in sorted(funds.items())] + [
            {"holder": holder, "sent": sent, "received": received} for holder, (sent, received) in sorted(moved.items())
        ]

    def assert_balanced(self) -> None:
        """At every version all money is there, what moved explains it, and microbatches are numbered without a gap."""
        for version in range(self.version() + 1):
            self.check_money(version)
        numbers = [row["microbatch"] for row in self.history()]
        assert numbers == list(range(1, len(numbers) + 1))
        depot = DeltaTable(self.depot).to_pyarrow_table(columns=["payload"])
        assert sum(row["messages_read"] for row in self.history()) <= depot.num_rows

    def check_money(self, version: int) -> None:
        """All money is there in a version of the table, and what moved explains who has it."""
        rows = self.rows("funds", "moved", version=version)
        funds = {row["account"]: row["amount"] for row in rows if row["state"] == "funds"}
        assert not funds or sum(funds.values()) == BEGIN * len(ACCOUNTS), f"money was lost or made in {version}"
        gained = {row["holder"]: row["received"] - row["sent"] for row in rows if row["state"] == "moved"}
        assert all(amount == BEGIN + gained.get(account, 0) for account, amount in funds.items())


def bank_engine(settings: Settings, session: Any = None) -> Engine:
    """Open an engine on the tables of a bank."""
    return engine_of(bank(settings.depot, settings.ledger), Depot(settings.depot), settings, session)


def bank_runner(engine: Engine, settings: Settings, clock: Clock, **called: Any) -> Runner:
    """Return a runner of the bank; `called` is what `Runner` calls."""
    topology = bank(settings.depot, settings.ledger)
    functions = Functions(topology)
    algorithm = ProbedAlgorithm(functions, engine.at) if isinstance(engine, Probed) else functions
    inlets = inlets_of(topology, {NAME: engine}, settings)
    return Runner(inlets, algorithm, inlets[0].settings, clock, **called)
