"""Pictures by matplotlib, as PNG and SVG: each method keeps its marker, its line and its hatch, for greyscale too."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .._files import write_bytes
from .report import Row, origin
from .store import writing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Style:
    """How a method is drawn."""

    color: str
    marker: str
    line: Any
    hatch: str
    filled: bool = True


STYLES = {
    "gk-means(2, h)": Style("#08306b", "o", "-", ""),
    "gk-means(2, k)": Style("#d95f0e", "s", "-", "////"),
    "gk-means(2, r)": Style("#238b45", "^", "-", "...."),
    "gk-means(1, h)": Style("#4292c6", "o", "--", "xxxx", filled=False),
    "gk-means(1, k)": Style("#fe9929", "s", "--", "\\\\\\\\", filled=False),
    "gk-means(1, r)": Style("#74c476", "^", "--", "oo", filled=False),
    "ock-means": Style("#6a51a3", "D", "-.", "++"),
    "ck-means": Style("#525252", "v", ":", "----", filled=False),
    "MCMP": Style("#525252", "D", "-.", ""),
}
_LINES = ("-", "--", ":", "-.")


def check_matplotlib() -> None:
    """Raise before any work starts where matplotlib is not there."""
    if find_spec("matplotlib") is None:
        raise ImportError("the pictures need matplotlib, which is not installed; run: pip install 'gkmeans[plot]'")


def table1_picture(ours: Mapping[tuple[str, int], float], paper: Mapping[tuple[str, int], float], title: str) -> Figure:
    """Bars of the distortion (× 10⁻²) of each method, grouped by length, with the paper's value as a line."""
    methods = list(dict.fromkeys(method for method, _ in ours))
    lengths = list(dict.fromkeys(bits for _, bits in ours))
    figure, [axes] = _panels(1, (max(6.4, 2.0 + 0.32 * len(methods) * len(lengths)), 4.2))
    width = 0.84 / len(methods)
    for place, method in enumerate(methods):
        style = STYLES[method]
        x = np.arange(len(lengths)) + (place - (len(methods) - 1) / 2) * width
        heights = [ours.get((method, bits), np.nan) for bits in lengths]
        axes.bar(
            x,
            heights,
            width,
            label=method,
            facecolor=style.color if not style.hatch else "white",
            edgecolor=style.color,
            hatch=style.hatch,
        )
        known = [(at, paper[method, bits]) for at, bits in zip(x, lengths, strict=True) if (method, bits) in paper]
        for at, value in known:
            axes.plot(
                [at - width / 2, at + width / 2], [value, value], color="black", linewidth=2, solid_capstyle="butt"
            )
    if paper:
        axes.plot([], [], color="black", linewidth=2, label="the paper's value")
    axes.set_xticks(np.arange(len(lengths)), [f"{bits} bits" for bits in lengths])
    axes.set_ylabel("Relative distortion (× 10⁻²)")
    axes.set_title(title)
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, handlelength=2.4, handleheight=1.4)
    return figure


def figure1_picture(curves: Mapping[tuple[str, int], Sequence[float]], title: str) -> Figure:
    """Distortion over iterations: a panel for each length, a curve for each method."""
    from matplotlib.ticker import MaxNLocator

    lengths = list(dict.fromkeys(bits for _, bits in curves))
    figure, panels = _panels(len(lengths), (1.0 + 3.9 * len(lengths), 4.4))
    for axes, bits in zip(panels, lengths, strict=True):
        chosen = {method: values for (method, length), values in curves.items() if length == bits}
        for place, (method, values) in enumerate(chosen.items()):
            every = max(1, len(values) // 8)
            first = (place * every // max(1, len(chosen))) if len(values) > 8 else 0
            axes.plot(
                np.arange(1, len(values) + 1), values, label=method, markevery=(first, every), **_line(STYLES[method])
            )
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        axes.set_xlabel("Iteration")
        axes.set_title(f"{bits} bits")
        axes.grid(color="0.9")
    panels[0].set_ylabel("Relative distortion")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False, handlelength=3.4)
    figure.suptitle(title)
    return figure


def figure2_picture(curves: Mapping[tuple[str, int], Sequence[float]], title: str) -> Figure:
    """Recall over R in one panel, as in the paper: the marker tells the method, the line the length."""
    methods, lengths = (list(dict.fromkeys(pair[at] for pair in curves)) for at in (0, 1))
    figure, [axes] = _panels(1, (8.4, 5.2))
    for place, ((method, bits), values) in enumerate(curves.items()):
        style = _line(STYLES[method]) | {"linestyle": _LINES[lengths.index(bits) % len(_LINES)]}
        R = np.arange(1, len(values) + 1)
        marks = np.unique(np.geomspace(1, len(R), 25).round().astype(int)) - 1
        own = marks[methods.index(method) :: len(methods)]  # curves that meet keep their marks apart
        axes.plot(R, values, label=f"{method}-{bits}", markevery=list(own), zorder=4 - place / 100, **style)
    axes.set_xscale("log")
    ticks = [tick for tick in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000) if tick <= max(map(len, curves.values()))]
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.minorticks_off()
    axes.set_xlabel("R")
    axes.set_ylabel("Recall@R")
    axes.set_ylim(0, 1.02)
    axes.set_title(title)
    axes.grid(color="0.9")
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, handlelength=3.4)
    return figure


def table2_picture(points: Mapping[str, Sequence[tuple[int, float, str | None]]], title: str) -> Figure:
    """Time of one vector over the number of dictionaries; open marks are estimated, crossed ones without a run."""
    figure, [axes] = _panels(1, (6.4, 4.2))
    sources = {source for measured in points.values() for _, _, source in measured}
    for method, measured in points.items():
        C, micros, _ = zip(*measured, strict=True)
        style = _line(STYLES[method]) | {"markersize": 8, "markerfacecolor": STYLES[method].color}
        axes.plot(C, micros, label=method, **style)
        for at, value, source in measured:
            if source is not None:
                axes.plot([at], [value], **(style | {"markerfacecolor": "white"}))
            if source == "tree":
                axes.plot([at], [value], "x", color="black", markersize=4, zorder=3)
    if "sample" in sources:
        axes.plot([], [], "o", color="black", markerfacecolor="white", label="open: estimated from a sample")
    if "tree" in sources:
        axes.plot([], [], "x", color="black", label="crossed: not run, estimated from the size of its tree")
    counts = sorted({C for measured in points.values() for C, _, _ in measured})
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(counts, [str(C) for C in counts])
    axes.set_xlabel("Dictionaries")
    axes.set_ylabel("Encoding time (µs a vector)")
    axes.set_title(title)
    axes.grid(color="0.9")
    axes.legend(frameon=False, handlelength=3.4)
    return figure


def write_picture(figure: Figure, folder: Path, name: str, about: Row) -> None:
    """``name``.png and ``name``.svg in ``folder``; where they come from stands in their metadata."""
    for kind in ("png", "svg"):
        out = io.BytesIO()
        figure.savefig(out, format=kind, dpi=160, metadata={"Title": name, "Description": origin(about)})
        with writing(folder):
            write_bytes(folder / f"{name}.{kind}", out.getvalue())


def _panels(count: int, size: tuple[float, float]) -> tuple[Figure, list[Axes]]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    return figure, list(figure.subplots(1, count, squeeze=False)[0])


def _line(style: Style) -> dict[str, Any]:
    return {
        "color": style.color,
        "marker": style.marker,
        "linestyle": style.line,
        "linewidth": 1.5,
        "markersize": 5.5,
        "markeredgecolor": style.color,
        "markerfacecolor": style.color if style.filled else "white",
    }
