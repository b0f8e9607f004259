"""``gkmeans.vectors``: every format read as it was written, mapped where it can be, and refused where it is damaged."""

import gzip
import struct
import sys

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from gkmeans import FileError, _formats, vectors

DTYPES = {".fvecs": "<f4", ".bvecs": "u1", ".ivecs": "<i4"}
IDX = {8: "u1", 9: "i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}


def vecs(X):
    """The bytes of X as a *vecs file."""
    return b"".join(struct.pack("<i", len(row)) + row.tobytes() for row in X)


def idx(X, code=8, shape=None):
    """The bytes of X as an idx file, with ``shape`` in its header."""
    shape = X.shape if shape is None else shape
    return struct.pack(">BBBB", 0, 0, code, len(shape)) + struct.pack(f">{len(shape)}I", *shape) + X.tobytes()


def written(path, data):
    path.write_bytes(data)
    return path


def maps(array):
    """Whether the array is a read-only view of a file."""
    base = array
    while base is not None and not isinstance(base, np.memmap):
        base = base.base
    return base is not None and not array.flags.owndata and not array.flags.writeable


@pytest.fixture
def X():
    return np.random.default_rng(0).integers(1, 200, (50, 6)).astype(np.uint8)


# ---- what is right


@pytest.mark.parametrize("suffix", DTYPES)
@given(data=st.data())
def test_vecs_come_back_as_written(suffix, data, tmp_path_factory):
    shape = hnp.array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=20)
    X = data.draw(hnp.arrays(DTYPES[suffix], shape, elements=hnp.from_dtype(np.dtype(DTYPES[suffix]))))
    X = np.concatenate([X, np.full_like(X, 7)])  # half are usual: the rest may be anything
    path = written(tmp_path_factory.mktemp("vecs") / f"X{suffix}", vecs(X))
    out = vectors.read(path)
    assert out.dtype == X.dtype
    assert out.shape == X.shape
    assert out.tobytes() == X.tobytes()


@pytest.mark.parametrize("suffix", DTYPES)
def test_vecs_are_mapped_and_not_copied(suffix, X, tmp_path):
    path = written(tmp_path / f"X{suffix}", vecs(X.astype(DTYPES[suffix])))
    out = vectors.read(path)
    assert isinstance(out, np.memmap)
    assert maps(out)
    record = 4 + 6 * out.itemsize
    assert out.strides == (record, out.itemsize)
    with path.open("r+b") as file:  # what the file holds later is what the view shows
        file.seek(3 * record + 4)
        file.write(np.array([7], out.dtype).tobytes())
    assert out[3, 0] == 7
    with pytest.raises(ValueError, match="read-only"):
        out[0, 0] = 1


@pytest.mark.parametrize("dtype", ["u1", "i8", "f2", "f4", "f8", ">f4", "?"])
def test_npy_is_mapped(dtype, X, tmp_path):
    np.save(tmp_path / "X.npy", X.astype(dtype))
    out = vectors.read(str(tmp_path / "X.npy"))
    assert maps(out)
    assert out.dtype == np.dtype(dtype)
    assert (out == X.astype(dtype)).all()


@pytest.mark.parametrize("code", IDX)
@pytest.mark.parametrize("name", ["X.idx", "X-idx2-ubyte"])
def test_plain_idx_is_mapped(code, name, X, tmp_path):
    out = vectors.read(written(tmp_path / name, idx(X.astype(IDX[code]), code)))
    assert maps(out)
    assert out.dtype == np.dtype(IDX[code])
    assert (out == X.astype(IDX[code])).all()


@pytest.mark.parametrize("packed", [False, True])
def test_images_in_idx_come_as_rows_and_labels_as_numbers(packed, tmp_path):
    images = np.arange(60, dtype=np.uint8).reshape(5, 4, 3)
    pack = gzip.compress if packed else bytes
    for name in ("i-idx3-ubyte", *(["i.gz", "i.idx"] if packed else [])):  # a gzip is known by its content too
        out = vectors.read(written(tmp_path / name, pack(idx(images))))
        assert out.shape == (5, 12)
        assert (out == images.reshape(5, 12)).all()
    labels = vectors.read(written(tmp_path / "labels-idx1-ubyte", pack(idx(images[:, 0, 0]))))
    assert labels.tolist() == [0, 12, 24, 36, 48]


