"""The rows dealt into folds, each with dictionaries that have not seen its rows: what relaxation.py is made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from operator import add

import numpy as np
from numpy.typing import NDArray

from ._parallel import Workers
from ._rows import Codes, Floats, Source, decode
from ._sums import Doubles, exact, rounded
from .assignment import Method, assign
from .dictionaries import Dictionaries
from .narrowing import Narrow
from .passes import Collect, Passed, Sweep
from .shrinkage import Shrinkage
from .training import Candidates, Run, updated
from .update import ALONE_UNKNOWNS, Statistics

FOLDS = 4

HELD_ROWS, SPREAD_ROWS, HELD_NUMBERS = 4096, 1024, 1 << 22
"""Rows of a fold that judge a shrinkage and samples, and those of them that show the residual. Of wide rows only as
many judge as have HELD_NUMBERS, but no fewer than SPREAD_ROWS."""


def turns() -> tuple[range, range]:
    """Folds that are assigned at once: half of them; the other half then knows of it within the same iteration."""
    return range(FOLDS // 2), range(FOLDS // 2, FOLDS)


def held_of(P: int) -> int:
    """Most rows of P numbers that are held of a fold."""
    return min(HELD_ROWS, max(SPREAD_ROWS, HELD_NUMBERS // P))


def spaced(places: NDArray[np.intp], most: int) -> NDArray[np.intp]:
    """At most so many of the places, spread over them."""
    return places[np.linspace(0, len(places) - 1, min(len(places), most)).astype(np.intp)]


class Folds:
    """The rows dealt into folds, and of each fold rows spread over it that stand for it."""

    def __init__(self, rows: Source, rng: np.random.Generator, narrow: Narrow | None = None) -> None:
        self.rows, self.seed, self.narrow = rows, int(rng.integers(2**63)), narrow
        self.candidates = Candidates(rows)
        of, most = rows.folds(FOLDS, self.seed), held_of(rows.n_features)
        self.places = [spaced(np.flatnonzero(of == f), most) for f in range(FOLDS)]
        # those of the rows held that show the residual
        self.some = [slice(None, None, -(-len(places) // SPREAD_ROWS)) for places in self.places]
        together = rows.take(np.concatenate(self.places))
        edges = np.cumsum([0, *map(len, self.places)])
        self.held = [together.take(np.arange(*edges[f : f + 2])) for f in range(FOLDS)]

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
        """Dictionaries for each fold of a turn by the statistics of the others; one fold may judge the shrinkage.

        More points than a codeword has rows are not tried. Codes that noise has spoilt would ask for them, which leaves
        less to the codewords and more to the residual, and so to the noise: without end.
        """
        if judging is not None and shrinkage.tried > len(self.rows) / trained[0].shape[1]:
            shrinkage.turned()
            judging = None

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
        return rounded(exact(assign(rows, D, way, codes[places], workers)[1]) for rows, D, places in held)

    def assigned(self, noisy: Sequence[Dictionaries | None], way: Method, codes: Codes, workers: Workers) -> Passed:
        """Codes of each fold by its own dictionaries, where it has some: one pass, or one a fold with large tables."""
        return self.rows.passed(Sweep(noisy, way, self.rows.grid(), self.seed), codes, workers)


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
