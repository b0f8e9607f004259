"""What training does with rows and with what it learned of them, wherever they lie.

Rows of this process are arrays. Rows on other machines are ``Elsewhere``: every function here,
``assignment.assign`` and ``Statistics.collect`` hand over to it, so that the same training runs over both.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ._rows import Codes, Floats, Part, Residual, Source
from ._sums import dealt, draws, exact, rounded


class Elsewhere:
    """Rows, or what a pass over them gave, that lie on other machines: the functions that meet one hand over to it."""

    def assign(self, dictionaries: Any, method: Any, codes: Any) -> tuple[Any, Any]:
        """Codes and errors, as ``assignment.assign``."""
        raise NotImplementedError

    def collect(self, codes: Any, K: int, groups: Sequence[slice]) -> Any:
        """Statistics, as ``Statistics.collect``."""
        raise NotImplementedError

    def residual(self, D: Floats, codes: Any) -> Any:
        """As ``Residual``."""
        raise NotImplementedError

    def folds(self, parts: int, seed: int, codes: Any) -> tuple[list[Any], list[Any]]:
        """As ``folds``."""
        raise NotImplementedError

    def gathered(self, folds: Sequence[Any], codes: Sequence[Any]) -> Any:
        """As ``gathered``."""
        raise NotImplementedError

    def beside(self, others: Sequence[Any]) -> Any:
        """Codes with those of more dictionaries beside them."""
        raise NotImplementedError

    def total(self) -> float:
        """As ``total``."""
        raise NotImplementedError

    def drawn(self, u: int, count: int, seed: int) -> NDArray[np.int64]:
        """As ``drawn``."""
        raise NotImplementedError


def residual(rows: Source, D: Floats, codes: Codes) -> Source:
    """Rows less their decoding."""
    return rows.residual(D, codes) if isinstance(rows, Elsewhere) else Residual(rows, D, codes)


def beside(codes: Sequence[Codes]) -> Codes:
    """Codes of several dictionaries side by side, (n, …)."""
    if isinstance(codes[0], Elsewhere):
        return codes[0].beside(codes[1:])  # type: ignore[no-any-return]
    return np.concatenate(codes, axis=1)


def total(errors: Floats) -> float:
    """The sum of all ``errors`` (n, U), rounded once."""
    if isinstance(errors, Elsewhere):
        return errors.total()
    return rounded([exact(errors)])


def drawn(errors: Floats, u: int, count: int, seed: int) -> NDArray[np.int64]:
    """At most ``count`` rows, drawn without replacement by their errors in block u; none that has no error."""
    if isinstance(errors, Elsewhere):
        return errors.drawn(u, count, seed)
    return draws(errors[:, u], count, seed)[1]


def folds(rows: Source, parts: int, seed: int, codes: Codes) -> tuple[list[Source], list[Codes]]:
    """The rows dealt into ``parts``, and the codes of each."""
    if isinstance(rows, Elsewhere):
        return rows.folds(parts, seed, codes)
    places = dealt(len(rows), parts, seed)
    return [Part(rows, place) for place in places], [codes[place] for place in places]


def gathered(rows: Source, dealt_out: Sequence[Source], codes: Sequence[Codes]) -> Codes:
    """Codes of all rows from those of their ``folds``."""
    if isinstance(rows, Elsewhere):
        return rows.gathered(dealt_out, codes)  # type: ignore[no-any-return]
    out = np.empty((len(rows), codes[0].shape[1]), codes[0].dtype)
    for fold, some in zip(dealt_out, codes, strict=True):
        out[fold.index] = some  # type: ignore[attr-defined]  # folds are Parts
    return out
