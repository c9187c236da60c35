"""Attempts: an expression that gives NULL where a value cannot be cast, and another one that says which value it was.

Both are Spark SQL, made of the text of the user's expression: `CAST` becomes `TRY_CAST`, and so on. So the engines,
which run them as any other expression, agree on what is invalid. Only what is surely evaluated is rewritten: a cast
below AND, OR or a lambda stays as it is, and stops the run where it fails. A cast in a branch of CASE, `if` or
`coalesce` counts where its branch is taken.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import pairwise
from typing import Any

MAX_QUOTED = 200  # letters of an invalid value in a rejection
# The most seconds and milliseconds whose microseconds have 64 bits.
MAX_COUNT = {"timestamp_seconds": 9_223_372_036_854, "timestamp_millis": 9_223_372_036_854_775}
UTF_8 = ("'UTF-8'", '"UTF-8"')
EVALUATE_SOME = {"decode", "elt", "nvl2"}  # functions that evaluate only some of their arguments
UNSURE = {"AND", "OR", "ARROW", "DCOLON"}
# How an invalid value is shown. A float's text is not the same on both engines; the call only the translation knows.
SHOWN_ON_SPARK = (
    "CASE WHEN typeof({0}) IN ('double', 'float') THEN 'a float' "
    "WHEN typeof({0}) = 'binary' THEN hex(CAST(({0}) AS STRING)) ELSE CAST(({0}) AS STRING) END"
)
SHOWN = "windrow_shown"
SHOWN_EMBEDDED = SHOWN + "({0})"
CLOSING = {"L_PAREN": "R_PAREN", "CASE": "END"}


@dataclass(frozen=True, slots=True)
class Attempt:
    """The SQL of a value, NULL where it cannot be cast, and the SQL that says so; None if no value can be invalid."""

    value: str
    fault: str | None = None


def first(*faults: str | None) -> str | None:
    """Return SQL for the first of some faults."""
    some = [fault for fault in faults if fault]
    return f"coalesce({', '.join(some)})" if len(some) > 1 else some[0] if some else None


@dataclass(frozen=True, slots=True)
class _Part:
    """A token, or brackets or a CASE with the parts inside, and the blanks and comments before it."""

    kind: str
    gap: str
    text: str
    inside: list[_Part] = field(default_factory=list)

    def written(self) -> str:
        closed = {"L_PAREN": ")", "CASE": " END"}.get(self.kind, "")
        return self.gap + self.text + "".join(part.written() for part in self.inside) + closed


@dataclass(frozen=True, slots=True)
class Rewriting:
    """How the expression of a column is rewritten: how a value is shown; None if a cast that fails stops the run."""

    column: str
    shown: str | None

    def attempt(self, text: str, tokens: Sequence[Any]) -> Attempt:
        """Return the attempt at an expression, whose tokens are sqlglot's."""
        return self._parts(_nested(text, tokens)) if self.shown else Attempt(text + "\n" * ("--" in text))

    def cast(self, attempt: Attempt, type_: str) -> Attempt:
        """Return the attempt to cast a value."""
        given = attempt.value
        if self.shown is None:
            return Attempt(f"CAST({given} AS {type_})")
        value, what = f"TRY_CAST({given} AS {type_})", f"is not a valid {type_}"
        if type_ == "STRING":
            value, what = f"try_validate_utf8(CAST({given} AS STRING))", "is not UTF-8"
        failed = f"({given}) IS NOT NULL AND {value} IS NULL"
        return Attempt(value, first(attempt.fault, self._fault(failed, self.shown.format(given), what)))

    def _fault(self, failed: str, shown: str, what: str) -> str:
        sentence = f"concat('{self.column}: \\'', substring({shown}, 1, {MAX_QUOTED}), '\\' {what}')"
        return f"CASE WHEN {failed} THEN {sentence} END"

    def _parts(self, parts: Sequence[_Part]) -> Attempt:
        """Return the attempt at the parts of one expression, perhaps with its name."""
        if any(part.kind in UNSURE for part in parts):
            return Attempt(_written(parts))
        values, faults, rest = list[str](), list[str | None](), list(parts)
        while rest:
            part = rest.pop(0)
            if rest and rest[0].kind == "L_PAREN" and _is_name(part):
                attempt = self._call(part, rest.pop(0))
            elif part.kind == "CASE":
                attempt = self._case(part)
            elif part.kind == "L_PAREN":
                attempt = _called("", [self._parts(one) for one in _split(part.inside, "COMMA")])
            else:
                attempt = Attempt(part.text)
            values.append(part.gap + attempt.value)
            faults.append(attempt.fault)
        return Attempt("".join(values).strip(), first(*faults))

    def _call(self, called: _Part, brackets: _Part) -> Attempt:
        name, parts = called.text.lower(), _split(brackets.inside, "COMMA")
        if name in ("cast", "try_cast"):
            given, target = _split(brackets.inside, "ALIAS")
            value, type_ = self._parts(given), " ".join(_written(target).split()).upper()
            return self.cast(value, type_) if name == "cast" else _called(name, [value], f" AS {type_}")
        is_text = name == "decode" and _written(parts[-1]).upper() in UTF_8
        if name in EVALUATE_SOME and not is_text:
            return Attempt(called.text + brackets.written())
        attempts = [self._parts(one) for one in parts]
        found = _called(called.text, attempts)
        match name, attempts:
            case "coalesce" | "nvl" | "ifnull", [*_]:
                found = replace(found, fault=_of_choice(attempts))
            case "if" | "iff", [condition, then, otherwise]:
                taken = _either(condition.value, then.fault, otherwise.fault)
                found = replace(found, fault=first(condition.fault, taken))
            case ("to_timestamp", [text]) | ("decode", [text, _]):
                found = self.cast(text, "STRING" if is_text else "TIMESTAMP")
            case "timestamp_seconds" | "timestamp_millis", [number]:
                found = self._counted(name, number)
        return found

    def _counted(self, name: str, count: Attempt) -> Attempt:
        """Return the attempt at a time from a count, which may be too large."""
        limit, value = MAX_COUNT[name], f"({count.value})"
        fault = self._fault(f"{value} NOT BETWEEN -{limit} AND {limit}", f"CAST({value} AS STRING)", "is out of range")
        fits = f"CASE WHEN {value} BETWEEN -{limit} AND {limit} THEN {value} END"
        return Attempt(f"{name}({fits})", first(count.fault, fault))

    def _case(self, case: _Part) -> Attempt:
        """Return the attempt at CASE: each branch counts where it is taken."""
        operand, *ranges = map(self._parts, _split(case.inside, "WHEN", "THEN", "ELSE"))
        kinds = [part.kind for part in case.inside if part.kind in ("WHEN", "THEN", "ELSE")]
        value = " ".join(f"{kind} {part.value}" for kind, part in zip(kinds, ranges, strict=True))
        fault = ranges[-1].fault if kinds[-1] == "ELSE" else None
        for condition, then in reversed(list(zip(ranges[::2], ranges[1::2], strict=False))):
            test = f"({operand.value}) = ({condition.value})" if operand.value else condition.value
            fault = first(condition.fault, _either(test, then.fault, fault))
        return Attempt(f"CASE {operand.value} {value} END", first(operand.fault, fault))


