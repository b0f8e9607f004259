"""Relaxed training: codes by dictionaries that have not seen the rows, under noise that fades. Beyond the paper.

Plain training stops in the first local minimum, because every codeword is fitted to just the rows that chose it. Here
the rows are dealt into folds, and each fold is assigned by dictionaries solved from the other folds: a row's codes must
stand up to codewords that do not know the row, as those of a new row will. Noise on the codewords (stochastic
relaxation, Martinez et al. 2018) and rounds of perturbed codes (assignment.py) let the codes move further. In the end
the dictionaries are solved from several assignments under noise at once: a row then speaks for all codewords that it
might have chosen, and what one choice taught them by chance is averaged away.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import reduce
from operator import add
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ._files import FileError
from ._parallel import Workers
from ._progress import logger
from ._rows import Codes, Floats, Source, decode
from ._sums import Doubles, rounded
from .assignment import GroupAssignment, Method, SwiftAssignment
from .checkpoint import State
from .dictionaries import Dictionaries
from .narrowing import Narrow
from .passes import Collect, Passed, Sweep
from .products import MOST_SWAYED, swayed
from .shrinkage import Shrinkage
from .steps import fine_enough
from .training import Candidates, Run, Task, collected, sweep, updated
from .update import ALONE_UNKNOWNS, Statistics

FOLDS = 4
ITERATIONS = 96
"""Most iterations with folds and noise; there is one more on all rows."""

SAMPLED_OF, FEWEST_SAMPLES, SAMPLE_HEAT = 8, 3, 0.5
"""One of so many iterations, the last ones, takes a sample of codes for the dictionaries; fewer are not worth it. And
the most noise that they do so under, in deviations of the residual."""

ROUNDS = 4
"""Rounds of an iteration in 16-bit steps."""

WARM, MANY, FEW, FEWEST, WARMEST = 0.4, 8, 4, 3, 2.0
"""Few dictionaries stand more noise: up to WARMEST times as much, where it stays below WARM of what they explain."""

HELD_ROWS, SPREAD_ROWS = 4096, 1024
"""Rows of a fold that judge a shrinkage, and those of them that show the residual."""


def judge(iteration: int) -> int | None:
    """The fold that judges the shrinkage: each in turn, in every iteration at first, then in one of four."""
    if iteration > FOLDS and iteration % FOLDS:
        return None
    return (iteration if iteration <= FOLDS else iteration // FOLDS) % FOLDS


def turns() -> tuple[range, range]:
    """Folds that are assigned at once: half of them; the other half then knows of it within the same iteration."""
    return range(FOLDS // 2), range(FOLDS // 2, FOLDS)


class Folds:
    """The rows dealt into folds: the fold of each row, rows spread over each fold that stand for it, and over all."""

    def __init__(self, rows: Source, rng: np.random.Generator, narrow: Narrow | None = None) -> None:
        self.rows, self.seed, self.narrow = rows, int(rng.integers(2**63)), narrow
        self.candidates = Candidates(rows)
        self.of = rows.folds(FOLDS, self.seed)
        self.places = [self._spaced(np.flatnonzero(self.of == f)) for f in range(FOLDS)]
        # those of the rows held that show the residual
        self.some = [slice(None, None, -(-len(places) // SPREAD_ROWS)) for places in self.places]
        together = rows.take(np.concatenate(self.places))
        edges = np.cumsum([0, *map(len, self.places)])
        self.held = [together.take(np.arange(*edges[f : f + 2])) for f in range(FOLDS)]

    @staticmethod
    def _spaced(fold: NDArray[np.intp]) -> NDArray[np.intp]:
        return fold[np.linspace(0, len(fold) - 1, min(len(fold), HELD_ROWS)).astype(np.intp)]

    def statistics(self, codes: Codes, like: Dictionaries, workers: Workers) -> list[Statistics]:
        """Those of each fold: one pass."""
        job = Collect(like, self.rows.grid(), FOLDS, self.seed)
        return self.rows.passed(job, codes, workers).statistics

    @staticmethod
    def seen_by(f: int, parts: Sequence[Statistics]) -> Statistics:
        """What the dictionaries of a fold are solved from: the other folds."""
        return reduce(add, [*parts[:f], *parts[f + 1 :]])

    def solved(
        self,
        turn: Sequence[int],
        trained: Sequence[Dictionaries],
        parts: Sequence[Statistics],
        codes: Codes,
        shrinkage: Shrinkage,
        judging: int | None,
        run: Run,
    ) -> list[Dictionaries]:
        """Dictionaries for each fold of a turn by the statistics of the others; one fold may judge the shrinkage."""

        def one(task: tuple[int, float]) -> Dictionaries:
            f, points = task
            return updated(trained[f], self.seen_by(f, parts), run.workers, points, rough=True)

        tasks = [(f, shrinkage.points) for f in turn]
        if judging is not None:
            tasks.append((judging, shrinkage.tried))
        at_once = parts[0].counts.size <= ALONE_UNKNOWNS
        out = run.workers.map(one, tasks) if at_once else [one(task) for task in tasks]
        if judging is not None:
            then, place = out.pop(), turn.index(judging)
            out[place] = shrinkage.better(out[place], then, self.held[judging], codes[self.places[judging]])
        return out

    def heated(
        self, turn: Sequence[int], trained: Sequence[Dictionaries], heat: float, codes: Codes, run: Run
    ) -> list[Dictionaries | None]:
        """For each fold of a turn its dictionaries with noise on every codeword, ``heat`` deviations of the residual.

        None for the other folds.
        """
        seeds = dict(zip(turn, run.rng.integers(2**63, size=len(turn)), strict=True))
        # the codes may lie on a cluster
        chosen = {f: codes[self.places[f][self.some[f]]] for f in turn}

        def one(f: int) -> Dictionaries:
            residual = self.held[f].block(self.some[f]) - decode(trained[f].D[0], chosen[f])
            noise = spread(residual) if self.narrow is None else self.narrow.noise(residual)
            return heated(trained[f], noise, heat, np.random.default_rng(seeds[f]))

        noisy = dict(zip(turn, run.workers.map(one, turn), strict=True))
        return [noisy.get(f) for f in range(FOLDS)]

    def unexplained(self, fitted: Dictionaries, codes: Codes) -> float:
        """Share of the rows' variance that the residual has, by rows of all folds."""
        X = np.concatenate([held.block(s) for held, s in zip(self.held, self.some, strict=True)])
        chosen = codes[np.concatenate([places[s] for places, s in zip(self.places, self.some, strict=True)])]
        outside = 0.0 if self.narrow is None else float(self.narrow.columns.sum())
        variance = float(np.var(X, axis=0, dtype=np.float64).sum()) + outside
        left = float(np.square(spread(X - decode(fitted.D[0], chosen)), dtype=np.float64).sum()) + outside
        return min(1.0, left / variance) if variance > 0 else 1.0

    def errors(self, fitted: Sequence[Dictionaries], way: Method, codes: Codes, workers: Workers) -> float:
        """Squared error of the rows held of each fold by dictionaries of its own, from the ``codes`` of all rows."""
        held = zip(self.held, fitted, self.places, strict=True)
        return sum(sweep(rows, D, way, codes[places], workers)[1] for rows, D, places in held)

    def assigned(self, noisy: Sequence[Dictionaries | None], way: Method, codes: Codes, workers: Workers) -> Passed:
        """Codes of each fold by its own dictionaries, where it has some: one pass, or one a fold with large tables."""
        return self.rows.passed(Sweep(noisy, way, self.rows.grid(), self.seed), codes, workers)


