"""Column mappings: user expressions, written in Spark SQL, from the columns of an input to those of a message.

Spark runs the text as it is. For the embedded engine sqlglot parses it, and DuckDB gets SQL made here from the types
of the input, because the same word does different things in the two systems (a cast of a decimal to an integer
truncates in one and rounds in the other). What is not in the tables below is refused before anything is read. So a
value is the same on both engines, or an error; never quietly another one.

In the translation a time is a whole number of microseconds: neither a time zone nor a float can touch it.
"""

from __future__ import annotations

import difflib
import importlib
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import cache, reduce
from typing import Any, NoReturn

import pyarrow as pa

from windrow import messages
from windrow.errors import ExpressionError, MissingExtra

ROWS_AT_ONCE = 65_536
DEFAULTS = {"source": "''", "sequence": "NULL", "payload": "NULL"}
VOLATILE = re.compile(
    r"(current_\w+|curdate|input_file_\w+|java_method|localtimestamp|monotonically_increasing_id|now|rand\w*|"
    r"session_user|shuffle|spark_partition_id|(try_)?reflect|uniform|user|uuid|version)(\(\))?|unix_timestamp\(\)",
    re.IGNORECASE,
)
MOVING_TIME = re.compile(r"\s*(now|today|tomorrow|yesterday)(\s.*)?", re.IGNORECASE | re.DOTALL)
ROW_ONLY = "Use only the columns of the row, and what never changes."
OTHERWISE = "Run with --engine spark, or write it in other words."


@dataclass(frozen=True, slots=True)
class Mapping:
    """One Spark SQL expression for each column of a message, in their order.

    `stamped_by_event_time` says that nothing gives a `received_at`, so that the event time stands in for it.
    """

    expressions: tuple[tuple[str, str], ...]
    stamped_by_event_time: bool = False
    section: str = "ingest.columns"

    @classmethod
    def of(cls, expressions: dict[str, str], columns: Sequence[str], *, section: str = "ingest.columns") -> Mapping:
        """Complete `expressions` over an input with `columns`: a message column left out maps to its own name.

        `section` is where in windrow.toml they stand. Raises ExpressionError for an unknown or missing column, and
        for a text that is no expression, may give another value when run again, or looks beyond its row.
        """
        for name in expressions.keys() - messages.COLUMNS.keys():
            hint = _nearest(name, list(messages.COLUMNS))
            raise ExpressionError(f"[{section}] {name}: a message has no such column", hint)
        found = {name: expressions.get(name, _default(name, columns)) for name in messages.COLUMNS}
        stamped_by_event_time = found["received_at"] is None
        if stamped_by_event_time:
            found["received_at"] = found["event_time"]
        for name, text in found.items():
            if text is None:
                raise ExpressionError(
                    f"[{section}] {name}: nothing says where it comes from; the input has {', '.join(columns)}",
                    f'Write {name} = "..." under [{section}] in windrow.toml, an expression over these columns.',
                )
        complete = tuple((name, text.strip()) for name, text in found.items() if text is not None)
        mapping = cls(complete, stamped_by_event_time, section)
        for name, text in complete:
            if name in expressions:
                with mapping._blaming(name, text):
                    _check(text, columns)
        return mapping

    def spark_select(self, payload_type: pa.DataType | None = None) -> list[str]:
        """Return the select expressions for Spark, each cast to its column's type; payload is STRING unless told."""
        types = messages.schema(payload_type)
        return [
            f"CAST({text}{chr(10) * ('--' in text)} AS {_spark_type(types.field(name).type)}) AS `{name}`"
            for name, text in self.expressions
        ]

    def duckdb_select(self, schema: pa.Schema, payload_type: pa.DataType | None = None) -> list[str]:
        """Return the select expressions for DuckDB over rows of `schema`, in which times are plain counts.

        Raises ExpressionError for what is not known to give the same values as on Spark.
        """
        types, select = messages.schema(payload_type), []
        for name, text in self.expressions:
            with self._blaming(name, text):
                value = _translate(_parse(text, strict=True), schema)
                select.append(f'{_cast(value, _spark_type(types.field(name).type)).sql} AS "{name}"')
        return select

    def apply(
        self, rows: pa.Table | pa.RecordBatchReader, payload_type: pa.DataType | None = None
    ) -> pa.RecordBatchReader:
        """Return the messages of `rows`, batch by batch and in order, without Spark.

        Raises ExpressionError here for what cannot be translated, and while reading for a value that an expression
        cannot take.
        """
        reader = rows.to_reader(max_chunksize=ROWS_AT_ONCE) if isinstance(rows, pa.Table) else rows
        select, types = self.duckdb_select(reader.schema, payload_type), messages.schema(payload_type)
        return pa.RecordBatchReader.from_batches(types, self._batches(reader, select, types))

    def _batches(self, reader: pa.RecordBatchReader, select: list[str], types: pa.Schema) -> Iterator[pa.RecordBatch]:
        duckdb = _require("duckdb")
        roots = {root for _, text in self.expressions for root in _roots(_parse(text, strict=True))}
        used = {_resolve(root, reader.schema.names) for root in roots} or {reader.schema.names[0]}
        counted = pa.schema([_counted(field) for field in reader.schema if field.name in used])
        with duckdb.connect(config={"enable_external_access": False}) as connection:
            for batch in reader:
                rows = connection.from_arrow(pa.Table.from_batches([batch]).select(counted.names).cast(counted))
                try:
                    table = rows.project(", ".join(select)).to_arrow_table()
                except duckdb.Error as error:
                    self._blame(rows, select, error)
                yield from table.cast(types).to_batches()

    def _blame(self, rows: Any, select: list[str], error: Exception) -> NoReturn:
        """Say which expression cannot take a value: the first that fails alone."""
        for (name, text), sql in zip(self.expressions, select, strict=True):
            with self._blaming(name, text):
                try:
                    rows.project(sql).to_arrow_table()
                except type(error) as alone:
                    _refuse(str(alone).split("\n\nLINE ")[0], "Mend the value, or use TRY_CAST to get NULL for it.")
        raise error

    @contextmanager
    def _blaming(self, name: str, text: str) -> Iterator[None]:
        try:
            yield
        except _Refused as refused:
            reason, hint = refused.args
            line = " ".join(f"[{self.section}] {name} = {text}: {reason}".split())
            raise ExpressionError(line, hint) from refused.__cause__


