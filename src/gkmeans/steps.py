"""The table T in 16-bit steps, for assignments that may be swayed a little (native/swift.hpp)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from . import _core
from ._parallel import Workers, aligned
from ._rows import Floats

SHORTS = 32
"""Costs in a register; K is filled up to a multiple of it."""
MOST = _core.most_together()
"""Steps that the entries of T that meet in one sum may have together; a codeword alone costs up to twice as many."""
FINE, FINEST = 64.0, 1e4
"""Least and most steps of half the squared norm of a usual codeword: with fewer, rounding would sway too much."""


@dataclass(frozen=True)
class Steps:
    """``T`` (C, K, C, Ks) int16: what codeword j of b adds to the cost of codeword k of c, none where b = c.

    ``N`` (C, Ks) are half the squared norms, +inf from K on; both are in steps, of which a unit has ``each``.
    """

    T: NDArray[np.int16]
    N: Floats
    each: float

    @classmethod
    def of(cls, T: Floats, N: Floats, workers: Workers) -> Steps | None:
        """Those of ``T`` (C, C, K, Kp) and ``N`` (C, Kp) in floats; None where steps would be too coarse."""
        C, _, K, _ = T.shape
        Ks = -(-K // SHORTS) * SHORTS

        def reach(c: int) -> float:
            """The most that the codewords of the other dictionaries can add to the cost of one of c."""
            rows = T[c].reshape(C, -1)
            largest = np.maximum(rows.max(axis=1), -rows.min(axis=1)).astype(np.float64)
            return float(largest.sum() - largest[c])

        most, usual = max(workers.map(reach, range(C))), float(np.median(N[:, :K]))
        if not (MOST - C) * usual > FINE * most:  # rounding adds half a step for each dictionary
            return None
        each = np.float32(FINEST / usual if most * FINEST < (MOST - C) * usual else (MOST - C) / most)
        out = aligned(C * K * C * Ks // 2).view(np.int16).reshape(C, K, C, Ks)
        norms = np.full((C, Ks), np.inf, np.float32)
        norms[:, :K] = N[:, :K] * each
        workers.map(lambda c: _core.swift_pack(T[c], c, float(each), out), range(C))
        return cls(out, norms, float(each))

    @property
    def nbytes(self) -> int:
        """Size of T."""
        return self.T.nbytes
