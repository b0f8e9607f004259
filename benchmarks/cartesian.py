"""ck-means against Faiss's OPQMatrix + ProductQuantizer: training time and relative distortion of the training set.

python benchmarks/cartesian.py [--dataset mnist photosift] [--bits 32 64 128] [--repeats 1] [--threads 2]

Both take turns in one process, on all of MNIST and on photo SIFT's learn set, with their defaults. Faiss spends most
of its time on MNIST in the singular value decompositions of 784 × 784: several minutes for each length.
"""

from __future__ import annotations

import argparse
import warnings

import faiss
import numpy as np

import gkmeans as gk
from common import alternate, machine, median, mnist, photosift, spread
from gkmeans.metrics import relative_distortion


def faiss_opq(X: np.ndarray, C: int) -> np.ndarray:
    """``X`` (n, P) float32 decoded from C bytes; the rotation keeps distances, so it is taken back."""
    rotation = faiss.OPQMatrix(X.shape[1], C)
    rotation.train(X)
    rotated = rotation.apply(X)
    quantizer = faiss.ProductQuantizer(X.shape[1], C, 8)
    quantizer.train(rotated)
    return rotation.reverse_transform(quantizer.decode(quantizer.compute_codes(rotated)))


def compare(name: str, X: np.ndarray, bits: int, repeats: int, threads: int) -> None:
    floats = X.astype(np.float32)
    decoded = {}
    model = gk.CartesianKMeans(bits // 8, random_state=0, n_jobs=threads)
    seconds = alternate(
        {
            "Faiss OPQ": lambda: decoded.__setitem__("Faiss OPQ", faiss_opq(floats, bits // 8)),
            "ck-means": lambda: decoded.__setitem__("ck-means", model.decode(model.fit(X).codes_)),
        },
        repeats,
    )
    for method, times in seconds.items():
        print(
            f"{name:10} {bits:4} {method:10} {spread(times):30} {median(times) / median(seconds['Faiss OPQ']):6.3f}"
            f"   {100 * relative_distortion(X, decoded[method]):8.3f}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", nargs="+", choices=["mnist", "photosift"], default=["mnist", "photosift"])
    parser.add_argument("--bits", nargs="+", type=int, default=[32, 64, 128])
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    faiss.omp_set_num_threads(options.threads)
    warnings.simplefilter("ignore", gk.DataWarning)  # MNIST's empty border
    print(machine())
    print("data       bits method     seconds [range]               of Faiss   relative distortion × 10⁻²")
    for name in options.dataset:
        X = mnist() if name == "mnist" else photosift("learn")
        for bits in options.bits:
            compare(name, X, bits, options.repeats, options.threads)


if __name__ == "__main__":
    main()
