"""Models on disk: what was saved comes back to the bit, and nothing else is ever taken for a model."""

import json
import os
import pickle
import stat

import numpy as np
import pandas as pd
import pytest
import safetensors.numpy

import gkmeans as gk
from gkmeans import _files
from gkmeans.estimators.coding import KIND

INITS = ("random", "kmeans", "hierarchical")


def small(C=3, K=4, **options):
    return gk.GroupKMeans(C, K, **({"max_iter": 3, "init_iter": 2, "random_state": 0, "n_jobs": 1} | options))


@pytest.fixture(scope="module")
def X():
    rng = np.random.default_rng(3)
    return (rng.standard_normal((80, 5)) @ rng.standard_normal((5, 5)) + 1).astype(np.float32)


@pytest.fixture(scope="module")
def est(X):
    return small().fit(X)


@pytest.fixture
def path(est, tmp_path):
    est.save(tmp_path / "model.safetensors")
    return tmp_path / "model.safetensors"


def same_params(one, other):
    assert one.keys() == other.keys()
    for key, value in one.items():
        if isinstance(value, np.ndarray):
            assert other[key].dtype == value.dtype
            assert (other[key] == value).all()
        else:
            assert type(other[key]) is type(value)
            assert other[key] == value


# ---- round trips


@pytest.mark.parametrize("init", [*INITS, "array"])
@pytest.mark.parametrize("order", [1, 3])
def test_a_model_comes_back_to_the_bit(init, order, X, rng, tmp_path):
    start = rng.standard_normal((3, 4, 5)) if init == "array" else init
    est = small(init=start, order=order, tol=0.001, n_jobs=2, verbose=False).fit(X)
    est.save(tmp_path / "m")
    again = gk.load(tmp_path / "m")
    assert type(again) is gk.GroupKMeans
    for name in ("dictionaries_", "shift_", "history_"):
        assert getattr(again, name).tobytes() == getattr(est, name).tobytes()
        assert getattr(again, name).dtype == getattr(est, name).dtype
    assert (again.scale_, again.n_iter_, again.n_features_in_) == (est.scale_, est.n_iter_, est.n_features_in_)
    assert len(again.stages_) == len(est.stages_) == (2 if init == "hierarchical" else 0)
    for one, other in zip(est.stages_, again.stages_, strict=True):
        assert one.blocks == other.blocks
        assert one.R.tobytes() == other.R.tobytes()
        assert [D.tobytes() for D in one.D] == [D.tobytes() for D in other.D]
    same_params(est.get_params(), again.get_params())
    new = X[::-1] + np.float32(0.3)
    codes = est.encode(new)
    assert again.encode(new).tobytes() == codes.tobytes()
    assert again.decode(codes).tobytes() == est.decode(codes).tobytes()
    assert again.relative_distortion(new) == est.relative_distortion(new)
    assert (again.encode(new, codes=est.codes_) == est.encode(new, codes=est.codes_)).all()


@pytest.mark.parametrize(
    "start",
    [
        pytest.param(lambda D: D.astype(np.float16), id="float16"),
        pytest.param(lambda D: np.asfortranarray(D), id="Fortran"),
        pytest.param(lambda D: D.astype(np.int16), id="int16"),
        pytest.param(lambda D: D.astype(">f8"), id="big endian"),
        pytest.param(lambda D: D.tolist(), id="list"),
        pytest.param(lambda D: tuple(D), id="tuple of arrays"),
    ],
)
def test_any_init_array_comes_back_and_fits_again(start, X, rng, tmp_path):
    D = rng.integers(-5, 6, (3, 4, 5)).astype(np.float64)
    est = small(init=start(D)).fit(X)
    est.save(tmp_path / "m")
    again = gk.load(tmp_path / "m")
    assert (np.asarray(again.init) == D).all()
    assert (again.fit(X).codes_ == est.codes_).all()


