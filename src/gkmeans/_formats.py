"""The layouts of vector files: each is checked before use, and memory-mapped where the layout can be.

Every reader takes a path and gives an array of one or two dimensions, or raises ``FileError``.
"""

from __future__ import annotations

import gzip
import importlib
import math
import tokenize
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ._files import FileError

Array = NDArray[Any]
Result = TypeVar("Result")

MAX_RATIO = 1032  # deflate makes nothing smaller than 1 : 1032
_BLOCK = 2**22  # bytes looked at at once
_BATCH = 2**13  # rows of Parquet
_IDX_TYPES = {8: "u1", 9: "i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}
_IDX_DIMENSIONS = 8
_KINDS = "a .npy array", "an .npz archive", "a gzip", "HDF5", "Parquet"
_MAGICS = b"\x93NUMPY", b"PK\x03\x04", b"\x1f\x8b\x08", b"\x89HDF\r\n\x1a\n", b"PAR1"


def bad(path: Path, why: str, way: str) -> FileError:
    """The error for a file that cannot be used."""
    return FileError(f"{path} cannot be read: {why}; {way}")


def content(path: Path) -> str | None:
    """What the first bytes of the file say that it is; None where they say nothing."""
    with path.open("rb") as file:
        start = file.read(8)
    if len(start) >= 4 and start[:2] == b"\0\0" and start[2] in _IDX_TYPES and 1 <= start[3] <= _IDX_DIMENSIONS:
        return "idx"
    return next((kind for kind, magic in zip(_KINDS, _MAGICS, strict=True) if start.startswith(magic)), None)


def _npy_header(path: Path) -> tuple[tuple[int, ...], bool, np.dtype[Any], int] | None:
    """Shape, whether by columns, dtype and first byte of the numbers of a .npy file; None where it is damaged."""
    formats = np.lib.format
    readers = {(1, 0): formats.read_array_header_1_0, (2, 0): formats.read_array_header_2_0}
    readers[3, 0] = readers[2, 0]  # they differ in the names of fields, which vectors have not
    try:
        with path.open("rb") as file:
            shape, by_columns, dtype = readers[formats.read_magic(file)](file)
            return shape, by_columns, dtype, file.tell()
    except (KeyError, ValueError, EOFError, TypeError, OverflowError, SyntaxError, tokenize.TokenError):
        return None


def npy_layout(path: Path) -> tuple[tuple[int, ...], bool, np.dtype[Any], int] | None:
    """Shape, whether by columns, dtype and first byte of the numbers of a whole .npy file; None where it is not one.

    Without mapping it: a limit on what a process may map does not keep it from reading a large file.
    """
    header = _npy_header(path)
    if header is None:
        return None
    shape, _, dtype, first = header
    if dtype.hasobject or path.stat().st_size != first + math.prod(shape) * dtype.itemsize:
        return None
    return header


def read_npy(path: Path) -> Array:
    """The array of a .npy file, mapped."""
    way = "write it anew with np.save"
    if content(path) != "a .npy array":
        raise bad(path, "it is no .npy file: its first bytes are not those of one", f"name it by what it is, or {way}")
    header = _npy_header(path)
    if header is None:
        raise bad(path, "its header is damaged", way)
    shape, _, dtype, first = header
    if dtype.hasobject:
        raise bad(path, f"it holds Python objects ({dtype}), and nothing is unpickled", f"{way}, as numbers")
    declared, found = math.prod(shape) * dtype.itemsize, path.stat().st_size - first
    if found > declared:
        raise bad(path, f"it has {found - declared} bytes after its array of shape {shape}", way)
    if found < declared:
        raise bad(path, f"it is truncated: {declared - found} bytes of its array of shape {shape} are missing", way)
    try:
        return np.asanyarray(np.load(path, mmap_mode="r", allow_pickle=False))
    except (OSError, ValueError, EOFError, TypeError, OverflowError, SyntaxError, tokenize.TokenError) as error:
        raise bad(path, f"its array of shape {shape} cannot be mapped ({error})", way) from error


def read_idx(path: Path) -> Array:
    """An idx array, images as rows (n, rows × columns): mapped, or read where it is packed by gzip."""
    packed = content(path) == "a gzip"
    if path.suffix.lower() == ".gz" and not packed:
        raise bad(path, "it is named .gz and is no gzip", "take a whole copy, or drop .gz from its name")
    if not packed:
        with path.open("rb") as file:
            dtype, shape = _idx_header(path, file)
        start = 4 + 4 * len(shape)
        _check_idx_size(path, shape, path.stat().st_size - start, math.prod(shape) * dtype.itemsize)
        return _rows(np.memmap(path, dtype, mode="r", offset=start, shape=shape))
    try:
        with gzip.open(path) as stream:
            dtype, shape = _idx_header(path, stream)
            declared = math.prod(shape) * dtype.itemsize
            if declared > MAX_RATIO * path.stat().st_size:
                raise bad(
                    path, f"it declares {shape}, {declared} bytes, more than it can hold packed", "take a whole copy"
                )
            out = np.empty(declared, np.uint8)
            got = 0
            while got < declared and (count := stream.readinto(memoryview(out)[got : got + _BLOCK])):  # type: ignore[arg-type]
                got += count
            _check_idx_size(path, shape, got + len(stream.read(1)), declared)
    except (EOFError, OSError, zlib.error) as error:
        raise bad(path, f"its gzip is damaged or truncated ({error})", "take a whole copy") from error
    return _rows(out.view(dtype).reshape(shape))


def _idx_header(path: Path, file: Any) -> tuple[np.dtype[Any], tuple[int, ...]]:
    start = file.read(4)
    if len(start) < 4 or start[:2] != b"\0\0" or start[2] not in _IDX_TYPES or not 1 <= start[3] <= _IDX_DIMENSIONS:
        raise bad(
            path,
            f"it starts with 0x{start.hex()}, which is no magic number of idx (0x0000, a type, a number of dimensions)",
            "pass an idx file; unpack other formats first",
        )
    sizes = file.read(4 * start[3])
    if len(sizes) < 4 * start[3]:
        raise bad(path, f"it is truncated within the {start[3]} sizes of its header", "take a whole copy")
    return np.dtype(_IDX_TYPES[start[2]]), tuple(int(size) for size in np.frombuffer(sizes, ">u4"))


def _check_idx_size(path: Path, shape: tuple[int, ...], found: int, declared: int) -> None:
    if declared == 0:
        raise bad(path, f"it declares shape {shape}, no values", "pass a file with vectors")
    if found != declared:
        how = f"{declared - found} are missing" if found < declared else "there are more"
        raise bad(path, f"it declares shape {shape}, {declared} bytes, and {how}", "take a whole copy")


def _rows(array: Array) -> Array:
    return array.reshape(len(array), -1) if array.ndim > 1 else array


def _optional(name: str, path: Path, kind: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = name.split(".")[0]
        raise ImportError(f"{path} is {kind}, which {package} reads; pip install gkmeans[data]") from error


def hdf5_names(path: Path) -> list[str]:
    """Names of the datasets at the top of an HDF5 file."""
    h5py = _optional("h5py", path, "HDF5")
    try:
        with h5py.File(path, "r") as file:
            return [name for name in file if _hdf5_dataset(h5py, file, name) is not None]
    except (OSError, RuntimeError, KeyError, ValueError) as error:
        raise bad(path, f"it is no whole HDF5 file ({error})", "take a whole copy") from error


def hdf5_attribute(path: Path, name: str) -> str | None:
    """An attribute at the top of an HDF5 file, as text; None where it is not there."""
    h5py = _optional("h5py", path, "HDF5")
    try:
        with h5py.File(path, "r") as file:
            found = file.attrs.get(name)
    except (OSError, RuntimeError, KeyError, ValueError, TypeError) as error:
        raise bad(path, f"its attribute {name!r} is damaged ({error})", "take a whole copy") from error
    if found is None:
        return None
    value = np.asarray(found).item() if np.size(found) == 1 else found
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _hdf5_dataset(h5py: Any, file: Any, name: str) -> Any:
    """The dataset where it lies in this very file, else None: links to other files are not followed."""
    if not isinstance(file.get(name, getlink=True), h5py.HardLink):
        return None
    found = file[name]
    return found if isinstance(found, h5py.Dataset) and not found.external and not found.is_virtual else None


def hdf5_shape(path: Path, dataset: str | None) -> tuple[int, ...]:
    """Shape of one dataset, ``train`` by default."""
    return _with_hdf5(path, dataset, lambda found: tuple(int(size) for size in found.shape))


def read_hdf5(path: Path, dataset: str | None, rows: slice | None = None) -> Array:
    """Rows of one dataset of an HDF5 file, ``train`` by default; all of them are mapped where they lie in one piece."""

    def use(found: Any) -> Array:
        where = _hdf5_offset(path, found) if rows is None else None
        if where is None:
            return np.asarray(found[rows or slice(None)])
        return np.memmap(path, found.dtype, mode="r", offset=where, shape=found.shape)

    return _with_hdf5(path, dataset, use)


def _hdf5_offset(path: Path, found: Any) -> int | None:
    """The byte of the file where the numbers of the dataset start, as NumPy has them; None where they do not."""
    h5py = _optional("h5py", path, "HDF5")
    made, where = found.id.get_create_plist(), found.id.get_offset()
    plain = made.get_layout() == h5py.h5d.CONTIGUOUS and not made.get_nfilters() and not made.get_external_count()
    if where is None or not plain or not found.nbytes or found.dtype.kind not in "fiu" or not found.dtype.isnative:
        return None
    if not found.id.get_type().equal(h5py.h5t.py_create(found.dtype)):  # such as integers of 12 bits in 16
        return None
    return int(where) if where % found.dtype.itemsize == 0 and where + found.nbytes <= path.stat().st_size else None


def _with_hdf5(path: Path, dataset: str | None, use: Callable[[Any], Result]) -> Result:
    """What ``use`` gives of the dataset, once it is checked."""
    name, names = dataset or "train", hdf5_names(path)
    if name not in names:
        raise bad(path, f"it has no dataset {name!r}", f"dataset= takes one of: {', '.join(names) or 'none is there'}")
    h5py = _optional("h5py", path, "HDF5")
    try:
        with h5py.File(path, "r") as file:
            found = file[name]
            if found.shape is None or found.ndim not in (1, 2) or found.dtype.kind not in "fiub":
                raise bad(
                    path,
                    f"its dataset {name!r} holds {found.dtype} of shape {found.shape}",
                    "vectors must be numbers of shape (n, P)",
                )
            if found.nbytes > MAX_RATIO * path.stat().st_size:
                raise bad(
                    path,
                    f"its dataset {name!r} declares shape {found.shape}, more than the file can hold",
                    "take a whole copy",
                )
            return use(found)
    except (OSError, RuntimeError, KeyError) as error:
        raise bad(path, f"its dataset {name!r} is damaged ({error})", "take a whole copy") from error


def read_parquet(path: Path, column: str | None) -> Array:
    """A column of equally long lists as rows, or all columns of numbers side by side."""
    parts = list(parquet_batches(path, column))
    if not parts:
        raise bad(path, "it has no rows", "pass a file with vectors")
    return np.concatenate(parts)


def parquet_rows(path: Path) -> int:
    """Rows of a Parquet file."""
    with _parquet_file(path) as file:
        return int(file.metadata.num_rows)


def parquet_batches(path: Path, column: str | None) -> Iterator[Array]:
    """The rows of ``read_parquet``, batch by batch."""
    types = _optional("pyarrow.types", path, "Parquet")
    with _parquet_file(path) as file:
        kinds = {field.name: field.type for field in file.schema_arrow}
        if len(kinds) < len(file.schema_arrow):
            doubled = next(name for name in kinds if file.schema_arrow.names.count(name) > 1)
            raise bad(path, f"it has several columns named {doubled!r}", "give each column a name of its own")
        names = _parquet_columns(path, kinds, column, types)
        nested = types.is_nested(kinds[names[0]])
        for part in _lists(path, names[0], file) if nested else _columns(path, names, file):
            yield part[:, 0] if column is not None and not nested else part


@contextmanager
def _parquet_file(path: Path) -> Iterator[Any]:
    parquet = _optional("pyarrow.parquet", path, "Parquet")
    try:
        with parquet.ParquetFile(path) as file:
            yield file
    except (OSError, ValueError, NotImplementedError) as error:  # pyarrow's own errors are ValueErrors too
        if isinstance(error, FileError):
            raise
        raise bad(path, f"it is no whole Parquet file ({error})", "take a whole copy") from error


def _parquet_columns(path: Path, kinds: dict[str, Any], column: str | None, types: Any) -> list[str]:
    """The names to read: one column of lists, or columns of numbers."""

    def number(kind: Any) -> bool:
        return bool(types.is_integer(kind) or types.is_floating(kind))

    def numbers(kind: Any) -> bool:
        listed = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
        return bool(listed and number(kind.value_type))

    there = ", ".join(f"{name} ({kind})" for name, kind in kinds.items())
    if column is not None:
        if column not in kinds or not (number(kinds[column]) or numbers(kinds[column])):
            raise bad(path, f"it has no column {column!r} of numbers or of lists of them", f"it has: {there}")
        return [column]
    lists = [name for name, kind in kinds.items() if numbers(kind)]
    if len(lists) == 1:
        return lists
    if lists or not kinds or not all(number(kind) for kind in kinds.values()):
        raise bad(
            path,
            f"it has neither one column of lists of numbers nor numbers in all columns: {there}",
            "name the column of vectors with dataset=",
        )
    return list(kinds)


def _lists(path: Path, name: str, file: Any) -> Iterator[Array]:
    first, width = 0, -1
    for batch in file.iter_batches(_BATCH, columns=[name]):
        lists = batch.column(0)
        if lists.null_count:
            row = first + int(np.argmax(lists.is_null().to_numpy(zero_copy_only=False)))
            raise bad(path, f"column {name!r} has no vector in row {row}", "drop such rows or fill them")
        lengths = lists.value_lengths().to_numpy(zero_copy_only=False)
        width = int(lengths[0]) if width < 0 and len(lengths) else width
        wrong = np.flatnonzero(lengths != width)
        if len(wrong):
            row = int(wrong[0])
            raise bad(
                path,
                f"column {name!r} has {int(lengths[row])} numbers in row {first + row} and {width} in row 0",
                "every vector must have the same",
            )
        values = lists.flatten()
        if values.null_count:
            row = first + int(np.argmax(values.is_null().to_numpy(zero_copy_only=False))) // width
            raise bad(path, f"column {name!r} has a null within row {row}", "drop such rows or fill them")
        yield values.to_numpy(zero_copy_only=False).reshape(len(lengths), width)
        first += len(lengths)


def _columns(path: Path, names: list[str], file: Any) -> Iterator[Array]:
    first = 0
    for batch in file.iter_batches(_BATCH, columns=names):
        for name in names:
            if batch.column(name).null_count:
                row = first + int(np.argmax(batch.column(name).is_null().to_numpy(zero_copy_only=False)))
                raise bad(path, f"column {name!r} has a null in row {row}", "drop such rows or fill them")
        yield np.column_stack([batch.column(name).to_numpy(zero_copy_only=False) for name in names])
        first += batch.num_rows
