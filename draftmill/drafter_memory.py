"""What training a drafter takes of its device, estimated from manifest, plan and target before anything is loaded."""

from __future__ import annotations

from dataclasses import dataclass

from corpus.model_config import text_config
from draftmill.session import Session
from fleet.devices import Device
from training.memory import Estimate, estimate
from training.plan import TrainingPlan, computes_again, largest_pack, pack_budget
from training.shape import shape_for_target


@dataclass(frozen=True)
class DrafterMemory:
    """The largest pack, and the memory of a step over it."""

    device: Device
    tokens: int
    anchors: int
    estimate: Estimate

    def text_lines(self) -> list[str]:
        """For a person, a sentence each."""
        largest = sorted(self.estimate.lines, key=lambda line: -line.size_bytes)[:2]
        parts = ", ".join(f"{line.size_bytes / 1e9:.2f} {line.name}" for line in largest)
        lines = [
            f"packs of at most {self.tokens:,} tokens and {self.anchors:,} anchors",
            f"a drafter takes about {self.estimate.total_bytes / 1e9:.2f} GB: {parts}",
        ]
        if self.device.memory_bytes and self.estimate.total_bytes > self.device.memory_bytes:
            lines.append(
                f"warning: {self.device.label} has {self.device.memory_bytes / 1e9:.2f} GB; lower "
                "training.anchors_per_document or tokens_per_batch, or set activation_checkpointing: true"
            )
        return lines


def drafter_memory(session: Session, plan: TrainingPlan, device: Device) -> DrafterMemory:
    """The estimate for the device that a drafter of this plan is trained on."""
    section = session.manifest.training
    on_gpu = device.kind != "cpu"
    tokens, anchors = largest_pack(plan, pack_budget(section.tokens_per_batch, device), section.anchors_per_document)
    shape = shape_for_target(
        session.target.folder,
        target_layer_ids=plan.layer_ids,
        draft_layers=section.draft_layers,
        block_size=section.block_size,
        mask_token_id=0,
        sliding_layers=section.sliding_layers,
        sliding_window=section.sliding_window,
    )
    found = estimate(
        shape,
        tokens_per_batch=tokens,
        anchors=anchors,
        on_gpu=on_gpu,
        checkpoint_layers=computes_again(section.activation_checkpointing, device),
        kl=section.labels == "kl",
        tied=bool(text_config(session.target.config).get("tie_word_embeddings")),
        # fed live, packs lie on the device as they come: those of a step, and one that is handed ahead
        packs_on_device=section.gradient_accumulation + on_gpu if section.feed == "live" else 1,
    )
    return DrafterMemory(device, tokens, anchors, found)
