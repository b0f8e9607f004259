"""Update: the statistics Z and W and their solution, Sec. 2.2, Eq. 17.

Z counts how often two codewords are chosen together, W sums the rows that chose a codeword; both are sums over
points, so blocks, batches and machines add. The dictionaries solve ``(Z + λI) D = W + λ D_previous``: the minimum of
the distortion plus λ‖D − D_previous‖², which is never above the distortion of ``D_previous``, fixes what the
singular Z leaves open, and leaves a codeword that nobody chose where it was. Relaxed training adds a shrinkage s,
``(Z + λI + sI) D = W + λ D_previous``, which gives up a little distortion of the rows seen for that of others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import scipy.linalg
import scipy.sparse
from numpy.typing import ArrayLike, NDArray

from . import _core
from ._frame import Frame
from ._parallel import Workers, spans
from ._rows import READ_ROWS, Codes, Floats, Rows, Source
from ._solve import Cholesky, CholeskyAlone, conjugate_gradients
from ._sums import Doubles
from .dictionaries import Block, Dictionaries

RIDGE = 1e-3
"""λ, in points: a codeword is held back by a thousandth of a point."""

ROUGH = 1e-5
"""Least λ, relative to a bound of the largest eigenvalue, for a solution in float32: good to a thousandth."""

ALONE_UNKNOWNS, ALONE_COLUMNS = 4096, 512
"""Up to so many codewords a rough solution is made by one thread alone, so many columns at a time."""

SMALL_UNKNOWNS = 320
"""Up to so many codewords every factor is made by one thread alone: to hand out its parts would take longer."""

DENSE_UNKNOWNS = 12288
"""Above this many codewords in use, the normal equations are solved by conjugate gradients."""

PAIRS_BYTES = 1 << 30
"""Above this, the counts of pairs are kept as sparse matrices."""

LEAST = 0.5
"""Points below which a codeword counts as unused: fractions come from decay."""

_SLAB, _SLAB_BYTES = 32, 1 << 22
_COLUMNS = 64
Blocks = dict[tuple[int, int], Any]


@dataclass(frozen=True)
class Statistics:
    """The sums over points that the update needs.

    Parameters
    ----------
    counts : (C, K) int64, or float64 after decay
        Points that chose each codeword: the diagonal of Z.
    Z : dict of (b, c) to (K, K)
        Points that chose codeword j of b and k of c, b < c, for dictionaries of one group.
    W : (C, K, P) float64
        Sum of the rows that chose each codeword.
    groups : sequence of slice
        Dictionaries that are solved together.

    Examples
    --------
    >>> import numpy as np
    >>> from gkmeans.update import Statistics
    >>> X = np.array([[0.0], [2.0], [10.0]])
    >>> codes = np.array([[0], [0], [1]], np.uint8)
    >>> Statistics.of(X, codes).solve(np.zeros((1, 2, 1))).round(1).ravel()
    array([ 1., 10.], dtype=float32)
    """

    counts: NDArray[Any]
    Z: Blocks
    W: Doubles
    groups: tuple[slice, ...]

    @classmethod
    def of(cls, X: ArrayLike, codes: ArrayLike, n_codewords: int | None = None) -> Statistics:
        """Statistics of rows ``X`` (n, P) with ``codes`` (n, C); K is the largest code + 1 unless given."""
        data, chosen = np.asarray(X), np.asarray(codes)
        if data.ndim != 2 or chosen.ndim != 2 or len(data) != len(chosen):
            raise ValueError(f"X {data.shape} and codes {chosen.shape} must be 2-d with equally many rows")
        if chosen.dtype.kind not in "ui":
            raise ValueError(f"codes are {chosen.dtype}; they must be integers, as encode gives them")
        highest = int(chosen.max(initial=0))
        K = highest + 1 if n_codewords is None else n_codewords
        if highest >= K or int(chosen.min(initial=0)) < 0:
            raise ValueError(f"codes go from {chosen.min()} to {highest}; they must lie in 0 … {K - 1}")
        if K > 65536:
            raise ValueError(f"codes up to {K - 1} do not fit uint16; use at most 65536 codewords")
        if data.dtype.kind not in "biuf" or not np.isfinite(data).all():
            raise ValueError(f"X ({data.dtype}) holds values that are not finite numbers; drop or fill those rows")
        rows = Rows(data, Frame(np.zeros(data.shape[1], np.float32)))
        with Workers() as workers:
            return cls.collect(rows, chosen, K, (slice(0, chosen.shape[1]),), workers)

    @classmethod
    def collect(cls, rows: Source, codes: Codes, K: int, groups: Sequence[slice], workers: Workers) -> Statistics:
        """Statistics of a whole source: one pass."""
        out, grid = cls.none(codes.shape[1], K, rows.n_features, groups), rows.grid()
        for part, chunk in rows.chunks():
            out.take_in(chunk, codes[part], grid, workers)
        return out

    @classmethod
    def none(cls, C: int, K: int, P: int, groups: Sequence[slice]) -> Statistics:
        """Statistics of no points."""
        pairs = pairs_of(groups)
        sparse = kept_sparse(groups, K)
        Z = {
            pair: scipy.sparse.csr_array((K, K), dtype=np.int32) if sparse else np.zeros((K, K), np.int32)
            for pair in pairs
        }
        return cls(np.zeros((C, K), np.int64), Z, np.zeros((C, K, P)), tuple(groups))

    def take_in(self, rows: Source, codes: Codes, grid: Doubles, workers: Workers) -> None:
        """Add rows at hand in place: a task for each slab of columns of W and for several pairs of Z.

        The sums of W are exact on the ``grid`` (P,) (_sums.py).
        """
        wide = np.ascontiguousarray(codes, np.uint16)
        K = self.counts.shape[1]

        def add_slab(columns: tuple[int, int]) -> None:
            part, steps = np.ascontiguousarray(self.W[:, :, slice(*columns)]), grid[slice(*columns)]
            for span in spans(len(wide), READ_ROWS):
                if workers.stop[0]:
                    return
                room = workers.buffer((span[1] - span[0]) * len(steps), "slab")
                _core.add_rows(rows.block(slice(*span), slice(*columns), room), wide[slice(*span)], steps, part)
            self.W[:, :, slice(*columns)] = part

        def count(pairs: Sequence[tuple[int, int]]) -> None:
            if not scipy.sparse.issparse(self.Z[pairs[0]]):
                _core.count_pairs(wide, np.array(pairs, np.int32), [self.Z[pair] for pair in pairs])
                return
            for pair in pairs:
                self.Z[pair] = self.Z[pair] + _count_sparse(wide, *pair, K)

        # as wide as gives every thread some, while the sums of a slab stay near; columns do not know of each other
        even = -(-rows.n_features // (16 * workers.n_jobs)) * 16
        wide_slab = max(_SLAB, min(even, _SLAB_BYTES // (8 * self.counts.size)))
        tasks: list[Callable[[], None]] = [partial(add_slab, span) for span in spans(rows.n_features, wide_slab)]
        tasks += [partial(count, pairs) for pairs in workers.shares(list(self.Z))]
        workers.map(lambda task: task(), tasks)
        for c, column in enumerate(wide.T):
            self.counts[c] += np.bincount(column, minlength=K)

    @classmethod
    def implied(cls, codes: Codes, dictionaries: Dictionaries, workers: Workers) -> Statistics:
        """Statistics as if every row were the decoding of its ``codes`` (n, C): W = Z D, which D solves.

        Dictionaries that solve the rows' own statistics solve these too: what a fit leaves, without its rows.
        """
        C, K, P = dictionaries.shape
        everything = cls.none(C, K, 0, (slice(0, C),))
        nothing = Rows(np.empty((len(codes), 0)), Frame(np.empty(0, np.float32)))
        everything.take_in(nothing, codes, np.empty(0), workers)
        counts, Z = everything.counts, everything.Z
        D = dictionaries.full().astype(np.float64)

        def sums(c: int) -> Doubles:
            out: Doubles = counts[c][:, None] * D[c]
            for b in range(C):
                if b != c:
                    out += (Z[c, b] if c < b else Z[b, c].T) @ D[b]
            return out

        W = np.stack(workers.map(sums, range(C))).reshape(C, K, P)
        groups = dictionaries.groups
        return cls(counts, {pair: Z[pair] for pair in pairs_of(groups)}, W, groups)

    def __mul__(self, weight: float) -> Statistics:
        """The same points, each counted ``weight`` times."""
        if weight == 1:
            return self
        Z = {pair: block * weight for pair, block in self.Z.items()}
        return Statistics(self.counts * weight, Z, self.W * weight, self.groups)

    def without_rare(self) -> Statistics:
        """Without the codewords that fewer than ``LEAST`` points chose."""
        kept = self.counts >= LEAST
        if kept.all():
            return self
        Z = {}
        for (b, c), block in self.Z.items():
            if scipy.sparse.issparse(block):
                Z[b, c] = scipy.sparse.diags_array(kept[b] * 1.0) @ block @ scipy.sparse.diags_array(kept[c] * 1.0)
            else:
                Z[b, c] = block * np.outer(kept[b], kept[c])
        return Statistics(self.counts * kept, Z, self.W * kept[:, :, None], self.groups)

    def __add__(self, other: Statistics) -> Statistics:
        """Statistics of both sets of points together."""
        K = max(self.W.shape[1], other.W.shape[1])
        a, b = self._widened(K), other._widened(K)
        if a.W.shape != b.W.shape or a.groups != b.groups:
            raise ValueError(f"statistics of {self.W.shape} and {other.W.shape} do not add; C and P must agree")
        counts = a.counts + b.counts
        most = float(counts.sum(axis=1).max())
        Z = {pair: _with_room(a.Z[pair], most) + b.Z[pair] for pair in a.Z}
        return Statistics(counts, Z, a.W + b.W, a.groups)

    def _widened(self, K: int) -> Statistics:
        more = K - self.W.shape[1]
        if more <= 0:
            return self
        Z = {}
        for pair, block in self.Z.items():
            if scipy.sparse.issparse(block):
                block = block.copy()
                block.resize((K, K))
                Z[pair] = block
            else:
                Z[pair] = np.pad(block, (0, more))
        return Statistics(
            np.pad(self.counts, ((0, 0), (0, more))), Z, np.pad(self.W, ((0, 0), (0, more), (0, 0))), self.groups
        )

    def solve(self, previous: ArrayLike) -> Floats:
        """Dictionaries (C, K, P) float32 that minimise the distortion, held to ``previous`` by the ridge."""
        D = np.asarray(previous, np.float32)
        if D.ndim != 3 or D.shape[0] != self.W.shape[0] or D.shape[2] != self.W.shape[2]:
            raise ValueError(f"previous has shape {D.shape}; it must be (C, K, P) = {self.W.shape}")
        if D.shape[1] < self.W.shape[1]:
            raise ValueError(f"previous has {D.shape[1]} codewords, but codes up to {self.W.shape[1] - 1} were seen")
        statistics = self._widened(D.shape[1])
        with Workers() as workers:
            parts = [
                statistics.normal(group, workers).solve(statistics.W[group], D[group]) for group in statistics.groups
            ]
        return np.concatenate(parts)

    def sums(self, block: Block, R: Floats | None) -> Doubles:
        """W of the block's dictionaries in its own dimensions, after the rotation R where there is one."""
        W = self.W[block.dictionaries]
        return W[:, :, block.dims] if R is None else W @ R[:, block.dims].astype(np.float64)

    def normal(self, group: slice, workers: Workers, shrinkage: float = 0.0, rough: bool = False) -> Normal:
        """Factorised ``Z + λI`` of one group of dictionaries, each codeword drawn to zero by ``shrinkage`` points.

        Where ``rough`` in float32 if λ allows it, and up to ALONE_UNKNOWNS by the calling thread alone, which makes
        every factor of up to SMALL_UNKNOWNS. Up to ALONE_UNKNOWNS it holds until the same thread and ``workers``
        factorise that group again, in the same memory.
        """
        first, C, K = group.start, group.stop - group.start, self.counts.shape[1]
        counts = self.counts[group]
        used, alone = np.flatnonzero(counts), rough and counts.size <= ALONE_UNKNOWNS
        diagonal = counts.reshape(-1)[used].astype(np.float64) + (RIDGE + shrinkage)
        if C == 1:
            return Normal(used, diagonal, None, None, workers, alone)
        where = [np.flatnonzero(row) for row in counts]
        blocks = {}
        for b in range(C):
            for c in range(b + 1, C):
                block = self.Z[first + b, first + c]
                all_used = len(where[b]) == K == len(where[c])
                blocks[b, c] = block if all_used else block[where[b]][:, where[c]]
        if len(used) > DENSE_UNKNOWNS:
            return Normal(used, diagonal, None, _sparse_normal(blocks, where, diagonal), workers)
        if rough and RIDGE + shrinkage >= ROUGH * C * float(diagonal.max(initial=0.0)):
            with suppress(scipy.linalg.LinAlgError):  # rounding may lose the least eigenvalues
                single = _dense_normal(blocks, where, diagonal, _square(len(used), np.float32, workers, group))
                return Normal(used, diagonal, _factor(single, workers, alone), None, workers, alone)
        A = _dense_normal(blocks, where, diagonal, _square(len(used), np.float64, workers, group))
        return Normal(used, diagonal, _factor(A, workers, alone), None, workers, alone)


