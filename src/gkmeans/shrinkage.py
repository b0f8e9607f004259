"""How far codewords are drawn to zero in relaxed training (relaxation.py), judged by rows that they do not know."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ._parallel import spans
from ._rows import READ_ROWS, Codes, Source
from ._sums import Doubles
from .dictionaries import Dictionaries, squared_errors


@dataclass
class Shrinkage:
    """Points by which codewords are drawn to zero, learned on the way: now and then more or less is tried.

    The judge is a fold that the dictionaries were solved without. At first four times as much is tried, after the first
    step too far half or twice.
    """

    points: float = 1.0
    factor: float = 4.0

    @property
    def tried(self) -> float:
        """Points to try beside the present ones."""
        return self.points * self.factor

    def better(self, now: Dictionaries, then: Dictionaries, held: Source, codes: Codes) -> Dictionaries:
        """Dictionaries solved with the points of ``now`` or with those ``tried``: what suits the rows ``held`` better.

        The points become those. ``codes`` are those of the rows as they are.
        """
        if row_errors(held, then, codes).sum() < row_errors(held, now, codes).sum():
            self.points = self.tried
            return then
        self.turned()
        return now

    def turned(self) -> None:
        """Next time fewer points are tried where more did not serve, and the other way about."""
        self.factor = 0.5 if self.factor > 1 else 2.0


def row_errors(rows: Source, fitted: Dictionaries, codes: Codes) -> Doubles:
    """‖x − x̂‖² (n,) of rows with the codes given."""
    D, parts = fitted.full(), [slice(*span) for span in spans(len(rows), READ_ROWS)]
    return np.concatenate([squared_errors(rows.block(part), D, codes[part]) for part in parts]).astype(np.float64)


def pays(gain: Doubles, deviations: float = 1.0) -> bool:
    """Whether rows gain (n,) more in all than chance would have it, so many standard deviations."""
    return float(gain.sum()) > deviations * float(gain.std() * np.sqrt(len(gain)))
