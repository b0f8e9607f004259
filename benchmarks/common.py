"""What the benchmarks share: data, the machine, and alternating measurements."""

from __future__ import annotations

import ctypes
import json
import logging
import os
import statistics
import subprocess
import time
import zlib
from collections.abc import Callable
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from gkmeans import __version__, _core, vectors
from gkmeans.experiments.fits import cpu
from gkmeans.metrics import relative_distortion
from gkmeans.products import way

DATA = Path(os.environ.get("GKMEANS_DATA", Path(__file__).parents[2] / "shared" / "data"))
RESULTS = Path(__file__).parents[1] / "results"


def found(path: Path) -> Path:
    """``path``, or the way to it."""
    if not path.exists():
        raise SystemExit(f"{path} is not there; set GKMEANS_DATA to the folder of photosift/, mnist/ and glosses/")
    return path


def photosift(name: str) -> np.ndarray:
    """``learn``, ``base`` or ``query`` of photo SIFT, (n, 128) uint8."""
    return vectors.read(found(DATA / "photosift" / f"{name}.bvecs"))


def mnist() -> np.ndarray:
    """The 60,000 training images of MNIST, (60000, 784) uint8, raw pixels."""
    return vectors.read(found(DATA / "mnist" / "train-images-idx3-ubyte.gz"))


def glosses(name: str) -> np.ndarray:
    """``learn``, ``base`` or ``query`` of the sentence embeddings, (n, 384) float16."""
    return vectors.read(found(DATA / "glosses" / f"{name}.npy"))


def learn_and_base(dataset: str, train: int | None, base: int | None) -> tuple[np.ndarray, np.ndarray]:
    """Both in memory, as many rows of them as asked for, drawn at random; MNIST is both."""
    parts = []
    for name, rows in (("learn", train), ("base", base)):
        X = mnist() if dataset == "mnist" else {"photosift": photosift, "glosses": glosses}[dataset](name)
        if rows is not None and rows < len(X):
            X = X[np.sort(np.random.default_rng(0).choice(len(X), rows, replace=False))]
        parts.append(np.array(X, order="C"))
    return parts[0], parts[1]


def faiss_index(method: str, P: int, C: int) -> Any:
    """One of Faiss's quantizers, P numbers to C bytes, with its defaults."""
    import faiss

    if method == "opq":
        return faiss.IndexPreTransform(faiss.OPQMatrix(P, C), faiss.IndexPQ(P, C, 8))
    if method == "plsq":
        return faiss.IndexProductLocalSearchQuantizer(P, 2, C // 2, 8)
    kinds = {"pq": faiss.IndexPQ, "rq": faiss.IndexResidualQuantizer, "lsq": faiss.IndexLocalSearchQuantizer}
    return kinds[method](P, C, 8)


def trained_faiss(name: str, index: Any, learn: np.ndarray, threads: int) -> tuple[Any, dict[str, Any]]:
    """``index`` trained on ``learn`` (n, P) float32; its seconds, its distortion of learn, a note where they are old.

    They are kept as results/``name``.faiss and .json, and used again where learn, threads, CPU and
    Faiss are the same.
    """
    import faiss

    path = RESULTS / f"{name}.faiss"
    note = path.with_suffix(".json")
    same = {"learn": [*learn.shape, zlib.crc32(learn)], "threads": threads, "cpu": cpu(), "faiss": faiss.__version__}
    if path.exists() and note.exists():
        figures = json.loads(note.read_text())
        if same.items() <= figures.items():
            return faiss.read_index(str(path)), figures | {"note": " (trained and timed in an earlier run)"}
    note.unlink(missing_ok=True)
    start = time.perf_counter()
    index.train(learn)
    seconds = time.perf_counter() - start
    distortion = relative_distortion(learn, index.sa_decode(index.sa_encode(learn)))
    RESULTS.mkdir(exist_ok=True)
    faiss.write_index(index, str(path))
    figures = {"seconds": seconds, "distortion": distortion, **same}
    note.write_text(json.dumps(figures))  # last: without it the model is not used
    return index, figures | {"note": ""}


class Clock(logging.Handler):
    """Keeps the time and the distortion of each iteration of a fit, but not of its trial."""

    def __init__(self) -> None:
        super().__init__()
        self.start = time.perf_counter()
        self.points: list[tuple[float, float]] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Note the time and the distortion."""
        if not record.getMessage().startswith("fit, trial"):
            self.points.append((time.perf_counter() - self.start, record.args[-1]))


def clocked(fit: Callable[[], Any]) -> Clock:
    """The clock of a fit that has ended."""
    logger = logging.getLogger("gkmeans")
    logger.setLevel(logging.INFO)
    clock = Clock()
    logger.addHandler(clock)
    try:
        fit()
    finally:
        logger.removeHandler(clock)
    return clock


def machine() -> str:
    """CPU, commit and versions: what a figure depends on."""
    git = ["git", "-C", str(Path(__file__).parent)]
    commit = subprocess.run([*git, "describe", "--always", "--dirty"], capture_output=True, text=True).stdout.strip()
    made = f"SIMD {_core.simd_level()}, products {way()}"
    return f"{cpu()}, {os.cpu_count()} cores, gkmeans {__version__} ({commit}), {made}"


def in_turns(ours: list[Any], theirs: list[Any]) -> list[Any]:
    """One of ours, one of theirs, and so on; the rest of the longer one last."""
    return [item for item in chain.from_iterable(zip_longest(ours, theirs)) if item is not None]


def alternate(
    tasks: dict[Any, Callable[[], Any]], repeats: int, ready: Callable[[Any], None] = lambda name: None
) -> dict[Any, list[float]]:
    """Seconds of each task, run in turn ``repeats`` times, so that noise meets all alike; ``ready`` goes before."""
    seconds: dict[Any, list[float]] = {name: [] for name in tasks}
    for _ in range(repeats):
        for name, task in tasks.items():
            ready(name)
            start = time.perf_counter()
            task()
            seconds[name].append(time.perf_counter() - start)
    return seconds


def spread(seconds: list[float], unit: float = 1.0) -> str:
    """Median and range."""
    return f"{statistics.median(seconds) * unit:8.2f}  [{min(seconds) * unit:.2f} … {max(seconds) * unit:.2f}]"


def median(seconds: list[float]) -> float:
    """Median."""
    return statistics.median(seconds)


FLAGS = ["-O3", "-march=native", "-mprefer-vector-width=512", "-ffp-contract=off", "-shared", "-fPIC", "-std=c++20"]


def compiled(file: str, function: str, flags: list[str]) -> Callable[..., Any]:
    """A function of a C++ file of this folder, compiled by g++ for this machine, into results/."""
    source, library = Path(__file__).with_name(f"{file}.cpp"), RESULTS / f"{file}.so"
    RESULTS.mkdir(exist_ok=True)
    subprocess.run(["g++", *FLAGS, *flags, "-o", str(library), str(source)], check=True)
    function_of: Callable[..., Any] = getattr(ctypes.CDLL(str(library)), function)
    return function_of
