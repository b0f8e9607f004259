"""GroupKMeans: gk-means (a, b) of the paper, a = order, b = init, Sec. 2."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import check_is_fitted

from .. import _core
from .._rows import Codes, Data, Floats, Source
from .._validation import check_effort, check_integer, check_order, check_relaxation, check_start
from ..assignment import GroupAssignment, Method, SwiftAssignment, check_table
from ..dictionaries import TABLE_BYTES, Dictionaries, table_bytes
from ..encoding import PLAIN_ROUNDS, SWIFT_ROUNDS, Encoder, Replay
from ..initialization.hierarchical import count_stages, hierarchical
from ..initialization.kmeans import kmeans
from ..initialization.random import random
from ..narrowing import in_components, less_means
from ..products import MOST_SWAYED, even_enough, swayed
from ..steps import fine_enough
from ..streaming import Chain
from ..training import Run
from .base import AdditiveQuantizer, Learned
from .relaxing import TRAINING_ROUNDS, TRIAL_ITERATIONS, Relaxing, Start

SWIFT_EFFORT = 6
"""Up to this effort a model of relaxed training encodes in 16-bit steps alone, above it exact products come after."""
OUTSIDE = (0.05, 0.05, 0.02, 0.01, 0.01, 0.01, 0.01)
"""What these efforts leave outside of the components they choose codes in, of the residual; a quarter of it is lost."""
QUICK = range(2)
"""Efforts that choose codes in components where they are made in floats, too."""
INITS = ("random", "kmeans", "hierarchical")


def plain(order: int) -> dict[str, int]:
    """Options of ``GroupKMeans`` that give the paper's training and encoding of this order."""
    return {"order": order, "relaxation": 0, "effort": 0 if order == 1 else 2}


