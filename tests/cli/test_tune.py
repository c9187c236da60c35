from importlib.util import find_spec
from pathlib import Path

import pytest
from deltalake import DeltaTable, write_deltalake

from tests.cli.conftest import Command
from windrow.reading import plot

PAIRS = ("--windows", "5s,10s", "--delays", "5s,11s")


class TestTune:
    def test_says_which_delay_and_which_window(self, filled: Command) -> None:
        """
        One table has a line for each delay, the other one for each window; the rules as they are and the delay that
        keeps enough are marked, and so are windows that are too short.
        """
        result = filled("tune", *PAIRS, "--keep-percent", "100")
        assert result.status == 0, result.err
        delays, windows = result.out.split("Which window?")
        lines = [" ".join(line.split()) for line in delays.splitlines()]
        assert "max_delay rejected wait 95 %" in lines
        assert any(line.startswith("5 s 20.00 %") and line.endswith("now") for line in lines)
        assert any(line.startswith("11 s* 0.00 %") and line.endswith("enough") for line in lines)
        assert 'max_delay = "11s" rejects 0 of 5 as too old; 5 s, as it is, 1' in lines
        lines = [" ".join(line.split()) for line in windows.splitlines()]
        assert "window batches in one slivers whole: message midpoint keep aligned" in lines
        assert any(line.startswith("5 s* ") for line in lines)
        assert any(line.startswith("10 s ") and line.endswith("now") for line in lines)

    def test_what_came_twice(self, filled: Command, tmp_path: Path) -> None:
        """
        Messages that came twice are told apart from late ones, because no max_delay keeps them.
        """
        assert "came twice" not in filled("tune", *PAIRS).out
        depot = DeltaTable(tmp_path / "data/depot")
        write_deltalake(depot, depot.to_pyarrow_table(), mode="append")
        result = filled("tune", "--windows", "10s", "--delays", "1h")
        assert "with 1 h 5 of the 5 rejected came twice, which no max_delay changes" in result.out

    def test_json(self, filled: Command) -> None:
        """
        With --json one document has the pairs, the rules in force and the advice; a range and a key choose messages.
        """
        document = filled("tune", *PAIRS, "--json").json()
        assert document["message_count"] == document["read"] == 5
        assert document["rules"]["window"] == 10_000_000
        assert [(row["window_us"], row["max_delay_us"], row["too_old"]) for row in document["pairs"]] == [
            (5_000_000, 5_000_000, 1),
            (5_000_000, 11_000_000, 0),
            (10_000_000, 5_000_000, 1),
            (10_000_000, 11_000_000, 0),
        ]
        assert document["advice"]["max_delay_us"] == 11_000_000
        early = ("--key", "k", "--to", "1970-01-01T00:02:11Z", "--from", "1970-01-01T00:01:41Z")
        assert filled("tune", "--json", *early).json()["message_count"] == 2

    def test_cut_is_said(self, filled: Command) -> None:
        """
        When the limit leaves messages out, that is said aloud.
        """
        result = filled("tune", *PAIRS, "--limit", "2")
        assert "There are more: these are the last 2 (--limit; --from and --to choose others)." in result.out
        assert filled("tune", *PAIRS, "--limit", "2", "--json").json()["truncated"] is True

    def test_picture(self, filled: Command, tmp_path: Path) -> None:
        """
        The picture is written in the format that its name asks for.
        """
        pytest.importorskip("altair")
        result = filled("tune", *PAIRS, "--out", "t.png")
        assert result.status == 0, result.err
        assert (tmp_path / "t.png").read_bytes().startswith(b"\x89PNG")

    @pytest.mark.parametrize(
        ("arguments", "says"),
        [
            (("--windows", "soon"), "window = 'soon' is not a duration"),
            (("--windows", ","), "--windows names no duration"),
            (("--out", "t.gif"), "has no picture extension"),
            (("--key", "nobody"), "no message of key 'nobody'"),
            (("--to", "1970-01-01"), "no message in this range"),
            (("--keep-percent", "101"), "--keep-percent"),
        ],
    )
    def test_mistakes(self, filled: Command, arguments: tuple[str, ...], says: str) -> None:
        """
        What cannot be tried is wrong usage, said in words.
        """
        result = filled("tune", *arguments)
        assert (result.status, says in result.err) == (2, True), result.err

    def test_missing_extra(self, filled: Command, monkeypatch: pytest.MonkeyPatch) -> None:
        """
        Without the packages that draw, only the picture is missing: the error names the extra before anything is read.
        """
        monkeypatch.setattr(plot.extra, "find_spec", lambda name: None if name == "vl_convert" else find_spec(name))
        assert "windrow-delta[plot]" in filled("tune", "--out", "t.png", "--depot", "nowhere").err
        assert filled("tune", *PAIRS).status == 0
