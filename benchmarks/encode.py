"""Encoding photo SIFT base at 64 bits against Faiss's LocalSearchQuantizer, the S product, and our own baseline build.

python benchmarks/encode.py [--repeats 3] [--threads 2]

All take turns in one process. Faiss is trained on the same learn set with its defaults (about five minutes; kept in
results/ and used again). The S product, x times all codewords, is done by
BLAS alone here, as a measure; O1GA makes it by the matrix unit where there is one.
"""

from __future__ import annotations

import argparse

import faiss
import numpy as np

import gkmeans as gk
from common import alternate, faiss_index, machine, median, photosift, spread, trained_faiss
from gkmeans import _core
from gkmeans._parallel import Workers, aligned, block_rows, spans
from gkmeans._rows import Rows, decode
from gkmeans.assignment import assign_block
from gkmeans.dictionaries import Tables
from gkmeans.estimators.group import plain
from gkmeans.metrics import relative_distortion


def products(X: np.ndarray, D: np.ndarray, threads: int) -> None:
    """The S product alone: the same blocks and threads, nothing else."""
    rows = block_rows(len(D))
    with Workers(threads) as workers:

        def one(span: tuple[int, int]) -> None:
            out = workers.buffer((span[1] - span[0]) * len(D)).reshape(-1, len(D))
            np.matmul(X[slice(*span)], D.T, out=out)

        workers.map(one, spans(len(X), rows))


def against_faiss(learn: np.ndarray, base: np.ndarray, repeats: int, threads: int) -> None:
    faiss.omp_set_num_threads(threads)
    print("training Faiss's LSQ, or reading it …", flush=True)
    index, _ = trained_faiss("lsq-photosift-64", faiss_index("lsq", 128, 8), learn.astype(np.float32), threads)
    lsq = index.lsq
    models = {order: gk.GroupKMeans(8, random_state=0, n_jobs=threads, **plain(order)).fit(learn) for order in (1, 2)}
    floats = base.astype(np.float32)
    D = np.ascontiguousarray(models[1].dictionaries_.reshape(-1, 128))
    codes = {}
    tasks = {
        "Faiss LSQ": lambda: codes.__setitem__("Faiss LSQ", lsq.compute_codes(floats)),
        "O1GA": lambda: codes.__setitem__("O1GA", models[1].encode(base)),
        "O2GA": lambda: codes.__setitem__("O2GA", models[2].encode(base)),
        "S product": lambda: products(floats, D, threads),
    }
    seconds = alternate(tasks, repeats)
    decoded = {
        "Faiss LSQ": lsq.decode(codes["Faiss LSQ"]),
        "O1GA": models[1].decode(codes["O1GA"]),
        "O2GA": models[2].decode(codes["O2GA"]),
    }
    print(f"\nphoto SIFT base, {len(base):,} × 128, 64 bits, {threads} threads, {repeats} alternating runs")
    print(f"{'':12} µs a vector [range]          of Faiss   of S   relative distortion × 10⁻²")
    for name, times in seconds.items():
        distortion = f"{100 * relative_distortion(base, decoded[name]):.3f}" if name in decoded else ""
        print(
            f"{name:12}{spread(times, 1e6 / len(base)):30} 1/{median(seconds['Faiss LSQ']) / median(times):5.1f}"
            f"  {median(times) / median(seconds['S product']):5.2f}   {distortion}"
        )


def levels(base: np.ndarray, learn: np.ndarray, repeats: int) -> None:
    """The O2GA kernel at each level, products and T given, one thread.

    "at rest": from codes that are O2GA's already, one look at every pair, as in the passes of the training;
    "from O1GA": from the codes of O1GA to those of O2GA. The time of the same call with order 1 is taken off.
    """
    model = gk.GroupKMeans(8, order=2, relaxation=0, random_state=0).fit(learn[:30_000])
    batch, count = 1024, 16
    with Workers(1) as workers:
        tables = Tables.of(model._final().D[0], workers)
        X = Rows(base, model._frame()).block(slice(0, batch * count))
        arrays = (tables.T, tables.N, tables.rowmin, tables.groupmin)
        C, Kp, _ = tables.products.D.shape
        work = aligned(C, batch, Kp)
        starts: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {}
        for name, order in (("from O1GA", 1), ("at rest", 2)):
            starts[name] = []
            for start, stop in spans(len(X), batch):
                codes = assign_block(X[start:stop], tables, order, None, workers)
                Y = X[start:stop] - decode(tables.D, codes)
                starts[name].append((np.matmul(Y, tables.products.D.transpose(0, 2, 1)), tables.inside(codes)))

        def run(start: str, level: str, order: int) -> None:
            for V, places in starts[start]:
                work[:] = V
                _core.assign(work, *arrays, places.copy(), order, False, workers.stop, level)

        names = _core.simd_levels()
        cases = [(start, name, order) for start in starts for name in names for order in (1, 2)]
        seconds = alternate({str(case): lambda case=case: run(*case) for case in cases}, 5 * repeats)
    print(f"\nthe O2GA kernel at each level, {batch * count:,} rows, one thread, {5 * repeats} alternating runs")
    for start in starts:
        kernel = {n: median(seconds[str((start, n, 2))]) - median(seconds[str((start, n, 1))]) for n in names}
        for name, taken in kernel.items():
            print(f"{start:10} {name:10} {taken / len(X) * 1e6:6.2f} µs   {kernel['baseline'] / taken:5.2f} × baseline")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", choices=["faiss", "levels"], help="one of the two parts")
    options = parser.parse_args()
    print(machine())
    learn, base = photosift("learn"), photosift("base")
    if options.only != "levels":
        against_faiss(learn, base, options.repeats, options.threads)
    if options.only != "faiss":
        levels(base, learn, options.repeats)


if __name__ == "__main__":
    main()
