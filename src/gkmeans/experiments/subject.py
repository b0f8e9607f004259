"""A dataset as the experiments see it: cut to the rows asked for, known by its fingerprint."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..datasets import Dataset
from .paper import DATASETS

_SAMPLED_ROWS = 1024
Rows = NDArray[np.generic]


@dataclass(frozen=True)
class Subject:
    """Vectors, and what tells them from others; ``base_is_learn`` where the database is the training set."""

    name: str
    learn: Rows
    base: Rows
    query: Rows
    groundtruth: Rows | None
    fingerprint: dict[str, str]
    base_is_learn: bool

    @classmethod
    def of(cls, dataset: Dataset, limit: int | None) -> Subject:
        """``dataset`` with at most ``limit`` rows of each part; true neighbours go where the database is cut."""
        learn, base, query = (part[:limit] for part in (dataset.learn, dataset.base, dataset.query))
        truth = dataset.groundtruth
        if truth is not None:
            truth = None if len(base) < len(dataset.base) else truth[:limit]
        prints = {part: fingerprint(array) for part, array in (("learn", learn), ("base", base))}
        return cls(dataset.name, learn, base, query, truth, prints, prints["learn"] == prints["base"])

    @property
    def title(self) -> str:
        """The paper's name of the dataset, or its own."""
        return DATASETS.get(self.name.lower(), self.name)

    def describe(self) -> str:
        """One line for the reports."""
        n, P = self.learn.shape
        base = "the same vectors" if self.base_is_learn else f"{len(self.base):,} vectors"
        return f"{self.title}: {n:,} × {P} to learn from, database of {base}, {len(self.query):,} queries"


def fingerprint(array: Rows) -> str:
    """Shape, dtype and the sha256 of up to 1024 rows spread evenly."""
    chosen = np.unique(np.linspace(0, len(array) - 1, min(len(array), _SAMPLED_ROWS)).astype(np.int64))
    digest = hashlib.sha256(np.ascontiguousarray(array[chosen]).tobytes()).hexdigest()
    return f"{'x'.join(map(str, array.shape))} {array.dtype.str} {digest}"
