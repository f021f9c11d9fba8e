"""The training loop: AdamW, cosine with warm-up, clipping, checkpoints, the best one by held-out walk.

float32 on a CPU, bf16 autocast over float32 weights on a GPU. Which documents and anchors a step has follows
from the seed and the step alone (see pack and anchors), so a resumed run takes the very steps that were left.
A loss or gradient that is no number stops the run before it touches the weights, keeps the last checkpoint
and names the rows. Metrics are raw sums since the last report.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from corpus.errors import Retryable, UserError
from training.anchors import draw_anchors
from training.batch import Batch, Document, make_batch
from training.checkpoint import Progress, checkpoints, load_checkpoint, load_weights, save_checkpoint
from training.data import TrainingData
from training.dflash import Drafter
from training.frozen import FrozenTarget
from training.loss import SlotLoss, block_loss
from training.pack import epoch_packs
from training.walk import Acceptance, pooled, precision, walk

DOCUMENTS_AT_ONCE = 64
GPU_CONTEXT_MULTIPLE = 128


@dataclass(frozen=True)
class LoopSettings:
    """What the loop needs of a TrainItem; `fingerprint` names data and settings."""

    fingerprint: str
    epochs: int
    tokens_per_batch: int
    anchors_per_document: int
    gamma: float
    labels: str
    learning_rate: float
    warmup: float
    weight_decay: float
    clip: float
    checkpoint_every: int
    seed: int
    device: str = "cpu"
    eval_rows: int = 256
    report_every: int = 10


@dataclass
class Sums:
    """Raw sums since the last report. Slot k is at index k - 1."""

    steps: int = 0
    loss: float = 0.0
    gradient_norm: float = 0.0
    tokens: int = 0
    correct_by_slot: list[int] = field(default_factory=list)
    total_by_slot: list[int] = field(default_factory=list)
    loss_by_category: dict[str, tuple[float, int]] = field(default_factory=dict)
    since: float = field(default_factory=time.monotonic)


@dataclass(frozen=True)
class Report:
    """What the loop tells about the steps since the last report."""

    step: int
    steps: int
    epoch: int
    lr: float
    sums: Sums
    acceptance: dict[str, Acceptance]


@dataclass(frozen=True)
class LoopResult:
    """The drafter that was passed in holds the best checkpoint's weights afterwards."""

    steps: int
    best_step: int
    best_checkpoint: Path


def learning_rate(step: int, steps: int, peak: float, warmup: float) -> float:
    """Linear over the first `warmup` part of the steps, then a cosine to zero. `step` counts from 0."""
    warm = math.ceil(warmup * steps)
    if step < warm:
        return peak * (step + 1) / warm
    return peak * 0.5 * (1 + math.cos(math.pi * (step - warm) / max(steps - warm, 1)))


def train(
    settings: LoopSettings,
    drafter: Drafter,
    target: FrozenTarget,
    data: TrainingData,
    folder: Path,
    *,
    report: Callable[[Report], None] = lambda _: None,
    stop: Callable[[], bool] = lambda: False,
) -> LoopResult:
    """Train to the end, from the newest checkpoint in `folder` if there is one.

    Raises:
        UserError: the loss is no number, the checkpoint is of another run, or the disk is full.
        Retryable: `stop` said so; a checkpoint was written.
    """
    torch.manual_seed(settings.seed)
    lengths = [data.lengths[i] for i in data.train]
    plan = [
        (epoch, own)
        for epoch in range(settings.epochs)
        for own in epoch_packs(lengths, settings.tokens_per_batch, seed=settings.seed, epoch=epoch)
    ]
    optimizer = make_optimizer(drafter, settings.weight_decay)
    progress = Progress(0, settings.fingerprint)
    if found := checkpoints(folder):
        progress = load_checkpoint(found[-1], drafter, optimizer, settings.fingerprint)
    evaluated = spread(data, settings.eval_rows)
    sums = Sums()
    for step in range(progress.step, len(plan)):
        epoch, own = plan[step]
        lr = learning_rate(step, len(plan), settings.learning_rate, settings.warmup)
        documents = [data.document(data.train[i], target) for i in own]
        _step(settings, drafter, target, optimizer, documents, epoch, lr, sums)
        done = step + 1
        stopping = stop()
        saving = done % settings.checkpoint_every == 0 or done == len(plan) or stopping
        taus: dict[str, Acceptance] = {}
        if saving:
            if not stopping:
                taus = held_out(drafter, target, data, evaluated, settings)
            progress = _advance(progress, done, taus)
            save_checkpoint(folder, drafter, optimizer, progress)
        if saving or done % settings.report_every == 0:
            report(Report(done, len(plan), epoch, lr, sums, taus))
            sums = Sums()
        if stopping and done < len(plan):
            raise Retryable(f"stopped after step {done} of {len(plan)}; run again to go on from there")
    best = folder / f"step-{progress.best_step:08d}"
    load_weights(best, drafter)
    return LoopResult(len(plan), progress.best_step, best)


def make_optimizer(drafter: Drafter, weight_decay: float) -> Any:
    """AdamW; matrices decay, norms do not."""
    parameters = list(drafter.parameters())
    groups = [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups)


