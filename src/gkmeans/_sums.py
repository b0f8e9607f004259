"""Sums and deals over rows that come out the same to the bit in whatever parts and order they are made.

A sum of floats depends on its order, unless every partial sum is exact. Rows are rounded to a grid on which it is:
multiples of a power of two, so coarse that n of the largest stay below 2⁵³ of them. With n = 10⁵ the grid is 2⁻³⁵ of
a column's largest entry, with 10⁹ it is 2⁻²². So threads, batches and machines may add as they like.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from ._parallel import spans

Doubles = NDArray[np.float64]

UNIT_ROWS = 4096
"""Rows that are dealt by one generator, seeded by their place among all rows; blocks of products divide them."""

_UNIT = 149  # float32 are multiples of 2⁻¹⁴⁹


def grid_for(largest: Doubles, n: int) -> Doubles:
    """Grid (P,) on which ``n`` entries of at most ``largest`` (P,) add exactly in float64, in any order."""
    reach = np.where(largest > 0, largest, 1.0) * (max(1, n) * (1 + 1e-6))  # float32 may round an entry up
    grid: Doubles = np.ldexp(1.0, np.frexp(reach)[1] - 52)
    return grid


def exact(values: NDArray[np.float32]) -> int:
    """The sum of ``values``, none negative, without any rounding, in units of 2⁻¹⁴⁹."""
    bits = np.ascontiguousarray(values, np.float32).reshape(-1).view(np.uint32)
    total = 0
    for start, stop in spans(len(bits), 1 << 24):  # 2²⁴ numbers of 24 bits add exactly
        exponent = bits[start:stop] >> 23
        digits = (bits[start:stop] & 0x7FFFFF) + ((exponent > 0).astype(np.uint32) << 23)
        for e, part in enumerate(np.bincount(exponent, weights=digits)):
            total += int(part) << max(e - 1, 0)
    return total


def rounded(totals: Iterable[int]) -> float:
    """What ``exact`` gave for the parts of an array, added and rounded once."""
    return sum(totals) / (1 << _UNIT)


def dealt(n: int, parts: int, seed: int, first: int = 0) -> NDArray[np.uint8]:
    """The part (n,) of each row, as even as they go in every 4096 rows.

    ``first`` is the place among all rows of the first one here, a multiple of 4096.
    """
    if parts == 1:
        return np.zeros(n, np.uint8)
    out = np.resize((np.arange(UNIT_ROWS) % parts).astype(np.uint8), n)
    for start, stop in spans(n, UNIT_ROWS):
        np.random.default_rng([seed, (first + start) // UNIT_ROWS]).shuffle(out[start:stop])
    return out
