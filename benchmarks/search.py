"""FlatIndex against Faiss's IndexPQ, IndexLocalSearchQuantizer and IndexPQFastScan at equal bytes, and reading alone;
IVFIndex against Faiss's IVF,PQ and IVF,LSQ at equal recall.

python benchmarks/search.py [--only flat|ivf|lists|recall] [--rows 2000000] [--repeats 9] [--dictionaries 8 16]
                            [--recall] [--dataset photosift mnist] [--peers lsq rq opq]

Photo SIFT base is repeated with noise to as many rows as asked for. All take turns in one process, on one thread.
Faiss's LSQ holds the codes of its first 4,096 rows again and again: its speed does not depend on them, and its encoding
takes hours. A filter that is new with each query is shown beside reading its mask alone. The bandwidth of the scan is
measured once more with the codes repeated to eight times as many rows, which no cache holds. With --recall, recall@1,
10 and 100 on photo SIFT and MNIST (--dataset) against Faiss's LSQ, RQ and OPQ (--peers), which train for an hour; they
are searched by the distances to what their codes decode to. Ours has its defaults there, with norms in bytes and in
floats.

IVFIndex searches photo SIFT base in 1,024 lists by 8 bytes. For each number of lists that Faiss probes, ours probes as
few as reach the same recall@10. Faiss's IVF,PQ is trained by Faiss; its IVF,LSQ, whose training takes hours, is our own
index as to_faiss gives it: better codes than its own, and the same recall for the same lists.

With --only lists, the coarse step of 4,096, 16,384 and 131,072 lists of 1,000,000 rows against Faiss's IndexFlatL2 on
the same centres, which is exact, and the share of its 16 nearest that ours finds.
"""

from __future__ import annotations

import argparse
import ctypes
import itertools
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import faiss
import numpy as np

import gkmeans as gk
from common import (
    DATA,
    RESULTS,
    alternate,
    compiled,
    faiss_index,
    machine,
    median,
    mnist,
    photosift,
    spread,
    trained_faiss,
)
from gkmeans import vectors
from gkmeans.index.segment import counted
from gkmeans.metrics import nearest, recall

P, K = 128, 10
ROW = 16
"""Queries that are asked one after another before it is the next index's turn."""


def repeated(base: np.ndarray, rows: int) -> np.ndarray:
    """Base again and again with noise, (rows, 128) uint8."""
    rng = np.random.default_rng(0)
    out = np.empty((rows, P), np.uint8)
    for start in range(0, rows, len(base)):
        part = out[start : start + len(base)]
        noise = rng.integers(-4, 5, part.shape, np.int16) if start else 0
        np.clip(base[: len(part)] + noise, 0, 255, out=part, casting="unsafe")
    return out


def model(name: str, C: int, learn: np.ndarray, **options: float) -> gk.GroupKMeans:
    """The model of this length and these options, kept in results/."""
    path = (
        RESULTS / f"search-{'-'.join([name, str(C), *(f'{key}{value}' for key, value in options.items())])}.safetensors"
    )
    if not path.exists():
        RESULTS.mkdir(exist_ok=True)
        gk.GroupKMeans(C, random_state=0, **options).fit(learn).save(path)
    return gk.load(path)


STREAMS = (1, 2, 4, 8)
"""Streams in which codes are read for comparison; the fastest counts."""


