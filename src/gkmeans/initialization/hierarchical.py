"""Hierarchical initialisation: stages of fewer and larger blocks inside one rotation, Sec. 2.3.1, Eq. 18 to 24.

Stage 1 (ck-means) has a block for each dictionary; each later stage merges neighbouring blocks in pairs, starting
from the dictionaries, codes and rotation of the stage before. Any C and P work: dimensions and dictionaries are dealt
out as evenly as they go, and an odd block is carried over.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from .._frame import Frame
from .._progress import Reporter
from .._rows import Codes, Floats, Rows, Source
from ..assignment import GroupAssignment
from ..dictionaries import Block, Dictionaries, drawn, sample_rows
from ..training import Run, train

TRIAL_ROWS = 32
TRIAL_ITERATIONS = 8
"""The order of the dimensions is chosen on 32 rows for each codeword, by at most 8 iterations from each."""


def split(block: Block, count: int) -> tuple[Block, ...]:
    """``block`` cut into ``count`` blocks as even as they go, or as many as it has dimensions or dictionaries."""
    count = min(count, length(block.dims), length(block.dictionaries))
    return tuple(Block(_part(block.dims, u, count), _part(block.dictionaries, u, count)) for u in range(count))


def first_blocks(C: int, P: int) -> tuple[Block, ...]:
    """Blocks of stage 1: as many as there are dictionaries, or dimensions where those are fewer."""
    return split(Block(slice(0, P), slice(0, C)), C)


def _part(whole: slice, u: int, count: int) -> slice:
    """Part u of ``count`` even ones."""
    return slice(*(whole.start + length(whole) * edge // count for edge in (u, u + 1)))


def length(part: slice) -> int:
    """How many dimensions or dictionaries a part has."""
    return int(part.stop - part.start)


def count_stages(C: int, P: int) -> int:
    """Stages until one block is left."""
    return (min(C, P) - 1).bit_length()


def joined(stage: Dictionaries, blocks: Sequence[Block]) -> Dictionaries:
    """The stage's dictionaries in larger ``blocks``, zeros where a codeword had no entry (Eq. 22, 23)."""
    D = [np.zeros((length(block.dictionaries), stage.shape[1], length(block.dims)), np.float32) for block in blocks]
    for part, Dp in zip(stage.blocks, stage.D, strict=True):
        u = next(u for u, block in enumerate(blocks) if part.dims.stop <= block.dims.stop)
        own = slice(
            *(edge - blocks[u].dictionaries.start for edge in (part.dictionaries.start, part.dictionaries.stop))
        )
        at = slice(*(edge - blocks[u].dims.start for edge in (part.dims.start, part.dims.stop)))
        D[u][own, :, at] = Dp
    return Dictionaries(tuple(blocks), tuple(D), stage.R)


def merged(stage: Dictionaries) -> Dictionaries:
    """The stage's dictionaries with neighbouring blocks joined."""
    pairs = [stage.blocks[u : u + 2] for u in range(0, len(stage.blocks), 2)]
    return joined(
        stage,
        [
            Block(
                slice(pair[0].dims.start, pair[-1].dims.stop),
                slice(pair[0].dictionaries.start, pair[-1].dictionaries.stop),
            )
            for pair in pairs
        ],
    )


def first_stage(rows: Source, blocks: Sequence[Block], K: int, run: Run, most: int = TRIAL_ITERATIONS) -> Dictionaries:
    """``blocks`` before training: rows of the data on each block's dimensions, in the order that suits it best.

    The rotation starts from a permutation, because what it can reach depends on where it starts: dimensions in their
    own order, where neighbours often belong together, or moved a little so that all blocks have the same variance,
    whichever is better after a few iterations on a sample, at ``most`` so many.
    """
    sample = rows.take(drawn(len(rows), min(len(rows), TRIAL_ROWS * K), run.rng)).block(slice(None))
    orders = [np.arange(rows.n_features), balanced_order(sample.var(axis=0, dtype=np.float64), blocks)]
    if len(blocks) == 1 or (orders[0] == orders[1]).all():
        best = orders[0]
    else:
        seed = int(run.rng.integers(2**32))
        best = min(orders, key=lambda order: _trial(sample, blocks, K, order, run, seed, min(most, TRIAL_ITERATIONS)))
    return _permuted(rows, blocks, K, run.rng, best)


