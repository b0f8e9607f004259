"""Reports: JSON, CSV and Markdown beside each other, each with the seed, the version, the CPU and the settings."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from .._files import write_bytes
from .methods import Settings
from .store import UNKNOWN, Cell, of_other_code, told, writing
from .subject import Subject

Row = Mapping[str, Any]


def about(
    subject: Subject, seeds: Sequence[int], settings: Settings, cells: Sequence[Cell], sources: Sequence[Cell] = ()
) -> dict[str, Any]:
    """What a report says of where it comes from: each machine its cells were made on, and each code that made them or
    the cells they come from; ``other_code`` are those that the running code did not make.
    """
    names = ("version", "cpu", "cores", "threads", "simd", "python", "numpy")
    machines = []
    everything = list({cell.name: cell for cell in (*sources, *cells)}.values())
    others = of_other_code(everything)
    for cell in cells:
        short = {name: cell.machine[name] for name in names}
        if short not in machines:
            machines.append(short)
    return {
        "dataset": subject.name,
        "fingerprint": subject.fingerprint,
        "description": subject.describe(),
        "seeds": [int(seed) for seed in seeds],
        "settings": asdict(settings),
        "machines": machines,
        "codes": list(dict.fromkeys(cell.code for cell in everything)),
        "other_code": {cell.name: cell.code for cell in others},
        "other_code_note": told(others, len(everything)) if others else None,
        "date": max((cell.machine["date"] for cell in cells), default=""),
    }


def origin(about: Row) -> str:
    """``about`` in a few lines."""
    settings = about["settings"]
    lines = [
        f"{about['description']}.",
        f"Seeds {', '.join(map(str, about['seeds']))}; K = {settings['n_codewords']}, max_iter = "
        f"{settings['max_iter']}, init_iter = {settings['init_iter']}.",
    ]
    if settings["limit"] is not None:
        lines.append(
            f"Only the first {settings['limit']:,} vectors of each part: a trial, not to be held to the paper."
        )
    for machine in about["machines"]:
        lines.append(
            f"gkmeans {machine['version']}, {machine['cpu']}, {machine['cores']} cores, {machine['threads']} threads, "
            f"SIMD {machine['simd']}, Python {machine['python']}, NumPy {machine['numpy']}."
        )
    codes = ", ".join(about["codes"])
    if len(about["codes"]) > 1:
        lines.append(
            f"Made by different code (sha256 {codes}): parts may not agree; start in a new folder to have one code."
        )
    else:
        lines.append(f"Code sha256 {codes}.")
    if about["other_code"]:
        lines.append(about["other_code_note"])
    return "\n".join([*lines, f"{about['date']}."])


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def machine_columns(cell: Cell) -> dict[str, Any]:
    """Where a cell was made, as columns of a report."""
    names = ("version", "code", "cpu", "cores", "threads", "simd", "date")
    return {name: cell.machine.get(name, UNKNOWN) for name in names}


def write_report(
    folder: Path, name: str, rows: Sequence[Row], about: Row, markdown: str, flat: Sequence[Row] | None = None
) -> None:
    """``name``.json, ``name``.csv and ``name``.md in ``folder``; ``flat`` are the rows of the CSV where they differ."""
    with writing(folder):
        content = {"about": about, "rows": list(rows)}
        write_bytes(folder / f"{name}.json", (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode())
        write_bytes(folder / f"{name}.csv", _csv(rows if flat is None else flat, about).encode())
        write_bytes(folder / f"{name}.md", f"{markdown}\n\n{_listed(origin(about))}\n".encode())


def _listed(text: str) -> str:
    return "\n".join(f"- {line}" for line in text.splitlines())


def _csv(rows: Sequence[Row], about: Row) -> str:
    """Rows with the dataset and the settings in each, so that tables of several runs can be put together."""
    settings = {
        name: about["settings"][name] for name in ("n_codewords", "max_iter", "init_iter", "mcmp_iter", "limit")
    }
    full = [{"dataset": about["dataset"], **row, **settings} for row in rows]
    out = io.StringIO()
    writer = csv.DictWriter(out, list(full[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(full)
    return out.getvalue()
