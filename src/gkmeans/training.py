"""The training loop: update, assign, record, stop, Alg. 1.

One loop serves gk-means, its initialisation's stages and k-means itself: they differ in the blocks of their
dictionaries and in whether a rotation is learned. An iteration solves the dictionaries from the statistics of the pass
before, then passes over the rows once: each chunk is assigned and adds to the statistics.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ._files import FileError
from ._parallel import Workers, spans
from ._progress import Reporter
from ._rows import READ_ROWS, Codes, Floats, Source, decode
from ._sums import rounded
from .assignment import Method
from .checkpoint import Checkpoint, State, random_of, read_state, set_random, write_state
from .dictionaries import Block, Dictionaries, squared_errors
from .passes import Collect, Sweep
from .rotation import rotated
from .update import Statistics, centred

ROTATIONS = 3
"""Rotations in one update, each followed by its codewords: they need no pass over the data."""

CANDIDATES, CANDIDATE_NUMBERS = 1 << 16, 1 << 23
"""Rows, and numbers in them, among which unused codewords are given a new place."""


@dataclass
class Run:
    """What every stage of one fit shares."""

    energy: float  # Σ‖x‖², the denominator of the relative distortion
    method: Method
    tol: float
    rng: np.random.Generator
    workers: Workers
    reporter: Reporter
    history: list[float] = field(default_factory=list)
    last: int = 0  # iterations of the latest stage
    checkpoint: Checkpoint | None = None
    outside: float = 0.0  # squared error outside of what training sees (narrowing.py)

    def record(self, stage: str, iteration: int, most: int, error: float) -> float:
        """Note one iteration; its relative distortion."""
        distortion = relative(error + self.outside, self.energy)
        self.history.append(distortion)
        self.reporter.iteration(stage, iteration, most, distortion)
        return distortion

    def kept(self, name: str, make: Callable[[], Floats], shape: tuple[int, ...]) -> Floats:
        """What ``make`` gives, an array of this shape, or what the checkpoint of the fit has kept of it."""
        return make() if self.checkpoint is None else self.checkpoint.kept(name, make, shape)

    def begin_again(self, random: Any) -> None:
        """Forget all that was recorded; ``random`` is the state of the generator when it began."""
        self.history.clear()
        self.rng.bit_generator.state = random
        self.outside = 0.0

    def ended(self, state: State, max_iter: int) -> None:
        """Note the end of a stage."""
        self.last = state.iteration
        self.reporter.stage_done(max_iter - state.iteration)


class Task:
    """One training's place in the checkpoint of its fit; without a checkpoint nothing is kept."""

    def __init__(self, run: Run, n: int) -> None:
        self.run, self.n = run, n
        self.path = None if run.checkpoint is None else run.checkpoint.place()

    def saved(self, start: Dictionaries, links: int = 1, ended: int = 1) -> State | None:
        """The state to go on from, where there is one; sets the run's random numbers and history to it.

        It has so many ``links``, dictionaries like those of the start, or ``ended`` where it is done.
        """
        if self.path is None or not self.path.exists():
            return None
        state, random, history = read_state(self.path, self.n)
        if len(state.dictionaries) != (ended if state.done else links) or not all(map(start.like, state.dictionaries)):
            found, wanted = [one.shape for one in state.dictionaries], ended if state.done else links
            raise FileError(
                f"{self.path} holds dictionaries of shape {found}, but training is at {wanted} of {start.shape}: "
                "another version of gkmeans wrote it; pass a new folder"
            )
        set_random(self.run.rng, random, self.path)
        self.run.history[:] = history
        self.run.reporter.stage_done(state.iteration)
        return state

    def save(self, state: State) -> None:
        """Keep the state."""
        if self.path is None:
            return
        try:
            write_state(self.path, state, random_of(self.run.rng), self.run.history)
        except OSError as error:
            raise FileError(
                f"{self.path} could not be written ({error}); the iterations before are kept there, and the same call "
                "goes on from them: make room on the disk"
            ) from error


def train(
    rows: Source, dictionaries: Dictionaries, codes: Codes | None, run: Run, max_iter: int, stage: str
) -> tuple[Dictionaries, Codes]:
    """Alternate update and assignment until the distortion stops falling; the run's history grows.

    ``codes`` None asks for a greedy start. The codes returned are the best for the dictionaries returned.
    """
    task, candidates = Task(run, len(rows)), Candidates(rows)
    state = task.saved(dictionaries)
    if state is None:
        if codes is None:
            codes, _, statistics = sweep(rows, dictionaries, run.method, None, run.workers)
        else:
            statistics = collected(rows, codes, dictionaries, run.workers)
        state = State((dictionaries,), codes)
    elif not state.done:
        statistics = collected(rows, state.codes, dictionaries, run.workers)
    while not state.done:
        iteration, before = state.iteration + 1, run.history[-1] if state.iteration else np.inf
        dictionaries = updated(state.dictionaries[0], statistics, run.workers)
        dictionaries = candidates.revive(dictionaries, statistics, state.codes, run)
        codes, error, statistics = sweep(rows, dictionaries, run.method, state.codes, run.workers)
        distortion = run.record(stage, iteration, max_iter, error)
        done = iteration == max_iter or before - distortion <= run.tol * distortion
        state = State((dictionaries,), codes, iteration, done)
        task.save(state)
    run.ended(state, max_iter)
    return state.dictionaries[0], state.codes