def pairs_of(groups: Sequence[slice]) -> list[tuple[int, int]]:
    """Pairs (b, c), b < c, of dictionaries of one group."""
    return [(b, c) for group in groups for b in range(group.start, group.stop) for c in range(b + 1, group.stop)]


def kept_sparse(groups: Sequence[slice], K: int) -> bool:
    """Whether the counts of pairs are kept as sparse matrices, which grow with the pairs that were met."""
    return 4 * len(pairs_of(groups)) * K * K > PAIRS_BYTES


def _square(m: int, dtype: type[np.floating], workers: Workers, group: slice) -> NDArray[np.floating]:
    """Room (m, m) for the factor of a group, the same in every iteration where it is not too large to be kept."""
    if m > ALONE_UNKNOWNS:
        return np.empty((m, m), dtype)
    size = m * m * np.dtype(dtype).itemsize // 4
    return workers.buffer(size, f"factor of {group.start}").view(dtype).reshape(m, m)


def _dense_normal(
    blocks: Blocks, where: list[NDArray[np.intp]], diagonal: Doubles, A: NDArray[np.floating]
) -> NDArray[np.floating]:
    """Lower triangle of ``Z + λI`` over the codewords in use, in ``A``."""
    edge = np.concatenate([[0], np.cumsum([len(some) for some in where])])
    A[:] = 0  # the upper triangle too: what was there before may be no numbers
    for (b, c), block in blocks.items():
        dense = block.toarray() if scipy.sparse.issparse(block) else block
        A[edge[c] : edge[c + 1], edge[b] : edge[b + 1]] = dense.T
    A[np.diag_indices_from(A)] = diagonal
    return A


