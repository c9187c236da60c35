"""A large raw file comes in several versions of the depot, goes on where it was left, and is still there once."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from tests.clocks import NOW
from tests.ingest.raw_files.test_ingest import contents, files_of, rows, source_names, written
from windrow.delta.creation import create_depot
from windrow.errors import InputFileError, TableUnwritableError
from windrow.formats.codecs import decode_whole, encode
from windrow.formats.settings import FormatSettings
from windrow.ingest.raw_files import RawIngestResult, ingest
from windrow.ingest.raw_files import depot as raw_depot
from windrow.model import chunks
from windrow.model.chunks import Chunk

Into = Callable[..., RawIngestResult]
CONTENT = random.Random(3).randbytes(500_000)


@pytest.fixture
def depot(tmp_path: Path) -> str:
    return str(tmp_path / "depot")


@pytest.fixture
def into(depot: str) -> Into:
    """Ingest a file into the depot, 100,000 bytes a version."""

    def run(file: Path, **options: Any) -> RawIngestResult:
        arguments = {"chunk_bytes": 10_000, "max_commit_bytes": 100_000} | options
        [result] = ingest(depot, [str(file)], lambda: NOW, **arguments)
        return result

    return run


@pytest.fixture
def left(depot: str, into: Into, monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
    """Ingest a file whose third commit fails."""

    def run(file: Path) -> None:
        real, count = raw_depot.RawDepot._add_chunks, []

        def failing(self: Any, *arguments: Any, **options: Any) -> int:
            count.append(1)
            if len(count) == 3:
                raise OSError("the disk is gone")
            return real(self, *arguments, **options)

        with monkeypatch.context() as patched:
            patched.setattr(raw_depot.RawDepot, "_add_chunks", failing)
            with pytest.raises(TableUnwritableError):
                into(file)
        assert files_of(depot) == source_names(depot)
        assert len(rows(depot)) == 20

    return run


def versions(depot: str) -> list[int]:
    """Return how many bytes each version added."""
    feed = DeltaTable(depot).load_cdf(starting_version=1).read_all()
    sizes: dict[int, int] = {}
    for version, content in zip(feed["_commit_version"].to_pylist(), feed["bytes"].to_pylist(), strict=True):
        sizes[version] = sizes.get(version, 0) + len(content)
    return [sizes[version] for version in sorted(sizes)]


class TestVersions:
    @pytest.mark.parametrize("size", [99_999, 100_000, 100_001, 200_000, 457_000])
    def test_bounded(self, into: Into, depot: str, tmp_path: Path, size: int) -> None:
        """A version adds as many whole chunks as fit into `max_commit_bytes`; all together they are the file."""
        file = written(tmp_path / "file", CONTENT[:size])
        result = into(file)
        assert contents(depot) == {str(file): CONTENT[:size]}
        whole, rest = divmod(size, 100_000)
        assert versions(depot) == [100_000] * whole + [rest] * bool(rest)
        assert (result.byte_count, result.version_count, result.depot_version) == (
            size,
            len(versions(depot)),
            len(versions(depot)),
        )
        assert into(file).already_ingested
        assert files_of(depot) == source_names(depot)

    @pytest.mark.parametrize("chunk_bytes", [110_000, 150_000])
    def test_large_chunks(self, into: Into, depot: str, tmp_path: Path, chunk_bytes: int) -> None:
        """A chunk is never cut for it: a version has one at least."""
        file = written(tmp_path / "file", CONTENT)
        assert into(file, chunk_bytes=chunk_bytes).version_count == -(-500_000 // chunk_bytes)
        assert max(versions(depot)) == chunk_bytes
        assert contents(depot) == {str(file): CONTENT}

    def test_in_order(self, depot: str, tmp_path: Path) -> None:
        """Of files that are read at a time all versions of one come before those of the next."""
        files = [str(written(tmp_path / f"{at}", bytes([at]) + CONTENT)) for at in range(4)]
        results = list(ingest(depot, files, lambda: NOW, chunk_bytes=50_000, max_commit_bytes=200_000, readers=3))
        assert [result.depot_version for result in results] == [3, 6, 9, 12]
        assert contents(depot) == {file: bytes([at]) + CONTENT for at, file in enumerate(files)}

    @pytest.mark.parametrize("readers", [1, 3])
    def test_who_stops_taking(self, depot: str, tmp_path: Path, readers: int) -> None:
        """What was read ahead and not committed is removed when nobody asks for it any more."""
        files = [str(written(tmp_path / f"{at}", bytes([at]) + CONTENT)) for at in range(6)]
        options = {"chunk_bytes": 50_000, "max_commit_bytes": 200_000, "readers": readers}
        taking = ingest(depot, files, lambda: NOW, **options)  # type: ignore[arg-type]
        next(taking)
        taking.close()  # type: ignore[attr-defined]
        assert contents(depot) == {files[0]: b"\0" + CONTENT}
        assert files_of(depot) == source_names(depot)

    @pytest.mark.parametrize("codec", ["gzip", "zstd", "lz4", "snappy", "bzip2", "xz"])
    def test_codec(self, into: Into, depot: str, tmp_path: Path, codec: Any) -> None:
        """With a codec bytes are counted as they are decoded, also where a file goes on."""
        file = written(tmp_path / "file", encode(CONTENT[:300_000], codec) + encode(CONTENT[300_000:], codec))
        coded = FormatSettings(compression=codec, max_decoded_bytes=1_000_000)
        with pytest.raises(InputFileError, match="changed while it was read"):
            into(file, part=coded, progress=lambda bytes_read, total: file.touch() if bytes_read > 300_000 else None)
        result = into(file, part=coded)
        assert result.resumed_at_byte + result.byte_count == 500_000
        assert b"".join(decode_whole(row["bytes"], codec, 10_000)[0] for row in rows(depot)) == CONTENT


class TestGoesOn:
    def test_behind_what_is_there(self, into: Into, depot: str, tmp_path: Path, left: Callable[[Path], None]) -> None:
        """A file of which two versions are there goes on with the third, is read once, and each chunk is there once."""
        file, progress = written(tmp_path / "file", CONTENT), []
        left(file)
        result = into(file, progress=lambda bytes_read, total: progress.append(bytes_read))
        assert (
            result.resumed_at_byte,
            result.byte_count,
            result.chunk_count,
            result.version_count,
            result.already_ingested,
        ) == (
            200_000,
            300_000,
            30,
            3,
            False,
        )
        assert contents(depot) == {str(file): CONTENT}
        assert (progress[-1], versions(depot)) == (500_000, [100_000] * 5)
        assert into(file).already_ingested

    def test_other_sizes(self, into: Into, depot: str, tmp_path: Path, left: Callable[[Path], None]) -> None:
        """It goes on with another size of chunks and commits as well."""
        file = written(tmp_path / "file", CONTENT)
        left(file)
        assert into(file, chunk_bytes=7_777, max_commit_bytes=150_000).resumed_at_byte == 200_000
        assert contents(depot) == {str(file): CONTENT}

    @pytest.mark.parametrize(
        "changed",
        [b"x" + CONTENT[1:], CONTENT[:199_999] + b"x" + CONTENT[200_000:], CONTENT[:200_000], CONTENT[:100_000], b""],
    )
    def test_changed_meanwhile(
        self, into: Into, depot: str, tmp_path: Path, left: Callable[[Path], None], changed: bytes
    ) -> None:
        """A file that does not begin with what is there, or has lost its end, is refused; brought back it goes on."""
        file = written(tmp_path / "file", CONTENT)
        left(file)
        written(file, changed)
        with pytest.raises(InputFileError, match=r"has grown or was replaced: .*200,000 bytes"):
            into(file)
        assert files_of(depot) == source_names(depot)
        assert len(rows(depot)) == 20
        into(written(file, CONTENT))
        assert contents(depot) == {str(file): CONTENT}

    def test_content_that_came_meanwhile(
        self, into: Into, depot: str, tmp_path: Path, left: Callable[[Path], None]
    ) -> None:
        """A raw source that was begun is brought to its end, also when its content came in under another name."""
        file, copy = written(tmp_path / "file", CONTENT), written(tmp_path / "copy", CONTENT)
        left(file)
        assert not into(copy).already_ingested
        assert not into(file).already_ingested
        assert contents(depot) == {str(file): CONTENT, str(copy): CONTENT}

    def test_lost_reply(self, into: Into, depot: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A commit that failed after its entry was written counts, whichever of a file it is."""
        real = DeltaTable.create_write_transaction

        def lost(self: DeltaTable, *arguments: Any, **options: Any) -> None:
            real(self, *arguments, **options)
            raise OSError("lost")

        monkeypatch.setattr(DeltaTable, "create_write_transaction", lost)
        file = written(tmp_path / "file", CONTENT)
        assert into(file).version_count == 5
        assert contents(depot) == {str(file): CONTENT}


