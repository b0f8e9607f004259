"""Promises of the guide and the README, each held by a whole run: refits, levels, memory, the example."""

import os
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV

import gkmeans as gk
from conftest import correlated
from gkmeans._parallel import Workers
from gkmeans.update import Statistics


def test_a_failed_refit_keeps_the_width_of_the_earlier_one(rng):
    X = rng.standard_normal((50, 4))
    est = gk.GroupKMeans(2, 4, max_iter=2, init_iter=2, random_state=0).fit(X)
    codes = est.encode(X)
    wrong = rng.standard_normal((50, 6))
    wrong[3, 3] = np.nan
    with pytest.raises(ValueError, match="NaN"):
        est.fit(wrong)
    assert est.n_features_in_ == 4
    assert (est.encode(X) == codes).all()


def poisoned(self, size, use="products"):
    """A fresh buffer each time; what the thread had for the same use before is spoiled."""
    held = self._room.__dict__
    if use in held:
        held[use].fill(np.nan)
    held[use] = np.full(size, np.nan, np.float32)
    return held[use]


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.uint8])
@pytest.mark.parametrize(
    "est",
    [
        gk.GroupKMeans(4, 16, max_iter=6, init_iter=3, random_state=0),
        gk.GroupKMeans(4, 16, relaxation=0, max_iter=3, init_iter=3, random_state=0),
        gk.GroupKMeans(3, 16, init="kmeans", relaxation=0, max_iter=2, init_iter=3, random_state=0),
        gk.CartesianKMeans(4, 16, max_iter=3, random_state=0),
        gk.OptimizedCartesianKMeans(2, 2, 16, max_iter=2, init_iter=2, random_state=0),
    ],
    ids=["relaxed", "plain", "kmeans", "ck-means", "ock-means"],
)
def test_no_buffer_is_used_beyond_its_block(est, dtype, rng, monkeypatch):
    X = (40 + 10 * correlated(rng, 900, 20)).clip(0, 255).astype(dtype)
    expected = clone(est).fit(X)
    codes = expected.encode(X)
    monkeypatch.setattr(Workers, "buffer", poisoned)
    found = clone(est).fit(X)
    assert found.dictionaries_.tobytes() == expected.dictionaries_.tobytes()
    assert found.codes_.tobytes() == expected.codes_.tobytes()
    assert found.encode(X).tobytes() == codes.tobytes()


def test_a_fitted_estimator_as_init_survives_clone_and_search(rng):
    X = rng.standard_normal((80, 4))
    first = gk.GroupKMeans(2, 4, max_iter=2, init_iter=2, random_state=0).fit(X)
    est = gk.GroupKMeans(2, 4, init=first, max_iter=2)
    assert clone(est).fit(X).history_[-1] <= first.history_[-1] * (1 + 1e-6)
    GridSearchCV(est, {"order": [1, 2]}, cv=2).fit(X)


def test_scores_of_a_data_frame_do_not_warn(rng):
    X = pd.DataFrame(rng.standard_normal((60, 3)), columns=list("abc"))
    est = gk.GroupKMeans(2, 4, max_iter=2, init_iter=2, random_state=0).fit(X)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert est.score(X) == -est.relative_distortion(X)


def test_statistics_refuse_codes_and_rows_that_would_be_misread(rng):
    with pytest.raises(ValueError, match="65536"):
        Statistics.of(np.ones((1, 2)), np.array([[70000]]))
    with pytest.raises(ValueError, match="finite"):
        Statistics.of(np.array([[np.nan]]), np.array([[0]]))


FIT = """
import hashlib, sys, warnings
import numpy as np
import gkmeans as gk
warnings.simplefilter("ignore")
X = gk.datasets.load_sample().learn[:1000]
digest = hashlib.sha256()
for order in (1, 2):
    est = gk.GroupKMeans(4, 16, order=order, effort=4, max_iter=3, init_iter=2, random_state=0).fit(X)
    for array in (est.dictionaries_, est.codes_, est.encode(X)):
        digest.update(array.tobytes())
print(gk._core.simd_level(), digest.hexdigest())
"""


