"""The scan of segments by threads: queries in groups that share a pass over the codes, blocks in parts.

Every part keeps its own best k; what is best by (score, id) does not depend on how the rows were cut.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .. import _core
from .._parallel import Item, Result, Workers, effective_jobs, spans
from .._rows import Floats
from .lookup import BLOCK, Lookup
from .segment import Ids, Segment

PART_BLOCKS = 512
"""Blocks that are worth a thread."""


def search(
    lookup: Lookup, segments: Sequence[Segment], Q: NDArray[np.generic], k: int, n_jobs: int | None
) -> tuple[Floats, Ids]:
    """Scores and ids (q, k) of the k smallest scores of each query, ties by id; +inf and -1 where there are fewer."""
    room = min(k, sum(segment.alive for segment in segments))
    if room == 0:
        return np.full((len(Q), k), np.inf, np.float32), np.full((len(Q), k), -1, np.int64)
    groups = lookup.groups(len(Q))
    jobs = effective_jobs(n_jobs)
    parts = _parts(segments, -(-jobs // len(groups)))

    def one(task: tuple[tuple[int, int], list[Piece]]) -> tuple[Floats, Ids]:
        (start, stop), pieces = task
        tables, bias = lookup.tables(Q[start:stop])
        best = np.full((stop - start, room), np.inf, np.float32)
        ids = np.full((stop - start, room), -1, np.int64)
        for piece in pieces:
            _core.search(**rows_of(piece, lookup), tables=tables, bias=bias, floor=lookup.floor, scores=best, found=ids)
        _core.sort_heaps(best, ids)
        return best, ids

    tasks = [(group, part) for group in groups for part in parts]
    results = run(one, tasks, jobs)
    if len(results) == 1 and room == k:
        return results[0]
    scores = np.full((len(Q), k), np.inf, np.float32)
    found = np.full((len(Q), k), -1, np.int64)
    for g, (start, stop) in enumerate(groups):
        own = results[g * len(parts) : (g + 1) * len(parts)]
        scores[start:stop, :room], found[start:stop, :room] = own[0] if len(own) == 1 else merged(own, room)
    return scores, found


def merged(parts: list[tuple[Floats, Ids]], k: int) -> tuple[Floats, Ids]:
    """The k best of all parts."""
    best, ids = (np.concatenate([part[i] for part in parts], axis=1) for i in (0, 1))
    order = np.lexsort((ids, best), axis=-1)[:, :k]
    return np.take_along_axis(best, order, axis=1), np.take_along_axis(ids, order, axis=1)


def within(
    lookup: Lookup, segments: Sequence[Segment], Q: NDArray[np.generic], limit: float, n_jobs: int | None
) -> list[tuple[Floats, Ids]]:
    """Scores of at most ``limit`` and their ids, smallest first, ties by id, for each query."""
    pieces = [piece for part in _parts(segments, 1) for piece in part]

    def one(row: int) -> tuple[Floats, Ids]:
        tables, bias = lookup.tables(Q[row : row + 1])
        asked = {"tables": tables[0], "bias": float(bias[0]), "floor": lookup.floor, "limit": limit}
        return joined([all_of(_core.within, **rows_of(piece, lookup), **asked) for piece in pieces])

    return run(one, range(len(Q)), effective_jobs(n_jobs))


def joined(results: list[tuple[Floats, Ids]]) -> tuple[Floats, Ids]:
    """All results, smallest first, ties by id."""
    scores = np.concatenate([np.empty(0, np.float32), *(result[0] for result in results)])
    ids = np.concatenate([np.empty(0, np.int64), *(result[1] for result in results)])
    order = np.lexsort((ids, scores))
    return scores[order], ids[order]


def all_of(kernel: Callable[..., int], **asked: Any) -> tuple[Floats, Ids]:
    """Scores and ids that a kernel finds, however many there are."""
    room = 1024
    while True:
        scores, ids = np.empty(room, np.float32), np.empty(room, np.int64)
        count = kernel(**asked, scores=scores, found=ids)
        if count <= room:
            return scores[:count], ids[:count]
        room = count


class Originals:
    """The original vectors: row i that of id i, or a pair of vectors and the ids of their rows."""

    def __init__(self, vectors: ArrayLike, P: int) -> None:
        names: Any = None
        if isinstance(vectors, tuple) and len(vectors) == 2 and [np.ndim(part) for part in vectors] == [2, 1]:
            vectors, names = cast("tuple[ArrayLike, ArrayLike]", vectors)
        X = np.asanyarray(vectors)
        if X.ndim != 2 or X.shape[1] != P or X.dtype.kind not in "fiub":
            raise ValueError(
                f"rescore has dtype {X.dtype} and shape {X.shape}; pass the original vectors, (n, {P}) numbers"
            )
        self._X, self._names, self._order = X, np.arange(0), np.arange(0)
        self._named = names is not None
        if self._named:
            names = np.asarray(names)
            if names.dtype.kind not in "iu" or len(names) != len(X):
                raise ValueError(
                    f"rescore has {len(X)} vectors and ids of dtype {names.dtype} and shape {names.shape}; pass an "
                    "integer for each vector"
                )
            names = names.astype(np.int64)  # of larger ones none is in an index
            self._order = np.argsort(names, kind="stable")
            self._names = names[self._order]
            if (self._names[1:] == self._names[:-1]).any():
                raise ValueError("rescore has an id more than once; pass each id once")

    def of(self, ids: Ids) -> NDArray[np.float64]:
        """Vectors (m, P) of ids (m,)."""
        rows = ids
        if self._named and len(self._names):
            place = np.minimum(np.searchsorted(self._names, ids), len(self._names) - 1)
            rows = np.where(self._names[place] == ids, self._order[place], len(self._X))
        if len(ids) and int(rows.max()) >= len(self._X):
            raise ValueError(
                f"rescore has {len(self._X)} rows, none of them for id {ids[rows.argmax()]}; pass row i for id i, or a "
                "pair of vectors and their ids"
            )
        return np.asarray(self._X[rows], np.float64)


def _similarities(metric: str, Q: NDArray[np.float64], x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Inner products (q, m), for "cosine" divided by the lengths of x."""
    products: NDArray[np.float64] = Q @ x.T
    if metric == "cosine":
        products /= np.maximum(np.sqrt(np.einsum("ij,ij->i", x, x)), np.finfo(float).tiny)
    return products


