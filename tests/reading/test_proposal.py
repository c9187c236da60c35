"""Settings that are proposed for a table of one's own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.clocks import NOW
from windrow.batching.rules import Rules
from windrow.errors import MessagesError, NotFoundError
from windrow.reading.proposal import Proposal, plain_name, propose, quote_column

SECOND = 1_000_000
STAMP = pa.timestamp("us", "UTC")
COUNT = 400
AT = NOW + np.arange(COUNT) // 4 * SECOND  # two devices with two metrics, each every second
DEVICE = [f"pump-{number % 2}" for number in range(COUNT)]
METRIC = [("temp", "rpm")[number // 2 % 2] for number in range(COUNT)]
VALUE = np.arange(COUNT) / 7


def times(at: np.ndarray) -> pa.Array:
    """Return times in UTC."""
    return pa.array(at).cast(STAMP)


def proposed(**columns: Any) -> Proposal:
    """Return what is proposed for a table with these columns."""
    return propose(pa.table(columns), NOW + 3_600 * SECOND)


def mapping(proposal: Proposal) -> dict[str, str]:
    """Return the proposed `[depot.columns]`."""
    return {choice.name: choice.value for choice in proposal.columns}


def rules(proposal: Proposal) -> dict[str, Any]:
    """Return the proposed `[rules]`."""
    return {choice.name: choice.value for choice in proposal.rules}


class TestColumns:
    def test_of_a_fleet(self) -> None:
        """
        Names say what the columns of a long table are, in whatever style they are written; each has a reason.
        """
        proposal = proposed(
            deviceId=DEVICE,
            Metric=METRIC,
            value=VALUE,
            measuredAt=times(AT),
            _ingested_at=times(AT + SECOND),
            site=DEVICE,
        )
        assert mapping(proposal) == {
            "source": "deviceId", "key": "deviceId", "type": "Metric", "event_time": "measuredAt",
            "received_at": "_ingested_at", "payload": "CAST(value AS DOUBLE)",
        }  # fmt: skip
        assert proposal.payload_type is not None
        assert proposal.payload_type.value == "DOUBLE"
        assert all(choice.reason for choice in (*proposal.columns, *proposal.rules))
        assert proposal.notes == ("Columns that are not used: site.",)

    def test_of_a_wide_table(self) -> None:
        """
        The columns that are left are the fields of one payload.
        """
        on, rpm = [True] * COUNT, list(range(COUNT))
        proposal = proposed(**{"machine": DEVICE, "ts": times(AT), "temp C": VALUE, "rpm": rpm, "on": on})
        assert mapping(proposal)["payload"] == (
            "named_struct('temp_C', CAST(`temp C` AS DOUBLE), 'rpm', CAST(rpm AS BIGINT), 'on', CAST(`on` AS BOOLEAN))"
        )
        assert mapping(proposal)["type"] == "'row'"
        assert proposal.payload_type is not None
        assert proposal.payload_type.value == "STRUCT<temp_C: DOUBLE, rpm: BIGINT, on: BOOLEAN>"

    @pytest.mark.parametrize(
        ("column", "expression"),
        [
            (pa.array(AT // SECOND), "timestamp_seconds(ts)"),
            (pa.array(AT // 1_000), "timestamp_millis(ts)"),
            (pa.array(AT), "timestamp_micros(ts)"),
            (times(AT).cast(pa.timestamp("us")).cast(pa.string()), "ts"),
        ],
        ids=["seconds", "milliseconds", "microseconds", "text"],
    )
    def test_times_of_other_types(self, column: pa.Array, expression: str) -> None:
        """
        Numbers and texts that are times are recognised by their values; without a time of arrival, one stands for both.
        """
        columns = mapping(proposed(device=DEVICE, ts=column, value=VALUE))
        assert (columns["event_time"], columns["received_at"]) == (expression, expression)

    def test_times_without_usual_names(self) -> None:
        """
        The earliest times are those of the events, the latest those of arrival.
        """
        late = AT + 5 * SECOND
        columns = mapping(proposed(device=DEVICE, b=times(late), a=times(AT), c=times(AT + SECOND), value=VALUE))
        assert (columns["event_time"], columns["received_at"]) == ("a", "b")

    def test_keys_without_usual_names(self) -> None:
        """
        The key is the text with most values, but not one with a value for each row; numbers can be keys by name.
        """
        own, three = [f"row-{number}" for number in range(COUNT)], [str(number % 3) for number in range(COUNT)]
        assert mapping(proposed(uuid=own, what=METRIC, which=three, ts=times(AT), value=VALUE))["key"] == "which"
        meter, number = [7] * COUNT, list(range(COUNT))
        columns = mapping(proposed(meter_id=meter, gateway=DEVICE, ts=times(AT), value=VALUE, seq=number))
        assert (columns["key"], columns["source"], columns["sequence"]) == (
            "CAST(meter_id AS STRING)", "gateway", "CAST(seq AS BIGINT)",
        )  # fmt: skip
        assert mapping(proposed(ts=times(AT), value=VALUE))["key"] == "'all'"

    def test_numbers_that_are_no_times(self) -> None:
        """
        A number whose name says time, but whose values are none, is not taken for one.
        """
        with pytest.raises(MessagesError, match=r"no column holds times; the table has device \(string\), time "):
            proposed(device=DEVICE, time=list(range(COUNT)))

    def test_no_rows(self) -> None:
        """
        Of a table without rows nothing can be said.
        """
        with pytest.raises(NotFoundError, match="no rows"):
            proposed(ts=pa.array([], STAMP))

    @pytest.mark.parametrize(
        ("name", "plain"), [("seenAt", "seen_at"), ("_SEEN-AT", "seen_at"), ("Seen At", "seen_at"), ("ts", "ts")]
    )
    def test_plain_names(self, name: str, plain: str) -> None:
        """
        Styles of names do not matter.
        """
        assert plain_name(name) == plain

    def test_quoted(self) -> None:
        """
        Names that are no words are quoted as in Spark SQL.
        """
        assert [quote_column(name) for name in ("a_1", "a b", "a`b", "1a")] == ["a_1", "`a b`", "`a``b`", "`1a`"]


class TestRules:
    def test_regular_rows(self) -> None:
        """
        Windows on the calendar that hold some ten messages of a type; a delay that nearly all rows keep.
        """
        late = np.where(np.arange(COUNT) % 10 == 0, 40 * SECOND, 100_000)
        choices = rules(proposed(device=DEVICE, metric=METRIC, ts=times(AT), ingested_at=times(AT + late), value=VALUE))
        assert {name: choices[name] for name in ("window", "window_anchor", "on_repeat")} == {
            "window": "10s", "window_anchor": "aligned", "on_repeat": "keep",
        }  # fmt: skip
        assert Rules(**choices).max_delay >= 30 * SECOND

    def test_nothing_to_see(self) -> None:
        """
        Where the rows say nothing, the default stands, and the reason says so.
        """
        own = [f"pump-{number}" for number in range(COUNT)]
        proposal = proposed(device=own, ts=times(AT), value=VALUE)
        assert rules(proposal)["window"] == "10s"
        assert [choice.name for choice in proposal.rules if "the default" in choice.reason] == ["window", "max_delay"]

    def test_wrong_clocks(self) -> None:
        """
        A source whose clock is wrong is named, and does not decide the delay.
        """
        wrong = np.where(np.array(DEVICE) == "pump-1", -86_400 * SECOND, 0)
        arrived = times(AT + 100_000)
        proposal = proposed(device=DEVICE, metric=METRIC, ts=times(AT + wrong), ingested_at=arrived, value=VALUE)
        [note] = proposal.notes
        assert note.startswith("Clocks that are nearly always wrong: pump-1. A comment in the file has the line")
        assert proposal.correction is not None
        assert proposal.correction.value == (
            "timestamp_micros(unix_micros(ts) + CASE WHEN device = 'pump-1' THEN 86400000000 ELSE 0 END)"
        )
        assert Rules(**rules(proposal)).max_delay < 60 * SECOND

    def test_what_keeps_all(self) -> None:
        """
        If a few rows are far later than all others, the reason of max_delay says which one keeps them too.
        """
        delays = np.where(np.arange(COUNT * 4) == 7, 90 * SECOND, SECOND // 2)
        at = NOW + np.arange(COUNT * 4) * SECOND
        proposal = proposed(
            device=["a"] * at.size, ts=times(at), ingested_at=times(at + delays), value=np.arange(at.size) / 7
        )
        [delay] = [choice for choice in proposal.rules if choice.name == "max_delay"]
        assert delay.reason == "keeps 99.9 % of these rows, 1m30s all; `windrow tune` looks at more"
        proposal = proposed(device=DEVICE, ts=times(AT), ingested_at=times(AT + SECOND), value=VALUE)
        [delay] = [choice for choice in proposal.rules if choice.name == "max_delay"]
        assert (delay.value, delay.reason) == ("5s", "keeps all of these rows")  # not one second: others may be later
