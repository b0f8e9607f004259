"""Figure 1: relative distortion of the training set over the iterations."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from ..datasets import Dataset
from .fits import fitted
from .methods import Settings
from .paper import METHODS
from .pictures import check_matplotlib, figure1_picture, write_picture
from .report import about, machine_columns, markdown_table, write_report
from .store import Store
from .subject import Subject
from .table1 import BITS

_SHOWN = (1, 10, 20, 50, 100)


def figure1(
    dataset: Dataset,
    folder: str | os.PathLike[str],
    *,
    methods: Sequence[str] = METHODS,
    bits: Sequence[int] = BITS,
    seeds: Sequence[int] = (0,),
    settings: Settings | None = None,
    progress: bool = False,
) -> list[dict[str, Any]]:
    """Draw the curves of the fits of Table 1, and write figure1.json, .csv, .md, .png and .svg to ``folder``.

    The curves are those of the training proper, after the initialisation; the picture shows the first seed. Fits that
    ``table1`` left in the folder are used as they are.

    Parameters
    ----------
    dataset, folder, methods, bits, seeds, settings, progress
        As in ``table1``.

    Returns
    -------
    list of dict
        One row for each method, length and seed, with its ``distortions``.

    Examples
    --------
    >>> import tempfile
    >>> from gkmeans.datasets import Dataset, load_sample
    >>> from gkmeans.experiments import Settings, figure1
    >>> sample = load_sample()
    >>> data = Dataset("sample", sample.learn[:300], sample.base[:200], sample.query, None)
    >>> settings = Settings(n_codewords=16, max_iter=3, init_iter=2)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     rows = figure1(data, folder, methods=["gk-means(1, r)"], bits=[8], settings=settings)
    >>> len(rows[0]["distortions"])
    3
    """
    check_matplotlib()
    settings, subject, store, cells = fitted("Figure 1", dataset, folder, methods, bits, seeds, settings, progress)
    rows = [
        {
            **{name: cell.key[name] for name in ("method", "bits", "seed")},
            "distortions": cell.values["history"][-cell.values["n_iter"] :],
            **machine_columns(cell),
        }
        for cell in cells
    ]
    _write(store, subject, rows, about(subject, seeds, settings, cells))
    return rows


def _write(store: Store, subject: Subject, rows: Sequence[dict[str, Any]], origin: dict[str, Any]) -> None:
    flat = [
        {name: value for name, value in row.items() if name != "distortions"}
        | {"iteration": iteration, "distortion": distortion}
        for row in rows
        for iteration, distortion in enumerate(row["distortions"], 1)
    ]
    text = _markdown(rows, subject.title, origin["settings"]["max_iter"])
    write_report(store.folder, "figure1", rows, origin, text, flat)
    curves = {(row["method"], row["bits"]): row["distortions"] for row in rows if row["seed"] == rows[0]["seed"]}
    title = f"{subject.title}: relative distortion of the training set"
    write_picture(figure1_picture(curves, title), store.folder, "figure1", origin)


def _markdown(rows: Sequence[dict[str, Any]], name: str, max_iter: int) -> str:
    lines = []
    for row in rows:
        values = row["distortions"]
        shown = [f"{100 * values[at - 1]:.2f}" if at <= len(values) else "–" for at in _SHOWN]
        count = f"{len(values)} (max_iter)" if len(values) == max_iter else str(len(values))
        lines.append([row["method"], str(row["bits"]), str(row["seed"]), *shown, f"{100 * values[-1]:.2f}", count])
    head = ["method", "bits", "seed", *map(str, _SHOWN), "last", "iterations"]
    return "\n\n".join(
        [
            f"# Figure 1: {name}",
            "Relative distortion × 10⁻² of the training set after iterations 1, 10, 20, 50 and 100 of the training "
            f"proper, and after its last; – where it had ended: it had converged, or reached max_iter = {max_iter}, as "
            "said beside its iterations.",
            markdown_table(head, lines),
        ]
    )
