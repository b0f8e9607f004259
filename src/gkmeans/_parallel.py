"""Blocks of rows over threads: the only place that starts threads or limits BLAS.

Work is cut into pieces whose bounds depend on the data alone, each piece runs on one thread with BLAS held to one
thread, and results come back in the order of the pieces: the bits are the same for every number of threads.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import lru_cache
from types import TracebackType
from typing import Any, TypeVar

import joblib
import numpy as np
import scipy.linalg.blas  # noqa: F401  scipy brings a BLAS of its own, which the controller must find
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController

Lock = threading.Lock
"""Held by the one thread that changes something others read."""
Item = TypeVar("Item")
Result = TypeVar("Result")

BLOCK_FLOATS = 1 << 21
"""Floats that one block of products may hold: 8 MB a thread."""


def block_rows(width: int) -> int:
    """Rows of a block whose rows need ``width`` floats each: a power of two up to 1024, so that parts of the rows
    that start at a multiple of 1024 have the blocks, and so the roundings, of the whole; and few rows have several.
    """
    return max(16, min(1024, 1 << (max(1, BLOCK_FLOATS // max(1, width)).bit_length() - 1)))


def aligned(*shape: int) -> NDArray[np.float32]:
    """Empty float32 array that starts on a cache line, so that no register's load is split over two."""
    size = math.prod(shape)
    raw = np.empty(size + 15, np.float32)
    first = -(raw.ctypes.data // 4) % 16
    return raw[first : first + size].reshape(shape)


def spans(n: int, size: int) -> list[tuple[int, int]]:
    """Cut ``range(n)`` into ``(start, stop)`` pairs of at most ``size``."""
    return [(start, min(start + size, n)) for start in range(0, n, size)]


def ahead(items: Iterable[Item]) -> Iterator[Item]:
    """The items, each made by a thread of its own while the one before is used."""
    iterator, end = iter(items), object()
    with ThreadPoolExecutor(1, thread_name_prefix="gkmeans-ahead") as pool:
        coming: Future[Any] = pool.submit(next, iterator, end)
        while (item := coming.result()) is not end:
            coming = pool.submit(next, iterator, end)
            yield item


def regrouped(batches: Iterable[NDArray[Any]], size: int) -> Iterator[NDArray[Any]]:
    """The rows of the batches, ``size`` at a time."""
    waiting: list[NDArray[Any]] = []
    count = 0
    for batch in batches:
        waiting.append(batch)
        count += len(batch)
        while count >= size:
            rows = waiting[0] if len(waiting) == 1 else np.concatenate(waiting)
            yield rows[:size]
            waiting, count = [rows[size:]], count - size
    if count:
        yield np.concatenate(waiting)


@contextmanager
def behind(use: Callable[[Item], None]) -> Iterator[Callable[[Item], None]]:
    """A function that hands an item to ``use``, on a thread of its own, once that is done with the item before."""
    under_way: list[Future[None]] = []

    def hand(item: Item) -> None:
        if under_way:
            under_way.pop().result()
        under_way.append(pool.submit(use, item))

    with ThreadPoolExecutor(1, thread_name_prefix="gkmeans-behind") as pool:
        yield hand
        if under_way:
            under_way.pop().result()


def effective_jobs(n_jobs: int | None) -> int:
    """Threads that ``n_jobs`` asks for: None means every core, -2 all but one."""
    return 1 if n_jobs == 1 else int(joblib.effective_n_jobs(-1 if n_jobs is None else n_jobs))


_PATIENCE = 0.5  # seconds that an interrupted call waits for its threads


class _OneBlasThread:
    """Holds BLAS to one thread while any ``Workers`` is at work: the first one in limits, the last one out restores."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._limit: Any = None

    def enter(self) -> None:
        with self._lock:
            if self._users == 0:
                self._limit = _blas().limit(limits=1)
            self._users += 1

    def leave(self) -> None:
        with self._lock:
            self._users -= 1
            if self._users == 0:
                self._limit.restore_original_limits()


_one_blas_thread = _OneBlasThread()


@lru_cache(maxsize=1)
def _blas() -> Any:
    return ThreadpoolController().select(user_api="blas")


class _Pools:
    """Threads that wait for the next call: to start them takes as long as to encode a thousand vectors."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._free: ThreadPoolExecutor | None = None
        self._size, self._process = 0, os.getpid()

    def take(self, n_jobs: int) -> ThreadPoolExecutor:
        """So many threads that nobody uses."""
        with self._lock:
            if self._free is not None and self._size == n_jobs:
                free, self._free = self._free, None
                return free
        return ThreadPoolExecutor(n_jobs, thread_name_prefix="gkmeans")

    def give(self, n_jobs: int, pool: ThreadPoolExecutor, process: int) -> None:
        """They are free again, in the process that took them; those given last are kept."""
        if process != self._process:
            return  # a fork has the pool, but not its threads
        with self._lock:
            before, self._free, self._size = self._free, pool, n_jobs
        if before is not None:
            before.shutdown(wait=False)

    def forget(self) -> None:
        """Keep none, in a fork."""
        self.__init__()  # type: ignore[misc]


_pools = _Pools()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pools.forget)


