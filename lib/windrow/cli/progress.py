"""Progress bars on a terminal, on standard error. With `quiet`, or without a terminal, nothing is shown."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from windrow.cli.terminal import stderr_console

if TYPE_CHECKING:
    from rich.progress import ProgressColumn

WHAT = "{task.description}"


@contextmanager
def steps(what: str, quiet: bool) -> Iterator[Callable[[int, int | None], None]]:
    """Show a bar; call the yielded function with the number done and, if known, the total."""
    from rich import progress as rich

    columns = rich.TextColumn(WHAT), rich.BarColumn(), rich.MofNCompleteColumn(), rich.TimeElapsedColumn()
    with _bar(what, quiet, *columns) as update:
        yield lambda done, total: update(completed=done, total=total)


@contextmanager
def byte_count(what: str, quiet: bool) -> Iterator[Callable[[int, int | None], None]]:
    """Show a bar of bytes; call the yielded function with the number of bytes read and, if known, the total."""
    from rich import progress as rich

    speed = rich.TransferSpeedColumn(), rich.TimeRemainingColumn()
    with _bar(what, quiet, rich.TextColumn(WHAT), rich.BarColumn(), rich.DownloadColumn(), *speed) as update:
        yield lambda done, total: update(completed=done, total=total)


@contextmanager
def count_messages(what: str, quiet: bool) -> Iterator[Callable[[str, int], None]]:
    """Count messages; call the yielded function with the name of the input and the number of messages done."""
    from rich import progress as rich

    texts = rich.TextColumn(WHAT), rich.TextColumn("{task.completed:,} messages")
    with _bar(what, quiet, rich.SpinnerColumn(), *texts, rich.TimeElapsedColumn()) as update:
        yield lambda what, messages: update(description=what, completed=messages)


@contextmanager
def _bar(what: str, quiet: bool, *columns: ProgressColumn) -> Iterator[Callable[..., Any]]:
    from rich.progress import Progress

    with Progress(
        *columns, console=stderr_console, disable=quiet or not stderr_console.is_terminal, transient=True
    ) as bar:
        yield partial(bar.update, bar.add_task(what, total=None))