class TestCopies:
    def test_under_another_name(self, into: Into, depot: str, tmp_path: Path) -> None:
        """A copy of a file of several versions adds nothing, however it would be cut, and leaves no file behind."""
        into(written(tmp_path / "file", CONTENT))
        copy = written(tmp_path / "copy", CONTENT)
        for options in ({}, {"chunk_bytes": 7_777, "max_commit_bytes": 9_999}):
            result = into(copy, **options)
            assert (result.already_ingested, result.byte_count, result.chunk_count, result.depot_version) == (
                True,
                0,
                0,
                5,
            )
        assert files_of(depot) == source_names(depot)
        assert contents(depot) == {str(tmp_path / "file"): CONTENT}

    def test_that_has_grown(self, into: Into, depot: str, tmp_path: Path) -> None:
        """A file that begins as another one comes in when it is known to be another, in versions of the same size."""
        into(written(tmp_path / "file", CONTENT))
        grown = written(tmp_path / "grown", CONTENT + b"more")
        assert into(grown).version_count == 6
        assert contents(depot)[str(grown)] == CONTENT + b"more"

    def test_at_the_same_time(self, into: Into, depot: str, tmp_path: Path) -> None:
        """A copy that another process takes in between two commits of a file waits, and is known at its end."""
        file, copy = written(tmp_path / "file", CONTENT), written(tmp_path / "copy", CONTENT)
        seen: list[bool] = []

        def progress(bytes_read: int, total: int | None) -> None:
            if bytes_read == 500_000:
                into(file)

        seen.append(into(copy, progress=progress, max_commit_bytes=499_999).already_ingested)
        assert seen == [True]
        assert contents(depot) == {str(file): CONTENT}
        assert files_of(depot) == source_names(depot)


