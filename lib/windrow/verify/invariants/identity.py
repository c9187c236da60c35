"""SQL conditions on ids, which are made from the columns of their row."""

from __future__ import annotations


def identity(kind: str, *texts: str, **numbers: str) -> str:
    """Return the condition that an id is `kind/component/...`: text columns are encoded, numbers stay as they are."""
    components = [*map(encoded, texts), *(f"CAST({number} AS STRING)" for number in numbers.values())]
    return f"id = concat_ws('/', '{kind}', {', '.join(components)})"


def encoded(column: str) -> str:
    """Return a component of an id: `%`, `/` and NUL are encoded, NULL is `%N`."""
    text = column
    for special, code in (("'%'", "'%25'"), ("'/'", "'%2F'"), ("chr(0)", "'%00'")):
        text = f"replace({text}, {special}, {code})"
    return f"coalesce({text}, '%N')"
