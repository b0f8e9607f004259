"""``gkmeans.datasets``: small files in the layouts of the published datasets, found, checked and downloaded."""

import functools
import gzip
import hashlib
import http.server
import re
import struct
import tarfile
import threading
import warnings
from dataclasses import FrozenInstanceError
from pathlib import Path

import h5py
import numpy as np
import pytest

import gkmeans as gk
from gkmeans import FileError, datasets
from gkmeans._download import Source

GUIDE = Path(__file__).parents[1] / "docs" / "data.md"


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """An empty cache, and no GKMEANS_DATA; nothing may be downloaded but from the test's own server."""
    monkeypatch.delenv("GKMEANS_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(datasets, "SOURCES", {})
    return tmp_path / "cache" / "gkmeans"


def vecs(path, X):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(struct.pack("<i", len(row)) + row.tobytes() for row in X))


def texmex(folder, prefix, seed=0, width=4):
    rng = np.random.default_rng(seed)
    for role, rows in (("learn", 20), ("base", 30), ("query", 5)):
        vecs(folder / f"{prefix}_{role}.fvecs", rng.random((rows, width), np.float32))
    vecs(folder / f"{prefix}_groundtruth.ivecs", rng.integers(0, 30, (5, 3), np.int32))
    return folder


def mnist(folder, pack=gzip.compress, suffix=".gz", seed=0):
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in (("train", 12), ("t10k", 4)):
        images = np.random.default_rng(seed).integers(0, 255, (rows, 28, 28), np.uint8)
        data = struct.pack(">4I", 0x803, rows, 28, 28) + images.tobytes()
        (folder / f"{name}-images-idx3-ubyte{suffix}").write_bytes(pack(data))
    return folder


def own(folder, **arrays):
    folder.mkdir(parents=True, exist_ok=True)
    for role, array in arrays.items():
        np.save(folder / f"{role}.npy", array)
    return folder


PARTS = {
    "learn": np.ones((6, 3)),
    "base": np.full((5, 3), 2.0),
    "query": np.full((2, 3), 3.0),
    "groundtruth": np.array([[0, 4], [1, 2]]),
}


# ---- what is right


@pytest.mark.parametrize(("pack", "suffix"), [(gzip.compress, ".gz"), (bytes, "")])
def test_mnist_is_raw_pixels_with_one_array_as_learn_and_base(pack, suffix, tmp_path):
    data = datasets.load_mnist(mnist(tmp_path / "somewhere", pack, suffix))
    assert data.name == "mnist"
    assert data.base is data.learn
    assert (data.learn.shape, data.learn.dtype) == ((12, 784), np.uint8)
    assert data.query.shape == (4, 784)
    assert data.groundtruth is None
    assert (data.query == np.random.default_rng(0).integers(0, 255, (4, 784), np.uint8)).all()


@pytest.mark.parametrize(("name", "prefix"), [("sift1m", "sift"), ("gist1m", "gist")])
def test_texmex_is_mapped(name, prefix, tmp_path):
    texmex(tmp_path / prefix, prefix)
    loader = getattr(datasets, f"load_{name}")
    for path in (tmp_path / prefix, tmp_path, str(tmp_path)):  # the folder, or the one that it lies in
        data = loader(path)
        assert data.name == name
        assert [len(part) for part in (data.learn, data.base, data.query)] == [20, 30, 5]
        assert all(isinstance(part, np.memmap) for part in (data.learn, data.base, data.query, data.groundtruth))
        assert data.groundtruth.shape == (5, 3)
        assert data.learn[0, 0] == np.random.default_rng(0).random((20, 4), np.float32)[0, 0]


def test_a_folder_of_any_formats_is_loaded(tmp_path):
    data = datasets.load("mine", own(tmp_path / "mine", **PARTS))
    assert data.name == "mine"
    for role, array in PARTS.items():
        assert (getattr(data, role) == array).all()
    (tmp_path / "mine" / "groundtruth.npy").unlink()
    (tmp_path / "mine" / "query.npy").unlink()
    vecs(tmp_path / "mine" / "small_query.bvecs", np.ones((2, 3), np.uint8))
    (tmp_path / "mine" / "notes.txt").write_text("base learn query")
    data = datasets.load("mine", tmp_path / "mine")
    assert data.query.dtype == np.uint8
    assert data.groundtruth is None


