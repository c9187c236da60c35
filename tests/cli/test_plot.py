from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.cli.conftest import Command
from windrow.reading import plot

pytestmark = pytest.mark.ci


class TestPlot:
    def test_a_key(self, filled: Command, tmp_path: Path) -> None:
        """The picture of a key is written in the format that its name asks for."""
        pytest.importorskip("altair")
        for name, begins in (("k.html", b"<!DOCTYPE html>"), ("k.png", b"\x89PNG")):
            result = filled("plot", "--key", "k", "--out", name)
            assert result.status == 0, result.err
            assert "3 batches and 1 rejected message" in result.out
            assert (tmp_path / name).read_bytes().lstrip().startswith(begins)

    def test_json(self, filled: Command) -> None:
        """With --json one document says which streams were drawn of how many; a range leaves out what lies outside."""
        pytest.importorskip("altair")
        document = filled("plot", "--out", "p.json", "--json").json()
        drawn = [{"source": "", "key": "k"}]
        kind = {"file": "p.json", "chart": "timeline"}
        assert document == kind | {"stream_count": 1, "drawn": drawn, "batch_count": 3, "rejected": 1}
        within = ("--from", "1970-01-01T00:02:40Z", "--to", "1970-01-01T00:03")
        assert filled("plot", "--out", "p.json", "--json", *within).json()["batch_count"] == 1

    @pytest.mark.parametrize(
        ("what", "holds", "summary"),
        [
            ("batches", {"batch_count": 3, "message_count": 4, "rejected": 1}, "3 batches and 1 rejected message"),
            ("microbatches", {"microbatch_count": 1, "first": 1, "last": 1}, "1 microbatch, from 1 to 1"),
        ],
    )
    def test_what(self, filled: Command, what: str, holds: dict[str, int], summary: str) -> None:
        """With --chart other pictures are drawn, and with --json one document says what they hold."""
        pytest.importorskip("altair")
        assert summary in filled("plot", "--chart", what, "--out", "p.png").out
        assert Path("p.png").read_bytes().startswith(b"\x89PNG")
        document = filled("plot", "--chart", what, "--out", "p.json", "--json").json()
        assert document == {"file": "p.json", "chart": what} | holds

    @pytest.mark.parametrize(
        ("arguments", "says"),
        [
            (("--out", "p.gif"), "has no picture extension"),
            (("--out", "nowhere/p.html"), "cannot be written"),
            (("--out", "p.html", "--key", "nobody"), "no message of key 'nobody'"),
            (("--out", "p.html", "--to", "1970-01-01"), "in this time range"),
            (("--out", "p.html", "--from", "noon"), "--from 'noon' is not a time"),
            (("--out", "p.html", "--chart", "batches", "--key", "nobody"), "no such batch or rejected message"),
            (("--out", "p.html", "--chart", "batches", "--streams", "2"), "--streams cannot narrow --chart batches"),
            (("--out", "p.html", "--chart", "microbatches", "--key", "k"), "--key cannot narrow --chart microbatches"),
            (("--out", "p.html", "--chart", "microbatches", "--to", "1970-01-01"), "no microbatch in this range"),
            (("--out", "p.html", "--chart", "pies"), "'timeline', 'batches', 'microbatches'"),
            ((), "--out"),
        ],
    )
    def test_mistakes(self, filled: Command, arguments: tuple[str, ...], says: str) -> None:
        """What cannot be drawn or written is wrong usage, said in words, and no file is left behind."""
        pytest.importorskip("altair")
        result = filled("plot", *arguments)
        assert (result.status, says in result.err) == (2, True), result.err
        assert not Path("p.html").exists()

    def test_missing_extra(self, filled: Command, monkeypatch: pytest.MonkeyPatch) -> None:
        """Without the packages that draw, the error names the extra before anything is read."""
        monkeypatch.setattr(plot.extra, "find_spec", lambda name: None if name == "vl_convert" else find_spec(name))
        result = filled("plot", "--out", "p.html", "--ledger", "nowhere")
        assert result.status == 2
        assert "windrow-delta[plot]" in result.err
