"""The steps of a microbatch in a topology that reads its depots in step: it stops wherever something falls due.

A step begins with what is due at one time, and has the messages from then on, up to the next timer. So a function sees
the states as they are at that time, however the messages were cut into versions and microbatches. The functions are
called for each step, on the states in memory, and all steps of a microbatch are one commit.

A message may set a timer that is due before later messages, and a function that sees both would miss that. So a step
has only messages of one time, unless all timers promise a minimum delay from being set to being due: then a step is as
long. A timer that is set for a past time waits for the next microbatch.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from windrow.model.clock import UNKNOWN
from windrow.model.floors import Ints
from windrow.topology.due import Due


def run_steps(take: Callable[[int, int], None], due: Due, arrived: Ints, length: int) -> None:
    """Call `take` for each step with the times (microseconds) after which it begins, and at which it ends.

    `arrived` are the times of the messages, sorted; a step is at most `length` long, or covers one time.
    """
    after, begun = UNKNOWN, False
    while True:
        timers, messages = due.times(after), arrived[np.searchsorted(arrived, after, side="right") :]
        first = min([*timers[:1], *messages[:1].tolist()], default=None)
        if first is None and begun:
            return
        first = due.until if first is None else first
        following = next((at for at in timers if at > first), due.until + 1)
        # guard: step-ends-at-a-timer
        through = min(max(first, first + length - 1), following - 1)
        due.fire(after, first)
        take(after, through)
        after, begun = through, True