@pytest.mark.parametrize("suffix", [".hdf5", ".h5"])
def test_hdf5_gives_train_or_what_is_named(suffix, X, tmp_path):
    with h5py.File(tmp_path / f"X{suffix}", "w") as file:
        file["train"] = X.astype("f4")
        file.create_dataset("test", data=X[:3], compression="gzip")
        file["neighbors"] = np.arange(6).reshape(3, 2)
    assert (vectors.read(tmp_path / f"X{suffix}") == X).all()
    assert (vectors.read(tmp_path / f"X{suffix}", dataset="test") == X[:3]).all()
    assert vectors.read(tmp_path / f"X{suffix}", dataset="neighbors").tolist() == [[0, 1], [2, 3], [4, 5]]


@pytest.mark.parametrize("dtype", ["u1", "i2", "i8", "f2", "f4", "f8"])
@pytest.mark.parametrize("before", [0, 512])
def test_hdf5_in_one_piece_is_mapped(dtype, before, X, tmp_path):
    with h5py.File(tmp_path / "X.hdf5", "w", userblock_size=before) as file:
        file["train"], file["labels"] = X.astype(dtype), X[:, 0].astype(dtype)
    for name, expected in (("train", X), ("labels", X[:, 0])):
        out = vectors.read(tmp_path / "X.hdf5", dataset=name)
        assert maps(out)
        assert out.dtype == np.dtype(dtype)
        assert out.shape == expected.shape
        assert (out == expected.astype(dtype)).all()
    assert not any(maps(batch) for batch in vectors.batches(tmp_path / "X.hdf5"))  # plain reads


def test_hdf5_that_does_not_lie_as_numpy_has_it_is_read(X, tmp_path):
    twelve = h5py.h5t.STD_I16LE.copy()
    twelve.set_precision(12)
    twelve.set_offset(4)
    small = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    small.set_layout(h5py.h5d.COMPACT)
    with h5py.File(tmp_path / "X.hdf5", "w") as file:
        file.create_dataset("packed", data=X, compression="gzip")
        file.create_dataset("shuffled", data=X, shuffle=True)
        file.create_dataset("chunks", data=X, chunks=(10, 6))
        file["other end"] = X.astype(">f4")
        file["yes or no"] = X > 100
        file.create_dataset("never written", (50, 6), "f4", fillvalue=3)
        space = h5py.h5s.create_simple(X.shape)
        h5py.Dataset(h5py.h5d.create(file.id, b"twelve bits", twelve, space))[:] = X
        h5py.Dataset(h5py.h5d.create(file.id, b"compact", h5py.h5t.STD_U8LE, space, small))[:] = X
        names = list(file)
    others = {"yes or no": X > 100, "never written": np.full(X.shape, 3)}
    assert len(names) == 8
    for name in names:
        out = vectors.read(tmp_path / "X.hdf5", dataset=name)
        assert not maps(out), name
        assert (out == others.get(name, X)).all(), name


def test_hdf5_is_not_mapped_beyond_its_file(X, tmp_path):
    with h5py.File(tmp_path / "X.hdf5", "w") as file:
        file["train"] = X
    data = (tmp_path / "X.hdf5").read_bytes()
    with h5py.File(tmp_path / "X.hdf5", "r") as file:
        found = file["train"]
        place, end = found.id.get_offset(), found.id.get_offset() + X.nbytes
        for size, expected in ((end, place), (end - 1, None), (place, None), (0, None)):
            assert _formats._hdf5_offset(written(tmp_path / "Y.hdf5", data[:size]), found) == expected
    for where in (len(data) - 299, 2**40):
        moved = data.replace(struct.pack("<QQ", place, X.nbytes), struct.pack("<QQ", where, X.nbytes))
        assert moved != data
        refused(written(tmp_path / "Z.hdf5", moved), "take a whole copy")


def parquet(path, **columns):
    pyarrow.parquet.write_table(pa.table(columns), path, row_group_size=20)
    return path


