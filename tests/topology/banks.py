"""The bank of the topology tests: transfers between accounts of two states, in which money is neither lost nor made.

A transfer is a message `{"from": ..., "to": ..., "amount": ...}`. The state `funds` has what each account holds, the
state `moved` how much each account sent, and how much each received. A transfer that the funds do not cover is left
out, by both functions alike, because both decide over the same messages and the same funds.

A branch of the bank has a depot of its own, with transfers between accounts of its own: so it does not matter how the
versions of both follow each other.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from windrow.topology import Depot, Microbatch, Topology

ACCOUNTS = [f"account-{number}" for number in range(10)]
HERE, OF_BRANCH = ACCOUNTS[:6], ACCOUNTS[6:]
BEGIN = 100


def bank(depot: str = "transfers", state: str = "bank", branch: str | None = None) -> Topology:
    """Return the topology, with the depot of the branch if there is one."""
    depots = {"transfers": Depot(depot)} | ({"branch": Depot(branch, start_from="beginning")} if branch else {})
    topology = Topology("bank", depots=depots, state=state)

    @topology.pstate("funds", key="account STRING", value="amount BIGINT")
    def funds(microbatch: Microbatch) -> pa.Table:
        """Take from one account what the other gets."""
        before = held(microbatch)
        now = dict(before)
        for transfer in covered(microbatch):
            now[transfer["from"]] -= transfer["amount"]
            now[transfer["to"]] += transfer["amount"]
        known = set(microbatch.state("funds").rows["account"].to_pylist())
        changed = [account for account in now if now[account] != before[account] or account not in known]
        return pa.table({"account": changed, "amount": [now[account] for account in changed]}, FUNDS)

    @topology.pstate("moved", key="holder STRING", value="sent BIGINT, received BIGINT")
    def moved(microbatch: Microbatch) -> pa.Table:
        """Count what each account sent and received."""
        sent: Counter[str] = Counter()
        received: Counter[str] = Counter()
        for transfer in covered(microbatch):
            sent[transfer["from"]] += transfer["amount"]
            received[transfer["to"]] += transfer["amount"]
        holders = sorted(set(sent) | set(received))
        columns = [holders, [sent[one] for one in holders], [received[one] for one in holders]]
        added = {name: added_to(name) for name in ("sent", "received")}
        return microbatch.state("moved").upsert(pa.table(dict(zip(MOVED.names, columns, strict=True)), MOVED), **added)

    return topology


FUNDS = pa.schema([("account", pa.string()), ("amount", pa.int64())])
MOVED = pa.schema([("holder", pa.string()), ("sent", pa.int64()), ("received", pa.int64())])


def added_to(name: str) -> Any:
    """Return what adds a new value to the old one."""
    return lambda old, new: pc.add(pc.fill_null(old[name], 0), new[name])


def held(microbatch: Microbatch) -> dict[str, int]:
    """Return what each account holds before the microbatch; a new one begins with the same sum as all."""
    rows = microbatch.state("funds").rows
    known = zip(rows["account"].to_pylist(), rows["amount"].to_pylist(), strict=True)
    return dict.fromkeys(ACCOUNTS, BEGIN) | dict(known)


def covered(microbatch: Microbatch) -> list[dict[str, Any]]:
    """Return the transfers that the funds cover, in the order of the log."""
    left, found = held(microbatch), []
    messages = microbatch.messages.sort_by([("version", "ascending"), ("sequence", "ascending")])
    for payload in messages["payload"].to_pylist():
        transfer = json.loads(payload)
        if left[transfer["from"]] >= transfer["amount"]:
            left[transfer["from"]] -= transfer["amount"]
            left[transfer["to"]] += transfer["amount"]
            found.append(transfer)
    return found


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
