"""The training worker: one item is one drafter, from shards to a measured export.

Spawned by fleet.Pool as "training.worker:create"; items, progress and summaries are msgpack (see messages). It
reads shards and the target's folder, writes below the item's out_dir, and never opens the ledger. Training runs
in a thread, so the process answers meanwhile; progress is emitted from the event loop's own thread. `close`
asks a running item to stop: it writes a checkpoint first and raises Retryable.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import torch

from training.data import TrainingData
from training.dflash import Drafter
from training.export import export_zlab
from training.frozen import FrozenTarget, load_frozen
from training.loop import DOCUMENTS_AT_ONCE, LoopSettings, Report, train
from training.mask_token import check_mask_token, choose_mask_token
from training.messages import (
    AUTO_MASK_TOKEN,
    AUTO_TOKENS_CPU,
    AUTO_TOKENS_GPU,
    AcceptanceRow,
    TrainItem,
    TrainProgress,
    TrainSummary,
)
from training.shape import DrafterShape, shape_for_target
from training.walk import Acceptance, over_anchors, pooled, walk

CHECKPOINTS, EXPORT = "checkpoints", "export"


class TrainHandler:
    """Trains one drafter at a time."""

    capacity = 1

    def __init__(self, emit: Callable[[bytes], None]) -> None:
        self._emit = emit
        self._stop = threading.Event()
        self._one_at_a_time = asyncio.Lock()

    async def handle(self, item: bytes) -> bytes:
        """Train a TrainItem; answers with a TrainSummary.

        Raises:
            UserError: see TrainingData, train and export_zlab.
            Retryable: stopped by `close`; the same item goes on from its checkpoint.
        """
        decoded = msgspec.msgpack.decode(item, type=TrainItem)
        loop = asyncio.get_running_loop()

        def tell(progress: TrainProgress) -> None:
            loop.call_soon_threadsafe(self._emit, msgspec.msgpack.encode(progress))

        async with self._one_at_a_time:
            summary = await asyncio.to_thread(train_drafter, decoded, tell, self._stop.is_set)
        return msgspec.msgpack.encode(summary)

    def close(self) -> None:
        """Ask a running item to stop after its step."""
        self._stop.set()


def create(config: bytes, emit: Callable[[bytes], None]) -> TrainHandler:
    """Called once in a spawned process; everything comes with the item, so `config` is empty."""
    del config
    return TrainHandler(emit)


def train_drafter(
    item: TrainItem,
    tell: Callable[[TrainProgress], None] = lambda _: None,
    stop: Callable[[], bool] = lambda: False,
) -> TrainSummary:
    """Everything that makes a drafter of an item: data, shape, training, export, held-out acceptance.

    Raises:
        UserError, Retryable: as TrainHandler.handle.
    """
    started = time.monotonic()
    if item.threads:
        torch.set_num_threads(item.threads)
    on_cpu = item.device == "cpu"
    data = TrainingData(item.shards, item.layer_ids, item.labels)
    try:
        target = load_frozen(item.target_dir, "float32" if on_cpu else "bfloat16", item.device)
        shape = drafter_shape(item, data, target)
        drafter = Drafter(shape, item.seed).to(item.device)
        settings = loop_settings(item)
        result = train(
            settings,
            drafter,
            target,
            data,
            Path(item.out_dir) / CHECKPOINTS,
            report=lambda report: tell(_progress(item.item_id, report)),
            stop=stop,
        )
        export = export_zlab(
            drafter,
            Path(item.out_dir) / EXPORT,
            target_dir=item.target_dir,
            dtype=item.export_dtype,
            card=item.card,
        )
        acceptance = measure(drafter, target, data, settings)
    finally:
        data.close()
    return TrainSummary(
        item_id=item.item_id,
        checkpoint=str(result.best_checkpoint),
        export=str(export),
        steps=result.steps,
        best_step=result.best_step,
        mask_token_id=shape.mask_token_id,
        training_rows=len(data.train),
        holdout_rows=len(data.holdout),
        acceptance=acceptance,
        label_agreement=dict(data.agreement),
        seconds=time.monotonic() - started,
    )


def drafter_shape(item: TrainItem, data: TrainingData, target: FrozenTarget) -> DrafterShape:
    """The shape that an item asks for, with the mask token chosen or checked."""
    vocab = target.embeddings_VH.shape[0]
    if item.mask_token_id == AUTO_MASK_TOKEN:
        mask_token_id = choose_mask_token(item.target_dir, data.used_token_ids(), target.embeddings_VH)
    else:
        mask_token_id = check_mask_token(item.target_dir, item.mask_token_id, vocab)
    return shape_for_target(
        item.target_dir,
        target_layer_ids=tuple(item.layer_ids),
        draft_layers=item.draft_layers,
        block_size=item.block_size,
        mask_token_id=mask_token_id,
        sliding_layers=item.sliding_layers,
        sliding_window=item.sliding_window,
    )


def loop_settings(item: TrainItem) -> LoopSettings:
    """The loop's part of an item."""
    auto = AUTO_TOKENS_CPU if item.device == "cpu" else AUTO_TOKENS_GPU
    return LoopSettings(
        fingerprint=item.fingerprint(),
        epochs=item.epochs,
        tokens_per_batch=item.tokens_per_batch or auto,
        anchors_per_document=item.anchors_per_document,
        gamma=item.gamma,
        labels=item.labels,
        learning_rate=item.learning_rate,
        warmup=item.warmup,
        weight_decay=item.weight_decay,
        clip=item.clip,
        checkpoint_every=item.checkpoint_every,
        seed=item.seed,
        device=item.device,
        eval_rows=item.eval_rows,
    )


def measure(drafter: Drafter, target: FrozenTarget, data: TrainingData, settings: LoopSettings) -> list[AcceptanceRow]:
    """Walk and all-anchors acceptance of every held-out row, summed by category."""
    walked: list[tuple[str, Acceptance]] = []
    anchored: list[tuple[str, Acceptance]] = []
    for start in range(0, len(data.holdout), DOCUMENTS_AT_ONCE):
        documents = [data.document(i, target) for i in data.holdout[start : start + DOCUMENTS_AT_ONCE]]
        categories = [document.category for document in documents]
        budget, device = settings.tokens_per_batch, settings.device
        one_by_one = walk(drafter, target, documents, tokens_per_batch=budget, device=device)
        walked.extend(zip(categories, one_by_one, strict=True))
        every = over_anchors(
            drafter,
            target,
            documents,
            anchors_per_document=settings.anchors_per_document,
            seed=settings.seed,
            tokens_per_batch=budget,
            device=device,
        )
        anchored.extend(zip(categories, every, strict=True))
    return [
        AcceptanceRow(measured_by, category, one.drafts, one.accepted, one.rows, one.open_drafts)
        for measured_by, results in (("walk", walked), ("anchors", anchored))
        for category, one in sorted(pooled(results).items())
    ]


def _progress(item_id: str, report: Report) -> TrainProgress:
    sums = report.sums
    return TrainProgress(
        item_id=item_id,
        step=report.step,
        steps=report.steps,
        epoch=report.epoch,
        loss=sums.loss / max(sums.steps, 1),
        lr=report.lr,
        gradient_norm=sums.gradient_norm / max(sums.steps, 1),
        correct_by_slot=sums.correct_by_slot,
        total_by_slot=sums.total_by_slot,
        loss_by_category=sums.loss_by_category,
        tokens_per_s=sums.tokens / max(time.monotonic() - sums.since, 1e-9),
        acceptance={category: (one.drafts, one.accepted) for category, one in report.acceptance.items()},
    )
