"""What `draftmill train` says before the first step, in the run and in its dry run alike: the plan in sentences."""

from __future__ import annotations

from dataclasses import dataclass

from corpus.model_config import text_config
from draftmill.drafter_memory import drafter_memory
from draftmill.session import Session
from fleet.devices import Device
from training.begun import all_begun, newest_saved
from training.mask_token import mask_sentences
from training.memory import WEIGHTS
from training.outlook import (
    Outlook,
    disk_sentence,
    labels_sentence,
    others_sentence,
    outlook,
    standing,
    warnings,
)
from training.plan import TrainingPlan, pack_budget
from training.progress import Progress

FLOAT32 = 4


@dataclass(frozen=True)
class Brief:
    """The plan for a person, and what the run needs of it again."""

    sentences: tuple[str, ...]
    outlook: Outlook
    saved: Progress
    """Its newest checkpoint."""


def training_brief(session: Session, plan: TrainingPlan, device: Device, packs: int, crew: list[str]) -> Brief:
    """Look at the drafter's folder, the device and the target's tokenizer; write nothing.

    Args:
        device: that the drafter is trained on, the first one if they are several.
        packs: in the whole run.
        crew: what a run that is fed live says of its devices.

    Raises:
        UserError: the drafter's newest checkpoint is damaged.
    """
    manifest, section = session.manifest, session.manifest.training
    ahead = outlook(section, packs)
    folder = session.workspace.drafter(plan.drafter_id)
    saved = newest_saved(folder)
    budget = pack_budget(section.tokens_per_batch, device)
    memory = drafter_memory(session, plan, device)
    others = others_sentence(plan, manifest, all_begun(session.workspace))
    vocab = int(text_config(session.target.config)["vocab_size"])
    sentences = [
        *plan.lines(),
        standing(saved, ahead.steps),
        *([others] if others else []),
        ahead.sentence(),
        labels_sentence(plan, manifest),
        *mask_sentences(session.target.folder, section.mask_token_id, vocab),
        *memory.text_lines(),
        disk_sentence(memory.estimate.of(WEIGHTS) // FLOAT32, str(folder)),
        *crew,
        *warnings(plan, manifest, budget, sum(one.kind != "cpu" for one in session.local_devices)),
    ]
    return Brief(tuple(sentences), ahead, saved)
