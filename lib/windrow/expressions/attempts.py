"""Attempts: an expression that gives NULL where a value cannot be cast, and another one that says which value it was.

Both are Spark SQL, made from the user's expression: `CAST` becomes `TRY_CAST`, and so on. So the engines, which run
them like any other expression, agree on what is invalid. Only what is surely evaluated is rewritten: a cast below AND,
OR or a lambda stays as it is, and stops the run if it fails. A cast in a branch of CASE, `if` or `coalesce` counts only
if its branch is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

MAX_QUOTED = 200  # characters of an invalid value in a rejection
# The most seconds and milliseconds whose microseconds have 64 bits.
MAX_COUNT = {"timestamp_seconds": 9_223_372_036_854, "timestamp_millis": 9_223_372_036_854_775}
UTF_8 = ("'UTF-8'", '"UTF-8"')
EVALUATE_SOME = {"decode", "elt", "nvl2"}  # functions that evaluate only some of their arguments
UNSURE = {"AND", "OR", "ARROW", "DCOLON"}
OPENING, CLOSING, MEMBER = {"L_PAREN", "CASE"}, {"R_PAREN", "END"}, "MEMBER"  # kinds of tokens
MARKER = "windrow_invalid_value"  # a call that only the embedded engine's translation knows

Fault = Callable[[str, str, str], str]
"""Returns SQL for what is wrong with a value (SQL) that is cast to a type, in a column; NULL where nothing is."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """The SQL of a value, NULL where it cannot be cast, and the SQL that says so; None if no value can be invalid."""

    value: str
    fault: str | None = None

    def cast(self, type_: str, column: str, fault: Fault) -> Attempt:
        """Return the attempt to cast the value."""
        if type_ == "STRING":
            value = f"try_validate_utf8(CAST({self.value} AS STRING))"
        else:
            value = f"TRY_CAST({self.value} AS {type_})"
        return Attempt(value, first_fault(self.fault, fault(self.value, type_, column)))


def first_fault(*faults: str | None) -> str | None:
    """Return SQL for the first fault that is not NULL."""
    some = [fault for fault in faults if fault]
    return f"coalesce({', '.join(some)})" if len(some) > 1 else some[0] if some else None


def sentence_parts(column: str, type_: str) -> tuple[str, str]:
    """Return the texts around a value in the sentence that says it cannot be cast."""
    return f"{column}: '", f"' {_what(type_)}"


def fault_on_spark(value: str, type_: str, column: str) -> str:
    """Return Spark SQL that says what is wrong with a cast."""
    if type_ == "STRING":
        text = f"CAST(({value}) AS STRING)"
        return f"CASE WHEN NOT is_valid_utf8({text}) THEN {_sentence(column, f'hex({text})', _what(type_))} END"
    sentence = _sentence(column, f"CAST(({value}) AS STRING)", _what(type_))
    return f"CASE WHEN ({value}) IS NOT NULL AND TRY_CAST(({value}) AS {type_}) IS NULL THEN {sentence} END"


def fault_embedded(value: str, type_: str, column: str) -> str:
    """Return a marker of a failed cast for the translation, which knows the types."""
    before, after = map(_quote, sentence_parts(column, type_))
    return f"{MARKER}(CAST(({value}) AS {type_}), {before}, {after})"


def _sentence(column: str, value: str, what: str) -> str:
    before, after = _quote(f"{column}: '"), _quote(f"' {what}")
    return f"concat({before}, substring({value}, 1, {MAX_QUOTED}), {after})"


def _what(type_: str) -> str:
    return "is not UTF-8" if type_ == "STRING" else f"is not a valid {type_}"


def _quote(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def attempt_at(text: str, tokens: Sequence[Any], column: str, fault: Fault) -> Attempt:
    """Return the attempt at the expression of a column, from its text and sqlglot's tokens of the text."""
    kinds = [token.token_type.name for token in tokens]
    # A word after a dot is the name of a field, whatever it means elsewhere.
    kinds = [MEMBER if before == "DOT" else kind for before, kind in zip(["", *kinds], kinds, strict=False)]
    return Rewriting(text, tokens, kinds, column, fault).attempt(0, len(tokens))


