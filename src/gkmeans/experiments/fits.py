"""One cell of Table 1: a method fitted at a code length, its distortion, its history, its model and its codes."""

from __future__ import annotations

import hashlib
import os
import platform
import time
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .. import __version__, _core, _files
from .._parallel import effective_jobs
from .._rows import Codes
from .._validation import check_integer
from ..datasets import Dataset
from ..estimators.base import AdditiveQuantizer
from ..store import load
from .methods import MCMP, Settings, build, selected, work
from .paper import METHODS
from .run import Job, run
from .store import Cell, Store
from .subject import Subject

CODES = "gkmeans-codes"


def code_digest(package: Path, native: Path) -> str:
    """Short sha256 of the sources of ``package``, by name and content, and of its native module."""
    digest = hashlib.sha256()
    for path in [*sorted(package.rglob("*.py")), native]:
        content = path.read_bytes()
        name = path.name if path == native else path.relative_to(package).as_posix()
        digest.update(f"{name} {len(content)}\n".encode() + content)
    return digest.hexdigest()[:12]


# at import: files that change during a run are not what it runs
CODE = code_digest(Path(__file__).parents[1], Path(_core.__file__))


def machine(settings: Settings) -> dict[str, Any]:
    """What a figure depends on besides the data and the settings."""
    return {
        "version": __version__,
        "code": CODE,
        "cpu": cpu(),
        "cores": os.cpu_count(),
        "threads": effective_jobs(settings.n_jobs),
        "simd": _core.simd_level(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }


def cpu() -> str:
    """Name of the CPU."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def fit_key(subject: Subject, method: str, bits: int, seed: int, settings: Settings) -> dict[str, Any]:
    """What tells one fit from another; threads are no part of it, since they change no bit."""
    key = {
        "kind": "fit",
        "dataset": subject.name,
        "fingerprint": subject.fingerprint,
        "method": method,
        "bits": bits,
        "seed": seed,
        "n_codewords": settings.n_codewords,
        "max_iter": settings.max_iter,
        "init_iter": settings.init_iter,
    }
    return key | ({"mcmp_iter": settings.mcmp_iter or settings.max_iter} if method == MCMP else {})


def fit_jobs(
    store: Store,
    subject: Subject,
    methods: Sequence[str],
    bits: Sequence[int],
    seeds: Sequence[int],
    settings: Settings,
) -> list[Job]:
    """A job for each method, length and seed."""
    for name, values in (("bits", bits), ("seeds", seeds)):
        if not len(values):
            raise ValueError(f"{name} is empty; pass at least one")
    n, P = subject.learn.shape
    jobs = []
    for seed in dict.fromkeys(check_integer("seed", seed, 0) for seed in seeds):
        for length in dict.fromkeys(check_integer("bits", length, 1) for length in bits):
            for method in methods:
                key = fit_key(subject, method, length, seed, settings)
                estimator = build(method, length, seed, settings)

                def make(key: dict[str, Any] = key, estimator: AdditiveQuantizer = estimator) -> Cell:
                    return _fit(store, subject, key, estimator, settings)

                cost, most = work(method, length, n, P, settings), estimator._start_iterations(P) + estimator.max_iter
                jobs.append(Job(f"{method}, {length} bits", key, cost, make, most))
    return jobs


class Fitted(NamedTuple):
    """The fits that an experiment stands on, and what they were made with."""

    settings: Settings
    subject: Subject
    store: Store
    cells: list[Cell]


def fitted(
    title: str,
    dataset: Dataset,
    folder: str | os.PathLike[str],
    methods: Sequence[str],
    bits: Sequence[int],
    seeds: Sequence[int],
    settings: Settings | None,
    progress: bool,
) -> Fitted:
    """Fit what the folder does not have yet."""
    settings = settings or Settings()
    chosen = selected(methods, METHODS)
    subject, store = Subject.of(dataset, settings.limit), Store(folder)
    jobs = fit_jobs(store, subject, chosen, bits, seeds, settings)
    return Fitted(settings, subject, store, run(title, store, jobs, progress))


def _fit(store: Store, subject: Subject, key: dict[str, Any], estimator: AdditiveQuantizer, settings: Settings) -> Cell:
    start = time.perf_counter()
    estimator.fit(subject.learn)
    fitted = time.perf_counter()
    fresh = estimator.encode(subject.base)
    encoded = time.perf_counter()
    # where the database is the training set, the paper's distortion is that of the codes of the last iteration
    codes: Codes = estimator.codes_ if subject.base_is_learn else fresh
    history = [float(value) for value in estimator.history_]
    distortion = estimator.relative_distortion(subject.base, codes)
    values = {
        "distortion": distortion,
        "distortion_fresh": estimator.relative_distortion(subject.base, fresh),
        "distortion_train": history[-1],
        "history": history,
        "n_iter": int(estimator.n_iter_),
        "fit_seconds": fitted - start,
        "encode_seconds": encoded - fitted,
        "estimator": repr(estimator),
    }
    files = {
        "model": estimator.save,
        "codes": lambda path: _files.write(path, CODES, {"codes": codes}, {}),
    }
    return store.keep(key, values, machine(settings), files)


def model_of(cell: Cell, settings: Settings) -> AdditiveQuantizer:
    """The fitted estimator of a cell, with the threads of this run."""
    return load(cell.files["model"]).set_params(n_jobs=settings.n_jobs)  # type: ignore[no-any-return]


def codes_of(cell: Cell) -> Codes:
    """Codes of the database."""
    arrays, _ = _files.read(cell.files["codes"], CODES)
    return arrays["codes"]
