"""The guards, what the page says of them, and that each has a test which needs it."""

from __future__ import annotations

import os

import pytest

from tests.docs.test_pages import cells, known_tests
from tests.guards.guard import GUARDS, Guard

NIGHTLY = os.environ.get("HYPOTHESIS_PROFILE") == "nightly"
EMBEDDED = [guard for guard in GUARDS if not guard.on_spark]
SPARK = [guard for guard in GUARDS if guard.on_spark]


def test_page() -> None:
    """
    The table of docs/guarantees.md has every guard, where it stands, and its test, which is there.
    """
    rows = [row for row in cells("guarantees.md", 3) if row[1].startswith("`")]
    assert rows == [[guard.holds, f"`{guard.where}`", f"`tests/{guard.test}`"] for guard in GUARDS]
    assert {f"tests/{guard.test}" for guard in GUARDS} <= known_tests("tests")


@pytest.mark.parametrize("guard", GUARDS, ids=lambda guard: guard.holds)
def test_is_there_once(guard: Guard) -> None:
    """
    The text of a guard is in its module once, and what is left without it can be compiled.
    """
    compile(guard.removed(), guard.path, "exec")


@pytest.mark.slow
@pytest.mark.parametrize("guard", EMBEDDED, ids=lambda guard: guard.holds)
def test_fails_without(guard: Guard) -> None:
    """
    Without the guard, and with all others, its test fails.
    """
    require_failure(guard)


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.skipif(not NIGHTLY, reason="each starts a Spark of its own: make test-nightly")
@pytest.mark.parametrize("guard", SPARK, ids=lambda guard: guard.holds)
def test_fails_without_on_spark(guard: Guard) -> None:
    """
    The same of the guards on Spark.
    """
    require_failure(guard)


def require_failure(guard: Guard) -> None:
    """Run the guard's test without it: it fails, and is not only broken otherwise."""
    done = guard.tried_without()
    assert done.returncode == 1, done.stdout[-2_000:]
    assert "failed" in done.stdout
