"""The command ``gkmeans reproduce``: the paper's tables and figures for any dataset that the loaders read."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markdown import Markdown
from rich.table import Table
from rich.text import Text

from ._files import FileError
from ._validation import DataWarning
from .datasets import load
from .experiments import Settings, figure1, figure2, table1, table2
from .experiments.figure2 import PAPER_METHODS as FIGURE2_METHODS
from .experiments.fits import check_fits
from .experiments.methods import MCMP, canonical, count_dictionaries
from .experiments.paper import DATASETS, METHODS
from .experiments.pictures import check_matplotlib
from .experiments.table1 import BITS
from .experiments.table2 import DICTIONARIES, check_table2
from .experiments.table2 import PAPER_METHODS as TABLE2_METHODS


class Experiment(str, Enum):
    """What can be re-made."""

    table1 = "table1"
    table2 = "table2"
    figure1 = "figure1"
    figure2 = "figure2"
    all = "all"


# which methods an experiment can take, and which it takes unless told
_CAN = {"table1": METHODS, "table2": TABLE2_METHODS, "figure1": METHODS, "figure2": METHODS}
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "table1": table1,
    "table2": table2,
    "figure1": figure1,
    "figure2": figure2,
}
_USUAL = _CAN | {"figure2": FIGURE2_METHODS}


def reproduce(
    experiment: Annotated[Experiment, typer.Argument(help="The table or figure of the paper, or all of them.")],
    dataset: Annotated[str, typer.Option(help="mnist, sift1m, gist1m, sample, or a name for the folder --data.")],
    data: Annotated[
        Path | None, typer.Option(help="Where the dataset lies; default: GKMEANS_DATA, then a download.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Where results go; default: results/DATASET, with -limitN after it in a trial.")
    ] = None,
    method: Annotated[
        list[str] | None, typer.Option(help="A method such as 'gk-means(2, h)', 2h, ock or ck; may be repeated.")
    ] = None,
    bits: Annotated[str | None, typer.Option(help="Code lengths; default 32,64,128, and 16,32,64 for table2.")] = None,
    seeds: Annotated[
        str, typer.Option("--seeds", "--seed", help="One seed or several, such as 0,1,2; table2 has one.")
    ] = "0",
    max_iter: Annotated[int, typer.Option(help="Most iterations of a training.")] = 100,
    init_iter: Annotated[int, typer.Option(help="Most iterations of each stage of an initialisation.")] = 30,
    mcmp_iter: Annotated[
        int | None, typer.Option(help="Most iterations of MCMP's training; default: --max-iter.")
    ] = None,
    budget: Annotated[float, typer.Option(help="Seconds that MCMP may encode for in table2.")] = 120.0,
    limit: Annotated[int | None, typer.Option(help="Use only so many vectors of each part: a trial run.")] = None,
    jobs: Annotated[int | None, typer.Option(help="Threads; all cores by default.")] = None,
) -> None:
    """Re-make a table or figure of the paper; finished parts are kept, and a stopped run goes on where it was."""
    try:
        check_matplotlib()
        settings = Settings(max_iter=max_iter, init_iter=init_iter, mcmp_iter=mcmp_iter, limit=limit, n_jobs=jobs)
        known = _known(dataset, data)
        folder = out or Path("results") / (known if limit is None else f"{known}-limit{limit}")
        lengths = None if bits is None else _numbers("--bits", bits, "32,64")
        chosen = None if method is None else [canonical(name) for name in method]
        numbers = _numbers("--seeds", seeds, "0,1,2")
        if experiment is Experiment.table2 and len(numbers) > 1:
            raise ValueError(
                f"--seeds {seeds} are {len(numbers)} seeds, and table2 has one; use one, such as --seeds 0"
            )
        parts = {
            name: _options(name, methods, lengths, numbers, budget, settings)
            for name, methods in _parts(experiment, chosen).items()
        }
        _check(parts, None)
        loaded = load(known, data)
        _check(parts, loaded.learn[:limit].shape)
        with warnings.catch_warnings():
            warnings.simplefilter("once", DataWarning)  # each fit has the same to say of the data
            for name, options in parts.items():
                _FUNCTIONS[name](loaded, folder, progress=True, **options)
                _show(folder, name)
    except (FileError, ImportError) as error:
        Console(stderr=True).print(f"Error: {error}", style="red", markup=False)
        raise typer.Exit(1) from error
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def _known(name: str, data: Path | None) -> str:
    """The name of a dataset, in small letters where a loader knows it so; it is the name of a folder too."""
    if name in ("", ".", "..") or any(separator in name for separator in "/\\"):
        raise ValueError(
            f"--dataset {name!r} is no name of a folder; use a word such as photos, and --data for where its files lie"
        )
    return name.lower() if name.lower() in DATASETS or (name.lower() == "sample" and data is None) else name


def _numbers(option: str, text: str, example: str) -> list[int]:
    try:
        return list(dict.fromkeys(int(part) for part in text.split(",")))
    except ValueError as error:
        raise ValueError(f"{option} {text!r} is not a list of whole numbers such as {example}") from error


def _parts(experiment: Experiment, chosen: Sequence[str] | None) -> dict[str, Sequence[str]]:
    """The experiments to run and the methods of each; ``all`` gives each those it has, and leaves out one with none."""
    names = list(_CAN) if experiment is Experiment.all else [experiment.value]
    if chosen is None:
        return {name: _USUAL[name] for name in names}
    if experiment is not Experiment.all:
        can = _CAN[experiment.value]
        if alien := [method for method in chosen if method not in can]:
            raise ValueError(f"{experiment.value} has no method {', '.join(alien)}; use {', '.join(can)}")
    parts = {name: [method for method in _CAN[name] if method in chosen] for name in names}
    return {name: methods for name, methods in parts.items() if methods}


def _options(
    name: str,
    methods: Sequence[str],
    bits: Sequence[int] | None,
    seeds: Sequence[int],
    budget: float,
    settings: Settings,
) -> dict[str, Any]:
    """All that the command says of an experiment."""
    if name != "table2":
        return {"methods": methods, "bits": bits or BITS, "seeds": seeds, "settings": settings}
    counts = DICTIONARIES if bits is None else [count_dictionaries(MCMP, length, settings) for length in bits]
    return {"methods": methods, "dictionaries": counts, "seed": seeds[0], "budget": budget, "settings": settings}


def _check(parts: Mapping[str, dict[str, Any]], shape: tuple[int, ...] | None) -> None:
    """Raise for what is wrong in any experiment, before the first is begun."""
    for name, options in parts.items():
        (check_table2 if name == "table2" else check_fits)(**options, shape=shape)


def _show(folder: Path, name: str) -> None:
    console = Console()
    for block in (folder / f"{name}.md").read_text().split("\n\n"):
        console.print(_table(block) if block.startswith("|") else Markdown(block))
        console.print()
    files = ", ".join(f"{name}.{kind}" for kind in ("json", "csv", "md", "png", "svg"))
    console.print(f"{folder}: {files}", markup=False)


def _table(block: str) -> Table:
    """A table of Markdown whose first column, the method or the length, is never broken over lines."""
    head, _, *lines = ([cell.strip() for cell in line.strip("| ").split(" | ")] for line in block.splitlines())
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for place, title in enumerate(head):
        table.add_column(Text(title), no_wrap=place == 0, overflow="fold", justify="left" if place == 0 else "right")
    for line in lines:
        table.add_row(*(Text(cell.strip("*"), "bold" if cell.startswith("**") else "") for cell in line))
    return table
