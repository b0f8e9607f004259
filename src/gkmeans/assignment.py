"""Assignment: greedy start, O1GA, O2GA, OnGA, Sec. 2.1, Alg. 2.

A pass cuts the rows into blocks; each block makes one product a dictionary for the ⟨x, d⟩, then the kernel
chooses the codes. Where T would be too large, order 1 works on residuals instead: a product for each dictionary and
sweep, but no table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from . import _core
from ._parallel import Workers, block_rows
from ._rows import Codes, Floats, Source, take_away
from .dictionaries import TABLE_BYTES, Block, Dictionaries, Tables, code_dtype, squared_errors, table_bytes

MAX_SWEEPS = 100


class Method(Protocol):
    """A way to choose the codes of a block of rows: group assignment here, pursuit in pursuit.py."""

    def tables(self, D: Floats, workers: Workers) -> Tables:
        """What ``codes`` needs of one block's dictionaries."""
        ...

    def codes(self, X: Floats, tables: Tables, given: Codes | None, workers: Workers) -> NDArray[np.uint16]:
        """Codes (m, C) of the rows ``X`` (m, P), never worse than those ``given`` by the products that it makes."""
        ...


@dataclass(frozen=True)
class GroupAssignment:
    """OnGA for n = ``order`` dictionaries at a time, in blocks with fewer for all of them.

    Each of ``rounds`` then draws half of a row's codes anew, by ``seed`` and the row's codes, refines and keeps the
    better ones of the two. ``coarse`` makes the products of rows with codewords in bytes: a choice may be swayed by a
    hundredth of what two codewords differ by, and a row whose codes are given may end a little worse. ``early`` assigns
    the stages that an encoding replays before it (encoding.py); by default it is O1GA.
    """

    order: int
    rounds: int = 0
    seed: int = 0
    coarse: bool = False
    early: SwiftAssignment | None = None

    def tables(self, D: Floats, workers: Workers) -> Tables:
        """T, and for pairs and more its minima."""
        return Tables.of(D, workers, self.order, self.coarse)

    def codes(self, X: Floats, tables: Tables, given: Codes | None, workers: Workers) -> NDArray[np.uint16]:
        """From the codes ``given``, or from a greedy start."""
        return assign_block(X, tables, self.order, given, workers, self.rounds, self.seed)


@dataclass(frozen=True)
class SwiftAssignment:
    """O1GA in 16-bit steps by products in bytes, where the CPU and the dictionaries allow it, else ``otherwise``.

    Each of ``rounds`` then chooses half of a row's codes anew (at least 3, at most 16), one after the other, the first
    at random by ``seed`` and the row's codes, refines and keeps the better ones. ``in_turn`` the first 2 C rounds take
    the dictionaries in turn instead of drawing them, and the first min(C, 8) of these begin with the best codeword but
    the one that is there: the best way for few rounds. A choice may be swayed as by ``coarse`` products; half the
    squared norm of a usual codeword has at least ``fine`` steps.
    """

    rounds: int
    otherwise: GroupAssignment
    seed: int = 0
    fine: float = 64.0
    in_turn: bool = False

    def tables(self, D: Floats, workers: Workers) -> Tables:
        """T in steps, or what ``otherwise`` needs."""
        return Tables.in_steps(D, workers, self.fine) or self.otherwise.tables(D, workers)

    def codes(self, X: Floats, tables: Tables, given: Codes | None, workers: Workers) -> NDArray[np.uint16]:
        """From the codes ``given``, or from a greedy start."""
        steps, packed = tables.steps, tables.products.coarse
        if steps is None or packed is None:
            return self.otherwise.codes(X, tables, given, workers)
        out = np.empty((len(X), len(tables.D)), np.uint16) if given is None else np.array(given, np.uint16, order="C")
        _core.swift_assign(
            np.ascontiguousarray(X),
            packed,
            steps.T,
            steps.N,
            steps.each,
            out,
            given is None,
            workers.stop,
            rounds=self.rounds,
            seed=self.seed,
            in_turn=self.in_turn,
        )
        return out


def check_table(order: int, C: int, K: int) -> None:
    """Raise where ``order`` dictionaries of ``K`` codewords cannot be assigned jointly."""
    if order > 1 and table_bytes(C, K) > TABLE_BYTES:
        raise ValueError(
            f"order={order} with {C} dictionaries of {K} codewords needs a table of "
            f"{table_bytes(C, K) / 2**30:.1f} GiB, more than the limit of {TABLE_BYTES / 2**30:.0f} GiB; "
            "use order=1 or fewer codewords"
        )


