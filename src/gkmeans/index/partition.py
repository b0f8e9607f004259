"""Balanced k-means: the centres of an inverted file's lists.

Lloyd's iterations, with one step more: where a list holds more than twice the mean, the centres of the smallest lists
move into it. After ten iterations the first centres whose lists all hold at most that many rows are taken, and the best
balanced ones where thirty do not reach it, as with many equal rows. Many lists are made in two levels, a k-means of
about √lists groups and one inside each group, so that a row is compared with about 2 √lists centres.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .. import _core
from .._parallel import Workers, block_rows, spans
from .._rows import READ_ROWS, Floats
from .._sums import grid_for

ONE_LEVEL = 4096
"""The most lists that are made, and searched, in one level."""
ROWS_PER_LIST = 64
"""Training rows for each list; more are not looked at."""
ITERATIONS, MOST_ITERATIONS = 10, 30
LIMIT = 2.0
"""Rows of a list, in means of all lists, above which it is split."""
_SHORT = 4
"""Iterations of the k-means of one crowded list."""
Lists = NDArray[np.int64]


def partition(X: Floats, n_lists: int, rng: np.random.Generator, workers: Workers) -> tuple[Floats, Lists]:
    """Centres (n_lists, P), group by group, and the first centre of each group, (groups + 1,)."""
    if n_lists <= ONE_LEVEL:
        return balanced(X, n_lists, rng, workers), np.array([0, n_lists])
    groups = round(np.sqrt(n_lists))
    tops = balanced(X[: ROWS_PER_LIST * groups], groups, rng, workers)
    group = nearest(X, tops, workers)
    counts = np.bincount(group, minlength=groups)
    share = _shares(counts, n_lists)
    rows = np.split(np.argsort(group, kind="stable"), np.cumsum(counts)[:-1])
    seeds = rng.spawn(groups)
    parts = [balanced(X[rows[g]], int(share[g]), seeds[g], workers) for g in np.flatnonzero(share)]
    return np.concatenate(parts), np.concatenate([[0], np.cumsum(share[share > 0])])


def _shares(counts: Lists, total: int) -> Lists:
    """``total`` lists over groups in proportion to their rows, no group with more lists than rows."""
    exact = counts * (total / counts.sum())
    share: Lists = np.minimum(np.floor(exact).astype(np.int64), counts)
    for g in np.argsort(share - exact, kind="stable"):  # the largest remainders first
        share[g] += share.sum() < total and share[g] < counts[g]
    return share


def balanced(X: Floats, n_lists: int, rng: np.random.Generator, workers: Workers) -> Floats:
    """Centres (n_lists, P) of rows X, at least n_lists of them: the best balanced of the last iterations."""
    centres = X[np.sort(rng.choice(len(X), n_lists, replace=False))]
    best, largest = centres, len(X) + 1
    for iteration in range(1, MOST_ITERATIONS + 1):
        lists = nearest(X, centres, workers)
        counts = np.bincount(lists, minlength=n_lists)
        if iteration >= ITERATIONS and counts.max() < largest:
            best, largest = centres, int(counts.max())
        if iteration >= ITERATIONS and largest <= LIMIT * counts.mean():
            break
        centres = _split(X, lists, counts, _means(X, lists, counts, centres), rng)
    return best


def nearest(X: Floats, centres: Floats, workers: Workers) -> Lists:
    """The nearest centre of each row."""
    shift = centres.mean(axis=0, dtype=np.float64).astype(np.float32)
    moved = centres - shift
    norms = np.einsum("ij,ij->i", moved, moved)
    out = np.empty(len(X), np.int64)

    def one(span: tuple[int, int]) -> None:
        scores = (X[slice(*span)] - shift) @ moved.T
        scores *= -2
        scores += norms
        out[slice(*span)] = scores.argmin(axis=1)

    workers.map(one, spans(len(X), block_rows(len(centres))))
    return out


def _means(X: Floats, lists: Lists, counts: Lists, centres: Floats) -> Floats:
    """Mean of each list; an empty one keeps its centre."""
    W = np.zeros((1, *centres.shape))
    grid = grid_for(np.abs(X).max(axis=0).astype(np.float64), len(X))
    for start, stop in spans(len(X), READ_ROWS):
        for first, last in spans(len(centres), 1 << 16):  # the kernel takes uint16
            x, names = X[start:stop], lists[start:stop]
            if len(centres) > last - first:
                here = (names >= first) & (names < last)
                x, names = x[here], names[here] - first
            _core.add_rows(x, names[:, None].astype(np.uint16), grid, W[:, first:last])
    out: Floats = centres.copy()
    some = counts > 0
    out[some] = W[0, some] / counts[some, None]
    return out


def _split(X: Floats, lists: Lists, counts: Lists, centres: Floats, rng: np.random.Generator) -> Floats:
    """Centres of the smallest lists moved into the crowded ones, each of which is then cut by a k-means of its own."""
    extra = np.maximum(np.ceil(counts / (LIMIT * counts.mean())).astype(np.int64) - 1, 0)
    empty = int(np.count_nonzero(counts == 0))
    order = np.argsort(lists, kind="stable")
    starts = np.cumsum(counts) - counts
    small = np.argsort(counts, kind="stable")[: len(counts) // 2]
    out: Floats = centres.copy()
    used = 0
    for crowded in np.argsort(-counts, kind="stable"):
        if extra[crowded] == 0 and used >= empty:
            break
        freed = small[used : used + max(1, int(extra[crowded]))]
        used += len(freed)
        where = np.append(crowded, freed)
        if used > len(small) or counts[crowded] < len(where):
            break
        rows = X[order[starts[crowded] : starts[crowded] + counts[crowded]]]
        out[where] = _few_means(rows, len(where), rng)
    return out


def _few_means(X: Floats, count: int, rng: np.random.Generator) -> Floats:
    """Centres of a short k-means."""
    centres: Floats = X[rng.choice(len(X), count, replace=False)]
    shift = centres.mean(axis=0)
    x = X - shift
    for _ in range(_SHORT):
        moved = centres - shift
        lists = (np.einsum("ij,ij->i", moved, moved) - 2 * (x @ moved.T)).argmin(axis=1)
        centres = _means(X, lists, np.bincount(lists, minlength=count), centres)
    return centres
