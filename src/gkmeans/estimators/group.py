"""GroupKMeans: gk-means (a, b) of the paper, a = order, b = init, Sec. 2."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from .._parallel import Workers
from .._progress import Reporter
from .._rows import Codes, Floats, Frame, Rows
from .._validation import (
    check_codewords,
    check_integer,
    check_n_jobs,
    check_order,
    check_start,
    check_tolerance,
    check_X,
    warn_about,
)
from ..assignment import check_table
from ..dictionaries import Dictionaries
from ..initialization.hierarchical import count_stages, hierarchical
from ..initialization.kmeans import kmeans
from ..initialization.random import random
from ..training import Run, train
from .base import AdditiveQuantizer

INITS = ("random", "kmeans", "hierarchical")


class GroupKMeans(AdditiveQuantizer):
    """Compress vectors to the sum of one codeword from each of several dictionaries.

    Parameters
    ----------
    n_dictionaries : int, default=8
        C: with at most 256 codewords a code takes C bytes.
    n_codewords : int, default=256
        K: codewords in each dictionary, at most 65536.
    order : int, default=2
        Dictionaries whose codes are chosen jointly, from 1 to C: 1 is fastest, 2 is better, C is the global optimum
        and only for small problems.
    init : {"hierarchical", "kmeans", "random"}, (C, K, P) array or fitted estimator, default="hierarchical"
        Where training starts.
    max_iter : int, default=100
        Most iterations of the training proper.
    init_iter : int, default=30
        Most iterations of each k-means or stage of the initialisation.
    tol : float, default=1e-5
        Training stops when an iteration lowers the relative distortion by a smaller part of itself.
    random_state : int, Generator, RandomState or None, default=None
        Same seed, same result, for any ``n_jobs``.
    n_jobs : int or None, default=None
        Threads; None and -1 mean all cores.
    verbose : int, default=0
        Above 0, fit and encode show a progress bar with the time left.

    Attributes
    ----------
    dictionaries_ : (C, K, P) float32
        The codewords.
    codes_ : (n, C) uint8 or uint16
        Codes of the training vectors.
    history_ : (iterations,) float64
        Relative distortion after each iteration, those of the initialisation first.
    n_iter_ : int
        Iterations of the training proper: the last ``n_iter_`` entries of ``history_``.
    stages_ : tuple of Dictionaries
        Stages of the hierarchical initialisation, which ``encode`` replays; empty for other starts.
    shift_, scale_ : (P,) float32, float
        Arithmetic is done on ``(x − shift_) · scale_``.
    n_features_in_ : int
        P.

    Examples
    --------
    >>> import gkmeans as gk
    >>> learn = gk.datasets.load_sample().learn[:2000]
    >>> est = gk.GroupKMeans(n_dictionaries=4, n_codewords=16, random_state=0).fit(learn)
    >>> codes = est.encode(learn)
    >>> codes.shape, codes.dtype
    ((2000, 4), dtype('uint8'))
    >>> est.decode(codes).shape
    (2000, 128)
    >>> est.relative_distortion(learn) < 0.25
    True
    """

    codes_: Codes

    def __init__(
        self,
        n_dictionaries: int = 8,
        n_codewords: int = 256,
        *,
        order: int = 2,
        init: str | ArrayLike | AdditiveQuantizer = "hierarchical",
        max_iter: int = 100,
        init_iter: int = 30,
        tol: float = 1e-5,
        random_state: Any = None,
        n_jobs: int | None = None,
        verbose: int = 0,
    ) -> None:
        self.n_dictionaries = n_dictionaries
        self.n_codewords = n_codewords
        self.order = order
        self.init = init
        self.max_iter = max_iter
        self.init_iter = init_iter
        self.tol = tol
        self.random_state = random_state
        self.n_jobs = n_jobs
        self.verbose = verbose

    def fit(self, X: ArrayLike, y: Any = None) -> GroupKMeans:
        """Learn the dictionaries from vectors ``X`` (n, P); ``y`` is ignored.

        Where the fit fails or is interrupted, an earlier fit stays as it was.
        """
        C = check_integer("n_dictionaries", self.n_dictionaries, 1)
        K = check_codewords(self.n_codewords)
        order = check_order(self.order, C)
        check_table(order, C, K)
        max_iter = check_integer("max_iter", self.max_iter, 1)
        init_iter = check_integer("init_iter", self.init_iter, 1)
        tol = check_tolerance(self.tol)
        check_integer("verbose", int(self.verbose) if self.verbose in (True, False) else self.verbose, 0)
        n_jobs = check_n_jobs(self.n_jobs)
        rng = generator(self.random_state)
        with self._keeping_features():
            data = check_X(self, X, reset=True)
            self._check_init((C, K, data.shape[1]))
            warn_about(data, K)
            with Workers(n_jobs) as workers, Reporter("fit", self.verbose) as reporter:
                rows = Rows(data, Frame.of(data, workers))
                reporter.expect(self._iterations(C, data.shape[1], max_iter, init_iter))
                run = Run(rows.energy(workers), order, tol, rng, workers, reporter)
                start, codes, stages = self._start(rows, C, K, run, init_iter)
                before = len(run.history)
                fitted, codes = train(rows, start, codes, run, max_iter, "gk-means")
        self._keep(fitted, codes, stages, rows.frame, run.history, len(run.history) - before)
        return self

    def _keep(
        self,
        fitted: Dictionaries,
        codes: Codes,
        stages: list[Dictionaries],
        frame: Frame,
        history: list[float],
        n_iter: int,
    ) -> None:
        """Set what a fit leaves."""
        D = fitted.D[0].astype(np.float64) / frame.scale
        D[0] += frame.shift
        self.dictionaries_ = np.ascontiguousarray(D, np.float32)
        self.codes_ = codes
        self.shift_, self.scale_ = frame.shift, frame.scale
        self.stages_ = tuple(stages)
        self.history_ = np.array(history)
        self.n_iter_ = n_iter

    def _check_init(self, shape: tuple[int, int, int]) -> None:
        if isinstance(self.init, str):
            if self.init not in INITS:
                raise ValueError(f"init={self.init!r} is unknown; use one of {', '.join(INITS)}, or an array")
        else:
            self._given_start(shape, 1.0)

    def _given_start(self, shape: tuple[int, int, int], scale: float) -> Floats:
        """``init`` as an array."""
        if isinstance(self.init, AdditiveQuantizer):
            check_is_fitted(self.init)
            return check_start(self.init.dictionaries_, shape, scale)
        return check_start(np.asarray(self.init), shape, scale)

    def _iterations(self, C: int, P: int, max_iter: int, init_iter: int) -> int:
        """Most iterations that the fit can take."""
        parts = {"kmeans": C, "hierarchical": count_stages(C, P)}
        return max_iter + init_iter * (parts.get(self.init, 0) if isinstance(self.init, str) else 0)

    def _start(
        self, rows: Rows, C: int, K: int, run: Run, init_iter: int
    ) -> tuple[Dictionaries, Codes | None, list[Dictionaries]]:
        """Dictionaries, codes where the start has them, and the stages to replay."""
        if not isinstance(self.init, str):
            D = self._given_start((C, K, rows.n_features), rows.frame.scale).astype(np.float64)
            D[0] -= rows.frame.shift
            return Dictionaries.single(D * rows.frame.scale), None, []
        if self.init == "random":
            return random(rows, C, K, run.rng), None, []
        if self.init == "kmeans":
            return *kmeans(rows, C, K, run, init_iter), []
        return hierarchical(rows, C, K, run, init_iter)

    def _encoding_order(self) -> int:
        C, K, _ = self.dictionaries_.shape
        order = check_order(self.order, C)
        check_table(order, C, K)
        return order


def generator(random_state: Any) -> np.random.Generator:
    """One Generator from whatever scikit-learn accepts."""
    if isinstance(random_state, np.random.Generator):
        return random_state
    if isinstance(random_state, bool):
        raise ValueError(f"random_state={random_state} is not a seed; use None or an integer of at least 0")
    if random_state is None or isinstance(random_state, (int, np.integer)):
        if random_state is not None and random_state < 0:
            raise ValueError(f"random_state={random_state} is negative; use None or an integer of at least 0")
        return np.random.default_rng(random_state)
    return np.random.default_rng(check_random_state(random_state).randint(2**31 - 1))
