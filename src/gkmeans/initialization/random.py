"""Random initialisation: every codeword of every dictionary is a row, Sec. 2.3.1, first paragraph.

The sum of C rows would lie C times too far out, so all dictionaries but the first hold rows less the mean; in the
frame of the training that is the row itself, and each is divided by C to keep the sum's spread near the data's.
"""

from __future__ import annotations

import numpy as np

from .._rows import Source
from ..dictionaries import Dictionaries, sample_rows


def random(rows: Source, C: int, K: int, rng: np.random.Generator) -> Dictionaries:
    """Dictionaries (C, K, P) of rows drawn without replacement, each dictionary on its own."""
    return Dictionaries.single(sample_rows(rows, K, rng, C) / np.float32(C))
