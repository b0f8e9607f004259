"""The frame of the arithmetic: the shift and the scale in which rows are summed and squared."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ._parallel import Workers, spans
from ._sums import UNIT_ROWS, Doubles


@dataclass(frozen=True)
class Frame:
    """Where the arithmetic is done: ``(x − shift) · scale``.

    Sums in float32 lose what a large common offset or a tiny unit hides; the frame takes both away. ``scale`` is a
    power of two, so it changes no digit. ``largest`` (P,), where it is known, bounds the entries of the rows in it.
    """

    shift: NDArray[np.float32]
    scale: float = 1.0
    largest: Doubles | None = None

    @classmethod
    def of(cls, X: NDArray[np.generic], workers: Workers) -> Frame:
        """Mean of the rows as the shift; a scale only where values are too small or too large to square safely."""
        n = len(X)
        parts = workers.map(
            lambda span: (
                X[span[0] : span[1]].sum(axis=0, dtype=np.float64),
                X[span[0] : span[1]].min(axis=0).astype(np.float64),
                X[span[0] : span[1]].max(axis=0).astype(np.float64),
            ),
            spans(n, UNIT_ROWS),
        )
        totals, lows, highs = zip(*parts, strict=True)
        return cls.between(np.sum(totals, axis=0) / n, np.min(lows, axis=0), np.max(highs, axis=0))

    @classmethod
    def between(cls, mean: Doubles, low: Doubles, high: Doubles) -> Frame:
        """The frame of rows with this mean, least and largest entry of each column, (P,) each."""
        shift, largest = mean.astype(np.float32), float(max(np.abs(low).max(), np.abs(high).max()))
        scale = 1.0 if largest == 0 or 1e-8 <= largest <= 1e8 else 2.0 ** -float(np.frexp(largest)[1])
        return cls(shift, scale, np.maximum(np.abs(low - shift), np.abs(high - shift)) * scale)
