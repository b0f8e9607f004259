"""Vector files named as what they are not: refused with their right name, and true files with odd values still read."""

import pickle
import struct

import numpy as np
import pytest

from gkmeans import FileError, vectors

RNG = np.random.default_rng(0)
FLOATS = RNG.normal(size=(40, 6)).astype("<f4")
SCALES = RNG.uniform(-37, 0, (200, 6))  # powers of 10


def vecs(X, dtype=None):
    """The bytes of rows as a *vecs file."""
    rows = [np.asarray(row, dtype) for row in X]
    return b"".join(struct.pack("<i", len(row)) + row.tobytes() for row in rows)


def written(path, data):
    path.write_bytes(data)
    return path


def refusal(path):
    with pytest.raises(FileError) as error:
        vectors.read(path)
    assert path.name in str(error.value)
    return str(error.value)


def changed(X, value):
    out = X.copy()
    out[2, 3] = value
    return out


# ---- integers and floats


@pytest.mark.parametrize(
    "ids",
    [
        RNG.integers(0, 20_000_000, (50, 6)),
        RNG.integers(0, 200_000_000, (50, 6)),
        RNG.integers(-100, 100, (50, 6)),
        -RNG.integers(1, 100, (50, 6)),
        np.where(RNG.random((50, 6)) < 0.7, -1, RNG.integers(0, 1000, (50, 6))),  # few neighbours, then -1
        changed(np.ones((50, 6), int), 2**30),
        changed(np.zeros((50, 6), int), 5),
    ],
    ids=["20 million", "200 million", "both signs", "negative", "padded", "one large", "mostly zero"],
)
def test_integers_named_fvecs_are_refused(ids, tmp_path):
    text = refusal(written(tmp_path / "i.fvecs", vecs(ids, "<i4")))
    assert "integers and no floats, such as " in text
    assert "name it .ivecs" in text
    assert (vectors.read(written(tmp_path / "i.ivecs", vecs(ids, "<i4"))) == ids).all()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e-30, 1e-40, 1e30, -1e30, 0.0])
def test_floats_with_one_odd_value_named_ivecs_are_refused(value, tmp_path):
    X = changed(FLOATS, value)
    text = refusal(written(tmp_path / "f.ivecs", vecs(X)))
    assert "floats and no integers, such as 0.1257302 (as an integer " in text
    assert "name it .fvecs" in text
    assert np.array_equal(vectors.read(written(tmp_path / "f.fvecs", vecs(X))), X, equal_nan=True)


@pytest.mark.parametrize(
    "X",
    [
        (10.0**SCALES).astype("<f4"),  # as probabilities are
        np.full((5, 6), np.nan, "<f4"),
        np.full((5, 6), -np.nan, "<f4"),
        np.full((5, 6), -np.inf, "<f4"),
        np.full((5, 6), 1e-30, "<f4"),
        np.zeros((5, 6), "<f4"),
        changed(FLOATS, 1e-42),
    ],
    ids=["all scales", "NaN", "-NaN", "infinity", "tiny", "zeros", "one subnormal"],
)
def test_odd_floats_named_fvecs_are_read(X, tmp_path):
    assert np.array_equal(vectors.read(written(tmp_path / "f.fvecs", vecs(X))), X, equal_nan=True)


@pytest.mark.parametrize("high", [10, 10**6, 10**9, 2**31])
def test_ids_and_hashes_named_ivecs_are_read(high, tmp_path):
    low = -(2**31) if high == 2**31 else 0
    ids = RNG.integers(low, high, (100, 10)).astype("<i4")
    assert (vectors.read(written(tmp_path / "i.ivecs", vecs(ids))) == ids).all()


# ---- bytes whose vectors fill whole vectors of 4-byte values: 4 + P divides 12


@pytest.mark.parametrize("suffix", [".fvecs", ".ivecs"])
@pytest.mark.parametrize(("rows", "width"), [(9, 8), (3, 8), (3000, 8), (8, 2), (2, 2), (600, 2)])
def test_bytes_that_fill_whole_vectors_are_refused(suffix, rows, width, tmp_path):
    for X in (RNG.integers(0, 256, (rows, width), np.uint8), RNG.integers(1, 60, (rows, width), np.uint8)):
        text = refusal(written(tmp_path / f"b{suffix}", vecs(X)))
        assert f"bytes, {width} of them" in text
        assert "layout of .bvecs" in text
        assert (vectors.read(written(tmp_path / "b.bvecs", vecs(X))) == X).all()