def _factor(A: NDArray[np.floating], workers: Workers, alone: bool) -> Cholesky | CholeskyAlone:
    """The factor of ``A`` (m, m), in place."""
    return CholeskyAlone(A) if alone or len(A) <= SMALL_UNKNOWNS else Cholesky(A, workers)


def _sparse_normal(blocks: Blocks, where: list[NDArray[np.intp]], diagonal: Doubles) -> scipy.sparse.csr_array:
    """``Z + λI`` over the codewords in use."""
    C = len(where)
    grid = [
        [
            scipy.sparse.csr_array(blocks[b, c] if b < c else (len(where[b]), len(where[c])), dtype=np.float64)
            for c in range(C)
        ]
        for b in range(C)
    ]
    upper = scipy.sparse.block_array(grid, format="csr")
    return (upper + upper.T + scipy.sparse.diags_array(diagonal)).tocsr()


def _with_room(block: Any, most: float) -> Any:
    """A pair's counts, in integers that hold as many points as ``most``."""
    return block.astype(np.int64) if block.dtype == np.int32 and most > np.iinfo(np.int32).max else block


def _count_sparse(codes: NDArray[np.uint16], b: int, c: int, K: int) -> scipy.sparse.csr_array:
    ones = np.ones(len(codes), np.int32)
    return scipy.sparse.coo_array((ones, (codes[:, b].astype(np.int64), codes[:, c])), shape=(K, K)).tocsr()