def in_main_thread() -> bool:
    """Whether this is the thread that Ctrl-C reaches."""
    return threading.current_thread() is threading.main_thread()


class Room(threading.local):
    """Buffers of threads, each with its own."""


class Workers:
    """Threads for one call of the library, and the flag that stops the kernels early.

    Used as a context; the calling thread only waits, so that Ctrl-C reaches it at once. Their buffers are in ``room``,
    where the next call may find them; by default they end with this one. ``here``, the calling thread does all itself,
    whatever ``n_jobs`` says, as suits one that is somebody's worker already.
    """

    def __init__(self, n_jobs: int | None = None, room: Room | None = None, *, here: bool = False) -> None:
        self.n_jobs, self._here = 1 if here else effective_jobs(n_jobs), here
        self.stop = np.zeros(1, np.int32)
        self._room = Room() if room is None else room
        self._futures: Sequence[Future[Any]] = []

    def __enter__(self) -> Workers:
        _one_blas_thread.enter()
        if not self._here:
            self._pool, self._process = _pools.take(self.n_jobs), os.getpid()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self._here:
                return
            # after Ctrl-C kernels see the stop flag; what does not (a long SVD) is left to end by itself
            interrupted = isinstance(error, KeyboardInterrupt)
            running = wait(self._futures, timeout=_PATIENCE if interrupted else None).not_done
            if error is None:
                _pools.give(self.n_jobs, self._pool, self._process)
            else:  # there may be work left that nobody waits for
                self._pool.shutdown(wait=not running, cancel_futures=True)
        finally:
            _one_blas_thread.leave()

    def buffer(self, size: int, use: str = "products") -> NDArray[np.float32]:
        """``size`` floats of this thread's own, one array for each ``use``, used again by the next block.

        Fresh pages cost as much as the work, most of all where memory goes back at once, as in Dask's workers.
        """
        held: dict[str, NDArray[np.float32]] = self._room.__dict__
        if use not in held or held[use].size < size:
            held[use] = aligned(size)
        return held[use][:size]

    def map(self, function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        """Results of ``function`` over ``items``, in their order; the first error ends all of it."""
        if self._here:
            return [function(item) for item in items]
        futures: list[Future[Result]] = []
        self._futures = futures
        try:
            futures.extend(self._pool.submit(function, item) for item in items)
            wait(futures, return_when=FIRST_EXCEPTION)
        except BaseException:
            self.stop[0] = 1
            raise
        finally:
            if any(not future.done() or future.exception() for future in futures):
                for future in futures:
                    future.cancel()
        return [future.result() for future in futures]

    def shares(self, items: Sequence[Item]) -> list[Sequence[Item]]:
        """The items in two tasks a thread, where they are many of equal size."""
        return [items[slice(*span)] for span in spans(len(items), max(1, -(-len(items) // (2 * self.n_jobs))))]

    def map_small(self, function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        """The same as ``map`` for many items of equal size that take less time than to hand them out."""
        parts = self.map(lambda some: [function(item) for item in some], self.shares(items))
        return [result for part in parts for result in part]
