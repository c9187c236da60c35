"""Cut off a phase of a microbatch that takes too long, so that no hanging call blocks a topology.

A watchdog waits in a thread of its own. When the time is up it cancels the Spark jobs of the phase, and then interrupts
Python: at once in the main thread, where even a sleep or a read from a socket ends, and in another thread as soon as it
runs Python code again. A computation inside a library finishes first.

Without Spark, reading and committing are library calls, which nothing can interrupt. They run in a thread that is
abandoned when the time is up. Nobody uses what the thread still reads; if it still commits, either the next attempt's
prime finds the commit, or the fence refuses it.
"""

from __future__ import annotations

import ctypes
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, TypeVar
from uuid import uuid4

from windrow.errors import PhaseTimeoutError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOOK = 0.1  # seconds between two checks whether work in another thread has ended, or this one is interrupted
GRACE = 5.0  # seconds in which cancelled Spark jobs may end by themselves
HINT = "Raise the option phase_timeout, or lower max_messages."

T = TypeVar("T")


class _Overdue(BaseException):
    """Raised in the thread of a phase whose time is up; not an `Exception`, which functions may catch."""


def run_with_timeout(phase: str, timeout: int | None, session: SparkSession | None, work: Callable[[], T]) -> T:
    """Return the result of reading or committing, after at most `timeout` microseconds. Raises PhaseTimeoutError."""
    if timeout is None:
        return work()
    with phase_timeout(phase, timeout, session):
        return work() if session is not None else _in_a_thread(phase, work)


def _in_a_thread(phase: str, work: Callable[[], T]) -> T:
    """Return the result of `work` in another thread. This one keeps running Python code, so it can be interrupted."""
    future, ended = Future[T](), threading.Event()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001 - it is raised in the thread that waits
            future.set_exception(error)
        finally:
            ended.set()

    threading.Thread(target=run, name=f"windrow-{phase}", daemon=True).start()
    while not ended.wait(LOOK):
        pass
    return future.result()


@contextmanager
def phase_timeout(phase: str, timeout: int | None, session: SparkSession | None) -> Iterator[None]:
    """Run the block for at most `timeout` microseconds (None: forever). Raises PhaseTimeoutError."""
    if timeout is None:
        yield
        return
    watchdog = _Watchdog(timeout / 1_000_000, None if session is None else _Jobs(session))
    try:
        with watchdog:
            yield
    except (Exception, _Overdue) as error:
        if watchdog.overdue:
            raise PhaseTimeoutError(f"{phase} was cut off after {timeout / 1_000:,.0f} ms", HINT) from error
        raise


class _Jobs:
    """The Spark jobs that one thread starts, found by a tag."""

    def __init__(self, session: SparkSession) -> None:
        tag = f"windrow-{uuid4().hex}"
        tagged: list[Callable[[str], object]] = [session.addTag, session.removeTag, session.interruptTag]
        # a session without Connect knows its own tags only in the thread that set them
        if not type(session).__module__.startswith("pyspark.sql.connect"):
            context = session.sparkContext
            tagged = [context.addJobTag, context.removeJobTag, context.cancelJobsWithTag]
        self.start, self.end, self.cancel = (partial(function, tag) for function in tagged)


class _Watchdog:
    """Interrupts the thread that entered it, unless that thread leaves in time."""

    def __init__(self, seconds: float, jobs: _Jobs | None) -> None:
        self._seconds, self._jobs, self.overdue = seconds, jobs, False
        self._thread = threading.get_ident()
        self._is_main = threading.current_thread() is threading.main_thread()
        self._left, self._lock = threading.Event(), threading.Lock()

    def __enter__(self) -> None:
        if self._jobs is not None:
            self._jobs.start()
        if self._is_main:
            self._before = signal.signal(signal.SIGALRM, _raise)
        threading.Thread(target=self._watch, name="windrow-phase-timeout", daemon=True).start()

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._left.set()
        if self._is_main:
            signal.signal(signal.SIGALRM, self._before)
        if self._jobs is not None:
            self._jobs.end()

    def _watch(self) -> None:
        if self._left.wait(self._seconds):
            return
        self.overdue = True
        if self._jobs is not None:
            with suppress(Exception):  # the session may have ended
                # guard: hanging-jobs-cancelled
                self._jobs.cancel()
            if self._left.wait(GRACE):
                return
        with self._lock:
            if self._left.is_set():
                return
            if self._is_main:
                signal.pthread_kill(self._thread, signal.SIGALRM)
            else:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._thread), ctypes.py_object(_Overdue))


def _raise(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - the arguments of a signal's handler
    raise _Overdue