LISTS = {
    "list": pa.list_(pa.float32()),
    "large list": pa.large_list(pa.int64()),
    "fixed": pa.list_(pa.uint8(), 6),
    "half": pa.list_(pa.float16()),
}


@pytest.mark.parametrize("kind", LISTS)
def test_parquet_gives_its_column_of_lists(kind, X, tmp_path, monkeypatch):
    monkeypatch.setattr("gkmeans._formats._BATCH", 8)  # many batches
    rows = [[np.float16(v) for v in row] for row in X] if kind == "half" else X.tolist()
    path = parquet(tmp_path / "X.parquet", id=list(map(str, range(50))), v=pa.array(rows, LISTS[kind]))
    out = vectors.read(path)
    assert out.dtype == LISTS[kind].value_type.to_pandas_dtype()
    assert (out == X).all()
    assert (vectors.read(path, dataset="v") == X).all()


def test_parquet_gives_columns_of_numbers_side_by_side(X, tmp_path):
    path = parquet(tmp_path / "X.parquet", a=X[:, 0].astype("f4"), b=X[:, 1], c=X[:, 2].astype("i2"))
    assert (vectors.read(path) == X[:, :3]).all()
    assert vectors.read(path).dtype == np.float32
    assert vectors.read(path, dataset="b").tolist() == X[:, 1].tolist()


# ---- what is wrong


def refused(path, *words, **options):
    with pytest.raises(FileError) as error:
        vectors.read(path, **options)
    text = str(error.value)
    assert path.name in text
    assert "cannot be read" in text
    assert ";" in text  # the way out
    assert all(word in text for word in words), text


@pytest.mark.parametrize("suffix", [*vectors.SUFFIXES, ".txt", ""])
def test_a_missing_file_and_a_folder_are_refused(suffix, tmp_path):
    refused(tmp_path / f"X{suffix}", "No such file")
    (tmp_path / f"X{suffix}").mkdir()
    refused(tmp_path / f"X{suffix}", "Is a directory")


@pytest.mark.parametrize("suffix", [*vectors.SUFFIXES, ".txt", ""])
def test_an_empty_file_and_a_text_are_refused(suffix, tmp_path):
    refused(written(tmp_path / f"X{suffix}", b""))
    refused(written(tmp_path / f"X{suffix}", b"1 2 3\n4 5 6\n" * 20))


@pytest.mark.parametrize("suffix", DTYPES)
def test_a_truncated_vecs_says_what_is_missing(suffix, X, tmp_path):
    data = vecs(X.astype(DTYPES[suffix]))
    refused(written(tmp_path / f"X{suffix}", data[:-3]), "truncated", "49 vectors", "3 are missing")
    refused(written(tmp_path / f"Y{suffix}", data + b"\6"), "50 vectors", "1 bytes more")
    refused(written(tmp_path / f"Z{suffix}", data[:3]), "3 bytes")
    refused(written(tmp_path / f"W{suffix}", data[:7]), "0 vectors", "truncated")


@pytest.mark.parametrize("suffix", DTYPES)
@pytest.mark.parametrize("row", [1, 33, 49])
def test_mixed_dimensions_name_the_row(suffix, row, X, tmp_path, monkeypatch):
    monkeypatch.setattr("gkmeans._vecs._BLOCK", 100)  # many blocks
    record = 4 + 6 * np.dtype(DTYPES[suffix]).itemsize
    data = bytearray(vecs(X.astype(DTYPES[suffix])))
    data[row * record : row * record + 4] = struct.pack("<i", 5)
    refused(written(tmp_path / f"X{suffix}", data), f"row {row} has 5 dimensions", "row 0 has 6")


@pytest.mark.parametrize("width", [0, -1, 2**19 + 1, 2**31 - 1])
def test_an_absurd_dimension_is_refused(width, tmp_path):
    refused(written(tmp_path / "X.fvecs", struct.pack("<i", width) + bytes(64)), str(width), "dimensions")


