"""Windows and delays tried on messages: each row against `windrow.batch` with the same rules."""

from __future__ import annotations

from contextlib import nullcontext
from random import Random
from statistics import median_low
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import windrow
from tests.clocks import NOW
from tests.messages import HOUR, MILLISECOND, SECOND, Row, log, message, table
from windrow.batching.rules import Rules, ShortWindowWarning
from windrow.errors import NotFoundError, RulesError, SettingsError
from windrow.model.durations import MAX_DURATION
from windrow.reading.tuning import Trial, advise, advise_repeats, advise_window, suggest_grid, sweep, tune
from windrow.reading.tuning.advice import NEARLY_ALL, too_old_by_others
from windrow.reading.warnings import OLDEST

WINDOWS, DELAYS = ["2s", "10s"], ["1s", "4s", "9s"]
LONG = Rules(window="1h", max_delay="5s")
DAY = 24 * HOUR


def recorded(versions: int = 30, **values: Any) -> pa.Table:
    """Return a log as it was read from a depot, with everything that happens to messages but stamps an hour ahead."""
    kept = [[row for row in rows if row["key"] != "ahead"] for rows in log(versions, **values)]
    parts = [table(rows).append_column("version", pa.array([at] * len(rows))) for at, rows in enumerate(kept)]
    return pa.concat_tables(parts)


def late(*ages: int) -> pa.Table:
    """Return messages a second apart, each of another type, that arrived so many microseconds after their time."""
    rows: list[Row] = []
    for number, age in enumerate(ages):
        at = NOW + number * SECOND
        rows.append(message(f"t{number}", at - age, at, source=str(number)))
    return table(rows)


@pytest.fixture(scope="module")
def messages() -> pa.Table:
    """Return the log that the sweeps try."""
    return recorded()


@pytest.fixture(scope="module")
def tuned(messages: pa.Table) -> pa.Table:
    """Return what six pairs of rules make of it."""
    return tune(messages, WINDOWS, DELAYS)


def expected(messages: pa.Table, rules: Rules) -> Row:
    """Return the same figures from the batches and rejections of `windrow.batch`."""
    result = windrow.batch(messages, rules)
    closed = result.batches.filter(pc.equal(result.batches["state"], "closed"))
    lists = closed["messages"].combine_chunks()
    stamps = pc.struct_field(pc.list_flatten(lists), "received_at").cast(pa.int64()).to_numpy()
    closed_at = closed["closed_at"].cast(pa.int64()).to_numpy()
    wait = (np.repeat(closed_at, closed["message_count"].to_numpy()) - stamps) / SECOND
    sizes = result.batches["message_count"].to_numpy()
    reasons = result.rejected["reason"].to_pylist()
    return {
        "message_count": messages.num_rows,
        "accepted": int(sizes.sum()),
        "rejected": len(reasons),
        **{name: reasons.count(name) for name in ("too_old", "too_far_ahead", "duplicate", "invalid")},
        "batch_count": sizes.size,
        "open_batch_count": result.batches.num_rows - closed.num_rows,
        "slivers": slivers(result.batches),
        "batch_messages_mean": sizes.mean(),
        "batch_messages_median": np.median(sizes),
        "batch_messages_max": sizes.max(),
        "wait_seconds_median": np.median(wait),
        "wait_seconds_p95": np.percentile(wait, 95),
        "wait_seconds_max": wait.max(),
    }


def slivers(batches: pa.Table) -> int:
    """Count the batches with less than a quarter of the messages of the middle one of their stream."""
    by_stream: dict[tuple[str, str], list[int]] = {}
    for row in batches.select(["source", "key", "message_count"]).to_pylist():
        by_stream.setdefault((row["source"], row["key"]), []).append(row["message_count"])
    return sum(4 * count < median_low(counts) for counts in by_stream.values() for count in counts)


