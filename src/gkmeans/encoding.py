"""Codes of new points: by the final dictionaries alone, or started by stages of the training, Sec. 2.3.

Where choices may be swayed a little, codes start greedily and are improved by rounds in 16-bit steps, and last, with
much effort, by exact products. Otherwise the stages of the hierarchy are replayed: codeword k of dictionary c keeps its
identity from stage to stage, so the codes of one stage start the next. Stage 1 is exact and cheap (each block is plain
k-means), and every later stage starts from codes that its own training could have had. Without stages the start is
greedy. Rounds of perturbed codes then look for better ones, as many as the effort allows.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import numpy as np

from ._parallel import Workers, block_rows
from ._rows import Codes, Source
from .assignment import GroupAssignment, Method, SwiftAssignment, in_block, read, turned
from .dictionaries import Dictionaries, Tables, code_dtype
from .passes import Passed

PLAIN_ROUNDS = (0, 0, 0, 1, 2, 4, 8, 16, 32, 64)
SWIFT_ROUNDS = (0, 1, 3, 6, 10, 16, 32, 64, 128, 256)
"""Perturbed rounds of each effort; in 16-bit steps they cost little."""


def chained(method: Method, stages: int) -> list[Method]:
    """How each of a chain of stages is assigned, the last by ``method``."""
    early: Method = getattr(method, "early", None) or GroupAssignment(1)
    return [*[early] * (stages - 1), method]


class Encoder:
    """Codes of rows by a chain of stages, the last by ``method``, with tables that are made once."""

    def __init__(self, stages: Sequence[Dictionaries], method: Method, workers: Workers) -> None:
        self.stages, self.methods = stages, chained(method, len(stages))
        self.coarse = any(isinstance(way, SwiftAssignment) for way in self.methods)
        for stage in stages:
            stage.ready(self.coarse)
        self.shape = stages[-1].shape
        self.tables = [
            [way.tables(D, workers) for D in stage.D] for stage, way in zip(stages, self.methods, strict=True)
        ]

    def by(self, method: Method) -> Encoder:
        """The same by another method, which needs the same tables."""
        other = copy.copy(self)
        other.methods = chained(method, len(self.stages))
        return other

    @property
    def nbytes(self) -> int:
        """Size of the tables."""
        rotations = sum(stage.R.nbytes for stage in self.stages if stage.R is not None)
        return rotations + sum(one.nbytes for tables in self.tables for one in tables)

    def codes(
        self,
        rows: Source,
        workers: Workers,
        given: Codes | None = None,
        done: Callable[[int], None] = lambda count: None,
    ) -> Codes:
        """Codes (n, C) of rows; from those ``given`` by the last stage alone. ``done`` is told of rows as they end."""
        C, K, _ = self.shape
        out = np.empty((len(rows), C), code_dtype(K)) if given is None else given.copy()
        links = list(zip(self.stages, self.tables, self.methods, strict=True))[0 if given is None else -1 :]
        for where, chunk in rows.chunks():
            self._fill(out[where], chunk, links, given is not None, workers, done)
        return out

    def _fill(
        self,
        out: Codes,
        rows: Source,
        links: Sequence[tuple[Dictionaries, Sequence[Tables], Method]],
        given: bool,
        workers: Workers,
        done: Callable[[int], None],
    ) -> None:
        """Fill ``out`` (n, C) with the codes of rows at hand; where ``given``, it holds what to start from."""

        def one(span: tuple[int, int]) -> None:
            part = slice(*span)
            X = read(rows, part, workers)
            known = given
            for stage, tables, way in links:
                Y = turned(X, stage, workers, self.coarse)
                for block, block_tables in zip(stage.blocks, tables, strict=True):
                    start = out[part, block.dictionaries] if known else None
                    Yu = in_block(Y, block, workers)
                    out[part, block.dictionaries] = way.codes(Yu, block_tables, start, workers)
                known = True
            done(span[1] - span[0])

        C, K, _ = self.shape
        workers.map(one, rows.spans(block_rows(C * K)))


def encode(
    rows: Source,
    stages: Sequence[Dictionaries],
    method: Method,
    codes: Codes | None,
    workers: Workers,
    done: Callable[[int], None] = lambda count: None,
) -> Codes:
    """Codes (n, C) by the last of ``stages``, started by those before it, or by ``codes`` where given."""
    return Encoder(stages if codes is None else stages[-1:], method, workers).codes(rows, workers, codes, done)


class Replay:
    """``encode`` as a pass over rows, wherever they lie."""

    def __init__(self, stages: Sequence[Dictionaries], method: Method) -> None:
        self.stages, self.method = tuple(stages), method

    def over(self, rows: Source, codes: Codes | None, workers: Workers, first: int = 0) -> Passed:
        """Codes of the rows."""
        return Passed(encode(rows, self.stages, self.method, codes, workers), 0, [])