def test_a_mislabelled_vecs_is_refused_with_its_right_name(X, tmp_path):
    refused(written(tmp_path / "f.bvecs", vecs(X.astype("<f4"))), "name it .fvecs")
    refused(written(tmp_path / "i.bvecs", vecs(X.astype("<i4"))), ".ivecs")
    refused(written(tmp_path / "b.fvecs", vecs(X)), "layout of .bvecs")
    refused(written(tmp_path / "b.ivecs", vecs(X)), "layout of .bvecs")
    refused(written(tmp_path / "i.fvecs", vecs(X.astype("<i4"))), "integers", ".ivecs")
    zeros = vectors.read(written(tmp_path / "zeros.fvecs", vecs(np.zeros((3, 4), "<f4"))))
    assert not zeros.any()


@pytest.mark.parametrize("values", ["pixels", "normal", "mostly zero", "negative zero"])
def test_floats_named_as_integers_are_refused(values, X, tmp_path, monkeypatch):
    monkeypatch.setattr("gkmeans._vecs._BLOCK", 100)  # only the start is looked at
    floats = X.astype("<f4") if values == "pixels" else np.random.default_rng(0).normal(size=(50, 6)).astype("<f4")
    if "zero" in values:
        floats[:, 1:] = 0.0 if values == "mostly zero" else -0.0
    refused(written(tmp_path / "f.ivecs", vecs(floats)), "floats", "name it .fvecs")
    assert (vectors.read(written(tmp_path / "f.fvecs", vecs(floats))) == floats).all()


@pytest.mark.parametrize(
    "row",
    [[0, 0], [1, 2**30], [2**23, 2**30], [-1, -2], [2**31 - 1, -(2**31)], [2**30, 0x7F800001], [10**8, 4 * 10**8]],
)
def test_integers_that_no_floats_have_as_bits_are_read(row, tmp_path):
    assert vectors.read(written(tmp_path / "i.ivecs", vecs(np.array([row] * 3, "<i4")))).tolist() == [row] * 3


def test_a_file_of_another_format_than_its_name_says_is_refused(X, tmp_path):
    np.save(tmp_path / "X.npy", X)
    numpy = (tmp_path / "X.npy").read_bytes()
    for name in ("X.fvecs", "X.hdf5", "X.parquet", "X.gz", "X.idx"):
        refused(written(tmp_path / name, numpy), "is a .npy array")
    refused(written(tmp_path / "Y.npy", idx(X)), "is idx")
    refused(written(tmp_path / "Z.npy", gzip.compress(numpy)), "is a gzip")
    refused(written(tmp_path / "Z.gz", gzip.compress(numpy)), "magic number of idx")


@pytest.mark.parametrize("change", ["truncated", "objects", "strings", "complex", "3-d", "0-d", "no rows", "archive"])
def test_a_bad_npy_is_refused(change, X, tmp_path):
    path = tmp_path / "X.npy"
    arrays = {
        "objects": np.array([[1, "a"]], object),
        "strings": np.full((4, 4), "a"),
        "complex": X.astype(complex),
        "3-d": np.ones((2, 3, 4)),
        "0-d": np.array(1.0),
        "no rows": np.ones((0, 4)),
    }
    if change == "archive":
        with path.open("wb") as file:
            np.savez(file, X=X)
    else:
        np.save(path, arrays.get(change, X), allow_pickle=True)
    if change == "truncated":
        path.write_bytes(path.read_bytes()[:-1])
    refused(path)


def test_a_npy_header_that_declares_more_or_less_than_the_file_is_refused(X, tmp_path):
    np.save(tmp_path / "X.npy", X)
    data = (tmp_path / "X.npy").read_bytes()
    refused(written(tmp_path / "Y.npy", data.replace(b"(50, 6)", b"(51, 6)")))
    refused(written(tmp_path / "Z.npy", data.replace(b"(50, 6)", b"(49, 6)")), "6 bytes after", "(49, 6)")


