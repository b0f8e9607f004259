"""More data than memory: a limit on memory, time a row over n, batches, drift, and fits that are killed.

python benchmarks/scale.py memory [--rows 20000000] [--limit 2.0]    fit and encode a file under a limit, in GB
python benchmarks/scale.py linear [--most 10000000] [--dictionaries 16] [--codewords 16] [--repeats 5]
                                                                     µs a vector to encode, and of a fit's iteration
python benchmarks/scale.py streaming [--rows 100000] [--relaxation 0]   50 batches of photo SIFT against one fit
python benchmarks/scale.py drift [--rows 50000] [--relaxation 0]     photo SIFT turns to patches of MNIST half way
python benchmarks/scale.py resume [--kills 20]                       SIGKILL at random moments

The limit is a cgroup's, by systemd-run where it works, else RLIMIT_AS on what the process may map besides the file.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import gkmeans as gk
from common import alternate, machine, median, mnist, photosift, spread

C, K, P = 8, 256, 128


def peak() -> float:
    """Most memory that was resident, in GB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


def write_rows(path: Path, n: int) -> None:
    """``n`` rows × 128 uint8: sample descriptors, each moved a little, so that no two are equal."""
    base, rng = gk.datasets.load_sample().base, np.random.default_rng(0)
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": (n, P)})
        for start in range(0, n, len(base)):
            some = (
                base[: min(len(base), n - start)].astype(np.int16) + rng.integers(-9, 10, (len(base), P))[: n - start]
            )
            file.write(np.clip(some, 0, 255).astype(np.uint8).tobytes())


def worker(path: Path, folder: Path, limit: float) -> None:
    """Fit on the file and encode it; prints what each took."""
    if limit:
        most = int(limit * 1e9)
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
    start = time.perf_counter()
    est = gk.GroupKMeans(C, K, relaxation=0, order=1, effort=0, max_iter=2, init_iter=2, random_state=0, n_jobs=2)
    est.fit(gk.Batches(path))
    print(f"fit: {time.perf_counter() - start:.0f} s, peak {peak():.2f} GB", flush=True)
    start = time.perf_counter()
    gk.encode_file(est, path, folder / "codes.npy")
    print(f"encode: {time.perf_counter() - start:.0f} s, peak {peak():.2f} GB", flush=True)


