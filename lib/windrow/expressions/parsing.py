"""The texts of expressions: how they are parsed, and what no engine may run."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import Any

from windrow.expressions.typed_sql import OTHERWISE, UnsupportedExpression, refuse, resolve

VOLATILE = re.compile(
    r"(current_\w+|curdate|input_file_\w+|java_method|localtimestamp|monotonically_increasing_id|now|rand\w*|"
    r"session_user|shuffle|spark_partition_id|(try_)?reflect|uniform|user|uuid|version)(\(\))?|unix_timestamp\(\)",
    re.IGNORECASE,
)
MOVING_TIME = re.compile(r"\s*(now|today|tomorrow|yesterday)(\s.*)?", re.IGNORECASE | re.DOTALL)
ROW_ONLY = "Use only columns of the row and deterministic functions."


@cache
def _parser(*, strict: bool) -> Any:
    """Return a parser of Spark SQL that keeps calls as they are written.

    sqlglot's own renames functions, and drops arguments, on the way to its common language. A strict one knows no
    special forms of arguments either, but that of CAST.
    """
    from sqlglot.dialects.spark import Spark

    special = Spark.Parser.FUNCTION_PARSERS
    kept = {name: special[name] for name in ("CAST", "TRY_CAST")} if strict else special
    return type("Parser", (Spark.Parser,), {"FUNCTIONS": {}, "FUNCTION_PARSERS": kept})(dialect=Spark())


def parse(text: str, *, strict: bool) -> Any:
    """Return the tree of an expression; a strict one holds only what is read as Spark reads it."""
    import sqlglot

    parser, tokens = _parser(strict=strict), tokenize(text)
    hint = OTHERWISE if strict else "Write one Spark SQL expression."
    try:
        trees = parser.parse(tokens, text)
    except sqlglot.errors.ParseError as error:
        at = error.errors[0]
        raise UnsupportedExpression(f"{at['description']} at line {at['line']}, column {at['col']}", hint) from error
    tree = trees[0]
    if len(trees) > 1 or not isinstance(tree, sqlglot.exp.Condition | sqlglot.exp.Query) or tree.is_star:
        refuse("this is not one expression", hint)
    if strict:
        _check_tokens(text, tokens)
    return tree


def tokenize(text: str) -> list[Any]:
    """Return sqlglot's tokens of a text."""
    from sqlglot.errors import TokenError

    try:
        return list(_parser(strict=False).dialect.tokenize(text))
    except TokenError as error:
        raise UnsupportedExpression("a quote or comment is open at its end", "Close it.") from error


def expand_stars(text: str, columns: Sequence[str]) -> str:
    """Return an expression with its stars expanded: the rows of an engine have more columns than the input."""
    tokens, parts, end = tokenize(text), [], 0
    for before, token, after in zip(tokens, tokens[1:], tokens[2:], strict=False):
        if token.token_type.name != "STAR" or before.token_type.name not in ("L_PAREN", "COMMA"):
            continue
        if after.token_type.name not in ("R_PAREN", "COMMA"):
            refuse(f"* {after.text}", "Name the columns one by one.")
        named = ", ".join(f"`{column.replace('`', '``')}`" for column in columns)
        parts += [text[end : token.start], named]
        end = token.end + 1
    return "".join([*parts, text[end:]])


def require_row_only(text: str, columns: Sequence[str]) -> None:
    """Refuse, for both engines, unknown functions, non-deterministic ones, and those that need other rows."""
    from sqlglot import exp

    tree = parse(text, strict=False)
    for node in tree.walk():
        name = node.sql_name() if isinstance(node, exp.Func) else ""
        name = node.name if isinstance(node, exp.Anonymous) else name
        known = exp.FUNCTION_BY_NAME.get(name.upper(), type(node))
        if isinstance(node, exp.Query | exp.Window) or issubclass(known, exp.AggFunc):
            refuse(f"{name or 'a query or window'} looks at other rows", ROW_ONLY)
        if VOLATILE.fullmatch(name + "()" * (not node.expressions)) or "${" in text:
            refuse(f"{name or '${...}'} may differ in every run", ROW_ONLY)
        if isinstance(node, exp.Literal | exp.RawString) and MOVING_TIME.fullmatch(node.name):
            refuse(f"{node.name!r} is a time that moves", "If it is only a text: concat('to', 'day').")
    for root in root_names(tree):
        resolve(root, columns)


def root_names(tree: Any) -> set[str]:
    """Return the first names of the columns of an expression."""
    from sqlglot.expressions import Column

    return {column.parts[0].name for column in tree.find_all(Column)} - {"*"}


def _check_tokens(text: str, tokens: Sequence[Any]) -> None:
    """Refuse text that sqlglot silently parses in another way than Spark."""
    before = ""
    for token in tokens:
        written, kind = text[token.start : token.end + 1], token.token_type.name
        if kind.endswith("STRING") and before.endswith("STRING"):
            refuse(f"{written} follows another text", "Write one text, with \\' for a quote in it.")
        if (kind == "STRING" and "\\" in re.sub(r"\\[\\'\"nrt]", "", written)) or "\0" in token.text:
            refuse(f"{written} holds an unknown escape", "Write a backslash as \\\\, or the text as r'...'.")
        if kind in ("CHAR", "VARCHAR"):
            refuse(f"the type {written}", "Write STRING.")
        before = kind
