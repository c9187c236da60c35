"""Certificates: the program of the documentation accepts each that is true, and none in which anything was changed."""

from __future__ import annotations

import copy
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from tests.clocks import NOW, ManualClock
from tests.docs.pages import ROOT
from tests.engine.factory import EMBEDDED, EngineFactory
from tests.engine.world import World
from tests.messages import SECOND, log, message
from windrow.errors import NotFoundError, SettingsError
from windrow.model.timestamps import microseconds_of
from windrow.reading.certificate import Certifier, MessageName
from windrow.reading.tables import open_ledger

EARLIER, LATER = NOW - 100 * SECOND, NOW - 40 * SECOND
PAGE = (ROOT / "docs/howto/prove.md").read_text(encoding="utf-8")
[PROGRAM] = [block for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if "def climb" in block]
PROVED = ("too_old", "too_far_ahead", "duplicate")  # what follows from the rules, or from a batch


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """A ledger with many batches, one in parts, and rejections of all kinds."""
    world = World(tmp_path_factory.mktemp("certified"), ManualClock(NOW))
    large = [message(type_, EARLIER, EARLIER, source="l", key="large", payload="x" * 30) for type_ in "abc"]
    world.publish(*log(versions=8), large, [message("a", LATER, LATER, source="l", key="large")])
    world.runner(EMBEDDED, rules={"max_batch_bytes": 40, "max_delay": "6s"}, max_messages=60).once()
    return world


@pytest.fixture(scope="module")
def certifier(world: World) -> Certifier:
    """What certifies under the root of the world's ledger."""
    return Certifier(open_ledger(world.ledger))


def passes(certificate: dict[str, Any], directory: Path, root: str, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Tell whether the program accepts a certificate under a root."""
    file = directory / "certificate.json"
    file.write_text(json.dumps(certificate), encoding="utf-8")
    monkeypatch.setattr(sys, "argv", ["check_certificate.py", str(file), root])
    try:
        exec(compile(PROGRAM, "check_certificate.py", "exec"), {})  # noqa: S102 - the program of our own page
    except Exception:  # noqa: BLE001 - whatever it says, it does not accept it
        return False
    return True


def name_of(row: dict[str, Any], stream: dict[str, Any]) -> MessageName:
    """Return the name of a message in a row."""
    return MessageName(stream["key"], microseconds_of(row["event_time"]), row["type"], stream["source"])


def changed(value: Any) -> Iterator[Any]:
    """Yield copies of a document in which one value or one name is another, or one element is missing."""
    if isinstance(value, dict):
        for name, member in value.items():
            yield from ({**value, name: other} for other in changed(member))
        if len(value) > 1:
            first, second, *others = value
            yield {second: value[first], first: value[second], **{name: value[name] for name in others}}
    elif isinstance(value, list):
        for at, member in enumerate(value):
            yield from ([*value[:at], other, *value[at + 1 :]] for other in changed(member))
        yield value[1:] if value else ["right", "batch//k", 1, "batch//k", 2, "ab"]
    elif isinstance(value, int):
        yield value + 1
    elif isinstance(value, str):
        yield value + "0"
    else:
        yield "0"


def test_every_batch(world: World, certifier: Certifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A message of each closed batch is proved."""
    batches = world.rows("closed")
    assert max(batch["part"] for batch in batches) > 0
    for batch in batches:
        certificate = certifier.of_message(name_of(batch["messages"][-1], batch))
        assert batch["id"] in {part["fields"]["id"] for part in certificate["batch"]["parts"]}
        assert passes(certificate, tmp_path, certifier.root.root, monkeypatch), batch["id"]


def test_every_rejection(world: World, certifier: Certifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each rejection is proved, but for duplicates of a message in an open batch."""
    proved = set()
    for row in world.rows("rejected"):
        try:
            certificate = certifier.of_rejection(row["id"])
        except NotFoundError as error:
            assert row["reason"] == "duplicate", error  # noqa: PT017 - the others have to be proved
            continue
        assert passes(certificate, tmp_path, certifier.root.root, monkeypatch), row["id"]
        proved.add(row["reason"])
    assert proved >= {*PROVED, "invalid", "clock_ahead"}


@pytest.mark.parametrize("kind", ["batch", *PROVED])
def test_forged(world: World, certifier: Certifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Whatever value, name or hash of a certificate is changed, the program refuses it."""
    if kind == "batch":
        batch = next(row for row in world.rows("closed") if row["part"])
        certificate = certifier.of_message(name_of(batch["messages"][0], batch))
    else:
        ids = [row["id"] for row in world.rows("rejected") if row["reason"] == kind]
        certificate = certifier.of_rejection(ids[-2] if kind == "duplicate" else ids[0])
    assert passes(certificate, tmp_path, certifier.root.root, monkeypatch)
    forged = [copy.deepcopy(other) for other in changed(certificate)]
    assert len(forged) > 50
    accepted = [other for other in forged if list(other) == list(certificate)]
    accepted = [other for other in accepted if passes(other, tmp_path, certifier.root.root, monkeypatch)]
    assert accepted == []


def test_another_root(world: World, certifier: Certifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A certificate counts under the root that was noted, and under no other."""
    [row, *_] = world.rows("rejected")
    assert not passes(certifier.of_rejection(row["id"]), tmp_path, "0" * 64, monkeypatch)


def test_root_is_of_the_content(world: World, certifier: Certifier) -> None:
    """The root of a version stays the same whatever comes later; one changed byte gives another."""
    version = certifier.root.ledger_version
    DeltaTable(world.ledger).update(updates={"detail": "'x'"}, predicate="state = 'rejected' AND reason = 'too_old'")
    assert Certifier(open_ledger(world.ledger)).root.root != certifier.root.root
    assert Certifier(open_ledger(world.ledger, version)).root == certifier.root
    DeltaTable(world.ledger).restore(version)
    assert Certifier(open_ledger(world.ledger)).root.root == certifier.root.root


@pytest.mark.parametrize(
    ("name", "error", "says"),
    [
        (MessageName("nobody", NOW), NotFoundError, "no such message"),
        (MessageName("large", LATER), NotFoundError, "open batch"),
        (MessageName("large", EARLIER), SettingsError, "--type"),
    ],
)
def test_no_certificate(certifier: Certifier, name: MessageName, error: type[Exception], says: str) -> None:
    """A message that is not there, not final yet, or not the only one of its name has no certificate."""
    with pytest.raises(error) as refused:
        certifier.of_message(name)
    assert says in f"{refused.value} {getattr(refused.value, 'hint', '')}"


def test_nothing_final(tmp_path: Path) -> None:
    """A ledger in which nothing is final has no root."""
    world = World(tmp_path, ManualClock(NOW))
    world.publish()
    world.runner(EMBEDDED).once()
    with pytest.raises(NotFoundError, match="nothing is final"):
        Certifier(open_ledger(world.ledger))


@pytest.mark.spark
@pytest.mark.ci
def test_spark(tmp_path: Path, spark: Any) -> None:
    """A certificate under a ledger that Spark wrote has the same batch as one of the embedded engine."""
    shown = []
    for factory in (EMBEDDED, EngineFactory("spark", spark)):
        world = World(tmp_path / factory.name, ManualClock(NOW))
        world.publish(*log(versions=3))
        world.runner(factory).once()
        certifier = Certifier(open_ledger(world.ledger))
        batches = sorted(world.rows("closed"), key=lambda row: row["id"])
        documents = [certifier.of_message(name_of(batch["messages"][0], batch)) for batch in batches]
        shown.append([document["batch"]["parts"] for document in documents])
    assert shown[0] == shown[1] != []
