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

from corpus.errors import Retryable, UserError
from training.averaging import Alone
from training.contract import check_final_state, contract_of_item, require
from training.data import TrainingData
from training.dflash import Drafter
from training.evaluation import EvaluationSettings, measure
from training.export import export_zlab, load_exported
from training.frozen import FrozenTarget, finite, load_frozen
from training.loop import LoopResult, LoopSettings, Report, ShardFeed, train
from training.mask_token import check_mask_token, choose_mask_token
from training.messages import (
    AUTO_MASK_TOKEN,
    AcceptanceRow,
    SlotSums,
    TrainItem,
    TrainProgress,
    TrainSummary,
    tokens_per_pack,
)
from training.pack import all_packs
from training.plan import nothing_to_learn
from training.progress import CHECKPOINTS
from training.published import require_same
from training.shape import DrafterShape, from_exported_config, shape_for_target
from training.step import Agreement, Pack, StepSettings
from training.walk import Acceptance

EXPORT = "export"
CHECKED_ROWS = 32
"""Whose final states are looked at before the first step."""


class TrainHandler:
    """Trains one drafter at a time."""

    capacity = 1

    def __init__(self, emit: Callable[[bytes], None]) -> None:
        self._emit = emit
        self._stop = threading.Event()
        self._one_at_a_time = asyncio.Lock()

    async def handle(self, item: bytes) -> bytes:
        """Train a TrainItem; answers with a TrainSummary, or with None if `close` stopped it at a checkpoint.

        Raises:
            UserError: see TrainingData, train and export_zlab.
        """
        decoded = msgspec.msgpack.decode(item, type=TrainItem)
        loop = asyncio.get_running_loop()

        def tell(progress: TrainProgress) -> None:
            loop.call_soon_threadsafe(self._emit, msgspec.msgpack.encode(progress))

        async with self._one_at_a_time:
            try:
                summary = await asyncio.to_thread(train_drafter, decoded, tell, self._stop.is_set)
            except Retryable:
                if not self._stop.is_set():
                    raise
                return msgspec.msgpack.encode(None)
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
    data = TrainingData(item.shards, item.layer_ids, item.labels)
    try:
        target = load_frozen(item.target_dir, working_dtype(item), item.device)
        drafter = make_drafter(item, data, target)
        check(item, drafter, target, data)
        packs = all_packs(
            [data.lengths[i] for i in data.train], tokens_per_pack(item), epochs=item.epochs, seed=item.seed
        )
        settings = loop_settings(item, len(packs))
        result = train(
            settings,
            drafter,
            target,
            lambda progress: ShardFeed(data, target, packs, progress.done, stop),
            data,
            Alone(),
            Path(item.out_dir) / CHECKPOINTS,
            report=lambda report: tell(progress_message(item.item_id, report)),
            note=lambda text: tell(note_message(item.item_id, text)),
        )
        return finish(item, drafter, target, data, settings, result, len(data.train), started)
    finally:
        data.close()


def finish(
    item: TrainItem,
    drafter: Drafter,
    target: FrozenTarget,
    data: TrainingData,
    settings: LoopSettings,
    result: LoopResult,
    training_rows: int,
    started: float,
) -> TrainSummary:
    """Measure the best drafter and export it.

    Args:
        data: with the held-out rows.
        started: time.monotonic() when the work began.
    """
    acceptance = acceptance_sums(measure(drafter, target, data, settings.evaluation))
    export = export_zlab(
        drafter,
        Path(item.out_dir) / EXPORT,
        target_dir=item.target_dir,
        dtype=item.export_dtype,
    )
    return TrainSummary(
        item_id=item.item_id,
        checkpoint=str(result.best_checkpoint),
        export=str(export),
        steps=result.steps,
        best_step=result.best_step,
        mask_token_id=drafter.shape.mask_token_id,
        training_rows=training_rows,
        holdout_rows=len(data.holdout),
        acceptance=acceptance,
        label_agreement=result.agreement,
        seconds=time.monotonic() - started,
    )


def working_dtype(item: TrainItem) -> str:
    """Numbers of the target's frozen parts: float32 on a CPU, bfloat16 on a GPU."""
    return "float32" if item.device == "cpu" else "bfloat16"


def make_drafter(item: TrainItem, data: TrainingData, target: FrozenTarget) -> Drafter:
    """The drafter before its first step: from the seed, or from a published one.

    Raises:
        UserError: the published one has another shape.
    """
    shape = drafter_shape(item, data, target)
    if not item.init_dir:
        return Drafter(shape, item.seed).to(item.device)
    drafter = load_exported(Path(item.init_dir), item.device)
    require_same(Path(item.init_dir), drafter.shape, shape)
    drafter.shape = shape
    return drafter


def check(item: TrainItem, drafter: Drafter, target: FrozenTarget, data: TrainingData) -> None:
    """Before the first step: training, the captured states and serving must mean the same drafter.

    Raises:
        UserError: with every difference on a line of its own, or there is nothing to learn.
    """
    problems = contract_of_item(item, drafter.shape, used_token_ids=used_token_ids(item, data))
    if item.labels != "sampled":
        problems += check_final_state(*greedy_agreement(target, data))
    require(problems)
    if data.train and not data.teaches():
        raise UserError(nothing_to_learn(len(data.train)))


