"""CSV as docs/formats.md describes it, read byte by byte: slow, for reading, and without code of the library."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


class Broken(Exception):
    """There is no record: it is `open` at the end of the bytes, or a quote ends no value."""

    def __init__(self, *, is_open: bool) -> None:
        super().__init__()
        self.is_open = is_open


@dataclass(frozen=True)
class NaiveCsv:
    """A reader of records without a header, whose values are all texts; more than one column."""

    columns: Sequence[str]
    delimiter: bytes = b","
    line: bytes = b"\n"
    quote: bytes = b'"'
    escape: bytes = b""

    def __call__(self, data: bytes) -> tuple[list[dict[str, str]], list[bytes]]:
        """Return the good records of a source, and the bytes of the bad ones."""
        good: list[dict[str, str]] = []
        bad: list[bytes] = []
        at = 0
        while at < len(data):
            line = self.line_end(data, at)
            try:
                end, values = self.record(data, at)
            except Broken:
                end, values = line, None
            if values is not None and len(values) == len(self.columns):
                good.append({name: value.decode() for name, value in zip(self.columns, values, strict=True)})
            elif not self.is_empty(data[at:end]):
                if line < end and self.fits(data[:end], line):
                    end = line  # the other lines are records
                bad.append(data[at:end])
            at = end
        return good, bad

    def fits(self, data: bytes, at: int) -> bool:
        """Tell whether no record is open at the end of the bytes."""
        while at < len(data):
            try:
                at, _ = self.record(data, at)
            except Broken as broken:
                if broken.is_open:
                    return False
                at = self.line_end(data, at)
        return True

    def is_empty(self, record: bytes) -> bool:
        """Tell whether there is nothing but the end of a line."""
        content = record.removesuffix(self.line)
        return not (content.removesuffix(b"\r") if self.line == b"\n" else content)

    def line_end(self, data: bytes, at: int) -> int:
        """Return where the line ends, whatever is in quotes."""
        position = data.find(self.line, at)
        return len(data) if position < 0 else position + len(self.line)

    def record(self, data: bytes, at: int) -> tuple[int, list[bytes] | None]:
        """Return where the record that begins here ends, and its values; None if a quote is in the wrong place."""
        values, first_quoted, misplaced = [], len(data), False
        while True:
            start = at
            if self.quote and data.startswith(self.quote, at):
                first_quoted = min(first_quoted, at)
                value, at = self.quoted(data, at + 1)
                if not self.is_end(data, at):
                    raise Broken(is_open=any(mark.startswith(data[at:]) for mark in (self.delimiter, self.line)))
            else:
                while at < len(data) and not data.startswith((self.delimiter, self.line), at):
                    at += 1
                value = data[start:at]
                if self.line == b"\n" and not data.startswith(self.delimiter, at):
                    value = value.removesuffix(b"\r")
                misplaced |= bool(self.quote) and self.quote in value and self.line in data[first_quoted:start]
            values.append(value)
            if not data.startswith(self.delimiter, at):
                at += self.line == b"\n" and data.startswith(b"\r", at)
                return min(at + len(self.line), len(data)), None if misplaced else values
            at += len(self.delimiter)

    def is_end(self, data: bytes, at: int) -> bool:
        """Tell whether a value may end here."""
        ends = (self.delimiter, self.line, b"\r\n") if self.line == b"\n" else (self.delimiter, self.line)
        return data.startswith(ends, at) or at == len(data) or (self.line == b"\n" and data[at:] == b"\r")

    def quoted(self, data: bytes, at: int) -> tuple[bytes, int]:
        """Return the value behind an opening quote, and where the spaces after it end."""
        value = b""
        while at < len(data):
            byte = data[at : at + 1]
            if byte == (self.escape or self.quote) and (self.escape or data[at + 1 : at + 2] == self.quote):
                if at + 1 == len(data):
                    break
                value, at = value + data[at + 1 : at + 2], at + 2
            elif byte == self.quote:
                at += 1
                while data[at : at + 1] == b" ":
                    at += 1
                return value, at
            else:
                value, at = value + byte, at + 1
        raise Broken(is_open=True)
