"""One optimiser step: anchors, tensors, loss, gradients, clipping, and what it tells, as raw sums.

A step has one pack of documents or several (gradient accumulation); the loss is divided by the supervised slots of
the *whole* step, so how it is cut into packs changes nothing but rounding. float32 on a CPU, bf16 autocast over
float32 weights on a GPU. A loss or gradient that is no number stops before it touches the weights and names the rows.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from corpus.errors import UserError
from training.anchors import draw_anchors, label_counts
from training.batch import Batch, Document, make_batch
from training.dflash import Drafter
from training.frozen import FrozenTarget
from training.loss import COUNT_EPSILON, SlotLoss, block_loss
from training.walk import precision

GPU_CONTEXT_MULTIPLE = 128


@dataclass(frozen=True)
class StepSettings:
    """What a step needs of a TrainItem."""

    anchors_per_document: int
    labels: str
    loss_weights: str
    """decay or d_pace."""
    gamma: float
    d_pace_alpha: float
    weight_decay: float
    clip: float
    seed: int
    device: str = "cpu"
    activation_checkpointing: bool = False


@dataclass(frozen=True)
class Pack:
    """Documents that go through the drafter together. `number` is its place in the whole run."""

    number: int
    epoch: int
    documents: Sequence[Document]

    @property
    def tokens(self) -> int:
        """Context tokens."""
        return sum(map(len, self.documents))


@dataclass
class CategorySums:
    """Sums over supervised slots of one category. Slot k is at index k - 1."""

    loss: float = 0.0
    """Of unweighted slot losses."""
    slots: int = 0
    correct_by_slot: list[int] = field(default_factory=list)
    total_by_slot: list[int] = field(default_factory=list)
    streak: int = 0
    """Leading correct slots of a block, summed over blocks."""
    blocks: int = 0


@dataclass
class Sums:
    """Raw sums since the last report."""

    steps: int = 0
    loss: float = 0.0
    gradient_norm: float = 0.0
    tokens: int = 0
    by_category: dict[str, CategorySums] = field(default_factory=dict)
    since: float = field(default_factory=time.monotonic)


class Agreement:
    """How often the sampled token is the target's arg max, by category, each document once."""

    def __init__(self) -> None:
        self._by_category: dict[str, tuple[int, int]] = {}

    def take(self) -> tuple[tuple[str, int, int], ...]:
        """(category, agreed, of) since the last time."""
        taken = tuple((name, *own) for name, own in sorted(self._by_category.items()))
        self._by_category = {}
        return taken

    def count(self, pack: Pack) -> None:
        """Documents of the first epoch, so that none counts twice."""
        if pack.epoch:
            return
        for document in pack.documents:
            if document.teacher_T is None or (document.teacher_T < 0).all():
                continue
            supervised = torch.tensor(document.loss_mask[1:], dtype=torch.bool)
            same = document.teacher_T[:-1] == document.input_ids_T[1:]
            agreed, of = self._by_category.get(document.category, (0, 0))
            self._by_category[document.category] = (
                agreed + int(same[supervised].sum()),
                of + int(supervised.sum()),
            )


def make_optimizer(drafter: Drafter, weight_decay: float) -> Any:
    """AdamW; matrices decay, norms do not."""
    parameters = list(drafter.parameters())
    groups = [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups)


def draw_pack(settings: StepSettings, pack: Pack) -> list[list[int]]:
    """Anchors of each document of a pack."""
    return [
        draw_anchors(
            document.loss_mask,
            settings.anchors_per_document,
            seed=settings.seed,
            epoch=pack.epoch,
            response_id=document.response_id,
        )
        for document in pack.documents
    ]


def make_step_batch(
    settings: StepSettings, drafter: Drafter, documents: Sequence[Document], anchors: Sequence[Sequence[int]]
) -> Batch:
    """The tensors of a pack."""
    return make_batch(
        documents,
        anchors,
        block_size=drafter.shape.block_size,
        mask_token_id=drafter.shape.mask_token_id,
        labels=settings.labels,
        device=settings.device,
        pad_context_to=1 if settings.device == "cpu" else GPU_CONTEXT_MULTIPLE,
    )


def batch_loss(settings: StepSettings, drafter: Drafter, target: FrozenTarget, batch: Batch) -> SlotLoss:
    """Drafter, supervised slots alone through the head, loss."""
    with precision(settings.device):
        embeddings_QH = target.embed(batch.block_tokens_Q)
        hidden_QH = drafter(
            batch.states_TNH,
            batch.position_T,
            embeddings_QH,
            batch.visibility,
            checkpoint_layers=settings.activation_checkpointing,
        )
    return block_loss(
        hidden_QH[batch.supervised_M],
        target,
        batch.label_M,
        batch.slot_M,
        weighting=settings.loss_weights,
        gamma=settings.gamma,
        alpha=settings.d_pace_alpha,
        normed_MH=batch.normed_MH if settings.labels == "kl" else None,
    )