def exact_to_all(metric: str, Q: NDArray[np.generic], ids: Ids, vectors: Originals) -> NDArray[np.float64]:
    """What ranks the vectors of ``ids`` (m,) for each query, (q, m): scores, for "l2" less the query's own part."""
    x = vectors.of(ids)
    scores = _similarities(metric, np.asarray(Q, np.float64), x)
    scores *= -2 if metric == "l2" else -1
    if metric == "l2":
        scores += np.einsum("ij,ij->i", x, x)
    return scores


def exact(metric: str, Q: NDArray[np.generic], ids: Ids, vectors: Originals) -> NDArray[np.float64]:
    """Scores (q, m) of the vectors of ``ids`` (q, m); +inf for -1."""
    out = np.full(ids.shape, np.inf)
    for i, row in enumerate(ids):
        there = row[row >= 0]
        x, q = vectors.of(there), np.asarray(Q[i : i + 1], np.float64)
        value = np.einsum("ij,ij->i", x - q, x - q) if metric == "l2" else -_similarities(metric, q, x)[0]
        if not np.isfinite(value).all():
            raise ValueError(f"rescore has NaN or infinite values at id {there[~np.isfinite(value)][0]}; fill them")
        out[i, : len(there)] = value
    return out


Piece = tuple[Segment, int, int]


def _parts(segments: Sequence[Segment], count: int) -> list[list[Piece]]:
    """Blocks of all segments cut into at most ``count`` parts of about equal size."""
    total = sum(len(segment.blocks) for segment in segments)
    size = max(PART_BLOCKS, -(-total // count))
    parts = []
    for start, stop in spans(total, size):
        part, before = [], 0
        for segment in segments:
            first, last = max(start - before, 0), min(stop - before, len(segment.blocks))
            if first < last:
                part.append((segment, first, last))
            before += len(segment.blocks)
        parts.append(part)
    return parts


def rows_of(piece: Piece, lookup: Lookup) -> dict[str, Any]:
    """What the kernel takes of a piece."""
    segment, first, last = piece
    rows = slice(first * BLOCK, last * BLOCK)
    return {
        "blocks": segment.blocks[first:last],
        "keep": segment.keep[first:last],
        "ids": segment.ids[rows],
        "first": segment.first + first * BLOCK,
        "bits": lookup.bits,
        "levels": segment.levels,
        "norms": segment.norms[rows],
    }


def run(function: Callable[[Item], Result], tasks: Sequence[Item], jobs: int) -> list[Result]:
    """Results in the order of the tasks; a single task or thread needs no pool, which takes as long as a small scan."""
    if jobs == 1 or len(tasks) == 1:
        return [function(task) for task in tasks]
    with Workers(min(jobs, len(tasks))) as workers:
        return workers.map(function, tasks)
