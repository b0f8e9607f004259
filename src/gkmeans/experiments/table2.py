"""Table 2: encoding time and distortion of gk-means (1, h), (2, h) and MCMP on full vectors, by number of dictionaries.

As in the paper, MCMP with 8 dictionaries takes those of gk-means (2, h), since it cannot be trained, and its time is
estimated from a sample; where even a few vectors would take too long, from the size of its tree. Times are those of
this run's machine and threads.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from itertools import pairwise, product
from typing import Any

import numpy as np

from .._validation import check_integer
from ..datasets import Dataset
from ..estimators.base import AdditiveQuantizer
from ..pursuit import SECONDS_A_SCORE
from .fits import check_fits, fit_jobs, machine, model_of
from .methods import CANDIDATES, MCMP, Settings, selected
from .paper import TABLE2, TABLE2_VECTORS
from .pictures import check_matplotlib, table2_picture, write_picture
from .pursued import expected, first_count, pursue, timed
from .report import about, machine_columns, markdown_table, write_report
from .run import Job, run
from .store import Cell, Store
from .subject import Subject

HIERARCHICAL = "gk-means(2, h)"
PAPER_METHODS = ("gk-means(1, h)", HIERARCHICAL, MCMP)
DICTIONARIES = (2, 4, 8)
TRAINED = 4
"""MCMP is trained with so many dictionaries at most."""
SCORED_ROWS = 500
"""A smaller sample says nothing of the distortion."""


def table2(
    dataset: Dataset,
    folder: str | os.PathLike[str],
    *,
    methods: Sequence[str] = PAPER_METHODS,
    dictionaries: Sequence[int] = DICTIONARIES,
    seed: int = 0,
    budget: float = 120.0,
    settings: Settings | None = None,
    progress: bool = False,
) -> list[dict[str, Any]]:
    """Time the encoding of the database, and write table2.json, .csv, .md, .png and .svg to ``folder``.

    Parameters
    ----------
    dataset, folder, settings, progress
        As in ``table1``.
    methods : sequence of str
        Of gk-means(1, h), gk-means(2, h) and MCMP.
    dictionaries : sequence of int, default=(2, 4, 8)
        Numbers of dictionaries. MCMP with more than 4 takes those of gk-means(2, h).
    seed : int, default=0
        Seed of the fits and of the samples.
    budget : float, default=120
        Seconds that MCMP may encode for; where all of the database takes longer, the time is estimated from a sample
        that fits them or, where two vectors a thread do not, from the size of the tree, and marked.

    Returns
    -------
    list of dict
        One row for each method and number of dictionaries, as in the JSON.

    Examples
    --------
    >>> import tempfile
    >>> from gkmeans.datasets import Dataset, load_sample
    >>> from gkmeans.experiments import Settings, table2
    >>> sample = load_sample()
    >>> data = Dataset("sample", sample.learn[:300], sample.base[:200], sample.query, None)
    >>> settings = Settings(n_codewords=16, max_iter=2, init_iter=2)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     rows = table2(data, folder, methods=["gk-means(1, h)"], dictionaries=[2, 4], settings=settings)
    >>> [(row["method"], row["dictionaries"], row["estimated"]) for row in rows]
    [('gk-means(1, h)', 2, False), ('gk-means(1, h)', 4, False)]
    """
    check_matplotlib()
    settings = settings or Settings()
    check_table2(methods, dictionaries, seed, budget, settings)
    pairs = _pairs(methods, dictionaries)
    subject, store = Subject.of(dataset, settings.limit), Store(folder)
    models = _fitted(store, subject, pairs, seed, settings, progress)
    jobs = [_job(store, subject, *pair, models[pair], seed, budget, settings) for pair in pairs]
    cells = run("Table 2, encoding", store, jobs, progress)
    rows = [_row(cell) for cell in cells]
    _write(store, subject, rows, about(subject, [seed], settings, cells, list(models.values())))
    return rows


def check_table2(
    methods: Sequence[str],
    dictionaries: Sequence[int],
    seed: int,
    budget: float,
    settings: Settings,
    shape: tuple[int, ...] | None = None,
) -> None:
    """Raise where the table cannot be made, on data of this ``shape`` where it is known."""
    if not 0 < budget < float("inf"):
        raise ValueError(f"budget={budget!r} is out of range; use a number of seconds above 0, such as 120")
    for method, C in dict.fromkeys(_source(*pair) for pair in _pairs(methods, dictionaries)):
        check_fits([method], [C * settings.width], [seed], settings, shape)


def _source(method: str, C: int) -> tuple[str, int]:
    """The fit whose dictionaries encode."""
    return (HIERARCHICAL if method == MCMP and C > TRAINED else method), C


def _pairs(methods: Sequence[str], dictionaries: Sequence[int]) -> list[tuple[str, int]]:
    """Each method with each number of dictionaries, once."""
    if not len(dictionaries):
        raise ValueError("dictionaries is empty; use numbers such as (2, 4, 8)")
    counts = dict.fromkeys(check_integer("dictionaries", C, 1) for C in dictionaries)
    return list(product(selected(methods, PAPER_METHODS), counts))


def _write(store: Store, subject: Subject, rows: Sequence[dict[str, Any]], origin: dict[str, Any]) -> None:
    write_report(store.folder, "table2", rows, origin, _markdown(rows, subject, origin["settings"]))
    points: dict[str, list[tuple[int, float, str | None]]] = {}
    for row in rows:
        points.setdefault(row["method"], []).append((row["dictionaries"], row["micros"], row["estimated_from"]))
    title = f"{subject.title}: encoding time by number of dictionaries"
    write_picture(table2_picture(points, title), store.folder, "table2", origin)


def _fitted(
    store: Store, subject: Subject, pairs: Sequence[tuple[str, int]], seed: int, settings: Settings, progress: bool
) -> dict[tuple[str, int], Cell]:
    """The fit whose dictionaries encode, for each method and number of dictionaries."""
    sources = {pair: _source(*pair) for pair in pairs}
    jobs = {
        source: fit_jobs(store, subject, [source[0]], [source[1] * settings.width], [seed], settings)[0]
        for source in sources.values()
    }
    cells = dict(zip(jobs, run("Table 2, fits", store, list(jobs.values()), progress), strict=True))
    return {pair: cells[source] for pair, source in sources.items()}


def _job(
    store: Store, subject: Subject, method: str, C: int, fitted: Cell, seed: int, budget: float, settings: Settings
) -> Job:
    here = machine(settings)
    key = {
        **fitted.key,
        "kind": "encoding",
        "method": method,
        "dictionaries": C,
        "source": fitted.key["method"],
        **({"budget": budget} if method == MCMP else {}),
        **{name: here[name] for name in ("cpu", "threads", "simd", "version")},
    }

    def make() -> Cell:
        model = model_of(fitted, settings)
        model.encode(subject.base[:64])  # the first call of a process finds its BLAS and its kernels
        values = _pursued(model, subject, seed, budget, settings) if method == MCMP else _encoded(model, subject)
        return store.keep(key, {**values, "vectors": len(subject.base)}, machine(settings))

    return Job(
        f"{method}, {C} dictionaries", key, _seconds(method, C, len(subject.base), fitted, budget, settings), make
    )


def _seconds(method: str, C: int, n: int, fitted: Cell, budget: float, settings: Settings) -> float:
    """What encoding ``n`` vectors will take: as long as after the fit, and MCMP no longer than its budget."""
    after_fit = float(fitted.values["encode_seconds"])
    if method != MCMP:
        return after_fit
    if _too_long(C, n, budget, settings):
        return 0.0
    return min(budget, after_fit if fitted.key["method"] == MCMP else _expected(C, n, settings))


def _expected(C: int, n: int, settings: Settings) -> float:
    return expected(n, C, settings.n_codewords, min(CANDIDATES, settings.n_codewords), settings.n_jobs)


def _too_long(C: int, n: int, budget: float, settings: Settings) -> bool:
    """Whether the first vectors of a sample would take longer than the budget."""
    return _expected(C, first_count(n, settings.n_jobs), settings) > budget


def _encoded(model: AdditiveQuantizer, subject: Subject) -> dict[str, Any]:
    start = time.perf_counter()
    codes = model.encode(subject.base)
    seconds = time.perf_counter() - start
    distortion = model.relative_distortion(subject.base, codes)
    measured = {"estimated": False, "estimated_from": None, "sample_rows": len(subject.base)}
    return {"seconds": seconds, "distortion": distortion, **measured}


def _pursued(
    model: AdditiveQuantizer, subject: Subject, seed: int, budget: float, settings: Settings
) -> dict[str, Any]:
    C, n = len(model.dictionaries_), len(subject.base)
    if _too_long(C, n, budget, settings):
        guessed = {"estimated": True, "estimated_from": "tree", "sample_rows": 0}
        return {"seconds": _expected(C, n, settings), "distortion": None, **guessed}
    candidates = min(CANDIDATES, settings.n_codewords)
    timing = timed(
        lambda X: pursue(model, X, candidates, settings.n_jobs),
        subject.base,
        budget,
        settings.n_jobs,
        np.random.default_rng(seed),
    )
    scored = not timing.estimated or len(timing.rows) >= SCORED_ROWS
    return {
        "seconds": timing.seconds,
        "distortion": model.relative_distortion(subject.base[timing.rows], timing.codes) if scored else None,
        "estimated": timing.estimated,
        "estimated_from": "sample" if timing.estimated else None,
        "sample_rows": len(timing.rows),
    }


def _row(cell: Cell) -> dict[str, Any]:
    key, values = cell.key, cell.values
    seconds, distortion = TABLE2.get(key["method"], {}).get(key["dictionaries"], (None, None))
    return {
        "method": key["method"],
        "dictionaries": key["dictionaries"],
        "seed": key["seed"],
        "dictionaries_of": key["source"],
        "seconds": values["seconds"],
        "micros": 1e6 * values["seconds"] / values["vectors"],
        "distortion": values["distortion"],
        "estimated": values["estimated"],
        "estimated_from": values.get("estimated_from", "sample" if values["estimated"] else None),
        "sample_rows": values["sample_rows"],
        "paper_seconds": seconds,
        "paper_distortion": distortion,
        **machine_columns(cell),
    }


def _markdown(rows: Sequence[dict[str, Any]], subject: Subject, settings: dict[str, Any]) -> str:
    lines = []
    for row in rows:
        marked = " (estimated)" if row["estimated"] else ""
        ours = "–" if row["distortion"] is None else f"{row['distortion']:.4f}{marked}"
        paper, time_of = row["paper_distortion"], row["paper_seconds"]
        lines.append(
            [
                row["method"],
                str(row["dictionaries"]),
                f"{row['seconds']:,.2f}{marked}",
                f"{row['micros']:,.2f}{marked}",
                ours,
                "–" if time_of is None else f"{1e6 * time_of / TABLE2_VECTORS:,.1f}",
                "–" if paper is None else f"{paper:.2f}",
            ]
        )
    head = ["method", "dictionaries", "time (s)", "µs a vector", "R.d.", "paper: µs a vector", "paper: R.d."]
    parts = [
        f"# Table 2: {subject.title}",
        f"Encoding all {len(subject.base):,} vectors of the database, and their relative distortion (R.d.). The "
        "paper's figures are of SIFT1M with 24 threads on another machine: only the growth can be compared.",
        markdown_table(head, lines),
    ]
    if any(row["dictionaries_of"] == MCMP for row in rows):
        most = settings["mcmp_iter"] or settings["max_iter"]
        parts.append(f"MCMP was trained for at most {most} iterations where it encodes with its own dictionaries.")
    parts += [_estimate(row) for row in rows if row["estimated"]]
    if growth := _growth(rows):
        head = ["method", "dictionaries", "times as long", "paper"]
        parts += ["Growth of the time from each number of dictionaries to the next:", markdown_table(head, growth)]
    return "\n\n".join(parts)


def _estimate(row: dict[str, Any]) -> str:
    """What an estimated time comes from."""
    what = f"Estimated: {row['method']} with {row['dictionaries']} dictionaries"
    if row["estimated_from"] == "tree":
        return (
            f"{what} was not run, since two vectors a thread would take longer than its budget; its time is estimated "
            f"from the size of its tree, at {1e9 * SECONDS_A_SCORE:g} ns a codeword score, pruned ones too."
        )
    return (
        f"{what} encoded {row['sample_rows']:,} vectors drawn at random, with the dictionaries of "
        f"{row['dictionaries_of']}; its time is scaled."
    )


def _growth(rows: Sequence[dict[str, Any]]) -> list[list[str]]:
    lines = []
    for one, two in pairwise(rows):
        if one["method"] == two["method"]:
            paper = "–"
            if one["paper_seconds"] is not None and two["paper_seconds"] is not None:
                paper = f"{two['paper_seconds'] / one['paper_seconds']:,.1f}"
            marked = " (estimated)" if one["estimated"] or two["estimated"] else ""
            step = f"{one['dictionaries']} → {two['dictionaries']}"
            lines.append([one["method"], step, f"{two['seconds'] / one['seconds']:,.1f}{marked}", paper])
    return lines
