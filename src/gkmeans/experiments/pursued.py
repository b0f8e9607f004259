"""MCMP with the dictionaries of any model, timed on all vectors, or on a sample where that is too slow."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .._parallel import Workers, effective_jobs, spans
from .._rows import Codes
from .._rows import Rows as Framed
from ..dictionaries import Tables, code_dtype
from ..estimators.base import AdditiveQuantizer
from ..pursuit import pursue_block, row_seconds
from .subject import Rows

_BLOCK = 1024


def expected(n: int, C: int, K: int, n_candidates: int, n_jobs: int | None) -> float:
    """Seconds that MCMP takes for ``n`` vectors by the size of its tree, roughly."""
    return n * row_seconds(0, 1, n_candidates, C, K) / effective_jobs(n_jobs)


def first_count(n: int, n_jobs: int | None) -> int:
    """Vectors of the first sample that ``timed`` encodes."""
    return min(n, 2 * effective_jobs(n_jobs))


def pursue(model: AdditiveQuantizer, X: Rows, n_candidates: int, n_jobs: int | None) -> Codes:
    """Codes (n, C) of ``X`` by MCMP on full vectors with the dictionaries of ``model``."""
    D = model._final().full()
    rows = Framed(X, model._frame())
    out = np.empty((len(X), len(D)), code_dtype(D.shape[1]))
    with Workers(n_jobs) as workers:
        tables = Tables.of(D, workers)
        # a vector may take seconds: few of them a thread
        size = max(1, min(_BLOCK, len(X) // (4 * workers.n_jobs)))

        def one(span: tuple[int, int]) -> None:
            out[slice(*span)] = pursue_block(rows.block(slice(*span)), tables, n_candidates, None, workers)

        workers.map(one, spans(len(X), size))
    return out


@dataclass(frozen=True)
class Timing:
    """Seconds of encoding all vectors; estimated where only ``rows`` of them were encoded."""

    seconds: float
    rows: NDArray[np.int64]
    codes: Codes
    estimated: bool


def timed(
    encode: Callable[[Rows], Codes], X: Rows, budget: float, n_jobs: int | None, rng: np.random.Generator
) -> Timing:
    """Time ``encode`` on samples of ``X`` that grow until all of it is encoded or the ``budget`` of seconds is used."""
    n = len(X)
    drawn = rng.permutation(n)
    count = first_count(n, n_jobs)
    while True:
        rows = np.sort(drawn[:count])
        sample = X if count == n else X[rows]
        start = time.perf_counter()
        codes = encode(sample)
        seconds = time.perf_counter() - start
        if count == n:
            return Timing(seconds, rows, codes, False)
        more = min(n, int(count * min(32.0, budget / max(seconds, 1e-9))))
        if seconds * 3 > budget or more < min(n, 2 * count):
            return Timing(seconds * n / count, rows, codes, True)
        count = more