@pytest.mark.parametrize("truth", [True, False])
def test_an_hdf5_of_the_ann_benchmarks_is_loaded(truth, tmp_path):
    with h5py.File(tmp_path / "small.hdf5", "w") as file:
        file["train"], file["test"] = PARTS["base"], PARTS["query"]
        if truth:
            file["neighbors"], file["distances"] = PARTS["groundtruth"], np.ones((2, 2))
    data = datasets.load("small", tmp_path / "small.hdf5")
    assert data.base is data.learn
    assert (data.learn == PARTS["base"]).all()
    assert (data.query == PARTS["query"]).all()
    assert data.groundtruth.tolist() == [[0, 4], [1, 2]] if truth else data.groundtruth is None


def benchmark(path, distance, truth=True):
    with h5py.File(path, "w") as file:
        file["train"], file["test"] = PARTS["base"], PARTS["query"]
        if truth:
            file["neighbors"] = PARTS["groundtruth"]
        file.attrs["distance"] = distance
    return path


@pytest.mark.parametrize(
    ("distance", "words"),
    [("angular", "'angular'"), (b"hamming", "'hamming'"), (["jaccard"], "'jaccard'"), (7, "'7'"), ([1, 2], "1 2")],
)
def test_neighbours_by_another_distance_are_left_out_with_a_warning(distance, words, tmp_path):
    path = benchmark(tmp_path / "x.hdf5", distance)
    with pytest.warns(gk.DataWarning, match=rf"x\.hdf5.*{words}.*groundtruth is None") as caught:
        data = datasets.load("x", path)
    assert caught[0].filename == __file__
    assert data.groundtruth is None
    assert (data.base == PARTS["base"]).all()
    assert (data.query == PARTS["query"]).all()


@pytest.mark.parametrize("distance", ["euclidean", b"euclidean", ["euclidean"]])
def test_euclidean_neighbours_are_kept(distance, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        data = datasets.load("x", benchmark(tmp_path / "x.hdf5", distance))
        assert data.groundtruth.tolist() == [[0, 4], [1, 2]]
        assert datasets.load("y", benchmark(tmp_path / "y.hdf5", "angular", truth=False)).groundtruth is None


def test_the_sample_is_a_dataset_too():
    sample = datasets.load("sample")
    assert sample.name == "sample"
    assert (sample.base == datasets.load_sample().base).all()
    with pytest.raises(FrozenInstanceError):
        sample.base = None
    with pytest.raises(ValueError, match="embedded"):
        datasets.load("sample", "folder")


# ---- where files are looked for


def test_a_path_comes_before_the_environment_and_that_before_the_cache(tmp_path, cache, monkeypatch):
    texmex(cache / "sift1m", "sift", width=4)
    assert datasets.load_sift1m().learn.shape[1] == 4
    texmex(tmp_path / "env" / "sift", "sift", width=5)
    monkeypatch.setenv("GKMEANS_DATA", str(tmp_path / "env"))
    assert datasets.load_sift1m().learn.shape[1] == 5
    monkeypatch.setenv("GKMEANS_DATA", str(tmp_path / "env" / "sift"))
    assert datasets.load_sift1m().learn.shape[1] == 5
    texmex(tmp_path / "path", "sift", width=6)
    assert datasets.load_sift1m(tmp_path / "path").learn.shape[1] == 6
    monkeypatch.setenv("GKMEANS_DATA", str(tmp_path / "nothing"))
    assert datasets.load_sift1m().learn.shape[1] == 4


def test_without_a_cache_folder_named_it_is_in_the_home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    mnist(tmp_path / ".cache" / "gkmeans" / "mnist")
    for value in (None, "", "relative"):
        monkeypatch.delenv("XDG_CACHE_HOME") if value is None else monkeypatch.setenv("XDG_CACHE_HOME", value)
        assert len(datasets.load_mnist(download=False).query) == 4


@pytest.mark.parametrize("name", ["mnist", "sift1m", "gist1m"])
def test_what_is_nowhere_names_the_places_and_the_files(name, tmp_path, cache, monkeypatch):
    monkeypatch.setenv("GKMEANS_DATA", str(tmp_path / "env"))
    with pytest.raises(FileError, match="GKMEANS_DATA") as error:
        datasets.load(name, download=False)
    first = "train-images-idx3-ubyte" if name == "mnist" else f"{name[:4]}_learn.fvecs"
    assert all(part in str(error.value) for part in (first, str(tmp_path / "env"), str(cache), "download"))
    with pytest.raises(FileError, match="elsewhere"):  # a path that was given is not replaced by a download
        datasets.load(name, tmp_path / "elsewhere")


def test_a_folder_without_one_of_the_files_names_it(tmp_path):
    (texmex(tmp_path, "sift") / "sift_query.fvecs").unlink()
    with pytest.raises(FileError, match=r"without sift_query\.fvecs"):
        datasets.load_sift1m(tmp_path)


def test_an_unknown_name_needs_a_path():
    with pytest.raises(ValueError, match=r"'photos'.*sample, mnist, sift1m, gist1m"):
        datasets.load("photos")


# ---- files that do not fit together


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"query": np.ones((2, 4))}, r"query\.npy has vectors of 4 numbers.*learn\.npy of 3"),
        ({"base": np.ones((5, 2))}, r"base\.npy has vectors of 2"),
        ({"learn": np.ones(6)}, r"learn\.npy has shape \(6,\)"),
        ({"groundtruth": np.array([[0, 4]])}, r"\(1, 2\).*2 queries"),
        ({"groundtruth": np.ones((2, 2))}, "float64"),
        ({"groundtruth": np.array([[0, 4], [1, 5]])}, r"row 5 of a base with rows 0 … 4"),
        ({"groundtruth": np.array([[0, 4], [-1, 2]])}, "row -1"),
        ({"groundtruth": np.array([0, 1])}, r"\(2,\)"),
    ],
)
def test_files_that_do_not_fit_together_are_refused(changes, words, tmp_path):
    with pytest.raises(FileError, match=words):
        datasets.load("mine", own(tmp_path / "mine", **(PARTS | changes)))


