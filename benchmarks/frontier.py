"""Distortion over time, training and encoding apart: gk-means against Faiss's PQ, OPQ, RQ, LSQ and PLSQ.

python benchmarks/frontier.py [--dataset mnist photosift glosses] [--bits 32 64 128] [--methods pq opq rq lsq plsq]
                              [--ours defaults "plain (2, h)" "plain (1, h)" hasty quick brief third]
                              [--rounds 1 2 4 8 16 32 64] [--train N] [--base N] [--repeats 1] [--threads 2]

Everything is trained on learn and measured on base, as float32, encoded afresh; MNIST is both. Faiss has defaults; RQ
encodes with beams of 5 and 30, LSQ with 1 to 64 rounds of its search (16 is its default). "quick" is a relaxed
training of nine iterations from a start at random, "hasty" one of five, "brief" one of 14, "third" one of four from a
start of two, on every third row.
Trainings take turns, and so do encodings. --ours takes some of ours. Faiss's trained models are kept in results/ with
their times and used again where learn, threads, CPU and Faiss are the same; delete them to train anew. Figures go to
results/frontier-<dataset>-<bits>.json, the picture to the .png beside it. --train and --base take that many rows, drawn
at random, for a quick look under names of its own.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import faiss
import numpy as np
from matplotlib.figure import Figure

import gkmeans as gk
from common import (
    RESULTS,
    alternate,
    clocked,
    faiss_index,
    in_turns,
    learn_and_base,
    machine,
    median,
    spread,
    trained_faiss,
)
from gkmeans.estimators.group import plain
from gkmeans.metrics import relative_distortion

QUICK = {"init": "random", "max_iter": 9}
THIRD = {"init_iter": 2, "max_iter": 4}
OURS: dict[str, dict[str, Any]] = {"defaults": {}, "plain (2, h)": plain(2), "plain (1, h)": plain(1), "quick": QUICK}
OURS |= {"hasty": QUICK | {"max_iter": 5}, "brief": QUICK | {"max_iter": 14}, "third": THIRD}
METHODS = ["pq", "opq", "rq", "lsq", "plsq"]
LSQ_ROUNDS, SAMPLE = 16, 20_000  # Faiss's default; rows of learn encoded afresh
PAPER = {32: (14.25, 13.2), 64: (9.44, 8.5), 128: (5.91, 5.1)}  # MNIST: the paper's (2, h), and what we ask of ours
LOWER = {"glosses": {32: 5, 64: 5, 128: 5}}  # % below Faiss's LSQ that we ask of our defaults
LOWER["mnist"] = LOWER["photosift"] = {32: 8, 64: 12, 128: 15}
STYLES = {
    "defaults": ("#08306b", "o", "-", True),
    "plain (2, h)": ("#4292c6", "s", "--", True),
    "plain (1, h)": ("#4292c6", "s", ":", False),
    "quick": ("#6a51a3", "P", "--", True),
    "hasty": ("#6a51a3", "*", "--", True),
    "brief": ("#6a51a3", "X", "--", True),
    "third": ("#6a51a3", "P", ":", False),
    "Faiss PQ": ("#525252", "v", "", False),
    "Faiss OPQ": ("#525252", "v", "", True),
    "Faiss RQ": ("#238b45", "^", "--", False),
    "Faiss LSQ": ("#d95f0e", "D", "-.", True),
    "Faiss PLSQ": ("#d95f0e", "D", "", False),
}


@dataclass
class Model:
    """A trained quantizer, ours or Faiss's."""

    name: str
    seconds: float
    learn: float  # relative distortion of the learn set
    decode: Callable[[np.ndarray], np.ndarray]
    settings: dict[int | None, Callable[[np.ndarray], np.ndarray]]  # effort, rounds or beam → encode
    curve: list[tuple[float, float]] = field(default_factory=list)  # seconds and distortion of our iterations
    note: str = ""
    fitted: gk.GroupKMeans | None = None


@dataclass
class Point:
    """One way to encode."""

    model: str
    setting: int | None
    seconds: list[float]
    time: float  # median
    distortion: float

    def __str__(self) -> str:
        return self.model if self.setting is None else f"{self.model}, {self.setting}"


class Bar(NamedTuple):
    """Something asked for, whether it is so, and the figures."""

    name: str
    met: bool
    text: str


