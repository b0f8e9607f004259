"""Progress of fits and encodings: ``logging`` always, a ``rich`` bar with the time left where asked for."""

from __future__ import annotations

import copy
import logging
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

logger = logging.getLogger("gkmeans")


class Reporter:
    """Takes the iterations of a fit, or the rows of an encoding, and shows them."""

    def __init__(self, title: str, verbose: int, level: int = logging.INFO) -> None:
        self.title = title
        self.level = level
        self.bar = (
            Progress(
                TextColumn("{task.description}"),
                BarColumn(bar_width=24),
                MofNCompleteColumn(),
                TextColumn("{task.fields[note]}"),
                TimeElapsedColumn(),
                TextColumn("left"),
                TimeRemainingColumn(),
                console=Console(stderr=True),
            )
            if verbose
            else None
        )
        self._task = None if self.bar is None else self.bar.add_task(title, total=None, note="")

    def __enter__(self) -> Reporter:
        if self.bar is not None:
            self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.bar is not None:
            self.bar.stop()

    def named(self, title: str) -> Reporter:
        """The same bar and log for a part of the work with its own title."""
        part = copy.copy(self)
        part.title = title
        return part

    def unseen(self) -> Reporter:
        """The same log for a part of the work that the bar does not count."""
        part = self.named(self.title)
        part.bar = None
        return part

    def expect(self, total: int) -> None:
        """Set the number of steps; fewer may be taken."""
        if self.bar is not None and self._task is not None:
            self.bar.update(self._task, total=total)

    def iteration(self, stage: str, iteration: int, most: int, distortion: float) -> None:
        """One iteration of a stage is done."""
        logger.log(
            self.level,
            "%s, %s, iteration %d of %d: relative distortion %.6f",
            self.title,
            stage,
            iteration,
            most,
            distortion,
        )
        self.step(1, f"{stage}, distortion {distortion:.5f}")

    def stage_done(self, spared: int) -> None:
        """A stage ended with iterations to spare."""
        if self.bar is not None and self._task is not None and spared:
            self.bar.advance(self._task, spared)

    def step(self, count: int, note: str = "") -> None:
        """Count steps."""
        if self.bar is not None and self._task is not None:
            self.bar.update(self._task, advance=count, note=note)
