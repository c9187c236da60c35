from pathlib import Path

import pytest

from tests.cli.conftest import Command, publish
from tests.messages import SECOND, message

CLOSED_LATER = "1970-01-01T00:02:05Z"


class TestShow:
    def test_batches_and_rejections(self, filled: Command) -> None:
        """Show lists closed and open batches, and rejected messages with the reason and how far they were off."""
        assert "2 messages" in filled("show", "--closed").out
        output = filled("show", "--open").out
        assert "open because it waits for 1970-01-01T00:02:50Z, and the clock of its source stands at 1970-01" in output
        rejected = filled("show", "--rejected").out
        assert "too_old by 6.000 s" in rejected
        assert "late" in rejected

    def test_one_by_its_id(self, filled: Command) -> None:
        """An id, as any listing prints it, shows the one batch or message it names."""
        for state in ("--closed", "--open", "--rejected"):
            listed = filled("show", state, "--json").json()
            assert filled("show", listed[0]["id"], "--json").json() == listed[0]

    def test_key(self, filled: Command) -> None:
        """A key that has no batches gives an empty list, not an error."""
        assert filled("show", "--key", "k", "--json").json()
        result = filled("show", "--key", "nobody")
        assert (result.status, "Nothing in the ledger matches" in result.out) == (0, True)

    def test_key_has_rejected_messages_too(self, filled: Command) -> None:
        """A key alone shows its closed batches and its rejected messages; asked for closed ones, only those."""
        assert "too_old by 6.000 s" in filled("show", "--key", "k").out
        assert "too_old" not in filled("show", "--key", "k", "--closed").out

    def test_time_range(self, filled: Command) -> None:
        """With --from and --to, show lists the batches and the rejected messages with event times in the range."""

        def shown(*arguments: str) -> list[str]:
            return [row.get("window_start") or row["event_time"] for row in filled("show", *arguments, "--json").json()]

        closed = sorted(shown("--closed"))
        assert closed == ["1970-01-01T00:01:35Z", CLOSED_LATER]
        assert shown("--closed", "--to", CLOSED_LATER) == closed[:1]
        assert shown("--closed", "--from", CLOSED_LATER) == closed[1:]
        assert sorted(shown("--closed", "--from", "1970-01-01T00:01:44.9Z", "--to", "1970-01-02")) == closed
        assert shown("--closed", "--from", "1970-01-01T00:01:45Z", "--to", "1970-01-02") == closed[1:]
        assert shown("--rejected", "--from", "1970-01-01T00:02:00Z") == ["1970-01-01T00:02:00Z"]
        assert shown("--rejected", "--to", "1970-01-01T00:02:00Z") == []
        assert shown("--open", "--to", "1970-01-01T00:02:00Z") == []

    def test_unknown_id(self, filled: Command) -> None:
        """An id that is not there is an error that says where to look."""
        result = filled("show", "batch//k/1/0")
        assert result.status == 2
        assert "WINDROW-NOT-FOUND" in result.err
        assert "nearest" in result.err


class TestMessage:
    def test_where_it_went(self, filled: Command) -> None:
        """For a message show says in which batch it is, or why it was rejected and what would have kept it."""
        result = filled("show", "--key", "k", "--type", "a", "--event-time", "1970-01-01T00:01:40Z")
        assert "1. closed" in result.out
        assert "in batch//k/95000000/0" in result.out
        assert "by microbatch 1" in result.out
        result = filled("show", "--key", "k", "--event-time", "1970-01-01T00:02:00")
        assert "too_old: max_delay was 5 s; it came 11 s after its time" in result.out
        assert 'max_delay = "11s" would have kept it' in result.out

    def test_json(self, filled: Command) -> None:
        """With --json the arrivals are a list."""
        [arrival] = filled("show", "--key", "k", "--event-time", "1970-01-01T00:02:00Z", "--json").json()
        assert (arrival["outcome"], arrival["rejection"]["reason"], arrival["payload"]) == (
            "rejected",
            "too_old",
            "late",
        )

    def test_waiting(self, filled: Command, tmp_path: Path) -> None:
        """What no microbatch has read yet is said to wait."""
        publish(tmp_path, message("b", 161 * SECOND, 161 * SECOND))
        filled("ingest", "messages.parquet")
        arguments = ("show", "--key", "k", "--event-time", "1970-01-01T00:02:41Z")
        assert "it waits in depot version 2" in filled(*arguments).out
        filled("pause")
        assert "`windrow resume`, then `windrow run` reads it" in filled(*arguments).out

    def test_nearest_batch(self, filled: Command) -> None:
        """Where no message has the time, show names the nearest times and the nearest batch."""
        result = filled("show", "--key", "k", "--event-time", "1970-01-01T00:01:44Z")
        assert result.status == 2
        near = "Its nearest batch is batch//k/95000000/0, 1970-01-01T00:01:35Z to 1970-01-01T00:01:45Z."
        assert near in " ".join(result.err.split())
        assert near in " ".join(filled("show", "--key", "k", "--event-time", "1970-01-01T00:00:00Z").err.split())

    @pytest.mark.parametrize(
        ("arguments", "says"),
        [
            (("--event-time", "1970-01-01"), "--event-time needs --key"),
            (("--key", "k", "--type", "a"), "--type needs --event-time"),
            (("--key", "k", "--event-time", "now"), "--event-time 'now' is not a time"),
            (("--key", "k", "--event-time", "1970-01-01", "--open"), "exclude each other"),
            (("batch//k/1/0", "--key", "k"), "an ID excludes --key"),
            (("batch//k/1/0", "--from", "1970-01-01"), "--from and --to apply only to a list"),
            (("--from", "soon"), "--from 'soon' is not a time"),
            (("--from", "2026-01-02", "--to", "2026-01-01"), "--to 2026-01-01 is before --from 2026-01-02"),
            (("--key", "k", "--event-time", "1970-01-01"), "the depot has no message of key 'k'"),
        ],
    )
    def test_mistakes(self, filled: Command, arguments: tuple[str, ...], says: str) -> None:
        """What cannot be looked up is wrong usage, said in words."""
        result = filled("show", *arguments)
        assert (result.status, says in result.err) == (2, True), result.err
