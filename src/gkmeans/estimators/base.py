"""How every estimator learns: fit, batches, checkpoints. What is learned is each one's own."""

from __future__ import annotations

import copy
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import clone
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from .. import _core
from .._frame import Frame
from .._parallel import Workers, ahead
from .._progress import Reporter
from .._rows import Codes, Data, Floats, Rows
from .._stream import Stream
from .._sums import Doubles
from .._validation import (
    DataWarning,
    check_codewords,
    check_decay,
    check_integer,
    check_n_jobs,
    check_rows,
    check_tolerance,
    check_X,
)
from ..assignment import Method
from ..batches import Batches
from ..checkpoint import Checkpoint
from ..dictionaries import Dictionaries
from ..shrinkage import pays, row_errors
from ..streaming import TURN, Chain, Seen, follow
from ..survey import Survey, blocks_of, survey, warn_about
from ..training import Run, relative
from ..update import Statistics
from . import saving
from .coding import Coder

START_ROWS = 16
"""Rows for each codeword of each dictionary that ``partial_fit`` starts from."""

JUDGES = 4
"""One of so many rows, of the later half of those kept since the data turned, judges the model fitted on the others."""

Quantizer = TypeVar("Quantizer", bound="AdditiveQuantizer")
Opening = Callable[[Workers], tuple[Survey, Data]]
"""What a first pass over the rows has found, and the rows in the frame it gives."""


@dataclass(frozen=True)
class Learned:
    """What training gives: dictionaries, the training rows' codes, and the stages that encoding needs."""

    final: Dictionaries
    codes: Codes
    stages: Chain


