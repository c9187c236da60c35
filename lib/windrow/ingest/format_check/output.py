"""Write the bytes of bad records to a file, so that they can be repaired and ingested again."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from windrow.errors import OutputFileError
from windrow.formats.format import Format
from windrow.formats.framing import DelimitedFraming
from windrow.formats.records import InvalidHeader


class Output:
    """Writes rejects to a new file, which is created at the first reject and removed if something fails.

    It writes the header first if records need one, and a delimiter between the records of two files.
    """

    def __init__(self, path: str, format_: Format) -> None:
        """Raise OutputFileError if the file exists or its directory does not."""
        self._path, self._format = Path(path), format_
        self._file: BinaryIO | None = None
        self._header: bytes | None = None
        self._source, self._end = "", b""
        if self._path.exists():
            raise OutputFileError(f"{path} exists already", "Name another file for --rejects.")
        if not self._path.parent.is_dir():
            raise OutputFileError(f"the directory {self._path.parent} does not exist", "Create it first.")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        if self._file is not None:
            self._file.close()
            if kind is not None:
                self._path.unlink(missing_ok=True)

    def add(self, source: str, header: bytes | None, contents: list[bytes]) -> None:
        """Add bad records of a source. Raises OutputFileError, also for a different header from the files before."""
        written = b"".join(contents)
        if not written:
            return
        delimiter = self._format.framing.delimiter if isinstance(self._format.framing, DelimitedFraming) else b""
        before = delimiter if source != self._source and self._end and not self._end.endswith(delimiter) else b""
        needed = self._header_for(header)
        if needed is not None and self._header is None and self._file is None:
            before = needed + delimiter
        elif needed != self._header:
            raise OutputFileError(f"{source} has a different header from the files before it", "Check it separately.")
        self._source, self._end, self._header = source, written[-len(delimiter) :], needed
        self._write(before + written)

    def _header_for(self, header: bytes | None) -> bytes | None:
        """Return the header that the records need, None if the header is bad and therefore itself a reject."""
        try:
            self._format.parser_of(header)
        except InvalidHeader:
            return None
        return header

    def _write(self, content: bytes) -> None:
        try:
            if self._file is None:
                self._file = self._path.open("xb")
            self._file.write(content)
        except OSError as error:
            raise OutputFileError(
                f"{self._path} cannot be written: {error.strerror}", "Check the free space and the permissions."
            ) from error
