"""The training loop: update, assign, record, stop, Alg. 1.

One loop serves gk-means, its initialisation's stages and k-means itself: they differ in the blocks of their
dictionaries and in whether a rotation is learned.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from ._elsewhere import drawn, total
from ._parallel import Workers
from ._progress import Reporter
from ._rows import Codes, Floats, Source, decode
from .assignment import Method, assign
from .dictionaries import Block, Dictionaries
from .rotation import rotated
from .update import Statistics, centred

ROTATIONS = 3
"""Rotations in one update, each followed by its codewords: they need no pass over the data."""


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

    def record(self, stage: str, iteration: int, most: int, error: float) -> float:
        """Note one iteration; its relative distortion."""
        distortion = relative(error, self.energy)
        self.history.append(distortion)
        self.reporter.iteration(stage, iteration, most, distortion)
        return distortion


def train(
    rows: Source, dictionaries: Dictionaries, codes: Codes | None, run: Run, max_iter: int, stage: str
) -> tuple[Dictionaries, Codes]:
    """Alternate update and assignment until the distortion stops falling; the run's history grows.

    ``codes`` None asks for a greedy start. The codes returned are the best for the dictionaries returned.
    """
    errors: Floats | None = None
    if codes is None:
        codes, errors = assign(rows, dictionaries, run.method, None, run.workers)
    before = np.inf
    for iteration in range(1, max_iter + 1):
        groups = [block.dictionaries for block in dictionaries.blocks]
        statistics = Statistics.collect(rows, codes, dictionaries.shape[1], groups, run.workers)
        dictionaries = updated(dictionaries, statistics, run.workers)
        if errors is not None:
            dictionaries = revived(dictionaries, statistics, rows, codes, errors, run.rng)
        codes, errors = assign(rows, dictionaries, run.method, codes, run.workers)
        distortion = run.record(stage, iteration, max_iter, total(errors))
        if before - distortion <= run.tol * distortion:
            break
        before = distortion
    run.last = iteration
    run.reporter.stage_done(max_iter - iteration)
    return dictionaries, codes


def relative(error: float, energy: float) -> float:
    """``error / energy``; rows that are all zero and decoded exactly have none."""
    if energy > 0:
        return error / energy
    return 0.0 if error == 0 else float("inf")


def updated(
    dictionaries: Dictionaries, statistics: Statistics, workers: Workers, shrinkage: float = 0.0
) -> Dictionaries:
    """Rotation, then codewords, each at its optimum given the other and the codes."""
    R, D, blocks = dictionaries.R, dictionaries.D, dictionaries.blocks
    normals = [statistics.normal(block.dictionaries, workers, shrinkage) for block in blocks]
    for _ in range(1 if R is None else ROTATIONS):
        if R is not None:
            R = rotated(blocks, statistics.W, D, R, workers)
        D = tuple(
            normal.solve(statistics.sums(block, R), Du) for normal, block, Du in zip(normals, blocks, D, strict=True)
        )
    D = tuple(centred(Du, statistics.counts[block.dictionaries]) for block, Du in zip(blocks, D, strict=True))
    return replace(dictionaries, D=D, R=R)


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
        if not len(unused):
            continue
        unused = rng.permutation(unused)
        points = drawn(errors, u, len(unused), int(rng.integers(2**63)))
        if len(points):
            X = dictionaries.rotate(rows.block(points))
            D[u] = _moved(D[u], block, X, codes[points], unused[: len(points)])
    return replace(dictionaries, D=tuple(D))


def _moved(D: Floats, block: Block, X: Floats, codes: Codes, unused: NDArray[np.intp]) -> Floats:
    """``D`` with codeword (c, k) = unused[i] at what row i lacks without its own codeword of dictionary c."""
    chosen = codes[:, block.dictionaries]
    lacking = X[:, block.dims] - decode(D, chosen)
    c, k = unused.T
    out: Floats = D.copy()
    out[c, k] = lacking + D[c, chosen[np.arange(len(X)), c]]
    return out
