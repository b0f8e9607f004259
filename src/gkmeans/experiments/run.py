"""Runs of cells: those in the store are skipped, the others are made in turn, with the time left."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from .._progress import logger
from .store import Cell, Key, Store, of_other_code, told


@dataclass(frozen=True)
class Job:
    """A cell to be made: its key, how much work it is, and its maker; ``before`` is its key in earlier versions."""

    title: str
    key: Key
    work: float
    make: Callable[[], Cell]
    iterations: int = 1
    before: Key | None = None


def run(title: str, store: Store, jobs: Sequence[Job], progress: bool) -> list[Cell]:
    """The cells of ``jobs`` in their order; each is kept as soon as it is made."""
    found = [_kept(store, job) for job in jobs]
    there = [cell for cell in found if cell is not None]
    if others := of_other_code(there):
        logger.warning("%s in %s: %s", title, store.folder, told(others, len(jobs)))
    missing = [job for job, cell in zip(jobs, found, strict=True) if cell is None]
    board = Board(title, missing, progress and bool(missing))
    try:
        with board.shown():
            for place, job in enumerate(jobs):
                if found[place] is None:
                    board.begin(job)
                    found[place] = job.make()
                    board.end(job)
    except KeyboardInterrupt:
        kept = sum(cell is not None for cell in found)
        logger.warning(
            "%s was stopped: %d of %d cells are kept in %s; the same command goes on from there, and a long fit from "
            "its last iteration",
            *(title, kept, len(jobs), store.cells),
        )
        raise
    return [cell for cell in found if cell is not None]


def _kept(store: Store, job: Job) -> Cell | None:
    cell = store.find(job.key)
    return store.find(job.before) if cell is None and job.before is not None else cell


class Board:
    """The bar over the cells; the time left goes by their work, not by their number."""

    def __init__(self, title: str, jobs: Sequence[Job], progress: bool) -> None:
        self.count, self.made = len(jobs), 0
        self.total = sum(job.work for job in jobs)
        self.done = 0.0
        self.job: Job | None = None
        self.steps = 0
        self.started = time.monotonic()
        self.bar = Progress(
            TextColumn("{task.description}"),
            TextColumn("{task.fields[cell]}"),
            BarColumn(bar_width=16),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
            TextColumn("left {task.fields[left]}"),
            console=Console(stderr=True),
            disable=not progress,
        )
        self.task = self.bar.add_task(title, total=self.total, cell="", note="", left="?")

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Show the bar and listen to the iterations that the estimators log."""
        before, effective = logger.level, logger.getEffectiveLevel()

        def listen(record: logging.LogRecord) -> bool:
            if isinstance(record.args, tuple) and len(record.args) == 5:
                _, stage, iteration, most, distortion = record.args
                self.step(f"{stage} {iteration}/{most}, {distortion:.5f}")
            return record.levelno >= effective  # who did not ask for these lines does not get them

        logger.addFilter(listen)
        logger.setLevel(min(effective, logging.INFO))
        try:
            with self.bar:
                yield
        finally:
            logger.setLevel(before)
            logger.removeFilter(listen)

    def begin(self, job: Job) -> None:
        """Turn to the next cell."""
        self.job, self.steps = job, 0
        self._show("")

    def step(self, note: str) -> None:
        """One iteration of the cell is done."""
        self.steps += 1
        self._show(note)

    def end(self, job: Job) -> None:
        """The cell is made and kept."""
        self.done += job.work
        self.made += 1
        self.job = None
        self._show("")

    def worked(self) -> float:
        """Work done, the iterations of the present cell too; a cell is not done before it is kept."""
        if self.job is None:
            return self.done
        return self.done + self.job.work * min(0.99, self.steps / self.job.iterations)

    def left(self, now: float) -> float | None:
        """Seconds left at the pace so far, or None before there is one."""
        worked = self.worked()
        return (now - self.started) * (self.total - worked) / worked if worked > 0 else None

    def _show(self, note: str) -> None:
        left = self.left(time.monotonic())
        text = "?" if left is None else f"{int(left) // 3600}:{int(left) // 60 % 60:02}:{int(left) % 60:02}"
        cell = f"{self.made}/{self.count}" if self.job is None else f"{self.made + 1}/{self.count} {self.job.title}"
        self.bar.update(self.task, completed=self.worked(), cell=cell, note=note, left=text)
