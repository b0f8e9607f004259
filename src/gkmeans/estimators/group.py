"""GroupKMeans: gk-means (a, b) of the paper, a = order, b = init, Sec. 2."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import check_is_fitted

from .._progress import logger
from .._rows import Codes, Data, Floats, Rows, Source
from .._validation import check_effort, check_integer, check_order, check_relaxation, check_start
from ..assignment import GroupAssignment, Method, check_table
from ..dictionaries import Dictionaries, drawn
from ..encoding import Replay, encode, rounds_of
from ..initialization.hierarchical import count_stages, hierarchical
from ..initialization.kmeans import kmeans
from ..initialization.random import random
from ..narrowing import Narrow, TooNarrow, narrowed
from ..products import MOST_SWAYED, swayed
from ..relaxation import pays, relax, row_errors, settled
from ..streaming import Chain
from ..training import Run, train
from .base import AdditiveQuantizer, Learned

TRAINING_ROUNDS = 1
"""Perturbed rounds in each iteration of a relaxed training."""
FEW_ROWS = 4
"""Rows for each codeword of one dictionary below which training is plain: there is nothing to hold out."""
MANY_ROWS = 16
"""Rows for each codeword of all dictionaries from which a start at random is relaxed without a trial."""
HELD_ROWS, HELD_OUT = 2048, 8
"""Rows held out that choose between plain and relaxed training; one of so many where that is less."""
START_TOL = 3e-3
"""Least ``tol`` of the start of a relaxed training, which goes far beyond where the start would settle."""
TRIAL_ITERATIONS, TRIAL_EFFORT = 12, 5
"""Most iterations of the plain training that the relaxed one is compared with, and how hard held rows are encoded."""
COARSE_EFFORT = 5
"""Up to this effort a model of relaxed training encodes by products in bytes, above it only the stages before the last.