def test_an_init_estimator_comes_back_as_its_dictionaries(est, X, tmp_path):
    second = small(init=est).fit(X)
    second.save(tmp_path / "m")
    again = gk.load(tmp_path / "m")
    assert (again.init == est.dictionaries_).all()
    assert (again.fit(X).codes_ == small(init=est.dictionaries_).fit(X).codes_).all()


def test_parameters_of_numpy_come_back_as_numbers(X, tmp_path):
    options = {"order": np.int64(2), "tol": np.float32(0.5), "random_state": np.uint32(3)}
    small(np.int32(3), np.int64(4), **options).fit(X).save(tmp_path / "m")
    params = gk.load(tmp_path / "m").get_params()
    assert (params["n_dictionaries"], params["n_codewords"]) == (3, 4)
    assert {name: params[name] for name in options} == {"order": 2, "tol": 0.5, "random_state": 3}


def test_a_generator_is_not_saved(X, tmp_path):
    small(random_state=np.random.default_rng(0)).fit(X).save(tmp_path / "m")
    assert gk.load(tmp_path / "m").random_state is None


def test_feature_names_come_back(X, tmp_path):
    frame = pd.DataFrame(X, columns=["a", "b", "ü", 'quoted "d"', "e"])
    est = small().fit(frame)
    est.save(tmp_path / "m")
    again = gk.load(tmp_path / "m")
    assert again.feature_names_in_.tolist() == est.feature_names_in_.tolist()
    assert (again.encode(frame) == est.encode(frame)).all()


@pytest.mark.filterwarnings("ignore::gkmeans.DataWarning")
@pytest.mark.parametrize("factor", [2.0**-100, 2.0**56])
def test_a_scaled_model_comes_back_to_the_bit(factor, X, tmp_path):
    rows = X * np.float32(factor)
    est = small().fit(rows)
    assert est.scale_ != 1
    est.save(tmp_path / "m")
    again = gk.load(tmp_path / "m")
    assert again.scale_ == est.scale_
    assert (again.encode(rows) == est.encode(rows)).all()


def test_two_bytes_of_code_come_back(rng, tmp_path):
    X = rng.standard_normal((300, 2))
    est = small(1, 257, order=1, init="random").fit(X)
    est.save(tmp_path / "m")
    assert gk.load(tmp_path / "m").encode(X).dtype == np.uint16


def test_a_loaded_model_is_saved_with_the_same_content(path, tmp_path):
    gk.load(path).save(tmp_path / "second")
    arrays, description = _files.read(path, KIND)
    again, description_again = _files.read(tmp_path / "second", KIND)
    assert description_again == description
    assert {name: array.tobytes() for name, array in again.items()} == {
        name: array.tobytes() for name, array in arrays.items()
    }


def test_a_model_saved_after_other_parameters_were_set_can_be_loaded(X, tmp_path):
    est = small().fit(X).set_params(n_dictionaries=9, n_codewords=7)
    est.save(tmp_path / "m")
    assert (gk.load(tmp_path / "m").encode(X) == est.encode(X)).all()


def test_paths_may_be_strings(est, X, tmp_path):
    est.save(str(tmp_path / "m"))
    assert (gk.load(str(tmp_path / "m")).encode(X) == est.encode(X)).all()


def test_the_file_is_plain_safetensors_with_a_version(path, est):
    arrays = safetensors.numpy.load_file(path)
    assert (arrays["dictionaries"] == est.dictionaries_).all()
    with safetensors.safe_open(path, "numpy") as file:
        metadata = file.metadata()
    assert metadata["format"] == KIND
    assert metadata["version"] == "1"
    assert json.loads(metadata["description"])["estimator"] == "GroupKMeans"