def test_whole_fits_give_equal_bits_at_every_level_that_the_variable_names():
    answers = {}
    for level in gk._core.simd_levels():
        environment = {**os.environ, "GKMEANS_SIMD": level}
        out = subprocess.run([sys.executable, "-c", FIT], env=environment, capture_output=True, text=True, check=True)
        used, answers[level] = out.stdout.split()
        assert used == level
    assert len(set(answers.values())) == 1


def test_an_unknown_level_in_the_variable_is_explained():
    environment = {**os.environ, "GKMEANS_SIMD": "mmx"}
    out = subprocess.run([sys.executable, "-c", FIT], env=environment, capture_output=True, text=True)
    assert out.returncode != 0
    assert "GKMEANS_SIMD=mmx" in out.stderr
    assert "unset it" in out.stderr


MEMORY = """
import resource, sys
import numpy as np
import gkmeans as gk
big = np.memmap(sys.argv[1], np.uint8, "r", shape=(400_000, 64))
est = gk.GroupKMeans(8, 64, order=1, effort=0, max_iter=2, init_iter=2, random_state=0, n_jobs=2).fit(big[:3000])
est.encode(big[:5000])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
est.encode(big)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_encoding_a_memory_mapped_file_holds_no_float_copy_of_it(tmp_path, rng):
    path = tmp_path / "big.u8"
    rng.integers(0, 256, (400_000, 64), dtype=np.uint8).tofile(path)
    out = subprocess.run([sys.executable, "-c", MEMORY, str(path)], capture_output=True, text=True, check=True)
    # 26 MB of file and 3 MB of codes; a float32 copy would take 102 MB, the products 820 MB
    assert int(out.stdout) < 80_000


def test_the_example_of_the_search_page_runs(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parents[1] / "docs" / "search.md").read_text()
    names, found = {}, []
    for example in page.split("```python")[1:]:
        quick = example.split("```")[0].replace("n_dictionaries=8,", "8, 16, max_iter=2, init_iter=2, effort=0,")
        quick = quick.replace("sample.learn, ", "sample.learn[:1000], k=1, ").replace("recall=0.9", "recall=0.5")
        exec(compile(quick, "search.md", "exec"), names)
        found.append(names["found"])
    truth = names["sample"].groundtruth[:, :1]
    flat, lists, better = ((ids == truth).any(axis=1).mean() for ids in (found[0], found[2], names["better"]))
    assert 0.3 < flat <= better
    assert lists > 0.3
    assert len(gk.open_index(tmp_path / "base.index")) == 10_000 - 10
    assert capsys.readouterr().out.count("Evaluation(recall=") == 2


def test_the_examples_of_the_scaling_page_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parents[1] / "docs" / "scaling.md").read_text()
    names = {}
    for example in page.split("```python")[1:]:
        quick = example.split("```")[0].replace(
            "random_state=0", "random_state=0, n_codewords=8, max_iter=2, init_iter=2, effort=0, relaxation=0"
        )
        exec(compile(quick, "scaling.md", "exec"), names)
    assert (tmp_path / "fit4" / "fit.json").exists()
    assert names["both"].relative_distortion(names["learn"]) < 0.3


def test_the_example_of_the_guide_runs(capsys):
    guide = (Path(__file__).parents[1] / "docs" / "guide.md").read_text()
    (example,) = (part.split("```")[0] for part in guide.split("```python")[1:])
    names = {}
    quick = example.replace("random_state=0", "random_state=0, n_codewords=16, max_iter=2")
    exec(compile(quick, "guide.md", "exec"), names)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" (")[0] for line in lines] == ["CartesianKMeans", "OptimizedCartesianKMeans"]
    assert all("(10000, 8)" in line for line in lines)
    assert names["est"].history_[0] < float(names["ock"].relative_distortion(names["sample"].learn))
    assert names["ck"].stages_[0].blocks[0].dims == slice(0, 16)


def test_the_example_of_the_readme_runs(tmp_path, monkeypatch):
    readme = (Path(__file__).parents[1] / "README.md").read_text()
    example = (
        readme.split("```python")[1]
        .split("```")[0]
        .replace("random_state=0", "random_state=0, effort=2, max_iter=2, init_iter=2")
    )
    monkeypatch.chdir(tmp_path)
    exec(compile(example, "README.md", "exec"), {})
    assert (tmp_path / "model.safetensors").exists()
