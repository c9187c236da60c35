"""The model holds, planted bugs break it, and its page names functions that are there."""

from __future__ import annotations

import re
from functools import reduce
from importlib import import_module

import pytest

from tests.checker.checker import Check, bugs, check, missing, runs
from tests.checker.page import PAGE
from tests.docs.test_pages import cells

needs_checker = pytest.mark.skipif(bool(missing()), reason=f"{' and '.join(missing())} not installed: make model")
FUNCTION = re.compile(r"`([\w/]+)\.py::([\w.]+)`")


@needs_checker
@pytest.mark.ci
class TestModel:
    @pytest.mark.parametrize("model", ["ledger", "outputs"])
    def test_small(self, model: str) -> None:
        """Every property holds in every schedule of two drivers and two messages."""
        result = check(Check(model, model, {"DRIVERS": 2, "MESSAGES": 2, "WRITES": 3}))
        assert result.broken is None
        assert result.states > 10_000

    @pytest.mark.slow
    @pytest.mark.parametrize("case", runs(), ids=lambda case: case.name)
    def test_whole(self, case: Check) -> None:
        """Every property holds in every schedule of each run."""
        assert check(case).broken is None

    @pytest.mark.parametrize("case", bugs(), ids=lambda case: case.flag)
    def test_bug(self, case: Check) -> None:
        """Each bug breaks a property."""
        assert check(case).broken is not None


def test_every_run_is_on_the_page() -> None:
    """The page has each run, all of whose properties hold, and each bug, which was found."""
    checked = {row[0]: row[-1] for row in cells("reference/model.md", 5)}
    results = {row[0]: row[-1] for row in cells("reference/model.md", 4)}
    assert checked == {run.name: "all hold" for run in runs()}
    assert results.keys() == {bug.name for bug in bugs()}
    assert "not found" not in results.values()


def test_functions_are_there() -> None:
    """Each function that the page names for an action is in the library."""
    named = FUNCTION.findall(PAGE.read_text(encoding="utf-8"))
    assert len(named) > 15
    for path, name in named:
        function = reduce(getattr, name.split("."), import_module(f"windrow.{path.replace('/', '.')}"))
        assert callable(function) or isinstance(function, property), name
