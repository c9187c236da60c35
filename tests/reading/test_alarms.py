"""Conditions on a status: what they read as, and when they hold."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.messages import HOUR, SECOND
from windrow.errors import SettingsError
from windrow.reading import BatcherStatus
from windrow.reading.alarms import FIGURES, parse
from windrow.reading.batcher_status import ClosedBatches, NeededDelay, OpenBatchStatus, Rejections
from windrow.reading.status import DepotStatus, Lag, LedgerStatus, MicrobatchRow, ReadableRange, Totals


def microbatch(number: int, rejected: int) -> MicrobatchRow:
    """Return a row of the history that rejected some messages."""
    counts = {"message_count": 10, "accepted": 10 - rejected, "rejected": rejected, "opened": 0, "closed": 0}
    phases = {"prime_ms": 0.0, "plan_ms": 0.0, "process_ms": 0.0}
    texts = {"kind": "data", "engine": "embedded", "processed_on": "driver", "started_at": "1970-01-01T00:00:00Z"}
    return MicrobatchRow(microbatch=number, attempt=1, depot=None, depot_version=number, **counts, **phases, **texts)


REACH = ReadableRange(0, "90d")
WAITING = {"versions_waiting": 4, "messages_waiting": 1_200, "oldest_waiting_version": 6, "lag_seconds": 300.0}
DEPOT = DepotStatus(
    name="depot",
    path="depot",
    start_from="beginning",
    version=9,
    read_version=5,
    oldest_waiting_at="1970-01-01T00:00:00Z",
    changed_version=None,
    skipped_versions=(),
    clock=None,
    readable_range=REACH,
    **WAITING,  # type: ignore[arg-type]
)
STATUS = BatcherStatus(
    depots=(DEPOT,),
    ledger=LedgerStatus("ledger", 7, 2, paused=False, readable_range=REACH),
    lag=Lag(1_200, 300.0),
    rules={},
    clocks=(),
    open=OpenBatchStatus(3, 17, None, 90.5),
    closed=ClosedBatches(12, 40),
    rejections=(Rejections("too_old", 6, SECOND), Rejections("duplicate", 2, 0)),
    totals=Totals(2, 20, 12, 8, 5, 2),
    microbatches=(microbatch(2, 3), microbatch(1, 1)),
    hints=(),
    needed_delay=NeededDelay(5 * SECOND, None, {}),
)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("lag>5m", None),
        ("lag>=5m", "lag is 5m"),
        ("lag<=5m", "lag is 5m"),
        ("lag<5m", None),
        ("lag==300s", "lag is 5m"),
        ("lag==299s", None),
        (" lag > 299s999ms ", "lag is 5m"),
        ("lag_messages>1_199", "lag_messages is 1,200"),
        ("lag_messages>1200", None),
        ("lag_versions>3", "lag_versions is 4"),
        ("open_batches<4", "open_batches is 3"),
        ("open_messages==17", "open_messages is 17"),
        ("oldest_open_age>1m30s", "oldest_open_age is 1m30s"),
        ("oldest_open_age>1h30m", None),
        ("rejected>7", "rejected is 8"),
        ("rejected>8", None),
        ("rejected_recently>=4", "rejected_recently is 4"),
        ("rejected_recently>4", None),
        ("paused", None),
    ],
)
def test_holds(text: str, says: str | None) -> None:
    """A condition holds exactly when its comparison does, and then says what the figure is."""
    assert parse(text).holds(STATUS) == (says and f"{text.strip()} holds: {says}")


def test_paused() -> None:
    """The condition without a comparison holds when the ledger is paused."""
    assert parse("paused").holds(replace(STATUS, ledger=replace(STATUS.ledger, paused=True))) == "paused"


def test_depot_changed() -> None:
    """The alarm for a version that stops the next run holds when there is one."""
    assert parse("depot_rewritten").holds(STATUS) is None
    changed = replace(STATUS, depots=(DEPOT, replace(DEPOT, changed_version=12)))
    assert parse("depot_rewritten").holds(changed) == "depot_rewritten"


def test_not_known() -> None:
    """A figure that nobody knows holds, and says so, whatever it is compared with."""
    unknown = replace(STATUS, lag=Lag(None, 1.0))
    for text in ("lag_messages>5", "lag_messages<5"):
        assert "is unknown" in str(parse(text).holds(unknown))


def test_below_a_second() -> None:
    """A time below a second is said to the microsecond, a longer one to the second."""
    assert str(parse("lag>0").holds(replace(STATUS, lag=Lag(1, 0.25)))).endswith("lag is 250ms")
    assert str(parse("lag>0").holds(replace(STATUS, lag=Lag(1, 2 * HOUR / SECOND + 0.25)))).endswith("lag is 2h")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("delay>5m", "no figure 'delay'"),
        ("lag", "needs a comparison"),
        ("lag>", "not a condition"),
        ("lag=5m", "not a condition"),
        ("lag>5", "not a duration"),
        ("lag>-5s", "not a duration"),
        ("open_batches>5m", "is not a count"),
        ("open_batches>-1", "is not a count"),
        ("open_batches>1.5", "is not a count"),
        ("paused>0", "takes no comparison"),
        ("", "not a condition"),
        ("5m<lag", "not a condition"),
    ],
)
def test_mistakes(text: str, says: str) -> None:
    """A text that is not a condition is an error that says what is wrong."""
    with pytest.raises(SettingsError, match=says):
        parse(text)


def test_known_figures_are_named() -> None:
    """The error for an unknown figure names every known one with what it means."""
    with pytest.raises(SettingsError) as caught:
        parse("nothing>1")
    assert all(f"{name} ({figure.meaning})" in caught.value.hint for name, figure in FIGURES.items())


def test_docs_list_every_figure() -> None:
    """The page on operations has every figure in its table."""
    page = (Path(__file__).parents[2] / "docs" / "operations.md").read_text(encoding="utf-8")
    table = page[page.index("## Alarms") :]
    assert all(f"`{name}`" in table for name in FIGURES)
