"""Build the format that `[format]` describes; its libraries are imported only when it is used."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from windrow.errors import FormatFailed, MissingExtra, SettingsError, WindrowError
from windrow.formats import codecs, fields
from windrow.formats.failure import HINT, failed
from windrow.formats.format import Format
from windrow.formats.installed import OWN, builder
from windrow.formats.part import FormatPart


def format_of(section: FormatPart) -> Format:
    """Return the format that the settings describe. Raises SettingsError, FormatFailed and MissingExtra."""
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
            raise MissingExtra("JSON and MessagePack records need msgspec", hint) from error
        raise failed(section.type, "be built", error) from error
    if not isinstance(built, Format):
        raise FormatFailed(f"the format {section.type!r} returns {type(built).__name__}, not a Format", HINT)
    codec, most = section.codec, section.max_decoded_bytes
    decode = None if codec == "none" else partial(codecs.decode, codec=codec, most_bytes=most)
    return replace(built, fingerprint=section.recorded() or "", limits=section, decode=decode)
