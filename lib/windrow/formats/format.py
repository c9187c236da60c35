"""A format: how bytes become records and records become values, and the limits on both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from windrow.formats.framing import DelimitedFraming, Framing
from windrow.formats.part import FormatPart
from windrow.formats.records import Parser

Header = Callable[[bytes], Parser]


@dataclass(frozen=True, slots=True)
class Format:
    """Everything that is needed to read a source.

    `header` turns the first record, which names the columns, into the parser of the others; it raises HeaderRefused.
    If `text`, a source may begin with a byte-order mark. `fingerprint` changes with the settings. `decode` decompresses
    a chunk. The settings have the `limits`.
    """

    framing: Framing
    parser: Parser
    fingerprint: str
    limits: FormatPart
    text: bool = True
    header: Header | None = None
    decode: Callable[[bytes], bytes] | None = None

    def parser_of(self, header: bytes | None) -> Parser:
        """Return the parser of a source with this header. Raises HeaderRefused."""
        return self.parser if self.header is None or header is None else self.header(header)

    @property
    def delimited(self) -> DelimitedFraming | None:
        """Return the framing if delimiters may be quoted, so that a bad record may contain good ones; else None."""
        framing = self.framing
        return framing if isinstance(framing, DelimitedFraming) and bool(framing.automaton.open.any()) else None
