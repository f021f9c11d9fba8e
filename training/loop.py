"""The training loop: packs from a feed, steps, rounds with the other drafters, checkpoints, the best one by walk.

One loop serves both feeds. Which packs there are and which anchors they get follows from the seed alone, so a run
that goes on from a checkpoint trains the very packs that were left. Every member of a team steps on its own packs;
at a round they become one drafter, and the first member saves and measures it. Best is the highest held-out walk.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import torch

from corpus.artefacts import remove_temporaries
from corpus.errors import Retryable, UserError
from training.averaging import Share, Team
from training.checkpoint import has_weights, load_checkpoint, load_weights, save_checkpoint
from training.data import TrainingData
from training.dflash import Drafter
from training.evaluation import EvaluationSettings, held_out, mean_acceptance_length, spread
from training.frozen import FrozenTarget
from training.progress import Progress, checkpoint_name, checkpoints, left_to_do
from training.step import Agreement, Pack, Stepper, StepSettings, Sums
from training.walk import Acceptance

REPORTS = 1000
"""A run tells its figures about so often, but not more than every tenth step."""


@dataclass(frozen=True)
class LoopSettings:
    """What the loop needs of a TrainItem; `fingerprint` names data and settings."""

    fingerprint: str
    packs: int
    """In the whole run."""
    packs_per_step: int
    learning_rate: float
    warmup: float
    checkpoint_every: int
    step: StepSettings
    evaluation: EvaluationSettings

    @property
    def steps(self) -> int:
        """Optimiser steps in the whole run, over all members of a team."""
        return self.steps_of(self.packs)

    @property
    def report_every(self) -> int:
        """Steps between reports."""
        return max(10, self.steps // REPORTS)

    def steps_of(self, packs: int) -> int:
        """Steps that so many packs make."""
        return math.ceil(packs / self.packs_per_step)


class Feed(Protocol):
    """Where packs come from."""

    @property
    def stopped(self) -> bool:
        """The end came because somebody asked for it."""

    def take(self, count: int) -> tuple[int, list[Pack]]:
        """(packs given out before these in the whole run, the next packs: `count`, fewer at the end, none after)."""


@dataclass(frozen=True)
class Report:
    """What the loop tells about the steps since the last report."""

    step: int
    steps: int
    epoch: int
    lr: float
    sums: Sums
    acceptance: dict[str, Acceptance]
    progress: Progress
    """As the newest checkpoint has it; which is the best, the member that leads knows alone."""
    saved: bool = False


@dataclass(frozen=True)
class LoopResult:
    """The first member's drafter holds the best checkpoint's weights afterwards."""

    steps: int
    best_step: int
    best_checkpoint: Path
    agreement: dict[str, tuple[int, int]]


def learning_rate(step: int, steps: int, peak: float, warmup: float) -> float:
    """Linear over the first `warmup` part of the steps, then a cosine to zero. `step` counts from 0."""
    warm = math.ceil(warmup * steps)
    if step < warm:
        return peak * (step + 1) / warm
    return peak * 0.5 * (1 + math.cos(math.pi * (step - warm) / max(steps - warm, 1)))


class ShardFeed:
    """Packs read from shards, in their order, but for those that are done."""

    def __init__(
        self,
        data: TrainingData,
        target: FrozenTarget,
        packs: Sequence[tuple[int, list[int]]],
        done: Sequence[Sequence[int]],
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        self._data, self._target, self._packs, self._stop = data, target, packs, stop
        self._left = list(left_to_do(done, len(packs)))
        self._given = len(packs) - len(self._left)
        self._first = True
        self.stopped = False

    def take(self, count: int) -> tuple[int, list[Pack]]:
        """The next packs; a stop counts between steps."""
        before = self._given
        self.stopped = self.stopped or (not self._first and self._stop())
        if self.stopped:
            return before, []
        self._first = False
        numbers, self._left = self._left[:count], self._left[count:]
        self._given += len(numbers)
        return before, [self._pack(number) for number in numbers]

    def _pack(self, number: int) -> Pack:
        epoch, own = self._packs[number]
        return Pack(number, epoch, [self._data.document(self._data.train[i], self._target) for i in own])


def train(
    settings: LoopSettings,
    drafter: Drafter,
    target: FrozenTarget,
    make_feed: Callable[[Progress], Feed],
    held_out_data: TrainingData | None,
    team: Team,
    folder: Path,
    *,
    report: Callable[[Report], None] = lambda _: None,
    note: Callable[[str], None] = lambda _: None,
) -> LoopResult:
    """Train to the end, from the newest checkpoint in `folder` if there is one.

    Args:
        make_feed: the feed of what a checkpoint has left to do.
        held_out_data: what tau is measured on; the team's first member alone needs it.
        note: told what a person should know besides the figures, in one line.

    Raises:
        UserError: the loss is no number, no row had anything to learn, a checkpoint is of another run, or the disk is
            full.
        Retryable: the feed was stopped; a checkpoint was written.
    """
    leads = team.rank == 0
    stepper, progress = _begin(settings, drafter, target, folder)
    measured = _walks(stepper, held_out_data if leads else None, settings)
    if leads:
        remove_temporaries(folder)  # a killed run's
        resumed, progress = progress, _with_best(progress, folder, measured, note)
        if progress is not resumed:
            report(Report(progress.step, settings.steps, 0, 0.0, stepper.take_sums(), {}, progress))
    agreement, feed = Agreement(), make_feed(progress)
    parameters = list(drafter.parameters())
    pending: list[int] = []
    weight, own_steps, epoch, lr, ended = 0, 0, 0, 0.0, False
    saved_packs = progress.packs
    while not ended:
        given, packs = feed.take(settings.packs_per_step)
        if packs:
            lr = learning_rate(settings.steps_of(given), settings.steps, settings.learning_rate, settings.warmup)
            epoch = packs[-1].epoch
            weight += stepper.step(packs, lr)
            pending += [pack.number for pack in packs]
            for pack in packs:
                agreement.count(pack)
            own_steps += 1
        at_step = settings.steps_of(given + len(packs))
        taus: dict[str, Acceptance] = {}
        saving = False
        if not packs or own_steps % team.every == 0:
            joint = team.join(parameters, Share(weight, tuple(pending), agreement.take(), ended=not packs))
            pending, weight = [], 0
            before, progress = progress, progress.after(joint.done, joint.agreement)
            ended, complete = joint.ended, progress.packs >= settings.packs
            at_step = settings.steps_of(progress.packs)
            due = at_step // settings.checkpoint_every > settings.steps_of(before.packs) // settings.checkpoint_every
            saving = due or ((ended or complete) and progress.packs != saved_packs)
        if saving:
            saved_packs = progress.packs
            team.average_moments(stepper.optimizer)
            if leads and (complete or not feed.stopped):
                taus = measured()
            progress = _advance(progress, at_step, taus)
            if leads:
                save_checkpoint(folder, drafter, stepper.optimizer, progress)
        if (saving and leads) or (ended and stepper.sums.steps) or (packs and own_steps % settings.report_every == 0):
            report(Report(at_step, settings.steps, epoch, lr, stepper.take_sums(), taus, progress, saving and leads))
    if progress.packs < settings.packs:
        raise Retryable(f"stopped after step {progress.step} of {settings.steps}; run again to go on from there")
    if leads:
        _take_best(stepper, folder / checkpoint_name(progress.best_step))
    return LoopResult(
        settings.steps,
        progress.best_step,
        folder / checkpoint_name(progress.best_step),
        {name: (own[0], own[1]) for name, own in progress.agreement.items()},
    )


def _walks(stepper: Stepper, data: TrainingData | None, settings: LoopSettings) -> Callable[[], dict[str, Acceptance]]:
    """The held-out walk by category, on demand; of a drafter that has learned nothing there is none to be the best."""
    rows = spread(data, settings.evaluation.rows) if data else []

    def measured() -> dict[str, Acceptance]:
        if data is None or not rows or not stepper.learned:
            return {}
        return held_out(stepper.drafter, stepper.target, data, rows, settings.evaluation)

    return measured


def _take_best(stepper: Stepper, best: Path) -> None:
    """Put the best checkpoint's weights into the drafter, if it ever had a gradient."""
    if not stepper.learned:
        raise UserError(
            "training: no row had anything to learn: nowhere are there two generated tokens in a row. Nothing was "
            "exported; longer answers are needed (generation.max_tokens)."
        )
    load_weights(best, stepper.drafter)


