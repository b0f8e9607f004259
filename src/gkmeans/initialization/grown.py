"""A start of ck-means for many dimensions a block: few codewords, which double, in the leading principal components.

Where alternation ends depends on where it starts, the more so the more dimensions a block has. With few codewords it is
cheap to try several starts, on some rows and in few components: first codewords that differ soon lead to rotations that
do, and the one that is best then is among the best in the end. It goes on in more components with twice the codewords
each time, and last gets all the dimensions. Where the columns as they come suit the blocks far better, a few iterations
on some rows show it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import reduce

import numpy as np

from .._parallel import Workers, spans
from .._progress import Reporter
from .._rows import READ_ROWS, Floats, Source
from .._sums import Doubles
from ..assignment import GroupAssignment
from ..dictionaries import Block, Dictionaries, drawn
from ..training import Run
from .hierarchical import first_blocks, first_stage, trained

FEW, LEADING = 16, 64
"""Principal components for each block: in the tries, and until all dimensions join."""
TRIES, TRY_ROWS = 16, 320
"""Starts that are tried, and rows for each codeword that a try ends with."""
DOUBLINGS = 3
"""Times that the codewords double after the tries."""
ITERATIONS, LAST_ITERATIONS, TOL = 20, 60, 1e-4
"""Most iterations with each number of codewords, with all of them, and the least gain of one."""
ROWS, LEAST_ROWS, NUMBERS = 256, 32, 1 << 26
"""Most rows for each codeword, the least that suffice, and most numbers in them."""
COMPARED_ROWS, COMPARED_ITERATIONS = 32, 8
"""Rows for each codeword, and iterations on them, that choose between the grown start and that of narrow blocks."""
PARTS = 4
"""Parts of the rows whose products are summed by themselves: by the rows alone, so that the sums are."""
APART = 0.1
"""How far the halves of a codeword lie from it, in standard deviations of the codewords."""


def sizes(K: int) -> list[int]:
    """Numbers of codewords on the way to K: each is twice the one before, or one less."""
    out = [K]
    while out[0] > 3:
        out.insert(0, -(-out[0] // 2))
    return out


def can_grow(blocks: Sequence[Block], K: int) -> bool:
    """Whether blocks have more dimensions than they need components, and codewords to double."""
    return len(blocks) > 1 and blocks[-1].dims.stop > LEADING * len(blocks) and len(sizes(K)) > DOUBLINGS


def most_iterations(blocks: Sequence[Block], K: int) -> int:
    """Steps of a whole growth, where there is one: a try takes about as long as a few iterations after it."""
    if not can_grow(blocks, K):
        return 0
    return TRIES + ITERATIONS * (DOUBLINGS - 1) + LAST_ITERATIONS + 2 * COMPARED_ITERATIONS


def best_stage(rows: Source, blocks: Sequence[Block], K: int, run: Run) -> Dictionaries:
    """The start of ``blocks``; of wide ones the better of two, grown or as for narrow ones."""
    start = grown(rows, blocks, K, run) if can_grow(blocks, K) else None
    other = first_stage(rows, blocks, K, run)
    if start is None:
        run.reporter.stage_done(most_iterations(blocks, K))
        return other
    sample = rows.take(drawn(len(rows), COMPARED_ROWS * K, run.rng)).block(slice(None))
    apart = replace(aside(run), tol=0.0)
    return min(start, other, key=lambda stage: trained(sample, stage, apart, COMPARED_ITERATIONS, "compared")[1])


def aside(run: Run) -> Run:
    """``run`` for the start, with random numbers of its own."""
    return replace(
        run,
        method=GroupAssignment(1),
        tol=TOL,
        rng=np.random.default_rng(run.rng.integers(2**63)),
        reporter=run.reporter.named(f"{run.reporter.title}, start"),
    )


def grown(rows: Source, blocks: Sequence[Block], K: int, run: Run) -> Dictionaries | None:
    """``blocks``, one for each dictionary, with K codewords after the growth; None where rows are too few for it."""
    count = min(len(rows), ROWS * K, NUMBERS // rows.n_features)
    if count < LEAST_ROWS * K:
        return None
    some, C, ks = rows.take(np.sort(drawn(len(rows), count, run.rng))), len(blocks), sizes(K)
    V = components(some, run.workers)
    apart = aside(run)
    stage = best_try(projected(some, V[:, : FEW * C], run.workers), C, ks[:-DOUBLINGS], apart)
    stage = widened(stage, first_blocks(C, LEADING * C))
    leading = projected(some, V[:, : LEADING * C], run.workers)
    for k in ks[-DOUBLINGS:]:
        most = LAST_ITERATIONS if k == K else ITERATIONS
        stage, _ = trained(leading, doubled(stage, k, apart.rng), apart, most, f"{k} codewords")
    stage = widened(stage, blocks)
    assert stage.R is not None  # first_try sets it
    [R] = run.workers.map(lambda R: np.ascontiguousarray(V @ R), [stage.R])
    return replace(stage, R=R)


def components(rows: Source, workers: Workers) -> Floats:
    """V (P, P): principal components of rows, which are centred; the leading ones first.

    All by the workers, even what one of them does alone: Ctrl-C must reach the calling thread.
    """
    P = rows.n_features

    def product(part: tuple[int, int]) -> Doubles:
        out = np.zeros((P, P))
        for start, stop in spans(part[1] - part[0], READ_ROWS):
            X = rows.block(slice(part[0] + start, part[0] + stop))
            out += X.T @ X
        return out

    products = workers.map(product, spans(len(rows), -(-len(rows) // PARTS)))
    [vectors] = workers.map(lambda A: np.linalg.eigh(A)[1], [reduce(np.add, products)])
    return np.ascontiguousarray(vectors[:, ::-1], np.float32)


def projected(rows: Source, V: Floats, workers: Workers) -> Floats:
    """Rows in the components ``V`` (P, d): (n, d)."""
    out = np.empty((len(rows), V.shape[1]), np.float32)

    def one(span: tuple[int, int]) -> None:
        np.matmul(rows.block(slice(*span)), V, out=out[slice(*span)])

    workers.map(one, spans(len(rows), READ_ROWS))
    return out


def best_try(X: Floats, C: int, ks: Sequence[int], run: Run) -> Dictionaries:
    """The best of several stages of C blocks with ks[-1] codewords, on some of the rows ``X``."""
    sample, tries = X[drawn(len(X), min(len(X), TRY_ROWS * ks[-1]), run.rng)], []
    quiet = replace(run, reporter=Reporter("try", 0, logging.DEBUG))
    for _ in range(TRIES):
        stage, distortion = first_try(sample, C, ks[0], run.rng), np.inf
        for k in ks:
            stage, distortion = trained(sample, doubled(stage, k, run.rng), quiet, ITERATIONS, f"{k} codewords")
        tries.append((distortion, stage))
        run.reporter.step(1, f"try of {ks[-1]} codewords, distortion {distortion:.5f}")
    return min(tries, key=lambda one: one[0])[1]


def first_try(X: Floats, C: int, k: int, rng: np.random.Generator) -> Dictionaries:
    """Components dealt out to C blocks in turn, so that all have about the same variance, and rows as codewords."""
    blocks = first_blocks(C, X.shape[1])
    R = widened_rotation(np.zeros((0, 0), np.float32), [0] * C, blocks)
    D = tuple(np.ascontiguousarray(X[drawn(len(X), k, rng)] @ R[:, block.dims])[None] for block in blocks)
    return Dictionaries(blocks, D, R)


def doubled(stage: Dictionaries, k: int, rng: np.random.Generator) -> Dictionaries:
    """``stage`` with k codewords a dictionary, at most twice as many: some or all are cut in two, a little apart."""
    more, D = k - stage.shape[1], []
    for Du in stage.D:
        cut = Du[:, :more]
        step = np.float32(APART) * Du.std(axis=1, keepdims=True) * rng.standard_normal(cut.shape, np.float32)
        D.append(np.concatenate([cut - step, Du[:, more:], cut + step], axis=1))
    return replace(stage, D=tuple(D))


def widened(stage: Dictionaries, blocks: Sequence[Block]) -> Dictionaries:
    """``stage`` in ``blocks`` of more dimensions: each keeps its own, and gets new ones, where codewords are zero."""
    widths = [Du.shape[2] for Du in stage.D]
    more = [block.dims.stop - block.dims.start - width for block, width in zip(blocks, widths, strict=True)]
    D = tuple(np.pad(Du, ((0, 0), (0, 0), (0, new))) for Du, new in zip(stage.D, more, strict=True))
    assert stage.R is not None  # first_try sets it
    return Dictionaries(tuple(blocks), D, widened_rotation(stage.R, widths, blocks))


def widened_rotation(R: Floats, widths: Sequence[int], blocks: Sequence[Block]) -> Floats:
    """``R`` (d, d) of blocks of these ``widths`` for wider ``blocks``: dimensions from d on are dealt out in turn."""
    d, P, free = len(R), blocks[-1].dims.stop, []
    out, edge = np.zeros((P, P), np.float32), 0
    for block, width in zip(blocks, widths, strict=True):
        first = block.dims.start
        out[:d, first : first + width] = R[:, edge : edge + width]
        free += [(place - first, place) for place in range(first + width, block.dims.stop)]
        edge += width
    out[np.arange(d, P), [place for _, place in sorted(free)]] = 1
    return out