def test_a_folder_with_too_few_or_too_many_files_is_refused(tmp_path):
    with pytest.raises(FileError, match="not there"):
        datasets.load("mine", tmp_path / "mine")
    own(tmp_path / "mine", learn=PARTS["learn"], base=PARTS["base"])
    with pytest.raises(FileError, match=r"no query\.\*.*base\.npy, learn\.npy"):
        datasets.load("mine", tmp_path / "mine")
    own(tmp_path / "mine", **PARTS)
    vecs(tmp_path / "mine" / "a_base.fvecs", np.ones((2, 3), np.float32))
    with pytest.raises(FileError, match=r"several files for base: a_base\.fvecs, base\.npy"):
        datasets.load("mine", tmp_path / "mine")


def test_an_hdf5_without_its_datasets_lists_what_is_there(tmp_path):
    with h5py.File(tmp_path / "x.hdf5", "w") as file:
        file["train"], file["labels"] = PARTS["learn"], np.ones(6)
    with pytest.raises(FileError, match=r"no dataset 'test'.*labels, train"):
        datasets.load("x", tmp_path / "x.hdf5")
    np.save(tmp_path / "x.npy", PARTS["learn"])
    with pytest.raises(FileError, match="HDF5"):
        datasets.load("x", tmp_path / "x.npy")


@pytest.mark.parametrize("name", ["a.fvecs", "a.npy", "a.idx", "a.parquet", "a.txt", "a"])
def test_one_file_that_is_no_hdf5_is_told_from_a_broken_one(name, tmp_path):
    path, kind = tmp_path / name, {".fvecs": r"a \.fvecs file", ".npy": r"a \.npy array", ".parquet": "Parquet"}
    path.write_bytes(b"\x93NUMPY" if name == "a.npy" else struct.pack("<if", 1, 2.0))
    what = {".idx": "idx"} | kind
    with pytest.raises(FileError, match=f"is {what.get(path.suffix, 'no vector file')},.*folder that holds") as error:
        datasets.load("mine", path)
    assert "learn.*, base.*, query.*" in str(error.value)
    assert "whole" not in str(error.value)
    with pytest.raises(FileError, match=r"pass the folder that holds sift_learn\.fvecs, sift_base\.fvecs"):
        datasets.load("sift1m", path)


@pytest.mark.parametrize("name", ["a.hdf5", "a.h5", "a"])
def test_a_broken_hdf5_is_called_so(name, tmp_path):
    (tmp_path / name).write_bytes(b"\x89HDF\r\n\x1a\n" if name == "a" else b"nothing")
    with pytest.raises(FileError, match="no whole HDF5 file"):
        datasets.load("mine", tmp_path / name)


