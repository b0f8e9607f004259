"""A dataset as the experiments see it: cut to the rows asked for, checked, and known by all of its rows."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from .._parallel import spans
from .._rows import chunk_rows
from .._validation import check_X
from ..datasets import Dataset
from ..estimators.base import AdditiveQuantizer
from .paper import DATASETS, SHAPES

WHOLE = "blake2b:"
"""Begins the digest of all rows."""
_SAMPLED_ROWS = 1024
Rows = NDArray[np.generic]


@dataclass(frozen=True)
class Subject:
    """Vectors, and what tells them from others; ``base_is_learn`` where the database is the training set.

    ``sampled`` are the fingerprints of some rows, by which earlier versions named their cells.
    """

    name: str
    learn: Rows
    base: Rows
    query: Rows
    groundtruth: Rows | None
    fingerprint: dict[str, str]
    base_is_learn: bool
    sampled: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, dataset: Dataset, limit: int | None) -> Subject:
        """``dataset`` with at most ``limit`` rows of each part; true neighbours go where the database is cut."""
        learn, base, query = (part[:limit] for part in (dataset.learn, dataset.base, dataset.query))
        _check({"learn": learn, "base": base, "query": query})
        truth = dataset.groundtruth
        if truth is not None:
            truth = None if len(base) < len(dataset.base) else truth[:limit]
        same = dataset.base is dataset.learn or equal(learn, base)
        prints = {"learn": fingerprint(learn)}
        prints["base"] = prints["learn"] if same and learn.dtype == base.dtype else fingerprint(base)
        some = {part: sampled_fingerprint(array) for part, array in (("learn", learn), ("base", base))}
        return cls(dataset.name, learn, base, query, truth, prints, same, some)

    @property
    def title(self) -> str:
        """The paper's name of the dataset, or its own."""
        return DATASETS.get(self.name.lower(), self.name)

    @property
    def published(self) -> bool:
        """Whether the parts have the shapes of the paper's dataset of this name, so that its figures compare."""
        return SHAPES.get(self.name.lower()) == (self.learn.shape, self.base.shape)

    def describe(self) -> str:
        """One line for the reports."""
        n, P = self.learn.shape
        base = "the same vectors" if self.base_is_learn else f"{len(self.base):,} vectors"
        return f"{self.title}: {n:,} × {P} to learn from, database of {base}, {len(self.query):,} queries"


def _check(parts: dict[str, Rows]) -> None:
    """Raise for what no fit, encoding or search would take, before hours are spent on the part before it."""
    width = parts["learn"].shape[1:]
    for name, array in parts.items():
        try:
            check_X(AdditiveQuantizer(), array, reset=True)
        except (ValueError, TypeError) as error:
            raise ValueError(re.sub(r"\bX\b", name, str(error))) from error
        if array.shape[1:] != width:
            raise ValueError(
                f"{name} has vectors of {array.shape[1]} features and learn of {width[0]}; take parts of one dataset"
            )


def _chunks(array: Rows) -> Iterator[slice]:
    """Where to cut, so that a memory-mapped file is not read whole at once."""
    return (slice(*span) for span in spans(len(array), chunk_rows(max(1, array.shape[1]))))


def equal(one: Rows, two: Rows) -> bool:
    """Whether two arrays hold the same rows."""
    return one.shape == two.shape and all(bool((one[chunk] == two[chunk]).all()) for chunk in _chunks(one))


def fingerprint(array: Rows) -> str:
    """Shape, dtype and the blake2b of all rows."""
    digest = hashlib.blake2b(digest_size=32)
    for chunk in _chunks(array):
        digest.update(np.ascontiguousarray(array[chunk]).tobytes())
    return f"{_kind(array)} {WHOLE}{digest.hexdigest()}"


def sampled_fingerprint(array: Rows) -> str:
    """Shape, dtype and the sha256 of up to 1024 rows spread evenly: how cells were named before."""
    chosen = np.unique(np.linspace(0, len(array) - 1, min(len(array), _SAMPLED_ROWS)).astype(np.int64))
    return f"{_kind(array)} {hashlib.sha256(np.ascontiguousarray(array[chosen]).tobytes()).hexdigest()}"


def _kind(array: Rows) -> str:
    return f"{'x'.join(map(str, array.shape))} {array.dtype.str}"