def test_the_file_can_be_read_by_whom_the_umask_lets(path):
    umask = os.umask(0)
    os.umask(umask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~umask


# ---- damaged and foreign files


def test_a_missing_file_is_missing(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        gk.load(tmp_path / "nowhere")


def test_a_truncated_file_is_refused(path):
    data = path.read_bytes()
    header = 8 + int.from_bytes(data[:8], "little")
    lengths = {0, 1, 7, 8, 9, 100, header - 1, header, header + 1, len(data) // 2, len(data) - 4, len(data) - 1}
    for length in sorted(lengths):
        path.write_bytes(data[:length])
        with pytest.raises(gk.FileError, match=r"model\.safetensors"):
            gk.load(path)


def test_a_longer_file_is_refused(path):
    path.write_bytes(path.read_bytes() + b"\0" * 4)
    with pytest.raises(gk.FileError, match="damaged"):
        gk.load(path)


def test_a_flipped_bit_anywhere_is_refused(path, rng):
    data = path.read_bytes()
    header = 8 + int.from_bytes(data[:8], "little")
    places = {*range(header), *rng.integers(header, len(data), 400).tolist(), len(data) - 1}
    for place in sorted(places):
        changed = bytearray(data)
        changed[place] ^= 1 << int(rng.integers(8))
        path.write_bytes(changed)
        with pytest.raises(gk.FileError):
            pytest.fail(f"byte {place} was changed, and {gk.load(path)} came back")


def test_the_checksum_error_names_the_file_and_the_way_out(path):
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(gk.FileError, match=r"model\.safetensors was changed .*sha256.*save it anew"):
        gk.load(path)


FOREIGN = {
    "empty": b"",
    "text": b"dictionaries: 8\n" * 20,
    "zeros": bytes(1000),
    "ones": b"\xff" * 1000,
    "json": b'{"__metadata__": {"format": "gkmeans-model"}}',
    "pickle": pickle.dumps({"dictionaries_": np.ones((2, 2, 2))}),
    "a list for a header": (4).to_bytes(8, "little") + b"[1] ",
    "metadata that is a list": (20).to_bytes(8, "little") + b'{"__metadata__":[1]} ',
    "a header that nests": (100_000).to_bytes(8, "little") + b"[" * 100_000,
    "safetensors": safetensors.numpy.save({"weight": np.ones((3, 4), np.float32)}),
    "safetensors with metadata": safetensors.numpy.save({"weight": np.ones(3)}, {"format": "pt"}),
    "safetensors with our names": safetensors.numpy.save({"dictionaries": np.ones((2, 4, 3), np.float32)}),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_a_foreign_file_is_refused(name, tmp_path):
    (tmp_path / "m").write_bytes(FOREIGN[name])
    with pytest.raises(gk.FileError, match=r"not a gkmeans-model file"):
        gk.load(tmp_path / "m")


def test_another_kind_of_gkmeans_file_is_refused(tmp_path):
    _files.write(tmp_path / "m", "gkmeans-index", {"a": np.ones(3)}, {})
    with pytest.raises(gk.FileError, match=r"not a gkmeans-model file"):
        gk.load(tmp_path / "m")


def test_a_later_version_is_refused_by_its_number(est, tmp_path, monkeypatch):
    monkeypatch.setattr(_files, "VERSION", 2)
    est.save(tmp_path / "m")
    monkeypatch.undo()
    with pytest.raises(gk.FileError, match=r"version 2.*version 1.*update gkmeans"):
        gk.load(tmp_path / "m")


def test_no_pickle_is_run(tmp_path):
    class Payload:
        def __reduce__(self):
            return open, (str(tmp_path / "ran"), "w")

    (tmp_path / "m").write_bytes(pickle.dumps(Payload()))
    with pytest.raises(gk.FileError):
        gk.load(tmp_path / "m")
    assert not (tmp_path / "ran").exists()


def test_saving_and_loading_use_no_pickle(est, X, tmp_path, monkeypatch):
    for name in ("dump", "dumps", "load", "loads", "Pickler", "Unpickler"):
        monkeypatch.setattr(pickle, name, failing(AssertionError("pickle was used")))
    est.save(tmp_path / "m")
    assert (gk.load(tmp_path / "m").encode(X) == est.encode(X)).all()


# ---- files whose checksum is right and whose parts do not fit


def replaced(**changes):
    return lambda arrays, description: arrays.update(changes)


def changed(name, change):
    def apply(arrays, description):
        arrays[name] = change(arrays[name])

    return apply


def without(name):
    return lambda arrays, description: arrays.pop(name)


def described(**changes):
    return lambda arrays, description: description.update(changes)


def undescribed(name):
    return lambda arrays, description: description.pop(name)


def with_param(**changes):
    return lambda arrays, description: description["params"].update(changes)


def with_edges(stage, axis, edges):
    def apply(arrays, description):
        description["stages"][stage][axis] = edges

    return apply


def with_nan(array):
    array = array.copy()
    array.flat[-1] = np.nan
    return array


# the model has C = 3, K = 4, P = 5: stages of 3 and of 2 blocks, edges of stage 0 are 0 1 3 5 and 0 1 2 3
TAMPERED = {
    "dictionaries missing": without("dictionaries"),
    "dictionaries 2-d": changed("dictionaries", lambda D: D[0]),
    "dictionaries 4-d": changed("dictionaries", lambda D: D[None]),
    "dictionaries float64": changed("dictionaries", lambda D: D.astype(np.float64)),
    "dictionaries int32": changed("dictionaries", lambda D: D.astype(np.int32)),
    "dictionaries NaN": changed("dictionaries", with_nan),
    "dictionaries infinite": changed("dictionaries", lambda D: np.full_like(D, np.inf)),
    "dictionaries without codewords": changed("dictionaries", lambda D: D[:, :0]),
    "dictionaries without dictionaries": changed("dictionaries", lambda D: D[:0]),
    "dictionaries without columns": changed("dictionaries", lambda D: D[:, :, :0]),
    "a codeword less": changed("dictionaries", lambda D: D[:, :3]),
    "a dictionary less": changed("dictionaries", lambda D: D[:2]),
    "a column less": changed("dictionaries", lambda D: D[:, :, :4]),
    "shift missing": without("shift"),
    "shift too short": changed("shift", lambda shift: shift[:-1]),
    "shift 2-d": changed("shift", lambda shift: shift[None]),
    "shift float64": changed("shift", lambda shift: shift.astype(float)),
    "shift NaN": changed("shift", with_nan),
    "history missing": without("history"),
    "history 2-d": changed("history", lambda history: history[None]),
    "history NaN": changed("history", with_nan),
    "stage dictionaries missing": without("stage0.D1"),
    "stage dictionaries too narrow": changed("stage0.D1", lambda D: D[:, :, :1]),
    "stage dictionaries float64": changed("stage1.D0", lambda D: D.astype(float)),
    "stage dictionaries NaN": changed("stage1.D1", with_nan),
    "rotation missing": without("stage0.R"),
    "rotation not square": changed("stage0.R", lambda R: R[:, :4]),
    "rotation too small": changed("stage0.R", lambda R: R[:4, :4]),
    "rotation NaN": changed("stage1.R", with_nan),
    "edges do not start at 0": with_edges(0, 0, [1, 2, 3, 5]),
    "edges do not reach P": with_edges(0, 0, [0, 1, 3, 4]),
    "edges pass P": with_edges(0, 0, [0, 1, 3, 6]),
    "edges fall": with_edges(0, 0, [0, 3, 1, 5]),
    "edges repeat": with_edges(0, 0, [0, 3, 3, 5]),
    "edges elsewhere": with_edges(0, 0, [0, 2, 3, 5]),
    "edges of dictionaries elsewhere": with_edges(1, 1, [0, 1, 3]),
    "edges too few": with_edges(0, 0, [0, 5]),
    "edges none": with_edges(0, 0, []),
    "edges text": with_edges(0, 0, "abcd"),
    "edges infinite": with_edges(0, 0, [0, 1, 3, float("inf")]),
    "edges null": with_edges(0, 0, None),
    "stages missing": undescribed("stages"),
    "stages null": described(stages=None),
    "stages a number": described(stages=3),
    "stages a word": described(stages="ab"),
    "a stage more": lambda arrays, description: description["stages"].append([[0, 5], [0, 3]]),
    "scale missing": undescribed("scale"),
    "scale 3": described(scale=3.0),
    "scale 0": described(scale=0.0),
    "scale negative": described(scale=-2.0),
    "scale NaN": described(scale=float("nan")),
    "scale infinite": described(scale=float("inf")),
    "scale text": described(scale="one"),
    "scale null": described(scale=None),
    "n_iter missing": undescribed("n_iter"),
    "n_iter text": described(n_iter="many"),
    "n_iter null": described(n_iter=None),
    "n_iter infinite": described(n_iter=float("inf")),
    "n_iter beyond the history": described(n_iter=10**6),
    "n_iter negative": described(n_iter=-1),
    "params missing": undescribed("params"),
    "params null": described(params=None),
    "params a list": described(params=[1, 2]),
    "params unknown": with_param(n_subspaces=3),
    "init array missing": with_param(init="array"),
    "init array 2-d": lambda arrays, description: (
        arrays.update(init=np.ones((2, 2))),
        description["params"].update(init="array"),
    ),
    "init array NaN": lambda arrays, description: (
        arrays.update(init=np.full((3, 4, 5), np.nan)),
        description["params"].update(init="array"),
    ),
    "estimator missing": undescribed("estimator"),
    "estimator unknown": described(estimator="ProductQuantizer"),
    "estimator private": described(estimator="AdditiveQuantizer"),
    "too few feature names": described(feature_names=["a", "b"]),
    "feature names a number": described(feature_names=5),
}


@pytest.mark.parametrize("name", TAMPERED)
def test_parts_that_do_not_fit_are_refused(name, path):
    arrays, description = _files.read(path, KIND)
    assert description["stages"] == [[[0, 1, 3, 5], [0, 1, 2, 3]], [[0, 3, 5], [0, 2, 3]]]
    TAMPERED[name](arrays, description)
    _files.write(path, KIND, arrays, description)
    with pytest.raises(gk.FileError, match=r"model\.safetensors"):
        gk.load(path)


def test_the_tampering_is_what_is_refused(path, X, est):
    arrays, description = _files.read(path, KIND)
    _files.write(path, KIND, arrays, description)
    assert (gk.load(path).encode(X) == est.encode(X)).all()


def test_a_description_that_is_no_object_is_refused(path):
    arrays, _ = _files.read(path, KIND)
    _files.write(path, KIND, arrays, ["GroupKMeans"])
    with pytest.raises(gk.FileError, match="description"):
        gk.load(path)


# ---- writing that fails


def failing(error):
    def fail(*arguments, **options):
        raise error

    return fail


@pytest.mark.parametrize("step", ["os.fsync", "os.replace", "gkmeans._files.save"])
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()], ids=["disk", "Ctrl-C"])
def test_a_failed_save_leaves_the_old_file_and_nothing_else(step, error, path, X, monkeypatch):
    before = path.read_bytes()
    other = small(2, 3, order=1).fit(X)
    monkeypatch.setattr(step, failing(error))
    with pytest.raises(type(error)):
        other.save(path)
    with pytest.raises(type(error)):
        other.save(path.parent / "new")
    monkeypatch.undo()
    assert [entry.name for entry in path.parent.iterdir()] == ["model.safetensors"]
    assert path.read_bytes() == before
    gk.load(path)


def test_a_save_replaces_the_old_file(path, X):
    other = small(2, 3, order=1).fit(X)
    other.save(path)
    assert gk.load(path).dictionaries_.shape == (2, 3, 5)
    assert [entry.name for entry in path.parent.iterdir()] == ["model.safetensors"]


def test_a_save_into_a_missing_folder_says_so(est, tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        est.save(tmp_path / "nowhere" / "m")


def test_a_save_over_a_folder_leaves_nothing(est, tmp_path):
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="folder"):
        est.save(tmp_path / "folder")
    assert [entry.name for entry in tmp_path.iterdir()] == ["folder"]
    assert not list((tmp_path / "folder").iterdir())
