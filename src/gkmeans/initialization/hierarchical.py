"""Hierarchical initialisation: stages of fewer and larger blocks inside one rotation, Sec. 2.3.1, Eq. 18 to 24.

Stage 1 (ck-means) has a block for each dictionary; each later stage merges neighbouring blocks in pairs, starting
from the dictionaries, codes and rotation of the stage before. Any C and P work: dimensions and dictionaries are dealt
out as evenly as they go, and an odd block is carried over.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .._rows import Codes, Source
from ..dictionaries import Block, Dictionaries, sample_rows
from ..training import Run, train


def split(block: Block, count: int) -> tuple[Block, ...]:
    """``block`` cut into ``count`` blocks as even as they go, or as many as it has dimensions or dictionaries."""
    count = min(count, _length(block.dims), _length(block.dictionaries))
    dims = np.linspace(block.dims.start, block.dims.stop, count + 1).astype(int).tolist()
    dictionaries = np.linspace(block.dictionaries.start, block.dictionaries.stop, count + 1).astype(int).tolist()
    return tuple(Block(slice(dims[u], dims[u + 1]), slice(dictionaries[u], dictionaries[u + 1])) for u in range(count))


def first_blocks(C: int, P: int) -> tuple[Block, ...]:
    """Blocks of stage 1: as many as there are dictionaries, or dimensions where those are fewer."""
    return split(Block(slice(0, P), slice(0, C)), C)


def _length(part: slice) -> int:
    return int(part.stop - part.start)


def count_stages(C: int, P: int) -> int:
    """Stages until one block is left."""
    return (min(C, P) - 1).bit_length()


def joined(stage: Dictionaries, blocks: Sequence[Block]) -> Dictionaries:
    """The stage's dictionaries in larger ``blocks``, zeros where a codeword had no entry (Eq. 22, 23)."""
    D = [np.zeros((_length(block.dictionaries), stage.shape[1], _length(block.dims)), np.float32) for block in blocks]
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


def first_stage(
    rows: Source, blocks: Sequence[Block], K: int, rng: np.random.Generator, rotated: bool = True
) -> Dictionaries:
    """``blocks`` before training: rows of the data on each block's dimensions, and the identity, or no rotation."""
    D = tuple(
        np.stack([sample_rows(rows, K, rng)[:, block.dims] for _ in range(_length(block.dictionaries))])
        for block in blocks
    )
    return Dictionaries(tuple(blocks), D, np.eye(rows.n_features, dtype=np.float32) if rotated else None)


def hierarchical(
    rows: Source, C: int, K: int, run: Run, max_iter: int
) -> tuple[Dictionaries, Codes | None, list[Dictionaries]]:
    """Dictionaries (C, K, P), their codes (n, C), and the stages that led there, for encoding by replay."""
    stage = first_stage(rows, first_blocks(C, rows.n_features), K, run.rng)
    codes: Codes | None = None
    stages: list[Dictionaries] = []
    while len(stage.blocks) > 1:
        label = f"stage {len(stages) + 1}: {len(stage.blocks)} blocks"
        stage, codes = train(rows, stage, codes, run, max_iter, label)
        stages.append(stage)
        stage = merged(stage)
    return Dictionaries.single(stage.full()), codes, stages