def reader(index: gk.FlatIndex) -> Callable[[int], None]:
    """What reads the codes once, in so many streams."""
    function = compiled("reading", "read_streams", [])

    def read(streams: int) -> None:
        for segment in index._state.segments:
            words = ctypes.c_size_t(segment.blocks.nbytes // 8)
            function(ctypes.c_void_p(segment.blocks.ctypes.data), words, ctypes.c_size_t(streams))

    return read


def in_rows(
    asked: dict[str, Callable[[np.ndarray], Any]], index: gk.FlatIndex, singles: np.ndarray, repeats: int
) -> dict[str, list[float]]:
    """Seconds for all queries, one after the other, by each of those asked, and for reading the codes as often."""
    read = reader(index)
    readers = {f"reading, {streams} streams": lambda one, s=streams: read(s) for streams in STREAMS}
    tasks = {name: lambda ask=ask: [ask(one) for one in singles] for name, ask in (asked | readers).items()}
    return alternate(tasks, repeats)


def peers(C: int, X: np.ndarray, learn: np.ndarray) -> dict[str, faiss.Index]:
    """Faiss's indexes of C bytes, filled."""
    floats = learn.astype(np.float32)
    pq, _ = trained_faiss(f"pq-photosift-{C}", faiss.IndexPQ(P, C, 8), floats, 1)
    fast, _ = trained_faiss(f"pq4-photosift-{C}", faiss.IndexPQ(P, 2 * C, 4), floats, 1)
    for start in range(0, len(X), 1 << 17):
        pq.add(X[start : start + (1 << 17)].astype(np.float32))
        fast.add(X[start : start + (1 << 17)].astype(np.float32))
    lsq = faiss.IndexLocalSearchQuantizer(P, C, 8, faiss.METRIC_L2, faiss.AdditiveQuantizer.ST_norm_qint8)
    lsq.lsq.train_iters = 2  # for its speed alone
    lsq.train(floats[:20_000])
    lsq.add(X[:4096].astype(np.float32))
    codes = faiss.vector_to_array(lsq.codes).reshape(4096, -1)
    faiss.copy_array_to_vector(np.resize(codes, (len(X), codes.shape[1])).ravel(), lsq.codes)
    lsq.ntotal = len(X)
    return {"IndexPQ": pq, "IndexLSQ": lsq, "IndexPQFastScan": faiss.IndexPQFastScan(fast)}


def compare(C: int, X: np.ndarray, learn: np.ndarray, query: np.ndarray, repeats: int) -> None:
    """The rows of the table for one length."""
    est = model("photosift", C, learn, relaxation=0)  # what it codes by makes no difference to the scan
    est.effort = 2
    index = gk.FlatIndex(est, n_jobs=1)
    index.add(X)
    others = peers(C, X, learn)
    singles, batch = query[:ROW, None].astype(np.float32), query[:64].astype(np.float32)
    mask = np.random.default_rng(1).random(len(X)) < 0.01
    masks = [np.random.default_rng(seed).random(len(X)) < 0.01 for seed in range(2, 8)]  # more than are remembered
    fresh, read_alone = itertools.cycle(masks), itertools.cycle(masks)
    asked = {
        "ours": lambda one: index.search(one, K),
        "ours, 1 % kept": lambda one: index.search(one, K, mask),
        "ours, another 1 % each time": lambda one: index.search(one, K, next(fresh)),
        "its mask read alone": lambda one: counted(next(read_alone)),
    }
    asked |= {name: lambda one, other=other: other.search(one, K) for name, other in others.items()}
    seconds = in_rows(asked, index, singles, repeats)
    print(f"\nC = {C}, {len(X):,} rows, one query at a time, {ROW} in a row, ms a query")
    for name, values in seconds.items():
        print(f"  {name:<28}{spread(values, 1e3 / ROW)}   {median(values) / median(seconds['ours']):6.2f} × ours")
    print_bandwidth(index, seconds)
    beyond_caches(index, singles, repeats)

    fast = others["IndexPQFastScan"]
    tasks = {
        "ours": lambda: index.search(batch, K),
        "ours, 1 % kept": lambda: index.search(batch, K, mask),
        "IndexPQFastScan": lambda: fast.search(batch, K),
    }
    seconds = alternate(tasks, max(3, repeats // 3))
    print("  64 queries, ms a query")
    for name, values in seconds.items():
        print(f"  {name:<28}{spread(values, 1e3 / 64)}   {median(values) / median(seconds['ours']):6.2f} × ours")
    truth = nearest(X, batch, K)
    for name, found in (("ours", index.search(batch, K)[1]), ("IndexPQFastScan", fast.search(batch, K)[1])):
        print(f"  recall@10 {name:<18}{(found[:, :, None] == truth[:, None]).any(axis=2).mean():.3f}")


def print_bandwidth(index: gk.FlatIndex, seconds: dict[str, list[float]]) -> None:
    """Bytes of codes that a query scans in a second, and that are read in the number of streams that is fastest."""
    size = sum(segment.blocks.nbytes for segment in index._state.segments)
    scanning = size * ROW / median(seconds["ours"]) / 1e9
    reading = size * ROW / min(median(seconds[f"reading, {streams} streams"]) for streams in STREAMS) / 1e9
    share = f"{scanning:.1f} GB/s scanned, {reading:.1f} GB/s read: {scanning / reading:.0%}"
    print(f"  {size / 1e6:.0f} MB of codes: {share}")


BEYOND = 8
"""Times that the codes are repeated to lie far beyond any cache: there memory is the limit."""


def beyond_caches(index: gk.FlatIndex, singles: np.ndarray, repeats: int) -> None:
    """A query over codes that no cache holds, and reading them alone."""
    large = gk.FlatIndex(index.est, n_jobs=1)
    large.add_codes(np.tile(index.codes()[1], (BEYOND, 1)))
    print_bandwidth(large, in_rows({"ours": lambda one: large.search(one, K)}, large, singles, repeats))


LISTS = 1024
PROBES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 512, 1024)


def in_lists(learn: np.ndarray, base: np.ndarray) -> gk.IVFIndex:
    """Base in lists, by plain training, which takes a minute; kept in results/."""
    folder = RESULTS / f"search-ivf{LISTS}-photosift"
    if not folder.exists():
        RESULTS.mkdir(exist_ok=True)
        est = gk.GroupKMeans(8, relaxation=0, effort=2, max_iter=30, random_state=0)
        index = gk.IVFIndex(est, LISTS, random_state=0).train(learn)
        index.add(base)
        index.save(folder)
    return gk.open_index(folder, n_jobs=1)


def recall_at(found: np.ndarray, truth: np.ndarray) -> float:
    """Share of the true neighbours among those found."""
    return float((found[:, :, None] == truth[:, None, : found.shape[1]]).any(axis=2).mean())


def faiss_lists(index: gk.IVFIndex, learn: np.ndarray, base: np.ndarray) -> dict[str, faiss.Index]:
    """Faiss's inverted files of 8 bytes, filled."""
    pq = faiss.index_factory(P, f"IVF{LISTS},PQ8")
    pq, _ = trained_faiss(f"ivf{LISTS}-pq-photosift", pq, learn.astype(np.float32), 2)
    pq.add(base.astype(np.float32))
    return {f"IVF{LISTS},PQ8": pq, f"IVF{LISTS},LSQ8x8_Nqint8": gk.to_faiss(index)}


def compare_lists(learn: np.ndarray, base: np.ndarray, query: np.ndarray, truth: np.ndarray, repeats: int) -> None:
    """Queries a second at equal recall@10, ours and Faiss's in turns."""
    index, Q = in_lists(learn, base), query.astype(np.float32)
    ours = {m: recall_at(index.search(Q, K, n_probe=m)[1], truth) for m in PROBES}
    unit = 1e6 / len(Q)
    for name, peer in faiss_lists(index, learn, base).items():
        print(f"\n{name}, {len(base):,} rows, {len(Q):,} queries together, µs a query")
        for m in (4, 16, 64):
            peer.nprobe = m
            theirs = recall_at(peer.search(Q, K)[1], truth)
            # byte norms differ in their levels: a thousandth is equal
            enough = [own for own in PROBES if ours[own] >= theirs - 1e-3]
            if not enough:
                most = max(ours.values())
                print(f"  Faiss   n_probe {m:>3}, recall@10 {theirs:.3f}: ours does not reach it, {most:.3f}")
                continue
            fewest = min(enough)
            tasks = {
                "ours": lambda own=fewest: index.search(Q, K, n_probe=own),
                "Faiss": lambda peer=peer: peer.search(Q, K),
            }
            seconds = alternate(tasks, repeats)
            print(f"  ours    n_probe {fewest:>3}, recall@10 {ours[fewest]:.3f}  {spread(seconds['ours'], unit)}")
            print(f"  Faiss   n_probe {m:>3}, recall@10 {theirs:.3f}  {spread(seconds['Faiss'], unit)}")
            print(f"  {median(seconds['Faiss']) / median(seconds['ours']):.2f} × Faiss's queries a second")


def compare_coarse(X: np.ndarray, query: np.ndarray, repeats: int) -> None:
    """The 16 nearest of many lists."""
    Q = query.astype(np.float32)
    for n_lists in (4096, 16_384, 131_072):
        est = gk.GroupKMeans(8, 16, relaxation=0, order=1, effort=0, max_iter=2, init_iter=2, random_state=0)
        index = gk.IVFIndex(est, n_lists=n_lists, random_state=0)
        start = time.perf_counter()
        index.add(X)
        print(
            f"\n{n_lists:,} lists, {len(X):,} rows added in {time.perf_counter() - start:.0f} s by all threads", end=""
        )
        print(f", the largest list {index.list_sizes().max()}; {len(Q):,} queries together, µs a query")
        lookup, flat = index._lookup, faiss.IndexFlatL2(P)
        flat.add(lookup.coarse.centres)
        asked = (*lookup.prepared(Q), 16)
        tasks = {"ours": partial(lookup.coarse.probe, *asked), "Faiss": partial(flat.search, Q, 16)}
        seconds = alternate(tasks, repeats)
        found, exact = (task()[1] for task in tasks.values())
        for name, values in seconds.items():
            print(f"  {name:<8}{spread(values, 1e6 / len(Q))}   {median(values) / median(seconds['ours']):6.2f} × ours")
        share = (found[:, :, None] == exact[:, None]).any(axis=2).mean()
        print(f"  {share:.4f} of the 16 nearest lists are found", flush=True)


PEERS = ["lsq", "rq", "opq"]


def recalls(
    name: str,
    lengths: list[int],
    others: list[str],
    learn: np.ndarray,
    base: np.ndarray,
    query: np.ndarray,
    truth: np.ndarray,
) -> None:
    """Recall@1, 10 and 100 at so many bytes."""
    floats, rows, asked = learn.astype(np.float32), base.astype(np.float32), query.astype(np.float32)
    for C in lengths:
        est = model(name, C, learn)
        codes = est.encode(base)
        print(f"\n{name}, {C} bytes: recall@1, 10, 100", flush=True)
        for kind in ("ours", "ours, float norms", *others):
            if kind.startswith("ours"):
                index = gk.FlatIndex(est, norms="float" if "float" in kind else "byte")
                index.add_codes(codes)
                found = index.search(asked, 100)[1]
            else:
                peer, _ = trained_faiss(f"{kind}-{name}-{8 * C}", faiss_index(kind, base.shape[1], C), floats, 2)
                decoded = faiss.IndexFlatL2(base.shape[1])
                decoded.add(peer.sa_decode(peer.sa_encode(rows)))
                found = decoded.search(asked, 100)[1]
            print(f"  {kind:<18}" + "".join(f"{recall(found, truth, R):8.4f}" for R in (1, 10, 100)), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--dictionaries", type=int, nargs="+", default=[8, 16])
    parser.add_argument("--recall", action="store_true")
    parser.add_argument("--dataset", choices=["photosift", "mnist"], nargs="+", default=["photosift", "mnist"])
    parser.add_argument("--peers", choices=PEERS, nargs="*", default=PEERS)
    parser.add_argument("--only", choices=["flat", "ivf", "lists", "recall"])
    options = parser.parse_args()
    print(machine())
    learn, base, query = (np.array(photosift(name)) for name in ("learn", "base", "query"))
    truth = np.asarray(vectors.read(Path(DATA) / "photosift" / "groundtruth.ivecs"))
    faiss.omp_set_num_threads(1)
    if options.only in (None, "flat"):
        X = repeated(base, options.rows)
        for C in options.dictionaries:
            compare(C, X, learn, query, options.repeats)
    if options.only in (None, "ivf"):
        compare_lists(learn, base, query, truth, options.repeats)
    if options.only == "lists":
        compare_coarse(repeated(base, 1_000_000), query, options.repeats)
    if options.recall or options.only == "recall":
        faiss.omp_set_num_threads(2)
        if "photosift" in options.dataset:
            recalls("photosift", options.dictionaries, options.peers, learn, base, query, truth)
        if "mnist" in options.dataset:
            images = np.array(mnist())
            tests = np.array(vectors.read(DATA / "mnist" / "t10k-images-idx3-ubyte.gz"))
            recalls("mnist", options.dictionaries, options.peers, images, images, tests, nearest(images, tests, 1))


if __name__ == "__main__":
    main()
