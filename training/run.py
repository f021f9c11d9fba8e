"""The thin run: captured rows of a build through the training worker, its figures into the drafter's folder.

The identity names every accepted response that goes in, so a drafter that is finished is never trained again. Nothing
is entered in the ledger before the export is whole; a killed run goes on from its last checkpoint.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from corpus import identity
from corpus.artefacts import sha256_file, write_atomically, write_text
from corpus.errors import DamagedError, UserError
from corpus.ledger import ingest
from corpus.ledger.writer import LedgerWriter, Readable
from corpus.manifest import Manifest
from corpus.runlog import RunLog
from corpus.target import ResolvedTarget
from fleet.devices import Device
from fleet.interrupt import Interrupt
from fleet.pool import Done, Pool, PoolError
from training.messages import AUTO_MASK_TOKEN, ShardRows, TrainItem, TrainProgress, TrainRow, TrainSummary
from training.record import acceptance_row, metric_rows, read_acceptance, read_metrics, write_metrics

log = logging.getLogger("draftmill")

LEFT_TO_WORKER = 0
CHECKPOINT_S = 120.0


@dataclass(frozen=True)
class TrainingPlan:
    """A drafter and the rows that it is trained and measured on."""

    drafter_id: str
    build_id: str
    capture_id: str
    layer_ids: tuple[int, ...]
    seed: int
    rows: dict[str, tuple[TrainRow, ...]]
    """By hidden shard."""
    not_captured: int

    @property
    def training_rows(self) -> int:
        """Rows outside the holdout."""
        return sum(not row.holdout for rows in self.rows.values() for row in rows)

    @property
    def holdout_rows(self) -> int:
        """Rows that are measured on."""
        return sum(row.holdout for rows in self.rows.values() for row in rows)

    def lines(self) -> list[str]:
        """For a person."""
        missing = f", {self.not_captured:,} accepted rows are not captured" if self.not_captured else ""
        return [f"drafter {self.drafter_id}: {self.training_rows:,} rows, {self.holdout_rows:,} held out{missing}"]


def plan_training(
    manifest: Manifest,
    build_id: str,
    capture_id: str,
    layer_ids: tuple[int, ...],
    ledger: Readable,
    limit: int | None = None,
) -> TrainingPlan:
    """The drafter of a build's captured rows.

    Args:
        limit: most training rows, in nested order with category shares kept; held-out rows all stay.

    Raises:
        UserError: there is nothing to train on, or what the manifest asks is not in this version.
    """
    if manifest.training.feed == "live":
        raise UserError(f"{manifest.name}: training.feed: live is not built in this version. Use shards.")
    found = ledger.rows(
        """
        WITH one AS (
            SELECT response_id, shard, shard_row FROM hidden_rows WHERE capture_id = ?
            QUALIFY row_number() OVER (PARTITION BY response_id ORDER BY shard, shard_row) = 1
        )
        SELECT b.response_id, b.category, b.source, b.holdout, rc.temperature = 0, one.shard, one.shard_row
        FROM build_responses b JOIN accepted_responses r USING (response_id)
        JOIN recipes rc ON rc.recipe_id = b.recipe_id
        LEFT JOIN one USING (response_id)
        WHERE b.build_id = ? AND b.left_out IS NULL
        ORDER BY (row_number() OVER (PARTITION BY b.category, b.holdout ORDER BY b.response_id) - 0.5)
                 / count(*) OVER (PARTITION BY b.category, b.holdout), b.category, b.response_id
        """,
        capture_id,
        build_id,
    )
    captured = [row for row in found if row[5] is not None]
    held_out = [row for row in captured if row[3]]
    kept = [row for row in captured if not row[3]][:limit]
    if not kept:
        raise UserError(
            f"{manifest.name}: build {build_id} has no captured rows to train on. Run `draftmill extract` first."
        )
    rows: dict[str, list[TrainRow]] = {}
    for response_id, category, source, holdout, greedy, shard, shard_row in sorted(
        kept + held_out, key=lambda row: (row[5], row[6])
    ):
        rows.setdefault(shard, []).append(TrainRow(shard_row, response_id, category, source, bool(greedy), holdout))
    seed = manifest.seed if manifest.training.seed is None else manifest.training.seed
    training = manifest.training.model_dump(mode="json") | {"seed": seed}
    ids = [row[0] for row in kept]
    return TrainingPlan(
        identity.drafter_id(build_id, ids, capture_id, training),
        build_id, capture_id, layer_ids, seed, {shard: tuple(found) for shard, found in rows.items()},
        len(found) - len(captured),
    )  # fmt: skip


def is_trained(plan: TrainingPlan, ledger: Readable) -> bool:
    """True if this drafter is finished, and its files are what was written; else its last checkpoint gives them."""
    known = ledger.rows("SELECT 1 FROM drafters WHERE drafter_id = ? AND build_id IS NOT NULL", plan.drafter_id)
    if not known:
        return False
    folder = ledger.workspace.drafter(plan.drafter_id)
    try:
        body = json.loads((folder / "drafter.json").read_text(encoding="utf-8"))
        int(body["training"]["mask_token_id"])
        whole = all(sha256_file(folder / name) == sha256 for name, sha256 in body["files"].items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        whole = False
    if not whole:
        log.warning("%s: files of the drafter are gone or damaged; they are made again", folder)
    return whole


async def run_training(
    plan: TrainingPlan,
    manifest: Manifest,
    target: ResolvedTarget,
    ledger: LedgerWriter,
    log: RunLog,
    device: Device,
    threads: int,
    interrupt: Interrupt,
    report: Callable[[TrainProgress], None],
    stopping: Callable[[], None],
) -> TrainSummary | None:
    """Train, export, measure, and enter the drafter; None if an interrupt ended it at a checkpoint.

    Raises:
        UserError: training failed; checkpoints stay and the next run goes on from them.
    """
    folder = ledger.workspace.drafter(plan.drafter_id)
    item = train_item(plan, manifest, target, ledger, device, threads)
    progress: list[TrainProgress] = []
    earlier = read_metrics(folder)

    def on_event(_: Device, data: bytes) -> None:
        progress.append(msgspec.msgpack.decode(data, type=TrainProgress))
        if progress[-1].acceptance:  # at a checkpoint: a killed run goes on from there with its figures
            write_metrics(folder, earlier, metric_rows(progress))
        report(progress[-1])

    try:
        async with Pool(
            "training.worker:create", lambda _: b"", [device], on_event=on_event, log_dir=log.folder / "workers"
        ) as pool:
            pool.submit(item.item_id, msgspec.msgpack.encode(item))
            interrupt.can_drain = True
            waiting = asyncio.ensure_future(pool.next_outcome())
            asked = asyncio.ensure_future(interrupt.asked.wait())
            await asyncio.wait({waiting, asked}, return_when=asyncio.FIRST_COMPLETED)
            if not waiting.done():
                stopping()
                await pool.stop(grace_s=CHECKPOINT_S)  # the worker writes a checkpoint first
            outcome = await waiting
            asked.cancel()
    except PoolError as error:
        raise UserError(f"training stopped: {error}. Run the same command to go on from its checkpoint.") from error
    if not isinstance(outcome, Done) and interrupt.asked.is_set():
        return None
    if not isinstance(outcome, Done):
        raise UserError(f"training stopped: {outcome.error if outcome else 'no answer'}. Its checkpoints are kept.")
    summary = msgspec.msgpack.decode(outcome.payload, type=TrainSummary)
    _write(folder, plan, manifest, summary, earlier, metric_rows(progress))
    ledger.call(lambda connection: ingest.ingest_drafter(connection, ledger.workspace, plan.drafter_id))
    return summary


def train_item(
    plan: TrainingPlan, manifest: Manifest, target: ResolvedTarget, ledger: Readable, device: Device, threads: int
) -> TrainItem:
    """The plan as the worker reads it: absolute paths, defaults resolved."""
    section = manifest.training
    hidden = ledger.workspace.hidden(plan.capture_id).resolve()
    tokens = section.tokens_per_batch
    checksums = dict(ledger.rows("SELECT shard, sha256 FROM hidden_shards WHERE capture_id = ?", plan.capture_id))
    return TrainItem(
        item_id=plan.drafter_id,
        target_dir=str(target.folder),
        out_dir=str(ledger.workspace.drafter(plan.drafter_id).resolve()),
        shards=[
            ShardRows(str(hidden / shard), list(rows), checksums.get(shard, ""))
            for shard, rows in sorted(plan.rows.items())
        ],
        layer_ids=plan.layer_ids,
        block_size=section.block_size,
        draft_layers=section.draft_layers,
        sliding_layers=section.sliding_layers,
        sliding_window=section.sliding_window,
        anchors_per_document=section.anchors_per_document,
        gamma=section.gamma,
        labels=section.labels,
        epochs=section.epochs,
        tokens_per_batch=LEFT_TO_WORKER if tokens == "auto" else tokens,
        learning_rate=section.learning_rate,
        warmup=section.warmup,
        weight_decay=section.weight_decay,
        clip=section.clip,
        mask_token_id=AUTO_MASK_TOKEN if section.mask_token_id == "auto" else section.mask_token_id,
        checkpoint_every=section.checkpoint_every,
        seed=plan.seed,
        device=device.torch_name,
        threads=threads,
        export_dtype=manifest.target.dtype,
        card={
            "target": target.target.model,
            "revision": target.revision,
            "build": plan.build_id,
            "mix": ", ".join(f"{name} {share:.1%}" for name, share in manifest.mix.normalised().items()),
            "drafter": plan.drafter_id,
        },
    )


def cpu_threads() -> int:
    """Threads for one worker that has a CPU machine to itself."""
    return len(os.sched_getaffinity(0))


def _write(
    folder: Path,
    plan: TrainingPlan,
    manifest: Manifest,
    summary: TrainSummary,
    earlier: Sequence[dict[str, Any]],
    rows: list[dict[str, Any]],
) -> None:
    import polars as pl

    now = datetime.now(UTC).isoformat()
    for category, (agree, of) in summary.label_agreement.items():
        if of:
            rows.append(
                {
                    "step": summary.steps, "epoch": manifest.training.epochs, "metric": "label_agreement",
                    "category": category, "value": agree / of,
                }
            )  # fmt: skip
    write_metrics(folder, earlier, rows)
    ids = sorted(row.response_id for rows in plan.rows.values() for row in rows if not row.holdout)
    write_atomically(folder / "responses.parquet", pl.DataFrame({"response_id": ids}).write_parquet)
    try:
        served = [row for row in read_acceptance(folder) if row["measured_by"] == "vllm"]
    except DamagedError:
        served = []
    measured = [
        acceptance_row(plan.build_id, row.category, row.measured_by, row.drafts, row.accepted_tokens, row.rows, now)
        for row in summary.acceptance
    ]
    write_text(folder / "acceptance.json", json.dumps([*served, *measured], indent=1, sort_keys=True))
    body = {
        "schema_version": 1,
        "drafter_id": plan.drafter_id,
        "build_id": plan.build_id,
        "capture_id": plan.capture_id,
        "algorithm": manifest.training.algorithm,
        "training": manifest.training.model_dump(mode="json")
        | {"seed": plan.seed, "mask_token_id": summary.mask_token_id, "best_step": summary.best_step},
        "steps": summary.steps,
        "rows": summary.training_rows,
        "path": f"drafters/{plan.drafter_id}/export",
        "files": {
            path.relative_to(folder).as_posix(): sha256_file(path) for path in sorted((folder / "export").iterdir())
        },
        "created_at": now,
    }
    write_text(folder / "drafter.json", json.dumps(body, indent=1, sort_keys=True))
