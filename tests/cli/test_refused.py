"""What a format refused, as the commands show and export it."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from tests.cli.conftest import Command

SETTINGS = """
idle_timeout = "never"
[depot.columns]
source = "device"
key = "device"
type = "'v'"
event_time = "ts"
payload = "value"
[format]
type = "csv"
fields = { ts = "timestamp[us]", device = "string", value = "int64" }
"""
GOOD, SHORT, WORD, NO_TEXT = (
    b"2026-01-01T00:00:00Z,k,1\n",
    b"short\n",
    b"2026-01-01T00:00:00Z,k,word\n",
    b"\xff,\x1b[2J\n",
)


@pytest.fixture
def refusing(windrow: Command, tmp_path: Path) -> Command:
    """A raw depot of two files with bad records, and its ledger."""
    (tmp_path / "windrow.toml").write_text(SETTINGS)
    for name, records in (("b.csv", [SHORT, NO_TEXT]), ("a.csv", [GOOD, WORD, GOOD, SHORT])):
        (tmp_path / name).write_bytes(b"".join([b"ts,device,value\n", *records]))
        assert windrow("ingest", name, "--format", "csv").status == 0
    assert windrow("run").status == 0
    return windrow


class TestShow:
    def test_all(self, refusing: Command) -> None:
        """A refused record is shown with its place and its bytes, which cannot move a terminal."""
        output = refusing("show", "--rejected", "--limit", "99").out
        assert "record/a.csv/1/41  format_cast" in output
        assert "raw source 'a.csv', chunk 1, offset 41, received at" in output
        assert "'short\\n'" in output
        assert r"b'\xff,\x1b[2J\n'" in output
        assert "\x1b" not in output

    def test_one(self, refusing: Command) -> None:
        """One by its id is shown whole, with what would keep it."""
        output = refusing("show", "record/a.csv/1/41").out
        assert "word" in output
        assert "[format] fields" in output

    def test_json(self, refusing: Command) -> None:
        """In JSON the bytes are text where they are UTF-8, else base64; a rejected message has none."""
        rows = {row["id"]: row for row in refusing("show", "--rejected", "--limit", "99", "--json").json()}
        assert rows["record/a.csv/1/41"]["content"] == WORD.decode()
        assert rows["record/b.csv/1/22"]["content"] == "base64:" + base64.b64encode(NO_TEXT).decode()
        assert {row["content"] for row in rows.values() if row["reason"] == "too_old"} <= {None}
        record = refusing("show", "record/b.csv/1/22", "--json").json()
        assert (record["raw_source"], record["chunk"], record["offset"]) == ("b.csv", 1, 22)


class TestExport:
    def test_bytes(self, refusing: Command, tmp_path: Path) -> None:
        """The bytes come as they were, in the order of their sources; mended, they can be ingested again."""
        result = refusing("export", "--rejected", "--format", "raw", "--out", "refused")
        assert "4 refused records" in result.out
        assert (tmp_path / "refused").read_bytes() == WORD + SHORT + SHORT + NO_TEXT
        (tmp_path / "mended.csv").write_bytes(b"ts,device,value\n" + WORD.replace(b"word", b"2"))
        assert refusing("ingest", "mended.csv", "--format", "csv").status == 0
        assert refusing("run").status == 0
        assert refusing("verify").status == 0

    def test_rejections(self, refusing: Command) -> None:
        """In the other formats a refused record has its place and bytes beside the columns of a rejected message."""
        output = refusing("export", "--rejected", "--format", "csv", "--out", "-").out
        head, *rows = output.splitlines()
        assert head.endswith('"raw_source","chunk","offset","content"')
        (row,) = [row for row in rows if row.startswith('"record/a.csv/1/41"')]
        assert row.endswith(f'"a.csv",1,41,"{base64.b64encode(WORD).decode()}"')

    @pytest.mark.parametrize("options", [[], ["--messages"], ["--rejected", "--key", "k"]])
    def test_what_has_no_bytes(self, refusing: Command, options: list[str]) -> None:
        """Batches and messages are not written as bytes, and bytes have no key to choose them by."""
        result = refusing("export", *options, "--format", "raw", "--out", "refused")
        assert (result.status, "WINDROW-OUTPUT" in result.err) == (2, True)

    def test_another_ledger(self, filled: Command) -> None:
        """Where no format refuses anything there is nothing to write like this."""
        result = filled("export", "--rejected", "--format", "raw", "--out", "refused")
        assert (result.status, "raw depot" in result.err) == (2, True)


class TestVerify:
    def test_books(self, refusing: Command) -> None:
        """Verify says how much of what was rejected the format refused, and finds no difference."""
        result = refusing("verify")
        assert result.status == 0
        assert "rejected (4 of them by the format)" in result.out
        assert refusing("verify", "--json").json()["books"][0]["rejected_by_format"] == 4