@dataclass(frozen=True, slots=True)
class Rewriting:
    """The text of a column's expression, its tokens and their kinds, and the function that writes faults."""

    text: str
    tokens: Sequence[Any]
    kinds: Sequence[str]
    column: str
    fault: Fault

    def attempt(self, start: int, stop: int) -> Attempt:
        """Return the attempt at the tokens of a range, which form one expression, perhaps with an alias."""
        if start >= stop or any(self.kinds[at] in UNSURE for at in self._outer(start, stop)):
            return Attempt(self._slice(start, stop))
        parts, faults, at = list[str](), list[str | None](), start
        while at < stop:
            end, attempt = self._part(at, stop)
            parts.append(self._gap(at, start) + attempt.value)
            faults.append(attempt.fault)
            at = end
        return Attempt("".join(parts), first_fault(*faults))

    def _part(self, at: int, stop: int) -> tuple[int, Attempt]:
        """Return the attempt at the call, CASE, pair of brackets or token that begins here, and where it ends."""
        if self.kinds[at] == "CASE":
            end = self._end(at, stop)
            return end, self._case(at, end)
        if at + 1 < stop and self.kinds[at + 1] == "L_PAREN" and self._is_name(at):
            end = self._end(at + 1, stop)
            return end, self._call(at, end)
        if self.kinds[at] == "L_PAREN":
            end = self._end(at, stop)
            return end, self._arguments(at, at, [self.attempt(*part) for part in self._split(at + 1, end - 1, "COMMA")])
        return at + 1, Attempt(self._slice(at, at + 1))

    def _call(self, at: int, end: int) -> Attempt:
        """Return the attempt at a call whose name is at this position."""
        name, parts = self.tokens[at].text.lower(), self._split(at + 2, end - 1, "COMMA")
        if name in ("cast", "try_cast"):
            return self._cast(at, end)
        is_text = name == "decode" and self._slice(*parts[-1]).upper() in UTF_8
        if name in EVALUATE_SOME and not is_text:
            return Attempt(self._slice(at, end))
        attempts = [self.attempt(*part) for part in parts]
        arguments = self._arguments(at, at + 1, attempts)
        match name, attempts:
            case "coalesce" | "nvl" | "ifnull", [*_]:
                arguments = replace(arguments, fault=_of_choice(attempts))
            case "if" | "iff", [condition, then, otherwise]:
                taken = _either(condition.value, then.fault, otherwise.fault)
                arguments = replace(arguments, fault=first_fault(condition.fault, taken))
            case ("to_timestamp", [text]) | ("decode", [text, _]):
                arguments = text.cast("STRING" if is_text else "TIMESTAMP", self.column, self.fault)
            case "timestamp_seconds" | "timestamp_millis", [number]:
                arguments = self._count_attempt(name, number)
        return arguments

    def _cast(self, at: int, end: int) -> Attempt:
        values, named = self._split(at + 2, end - 1, "ALIAS")
        value, type_ = self.attempt(*values), " ".join(self._slice(*named).split()).upper()
        if self.tokens[at].text.lower() == "cast":
            return value.cast(type_, self.column, self.fault)
        return Attempt(f"TRY_CAST({value.value} AS {type_})", value.fault)

    def _count_attempt(self, name: str, count: Attempt) -> Attempt:
        """Return the attempt to turn a count, which may be too large, into a time."""
        limit, value = MAX_COUNT[name], f"({count.value})"
        sentence = _sentence(self.column, f"CAST({value} AS STRING)", "is out of range")
        return Attempt(
            f"{name}(CASE WHEN {value} BETWEEN -{limit} AND {limit} THEN {value} END)",
            first_fault(count.fault, f"CASE WHEN {value} NOT BETWEEN -{limit} AND {limit} THEN {sentence} END"),
        )

    def _arguments(self, at: int, opening: int, attempts: Sequence[Attempt]) -> Attempt:
        """Return the attempts at the arguments in brackets as one, with the text before them."""
        value = self._slice(at, opening + 1) + ", ".join(attempt.value for attempt in attempts) + ")"
        return Attempt(value, first_fault(*(attempt.fault for attempt in attempts)))

    def _case(self, at: int, end: int) -> Attempt:
        """Return the attempt at CASE: each branch counts only if it is taken."""
        places = [place for place in self._outer(at + 1, end - 1) if self.kinds[place] in ("WHEN", "THEN", "ELSE")]
        ranges = [self.attempt(place + 1, stop) for place, stop in zip(places, [*places[1:], end - 1], strict=True)]
        kinds = [self.kinds[place] for place in places]
        operand = self.attempt(at + 1, places[0])
        value = " ".join(f"{kind} {part.value}" for kind, part in zip(kinds, ranges, strict=True))
        branches = list(zip(ranges[::2], ranges[1::2], strict=False))
        fault = ranges[-1].fault if kinds[-1] == "ELSE" else None
        for condition, then in reversed(branches):
            test = f"({operand.value}) = ({condition.value})" if operand.value else condition.value
            fault = first_fault(condition.fault, _either(test, then.fault, fault))
        return Attempt(f"CASE {operand.value} {value} END", first_fault(operand.fault, fault))

    def _outer(self, start: int, stop: int) -> list[int]:
        """Return the positions in a range that are inside no brackets or CASE of it."""
        places, at = [], start
        while at < stop:
            places.append(at)
            at = self._end(at, stop) if self.kinds[at] in OPENING else at + 1
        return places

    def _end(self, at: int, stop: int) -> int:
        """Return the position after the brackets or the CASE that begins here."""
        depth = 0
        for place in range(at, stop):
            depth += (self.kinds[place] in OPENING) - (self.kinds[place] in CLOSING)
            if depth == 0:
                return place + 1
        return stop

    def _split(self, start: int, stop: int, kind: str) -> list[tuple[int, int]]:
        """Return the ranges between the outer tokens of a kind; none for an empty range."""
        cuts = [at for at in self._outer(start, stop) if self.kinds[at] == kind]
        ends = [start - 1, *cuts, stop]
        return [(a + 1, b) for a, b in pairwise(ends)] if start < stop else []

    def _is_name(self, at: int) -> bool:
        token = self.tokens[at]
        return bool(token.text[:1].isalpha() or token.text[:1] == "_") and self.kinds[at] not in ("IN", "NOT", "DIV")

    def _gap(self, at: int, start: int) -> str:
        """Return the blanks and comments before a token of a range."""
        return self.text[self.tokens[at - 1].end + 1 : self.tokens[at].start] if at > start else ""

    def _slice(self, start: int, stop: int) -> str:
        return self.text[self.tokens[start].start : self.tokens[stop - 1].end + 1] if start < stop else ""


def _either(condition: str, then: str | None, otherwise: str | None) -> str | None:
    if not then and not otherwise:
        return None
    return f"CASE WHEN {condition} THEN {then or 'NULL'} ELSE {otherwise or 'NULL'} END"


def _of_choice(attempts: Sequence[Attempt]) -> str | None:
    """Return the fault of a choice that takes the first value that is not NULL."""
    fault = None
    for attempt in reversed(attempts):
        fault = first_fault(attempt.fault, _either(f"({attempt.value}) IS NULL", fault, None))
    return fault