def fit(name: str, learn: np.ndarray, bits: int, options: argparse.Namespace) -> Model:
    model = gk.GroupKMeans(bits // 8, random_state=0, n_jobs=options.threads, **OURS[name])
    rows = learn[::3] if name == "third" else learn
    clock = clocked(lambda: model.fit(rows))
    seconds = time.perf_counter() - clock.start
    efforts = [model.effort] if name.startswith("plain") else range(10)
    settings = {e: lambda X, effort=e: model.encode(X, effort=effort) for e in efforts}
    return Model(name, seconds, float(model.history_[-1]), model.decode, settings, clock.points, fitted=model)


def rival(method: str, label: str, learn: np.ndarray, bits: int, options: argparse.Namespace) -> Model:
    index = faiss_index(method, learn.shape[1], bits // 8)
    index, figures = trained_faiss(f"{method}-{label}-{bits}", index, learn, options.threads)

    def encode(X: np.ndarray, value: int | None) -> np.ndarray:
        if method == "rq":
            index.rq.max_beam_size = value
        elif method == "lsq":
            index.lsq.encode_ils_iters = value
        return index.sa_encode(X)

    values = {"rq": [5, 30], "lsq": sorted({*options.rounds, LSQ_ROUNDS})}.get(method, [None])
    settings = {value: lambda X, value=value: encode(X, value) for value in values}
    name, seconds, learned = f"Faiss {method.upper()}", figures["seconds"], figures["distortion"]
    return Model(name, seconds, learned, index.sa_decode, settings, note=figures["note"])


def all_trained(learn: np.ndarray, label: str, bits: int, options: argparse.Namespace) -> list[Model]:
    floats, models = learn.astype(np.float32), []
    print("\ntraining            seconds   distortion of learn × 10⁻²", flush=True)
    needed = [name for name in OURS if name in {*options.ours, "defaults", "plain (2, h)"}]
    for name in in_turns(needed, options.methods):
        own = name in OURS
        model = fit(name, learn, bits, options) if own else rival(name, label, floats, bits, options)
        models.append(model)
        print(f"{model.name:16} {model.seconds:10.2f}   {100 * model.learn:8.3f}{model.note}", flush=True)
    return models


def all_encoded(models: list[Model], base: np.ndarray, repeats: int) -> list[Point]:
    floats = base.astype(np.float32)
    codes: dict[tuple[str, int | None], np.ndarray] = {}

    def task(model: Model, setting: int | None) -> Callable[[], None]:
        return lambda: codes.__setitem__((model.name, setting), model.settings[setting](floats))

    def ready(name: tuple[str, int | None]) -> None:  # threads, buffers and tables are there before the clock runs
        next(model for model in models if model.name == name[0]).settings[name[1]](floats[:64])

    keys = [(model, setting) for model in models for setting in model.settings]
    ours, theirs = ([key for key in keys if (key[0].name in OURS) is mine] for mine in (True, False))
    tasks = {(model.name, setting): task(model, setting) for model, setting in in_turns(ours, theirs)}
    seconds, points = alternate(tasks, repeats, ready), []
    print("\nencoding               µs a vector [range]          distortion of base × 10⁻²")
    for model, setting in keys:
        taken = seconds[model.name, setting]
        distortion = relative_distortion(base, model.decode(codes[model.name, setting]))
        points.append(Point(model.name, setting, taken, median(taken), distortion))
        print(f"{points[-1]!s:20} {spread(taken, 1e6 / len(base)):32} {100 * distortion:8.3f}", flush=True)
    return points


def change(value: float, reference: float) -> float:
    return 100 * (value / reference - 1)


def at(points: list[Point], model: str, setting: int) -> Point:
    return next(p for p in points if (p.model, p.setting) == (model, setting))


def reached(models: dict[str, Model], points: list[Point], lsq: Point) -> list[Bar]:
    """Time to the distortion of Faiss's LSQ: by encoding, by iterations of training, by a whole training."""
    goal, spent, never = models["Faiss LSQ"].learn, models["Faiss LSQ"].seconds, float("inf")
    enough = [p for p in points if p.model in OURS and p.distortion <= lsq.distortion]
    best = min(enough, key=lambda p: p.time, default=None)
    whole = min((models[p.model].seconds for p in enough), default=never)
    own = [name for name in OURS if name in models and name != "third"]  # which has other rows
    when = {name: next((s for s, d in models[name].curve if d <= goal), never) for name in own}
    times = "; ".join(f"{name} in {s:.1f} s, 1/{spent / s:.1f}" for name, s in when.items() if s < never)
    encoding = f"1/{lsq.time / best.time:.1f} of its time by {best}" if best else "not reached"
    training = f"{whole:.1f} s, 1/{spent / whole:.1f}" if best else "not reached"
    base, learn = f"{100 * lsq.distortion:.3f} of base", f"{100 * goal:.3f} of learn in {spent:.1f} s"
    note = f" (bar 1/15){models['Faiss LSQ'].note}"
    return [
        Bar("2 encoding to LSQ's", best is not None and 30 * best.time <= lsq.time, f"{base}: {encoding} (bar 1/30)"),
        Bar("3 training to LSQ's", 15 * min(when.values()) <= spent, f"{learn}: {times or 'not reached'}{note}"),
        Bar("3 the same, whole fits", 15 * whole <= spent, f"{base}: {training}{note}"),
    ]


def beaten(points: list[Point]) -> list[Bar]:
    """For each point of Faiss's our best at no more time."""
    bars = []
    for theirs in (p for p in points if p.model not in OURS):
        fast = [p for p in points if p.model in OURS and p.time <= theirs.time]
        ours = min(fast, key=lambda p: p.distortion, default=None)
        text = "none as fast" if ours is None else f"{100 * ours.distortion:.3f} by {ours}"
        met = ours is not None and ours.distortion < theirs.distortion
        bars.append(Bar("4 frontier", met, f"{theirs}: {100 * theirs.distortion:.3f}; at no more time {text}"))
    return bars


def afresh(model: gk.GroupKMeans, learn: np.ndarray) -> list[Bar]:
    """Codes afresh against those of training, rows of learn."""
    rows = np.sort(np.random.default_rng(1).choice(len(learn), min(SAMPLE, len(learn)), replace=False))
    X, bars = learn[rows], []
    training = model.relative_distortion(X, model.codes_[rows])
    for effort, bar in ((model.effort, 2), (9, 0.5)):
        again = model.relative_distortion(X, model.encode(X, effort=effort))
        gap = change(again, training)
        text = f"{100 * again:.3f}, {100 * training:.3f} by training, {gap:+.2f} % (bar {bar} %), {len(X):,} of learn"
        bars.append(Bar(f"6 afresh, effort {effort}", gap <= bar, text))
    return bars


def summary(dataset: str, bits: int, models: dict[str, Model], points: list[Point], learn: np.ndarray) -> list[Bar]:
    ours = models["defaults"]
    mine, plain = at(points, "defaults", ours.fitted.effort), at(points, "plain (2, h)", 2)
    value, bars = f"{100 * mine.distortion:.3f} by our defaults", []
    if "Faiss LSQ" in models:
        lsq, lower = at(points, "Faiss LSQ", LSQ_ROUNDS), LOWER[dataset][bits]
        gain = change(mine.distortion, lsq.distortion)
        total, theirs = ours.seconds + mine.time, models["Faiss LSQ"].seconds + lsq.time
        text = f"{value}, {100 * lsq.distortion:.3f} by Faiss LSQ's, {gain:+.1f} % (bar −{lower} %)"
        text += f"; training + encoding {total:.1f} s and {theirs:.1f} s (bar: no more){models['Faiss LSQ'].note}"
        bars += [Bar("1 LSQ", gain <= -lower and total <= theirs, text), *reached(models, points, lsq)]
    gain = change(mine.distortion, plain.distortion)
    text = f"{value}, {100 * plain.distortion:.3f} by plain (2, h), {gain:+.1f} % (bar −4 %)"
    bars += [*beaten(points), Bar("5 plain", gain <= -4, text), *afresh(ours.fitted, learn)]
    if dataset == "mnist":
        paper, bar = PAPER[bits]
        best = 100 * at(points, "defaults", 9).distortion
        text = f"{value} (bar {bar}), {best:.3f} at effort 9, {paper} in the paper"
        bars.append(Bar("7 paper", 100 * mine.distortion <= bar, text))
    return bars


def picture(models: list[Model], points: list[Point], rows: int, title: str) -> Figure:
    """Training and encoding side by side; small numbers are efforts, rounds and beams."""
    figure = Figure(figsize=(12, 5.2), layout="constrained")
    left, right = figure.subplots(1, 2, subplot_kw={"xscale": "log"})
    for model in models:
        color, marker, line, filled = STYLES[model.name]
        style = {"color": color, "marker": marker, "markerfacecolor": color if filled else "white", "linestyle": line}
        seconds, learn = np.array(model.curve or [(model.seconds, model.learn)]).T
        marks = [*range(0, len(learn), max(1, len(learn) // 12)), len(learn) - 1]
        left.plot(seconds, 100 * learn, markevery=marks, **style)
        own = [p for p in points if p.model == model.name]
        right.plot([1e6 * p.time / rows for p in own], [100 * p.distortion for p in own], label=model.name, **style)
        for p in own if len(own) > 1 else []:
            place = (1e6 * p.time / rows, 100 * p.distortion)
            right.annotate(str(p.setting), place, (3, 4), textcoords="offset points", fontsize=7)
    ends = [100 * model.learn for model in models]
    left.set_ylim(0.95 * min(ends), 1.05 * max(ends))  # the first iterations are far above
    left.set(xlabel="Training (s)", ylabel="Relative distortion of learn, held out in relaxation (× 10⁻²)")
    right.set(xlabel="Encoding (µs a vector)", ylabel="Relative distortion of base, encoded afresh (× 10⁻²)")
    for axes in (left, right):
        axes.grid(color="0.9")
    figure.legend(*right.get_legend_handles_labels(), loc="outside lower center", ncols=4, handlelength=3.4)
    figure.suptitle(title)
    return figure


def run(dataset: str, bits: int, options: argparse.Namespace) -> None:
    learn, base = learn_and_base(dataset, options.train, options.base)
    label = dataset + (f"-learn{options.train}" if options.train else "")
    stem = f"frontier-{label}{f'-base{options.base}' if options.base else ''}-{bits}"
    title = f"{dataset}, {bits} bits, {len(learn):,} learn, {len(base):,} base, {options.threads} threads"
    print(f"\n{title}, {options.repeats} alternating runs", flush=True)
    models = all_trained(learn, label, bits, options)
    points = all_encoded(models, base, options.repeats)
    bars = summary(dataset, bits, {model.name: model for model in models}, points, learn)
    print("", *(f"{'met   ' if bar.met else 'missed'} {bar.name:22} {bar.text}" for bar in bars), sep="\n")
    shown = ("name", "seconds", "learn", "curve", "note")
    figures = {
        "machine": f"{machine()}, Faiss {faiss.__version__}",
        "title": title,
        "models": [{key: getattr(model, key) for key in shown} for model in models],
        "points": [asdict(point) | {"microseconds": 1e6 * point.time / len(base)} for point in points],
        "bars": [bar._asdict() for bar in bars],
    }
    (RESULTS / f"{stem}.json").write_text(json.dumps(figures, indent=1, ensure_ascii=False) + "\n")
    picture(models, points, len(base), title).savefig(RESULTS / f"{stem}.png", dpi=160)
    print(f"\nwritten: {RESULTS / stem}.json and .png", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", nargs="+", choices=list(LOWER), default=["mnist", "photosift", "glosses"])
    parser.add_argument("--bits", nargs="+", type=int, choices=list(PAPER), default=list(PAPER))
    parser.add_argument("--methods", nargs="*", choices=METHODS, default=METHODS)
    parser.add_argument("--ours", nargs="+", choices=list(OURS), default=list(OURS))
    parser.add_argument("--rounds", nargs="+", type=int, default=[1, 2, 4, 8, 16, 32, 64])
    parser.add_argument("--train", type=int, help="rows of learn; all by default")
    parser.add_argument("--base", type=int, help="rows of base; all by default")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    faiss.omp_set_num_threads(options.threads)
    warnings.simplefilter("ignore", gk.DataWarning)  # MNIST's empty border
    RESULTS.mkdir(exist_ok=True)
    print(machine())
    for dataset in options.dataset:
        for bits in options.bits:
            run(dataset, bits, options)


if __name__ == "__main__":
    main()
