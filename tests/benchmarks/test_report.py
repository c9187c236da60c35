import json
from pathlib import Path

import pytest

from benchmarks import machine, report
from benchmarks.row import Measurement, at_least, at_most, times

ROW = times("ours", [2.0], "theirs", [4.0], at_most(0.4))


class TestTable:
    def test_cells_stand_under_their_heads(self) -> None:
        """A line has what, against what, both values, the ratio, the aim and whether it is met, each below its name."""
        head, line = report.head(), report.line(ROW)
        assert line.split() == ["ours", "theirs", "2.00", "s", "4.00", "s", "0.500", "time", "<=", "0.4", "no"]
        assert line.index("ours") == head.index("what")
        assert line.index("theirs") == head.index("against")
        assert len(line) == len(head)

    def test_nothing_for_what_is_not_there(self) -> None:
        """A row without anything to compare shows its value alone."""
        assert report.line(Measurement("alone", 1.5, "GiB")).split() == ["alone", "1.50", "GiB"]
        assert report.line(Measurement("alone", 1.5, "GiB", aim=at_least(1))).split()[-3:] == [">=", "1", "yes"]

    @pytest.mark.parametrize(
        ("number", "text"), [(12345.6, "12,346 s"), (45.67, "45.7 s"), (1.234, "1.23 s"), (0.01234, "0.012 s")]
    )
    def test_digits(self, number: float, text: str) -> None:
        """Large numbers have no decimals, small ones up to three."""
        assert report.value(number, "s") == text


class TestJson:
    def test_has_every_value(self, tmp_path: Path) -> None:
        """The file has the facts, and of each row its benchmark, its values unrounded and whether the aim is met."""
        file = tmp_path / "build" / "bench.json"
        report.write(file, {"quick": True}, [("small", ROW)])
        assert json.loads(file.read_text()) == {
            "quick": True,
            "rows": [
                {
                    "benchmark": "small",
                    "what": "ours",
                    "ours": 2.0,
                    "unit": "s",
                    "against": "theirs",
                    "theirs": 4.0,
                    "ratio": 0.5,
                    "of": "time",
                    "aim": {"bound": 0.4, "side": "most", "own": False},
                    "met": False,
                }
            ],
        }

    def test_facts(self, tmp_path: Path) -> None:
        """The facts of the machine can be written as JSON, and each package is there in a version or as null."""
        facts = machine.facts()
        report.write(tmp_path / "facts.json", facts, [])
        assert json.loads((tmp_path / "facts.json").read_text()) == facts | {"rows": []}
        assert facts["cores"] > 0
        assert facts["cpu"]
        assert set(facts["packages"]) == set(machine.PACKAGES)

    def test_no_such_package(self) -> None:
        """A package that is not installed has no version."""
        assert machine.installed("windrow-no-such-package") is None


def test_progress_of_a_log(capsys: pytest.CaptureFixture[str]) -> None:
    """Where standard error is no terminal, progress is a line now and then, and the table stays on standard output
    alone.
    """
    terminal = report.Terminal()
    terminal.tell("first")
    terminal.tell("at once after it")
    terminal.say("row")
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("row\n", "first\n")
