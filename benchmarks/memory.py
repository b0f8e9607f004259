"""Peak memory of encoding 2,000,000 × 128 from a memory-mapped uint8 file, beyond what the process had before.

python benchmarks/memory.py [--rows 2000000] [--threads 2]
"""

from __future__ import annotations

import argparse
import resource
import tempfile
from pathlib import Path

import numpy as np

import gkmeans as gk
from common import machine


def resident() -> int:
    """Resident bytes now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    print(machine(), flush=True)
    sample = gk.datasets.load_sample()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.safetensors"
        gk.GroupKMeans(8, relaxation=0, effort=2, random_state=0, max_iter=5, init_iter=5).fit(
            sample.learn[:5000]
        ).save(path)
        big = np.memmap(Path(folder) / "big.u8", np.uint8, "w+", shape=(options.rows, 128))
        for start in range(0, options.rows, len(sample.base)):
            stop = min(start + len(sample.base), options.rows)
            big[start:stop] = sample.base[: stop - start]
        big.flush()
        del big
        big = np.memmap(Path(folder) / "big.u8", np.uint8, "r", shape=(options.rows, 128))
        model = gk.load(path)
        model.n_jobs = options.threads
        model.encode(sample.base[:2000])
        before = resident()
        Path("/proc/self/clear_refs").write_text("5")  # forget the peak of the fit
        codes = model.encode(big)
        status = Path("/proc/self/status").read_text()
        peak = 1024 * int(status.split("VmHWM:")[1].split()[0])
        print(f"{options.rows:,} × 128 uint8 ({big.nbytes / 1e6:.0f} MB) to {codes.nbytes / 1e6:.0f} MB of codes")
        print(f"peak resident growth: {(peak - before) / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