def test_a_bad_idx_is_refused(X, tmp_path):
    data = idx(X)
    refused(written(tmp_path / "a.idx", data[:-5]), "(50, 6)", "300 bytes", "5 are missing")
    refused(written(tmp_path / "b.idx", data + b"\0"), "more")
    refused(written(tmp_path / "c.idx", data[:9]), "truncated", "header")
    refused(written(tmp_path / "d.idx", b"\0\0\x07\2" + data[4:]), "magic number")
    refused(written(tmp_path / "e.idx", b"\0\0\x08\x09" + data[4:]), "magic number")
    refused(written(tmp_path / "f.idx", idx(X, shape=(2**32 - 1, 2**32 - 1))), "missing")
    refused(written(tmp_path / "g.idx", idx(X[:0])), "(0, 6)")


def test_a_gzip_that_is_none_or_damaged_is_refused(X, tmp_path):
    data = gzip.compress(idx(X))
    refused(written(tmp_path / "a.gz", idx(X)), "no gzip")
    refused(written(tmp_path / "b.gz", b"\x1f\x8b\x08 and then nothing of the sort"), "damaged")
    refused(written(tmp_path / "c.gz", data[: len(data) // 2]), "damaged or truncated")
    refused(written(tmp_path / "d.gz", data[:-8] + bytes(8)), "damaged")  # checksum and length
    refused(written(tmp_path / "e.gz", gzip.compress(idx(X)[:-5])), "5 are missing")
    refused(written(tmp_path / "f.gz", gzip.compress(idx(X) + bytes(1))), "more")
    refused(written(tmp_path / "g.gz", data[:30] + b"\xff\xff\xff\xff" + data[34:]), "cannot be read")


def test_a_gzip_is_not_unpacked_beyond_what_it_declares(X, tmp_path, monkeypatch):
    path = written(tmp_path / "bomb.gz", gzip.compress(idx(X) + bytes(50_000_000)))
    read = []
    real = gzip.GzipFile.read
    monkeypatch.setattr(gzip.GzipFile, "read", lambda self, size=-1: read.append(size) or real(self, size))
    refused(path, "more")
    assert all(0 <= size <= 2**22 for size in read)
    refused(written(tmp_path / "huge.gz", gzip.compress(idx(X, shape=(2**31, 2**31)))), "more than it can hold")


def test_hdf5_without_the_dataset_lists_what_is_there(X, tmp_path):
    with h5py.File(tmp_path / "X.hdf5", "w") as file:
        file["vectors"], file["labels"] = X, X[:, 0]
        file.create_group("train")  # a group is no dataset
    refused(tmp_path / "X.hdf5", "'train'", "labels, vectors")
    refused(tmp_path / "X.hdf5", "'test'", "labels, vectors", dataset="test")
    with h5py.File(tmp_path / "empty.hdf5", "w"):
        pass
    refused(tmp_path / "empty.hdf5", "'train'", "none is there")


def test_a_bad_hdf5_is_refused(X, tmp_path):
    path = tmp_path / "X.hdf5"
    with h5py.File(path, "w") as file:
        file["train"] = np.ones((2, 3, 4))
        file["words"] = ["a", "b"]
        file["scalar"] = 1.0
        file["complex"] = X.astype(complex)
        file["nothing"] = h5py.Empty("f4")
        file["empty"] = X[:0]
        file.create_dataset("huge", (2**40, 100), "f4", chunks=(1, 100))
        file["outside"] = h5py.ExternalLink("other.hdf5", "train")
        file.create_dataset("raw", (2, 3), "f4", external=[("/etc/passwd", 0, 24)])
        virtual = h5py.VirtualLayout((50, 6), "u1")
        virtual[:] = h5py.VirtualSource("other.hdf5", "train", (50, 6))
        file.create_virtual_dataset("virtual", virtual)
    refused(path, "(2, 3, 4)", "(n, P)")
    for name in ("words", "scalar", "complex", "nothing", "empty"):
        refused(path, "numbers", dataset=name)
    refused(path, "more than the file can hold", dataset="huge")
    for name in ("outside", "raw", "virtual"):  # what lies in other files is not read
        refused(path, f"no dataset {name!r}", dataset=name)
    refused(written(tmp_path / "cut.hdf5", path.read_bytes()[:1000]), "HDF5")


def test_a_bad_parquet_is_refused(X, tmp_path, monkeypatch):
    monkeypatch.setattr("gkmeans._formats._BATCH", 8)  # many batches
    path, rows = tmp_path / "X.parquet", X.tolist()
    refused(parquet(path, v=[*rows[:30], [1, 2], *rows[31:]]), "2 numbers in row 30", "6 in row 0")
    refused(parquet(path, v=[*rows[:30], None, *rows[31:]]), "row 30")
    refused(parquet(path, v=[*rows[:30], [1, None, 3, 4, 5, 6], *rows[31:]]), "null", "row 30")
    refused(parquet(path, v=pa.array([[], []], pa.list_(pa.float32()))), "(2, 0)")
    refused(parquet(path, v=[[], []]), "list<element: null>")
    refused(parquet(path, v=pa.array([], pa.list_(pa.float32()))), "no rows")
    refused(parquet(path, a=[1.0] * 25 + [None], b=[2] * 26), "'a'", "null in row 25")
    refused(parquet(path, a=[1.0], b=["x"]), "a (double)", "b (string)")
    refused(parquet(path, a=[[1.0]], b=[[2.0]]), "dataset=")
    refused(parquet(path, a=[[1.0]], b=["x"]), "'b'", dataset="b")
    refused(parquet(path, a=[[1.0]]), "'c'", dataset="c")
    refused(parquet(path, a=[[[1.0]]]), "list")
    data = parquet(path, v=rows).read_bytes()
    refused(written(path, data[:-20]), "Parquet")
    refused(written(path, data[: len(data) // 2]), "Parquet")


@pytest.mark.parametrize("options", [{}, {"dataset": "a"}])
def test_parquet_columns_of_one_name_are_refused(options, X, tmp_path):
    path = tmp_path / "X.parquet"
    for columns in ([X[:, 0], X[:, 1], X[:, 2]], [X[:, 0], X.tolist(), X.tolist()]):
        pyarrow.parquet.write_table(pa.Table.from_arrays(list(map(pa.array, columns)), names=["b", "a", "a"]), path)
        refused(path, "several columns named 'a'", "name of its own", **options)


def test_dataset_is_refused_where_a_file_has_no_parts(X, tmp_path):
    np.save(tmp_path / "X.npy", X)
    refused(tmp_path / "X.npy", "dataset='train'", dataset="train")


@pytest.mark.parametrize(("suffix", "package"), [(".hdf5", "h5py"), (".parquet", "pyarrow")])
def test_without_its_package_the_way_to_install_it_is_named(suffix, package, tmp_path, monkeypatch):
    for name in list(sys.modules):
        if name.split(".")[0] == package:
            monkeypatch.setitem(sys.modules, name, None)
    magic = b"\x89HDF\r\n\x1a\n" if package == "h5py" else b"PAR1"
    with pytest.raises(ImportError, match=rf"{package} reads; pip install gkmeans\[data\]"):
        vectors.read(written(tmp_path / f"X{suffix}", magic + bytes(100)))


def wholes(folder, X):
    """A right file of each format."""
    np.save(folder / "X.npy", X)
    with h5py.File(folder / "X.hdf5", "w") as file:
        file["train"] = X
    parquet(folder / "X.parquet", v=X.tolist())
    written(folder / "X.bvecs", vecs(X))
    written(folder / "X.idx", idx(X))
    written(folder / "X.gz", gzip.compress(idx(X)))


@pytest.mark.parametrize("suffix", [".npy", ".hdf5", ".parquet", ".bvecs", ".idx", ".gz"])
def test_damage_anywhere_gives_an_array_or_a_clear_error(suffix, X, tmp_path):
    wholes(tmp_path, X)
    data, rng, refusals = (tmp_path / f"X{suffix}").read_bytes(), np.random.default_rng(1), 0
    for number in range(150):
        broken = bytearray(data)
        for place in rng.integers(0, min(len(data), 400), 3):
            broken[place if number % 2 else -place - 1] = rng.choice([0, 255, rng.integers(256)])
        path = written(tmp_path / f"{number}{suffix}", broken if number % 5 else broken[: rng.integers(len(data))])
        try:
            assert vectors.read(path).ndim <= 2
        except FileError:
            refusals += 1
    assert refusals > 20