They move its distortion by 0.01 to 0.05 %.
"""
SHORTEST = 4
"""Iterations below which relaxed training would have no noise."""
INITS = ("random", "kmeans", "hierarchical")


def plain(order: int) -> dict[str, int]:
    """Options of ``GroupKMeans`` that give the paper's training and encoding of this order."""
    return {"order": order, "relaxation": 0, "effort": 0 if order == 1 else 2}


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
        Where training starts; a fitted estimator gives its dictionaries, and codes by its own ``encode``.
    relaxation : float, default=0.5
        Noise on the codewords when training starts, in standard deviations of the residual, and with 3 to 7
        dictionaries up to twice that; it fades to none over at most 96 iterations, and rows are assigned by
        dictionaries that were solved without them. 0 gives the paper's plain training, which is also taken with fewer
        than 4 K rows or ``max_iter`` below 4, and where rows held out of a trial fare better by it; the log says which.
    effort : int, default=7
        How hard ``encode`` looks for the best codes, from 0 to 9. 0: O1GA from the first stage of the training; 1: from
        all its stages; 2: the same with the estimator's order, as the paper has it; from 3 on 1, 2, 4 … 64 rounds in
        which half of the codes are drawn anew and refined. A round takes about as long as effort 2 does. Without
        stages (other starts) 0 and 1 are the same, with ``order=1`` 1 and 2, with one dictionary all of them. Up to 5
        products are made in bytes where the CPU can, which moves the distortion by less than 0.1 %, above that only
        those of the stages; not with ``relaxation=0``.
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
        rows by dictionaries solved without them, and may rise; the last one is that of ``codes_``.
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
        start, codes, stages = self._start(rows, None, run)
        fitted, codes = train(rows, start, codes, run, max_iter, "gk-means")
        return Learned(fitted, codes, tuple(stages))

    def _may_relax(self, n: int, max_iter: int) -> bool:
        """Whether there are rows to hold out and iterations to fade in."""
        return (
            check_relaxation(self.relaxation) > 0 and n >= max(FEW_ROWS * self._sizes()[1], 8) and max_iter >= SHORTEST
        )

    def _nothing_to_lose(self, n: int) -> bool:
        """Whether relaxed training needs no trial: the start has no structure that it could lose, and rows are many."""
        C, K = self._sizes()
        return isinstance(self.init, str) and self.init != "hierarchical" and n >= MANY_ROWS * C * K

    def _relaxed(self, rows: Data, run: Run, max_iter: int) -> Learned | None:
        """Relaxed training, of narrow rows where that spares much; None where plain training serves new rows better.

        Then the run is as it was before, and plain training ends as it would have without the trial.
        """
        before = run.rng.bit_generator.state
        way = self._relaxed_at_once if self._nothing_to_lose(len(rows)) else self._relaxed_by_trial
        narrow = narrowed(rows, *self._sizes(), run.workers) if isinstance(self.init, str) else None
        run.outside = 0.0 if narrow is None else narrow.outside
        try:
            learned = way(rows, narrow, run, max_iter)
        except TooNarrow as error:
            logger.info("fit: %s", error)
            run.begin_again(before)
            learned = way(rows, None, run, max_iter)
        if learned is None:
            run.begin_again(before)
        return learned

    def _relaxed_at_once(self, rows: Data, narrow: Narrow | None, run: Run, max_iter: int) -> Learned:
        """Relaxed training of all rows."""
        seen = rows if narrow is None else narrow.rows
        start, given, _ = self._start(seen, None, replace(run, tol=max(run.tol, START_TOL)))
        run.reporter.stage_done(self._extra_iterations(rows.n_features))
        return self._relaxed_all(rows, narrow, start, given, (), run, max_iter)

    def _relaxed_by_trial(self, rows: Data, narrow: Narrow | None, run: Run, max_iter: int) -> Learned | None:
        """Relaxed training without the rows held out, which then join; None where plain training serves them better."""
        n, seen, way = len(rows), rows if narrow is None else narrow.rows, self._relaxing()
        held = np.sort(drawn(n, min(n // HELD_OUT, HELD_ROWS), run.rng))
        others, rest = seen.take(held), seen.without(held)
        apart = _apart(run, rows.take(held), narrow)
        start, given, stages = self._start(seen, held, replace(apart, tol=max(run.tol, START_TOL)))
        if narrow is not None:
            narrow.check(apart)
        trial = replace(apart, reporter=run.reporter.named(f"{run.reporter.title}, trial"), history=[])
        plainly, _ = train(rest, start, given, trial, min(max_iter, TRIAL_ITERATIONS), "gk-means")
        begun = len(run.history)
        gently, chosen, points = relax(rest, start, given, apart, way, float(self.relaxation), max_iter - 1, narrow)
        if not self._relaxing_pays(others, plainly, gently, stages, run):
            return None
        run.reporter.stage_done(self.init_iter * self._start_parts(rows.n_features))  # no second start
        if len(held) == HELD_ROWS:  # few of many
            run.last = apart.last
            run.reporter.stage_done(max_iter - 1)  # no second training
            theirs = encode(others, (*stages, gently), run.method, None, run.workers)
            chosen = seen.completed(chosen, held, theirs)
            return Learned(*settled(rows, gently, chosen, points, run, way, narrow), _wide(stages, narrow))
        del run.history[begun:]
        codes = None
        if given is not None:
            codes = seen.completed(given, held, encode(others, (*stages, start), run.method, None, run.workers))
        return self._relaxed_all(rows, narrow, start, codes, stages, run, max_iter)

    def _relaxed_all(
        self,
        rows: Data,
        narrow: Narrow | None,
        start: Dictionaries,
        codes: Codes | None,
        stages: Sequence[Dictionaries],
        run: Run,
        max_iter: int,
    ) -> Learned:
        """Relaxed training of all rows from a start."""
        way, heat = self._relaxing(), float(self.relaxation)
        if narrow is None:
            return Learned(*relax(rows, start, codes, run, way, heat, max_iter)[:2], tuple(stages))
        found = relax(narrow.rows, start, codes, run, way, heat, max_iter - 1, narrow)
        narrow.check(run)
        return Learned(*settled(rows, *found, run, way, narrow), _wide(stages, narrow))

    def _relaxing(self) -> GroupAssignment:
        """How an iteration of relaxed training assigns."""
        return replace(self._method(*self._sizes()), rounds=TRAINING_ROUNDS)

    def _relaxing_pays(
        self, others: Rows, plainly: Dictionaries, gently: Dictionaries, stages: Sequence[Dictionaries], run: Run
    ) -> bool:
        """Whether rows held out fare better by relaxed than by plain training, by more than chance would have it."""
        way, errors = self._way(TRIAL_EFFORT, *self._sizes()), []
        for fitted in (plainly, gently):
            chosen = encode(others, (*stages, fitted), way, None, run.workers)
            errors.append(row_errors(others, fitted, chosen))
        logger.info(
            "fit, trial: %d rows held out, squared error %.6g by plain and %.6g by relaxed training",
            len(others),
            *(error.sum() for error in errors),
        )
        return pays(errors[0] - errors[1])

    def _way(self, effort: int, C: int, K: int, swift: bool = False) -> GroupAssignment:
        """How ``effort`` assigns by the final dictionaries; where it may be ``swift``, by products in bytes."""
        order = self._method(C, K).order if effort > 1 else 1
        return GroupAssignment(order, rounds_of(effort), 0, swift and effort <= COARSE_EFFORT, swift)

    def _may_round(self) -> bool:
        """Whether products in bytes may choose the codes of this model: they would hardly sway them."""
        C, _, P = self.dictionaries_.shape
        if C == 1 or check_relaxation(self.relaxation) == 0 or not len(self.history_):
            return False
        D = self.dictionaries_.astype(np.float64)
        means = D.mean(axis=1, keepdims=True)
        varied = float(np.square(D - means).sum()) / D.shape[1]
        left = float(self.history_[-1])
        residual = left / max(1 - left, 1e-9) * (varied + float(np.square(means.sum(axis=0)).sum()))
        return swayed(C, P, residual / (residual + varied) if residual > 0 else 0.0) <= MOST_SWAYED

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

    def _start(
        self, rows: Data, held: NDArray[np.intp] | None, run: Run
    ) -> tuple[Dictionaries, Codes | None, list[Dictionaries]]:
        """Dictionaries, codes where the start has them, and the stages to replay.

        A start that is learned is learned from the rows that are not ``held``; codes are theirs.
        """
        C, K = self._sizes()
        if not isinstance(self.init, str):
            D = self._given_start((C, K, rows.n_features), rows.frame.scale).astype(np.float64)
            D[0] -= rows.frame.shift
            return Dictionaries.single(D * rows.frame.scale), self._given_codes(rows, held, run), []
        source = rows if held is None else rows.without(held)
        if self.init == "random":
            return random(source, C, K, run.rng), None, []
        if self.init == "kmeans":
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

    def _encoding(self, effort: int | None, given: bool = False) -> tuple[GroupAssignment, tuple[Dictionaries, ...]]:
        effort = check_effort(self.effort if effort is None else effort)
        C, K = self.dictionaries_.shape[:2]
        way = self._way(effort, C, K, not given and self._may_round())
        return way, (*self.stages_[: 1 if effort == 0 else None], self._final())


def _apart(run: Run, others: Rows, narrow: Narrow | None) -> Run:
    """The run of all rows but these."""
    energy = run.energy - others.energy(run.workers)
    outside = 0.0 if narrow is None else max(0.0, narrow.outside - narrow.outside_of(others, run.workers))
    return replace(run, energy=energy, outside=outside)


def _wide(stages: Sequence[Dictionaries], narrow: Narrow | None) -> Chain:
    """The stages as those of wide rows."""
    return tuple(stages if narrow is None else map(narrow.wide, stages))