def _begin(settings: LoopSettings, drafter: Drafter, target: FrozenTarget, folder: Path) -> tuple[Stepper, Progress]:
    """Drafter and optimiser as the newest checkpoint has them, or as they are."""
    torch.manual_seed(settings.step.seed)
    stepper = Stepper(settings.step, drafter, target)
    if found := checkpoints(folder):
        return stepper, load_checkpoint(
            found[-1], drafter, stepper.optimizer, settings.fingerprint, settings.packs, settings.packs_per_step
        )
    return stepper, Progress(0, settings.fingerprint)


def _with_best(
    progress: Progress, folder: Path, measured: Callable[[], dict[str, Acceptance]], note: Callable[[str], None]
) -> Progress:
    """The newest checkpoint's progress; where the best one that it names is not whole, it is the best of the rest."""
    if progress.best_step == progress.step:
        return progress
    best = folder / checkpoint_name(progress.best_step)
    if has_weights(best, progress.fingerprint):
        return progress
    tau = mean_acceptance_length(measured()) if progress.tau is None else progress.tau
    known = "" if tau is None else f" with τ {tau:.3f}"
    note(
        f"{best}: the best checkpoint until now is gone or damaged; step {progress.step:,}{known} is taken for the "
        "best of those that are left, and training goes on from it."
    )
    return replace(progress, tau=tau, best_step=progress.step, best_tau=tau)


def _advance(progress: Progress, step: int, taus: dict[str, Acceptance]) -> Progress:
    """The best is the highest mean tau; without held-out rows, or before one is measured, the newest."""
    tau = mean_acceptance_length(taus)
    best_step, best_tau = progress.best_step, progress.best_tau
    if best_tau is None or (tau is not None and tau >= best_tau):
        best_step, best_tau = step, tau
    return replace(progress, step=step, tau=tau, best_step=best_step, best_tau=best_tau)
