"""The command ``gkmeans``."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from . import vectors
from ._files import FileError
from ._validation import check_n_jobs, check_X
from .baselines import product_quantization
from .datasets import load_sample
from .encode_files import encode_file
from .estimators.base import AdditiveQuantizer
from .estimators.group import GroupKMeans, plain
from .reproduce import reproduce
from .store import load

app = typer.Typer(help="Group K-Means: compress vectors to a few bytes.", no_args_is_help=True, add_completion=False)
app.command()(reproduce)
Rows = NDArray[np.generic]


@app.callback()
def main() -> None:
    """Group K-Means: compress vectors to a few bytes."""


@dataclass(frozen=True)
class Result:
    """One line of the table."""

    name: str
    bits: int
    learn: float
    base: float
    seconds: float


@app.command()
def demo(
    data: Annotated[
        Path | None,
        typer.Option(
            help="A file of vectors (.npy, .fvecs, .bvecs, idx, HDF5, Parquet); the last third is the base. Default: "
            "the sample."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of all fits.")] = 0,
    jobs: Annotated[int | None, typer.Option(help="Threads; all cores by default.")] = None,
) -> None:
    """Fit gk-means (1|2, r|k|h) at 32 and 64 bits and compare with plain product quantization of the same bytes."""
    try:
        learn, base = _vectors(data)
        for part in (learn, base):
            check_X(AdditiveQuantizer(), part, reset=True)
        _demo(learn, base, seed, check_n_jobs(jobs))
    except (FileError, ImportError) as error:
        raise typer.BadParameter(str(error)) from error
    except ValueError as error:
        raise typer.BadParameter(f"{data}: {error}" if data else str(error)) from error


@app.command()
def encode(
    model: Annotated[Path, typer.Argument(help="A model that save wrote.")],
    vectors_file: Annotated[
        Path, typer.Argument(metavar="IN", help="Vectors: .npy, .fvecs, .bvecs, idx, HDF5 or Parquet.")
    ],
    out: Annotated[
        Path, typer.Argument(metavar="OUT", help="Codes, where it ends in .npy; else the folder of an index.")
    ],
    dataset: Annotated[str | None, typer.Option(help="The dataset of an HDF5 file, or the column of Parquet.")] = None,
    effort: Annotated[int | None, typer.Option(help="How hard to look for codes, 0 to 9.")] = None,
    metric: Annotated[str, typer.Option(help="Of the index: l2, ip or cosine.")] = "l2",
    jobs: Annotated[int | None, typer.Option(help="Threads; all cores by default.")] = None,
) -> None:
    """Compress the vectors of a file. After a kill or Ctrl-C, the same command goes on where it was."""
    try:
        est = load(model)
        est.n_jobs = check_n_jobs(jobs)
        count = encode_file(est, vectors_file, out, dataset=dataset, effort=effort, metric=metric, verbose=1)
    except (ValueError, ImportError, OSError) as error:
        raise typer.BadParameter(str(error)) from error
    Console().print(f"{count:,} vectors in {out}")


def _demo(learn: Rows, base: Rows, seed: int, jobs: int | None) -> None:
    console = Console()
    console.print(
        f"learn {learn.shape[0]:,} × {learn.shape[1]}, base {base.shape[0]:,}, K = 256, max_iter = 15, init_iter = 6, "
        f"seed {seed}"
    )
    results: list[Result] = []
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    methods = [(order, init) for order in (1, 2) for init in ("random", "kmeans", "hierarchical")]
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("demo", total=2 * (1 + len(methods)))
        for bits in (32, 64):
            progress.update(task, description=f"product quantization, {bits} bits")
            start = time.perf_counter()
            distortions = product_quantization(learn, base, bits // 8, 256, seed, jobs)
            results.append(Result("product quantization", bits, *distortions, time.perf_counter() - start))
            progress.advance(task)
            for order, init in methods:
                progress.update(task, description=f"gk-means ({order}, {init[0]}), {bits} bits")
                estimator = GroupKMeans(
                    bits // 8,
                    init=init,
                    max_iter=15,
                    init_iter=6,
                    random_state=seed,
                    n_jobs=jobs,
                    **plain(order),
                )
                results.append(_measured(f"gk-means ({order}, {init[0]})", bits, estimator, learn, base))
                progress.advance(task)
    console.print(_table(results))


def _vectors(data: Path | None) -> tuple[Rows, Rows]:
    if data is None:
        sample = load_sample()
        return sample.learn, sample.base
    X = vectors.read(data)
    if X.ndim != 2 or len(X) < 3:
        raise ValueError(f"it holds {X.dtype} of shape {X.shape}; vectors must be numbers of shape (n, P)")
    cut = len(X) * 2 // 3
    return X[:cut], X[cut:]


def _measured(name: str, bits: int, estimator: GroupKMeans, learn: Rows, base: Rows) -> Result:
    start = time.perf_counter()
    estimator.fit(learn)
    seconds = time.perf_counter() - start
    return Result(name, bits, float(estimator.history_[-1]), estimator.relative_distortion(base), seconds)


def _table(results: list[Result]) -> Table:
    table = Table(
        title="Relative distortion × 10⁻²; base is encoded afresh; ratio is base against PQ of the same bytes"
    )
    for column in ("method", "bits", "learn", "base", "ratio to PQ", "fit, s"):
        table.add_column(column, justify="left" if column == "method" else "right")
    pq = {result.bits: result.base for result in results if result.name == "product quantization"}
    for result in results:
        table.add_row(
            result.name,
            str(result.bits),
            f"{100 * result.learn:.2f}",
            f"{100 * result.base:.2f}",
            f"{result.base / pq[result.bits]:.3f}" if pq[result.bits] else "–",
            f"{result.seconds:.1f}",
            end_section=result.bits == 32 and result.name == "gk-means (2, h)",
        )
    return table
