"""Find text in frames that is not UTF-8, and text that Spark replaced because it was not.

Spark's streams return the bytes of a text as they are. A query of Delta's change feed turns each row into Java objects
(`DeltaCDFRelation`, Delta 4.4), which replaces bytes that are not UTF-8 with U+FFFD: two texts could become equal
unnoticed. So if a query returned U+FFFD, a stream reads the versions once more and tells whether that character is in
the depot.
"""

from __future__ import annotations

from functools import reduce
from operator import or_

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from windrow.model.commits import VERSION
from windrow.source.text import REPLACEMENT, invalid_text_error


def require_text_of_frame(frame: DataFrame) -> None:
    """Raise DepotUnreadableError for text that is not UTF-8 in the rows of a stream."""
    texts = _texts(frame)
    if not texts:
        return
    bad = {name: ~F.is_valid_utf8(text) for name, text in texts.items()}
    version = F.when(reduce(or_, (F.coalesce(condition, F.lit(False)) for condition in bad.values())), F.col(VERSION))
    first, last, *seen = frame.agg(
        F.min(version), F.max(version), *[F.max(condition) for condition in bad.values()]
    ).collect()[0]
    if first is not None:
        raise invalid_text_error(first, last, ", ".join(name for name, is_bad in zip(bad, seen, strict=True) if is_bad))


def has_replacement(frame: DataFrame) -> Column:
    """Return an aggregate that tells whether a text in the rows of a query has U+FFFD; NULL without rows."""
    seen = [F.coalesce(F.contains(text, F.lit(REPLACEMENT)), F.lit(False)) for text in _texts(frame).values()]
    return F.max(reduce(or_, seen, F.lit(False)))


def _texts(frame: DataFrame) -> dict[str, Column]:
    names = [field.name for field in frame.schema if "string" in field.dataType.simpleString()]
    return {name: F.col(f"`{name.replace('`', '``')}`").cast("string") for name in names}
