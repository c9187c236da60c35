"""Write commands.md, json.md, expectations.md beside this file, and a table of the README.

`make reference` runs it. A command, an option, a default or a help text is never written by hand: commands.md has what
the command line is made of. json.md takes fields and types from the dataclasses that a command prints, and what a
field means from documents.toml, which also has the few fields that stand in no dataclass. expectations.md needs the
extra `quality`.
"""  # noqa: INP001

from __future__ import annotations

import re
import tomllib
import typing
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from importlib import import_module
from inspect import cleandoc, signature, unwrap
from pathlib import Path
from types import NoneType, UnionType
from typing import Any

import typer

from windrow.cli import app

HERE = Path(__file__).parent
SHARED = 5  # an option that so many commands have, with the same help, is told once
TYPES = {bool: "true or false", int: "whole number", float: "number", str: "text", Path: "path", Any: "anything"}
MADE = "<!-- made by generate.py: make reference writes it anew -->"
COMMANDS = f"""\
# Commands

{MADE}

`windrow COMMAND --help` says the same. What `--json` prints is in [json.md](json.md), what `windrow.toml` holds in
[settings.md](../settings.md)."""
DOCUMENTS = f"""\
# What `--json` prints

{MADE}

One document on standard output, and nothing else there. `a.b` is the field `b` of the object `a`, `a[].b` that of each
object in the list `a`. Times are ISO 8601 text in UTC, or `1234 us` since 1970 outside the years 1 to 9999; a number
says its unit in its name, and `_us` are microseconds. Fields may be added; those that are here keep their meaning."""
EXPECTATIONS = f"""\
# Expectations

{MADE}

What [`windrow quality`](../quality.md) expects of a ledger, with the default limits."""
SUITES = {
    "closed_batches": "batches, closed ones and, by the same rules, open ones",
    "rejected_messages": "messages in no batch",
    "books": "progress and history, in themselves and against batches and rejected messages",
}

README = HERE.parents[1] / "README.md"
MATRIX = "<!-- matrix: make reference writes it anew -->"
SHOWN_BY = ("", "faults tried", "states of all schedules, real code", "states of a checked model", "guards removed")
# By page the length of its rows, the cell that says what a row is about, and the one with a number; None: rows count.
COUNTED = {"trials": (7, 0, 2), "exploration": (10, 0, 2), "model": (5, 0, 2), "guards": (3, 2, None)}
# Which rows of trials, exploration, model and guards (by their tests) are about a guarantee; empty: none.
GUARANTEES = [
    ("each message once", ".", ".", "ledger", "::"),
    ("a killed driver or a lost reply changes nothing", "SIGKILL|killed|lost reply|failing", "^one driver", "ledger",
     "test_crash|test_retries|test_durable"),
    ("two drivers do not disturb each other", "drivers|another process", "^two drivers", "ledger", "test_fence"),
    ("after a RESTORE all is read again", "RESTORE|rollback", "RESTORE|rollback", "ledger", "test_ledgers|test_depots"),
    ("folds change nothing that counts", "fold", "folds", "ledger", "test_growing|test_ledger_files"),
    ("outputs of topologies equal their states", "output", "a topology", "outputs", "topology/"),
]  # fmt: skip

Table = list[tuple[str, ...]]


def pages() -> dict[str, str]:
    """Return the pages by the names of their files."""
    return {"commands.md": commands_page(), "json.md": json_page()}


def readme() -> str:
    """Return the README with the matrix of what shows each guarantee, counted in the pages beside this file."""
    page = README.read_text(encoding="utf-8")
    before, rest = page.split(MATRIX)
    after = rest.split("\n\n", 1)[1]
    return f"{before}{MATRIX}\n{_table(SHOWN_BY, [_shown(*row) for row in GUARANTEES])}\n\n{after}"


def _shown(guarantee: str, *patterns: str) -> tuple[str, ...]:
    """Return a row of the matrix: for each page the sum over the rows that a pattern says."""
    cells = []
    for (page, (columns, key, counted)), pattern in zip(COUNTED.items(), patterns, strict=True):
        rows = [row for row in _rows(page) if len(row) == columns and _counts(pattern, row[key])]
        count = len(rows) if counted is None else sum(_number(row[counted]) for row in rows)
        cells.append(f"[{count:,}](docs/reference/{page}.md)" if count else "no")
    return guarantee, *cells


def _counts(pattern: str, text: str) -> bool:
    return bool(pattern) and "**" not in text and re.search(pattern, text) is not None


def _number(cell: str) -> int:
    digits = re.match(r"[\d,]+", cell)
    return int(digits[0].replace(",", "")) if digits else 0


