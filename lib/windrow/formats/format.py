"""A format: how bytes become records and records become values, and the limits on both."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace

from windrow.errors import FormatPluginError, MissingExtraError, SettingsError, WindrowError
from windrow.formats import fields
from windrow.formats.codecs import require_available
from windrow.formats.fields import Field
from windrow.formats.framing import DelimitedFraming, Framing
from windrow.formats.installed import HINT, OWN, builder, plugin_error
from windrow.formats.records import InvalidHeader, Parser
from windrow.formats.settings import FormatSettings

Header = Callable[[bytes], Parser]


@dataclass(frozen=True, slots=True)
class Format:
    """Everything that is needed to read a source.

    `header` turns the first record, which names the columns, into the parser of the others, or raises InvalidHeader. If
    `text`, a source may begin with a byte-order mark, and bad records have a line. Windrow sets the rest: `limits` are
    the settings, and `fingerprint` changes with them; chunks are a stream of frames of the `codec`; if only some fields
    are `used`, the others are not converted.
    """

    framing: Framing
    parser: Parser
    fingerprint: str = ""
    limits: FormatSettings = field(default_factory=FormatSettings)
    text: bool = True
    header: Header | None = None
    codec: str = "none"
    used: frozenset[str] | None = None

    def parser_of(self, header: bytes | None) -> Parser:
        """Return the parser of a source with this header. Raises InvalidHeader and FormatPluginError."""
        if self.header is None or header is None:
            return self.parser
        try:
            return _using(self.header(header), self.used)
        except (InvalidHeader, WindrowError):
            raise
        except Exception as error:
            raise plugin_error(self.limits.type, "read a header", error) from error

    def using(self, names: Collection[str]) -> Format:
        """Return the format that converts only the fields with these names, unless it is `strict`.

        At least one field is converted, because a table without columns has no rows.
        """
        if self.limits.strict:
            return self
        fields = self.parser.schema.names
        used = frozenset(names) & frozenset(fields) or frozenset(fields[:1])
        return replace(self, used=used, parser=_using(self.parser, used))

    @property
    def delimited(self) -> DelimitedFraming | None:
        """Return the framing if its delimiter may be quoted, so that a bad record may contain good ones; else None."""
        framing = self.framing
        if not isinstance(framing, DelimitedFraming) or not framing.delimiter:
            return None
        return framing if framing.automaton.open.any() else None


def _using(parser: Parser, used: frozenset[str] | None) -> Parser:
    """Return a parser that converts only these fields; a parser of another package may lack `using`."""
    using = getattr(parser, "using", None)
    return parser if used is None or using is None else using(used)


# The function that a package registers in the entry point group `windrow.formats`; it builds a format.
Build = Callable[[FormatSettings, tuple[Field, ...]], Format]


def format_of(section: FormatSettings) -> Format:
    """Return the format that the settings describe; its libraries are imported only now.

    Raises SettingsError, FormatPluginError and MissingExtraError.
    """
    if section.type is None:
        raise SettingsError("[format] has no type", f"Set type to one of {', '.join(OWN)}.")
    try:
        built = builder(section.type)(section, fields.parse(section.fields))
    except SettingsError as error:
        raise SettingsError(f"[format] {error.message}", error.hint) from None
    except WindrowError:
        raise
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and error.name == "msgspec":
            hint = "pip install 'windrow-delta[formats]'"
            raise MissingExtraError("JSON and MessagePack records need msgspec", hint) from error
        raise plugin_error(section.type, "be built", error) from error
    if not isinstance(built, Format):
        raise FormatPluginError(f"the format {section.type!r} returns {type(built).__name__}, not a Format", HINT)
    require_available(section.compression)
    return replace(built, fingerprint=section.recorded_text() or "", limits=section, codec=section.compression)
