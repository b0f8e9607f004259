"""Relaxed training as an estimator has it: in components where rows are wide, on trial where a start has structure.

Where rows are few, it has more to choose from: relaxed training from another start, and, where most directions carry
less than a code of so many bits can describe (narrowing.py), training in a few leading components with little noise.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._progress import logger
from .._rows import Codes, Data, Floats, Rows
from .._sums import Doubles
from .._validation import check_relaxation
from ..assignment import GroupAssignment
from ..dictionaries import Dictionaries, drawn
from ..encoding import encode
from ..narrowing import SAMPLE_NUMBERS, WORTH, Narrow, TooNarrow, components, gaussian_error, narrowed, spanned, water
from ..relaxation import relax, settled
from ..shrinkage import pays, row_errors
from ..streaming import Chain
from ..training import Run, train
from .base import AdditiveQuantizer, Learned

TRAINING_ROUNDS = 1
"""Perturbed rounds of an iteration of relaxed training where it is made in floats."""
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
SHORTEST = 4
"""Iterations below which relaxed training would have no noise."""
MOST_ROWS, MOST_COLUMNS, FEWEST_HELD = 128, 1024, 32
"""Rows for each codeword of all dictionaries, and columns, above which no leading components are tried, and rows held
out below which they would show nothing."""
LEADING, SURELY = (2 / 3, 1.0), 2.0
"""How many leading components are tried, as shares of those above the water level, and the standard deviations by which
rows held out must gain."""
OTHER_START = "kmeans"
"""Where else a relaxed training of few rows is tried from; it ends in other minima, some of them far lower."""
LITTLE_NOISE = 0.2
"""Share of the relaxation that training in leading components has: more noise would undo what its start has."""


Start = tuple[Dictionaries, Codes | None, list[Dictionaries]]


class Relaxing(AdditiveQuantizer):
    """A quantizer that may be trained beyond the paper (relaxation.py)."""

    init: Any
    init_iter: int
    relaxation: float

    # What each estimator has of its own.

    def _method(self, C: int, K: int) -> GroupAssignment:
        raise NotImplementedError

    def _start(self, rows: Data, held: NDArray[np.intp] | None, run: Run, init: str | None = None) -> Start:
        """Dictionaries to start from, codes of the rows that are not ``held``, where there are, and the stages.

        The start is that of ``init``, where one is named.
        """
        raise NotImplementedError

    def _start_parts(self, P: int) -> int:
        """K-means fits or stages of the start."""
        raise NotImplementedError

    def _extra_iterations(self, P: int) -> int:
        """Most iterations of the trials, and of a second start for plain training after them."""
        raise NotImplementedError

    def _way(self, effort: int, C: int, K: int) -> GroupAssignment:
        """How ``effort`` assigns."""
        raise NotImplementedError

    # What they share.

    def _may_relax(self, n: int, max_iter: int) -> bool:
        """Whether there are rows to hold out and iterations to fade in."""
        return (
            check_relaxation(self.relaxation) > 0 and n >= max(FEW_ROWS * self._sizes()[1], 8) and max_iter >= SHORTEST
        )

    def _nothing_to_lose(self, n: int) -> bool:
        """Whether relaxed training needs no trial: the start has no structure that it could lose, and rows are many."""
        C, K = self._sizes()
        return isinstance(self.init, str) and self.init != "hierarchical" and n >= MANY_ROWS * C * K

    def _relaxed(self, rows: Data, run: Run, max_iter: int, may_narrow: bool = True) -> Learned | None:
        """Relaxed training, of narrow rows where that spares much; None where plain training serves new rows better.

        Then the run is as it was before, and plain training ends as it would have without the trial.
        """
        before = run.rng.bit_generator.state
        way = self._relaxed_at_once if self._nothing_to_lose(len(rows)) else self._relaxed_by_trial
        narrow = narrowed(rows, *self._sizes(), run) if may_narrow and isinstance(self.init, str) else None
        run.outside = 0.0 if narrow is None else narrow.outside
        try:
            learned = way(rows, narrow, run, max_iter)
        except TooNarrow as error:
            logger.info("fit: %s", error)
        else:
            if learned is None:
                run.begin_again(before)
            return learned
        del narrow  # its rows are no longer needed
        run.begin_again(before)
        return self._relaxed(rows, run, max_iter, may_narrow=False)

    def _relaxed_at_once(self, rows: Data, narrow: Narrow | None, run: Run, max_iter: int) -> Learned:
        """Relaxed training of all rows."""
        seen = rows if narrow is None else narrow.rows
        start, given, _ = self._start(seen, None, _soon_settled(run))
        run.reporter.stage_done(self._extra_iterations(rows.n_features))
        return self._relaxed_all(rows, narrow, start, given, run, max_iter, check=True)

    def _relaxed_by_trial(self, rows: Data, narrow: Narrow | None, run: Run, max_iter: int) -> Learned | None:
        """Relaxed training without the rows held out, which then join; None where plain training serves them better."""
        n, seen, way = len(rows), rows if narrow is None else narrow.rows, self._relaxing()
        before = run.rng.bit_generator.state
        held = np.sort(drawn(n, min(n // HELD_OUT, HELD_ROWS), run.rng))
        others, rest = seen.take(held), seen.without(held)
        apart = _apart(run, rows.take(held), narrow)
        start, given, stages = self._start(seen, held, _soon_settled(apart))
        if narrow is not None:
            narrow.check(apart)
        trial = replace(apart, reporter=run.reporter.named(f"{run.reporter.title}, trial"), history=[])
        few = len(held) < HELD_ROWS and n * rows.n_features <= SAMPLE_NUMBERS
        if few:
            run.reporter.stage_done(min(max_iter, TRIAL_ITERATIONS))
            plain_chain = self._plainly(seen, held, trial, run.tol, max_iter)
        else:  # a short one, from a short start
            plain_chain = (*stages, train(rest, start, given, trial, min(max_iter, TRIAL_ITERATIONS), "gk-means")[0])
        begun = len(run.history)
        relaxed = relax(rest, start, given, apart, way, float(self.relaxation), max_iter - 1, narrow)
        gently = relaxed.dictionaries
        errors = self._trial_errors(others, (plain_chain, (*stages, gently)), run)
        may_leave = few and isinstance(self.init, str) and self.init == "hierarchical"
        if may_leave and (elsewhere := self._from_elsewhere(seen, held, others, trial, max_iter, narrow)):
            other, there, history = elsewhere
            totals = (errors[1].sum(), self.init, there.sum(), OTHER_START)
            logger.info("fit, trial: relaxed training with squared error %.6g from %s and %.6g from %s", *totals)
            if pays(errors[1] - there):
                (start, given, stages), errors[1] = other, there
                run.history[:begun] = history
                begun = len(history)
        logger.info(
            "fit, trial: %d rows held out, squared error %.6g by plain and %.6g by relaxed training",
            len(others),
            *(error.sum() for error in errors),
        )
        relaxing = self._relaxing_pays(*errors)
        if leading := self._leading(rows, held, errors[relaxing], apart, max_iter):
            run.begin_again(before)
            return self._in_components(leading, run, max_iter)
        if not relaxing:
            return None
        run.reporter.stage_done(self.init_iter * self._start_parts(rows.n_features))  # no second start
        if len(held) == HELD_ROWS:  # few of many
            run.last = apart.last
            run.reporter.stage_done(max_iter - 1)  # no second training
            theirs = encode(others, (*stages, gently), run.method, None, run.workers)
            completed = relaxed._replace(codes=seen.completed(relaxed.codes, held, theirs))
            found = settled(rows, completed, run, way, narrow)
            return Learned(*found, _wide(stages[:1], narrow))
        del run.history[begun:]
        codes = None
        if given is not None:
            codes = seen.completed(given, held, encode(others, (*stages, start), run.method, None, run.workers))
        learned = self._relaxed_all(rows, narrow, start, codes, run, max_iter)
        return replace(learned, stages=_wide(stages[:1], narrow))

    def _relaxed_all(
        self,
        rows: Data,
        narrow: Narrow | None,
        start: Dictionaries,
        codes: Codes | None,
        run: Run,
        max_iter: int,
        check: bool = False,
    ) -> Learned:
        """Relaxed training of all rows from a start, without its stages; ``check`` whether rows are too narrow."""
        way, heat = self._relaxing(), float(self.relaxation)
        if narrow is None:
            found = relax(rows, start, codes, run, way, heat, max_iter)
            return Learned(found.dictionaries, found.codes, ())
        found = relax(narrow.rows, start, codes, run, way, heat, max_iter - 1, narrow)
        if check:
            narrow.check(run)
        return Learned(*settled(rows, found, run, way, narrow), ())

    def _relaxing(self) -> GroupAssignment:
        """How an iteration of relaxed training assigns."""
        return replace(self._method(*self._sizes()), rounds=TRAINING_ROUNDS)

    def _relaxing_pays(self, plainly: Doubles, gently: Doubles) -> bool:
        """Whether rows held out have smaller errors by relaxed than by plain training, by more than chance has it."""
        return pays(plainly - gently)

    def _trial_errors(self, others: Rows, chains: Sequence[Chain], run: Run) -> list[Doubles]:
        """Squared errors (n,) of rows held out by the last dictionaries of each chain."""
        way, errors = self._way(TRIAL_EFFORT, *self._sizes()), []
        for chain in chains:
            chosen = encode(others, chain, way, None, run.workers)
            errors.append(row_errors(others, chain[-1], chosen))
        return errors

    def _from_elsewhere(
        self, rows: Data, held: NDArray[np.intp], others: Rows, run: Run, max_iter: int, narrow: Narrow | None
    ) -> tuple[Start, Doubles, list[float]] | None:
        """The other start, squared errors (n,) of ``others`` by relaxed training from it, and the start's history.

        The ``others`` are the rows ``held`` out. None where the rows are too narrow for what it describes. The run
        stays as it is, and so does its bar.
        """
        trial = replace(run, rng=copy.deepcopy(run.rng), reporter=run.reporter.unseen(), history=[])
        start, given, stages = self._start(rows, held, _soon_settled(trial), OTHER_START)
        try:
            if narrow is not None:
                narrow.check(trial)
        except TooNarrow as error:
            logger.info("fit, trial from %s: %s", OTHER_START, error)
            return None
        history, heat = trial.history[:], float(self.relaxation)
        found = relax(rows.without(held), start, given, trial, self._relaxing(), heat, max_iter - 1, narrow)
        errors = self._trial_errors(others, ((*stages, found.dictionaries),), run)[0]
        return (start, given, stages), errors, history

    def _leading(self, rows: Data, held: NDArray[np.intp], errors: Doubles, run: Run, max_iter: int) -> Narrow | None:
        """The rows in few leading components, where plain training in them serves the rows ``held`` better.

        It is tried where rows are few, and their ``errors`` so far (of wide rows those in components: less than all)
        above those of the best code of a Gaussian.
        """
        (C, K), n, P = self._sizes(), len(rows), rows.n_features
        many = n > MOST_ROWS * C * K or P > MOST_COLUMNS or n * P > SAMPLE_NUMBERS
        if many or len(held) < FEWEST_HELD or C < 2 or not isinstance(self.init, str):
            return None
        rest, others, bits = rows.take(np.delete(np.arange(n), held)), rows.take(held), C * float(np.log2(K))
        _, variances, V = components(rest, run.workers)
        if errors.sum() <= len(held) * gaussian_error(variances, bits):
            return None
        above = water(variances, bits)[0]
        counts = [r for r in sorted({round(share * above) for share in LEADING}) if C <= r <= WORTH * P]
        if not counts:
            return None
        V = run.kept("leading-trial", partial(_first, V, counts[-1]), (P, counts[-1]))
        tried = {r: self._error_in(spanned(rest, _first(V, r), run.workers), others, run, max_iter) for r in counts}
        best = min(tried, key=lambda r: tried[r].sum())
        if not pays(errors - tried[best], SURELY):
            return None
        logger.info("fit, trial: %.6g by plain training in %d leading components", tried[best].sum(), best)
        del rest  # before all rows are taken
        V = components(rows.take(np.arange(n)), run.workers)[2]
        return spanned(rows, run.kept("leading", partial(_first, V, best), (P, best)), run.workers)

    def _error_in(self, narrow: Narrow, others: Rows, run: Run, max_iter: int) -> Doubles:
        """Squared errors (n,) of ``others`` by a short plain training of narrow rows."""
        title = f"{run.reporter.title}, trial of {narrow.basis.shape[1]} components"
        trial = replace(run, reporter=run.reporter.named(title), history=[], outside=narrow.outside)
        start_tol = _soon_settled(run).tol
        chain = self._plainly(narrow.rows, None, trial, start_tol, min(max_iter, TRIAL_ITERATIONS))
        return self._trial_errors(others, (_wide(chain, narrow),), run)[0]

    def _plainly(self, rows: Data, held: NDArray[np.intp] | None, trial: Run, tol: float, max_iter: int) -> Chain:
        """Stages and dictionaries of a plain training on trial, whose start has this ``tol``; the run stays as it is.

        Its iterations are not among those that the bar expects.
        """
        trial = replace(trial, rng=copy.deepcopy(trial.rng), reporter=trial.reporter.unseen())
        source = rows if held is None else rows.without(held)
        start, given, stages = self._start(rows, held, replace(trial, tol=tol))
        return (*stages, train(source, start, given, trial, max_iter, "gk-means")[0])

    def _in_components(self, narrow: Narrow, run: Run, max_iter: int) -> Learned:
        """Training of narrow rows with little noise, whose codewords have nothing outside of the components."""
        run.outside, heat = narrow.outside, LITTLE_NOISE * float(self.relaxation)
        start, given, stages = self._start(narrow.rows, None, _soon_settled(run))
        found = relax(narrow.rows, start, given, run, self._relaxing(), heat, max_iter)
        return Learned(narrow.wide(found.dictionaries), found.codes, _wide(stages[:1], narrow))

    def _learned_plainly(self, rows: Data, run: Run, max_iter: int) -> Learned:
        """Plain training of all rows."""
        start, given, stages = self._start(rows, None, run)
        fitted, codes = train(rows, start, given, run, max_iter, "gk-means")
        return Learned(fitted, codes, tuple(stages))


def _soon_settled(run: Run) -> Run:
    """The run for a start, which need not settle as far as training does."""
    return replace(run, tol=max(run.tol, START_TOL))


def _apart(run: Run, others: Rows, narrow: Narrow | None) -> Run:
    """The run of all rows but these."""
    energy = run.energy - others.energy(run.workers)
    outside = 0.0 if narrow is None else max(0.0, narrow.outside - narrow.outside_of(others, run.workers))
    return replace(run, energy=energy, outside=outside)


def _first(V: Floats, count: int) -> Floats:
    """The first columns."""
    return np.ascontiguousarray(V[:, :count])


def _wide(stages: Sequence[Dictionaries], narrow: Narrow | None) -> Chain:
    """The stages as those of wide rows."""
    return tuple(stages if narrow is None else map(narrow.wide, stages))