def memory(options: argparse.Namespace) -> None:
    """A file larger than the memory allowed."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_rows(folder / "X.npy", options.rows)
        print(
            f"{options.rows:,} × {P} uint8, {(folder / 'X.npy').stat().st_size / 1e9:.2f} GB, limit {options.limit} GB"
        )
        command = [sys.executable, __file__, "worker", str(folder / "X.npy"), str(folder)]
        group = ["systemd-run", "--scope", "--quiet", "-p", f"MemoryMax={options.limit}G", "-p", "MemorySwapMax=0"]
        by_group = shutil.which("systemd-run") and subprocess.run([*group, "true"], capture_output=True).returncode == 0
        print("the limit is a cgroup's" if by_group else "the limit is RLIMIT_AS, of all that is mapped", flush=True)
        extra = [] if by_group else ["--limit", str(options.limit)]
        done = subprocess.run([*(group if by_group else []), *command, *extra])
        print("finished" if done.returncode == 0 else f"FAILED with {done.returncode}")


def linear(options: argparse.Namespace) -> None:
    """Time a vector and time an iteration, over n."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "X.npy"
        write_rows(path, options.most)
        X = np.load(path, mmap_mode="r", allow_pickle=False)
        sizes = options.dictionaries, options.codewords
        est = gk.GroupKMeans(*sizes, relaxation=0, effort=2, max_iter=5, init_iter=5, random_state=0).fit(X[:20000])
        tens = [options.most // part for part in (1000, 100, 10, 1)]
        encoded = alternate({n: lambda n=n: est.encode(X[:n]) for n in tens[1:]}, options.repeats)
        for n, seconds in encoded.items():
            print(f"encode {n:>10,}: {spread(seconds, 1e6 / n)} µs a vector", flush=True)
        print(constant({n: median(seconds) / n for n, seconds in encoded.items()}))
        # seven iterations less four: neither the look at the data nor the codes of the first
        tasks = {(n, last): lambda n=n, last=last: fit_from(est, X[:n], last) for n in tens[:-1] for last in (4, 7)}
        fitted = alternate(tasks, options.repeats)
        each = {n: [(b - a) / 3 / times(n) for a, b in zip(fitted[n, 4], fitted[n, 7], strict=True)] for n in tens[:-1]}
        for n, seconds in each.items():
            print(f"fit    {n:>10,}: {spread(seconds, 1e6 / n)} µs a vector and iteration")
        print(constant({n: median(seconds) / n for n, seconds in each.items()}))


def constant(times: dict[int, float]) -> str:
    """How far times a vector are from the number that is nearest to them all."""
    low, high = min(times.values()), max(times.values())
    return f"within {100 * (high - low) / (high + low):.1f} % of {1e6 * (low + high) / 2:.2f} µs"


def fit_from(est: gk.GroupKMeans, X: np.ndarray, iterations: int) -> None:
    """So many iterations from the dictionaries of another fit; of few rows more than once, to be timed at all."""
    C, K, _ = est.dictionaries_.shape
    for _ in range(times(len(X))):
        gk.GroupKMeans(C, K, init=est.dictionaries_, relaxation=0, tol=0, max_iter=iterations, random_state=0).fit(X)


def times(n: int) -> int:
    """How often a fit of ``n`` rows is made to be timed."""
    return max(1, 100_000 // n)


def streaming(options: argparse.Namespace) -> None:
    """50 batches by partial_fit against one fit on all of them; base encoded afresh."""
    rng = np.random.default_rng(1)
    learn = np.array(photosift("learn"))[rng.permutation(100_000)[: options.rows]]
    base = np.array(photosift("base"))[:: max(1, 197_136 // options.base)]
    size = len(learn) // 50
    est = gk.GroupKMeans(C, K, relaxation=options.relaxation, random_state=0)
    start = time.perf_counter()
    for first in range(0, 50 * size, size):
        est.partial_fit(learn[first : first + size])
    batches = time.perf_counter() - start
    start = time.perf_counter()
    whole = gk.GroupKMeans(C, K, relaxation=options.relaxation, random_state=0).fit(learn)
    seconds = time.perf_counter() - start
    one, other = (model.relative_distortion(base) for model in (est, whole))
    print(f"50 batches of {size}: {one:.5f} after {batches:.0f} s; fit: {other:.5f} after {seconds:.0f} s")
    print(f"batches against fit: {one / other:.4f}")


def patches(n: int, seed: int) -> np.ndarray:
    """Patches of 8 × 16 pixels with ink, from MNIST."""
    images, rng = mnist().reshape(-1, 28, 28), np.random.default_rng(seed)
    out: list[np.ndarray] = []
    while len(out) < n:
        which, row, column = rng.integers(len(images)), rng.integers(21), rng.integers(13)
        patch = images[which, row : row + 8, column : column + 16]
        if patch.sum(dtype=int) > 2000:
            out.append(patch.reshape(-1))
    return np.array(out)


def drift(options: argparse.Namespace) -> None:
    """25 batches of photo SIFT, then 25 of patches, against a fit on the patches alone."""
    size = options.rows // 25
    old, new = np.array(photosift("learn"))[: 25 * size], patches(25 * size, 0)
    test = patches(10_000, 1)
    settings = {"relaxation": options.relaxation, "effort": 4, "random_state": 0}
    est = gk.GroupKMeans(C, K, **settings)
    for X in (old, new):
        for first in range(0, 25 * size, size):
            est.partial_fit(X[first : first + size], decay=options.decay)
        print(f"after 25 batches of {size}: {est.relative_distortion(test):.5f} of the patches", flush=True)
    alone = gk.GroupKMeans(C, K, **settings).fit(new)
    ratio = est.relative_distortion(test) / alone.relative_distortion(test)
    print(f"fit on the patches alone: {alone.relative_distortion(test):.5f}; batches against it: {ratio:.4f}")


def resume(options: argparse.Namespace) -> None:
    """Fits killed at random moments, plain and relaxed, from each start."""
    script = Path(__file__).parents[1] / "tests" / "kill_fit.py"
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, script, folder, str(options.kills), "0"], check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(dest="what", required=True)
    part = parts.add_parser("memory")
    part.add_argument("--rows", type=int, default=20_000_000)
    part.add_argument("--limit", type=float, default=2.0)
    part = parts.add_parser("worker")
    part.add_argument("path", type=Path)
    part.add_argument("folder", type=Path)
    part.add_argument("--limit", type=float, default=0.0)
    part = parts.add_parser("linear")
    part.add_argument("--most", type=int, default=10_000_000)
    part.add_argument("--dictionaries", type=int, default=16)
    part.add_argument("--codewords", type=int, default=16)
    part.add_argument("--repeats", type=int, default=5)
    part = parts.add_parser("streaming")
    part.add_argument("--rows", type=int, default=100_000)
    part.add_argument("--base", type=int, default=25_000)
    part.add_argument("--relaxation", type=float, default=0.0)
    part = parts.add_parser("drift")
    part.add_argument("--rows", type=int, default=50_000)
    part.add_argument("--relaxation", type=float, default=0.0)
    part.add_argument("--decay", type=float, default=0.95)
    part = parts.add_parser("resume")
    part.add_argument("--kills", type=int, default=20)
    options = parser.parse_args()
    if options.what == "worker":
        worker(options.path, options.folder, options.limit)
        return
    print(machine(), f"({os.getloadavg()[0]:.1f} processes beside it)", flush=True)
    {"memory": memory, "linear": linear, "streaming": streaming, "drift": drift, "resume": resume}[options.what](
        options
    )


if __name__ == "__main__":
    main()
