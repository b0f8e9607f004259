"""Figure 2 (Appendix): recall over R, exhaustive search of the codes by the asymmetric distance."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import _files
from ..datasets import Dataset
from ..metrics import nearest, recall
from .fits import codes_of, fitted, machine, model_of
from .methods import Settings
from .pictures import check_matplotlib, figure2_picture, write_picture
from .report import about, machine_columns, markdown_table, write_report
from .run import Job, run
from .scan import scan
from .store import Cell, Store
from .subject import Rows, Subject, fingerprint, sampled_fingerprint
from .table1 import BITS

PAPER_METHODS = ("gk-means(2, h)", "gk-means(1, h)", "ock-means", "ck-means")
"""The paper shows the best initialisation alone."""
DEPTH = 100
_SHOWN = (1, 10, 100)
NEIGHBOURS = "gkmeans-neighbours"


def figure2(
    dataset: Dataset,
    folder: str | os.PathLike[str],
    *,
    methods: Sequence[str] = PAPER_METHODS,
    bits: Sequence[int] = BITS,
    seeds: Sequence[int] = (0,),
    settings: Settings | None = None,
    progress: bool = False,
) -> list[dict[str, Any]]:
    """Search the codes of every method at every length, and write figure2.json, .csv, .md, .png and .svg.

    Recall@R is the share of the queries whose true nearest neighbour is among the R vectors ranked first. Fits that
    ``table1`` left in the folder are used as they are; the true neighbours come from the dataset or are found once.
    With several seeds the picture and the table show the median.

    Parameters
    ----------
    dataset, folder, methods, bits, seeds, settings, progress
        As in ``table1``; the methods are the paper's four by default.

    Returns
    -------
    list of dict
        One row for each method, length and seed, with its ``recall`` at R = 1, 2, … 100.

    Examples
    --------
    >>> import tempfile
    >>> from gkmeans.datasets import Dataset, load_sample
    >>> from gkmeans.experiments import Settings, figure2
    >>> sample = load_sample()
    >>> data = Dataset("sample", sample.learn[:300], sample.base[:200], sample.query[:20], None)
    >>> settings = Settings(n_codewords=16, max_iter=2, init_iter=2)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     rows = figure2(data, folder, methods=["gk-means(2, h)"], bits=[8], settings=settings)
    >>> rows[0]["recall"][99] > rows[0]["recall"][0]
    True
    """
    check_matplotlib()
    settings, subject, store, fit_cells = fitted(
        "Figure 2, fits", dataset, folder, methods, bits, seeds, settings, progress
    )
    truth, exact = _truth(store, subject, settings, progress)
    jobs = [_job(store, subject, cell, truth, settings) for cell in fit_cells]
    cells = run("Figure 2, searches", store, jobs, progress)
    rows = [
        {
            **{name: cell.key[name] for name in ("method", "bits", "seed")},
            **{f"recall_at_{R}": _at(cell.values["recall"], R) for R in _SHOWN},
            "recall": cell.values["recall"],
            **machine_columns(cell),
        }
        for cell in cells
    ]
    _write(store, subject, rows, about(subject, seeds, settings, cells, [*fit_cells, *exact]))
    return rows


def _write(store: Store, subject: Subject, rows: Sequence[dict[str, Any]], origin: dict[str, Any]) -> None:
    flat = [
        {name: value for name, value in row.items() if not name.startswith("recall")} | {"R": R, "recall": value}
        for row in rows
        for R, value in enumerate(row["recall"], 1)
    ]
    curves = _medians(rows)
    write_report(store.folder, "figure2", rows, origin, _markdown(curves, subject.title), flat)
    title = f"{subject.title}: recall of the true nearest neighbour"
    write_picture(figure2_picture(curves, title), store.folder, "figure2", origin)


def _truth(store: Store, subject: Subject, settings: Settings, progress: bool) -> tuple[Rows, list[Cell]]:
    """True nearest neighbour (q, 1) of each query: the dataset's, or found once and kept in the cell returned."""
    if subject.groundtruth is not None:
        return subject.groundtruth[:, :1], []
    prints = {"base": subject.fingerprint["base"], "query": fingerprint(subject.query)}
    key = {"kind": "neighbours", "dataset": subject.name, "fingerprint": prints}
    some = {"base": subject.sampled["base"], "query": sampled_fingerprint(subject.query)}

    def make() -> Cell:
        found = nearest(subject.base, subject.query, 1, n_jobs=settings.n_jobs)
        files = {"ids": lambda path: _files.write(path, NEIGHBOURS, {"ids": found}, {})}
        return store.keep(key, {}, machine(settings), files)

    job = Job("exact search", key, 1.0, make, before=key | {"fingerprint": some})
    [cell] = run("Figure 2, true neighbours", store, [job], progress)
    arrays, _ = _files.read(cell.files["ids"], NEIGHBOURS)
    return arrays["ids"], [cell]


def _job(store: Store, subject: Subject, source: Cell, truth: Rows, settings: Settings) -> Job:
    depth = min(DEPTH, len(subject.base))
    key = {
        **source.key,
        "kind": "recall",
        "depth": depth,
        "query": fingerprint(subject.query),
        "truth": fingerprint(truth),
    }
    before = key | {"query": sampled_fingerprint(subject.query), "truth": sampled_fingerprint(truth)}

    def make() -> Cell:
        found = scan(model_of(source, settings), codes_of(source), subject.query, depth, settings.n_jobs)
        values = [recall(found, truth, R) for R in range(1, depth + 1)]
        return store.keep(key, {"recall": values}, machine(settings))

    return Job(f"{key['method']}, {key['bits']} bits", key, 1.0, make, before=before)


def _at(values: Sequence[float], R: int) -> float | None:
    return values[R - 1] if len(values) >= R else None


def _medians(rows: Sequence[dict[str, Any]]) -> dict[tuple[str, int], list[float]]:
    grouped: dict[tuple[str, int], list[list[float]]] = {}
    for row in rows:
        grouped.setdefault((row["method"], row["bits"]), []).append(row["recall"])
    return {pair: [float(value) for value in np.median(curves, axis=0)] for pair, curves in grouped.items()}


def _markdown(curves: dict[tuple[str, int], list[float]], name: str) -> str:
    depth = len(next(iter(curves.values())))
    shown = [R for R in _SHOWN if depth >= R]
    lines = []
    for (method, bits), values in curves.items():
        texts = []
        for R in shown:
            best = max(other[R - 1] for (_, length), other in curves.items() if length == bits)
            texts.append(f"**{values[R - 1]:.4f}**" if values[R - 1] == best else f"{values[R - 1]:.4f}")
        lines.append([str(bits), method, *texts])
    return "\n\n".join(
        [
            f"# Figure 2: {name}",
            "Share of the queries whose true nearest neighbour is among the first R: exhaustive search of the codes by "
            "the asymmetric distance. The best of each length is bold.",
            markdown_table(["bits", "method", *(f"recall@{R}" for R in shown)], lines),
        ]
    )