def assign_block(
    X: Floats,
    tables: Tables,
    order: int,
    codes: Codes | None,
    workers: Workers,
    rounds: int = 0,
    seed: int = 0,
) -> NDArray[np.uint16]:
    """Codes (m, C) of the rows ``X`` (m, P); from ``codes``, or from a greedy start where it is None."""
    C, Kp, _ = tables.products.D.shape
    V = workers.buffer(C * len(X) * Kp).reshape(C, len(X), Kp)
    if C == 1:  # the nearest codeword, whatever it was before
        out = np.empty(len(X), np.uint16)
        _core.nearest(tables.products.into(X, V)[0], tables.N[0], out)
        return out[:, None]
    if tables.T is None or tables.rowmin is None or tables.groupmin is None:
        return _rounds_by_residuals(X, tables, codes, workers.stop, rounds, seed)
    places = np.empty((len(X), C), np.uint16) if codes is None else tables.inside(codes)
    if codes is not None:
        X = take_away(copied(X, workers, "residual"), tables.D, codes)
    tables.products.into(X, V)
    arrays = (tables.T, tables.N, tables.rowmin, tables.groupmin)
    _core.assign(
        V,
        *arrays,
        places,
        min(order, C),
        codes is None,
        workers.stop,
        rounds=rounds,
        seed=seed,
    )
    return tables.outside(places)


def _rounds_by_residuals(
    X: Floats, tables: Tables, given: Codes | None, stop: NDArray[np.int32], rounds: int, seed: int
) -> NDArray[np.uint16]:
    """O1GA without T, then rounds as perturb.inl has them; the draws are the block's, not each row's."""
    D = tables.D
    codes = _assign_by_residuals(X, tables, given, stop)
    rng = np.random.default_rng(seed)
    for _ in range(rounds):
        if stop[0]:
            break
        drawn = np.argsort(rng.random(codes.shape), axis=1) < len(D) // 2
        tried = np.where(drawn, rng.integers(D.shape[1], size=codes.shape), codes).astype(np.uint16)
        found = _assign_by_residuals(X, tables, tried, stop)
        better = squared_errors(X, D, found) < squared_errors(X, D, codes)
        codes[better] = found[better]
    return codes


def _assign_by_residuals(X: Floats, tables: Tables, given: Codes | None, stop: NDArray[np.int32]) -> NDArray[np.uint16]:
    """O1GA as Eq. 5 has it, on the residual y, from the codes given or a greedy start."""
    D, N = tables.D, tables.N[:, : tables.D.shape[1]]
    start = given is None
    codes = np.empty((len(X), len(D)), np.uint16) if given is None else np.array(given, np.uint16)
    residual = X.copy()
    row = np.arange(len(X))
    for c in range(len(D)):
        if start:
            codes[:, c] = (N[c] - residual @ D[c].T).argmin(axis=1)
        residual -= D[c][codes[:, c]]
    for _ in range(MAX_SWEEPS):
        changed = False
        for c in range(len(D)):
            residual += D[c][codes[:, c]]
            cost = N[c] - residual @ D[c].T
            best = cost.argmin(axis=1)
            better = cost[row, best] < cost[row, codes[:, c]]
            codes[better, c] = best[better]
            residual -= D[c][codes[:, c]]
            changed |= bool(better.any())
        if not changed or stop[0]:
            break
    return codes


def copied(X: Floats, workers: Workers, use: str) -> Floats:
    """A copy of ``X`` in a buffer of this thread."""
    out: Floats = workers.buffer(X.size, use).reshape(X.shape)
    np.copyto(out, X)
    return out


def read(rows: Source, part: slice, workers: Workers) -> Floats:
    """Rows at hand, in a buffer of this thread."""
    return rows.block(part, room=workers.buffer((part.stop - part.start) * rows.n_features, "rows"))


def turned(X: Floats, dictionaries: Dictionaries, workers: Workers, coarse: bool = False) -> Floats:
    """Rows in the coordinates of the blocks, in a buffer of this thread."""
    if dictionaries.R is None:
        return X
    return dictionaries.rotate(X, coarse, workers.buffer(len(X) * dictionaries.R.shape[1], "turned"))


def in_block(X: Floats, block: Block, workers: Workers) -> Floats:
    """The columns of one block, side by side."""
    own = X[:, block.dims]
    return own if own.flags.c_contiguous else copied(own, workers, "block")


def assign(
    rows: Source,
    dictionaries: Dictionaries,
    method: Method,
    codes: Codes | None,
    workers: Workers,
    tables: Sequence[Tables] | None = None,
) -> tuple[Codes, Floats]:
    """Codes (n, C) of rows at hand, and the squared error (n, U) of each row in each of U blocks."""
    if tables is None:
        tables = [method.tables(D, workers) for D in dictionaries.D]
    C, K, _ = dictionaries.shape
    out = np.empty((len(rows), C), code_dtype(K))
    errors = np.empty((len(rows), len(dictionaries.blocks)), np.float32)

    def one(span: tuple[int, int]) -> None:
        part = slice(*span)
        X = turned(read(rows, part, workers), dictionaries, workers)
        for u, block in enumerate(dictionaries.blocks):
            Xu = in_block(X, block, workers)
            given = None if codes is None else codes[part, block.dictionaries]
            chosen = method.codes(Xu, tables[u], given, workers)
            out[part, block.dictionaries] = chosen
            errors[part, u] = squared_errors(Xu, dictionaries.D[u], chosen)

    dictionaries.ready()
    widest = max(D.shape[0] * D.shape[1] for D in dictionaries.D)
    workers.map(one, rows.spans(block_rows(widest)))
    return out, errors