class GroupKMeans(Relaxing):
    """Compress vectors to the sum of one codeword from each of several dictionaries.

    Parameters
    ----------
    n_dictionaries : int, default=8
        C: with at most 256 codewords a code takes C bytes.
    n_codewords : int, default=256
        K: codewords in each dictionary, at most 65536.
    order : int, default=2
        Dictionaries whose codes are chosen jointly, from 1 to C: 1 is fastest, 2 is better, C is the global optimum
        and only for small problems; at most 64. Where 16-bit steps are used (``effort``), it has a part in the stages
        of the start, in plain training, and in efforts from 7 on.
    init : {"hierarchical", "kmeans", "random"}, (C, K, P) array or fitted estimator, default="hierarchical"
        Where training starts; a fitted estimator gives its dictionaries, and codes by its own ``encode``. With
        "hierarchical" and few rows relaxed training is tried from k-means, too, and begins there where rows held out
        gain more than chance would have it.
    relaxation : float, default=0.5
        From 0 to 2: noise on the codewords when training starts, in standard deviations of the residual, with 3 to 7
        dictionaries up to twice that; it fades to none over at most 96 iterations; of 24 and more the last eighth takes
        samples with noise instead, unless counts of pairs are sparse. Rows are assigned by dictionaries that were
        solved without them. 0 gives the paper's plain training, which is also taken with fewer than 4 K rows or
        ``max_iter`` below 4, and where rows held out of a trial fare better by it. With few rows they may also choose
        training in leading principal components with a fifth of the noise; the log says which.
    effort : int, default=7
        How hard ``encode`` looks for the best codes, from 0 to 9: O1GA, then 0, 1, 3, 6 … 256 rounds in which half of
        the codes are chosen anew and refined, from 7 on followed by ``order``. Where the CPU can, all but the last is
        done in 16-bit steps by products in bytes, up to 6 in the components of wide rows that matter. Otherwise, with
        ``relaxation=0``, and where steps would sway choices, 0 is O1GA from the first stage of the training, 1 from all
        its stages, 2 the same by ``order``, as the paper has it, and rounds begin at 3, up to 64. With ``order=1``,
        without stages or with one dictionary some efforts are the same.
    max_iter : int, default=100
        Most iterations of the training proper.
    init_iter : int, default=30
        Most iterations of each k-means or stage of the initialisation.
    tol : float, default=1e-5
        Plain training, and each stage of the initialisation, stops when an iteration lowers the relative distortion by
        a smaller part of itself; a stage that relaxed training follows by less than three thousandths. Relaxed
        training has its number of iterations.
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
        Relative distortion after each iteration, those of the initialisation first. Under relaxation it is that of
        rows by dictionaries solved without them, and may rise; that of samples, near the end, is under noise again, and
        stands above that just before; the last one is that of ``codes_``.
    n_iter_ : int
        Iterations of the training proper: the last ``n_iter_`` entries of ``history_``.
    stages_ : tuple of Dictionaries
        Stages of the hierarchical initialisation, which ``encode`` replays where it does not work in 16-bit steps:
        after relaxed training the first alone; empty for other starts, and where few rows fared better from k-means.
    usage_ : (C, K) float32
        Share of the training rows that chose each codeword.
    residual_ : float
        Mean squared length of what the codes leave of a training row, in the frame of the arithmetic.
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

    def __init__(
        self,
        n_dictionaries: int = 8,
        n_codewords: int = 256,
        *,
        order: int = 2,
        init: str | ArrayLike | AdditiveQuantizer = "hierarchical",
        relaxation: float = 0.5,
        effort: int = 7,
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
        self.relaxation = relaxation
        self.effort = effort
        self.max_iter = max_iter
        self.init_iter = init_iter
        self.tol = tol
        self.random_state = random_state
        self.n_jobs = n_jobs
        self.verbose = verbose

    def _method(self, C: int, K: int) -> GroupAssignment:
        order = check_order(self.order, C)
        check_table(order, C, K)
        return GroupAssignment(order)

    def _check_parameters(self) -> None:
        check_integer("init_iter", self.init_iter, 1)
        check_relaxation(self.relaxation)
        check_effort(self.effort)
        if isinstance(self.init, str) and self.init not in INITS:
            raise ValueError(f"init={self.init!r} is unknown; use one of {', '.join(INITS)}, or an array")

    def _check_data(self, shape: tuple[int, int]) -> None:
        if not isinstance(self.init, str):
            self._given_start((*self._sizes(), shape[1]), 1.0)
        if isinstance(self.init, AdditiveQuantizer):
            self.init._check_encoding(shape[0])

    def _learn(self, rows: Data, run: Run, max_iter: int) -> Learned:
        if not self._may_relax(len(rows), max_iter):
            run.reporter.stage_done(self._extra_iterations(rows.n_features))
        elif relaxed := self._relaxed(rows, run, max_iter):
            return relaxed
        return self._learned_plainly(rows, run, max_iter)

    def _way(self, effort: int, C: int, K: int) -> GroupAssignment:
        order = self._method(C, K).order if effort > 1 else 1
        return GroupAssignment(order, PLAIN_ROUNDS[effort])

    def _swift_way(self, effort: int, fine: float) -> GroupAssignment | SwiftAssignment:
        """How ``effort`` assigns where choices may be swayed a little: in steps, then by ``order`` if it is high."""
        C, K = self.dictionaries_.shape[:2]
        swift = SwiftAssignment(SWIFT_ROUNDS[effort], self._way(effort, C, K), fine=fine, in_turn=True)
        return swift if effort <= SWIFT_EFFORT else replace(self._method(C, K), early=swift)

    def _measured(self, energy: float) -> None:
        n, K = len(self.codes_), self._sizes()[1]
        counts = np.stack([np.bincount(column, minlength=K) for column in self.codes_.T])
        self.usage_, self.residual_ = (counts / n).astype(np.float32), float(self.history_[-1]) * energy / n

    def _may_sway(self) -> bool:
        """Whether choices may be swayed a little: where training was relaxed, and so at most the first stage kept."""
        relaxed = check_relaxation(self.relaxation) > 0 and len(self.stages_) <= 1
        return relaxed and len(self.dictionaries_) > 1 and self.residual_ > 0

    def _unexplained(self, D: Floats) -> float:
        """Share of the training rows' variance that the codes leave, by the final dictionaries ``D`` (C, K, P)."""
        varied = less_means(D, self.usage_)
        explained = float(np.einsum("ck,ckp,ckp->", self.usage_, varied, varied, dtype=np.float64))
        return self.residual_ / (self.residual_ + explained)

    def _trusted(self, D: Floats, unexplained: float) -> bool:
        """Whether products of rows with codewords ``D`` (C, K, r) may be in bytes: they hardly sway a choice."""
        C, K, r = D.shape
        return table_bytes(C, K) <= TABLE_BYTES and even_enough(D) and swayed(C, r, unexplained) <= MOST_SWAYED

    def _given_start(self, shape: tuple[int, int, int], scale: float) -> Floats:
        """``init`` as an array."""
        if isinstance(self.init, AdditiveQuantizer):
            check_is_fitted(self.init)
            return check_start(self.init.dictionaries_, shape, scale)
        return check_start(np.asarray(self.init), shape, scale)

    def _given_codes(self, rows: Data, held: NDArray[np.intp] | None, run: Run) -> Codes | None:
        """Codes by a fitted ``init``; None for an array, or where the rows would not fit the scale of its frame."""
        if not isinstance(self.init, AdditiveQuantizer) or self.init.scale_ != rows.frame.scale:
            return None
        method, stages = self.init._encoding(None)
        source: Source = rows.framed(self.init._frame())
        if held is not None:
            source = source.without(held)
        return source.passed(Replay(stages, method), None, run.workers).codes

    def _start_iterations(self, P: int) -> int:
        return self.init_iter * self._start_parts(P) + self._extra_iterations(P)

    def _start_parts(self, P: int) -> int:
        """K-means fits or stages of the initialisation."""
        C, _ = self._sizes()
        parts = {"kmeans": C, "hierarchical": count_stages(C, P)}
        return parts.get(self.init, 0) if isinstance(self.init, str) else 0

    def _extra_iterations(self, P: int) -> int:
        """Most iterations of the trials, and of a second start for plain training after them."""
        if check_relaxation(self.relaxation) == 0:
            return 0
        return self.init_iter * self._start_parts(P) + min(self.max_iter, TRIAL_ITERATIONS) + self.max_iter - 1

    def _start(self, rows: Data, held: NDArray[np.intp] | None, run: Run, init: str | None = None) -> Start:
        """Dictionaries, codes where the start has them, and the stages to replay.

        A start that is learned is learned from the rows that are not ``held``; codes are theirs. It is that of
        ``init``, by default the estimator's own.
        """
        C, K = self._sizes()
        if not isinstance(self.init, str):
            D = self._given_start((C, K, rows.n_features), rows.frame.scale).astype(np.float64)
            D[0] -= rows.frame.shift
            return Dictionaries.single(D * rows.frame.scale), self._given_codes(rows, held, run), []
        source, init = rows if held is None else rows.without(held), init or self.init
        if init == "random":
            return random(source, C, K, run.rng), None, []
        if init == "kmeans":
            return *kmeans(source, C, K, run, self.init_iter), []
        return hierarchical(source, C, K, run, self.init_iter)

    def _final(self) -> Dictionaries:
        D = self.dictionaries_.astype(np.float64)
        D[0] -= self.shift_
        return Dictionaries.single(D * self.scale_)

    def _links(self) -> tuple[Chain, list[Method]]:
        C, K = self.dictionaries_.shape[:2]
        last = replace(self._method(C, K), rounds=TRAINING_ROUNDS if self.relaxation else 0)
        return (*self.stages_, self._final()), [*[GroupAssignment(1)] * len(self.stages_), last]

    def _learned(self, chain: Chain, codes: Codes) -> Learned:
        return Learned(chain[-1], codes, chain[:-1])

    def _effort(self, effort: int | None) -> int:
        """The effort asked for, checked; None is the estimator's own."""
        return check_effort(self.effort if effort is None else effort)

    def _settings(self, effort: int | None) -> tuple[Any, ...]:
        effort = self._effort(effort)
        outside = OUTSIDE[effort] if effort <= SWIFT_EFFORT and self._may_sway() else 0.0
        method = self._method(*self.dictionaries_.shape[:2])
        return method, min(effort, 2), outside, self.relaxation, self.residual_, len(self.stages_)  # but for rounds

    def _tuned(self, encoder: Encoder, effort: int | None) -> Encoder:
        effort, first = self._effort(effort), encoder.methods[0]
        if isinstance(first, SwiftAssignment):
            return encoder.by(self._swift_way(effort, first.fine))
        return encoder.by(self._way(effort, *self.dictionaries_.shape[:2]))

    def _encoding(self, effort: int | None, given: bool = False) -> tuple[Method, tuple[Dictionaries, ...]]:
        effort, final = self._effort(effort), self._final()
        few, free = final, self._may_sway() and not given
        if free and effort <= SWIFT_EFFORT:
            few = in_components(final, self.usage_, OUTSIDE[effort] * self.residual_)
        unexplained = self._unexplained(final.D[0]) if free and _core.coarse_products() else 0.0
        if unexplained > 0 and self._trusted(final.D[0], unexplained):
            way = self._swift_way(effort, fine_enough(unexplained))
            if effort > SWIFT_EFFORT:
                return way, (final, final)
            return way, (few if self._trusted(few.D[0], unexplained) else final,)
        last = few if effort in QUICK else final
        return self._way(effort, *final.shape[:2]), (*self.stages_[: 1 if effort == 0 else None], last)
