"""A trial says of files what a run would make of them, in bounded memory, and where each bad record stands."""

from __future__ import annotations

import gzip
import os
import random
import tracemalloc
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.clocks import NOW
from windrow.errors import ExpressionError, FileUnreadableError, OutputFileError, SettingsError
from windrow.formats.format import format_of
from windrow.formats.raw.source import SCHEMA
from windrow.formats.raw.stage import stage
from windrow.ingest.format_check import FormatChecker, FormatCheckResult, shown
from windrow.ingest.format_check import trial as trial_module
from windrow.model.chunks import Chunk, rows
from windrow.settings.settings import Settings

FIELDS = {"name": "string", "value": "int64"}
HEADER = b"name,value\n"
COLUMNS = {"key": "name", "type": "raw_source", "event_time": "timestamp_seconds(value)", "received_at": "received_at"}


def chosen(depot_columns: dict[str, str] | None = None, **format_: Any) -> Settings:
    return Settings(format={"type": "csv", "fields": FIELDS} | format_, depot_columns=depot_columns or {})


def check(*files: Path, rejects: Path | None = None, sample: int = 100, **format_: Any) -> FormatCheckResult:
    output = None if rejects is None else str(rejects)
    return FormatChecker(chosen(**format_)).files([str(file) for file in files], NOW, output, sample)


def written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


LINES = st.lists(
    st.sampled_from(
        [b"a,1\n", b'"b\nc",2\n', b"d,x\n", b"e\n", b'f,"3\n', b'"\n', b"\n", b"\r\n", b"\xff,4\n", b"g,5"]
    ),
    max_size=20,
).map(b"".join)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lines=LINES, size=st.integers(1, 40), mark=st.booleans())
def test_as_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: bytes, size: int, mark: bool) -> None:
    """Read in pieces of any size a file gives what a run makes of it as one chunk: the same records, rejects and bytes,
    each reject with the line and the byte of the file at which it begins; and its rejects are those of their file.
    """
    lines = b"\xef\xbb\xbf" * mark + HEADER + lines
    file, output = written(tmp_path / "file", lines), tmp_path / "rejects"
    output.unlink(missing_ok=True)
    version = pa.array([1], pa.int64())
    whole = rows("s", [Chunk(1, lines, last=True)], NOW).append_column("version", version)
    staged = stage(whole, SCHEMA.empty_table(), format_of(chosen(max_record_bytes=30).format))
    bad = staged.rejects.sort_by("offset").to_pylist()
    with monkeypatch.context() as patched:
        patched.setattr(trial_module, "PIECE_BYTES", size)
        checked = check(file, rejects=output, max_record_bytes=30)
    assert checked.sample == staged.fields.select(list(FIELDS)).to_pylist()
    assert [(reject.offset, reject.reason) for reject in checked.rejects] == [
        (row["offset"], row["reason"]) for row in bad
    ]
    assert [reject.line for reject in checked.rejects] == [lines[: row["offset"]].count(b"\n") + 1 for row in bad]
    [file_result] = checked.files
    assert (file_result.byte_count, file_result.rejected, file_result.accepted_count) == (
        len(lines),
        len(bad),
        staged.fields.num_rows,
    )
    assert (checked.accepted_count, checked.rejected, sum(checked.reasons.values())) == (
        file_result.accepted_count,
        file_result.rejected,
        file_result.rejected,
    )
    refused = b"".join(reject["content"] for reject in bad)
    assert file_result.rejected_byte_count == len(refused)
    assert (output.read_bytes() if output.exists() else b"") == (HEADER + refused if bad else b"")


def test_own_ordinal(tmp_path: Path) -> None:
    """A field named `ordinal`, as the number of a row within its record is called, hides no record from the count."""
    file = written(tmp_path / "file", b"ordinal\n5\n0\n7\n")
    checked = check(file, fields={"ordinal": "int64"})
    assert (checked.accepted_count, [row["ordinal"] for row in checked.sample]) == (3, [5, 0, 7])


def test_bounded_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is five times as large takes no more memory."""
    monkeypatch.setattr(trial_module, "PIECE_BYTES", 16_384)

    def most(lines: int) -> int:
        file = written(tmp_path / "file", HEADER + b"pump-1,12345678\npump-2,bad\n" * lines)
        check(file, sample=1)
        tracemalloc.start()
        try:
            assert check(file, sample=1).rejected == lines
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    assert most(20_000) < 2 * most(4_000)


class TestCodec:
    def test_whole_file(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A file of whole frames is read as what they hold, wherever its pieces end; bytes are counted behind the
        codec.
        """
        monkeypatch.setattr("windrow.ingest.format_check.trial.PIECE_BYTES", 7)
        content = HEADER + b"a,1\nb,x\n"
        file = written(tmp_path / "file", gzip.compress(content[:20]) + gzip.compress(content[20:]))
        checked = check(file, compression="gzip")
        assert (checked.accepted_count, checked.files[0].byte_count, checked.rejects[0].line) == (1, len(content), 3)

    @pytest.mark.parametrize("keep", [0, 10, 400])
    def test_cut_short(self, tmp_path: Path, keep: int) -> None:
        """Where a codec gives no more it is a reject, the record that it broke off is none, and those before it
        count.
        """
        numbers = random.Random(1)
        lines = [f"pump-{numbers.getrandbits(32)},{number}\n".encode() for number in range(200)]
        file = written(tmp_path / "file", gzip.compress(HEADER + b"".join(lines))[:keep])
        checked = check(file, compression="gzip")
        assert checked.reasons.pop("format_codec") == 1
        assert checked.reasons in ({"format_gap": 1}, {})
        assert checked.rejects[-1].reason == "format_codec"
        assert [record["value"] for record in checked.sample] == list(range(checked.accepted_count))
        assert (checked.accepted_count > 0) == (keep == 400)


