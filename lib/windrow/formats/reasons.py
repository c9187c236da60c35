"""Reasons: why a record is bad, before it is known which one it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import pyarrow as pa

from windrow.formats.records import Refused, rejects

CAST, ENCODING, SYNTAX = "format_cast", "format_encoding", "format_syntax"


class Bad(NamedTuple):
    """Why a record is bad: the reason, the field (None: the record as a whole), and what is wrong."""

    reason: str
    column: str | None
    detail: str


def told(bad: Mapping[int, Bad]) -> pa.Table:
    """Return the bad records by their numbers as rejects."""
    return rejects(Refused(number, *why) for number, why in bad.items())


def misencoded(buffer: bytes) -> str | None:
    """Say where bytes are no UTF-8, None where they are."""
    try:
        buffer.decode()
    except UnicodeDecodeError as error:
        return f"no UTF-8 at byte {error.start}: {error.reason}"
    return None
