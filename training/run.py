"""The thin run: captured rows of a build through the training worker, its figures into the drafter's folder.

The identity names every accepted response that goes in, so a drafter that is finished is never trained again. Nothing
is entered in the ledger before the export is whole; a killed run goes on from its last checkpoint.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

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
from training.card import CardFacts, Trained, gather, write_card
from training.messages import TrainItem, TrainProgress, TrainSummary, tokens_per_pack
from training.plan import TrainingPlan, train_item
from training.progress import CHECKPOINTS, DESCRIBED, checkpoints, newest_progress, step_of
from training.record import acceptance_rows, metric_rows, read_acceptance, read_metrics, write_metrics

log = logging.getLogger("draftmill")

CHECKPOINT_S = 600.0
"""For a step, a walk that is under way, and the checkpoint of a large drafter."""
WRITE_S = 60.0
"""Figures of a long run are many: they are written no more often."""
EDITABLE = "export/README.md"
OWN_NAMES = re.compile(r"\b(?:UserError|DamagedError|Retryable): ")
"""A worker tells an error with the name of its class, which says nothing to a person where the line is ours."""
AGAIN = "Run the same command to go on."


def is_trained(plan: TrainingPlan, ledger: Readable) -> bool:
    """True if this drafter is finished, and weights and config are as written; else its last checkpoint gives them.

    A card that somebody edited is no reason to make the drafter again: every copy gets one that is made anew.
    """
    known = ledger.rows("SELECT 1 FROM drafters WHERE drafter_id = ? AND build_id IS NOT NULL", plan.drafter_id)
    if not known:
        return False
    folder = ledger.workspace.drafter(plan.drafter_id)
    try:
        body = json.loads((folder / DESCRIBED).read_text(encoding="utf-8"))
        int(body["training"]["mask_token_id"])
        files = {name: sha256 for name, sha256 in body["files"].items() if name != EDITABLE}
        whole = bool(files) and all(sha256_file(folder / name) == sha256 for name, sha256 in files.items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        whole = False
    if not whole:
        log.warning("%s: weights or config are gone or damaged; `draftmill train` makes them again", folder)
    return whole


def exported_files(folder: Path) -> list[str]:
    """Names of the files of a drafter's export that its description lists, without the card; whatever lies beside is
    somebody else's.

    Raises:
        UserError: the description is damaged.
    """
    try:
        named = json.loads((folder / DESCRIBED).read_text(encoding="utf-8"))["files"]
        names = sorted(name.removeprefix("export/") for name in named if name != EDITABLE)
        if not names or not all(f"export/{name}" in named and Path(name).name == name for name in names):
            raise ValueError
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedError(f"{folder / DESCRIBED}: damaged. Run `draftmill train`: it is made again.") from error
    return names


def plainly(error: object) -> str:
    """What a worker or its pool told of an error, without the names of our classes."""
    return OWN_NAMES.sub("", str(error)).strip()


def stopped(error: object, checkpoints_folder: Path, *, again: str = "") -> str:
    """The line about a run that ended early: what happened, and what is left of it.

    Args:
        error: as a worker or its pool told it. A line of ours says itself what to do next.
        again: what to do next, where the error does not say so.
    """
    said = plainly(error)
    parts = [f"training stopped: {said}{'' if said.endswith(('.', '!', '?')) else '.'}"]
    if again and said == str(error).strip():
        parts.append(again)
    try:
        kept = checkpoints(checkpoints_folder)
    except UserError:
        kept = []
    parts.append(f"The checkpoint of step {step_of(kept[-1]):,} is kept." if kept else "No checkpoint was written yet.")
    return " ".join(parts)


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
    item = train_item(plan, manifest, target, ledger, device, threads)
    folder = ledger.workspace.drafter(plan.drafter_id) / CHECKPOINTS
    record = RunRecord(plan, ledger, report, newest_progress(folder, item.fingerprint()).step, log)
    try:
        async with Pool(
            "training.worker:create",
            lambda _: b"",
            [device],
            on_event=lambda _, data: record.hear(data),
            log_dir=log.folder / "workers",
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
        record.write()
        raise UserError(stopped(error, folder, again=AGAIN)) from error
    if not isinstance(outcome, Done):
        record.write()
    if outcome is None and interrupt.asked.is_set():
        raise UserError(
            f"training: stopped, and no checkpoint was written in {CHECKPOINT_S:.0f} s. The next run goes on from step "
            f"{record.saved_step:,}."
        )
    if not isinstance(outcome, Done):
        raise UserError(stopped(outcome.error if outcome else "no answer", folder, again=AGAIN))
    summary = msgspec.msgpack.decode(outcome.payload, type=TrainSummary | None)
    if summary is None:
        record.write()
        return None
    enter_drafter(plan, manifest, target, item, summary, record, ledger)
    return summary


class RunRecord:
    """What a run's workers tell while they train, on its way to metrics.parquet and to the terminal."""

    def __init__(
        self,
        plan: TrainingPlan,
        ledger: Readable,
        report: Callable[[TrainProgress], None],
        resumed: int,
        run: RunLog,
    ) -> None:
        self.folder = ledger.workspace.drafter(plan.drafter_id)
        self._report = report
        self._run = run
        # what a killed run told of steps behind its checkpoint is told again
        self._earlier = [row for row in read_metrics(self.folder) if row["step"] <= resumed]
        self._rows: list[dict[str, Any]] = []
        self.last_step = self.saved_step = resumed
        self.last_epoch = 0
        self._written, self._written_at = False, time.monotonic()

    def hear(self, data: bytes) -> None:
        """A TrainProgress message."""
        message = msgspec.msgpack.decode(data, type=TrainProgress)
        if message.note:
            log.warning("%s", message.note)
            self._run.event("note", message.note)
            return
        self._rows += metric_rows([message])
        self.last_step, self.last_epoch = max(self.last_step, message.step), max(self.last_epoch, message.epoch)
        if message.saved:  # a killed run goes on from there with its figures
            self.saved_step = message.step
            if not self._written or time.monotonic() - self._written_at >= WRITE_S:
                self.write()
        self._report(message)

    def add(self, step: int, epoch: int, metric: str, category: str | None, value: float) -> None:
        """A figure of the run's own."""
        self._rows.append({"step": step, "epoch": epoch, "metric": metric, "category": category, "value": value})

    def write(self) -> None:
        """All figures until now."""
        write_metrics(self.folder, self._earlier, self._rows)
        self._written, self._written_at = True, time.monotonic()