class TestSomebodyElse:
    def test_same_file(self, into: Into, depot: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Of two processes that ingest one file, each finds what the other committed, and each chunk is there once."""
        file, real = written(tmp_path / "file", CONTENT), raw_depot.RawDepot.commit

        def other_first(self: Any, portion: Any, latest: Any) -> Any:
            monkeypatch.setattr(raw_depot.RawDepot, "commit", real)
            into(file)
            return real(self, portion, latest)

        monkeypatch.setattr(raw_depot.RawDepot, "commit", other_first)
        assert into(file).already_ingested
        assert contents(depot) == {str(file): CONTENT}
        assert files_of(depot) == source_names(depot)

    def test_cut_otherwise(self, into: Into, depot: str, tmp_path: Path, left: Callable[[Path], None]) -> None:
        """A raw source that another process brought further meanwhile is not added to at a place that is taken."""
        file = written(tmp_path / "file", CONTENT)
        create_depot(depot, None)
        known = [Transaction(f"begun:{file}", 5)]

        def progress(bytes_read: int, total: int | None) -> None:
            other = chunks.rows(str(file), [Chunk(1, CONTENT[:5], last=False)], NOW)
            if DeltaTable(depot).version() == 0:
                write_deltalake(depot, other, mode="append", commit_properties=CommitProperties(app_transactions=known))

        with pytest.raises(InputFileError, match="up to byte 5"):
            into(file, progress=progress)
        assert len(rows(depot)) == 1
        assert files_of(depot) == source_names(depot)
