"""Codes of new points: replay the training's stages, then refine, Sec. 2.3.2 and the hierarchy of Sec. 2.3.1.

Codeword k of dictionary c keeps its identity from stage to stage, so the codes of one stage start the next. Stage 1
is exact and cheap (each block is plain k-means), and every later stage starts from codes that its own training could
have had. Without stages the start is greedy. Rounds of perturbed codes then look for better ones, as many as the
effort allows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ._parallel import Workers, block_rows, spans
from ._rows import Codes, Source
from .assignment import GroupAssignment, Method
from .dictionaries import Dictionaries, code_dtype


def rounds_of(effort: int) -> int:
    """Perturbed rounds: none up to effort 2, then 1, 2, 4 … 64."""
    return 0 if effort < 3 else 1 << (effort - 3)


def encode(
    rows: Source,
    stages: Sequence[Dictionaries],
    method: Method,
    codes: Codes | None,
    workers: Workers,
    done: Callable[[int], None] = lambda count: None,
) -> Codes:
    """Codes (n, C) by the last of ``stages``, started by those before it, or by ``codes`` where given."""
    last = stages[-1]
    C, K, _ = last.shape
    chain = [last] if codes is not None else list(stages)
    methods = [method if stage is last else GroupAssignment(1) for stage in chain]
    tables = [[way.tables(D, workers) for D in stage.D] for stage, way in zip(chain, methods, strict=True)]
    out = np.empty((len(rows), C), code_dtype(K))

    def one(span: tuple[int, int]) -> None:
        part = slice(*span)
        X = rows.block(part)
        known = codes is not None
        if codes is not None:
            out[part] = codes[part]
        for stage, stage_tables, way in zip(chain, tables, methods, strict=True):
            Y = stage.rotate(X)
            for block, block_tables in zip(stage.blocks, stage_tables, strict=True):
                start = out[part, block.dictionaries] if known else None
                Yu = np.ascontiguousarray(Y[:, block.dims])
                out[part, block.dictionaries] = way.codes(Yu, block_tables, start, workers)
            known = True
        done(span[1] - span[0])

    workers.map(one, spans(len(rows), block_rows(C * K)))
    return out
