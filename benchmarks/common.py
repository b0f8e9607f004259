"""What the benchmarks share: data, the machine, and alternating measurements."""

from __future__ import annotations

import os
import statistics
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from gkmeans import __version__, _core, vectors
from gkmeans.experiments.fits import cpu

DATA = Path(os.environ.get("GKMEANS_DATA", Path(__file__).parents[2] / "shared" / "data"))
RESULTS = Path(__file__).parents[1] / "results"
LSQ = RESULTS / "lsq-photosift-64.faiss"


def found(path: Path) -> Path:
    """``path``, or the way to it."""
    if not path.exists():
        raise SystemExit(f"{path} is not there; set GKMEANS_DATA to the folder that holds photosift/ and mnist/")
    return path


def photosift(name: str) -> np.ndarray:
    """``learn``, ``base`` or ``query`` of photo SIFT, (n, 128) uint8."""
    return vectors.read(found(DATA / "photosift" / f"{name}.bvecs"))


def mnist() -> np.ndarray:
    """The 60,000 training images of MNIST, (60000, 784) uint8, raw pixels."""
    return vectors.read(found(DATA / "mnist" / "train-images-idx3-ubyte.gz"))


def machine() -> str:
    """CPU, commit and versions: what a figure depends on."""
    git = ["git", "-C", str(Path(__file__).parent)]
    commit = subprocess.run([*git, "describe", "--always", "--dirty"], capture_output=True, text=True).stdout.strip()
    return f"{cpu()}, {os.cpu_count()} cores, gkmeans {__version__} ({commit}), SIMD {_core.simd_level()}"


def alternate(tasks: dict[str, Callable[[], Any]], repeats: int) -> dict[str, list[float]]:
    """Seconds of each task, run in turn ``repeats`` times, so that noise meets all of them alike."""
    seconds: dict[str, list[float]] = {name: [] for name in tasks}
    for _ in range(repeats):
        for name, task in tasks.items():
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
