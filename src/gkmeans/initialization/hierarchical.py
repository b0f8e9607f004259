"""Hierarchical initialisation: stages of fewer and larger blocks inside one rotation, Sec. 2.3.1, Eq. 18 to 24.

Stage 1 (ck-means) has a block for each dictionary; each later stage merges neighbouring blocks in pairs, starting
from the dictionaries, codes and rotation of the stage before. Any C and P work: dimensions and dictionaries are dealt
out as evenly as they go, and an odd block is carried over.
"""

from __future__ import annotations

import numpy as np

from .._rows import Codes, Source
from ..dictionaries import Block, Dictionaries, sample_rows
from ..training import Run, train


def first_blocks(C: int, P: int) -> tuple[Block, ...]:
    """Blocks of stage 1: as many as there are dictionaries, or dimensions where those are fewer."""
    count = min(C, P)
    dims = np.linspace(0, P, count + 1).astype(int)
    dictionaries = np.linspace(0, C, count + 1).astype(int)
    return tuple(
        Block(slice(int(dims[u]), int(dims[u + 1])), slice(int(dictionaries[u]), int(dictionaries[u + 1])))
        for u in range(count)
    )


def count_stages(C: int, P: int) -> int:
    """Stages until one block is left."""
    return (min(C, P) - 1).bit_length()


def merged(stage: Dictionaries) -> Dictionaries:
    """The stage's dictionaries with neighbouring blocks joined, zeros where a codeword had no entry (Eq. 22, 23)."""
    blocks, D = [], []
    for u in range(0, len(stage.blocks), 2):
        pair = stage.blocks[u : u + 2]
        block = Block(
            slice(pair[0].dims.start, pair[-1].dims.stop),
            slice(pair[0].dictionaries.start, pair[-1].dictionaries.stop),
        )
        joined = np.zeros(
            (
                block.dictionaries.stop - block.dictionaries.start,
                stage.D[u].shape[1],
                block.dims.stop - block.dims.start,
            ),
            np.float32,
        )
        for part, Dp in zip(pair, stage.D[u : u + 2], strict=False):
            own = slice(
                part.dictionaries.start - block.dictionaries.start, part.dictionaries.stop - block.dictionaries.start
            )
            at = slice(part.dims.start - block.dims.start, part.dims.stop - block.dims.start)
            joined[own, :, at] = Dp
        blocks.append(block)
        D.append(joined)
    return Dictionaries(tuple(blocks), tuple(D), stage.R)


def first_stage(rows: Source, C: int, K: int, rng: np.random.Generator, rotated: bool = True) -> Dictionaries:
    """Stage 1 before training: rows of the data on each block's dimensions, and the identity, or no rotation."""
    P = rows.n_features
    blocks = first_blocks(C, P)
    D = tuple(
        np.stack(
            [
                sample_rows(rows, K, rng)[:, block.dims]
                for _ in range(block.dictionaries.stop - block.dictionaries.start)
            ]
        )
        for block in blocks
    )
    return Dictionaries(blocks, D, np.eye(P, dtype=np.float32) if rotated else None)


def hierarchical(
    rows: Source, C: int, K: int, run: Run, max_iter: int
) -> tuple[Dictionaries, Codes | None, list[Dictionaries]]:
    """Dictionaries (C, K, P), their codes (n, C), and the stages that led there, for encoding by replay."""
    stage = first_stage(rows, C, K, run.rng)
    codes: Codes | None = None
    stages: list[Dictionaries] = []
    while len(stage.blocks) > 1:
        label = f"stage {len(stages) + 1}: {len(stage.blocks)} blocks"
        stage, codes = train(rows, stage, codes, run, max_iter, label)
        stages.append(stage)
        stage = merged(stage)
    return Dictionaries.single(stage.full()), codes, stages