class TestMessages:
    def test_made(self, tmp_path: Path) -> None:
        """The sample is shown as the messages that `[depot.columns]` makes of it, which may use where a record
        stands.
        """
        file = str(written(tmp_path / "file", HEADER + b"a,1\n"))
        [message] = FormatChecker(chosen(COLUMNS)).files([file], NOW).messages
        assert (message["key"], message["type"], message["event_time"]) == ("a", file, "1970-01-01 00:00:01.000000Z")

    def test_not_here(self, tmp_path: Path) -> None:
        """What only Spark can map is a note, and so is a format that is not mapped yet."""
        file = str(written(tmp_path / "file", HEADER + b"a,1\n"))
        for columns, says in ((COLUMNS | {"type": "soundex(name)"}, "soundex"), ({}, "nothing says where")):
            checked = FormatChecker(chosen(columns)).files([file], NOW)
            assert (checked.accepted_count, checked.messages) == (1, [])
            assert says in str(checked.note)

    def test_wrong(self) -> None:
        """A mapping that names what is no field is refused before anything is read."""
        with pytest.raises(ExpressionError, match="nmae"):
            FormatChecker(chosen(COLUMNS | {"key": "nmae"}))


class TestRejects:
    def test_come_in_again(self, tmp_path: Path) -> None:
        """The file of rejects has the header of its records, keeps those of two files apart, and is bad as they
        were.
        """
        files = [written(tmp_path / name, HEADER + b"a,1\nb,x\nc") for name in "12"]
        output = tmp_path / "rejects"
        checked = check(*files, rejects=output)
        assert output.read_bytes() == HEADER + b"b,x\nc\nb,x\nc"
        assert check(output).reasons == checked.reasons

    def test_bad_header(self, tmp_path: Path) -> None:
        """A header that is bad is a reject itself, written once."""
        output = tmp_path / "rejects"
        check(written(tmp_path / "file", b"name\na,1\n"), rejects=output)
        assert output.read_bytes() == b"name\na,1\n"

    def test_another_header(self, tmp_path: Path) -> None:
        """Records under two headers are refused in one file, and nothing of it stays."""
        files = [written(tmp_path / "1", HEADER + b"x\n"), written(tmp_path / "2", b"value,name\nx\n")]
        with pytest.raises(OutputFileError, match="a different header"):
            check(*files, rejects=tmp_path / "rejects")
        assert not (tmp_path / "rejects").exists()

    def test_nothing_is_overwritten(self, tmp_path: Path) -> None:
        """A file that is there is refused, be it the one that is checked."""
        file = written(tmp_path / "file", HEADER + b"x\n")
        with pytest.raises(OutputFileError, match="exists already"):
            check(file, rejects=file)
        assert file.read_bytes() == HEADER + b"x\n"

    def test_none(self, tmp_path: Path) -> None:
        """Where every record is good no file is made."""
        check(written(tmp_path / "file", HEADER + b"a,1\n"), rejects=tmp_path / "rejects")
        assert not (tmp_path / "rejects").exists()


class TestUnreadable:
    @pytest.mark.parametrize("name", ["absent", ".", "nul\0"])
    def test_refused_first(self, tmp_path: Path, name: str) -> None:
        """What is no file is refused before any other is read."""
        with pytest.raises(FileUnreadableError):
            check(written(tmp_path / "file", HEADER + b"x\n"), tmp_path / name, rejects=tmp_path / "rejects")
        assert not (tmp_path / "rejects").exists()

    @pytest.mark.parametrize("codec", ["none", "gzip", "zstd"])
    def test_disk(self, codec: str) -> None:
        """A file that the system refuses to give is unreadable, whatever the codec makes of its silence."""
        file = Path(f"/proc/{os.getpid()}/mem")  # nothing is mapped where it begins
        with pytest.raises(FileUnreadableError, match="cannot be read"):
            check(file, compression=codec)


def test_no_format() -> None:
    """Without a type there is nothing to try."""
    with pytest.raises(SettingsError, match="type"):
        FormatChecker(Settings())


class TestShown:
    def test_values(self) -> None:
        """Values are as JSON has them, exactly: bytes, times finer than Python's, and what is in lists and structs
        too.
        """
        time = pa.timestamp("ns", tz="UTC")
        inner = pa.struct([("at", time), ("list", pa.list_(pa.decimal128(4, 2)))])
        structs = pa.chunked_array(
            [pa.array([{"at": 1, "list": [Decimal("1.50"), None]}, None, {"at": None, "list": None}], inner)]
        )
        assert shown.values(structs) == [
            {"at": "1970-01-01 00:00:00.000000001Z", "list": ["1.50", None]}, None, {"at": None, "list": None},
        ]  # fmt: skip
        assert shown.values(pa.array([1.5, float("nan"), float("-inf"), None])) == [1.5, "nan", "-inf", None]
        assert shown.values(pa.array([b"a\xff", None])) == ["a\\xff", None]

    @pytest.mark.parametrize(
        ("content", "text", "preview"),
        [
            (b"a\tb\r\n", True, "a\\tb"),
            (b"a\x1b[31m\n\xff", True, "a\\x1b[31m\\n\\xff"),
            (b"x" * 100, True, "x" * 60 + "..."),
            (b"\0\x01", False, "00 01"),
            (b"\0" * 21, False, "00 " * 20 + "..."),
        ],
    )
    def test_beginning(self, content: bytes, text: bool, preview: str) -> None:
        """The begin of a record is one line that a terminal shows as it is, cut where it is long."""
        assert shown.preview(content, text) == preview
