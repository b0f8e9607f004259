"""Immutable runs of rows: their codes in blocks of 64, ids, norms, and the bits of those that are still there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .. import _core
from .._files import FileError
from .._rows import Codes, Floats
from .lookup import BLOCK, NO_LISTS, Blocks, Lists, Lookup, aligned, pack, unpack

Ids = NDArray[np.int64]
Words = NDArray[np.uint64]
NO_IDS: Ids = np.empty(0, np.int64)
NO_FLOATS: Floats = np.empty(0, np.float32)
FILTERS = 4
"""Filters that a segment remembers: so many used often, so many that came once."""
FEW = 64
"""One of so many rows, or fewer, are packed at once: that takes half as long again as a scan of all."""
LEVEL_NORMS, LEVEL_BINS = 1 << 20, 1 << 12
"""Norms that show where levels are wanted, and the parts of their range in which they are counted."""
MERGE_ROWS = 1 << 14
"""A shorter last segment is written anew with what is added."""


class Remembered(NamedTuple):
    """A filter: words of the rows it keeps, how many, its ids where it was given by ids, and the rows together."""

    words: Words
    alive: int
    ids: Ids | None
    packed: Segment | None  # where they are few, or the filter is used often
    often: bool  # it came again, or with many queries

    @property
    def rows(self) -> int:
        """Rows that are held together."""
        return 0 if self.packed is None else self.packed.n


@dataclass(frozen=True, eq=False)
class Segment:
    """``n`` rows. ``ids`` is empty where they are ``first``, ``first + 1``, …; ``levels`` where there are no norms.

    Rows of list l are ``offsets[l]`` to ``offsets[l + 1]``, which is empty where there are no lists.
    """

    blocks: Blocks
    n: int
    first: int
    ids: Ids
    levels: Floats
    norms: Floats
    keep: Words
    alive: int
    offsets: Ids = field(default_factory=lambda: NO_IDS)
    file: str = ""
    """Name on disk; empty in memory."""
    dead_file: str = ""
    """Name of the list of rows removed; empty where there is none."""
    _last: list[Remembered] = field(default_factory=list, init=False, repr=False)
    """The last filters that kept few rows: the latest, then those used often, then the others."""

    @classmethod
    def of(cls, codes: Codes, ids: Ids, lookup: Lookup, norms: str, lists: Lists = NO_LISTS) -> Segment:
        """A segment of these codes, list by list where there are lists."""
        n, offsets = len(codes), NO_IDS
        if lookup.n_lists:
            order = np.argsort(lists, kind="stable")
            codes, ids, lists = codes[order], ids[order], lists[order]
            offsets = np.searchsorted(lists, np.arange(lookup.n_lists + 1)).astype(np.int64)
        first, own = int(ids[0]), NO_IDS
        if (ids != ids[0] + np.arange(n)).any():
            first, own = 0, ids
        keep = all_words(n)
        if not lookup.has_norms:
            return cls(pack(codes, lookup.K, None), n, first, own, NO_FLOATS, NO_FLOATS, keep, n, offsets)
        exact = lookup.norms(codes, lists)
        in_float = norms == "float" or lookup.needs_floats(exact, codes)
        levels, byte = quantize(exact, down=in_float)
        floats = exact if in_float else NO_FLOATS
        return cls(pack(codes, lookup.K, byte), n, first, own, levels, floats, keep, n, offsets)

    def all_ids(self) -> Ids:
        """Ids of all rows, removed ones too."""
        return self.ids if len(self.ids) else np.arange(self.first, self.first + self.n)

    def greatest(self, *, read: bool) -> int:
        """The greatest id, removed ones too; -1 where only reading all ids could tell."""
        if not len(self.ids):
            return self.first + self.n - 1
        return int(self.ids.max()) if read else -1

    def mask(self) -> NDArray[np.bool_]:
        """Which rows are there."""
        return bits(self.keep, self.n)

    def live_ids(self) -> Ids:
        """Ids of the rows that are there, in their order."""
        return self.all_ids() if self.alive == self.n else self.all_ids()[self.mask()]

    @cached_property
    def _order(self) -> NDArray[np.intp]:
        return np.argsort(self.ids, kind="stable")

    def find(self, ids: Ids) -> Ids:
        """Row of each id, -1 where it is not there."""
        if len(self.ids):
            place = np.searchsorted(self.ids, ids, sorter=self._order)
            rows = self._order[np.minimum(place, self.n - 1)].astype(np.int64)
            rows[self.ids[rows] != ids] = -1
        else:
            rows = np.where((ids >= self.first) & (ids < self.first + self.n), ids - self.first, -1)
        there = (self.keep[rows >> 6] >> (rows & 63).astype(np.uint64)) & np.uint64(1)
        rows[there == 0] = -1
        return rows

    def without(self, rows: Ids) -> Segment:
        """The same segment with these rows removed."""
        mask = self.mask()
        mask[rows] = False
        keep, alive = counted(mask)
        return self._with_order(replace(self, keep=keep, alive=alive, dead_file=""))

    def named(self, file: str, dead_file: str) -> Segment:
        """The same segment under these names on disk."""
        if (file, dead_file) == (self.file, self.dead_file):
            return self
        out = self._with_order(replace(self, file=file, dead_file=dead_file))
        out._last[:] = self._last
        return out

    def _with_order(self, other: Segment) -> Segment:
        """``other``, which has the same ids, with the order of them where it is known."""
        if "_order" in self.__dict__:
            other.__dict__["_order"] = self._order
        return other

    def again(self, filter: NDArray[np.bool_] | Ids) -> Segment | None:
        """The rows that the same mask (n,), or the same ids, kept the last time, where they were packed together."""
        for last in tuple(self._last):
            if last.packed is None:
                continue
            if filter.dtype == np.bool_:
                same = _core.same_mask(np.ascontiguousarray(filter), last.words)
            else:
                same = last.ids is not None and np.array_equal(filter, last.ids)
            if same:
                self._remember(last._replace(often=True), last)
                return last.packed
        return None

    def kept(self, keep: Words, count: int, often: bool, ids: Ids | None = None) -> Segment:
        """The ``count`` rows of the words alone, which the filter gave by ``ids`` where it did.

        Few rows, and more where they are asked for often or by the same filter again, are packed together, and kept for
        the next time; that they are few is no reason in lists, of which a query visits some alone. Of two threads that
        do so at once the rows of both may stay: that costs room, not the answer.
        """
        if not count or 4 * count > self.n:
            return replace(self, keep=keep, alive=count)
        same = (last for last in tuple(self._last) if last.alive == count and np.array_equal(last.words, keep))
        seen = next(same, None)
        often = often or seen is not None
        if not often and (FEW * count > self.n or len(self.offsets)):
            self._remember(Remembered(keep, count, None, None, often), None)
            return replace(self, keep=keep, alive=count)
        packed = seen.packed if seen is not None else None
        together = self._packed(keep, count) if packed is None else packed
        few = ids is not None and len(ids) <= 2 * count  # those of other segments may be many
        self._remember(Remembered(keep, count, ids.copy() if ids is not None and few else None, together, often), seen)
        return together

    def _remember(self, filter: Remembered, seen: Remembered | None) -> None:
        """Put a filter first, in the place of what was ``seen`` of it; what came once drives out nothing used often.

        All that are packed have no more than a quarter of the rows.
        """
        others = [last for last in tuple(self._last) if last is not seen and last.words is not filter.words]
        kept, rows = [filter], filter.rows
        for often in (True, False):
            for last in [other for other in others if other.often is often][: FILTERS - (filter.often is often)]:
                if 4 * (rows + last.rows) <= self.n:
                    rows += last.rows
                    kept.append(last)
        self._last[:] = kept

    def _packed(self, keep: Words, count: int) -> Segment:
        """The ``count`` rows of the words, together."""
        blocks = aligned((-(-count // BLOCK), *self.blocks.shape[1:]))
        blocks[-1:] = 0
        rows = np.empty(count, np.int64)
        _core.gather(self.blocks, keep, blocks, rows)
        ids = self.ids[rows] if len(self.ids) else rows + self.first
        norms = self.norms[rows] if len(self.norms) else NO_FLOATS
        offsets = np.searchsorted(rows, self.offsets).astype(np.int64)
        return Segment(blocks, count, 0, ids, self.levels, norms, all_words(count), count, offsets)

    def codes(self, rows: Ids, lookup: Lookup) -> Codes:
        """Codes of rows."""
        codes = unpack(self.blocks, rows, lookup.C, lookup.K)
        if codes.size and int(codes.max()) >= lookup.K:  # a file that was opened unread
            raise FileError(
                f"{self.file or 'a segment'} holds code {codes.max()}, but n_codewords={lookup.K}: it is damaged; use "
                "a copy of the folder"
            )
        return codes

    def lists(self, rows: Ids) -> Lists:
        """Lists of rows, where there are lists."""
        return np.searchsorted(self.offsets, rows, side="right") - 1 if len(self.offsets) else NO_LISTS

    def live_rows(self) -> Ids:
        """Rows that are there."""
        return np.flatnonzero(self.mask()).astype(np.int64)


class State(NamedTuple):
    """What a search sees: it is replaced whole, so a search that runs meanwhile keeps its own."""

    segments: tuple[Segment, ...] = ()
    next_id: int = 0


class Rows(NamedTuple):
    """Rows as they are added: ids (n,), codes (n, C) and, where there are lists, lists (n,)."""

    ids: Ids
    codes: Codes
    lists: Lists


def live(segments: Sequence[Segment], lookup: Lookup, after: Rows | None = None) -> Rows:
    """The rows of segments that are there, in their order, and those ``after`` them."""
    parts = [Rows(NO_IDS, np.empty((0, lookup.C), np.uint8 if lookup.K <= 256 else np.uint16), NO_LISTS)]
    for segment in segments:
        rows = segment.live_rows()
        parts.append(Rows(segment.live_ids(), segment.codes(rows, lookup), segment.lists(rows)))
    parts += [after] if after is not None else []
    return Rows(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def quantize(norms: Floats, *, down: bool) -> tuple[Floats, NDArray[np.uint8]]:
    """256 levels from the least to the greatest norm, and the byte of each norm.

    The nearest level is within (greatest − least) / 255, or, where ``down``, the greatest level that is not above.
    """
    levels = levels_for(norms)
    if down:
        return levels, np.clip(np.searchsorted(levels, norms, side="right") - 1, 0, 255).astype(np.uint8)
    middle = (levels[1:] + levels[:-1]) / 2
    return levels, np.searchsorted(middle, norms).astype(np.uint8)


def levels_for(norms: Floats) -> Floats:
    """256 levels, half of them spread evenly, half by the cube root of how many norms are near.

    The cube root is what least squares ask for (Panter and Dite 1951); without the even half rare norms would be far
    from any level.
    """
    low, high = float(norms.min()), float(norms.max())
    if low == high:
        return np.full(256, low, np.float32)
    some = norms[:: -(-len(norms) // LEVEL_NORMS)].astype(np.float64)
    counts, edges = np.histogram(some, LEVEL_BINS, (low, high))
    density = np.cbrt(counts)
    density += density.mean()
    below = np.append(0, np.cumsum(density)) / density.sum()
    levels: Floats = np.interp(np.arange(256) / 255, below, edges).astype(np.float32)
    levels[0], levels[-1] = low, high
    return levels


def counted(mask: NDArray[np.bool_]) -> tuple[Words, int]:
    """A bit for each row, 64 rows a word, and how many are set."""
    out = np.empty(-(-len(mask) // BLOCK), np.uint64)
    return out, _core.pack_mask(np.ascontiguousarray(mask), out)


def bits(keep: Words, n: int) -> NDArray[np.bool_]:
    """The mask of words."""
    return np.unpackbits(keep.astype("<u8", copy=False).view(np.uint8), count=n, bitorder="little").view(np.bool_)


def all_words(n: int) -> Words:
    """Words of ``n`` rows that are all there."""
    out = np.full(-(-n // BLOCK), ~np.uint64(0), np.uint64)
    if n % BLOCK:
        out[-1] = (1 << n % BLOCK) - 1
    return out
