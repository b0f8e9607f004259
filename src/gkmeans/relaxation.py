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

from ._files import FileError
from ._progress import logger
from ._rows import Codes, Source
from ._sums import rounded
from .assignment import GroupAssignment, SwiftAssignment
from .checkpoint import State
from .dictionaries import Dictionaries
from .folds import FOLDS, Folds, turns
from .narrowing import Narrow
from .products import MOST_SWAYED, swayed
from .shrinkage import Shrinkage
from .steps import fine_enough
from .training import Run, Task, collected, sweep, updated
from .update import Statistics, kept_sparse

ITERATIONS = 96
"""Most iterations with folds and noise; there is one more on all rows."""

SAMPLED_OF, FEWEST_SAMPLES, SAMPLE_HEAT = 8, 3, 0.5
"""One of so many iterations, the last ones, takes a sample of codes for the dictionaries; fewer are not worth it. And
the most noise that they do so under, in deviations of the residual."""

ROUNDS = 4
"""Rounds of an iteration in 16-bit steps."""

WARM, MANY, FEW, FEWEST, WARMEST = 0.4, 8, 4, 3, 2.0
"""Few dictionaries stand more noise: up to WARMEST times as much, where it stays below WARM of what they explain."""


def judge(iteration: int) -> int | None:
    """The fold that judges the shrinkage: each in turn, in every iteration at first, then in one of four."""
    if iteration > FOLDS and iteration % FOLDS:
        return None
    return (iteration if iteration <= FOLDS else iteration // FOLDS) % FOLDS


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

    The noise that the codes see goes from ``temperature`` times the residual (``warmed``), dimension by dimension, down
    to nothing, and is ``temperature``, at most SAMPLE_HEAT, in those that take samples. There are none where counts of
    pairs are sparse. The history holds the distortion of each fold by dictionaries solved without it, with noise, and
    of all rows in the end. Where the rows are those of ``narrow``, the noise is that of the wide ones.
    """
    iterations = min(ITERATIONS, max_iter - 1) if len(rows) >= FOLDS else 0
    samples = 0 if kept_sparse(start.groups, start.shape[1]) else sampled_of(iterations)
    cooling, times = iterations - samples, 1
    folds, task = Folds(rows, run.rng, narrow), Task(run, len(rows))
    state = saved(task, start, samples)
    if state is None:
        if codes is None:
            codes = sweep(rows, start, SwiftAssignment(0, GroupAssignment(1)), None, run.workers)[0]
        left = folds.unexplained(start, codes) if len(rows) >= FOLDS else 1.0
        state = State((start,) * FOLDS, codes, numbers=numbers_of(Shrinkage(), left, samples))
        codes = None  # a copy less
    if not state.done:
        parts = folds.statistics(state.codes, start, run.workers)
    while state.iteration < cooling:
        state, error = iterated(folds, state, parts, way, temperature, cooling, run)
        run.record("relaxed", state.iteration, iterations + 1, error)
        task.save(state)
    if not state.done:
        left, shrinkage = known(state.numbers)
        if not iterations:
            shrinkage.points = 0.0
            state = replace(state, numbers=state.numbers | asdict(shrinkage))
        if samples:
            trained = at_rest(folds, state, parts, run)
            parts.clear()  # room for those of the samples
            parts, times = sampled(folds, state, trained, way, min(temperature, SAMPLE_HEAT), samples, run)
        final = updated(mean_of(state.dictionaries), reduce(add, parts), run.workers, times * shrinkage.points)
        last = swiftly(way, 2 * iterations + 1, start.shape, left)
        codes, error, statistics = sweep(rows, final, last, state.codes, run.workers)
        run.record("relaxed", iterations + 1, iterations + 1, error)
        alone = updated(final, statistics, run.workers, shrinkage.points) if times > 1 else final
        state = State((final, alone), codes, iterations + 1, done=True, numbers=state.numbers)
        task.save(state)
    run.ended(state, max_iter)
    final, alone = state.dictionaries
    return Relaxed(final, alone, state.codes, state.numbers)


def sampled_of(iterations: int) -> int:
    """How many of so many iterations take samples: the last ones, where they are enough to be averaged."""
    count = iterations // SAMPLED_OF
    return count if count >= FEWEST_SAMPLES else 0


def at_rest(folds: Folds, state: State, parts: Sequence[Statistics], run: Run) -> list[Dictionaries]:
    """The dictionaries of each fold by the codes of a state, whose statistics are the ``parts``."""
    shrinkage = known(state.numbers)[1]
    return [
        one
        for turn in turns()
        for one in folds.solved(turn, state.dictionaries, parts, state.codes, shrinkage, None, run)
    ]


def sampled(
    folds: Folds, state: State, trained: Sequence[Dictionaries], way: GroupAssignment, heat: float, count: int, run: Run
) -> tuple[list[Statistics], int]:
    """Statistics of each fold over ``count`` assignments under noise by dictionaries that stay, added up, and how many.

    Where the rows held fare worse by them in all, those of the codes as they are, and 1. Each assignment has exact
    sums, and they are added in their order: the same bits, wherever the rows lie.
    """
    (left, shrinkage), codes, sums = known(state.numbers), state.codes, dict[int, Statistics]()

    def take(turn: range, seed: int) -> int:
        nonlocal codes
        noisy = folds.heated(turn, trained, heat, state.codes, run)  # the residual of the codes at rest
        passed = folds.assigned(noisy, swiftly(way, seed, trained[0].shape, left), codes, run.workers)
        codes = passed.codes
        for f in turn:
            mine = passed.statistics.pop(0)
            sums[f] = sums[f] + mine if f in sums else mine
        return passed.error

    for done in range(state.iteration, state.iteration + count):
        errors = [take(turn, seed) for seed, turn in enumerate(turns(), start=2 * done + 1)]
        run.record("relaxed", done + 1, state.iteration + count + 1, rounded(errors))
    parts, more = [sums[f] for f in range(FOLDS)], replace(shrinkage, points=count * shrinkage.points)
    by_samples = [one for turn in turns() for one in folds.solved(turn, trained, parts, codes, more, None, run)]
    swift = swiftly(way, 0, trained[0].shape, left)
    before, after = (folds.errors(fitted, swift, state.codes, run.workers) for fitted in (trained, by_samples))
    logger.info("fit, samples: squared error of rows held %.6g without and %.6g with them", before, after)
    if after < before:
        return parts, count
    parts.clear()  # room for those of the codes at rest
    sums.clear()
    return folds.statistics(state.codes, trained[0], run.workers), 1


def iterated(
    folds: Folds,
    state: State,
    parts: list[Statistics],
    way: GroupAssignment,
    temperature: float,
    iterations: int,
    run: Run,
) -> tuple[State, float]:
    """The state after the next of so many iterations, and its squared error; ``parts``, those of the folds, go along.

    A turn assigns half of the folds: what the second half is solved from has the new codes of the first.
    """
    left, shrinkage = known(state.numbers)
    trained, codes, errors = list(state.dictionaries), state.codes, []
    for turns_so_far, turn in enumerate(turns(), start=2 * state.iteration + 1):
        swift = swiftly(way, turns_so_far, trained[0].shape, left)
        heat = warmed(trained[0].shape[0], left, temperature) * np.sqrt(1 - turns_so_far / (2 * iterations))
        judging = judge(state.iteration + 1)
        judging = judging if judging in turn else None
        trained[turn.start : turn.stop] = folds.solved(turn, trained, parts, codes, shrinkage, judging, run)
        if not np.sum([part.counts for part in parts], axis=0).all():
            revived = folds.candidates.revive(mean_of(trained), reduce(add, parts), codes, run)
            trained = together(trained, revived)
        found = folds.assigned(folds.heated(turn, trained, heat, codes, run), swift, codes, run.workers)
        codes = found.codes
        parts[turn.start : turn.stop] = found.statistics
        errors.append(found.error)
    numbers = state.numbers | asdict(shrinkage)
    return State(tuple(trained), codes, state.iteration + 1, numbers=numbers), rounded(errors)


def swiftly(
    way: GroupAssignment, seed: int, shape: tuple[int, int, int], unexplained: float
) -> GroupAssignment | SwiftAssignment:
    """How an iteration assigns, as ``way`` would: in 16-bit steps where that hardly sways a choice."""
    C, _, P = shape
    if swayed(C, P, unexplained) > MOST_SWAYED:
        return replace(way, seed=seed)
    return SwiftAssignment(ROUNDS, replace(way, seed=seed, coarse=True), seed, fine_enough(unexplained))


def numbers_of(shrinkage: Shrinkage, unexplained: float, samples: int) -> dict[str, float]:
    """What a state keeps of these."""
    return asdict(shrinkage) | {"unexplained": unexplained, "samples": samples}


def known(numbers: dict[str, float]) -> tuple[float, Shrinkage]:
    """The share that the start leaves unexplained, and the shrinkage, of a state."""
    return numbers["unexplained"], Shrinkage(numbers["points"], numbers["factor"])


def saved(task: Task, start: Dictionaries, samples: int) -> State | None:
    """The state to go on from, where there is one: of a training with so many samples."""
    state = task.saved(start, FOLDS, 2)
    if state is None:
        return None
    names, expected = (sorted(numbers) for numbers in (state.numbers, numbers_of(Shrinkage(), 0.0, samples)))
    differs = f"it has the numbers {names}, where {expected} are used" if names != expected else ""
    if not differs and state.numbers["samples"] != samples:
        differs = f"it takes {state.numbers['samples']:g} samples, where {samples} are taken"
    if differs:
        raise FileError(f"{task.path} is of relaxed training by another gkmeans: {differs}; pass a new folder")
    return state


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


def together(trained: Sequence[Dictionaries], revived: Dictionaries) -> list[Dictionaries]:
    """``trained`` with those codewords of ``revived`` that differ from the mean: the same new places in each fold."""
    moved = (revived.D[0] != mean_of(trained).D[0]).any(axis=2, keepdims=True)
    return [replace(one, D=(np.where(moved, revived.D[0], one.D[0]),)) for one in trained]


def mean_of(trained: Sequence[Dictionaries]) -> Dictionaries:
    """The mean of the folds' dictionaries, where codewords out of use stay."""
    D = np.stack([one.D[0] for one in trained]).mean(axis=0, dtype=np.float64)
    return replace(trained[0], D=(np.asarray(D, np.float32),))
