"""MessagePack: each record is one map, and its members have the names of the fields.

Fields and reject reasons are the same as in JSON, with these differences: binary values are binary, texts without a
field need not be UTF-8, and there are no `json` fields. Times are texts.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import pyarrow as pa

from windrow.errors import SettingsError
from windrow.formats.fields import Field, require_unsized
from windrow.formats.members import Members, ill_formed
from windrow.formats.records import ENCODING, Bad, Parsed, Records
from windrow.formats.shapes import checked, is_raw, structure

WELL_FORMED = msgspec.msgpack.Decoder(msgspec.Raw)
UNTYPED = msgspec.msgpack.Decoder()


class MessagePack:
    """The parser of MessagePack maps. Raises SettingsError for fields that MessagePack cannot have."""

    def __init__(self, fields: Sequence[Field]) -> None:
        for field in fields:
            if is_raw(field):
                raise SettingsError(f"field {field.name!r}: msgpack has no json fields", "Use another type.")
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
        bad = ill_formed(WELL_FORMED, buffer, "ends too early")
        if bad is not None:
            return bad
        if isinstance(error, UnicodeDecodeError):
            return Bad(ENCODING, None, f"a text is not UTF-8: {error.reason}")
        return self._members.misfit(buffer, error)