class AdditiveQuantizer(Coder):
    """A quantizer that learns: ``x ≈ Σ_c dictionaries_[c, code_c]``."""

    seen_: Seen
    _held: list[NDArray[np.generic]]
    _started: int
    _turn: tuple[NDArray[np.generic], ...] = ()

    # What each estimator has of its own.

    def _sizes(self) -> tuple[int, int]:
        """Columns of the codes, and K, from the parameters."""
        return check_integer("n_dictionaries", self.n_dictionaries, 1), check_codewords(self.n_codewords)

    def _check_parameters(self) -> None:
        """Raise where a parameter is wrong whatever the data."""

    def _check_data(self, shape: tuple[int, int]) -> None:
        """Raise where the parameters do not fit data of this shape."""

    def _start_iterations(self, P: int) -> int:
        """Most iterations before those of the training proper."""
        return 0

    def _learn(self, rows: Data, run: Run, max_iter: int) -> Learned:
        """Train."""
        raise NotImplementedError

    def _check_stages(self) -> None:
        """Raise where the stages of a file are not those of this estimator."""

    def _links(self) -> tuple[Chain, list[Method]]:
        """All that a batch changes, ``_final`` last, and how each link chooses codes."""
        return (self._final(),), [self._method(*self.dictionaries_.shape[:2])]

    def _learned(self, chain: Chain, codes: Codes) -> Learned:
        """What a chain of links gives."""
        return Learned(chain[-1], codes, chain)

    # What they share.

    def fit(
        self: Quantizer,
        X: ArrayLike | Batches,
        y: Any = None,
        *,
        checkpoint: str | os.PathLike[str] | None = None,
    ) -> Quantizer:
        """Learn the dictionaries; where the fit fails or is interrupted, an earlier fit stays as it was.

        Parameters
        ----------
        X : (n, P) array or Batches
            Vectors; a memory-mapped array is read chunk by chunk, and so are ``gkmeans.Batches``.
        y : ignored
            For scikit-learn.
        checkpoint : path, optional
            A folder, new or of an earlier call, that keeps the state after each iteration (samples of relaxed training
            are taken anew). The same call after a crash or Ctrl-C goes on from there and ends with the same bits as a
            fit that was not interrupted. Remove the folder once the model is saved.

        Returns
        -------
        The estimator itself
        """
        self._check_settings()
        with self._keeping_features():
            if isinstance(X, Batches):
                self._fit(partial(_opened, X), checkpoint)
                self.__dict__.pop("feature_names_in_", None)
                self.n_features_in_ = self.dictionaries_.shape[2]
            else:
                self._fit(self._opening(check_X(self, X, reset=True)), checkpoint)
        return self

    def _opening(self, data: NDArray[np.generic]) -> Opening:
        """How ``_fit`` comes to the rows of an array already checked."""
        self._check_data(data.shape)  # before any work; the rows of batches must be counted first
        return partial(_opened, data)

    def _check_settings(self) -> None:
        """Raise where a parameter is wrong whatever the data."""
        self._method(*self._sizes())
        self._check_parameters()
        check_integer("max_iter", self.max_iter, 1)
        check_tolerance(self.tol)
        check_integer("verbose", int(self.verbose) if self.verbose in (True, False) else self.verbose, 0)
        check_n_jobs(self.n_jobs)

    def _fit(self, opening: Opening, checkpoint: str | os.PathLike[str] | None = None) -> None:
        """``fit`` with parameters already checked, on rows that are checked when they are opened."""
        C, K = self._sizes()
        rng = generator(self.random_state)
        with Workers(self.n_jobs) as workers, Reporter("fit", self.verbose) as reporter:
            found, rows = opening(workers)
            self._check_data(found.shape)
            warn_about(found, K)
            reporter.expect(self._start_iterations(rows.n_features) + self.max_iter)
            run = Run(found.energy, self._method(C, K), self.tol, rng, workers, reporter)
            with ExitStack() as stack:
                if checkpoint is not None:
                    run.checkpoint = stack.enter_context(closing(Checkpoint(checkpoint, self._identity(found), rng)))
                learned = self._learn(rows, run, self.max_iter)
            learned = replace(learned, codes=np.asarray(learned.codes))
        self.shift_, self.scale_ = rows.frame.shift, rows.frame.scale
        self._keep(learned, run.history, run.last)
        self._measured(found.energy)
        for name in ("seen_", "_held", "_turn"):
            self.__dict__.pop(name, None)

    def _identity(self, found: Survey) -> dict[str, Any]:
        """What must be the same for a fit to go on from a checkpoint."""
        params = self.get_params(deep=False)
        settings = {name: saving.told(params[name]) for name in params if name not in ("n_jobs", "verbose")}
        data = {"shape": list(found.shape), "dtype": found.dtype, "sha256 of the rows": found.digest}
        relaxed = {"trial": "plain, relaxed from two starts, in components"} if getattr(self, "relaxation", 0) else {}
        settings["16-bit steps"] = bool(relaxed) and _core.coarse_products()
        return {"estimator": type(self).__name__, **settings, **relaxed, **data}

    def _keep(self, learned: Learned, history: Sequence[float], n_iter: int) -> None:
        """Set what training leaves."""
        self.dictionaries_ = full_length(learned.final, self._frame())
        self.codes_, self.stages_ = learned.codes, learned.stages
        self.history_ = np.array(history)
        self.n_iter_ = n_iter

    @contextmanager
    def _keeping_features(self) -> Iterator[None]:
        """What scikit-learn notes of the input before a fit is undone where the fit fails or is interrupted."""
        names = ("n_features_in_", "feature_names_in_")
        before = {name: getattr(self, name) for name in names if hasattr(self, name)}
        try:
            yield
        except BaseException:
            for name in names:
                self.__dict__.pop(name, None)
            self.__dict__.update(before)
            raise

    def partial_fit(self: Quantizer, X: ArrayLike, y: Any = None, *, decay: float = 1.0) -> Quantizer:
        """Go on training with a batch of vectors, which is dropped once it is learned; ``y`` is ignored.

        The first batches are kept until there are 16 rows for each codeword of each dictionary: the model is fitted
        on them whenever their number has doubled. Then they are dropped. After ``fit`` it goes on from the fit.

        Parameters
        ----------
        X : (n, P) array
            The batch, of any size.
        decay : float from 0 to 1, default=1.0
            What earlier rows count from now on, of what they counted before; below 1 the model follows data that
            changes: with batches of n rows it remembers about ``n / (1 - decay)`` of them. The rows of the first
            batches do not fade while they are kept. Where a batch has 1.5 times the relative distortion of those
            before, the data may have turned: from then on rows are kept until they are as many as a start takes, and
            where a model fitted on most of them is better on the others, it takes the place of this one.

        Returns
        -------
        The estimator itself; ``codes_`` are those of the batch, whose relative distortion ends ``history_``.

        Examples
        --------
        >>> import gkmeans as gk
        >>> learn = gk.datasets.load_sample().learn[:4000]
        >>> est = gk.GroupKMeans(2, 16, random_state=0)
        >>> for batch in range(0, 4000, 500):
        ...     est = est.partial_fit(learn[batch : batch + 500])
        >>> est.relative_distortion(learn) < 0.31
        True
        """
        decay = check_decay(decay)
        if not hasattr(self, "dictionaries_"):
            return self._begin(X, [])
        data = check_X(self, X, reset=False, scale=self.scale_)
        held: list[NDArray[np.generic]] = getattr(self, "_held", [])
        count = sum(map(len, held)) + len(data)
        if held and count >= min(2 * self._started, self._enough()):
            return self._begin(X, held)
        self._follow(data, 1.0 if held else decay)
        if held:
            self._held = [*held, np.array(data)]
        elif sum(map(len, self._turn)) >= self._enough():
            self._renew(data)
        return self

    def _renew(self, data: NDArray[np.generic]) -> None:
        """Fit anew on the rows kept since the data turned; the model stays where rows held out fare no worse by it."""
        rows = np.concatenate(self._turn)
        place = np.arange(len(rows))
        judging = (place % JUDGES == 0) & (place >= len(rows) // 2)  # what came last, lest a few odd batches decide
        judges, model = rows[judging], self
        with Workers(check_n_jobs(self.n_jobs)) as workers, warnings.catch_warnings():
            warnings.simplefilter("ignore", DataWarning)
            errors = self._errors(judges, workers)
            with suppress(ValueError):  # rows that no model can be fitted on
                fresh = clone(self).fit(rows[~judging])
                check_rows(judges, 0, fresh.scale_)
                check_rows(data, 0, fresh.scale_)
                found = fresh._errors(judges, workers)
                if pays(errors - found):
                    model, errors = fresh, found
            energy = Rows(judges, model._frame()).energy(workers) / model.scale_**2
            seen = replace(model._what_was_seen(workers), usual=relative(float(errors.sum()), energy))
            if model is not self:
                for name in ("shift_", "scale_", "usage_", "residual_"):
                    if hasattr(model, name):
                        setattr(self, name, getattr(model, name))
                fitted = Learned(model._final(), model._choose(data, None, workers), model.stages_)
                self._keep(fitted, [*self.history_, *model.history_], self.n_iter_ + model.n_iter_)
        self.seen_, self._turn = seen, ()

    def _errors(self, data: NDArray[np.generic], workers: Workers) -> Doubles:
        """‖x − x̂‖² (n,) of rows already checked, encoded afresh."""
        rows, codes = Rows(data, self._frame()), self._choose(data, None, workers)
        return row_errors(rows, self._final(), codes) / self.scale_**2

    def _enough(self) -> int:
        """Rows from which batches are followed by their statistics alone."""
        C, K = self._sizes()
        return START_ROWS * C * K

    def _begin(self: Quantizer, X: ArrayLike, held: list[NDArray[np.generic]]) -> Quantizer:
        """Fit on the batches held and ``X``; they stay held where they are not enough yet."""
        self._check_settings()
        with self._keeping_features():
            rows = np.concatenate([*held, check_X(self, X, reset=not held)])
            self._fit(self._opening(rows))
        if len(rows) < self._enough():
            self._held, self._started = [rows], len(rows)
        return self

    def mark_start(self: Quantizer) -> Quantizer:
        """Make what was seen so far the common start of models that are to be merged.

        Save the model then; every worker loads it, goes on with batches of its own by ``partial_fit`` and saves its
        model, and ``gkmeans.merge`` adds what they have seen since.

        Examples
        --------
        >>> import copy
        >>> import gkmeans as gk
        >>> learn = gk.datasets.load_sample().learn[:3000]
        >>> est = gk.GroupKMeans(2, 16, relaxation=0, random_state=0).fit(learn[:1000]).mark_start()
        >>> other = copy.deepcopy(est)
        >>> both = gk.merge([est.partial_fit(learn[1000:2000]), other.partial_fit(learn[2000:])])
        >>> both.relative_distortion(learn) < other.relative_distortion(learn)
        True
        """
        check_is_fitted(self)
        chain, _ = self._links()
        with Workers(check_n_jobs(self.n_jobs)) as workers:
            seen = self._what_was_seen(workers)
        start = Seen.nothing(chain, tuple(seen.total(i) for i in range(len(chain))), self._frame())
        self.seen_ = replace(start, usual=seen.usual)
        for name in ("_held", "_turn"):
            self.__dict__.pop(name, None)
        return self

    def _what_was_seen(self, workers: Workers) -> Seen:
        """The statistics kept, or what the codes of a fit imply."""
        if hasattr(self, "seen_"):
            return self.seen_
        if not hasattr(self, "codes_"):
            raise ValueError(
                f"this {type(self).__name__} was loaded without the codes of its training rows, so the weight of what "
                "it knows is open; set codes_ = encode(rows) of rows like those, or call mark_start before save"
            )
        chain, _ = self._links()
        start = tuple(Statistics.implied(self.codes_, link, workers) for link in chain)
        return Seen.nothing(chain, start, self._frame())

    def _follow(self, data: NDArray[np.generic], decay: float) -> None:
        """Take in a batch by its statistics."""
        self._check_encoding(len(data))
        rows, rng = Rows(data, self._frame()), generator(self.random_state)
        with Workers(check_n_jobs(self.n_jobs)) as workers:
            seen = self._what_was_seen(workers).faded(decay)
            chain, seen, codes, first, error = follow(rows, *self._links(), seen, rng, workers)
            energy = rows.energy(workers)
            distortion = relative(error, energy)
        finite = self.history_[np.isfinite(self.history_)]  # rows of zeros have no relative distortion
        expected = TURN * float(finite[-1] if len(finite) else 1)  # new rows have more than those of a fit
        seen, odd = seen.noted(relative(first, energy), expected)
        turn = self._turn
        if decay < 1 and (odd or turn):
            turn = (*turn, np.array(data[:: -(-len(data) // self._enough())]))
        self._keep(self._learned(chain, codes), [*self.history_, distortion], self.n_iter_ + 1)
        self.seen_, self._turn = seen, turn

    def __sklearn_clone__(self) -> AdditiveQuantizer:
        """Unfitted copy; an ``init`` stays as it is, since a fitted estimator there is data, not a part to refit."""
        params = self.get_params(deep=False)
        copied = {name: value if name == "init" else clone(value, safe=False) for name, value in params.items()}
        return type(self)(**copied)


def _opened(data: NDArray[np.generic] | Batches, workers: Workers) -> tuple[Survey, Data]:
    """An opening of rows of this process."""
    if isinstance(data, Batches):
        found = survey(ahead(data.checked()), workers)
        return found, Stream(data, found.shape, found.frame)
    found = survey(blocks_of(data), workers)
    return found, Rows(data, found.frame)


def bare(est: Quantizer) -> Quantizer:
    """A copy that encodes as ``est`` does, without what only training needs: codes, sums, rows kept."""
    out = copy.copy(est)
    for name in ("codes_", "seen_", "_held", "_turn"):
        out.__dict__.pop(name, None)
    return out


def full_length(final: Dictionaries, frame: Frame) -> Floats:
    """``dictionaries_`` (C, K, P) in the units of the input, from those in the frame of the arithmetic."""
    D = final.full().astype(np.float64) / frame.scale
    D[0] += frame.shift
    return np.ascontiguousarray(D, np.float32)


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