class TestSweep:
    def test_each_row_is_what_batch_does(self, messages: pa.Table, tuned: pa.Table) -> None:
        """Every figure of every pair is that of `windrow.batch` with the same rules over the same messages."""
        rows = tuned.to_pylist()
        assert [(row["window_us"], row["max_delay_us"]) for row in rows] == [
            (window * SECOND, delay * SECOND) for window in (2, 10) for delay in (1, 4, 9)
        ]
        for row in rows:
            with pytest.warns(ShortWindowWarning) if row["warning"] else nullcontext():
                rules = Rules(row["window_us"], row["max_delay_us"])
            figures = expected(messages, rules)
            assert figures["accepted"] > figures["rejected"] > 0
            assert figures["slivers"] <= figures["batch_count"]
            assert {name: row[name] for name in figures} == pytest.approx(figures)
            assert row["rejected_percent"] == pytest.approx(100 * row["rejected"] / row["message_count"])

    def test_bytes_count(self, messages: pa.Table) -> None:
        """The other rules hold as they are given: a small max_batch_bytes makes as many batches as it does in
        `batch`.
        """
        small = Rules(window="1m", max_batch_bytes=20)
        row = tune(messages, ["1m"], ["5s"], small).to_pylist()[0]
        assert row["batch_count"] == windrow.batch(messages, small).batches.num_rows
        assert row["batch_count"] > tune(messages, ["1m"], ["5s"])["batch_count"][0].as_py()

    @pytest.mark.parametrize("seed", range(5))
    def test_the_window_rejects_nothing(self, seed: int) -> None:
        """What is rejected follows from max_delay and max_lead alone, whatever the window is: the picture says so."""
        tuned = tune(recorded(10, seed=seed), ["10ms", "1s", "10s", "1h"], DELAYS, Rules(max_batch_bytes=30))
        by_delay = tuned.group_by("max_delay_us").aggregate(
            [(name, "count_distinct") for name in ("rejected", "too_old", "duplicate", "too_far_ahead")]
        )
        assert by_delay.drop_columns("max_delay_us").to_pylist() == [
            {f"{name}_count_distinct": 1 for name in ("rejected", "too_old", "duplicate", "too_far_ahead")}
        ] * len(DELAYS)

    def test_warnings(self, tuned: pa.Table) -> None:
        """A window no longer than max_delay + max_lead has the warning that Rules gives, any other has none."""
        short = [row["window_us"] <= row["max_delay_us"] + SECOND for row in tuned.to_pylist()]
        assert [warning is not None for warning in tuned["warning"].to_pylist()] == short
        assert "window (2s) is not longer than max_delay + max_lead (10s)" in tuned["warning"][2].as_py()
        free = tune(late(0), ["2s"], ["9s"], Rules(window_anchor="event_time"))
        assert free["warning"].to_pylist() == [None]

    def test_windows_on_the_calendar(self) -> None:
        """With a long delay a late message falls before a window that began at a message, and makes a sliver; on the
        calendar it finds its window, and the advice says so. An offset is tried with any window.
        """
        chance = Random(3)
        rows = [
            message("a", at, at + chance.choice((0, 0, 0, 60)) * SECOND + chance.randrange(900) * MILLISECOND)
            for at in range(NOW, NOW + 600 * SECOND, SECOND)
        ]
        messages = table(sorted(rows, key=lambda row: row["received_at"]))
        early = Rules("10s", "180s", window_anchor="event_time", on_repeat="keep")
        row = tune(messages, ["10s"], ["180s"], early).to_pylist()[0]
        assert (row["batch_count_aligned"], row["slivers_aligned"]) == (60, 0)
        assert row["slivers"] > 10
        assert f"{row['slivers']} of {row['batch_count']} batches are slivers; " in advise_repeats(row)[-1]
        aligned = Rules("10s", "180s", window_anchor="aligned", window_offset="7s", on_repeat="keep")
        tuned = tune(messages, ["2s", "10s"], ["180s"], aligned).to_pylist()
        assert [row["batch_count"] for row in tuned] == [row["batch_count_aligned"] for row in tuned]
        assert not [advice for row in tuned for advice in advise_repeats(row) if "slivers" in advice]

    def test_nothing_closed(self) -> None:
        """Where the clock reaches no timeout all batches are open, and nobody can say how long messages wait."""
        row = tune(late(0, 0), ["1h"], ["5s"]).to_pylist()[0]
        assert (row["batch_count"], row["open_batch_count"]) == (2, 2)
        assert row["wait_seconds_median"] is None

    def test_progress(self, messages: pa.Table) -> None:
        """Whoever waits is told each pair that is done, and the end."""
        calls: list[tuple[int, int]] = []
        tune(messages, ["2s"], DELAYS, progress=lambda done, total: calls.append((done, total)))
        assert calls == [(0, 3), (1, 3), (2, 3), (3, 3)]

    @pytest.mark.parametrize(
        ("windows", "delays", "error", "says"),
        [
            (["0s"], ["1s"], RulesError, "window is 0"),
            (["soon"], ["1s"], SettingsError, "window = 'soon' is not a duration"),
            (["1s"], ["-1s"], SettingsError, "max_delay"),
        ],
    )
    def test_mistakes(self, windows: list[str], delays: list[str], error: type[Exception], says: str) -> None:
        """A duration that is none, or no window, is an error that names it."""
        with pytest.raises(error, match=says):
            tune(late(0), windows, delays)


