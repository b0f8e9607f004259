"""The methods by the paper's names, Sec. 3.1: the estimator of each, and how much work a fit of it is."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from .._validation import check_codewords, check_integer, check_n_jobs
from ..estimators.base import AdditiveQuantizer
from ..estimators.cartesian import CartesianKMeans
from ..estimators.group import GroupKMeans, plain
from ..estimators.optimized_cartesian import OptimizedCartesianKMeans
from ..initialization import grown
from ..initialization.hierarchical import count_stages, first_blocks
from .paper import METHODS

MCMP = "MCMP"
_INITS = {"h": "hierarchical", "k": "kmeans", "r": "random"}
CANDIDATES = 10


@dataclass(frozen=True)
class Settings:
    """What every cell of a run shares.

    Parameters
    ----------
    n_codewords : int, default=256
        K.
    max_iter, init_iter : int, default=100, 30
        Most iterations of the training, and of each stage of an initialisation.
    mcmp_iter : int or None, default=None
        Most iterations of the training of MCMP on full vectors (Table 2), which is slow; None means ``max_iter``.
    limit : int or None, default=None
        Use only so many rows of the training set and of the database, and so many queries.
    n_jobs : int or None, default=None
        Threads; None means all cores. It changes times alone.

    Examples
    --------
    >>> from gkmeans.experiments import Settings
    >>> Settings(max_iter=10).n_codewords
    256
    """

    n_codewords: int = 256
    max_iter: int = 100
    init_iter: int = 30
    mcmp_iter: int | None = None
    limit: int | None = None
    n_jobs: int | None = None

    def __post_init__(self) -> None:
        check_integer("n_codewords", check_codewords(self.n_codewords), 2)
        for name in ("max_iter", "init_iter", "mcmp_iter", "limit"):
            value = getattr(self, name)
            if value is not None or name in ("max_iter", "init_iter"):
                check_integer(name, value, 1)
        check_n_jobs(self.n_jobs)
        for name, value in vars(self).items():  # JSON takes no integers of NumPy
            object.__setattr__(self, name, None if value is None else int(value))

    @property
    def width(self) -> int:
        """Bits of one code."""
        return (self.n_codewords - 1).bit_length()


def canonical(name: str, among: Sequence[str] = (*METHODS, MCMP)) -> str:
    """The paper's name of a method written as ``gk-means(2, h)``, ``(2,h)``, ``2h``, ``ock`` or ``ck-means``."""

    def bare(text: str) -> str:
        return re.sub(r"[^a-z0-9]|means", "", text.lower()).removeprefix("gk")

    for method in among:
        if bare(name) == bare(method):
            return method
    raise ValueError(f"method {name!r} is not one of {', '.join(among)}")


def selected(names: Sequence[str], among: Sequence[str]) -> list[str]:
    """The paper's names of the methods asked for, each once; an error where there are none."""
    chosen = list(dict.fromkeys(canonical(name, among) for name in names))
    if not chosen:
        raise ValueError(f"methods is empty; use some of {', '.join(among)}")
    return chosen


def count_dictionaries(method: str, bits: int, settings: Settings) -> int:
    """Dictionaries that ``bits`` give a method; an error where they do not come out even."""
    step = settings.width * (2 if method == "ock-means" else 1)
    bits = check_integer("bits", bits, 1)
    if bits % step:
        raise ValueError(
            f"bits={bits!r} do not suit {method} with {settings.n_codewords} codewords; use a multiple of {step}"
        )
    return bits // settings.width


def build(method: str, bits: int, seed: int, settings: Settings) -> AdditiveQuantizer:
    """The estimator that stands for ``method``, not yet fitted."""
    C, K = count_dictionaries(method, bits, settings), settings.n_codewords
    max_iter, init_iter, n_jobs = settings.max_iter, settings.init_iter, settings.n_jobs
    if method == "ck-means":
        return CartesianKMeans(C, K, max_iter=max_iter, tol=1e-5, random_state=seed, n_jobs=n_jobs)
    if method in ("ock-means", MCMP):
        subspaces = C // 2 if method == "ock-means" else 1
        return OptimizedCartesianKMeans(
            subspaces,
            C // subspaces,
            K,
            n_candidates=min(CANDIDATES, K),
            max_iter=(settings.mcmp_iter or max_iter) if method == MCMP else max_iter,
            init_iter=init_iter,
            random_state=seed,
            n_jobs=n_jobs,
        )
    order, init = re.findall(r"\d|[hkr](?=\))", method)
    return GroupKMeans(
        C,
        K,
        init=_INITS[init],
        **plain(min(int(order), C)),
        max_iter=max_iter,
        init_iter=init_iter,
        random_state=seed,
        n_jobs=n_jobs,
    )


def work(method: str, bits: int, n: int, P: int, settings: Settings) -> float:
    """Rough number of operations of a fit on ``n`` vectors: what the time left is reckoned by."""
    C, K = count_dictionaries(method, bits, settings), settings.n_codewords
    first, most = settings.init_iter, settings.max_iter
    product = float(n) * C * K * P  # S = −X Dᵀ
    blocks, rotation = ck_iteration(n, K, P), ck_iteration(n, 0, P)
    growth = growth_work(C, K, n, P)
    if method == "ck-means":
        return growth + most * blocks
    if method == "ock-means":
        return growth + first * blocks + most * (2 * blocks + 40.0 * n * C * K)
    if method == MCMP:
        pursuit = product + float(n) * K * float(CANDIDATES) ** (C - 1)
        return growth + first * blocks + (settings.mcmp_iter or most) * pursuit
    solve = float(C * K) ** 3 / 3
    sweep = float(n) * C * C * K * (4 if method[-5] == "1" else 12)
    start = {"h": 1.3 * product + count_stages(C, P) * rotation, "k": product, "r": 0.0}[method[-2]]
    return first * start + most * (product + sweep + solve)


def ck_iteration(n: int, K: int, P: int) -> float:
    """Work of one iteration of ck-means: the nearest of K codewords in each block, and the rotation."""
    return float(n) * K * P + float(n) * P * P / 4 + 4.0 * P**3  # fast BLAS: fewer seconds an operation


def growth_work(C: int, K: int, n: int, P: int) -> float:
    """Work of the growing start (initialization/grown.py), where the blocks are wide and the rows suffice for it."""
    rows = min(n, grown.ROWS * K, grown.NUMBERS // P)
    if not grown.can_grow(first_blocks(C, P), K) or rows < grown.LEAST_ROWS * K:
        return 0.0
    sizes, few, leading = grown.sizes(K), grown.FEW * C, grown.LEADING * C
    tried, doubled = sizes[: -grown.DOUBLINGS], sizes[-grown.DOUBLINGS :]
    some, compared = min(rows, grown.TRY_ROWS * tried[-1]), min(n, grown.COMPARED_ROWS * K)
    tries = grown.TRIES * grown.ITERATIONS * sum(ck_iteration(some, k, few) for k in tried)
    doublings = grown.ITERATIONS * sum(ck_iteration(rows, k, leading) for k in doubled[:-1])
    last = grown.LAST_ITERATIONS * ck_iteration(rows, K, leading)
    choice = 2 * grown.COMPARED_ITERATIONS * ck_iteration(compared, K, P)
    return ck_iteration(rows, 0, P) + tries + doublings + last + choice  # the first for the principal components
