"""Checkpoints of a fit: the state of each training between two iterations, in a folder.

A fit is a sequence of trainings (stages, k-means, trials, the training proper) with little between them. Each has a
file, in the order in which they come, written anew after every iteration. A fit that is called again runs through the
same sequence: what has ended is read, what had begun goes on from its last iteration, and the generator of random
numbers is set to what it was there. So it ends with the bits of a fit that was never interrupted.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from . import _files
from ._files import FileError
from ._lock import Lock
from ._packing import packed_dictionaries, restored_dictionaries, tensor
from ._rows import Codes, Floats
from .dictionaries import Dictionaries, code_dtype

KIND, FIT, LOCK = "gkmeans-checkpoint", "fit.json", "lock"
_BESIDE = re.compile(r"\.(fit\.json|(training-[0-9]{4}|basis|leading|leading-trial)\.safetensors)\.\w+")


@dataclass(frozen=True)
class State:
    """A training between two iterations: all that the next one depends on, but the rows and the random numbers."""

    dictionaries: tuple[Dictionaries, ...]
    codes: Codes
    iteration: int = 0
    done: bool = False
    numbers: dict[str, float] = field(default_factory=dict)


class Checkpoint:
    """The folder of one fit, its own until ``close``, for the data and the settings that ``identity`` holds."""

    def __init__(self, folder: str | os.PathLike[str], identity: dict[str, Any], rng: np.random.Generator) -> None:
        self.folder = Path(folder)
        self._next = 0
        self._lock: Lock | None = None
        try:
            self._open(identity, rng)
        except BaseException as error:
            self.close()
            if not isinstance(error, OSError):
                raise
            raise FileError(
                f"{self.folder} cannot keep a checkpoint ({error}); use a folder that can be written"
            ) from error

    def _open(self, identity: dict[str, Any], rng: np.random.Generator) -> None:
        """Begin a checkpoint, or go on from one."""
        path = self.folder / FIT
        self.folder.mkdir(parents=True, exist_ok=True)
        left = [file for file in self.folder.iterdir() if _BESIDE.fullmatch(file.name)]  # of a write that was killed
        if not path.exists() and {file.name for file in self.folder.iterdir()} - {LOCK, *(file.name for file in left)}:
            raise FileError(f"{self.folder} is not empty and holds no checkpoint; pass a new folder")
        self._lock = Lock(
            self.folder / LOCK,
            f"{self.folder} is the checkpoint of a fit that is running; wait for it, or pass another folder",
        )
        for file in left:
            file.unlink(missing_ok=True)
        if path.exists():
            set_random(rng, self._check(path, identity), path)
            return
        whole = {"format": KIND, "version": _files.VERSION, "identity": identity, "random": random_of(rng)}
        _files.write_bytes(path, json.dumps(whole, indent=1).encode())

    def close(self) -> None:
        """Let other fits use the folder."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _check(self, path: Path, identity: dict[str, Any]) -> Any:
        """Raise where the checkpoint is of another fit; the random numbers that the fit began with."""
        try:
            whole = json.loads(path.read_bytes())
            kind, version, before = whole["format"], whole["version"], whole["identity"]
            different = [name for name in {**before, **identity} if before.get(name) != identity.get(name)]
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise FileError(f"{path} is not that of a checkpoint ({error}); pass a new folder") from error
        if (kind, version) != (KIND, _files.VERSION):
            raise FileError(
                f"{path} is a {kind} of version {version}; pass a new folder, or use the gkmeans that wrote it"
            )
        if different:
            what = "; ".join(f"{name} was {before.get(name)!r} and is {identity.get(name)!r}" for name in different)
            raise FileError(
                f"{self.folder} is the checkpoint of another fit: {what}. It is kept as it is: pass the same data and "
                "settings to go on from it, or another folder"
            )
        return whole.get("random")

    def kept(self, name: str, make: Callable[[], Floats], shape: tuple[int, ...]) -> Floats:
        """What ``make`` gave when the fit began: made anew on another CPU it could have other bits."""
        path = self.folder / f"{name}.safetensors"
        if not path.exists():
            made = make()
            _files.write(path, KIND, {name: made}, {})
            return made
        arrays, _ = _files.read(path, KIND)
        try:
            found: Floats = tensor(arrays, name, np.dtype(np.float32), len(shape))
        except (KeyError, ValueError) as error:
            raise FileError(f"{path} is not that of a checkpoint ({error}); pass a new folder") from error
        if found.shape != shape:
            raise FileError(f"{path} has shape {found.shape}, but the fit is at {shape}; pass a new folder")
        return found

    def place(self) -> Path:
        """The file of the training that comes next."""
        self._next += 1
        return self.folder / f"training-{self._next:04d}.safetensors"


def random_of(rng: np.random.Generator) -> Any:
    """The state of a generator as JSON has it."""
    return json.loads(json.dumps(rng.bit_generator.state, default=lambda array: array.tolist()))


def set_random(rng: np.random.Generator, state: Any, path: Path) -> None:
    """Set a generator to what ``random_of`` gave."""
    try:
        rng.bit_generator.state = state
    except (ValueError, TypeError, KeyError, OverflowError) as error:
        raise FileError(
            f"{path} does not hold the state of a {type(rng.bit_generator).__name__} ({error}); pass random_state of "
            "the same kind as before, or another folder"
        ) from error


def write_state(path: Path, state: State, random: Any, history: list[float]) -> None:
    """Write a state, whole or not at all, with the random numbers and the history that go with it."""
    arrays: _files.Arrays = {"codes": state.codes, "history": np.array(history, np.float64)}
    edges = []
    for i, dictionaries in enumerate(state.dictionaries):
        own, parts = packed_dictionaries(dictionaries)
        edges.append(own)
        arrays |= {f"link{i}.{name}": array for name, array in parts.items()}
    description = {
        "shape": list(state.dictionaries[0].shape),
        "edges": edges,
        "iteration": state.iteration,
        "done": state.done,
        "numbers": state.numbers,
        "random": random,
    }
    _files.write(path, KIND, arrays, description)


def read_state(path: Path, n: int) -> tuple[State, Any, list[float]]:
    """The state of a training of ``n`` rows, its random numbers and its history."""
    arrays, description = _files.read(path, KIND)
    try:
        C, K, P = (int(size) for size in description["shape"])
        dictionaries = tuple(
            restored_dictionaries(arrays, f"link{i}", edges, (C, K, P)) for i, edges in enumerate(description["edges"])
        )
        codes = arrays["codes"]
        if codes.dtype != code_dtype(K) or codes.shape != (n, C) or not len(dictionaries) or codes.max(initial=0) >= K:
            raise ValueError(f"codes of dtype {codes.dtype} and shape {codes.shape} for {n} rows")
        numbers = {str(name): float(value) for name, value in description["numbers"].items()}
        state = State(dictionaries, codes, int(description["iteration"]), bool(description["done"]), numbers)
        return state, description["random"], [float(value) for value in arrays["history"]]
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError) as error:
        raise FileError(f"{path} is not a state of this fit ({error}); remove its folder to begin anew") from error
