from pathlib import Path
from typing import Any

import pytest

from benchmarks.peers import __main__, code, inputs, speed
from benchmarks.peers.counts import FLINK_PEERS, PEERS, counts, three_cuts

WINDROW, STATEFUL, *WINDOWS, CALENDAR = PEERS


@pytest.mark.slow
class TestPeers:
    def test_windrow_and_its_rules_on_spark(self, spark: Any, tmp_path: Path) -> None:
        """Windrow and its rules in a StatefulProcessor lose nothing and find the same batches however the log is cut;
        after a lost checkpoint Windrow writes none again, the StatefulProcessor all.
        """
        messages = inputs.sample(4_000)
        ours, theirs = (three_cuts(spark, peer, messages, 2, tmp_path / peer.program) for peer in (WINDROW, STATEFUL))
        assert {cut.gone for name, cut in [*ours.items(), *theirs.items()] if name != "other order"} == {0}
        batches = {
            frozenset(cuts[name].end.batches) for cuts in (ours, theirs) for name in ("all at once", "one by one")
        }
        assert len(batches) == 1
        assert ours["one by one"].waiting == 0
        assert theirs["one by one"].waiting > 0
        assert (ours["all at once"].again, theirs["all at once"].again) == (0, len(*batches))

    def test_windows_of_spark(self, spark: Any, tmp_path: Path) -> None:
        """Spark's windows put several values of a type into a batch and stay open until somebody sends."""
        cut = three_cuts(spark, WINDOWS[0], inputs.sample(4_000), 2, tmp_path)["all at once"]
        assert cut.end.mixed > 0
        assert cut.waiting > 0
        assert cut.again == cut.end.rows

    def test_windows_of_the_calendar(self, spark: Any, tmp_path: Path) -> None:
        """Windrow's windows on the calendar are as many however the log is cut, lose nothing, and begin where Spark's
        do.
        """
        messages = inputs.sample(4_000)
        both = {"ours": CALENDAR, "theirs": WINDOWS[0]}
        ours, theirs = (three_cuts(spark, peer, messages, 2, tmp_path / name) for name, peer in both.items())
        assert {cut.gone for name, cut in ours.items() if name != "other order"} == {0}
        starts = [{batch[:2] for batch in cuts["all at once"].end.batches} for cuts in (ours, theirs)]
        assert starts[0] >= starts[1] > set()
        assert ours["one by one"].end.batches == ours["all at once"].end.batches

    def test_windows_of_flink(self, spark: Any, tmp_path: Path) -> None:
        """Flink's windows hold what Spark's do, stay open until somebody sends, and come again without checkpoint."""
        messages, outcomes = inputs.sample(4_000), []
        for peer in (WINDOWS[0], FLINK_PEERS[0]):
            inputs.write(tmp_path / peer.program / "depot", messages, 2)
            outcomes.append(counts(spark, peer, messages, tmp_path / peer.program, 2))
        of_spark, of_flink = outcomes
        assert of_flink.end.batches & of_spark.end.batches
        assert of_flink.waiting > 0
        assert of_flink.again == of_flink.end.rows

    def test_speed(self, spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """The table of speed has a line for each peer and one for the embedded engine, and Windrow's ratio is 1."""
        __main__.print_speed(spark, True, 200, 1, tmp_path)
        printed = capsys.readouterr().out
        assert f"\n| {WINDROW.name} | 1.0 |" in printed
        assert "\n| Windrow embedded" in printed
        assert printed.count("\n|") == len(PEERS) + len(FLINK_PEERS) + 2


def test_lines_of_code() -> None:
    """Docstrings, comments and blank lines are no code."""
    assert code.lines("code.py") == 14


def test_ratio_is_of_the_same_round() -> None:
    """A round that was slow for everybody does not move a ratio."""
    taken = {WINDROW.name: [1.0, 10.0, 2.0], "other": [2.0, 20.0, 4.0]}
    assert speed.ratios(taken) == {WINDROW.name: 1.0, "other": 2.0}