@dataclass(frozen=True)
class Normal:
    """``Z + λI`` over the codewords in use: its diagonal, its Cholesky factor or the sparse matrix itself."""

    used: NDArray[np.intp]
    diagonal: Doubles
    factor: Cholesky | CholeskyAlone | None
    sparse: scipy.sparse.csr_array | None
    workers: Workers
    alone: bool = False

    def solve(self, W: Doubles, previous: Floats) -> Floats:
        """D (C, K, P) for one right-hand side; codewords out of use stay as in ``previous``."""
        C, K, P = previous.shape
        out: Floats = previous.reshape(C * K, P).copy()
        start = out[self.used].astype(np.float64)
        right = W.reshape(C * K, P)[self.used] + RIDGE * start

        def one(columns: tuple[int, int]) -> None:
            part = slice(*columns)
            if self.factor is not None:
                solution = self.factor.solve(right[:, part])
            elif self.sparse is not None:
                solution = conjugate_gradients(
                    self.sparse, self.diagonal, right[:, part], start[:, part], self.workers.stop
                )
            else:
                solution = right[:, part] / self.diagonal[:, None]
            out[self.used, part] = solution

        if self.alone:
            for columns in spans(P, ALONE_COLUMNS):
                one(columns)
        else:
            self.workers.map(one, spans(P, _COLUMNS))
        return out.reshape(C, K, P)


def centred(D: Floats, counts: NDArray[Any]) -> Floats:
    """``D`` (C, K, P) with every dictionary's mean by usage moved into the first: the same sums, no drift."""
    if len(D) == 1:
        return D
    total = max(LEAST, float(counts[0].sum()))
    means = np.einsum("ck,ckp->cp", counts, D, dtype=np.float64) / total
    out: Floats = D - means[:, None].astype(np.float32)
    out[0] += means.sum(axis=0).astype(np.float32)
    return out
