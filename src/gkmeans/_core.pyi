"""Native kernels over one block of rows. Codes are uint16 here whatever the user sees."""

import numpy as np
from numpy.typing import NDArray

_Floats = NDArray[np.float32]
_Codes = NDArray[np.uint16]

def assign(
    V: _Floats,  # (n, C, Kp) products of the rows, or of their residuals, with the codewords; used up
    T: _Floats,  # (C, C, K, Kp)
    N: _Floats,  # (C, Kp)
    rowmin: _Floats,  # (C, C, Kp)
    groupmin: _Floats,  # (C, C, K, 16)
    codes: _Codes,  # (n, C) in and out
    order: int,  # 0: only the start
    start: bool,  # True: V is of the rows, greedy start; False: of the residuals, from the codes given
    stop: NDArray[np.int32],  # (1,) not 0: return early
    level: str | None = None,
    batch: int = 0,  # rows worked on together; 0 chooses
    rounds: int = 0,  # of perturbed codes assigned anew; the best are kept
    seed: int = 0,
) -> None: ...
def pursue(
    V: _Floats,  # (n, C, Kp) products of the rows with the codewords; used up
    T: _Floats,  # (C, C, K, Kp)
    N: _Floats,  # (C, Kp)
    rowmin: _Floats,  # (C, C, Kp)
    groupmin: _Floats,  # (C, C, K, 16)
    codes: _Codes,  # (n, C) in and out
    n_candidates: int,
    start: bool,  # False: the codes given stay unless a leaf is better
    stop: NDArray[np.int32],  # (1,) not 0: return early
    level: str | None = None,
) -> None: ...
def nearest(V: _Floats, N: _Floats, codes: _Codes, level: str | None = None) -> None: ...
def decode(D: _Floats, codes: _Codes, out: _Floats, level: str | None = None) -> None: ...
def errors(X: _Floats, D: _Floats, codes: _Codes, out: _Floats, level: str | None = None) -> None: ...
def add_rows(
    X: _Floats,  # (n, P)
    codes: _Codes,  # (n, C)
    grid: NDArray[np.float64],  # (P,) powers of two; rows are rounded to their multiples
    W: NDArray[np.float64],  # (C, K, P)
    level: str | None = None,
) -> None: ...
def count_pairs(codes: _Codes, b: int, c: int, Z: NDArray[np.int32], level: str | None = None) -> None: ...
def products(
    Q: _Floats,  # (n, P)
    D: _Floats,  # (tiles, P, 32) 32 codewords a tile
    out: _Floats,  # (n, W) the first W codewords, a multiple of 16
    level: str | None = None,
) -> None: ...
def search(
    blocks: NDArray[np.uint8],  # (blocks, lines, 64) 64 rows a block
    keep: NDArray[np.uint64],  # (blocks,) a bit for each row
    ids: NDArray[np.int64],  # (rows,) or (0,): first + row
    first: int,
    bits: int,  # 4: two dictionaries a line; 8: one; 16: two lines a dictionary
    levels: _Floats,  # (256,) of the norm's byte, the last line; or (0,): no such line
    norms: _Floats,  # (rows,) bounded by their levels from below; or (0,): the levels are the norms
    tables: _Floats,  # (n, C, Kp)
    bias: _Floats,  # (n,)
    floor: float,  # score = max(floor, bias + Σ tables[c, code_c] + norm)
    scores: _Floats,  # (n, k) in and out: heaps of the smallest; +inf at first
    found: NDArray[np.int64],  # (n, k) in and out; -1 at first
    level: str | None = None,
) -> None: ...
def sort_heaps(scores: _Floats, found: NDArray[np.int64]) -> None: ...  # (n, k) best first, from search
def within(
    blocks: NDArray[np.uint8],
    keep: NDArray[np.uint64],
    ids: NDArray[np.int64],
    first: int,
    bits: int,
    levels: _Floats,
    norms: _Floats,
    tables: _Floats,  # (C, Kp)
    bias: float,
    floor: float,
    limit: float,  # the greatest score wanted
    scores: _Floats,  # (room,) out, in no order
    found: NDArray[np.int64],  # (room,) out
    level: str | None = None,
) -> int: ...
def gather(
    blocks: NDArray[np.uint8],  # (blocks, lines, 64)
    keep: NDArray[np.uint64],  # (blocks,)
    out: NDArray[np.uint8],  # (ceil(kept / 64), lines, 64) the rows kept, packed
    rows: NDArray[np.int64],  # (kept,) their numbers
) -> None: ...
def simd_level() -> str: ...
def simd_levels() -> list[str]: ...
