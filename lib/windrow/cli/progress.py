"""Progress bars on a terminal, on standard error. With `quiet`, and where there is no terminal, they show nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from windrow.cli.options import aside

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn


@contextmanager
def steps(what: str, quiet: bool) -> Iterator[Callable[[int, int], None]]:
    """Show a bar; call what this gives with the number that is done and the total."""
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn

    with _bar(quiet, TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@contextmanager
def byte_count(what: str, quiet: bool) -> Iterator[Callable[[int, int | None], None]]:
    """Show a bar of bytes; call what this gives with the number of bytes read and, if known, the total."""
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    text = TextColumn("{task.description}")
    with _bar(quiet, text, BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn()) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@contextmanager
def counter(what: str, quiet: bool) -> Iterator[Callable[[str, int], None]]:
    """Count messages; call what this gives with the name of the input and the number of messages done."""
    from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn

    texts = TextColumn("{task.description}"), TextColumn("{task.completed:,} messages")
    with _bar(quiet, SpinnerColumn(), *texts, TimeElapsedColumn()) as bar:
        task = bar.add_task(what)
        yield lambda what, messages: bar.update(task, description=what, completed=messages)


def _bar(quiet: bool, *columns: ProgressColumn) -> Progress:
    from rich.progress import Progress

    return Progress(*columns, console=aside, disable=quiet or not aside.is_terminal, transient=True)