class Relaxed(NamedTuple):
    """What relaxed training gives: dictionaries, codes, and numbers that are ``known`` of it.

    ``alone`` are the dictionaries that the codes ask for by themselves, without samples.
    """

    dictionaries: Dictionaries
    alone: Dictionaries
    codes: Codes
    numbers: dict[str, float]


def relax(
    rows: Source,
    start: Dictionaries,
    codes: Codes | None,
    run: Run,
    way: GroupAssignment,
    temperature: float,
    max_iter: int,
    narrow: Narrow | None = None,
) -> Relaxed:
    """What at most ``max_iter`` iterations give; the run's history grows.

    The noise that the codes see goes from ``temperature`` times the residual, dimension by dimension, down to nothing,
    and is ``temperature`` again, at most SAMPLE_HEAT, in those that take samples. The history holds the distortion of
    each fold by the dictionaries of the others, with noise, and of all rows in the end. Where the rows are those of
    ``narrow``, the noise is that of the wide ones.
    """
    iterations = min(ITERATIONS, max_iter - 1) if len(rows) >= FOLDS else 0
    samples = sampled_of(iterations)
    cooling = iterations - samples
    folds, task = Folds(rows, run.rng, narrow), Task(run, len(rows))
    state = task.saved(start, FOLDS, 2)
    if state is None:
        if codes is None:
            codes, _, _ = sweep(rows, start, SwiftAssignment(0, GroupAssignment(1)), None, run.workers)
        left = folds.unexplained(start, codes) if len(rows) >= FOLDS else 1.0
        state = State((start,) * FOLDS, codes, numbers=numbers_of(Shrinkage(), left))
        codes = None  # a copy less
    if not state.done:
        parts = folds.statistics(state.codes, start, run.workers)
    while state.iteration < cooling:
        state, parts, error = iterated(folds, state, parts, way, temperature, cooling, run)
        run.record("relaxed", state.iteration, iterations + 1, error)
        task.save(state)
    if not state.done:
        left, shrinkage = known(state.numbers)
        if not iterations:
            shrinkage.points = 0.0
        heat = min(temperature, SAMPLE_HEAT)
        many, times = sampled(folds, state, parts, way, heat, samples, run) if samples else (reduce(add, parts), 1)
        final = updated(mean_of(state.dictionaries), many, run.workers, times * shrinkage.points)
        last = swiftly(way, 2 * iterations + 1, start.shape, left)
        codes, error, statistics = sweep(rows, final, last, state.codes, run.workers)
        run.record("relaxed", iterations + 1, iterations + 1, error)
        alone = updated(final, statistics, run.workers, shrinkage.points) if times > 1 else final
        numbers = numbers_of(shrinkage, left)
        state = State((final, alone), codes, iterations + 1, done=True, numbers=numbers)
        task.save(state)
    run.ended(state, max_iter)
    final, alone = state.dictionaries
    return Relaxed(final, alone, state.codes, state.numbers)


