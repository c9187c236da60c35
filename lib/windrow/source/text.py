"""Refuse text in a depot that is not UTF-8, because the engines disagree on it."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from windrow.errors import DepotUnreadableError, first_line

REPLACEMENT = "\ufffd"


def require_text(rows: pa.Table, version: str = "version") -> None:
    """Raise DepotUnreadableError for text that is not UTF-8, with the depot versions from the column `version`."""
    try:
        # guard: text-is-text
        rows.validate(full=True)
    except pa.ArrowInvalid as error:
        extremes = pc.min_max(rows[version]).as_py()
        raise invalid_text_error(extremes["min"], extremes["max"], first_line(error)) from error


def invalid_text_error(first: int, last: int, where: str) -> DepotUnreadableError:
    """Return the error for versions with text that is not UTF-8; `where` says in which column, or at which byte."""
    return DepotUnreadableError(
        f"depot versions {first} to {last} have text that is not UTF-8: {where}",
        'Begin a new ledger (--ledger) after them: start_from = "version:N".',
    )


def has_replacement(rows: pa.Table) -> bool:
    """Tell whether a text has U+FFFD."""
    texts = (text for column in rows.columns for chunk in column.chunks for text in _texts_in(chunk))
    return any(pc.any(pc.match_substring(text, REPLACEMENT)).as_py() for text in texts)


def _texts_in(column: pa.Array) -> Iterator[pa.Array]:
    """Yield the texts of a column, including those within lists, maps and structs."""
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        yield column
    elif pa.types.is_struct(column.type):
        for child in column.flatten():
            yield from _texts_in(child)
    elif pa.types.is_map(column.type):
        yield from _texts_in(column.keys)
        yield from _texts_in(column.items)
    elif pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
        yield from _texts_in(column.flatten())