def used_token_ids(item: TrainItem, data: TrainingData) -> set[int]:
    """Every token id of the rows in shards and of those that are fed."""
    return data.used_token_ids() | set(item.live.used_token_ids if item.live else ())


def greedy_agreement(target: FrozenTarget, data: TrainingData) -> tuple[int, int]:
    """(sampled tokens that the final state's arg max gives too, of how many), over a few rows sampled greedily."""
    agreement = Agreement()
    greedy = [i for i, row in enumerate(data.rows) if row.greedy][:CHECKED_ROWS]
    agreement.count(Pack(0, 0, [data.document(i, target) for i in greedy]))
    counted = agreement.take()
    return sum(agreed for _, agreed, _ in counted), sum(of for _, _, of in counted)


def drafter_shape(item: TrainItem, data: TrainingData, target: FrozenTarget) -> DrafterShape:
    """The shape that an item asks for, with the mask token chosen or checked.

    Raises:
        UserError: the mask token is none that can be one.
    """
    vocab = target.embeddings_VH.shape[0]
    mask_token_id = item.mask_token_id
    if mask_token_id == AUTO_MASK_TOKEN and item.init_dir:
        mask_token_id = from_exported_config(Path(item.init_dir) / "config.json").mask_token_id
    if mask_token_id == AUTO_MASK_TOKEN:
        mask_token_id = choose_mask_token(item.target_dir, used_token_ids(item, data), target.embeddings_VH)
    else:
        mask_token_id = check_mask_token(item.target_dir, mask_token_id, vocab)
    if not finite(target.embeddings_VH[mask_token_id]):
        raise UserError(
            f"{item.target_dir}: embedding row {mask_token_id}, the mask token's, is no number (NaN or infinite). "
            "Fetch the target again, or name another row with training.mask_token_id."
        )
    return shape_for_target(
        item.target_dir,
        target_layer_ids=tuple(item.layer_ids),
        draft_layers=item.draft_layers,
        block_size=item.block_size,
        mask_token_id=mask_token_id,
        sliding_layers=item.sliding_layers,
        sliding_window=item.sliding_window,
    )


def loop_settings(item: TrainItem, packs: int) -> LoopSettings:
    """The loop's part of an item."""
    return LoopSettings(
        fingerprint=item.fingerprint(),
        packs=packs,
        packs_per_step=item.packs_per_step,
        learning_rate=item.learning_rate,
        warmup=item.warmup,
        checkpoint_every=item.checkpoint_every,
        step=StepSettings(
            anchors_per_document=item.anchors_per_document,
            labels=item.labels,
            loss_weights=item.loss_weights,
            gamma=item.gamma,
            d_pace_alpha=item.d_pace_alpha,
            weight_decay=item.weight_decay,
            clip=item.clip,
            seed=item.seed,
            device=item.device,
            activation_checkpointing=item.activation_checkpointing,
        ),
        evaluation=evaluation_settings(item),
    )


def evaluation_settings(item: TrainItem) -> EvaluationSettings:
    """How an item's held-out rows are measured."""
    return EvaluationSettings(tokens_per_pack(item), item.anchors_per_document, item.seed, item.device, item.eval_rows)


def acceptance_sums(measured: dict[str, dict[str, Acceptance]]) -> list[AcceptanceRow]:
    """By measure and category, as messages."""
    return [
        AcceptanceRow(
            measured_by,
            category,
            one.drafts,
            one.accepted,
            one.rows,
            one.open_drafts,
            one.drafts_sq,
            one.accepted_sq,
            one.cross,
        )
        for measured_by, results in measured.items()
        for category, one in sorted(results.items())
    ]


def progress_message(item_id: str, report: Report, worker: int = 0) -> TrainProgress:
    """A report as a message."""
    sums = report.sums
    return TrainProgress(
        item_id=item_id,
        step=report.step,
        steps=report.steps,
        epoch=report.epoch,
        loss=sums.loss / max(sums.steps, 1),
        lr=report.lr,
        gradient_norm=sums.gradient_norm / max(sums.steps, 1),
        by_category={category: SlotSums(**vars(own)) for category, own in sums.by_category.items()},
        tokens_per_s=sums.tokens / max(time.monotonic() - sums.since, 1e-9),
        acceptance={category: (one.drafts, one.accepted) for category, one in report.acceptance.items()},
        worker=worker,
        own_steps=sums.steps,
        saved=report.saved,
        tau=report.progress.tau,
        best_step=report.progress.best_step,
        best_tau=report.progress.best_tau,
    )


def note_message(item_id: str, text: str, worker: int = 0) -> TrainProgress:
    """A line for a person, as a message without figures."""
    return TrainProgress(
        item_id=item_id, step=0, steps=0, epoch=0, loss=0.0, lr=0.0, gradient_norm=0.0, by_category={},
        tokens_per_s=0.0, acceptance={}, worker=worker, own_steps=0, note=text,
    )  # fmt: skip
