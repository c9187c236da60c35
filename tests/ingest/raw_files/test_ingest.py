"""Raw files come into a raw depot as they are, each once, in the order in which they are named."""

from __future__ import annotations

import errno
import hashlib
import io
import os
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from tests.clocks import NOW
from windrow.columnar.arrow import TIME, to_plain_types
from windrow.delta.creation import create_depot
from windrow.delta.table import history
from windrow.errors import IncompatibleTableError, InputFileError, TableUnwritableError
from windrow.formats.codecs import Codec, decode_whole, encode
from windrow.formats.settings import FormatSettings
from windrow.ingest.raw_files import RawIngestResult, ingest, reading
from windrow.ingest.raw_files import depot as raw_depot
from windrow.model import chunks
from windrow.model.chunks import Chunk
from windrow.model.commits import rows_added

MEBI = 1_048_576
Ingest = Callable[..., list[RawIngestResult]]


@pytest.fixture
def depot(tmp_path: Path) -> str:
    return str(tmp_path / "depot")


@pytest.fixture
def into(depot: str) -> Ingest:
    """Ingest files into the depot."""

    def run(*files: Path | str, **options: Any) -> list[RawIngestResult]:
        return list(ingest(depot, [str(file) for file in files], lambda: NOW, **options))

    return run


def written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def rows(depot: str) -> list[dict[str, Any]]:
    table = to_plain_types(DeltaTable(depot).to_pyarrow_table())
    return table.sort_by([("raw_source", "ascending"), ("sequence", "ascending")]).to_pylist()


def contents(depot: str) -> dict[str, bytes]:
    """Put the chunks of each raw source together, each of which must be there once, and the last one marked."""
    chunks_by_source: dict[str, list[dict[str, Any]]] = {}
    for row in rows(depot):
        chunks_by_source.setdefault(row["raw_source"], []).append(row)
    for several in chunks_by_source.values():
        assert [row["sequence"] for row in several] == list(range(1, len(several) + 1))
        assert [row["last"] for row in several] == [False] * (len(several) - 1) + [True]
    return {name: b"".join(row["bytes"] for row in several) for name, several in chunks_by_source.items()}


def files_of(depot: str) -> set[str]:
    return {path.name for path in Path(depot).glob("*.parquet")}


def source_names(depot: str) -> set[str]:
    """Return the files that the log names."""
    return {Path(path).name for path in DeltaTable(depot).file_uris()}