class TestTrial:
    def test_a_key_keeps_the_clock_of_its_source(self) -> None:
        """Tried alone, a key has the rejections that it has among the others, because they move the clock of its
        source.
        """
        rows = [message("a", NOW + 9 * SECOND, NOW + 9 * SECOND, key="ahead"), message("a", NOW, NOW, key="k")]
        alone = sweep(Trial.of(table(rows), key="k"), ["10s"], ["5s"]).to_pylist()[0]
        assert (alone["message_count"], alone["too_old"]) == (1, 1)

    def test_by_source(self, messages: pa.Table) -> None:
        """Sources tried apart add up to all of them, but for the messages that have none."""
        apart = [Trial.of(messages, source=source).messages for source in ("", "s/1", "s%2")]
        assert sum(apart) == messages.num_rows - messages["source"].null_count

    def test_a_stamp_ahead_moves_no_clock(self) -> None:
        """A message stamped later than the latest time allowed is refused by itself, and makes no other too old."""
        rows = [message("a", NOW, NOW + HOUR), message("b", NOW, NOW)]
        row = sweep(Trial.of(table(rows), latest=NOW), ["10s"], ["5s"]).to_pylist()[0]
        assert (row["clock_ahead"], row["too_old"], row["accepted"]) == (1, 0, 1)
        assert tune(table(rows), ["10s"], ["5s"])["too_old"].to_pylist() == [2]

    @pytest.mark.parametrize("selection", [{"key": "nobody"}, {"source": "nobody"}])
    def test_nobody(self, messages: pa.Table, selection: dict[str, Any]) -> None:
        """A key or source without a message is an error that names it."""
        with pytest.raises(NotFoundError, match="'nobody'"):
            Trial.of(messages, **selection)


def fleet(clocks: dict[str, int], rounds: int = 40) -> pa.Table:
    """Return rounds of three types every two seconds, within 20 ms in reverse order, of sources with such clocks."""
    return table(
        [
            message(kind, at - back + wrong, at + 1_300 * MILLISECOND, source=source, key=source)
            for source, wrong in clocks.items()
            for at in range(NOW, NOW + 2 * SECOND * rounds, 2 * SECOND)
            for kind, back in (("r", 0), ("p", 10 * MILLISECOND), ("t", 20 * MILLISECOND))
        ]
    )


CLOCKS = {"right": 0, "also right": 0, "behind": -2 * HOUR, "ahead": HOUR}


