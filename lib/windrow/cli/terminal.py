"""The only place that prints: text from data can neither control a terminal nor cause an encoding error."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleDimensions, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from windrow.model.printable import printable

PIPE_WIDTH = 100_000  # characters, more than any line has


class Terminal(Console):
    """A console that escapes control characters, except those that Rich itself writes.

    Output to a file or a pipe is not cut or folded at the width of a terminal, unless COLUMNS sets a width.
    """

    @property
    def size(self) -> ConsoleDimensions:
        """Return the width and height of a terminal; a pipe has room for whole values."""
        if self.is_terminal or "COLUMNS" in os.environ:
            return super().size
        return ConsoleDimensions(PIPE_WIDTH, super().size.height)

    @size.setter
    def size(self, new_size: tuple[int, int]) -> None:
        self._width, self._height = new_size

    def render_str(self, text: str, **look: Any) -> Text:
        """Return a text with the width of its escaped form."""
        return super().render_str(printable(text), **look)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Return segments without raw control characters."""
        for part in super().render(renderable, options):
            # guard: raw-control-characters
            yield part if part.control else Segment(printable(part.text), part.style)


stdout_console = Terminal(highlight=False)
stderr_console = Terminal(stderr=True, highlight=False)


def write(text: str) -> None:
    """Write a line, such as JSON, as it is; it must not contain raw control characters."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def complain(text: str) -> None:
    """Write lines on standard error."""
    print(printable(text), file=sys.stderr)


def escape_unknown() -> None:
    """Let standard output and error escape characters that are not in their encoding."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a notebook's stream takes all text
            stream.reconfigure(errors="backslashreplace")