def sweep(
    rows: Source, dictionaries: Dictionaries, method: Method, codes: Codes | None, workers: Workers
) -> tuple[Codes, float, Statistics]:
    """One pass over all rows: codes (n, C), their squared error and their statistics."""
    found = rows.passed(Sweep((dictionaries,), method, rows.grid()), codes, workers)
    return found.codes, rounded([found.error]), found.statistics[0]


def collected(rows: Source, codes: Codes, like: Dictionaries, workers: Workers) -> Statistics:
    """Statistics of all rows for dictionaries like these: one pass."""
    return rows.passed(Collect(like, rows.grid()), codes, workers).statistics[0]


def relative(error: float, energy: float) -> float:
    """``error / energy``; rows that are all zero and decoded exactly have none."""
    if energy > 0:
        return error / energy
    return 0.0 if error == 0 else float("inf")


def updated(
    dictionaries: Dictionaries, statistics: Statistics, workers: Workers, shrinkage: float = 0.0, rough: bool = False
) -> Dictionaries:
    """Rotation, then codewords, each at its optimum given the other and the codes.

    Where ``rough``, near it, by the calling thread alone: of one block without rotation.
    """
    R, D, blocks = dictionaries.R, dictionaries.D, dictionaries.blocks
    normals = [statistics.normal(block.dictionaries, workers, shrinkage, rough) for block in blocks]
    for _ in range(1 if R is None else ROTATIONS):
        if R is not None:
            R = rotated(blocks, statistics.W, D, R, workers)
        D = tuple(
            normal.solve(statistics.sums(block, R), Du) for normal, block, Du in zip(normals, blocks, D, strict=True)
        )
    D = tuple(centred(Du, statistics.counts[block.dictionaries]) for block, Du in zip(blocks, D, strict=True))
    return replace(dictionaries, D=D, R=R)


class Candidates:
    """Rows, evenly spaced, among which unused codewords are given a new place."""

    def __init__(self, rows: Source) -> None:
        count = min(len(rows), CANDIDATES, max(1, CANDIDATE_NUMBERS // rows.n_features))
        self.rows, self.places = rows, np.linspace(0, len(rows) - 1, count).astype(np.intp)

    @cached_property
    def held(self) -> Source:
        """The rows, read when the first codeword is unused."""
        return self.rows.take(self.places)

    def revive(self, dictionaries: Dictionaries, statistics: Statistics, codes: Codes, run: Run) -> Dictionaries:
        """``dictionaries`` with a place for each codeword that no row of all chose."""
        if statistics.counts.all():
            return dictionaries
        chosen = codes[self.places]
        errors = block_errors(self.held, dictionaries, chosen, run.workers)
        return revived(dictionaries, statistics, self.held, chosen, errors, run.rng)


def block_errors(rows: Source, dictionaries: Dictionaries, codes: Codes, workers: Workers) -> Floats:
    """Squared error (n, U) of rows at hand in each of U blocks."""
    out = np.empty((len(rows), len(dictionaries.blocks)), np.float32)
    dictionaries.ready()

    def one(span: tuple[int, int]) -> None:
        X = dictionaries.rotate(rows.block(slice(*span)))
        for u, block in enumerate(dictionaries.blocks):
            Xu, chosen = np.ascontiguousarray(X[:, block.dims]), codes[slice(*span), block.dictionaries]
            out[slice(*span), u] = squared_errors(Xu, dictionaries.D[u], chosen)

    workers.map(one, spans(len(rows), READ_ROWS))
    return out


def revived(
    dictionaries: Dictionaries,
    statistics: Statistics,
    rows: Source,
    codes: Codes,
    errors: Floats,
    rng: np.random.Generator,
) -> Dictionaries:
    """Codewords that no point chose are moved to badly coded points: drawn by their error, met exactly."""
    D = list(dictionaries.D)
    for u, block in enumerate(dictionaries.blocks):
        counts = statistics.counts[block.dictionaries]
        unused = np.argwhere(counts == 0)
        weights = errors[:, u].astype(np.float64)
        candidates = int(np.count_nonzero(weights))
        if not len(unused) or not candidates:
            continue
        unused = rng.permutation(unused)[:candidates]
        points = rng.choice(len(weights), len(unused), replace=False, p=weights / weights.sum())
        D[u] = _moved(D[u], block, dictionaries.rotate(rows.block(points)), codes[points], unused)
    return replace(dictionaries, D=tuple(D))


def _moved(D: Floats, block: Block, X: Floats, codes: Codes, unused: NDArray[np.intp]) -> Floats:
    """``D`` with codeword (c, k) = unused[i] at what row i lacks without its own codeword of dictionary c."""
    chosen = codes[:, block.dictionaries]
    lacking = X[:, block.dims] - decode(D, chosen)
    c, k = unused.T
    out: Floats = D.copy()
    out[c, k] = lacking + D[c, chosen[np.arange(len(X)), c]]
    return out
