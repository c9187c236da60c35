"""What numba counts with an instruction of the processor, counted in Python."""

from __future__ import annotations

import numpy as np

WORD = 64


def leading_zeros(word: np.uint64) -> int:
    """Return how many bits above the highest one are 0."""
    return WORD - int(word).bit_length()


def trailing_zeros(word: np.uint64) -> int:
    """Return how many bits below the lowest one are 0."""
    number = int(word)
    return (number & -number).bit_length() - 1 if number else WORD