def make_step_batch(settings: LoopSettings, drafter: Drafter, documents: Sequence[Document], epoch: int) -> Batch:
    """The tensors of a step: anchors are drawn here."""
    anchors = [
        draw_anchors(
            document.loss_mask,
            settings.anchors_per_document,
            seed=settings.seed,
            epoch=epoch,
            response_id=document.response_id,
        )
        for document in documents
    ]
    return make_batch(
        documents,
        anchors,
        block_size=drafter.shape.block_size,
        mask_token_id=drafter.shape.mask_token_id,
        labels=settings.labels,
        device=settings.device,
        pad_context_to=1 if settings.device == "cpu" else GPU_CONTEXT_MULTIPLE,
    )


def batch_loss(settings: LoopSettings, drafter: Drafter, target: FrozenTarget, batch: Batch) -> SlotLoss:
    """Drafter, supervised slots alone through the head, loss."""
    with precision(settings.device):
        embeddings_QH = target.embed(batch.block_tokens_Q)
        hidden_QH = drafter(batch.states_TNH, batch.position_T, embeddings_QH, batch.visibility)
    return block_loss(
        hidden_QH[batch.supervised_M],
        target,
        batch.label_M,
        batch.slot_M,
        gamma=settings.gamma,
        normed_MH=batch.normed_MH if settings.labels == "kl" else None,
    )


def held_out(
    drafter: Drafter, target: FrozenTarget, data: TrainingData, rows: Sequence[int], settings: LoopSettings
) -> dict[str, Acceptance]:
    """The sequential walk over held-out rows, by category."""
    results: list[tuple[str, Acceptance]] = []
    for start in range(0, len(rows), DOCUMENTS_AT_ONCE):
        documents = [data.document(i, target) for i in rows[start : start + DOCUMENTS_AT_ONCE]]
        walked = walk(drafter, target, documents, tokens_per_batch=settings.tokens_per_batch, device=settings.device)
        results.extend(zip((d.category for d in documents), walked, strict=True))
    return pooled(results)


def spread(data: TrainingData, limit: int) -> list[int]:
    """At most `limit` held-out rows, categories in turn, in the order of the data."""
    by_category: dict[str, list[int]] = defaultdict(list)
    for i in data.holdout:
        by_category[data.rows[i].category].append(i)
    chosen: list[int] = []
    turn = 0
    while len(chosen) < min(limit, len(data.holdout)):
        for own in by_category.values():
            if turn < len(own) and len(chosen) < limit:
                chosen.append(own[turn])
        turn += 1
    return sorted(chosen)


def mean_acceptance_length(taus: dict[str, Acceptance]) -> float | None:
    """Mean over categories (pooled sums would be ruled by the worst one, which drafts most); None: nothing."""
    lengths = [one.acceptance_length for one in taus.values() if one.drafts]
    return sum(lengths) / len(lengths) if lengths else None


def _step(
    settings: LoopSettings,
    drafter: Drafter,
    target: FrozenTarget,
    optimizer: Any,
    documents: Sequence[Document],
    epoch: int,
    lr: float,
    sums: Sums,
) -> None:
    """One optimiser step, if the documents have anything to learn from."""
    sums.steps += 1
    sums.tokens += sum(map(len, documents))
    batch = make_step_batch(settings, drafter, documents, epoch)
    if not len(batch.supervised_M):
        return
    result = batch_loss(settings, drafter, target, batch)
    optimizer.zero_grad(set_to_none=True)
    result.loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(drafter.parameters(), settings.clip)
    loss, gradient_norm = result.loss.item(), norm.item()
    if not (math.isfinite(loss) and math.isfinite(gradient_norm)):
        names = ", ".join(document.response_id for document in documents[:5])
        more = f" and {len(documents) - 5} more" if len(documents) > 5 else ""
        raise UserError(
            f"training: the loss is {loss} and its gradient {gradient_norm}; the last checkpoint is kept. "
            f"Rows of this step: {names}{more}. Look at their states, or lower training.learning_rate."
        )
    for group in optimizer.param_groups:
        group["lr"] = lr
    optimizer.step()
    sums.loss += loss
    sums.gradient_norm += gradient_norm
    _count(sums, batch, result, documents, drafter.shape.num_speculative_tokens)


def _count(sums: Sums, batch: Batch, result: SlotLoss, documents: Sequence[Document], slots: int) -> None:
    correct = (result.predicted_M == batch.label_M).float()
    by_slot = torch.bincount(batch.slot_M - 1, weights=correct, minlength=slots).tolist()
    totals = torch.bincount(batch.slot_M - 1, minlength=slots).tolist()
    sums.correct_by_slot = [a + int(b) for a, b in zip(sums.correct_by_slot or [0] * slots, by_slot, strict=True)]
    sums.total_by_slot = [a + b for a, b in zip(sums.total_by_slot or [0] * slots, totals, strict=True)]
    losses = torch.bincount(batch.document_M, weights=result.each_M, minlength=len(documents)).tolist()
    counts = torch.bincount(batch.document_M, minlength=len(documents)).tolist()
    for document, loss, count in zip(documents, losses, counts, strict=True):
        before = sums.loss_by_category.get(document.category, (0.0, 0))
        sums.loss_by_category[document.category] = (before[0] + loss, before[1] + count)


def _advance(progress: Progress, step: int, taus: dict[str, Acceptance]) -> Progress:
    """The best is the highest mean tau; without held-out rows, or before one is measured, the newest."""
    tau = mean_acceptance_length(taus)
    best_step, best_tau = progress.best_step, progress.best_tau
    if best_tau is None or (tau is not None and tau >= best_tau):
        best_step, best_tau = step, tau
    return replace(progress, step=step, tau=tau, best_step=best_step, best_tau=best_tau)
