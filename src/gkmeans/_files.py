"""Arrays and what describes them in one safetensors file: written whole or not at all, checked before use."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import operator
import os
import secrets
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

Arrays = dict[str, NDArray[Any]]
VERSION = 1


class FileError(ValueError):
    """A file is damaged, foreign, or of a version that this gkmeans does not read."""


def _digest(arrays: Arrays, text: str) -> str:
    digest = hashlib.sha256(text.encode())
    for name in sorted(arrays):
        array = arrays[name]
        digest.update(f"{name}:{array.dtype.str}:{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8))  # type: ignore[arg-type]
    return digest.hexdigest()


def write_bytes(path: str | os.PathLike[str], data: bytes) -> None:
    """Write beside, flush, rename: a reader sees the old file or the new one."""
    target = Path(path)
    beside = target.with_name(f".{target.name}.{secrets.token_hex(8)}")
    handle = os.open(beside, os.O_CREAT | os.O_EXCL | os.O_WRONLY | getattr(os, "O_BINARY", 0), 0o666)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, target)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(beside)
        raise


def write(path: str | os.PathLike[str], kind: str, arrays: Arrays, description: dict[str, Any]) -> None:
    """Write arrays and what describes them as one file of this kind, whole or not at all."""
    text = json.dumps(description, sort_keys=True)
    metadata = {"format": kind, "version": str(VERSION), "description": text, "sha256": _digest(arrays, text)}
    write_bytes(path, save({name: np.ascontiguousarray(array) for name, array in arrays.items()}, metadata))


def _metadata(
    path: str | os.PathLike[str], kind: str, start: bytes, size: int
) -> tuple[dict[str, Any], dict[str, str]]:
    """Header and metadata of a file of ``size`` bytes, from its ``start``, which holds the header."""
    try:
        length = int.from_bytes(start[:8], "little")
        header = json.loads(start[8 : 8 + length]) if 0 < length <= size - 8 else None
        metadata = header.get("__metadata__") if isinstance(header, dict) else None
    except (ValueError, RecursionError) as error:
        raise FileError(f"{path} is not a {kind} file: its header cannot be read ({error}); save it anew") from error
    if not isinstance(header, dict) or not isinstance(metadata, dict) or metadata.get("format") != kind:
        raise FileError(f"{path} is not a {kind} file, or it is truncated; pass a file that gkmeans saved")
    if metadata.get("version") != str(VERSION):
        raise FileError(
            f"{path} has format version {metadata.get('version')}; this gkmeans reads version {VERSION}: update gkmeans"
        )
    return header, metadata


def _checked(
    path: str | os.PathLike[str], arrays: Arrays, metadata: dict[str, str], verify: bool = True
) -> tuple[Arrays, dict[str, Any]]:
    """Arrays and description, the checksum verified."""
    text = str(metadata.get("description"))
    if verify and _digest(arrays, text) != metadata.get("sha256"):
        raise FileError(
            f"{path} was changed after it was saved: its sha256 does not match; save it anew or take a copy"
        )
    try:
        description = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FileError(f"{path} has a description that cannot be read ({error}); save it anew") from error
    if not isinstance(description, dict):
        raise FileError(f"{path} has a description that is not an object; save it anew")
    return arrays, description


def read(path: str | os.PathLike[str], kind: str) -> tuple[Arrays, dict[str, Any]]:
    """Arrays and description of a file of this kind, its checksum verified."""
    data = Path(path).read_bytes()
    _, metadata = _metadata(path, kind, data, len(data))
    try:
        arrays: Arrays = load(data)
    except (SafetensorError, KeyError, ValueError) as error:
        raise FileError(f"{path} is damaged ({error}); save it anew or take a copy") from error
    return _checked(path, arrays, metadata)


def mapped(path: str | os.PathLike[str], kind: str, verify: bool) -> tuple[Arrays, dict[str, Any]]:
    """As ``read``, with arrays that are memory-mapped; ``verify`` False reads the header alone."""
    size = os.path.getsize(path)
    if size < 8:
        raise FileError(f"{path} is truncated; save it anew or take a copy")
    data = np.asarray(np.memmap(path, np.uint8, "r"))
    length = int.from_bytes(data[:8].tobytes(), "little")
    header, metadata = _metadata(path, kind, data[: min(8 + length, size)].tobytes(), size)
    try:
        arrays = {name: _view(data[8 + length :], entry) for name, entry in header.items() if name != "__metadata__"}
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise FileError(f"{path} is damaged ({error}); save it anew or take a copy") from error
    return _checked(path, arrays, metadata, verify)


def _view(data: NDArray[np.uint8], entry: dict[str, Any]) -> NDArray[Any]:
    """The array that an entry of a header describes."""
    dtype = np.dtype({"U8": np.uint8, "I64": np.int64, "F32": np.float32}[entry["dtype"]])
    begin, end = (operator.index(edge) for edge in entry["data_offsets"])
    shape = [operator.index(size) for size in entry["shape"]]
    address = data.__array_interface__["data"][0] + begin
    whole = 0 <= begin <= end <= len(data) and min(shape, default=0) >= 0
    if not whole or math.prod(shape) * dtype.itemsize != end - begin or address % dtype.itemsize:
        raise ValueError(f"an array of shape {shape} at bytes {begin} to {end} of {len(data)}")
    return data[begin:end].view(dtype).reshape(shape)
