"""MCMP on full vectors of photo SIFT against the same tree without pruning, for the same codes.

python benchmarks/pursuit.py [--repeats 5] [--rows 4096]

Products and T are given to both; one thread. The peer (exhaustive_tree.cpp, AVX-512) is compiled here by g++ for this
machine, into results/. "from codes" starts from the codes of O2GA, as a training does, "no codes" from none.
"""

from __future__ import annotations

import argparse
import ctypes
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np

import gkmeans as gk
from common import RESULTS, alternate, machine, median, photosift, spread
from gkmeans import _core
from gkmeans._parallel import Workers, aligned
from gkmeans._rows import Rows
from gkmeans.assignment import assign_block
from gkmeans.dictionaries import Tables
from gkmeans.pursuit import tree_size

FLAGS = ["-O3", "-march=native", "-mprefer-vector-width=512", "-ffp-contract=off", "-shared", "-fPIC", "-std=c++20"]
CANDIDATES = 10


def exhaustive_tree() -> Callable[..., None]:
    source, library = Path(__file__).with_name("exhaustive_tree.cpp"), RESULTS / "exhaustive_tree.so"
    RESULTS.mkdir(exist_ok=True)
    subprocess.run(["g++", *FLAGS, "-o", str(library), str(source)], check=True)
    return ctypes.CDLL(str(library)).exhaustive


def pointer(array: np.ndarray) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def compare(C: int, n: int, repeats: int, exhaustive: Callable[..., None]) -> None:
    learn, base = photosift("learn"), photosift("base")
    model = gk.GroupKMeans(C, order=2, random_state=0).fit(learn[:20_000])
    rows = np.sort(np.random.default_rng(0).permutation(len(base))[:n])
    with Workers(1) as workers:
        tables = Tables.of(model._final().D[0], workers)
        X = Rows(base, model._frame()).block(rows)
        warm = tables.inside(assign_block(X, tables, 2, None, workers))
    V = (X @ tables.padded.reshape(-1, X.shape[1]).T).reshape(n, C, 256)
    arrays = (tables.T, tables.N, tables.rowmin, tables.groupmin)
    stop, work = np.zeros(1, np.int32), aligned(n, C, 256)
    codes = {name: np.empty((n, C), np.uint16) for name in ("exhaustive", "no codes", "from codes")}

    def run_exhaustive() -> None:
        work[:] = V
        args = (pointer(work), pointer(tables.T), pointer(tables.N), pointer(codes["exhaustive"]))
        exhaustive(n, C, CANDIDATES, *args)

    def run(name: str) -> None:
        work[:] = V
        codes[name][:] = warm
        _core.pursue(work, *arrays, codes[name], CANDIDATES, name == "no codes", stop)

    tasks = {"exhaustive": run_exhaustive, **{name: lambda name=name: run(name) for name in list(codes)[1:]}}
    seconds = alternate(tasks, repeats)
    copies = median(alternate({"copy": lambda: work.__setitem__(slice(None), V)}, repeats)["copy"])
    assert (codes["exhaustive"] == codes["no codes"]).all(), "the codes differ"
    scores = tree_size(CANDIDATES, C, 256)
    print(
        f"\n{C} dictionaries, {n:,} rows, {scores:,} scores a row, {repeats} alternating runs, one thread; equal codes"
    )
    for name, taken in seconds.items():
        alone = [each - copies for each in taken]
        ratio = median([each - copies for each in seconds["exhaustive"]]) / median(alone)
        print(f"{name:12}{spread(alone, 1e6 / n):30} µs a vector   {ratio:6.2f} × as fast")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--rows", type=int, default=4096)
    options = parser.parse_args()
    print(machine())
    exhaustive = exhaustive_tree()
    for C in (2, 4):
        compare(C, options.rows, options.repeats, exhaustive)


if __name__ == "__main__":
    main()