def _rows(page: str) -> Iterator[list[str]]:
    """Return the rows of the tables of a page."""
    for line in (HERE / f"{page}.md").read_text(encoding="utf-8").splitlines():
        if line.startswith("|"):
            yield [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def commands() -> dict[str, Any]:
    """Return the commands by name, in the order of the command line's own help; one of a group has both names."""
    return dict(_commands(typer.main.get_command(app)))


def _commands(group: Any, at: str = "") -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _commands(command, f"{at}{name} ")
        elif not command.hidden:
            yield f"{at}{name}", command


def commands_page() -> str:
    """Return the page of commands: every argument, option, type, default and example."""
    known = commands()
    shared = _shared(known)
    parts = [
        COMMANDS,
        _table(("command", ""), [(f"[`{name}`](#{_anchor(name)})", _summary(one)) for name, one in known.items()]),
        "## Options that many commands have",
        _table(("option", "type", "default", ""), shared),
        "## Exit status",
        _table(("status", ""), _statuses(known)),
        "Errors are one or two lines on standard error, a code first: [errors.md](../errors.md).",
        *(_command(name, one, shared) for name, one in known.items()),
    ]
    return "\n\n".join(parts) + "\n"


def _shared(known: dict[str, Any]) -> Table:
    """Return the options that are told once, as they are told."""
    every = [option for one in known.values() for option in one.params if _is_option(option)]
    count = Counter(map(_option, every))
    return [told for told, times in count.items() if times >= SHARED]


def _statuses(known: dict[str, Any]) -> Table:
    checks = ", ".join(f"`{name}`" for name, one in known.items() if ends_with_1(one))
    return [
        ("0", "done"),
        ("1", f"a check found something: {checks}"),
        ("2", "wrong usage or settings"),
        ("3", "the world failed: a table, Spark, a disk"),
    ]


def _ends(command: Any) -> str:
    return f"which ends with 0, {'1, ' if ends_with_1(command) else ''}2 or 3"


def ends_with_1(command: Any) -> bool:
    """Tell whether a command gives an exit status of its own, as checks do."""
    return signature(unwrap(command.callback)).return_annotation in {"int", int}


def _command(name: str, command: Any, shared: Table) -> str:
    arguments = [one for one in command.params if not _is_option(one)]
    options = [one for one in command.params if _is_option(one)]
    own = [one for one in options if _option(one) not in shared]
    others = ", ".join(f"`{one.opts[0]}`" for one in options if _option(one) in shared)
    usage = " ".join([f"windrow {name}", *map(_metavar, arguments), "[OPTIONS]"])
    parts = [f"## windrow {name}", _prose(command.help), f"Usage: `{usage}`, {_ends(command)}."]
    if arguments:
        parts.append(_table(("argument", "type", ""), [_argument(one) for one in arguments]))
    if own:
        parts.append(_table(("option", "type", "default", ""), [_option(one) for one in own]))
    parts.append(f"Also {others} ([above](#options-that-many-commands-have)).")
    parts.extend(_examples(command.epilog or ""))
    return "\n\n".join(parts)


def _anchor(name: str) -> str:
    return f"windrow-{name}".replace(" ", "-")


def _examples(epilog: str) -> list[str]:
    examples = [one.strip(" `") for one in epilog.removeprefix("Example:").split("   or   ") if one.strip()]
    return [f"For example {' or '.join(f'`{one}`' for one in examples)}."] if examples else []


def _summary(command: Any) -> str:
    first = _prose(command.help).split("\n\n")[0]
    return first.split(". ")[0].rstrip(".")


def _prose(text: str) -> str:
    """Return a help text with each paragraph in one line."""
    return "\n\n".join(" ".join(part.split()) for part in cleandoc(text).split("\n\n"))


def _is_option(parameter: Any) -> bool:
    return parameter.opts[0].startswith("-")


def _argument(argument: Any) -> tuple[str, ...]:
    return f"`{_metavar(argument)}`", _written(argument), argument.help or ""


def _option(option: Any) -> tuple[str, ...]:
    flag = bool(getattr(option, "is_flag", False))
    names = ", ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))
    value = option.default.value if isinstance(option.default, Enum) else option.default
    default = "" if flag or value is None else f"`{value}`"
    return names, "flag" if flag else _written(option), "required" if option.required else default, option.help or ""


def _metavar(argument: Any) -> str:
    if argument.metavar:
        return str(argument.metavar)
    name = argument.name.upper() + ("..." if argument.nargs == -1 else "")
    return name if argument.required else f"[{name}]"


def _written(parameter: Any) -> str:
    """Return the type of what is written behind an option."""
    annotation = parameter.type_descriptor.annotation
    least, most = (getattr(parameter, bound, None) for bound in ("min", "max"))
    bounds = f", {least} to {most}" if None not in (least, most) else f", at least {least}" if least is not None else ""
    if typing.get_origin(annotation) is list:
        return f"{type_name(typing.get_args(annotation)[0])}{bounds}, repeatable"
    return type_name(annotation) + bounds


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a document: where it stands (`a.b`, `a[].b`), its type in words, what it means."""

    name: str
    type: str
    meaning: str


@dataclass(frozen=True, slots=True)
class Document:
    """What some commands print with --json; `runs` show all of it, in a directory that begins with `world`."""

    title: str
    commands: tuple[str, ...]
    says: str
    world: str
    runs: tuple[str, ...]
    is_list: bool
    fields: tuple[Field, ...]
    typed: frozenset[str]


def documents() -> list[Document]:
    """Read documents.toml. Raises ValueError for a field of a dataclass without a meaning."""
    told = tomllib.loads((HERE / "documents.toml").read_text(encoding="utf-8"))["document"]
    return [_document(one, {other["title"]: other["fields"] for other in told}) for one in told]


def _document(told: dict[str, Any], others: dict[str, dict[str, Any]]) -> Document:
    """Return a document. Fields of a dataclass that mean what they mean in others (`like`) stand only there."""
    known = {name: kind for at, where in told.get("of", {}).items() for name, kind in _walk(_class(where), at)}
    alike = {name: one for title in told.get("like", ()) for name, one in others[title].items() if name in known}
    meanings = alike | told["fields"]
    lacking = [name for name in known if name not in meanings]
    lacking += [name for name, meaning in meanings.items() if isinstance(meaning, str) and name not in known]
    if lacking:
        raise ValueError(f"documents.toml, {told['title']}: no meaning, or no type and meaning, for {lacking}")
    found = tuple(
        Field(name, *((known[name], meaning) if isinstance(meaning, str) else meaning))
        for name, meaning in meanings.items()
    )
    return Document(
        title=told["title"],
        commands=tuple(told["commands"]),
        says=told.get("says", ""),
        world=told.get("world", "ledger"),
        runs=tuple(told["runs"]),
        is_list=told.get("list", False),
        fields=found,
        typed=frozenset(known),
    )


def json_page() -> str:
    """Return the page of the documents that --json prints."""
    parts = [
        DOCUMENTS,
        *(_document_part(one) for one in documents()),
    ]
    return "\n\n".join(parts) + "\n"


def _document_part(one: Document) -> str:
    printed = ", ".join(f"[`windrow {name}`](commands.md#{_anchor(name)})" for name in one.commands)
    shape = f"{printed}: a list of objects." if one.is_list else f"{printed}."
    rows: Table = [(f"`{field.name}`", field.type, field.meaning) for field in one.fields]
    return "\n\n".join([f"## {one.title}", f"{shape} {one.says}".strip(), _table(("field", "type", ""), rows)])


def expectations_page() -> str:
    """Return the page of the expectations of all suites; to import Great Expectations takes seconds."""
    from windrow.verify import quality

    parts = [EXPECTATIONS]
    for name, about in SUITES.items():
        expected = getattr(quality, name)().expectations
        rows = [(f"`{one.meta['name']}`", one.severity.value, one.description) for one in expected]
        parts += [f"## `{name}`: {about}", _table(("expectation", "severity", "what it says"), rows)]
    return "\n\n".join(parts) + "\n"


def _class(where: str) -> type:
    module, name = where.split(":")
    found: type = getattr(import_module(module), name)
    return found


def _walk(kind: type, at: str) -> Iterator[tuple[str, str]]:
    """Return the fields of a dataclass and of those inside it, with their types in words."""
    hints = typing.get_type_hints(kind)
    for field in fields(kind):
        name = f"{at}.{field.name}".lstrip(".")
        hint = hints[field.name]
        yield name, type_name(hint)
        for inner in _parts(hint):
            if is_dataclass(inner):
                yield from _walk(inner, name)
            elif typing.get_origin(inner) in {list, tuple} and is_dataclass(typing.get_args(inner)[0]):
                yield from _walk(typing.get_args(inner)[0], f"{name}[]")


def type_name(hint: Any) -> str:
    """Return a type in words."""
    parts = _parts(hint)
    if len(parts) > 1:
        return " or ".join("null" if part is NoneType else type_name(part) for part in parts)
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return ", ".join(f"`{value}`" for value in arguments)
    if origin in {list, tuple}:
        return "list of objects" if is_dataclass(arguments[0]) else f"list of {type_name(arguments[0])}"
    if origin is not None:
        return f"map of text to {type_name(arguments[1])}"
    if isinstance(hint, type) and issubclass(hint, Enum):
        return ", ".join(f"`{one.value}`" for one in hint)
    return "object" if is_dataclass(hint) else TYPES[hint]


def _parts(hint: Any) -> Sequence[Any]:
    return typing.get_args(hint) if isinstance(hint, UnionType) else (hint,)


def _table(head: tuple[str, ...], rows: Table) -> str:
    escaped = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    return "\n".join(f"| {' | '.join(row)} |".replace("|  |", "| |") for row in [head, ["---"] * len(head), *escaped])


if __name__ == "__main__":
    for file, text in (pages() | {"expectations.md": expectations_page()}).items():
        (HERE / file).write_text(text, encoding="utf-8")
    README.write_text(readme(), encoding="utf-8")
