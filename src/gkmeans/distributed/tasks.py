"""What runs where a shard lies: one task on one thread, arrays in and arrays out.

Every task is a function of its arguments alone, so that Dask can run it again after a worker is lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._parallel import Lock, Workers
from .._rows import Codes, Floats, Frame, Part, Residual, Rows, Source, exact_energy
from .._sums import Doubles, draws, exact, snapped
from .._validation import check_rows
from ..assignment import Method, assign
from ..dictionaries import Dictionaries, Tables
from ..update import Blocks, Statistics

Passed = tuple[Codes, Floats | None]
"""What a pass leaves of a shard: its codes, and where they were assigned, their errors."""

Sums = tuple[NDArray[np.int64], Blocks, Doubles]
"""Counts, the upper blocks of Z, and W: what Dask can weigh."""


class Sent:
    """Dictionaries and the way to assign by them, as they are sent out; every worker makes their tables once."""

    def __init__(self, dictionaries: Dictionaries, method: Method) -> None:
        self.dictionaries, self.method = dictionaries, method
        self._lock = Lock()
        self._tables: list[Tables] = []

    def __reduce__(self) -> tuple[Any, ...]:
        return Sent, (self.dictionaries, self.method)

    def __sizeof__(self) -> int:
        return sum(D.nbytes for D in self.dictionaries.D)

    def tables(self, workers: Workers) -> list[Tables]:
        """Tables of each block."""
        with self._lock:
            if not self._tables:
                self._tables = [self.method.tables(D, workers) for D in self.dictionaries.D]
            return self._tables


def received(value: Any) -> Any:
    """What is sent out with the task that holds it, and comes again with that task."""
    return value


def opened(
    chunk: NDArray[np.generic], frame: Frame, less: tuple[Floats, Passed] | None, index: NDArray[np.intp] | None
) -> Source:
    """The shard's rows, ``less`` their decoding by D with codes, and of those the ones that ``index`` names."""
    rows: Source = Rows(chunk, frame)
    if less is not None:
        D, (codes, _) = less
        rows = Residual(rows, D, codes)
    return rows if index is None else Part(rows, index)


def checked(chunk: Any, kind: np.dtype[Any], scale: float, block_info: Any = None) -> NDArray[np.generic]:
    """The chunk, if it is what the Dask array says; ``block_info`` is Dask's, and errors name rows by their place."""
    (first, stop), (_, width) = block_info[0]["array-location"]
    rows = f"rows {first} to {stop - 1}"
    if not isinstance(chunk, np.ndarray) or np.ma.isMaskedArray(chunk):
        raise ValueError(f"the chunk of {rows} is a {type(chunk).__name__}; convert it to a plain numpy array")
    if chunk.shape != (stop - first, width):
        raise ValueError(
            f"the chunk of {rows} has shape {chunk.shape}, but X says {(stop - first, width)}; set the chunks of X anew"
        )
    if chunk.dtype != kind:
        raise ValueError(f"the chunk of {rows} is {chunk.dtype}, but X says {kind}; convert each chunk to {kind}")
    check_rows(chunk, scale, first)
    return chunk


def added(chunk: NDArray[np.generic], grid: Doubles, scale: float) -> tuple[Doubles, int]:
    """Exact sum of each column, (P,), and the exact energy."""
    total, energy = np.zeros(chunk.shape[1]), 0
    for start in range(0, len(chunk), 4096):
        block = chunk[start : start + 4096]
        total += snapped(block, grid).sum(axis=0)
        energy += exact_energy(block, scale)
    return total, energy


def taken(place: Sequence[Any], index: NDArray[np.intp], columns: slice) -> Floats:
    """Rows of the shard in the frame."""
    return opened(*place).block(index, columns)


def assigned(place: Sequence[Any], sent: Sent, before: Passed | None) -> Passed:
    """Codes and errors of the shard."""
    codes = None if before is None else before[0]
    with Workers(1) as workers:
        return assign(opened(*place), sent.dictionaries, sent.method, codes, workers, sent.tables(workers))


def collected(place: Sequence[Any], passed: Passed, K: int, groups: Sequence[slice], grid: Doubles) -> Sums:
    """Statistics of the shard."""
    with Workers(1) as workers:
        found = Statistics.collect(opened(*place), passed[0], K, groups, workers, grid)
    return found.counts, found.Z, found.W


def joined(parts: Sequence[Sums]) -> Sums:
    """Statistics of several shards together."""
    counts, Z, W = parts[0][0].copy(), parts[0][1], parts[0][2].copy()
    for more_counts, more_Z, more_W in parts[1:]:
        counts += more_counts
        Z = {pair: block + more_Z[pair] for pair, block in Z.items()}
        W += more_W
    return counts, Z, W


def total(passed: Any, item: int) -> int:
    """Exact sum of the errors."""
    return exact(passed[item])


def rows_of(passed: Any, item: int, index: NDArray[np.intp]) -> NDArray[Any]:
    """Some rows of the codes or errors."""
    rows: NDArray[Any] = passed[item][index]
    return rows


def drawn(passed: Any, u: int, count: int, seed: int, first: int) -> tuple[Doubles, NDArray[np.int64]]:
    """Keys and places of rows drawn by their errors in block u."""
    return draws(passed[1][:, u], count, seed, first)


def coded(chunk: NDArray[np.generic], model: Any, effort: int | None = None) -> Codes:
    """Codes of the rows by a fitted estimator."""
    with Workers(1) as workers:
        codes: Codes = model._choose(chunk, None, workers, effort=effort)
        return codes


def started(chunk: NDArray[np.generic], model: Any) -> Passed:
    """Codes that a fitted estimator starts training with."""
    return coded(chunk, model), None


def beside(passed: Sequence[Passed]) -> Passed:
    """Codes of several dictionaries side by side."""
    return np.concatenate([codes for codes, _ in passed], axis=1), None


def fold_of(passed: Passed, index: NDArray[np.intp]) -> Passed:
    """Codes of the shard's rows in one fold."""
    return passed[0][index], None


def undealt(folds: Sequence[NDArray[np.intp]], passed: Sequence[Passed]) -> Passed:
    """Codes of the shard's rows from those of its folds."""
    first = passed[0][0]
    out = np.empty((sum(map(len, folds)), first.shape[1]), first.dtype)
    for fold, (codes, _) in zip(folds, passed, strict=True):
        out[fold] = codes
    return out, None