class TestWrongClocks:
    def test_are_left_out(self) -> None:
        """Sources that the rules reject nearly entirely change neither what is tried nor the advice, which names
        them.
        """
        trial, right = Trial.of(fleet(CLOCKS)), Trial.of(fleet({"right": 0, "also right": 0}))
        assert trial.left_out == {"behind": 120, "ahead": 120}
        assert trial.messages == right.messages == 240
        assert suggest_grid(trial, Rules()) == suggest_grid(right, Rules())
        assert sweep(trial, ["10s"], ["5s"]) == sweep(right, ["10s"], ["5s"])
        assert advise(trial).why == (
            f"240 messages {NEARLY_ALL} are left out, from 'behind' (120), 'ahead' (120): check the clocks there",
            *advise(right).why,
        )

    def test_most_are_not_wrong(self) -> None:
        """Where the rules reject most sources, the rules are too short, and no source is left out."""
        assert Trial.of(fleet(CLOCKS), rules=Rules(max_delay="100ms")).left_out == {}

    def test_asked_for(self) -> None:
        """A source that somebody asks for is tried whatever its clock says, and so is one with few messages."""
        assert Trial.of(fleet(CLOCKS), source="behind").messages == 120
        assert Trial.of(fleet(CLOCKS, rounds=20)).left_out == {}


class TestRounds:
    @pytest.mark.parametrize(
        ("choice", "whole", "batches"), [("message", 0, 41), ("midpoint", 100, 40), ("keep", 100, 8)]
    )
    def test_what_stays_whole(self, choice: str, whole: float, batches: int) -> None:
        """Rounds that arrive in reverse order fall apart where the window splits at a message, and stay whole
        otherwise.
        """
        row = tune(fleet({"right": 0}), ["10s"], ["5s"]).to_pylist()[0]
        assert row[f"intact_rounds_percent_{choice}"] == pytest.approx(whole, abs=3)
        assert row[f"batch_count_{choice}"] == pytest.approx(batches, abs=1)
        chosen = Rules(**{"keep": {"on_repeat": "keep"}}.get(choice, {"split_at": choice}))  # type: ignore[arg-type]
        own = tune(fleet({"right": 0}), ["10s"], ["5s"], chosen).to_pylist()[0]
        assert (own["intact_rounds_percent"], own["batch_count"]) == (
            row[f"intact_rounds_percent_{choice}"],
            row[f"batch_count_{choice}"],
        )

    def test_as_the_batches_say(self) -> None:
        """A round is whole when all its messages are in one batch; a late one breaks it, and one that came twice does
        not.
        """
        messages = fleet({"right": 0}, rounds=10)
        late = message("late", NOW - 30 * SECOND, NOW + 60 * SECOND, source="right", key="right")
        late["event_time"] = NOW + 2 * SECOND
        everything = pa.concat_tables([messages, messages.slice(0, 3), table([late])])
        rules = Rules(on_repeat="keep")
        batches = windrow.batch(everything, rules).batches.to_pylist()
        contents = [{(row["type"], row["event_time"]) for row in batch["messages"]} for batch in batches]
        times = [NOW + 2 * SECOND * number for number in range(10)]
        whole = 0
        for at in times:
            round_messages = {("r", at), ("p", at - 10 * MILLISECOND), ("t", at - 20 * MILLISECOND)}
            round_messages |= {("late", at)} if at == NOW + 2 * SECOND else set()
            whole += any(
                round_messages <= {(kind, int(time.timestamp() * SECOND)) for kind, time in batch} for batch in contents
            )
        assert tune(everything, ["10s"], ["5s"], rules)["intact_rounds_percent"].to_pylist() == [10.0 * whole]
        assert 0 < whole < 10

    def test_no_rounds(self) -> None:
        """Where no type comes again, or each measurement is alone, there is no round to keep whole, and no advice."""
        for messages in (late(0, 0, 0), table([message("a", NOW + n * SECOND, NOW + n * SECOND) for n in range(9)])):
            row = tune(messages, ["10s"], ["5s"]).to_pylist()[0]
            assert row["intact_rounds_percent"] is None
            assert advise_repeats(row) == ()

    def test_advice(self) -> None:
        """The advice names the choices that keep more rounds whole, with the batches that they make."""
        [advice] = advise_repeats(tune(fleet({"right": 0}), ["150s"], ["5s"]).to_pylist()[0])
        assert advice.startswith("with window = 2 min 30 s and max_delay = 5 s, ")
        assert (
            'split_at = "midpoint" would keep 100 %, in 40 batches; on_repeat = "keep" would keep 100 %, in ' in advice
        )
        assert advise_repeats(tune(fleet({"right": 0}), ["10s"], ["5s"], Rules(on_repeat="keep")).to_pylist()[0]) == (
            "with window = 10 s and max_delay = 5 s, 100 % of the rounds stay whole",
        )

    def test_window(self) -> None:
        """Where a type that comes again ends every batch, the shortest window behind the delay is long enough; where
        windows alone end batches, none is, and with `retention` it is for downstream to say.
        """
        rows = tune(fleet({"right": 0}), ["1s", "20s", "60s", "150s"], ["5s"]).to_pylist()
        [advice] = advise_window(rows, Rules(), 20 * SECOND)
        assert advice.startswith('window = "1m" is long enough: from ')
        assert advise_window(rows, Rules(window_anchor="event_time"), 20 * SECOND)[0].startswith('window = "20s" ')
        assert advise_window(rows[:1], Rules(), 20 * SECOND) == ()
        steady = table([message(f"t{at}", NOW + at * SECOND, NOW + at * SECOND) for at in range(100)])
        [advice] = advise_window(tune(steady, ["10s", "30s"], ["1s"]).to_pylist(), Rules(), SECOND)
        assert advice.startswith("the longer the window, the fewer batches: 10 s makes ")
        keep = Rules(on_repeat="keep")
        [advice] = advise_window(tune(steady, ["10s", "30s"], ["1s"], keep).to_pylist(), keep, SECOND)
        assert advice.startswith("the window alone decides what belongs together downstream: 10 s makes ")