def sampled_of(iterations: int) -> int:
    """How many of so many iterations take samples: the last ones, where they are enough to be averaged."""
    count = iterations // SAMPLED_OF
    return count if count >= FEWEST_SAMPLES else 0


def sampled(
    folds: Folds, state: State, parts: Sequence[Statistics], way: GroupAssignment, heat: float, count: int, run: Run
) -> tuple[Statistics, int]:
    """Statistics of ``count`` assignments under noise by dictionaries that stay, all added up, and how many.

    Where the rows held of each fold fare worse by them, those of the codes as they are, and 1.
    """
    left, shrinkage = known(state.numbers)
    trained, codes = list(state.dictionaries), state.codes
    for turn in turns():
        trained[turn.start : turn.stop] = folds.solved(turn, trained, parts, codes, shrinkage, None, run)
    found: dict[int, Statistics] = {}
    for sample in range(count):
        errors = []
        for seed, turn in enumerate(turns(), start=2 * (state.iteration + sample) + 1):
            swift = swiftly(way, seed, trained[0].shape, left)
            noisy = folds.heated(turn, trained, heat, state.codes, run)  # the residual of the codes at rest
            some = folds.assigned(noisy, swift, codes, run.workers)
            codes = some.codes
            errors.append(some.error)
            found |= {f: found[f] + one if sample else one for f, one in zip(turn, some.statistics, strict=True)}
        run.record("relaxed", state.iteration + sample + 1, state.iteration + count + 1, rounded(errors))
    sums, points = [found[f] for f in range(FOLDS)], replace(shrinkage, points=count * shrinkage.points)
    then = [one for turn in turns() for one in folds.solved(turn, trained, sums, codes, points, None, run)]
    swift = swiftly(way, 0, trained[0].shape, left)
    before, after = (folds.errors(some, swift, state.codes, run.workers) for some in (trained, then))
    logger.info("fit, samples: squared error of rows held %.6g without and %.6g with them", before, after)
    return (reduce(add, sums), count) if after < before else (reduce(add, parts), 1)


def iterated(
    folds: Folds,
    state: State,
    parts: Sequence[Statistics],
    way: GroupAssignment,
    temperature: float,
    iterations: int,
    run: Run,
) -> tuple[State, list[Statistics], float]:
    """The state and the statistics of the folds after the next of so many iterations, and its squared error.

    A turn assigns half of the folds: what the second half is solved from has the new codes of the first.
    """
    left, shrinkage = known(state.numbers)
    trained, codes, latest, errors = list(state.dictionaries), state.codes, list(parts), []
    for turns_so_far, turn in enumerate(turns(), start=2 * state.iteration + 1):
        swift = swiftly(way, turns_so_far, trained[0].shape, left)
        heat = warmed(trained[0].shape[0], left, temperature) * np.sqrt(1 - turns_so_far / (2 * iterations))
        judging = judge(state.iteration + 1)
        judging = judging if judging in turn else None
        trained[turn.start : turn.stop] = folds.solved(turn, trained, latest, codes, shrinkage, judging, run)
        if not np.sum([part.counts for part in latest], axis=0).all():
            revived = folds.candidates.revive(mean_of(trained), reduce(add, latest), codes, run)
            trained = together(trained, revived)
        found = folds.assigned(folds.heated(turn, trained, heat, codes, run), swift, codes, run.workers)
        codes = found.codes
        latest[turn.start : turn.stop] = found.statistics
        errors.append(found.error)
    numbers = numbers_of(shrinkage, left)
    return State(tuple(trained), codes, state.iteration + 1, numbers=numbers), latest, rounded(errors)


