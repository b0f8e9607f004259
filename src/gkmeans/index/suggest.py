"""Which settings to use for a budget of bytes or a recall: some are tried on a sample, and measured."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .._progress import logger
from .._validation import check_integer
from ..dictionaries import drawn
from ..estimators.base import AdditiveQuantizer
from ..estimators.cartesian import CartesianKMeans
from ..estimators.group import GroupKMeans
from .flat import FlatIndex
from .lookup import METRICS, lines_of, units

_METHODS: dict[str, type[AdditiveQuantizer]] = {"CartesianKMeans": CartesianKMeans, "GroupKMeans": GroupKMeans}
_QUICK: dict[str, dict[str, Any]] = {
    "CartesianKMeans": {"max_iter": 30},
    "GroupKMeans": {"relaxation": 0, "effort": 2, "max_iter": 20, "init_iter": 10},
}
_QUERIES, _ROWS_A_CODEWORD, _MOST_BYTES, _SAY_AFTER = 200, 8, 64, 2.0


@dataclass(frozen=True)
class Trial:
    """One setting, and what it gave on the sample."""

    method: str
    n_dictionaries: int
    n_codewords: int
    bytes_per_vector: float
    recall: float
    queries_per_second: float

    def __str__(self) -> str:
        return f"{self.method}({self.n_dictionaries}, {self.n_codewords})"


@dataclass(frozen=True, repr=False)
class Suggestion:
    """What ``suggest`` says: the setting to use, why, and all that was tried."""

    best: Trial
    reason: str
    trials: tuple[Trial, ...]
    k: int
    rows: int
    """Vectors of the sample that were searched."""
    random_state: int | None

    def estimator(self) -> AdditiveQuantizer:
        """The estimator of the best trial with the options it was tried with, to be fitted."""
        return _estimator(self.best.method, self.best.n_dictionaries, self.best.n_codewords, self.random_state)

    def __str__(self) -> str:
        head = f"use {self.best}: {self.reason}"
        note = f"recall@{self.k} among {self.rows:,} vectors of the sample; it is lower among more"
        table = [f"  {'':<26}{'bytes':>6}{'recall':>8}{'queries/s':>11}"]
        for trial in self.trials:
            mark = "→" if trial is self.best else " "
            numbers = f"{trial.bytes_per_vector:>6.0f}{trial.recall:>8.3f}{trial.queries_per_second:>11,.0f}"
            table.append(f"{mark} {trial!s:<26}{numbers}")
        return "\n".join([head, *table, note])

    __repr__ = __str__


def suggest(
    X: ArrayLike,
    *,
    bytes_per_vector: int | None = None,
    recall: float | None = None,
    k: int = 10,
    metric: str = "l2",
    rescore: bool = False,
    sample: int = 20_000,
    random_state: int | None = None,
    n_jobs: int | None = None,
) -> Suggestion:
    """Try settings on a sample and say which to use.

    With ``bytes_per_vector`` the methods that fill it compete, and the highest recall wins. With ``recall`` the number
    of dictionaries doubles until a method reaches it, and the fewest bytes that reach it win.

    Parameters
    ----------
    X : (n, P) array
        Vectors, at least 256; a memory-mapped array is read where the sample lies.
    bytes_per_vector : int, optional
        Bytes that a vector may take in a ``FlatIndex``, the byte of the norm of "l2" included. This or ``recall``.
    recall : float, optional
        Share, above 0 and at most 1, of the k true neighbours that must be found.
    k : int, default=10
        Neighbours asked for.
    metric : {"l2", "ip", "cosine"}, default="l2"
        As in ``FlatIndex``.
    rescore : bool, default=False
        Whether searches will rescore by the original vectors; the recall measured is then the rescored one.
    sample : int, default=20000
        Vectors that are drawn; a tenth of them, at most 200, are the queries, which no model sees.
    random_state : int or None, default=None
        Seed of the sample and of the models. With the same one all but the times are the same.
    n_jobs : int or None, default=None
        Threads; None and -1 mean all cores.

    Returns
    -------
    Suggestion
        ``best``, ``reason`` and ``trials``; printed, it is a table. ``estimator()`` gives the estimator to fit. Trials
        train ``GroupKMeans`` without its relaxation, for speed: its default is a little better still.

    Examples
    --------
    >>> import gkmeans as gk
    >>> learn = gk.datasets.load_sample().learn
    >>> advice = gk.suggest(learn, bytes_per_vector=5, sample=1000, random_state=0)
    >>> len(advice.trials), advice.best.bytes_per_vector
    (2, 5.0)
    >>> est = advice.estimator().fit(learn[:1000])
    """
    norm = _checked(bytes_per_vector, recall, metric)
    rows, queries = _sample(X, check_integer("sample", sample, 256), metric, random_state)
    bench = _Bench(rows, queries, check_integer("k", k, 1, len(rows)), metric, rescore, random_state, n_jobs)
    return bench.filled(bytes_per_vector - norm) if bytes_per_vector is not None else bench.reached(float(recall or 1))


def _checked(bytes_per_vector: int | None, recall: float | None, metric: str) -> int:
    """Bytes of the norm, where exactly one aim is given and it makes sense."""
    if (bytes_per_vector is None) == (recall is None):
        raise ValueError(
            f"bytes_per_vector={bytes_per_vector!r} and recall={recall!r}; pass one of them and leave the other out"
        )
    if metric not in METRICS:
        raise ValueError(f"metric={metric!r} is not known; use one of {', '.join(map(repr, METRICS))}")
    norm = int(metric == "l2")
    if bytes_per_vector is not None:
        check_integer("bytes_per_vector", bytes_per_vector, 1 + norm, _MOST_BYTES + norm)
    elif isinstance(recall, bool) or not isinstance(recall, (int, float, np.number)) or not 0 < recall <= 1:
        raise ValueError(f"recall={recall!r} is not a share; pass a number above 0 and at most 1")
    return norm


@dataclass(frozen=True)
class _Bench:
    """Where trials run."""

    rows: NDArray[Any]
    queries: NDArray[Any]
    k: int
    metric: str
    rescore: bool
    random_state: int | None
    n_jobs: int | None

    def filled(self, size: int) -> Suggestion:
        """The best recall of the settings whose codes take ``size`` bytes."""
        trials = [self.run(*setting) for setting in _of_bytes(size, len(self.rows))]
        best = max(trials, key=lambda trial: trial.recall)
        reason = f"the best recall@{self.k} in {best.bytes_per_vector:.0f} bytes, {best.recall:.3f}"
        return Suggestion(best, reason, tuple(trials), self.k, len(self.rows), self.random_state)

    def reached(self, recall: float) -> Suggestion:
        """The fewest bytes that reach a recall."""
        trials = list(_until(self, recall))
        best = _cheapest(trials, recall, self.rescore)
        reason = f"the fewest bytes with recall@{self.k} of {recall:g}: "
        reason += f"{best.bytes_per_vector:.0f} give {best.recall:.3f}"
        return Suggestion(best, reason, tuple(trials), self.k, len(self.rows), self.random_state)

    def run(self, method: str, C: int, K: int) -> Trial:
        start = time.perf_counter()
        est = _estimator(method, C, K, self.random_state).set_params(n_jobs=self.n_jobs).fit(self.rows)
        index = FlatIndex(est, self.metric, n_jobs=self.n_jobs)
        index.add_codes(est.codes_)
        originals = self.rows if self.rescore else None
        found = index.evaluate(self.queries, self.k, vectors=self.rows, rescore=originals)
        size = float(lines_of(C, K) + (self.metric == "l2"))
        trial = Trial(method, C, K, size, found.recall, found.queries_per_second)
        seconds = time.perf_counter() - start
        if seconds > _SAY_AFTER:
            logger.info("suggest: %s, %.0f bytes, recall %.3f, %.0f s", trial, size, trial.recall, seconds)
        return trial


def _estimator(method: str, C: int, K: int, random_state: int | None) -> AdditiveQuantizer:
    return _METHODS[method](C, K, random_state=random_state, **_QUICK[method])


def _sample(X: ArrayLike, size: int, metric: str, random_state: int | None) -> tuple[NDArray[Any], NDArray[Any]]:
    """Vectors and queries, drawn without repeats; of unit length for cosine."""
    data = np.asanyarray(X)
    if data.ndim != 2 or data.dtype.kind not in "fiub" or len(data) < 256:
        raise ValueError(f"X has dtype {data.dtype} and shape {data.shape}; pass numbers (n, P) with n at least 256")
    rng = np.random.default_rng(random_state)
    places = drawn(len(data), min(size, len(data)), rng)
    queries = min(_QUERIES, len(places) // 10)
    parts = [np.asarray(data[np.sort(part)]) for part in (places[queries:], places[:queries])]
    rows, asked = (units(part, "X") for part in parts) if metric == "cosine" else parts
    return rows, asked


def _codewords(rows: int) -> list[int]:
    """256 where the sample can train them, and 16, which is scanned faster."""
    return [K for K in (256, 16) if rows >= K * _ROWS_A_CODEWORD] or [16]


def _of_bytes(size: int, rows: int) -> Iterator[tuple[str, int, int]]:
    for K in _codewords(rows):
        for method in _METHODS:
            yield method, size if K == 256 else 2 * size, K


def _until(bench: _Bench, recall: float) -> Iterator[Trial]:
    """Trials of more and more bytes until one reaches the recall, then of the sizes between the last two."""
    K = _codewords(len(bench.rows))[0]
    size, reached = 1, False
    while size <= _MOST_BYTES and not reached:
        for method, C, codewords in _of_bytes(size, len(bench.rows)):
            if codewords == K:
                trial = bench.run(method, C, K)
                reached |= trial.recall >= recall
                yield trial
        size *= 2
    low, high = size // 4, size // 2  # the last size tried is high
    while reached and high - low > 1 and high - low > high // 8:
        middle = (low + high) // 2
        trial = bench.run("GroupKMeans", middle if K == 256 else 2 * middle, K)
        yield trial
        low, high = (low, middle) if trial.recall >= recall else (middle, high)


def _cheapest(trials: list[Trial], recall: float, rescore: bool) -> Trial:
    enough = [trial for trial in trials if trial.recall >= recall]
    if not enough:
        top = max(trials, key=lambda trial: trial.recall)
        way = "pass a smaller one" if rescore else "pass a smaller one, or rescore=True to rank by the original vectors"
        came = f"{top}, {top.bytes_per_vector:.0f} bytes, came to {top.recall:.3f}"
        raise ValueError(f"recall={recall:g} was not reached: {came}; {way}")
    return min(enough, key=lambda trial: (trial.bytes_per_vector, -trial.recall))
