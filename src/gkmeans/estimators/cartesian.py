"""CartesianKMeans: ck-means (Norouzi and Fleet 2013), also known as OPQ: stage 1 of the hierarchy, run to its end.

It is gk-means under constraints: every dictionary lives in a subspace of its own inside one rotation, so that the best
code is the nearest codeword of each subspace.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from .._rows import Data, Floats
from ..assignment import GroupAssignment
from ..dictionaries import Dictionaries
from ..initialization.grown import best_stage, most_iterations
from ..initialization.hierarchical import first_blocks
from ..training import Run, train
from .base import AdditiveQuantizer, Learned, full_length


class SubspaceQuantizer(AdditiveQuantizer):
    """A quantizer whose dictionaries live in subspaces of one rotation; ``stages_[-1]`` holds both."""

    @property
    def rotation_(self) -> Floats:
        """R (P, P): ``(x − shift_) R`` has the subspaces as ranges of its columns."""
        check_is_fitted(self)
        R = self._final().R
        assert R is not None  # every fit sets one, and load checks it
        return R

    def _final(self) -> Dictionaries:
        return self.stages_[-1]

    def _check_stages(self) -> None:
        if len(self.stages_) != 1:
            raise ValueError(f"{len(self.stages_)} stages where one holds the subspaces")
        if self.rotation_.shape != (self.dictionaries_.shape[2],) * 2:
            raise ValueError(f"a rotation of shape {self.rotation_.shape} for {self.dictionaries_.shape[2]} features")
        expected = full_length(self._final(), self._frame())
        if not np.allclose(self.dictionaries_, expected, rtol=0, atol=1e-4 * float(np.abs(expected).max())):
            raise ValueError("dictionaries that are not those of the subspaces, by which rows are encoded")


class CartesianKMeans(SubspaceQuantizer):
    """Compress vectors by a rotation and one k-means in each of several subspaces.

    Parameters
    ----------
    n_dictionaries : int, default=8
        Subspaces, one dictionary each: with at most 256 codewords a code takes as many bytes. Where there are fewer
        dimensions, dictionaries share one.
    n_codewords : int, default=256
        K: codewords in each dictionary, at most 65536.
    max_iter : int, default=100
        Most iterations, each of which learns the rotation, the codewords and the codes. With more than 64 dimensions a
        subspace a start comes before them that grows on a sample, which ``history_`` and ``n_iter_`` do not count.
    tol : float, default=1e-3
        Training stops when an iteration lowers the relative distortion by a smaller part of itself. 1e-5 takes about
        four times as long for 2 % less distortion.
    random_state : int, Generator, RandomState or None, default=None
        Same seed, same result, for any ``n_jobs``.
    n_jobs : int or None, default=None
        Threads; None and -1 mean all cores.
    verbose : int, default=0
        Above 0, fit and encode show a progress bar with the time left.

    Attributes
    ----------
    dictionaries_ : (C, K, P) float32
        The codewords at full length, rotated back: ``x`` is near the sum of one from each.
    rotation_ : (P, P) float32
        The rotation.
    codes_ : (n, C) uint8 or uint16
        Codes of the training vectors.
    history_ : (iterations,) float64
        Relative distortion after each iteration.
    n_iter_ : int
        Iterations.
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
    >>> est = gk.CartesianKMeans(n_dictionaries=4, n_codewords=16, random_state=0).fit(learn)
    >>> est.encode(learn).shape, est.rotation_.shape
    ((2000, 4), (128, 128))
    >>> est.relative_distortion(learn) < 0.3
    True
    """

    def __init__(
        self,
        n_dictionaries: int = 8,
        n_codewords: int = 256,
        *,
        max_iter: int = 100,
        tol: float = 1e-3,
        random_state: Any = None,
        n_jobs: int | None = None,
        verbose: int = 0,
    ) -> None:
        self.n_dictionaries = n_dictionaries
        self.n_codewords = n_codewords
        self.max_iter = max_iter
        self.tol = tol
        self.random_state = random_state
        self.n_jobs = n_jobs
        self.verbose = verbose

    def _method(self, C: int, K: int) -> GroupAssignment:
        return GroupAssignment(2)  # one dictionary in a block: the nearest codeword; pairs where several share one

    def _start_iterations(self, P: int) -> int:
        C, K = self._sizes()
        return most_iterations(first_blocks(C, P), K)

    def _learn(self, rows: Data, run: Run, max_iter: int) -> Learned:
        C, K = self._sizes()
        start = best_stage(rows, first_blocks(C, rows.n_features), K, run)
        fitted, codes = train(rows, start, None, run, max_iter, "ck-means")
        return Learned(fitted, codes, (fitted,))
