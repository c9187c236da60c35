"""How the rows of a ledger are encoded in Parquet: which columns get a dictionary, and how large row groups are.

Columns of batches whose values repeat get a dictionary. Building one and then abandoning it took two fifths of the
writing time. Most times and sequences occur once, so they get none; for payloads a sample decides.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.model.open_batches import MESSAGES

GROUP_BYTES = 250_000  # in memory, of open batches: what is read to change one of them
SAMPLED = 1_000  # batches whose payloads decide whether a dictionary is worthwhile
ELEMENT = f"{MESSAGES}.list.element."
PLAIN = ("event_time", "received_at", "sequence")


def group_rows(rows: pa.Table) -> int:
    """Return how many open batches a row group has."""
    return max(1, rows.num_rows * GROUP_BYTES // max(GROUP_BYTES, rows.nbytes))


def without_dictionary(rows: pa.Table | None) -> list[str]:
    """Return the message columns to write without a dictionary; `rows` is None if they are not on the driver."""
    if rows is not None and _has_messages(rows.schema) and _differ(rows):
        return [ELEMENT + name for name in (*PLAIN, "payload")]
    return [ELEMENT + name for name in PLAIN]


def with_dictionary(rows: pa.Table) -> list[str]:
    """Return the columns to write with a dictionary: the flat ones, and message columns that repeat."""
    flat = [field.name for field in rows.schema if not pa.types.is_nested(field.type)]
    without = without_dictionary(rows)
    return flat + [name for name in (ELEMENT + "type", ELEMENT + "payload") if name not in without]


def _has_messages(schema: pa.Schema) -> bool:
    """Tell whether the rows are batches; the states of a topology may have any columns."""
    type_ = schema.field(MESSAGES).type if MESSAGES in schema.names else None
    kind = type_.value_type if type_ is not None and pa.types.is_list(type_) else None
    return kind is not None and pa.types.is_struct(kind) and kind.get_field_index("payload") >= 0


def _differ(rows: pa.Table) -> bool:
    """Tell whether most payloads in a sample of batches are distinct."""
    step = max(1, rows.num_rows // SAMPLED)
    sample = rows[MESSAGES].take(pa.array(np.arange(0, rows.num_rows, step)))
    payloads = pc.struct_field(pc.list_flatten(sample), "payload")
    if pa.types.is_struct(payloads.type):
        return True
    return pc.count_distinct(payloads).as_py() > len(payloads) / 2
