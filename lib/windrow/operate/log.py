"""The log: events with fields go to Python's logger `windrow`; the commands decide how they are written.

The library configures no logging. In a program that embeds Windrow, records carry their fields as `extra`. Their text
has the fields too, because a program that does not configure logging shows only the text of warnings.
Secrets are removed before a record is created.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from typing import Any, Literal

import structlog
from rich.console import Console
from rich.text import Text

from windrow.model.printable import json_text, printable

NAME = "windrow"
Format = Literal["auto", "pretty", "json"]
Level = Literal["debug", "info", "warning", "error"]

# The password of a URL, its query (object stores put signatures there), and texts such as `..._key = ...`.
SECRETS = (
    (re.compile(r"(://[^/@\s:]*):[^\s/]+@"), r"\1:***@"),
    (re.compile(r"(://[^\s?]*)\?\S+"), r"\1?***"),
    (re.compile(r"(?i)\b(Bearer )[\w.~+/=-]{12,}"), r"\1***"),
    (re.compile(r"(?i)([?&]sig=)[^\s&\"']+"), r"\1***"),
    (re.compile(r"(?i)\b([\w.-]*(?:secret|passw(?:or)?d|credential|signature|(?:api|account|access|private)[_-]?key|"
                r"(?:sas|session|security|access|auth|refresh)[_-]?token)"
                r"[\w.-]*[\"']?\s*[=:]\s*)(\"[^\"]*\"|'[^']*'|[^\s,;]+)"), r"\1***"),
)  # fmt: skip


def without_secrets(text: str) -> str:
    """Return a text with everything that looks like a secret replaced by `***`."""
    for pattern, rest in SECRETS:
        text = pattern.sub(rest, text)
    return text


def _redact(_: Any, __: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    return {name: without_secrets(value) if isinstance(value, str) else value for name, value in event.items()}


def _escape(_: Any, __: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    return {name: printable(value) if isinstance(value, str) else value for name, value in event.items()}


class Event(str):
    """The name of an event. Its text, shown by programs that do not configure logging, also has the fields."""

    __slots__ = ("fields",)
    fields: Mapping[str, object]

    def __str__(self) -> str:
        """Return the name and the fields, such as `retry attempt=1`."""
        return " ".join([self.name, *(f"{name}={printable(str(value))}" for name, value in self.fields.items())])

    @property
    def name(self) -> str:
        """Return the name alone."""
        return str.__str__(self)


def _with_fields(_: Any, __: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    named = Event(event.pop("event"))
    named.fields = dict(event)
    return {"event": named, **event}


log: structlog.stdlib.BoundLogger = structlog.wrap_logger(
    logging.getLogger(NAME),
    processors=[structlog.stdlib.filter_by_level, _redact, _with_fields, structlog.stdlib.render_to_log_kwargs],
    wrapper_class=structlog.stdlib.BoundLogger,
)


@contextmanager
def logging_to(console: Console, format_: Format = "auto", level: Level = "info") -> Iterator[None]:
    """Write the log to a console inside the block, as `pretty` or `json`; `auto` is pretty on a terminal.

    On a terminal, lines appear above the console's progress bar.
    """
    logger = logging.getLogger(NAME)
    before = logger.level, logger.propagate
    handler = ToConsole(console, console.is_terminal if format_ == "auto" else format_ == "pretty")
    logger.addHandler(handler)
    logger.setLevel(level.upper())
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before[0])
        logger.propagate = before[1]


class ToConsole(logging.Handler):
    """Writes each record as one line."""

    def __init__(self, console: Console, pretty: bool) -> None:
        """Write for people if `pretty`, otherwise for machines."""
        super().__init__()
        self._console = console
        stamped: list[structlog.typing.Processor] = [
            structlog.stdlib.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.stdlib.ExtraAdder(),
        ]
        written: list[structlog.typing.Processor] = [structlog.processors.JSONRenderer(self._json)]
        if pretty:
            look = structlog.dev.ConsoleRenderer(colors=console.is_terminal, sort_keys=False, pad_event_to=12)
            written = [_escape, look]
        self.setFormatter(
            structlog.stdlib.ProcessorFormatter(
                foreign_pre_chain=stamped,
                processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *written],
            )
        )

    def _json(self, event: Any, default: Callable[[Any], Any]) -> str:
        return json_text(event, self._console.encoding, default=default)

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record as one line, without wrapping."""
        if isinstance(event := record.msg, Event):
            record = copy(record)
            record.msg = event.name  # the formatter adds the fields
        self._console.print(Text.from_ansi(self.format(record)), soft_wrap=True)