def test_a_damaged_file_is_named(tmp_path):
    path = texmex(tmp_path, "sift") / "sift_base.fvecs"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(FileError, match=r"sift_base\.fvecs.*truncated"):
        datasets.load_sift1m(tmp_path)


# ---- downloads


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *arguments):
        pass


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder, and the address where it is served."""
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.setenv(name, "*")
    folder = tmp_path / "site"
    folder.mkdir()
    handler = functools.partial(Quiet, directory=folder)
    with http.server.HTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield folder, f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


def published(file, url, members=()):
    data = file.read_bytes()
    return Source(file.name, (url + file.name,), len(data), f"sha256:{hashlib.sha256(data).hexdigest()}", members)


def test_mnist_is_downloaded_once_into_the_cache(site, cache):
    folder, url = site
    sources = tuple(published(file, url) for file in sorted(mnist(folder).iterdir()))
    datasets.SOURCES["mnist"] = sources
    assert datasets.load_mnist().learn.shape == (12, 784)
    assert sorted(file.name for file in (cache / "mnist").iterdir()) == sorted(source.name for source in sources)
    datasets.SOURCES.clear()
    assert datasets.load_mnist().learn.shape == (12, 784)


def test_a_texmex_archive_is_downloaded_and_unpacked(site, tmp_path, cache):
    folder, url = site
    texmex(tmp_path / "sift", "sift")
    with tarfile.open(folder / "sift.tar.gz", "w:gz") as tar:
        tar.add(tmp_path / "sift", "sift")
    members = tuple((f"sift/{file.name}", file.stat().st_size) for file in (tmp_path / "sift").iterdir())
    datasets.SOURCES["sift1m"] = (published(folder / "sift.tar.gz", url, members),)
    assert datasets.load_sift1m().base.shape == (30, 4)
    assert not list(cache.rglob("*.tar.gz"))
    datasets.SOURCES.clear()
    assert datasets.load_sift1m().base.shape == (30, 4)


def test_a_download_with_a_wrong_checksum_leaves_nothing(site, cache):
    folder, url = site
    sources = tuple(published(file, url) for file in sorted(mnist(folder).iterdir()))
    file = folder / "train-images-idx3-ubyte.gz"
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    datasets.SOURCES["mnist"] = sources
    with pytest.raises(FileError, match="wrong sha256"):
        datasets.load_mnist()
    assert not (cache / "mnist" / file.name).exists()


def test_a_cache_that_is_a_file_is_named(tmp_path, monkeypatch):
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    datasets.SOURCES["mnist"] = (Source("x", ("http://127.0.0.1:1/x",), 1, "sha256:0"),)
    with pytest.raises(FileError, match=r"file/gkmeans/mnist could not be written \(Not a directory\).*XDG_CACHE_HOME"):
        datasets.load_mnist()


def test_the_table_of_sources_has_the_published_sizes(monkeypatch):
    monkeypatch.undo()
    sift, gist = dict(datasets.SOURCES["sift1m"][0].members), dict(datasets.SOURCES["gist1m"][0].members)
    assert sift == {
        "sift/sift_learn.fvecs": 51_600_000,
        "sift/sift_base.fvecs": 516_000_000,
        "sift/sift_query.fvecs": 5_160_000,
        "sift/sift_groundtruth.ivecs": 4_040_000,
    }
    assert gist["gist/gist_base.fvecs"] == 3_844_000_000
    assert gist["gist/gist_learn.fvecs"] == 1_922_000_000
    for name, known in datasets._KNOWN.items():  # what is looked for is what is downloaded
        files = {Path(member).name for source in datasets.SOURCES[name] for member, _ in source.members}
        files |= {source.name for source in datasets.SOURCES[name] if not source.members}
        assert files == {names[-1] for names in known.names.values()}
        for source in datasets.SOURCES[name]:
            kind, digest = source.checksum.split(":")
            assert len(digest) == {"sha256": 64, "md5": 32}[kind]


def test_the_example_of_the_page_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    assert blocks
    for block in blocks:
        exec(compile(block, str(GUIDE), "exec"), {})


def test_the_page_names_every_suffix():
    text = GUIDE.read_text()
    assert all(f"`{suffix}`" in text for suffix in gk.vectors.SUFFIXES)
