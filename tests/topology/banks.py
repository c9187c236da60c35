"""The bank of the topology tests: transfers between accounts of two states, in which money is neither lost nor made.

A transfer is a message `{"from": ..., "to": ..., "amount": ...}`. The state `funds` has what each account holds, the
state `moved` how much each account sent, and how much each received. A transfer that the funds do not cover is left
out, by both functions alike, because both decide over the same messages and the same funds.

A branch of the bank has a depot of its own, with transfers between accounts of its own: so it does not matter how the
versions of both follow each other.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from random import Random
from typing import Any

import pyarrow as pa

from windrow.topology import Depot, Microbatch, Topology

ACCOUNTS = [f"account-{number}" for number in range(10)]
HERE, OF_BRANCH = ACCOUNTS[:6], ACCOUNTS[6:]
BEGIN = 100


def bank(depot: str = "transfers", states: str = "bank", branch: str | None = None) -> Topology:
    """Return the topology, with the depot of the branch if there is one."""
    depots = {"transfers": Depot(depot)} | ({"branch": Depot(branch, start_from="beginning")} if branch else {})
    topology = Topology("bank", depots=depots, states=states)
    topology.state("funds", key="account STRING", value="amount BIGINT", initial={"amount": BEGIN})
    topology.state("moved", key="holder STRING", value="sent BIGINT, received BIGINT")

    @topology.function
    def transfer_money(microbatch: Microbatch) -> None:
        """Take from one account what the other gets, if the funds cover it."""
        funds, accounts = microbatch.state("funds"), pa.table({"account": ACCOUNTS})
        left = dict(zip(ACCOUNTS, funds.get(accounts)["amount"].to_pylist(), strict=True))
        covered = [transfer for depot in depots for transfer in take_out(microbatch.rows(depot), left)]
        funds.put(pa.table({"account": ACCOUNTS, "amount": [left[account] for account in ACCOUNTS]}))
        moved = [(transfer["from"], transfer["amount"], 0) for transfer in covered]
        moved += [(transfer["to"], 0, transfer["amount"]) for transfer in covered]
        columns = zip(*moved, strict=True) if moved else ([], [], [])
        rows = pa.table(dict(zip(MOVED.names, map(list, columns), strict=True)), MOVED)
        microbatch.state("moved").combine(rows, sent=("sent", "sum"), received=("received", "sum"))

    return topology


MOVED = pa.schema([("holder", pa.string()), ("sent", pa.int64()), ("received", pa.int64())])


def take_out(messages: pa.Table, left: dict[str, int]) -> list[dict[str, Any]]:
    """Return the transfers that the funds cover, in the order of the log, and take them from what is left."""
    covered = []
    for payload in messages.sort_by([("version", "ascending"), ("sequence", "ascending")])["payload"].to_pylist():
        transfer = json.loads(payload)
        if left[transfer["from"]] >= transfer["amount"]:
            left[transfer["from"]] -= transfer["amount"]
            left[transfer["to"]] += transfer["amount"]
            covered.append(transfer)
    return covered


def transfers(versions: int = 4, size: int = 20, seed: int = 1) -> list[list[dict[str, Any]]]:
    """Return random transfers, version by version, as rows for `Harness.append`."""
    random = Random(seed)
    numbers = iter(range(versions * size))
    return [[transfer(random, next(numbers)) for _ in range(size)] for _ in range(versions)]


def transfer(random: Random, number: int, among: Sequence[str] = ACCOUNTS) -> dict[str, Any]:
    """Return one random transfer."""
    giver, taker = random.sample(among, 2)
    payload = {"from": giver, "to": taker, "amount": random.randint(1, 60)}
    return {"payload": json.dumps(payload), "sequence": number}


def expected(payloads: Iterable[str]) -> tuple[dict[str, int], dict[str, tuple[int, int]]]:
    """Return what each account holds, and what each sent and received, after transfers one by one.

    None of both while there was no transfer.
    """
    left: dict[str, int] = {}
    moved: dict[str, tuple[int, int]] = {}
    for payload in payloads:
        left = left or dict.fromkeys(ACCOUNTS, BEGIN)
        transfer = json.loads(payload)
        giver, taker, amount = transfer["from"], transfer["to"], transfer["amount"]
        if left[giver] >= amount:
            left[giver] -= amount
            left[taker] += amount
            sent, received = moved.get(giver, (0, 0))
            moved[giver] = sent + amount, received
            sent, received = moved.get(taker, (0, 0))
            moved[taker] = sent, received + amount
    return left, moved
