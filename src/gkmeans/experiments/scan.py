"""Exhaustive search of the codes by the asymmetric distance, Appendix, Eq. 26 with the ½ that it lacks."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .._rows import Codes
from ..estimators.base import AdditiveQuantizer
from ..index.flat import FlatIndex


def scan(
    model: AdditiveQuantizer, codes: Codes, query: NDArray[np.generic], k: int, n_jobs: int | None
) -> NDArray[np.int64]:
    """Rows (q, k) of ``codes`` (n, C) nearest to each query, nearest first, ties by row."""
    index = FlatIndex(model, norms="float", n_jobs=n_jobs)
    index.add_codes(codes)
    try:
        return index.search(query, k)[1]
    except (ValueError, TypeError) as error:
        raise ValueError(f"the queries cannot be searched: {error}") from error
