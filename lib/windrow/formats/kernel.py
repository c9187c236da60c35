"""The loops over octets, compiled."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from windrow.compiled import compiled

Octets = npt.NDArray[np.uint8]
Positions = npt.NDArray[np.int64]
REGROUPED_EVERY = 4096
RETURN = ord("\r")


@compiled
def follow(
    steps: npt.NDArray[np.uint32],
    classes: Octets,
    calm: npt.NDArray[np.bool_],
    octets: Octets,
    at: int,
    state: int,
    begin: int,
    limit: int,
    room: Positions,
) -> tuple[int, int, int, int]:
    """Write where records end, until there is no room, a record is too long (`limit`), or nothing is left.

    A step is where in `steps` the next state begins, and in its lowest bit whether a record ended. What changes nothing
    is passed over: each step waits for the one before it, a look at the class of an octet for nothing.
    """
    count, most, length = 0, limit - begin, len(octets)
    row, ended = np.uint32(state) << np.uint32(8), np.uint32(1)
    here, one = np.uint64(at), np.uint64(1)
    stop = np.uint64(min(length, limit))
    while here < stop and count < len(room):
        octet = octets[here]
        step = steps[row | np.uint32(octet)]
        kind = classes[octet]
        here += one
        if step & ended:
            room[count] = here
            count += 1
            begin = int(here)
            stop = np.uint64(min(length, begin + most))
        row = step & ~ended
        if calm[kind]:
            while here < stop and classes[octets[here]] == kind:
                here += one
    return count, int(here), int(row >> np.uint32(8)), begin


@compiled
def without(octets: Octets, begin: Positions, end: Positions, delimiter: Octets, returns: bool) -> Positions:
    """Return where records end without a delimiter, where they have one, and without a return before that."""
    found = np.empty(len(begin), np.int64)
    for number in range(len(begin)):
        stop = end[number] - len(delimiter)
        ended = stop >= begin[number]
        for place in range(len(delimiter) if ended else 0):
            ended = ended and octets[stop + place] == delimiter[place]
        if ended and returns and stop > begin[number] and octets[stop - 1] == RETURN:
            stop -= 1
        found[number] = stop if ended else end[number]
    return found


@compiled
def summarise(
    classes: Octets,
    following: Octets,
    ended: npt.NDArray[np.bool_],
    octets: Octets,
    after: Positions,
    first: Positions,
    last: Positions,
) -> None:
    """Follow all states side by side; those that meet go on as one, as soon as each of them has ended a record."""
    states = len(following)
    leader, met = np.arange(states), np.zeros(states, np.int64)
    active, count = np.arange(states), states
    for state in range(states):
        after[state], first[state], last[state] = state, -1, -1
    for at in range(len(octets)):
        kind = classes[octets[at]]
        new = False
        for number in range(count):
            state = active[number]
            if ended[after[state], kind]:
                last[state] = at + 1
                if first[state] == -1:
                    first[state] = at + 1
                    new = True
            after[state] = following[after[state], kind]
        if new or at % REGROUPED_EVERY == 0:
            kept = 0
            for number in range(count):
                state = active[number]
                joined = False
                for other in active[:kept]:
                    if after[other] == after[state] and first[other] != -1 and first[state] != -1:
                        leader[state], met[state], joined = other, at + 1, True
                        break
                if not joined:
                    active[kept] = state
                    kept += 1
            count = kept
    for state in range(states - 1, -1, -1):
        head = state
        while leader[head] != head:
            if last[leader[head]] > met[head]:
                last[state] = last[leader[head]]
            head = leader[head]
        after[state] = after[head]
