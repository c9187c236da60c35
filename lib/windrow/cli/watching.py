"""The progress bar of a running command, below its log, and its signal handlers."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Protocol

from windrow.cli.options import aside
from windrow.model.results import Committed
from windrow.operate import Observer
from windrow.operate.log import log
from windrow.settings.settings import Settings

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


class Stoppable(Protocol):
    """What can be asked for a stop."""

    def stop(self) -> None:
        """Ask for it."""


@contextmanager
def stopping(what: Stoppable, saying: str = "stopping after this microbatch") -> Iterator[Callable[[], None]]:
    """Let SIGINT and SIGTERM ask for a stop; a second SIGINT interrupts. Gives a function that installs them again.

    Only the main thread can handle signals. On a platform that runs a job in another thread, its process handles them.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return

    def stop(number: int, _: object) -> None:
        what.stop()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        with suppress(RuntimeError):  # it came in the middle of a line that is being written
            log.info(saying, signal=signal.Signals(number).name)

    def install() -> None:
        for number in before:
            signal.signal(number, stop)

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    install()
    try:
        yield install
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Bar(Observer):
    """Moves a progress bar on by the messages of each microbatch."""

    def __init__(self, progress: Progress, task: TaskID) -> None:
        """Move this task of it."""
        self._progress, self._task = progress, task

    def committed(self, committed: Committed) -> None:
        """Move on."""
        self._progress.advance(self._task, committed.messages)


@contextmanager
def waiting(settings: Settings, quiet: bool) -> Iterator[Observer]:
    """Show on a terminal how many of the messages that wait are read, unless `quiet`; elsewhere do not count."""
    if quiet or not aside.is_terminal:
        yield Observer()
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from windrow import reading

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=aside, transient=True) as progress:
        yield Bar(progress, progress.add_task("messages", total=reading.waiting(settings.depot, settings.ledger)))