def swiftly(
    way: GroupAssignment, seed: int, shape: tuple[int, int, int], unexplained: float
) -> GroupAssignment | SwiftAssignment:
    """How an iteration assigns, as ``way`` would: in 16-bit steps where that hardly sways a choice."""
    C, _, P = shape
    if swayed(C, P, unexplained) > MOST_SWAYED:
        return replace(way, seed=seed)
    return SwiftAssignment(ROUNDS, replace(way, seed=seed, coarse=True), seed, fine_enough(unexplained))


def numbers_of(shrinkage: Shrinkage, unexplained: float) -> dict[str, float]:
    """What a state keeps of these."""
    return asdict(shrinkage) | {"unexplained": unexplained, "sampled of": SAMPLED_OF}


def known(numbers: dict[str, float]) -> tuple[float, Shrinkage]:
    """The share that the start leaves unexplained, and the shrinkage, of a state."""
    if numbers.keys() != numbers_of(Shrinkage(), 0.0).keys() or numbers["sampled of"] != SAMPLED_OF:
        raise FileError(
            f"a checkpoint of relaxed training with {sorted(numbers)}, of another gkmeans; pass a new folder"
        )
    return numbers["unexplained"], Shrinkage(numbers["points"], numbers["factor"])


def warmed(C: int, unexplained: float, temperature: float) -> float:
    """The temperature that C dictionaries stand, where the residual has this share of the variance.

    With three or four dictionaries the noise is best at WARM times the energy that they explain, with eight or more,
    and with two, at half a deviation of the residual whatever that is. It is never below what is asked for.
    """
    if C >= MANY or C < FEWEST or not 0 < unexplained < 1 or temperature == 0:
        return temperature
    most = float(np.sqrt(WARM * (1 - unexplained) / unexplained)) / temperature
    times: float = min(WARMEST, max(1.0, most)) ** min(1.0, (MANY - C) / (MANY - FEW))
    return temperature * times


def settled(
    rows: Source, relaxed: Relaxed, run: Run, way: GroupAssignment, narrow: Narrow | None = None
) -> tuple[Dictionaries, Codes]:
    """One more iteration without noise or folds: what was relaxed without some rows, or columns, takes them in.

    The dictionaries are those that the codes of all rows ask for, moved by as much as samples moved them from those
    that the codes of the rows before asked for.
    """
    fitted, alone, codes, numbers = relaxed
    if narrow is not None:
        run.outside, fitted, alone = 0.0, narrow.wide(fitted), narrow.wide(alone)
    left, shrinkage = known(numbers)
    statistics = collected(rows, codes, fitted, run.workers)
    asked = updated(alone, statistics, run.workers, shrinkage.points)
    final = replace(asked, D=(asked.D[0] + (fitted.D[0] - alone.D[0]),))
    last = swiftly(way, 0, final.shape, left)  # turns have the seeds from 1 on
    codes, error, _ = sweep(rows, final, last, codes, run.workers)
    run.last += 1
    run.record("relaxed", run.last, run.last, error)
    return final, codes


def spread(residual: Floats) -> Floats:
    """Root mean square of the residual (m, P) in each dimension, (P,)."""
    mean: Doubles = np.square(residual, dtype=np.float64).mean(axis=0)
    return np.sqrt(mean).astype(np.float32)


def heated(fitted: Dictionaries, noise: Floats, heat: float, rng: np.random.Generator) -> Dictionaries:
    """``fitted`` with noise on every codeword: the sum of one from each dictionary moves by ``heat`` deviations.

    ``noise`` holds the deviation of each dimension (P,), or a factor (P, P) of their covariance.
    """
    if heat == 0:
        return fitted
    [D] = fitted.D
    sigma = np.float32(heat / np.sqrt(len(D))) * noise
    moved: Floats = rng.standard_normal(D.shape, dtype=np.float32)
    if sigma.ndim == 1:
        moved *= sigma
    else:
        moved = (moved.reshape(-1, len(sigma)) @ sigma).reshape(D.shape)
    moved += D
    return replace(fitted, D=(moved,))


def together(trained: Sequence[Dictionaries], revived: Dictionaries) -> list[Dictionaries]:
    """``trained`` with those codewords of ``revived`` that differ from the mean: the same new places in each fold."""
    moved = (revived.D[0] != mean_of(trained).D[0]).any(axis=2, keepdims=True)
    return [replace(one, D=(np.where(moved, revived.D[0], one.D[0]),)) for one in trained]


def mean_of(trained: Sequence[Dictionaries]) -> Dictionaries:
    """The mean of the folds' dictionaries, where codewords out of use stay."""
    D = np.stack([one.D[0] for one in trained]).mean(axis=0, dtype=np.float64)
    return replace(trained[0], D=(np.asarray(D, np.float32),))
