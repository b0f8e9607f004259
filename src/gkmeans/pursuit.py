"""Multiple candidate matching pursuit (MCMP), the assignment of ock-means: Table 2.

Depth first over the dictionaries in order: at each depth the ``n_candidates`` codewords of least score on the residual
so far are tried in turn, at the last depth the best one. The tree grows as ``n_candidates^(C − 1)``: what a run will
take is estimated before it starts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from . import _core
from ._parallel import Workers
from ._rows import Codes, Floats
from .assignment import assign_block
from .dictionaries import TABLE_BYTES, Tables, table_bytes

SECONDS_A_SCORE = 7e-11
"""One core's time for each codeword score of the whole tree, most of which are pruned: 0.05 to 0.07 ns were measured
with AVX-512 at 4 and 8 dictionaries."""
FIRST_SCORES = 8
"""What a score of the first two depths, of which none is pruned, takes of that: 0.5 to 0.6 ns."""
SECONDS_A_PRODUCT = 3e-11
"""One core's time for each multiplication of a product with the codewords or the rotation: what BLAS takes with AVX2;
a tenth to a third of that with AVX-512. Trees take far more."""
SLOWER = {"avx512vbmi": 1.0, "avx512": 1.0, "avx2": 3.0, "baseline": 4.0}
"""The other levels against AVX-512: 2.3 to 2.6 and 3.4 to 3.6 times its time were measured."""
COUNTLESS = 10**30
"""Scores that no machine gets through: more need not be told apart, and may be more than a float holds."""


@dataclass(frozen=True)
class Pursuit:
    """MCMP as the method of a training or an encoding."""

    n_candidates: int

    def tables(self, D: Floats, workers: Workers) -> Tables:
        """T and its minima."""
        return Tables.of(D, workers)

    def codes(self, X: Floats, tables: Tables, given: Codes | None, workers: Workers) -> NDArray[np.uint16]:
        """The best leaf, or the codes ``given`` where it is not better."""
        return pursue_block(X, tables, min(self.n_candidates, tables.D.shape[1]), given, workers)


def pursue_block(
    X: Floats, tables: Tables, n_candidates: int, codes: Codes | None, workers: Workers
) -> NDArray[np.uint16]:
    """Codes (m, C) of the rows ``X`` (m, P) by MCMP; where ``codes`` is given, these unless a leaf is better."""
    C, Kp, _ = tables.products.D.shape
    if C == 1:
        return assign_block(X, tables, 1, codes, workers)
    if tables.T is None or tables.rowmin is None or tables.groupmin is None:
        raise _no_table(C, tables.D.shape[1])
    V = tables.products.into(X, workers.buffer(C * len(X) * Kp).reshape(C, len(X), Kp))
    places = np.empty((len(X), C), np.uint16) if codes is None else tables.inside(codes)
    arrays = (tables.T, tables.N, tables.rowmin, tables.groupmin)
    _core.pursue(V, *arrays, places, n_candidates, codes is None, workers.stop)
    return tables.outside(places)


def check_table(C: int, K: int) -> None:
    """Raise where ``C`` dictionaries of ``K`` codewords are too many for one pursuit."""
    if C > 1 and table_bytes(C, K) > TABLE_BYTES:
        raise _no_table(C, K)


def _no_table(C: int, K: int) -> ValueError:
    return ValueError(
        f"the pursuit over {C} dictionaries of {K} codewords needs a table of {table_bytes(C, K) / 2**30:.1f} GiB "
        f"made for pairs, and at most {TABLE_BYTES / 2**30:.0f} GiB; use fewer codewords or dictionaries"
    )


def tree_size(n_candidates: int, C: int, K: int) -> int:
    """Codeword scores that the whole tree of one row has: K at the root, and K at each node of each later depth."""
    branches = min(n_candidates, K)
    return K * C if branches == 1 else K * ((branches**C - 1) // (branches - 1))


def row_seconds(P: int, n_subspaces: int, n_candidates: int, C: int, K: int) -> float:
    """One core's time for a row of P numbers, roughly: the products, then a tree in each subspace."""
    products = P * (P if n_subspaces > 1 else 0) + C * K * P
    first, whole = (tree_size(n_candidates, depth, K) for depth in (min(C, 2), C))
    scores = min(whole + (FIRST_SCORES - 1) * first, COUNTLESS) * n_subspaces
    return products * SECONDS_A_PRODUCT + scores * SECONDS_A_SCORE * SLOWER[_core.simd_level()]


def check_cost(
    rows: tuple[int, int],
    passes: int,
    n_subspaces: int,
    n_candidates: int,
    C: int,
    K: int,
    threads: int,
    max_hours: float | None,
) -> None:
    """Raise where ``passes`` over ``rows`` (n, P) would take more than ``max_hours``; None allows any."""
    n_rows, P = rows
    hours = n_rows * passes * row_seconds(P, n_subspaces, n_candidates, C, K) / threads / 3600
    if max_hours is not None and hours > max_hours:
        raise ValueError(
            f"{passes} {'pass' if passes == 1 else 'passes'} over {n_rows:,} rows with {n_candidates} candidates at "
            f"each of {C} dictionaries of {K} codewords would take {in_words(hours)}, more than "
            f"max_hours={max_hours:g}; use fewer candidates, dictionaries or rows, or max_hours=None to run it all "
            "the same"
        )


def in_words(hours: float) -> str:
    """``about 12 days``."""
    if hours >= 8766e6:
        return "more than a million years"
    for unit, size in (("years", 8766), ("days", 24), ("hours", 1)):
        if hours >= 2 * size:
            return f"about {round(hours / size):,} {unit}"
    return f"about {max(1, round(hours * 60)):,} minutes"
