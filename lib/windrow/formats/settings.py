"""`[format]`: the settings of a format."""

from __future__ import annotations

import json
from typing import Literal

from pydantic import Field, field_validator

from windrow.formats.installed import OWN, names
from windrow.model.section import ByteSize, Count, SettingsSection

CHUNK_BYTES = 1_048_576  # as chunks.CHUNK_BYTES, whose import would load Arrow
MIN_MAX_CHUNKS = 256  # reading this many small chunks takes some 0.1 s; a guess


class FormatSettings(SettingsSection):
    """`[format]`: what is in the chunks of a raw depot."""

    type: str | None = Field(None, description="csv, json, native, lines, length-prefixed, or the format of a package")
    fields: dict[str, str] = Field(default_factory=dict, description="name = type, such as float64 or timestamp[us]")
    options: dict[str, str | int | float | bool] = Field(
        default_factory=dict, description="settings of the format of a package"
    )
    record_delimiter: str = Field("\n", description="csv, json, lines: what ends a record; json: empty for none")
    delimiter: str = Field(",", description="csv: column separator")
    quote_char: str = Field('"', description="csv: what a field is quoted in, empty for nothing")
    escape_char: str = Field("", description="csv: what stands before a quote in quotes; empty: quotes are doubled")
    has_header: bool = Field(True, description="csv: the first record of each source names its columns")
    null_values: tuple[str, ...] = Field(("",), description="csv, lines: texts that are NULL where they are not quoted")
    regex: str = Field("", description="lines: an expression with a group (?P<name>...) for each field")
    byte_order: Literal["little", "big"] = Field("little", description="native, length-prefixed: of numbers")
    length_bytes: Literal[1, 2, 4, 8] = Field(4, description="length-prefixed: bytes of the length before a record")
    length_includes_itself: bool = Field(False, description="length-prefixed: the length counts its own bytes")
    encoding: Literal["json", "msgpack"] = Field("json", description="length-prefixed: how a record is written")
    strict: bool = Field(False, description="convert all fields, not only those that an expression uses")
    compression: Literal["none", "gzip", "zstd", "lz4", "snappy", "bzip2", "xz"] = Field(
        "none", description="the chunks of a source are a stream of its frames"
    )
    max_record_bytes: Count = Field(1_048_576, description="a longer record is rejected")
    max_decoded_bytes: Count = Field(1_073_741_824, description="a frame that decodes to more is rejected")
    max_pending_bytes: ByteSize = Field(
        67_108_864, description="of a source, while it waits for chunks; then they are lost"
    )
    max_read_bytes: Count = Field(268_435_456, description="bytes of chunks per microbatch, in whole depot versions")

    @property
    def max_chunks(self) -> int:
        """Return how many chunks a microbatch reads where the log does not give their bytes, as if each were full."""
        return max(MIN_MAX_CHUNKS, self.max_read_bytes // CHUNK_BYTES)

    @field_validator("type")
    @classmethod
    def _installed(cls, name: str | None) -> str | None:
        if name is not None and name not in OWN and name not in names():
            raise ValueError(f"no such format is installed; installed: {', '.join(names())}")
        return name

    def recorded_text(self) -> str | None:
        """Return, as JSON for the history, the settings that differ from the defaults; None if none does.

        Fields keep their order, which in many formats says where each one is.
        """
        changed = self.model_dump(mode="json", exclude_defaults=True)
        return json.dumps(changed | {"strict": self.strict}, ensure_ascii=False) if changed else None

    @classmethod
    def of_record(cls, text: str | None) -> FormatSettings:
        """Return the settings that the history recorded; before `strict` existed, all fields were converted."""
        return cls.model_validate({"strict": True} | json.loads(text or "{}"))
