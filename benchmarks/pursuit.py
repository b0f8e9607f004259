"""MCMP on full vectors of photo SIFT against the whole tree, for the same codes.

python benchmarks/pursuit.py [--repeats 5] [--rows 4096]

Products and T are given to all; one thread. The peers are compiled here by g++ for this machine, into results/: "by
hand" (exhaustive_tree.cpp) is written in AVX-512 with a selection free of branches, "plain" (plain_tree.cpp) as one
would write it, with std::partial_sort and loops for the compiler to vectorise. "from codes" starts from the codes of
O2GA, as a training does, "no codes" from none.
"""

from __future__ import annotations

import argparse
import ctypes
from collections.abc import Callable

import numpy as np

import gkmeans as gk
from common import alternate, compiled, machine, median, photosift, spread
from gkmeans import _core
from gkmeans._parallel import Workers, aligned
from gkmeans._rows import Rows
from gkmeans.assignment import assign_block
from gkmeans.dictionaries import Tables
from gkmeans.pursuit import tree_size

PLAIN_FLAGS = ["-ffinite-math-only", "-fno-signed-zeros"]  # without these g++ leaves a minimum in scalars
CANDIDATES = 10


PEERS = {"by hand": ("exhaustive_tree", "exhaustive", []), "plain": ("plain_tree", "plain", PLAIN_FLAGS)}


def pointer(array: np.ndarray) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def compare(C: int, n: int, repeats: int, peers: dict[str, Callable[..., None]]) -> None:
    learn, base = photosift("learn"), photosift("base")
    model = gk.GroupKMeans(C, order=2, relaxation=0, random_state=0).fit(learn[:20_000])
    rows = np.sort(np.random.default_rng(0).permutation(len(base))[:n])
    with Workers(1) as workers:
        tables = Tables.of(model._final().D[0], workers)
        X = Rows(base, model._frame()).block(rows)
        warm = tables.inside(assign_block(X, tables, 2, None, workers))
    V = (X @ tables.products.D.reshape(-1, X.shape[1]).T).reshape(n, C, 256)
    arrays = (tables.T, tables.N, tables.rowmin, tables.groupmin)
    stop, work = np.zeros(1, np.int32), aligned(n, C, 256)
    codes = {name: np.empty((n, C), np.uint16) for name in (*peers, "no codes", "from codes")}

    def run_peer(name: str) -> None:
        work[:] = V
        peers[name](n, C, CANDIDATES, *map(pointer, (work, tables.T, tables.N, codes[name])))

    def run(name: str) -> None:
        work[:] = V
        codes[name][:] = warm
        _core.pursue(work, *arrays, codes[name], CANDIDATES, name == "no codes", stop)

    tasks = {name: lambda name=name: run_peer(name) if name in peers else run(name) for name in codes}
    seconds = alternate(tasks, repeats)
    copies = median(alternate({"copy": lambda: work.__setitem__(slice(None), V)}, repeats)["copy"])
    assert all((codes[name] == codes["no codes"]).all() for name in peers), "the codes differ"
    scores = tree_size(CANDIDATES, C, 256)
    print(
        f"\n{C} dictionaries, {n:,} rows, {scores:,} scores a row, {repeats} alternating runs, one thread; equal codes "
        f"without codes at first; with those of O2GA, of which the better stay, "
        f"{(codes['from codes'] == codes['no codes']).all(axis=1).mean():.1%} of the rows"
    )
    for name, taken in seconds.items():
        alone = [each - copies for each in taken]
        ratios = [(median(seconds[peer]) - copies) / median(alone) for peer in peers]
        against = ", ".join(f"{ratio:.2f} × {peer}" for ratio, peer in zip(ratios, peers, strict=True))
        print(f"{name:12}{spread(alone, 1e6 / n):30} µs a vector   as fast as {against}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--rows", type=int, default=4096)
    options = parser.parse_args()
    print(machine())
    peers = {name: compiled(*where) for name, where in PEERS.items()}
    for C in (2, 4):
        compare(C, options.rows, options.repeats, peers)


if __name__ == "__main__":
    main()
