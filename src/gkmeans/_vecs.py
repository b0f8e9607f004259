"""The layouts of the TEXMEX corpus, .fvecs, .bvecs and .ivecs: before each vector its dimension, int32 little-endian.

Nothing in a file says which of the three it is, so what its name says is checked against sizes, dimensions and values.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ._formats import Array, bad
from ._parallel import spans

MAX_WIDTH = 2**19  # below what any other format's first four bytes would say
_BLOCK = 2**22  # bytes looked at at once
_ELEMENTS: dict[str, np.dtype[Any]] = {".fvecs": np.dtype("<f4"), ".bvecs": np.dtype("u1"), ".ivecs": np.dtype("<i4")}
_USUAL_FLOATS = np.array([1e-12, 1e12], "<f4").view("<i4")  # their bits lie between; a quarter of all integers does too
_USUAL_INTEGERS = 2**27  # the bits of floats below 4e-34, or with a sign above 1e34 and NaN
_MASKED = 2**16  # of random bytes nearly all integers are larger
_INFINITY, _NAN = 0x7F800000, 0x7FC00000  # the bits that arithmetic gives


def read_vecs(path: Path) -> Array:
    """Vectors of a .fvecs, .bvecs or .ivecs file: a mapped view (n, P) that steps over each vector's dimension."""
    suffix, width = path.suffix.lower(), _width(path)
    if not 1 <= width <= MAX_WIDTH:
        raise bad(
            path,
            f"its first vector has {width} dimensions where a {suffix} file has 1 to {MAX_WIDTH}",
            f"check that it is a {suffix} file",
        )
    _check_dimensions(path, suffix, width)
    vectors: Array = _records(path, suffix, width)["vector"]
    if suffix != ".bvecs":
        _check_values(path, suffix, vectors)
    return vectors


def _check_dimensions(path: Path, suffix: str, width: int) -> None:
    """Raise where a vector has another dimension than the first, or the last is not whole."""
    if wrong := _wrong_row(path, suffix, width) or _wrong_last(path, suffix, width):
        row, found = wrong
        raise bad(
            path,
            f"row {row} has {found} dimensions where row 0 has {width}",
            _hint(path, suffix, width) or "every vector of a file has the same: write it anew, or a file for each",
        )
    size, record = path.stat().st_size, _record(suffix, width)
    if over := size % record:
        raise bad(
            path,
            f"it is truncated: {size} bytes are {size // record} vectors of {record} bytes and {over} bytes more, "
            f"{record - over} are missing",
            _hint(path, suffix, width) or "take a whole copy",
        )


def _check_values(path: Path, suffix: str, vectors: Array) -> None:
    """Raise where most of the first values are none of a .fvecs or .ivecs file; zeros do not count."""
    width = vectors.shape[1]
    start = np.ascontiguousarray(vectors[: max(1, _BLOCK // _record(suffix, width))])
    hint = _hint(path, suffix, width)
    if hint and (suffix == ".fvecs" or _bytes(path, start.shape)):
        raise bad(path, f"its values are bytes, {width} of them after each dimension", hint)
    bits = start.view("<i4")
    bits = bits[bits & 0x7FFFFFFF != 0]
    if suffix == ".fvecs" and (found := _integers(bits)) is not None:
        raise bad(
            path,
            f"most of its values are integers and no floats, such as {found} (as a float {found.view('<f4'):.1e})",
            "name it .ivecs, or write floats below 1e-33 as .npy",
        )
    if suffix == ".ivecs" and (found := _floats(bits)) is not None:
        raise bad(
            path,
            f"most of its values are floats and no integers, such as {found.view('<f4'):.7g} (as an integer {found})",
            "name it .fvecs, or write such large integers as .npy",
        )


def _integers(bits: Array) -> Any:
    """The first integer of a usual size where most are; infinity and NaN do not count."""
    size = bits & 0x7FFFFFFF
    bits = bits[(size != _INFINITY) & (size != _NAN)]
    return _most(bits, (bits > -_USUAL_INTEGERS) & (bits < _USUAL_INTEGERS))


def _floats(bits: Array) -> Any:
    """The bits of the first float of a usual size where most are."""
    size = bits & 0x7FFFFFFF  # without the sign
    return _most(bits, (size > _USUAL_FLOATS[0]) & (size < _USUAL_FLOATS[1]))


def _most(values: Array, chosen: Array) -> Any:
    """The first of the chosen values where they are more than half of all; else None."""
    return values[np.argmax(chosen)] if 2 * np.count_nonzero(chosen) > len(values) else None


def _bytes(path: Path, shape: tuple[int, ...]) -> bool:
    """Whether the first values, integers of this shape, are bytes: without what would be dimensions, half are large.

    Small ones are integers, of which some happen to be the dimension: all are 8, say, in 8 dimensions.
    """
    rows, width = shape
    data = np.fromfile(path, np.uint8, rows * (4 + 4 * width))
    for place in range(4):
        data[place :: 4 + width] = 0
    values = np.ascontiguousarray(data.reshape(rows, -1)[:, 4:]).view("<i4")
    values = values[values != 0]
    large = np.count_nonzero((values >= _MASKED) | (values <= -_MASKED))
    return len(values) > 0 and 2 * large >= len(values)


def _width(path: Path) -> int:
    with path.open("rb") as file:
        start = file.read(4)
    if len(start) < 4:
        raise bad(path, f"it has {len(start)} bytes, not even the dimension of a vector", "take a whole copy")
    return int.from_bytes(start, "little", signed=True)


def _record(suffix: str, width: int) -> int:
    """Bytes of a vector and its dimension."""
    return 4 + width * _ELEMENTS[suffix].itemsize


def _records(path: Path, suffix: str, width: int) -> Array:
    """Whole records of the file, mapped, with the fields ``width`` and ``vector``."""
    layout = np.dtype([("width", "<i4"), ("vector", _ELEMENTS[suffix], (width,))])
    return np.memmap(path, layout, mode="r", shape=(path.stat().st_size // layout.itemsize,))


def _wrong_row(path: Path, suffix: str, width: int) -> tuple[int, int] | None:
    """The first row whose dimension differs from ``width``, and that dimension. Reads the file in blocks."""
    record = _record(suffix, width)
    if path.stat().st_size < record:
        return None
    widths = _records(path, suffix, width)["width"]
    for start, stop in spans(len(widths), max(1, _BLOCK // record)):
        different = np.flatnonzero(widths[start:stop] != width)
        if len(different):
            row = start + int(different[0])
            return row, int(widths[row])
    return None


def _wrong_last(path: Path, suffix: str, width: int) -> tuple[int, int] | None:
    """The row after the whole ones, and its dimension, where it is another one and that vector is whole."""
    rows, over = divmod(path.stat().st_size, _record(suffix, width))
    if over < 4:
        return None
    with path.open("rb") as file:
        file.seek(-over, 2)
        found = int.from_bytes(file.read(4), "little", signed=True)
    return (rows, found) if 1 <= found != width and _record(suffix, found) <= over else None


def _hint(path: Path, suffix: str, width: int) -> str | None:
    """The way out where the file has the layout of another suffix."""
    for other in (".bvecs", ".fvecs"):
        differs = _ELEMENTS[other].itemsize != _ELEMENTS[suffix].itemsize
        if differs and path.stat().st_size % _record(other, width) == 0 and _wrong_row(path, other, width) is None:
            return "it has the layout of .bvecs: name it so" if other == ".bvecs" else "name it .fvecs or .ivecs"
    return None
