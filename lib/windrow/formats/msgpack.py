"""MessagePack: records that are each one map, with members by the names of the fields.

Fields are what they are in JSON, and bad ones are told alike; only binary is binary, and texts are looked at where a
field asks for them. Times are texts, and there is no raw text of a member.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec
import numpy as np
import pyarrow as pa

from windrow.errors import SettingsError
from windrow.formats.fields import Field, require_unsized
from windrow.formats.members import TOO_DEEP, Members
from windrow.formats.reasons import ENCODING, SYNTAX, Bad
from windrow.formats.records import Parsed, Records
from windrow.formats.shapes import checked, is_raw, structure

PLACED = re.compile(r"(?:MessagePack data is malformed: )?(?P<message>.*?) \(byte (?P<place>\d+)\)", re.DOTALL)
WELL_FORMED = msgspec.msgpack.Decoder(msgspec.Raw)
UNTYPED = msgspec.msgpack.Decoder()


class MessagePack:
    """The parser of maps of MessagePack. Raises SettingsError for fields that they cannot have."""

    def __init__(self, fields: Sequence[Field]) -> None:
        for field in fields:
            if is_raw(field):
                raise SettingsError(f"field {field.name} is raw JSON, and there is none", "Leave out the pattern json.")
        require_unsized(fields, "msgpack")
        decoder = msgspec.msgpack.Decoder(structure(fields), dec_hook=checked)
        self._members = Members(tuple(fields), decoder.decode, UNTYPED.decode, self._explain)

    @property
    def schema(self) -> pa.Schema:
        """Return the fields and their types."""
        return self._members.schema

    def parse(self, records: Records) -> Parsed:
        """Return the values of the good records, and the reasons of the bad ones."""
        return self._members.parse(records, np.arange(records.count), {})

    def _explain(self, buffer: bytes, error: Exception) -> Bad:
        try:
            WELL_FORMED.decode(buffer)
        except RecursionError:
            return Bad(SYNTAX, None, TOO_DEEP)
        except msgspec.DecodeError as malformed:
            placed = PLACED.fullmatch(str(malformed))
            return Bad(SYNTAX, None, f"{placed['message']} at byte {placed['place']}" if placed else "ends too early")
        if isinstance(error, UnicodeDecodeError):
            return Bad(ENCODING, None, f"no UTF-8 in a text: {error.reason}")
        return self._members.misfit(buffer, error)
