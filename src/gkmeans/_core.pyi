"""Native kernels over one block of rows. Codes are uint16 here whatever the user sees."""

import numpy as np
from numpy.typing import NDArray

_Floats = NDArray[np.float32]
_Codes = NDArray[np.uint16]

def assign(
    V: _Floats,  # (C, n, Kp) products of the rows, or of their residuals, with the codewords; used up
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
    V: _Floats,  # (C, n, Kp) products of the rows with the codewords; used up
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
def decode(
    D: _Floats, codes: _Codes, out: _Floats, level: str | None = None, less: bool = False
) -> None: ...  # into out (n, P), or ``less``: taken away from it
def errors(X: _Floats, D: _Floats, codes: _Codes, out: _Floats, level: str | None = None) -> None: ...
def add_rows(
    X: _Floats,  # (n, P)
    codes: _Codes,  # (n, C)
    grid: NDArray[np.float64],  # (P,) powers of two; rows are rounded to their multiples
    W: NDArray[np.float64],  # (C, K, P)
    level: str | None = None,
) -> None: ...
def count_pairs(
    codes: _Codes, pairs: NDArray[np.int32], Z: list[NDArray[np.int32]], level: str | None = None
) -> None: ...
def minima(
    T: _Floats,  # (B, n, Kp)
    K: int,  # columns that count
    groups: _Floats,  # (B, n, 16) the least of each of up to 16 groups of columns, +inf past the last
    rows: _Floats,  # (B, n or more) the least of each row
    level: str | None = None,
) -> None: ...
def similar_order(D: _Floats, width: int, order: NDArray[np.int32]) -> None: ...  # (K, P), (K,)
def matrix_unit() -> bool: ...
def packed_size(m: int, P: int) -> int: ...
def pack(B: _Floats, out: NDArray[np.uint16]) -> None: ...  # (m, P), (packed_size(m, P),)
def multiply(
    A: _Floats,  # (n, P)
    B: NDArray[np.uint16],  # (G, packed_size(m, P))
    out: _Floats,  # (G, N, m) rows from `first` on
    first: int,
) -> None: ...
def fused_products() -> bool: ...
def multiply_tiles(
    A: _Floats,  # (n, P)
    D: _Floats,  # (G, tiles, P, 32) 32 codewords a tile, those of the last filled up
    out: _Floats,  # (G, N, m) rows from `first` on
    first: int,
) -> None: ...
def coarse_products() -> bool: ...
def coarse_size(m: int, P: int) -> int: ...
def coarse_pack(B: _Floats, out: NDArray[np.uint8]) -> None: ...  # (m, P), (coarse_size(m, P),)
def coarse_multiply(
    A: _Floats,  # (n, P)
    B: NDArray[np.uint8],  # (G, coarse_size(m, P))
    out: _Floats,  # (G, N, m) rows from `first` on, m a multiple of 16
    first: int,
) -> None: ...
def most_together() -> int: ...  # steps of the entries of T that meet in one sum; twice that: of a codeword alone
def swift_pack(
    T: _Floats,  # (C, K, Kp) of dictionary c: T[b, j, k] = ⟨d^b_j, d^c_k⟩
    c: int,
    each: float,
    out: NDArray[np.int16],  # (C, K, C, Ks) its part [:, :, c]
) -> None: ...
def swift_assign(
    X: _Floats,  # (n, P)
    packed: NDArray[np.uint8],  # (C, coarse_size(Ks, P))
    T: NDArray[np.int16],  # (C, K, C, Ks)
    N: _Floats,  # (C, Ks)
    each: float,
    codes: _Codes,  # (n, C) in and out
    start: bool,
    stop: NDArray[np.int32],
    rounds: int = 0,
    seed: int = 0,
    in_turn: bool = False,
) -> None: ...
def products(
    Q: _Floats,  # (n, P)
    D: _Floats,  # (tiles, P, 32) 32 codewords a tile
    out: _Floats,  # (n, W) the first W codewords
    level: str | None = None,
) -> None: ...
def prepared(
    Q: _Floats,  # (n, P)
    shift: _Floats,  # (P,)
    scale: float,
    l2: bool,  # squared distances; else inner products
    rows: _Floats,  # (n, P) out, what codewords are multiplied with
    bias: _Floats,  # (n,) out, what is added to every score
) -> None: ...
def tables(
    Q: _Floats,  # (n, P)
    shift: _Floats,  # (P,)
    scale: float,
    l2: bool,  # squared distances; else inner products
    D: _Floats,  # (tiles, P, 32)
    out: _Floats,  # (n, W)
    bias: _Floats,  # (n,) what is added to every score
    level: str | None = None,
) -> None: ...
def all_below(values: _Floats, limit: float) -> bool: ...  # (n, P) by their size; NaN is not
def pack_mask(
    mask: NDArray[np.bool_],
    words: NDArray[np.uint64],  # out
    level: str | None = None,
) -> int: ...  # how many are true
def same_mask(
    mask: NDArray[np.bool_],  # (n,)
    words: NDArray[np.uint64],  # (ceil(n / 64),) as pack_mask fills them
    level: str | None = None,
) -> bool: ...
def mark_ids(
    ids: NDArray[np.int64],  # (m,)
    first: int,  # rows first, first + 1, …
    n: int,
    keep: NDArray[np.uint64],  # (ceil(n / 64),) rows that may be marked
    words: NDArray[np.uint64],  # in and out
) -> int: ...  # how many are new
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
def probe(
    Q: _Floats,  # (n, P)
    bias: _Floats,  # (n,)
    tiles: _Floats,  # (tiles, P, 32) centres, each group of them in tiles of its own
    norms: _Floats,  # (tiles * 32,) +inf past the end of a group; score = bias + <q, centre> + norm
    starts: NDArray[np.int64],  # (groups + 1,) the first tile of each group
    firsts: NDArray[np.int64],  # (groups + 1,) the first list of each group
    top_tiles: _Floats,  # (tiles, P, 32) centres of the groups, where there are several
    top_norms: _Floats,  # (tiles * 32,)
    wanted: int,  # lists that the groups looked into hold at least
    scores: _Floats,  # (n, m) +inf at first; out, smallest first
    lists: NDArray[np.int64],  # (n, m) -1 at first; out
    level: str | None = None,
) -> None: ...
def rounded_lengths(
    A: _Floats,  # (n, P)
    out: _Floats,  # (2, n) lengths, and those of what rounding to bytes takes away, a little more than they are
) -> None: ...
def nearest_centres(
    Q: _Floats,  # (n, P)
    bias: _Floats,  # (n,)
    rows: _Floats,  # (W, P) centres, W a multiple of 32
    norms: _Floats,  # (W,) at most the squared length, +inf where there is no centre; score = bias + <q, centre> + norm
    packed: NDArray[np.uint8],  # the rows by coarse_pack
    lengths: _Floats,  # (2, W) by rounded_lengths
    scores: _Floats,  # (n, m) +inf at first; out, smallest first
    places: NDArray[np.int64],  # (n, m) -1 at first; out
) -> None: ...
def search_lists(
    blocks: NDArray[np.uint8],
    keep: NDArray[np.uint64],
    ids: NDArray[np.int64],
    first: int,
    bits: int,
    levels: _Floats,
    norms: _Floats,
    offsets: NDArray[np.int64],  # (lists + 1,) rows of a list are offsets[list] to offsets[list + 1]
    tables: _Floats,  # (n, C, Kp)
    lists: NDArray[np.int64],  # (n, m) those that each query asks
    biases: _Floats,  # (n, m) score = max(floor, bias + Σ tables[c, code_c] + norm)
    floor: float,
    scores: _Floats,  # (n, k) as in search
    found: NDArray[np.int64],  # (n, k)
    level: str | None = None,
) -> None: ...
def within_lists(
    blocks: NDArray[np.uint8],
    keep: NDArray[np.uint64],
    ids: NDArray[np.int64],
    first: int,
    bits: int,
    levels: _Floats,
    norms: _Floats,
    offsets: NDArray[np.int64],
    tables: _Floats,  # (C, Kp)
    lists: NDArray[np.int64],  # (1, m)
    biases: _Floats,  # (1, m)
    floor: float,
    limit: float,
    scores: _Floats,  # (room,) out, in no order
    found: NDArray[np.int64],  # (room,) out
    level: str | None = None,
) -> int: ...
def simd_level() -> str: ...
def simd_levels() -> list[str]: ...
