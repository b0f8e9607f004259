"""OptimizedCartesianKMeans: ock-means (Wang et al. 2014), several dictionaries in each subspace, codes by MCMP.

It is gk-means under constraints, as ck-means is, with fewer and larger blocks. Training starts from ck-means of the
same bytes, whose subspaces are joined: ock-means can represent what it found, and goes on from there.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from .._parallel import effective_jobs
from .._rows import Data
from .._validation import check_codewords, check_hours, check_integer, check_n_jobs
from ..assignment import GroupAssignment
from ..dictionaries import Block
from ..initialization.grown import best_stage, most_iterations
from ..initialization.hierarchical import joined, split
from ..pursuit import Pursuit, check_cost, check_table
from ..training import Run, train
from .base import Learned
from .cartesian import SubspaceQuantizer


class OptimizedCartesianKMeans(SubspaceQuantizer):
    """Compress vectors by a rotation and several dictionaries in each of several subspaces.

    Parameters
    ----------
    n_subspaces : int, default=4
        M: with 1, the dictionaries are as free as those of ``GroupKMeans`` and MCMP codes the whole vector.
    n_dictionaries : int, default=2
        C: dictionaries in each subspace. The time of a code grows as ``n_candidates ** (C - 1)``.
    n_codewords : int, default=256
        K: codewords in each dictionary, at most 65536.
    n_candidates : int, default=10
        Codewords that the matching pursuit tries at each depth but the last.
    max_iter : int, default=100
        Most iterations of the training proper.
    init_iter : int, default=30
        Most iterations of the ck-means that training starts from, which itself starts as ``CartesianKMeans`` does.
    tol : float, default=1e-5
        Training stops when an iteration lowers the relative distortion by a smaller part of itself.
    max_hours : float or None, default=24.0
        Where a fit or an encoding is estimated to take longer, it raises an error instead; None: never.
    random_state : int, Generator, RandomState or None, default=None
        Same seed, same result, for any ``n_jobs``.
    n_jobs : int or None, default=None
        Threads; None and -1 mean all cores.
    verbose : int, default=0
        Above 0, fit and encode show a progress bar with the time left.

    Attributes
    ----------
    dictionaries_ : (M C, K, P) float32
        The codewords at full length, rotated back: ``x`` is near the sum of one from each.
    rotation_ : (P, P) float32
        The rotation.
    codes_ : (n, M C) uint8 or uint16
        Codes of the training vectors.
    history_ : (iterations,) float64
        Relative distortion after each iteration, those of the starting ck-means first.
    n_iter_ : int
        Iterations of the training proper: the last ``n_iter_`` entries of ``history_``.
    stages_ : tuple of one Dictionaries
        The codewords in their subspaces, which ``encode`` works in.
    shift_, scale_ : (P,) float32, float
        Arithmetic is done on ``(x − shift_) · scale_``.
    n_features_in_ : int
        P.

    Examples
    --------
    >>> import gkmeans as gk
    >>> learn = gk.datasets.load_sample().learn[:2000]
    >>> est = gk.OptimizedCartesianKMeans(n_subspaces=2, n_dictionaries=2, n_codewords=16, random_state=0).fit(learn)
    >>> est.encode(learn).shape, est.dictionaries_.shape
    ((2000, 4), (4, 16, 128))
    >>> est.relative_distortion(learn) < 0.3
    True
    """

    def __init__(
        self,
        n_subspaces: int = 4,
        n_dictionaries: int = 2,
        n_codewords: int = 256,
        n_candidates: int = 10,
        *,
        max_iter: int = 100,
        init_iter: int = 30,
        tol: float = 1e-5,
        max_hours: float | None = 24.0,
        random_state: Any = None,
        n_jobs: int | None = None,
        verbose: int = 0,
    ) -> None:
        self.n_subspaces = n_subspaces
        self.n_dictionaries = n_dictionaries
        self.n_codewords = n_codewords
        self.n_candidates = n_candidates
        self.max_iter = max_iter
        self.init_iter = init_iter
        self.tol = tol
        self.max_hours = max_hours
        self.random_state = random_state
        self.n_jobs = n_jobs
        self.verbose = verbose

    def _sizes(self) -> tuple[int, int]:
        M = check_integer("n_subspaces", self.n_subspaces, 1)
        return M * check_integer("n_dictionaries", self.n_dictionaries, 1), check_codewords(self.n_codewords)

    def _method(self, C: int, K: int) -> Pursuit:
        return Pursuit(check_integer("n_candidates", self.n_candidates, 1))

    def _check_parameters(self) -> None:
        check_integer("init_iter", self.init_iter, 1)
        check_hours(self.max_hours)

    def _start_iterations(self, P: int) -> int:
        finer = self._finer_blocks(P)
        growth = most_iterations(finer, self._sizes()[1])
        return growth + (self.init_iter if len(finer) > len(self._blocks(P)) else 0)

    def _check_data(self, shape: tuple[int, int]) -> None:
        self._check_pursuit(shape, self.max_iter, self._blocks(shape[1]), *self._sizes())

    def _check_encoding(self, n: int) -> None:
        C, K, P = self.dictionaries_.shape
        self._check_pursuit((n, P), 1, self._final().blocks, C, K)

    def _check_pursuit(self, rows: tuple[int, int], passes: int, blocks: tuple[Block, ...], C: int, K: int) -> None:
        """Raise where ``passes`` over ``rows`` (n, P) take more than ``max_hours``, or more memory than a table may."""
        n_candidates, max_hours = self._method(C, K).n_candidates, check_hours(self.max_hours)
        most = max(block.dictionaries.stop - block.dictionaries.start for block in blocks)
        check_table(most, K)
        threads = min(effective_jobs(check_n_jobs(self.n_jobs)), effective_jobs(None))
        check_cost(rows, passes, len(blocks), n_candidates, most, K, threads, max_hours)

    def _blocks(self, P: int) -> tuple[Block, ...]:
        C, _ = self._sizes()
        return split(Block(slice(0, P), slice(0, C)), self.n_subspaces)

    def _finer_blocks(self, P: int) -> list[Block]:
        """Blocks of the ck-means that training starts from: one for each dictionary, where dimensions suffice."""
        return [part for block in self._blocks(P) for part in split(block, self.n_dictionaries)]

    def _learn(self, rows: Data, run: Run, max_iter: int) -> Learned:
        _, K = self._sizes()
        blocks, finer = self._blocks(rows.n_features), self._finer_blocks(rows.n_features)
        stage, codes = best_stage(rows, finer, K, run), None
        if len(finer) > len(blocks):
            exact = replace(run, method=GroupAssignment(1))
            stage, codes = train(rows, stage, None, exact, self.init_iter, "ck-means")
        fitted, chosen = train(rows, joined(stage, blocks), codes, run, max_iter, "ock-means")
        return Learned(fitted, chosen, (fitted,))