class _Refused(Exception):
    """A text cannot be used: the reason and a hint; the mapping knows whose text it is."""


def _refuse(reason: str, hint: str = OTHERWISE) -> NoReturn:
    raise _Refused(reason, hint)


def _default(name: str, columns: Sequence[str]) -> str | None:
    own = [column for column in columns if column.lower() == name]
    return f"`{own[0]}`" if own else DEFAULTS.get(name)


def _nearest(name: str, names: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, names, 1, 0.5)
    return f"Did you mean {near[0]!r}?" if near else f"There are {', '.join(names)}."


def _resolve(root: str, columns: Sequence[str]) -> str:
    """Return the column that a name stands for; case does not tell names apart, as on Spark."""
    found = [column for column in columns if column.lower() == root.lower()]
    if len(found) > 1:
        _refuse(f"{root!r} can be {' or '.join(found)}", "Rename one of these columns of the input.")
    return found[0] if found else _refuse(f"the input has no column {root!r}", _nearest(root, columns))


def _require(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise MissingExtra(f"expressions need {package}", "pip install 'windrow[embedded]'") from error


@cache
def _parser(*, strict: bool) -> Any:
    """Return a parser of Spark SQL that keeps calls as they are written.

    sqlglot's own renames functions, and drops arguments, on the way to its common language. A strict one knows no
    special forms of arguments either, but that of CAST.
    """
    spark = _require("sqlglot.dialects.spark").Spark
    special = spark.Parser.FUNCTION_PARSERS
    kept = {name: special[name] for name in ("CAST", "TRY_CAST")} if strict else special
    return type("Parser", (spark.Parser,), {"FUNCTIONS": {}, "FUNCTION_PARSERS": kept})(dialect=spark())


def _parse(text: str, *, strict: bool) -> Any:
    """Return the tree of an expression; a strict one holds only what is read as Spark reads it."""
    sqlglot, parser = _require("sqlglot"), _parser(strict=strict)
    hint = OTHERWISE if strict else "Write one Spark SQL expression."
    try:
        tokens = parser.dialect.tokenize(text)
        trees = parser.parse(tokens, text)
    except sqlglot.errors.TokenError as error:
        raise _Refused("a quote or comment is open at its end", "Close it.") from error
    except sqlglot.errors.ParseError as error:
        at = error.errors[0]
        raise _Refused(f"{at['description']} at line {at['line']}, column {at['col']}", hint) from error
    tree = trees[0]
    if len(trees) > 1 or not isinstance(tree, sqlglot.exp.Condition | sqlglot.exp.Query) or tree.is_star:
        _refuse("this is not one expression", hint)
    if strict:
        _check_tokens(text, tokens)
    return tree


def _check(text: str, columns: Sequence[str]) -> None:
    """Refuse, for either engine, what is unknown, may differ from run to run, or looks beyond its row."""
    tree, exp = _parse(text, strict=False), _require("sqlglot.expressions")
    for node in tree.walk():
        name = node.sql_name() if isinstance(node, exp.Func) else ""
        name = node.name if isinstance(node, exp.Anonymous) else name
        known = exp.FUNCTION_BY_NAME.get(name.upper(), type(node))
        if isinstance(node, exp.Query | exp.Window) or issubclass(known, exp.AggFunc):
            _refuse(f"{name or 'a query or window'} looks at other rows", ROW_ONLY)
        if VOLATILE.fullmatch(name + "()" * (not node.expressions)) or "${" in text:
            _refuse(f"{name or '${...}'} may differ in every run", ROW_ONLY)
        if isinstance(node, exp.Literal | exp.RawString) and MOVING_TIME.fullmatch(node.name):
            _refuse(f"{node.name!r} is a time that moves", "If it is only a text: concat('to', 'day').")
    for root in _roots(tree):
        _resolve(root, columns)


def _roots(tree: Any) -> set[str]:
    columns = tree.find_all(_require("sqlglot.expressions").Column)
    return {column.parts[0].name for column in columns} - {"*"}


def _check_tokens(text: str, tokens: Sequence[Any]) -> None:
    """Refuse what sqlglot reads in another way than Spark without leaving a trace in the tree."""
    before = ""
    for token in tokens:
        written, kind = text[token.start : token.end + 1], token.token_type.name
        if kind.endswith("STRING") and before.endswith("STRING"):
            _refuse(f"{written} follows another text", "Write one text, with \\' for a quote in it.")
        if (kind == "STRING" and "\\" in re.sub(r"\\[\\'\"nrt]", "", written)) or "\0" in token.text:
            _refuse(f"{written} holds an unknown escape", "Write a backslash as \\\\, or the text as r'...'.")
        if kind in ("CHAR", "VARCHAR"):
            _refuse(f"the type {written}", "Write STRING.")
        before = kind


# The translation. What both engines do alike: name(arguments, see ARGUMENTS) type = SQL for DuckDB.
RULES = """
split_part(text, word, index) STRING = split_part({}, {}, {})
substring(text, start) STRING = substring({}, {})
substring(text, start, count) STRING = substring({}, {}, {})
substr(text, start) STRING = substring({}, {})
substr(text, start, count) STRING = substring({}, {}, {})
lower(letters) STRING = lower({})
upper(letters) STRING = upper({})
trim(text) STRING = trim({}, ' ')
ltrim(text) STRING = ltrim({}, ' ')
rtrim(text) STRING = rtrim({}, ' ')
replace(text, word, text) STRING = replace({}, {}, {})
regexp_extract(text, pattern, count) STRING = regexp_extract({}, {}, {})
regexp_replace(text, solid, replacement) STRING = regexp_replace({}, {}, {}, 'g')
length(text) INT = CAST(length({}) AS INT)
length(binary) INT = CAST(octet_length({}) AS INT)
concat(text, text*) STRING = ({ || })
concat_ws(literal, text, text*) STRING = concat_ws({, })
decode(binary, utf8) STRING = decode({})
coalesce(same, same*) SAME = coalesce({, })
nullif(same, same) SAME = nullif({}, {})
timestamp_micros(whole) TIMESTAMP = {}
timestamp_millis(whole) TIMESTAMP = ({} * 1000)
timestamp_seconds(whole) TIMESTAMP = ({} * 1000000)
timestamp_seconds(seconds) TIMESTAMP = CAST({} * 1000000 AS BIGINT)
to_timestamp(moment) TIMESTAMP = {}
unix_micros(time) BIGINT = {}
If(truth, same, same) SAME = CASE WHEN {} THEN {} ELSE {} END
In(same, same, same*) BOOLEAN = ({} IN ({, }))
Is(any, null) BOOLEAN = ({} IS {})
Between(same, same, same) BOOLEAN = ({} BETWEEN {} AND {})
Like(text, like) BOOLEAN = ({} LIKE {})
Not(truth) BOOLEAN = (NOT {})
And(truth, truth) BOOLEAN = ({} AND {})
Or(truth, truth) BOOLEAN = ({} OR {})
EQ(same, same) BOOLEAN = ({} = {})
NEQ(same, same) BOOLEAN = ({} <> {})
LT(same, same) BOOLEAN = ({} < {})
LTE(same, same) BOOLEAN = ({} <= {})
GT(same, same) BOOLEAN = ({} > {})
GTE(same, same) BOOLEAN = ({} >= {})
NullSafeEQ(same, same) BOOLEAN = ({} IS NOT DISTINCT FROM {})
DPipe(text, text) STRING = ({} || {})
IntDiv(whole, divisor) BIGINT = ({} // {})
"""
SIGNS = {"Add": "+", "Sub": "-", "Mul": "*", "Mod": "%"}
RANKS = "Or|And|Not|EQ NEQ LT LTE GT GTE NullSafeEQ Is In Like Between|Add Sub DPipe|Mul IntDiv Mod|Neg"
RANK = {kind: rank for rank, kinds in enumerate(RANKS.split("|")) for kind in kinds.split()}
PARTS = "this expression expressions low high true false ifs default to safe negate is_string table db catalog"
SCALARS = "INT DECIMAL DOUBLE BOOLEAN STRING BINARY DATE TIMESTAMP TIMESTAMP_NTZ"
DIGITS = {"TINYINT": 3, "SMALLINT": 5, "INT": 10, "BIGINT": 20}
MOST_DIGITS, MICROSECOND_DIGITS = 38, 6
TYPES = {"int8": "TINYINT", "int16": "SMALLINT", "int32": "INT", "int64": "BIGINT", "double": "DOUBLE"}
TYPES |= {"bool": "BOOLEAN", "date32[day]": "DATE", "null": "NULL"}
TYPES |= dict.fromkeys(("string", "large_string", "string_view"), "STRING")
TYPES |= dict.fromkeys(("binary", "large_binary", "binary_view"), "BINARY")
COUNTS = {"s": "({0} * 1000000)", "ms": "({0} * 1000)", "us": "{0}", "ns": "({0} // 1000 - ({0} % 1000 < 0)::INT)"}


@dataclass(frozen=True, slots=True)
class _Value:
    """A piece of SQL for DuckDB and the Spark type of what it gives.

    `literal` is the value itself where the text has a literal, `inside` the Arrow type that fields are looked up in.
    """

    sql: str
    type: str
    literal: str | int | None = None
    inside: pa.DataType | None = None

    @property
    def kind(self) -> str:
        """Return what operators and casts tell apart: the type without its width."""
        return "INT" if self.type in DIGITS else self.type.partition("(")[0]

    @property
    def digits(self) -> tuple[int, int]:
        """Return precision and scale as Spark counts them."""
        if self.type in DIGITS:
            return len(str(self.literal).strip("-")) if self.literal is not None else DIGITS[self.type], 0
        precision, scale = re.findall(r"\d+", self.type)
        return int(precision), int(scale)


def _spark_type(type_: pa.DataType) -> str:
    if pa.types.is_timestamp(type_):
        return "TIMESTAMP" if type_.tz else "TIMESTAMP_NTZ"
    return TYPES.get(str(type_), str(type_).replace("decimal128", "DECIMAL"))


def _decimal(precision: int, scale: int = 0) -> str:
    if not 0 <= scale <= precision <= MOST_DIGITS:
        _refuse(f"a number of more than {MOST_DIGITS} digits", "Cast to a smaller DECIMAL first.")
    return f"DECIMAL({precision}, {scale})"


def _translate(node: Any, schema: pa.Schema) -> _Value:
    """Return an expression over the columns of `schema` as SQL for DuckDB."""
    kind, parts = type(node).__name__, {part: child for part, child in node.args.items() if child}
    for part, child in parts.items():
        rank, inner = RANK.get(kind, -1), RANK.get(type(child).__name__, len(RANK))
        if part not in PARTS.split():
            _refuse(f"the embedded engine has no {node.sql('spark')}")
        if inner < rank or (inner == rank and (part != "this" or rank == RANK["EQ"])):
            _refuse(f"{node.sql('spark')} can be read in two ways", "Put parentheses around its parts.")
    if kind in NODES:
        return NODES[kind](node, schema)
    if kind != "Anonymous" and kind not in SIGNS and f"\n{kind}(" not in RULES:
        _refuse(f"the embedded engine has no {node.sql('spark')}")
    values = [_translate(child, schema) for child in node.iter_expressions()]
    if kind in SIGNS:
        return _arithmetic(SIGNS[kind], *values)
    value = _call(node.name.lower() if kind == "Anonymous" else kind, *values)
    return _call("Not", value) if parts.get("negate") else value


def _counted(field: pa.Field) -> pa.Field:
    """Return the field as DuckDB gets it: a time as a count, and no dictionaries."""
    type_ = _decoded(field.type)
    return field.with_type(pa.int64() if pa.types.is_timestamp(type_) else type_)


def _decoded(type_: pa.DataType) -> pa.DataType:
    return type_.value_type if pa.types.is_dictionary(type_) else type_


def _column(node: Any, schema: pa.Schema) -> _Value:
    """Return a column, or a field in it; times, which come as counts, are floored to microseconds."""
    root, *path = (part.name for part in node.parts)
    name = _resolve(root, schema.names)
    sql, type_ = '"' + name.replace('"', '""') + '"', _decoded(schema.field(name).type)
    if pa.types.is_timestamp(type_):
        sql = COUNTS[type_.unit].format(sql)
    return reduce(_member, path, _Value(sql, _spark_type(type_), inside=type_))


def _member(value: _Value, name: str) -> _Value:
    if value.inside is None or not pa.types.is_struct(value.inside):
        _refuse(f"{value.type} has no field {name!r}")
    field = value.inside.field(_resolve(name, value.inside.names))
    return _part(f"struct_extract({value.sql}, {_quoted(field.name)})", field.type)


def _entry(node: Any, schema: pa.Schema) -> _Value:
    value, key = _translate(node.this, schema), _translate(node.expressions[0], schema)
    if value.inside is None or not pa.types.is_map(value.inside) or not isinstance(key.literal, str):
        _refuse(f"the embedded engine has no {node.sql('spark')}")
    return _part(f"map_extract_value({value.sql}, {key.sql})", value.inside.item_type)


def _part(sql: str, type_: pa.DataType) -> _Value:
    if pa.types.is_timestamp(type_):
        _refuse("the embedded engine has no times inside of a struct or map")
    return _Value(sql, _spark_type(type_), inside=type_)


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _text(text: str) -> _Value:
    return _Value(_quoted(text), "STRING", text)


def _number(text: str) -> _Value:
    if "e" in text.lower():
        return _Value(f"CAST('{text}' AS DOUBLE)", "DOUBLE")
    _, digits, exponent = Decimal(text).as_tuple()
    type_ = _decimal(max(len(digits), -int(exponent)), -int(exponent))
    if "." in text:
        return _Value(f"CAST('{text}' AS {type_})", type_)
    bits = (int(text) if int(text) >= 0 else ~int(text)).bit_length()
    type_ = next((name for name, most in (("INT", 31), ("BIGINT", 63)) if bits <= most), type_)
    return _Value(f"CAST('{text}' AS {type_})", type_, int(text))


def _negative(node: Any, schema: pa.Schema) -> _Value:
    if type(node.this).__name__ == "Literal" and not node.this.is_string:
        return _number("-" + node.this.name)
    return _arithmetic("-", _number("0"), _translate(node.this, schema))


def _cases(node: Any, schema: pa.Schema) -> _Value:
    """Return CASE as nested IFs."""
    value = _translate(node.args["default"], schema) if node.args.get("default") else _Value("NULL", "NULL")
    for branch in reversed(node.args["ifs"]):
        condition = _translate(branch.this, schema)
        if node.this:
            condition = _call("EQ", _translate(node.this, schema), condition)
        value = _call("If", condition, _translate(branch.args["true"], schema), value)
    return value


def _casting(node: Any, schema: pa.Schema) -> _Value:
    to = node.args["to"]
    target = {"TEXT": "STRING", "TIMESTAMPTZ": "TIMESTAMP"}.get(to.this.name, to.this.name)
    if target == "DECIMAL":
        target = _decimal(*([int(size.name) for size in to.expressions] or [10]))
    known = target in (*DIGITS, *SCALARS.split()) or target.startswith("DECIMAL(")
    if to.args.get("collate") or not known:
        _refuse(f"the embedded engine has no {node.sql('spark')}")
    return _cast(_translate(node.this, schema), target, attempt=bool(node.args.get("safe")))


NODES: dict[str, Callable[[Any, pa.Schema], _Value]] = {
    "Column": _column,
    "Dot": lambda node, schema: _member(_translate(node.this, schema), node.expression.name),
    "Bracket": _entry,
    "Paren": lambda node, schema: replace(_translate(node.this, schema), literal=None),
    "Literal": lambda node, _: _text(node.name) if node.is_string else _number(node.name),
    "RawString": lambda node, _: _text(node.name),
    "Null": lambda *_: _Value("NULL", "NULL"),
    "Boolean": lambda node, _: _Value(str(node.this), "BOOLEAN"),
    "Neg": _negative,
    "Case": _cases,
    "Cast": _casting,
    "TryCast": _casting,
}


def _arithmetic(sign: str, left: _Value, right: _Value) -> _Value:
    kinds = {left.kind, right.kind}
    if "DECIMAL" in kinds <= {"DECIMAL", "INT"} and sign != "%":
        (p, s), (q, t) = left.digits, right.digits
        sum_ = (max(p - s, q - t) + max(s, t) + 1, max(s, t))
        type_ = _decimal(*((p + q + 1, s + t) if sign == "*" else sum_))
        left, right = _cast(left, _decimal(p, s)), _cast(right, _decimal(q, t))
        return _Value(f"CAST({left.sql} {sign} {right.sql} AS {type_})", type_)
    divisor = right.literal
    left, right = _alike(left, right)
    if left.kind not in ("INT", "DOUBLE") or (left.kind == "DOUBLE" and sign == "%"):
        _refuse(f"the embedded engine has no {left.type} {sign} {right.type}")
    return _Value(f"({left.sql} {sign} {_nonzero(right, divisor) if sign == '%' else right.sql})", left.type)


def _nonzero(value: _Value, literal: str | int | None) -> str:
    return value.sql if literal else f"CASE {value.sql} WHEN 0 THEN error('division by zero') ELSE {value.sql} END"


def _alike(*values: _Value) -> list[_Value]:
    """Return the values in the one type in which Spark would put them together."""
    given = [value for value in values if value.kind != "NULL"]
    kinds, types = {value.kind for value in given}, {value.type for value in given}
    if len(types) == 1 and given[0].kind in SCALARS.split():
        target = given[0].type
    elif kinds == {"INT"}:
        target = max(types, key=lambda type_: DIGITS[type_])
    elif kinds and kinds <= {"INT", "DECIMAL"}:
        scale = max(value.digits[1] for value in given)
        target = _decimal(max(value.digits[0] - value.digits[1] for value in given) + scale, scale)
    elif kinds == {"INT", "DOUBLE"}:
        target = "DOUBLE"
    else:
        _refuse(f"{' and '.join(sorted(types)) or 'only NULL'} together", "Cast them to one type.")
    return [_cast(value, target) for value in values]


def _call(name: str, *values: _Value) -> _Value:
    """Return the call of a function or an operator by the first rule that takes the values."""
    for rule in re.finditer(rf"^{re.escape(name)}\((.*?)\) (\w+) = (.*)$", RULES, re.MULTILINE):
        *first, last = rule[1].split(", ")
        arguments = [*first, *[last.strip("*")] * (len(values) - len(first) if "*" in last else 1)]
        if len(arguments) == len(values):
            named = list(zip(arguments, values, strict=True))
            same = [value for argument, value in named if argument == "same"]
            alike = _alike(*same) if same else []
            rest = iter(alike)
            sql = [next(rest).sql if argument == "same" else ARGUMENTS[argument](value) for argument, value in named]
            if None not in sql:
                return _Value(_filled(rule[3], sql), alike[0].type if rule[2] == "SAME" else rule[2])
    _refuse(f"the embedded engine has no {name}({', '.join(value.type for value in values)}) like this")


def _filled(template: str, parts: Sequence[str | None]) -> str:
    rest = (part for part in parts if part is not None)
    return re.sub(r"\{(.*?)\}", lambda hole: hole[1].join(rest) if hole[1] else next(rest), template)


def _of(kind: str, target: str = "") -> Callable[[_Value], str | None]:
    return lambda value: _cast(value, target or kind).sql if value.kind in (kind, "NULL") else None


def _fixed(kind: type, fits: Callable[[Any], Any]) -> Callable[[_Value], str | None]:
    return lambda value: value.sql if isinstance(value.literal, kind) and fits(value.literal) else None


def _lettered(text: str) -> str:
    strange = f"error('letters whose case is not the same everywhere: ' || {text})"
    return f"CASE WHEN regexp_matches({text}, '{STRANGE_LETTER}') THEN {strange} ELSE {text} END"


# Patterns that Java and RE2 match alike; a solid one never matches an empty text.
ATOM = r"(?:[\w /:;,=@#%&!~<>\"'-]|\\[dDwW./\\-]|\[\^?(?:\w-\w|[\w /:;,.=@#+*]|\\[dw.])+\])"
PATTERN = re.compile(rf"\^?(?:{ATOM}[+*?]?|\((?!\?)|\)(?![+*?{{]))*")
SOLID = re.compile(rf"\^?(?:{ATOM}\+?)+")
# All but the letters whose case Java and DuckDB change alike, whatever Unicode they know, and those without case.
STRANGE_LETTER = (
    r"[^\x00-\xDE\xE0-\x{12F}\x{131}-\x{148}\x{14A}-\x{17F}\x{300}-\x{33F}\x{400}-\x{45F}\x{2000}-\x{206F}"
    r"\x{2E80}-\x{9FFF}\x{AC00}-\x{D7A3}\x{1F000}-\x{1FAFF}]"
)
ARGUMENTS: dict[str, Callable[[_Value], str | None]] = {
    "any": lambda value: value.sql,
    "null": lambda value: value.sql if value.sql == "NULL" else None,
    "text": _of("STRING"),
    "binary": _of("BINARY"),
    "truth": _of("BOOLEAN"),
    "time": _of("TIMESTAMP"),
    "whole": _of("INT", "BIGINT"),
    "moment": _of("STRING", "TIMESTAMP"),
    "divisor": lambda value: _nonzero(_cast(value, "BIGINT"), value.literal) if value.kind == "INT" else None,
    "seconds": lambda value: value.sql if value.kind == "DECIMAL" and value.digits[1] <= MICROSECOND_DIGITS else None,
    "letters": lambda value: _lettered(value.sql) if value.kind == "STRING" else None,
    "literal": _fixed(str, lambda _: True),
    "word": _fixed(str, bool),
    "index": _fixed(int, bool),
    "start": _fixed(int, lambda number: number > 0),
    "count": _fixed(int, lambda number: number >= 0),
    "utf8": _fixed(str, lambda text: text.upper() == "UTF-8"),
    "like": _fixed(str, lambda text: "\\" not in text),
    "pattern": _fixed(str, PATTERN.fullmatch),
    "solid": _fixed(str, SOLID.fullmatch),
    "replacement": _fixed(str, lambda text: not re.search(r"[\\$]", text)),
}

# Casts between kinds of types. {text} is a text in a form that both engines read alike, or else makes the cast fail.
BLANK, SPACE = r"[\x00-\x20\x7F]*", r"[\x00-\x20]*"
NUMBER = r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+))"
DAY, TIME = r"(\d\d\d\d-\d\d-\d\d)", r"((?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d)(?:(\.\d\d?\d?\d?\d?\d?)\d*)?"
ZONE = r"(Z|[+-](?:0\d|1[0-7]):[0-5]\d)"
FORMS = {
    "INT": {rf"{BLANK}([+-]?[0-9]+){BLANK}": r"\1"},
    "DECIMAL": {rf"{SPACE}{NUMBER}{SPACE}": r"\1"},
    "TIMESTAMP": {
        rf"{BLANK}{DAY}{BLANK}": r"\1 00:00:00Z",
        rf"{BLANK}{DAY}[ T]{TIME}{BLANK}": r"\1 \2\3Z",
        rf"{BLANK}{DAY}[ T]{TIME}{ZONE}{BLANK}": r"\1 \2\3\4",
    },
}
# Not of these forms, and still a value for Spark: DuckDB has no other digits and errs in exponents (90e-3).
UNSURE = {
    "INT": "$.",
    "DECIMAL": rf"^{SPACE}[+-]?(?:\pN+\.?\pN*|\.\pN+)(?:[eE][+-]?\pN+)?{SPACE}$",
    "TIMESTAMP": rf"^{BLANK}[+-]?T?[0-9]",
}
CASTS = {
    **dict.fromkeys(("INT INT", "INT DECIMAL", "DECIMAL DECIMAL", "INT DOUBLE"), "{cast}({x} AS {type})"),
    **dict.fromkeys(("INT STRING", "BOOLEAN STRING"), "CAST({x} AS STRING)"),
    **dict.fromkeys(("STRING INT", "STRING DECIMAL"), "{cast}({text} AS {type})"),
    "DECIMAL STRING": r"regexp_replace(CAST({x} AS STRING), '^(-?)\.', '\10.')",
    "DECIMAL INT": "{cast}(trunc({x}) AS {type})",
    "DOUBLE INT": "CAST(trunc({x}) AS {type})",
    "BINARY STRING": "decode({x})",
    "STRING BINARY": "encode({x})",
    "STRING TIMESTAMP": "epoch_us({cast}({text} AS TIMESTAMPTZ))",
    "TIMESTAMP_NTZ TIMESTAMP": "{x}",
    "DATE TIMESTAMP": "(date_diff('day', DATE '1970-01-01', {x}) * 86400000000)",
}


