"""Training at a terminal: steps, loss, rate, time left and a table by category, of all drafters together.

Where lines are not rewritten, a line a minute, and one for every checkpoint. Other shells are told by the run's folder.
"""

from __future__ import annotations

import time
from pathlib import Path

from draftmill.terminal import Screen
from draftmill.training_block import (
    LONG_PAST,
    best_line,
    category_lines,
    checkpoint_line,
    idle_lines,
    training_line,
)
from fleet.gang import Depth
from training.headway import Headway, publish_headway
from training.messages import SlotSums, TrainProgress
from training.progress import Progress

PUBLISH_EVERY_S = 2.0
FEW_STEPS = 2
"""Sums of fewer steps are shown as a dash: one step's blocks say nothing of a category."""


class TrainingScreen(Screen):
    """Told by the run."""

    def __init__(self, steps: int = 0, saved: Progress | None = None, folder: Path | None = None) -> None:
        """`saved`: the checkpoint that the run goes on from. `folder`: the run's, where other shells look."""
        super().__init__("loading target, states and drafter")
        self._folder = folder
        self.step, self._steps = saved.step if saved else 0, steps
        self._best: tuple[int, float] | None = None
        if saved and saved.best_tau is not None:
            self._best = (saved.best_step, saved.best_tau)
        self._since_best = 0
        self._first: tuple[int, float] | None = None
        self._last: TrainProgress | None = None
        self._sums: dict[str, SlotSums] = {}
        self._young = True
        self._walked: dict[str, tuple[int, int]] = {}
        self._rates: dict[int, float] = {}
        self._queue: Depth | None = None
        self._stops = False
        self._left_s: float | None = None
        self._published_at = 0.0
        self._publish(now=True)

    def show(self, progress: TrainProgress) -> None:
        """Called by the run for every progress message."""
        now = time.monotonic()
        if progress.worker == 0:
            self._best = None if progress.best_tau is None else (progress.best_step, progress.best_tau)
        if not progress.own_steps and not progress.saved:  # before the first step: another checkpoint is the best
            self._publish(now=True)
            return
        if self._first is None:
            self._first = (progress.step, now)  # a resumed run has done steps that took none of this time
        elif progress.step > self._first[0]:
            self._left_s = (now - self._first[1]) / (progress.step - self._first[0]) * (progress.steps - progress.step)
        self._walked |= progress.acceptance
        if progress.own_steps:
            self._rates[progress.worker] = progress.tokens_per_s
            self._sums, self._young = progress.by_category, progress.own_steps < FEW_STEPS
        self._last = progress
        self.step, self._steps = max(self.step, progress.step), progress.steps
        line = training_line(progress, sum(self._rates.values()), self._left_s, self._queue)
        if progress.saved:
            self._since_best = 0 if progress.best_step == progress.step else self._since_best + 1
            if not self._stops and self._live is None:
                self.update(checkpoint_line(progress), now=True)
                if self._best is not None and self._since_best == LONG_PAST:
                    self.update(best_line(self._best, self._since_best), now=True)
        if not self._stops:
            self.update(line)
        self._publish(now=progress.saved)

    def fed(self, depth: Depth) -> None:
        """Called every few seconds by a run that is fed live."""
        self._queue = depth

    def lines(self, width: int, height: int) -> list[str]:
        """The line, and below it the table as far as there is room."""
        shown = super().lines(width, height)
        if self._best is not None:
            shown.append(f"{self._indent}{best_line(self._best, self._since_best)}")
        last, queue = self._last, self._queue  # replaced by the run meanwhile, never changed
        if last is not None:
            shown += [f"{self._indent}{line}" for line in category_lines(self._sums, self._walked, young=self._young)]
        if queue is not None:
            shown += [f"{self._indent}{line}" for line in idle_lines(queue)]
        return shown[:height]

    def stopping(self) -> None:
        """An interrupt was asked for."""
        self._stops = True
        self.update("stopping at a checkpoint; Ctrl-C again stops at once", now=True)
        self._publish(now=True)

    def _publish(self, *, now: bool) -> None:
        at, last, best = time.monotonic(), self._last, self._best
        if self._folder is None or (not now and at - self._published_at < PUBLISH_EVERY_S):
            return
        self._published_at = at
        publish_headway(
            self._folder,
            Headway(
                step=self.step,
                steps=self._steps,
                updated_at=time.time(),
                loss=last.loss if last else None,
                tokens_per_s=sum(self._rates.values()),
                left_s=self._left_s,
                best_step=best[0] if best else 0,
                best_tau=best[1] if best else None,
                stopping=self._stops,
            ),
        )
