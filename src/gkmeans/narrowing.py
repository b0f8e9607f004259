"""Training in the principal components that matter: where rows are wide, most of them carry next to nothing.

A code of b bits cannot describe directions of little variance: the best code of a Gaussian leaves out those below the
water level of its rate-distortion function. What lies in the components far below it is left out of relaxed training,
too, which then sees (n, r) instead of (n, P) numbers in every pass. The last iteration has all columns: the codewords
get theirs back, and codes are chosen by all of the row. The noise of the relaxation stays that of the columns, as far
as it lies in the components.

Few rows teach codewords nothing but noise in directions below the water level. There training may keep to the
components above it for good, where rows held out fare better (estimators/relaxing.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from ._frame import Frame
from ._parallel import Workers, spans
from ._rows import READ_ROWS, Data, Floats, Rows
from ._sums import Doubles, rounded
from .dictionaries import Block, Dictionaries
from .initialization.hierarchical import first_blocks, length
from .passes import Project
from .training import Run

WIDE, WIDEST, WORTH = 256, 4096, 0.75
"""Least and most columns of rows that are narrowed, and the most that may be left of them to be worth it."""
STEP = 32
"""Components are kept by so many."""
SHARE = 0.05
"""What may lie outside of the components kept, of the error that a Gaussian would have."""
MOST_OUTSIDE = 0.2
"""The most that may lie outside, of the error that training has: other rows than Gaussian ones may have far less."""
SAMPLE_NUMBERS, SAMPLE_ROWS = 1 << 23, 4
"""Numbers of the rows that show the components, and least rows for each column: fewer would not show them."""
HELD_BYTES = 1 << 29
"""Narrow rows are held in memory; where they are more than this, rows stay as they are."""


class TooNarrow(Exception):  # noqa: N818  nothing is wrong: the rows ask for all of their columns
    """Too much of what training could describe lies outside of the components kept."""


@dataclass(frozen=True)
class Narrow:
    """Rows (n, r) in the coordinates of a ``basis`` (P, r) with orthonormal columns.

    ``outside`` is the squared length of all that is left out, ``columns`` (P,) its mean square in each column, by a
    sample.
    """

    rows: Data
    basis: Floats
    outside: float
    columns: Doubles

    def outside_of(self, rows: Data, workers: Workers) -> float:
        """The squared length of what some of the wide rows have outside."""
        return rounded([Project(self.basis).over(rows, None, workers).error])

    def wide(self, fitted: Dictionaries) -> Dictionaries:
        """Dictionaries of the narrow rows as those of the wide ones."""
        if fitted.R is None:
            [D] = fitted.D
            return Dictionaries.single(D @ self.basis.T)
        return Dictionaries(fitted.blocks, fitted.D, np.ascontiguousarray(self.basis @ fitted.R))

    def check(self, run: Run) -> None:
        """Raise where too much of the error that the run has reached lies outside."""
        if run.history and run.outside > MOST_OUTSIDE * run.history[-1] * run.energy:
            share = run.outside / (run.history[-1] * run.energy)
            raise TooNarrow(f"{share:.0%} of the error lies outside of {self.basis.shape[1]} components")

    def noise(self, residual: Floats) -> Floats:
        """A factor F (r, r): rows of standard normal numbers times F are noise that lies like this residual (m, r).

        In the columns it is independent noise with the mean square that the whole residual has in each.
        """
        U, mean = self.basis, residual.T @ residual / np.float32(len(residual))
        squares = np.einsum("pr,pr->p", U @ mean, U) + self.columns
        M = (U.T @ (squares[:, None].astype(np.float32) * U)).astype(np.float64)
        total = float(np.trace(M))
        if total == 0:
            return np.zeros_like(mean)
        M[np.diag_indices_from(M)] += 1e-6 * total / len(M)
        return np.ascontiguousarray(scipy.linalg.cholesky(M).astype(np.float32))


def spanned(rows: Data, basis: Floats, workers: Workers) -> Narrow:
    """Rows in the coordinates of a basis, for good: what noise lies outside of it is not asked for."""
    seen = rows.passed(Project(basis), None, workers)
    return Narrow(_inside(rows, seen.codes, basis), basis, rounded([seen.error]), np.zeros(len(basis)))


def _inside(rows: Data, values: Any, basis: Floats) -> Data:
    """The rows whose ``values`` (n, r) a pass has found, in the place of the wide ones."""
    assert rows.frame.largest is not None  # a survey finds it
    frame = Frame(np.zeros(basis.shape[1], np.float32), 1.0, rows.frame.largest @ np.abs(basis).astype(np.float64))
    return rows.replaced(values, frame)


def narrowed(rows: Data, C: int, K: int, run: Run) -> Narrow | None:
    """The rows in the components that matter to C dictionaries of K codewords; None where it would spare little."""
    n, P = len(rows), rows.n_features
    if not WIDE <= P <= WIDEST or C < 2 or n < SAMPLE_ROWS * P:
        return None
    places = np.linspace(0, n - 1, min(n, max(SAMPLE_NUMBERS // P, SAMPLE_ROWS * P))).astype(np.intp)
    S, variances, V = components(rows.take(places), run.workers)
    error = gaussian_error(variances, C * float(np.log2(K)))
    r = kept(variances, SHARE * error)
    wide, narrow = first_blocks(C, P), first_blocks(C, r)
    fits = len(wide) == len(narrow) and all(length(b.dims) <= length(a.dims) for a, b in zip(wide, narrow, strict=True))
    if r > WORTH * P or 4 * n * r > HELD_BYTES or not fits:
        return None

    def make() -> Floats:
        [made] = run.workers.map(lambda leading: aligned_with(leading, S, wide, narrow), [V[:, :r]])
        return made

    basis = run.kept("basis", make, (P, r))
    seen = rows.passed(Project(basis), None, run.workers)
    outside = rounded([seen.error])
    if outside > 2 * SHARE * n * error:  # the sample has not shown it
        return None
    inside = np.einsum("pr,pr->p", basis @ (basis.T @ S @ basis), basis)
    columns = np.maximum(np.diag(S).astype(np.float64) - inside, 0)
    return Narrow(_inside(rows, seen.codes, basis), basis, outside, columns)


def components(rows: Rows, workers: Workers) -> tuple[Floats, Doubles, Floats]:
    """Second moments (P, P) of rows at hand, and the variances (P,) and directions (P, P) of their components."""
    S = _moments(rows, workers)
    [(variances, V)] = workers.map(_principal, [S])  # Ctrl-C must reach this thread
    return S, variances, V


def _moments(rows: Rows, workers: Workers) -> Floats:
    """Second moments (P, P) of rows at hand."""

    def one(span: tuple[int, int]) -> Floats:
        X = rows.block(slice(*span))
        out: Floats = X.T @ X
        return out

    S: Floats = reduce(np.add, workers.map(one, spans(len(rows), READ_ROWS))) / np.float32(len(rows))
    return S


def less_means(D: Floats, usage: Floats) -> Floats:
    """Codewords (C, K, P) less the mean of their dictionary, each weighed by its ``usage`` (C, K)."""
    out: Floats = D - np.einsum("ck,ckp->cp", usage, D)[:, None]
    return out


def in_components(fitted: Dictionaries, usage: Floats, outside: float) -> Dictionaries:
    """Dictionaries of one block in so few components that no more than ``outside`` of a sum's variance is left out.

    ``usage`` (C, K) is the share of rows that chose each codeword. What is left out adds little to what tells codes
    apart. The dictionaries as they came where that would spare little.
    """
    [D] = fitted.D
    C, K, P = D.shape
    if not WIDE <= P <= WIDEST // 2:
        return fitted
    rows = (np.sqrt(usage)[:, :, None] * less_means(D, usage)).reshape(C * K, P)
    variances, V = _principal(rows.T @ rows)
    r = kept(variances, outside)
    if r > WORTH * P:
        return fitted
    U = np.ascontiguousarray(V[:, :r])
    [block] = Dictionaries.single(D[:, :, :r]).blocks
    return Dictionaries((block,), (np.ascontiguousarray(D @ U),), U)


def _principal(S: Floats) -> tuple[Doubles, Floats]:
    """Variances (P,) and directions (P, P) of the components of a matrix of second moments, the largest first."""
    variances, V = scipy.linalg.eigh(S, check_finite=False, driver="evd")
    return np.maximum(variances[::-1].astype(np.float64), 0), V[:, ::-1]


def kept(variances: Doubles, outside: float) -> int:
    """How many of the components with ``variances`` (P,), the largest first, leave no more than ``outside`` of them."""
    beyond = np.append(np.cumsum(variances[::-1])[::-1], 0.0)
    few = int(np.argmax(beyond <= outside))
    return min(len(variances), max(STEP, -(-few // STEP) * STEP))


def gaussian_error(variances: Doubles, bits: float) -> float:
    """Least squared error with which so many ``bits`` describe a Gaussian of these variances: reverse water-filling."""
    count, level = water(variances, bits)
    return float(count * level + variances[count:].sum())


def water(variances: Doubles, bits: float) -> tuple[int, float]:
    """How many of the components with ``variances`` (P,), the largest first, lie above the water level, and the level.

    They share the ``bits``; those below are left out.
    """
    positive = variances[variances > variances[0] * 1e-12]
    if not len(positive):
        return 0, 0.0
    # with the water level between the variances m − 1 and m, the first m components share the bits
    logs, m = np.cumsum(np.log2(positive)), np.arange(1, len(positive) + 1)
    levels = np.exp2((logs - 2 * bits) / m)
    count = int(np.count_nonzero(levels < positive))
    return count, float(levels[count - 1])


def aligned_with(V: Floats, S: Floats, wide: Sequence[Block], narrow: Sequence[Block]) -> Floats:
    """The basis of the space of ``V`` (P, r) whose columns lie as near as they can to the blocks of the wide rows.

    Stage 1 of the hierarchy starts from blocks of neighbouring columns, where there is often something to find: here,
    from the nearest thing to the principal components of each block.
    """
    own: NDArray[np.float32] = np.zeros_like(V)
    for block, part in zip(wide, narrow, strict=True):
        size, inner = length(part.dims), S[block.dims, block.dims]
        last = len(inner) - 1
        _, vectors = scipy.linalg.eigh(inner, subset_by_index=(last - size + 1, last), check_finite=False)
        own[block.dims, part.dims] = vectors[:, ::-1]
    left, _, right = scipy.linalg.svd(V.T @ own, check_finite=False)
    return np.ascontiguousarray(V @ (left @ right), np.float32)
