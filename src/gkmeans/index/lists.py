"""Lookup-table distances to residuals in lists: one set of tables a query serves all of them.

A vector of list l is coded as its residual to the centre c, so x̂ = c + r̂ with r̂ = Σ_k d_k, and

    ‖q − x̂‖² = ‖q − c‖² + Σ_k −2⟨q, d_k⟩ + (‖r̂‖² + 2⟨c, r̂⟩).

The first term is the coarse distance of the query to the list, the tables do not know of the list, and the bracket
belongs to the vector: it is kept as the norm is. For the inner product ⟨q, x̂⟩ = ⟨q, c⟩ + ⟨q, r̂⟩, with no norm.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .._parallel import spans
from .._rows import READ_ROWS, Codes, Floats, decode
from ..estimators.base import AdditiveQuantizer
from .coarse import Coarse
from .lookup import NO_LISTS, Lists, Lookup

_CANCELLED = 64
"""A distance below this part of the query's square has lost digits to it."""
_BLUR = 1 / 32
"""The error of a byte, in medians of ‖r̂‖², from which norms are kept in float."""


class ListLookup(Lookup):
    """What an estimator of residuals, whose ``shift_`` is zero, and the centres of lists give to the scan."""

    def __init__(self, est: AdditiveQuantizer, metric: str, centres: Floats, firsts: Lists, n_jobs: int | None) -> None:
        super().__init__(est, metric)
        self.coarse, self.n_jobs = Coarse(centres, firsts, metric, est.scale_), n_jobs
        self.n_lists = self.coarse.n_lists
        self._frame = self.coarse.frame

    def encode(self, X: ArrayLike) -> tuple[Codes, Lists]:
        """Codes (n, C) of the residuals, and lists (n,)."""
        codes, lists = [], []
        for part in self.parts(self.vectors(X)):
            lists.append(self.coarse.assign(part, self.n_jobs))
            codes.append(self.est._encode(residuals(part, self.coarse.centres, lists[-1]), None))
        return np.concatenate(codes), np.concatenate(lists)

    def decode(self, codes: Codes, lists: Lists) -> Floats:
        """Vectors (n, P): centres and decoded residuals."""
        return self.est.decode(codes) + self.coarse.centres[lists]

    def probe(self, x: Floats, bias: Floats, n_probe: int) -> tuple[Floats, Lists]:
        """What the nearest lists add to every score, and the lists, (q, n_probe), of rows prepared.

        A distance that is far below the squares it is the rest of is summed anew from differences.
        """
        scores, lists = self.coarse.probe(x, bias, n_probe)
        if self.metric == "l2":
            rows, places = np.nonzero(scores < bias[:, None] / _CANCELLED)
            for start, stop in spans(len(rows), READ_ROWS):
                row, place = rows[start:stop], places[start:stop]
                away = self.coarse.framed(lists[row, place]) + np.float64(0.5) * x[row]  # x = −2 q
                scores[row, place] = np.einsum("ij,ij->i", away, away)
        return scores, lists

    def needs_floats(self, norms: Floats, codes: Codes) -> bool:
        """Where lists are narrow and far apart, 2⟨c, r̂⟩ spreads the norms far beyond ‖r̂‖²."""
        some = decode(self.D, codes[:: -(-len(codes) // READ_ROWS)])
        off = (float(norms.max()) - float(norms.min())) / 510
        return off > _BLUR * float(np.median(super()._norms(some, NO_LISTS)))

    def _norms(self, x: Floats, lists: Lists) -> NDArray[np.float64]:
        products: NDArray[np.float64] = np.einsum("ij,ij->i", self.coarse.framed(lists), x, dtype=np.float64)
        return super()._norms(x, lists) + 2 * products


def residuals(X: NDArray[np.generic], centres: Floats, lists: Lists) -> Floats:
    """Rows less the centres of their lists, (n, P) float32."""
    out = np.empty(X.shape, np.float32)
    for start, stop in spans(len(X), READ_ROWS):
        out[start:stop] = np.subtract(X[start:stop], centres[lists[start:stop]], dtype=np.float64)
    return out