def _nested(text: str, tokens: Iterable[Any]) -> list[_Part]:
    top: list[_Part] = []
    opened, end, before = list[_Part](), 0, ""
    for token in tokens:
        if token.start < end:  # 7L is three tokens of the same text
            continue
        kind = "VAR" if before == "DOT" else str(token.token_type.name)  # a field may be named as a word
        if opened and kind == CLOSING[opened[-1].kind]:
            opened.pop()
        else:
            part = _Part(kind, text[end : token.start], text[token.start : token.end + 1])
            (opened[-1].inside if opened else top).append(part)
            opened += [part] if kind in CLOSING else []
        end, before = token.end + 1, kind
    return top


def _split(parts: Sequence[_Part], *kinds: str) -> list[list[_Part]]:
    """Return what is between the parts of some kinds; nothing of no parts."""
    cuts = [-1, *(at for at, part in enumerate(parts) if part.kind in kinds), len(parts)]
    return [list(parts[a + 1 : b]) for a, b in pairwise(cuts)] if parts else []


def _written(parts: Iterable[_Part]) -> str:
    return "".join(part.written() for part in parts).strip()


def _is_name(part: _Part) -> bool:
    return bool(part.text[:1].isalpha() or part.text[:1] == "_") and part.kind not in ("IN", "NOT", "DIV")


def _called(name: str, attempts: Sequence[Attempt], end: str = "") -> Attempt:
    """Return the attempts at what stands between brackets as one, with the name before them."""
    values = ", ".join(attempt.value for attempt in attempts)
    return Attempt(f"{name}({values}{end})", first(*(attempt.fault for attempt in attempts)))


def _either(condition: str, then: str | None, otherwise: str | None) -> str | None:
    if not then and not otherwise:
        return None
    return f"CASE WHEN {condition} THEN {then or 'NULL'} ELSE {otherwise or 'NULL'} END"


def _of_choice(attempts: Sequence[Attempt]) -> str | None:
    """Return the fault of values of which the first one that is not NULL is taken."""

    def before(fault: str | None, attempt: Attempt) -> str | None:
        return first(attempt.fault, _either(f"({attempt.value}) IS NULL", fault, None))

    return reduce(before, reversed(attempts), None)
