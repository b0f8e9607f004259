"""Codes of a file of vectors, in another file: bounded memory, and a kill costs only the batch that was under way.

Three things happen at once: a thread reads the next batch, the workers encode this one, another thread writes the
codes of the one before. Codes gather in a file beside the output; how many rows of them are safe stands in a note that
is renamed into place after they are flushed. The output takes its name when it is whole.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import io
import json
import os
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from . import vectors
from ._batched import Opened
from ._files import FileError, write_bytes
from ._lock import Lock
from ._parallel import Workers, ahead, behind, regrouped, spans
from ._progress import Reporter
from ._rows import Codes, Rows, chunk_rows
from ._validation import check_n_jobs, check_rows
from .dictionaries import code_dtype
from .encoding import Encoder
from .estimators.base import AdditiveQuantizer
from .index.disk import sync
from .index.flat import FlatIndex
from .index.lookup import units
from .index.opened import open_index

BATCH_ROWS = 1 << 16
SAFE_ROWS = 1 << 20
"""Rows of codes after which they are flushed and noted."""
SEGMENT_ROWS = 1 << 22
"""Rows of a segment of an index, which is made in memory."""


def encode_file(
    est: AdditiveQuantizer,
    path: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    dataset: str | None = None,
    effort: int | None = None,
    metric: str = "l2",
    verbose: int = 0,
) -> int:
    """Compress the vectors of a file into a file of codes or an index.

    Reading, encoding and writing overlap, in memory that does not grow. After a kill the same call goes on from the
    rows whose codes were safe. Until all is done they lie beside ``out``, in ``out.part`` and ``out.note``.

    Parameters
    ----------
    est : fitted estimator
        What encodes.
    path : path
        Vectors: ``.npy``, ``.fvecs``, ``.bvecs``, HDF5, Parquet, as ``vectors.read`` takes them.
    out : path
        An array (n, C) where the name ends in ``.npy``, else the folder of an index. It must not be there yet.
    dataset, effort : optional
        As for ``vectors.read`` and ``encode``.
    metric : {"l2", "ip", "cosine"}, default="l2"
        The metric of the index.
    verbose : int, default=0
        Above 0, a bar shows the time left.

    Returns
    -------
    Rows encoded, those of an earlier call included

    Raises
    ------
    FileError
        Where the input cannot be read or changes meanwhile, ``out`` is there or cannot be written, or a part of other
        codes is beside it.

    Examples
    --------
    >>> import gkmeans as gk, numpy as np, os, tempfile
    >>> base = gk.datasets.load_sample().base[:1000]
    >>> est = gk.GroupKMeans(2, 16, relaxation=0, random_state=0).fit(base)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     source, codes = (os.path.join(folder, name) for name in ("base.npy", "codes.npy"))
    ...     np.save(source, base)
    ...     gk.encode_file(est, source, codes)
    1000
    """
    check_is_fitted(est)
    _check_free(Path(out))
    index, alone = FlatIndex(est, metric), Path(out).suffix == ".npy"
    options = {"dataset": dataset, "unit": metric == "cosine" and not alone}
    with _explained(path, out), _Job(est, vectors.opened(path, dataset), effort, Path(out), options) as job:
        job.run(verbose)
        job.finish(None if alone else index)
        return job.done


@contextlib.contextmanager
def _explained(path: str | os.PathLike[str], out: str | os.PathLike[str]) -> Iterator[None]:
    """Errors of the system as errors that say what became of the codes."""
    try:
        yield
    except OSError as error:
        raise FileError(
            f"{path} could not be read, or {out} not be written ({error}); the codes that were safe are kept, and the "
            "same call goes on from them: use files that are there, and a disk with room"
        ) from error


def _check_free(target: Path) -> None:
    if target.exists():
        raise FileError(f"{target} is there already; remove it or pass another name")


class _Job:
    """One encoding: the file, the codes beside the output, and the note of how many are safe."""

    def __init__(
        self, est: AdditiveQuantizer, file: Opened, effort: int | None, target: Path, options: dict[str, Any]
    ) -> None:
        est._check_encoding(file.n)
        self.est, self.file, self.target = est, file, target
        self.method, self.stages = est._encoding(effort)
        C, K, self.P = est.dictionaries_.shape
        self.row, self.dtype = C, np.dtype(code_dtype(K))
        self.part, self.note = (target.with_name(target.name + end) for end in (".part", ".note"))
        self.identity = {
            "model": _digest(est),
            "effort": repr((est._settings(effort), self.method)),
            "rows": file.n,
            "bytes": file.size,
            "sha256 of some": file.digest(),
            **options,
        }
        header = _header(file.n, C, self.dtype)
        self.first = len(header)
        self.lock = Lock(
            self.part, f"{self.part} is being written by another encoding; wait for it, or pass another name"
        )
        try:
            if not self.lock.holds():  # another encoding has just given it its name
                raise FileError(f"{target} was written meanwhile; remove it or pass another name")
            _check_free(target)
            self.done = self._begun(header)
            if not self.done:
                with self.part.open("wb") as codes:
                    codes.write(header)
        except BaseException:
            self.lock.release()
            raise

    def __enter__(self) -> _Job:
        return self

    def __exit__(self, *_: object) -> None:
        self.lock.release()

    def _begun(self, header: bytes) -> int:
        """Rows whose codes an earlier call left; raises where they are of something else."""
        if not self.note.exists():
            with self.part.open("rb") as part:
                if part.read(len(header)) not in (b"", header):
                    raise FileError(f"{self.part} is there already, and holds no such codes; remove it to begin anew")
            return 0
        try:
            note = json.loads(self.note.read_bytes())
            identity, done = note["identity"], int(note["done"])
        except (ValueError, KeyError, TypeError) as error:
            raise FileError(f"{self.note} is no note of an encoding ({error}); remove it to begin anew") from error
        if identity != self.identity:
            raise FileError(
                f"{self.part} holds codes of another model, file or effort; call with those again to go on, or remove "
                f"it and {self.note.name} to begin anew"
            )
        there = self.part.stat().st_size if self.part.exists() else 0
        if not 0 <= done <= self.file.n or there < self.first + done * self.row * self.dtype.itemsize:
            raise FileError(f"{self.part} is shorter than {self.note.name} says; remove both to begin anew")
        return done

    def run(self, verbose: int) -> None:
        """Encode what is left; codes are written behind, vectors read ahead."""
        with (
            Workers(check_n_jobs(self.est.n_jobs)) as workers,
            Reporter("encode", verbose) as reporter,
            self.part.open("r+b") as codes,
            behind(partial(self._write, codes)) as write,
        ):
            reporter.expect(self.file.n)
            reporter.step(self.done)
            codes.seek(self.first + self.done * self.row * self.dtype.itemsize)
            codes.truncate()
            encoder = Encoder(self.stages, self.method, workers)
            for batch in ahead(self._batches()):
                write(encoder.codes(Rows(batch, self.est._frame()), workers))
                reporter.step(len(batch))

    def _batches(self) -> Iterator[NDArray[Any]]:
        """Rows to encode, checked."""
        first = self.done
        for batch in regrouped(self.file.batches(first), min(BATCH_ROWS, chunk_rows(self.P))):
            if batch.shape[1] != self.P:
                raise FileError(
                    f"{self.file.path} holds vectors of {batch.shape[1]} numbers where the model has {self.P}; pass a "
                    "file of the vectors it was fitted for"
                )
            check_rows(batch, first, self.est.scale_)
            yield units(batch, str(self.file.path), first) if self.identity["unit"] else batch
            first += len(batch)

    def _write(self, codes: Any, rows: Codes) -> None:
        codes.write(np.ascontiguousarray(rows).tobytes())
        before, self.done = self.done, self.done + len(rows)
        if before // SAFE_ROWS != self.done // SAFE_ROWS or self.done == self.file.n:
            codes.flush()
            os.fsync(codes.fileno())
            note = {"identity": self.identity, "done": self.done}
            write_bytes(self.note, json.dumps(note).encode())

    def finish(self, index: FlatIndex | None) -> None:
        """Give the output its name."""
        if index is None:
            _check_free(self.target)
            os.replace(self.part, self.target)
        else:
            beside = self.target.with_name(f".{self.target.name}.index")
            shutil.rmtree(beside, ignore_errors=True)  # what a kill here left
            self._fill(index, beside)
            os.replace(beside, self.target)  # refused where there is something meanwhile
        sync(self.target.parent)
        self.part.unlink(missing_ok=True)
        left = self.note.parent.glob(f".{glob.escape(self.note.name)}.*")  # by a kill
        for note in (self.note, *left):
            note.unlink(missing_ok=True)

    def _fill(self, index: FlatIndex, folder: Path) -> None:
        """Save the codes as an index, a segment at a time."""
        codes = np.load(self.part, mmap_mode="r", allow_pickle=False)
        index.save(folder)
        for span in spans(len(codes), SEGMENT_ROWS):
            with open_index(folder, verify=False) as opened:
                assert isinstance(opened, FlatIndex)
                opened.add_codes(codes[slice(*span)])


def _digest(est: AdditiveQuantizer) -> str:
    """What tells models that encode alike from others."""
    digest = hashlib.sha256(np.float64(est.scale_).tobytes())
    for array in est._fitted_arrays():
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def _header(n: int, C: int, dtype: np.dtype[Any]) -> bytes:
    """The start of a .npy file of codes."""
    out = io.BytesIO()
    np.lib.format.write_array_header_1_0(out, {"descr": dtype.str, "fortran_order": False, "shape": (n, C)})
    return out.getvalue()