def _permuted(
    rows: Source, blocks: Sequence[Block], K: int, rng: np.random.Generator, order: NDArray[np.intp]
) -> Dictionaries:
    R = np.eye(rows.n_features, dtype=np.float32)[:, order]
    return replace(product_start(rows, blocks, K, rng, order), R=np.ascontiguousarray(R))


def product_start(
    rows: Source, blocks: Sequence[Block], K: int, rng: np.random.Generator, order: NDArray[np.intp] | None = None
) -> Dictionaries:
    """Rows of the data, their dimensions in ``order``, on each block's dimensions, without a rotation."""
    dims = slice(None) if order is None else order
    sample = sample_rows(rows, K, rng, blocks[-1].dictionaries.stop)[:, :, dims]
    D = tuple(np.ascontiguousarray(sample[block.dictionaries, :, block.dims]) for block in blocks)
    return Dictionaries(tuple(blocks), D)


def balanced_order(variance: NDArray[np.float64], blocks: Sequence[Block]) -> NDArray[np.intp]:
    """Dimensions in an order that gives every block about the same variance and keeps neighbours together.

    The dimensions are cut where the variance reaches its shares; a block that is too long for its place gives its
    least dimensions to those that are too short.
    """
    sizes = [length(block.dims) for block in blocks]
    middle = np.cumsum(variance) - variance / 2
    share = np.minimum((middle * len(blocks) / max(variance.sum(), 1e-300)).astype(int), len(blocks) - 1)
    parts = [np.flatnonzero(share == u) for u in range(len(blocks))]
    ranked = [part[np.argsort(-variance[part], kind="stable")] for part in parts]
    spare = np.concatenate([part[size:] for part, size in zip(ranked, sizes, strict=True)])
    order = []
    for part, size in zip(ranked, sizes, strict=True):
        missing = max(0, size - len(part))
        order += [np.sort(part[:size]), spare[:missing]]
        spare = spare[missing:]
    return np.concatenate(order)


def _trial(
    sample: Floats, blocks: Sequence[Block], K: int, order: NDArray[np.intp], run: Run, seed: int, most: int
) -> float:
    """Relative distortion of the sample after a few iterations from this order."""
    rng = np.random.default_rng(seed)
    trial = replace(run, method=GroupAssignment(1), rng=rng, reporter=Reporter("trial", 0, logging.DEBUG))
    return trained(sample, _permuted(_at_hand(sample), blocks, K, rng, order), trial, most, "trial")[1]


def trained(X: Floats, stage: Dictionaries, run: Run, most: int, label: str) -> tuple[Dictionaries, float]:
    """``stage`` after alternation on the rows ``X``, and their relative distortion; the run's history stays."""
    rows = _at_hand(X)
    run = replace(run, energy=rows.energy(run.workers), outside=0.0, history=[])
    fitted, _ = train(rows, stage, None, run, most, label)
    return fitted, run.history[-1]


def _at_hand(X: Floats) -> Rows:
    return Rows(X, Frame(np.zeros(X.shape[1], np.float32)))


def hierarchical(
    rows: Source, C: int, K: int, run: Run, max_iter: int
) -> tuple[Dictionaries, Codes | None, list[Dictionaries]]:
    """Dictionaries (C, K, P), their codes (n, C), and the stages that led there, for encoding by replay."""
    stage = first_stage(rows, first_blocks(C, rows.n_features), K, run, max_iter)
    codes: Codes | None = None
    stages: list[Dictionaries] = []
    while len(stage.blocks) > 1:
        label = f"stage {len(stages) + 1}: {len(stage.blocks)} blocks"
        stage, codes = train(rows, stage, codes, run, max_iter, label)
        stages.append(stage)
        stage = merged(stage)
    return Dictionaries.single(stage.full()), codes, stages