class Stepper:
    """Drafter and optimiser, one step at a time."""

    def __init__(self, settings: StepSettings, drafter: Drafter, target: FrozenTarget) -> None:
        self.settings, self.drafter, self.target = settings, drafter, target
        self.optimizer = make_optimizer(drafter, settings.weight_decay)
        self.sums = Sums()

    @property
    def learned(self) -> bool:
        """Whether the weights have ever had a gradient, in this run or before its checkpoint."""
        return any(float(state["step"]) > 0 for state in self.optimizer.state.values())

    def step(self, packs: Sequence[Pack], lr: float) -> int:
        """One optimiser step over packs, if they have anything to learn from; returns its supervised slots.

        Raises:
            UserError: the loss or its gradient is no number; the weights are as before.
        """
        block_size = self.drafter.shape.block_size
        anchors = [draw_pack(self.settings, pack) for pack in packs]
        supervised = [
            sum(
                sum(label_counts(document.loss_mask, drawn, block_size))
                for document, drawn in zip(pack.documents, of_pack, strict=True)
            )
            for pack, of_pack in zip(packs, anchors, strict=True)
        ]
        total = sum(supervised)
        self.sums.steps += 1
        self.sums.tokens += sum(pack.tokens for pack in packs)
        if not total:
            return 0
        self.optimizer.zero_grad(set_to_none=True)
        losses = []
        for pack, of_pack, count in zip(packs, anchors, supervised, strict=True):
            if not count:
                continue
            batch = make_step_batch(self.settings, self.drafter, pack.documents, of_pack)
            result = batch_loss(self.settings, self.drafter, self.target, batch)
            part = result.loss if count == total else result.loss * ((count + COUNT_EPSILON) / (total + COUNT_EPSILON))
            part.backward()
            losses.append(part.detach())
            self._count(batch, result, pack.documents)
        norm = torch.nn.utils.clip_grad_norm_(self.drafter.parameters(), self.settings.clip)
        loss, gradient_norm = float(sum(losses)), norm.item()
        if not (math.isfinite(loss) and math.isfinite(gradient_norm)):
            raise UserError(no_number(loss, gradient_norm, packs))
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.optimizer.step()
        self.sums.loss += loss
        self.sums.gradient_norm += gradient_norm
        return total

    def take_sums(self) -> Sums:
        """The sums since the last time."""
        sums, self.sums = self.sums, Sums()
        return sums

    def _count(self, batch: Batch, result: SlotLoss, documents: Sequence[Document]) -> None:
        """Sums by category, in a handful of kernels for the whole pack."""
        slots = self.drafter.shape.num_speculative_tokens
        names = sorted({document.category for document in documents})
        category_D = torch.tensor([names.index(document.category) for document in documents])
        category_M = category_D.to(batch.document_M.device)[batch.document_M]
        correct_M = result.predicted_M == batch.label_M
        place_M = category_M * slots + batch.slot_M - 1
        right = torch.bincount(place_M, weights=correct_M.float(), minlength=len(names) * slots)
        totals = torch.bincount(place_M, minlength=len(names) * slots).unflatten(0, (-1, slots)).tolist()
        losses = torch.bincount(category_M, weights=result.each_M, minlength=len(names)).tolist()
        streaks, blocks = streak_sums(batch, correct_M, category_M, len(names), slots)
        for i, (name, by_slot) in enumerate(zip(names, right.unflatten(0, (-1, slots)).tolist(), strict=True)):
            own = self.sums.by_category.setdefault(name, CategorySums())
            own.loss += losses[i]
            own.slots += sum(totals[i])
            own.correct_by_slot = _added(own.correct_by_slot, [int(n) for n in by_slot])
            own.total_by_slot = _added(own.total_by_slot, totals[i])
            own.streak += streaks[i]
            own.blocks += blocks[i]


def streak_sums(
    batch: Batch, correct_M: Any, category_M: Any, categories: int, slots: int
) -> tuple[list[int], list[int]]:
    """(leading correct slots, blocks with a supervised slot), summed by category."""
    block_M = batch.supervised_M // (slots + 1)
    blocks = int(block_M.max()) + 1
    correct_AS = torch.zeros(blocks, slots, dtype=torch.bool, device=correct_M.device)
    correct_AS[block_M, batch.slot_M - 1] = correct_M
    streak_A = correct_AS.long().cumprod(1).sum(1)
    first = batch.slot_M == 1  # every block with labels has one at slot 1
    own = category_M[first]
    streaks = torch.bincount(own, weights=streak_A[block_M[first]].double(), minlength=categories)
    return [int(n) for n in streaks.tolist()], torch.bincount(own, minlength=categories).tolist()


def no_number(loss: float, gradient_norm: float, packs: Sequence[Pack]) -> str:
    """The line that ends a run whose loss is no number."""
    ids = [document.response_id for pack in packs for document in pack.documents]
    more = f" and {len(ids) - 5} more" if len(ids) > 5 else ""
    return (
        f"training: the loss is {loss} and its gradient {gradient_norm}; no weight was changed by it. "
        f"Rows of this step: {', '.join(ids[:5])}{more}. Look at their states, or lower training.learning_rate."
    )


def _added(before: list[int], more: Sequence[int]) -> list[int]:
    return [a + b for a, b in zip(before or [0] * len(more), more, strict=True)]
