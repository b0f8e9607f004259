"""Training that follows batches by their statistics, whose vectors are dropped; what is old may fade.

A model is a chain: the stages that an encoding replays, and the dictionaries it ends with. A batch is coded by the
chain from its first link to its last; each link adds the batch to its statistics and is solved anew. So the start
of an encoding follows drifting data as its end does.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ._frame import Frame
from ._parallel import Workers
from ._rows import Codes, Source
from .assignment import Method, assign
from .dictionaries import Dictionaries
from .training import collected, revived, updated
from .update import Statistics

PASSES = 2
"""Times that each link codes a batch and is solved."""

TURN = 1.5
"""Data that fades has turned when a batch has so many times the relative distortion of those before."""

USUAL = 0.9
"""What the relative distortion of earlier batches counts in that which is usual."""

Chain = tuple[Dictionaries, ...]


@dataclass(frozen=True)
class Seen:
    """What a model has seen: the statistics of its start, and of the batches since, for each link of the chain.

    ``weight`` is what decay has left of the start; ``digest`` tells models of one start from others; ``usual`` is the
    relative distortion that batches have when they come, where it is known.
    """

    start: tuple[Statistics, ...]
    since: tuple[Statistics, ...]
    weight: float
    digest: str
    usual: float | None = None

    @classmethod
    def nothing(cls, chain: Chain, start: tuple[Statistics, ...], frame: Frame) -> Seen:
        """A start, and no batch since."""
        digest = hashlib.sha256(frame.shift.tobytes() + np.float64(frame.scale).tobytes())
        for link, statistics in zip(chain, start, strict=True):
            for array in (*link.D, statistics.counts):
                digest.update(np.ascontiguousarray(array).tobytes())
        return cls(start, tuple(one * 0.0 for one in start), 1.0, digest.hexdigest())

    def noted(self, distortion: float, expected: float) -> tuple[Seen, bool]:
        """After a batch that came with this distortion: what is usual then, and whether the batch is out of it.

        ``expected`` is what is usual as long as no batch has shown it. One batch moves it by no more than it may have.
        """
        if not np.isfinite(distortion):  # rows of zeros
            return self, False
        usual = expected if self.usual is None else self.usual
        counted = min(distortion, TURN * usual)
        return replace(self, usual=USUAL * usual + (1 - USUAL) * counted), distortion > TURN * usual

    def total(self, i: int) -> Statistics:
        """Statistics of link ``i``, the start and the batches together."""
        return (self.start[i] * self.weight + self.since[i]).without_rare()

    def merged(self, other: Seen) -> Seen:
        """The batches of both since their common start."""
        return replace(self, since=tuple(a + b for a, b in zip(self.since, other.since, strict=True)))

    def faded(self, decay: float) -> Seen:
        """Everything counted ``decay`` times."""
        return replace(self, since=tuple(one * decay for one in self.since), weight=self.weight * decay)


def follow(
    rows: Source,
    chain: Chain,
    methods: Sequence[Method],
    seen: Seen,
    rng: np.random.Generator,
    workers: Workers,
) -> tuple[Chain, Seen, Codes, float, float]:
    """The chain and what it has seen after a batch of ``rows``; the batch's codes, and its squared error when it came
    to the last link and when it had been learned.
    """
    codes: Codes | None = None
    links, since = [], []
    for i, (link, method) in enumerate(zip(chain, methods, strict=True)):
        old = seen.total(i)
        for turn in range(PASSES):
            codes, errors = assign(rows, link, method, codes, workers)
            if turn == 0:
                first = float(errors.sum(dtype=np.float64))
            batch = collected(rows, codes, link, workers)
            everything = old + batch
            link = updated(link, everything, workers)
            link = revived(link, everything, rows, codes, errors, rng)
        links.append(link)
        since.append(seen.since[i] + batch)
    assert codes is not None  # a chain has a link
    return tuple(links), replace(seen, since=tuple(since)), codes, first, float(errors.sum(dtype=np.float64))


def solved(chain: Chain, seen: Seen, workers: Workers) -> Chain:
    """The chain that all that was seen gives."""
    return tuple(updated(link, seen.total(i), workers) for i, link in enumerate(chain))
