"""K-means initialisation: k-means on the residuals, dictionary after dictionary, Sec. 2.3.1.

K-means is group k-means with one dictionary, so the training loop does it.
"""

from __future__ import annotations

import numpy as np

from .._rows import Codes, Floats, Source
from ..dictionaries import Dictionaries, sample_rows
from ..training import Run, train


def kmeans(rows: Source, C: int, K: int, run: Run, max_iter: int) -> tuple[Dictionaries, Codes]:
    """Dictionaries (C, K, P) and the codes (n, C) of their k-means."""
    D: list[Floats] = []
    codes: list[Codes] = []
    for c in range(C):
        source = rows.less(np.concatenate(D), rows.beside(codes)) if D else rows
        start = Dictionaries.single(sample_rows(source, K, run.rng))
        fitted, chosen = train(source, start, None, run, max_iter, f"k-means {c + 1}/{C}")
        D.append(fitted.D[0])
        codes.append(chosen)
    return Dictionaries.single(np.concatenate(D)), rows.beside(codes)
