"""Passes over the rows: what each does with some of them, so that it can be done wherever they lie.

``rows.passed(job, codes, workers)`` makes a pass over all rows. What the parts of a pass give adds: the errors and the
sums of the statistics are exact (_sums.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ._parallel import Lock, Workers, spans
from ._rows import READ_ROWS, Codes, Floats, Part, Source
from ._sums import Doubles, exact
from .assignment import Method, assign
from .dictionaries import TABLE_BYTES, Dictionaries, Tables, code_dtype, table_bytes
from .update import Statistics


class Passed(NamedTuple):
    """What a pass gives: codes (n, C), their squared error by ``exact``, and the statistics of each fold passed."""

    codes: Codes
    error: int
    statistics: list[Statistics]


class Sweep:
    """Codes, error and statistics by dictionaries: the same for all rows, or one for each of the folds of ``seed``.

    Rows of a fold that has none are passed over: they keep their codes and have neither error nor statistics.
    """

    def __init__(
        self, dictionaries: Sequence[Dictionaries | None], method: Method, grid: Doubles, seed: int = 0
    ) -> None:
        self.method, self.grid, self.seed, self.count = method, grid, seed, len(dictionaries)
        self.dictionaries = {f: one for f, one in enumerate(dictionaries) if one is not None}
        self._lock = Lock()
        self._tables: dict[int, list[Tables]] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return Sweep, ([self.dictionaries.get(f) for f in range(self.count)], self.method, self.grid, self.seed)

    def __sizeof__(self) -> int:
        return sum(D.nbytes for one in self.dictionaries.values() for D in one.D)

    @property
    def _like(self) -> Dictionaries:
        """One of them, for their shape."""
        return next(iter(self.dictionaries.values()))

    def tables(self, f: int, workers: Workers) -> list[Tables]:
        """Tables of a fold's dictionaries, made once where those of all folds may be held, else fold by fold."""
        with self._lock:
            if f not in self._tables:
                if not self._all_at_once():
                    self._tables.clear()
                self._tables[f] = [self.method.tables(D, workers) for D in self.dictionaries[f].D]
            return self._tables[f]

    def _all_at_once(self) -> bool:
        C, K, P = self._like.shape
        return len(self.dictionaries) * (table_bytes(C, K) + 8 * C * K * P) <= TABLE_BYTES

    def over(self, rows: Source, codes: Codes | None, workers: Workers, first: int = 0) -> Passed:
        """One pass over rows, the first of which has place ``first`` among all, or one for each fold."""
        like, turn = self._like, list(self.dictionaries)
        out, error = np.empty((len(rows), like.shape[0]), code_dtype(like.shape[1])), 0
        if len(turn) < self.count:
            assert codes is not None  # those of the other folds stay
            out[:] = codes
        statistics = {f: Statistics.none(*like.shape, like.groups) for f in turn}
        fold_of = rows.folds(self.count, self.seed, first)
        for folds in [turn] if self._all_at_once() else [[f] for f in turn]:
            for where, chunk in rows.chunks():
                for f, mine, part in parts_of(chunk, fold_of[where], self.count, folds):
                    given = None if codes is None else codes[where][mine]
                    tables = self.tables(f, workers)
                    chosen, errors = assign(part, self.dictionaries[f], self.method, given, workers, tables)
                    out[where][mine] = chosen
                    statistics[f].take_in(part, chosen, self.grid, workers)
                    error += exact(errors)
        return Passed(out, error, list(statistics.values()))


class Collect:
    """Statistics of codes for dictionaries like those given, of each of ``count`` folds; the codes stay."""

    def __init__(self, like: Dictionaries, grid: Doubles, count: int = 1, seed: int = 0) -> None:
        self.shape, self.groups = like.shape, like.groups
        self.grid, self.count, self.seed = grid, count, seed

    def over(self, rows: Source, codes: Codes | None, workers: Workers, first: int = 0) -> Passed:
        """One pass over rows, the first of which has place ``first`` among all."""
        assert codes is not None  # it is those that are counted
        out = [Statistics.none(*self.shape, self.groups) for _ in range(self.count)]
        fold_of = rows.folds(self.count, self.seed, first)
        for where, chunk in rows.chunks():
            for f, mine, part in parts_of(chunk, fold_of[where], self.count, range(self.count)):
                out[f].take_in(part, codes[where][mine], self.grid, workers)
        return Passed(codes, 0, out)


class Project:
    """Rows in the coordinates of an orthonormal ``basis`` (P, r), as codes; the error is what lies outside of it."""

    def __init__(self, basis: Floats) -> None:
        self.basis = basis

    def over(self, rows: Source, codes: Codes | None, workers: Workers, first: int = 0) -> Passed:
        """One pass over rows."""
        out: Any = np.empty((len(rows), self.basis.shape[1]), np.float32)
        outside, error = np.empty(len(rows), np.float32), 0
        for where, chunk in rows.chunks():

            def one(span: tuple[int, int], chunk: Source = chunk, first: int = where.start) -> None:
                X, part = chunk.block(slice(*span)), slice(first + span[0], first + span[1])
                np.matmul(X, self.basis, out=out[part])
                whole, inside = (np.einsum("ij,ij->i", Y, Y, dtype=np.float64) for Y in (X, out[part]))
                outside[part] = np.maximum(whole - inside, 0)

            workers.map(one, spans(len(chunk), READ_ROWS))
            error += exact(outside[where])
        return Passed(out, error, [])


def parts_of(
    chunk: Source, fold_of: NDArray[np.uint8], count: int, turn: Sequence[int]
) -> Iterator[tuple[int, slice | NDArray[np.intp], Source]]:
    """Each fold of this ``turn``: its number, where its rows lie in the chunk, and the rows."""
    for f in turn:
        if count == 1:
            yield f, slice(None), chunk
        else:
            mine = np.flatnonzero(fold_of == f)
            yield f, mine, Part(chunk, mine)
