"""The first look over the data: its mean, its size, its energy, and what a user should know of it. One pass.

Memory does not grow with the rows: distinct rows are counted by keys, exactly up to a million of them and above that by
those whose hash ends in enough zeros.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ._frame import Frame
from ._parallel import Workers, spans
from ._rows import CHUNK_FLOATS, READ_ROWS
from ._sums import Doubles
from ._validation import SMALL_VALUE, SMALLEST_VALUE, DataWarning

KEYS = 1 << 20
"""Keys of distinct rows that are kept."""
MOST_ROWS = 2**31 - 1
"""Pairs of codewords are counted in 32 bits."""
AT_ONCE = 32
"""Most blocks of rows that are worked on together; fewer where rows are wide."""


@dataclass(frozen=True)
class Survey:
    """What one pass over n rows of P numbers has found."""

    shape: tuple[int, int]
    dtype: str
    frame: Frame
    energy: float  # Σ‖x‖² in units of 1 / scale²
    low: Doubles
    high: Doubles
    distinct: int  # rows, estimated above KEYS
    digest: str  # of all rows in their order

    @classmethod
    def of(
        cls,
        shape: tuple[int, int],
        dtype: str,
        total: Doubles,
        energy: float,
        low: Doubles,
        high: Doubles,
        distinct: int,
        digest: str,
    ) -> Survey:
        """The survey of rows with this ``total`` (P,) and ``energy``, as they came."""
        frame = Frame.between(total / shape[0], low, high)
        return cls(shape, dtype, frame, energy * frame.scale * frame.scale, low, high, distinct, digest)

    @property
    def largest(self) -> float:
        """The largest value, without its sign."""
        return float(max(np.abs(self.low).max(), np.abs(self.high).max()))


class Distinct:
    """Counts different keys."""

    def __init__(self) -> None:
        self._kept, self._waiting, self._count, self._share = np.empty(0, np.uint64), [np.empty(0, np.uint64)], 0, 1

    def add(self, keys: Doubles) -> None:
        """Take in keys."""
        self._waiting.append((keys + 0.0).view(np.uint64) * np.uint64(0x9E3779B97F4A7C15))  # + 0.0: −0 is 0
        self._count += len(keys)
        if self._count > KEYS:
            self._settle()

    def _settle(self) -> None:
        self._kept = np.unique(self._own(np.concatenate([self._kept, *self._waiting])))
        self._waiting, self._count = [], 0
        while len(self._kept) > KEYS:
            self._share *= 2
            self._kept = self._own(self._kept)

    def _own(self, hashes: NDArray[np.uint64]) -> NDArray[np.uint64]:
        own: NDArray[np.uint64] = hashes[(hashes >> np.uint64(20)) % np.uint64(self._share) == 0]
        return own

    def count(self) -> int:
        """The number of keys, exact while it is at most KEYS."""
        self._settle()
        return len(self._kept) * self._share


def survey(blocks: Iterable[NDArray[Any]], workers: Workers) -> Survey:
    """Look over blocks of rows (m, P), of which only the last is shorter."""
    distinct, digest = Distinct(), hashlib.sha256()
    n, total, energy, dtype = 0, np.zeros(1), 0.0, ""
    low = high = np.zeros(1)
    for block, part in _looks(iter(blocks), workers):
        if n == 0:
            low, high, dtype = part.low, part.high, str(block.dtype)
        n += len(block)
        total = total + part.total
        energy += part.energy
        low, high = np.minimum(low, part.low), np.maximum(high, part.high)
        distinct.add(part.keys)
        digest.update(part.keys.tobytes())
    if not 0 < n <= MOST_ROWS:
        raise ValueError(f"X has {n} rows; pass at least one and at most {MOST_ROWS}, a sample of larger data")
    return Survey.of((n, len(low)), dtype, total, energy, low, high, distinct.count(), digest.hexdigest())


def blocks_of(X: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """An array (n, P) block by block."""
    return (X[slice(*span)] for span in spans(len(X), READ_ROWS))


@dataclass(frozen=True)
class Look:
    """What one block of rows adds."""

    total: Doubles
    energy: float
    low: Doubles
    high: Doubles
    keys: Doubles


def _looks(blocks: Iterator[NDArray[Any]], workers: Workers) -> Iterator[tuple[NDArray[Any], Look]]:
    for first in blocks:
        more = max(workers.n_jobs, min(AT_ONCE, CHUNK_FLOATS // first.size)) - 1
        some = [first, *islice(blocks, more)]
        yield from zip(some, workers.map(look, some), strict=True)


def look(block: NDArray[Any]) -> Look:
    """Look over one block."""
    rows = np.ascontiguousarray(block, np.float64)
    weights = np.random.default_rng(0).standard_normal(rows.shape[1])
    keys = (rows * weights).sum(axis=1)  # equal rows give equal bits, which a product does not promise
    energy = float(np.einsum("ij,ij->", rows, rows))
    return Look(rows.sum(axis=0), energy, rows.min(axis=0), rows.max(axis=0), keys)


def warn_about(found: Survey, K: int) -> None:
    """Warn of data that holds less than its shape suggests, with the numbers; refuse what float32 cannot hold."""
    (n, P), distinct, largest = found.shape, min(found.distinct, found.shape[0]), found.largest
    messages = []
    if n == 1:
        messages.append("X has 1 row: one codeword of each dictionary describes it exactly")
    if n < K:
        messages.append(
            f"X has {n} rows, fewer than n_codewords={K}: at least {K - n} of each {K} codewords stay unused"
        )
    elif distinct < K:
        messages.append(f"X has {distinct} distinct rows among {n}, fewer than n_codewords={K}: codewords stay unused")
    elif distinct < 0.9 * n:
        about = "" if distinct <= KEYS else "about "
        messages.append(
            f"X has {about}{distinct} distinct rows among {n}: the rest are duplicates, which weigh as often"
        )
    constant = int((found.low == found.high).sum())
    if constant == P and n > 1:
        messages.append(f"all {n} rows of X are equal: one codeword describes them")
    elif constant and n > 1:
        messages.append(f"{constant} of {P} columns of X are constant: they carry no information")
    if P == 1:
        messages.append(f"X has 1 column and {n} rows: one number a vector, which its own bytes may hold as well")
    if 0 < largest < SMALLEST_VALUE:
        raise ValueError(
            f"X has no value above {largest:.3g}, too small for float32 codewords (at least {SMALLEST_VALUE:.0e}); "
            f"multiply X, for instance by {1 / max(largest, 1e-300):.0e}: divide what decode gives by the same"
        )
    if 0 < largest < SMALL_VALUE:
        messages.append(f"X has no value above {largest:.3g}: squares underflow float32, so X is scaled inside")
    for message in messages:
        warnings.warn(message, DataWarning, stacklevel=4)