def enter_drafter(
    plan: TrainingPlan,
    manifest: Manifest,
    target: ResolvedTarget,
    item: TrainItem,
    summary: TrainSummary,
    record: RunRecord,
    ledger: LedgerWriter,
) -> None:
    """Write a finished drafter's figures and its card beside it, and enter it in the ledger."""
    trained = Trained(summary.steps, summary.best_step, tokens_per_pack(item))
    _write(plan, manifest, gather(plan, manifest, target, ledger, trained), item, summary, record)
    ledger.call(lambda connection: ingest.ingest_drafter(connection, ledger.workspace, plan.drafter_id))


def _write(
    plan: TrainingPlan,
    manifest: Manifest,
    facts: CardFacts,
    item: TrainItem,
    summary: TrainSummary,
    record: RunRecord,
) -> None:
    import polars as pl

    folder = record.folder
    now = datetime.now(UTC).isoformat()
    for category, (agree, of) in summary.label_agreement.items():
        if of:
            record.add(summary.steps, manifest.training.epochs, "label_agreement", category, agree / of)
    record.write()
    ids = pl.DataFrame({"response_id": plan.training_ids})
    write_atomically(folder / "responses.parquet", ids.write_parquet)
    try:
        served = [row for row in read_acceptance(folder) if row["measured_by"] == "vllm"]
    except DamagedError:
        served = []
    measured = acceptance_rows(plan.build_id, summary.acceptance, now)
    write_text(folder / "acceptance.json", json.dumps([*served, *measured], indent=1, sort_keys=True))
    write_card(folder / "export", facts, [*served, *measured])
    body = {
        "schema_version": 1,
        "drafter_id": plan.drafter_id,
        "build_id": plan.build_id,
        "capture_id": plan.capture_id,
        "algorithm": manifest.training.algorithm,
        "training": manifest.training.model_dump(mode="json")
        | {
            # what `auto` came to
            "tokens_per_batch": tokens_per_pack(item),
            "activation_checkpointing": item.activation_checkpointing,
            "seed": plan.seed,
            "mask_token_id": summary.mask_token_id,
            "best_step": summary.best_step,
        },
        "steps": summary.steps,
        "rows": len(plan.training_ids),
        "path": f"drafters/{plan.drafter_id}/export",
        "files": {
            path.relative_to(folder).as_posix(): sha256_file(path) for path in sorted((folder / "export").iterdir())
        },
        "created_at": now,
    }
    write_text(folder / DESCRIBED, json.dumps(body, indent=1, sort_keys=True))