class TestContent:
    def test_comes_through(self, into: Ingest, depot: str, tmp_path: Path) -> None:
        """Chunks put together are the file, whatever bytes it has; each has the time at which reading began."""
        content = random.Random(1).randbytes(10_000) + b"\r\n\x00\xff\xfe"
        file = written(tmp_path / "a.bin", content)
        [result] = into(file, chunk_bytes=1_000)
        assert result == RawIngestResult(str(file), str(file), len(content), 11, 1, already_ingested=False)
        assert contents(depot) == {str(file): content}
        assert set(
            to_plain_types(DeltaTable(depot).to_pyarrow_table())["received_at"].cast(pa.int64()).to_pylist()
        ) == {NOW}

    def test_large(self, into: Ingest, depot: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A file of many row groups lies in several Parquet files, which one commit names; a row group is small."""
        monkeypatch.setattr(reading, "FILE_BYTES", 300_000)
        monkeypatch.setattr(reading, "GROUP_BYTES", 50_000)
        content = random.Random(2).randbytes(1_000_000)
        into(written(tmp_path / "a", content), chunk_bytes=7_777)
        assert contents(depot) == {str(tmp_path / "a"): content}
        assert (DeltaTable(depot).version(), len(files_of(depot))) == (1, 4)
        known = [pq.ParquetFile(Path(depot) / file).metadata for file in files_of(depot)]
        assert {about.row_group(at).num_rows for about in known for at in range(about.num_row_groups)} == {7, 3}

    def test_empty(self, into: Ingest, depot: str, tmp_path: Path) -> None:
        """An empty file is one empty chunk, which ends its raw source."""
        [result] = into(written(tmp_path / "empty", b""))
        assert (result.byte_count, result.chunk_count, result.already_ingested) == (0, 1, False)
        [row] = rows(depot)
        assert (row["sequence"], row["bytes"], row["last"]) == (1, b"", True)

    def test_standard_input(self, into: Ingest, depot: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        """Standard input is read to its end, under the name that it is given; a pipe tells no length before."""
        progress: list[tuple[int, int | None]] = []
        reader, writer = os.pipe()
        sender = threading.Thread(target=lambda: (os.write(writer, b"abc"), os.close(writer)))
        sender.start()
        with os.fdopen(reader, "rb") as stream:
            monkeypatch.setattr("sys.stdin", io.TextIOWrapper(stream))
            into(
                "-",
                raw_source="pump",
                chunk_bytes=2,
                progress=lambda bytes_read, total: progress.append((bytes_read, total)),
            )
        sender.join()
        assert contents(depot) == {"pump": b"abc"}
        assert progress == [(3, None)]

    def test_log_tells_of_it(self, into: Ingest, depot: str, tmp_path: Path) -> None:
        """The entry of a file says how many rows it added, and which numbers they have, so that readers can pass over
        it.
        """
        into(written(tmp_path / "a", b"abcde"), chunk_bytes=2)
        assert [rows_added(commit) for commit in history(DeltaTable(depot), 1)] == [3]
        added = pa.table(DeltaTable(depot).get_add_actions(flatten=True)).to_pylist()
        assert [(row["num_records"], row["min.sequence"], row["max.sequence"]) for row in added] == [(3, 1, 3)]
        table = DeltaTable(depot)
        assert table.metadata().description == chunks.COMMENT
        assert table.metadata().configuration["delta.enableChangeDataFeed"] == "true"
        feed = pa.table(table.load_cdf(starting_version=1))
        assert feed["_change_type"].to_pylist() == ["insert"] * 3

    def test_checkpoints(self, into: Ingest, depot: str, tmp_path: Path) -> None:
        """A checkpoint is written as often as the table says."""
        files = [written(tmp_path / str(number), bytes([number])) for number in range(21)]
        into(*files)
        checkpoints = (Path(depot) / "_delta_log").glob("*.checkpoint.parquet")
        assert sorted(int(checkpoint.name[:20]) for checkpoint in checkpoints) == [9, 19]
        assert into(*files)[-1].already_ingested
        assert len(contents(depot)) == 21


class TestOnce:
    def test_again(self, into: Ingest, depot: str, tmp_path: Path) -> None:
        """A file that was ingested adds nothing when it is again, also under another name, and leaves no file
        behind.
        """
        first, copy = written(tmp_path / "first", b"abc"), written(tmp_path / "copy", b"abc")
        assert [result.already_ingested for result in into(first, first)] == [False, True]
        assert [
            (result.byte_count, result.chunk_count, result.already_ingested, result.depot_version)
            for result in into(first, copy)
        ] == [(0, 0, True, 1)] * 2
        assert contents(depot) == {str(first): b"abc"}
        assert files_of(depot) == source_names(depot)

    def test_grown(self, into: Ingest, depot: str, tmp_path: Path) -> None:
        """A file that has grown is refused before any is read, because its chunks would take numbers that are taken."""
        grown, other = written(tmp_path / "grown", b"abc"), written(tmp_path / "other", b"x")
        into(grown)
        written(grown, b"abcd")
        read: list[int] = []
        with pytest.raises(InputFileError, match="has grown or was replaced: the depot has 3 bytes") as error:
            into(other, grown, progress=lambda bytes_read, total: read.append(bytes_read))
        assert "--raw-source" in error.value.hint
        assert (read, contents(depot)) == ([], {str(grown): b"abc"})
        into(grown, raw_source="grown again")
        assert contents(depot) == {str(grown): b"abc", "grown again": b"abcd"}

    def test_replaced(self, into: Ingest, depot: str, tmp_path: Path) -> None:
        """Other content of the same length is known by its hash, and nothing is written to find that out."""
        file = written(tmp_path / "file", b"abc")
        into(file)
        before = files_of(depot)
        written(file, b"xyz")
        with pytest.raises(InputFileError, match="its content differs"):
            into(file)
        assert (files_of(depot), DeltaTable(depot).version()) == (before, 1)

    def test_between_reading_and_commit(
        self, into: Ingest, depot: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Another writer that commits between the look at the log and the entry does not make a file come in twice."""
        file = written(tmp_path / "file", b"abc")
        into(written(tmp_path / "before", b"1"))
        real = raw_depot.RawDepot._add_chunks

        def second(self: Any, table: DeltaTable, portion: Any, start: str | None) -> int:
            monkeypatch.setattr(raw_depot.RawDepot, "_add_chunks", real)
            taken = [Transaction(name, number) for name, number in portion.numbers(start).items()]
            other = chunks.rows(str(file), [Chunk(1, b"abc", last=True)], NOW)
            write_deltalake(depot, other, mode="append", commit_properties=CommitProperties(app_transactions=taken))
            return real(self, table, portion, start)

        monkeypatch.setattr(raw_depot.RawDepot, "_add_chunks", second)
        [result] = into(file)
        assert result.already_ingested
        assert contents(depot)[str(file)] == b"abc"
        assert files_of(depot) == source_names(depot)

    def test_replaced_between_reading_and_commit(
        self, depot: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A file of which other content came in while it was read is refused, and no number is taken twice."""
        file = written(tmp_path / "file", b"abc")

        def progress(bytes_read: int, total: int | None) -> None:
            other = written(tmp_path / "other", b"xyz")
            list(ingest(depot, [str(other)], lambda: NOW, raw_source=str(file)))

        with pytest.raises(InputFileError, match="its content differs"):
            list(ingest(depot, [str(file)], lambda: NOW, progress=progress))
        assert contents(depot) == {str(file): b"xyz"}
        assert files_of(depot) == source_names(depot)

    def test_another_writer_in_between(
        self, into: Ingest, depot: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Another raw source that came in between is no conflict: both are there."""
        file = written(tmp_path / "file", b"abc")
        create_depot(depot, None)
        real = raw_depot.RawDepot._add_chunks

        def second(self: Any, table: DeltaTable, portion: Any, start: str | None) -> int:
            monkeypatch.setattr(raw_depot.RawDepot, "_add_chunks", real)
            write_deltalake(depot, chunks.rows("socket", [Chunk(1, b"x", last=True)], NOW), mode="append")
            return real(self, table, portion, start)

        monkeypatch.setattr(raw_depot.RawDepot, "_add_chunks", second)
        assert [(result.already_ingested, result.depot_version) for result in into(file)] == [(False, 2)]
        assert contents(depot) == {str(file): b"abc", "socket": b"x"}

    def test_lost_reply(self, into: Ingest, depot: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A commit that failed after its entry was written counts, and its files stay."""
        real = DeltaTable.create_write_transaction

        def lost(self: DeltaTable, *arguments: Any, **options: Any) -> None:
            real(self, *arguments, **options)
            raise OSError(errno.EIO, "lost")

        monkeypatch.setattr(DeltaTable, "create_write_transaction", lost)
        [result] = into(written(tmp_path / "file", b"abc"))
        assert (result.already_ingested, result.depot_version) == (False, 1)
        assert contents(depot) == {str(tmp_path / "file"): b"abc"}

    def test_conflict_with_itself(
        self, into: Ingest, depot: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A commit that was made, and of which a storage said when it was repeated that another one is there,
        counts.
        """
        real = DeltaTable.create_write_transaction

        def repeated(self: DeltaTable, *arguments: Any, **options: Any) -> None:
            real(self, *arguments, **options)
            real(self, *arguments, **options)

        monkeypatch.setattr(DeltaTable, "create_write_transaction", repeated)
        [result] = into(written(tmp_path / "file", b"abc"))
        assert (result.already_ingested, result.depot_version) == (False, 1)
        assert contents(depot) == {str(tmp_path / "file"): b"abc"}

    def test_failed_commit(self, into: Ingest, depot: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A commit that failed leaves neither rows nor files, and again it succeeds."""

        def full(self: DeltaTable, *arguments: Any, **options: Any) -> None:
            raise OSError(errno.ENOSPC, "full")

        with monkeypatch.context() as patched:
            patched.setattr(DeltaTable, "create_write_transaction", full)
            with pytest.raises(TableUnwritableError):
                into(written(tmp_path / "file", b"abc"))
        assert (files_of(depot), DeltaTable(depot).version()) == (set(), 0)
        assert not into(tmp_path / "file")[0].already_ingested
        assert contents(depot) == {str(tmp_path / "file"): b"abc"}


class TestOrder:
    @pytest.mark.parametrize("readers", [1, 2, 5])
    def test_as_named(self, into: Ingest, depot: str, tmp_path: Path, readers: int) -> None:
        """Versions come in the order in which files are named, however long each takes to read."""
        sizes = [3_000_000, 10, 2_000_000, 0, 5, 1_000_000, 7, 8, 9, 1]
        files = [written(tmp_path / f"{at}", bytes([at]) * size) for at, size in enumerate(sizes)]
        progress: list[tuple[int, int | None]] = []
        results = into(*files, readers=readers, progress=lambda bytes_read, total: progress.append((bytes_read, total)))
        assert [result.depot_version for result in results] == list(range(1, 11))
        assert {name: len(content) for name, content in contents(depot).items()} == dict(
            zip(map(str, files), sizes, strict=True)
        )
        assert progress == sorted(progress)
        assert progress[-1] == (sum(sizes), sum(sizes))

    def test_failure_keeps_what_came_before(self, into: Ingest, depot: str, tmp_path: Path) -> None:
        """A file that is refused at its turn leaves those before it in the depot, and nothing of those after it."""
        files = [written(tmp_path / f"{at}", bytes([at]) * 100_000) for at in range(8)]
        into(files[3])
        written(files[3], bytes(100_000 - 1) + b"x")
        with pytest.raises(InputFileError, match="its content differs"):
            into(*files)
        assert contents(depot).keys() == {str(file) for file in files[:4]}
        assert files_of(depot) == source_names(depot)
        assert [result.already_ingested for result in into(*files[:3], *files[4:])] == [True] * 3 + [False] * 4

    def test_who_stops_taking(self, depot: str, tmp_path: Path) -> None:
        """What was read ahead is removed when nobody asks for it any more."""
        files = [written(tmp_path / f"{at}", bytes([at]) * 1_000) for at in range(8)]
        taking: Iterator[RawIngestResult] = ingest(depot, [str(file) for file in files], lambda: NOW)
        next(taking)
        taking.close()  # type: ignore[attr-defined]
        assert contents(depot).keys() == {str(files[0])}
        assert files_of(depot) == source_names(depot)


class TestRefusals:
    def test_before_anything_is_made(self, into: Ingest, depot: str, tmp_path: Path) -> None:
        """What is no file is refused before the depot is made, in words that say what to do."""
        good = written(tmp_path / "good", b"x")
        for wrong, error_message in (
            (tmp_path / "absent", "cannot be read: No such file"),
            (tmp_path, "is a directory"),
            ("s3://bucket/file", "is not a local file"),
            ("-", "standard input has no name"),
            (os.fsdecode(b"\xff"), "is not UTF-8"),
        ):
            with pytest.raises(InputFileError, match=error_message):
                into(good, wrong)
        with pytest.raises(InputFileError, match="needs a single file"):
            into(good, good, raw_source="one")
        with pytest.raises(InputFileError, match="is empty"):
            into(good, raw_source="")
        assert not DeltaTable.is_deltatable(depot)

    def test_written_while_it_is_read(self, into: Ingest, depot: str, tmp_path: Path) -> None:
        """A file that grows while it is read is refused, and leaves nothing."""
        file = written(tmp_path / "file", bytes(3 * MEBI))

        def progress(bytes_read: int, total: int | None) -> None:
            if bytes_read == MEBI:
                with file.open("ab") as stream:
                    stream.write(b"more")

        with pytest.raises(InputFileError, match="changed while it was read"):
            into(file, progress=progress)
        assert (files_of(depot), DeltaTable(depot).version()) == (set(), 0)

    def test_depot_of_messages(self, into: Ingest, depot: str, tmp_path: Path) -> None:
        """Raw files do not go into a depot of messages, nor messages into a raw one."""
        create_depot(depot, pa.string())
        with pytest.raises(IncompatibleTableError, match="does not hold raw chunks"):
            into(written(tmp_path / "file", b"x"))
        raw = str(tmp_path / "raw")
        create_depot(raw, None)
        create_depot(raw, None)
        with pytest.raises(IncompatibleTableError, match="holds raw chunks, not messages"):
            create_depot(raw, pa.string())

    @pytest.mark.parametrize(
        ("options", "error_message"),
        [
            ({"partition_by": ["raw_source"], "configuration": {"delta.enableChangeDataFeed": "true"}}, "partitioned"),
        ],
    )
    def test_other_tables(
        self, into: Ingest, depot: str, tmp_path: Path, options: dict[str, Any], error_message: str
    ) -> None:
        """A table with the columns, to which more than files would have to be told or which nobody could read, is
        refused.
        """
        write_deltalake(depot, chunks.RAW.empty_table(), **options)
        with pytest.raises(IncompatibleTableError, match=error_message):
            into(written(tmp_path / "file", b"x"))
        assert files_of(depot) == set()

    def test_another_column(self, into: Ingest, depot: str, tmp_path: Path) -> None:
        """A column that a raw depot has beside its own is NULL in chunks of files."""
        columns = pa.schema([*chunks.RAW, ("site", pa.string())])
        write_deltalake(depot, columns.empty_table(), configuration={"delta.enableChangeDataFeed": "true"})
        into(written(tmp_path / "file", b"x"))
        assert [(row["bytes"], row["site"]) for row in rows(depot)] == [(b"x", None)]


class TestSpark:
    @pytest.mark.slow
    def test_reads_the_same(self, into: Ingest, depot: str, tmp_path: Path, spark: Any) -> None:
        """Spark reads what delta-rs reads of a raw depot, from the table and from its change feed."""
        files = [written(tmp_path / f"{at}", random.Random(at).randbytes(100_000)) for at in range(2)]
        into(*files, chunk_bytes=9_999)
        known = to_plain_types(DeltaTable(depot).to_pyarrow_table()).to_pylist()
        frame = spark.read.format("delta").load(depot)
        spark_rows = to_plain_types(frame.toArrow())
        assert spark_rows.schema.types == [pa.string(), pa.int64(), pa.binary(), pa.bool_(), TIME]
        order = lambda row: (row["raw_source"], row["sequence"])  # noqa: E731
        assert sorted(spark_rows.to_pylist(), key=order) == sorted(known, key=order)
        feed = spark.read.format("delta").option("readChangeFeed", "true").option("startingVersion", 1).load(depot)
        assert {(row["_change_type"], row["count"]) for row in feed.groupBy("_change_type").count().collect()} == {
            ("insert", len(known))
        }
        hashes = {row["raw_source"]: hashlib.sha256(row["bytes"]).hexdigest() for row in known if row["sequence"] == 1}
        seen = frame.where("sequence = 1").selectExpr("raw_source", "sha2(bytes, 256) AS digest").collect()
        assert {row["raw_source"]: row["digest"] for row in seen} == hashes


@pytest.mark.parametrize("codec", ["gzip", "zstd", "lz4", "snappy", "bzip2", "xz"])
def test_codec(tmp_path: Path, codec: Codec) -> None:
    """A compressed file comes in as chunks that are each whole frames of the codec; one that is none is refused."""
    data = bytes(range(256)) * 40
    file, depot = tmp_path / "file", str(tmp_path / "depot")
    file.write_bytes(encode(data[:5_000], codec) + encode(data[5_000:], codec))
    (read,) = ingest(
        depot,
        [str(file)],
        lambda: 1,
        chunk_bytes=1_000,
        part=FormatSettings(compression=codec, max_decoded_bytes=100_000),
    )
    rows = to_plain_types(DeltaTable(depot).to_pyarrow_table()).sort_by("sequence")
    assert read.chunk_count == rows.num_rows == 11
    parts = [decode_whole(chunk, codec, 1_000)[0] for chunk in rows["bytes"].to_pylist()]
    assert b"".join(parts) == data
    for wrong, most in ((b"plain", 100_000), (encode(data, codec), 10)):
        file.write_bytes(wrong)
        part = FormatSettings(compression=codec, max_decoded_bytes=most)
        with pytest.raises(InputFileError):
            list(ingest(depot, [str(file)], lambda: 1, raw_source="other", part=part))
    assert DeltaTable(depot).version() == read.depot_version