class TestSuggested:
    def test_nothing_absurd(self) -> None:
        """A straggler of a day proposes no delay, and no pair that was not asked for has a window that is too short."""
        ages = [number % 7 * SECOND for number in range(2000)]
        trial = Trial.of(late(*ages, DAY))
        assert max(suggest_grid(trial, Rules())[1]) <= 10 * SECOND
        tuned = sweep(trial)
        assert set(tuned["warning"].to_pylist()) == {None}
        assert set(tuned["max_delay_us"].to_pylist()) == set(suggest_grid(trial, Rules())[1])
        assert [row["max_delay"] for row in tune(late(0), ["1h"], ["150s"]).to_pylist()] == ["2 min 30 s"]

    def test_suits_the_messages(self) -> None:
        """The windows lie around the time between two messages of a type, the longest delay keeps every message."""
        rows = [message("a", NOW + n * 2 * SECOND, NOW + n * 2 * SECOND + 300 * MILLISECOND) for n in range(50)]
        rows.insert(1, message("b", NOW - 7 * SECOND, NOW + 300 * MILLISECOND))
        windows, delays = suggest_grid(Trial.of(table(rows)), Rules())
        assert [window / SECOND for window in windows] == [1, 2, 5, 10]
        assert [delay / SECOND for delay in delays] == [0.5, 5, 8]
        assert tune(table(rows), windows, delays)["too_old"].to_pylist()[-1] == 0

    def test_one_message(self) -> None:
        """Of a single message nothing follows but the rules as they are."""
        windows, delays = suggest_grid(Trial.of(late(0)), Rules())
        assert 10 * SECOND in windows
        assert 5 * SECOND in delays

    @pytest.mark.parametrize("age", [OLDEST + 1, 20_781 * DAY, 2 * MAX_DURATION])
    def test_wrong_clock(self, age: int) -> None:
        """A message older than 30 days proposes no delay and changes no advice: its source has a wrong clock."""
        trial = Trial.of(late(0, 3 * SECOND, age))
        assert suggest_grid(trial, Rules())[1] == suggest_grid(Trial.of(late(0, 3 * SECOND)), Rules())[1]
        advice = advise(trial, Rules(), 100)
        assert (advice.max_delay_us, advice.too_old) == (3 * SECOND, 1)

    def test_oldest_that_counts(self) -> None:
        """A message that is 30 days old still counts."""
        trial = Trial.of(late(0, OLDEST))
        assert suggest_grid(trial, Rules())[1][-1] == advise(trial, Rules(), 100).max_delay_us == OLDEST

    def test_all_clocks_wrong(self) -> None:
        """When all messages are older than 30 days, only the delay in force is tried and advised."""
        trial = Trial.of(late(40 * DAY, 50 * DAY))
        assert suggest_grid(trial, Rules())[1] == [5 * SECOND]
        assert (advise(trial, Rules()).max_delay_us, advise(trial, Rules()).too_old) == (5 * SECOND, 2)


