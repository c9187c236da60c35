"""A format: how bytes become records, and records values, with its limits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from windrow.formats.framing import DelimitedFraming, Framing
from windrow.formats.records import Parser

Header = Callable[[bytes], Parser]


@dataclass(frozen=True, slots=True)
class Format:
    """All that a source needs to be read.

    With `header` the first record names the columns, and says how the others are parsed; it raises HeaderRefused.
    `text` says that a byte-order mark may come first. `fingerprint` changes with the settings. `decode` undoes a codec,
    chunk by chunk.
    """

    framing: Framing
    parser: Parser
    fingerprint: str
    text: bool = True
    header: Header | None = None
    decode: Callable[[bytes], bytes] | None = None
    max_held_bytes: int = 67_108_864
    remembered_chunks: int = 1_024
    max_chunks: int = 256
    max_read_bytes: int = 268_435_456
    executor_chunks: int = 4_096

    def parser_of(self, header: bytes | None) -> Parser:
        """Return the parser of a source with such a header. Raises HeaderRefused."""
        return self.parser if self.header is None or header is None else self.header(header)

    @property
    def delimited(self) -> DelimitedFraming | None:
        """Return the framing where delimiters may be quoted, so that a bad record may hold good ones."""
        framing = self.framing
        return framing if isinstance(framing, DelimitedFraming) and bool(framing.automaton.open.any()) else None