@pytest.mark.parametrize(
    "ids",
    [
        [[8] * 8],
        [[8] * 8] * 50,
        [[0, 1, 8, 2, 3, 8, 4, 5]],
        [[0, 0, 8, 0, 0, 8, 0, 0]],
        [[-1, 900, 8, -1, 60_000, 8, -1, -1]] * 2,
        [[150_000, 0]],
        [[131_072, 0]],
        [[2, 2]],
        [[8, 7, 6, 5, 4, 3, 2, 1]],
    ],
)
def test_small_integers_that_also_have_the_layout_of_bytes_are_read(ids, tmp_path):
    assert vectors.read(written(tmp_path / "i.ivecs", vecs(ids, "<i4"))).tolist() == ids


# ---- a last vector of another dimension


@pytest.mark.parametrize(("suffix", "dtype"), [(".fvecs", "<f4"), (".bvecs", "u1"), (".ivecs", "<i4")])
@pytest.mark.parametrize("widths", [(8, 8, 5), (8, 8, 1, 2), (8, 3), (8, 8, 8, 7)])
def test_a_shorter_last_vector_is_no_truncation(suffix, dtype, widths, tmp_path):
    text = refusal(written(tmp_path / f"X{suffix}", vecs([range(1, 1 + width) for width in widths], dtype)))
    row = next(row for row, width in enumerate(widths) if width != 8)
    assert f"row {row} has {widths[row]} dimensions where row 0 has 8" in text
    assert "truncated" not in text


@pytest.mark.parametrize("end", [b"\5\0\0", b"\5\0\0\0" + bytes(19), b"\0\0\0\0", b"\xff\xff\xff\xff", b"\x08\0\0\0"])
def test_an_end_that_is_no_whole_vector_is_a_truncation(end, tmp_path):
    text = refusal(written(tmp_path / "X.fvecs", vecs(np.ones((2, 8), "<f4")) + end))
    assert f"truncated: {72 + len(end)} bytes are 2 vectors of 36 bytes and {len(end)} bytes more" in text


# ---- .npy and gzip


class Trap:
    """Unpickled, it makes a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def test_another_file_named_npy_is_said_to_be_none(tmp_path):
    for data in (vecs(FLOATS), b"", b"1,2,3\n", pickle.dumps(Trap(tmp_path / "trap"))):
        text = refusal(written(tmp_path / "X.npy", data))
        assert "it is no .npy file" in text
        assert "pickle" not in text
        assert "unsafe" not in text
    assert not (tmp_path / "trap").exists()


def test_an_array_of_objects_is_not_unpickled(tmp_path):
    np.save(tmp_path / "X.npy", np.array([[Trap(tmp_path / "trap")]], object), allow_pickle=True)
    text = refusal(tmp_path / "X.npy")
    assert "it holds Python objects (object), and nothing is unpickled" in text
    assert "allow_pickle" not in text
    with pytest.raises(FileError, match="nothing is unpickled"):
        list(vectors.batches(tmp_path / "X.npy"))
    assert not (tmp_path / "trap").exists()


def test_a_damaged_npy_header_is_told_in_plain_words(tmp_path):
    np.save(tmp_path / "X.npy", FLOATS)
    data = (tmp_path / "X.npy").read_bytes()
    long = b"\x93NUMPY\2\0" + struct.pack("<I", 20_000) + data[10:128].ljust(20_000) + data[128:]
    for broken in (data[:60], data[:6] + b"\7" + data[7:], long):  # NumPy's words on the last: fully trust the file
        text = refusal(written(tmp_path / "Y.npy", broken))
        assert "its header is damaged" in text
        assert "pickle" not in text
    assert "4 bytes of its array of shape (40, 6) are missing" in refusal(written(tmp_path / "Z.npy", data[:-4]))


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_every_version_of_npy_is_read(version, tmp_path):
    with (tmp_path / "X.npy").open("wb") as file:
        np.lib.format.write_array(file, FLOATS, version)
    assert (vectors.read(tmp_path / "X.npy") == FLOATS).all()
    assert (np.concatenate(list(vectors.batches(tmp_path / "X.npy"))) == FLOATS).all()


@pytest.mark.parametrize(("suffix", "dtype"), [(".fvecs", "<f4"), (".bvecs", "u1"), (".ivecs", "<i4")])
def test_vectors_whose_dimension_starts_as_a_gzip_are_read(suffix, dtype, tmp_path):
    X = np.ones((2, 0x8B1F), dtype)  # 35,615 dimensions
    assert (vectors.read(written(tmp_path / f"X{suffix}", vecs(X))) == X).all()
