"""Relaxed training: codes by dictionaries that have not seen the rows, under noise that fades. Beyond the paper.

Plain training stops in the first local minimum, because every codeword is fitted to just the rows that chose it. Here
the rows are dealt into folds, and each fold is assigned by dictionaries solved from the other folds: a row's codes must
stand up to codewords that do not know the row, as those of a new row will. Noise on the codewords (stochastic
relaxation, Martinez et al. 2018) and a round of perturbed codes (perturb.inl) let the codes move further.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import add

import numpy as np
from numpy.typing import NDArray

from ._elsewhere import folds, gathered, total
from ._parallel import spans
from ._rows import READ_ROWS, Codes, Floats, Part, Source, decode
from ._sums import Doubles
from .assignment import GroupAssignment, assign
from .dictionaries import Dictionaries, squared_errors
from .training import Run, updated
from .update import Statistics

FOLDS = 4
ITERATIONS = 40
"""Most iterations with folds, noise in all but the last of them; there is one more on all rows."""

HELD_ROWS = 4096
"""Rows of a fold that judge a shrinkage and show the residual."""


@dataclass
class Shrinkage:
    """Points by which codewords are drawn to zero, learned on the way: each iteration tries twice or half as much.

    The judge is a fold that the dictionaries were solved without.
    """

    points: float = 1.0
    factor: float = 2.0

    def solved(self, start: Dictionaries, others: Statistics, fold: Source, codes: Codes, run: Run) -> Dictionaries:
        """Dictionaries by the ``others``; what suits the ``fold`` better is kept."""
        tried = self.points * self.factor
        fits = [updated(start, others, run.workers, points) for points in (self.points, tried)]
        now, then = (held_error(fit, fold, codes, run) for fit in fits)
        if then < now:
            self.points = tried
            return fits[1]
        self.factor = 1 / self.factor
        return fits[0]


def spaced(fold: Source) -> NDArray[np.intp]:
    """Places of rows that stand for the fold."""
    return np.linspace(0, len(fold) - 1, min(len(fold), HELD_ROWS)).astype(np.intp)


def held_error(fitted: Dictionaries, fold: Source, codes: Codes, run: Run) -> float:
    """Squared error of rows spread over the fold, assigned from the codes given."""
    some = spaced(fold)
    _, errors = assign(Part(fold, some), fitted, run.method, codes[some], run.workers)
    return total(errors)


def squared_error(rows: Source, D: Floats, codes: Codes) -> float:
    """Σ‖x − x̂‖² of rows with the codes given."""
    parts = [slice(*span) for span in spans(len(rows), READ_ROWS)]
    return sum(float(squared_errors(rows.block(part), D, codes[part]).sum(dtype=np.float64)) for part in parts)


def relax(
    rows: Source,
    start: Dictionaries,
    codes: Codes | None,
    run: Run,
    way: GroupAssignment,
    temperature: float,
    max_iter: int,
) -> tuple[Dictionaries, Codes]:
    """Dictionaries and codes after at most ``max_iter`` iterations; the run's history grows.

    The noise that the codes see goes from ``temperature`` times the residual, dimension by dimension, down to nothing.
    The history holds the distortion of each fold by the dictionaries of the others, and of all rows in the end.
    """
    iterations = min(ITERATIONS, max_iter - 1) if len(rows) >= FOLDS else 0
    groups, K = [block.dictionaries for block in start.blocks], start.shape[1]
    if codes is None:
        codes, _ = assign(rows, start, way, None, run.workers)
    parts, given = folds(rows, FOLDS, int(run.rng.integers(2**63)), codes)
    trained, shrinkage = [start] * FOLDS, Shrinkage()
    for iteration in range(1, iterations + 1):
        sums = [Statistics.collect(fold, given[f], K, groups, run.workers) for f, fold in enumerate(parts)]
        heat = temperature * np.sqrt(1 - iteration / iterations)
        errors = []
        for f, fold in enumerate(parts):
            others = reduce(add, sums[:f] + sums[f + 1 :])
            if f == iteration % FOLDS:
                trained[f] = shrinkage.solved(trained[f], others, fold, given[f], run)
            else:
                trained[f] = updated(trained[f], others, run.workers, shrinkage.points)
            noisy = heated(trained[f], spread(trained[f], fold, given[f]), heat, run.rng)
            given[f], missed = assign(fold, noisy, replace(way, seed=iteration), given[f], run.workers)
            errors.append(missed)
        run.record("relaxed", iteration, iterations + 1, sum(total(missed) for missed in errors))
    codes = gathered(rows, parts, given)
    statistics = Statistics.collect(rows, codes, K, groups, run.workers)
    final = updated(mean_of(trained), statistics, run.workers, shrinkage.points if iterations else 0.0)
    codes, missed = assign(rows, final, way, codes, run.workers)
    run.record("relaxed", iterations + 1, iterations + 1, total(missed))
    run.last = iterations + 1
    run.reporter.stage_done(max_iter - run.last)
    return final, codes


def spread(fitted: Dictionaries, fold: Source, codes: Codes) -> Floats:
    """Root mean square of the residual in each dimension, (P,), of rows spread over the fold with the codes given."""
    some = spaced(fold)
    residual = fold.block(some) - decode(fitted.D[0], codes[some])
    mean: Doubles = np.square(residual, dtype=np.float64).mean(axis=0)
    return np.sqrt(mean).astype(np.float32)


def heated(fitted: Dictionaries, deviation: Floats, heat: float, rng: np.random.Generator) -> Dictionaries:
    """``fitted`` with noise on every codeword: the sum of one from each dictionary moves by ``heat`` deviations."""
    if heat == 0:
        return fitted
    [D] = fitted.D
    sigma = np.float32(heat / np.sqrt(len(D))) * deviation
    return replace(fitted, D=(D + sigma * rng.standard_normal(D.shape, dtype=np.float32),))


def mean_of(trained: Sequence[Dictionaries]) -> Dictionaries:
    """The mean of the folds' dictionaries, where codewords out of use stay."""
    D = np.stack([one.D[0] for one in trained]).mean(axis=0, dtype=np.float64)
    return replace(trained[0], D=(np.asarray(D, np.float32),))
