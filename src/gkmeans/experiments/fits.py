"""One cell of Table 1: a method fitted at a code length, its distortion, its history, its model and its codes."""

from __future__ import annotations

import json
import os
import platform
import shutil
import time
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .. import __version__, _core, _files
from .._files import FileError, write_bytes
from .._lock import Lock
from .._parallel import effective_jobs
from .._progress import logger
from .._rows import Codes
from .._validation import check_integer
from ..datasets import Dataset
from ..estimators.base import AdditiveQuantizer
from ..products import way
from ..store import load
from . import store as stored
from .methods import MCMP, Settings, build, selected, work
from .paper import METHODS
from .run import Job, run
from .store import Cell, Store, name_of, writing
from .subject import Rows, Subject

CODES = "gkmeans-codes"
LONG = 1e11
"""Work from which on a fit keeps a checkpoint: about 20 seconds of two threads."""
TRIES = "tries.json"


def machine(settings: Settings) -> dict[str, Any]:
    """What a figure depends on besides the data and the settings."""
    return {
        "version": __version__,
        "code": stored.CODE,
        "cpu": cpu(),
        "cores": os.cpu_count(),
        "threads": effective_jobs(settings.n_jobs),
        "simd": _core.simd_level(),
        "products": way(),
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


def check_fits(
    methods: Sequence[str],
    bits: Sequence[int],
    seeds: Sequence[int],
    settings: Settings,
    shape: tuple[int, ...] | None = None,
) -> None:
    """Raise where a fit that is asked for cannot be made, on data of this ``shape`` where it is known."""
    for name, values in (("bits", bits), ("seeds", seeds)):
        if not len(values):
            raise ValueError(f"{name} is empty; pass at least one")
    for seed in seeds:
        check_integer("seed", seed, 0)
    for method in methods:
        for length in bits:
            estimator = build(method, check_integer("bits", length, 1), int(seeds[0]), settings)
            estimator._check_settings()
            if shape is not None:
                estimator._check_data((shape[0], shape[1]))


def fit_jobs(
    store: Store,
    subject: Subject,
    methods: Sequence[str],
    bits: Sequence[int],
    seeds: Sequence[int],
    settings: Settings,
) -> list[Job]:
    """A job for each method, length and seed."""
    n, P = subject.learn.shape
    check_fits(methods, bits, seeds, settings, (n, P))
    jobs = []
    for seed in dict.fromkeys(int(seed) for seed in seeds):
        for length in dict.fromkeys(int(length) for length in bits):
            for method in methods:
                key = fit_key(subject, method, length, seed, settings)
                estimator = build(method, length, seed, settings)
                cost = work(method, length, n, P, settings)

                def make(
                    key: dict[str, Any] = key, estimator: AdditiveQuantizer = estimator, long: bool = cost >= LONG
                ) -> Cell:
                    return _fit(store, subject, key, estimator, settings, long)

                most = estimator._start_iterations(P) + estimator.max_iter
                before = key | {"fingerprint": subject.sampled}
                jobs.append(Job(f"{method}, {length} bits", key, cost, make, most, before))
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
    check_fits(chosen, bits, seeds, settings)
    subject, store = Subject.of(dataset, settings.limit), Store(folder)
    jobs = fit_jobs(store, subject, chosen, bits, seeds, settings)
    return Fitted(settings, subject, store, run(title, store, jobs, progress))


def _fit(
    store: Store, subject: Subject, key: dict[str, Any], estimator: AdditiveQuantizer, settings: Settings, long: bool
) -> Cell:
    folder = store.cells / f"{name_of(key)}.checkpoint"
    if long:
        with writing(store.folder):
            seconds = resumed_fit(folder, estimator, subject.learn)
    else:
        start = time.perf_counter()
        estimator.fit(subject.learn)
        seconds = time.perf_counter() - start
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
        "fit_seconds": seconds,
        "encode_seconds": encoded - fitted,
        "estimator": repr(estimator),
    }
    files = {
        "model": estimator.save,
        "codes": lambda path: _files.write(path, CODES, {"codes": codes}, {}),
    }
    cell = store.keep(key, values, machine(settings), files)
    shutil.rmtree(folder, ignore_errors=True)
    return cell


def resumed_fit(folder: Path, estimator: AdditiveQuantizer, X: Rows) -> float:
    """Fit, from where an earlier try that was stopped left ``folder``; seconds of all tries."""
    folder.mkdir(exist_ok=True)
    lock = Lock(
        folder / "lock", f"{folder} is of a fit that is running; wait for it, or use another folder for results"
    )
    try:
        before = earlier_seconds(folder)
        known = (folder / "fit").exists()
        start = _begin_try(folder, before)
        try:
            estimator.fit(X, checkpoint=folder / "fit")
        except FileError as error:
            if not known:
                raise
            logger.warning("%s cannot be gone on from (%s): the fit begins anew", folder, error)
            shutil.rmtree(folder / "fit")
            before, start = 0.0, _begin_try(folder, 0.0)
            estimator.fit(X, checkpoint=folder / "fit")
        return before + time.perf_counter() - start
    finally:
        lock.release()


def _begin_try(folder: Path, before: float) -> float:
    content = {"code": stored.CODE, "seconds": before, "began": time.time()}
    write_bytes(folder / TRIES, json.dumps(content).encode())
    return time.perf_counter()


def earlier_seconds(folder: Path) -> float:
    """Seconds of the tries before, each up to the last state it kept: what came after that is done again.

    A checkpoint of other code, or one whose tries are not known, is removed: it might not end with the same bits.
    """
    checkpoint = folder / "fit"
    if not checkpoint.exists():
        return 0.0
    try:
        content = json.loads((folder / TRIES).read_bytes())
        if content["code"] == stored.CODE:
            last = max((path.stat().st_mtime for path in checkpoint.glob("training-*")), default=0.0)
            return float(content["seconds"]) + max(0.0, last - float(content["began"]))
        reason = f"it is of other code (sha256 {content['code']})"
    except (OSError, ValueError, TypeError, KeyError) as error:
        reason = f"{TRIES} cannot be read: {error}"
    logger.warning("%s is removed and the fit begins anew: %s", checkpoint, reason)
    shutil.rmtree(checkpoint)
    return 0.0


def model_of(cell: Cell, settings: Settings) -> AdditiveQuantizer:
    """The fitted estimator of a cell, with the threads of this run."""
    return load(cell.files["model"]).set_params(n_jobs=settings.n_jobs)  # type: ignore[no-any-return]


def codes_of(cell: Cell) -> Codes:
    """Codes of the database."""
    arrays, _ = _files.read(cell.files["codes"], CODES)
    return arrays["codes"]
