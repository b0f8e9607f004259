"""The rotation of the hierarchical stages: an orthogonal Procrustes problem, Sec. 2.3.1, Eq. 19.

``min ‖X − X̂ Rᵀ‖`` over R with orthonormal columns needs only ``M = Xᵀ X̂``, and as X̂ is made of codewords,
``M = Σ_c W_cᵀ D_c``: the statistics of the update give it without another pass over the data.
"""

from __future__ import annotations

import numpy as np
import scipy.linalg

from ._parallel import Workers
from ._rows import Floats
from ._sums import Doubles
from .dictionaries import Block

PULL = 1e-7
"""Weight of the previous rotation, relative to M: it decides directions in which the data does not move."""


def cross_product(blocks: tuple[Block, ...], W: Doubles, D: tuple[Floats, ...]) -> Doubles:
    """M (P, r) = Σ over points of x x̂ᵀ, from W (C, K, P) and the blocks' dictionaries, of r dimensions in all."""
    P = W.shape[2]
    M = np.empty((P, blocks[-1].dims.stop))
    for block, Du in zip(blocks, D, strict=True):
        Wu = W[block.dictionaries].reshape(-1, P)
        M[:, block.dims] = Wu.T @ Du.reshape(len(Wu), -1).astype(np.float64)
    return M


def rotated(blocks: tuple[Block, ...], W: Doubles, D: tuple[Floats, ...], R: Floats, workers: Workers) -> Floats:
    """The best rotation for these codewords; not in the calling thread, which Ctrl-C must reach."""
    M = cross_product(blocks, W, D)
    [best] = workers.map(lambda before: procrustes(M, before), [R])
    return best


def procrustes(M: Doubles, previous: Floats) -> Floats:
    """R (P, r) with orthonormal columns that maximises ``tr(Rᵀ M)``, held to ``previous`` where M leaves it open."""
    scale = float(np.linalg.norm(M))
    if scale == 0:
        return previous
    held = (M / scale + PULL * previous).astype(np.float32)
    U, _, Vt = scipy.linalg.svd(held, full_matrices=False, check_finite=False)
    Q = (U @ Vt).astype(np.float64)
    return np.ascontiguousarray(1.5 * Q - 0.5 * Q @ (Q.T @ Q), np.float32)
