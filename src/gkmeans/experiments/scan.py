"""Exhaustive search of the codes by the asymmetric distance, Appendix, Eq. 26 with the ½ that it lacks.

½‖q − Σd‖² = ½‖q‖² − ⟨q, Σd⟩ + ½‖Σd‖²: the first term ranks nothing. A block of the database is decoded and all queries
meet it in one product, which gives the same distances as lookup tables do.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .._parallel import Workers, spans
from .._rows import READ_ROWS, Codes, Floats, Rows, decode
from .._top import Top
from .._validation import check_X
from ..estimators.base import AdditiveQuantizer

_QUERIES = 512


def scan(
    model: AdditiveQuantizer, codes: Codes, query: NDArray[np.generic], k: int, n_jobs: int | None
) -> NDArray[np.int64]:
    """Rows (q, k) of ``codes`` (n, C) nearest to each query, nearest first, ties by row."""
    try:
        query = check_X(model, query, reset=False, scale=model.scale_)
    except (ValueError, TypeError) as error:
        raise ValueError(f"the queries cannot be searched: {error}") from error
    D = model._final().full()
    asked = Rows(query, model._frame())
    top = Top(len(query), k, np.float32)
    queries = spans(len(query), _QUERIES)
    with Workers(n_jobs) as workers:
        for start, stop in spans(len(codes), READ_ROWS):
            decoded = decode(D, codes[start:stop])
            half = (np.einsum("ij,ij->i", decoded, decoded, dtype=np.float64) / 2).astype(np.float32)

            def one(span: tuple[int, int], decoded: Floats = decoded, half: Floats = half, first: int = start) -> None:
                top.add(slice(*span), half - asked.block(slice(*span)) @ decoded.T, first)

            workers.map(one, queries)
    return top.rows
