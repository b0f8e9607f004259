"""Sums and draws over rows that come out the same to the bit in whatever parts and order they are made.

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

DRAW_ROWS = 4096
"""Rows that share a generator, seeded by their place among all rows."""

_UNIT = 149  # float32 are multiples of 2⁻¹⁴⁹


def grid_for(largest: Doubles, n: int) -> Doubles:
    """Grid (P,) on which ``n`` entries of at most ``largest`` (P,) add exactly in float64, in any order."""
    reach = np.where(largest > 0, largest, 1.0) * (n * (1 + 1e-6))  # float32 may round an entry up
    grid: Doubles = np.ldexp(1.0, np.frexp(reach)[1] - 52)
    return grid


def snapped(X: NDArray[np.generic], grid: Doubles) -> Doubles:
    """``X`` (m, P) in float64, rounded to multiples of ``grid`` (P,)."""
    shift = 1.5 * 2.0**52 * grid  # there, neighbouring doubles are one grid step apart
    out: Doubles = np.add(X, shift, dtype=np.float64)
    out -= shift
    return out


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


def draws(weights: NDArray[np.float32], count: int, seed: int, first: int = 0) -> tuple[Doubles, NDArray[np.int64]]:
    """Keys and places of at most ``count`` rows drawn without replacement, each by its weight; none of weight 0.

    A row's key is an exponential draw over its weight, and the least keys of all are chosen: those of several parts
    are merged by their keys. ``first`` is the place among all rows of the first one here, a multiple of 4096.
    """
    keys = np.empty(len(weights))
    with np.errstate(divide="ignore"):
        for start, stop in spans(len(weights), DRAW_ROWS):
            rng = np.random.default_rng([seed, (first + start) // DRAW_ROWS])
            keys[start:stop] = rng.standard_exponential(stop - start) / weights[start:stop]
    some = np.flatnonzero(keys < np.inf)
    some = some[np.argsort(keys[some], kind="stable")[:count]]
    return keys[some], some + first


def dealt(n: int, parts: int, seed: int, first: int = 0) -> list[NDArray[np.intp]]:
    """Places (…,) of rows dealt into ``parts``, as even as they go in every 4096 rows; ``first`` as in ``draws``."""
    hands: list[list[NDArray[np.intp]]] = [[] for _ in range(parts)]
    for start, stop in spans(n, DRAW_ROWS):
        order = np.random.default_rng([seed, (first + start) // DRAW_ROWS]).permutation(stop - start)
        for hand, part in zip(hands, np.array_split(order, parts), strict=True):
            hand.append(np.sort(part) + start)
    return [np.concatenate(hand) if hand else np.empty(0, np.intp) for hand in hands]


def dealt_lengths(n: int, parts: int) -> list[int]:
    """Rows that ``dealt`` gives to each part."""
    blocks = [stop - start for start, stop in spans(n, DRAW_ROWS)]
    return [sum((size + parts - 1 - part) // parts for size in blocks) for part in range(parts)]
