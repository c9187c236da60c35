"""The way of a message in the page of design: each function of the table is called in this order in a microbatch."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import wraps
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from tests.clocks import ManualClock
from tests.engine.factory import EMBEDDED, EngineFactory
from tests.engine.world import World
from tests.messages import log

PAGE = Path(__file__).parents[2] / "docs" / "design.md"
ROW = re.compile(r"^\| \w+ \| (`.*?`|the same) \| (`.*?`|the same) \|", re.MULTILINE)
STOP = re.compile(r"`([\w/]+)\.py::(\w+)\.(\w+)`")
MOST = {"embedded": 6, "spark": 8}


def stops(engine: str) -> list[tuple[str, str, str]]:
    """Return the functions of the table, in order, for an engine: module, class and name."""
    functions: list[tuple[str, str, str]] = []
    for embedded, on_spark in ROW.findall(PAGE.read_text("utf-8")):
        functions += STOP.findall(embedded if engine == "embedded" or on_spark == "the same" else on_spark)
    return functions


def noting(function: Callable[..., Any], stop: object, called: list[object]) -> Callable[..., Any]:
    """Return a function that also notes that it was called."""

    @wraps(function)
    def noted(*arguments: Any, **named: Any) -> Any:
        called.append(stop)
        return function(*arguments, **named)

    return noted


@pytest.mark.parametrize("engine", ["embedded", pytest.param("spark", marks=pytest.mark.spark)])
def test_in_this_order(
    tmp_path: Path,
    clock: ManualClock,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    engine: str,
) -> None:
    """A microbatch comes to every stop of the table, each for the first time after the one before it."""
    factory = EMBEDDED if engine == "embedded" else EngineFactory("spark", request.getfixturevalue("spark"))
    world, called = World(tmp_path, clock), list[object]()
    world.publish(log(versions=1)[0])
    runner, expected = world.runner(factory), stops(engine)
    assert len(expected) == MOST[engine]
    for stop in expected:
        place, of, name = stop
        kind = getattr(import_module(f"windrow.{place.replace('/', '.')}"), of)
        monkeypatch.setattr(kind, name, noting(getattr(kind, name), stop, called))
    assert runner.once().total("message_count") == 30
    assert list(dict.fromkeys(called)) == expected