def _cast(value: _Value, target: str, *, attempt: bool = False) -> _Value:
    kind = _Value("", target).kind
    if value.type == target:
        return replace(value, literal=None)
    if value.kind == "NULL":
        return _Value(f"CAST(NULL AS {'BIGINT' if kind.startswith('TIMESTAMP') else target})", target)
    template = CASTS.get(f"{value.kind} {kind}")
    if template is None:
        _refuse(f"the embedded engine has no cast of {value.type} to {target}")
    cast, text = ("TRY_CAST" if attempt else "CAST"), _readable(value.sql, kind, attempt=attempt)
    return _Value(template.format(x=value.sql, cast=cast, type=target, text=text), target)


def _readable(text: str, kind: str, *, attempt: bool) -> str:
    """Return a text in the form that a cast reads right; none, or one that no cast reads, if it has no such form.

    What Spark might read all the same must not quietly become NULL: there TRY_CAST fails, too.
    """
    whens = [
        f"WHEN regexp_matches({text}, '^{form}$') THEN regexp_replace({text}, '^{form}$', '{result}')"
        for form, result in FORMS.get(kind, {}).items()
    ]
    if attempt:
        whens.append(f"WHEN regexp_matches({text}, '{UNSURE.get(kind)}') THEN error('perhaps a {kind}: ' || {text})")
        return f"CASE {' '.join(whens)} END"
    return f"CASE {' '.join(whens)} ELSE 'not a {kind}: ' || {text} END"
