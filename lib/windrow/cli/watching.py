"""The log of a running command, the progress bar below it, and its signal handlers."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from windrow.cli.progress import steps
from windrow.cli.terminal import stderr_console
from windrow.model.results import CommittedMicrobatch
from windrow.operate import Observer
from windrow.operate.log import log, logging_to
from windrow.settings.settings import LogSettings, Settings


@contextmanager
def watch_run(
    part: LogSettings, ask: Callable[[], None], saying: str = "stopping after this microbatch"
) -> Iterator[Callable[[], None]]:
    """Write the log to standard error, and let signals ask for a stop, as `stop_on_signals` does."""
    with logging_to(stderr_console, part.format, part.level), stop_on_signals(ask, saying) as install:
        yield install


@contextmanager
def stop_on_signals(
    ask: Callable[[], None], saying: str = "stopping after this microbatch"
) -> Iterator[Callable[[], None]]:
    """Let SIGINT and SIGTERM ask for a stop; a second SIGINT interrupts. Yields a function that installs them again.

    Only the main thread can handle signals. If a platform runs a job in another thread, its process handles them.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return

    def stop(number: int, _: object) -> None:
        ask()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        with suppress(RuntimeError):  # the signal came while a line was being written
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


@contextmanager
def show_progress(settings: Settings, quiet: bool) -> Iterator[Observer]:
    """Show on a terminal how many of the waiting messages were read, unless `quiet`; elsewhere, do not count."""
    if quiet or not stderr_console.is_terminal:
        yield Observer()
        return
    from windrow import reading

    with steps("messages", quiet) as show:
        yield Bar(show, reading.count_waiting(settings.depot, settings.ledger))


class Bar(Observer):
    """Advances a progress bar by the messages of each microbatch."""

    def __init__(self, show: Callable[[int, int | None], None], total: int | None) -> None:
        """Begin at zero."""
        self._show, self._total, self._done = show, total, 0
        show(0, total)

    def committed(self, committed: CommittedMicrobatch) -> None:
        """Advance the bar."""
        self._done += committed.message_count
        self._show(self._done, self._total)
