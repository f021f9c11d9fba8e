"""The thin run: accepted responses of a build through the target, states into shards, receipts into the ledger.

Workers write the shards; the coordinator enters each when its receipt comes. What is captured already, under the same
capture_id and for whatever build, is not captured again.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from corpus import identity, layers
from corpus.artefacts import write_text
from corpus.canonical import digest
from corpus.errors import UserError
from corpus.ledger import ingest
from corpus.ledger.writer import LedgerWriter, Readable
from corpus.manifest import Manifest
from corpus.responses import read_rows_at
from corpus.runlog import RunLog
from corpus.target import ResolvedTarget
from extraction.items import plan_items
from extraction.messages import ExtractConfig, ExtractItem, ExtractReceipt, ExtractRow
from fleet.crew import Launch
from fleet.devices import Device
from fleet.interrupt import Interrupt
from fleet.pool import Done, Pool, PoolError
from fleet.process import WorkerProcess

BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}
AHEAD_PER_DEVICE = 3
DRAIN_S = 600.0


@dataclass(frozen=True)
class Row:
    """One response to capture, and where its tokens lie."""

    response_id: str
    shard: str
    shard_row: int
    tokens: int


@dataclass(frozen=True)
class ExtractionPlan:
    """What is captured, of which rows."""

    build_id: str
    capture_id: str
    layer_ids: tuple[int, ...]
    final_state: bool
    hidden_size: int
    stored_dtype: str
    rows: tuple[Row, ...]
    captured: int

    @property
    def bytes_per_token(self) -> int:
        """States of one token in a shard."""
        return (len(self.layer_ids) + self.final_state) * self.hidden_size * BYTES[self.stored_dtype]

    @property
    def tokens(self) -> int:
        """Tokens still to be captured."""
        return sum(row.tokens for row in self.rows)

    def lines(self) -> list[str]:
        """For a person."""
        final = " and the final state" if self.final_state else ""
        size_gb = self.tokens * self.bytes_per_token / 1e9
        return [
            f"{len(self.rows) + self.captured:,} rows: {self.captured:,} captured, {len(self.rows):,} to capture",
            f"  layers {', '.join(map(str, self.layer_ids))}{final}",
            f"  {self.tokens:,} tokens of {self.bytes_per_token:,} bytes, {size_gb:.2f} GB",
        ]


def plan_extraction(
    manifest: Manifest, target: ResolvedTarget, build_id: str, ledger: Readable, limit: int | None
) -> ExtractionPlan:
    """What is left to capture of a build's accepted responses, held-out ones included.

    Raises:
        UserError: the layers do not fit the target.
    """
    section = manifest.extraction
    capture, layer_ids = plan_capture(manifest, target)
    found = ledger.rows(
        """
        SELECT r.response_id, r.shard, r.shard_row, r.prompt_tokens + r.response_tokens, h.response_id IS NOT NULL
        FROM build_responses b JOIN accepted_responses r USING (response_id)
        LEFT JOIN (SELECT DISTINCT response_id FROM hidden_rows WHERE capture_id = ?) h USING (response_id)
        WHERE b.build_id = ? AND b.left_out IS NULL ORDER BY r.response_id
        """,
        capture,
        build_id,
    )
    left = [Row(*row[:4]) for row in found if not row[4]]
    return ExtractionPlan(
        build_id, capture, layer_ids, section.final_state, int(_text_config(target)["hidden_size"]), section.dtype,
        tuple(left[:limit]), len(found) - len(left),
    )  # fmt: skip


def plan_capture(manifest: Manifest, target: ResolvedTarget) -> tuple[str, tuple[int, ...]]:
    """(capture_id, 0-based layer outputs): what is captured of this target, whatever the rows.

    Raises:
        UserError: as target_layers.
    """
    layer_ids = target_layers(manifest, int(_text_config(target)["num_hidden_layers"]))
    final_state, stored_dtype = manifest.extraction.final_state, manifest.extraction.dtype
    identity_ = target.identity()
    return (
        identity.capture_id(identity_, list(layer_ids), final_state, manifest.target.dtype, stored_dtype),
        layer_ids,
    )


def _text_config(target: ResolvedTarget) -> dict[str, Any]:
    config = target.config
    text: dict[str, Any] = config.get("text_config", config)
    return text


def target_layers(manifest: Manifest, num_layers: int) -> tuple[int, ...]:
    """The 0-based layer outputs that are captured.

    Raises:
        UserError: a listed layer does not exist, stands twice, or the formula gives duplicates.
    """
    listed = manifest.extraction.layers
    if listed == "auto":
        return tuple(layers.draft_layer_ids(num_layers, manifest.extraction.features))
    return layers.check_layer_ids(sorted(listed), num_layers)


async def run_extraction(
    plan: ExtractionPlan,
    manifest: Manifest,
    target: ResolvedTarget,
    ledger: LedgerWriter,
    log: RunLog,
    devices: Sequence[Device],
    interrupt: Interrupt,
    report: Callable[[int, int, float], None],
    launch: Launch = WorkerProcess,
) -> bool:
    """Capture every row of the plan; False if an interrupt ended it early.

    Args:
        report: called with (rows done, tokens done, seconds) after every shard.
        launch: how a worker is started; on other machines the capture's folder must be theirs too.

    Raises:
        UserError: the disk cannot hold the states, the self-test failed, or no worker starts.
    """
    folder = ledger.workspace.hidden(plan.capture_id)
    _check_disk(plan, ledger)
    write_text(folder / "capture.json", json.dumps(_capture_body(plan, manifest, target), indent=1, sort_keys=True))
    ledger.call(lambda connection: ingest.ingest_capture(connection, ledger.workspace, plan.capture_id))
    waiting = deque(plan_items([row.tokens for row in plan.rows], len(devices), plan.bytes_per_token))
    pool = Pool(
        "extraction.worker:create",
        lambda device: msgspec.msgpack.encode(_config(plan, manifest, target, str(folder), device)),
        devices,
        log_dir=log.folder / "workers",
        launch=launch,
    )
    started = time.monotonic()
    rows_done = tokens_done = 0
    try:
        async with pool:
            interrupt.can_drain = True
            while True:
                while waiting and pool.pending < AHEAD_PER_DEVICE * len(devices) and not interrupt.asked.is_set():
                    rows = [plan.rows[i] for i in waiting.popleft()]
                    item = await asyncio.to_thread(_item, rows, ledger)
                    pool.submit(item.item_id, msgspec.msgpack.encode(item), float(sum(row.tokens for row in rows)))
                if interrupt.asked.is_set():
                    await pool.drain(DRAIN_S)
                outcome = await pool.next_outcome()
                if outcome is None:
                    break
                if not isinstance(outcome, Done):
                    raise UserError(f"extraction stopped: {outcome.error}. What was captured is kept.")
                receipt = msgspec.msgpack.decode(outcome.payload, type=ExtractReceipt)
                await _enter(receipt, ledger, folder, log)
                rows_done += len(receipt.rows) + len(receipt.failed)
                tokens_done += receipt.tokens
                report(rows_done, tokens_done, time.monotonic() - started)
    except PoolError as error:
        raise UserError(
            f"extraction stopped: {error}. What was captured is kept; run the same command to resume."
        ) from error
    return not interrupt.asked.is_set()


async def _enter(receipt: ExtractReceipt, ledger: LedgerWriter, folder: Any, log: RunLog) -> None:
    for entry in receipt.failed:
        log.event("not_captured", f"{entry.response_id}: {entry.reason}")
    if not receipt.shard:
        return
    path = folder / receipt.shard
    log.event("shard", f"{receipt.shard}: {receipt.batches}")
    await asyncio.wrap_future(ledger.submit(lambda c: ingest.ingest_hidden_shard(c, path, receipt.sha256)))


def _item(rows: Sequence[Row], ledger: LedgerWriter) -> ExtractItem:
    places = [(row.shard, row.shard_row) for row in rows]
    columns = ["response_id", "prompt_token_ids", "token_ids"]
    frame = read_rows_at(ledger.workspace.responses, places, columns)
    found = {response_id: (prompt, tokens) for response_id, prompt, tokens in frame.select(columns).iter_rows()}
    return ExtractItem(
        item_id=digest("item", [row.response_id for row in rows]),
        rows=[ExtractRow(row.response_id, *found[row.response_id]) for row in rows],
    )


def _check_disk(plan: ExtractionPlan, ledger: LedgerWriter) -> None:
    needed, free = plan.tokens * plan.bytes_per_token, shutil.disk_usage(ledger.workspace.root).free
    if needed > free:
        raise UserError(
            f"{ledger.workspace.root}: the hidden states need {needed / 1e9:.1f} GB and {free / 1e9:.1f} GB are free. "
            "Free space, use --limit, or choose another --workspace."
        )


def _capture_body(plan: ExtractionPlan, manifest: Manifest, target: ResolvedTarget) -> dict[str, Any]:
    return {
        "schema_version": 1,
        "capture_id": plan.capture_id,
        "model": target.target.model,
        "revision": target.revision,
        "layer_ids": list(plan.layer_ids),
        "vllm_layer_ids": layers.to_vllm_ids(plan.layer_ids),
        "final_state": "before_norm" if plan.final_state else "none",
        "computed_dtype": manifest.target.dtype,
        "dtype": plan.stored_dtype,
        "hidden_size": plan.hidden_size,
    }


def _config(
    plan: ExtractionPlan, manifest: Manifest, target: ResolvedTarget, folder: str, device: Device
) -> ExtractConfig:
    budget = manifest.extraction.max_tokens_per_batch
    return ExtractConfig(
        target_dir=str(target.folder),
        target=target.target.model,
        revision=target.revision,
        dtype=manifest.target.dtype,
        store_dtype=plan.stored_dtype,
        layer_ids=plan.layer_ids,
        final_state=plan.final_state,
        capture_id=plan.capture_id,
        out_dir=folder,
        device=device.torch_name,
        max_tokens_per_batch=0 if budget == "auto" else budget,
        threads=1 if device.kind == "cpu" else 0,
        trust_remote_code=manifest.target.trust_remote_code,
    )
