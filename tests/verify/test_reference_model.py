"""The reference model of `verify` against the written cases and against the oracle of the tests."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import batching
from tests.oracle import Message, Oracle, OracleRules
from windrow.verify.decisions.microbatch_history import Rules
from windrow.verify.decisions.reference_model import DERIVED, Change, Messages, SourceHistory, Stream

CASES = json.loads((Path(batching.__file__).parent / "cases.json").read_text())["cases"]
WHOLE = [case for case in CASES if not any(one["op"] == "tick" for one in case["inputs"])]
FAR = 1 << 50
Batch = tuple[int, int, int, int, tuple[str, ...]]


def derive(rules: dict[str, Any], accepted: list[dict[str, Any]], flush_at: int | None = None) -> list[Batch]:
    """Derive the batches of a stream with one message a microbatch, after which everything closes.

    Returns start, end, part, closing time and the ids of the messages, ordered.
    """
    kinds = sorted({one["type"] for one in accepted})
    messages = Messages(
        event_time=[one["event_time"] for one in accepted],
        processing_time=[one["processing_time"] for one in accepted],
        kind=[kinds.index(given["type"]) for given in accepted],
        byte_count=[one["bytes"] for one in accepted],
        microbatch=[number + 1 for number in range(len(accepted))],
    )
    last = len(accepted) + 1
    floor = max(messages.processing_time, default=0)
    cut = max(messages.event_time, default=0) + 1
    source_history = SourceHistory(
        rules=[in_force(rules)] * (last + 1),
        raised=[0] * (last + 1),
        heights=[*messages.processing_time, FAR],
        reached_in=[*messages.microbatch, last],
        changes=[] if flush_at is None else [Change(last, floor, flush_at, flush=True, cut=cut)],
        floor=FAR,
    )
    batches: list[tuple[Any, ...]] = []
    inside: dict[int, list[dict[str, Any]]] = {}
    for one, number in zip(accepted, Stream(0, messages, source_history, batches).derive(), strict=True):
        inside.setdefault(number, []).append(one)
    found = []
    for number, values in enumerate(batches):
        batch = dict(zip(DERIVED.names, values, strict=True))
        assert batch["closed_at"] is not None
        ordered = sorted(inside[number], key=lambda one: (one["event_time"], one["type"]))
        window = (batch[name] for name in ("start", "end", "part", "closed_at"))
        found.append((*window, tuple(one["id"] for one in ordered)))
    return sorted(found)


def in_force(rules: dict[str, Any]) -> Rules:
    """Return the rules of a case."""
    return Rules(
        window=rules["window"],
        max_delay=rules["max_delay"],
        max_leap=rules["max_leap"],
        max_batch_bytes=rules.get("max_batch_bytes") or 0,
        at_arrival=rules.get("window_start", "arrival") == "arrival",
        keeps=rules.get("repeats") == "keep",
        at_midpoint=rules.get("split_at") == "midpoint",
        on_calendar=rules.get("window_start") == "aligned",
        window_offset=rules.get("window_offset", 0),
    )


@pytest.mark.parametrize("case", WHOLE, ids=lambda case: case["id"])
def test_cases(case: dict[str, Any]) -> None:
    """The accepted messages of a written case make its windows, with their ends, parts and closing times."""
    expected = case["expected"]
    sent = [one for one in case["inputs"] if one["op"] == "message"]
    accepted = [one for one in sent if expected["disposition"][one["id"]] == "accepted"]
    flush = next((one["processing_time"] for one in case["inputs"] if one["op"] == "flush"), None)
    assert derive(case["rules"], accepted, flush) == sorted(
        (*one["window"], one.get("part", 0), one["closed_at"], tuple(one["messages"])) for one in expected["batches"]
    )


@given(seed=st.integers(0, 1 << 32))
def test_oracle(seed: int) -> None:
    """Random messages of a stream, under random rules, make the windows that the oracle of the tests makes of them."""
    random = Random(seed)
    rules = {
        "window": random.choice([1, 5, 10, 40]),
        "max_delay": random.choice([0, 3, 10, 30]),
        "max_leap": random.choice([0, 2, 8]),
        "max_batch_bytes": random.choice([None, 3, 6, 20]),
        "window_start": random.choice(["arrival", "event_time", "aligned"]),
        "repeats": random.choice(["split", "split", "keep"]),
        "split_at": random.choice(["message", "midpoint"]),
    }
    if rules["window_start"] == "aligned":
        rules["window_offset"] = random.randrange(rules["window"])
    oracle, sent = Oracle(OracleRules(**rules)), {}
    now = 0
    for index in range(random.randint(1, 40)):
        now += random.choice([0, 1, 2, 5, 20])
        time, size = now + random.randint(-12, 6), random.randint(0, 4)
        kind = random.choice("abcd")
        oracle.messages([Message(index, "", "k", kind, time, now, index, "x" * size, index)])
        sent[index] = {"id": index, "type": kind, "event_time": time, "processing_time": now, "bytes": size + 1}
    oracle.finish()
    refused = {one.index for one in oracle.rejected}
    accepted = [one for index, one in sent.items() if index not in refused]
    assert derive(rules, accepted) == sorted(
        (one.window_start, one.window_end, one.part, one.closed_at, one.messages) for one in oracle.closed
    )
