"""Processes that are run once for every sequence of answers: between two calls they see nothing but these.

A process runs in a thread, and stops before each call to a table. What it does next follows from the answers that it
got so far, so it is run only where it gets an answer that no schedule gave it before; it begins again then, and gets
the known answers first. All schedules of several processes are combined from what each of them does.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from tests.explorer.tables import Answer, Call

PATIENCE_SECONDS = 30  # between two calls are milliseconds, on a busy machine seconds
LOCAL = threading.local()


class Endless(Exception):
    """A process neither calls a table nor ends."""


class Abandoned(BaseException):
    """Ends the thread of a process that is not followed any further."""


@dataclass(eq=False, slots=True)
class Place:
    """Where a process stands: before a call, or at its end, and the answers that led there."""

    process: str
    life: int
    answers: tuple[Answer, ...]
    call: Call | None
    error: BaseException | None = None
    followed: dict[str, Place] = field(default_factory=dict)
    thread: Execution | None = None  # which still stands here, if no answer was given to it


class Program:
    """A process by what it does; `runs` counts how often it was run."""

    def __init__(self, name: str, work: Callable[[Execution], None], lives: int) -> None:
        self.name, self.lives, self.runs = name, lives, 0
        self._work = work
        self._begins: dict[int, Place] = {}

    def begin(self, life: int = 1) -> Place:
        """Return the place before the first call of a process that begins."""
        if life not in self._begins:
            self._begins[life] = self._run(life, ())
        return self._begins[life]

    def after(self, place: Place, answer: Answer) -> Place:
        """Return where the process stands after an answer to the call before which it stood."""
        if answer.digest not in place.followed:
            thread, place.thread = place.thread, None
            answers = (*place.answers, answer)
            there = self._run(place.life, answers) if thread is None else thread.answered(answers)
            place.followed[answer.digest] = there
        return place.followed[answer.digest]

    def _run(self, life: int, answers: tuple[Answer, ...]) -> Place:
        self.runs += 1
        return Execution(self.name, life, self._work, answers).place()

    def end(self) -> None:
        """End all threads that still stand somewhere."""
        places = list(self._begins.values())
        while places:
            place = places.pop()
            places += place.followed.values()
            if place.thread is not None:
                place.thread.abandon()


class Execution:
    """A thread in which a process runs, with the answers that it gets without being asked."""

    def __init__(self, name: str, life: int, work: Callable[[Execution], None], answers: tuple[Answer, ...]) -> None:
        self.name, self.life, self.tokens = name, life, 0
        self._known, self._given = answers, iter(answers)
        self._stopped, self._turn = threading.Semaphore(0), threading.Semaphore(0)
        self._call: Call | None = None
        self._next: Answer | None = None
        self._error: BaseException | None = None
        threading.Thread(target=self._run, args=(work,), name=name, daemon=True).start()

    def place(self) -> Place:
        """Wait until the process stands before a call or has ended, and return where."""
        if not self._stopped.acquire(timeout=PATIENCE_SECONDS):
            raise Endless(f"{self.name} neither calls a table nor ends")
        thread = None if self._call is None else self
        return Place(self.name, self.life, self._known, self._call, self._error, thread=thread)

    def answered(self, answers: tuple[Answer, ...]) -> Place:
        """Give the last of these answers, and return where the process stands then."""
        self._known, self._next = answers, answers[-1]
        self._turn.release()
        return self.place()

    def abandon(self) -> None:
        """End the thread."""
        self._next = None
        self._turn.release()

    def step(self, call: Call) -> Any:
        """Make a call of the process: stand before it until there is an answer."""
        answer = next(self._given, None)
        if answer is None:
            self._call = call
            self._stopped.release()
            self._turn.acquire()
            answer, self._call = self._next, None
            if answer is None:
                raise Abandoned
        if answer.error is not None:
            raise answer.error
        return answer.result

    def _run(self, work: Callable[[Execution], None]) -> None:
        LOCAL.execution = self
        try:
            work(self)
        except Abandoned:
            return
        except BaseException as error:  # noqa: BLE001 - the exploration decides whether a process may end so
            self._error = error
        self._stopped.release()


def token() -> SimpleNamespace:
    """Return what stands for `uuid4()` in a process: the same each time that it is run."""
    execution: Execution = LOCAL.execution
    execution.tokens += 1
    return SimpleNamespace(hex=f"{execution.name}-{execution.life}-{execution.tokens}")
