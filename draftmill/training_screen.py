"""Training at a terminal: steps, loss, rate, time left and a table by category, of all drafters together."""

from __future__ import annotations

import time

from draftmill.terminal import Screen
from draftmill.training_block import category_lines, idle_lines, training_line
from fleet.gang import Depth
from training.messages import TrainProgress


class TrainingScreen(Screen):
    """Told by the run; where lines are not rewritten, the line alone is printed now and then."""

    def __init__(self) -> None:
        super().__init__()
        self._first: tuple[int, float] | None = None
        self._last: TrainProgress | None = None
        self._walked: dict[str, tuple[int, int]] = {}
        self._rates: dict[int, float] = {}
        self._queue: Depth | None = None
        self._stops = False

    def show(self, progress: TrainProgress) -> None:
        """Called by the run for every progress message."""
        now = time.monotonic()
        left_s = None
        if self._first is None:
            self._first = (progress.step, now)  # a resumed run has done steps that took none of this time
        elif progress.step > self._first[0]:
            left_s = (now - self._first[1]) / (progress.step - self._first[0]) * (progress.steps - progress.step)
        self._walked |= progress.acceptance
        self._rates[progress.worker] = progress.tokens_per_s
        self._last = progress
        if not self._stops:
            self.update(training_line(progress, sum(self._rates.values()), left_s, self._queue))

    def fed(self, depth: Depth) -> None:
        """Called every few seconds by a run that is fed live."""
        self._queue = depth

    def lines(self, width: int, height: int) -> list[str]:
        """The line, and below it the table as far as there is room."""
        shown = super().lines(width, height)
        last, queue = self._last, self._queue  # replaced by the run meanwhile, never changed
        if last is not None:
            shown += [f"{self._indent}{line}" for line in category_lines(last.by_category, self._walked)]
        if queue is not None:
            shown += [f"{self._indent}{line}" for line in idle_lines(queue)]
        return shown[:height]

    def stopping(self) -> None:
        """An interrupt was asked for."""
        self._stops = True
        self.update("stopping: a checkpoint is written first; Ctrl-C again stops at once", now=True)
