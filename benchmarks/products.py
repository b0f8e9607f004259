"""Products with codewords, fused, by the CPU's matrix unit and in bytes, against BLAS, on one thread, alternating.

python benchmarks/products.py [--repeats 40]
"""

from __future__ import annotations

import argparse

import numpy as np
from threadpoolctl import threadpool_limits

from common import alternate, machine, median, spread
from gkmeans import _core
from gkmeans.products import NARROW, Products, tiled

# (G, n, m, P): a block of rows against the dictionaries of sentence embeddings, MNIST, SIFT and one block of a stage,
# and two rotations; narrow rows, and few
SHAPES = [(8, 1024, 256, 384), (4, 2048, 256, 784), (8, 1024, 256, 128), (1, 4096, 256, 48), (1, 2048, 384, 384)]
SHAPES += [(1, 2048, 784, 784), (1, 4096, 256, NARROW), (8, 16, 256, 128)]


def compare(shape: tuple[int, int, int, int], repeats: int) -> None:
    G, n, m, P = shape
    rng = np.random.default_rng(0)
    X, D = rng.standard_normal((n, P), dtype=np.float32), rng.standard_normal((G, m, P), dtype=np.float32)
    out = np.empty((G, n, m), np.float32)
    ways = {"BLAS": Products(D)}
    if _core.fused_products():
        ways["fused"] = Products(D, tiles=tiled(D))
    if _core.matrix_unit():
        ways["unit"] = Products.with_all(D)
    if _core.coarse_products():
        ways["bytes"] = Products.with_all(D, coarse=True)
    with threadpool_limits(1):
        seconds = alternate({name: lambda way=way: way.into(X, out) for name, way in ways.items()}, repeats)
    work = 2e-9 * G * n * m * P
    for name, taken in seconds.items():
        rate, ratio = spread([work / s for s in taken]), median(seconds["BLAS"]) / median(taken)
        print(f"{shape!s:24} {name:6} {rate:29} {ratio:.2f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=40)
    options = parser.parse_args()
    print(machine())
    print("(G, n, m, P)             by     GF/s [range]                  × BLAS")
    for shape in SHAPES:
        compare(shape, options.repeats)


if __name__ == "__main__":
    main()
