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
FINEST = 1e4
"""Most steps of half the squared norm of a usual codeword."""
ROUNDED = 5.0


def fine_enough(unexplained: float) -> float:
    """Least steps of half the squared norm of a usual codeword, where so much of the variance is left unexplained.

    The entries of T that a sum of C codewords has are off by 0.3 steps each, 0.2 C together; that is at most a 25th of
    the residual's energy, which has C u / (1 − u) times the steps of a codeword.
    """
    return max(64.0, ROUNDED * (1 - unexplained) / unexplained) if unexplained > 0 else np.inf


@dataclass(frozen=True)
class Steps:
    """``T`` (C, K, C, Ks) int16: what codeword j of b adds to the cost of codeword k of c, none where b = c.

    ``N`` (C, Ks) are half the squared norms, +inf from K on; both are in steps, of which a unit has ``each``.
    """

    T: NDArray[np.int16]
    N: Floats
    each: float

    @classmethod
    def of(cls, T: Floats, N: Floats, workers: Workers, fine: float) -> Steps | None:
        """Those of ``T`` (C, C, K, Kp) and ``N`` (C, Kp) in floats; None where they would not be ``fine``."""
        C, _, K, _ = T.shape
        Ks = -(-K // SHORTS) * SHORTS

        def reach(c: int) -> float:
            """The most that codewords of the other dictionaries, any of them, can add to the cost of one of c."""
            others = np.delete(T[c], c, axis=0)
            above, below = np.maximum(others.max(axis=1), 0), np.minimum(others.min(axis=1), 0)
            return float(max(above.sum(axis=0, dtype=np.float64).max(), -below.sum(axis=0, dtype=np.float64).min()))

        most, usual = max(workers.map(reach, range(C))), float(np.median(N[:, :K]))
        # rounding adds half a step for each dictionary; the rest of C keeps sums below MOST
        if not 0 < usual < np.inf or not (MOST - C) * usual >= fine * most:
            return None
        each = np.float32(FINEST / usual if most * FINEST < (MOST - C) * usual else (MOST - C) / most)
        norms = np.full((C, Ks), np.inf, np.float32)
        norms[:, :K] = N[:, :K] * each
        if not np.isfinite(each) or not np.isfinite(norms[:, :K]).all():
            return None
        out = aligned(C * K * C * Ks // 2).view(np.int16).reshape(C, K, C, Ks)
        workers.map(lambda c: _core.swift_pack(T[c], c, float(each), out), range(C))
        return cls(out, norms, float(each))

    @property
    def nbytes(self) -> int:
        """Size of T."""
        return self.T.nbytes
