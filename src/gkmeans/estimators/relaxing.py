"""Relaxed training as an estimator has it: in components where rows are wide, on trial where a start has structure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._progress import logger
from .._rows import Codes, Data, Rows
from .._validation import check_relaxation
from ..assignment import GroupAssignment
from ..dictionaries import Dictionaries, drawn
from ..encoding import encode
from ..narrowing import Narrow, TooNarrow, narrowed
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


class Relaxing(AdditiveQuantizer):
    """A quantizer that may be trained beyond the paper (relaxation.py)."""

    init: Any
    init_iter: int
    relaxation: float

    # What each estimator has of its own.

    def _method(self, C: int, K: int) -> GroupAssignment:
        raise NotImplementedError

    def _start(
        self, rows: Data, held: NDArray[np.intp] | None, run: Run
    ) -> tuple[Dictionaries, Codes | None, list[Dictionaries]]:
        """Dictionaries to start from, codes of the rows that are not ``held``, where there are, and the stages."""
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
        start, given, _ = self._start(seen, None, replace(run, tol=max(run.tol, START_TOL)))
        run.reporter.stage_done(self._extra_iterations(rows.n_features))
        return self._relaxed_all(rows, narrow, start, given, run, max_iter, check=True)

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
        relaxed = relax(rest, start, given, apart, way, float(self.relaxation), max_iter - 1, narrow)
        gently = relaxed.dictionaries
        if not self._relaxing_pays(others, plainly, gently, stages, run):
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


def _apart(run: Run, others: Rows, narrow: Narrow | None) -> Run:
    """The run of all rows but these."""
    energy = run.energy - others.energy(run.workers)
    outside = 0.0 if narrow is None else max(0.0, narrow.outside - narrow.outside_of(others, run.workers))
    return replace(run, energy=energy, outside=outside)


def _wide(stages: Sequence[Dictionaries], narrow: Narrow | None) -> Chain:
    """The stages as those of wide rows."""
    return tuple(stages if narrow is None else map(narrow.wide, stages))
