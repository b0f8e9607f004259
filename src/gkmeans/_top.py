"""The k smallest distances of each query so far, over blocks of rows that come in order."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


class Top:
    """Rows of the ``k`` smallest distances of each of ``n`` queries, nearest first; of equal ones the earlier row."""

    def __init__(self, n: int, k: int, dtype: type[np.floating] = np.float64) -> None:
        self.k = k
        self.distances = np.full((n, k), np.inf, dtype)
        self.rows = np.full((n, k), -1, np.int64)

    def add(self, queries: slice, distances: NDArray[np.floating], first: int) -> None:
        """Distances (queries, m) to the rows from ``first`` on, all of them later than the rows before."""
        if not np.isfinite(distances).all():  # it would lose to a row that is not there
            raise ValueError(
                f"distances to rows {first} to {first + distances.shape[1] - 1} are not finite; drop vectors with NaN "
                "or infinite values, and divide by the largest value where they are huge"
            )
        both = np.concatenate([self.distances[queries], distances], axis=1)
        fresh = np.broadcast_to(np.arange(first, first + distances.shape[1]), distances.shape)
        rows = np.concatenate([self.rows[queries], fresh], axis=1)
        columns = self._smallest(both)
        kept = np.take_along_axis(both, columns, axis=1)
        # columns stand in the order of the rows among equal distances, and a stable sort keeps that order
        ranks = np.argsort(kept, axis=1, kind="stable")
        self.distances[queries] = np.take_along_axis(kept, ranks, axis=1)
        self.rows[queries] = np.take_along_axis(rows, np.take_along_axis(columns, ranks, axis=1), axis=1)

    def _smallest(self, distances: NDArray[np.floating]) -> NDArray[np.intp]:
        """Columns (n, k), ascending, of the k smallest of each row; of equal ones the first."""
        last = np.partition(distances, self.k - 1, axis=1)[:, self.k - 1, None]
        keep = distances <= last
        crowded = np.flatnonzero(keep.sum(axis=1) > self.k)
        if len(crowded):
            below = distances[crowded] < last[crowded]
            equal = keep[crowded] & ~below
            room = self.k - below.sum(axis=1, keepdims=True)
            keep[crowded] = below | (equal & (np.cumsum(equal, axis=1) <= room))
        return np.nonzero(keep)[1].reshape(len(distances), self.k)