class TestAdvise:
    def test_is_the_shortest_that_keeps_enough(self, messages: pa.Table) -> None:
        """The advice keeps as many as it promises, and a unit less than what it was rounded up from would not."""
        trial = Trial.of(messages)
        for percent in (50.0, 90.0, 99.0, 100.0):
            advice = advise(trial, LONG, percent)
            exact = sweep(trial, ["1h"], [advice.max_delay_us]).to_pylist()[0]["too_old"]
            assert exact == advice.too_old <= (1 - percent / 100) * trial.age.size
            unit = SECOND if advice.max_delay_us > SECOND else MILLISECOND
            shorter = sweep(trial, ["1h"], [advice.max_delay_us - unit]).to_pylist()[0]["too_old"]
            assert shorter > (1 - percent / 100) * trial.age.size

    def test_says_why(self) -> None:
        """The reason names the ages it goes by, what it costs, and what the rules in force reject."""
        advice = advise(Trial.of(late(0, 0, 0, 7 * SECOND, 60 * SECOND)), LONG, 80)
        assert (advice.max_delay_us, advice.too_old, advice.too_old_in_force) == (7 * SECOND, 1, 2)
        assert advice.why == (
            "80 % of the messages were at most 7 s old when they were processed, the oldest 60 s",
            'max_delay = "7s" rejects 1 of 5 as too old; 5 s, as it is, 2',
        )

    def test_says_what_is_left_out(self) -> None:
        """The advice says how many messages are older than 30 days, and which sources sent them, the worst first."""
        rows = [message(f"t{n}", NOW - 40 * DAY + n, NOW, source=source) for n, source in enumerate("abbb")]
        rows.append(message("t", NOW, NOW, source="c"))
        assert advise(Trial.of(table(rows)), LONG, 100).why[:2] == (
            "4 messages older than 30 d are left out, from 'b' (3), 'a' (1): check the clocks there",
            "100 % of the other messages were at most 0 s old when they were processed, the oldest 0 s",
        )

    def test_clocks_that_others_moved(self) -> None:
        """When messages came in time and are too old because others share their clock, the advice says what mends
        that.
        """
        rows = [message("a", NOW + HOUR, NOW + HOUR), *(message(f"t{n}", NOW + n, NOW + n) for n in range(9))]
        assert "9 of these are too old only because others moved" in advise(Trial.of(table(rows)), LONG, 10).why[2]

    def test_as_the_rejections_say(self) -> None:
        """It counts the messages of which their rejections say that their time was raised by more than they missed; it
        once compared arrival and event time in two orders, and advised for what had not happened.
        """
        chance = Random(5)
        rows = [
            message(f"t{at}", stamp - chance.randrange(9 * SECOND), stamp, key=f"k{at % 5}", source=f"s{at % 3}")
            for at in range(300)
            for stamp in [NOW + chance.randrange(60 * SECOND)]
        ]
        messages = table(rows).append_column("version", pa.array([at // 10 for at in range(300)]))
        rejected = windrow.batch(messages, LONG).rejected.to_pylist()
        raised = [
            row for row in rejected if row["reason"] == "too_old" and row["floor_raise_us"] >= row["missed_by_us"]
        ]
        assert 0 < too_old_by_others(Trial.of(messages), LONG.max_delay) == len(raised)

    def test_short_window(self) -> None:
        """Where the delay does not fit the window, the advice says how long the window should be."""
        assert "longer than 61 s (max_delay + max_lead)" in advise(Trial.of(late(60 * SECOND)), Rules()).why[-1]
