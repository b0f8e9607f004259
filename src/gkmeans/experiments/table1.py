"""Table 1: relative distortion of the database, 8 methods at several code lengths."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ..datasets import Dataset
from .fits import fitted
from .methods import Settings
from .paper import METHODS, table1_cell
from .pictures import check_matplotlib, table1_picture, write_picture
from .report import about, machine_columns, markdown_table, write_report
from .store import Cell, Store
from .subject import Subject

BITS = (32, 64, 128)


def table1(
    dataset: Dataset,
    folder: str | os.PathLike[str],
    *,
    methods: Sequence[str] = METHODS,
    bits: Sequence[int] = BITS,
    seeds: Sequence[int] = (0,),
    settings: Settings | None = None,
    progress: bool = False,
) -> list[dict[str, Any]]:
    """Fit every method at every length, and write table1.json, .csv, .md, .png and .svg to ``folder``.

    Where the database is the training set, the distortion is that of the codes of the last iteration, as in the paper,
    and the one of a fresh encoding stands beside it. With several seeds the table shows their median.

    Parameters
    ----------
    dataset : Dataset
        From ``gkmeans.datasets.load``.
    folder : str or path
        Where reports, cells and models go. Finished cells there are not made again.
    methods : sequence of str
        The paper's names; all 8 by default.
    bits : sequence of int, default=(32, 64, 128)
        Code lengths.
    seeds : sequence of int, default=(0,)
        Each cell is fitted once for each.
    settings : Settings, optional
        Codewords, iterations, limit on rows, threads.
    progress : bool, default=False
        Show a bar with the time left.

    Returns
    -------
    list of dict
        One row for each method, length and seed, as in the JSON.

    Examples
    --------
    >>> import tempfile
    >>> from gkmeans.datasets import Dataset, load_sample
    >>> from gkmeans.experiments import Settings, table1
    >>> sample = load_sample()
    >>> data = Dataset("sample", sample.learn[:300], sample.base[:200], sample.query, None)
    >>> settings = Settings(n_codewords=16, max_iter=2, init_iter=2)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     rows = table1(data, folder, methods=["gk-means(2, h)", "gk-means(2, r)"], bits=[8], settings=settings)
    >>> [(row["method"], row["bits"], row["distortion"] < 0.5) for row in rows]
    [('gk-means(2, h)', 8, True), ('gk-means(2, r)', 8, True)]
    """
    check_matplotlib()
    settings, subject, store, cells = fitted("Table 1", dataset, folder, methods, bits, seeds, settings, progress)
    rows = [_row(cell, subject) for cell in cells]
    _write(store, subject, rows, about(subject, seeds, settings, cells))
    return rows


def _write(store: Store, subject: Subject, rows: Sequence[dict[str, Any]], origin: dict[str, Any]) -> None:
    write_report(store.folder, "table1", rows, origin, _markdown(rows, subject))
    ours = {pair: 100 * value for pair, value in _medians(rows, "distortion").items()}
    paper = {pair: value for pair in ours if (value := _paper(subject, *pair)) is not None}
    title = f"{subject.title}: relative distortion of the database"
    write_picture(table1_picture(ours, paper, title), store.folder, "table1", origin)


def _paper(subject: Subject, method: str, bits: int) -> float | None:
    """The paper's figure, where the data is the paper's."""
    return table1_cell(subject.name, method, bits) if subject.published else None


def _row(cell: Cell, subject: Subject) -> dict[str, Any]:
    key, values = cell.key, cell.values
    paper = _paper(subject, key["method"], key["bits"])
    names = ("distortion", "distortion_fresh", "distortion_train", "n_iter", "fit_seconds", "encode_seconds")
    return {
        "method": key["method"],
        "bits": key["bits"],
        "seed": key["seed"],
        **{name: values[name] for name in names},
        "paper_distortion": None if paper is None else round(paper / 100, 6),
        **machine_columns(cell),
    }


def _grouped(rows: Sequence[dict[str, Any]], name: str) -> dict[tuple[str, int], list[float]]:
    grouped: dict[tuple[str, int], list[float]] = {}
    for row in rows:
        grouped.setdefault((row["method"], row["bits"]), []).append(row[name])
    return grouped


def _medians(rows: Sequence[dict[str, Any]], name: str) -> dict[tuple[str, int], float]:
    return {pair: statistics.median(values) for pair, values in _grouped(rows, name).items()}


def _markdown(rows: Sequence[dict[str, Any]], subject: Subject) -> str:
    several = len({row["seed"] for row in rows}) > 1
    medians = _medians(rows, "distortion")
    lengths = list(dict.fromkeys(bits for _, bits in medians))
    best = {bits: min(value for (_, length), value in medians.items() if length == bits) for bits in lengths}

    def cell(method: str, bits: int) -> str:
        value, paper = medians[method, bits], _paper(subject, method, bits)
        text = f"**{100 * value:.2f}**" if value == best[bits] else f"{100 * value:.2f}"
        return text if paper is None else f"{text} ({paper:.2f})"

    parts = [
        f"# Table 1: {subject.title}",
        "Relative distortion of the database × 10⁻²"
        + (", median over the seeds" if several else "")
        + (", the paper's value in brackets" if _paper(subject, METHODS[0], lengths[0]) else "")
        + "; the lowest of each row is bold."
        + (" These are the codes of the last iteration." if subject.base_is_learn else ""),
        _table(lengths, medians, cell),
    ]
    if several:
        spread = _grouped(rows, "distortion")
        parts += [
            "Lowest and highest over the seeds:",
            _table(lengths, medians, lambda m, b: f"{100 * min(spread[m, b]):.2f} … {100 * max(spread[m, b]):.2f}"),
        ]
    if subject.base_is_learn:
        fresh = _medians(rows, "distortion_fresh")
        parts += [
            "The same database encoded afresh:",
            _table(lengths, medians, lambda m, b: f"{100 * fresh[m, b]:.2f}"),
        ]
    fit, encode, n_iter = (_medians(rows, name) for name in ("fit_seconds", "encode_seconds", "n_iter"))
    parts += [
        "Seconds of the fit, its iterations after the initialisation, and seconds of encoding the database:",
        _table(lengths, medians, lambda m, b: f"{fit[m, b]:.0f} / {n_iter[m, b]:.0f} / {encode[m, b]:.1f}"),
    ]
    return "\n\n".join(parts)


def _table(lengths: Sequence[int], pairs: Iterable[tuple[str, int]], text: Callable[[str, int], str]) -> str:
    methods = list(dict.fromkeys(method for method, _ in pairs))
    head = ["bits", *(method.removeprefix("gk-means") for method in methods)]
    return markdown_table(head, [[str(bits), *(text(method, bits) for method in methods)] for bits in lengths])
