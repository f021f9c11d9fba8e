"""What a training run will be, in sentences, before it begins: how long, from where, on which labels, and what to heed.

Pure: plan and manifest in, sentences out. Steps follow from the packs that the loop trains, bytes of checkpoints from
the number of weights. A warning names the key that it is about and the value that helps.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from corpus.columns import counted
from corpus.manifest import Live, Manifest, Training
from training.begun import Begun, asked_of, nearest
from training.plan import TrainingPlan
from training.progress import Progress

CHECKPOINT_BYTES = 12
"""Of a weight: itself and two moments, float32."""
KEPT = 2
"""Checkpoints that stay: the newest and the best."""
NAMED = 4
"""Things in which the nearest drafter differs that are named."""
SHORT_ID = 12
NOTHING_HELD_OUT = (
    "warning: nothing is held out, so nothing is measured: the last checkpoint is exported, there is no τ, and suggest "
    "and serve-check cannot work. Set mix.holdout, such as 0.02"
)


@dataclass(frozen=True)
class Outlook:
    """Sizes of the whole run."""

    steps: int
    packs: int
    epochs: int
    packs_per_step: int
    checkpoint_every: int

    def sentence(self) -> str:
        """For a person."""
        each = self.packs / self.epochs
        packs = f"{each:,.0f}" if each == int(each) else f"about {each:,.0f}"
        epochs = f"{counted(self.epochs, 'epoch')} of {packs} pack{'s' if each > 1 else ''}"
        step = counted(self.packs_per_step, "pack")
        saved = f"a checkpoint every {self.checkpoint_every:,}"
        return f"{counted(self.steps, 'step')}: {epochs}, {step} a step, {saved}"


def outlook(training: Training, packs: int) -> Outlook:
    """How long a run of so many packs is."""
    each = training.gradient_accumulation
    return Outlook(math.ceil(packs / each), packs, training.epochs, each, training.checkpoint_every)


def standing(progress: Progress, steps: int) -> str:
    """Whether the drafter is new, or where it goes on."""
    if not progress.step:
        return "a new drafter: no checkpoint of it is there"
    best = f", best τ {progress.best_tau:.2f} at step {progress.best_step:,}" if progress.best_tau else ""
    return f"resumes at step {progress.step:,} of {steps:,}{best}"


def others_sentence(plan: TrainingPlan, manifest: Manifest, known: Sequence[Begun]) -> str | None:
    """What else was trained on this build, so that an edit that made another drafter is seen; None for nothing."""
    others = [one for one in known if one.build_id == plan.build_id and one.drafter_id != plan.drafter_id]
    found = nearest(asked_of(plan, manifest), others)
    if found is None:
        return None
    one, names = found
    how = "trained" if one.finished else f"at step {one.step:,} of {one.steps:,}"
    many = "another drafter" if len(others) == 1 else f"{len(others):,} other drafters, the nearest"
    return f"the build has {many}, {one.drafter_id[:SHORT_ID]} ({how}), which differs in {named(names)}"


def named(names: Sequence[str]) -> str:
    """Things in which drafters differ, the first few of them."""
    if not names:
        return "the target's files, or an older draftmill's rules"
    more = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {more} more" if more > 0 else "")


def labels_sentence(plan: TrainingPlan, manifest: Manifest) -> str:
    """What a slot must predict; for `auto`, what that came to."""
    if manifest.training.labels != "auto":
        return f"labels: {manifest.training.labels}"
    return f"labels: {labels_of_auto(plan, manifest)} (auto)"


def labels_of_auto(plan: TrainingPlan, manifest: Manifest) -> str:
    """What `labels: auto` is on the plan's rows, as the loss has it: the teacher's needs a final state."""
    greedy = Counter(row.greedy for own in plan.rows.values() for row in own if not row.holdout)
    greedy.update(row.greedy for row in plan.live)
    teacher = greedy[True] if manifest.extraction.final_state else 0
    sampled = sum(greedy.values()) - teacher
    parts = [f"teacher for {counted(teacher, 'greedy row')}"] * (teacher > 0)
    parts += [f"sampled for {counted(sampled, 'row')}"] * (sampled > 0)
    return ", ".join(parts)


def disk_sentence(weights: int, folder: str) -> str:
    """What the checkpoints take, and where they and the export lie. `folder`: the drafter's."""
    kept = CHECKPOINT_BYTES * KEPT * weights / 1e9
    return f"checkpoints take up to {kept:,.2f} GB; they and the export are written into {folder}"


def warnings(plan: TrainingPlan, manifest: Manifest, tokens_per_pack: int, gpus: int) -> list[str]:
    """What a person should know before the first step.

    Args:
        tokens_per_pack: the budget, `auto` resolved.
        gpus: that are there.
    """
    training, found = manifest.training, []
    longest, answer = max(plan.tokens, default=0), max(plan.answers, default=0)
    if tokens_per_pack < longest:
        over = sum(tokens > tokens_per_pack for tokens in plan.tokens)
        found.append(
            f"warning: {counted(over, 'row')} of {len(plan.tokens):,} {'is' if over == 1 else 'are'} longer than "
            f"training.tokens_per_batch ({tokens_per_pack:,}), up to {longest:,} tokens: each is a pack of its own, so "
            "a pack may be that long"
        )
    if 0 < answer < training.block_size:
        found.append(
            f"warning: training.block_size is {training.block_size:,}, and the longest answer has {answer:,} tokens: "
            f"slots behind {answer - 1:,} are never trained. Lower it to at most {answer:,}"
        )
    if training.feed == "shards" and (training.live != Live() or gpus > 1):
        live = "training.live is not used; " if training.live != Live() else ""
        of = f" of {gpus:,}" if gpus > 1 else ""
        found.append(f"training.feed is shards: {live}one device{of} trains. feed: live takes all devices")
    if not plan.holdout_rows:
        found.append(NOTHING_HELD_OUT)
    return found
