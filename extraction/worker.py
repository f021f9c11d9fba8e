"""The extraction worker: loads the target once, then writes one shard an item and answers with a receipt.

Made by "extraction.start:create" in a process that fleet.Pool spawned; config, events, items and receipts are msgpack
(see messages). It never opens the ledger. Before it takes items it checks and measures itself (`extraction.loading`)
and tells both. Forwards run one after another (`extraction.forwards`); the states of one batch, and the end of one
shard, are written beside the next forward. A row that cannot fit alone is reported as failed.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch

from corpus.shard_writer import ShardWriter
from corpus.shards import ShardMeta
from corpus.token_ids import unpack_ids
from extraction.forwards import capture_rows, loss_mask
from extraction.limits import Held
from extraction.loading import load_target
from extraction.messages import (
    BudgetLowered,
    CapturedEntry,
    ExtractConfig,
    ExtractEvent,
    ExtractItem,
    ExtractReceipt,
    FailedEntry,
    encode,
    shard_name,
)
from extraction.outlet import Outlet, under_way
from extraction.plan import Cut


@dataclass
class Job:
    """One shard on its way."""

    item: ExtractItem
    writer: ShardWriter
    puts: list[Future[None]]
    failed: dict[int, str]
    cut: Cut
    started: float


class ExtractHandler:
    """One loaded target. `capacity` 2: the next item is already here while one runs."""

    capacity = 2

    def __init__(self, config: ExtractConfig, emit: Callable[[bytes], None]) -> None:
        self.config = config
        self._emit: Callable[[ExtractEvent], None] = lambda event: emit(encode(event))
        self.capture, self._limits = load_target(
            config,
            [unpack_ids(row) for row in config.sample],
            lambda capture: Held(batches=under_way(capture.device)),
            self._emit,
        )
        self._outlet = Outlet(self.capture.device)
        self._stop = threading.Event()
        self._one_at_a_time = asyncio.Lock()

    async def handle(self, item: bytes) -> bytes:
        """Capture an ExtractItem, write its shard, answer with an ExtractReceipt.

        Raises:
            UserError: the disk is full.
            Retryable: stopped by `close`.
        """
        decoded = msgspec.msgpack.decode(item, type=ExtractItem)
        async with self._one_at_a_time:
            job = await asyncio.to_thread(self._forward, decoded)
        return msgspec.msgpack.encode(await asyncio.to_thread(self._finish, job))

    def close(self) -> None:
        """An item at work raises Retryable before its next batch; its shard is not written."""
        self._stop.set()

    def _forward(self, item: ExtractItem) -> Job:
        """All forwards of an item; what they gave is on its way out."""
        config, started = self.config, time.monotonic()
        rows, ids = item.rows, [row.response_id for row in item.rows]
        meta = ShardMeta(
            config.capture_id, tuple(config.layer_ids), config.final_state, config.target, config.revision,
            config.store_dtype,
        )  # fmt: skip
        path = Path(config.out_dir) / shard_name(config.capture_id, ids)
        writer = ShardWriter(path, meta, ids, [row.tokens for row in rows], self.capture.hidden_size)
        puts: list[Future[None]] = []

        def put(batch: Sequence[int], states_SNH: Any) -> None:
            input_ids_S = torch.frombuffer(bytearray(b"".join(rows[i].token_ids for i in batch)), dtype=torch.int32)
            loss_mask_S = torch.cat([loss_mask(rows[i].prompt_tokens, rows[i].tokens) for i in batch])
            puts.append(self._outlet.put(writer, batch, states_SNH, input_ids_S, loss_mask_S))

        try:
            failed, cut, limits = capture_rows(
                self.capture, [unpack_ids(row.token_ids) for row in rows], self._limits, put,
                settle=self._outlet.settle, stop=self._stop.is_set,
            )  # fmt: skip
        except BaseException:
            self._outlet.drop(writer, puts)
            raise
        for top, tokens in limits.budgets.below(self._limits.budgets):
            self._emit(BudgetLowered(length=top, tokens=tokens))
        self._limits = limits
        return Job(item, writer, puts, failed, cut, started)

    def _finish(self, job: Job) -> ExtractReceipt:
        written = self._outlet.end(job.writer, job.puts)
        rows = job.item.rows
        return ExtractReceipt(
            item_id=job.item.item_id,
            shard=written.path.name if written else "",
            size_bytes=written.size_bytes if written else 0,
            sha256=written.sha256 if written else "",
            rows=[CapturedEntry(rows[i].response_id, n, rows[i].tokens) for n, i in enumerate(job.writer.kept)],
            failed=[FailedEntry(rows[i].response_id, rows[i].tokens, why) for i, why in sorted(job.failed.items())],
            seconds=time.monotonic() - job.started,
            tokens=sum(rows[i].tokens for i in job.writer.kept),
            cut=astuple(job.cut),
        )


def create(config: bytes, emit: Callable[[bytes], None]) -> ExtractHandler:
    """Called once in a spawned process."""
    return ExtractHandler(msgspec.msgpack.decode(config, type=ExtractConfig), emit)
