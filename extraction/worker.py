"""The extraction worker: loads the target once, then writes one shard an item and answers with a receipt.

Spawned by fleet.Pool as "extraction.worker:create"; config, items and receipts are msgpack (see messages). It
never opens the ledger. Items wait for one another inside the process (one model, one device); a batch that
runs out of memory is cut in half and the run goes on, a row that cannot fit alone is reported as failed. The
first item's rows go through the self-test before anything is written.
"""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec
import torch

from corpus.errors import Retryable
from corpus.shards import CapturedRow, ShardMeta, write_shard
from extraction.capture import Capture
from extraction.messages import (
    AUTO_TOKENS_CPU,
    AUTO_TOKENS_GPU,
    CapturedEntry,
    ExtractConfig,
    ExtractItem,
    ExtractReceipt,
    FailedEntry,
    shard_name,
)
from extraction.plan import halve, plan_batches, summary
from extraction.selftest import check_capture


class Forward(Protocol):
    """What the loop over batches needs of a capture."""

    def forward(self, rows: Sequence[Sequence[int]]) -> list[Any]:
        """States [T, N, H] of each row."""


class ExtractHandler:
    """One loaded target. `capacity` 2: the next item is already here while one runs."""

    capacity = 2

    def __init__(self, config: ExtractConfig) -> None:
        if config.threads:
            torch.set_num_threads(config.threads)
        self.config = config
        self.capture = Capture(
            config.target_dir,
            config.layer_ids,
            final_state=config.final_state,
            dtype=config.dtype,
            device=config.device,
            store_dtype=config.store_dtype,
            trust_remote_code=config.trust_remote_code,
        )
        self._checked = False
        self._stop = threading.Event()
        self._one_at_a_time = asyncio.Lock()

    async def handle(self, item: bytes) -> bytes:
        """Capture an ExtractItem, write its shard, answer with an ExtractReceipt.

        Raises:
            UserError: the self-test failed, or the disk is full.
        Retryable: stopped by `close`.
        """
        decoded = msgspec.msgpack.decode(item, type=ExtractItem)
        async with self._one_at_a_time:
            receipt = await asyncio.to_thread(self._extract, decoded)
        return msgspec.msgpack.encode(receipt)

    def close(self) -> None:
        """An item at work raises Retryable before its next batch; its shard is not written."""
        self._stop.set()

    def _extract(self, item: ExtractItem) -> ExtractReceipt:
        started = time.monotonic()
        config = self.config
        rows = [[*row.prompt_token_ids, *row.token_ids] for row in item.rows]
        budget = config.max_tokens_per_batch or (AUTO_TOKENS_CPU if config.device == "cpu" else AUTO_TOKENS_GPU)
        if not self._checked:
            check_capture(self.capture, [row for row in rows if row and len(row) <= budget] or rows[:1])
            self._checked = True
        states, failed, cut = capture_rows(self.capture, rows, budget, config.max_rows_per_batch, self._stop.is_set)
        kept = [i for i in range(len(rows)) if i in states]
        shard, size_bytes, sha256 = "", 0, ""
        if kept:
            shard = shard_name(config.capture_id, [row.response_id for row in item.rows])
            meta = ShardMeta(
                config.capture_id,
                tuple(config.layer_ids),
                config.final_state,
                config.target,
                config.revision,
                config.store_dtype,
            )
            captured = [_captured_row(item, i, states[i]) for i in kept]
            written = write_shard(Path(config.out_dir) / shard, captured, meta)
            size_bytes, sha256 = written.size_bytes, written.sha256
        return ExtractReceipt(
            item_id=item.item_id,
            shard=shard,
            size_bytes=size_bytes,
            sha256=sha256,
            rows=[CapturedEntry(item.rows[i].response_id, n, len(rows[i])) for n, i in enumerate(kept)],
            failed=[FailedEntry(item.rows[i].response_id, why) for i, why in sorted(failed.items())],
            seconds=time.monotonic() - started,
            tokens=sum(len(rows[i]) for i in kept),
            batches=cut,
        )


def capture_rows(
    capture: Forward,
    rows: Sequence[Sequence[int]],
    max_tokens_per_batch: int,
    max_rows: int,
    stop: Callable[[], bool] = lambda: False,
) -> tuple[dict[int, Any], dict[int, str], str]:
    """States [T, N, H] by row index, reasons of rows without, and a line that says how they were cut.

    Raises:
        Retryable: `stop` said so.
    """
    lengths = [len(row) for row in rows]
    failed = {i: "it has no tokens" for i, length in enumerate(lengths) if not length}
    filled = [i for i, length in enumerate(lengths) if length]
    lengths = [lengths[i] for i in filled]
    pending = plan_batches(lengths, max_tokens_per_batch, max_rows)
    states: dict[int, Any] = {}
    done = []
    while pending:
        if stop():
            raise Retryable("extraction was stopped within a shard; it is captured again next time")
        batch, *pending = pending
        try:
            outputs = capture.forward([rows[filled[i]] for i in batch.rows])
        except (torch.OutOfMemoryError, MemoryError):
            outputs = None
        if outputs is None:  # outside the handler: its traceback would keep the tensors alive
            _free_memory()
            pending, given_up = halve(pending, batch, lengths)
            for i in given_up:
                failed[filled[i]] = f"out of memory with {lengths[i]} tokens alone"
            continue
        done.append(batch)
        states.update({filled[i]: output for i, output in zip(batch.rows, outputs, strict=True)})
    return states, failed, summary(done, lengths)


def create(config: bytes, emit: Callable[[bytes], None]) -> ExtractHandler:
    """Called once in a spawned process; the worker has nothing to say between items."""
    return ExtractHandler(msgspec.msgpack.decode(config, type=ExtractConfig))


def _captured_row(item: ExtractItem, index: int, states_TNH: Any) -> CapturedRow:
    row = item.rows[index]
    prompt, answer = len(row.prompt_token_ids), len(row.token_ids)
    loss_mask_T = torch.zeros(prompt + answer, dtype=torch.uint8)
    loss_mask_T[prompt:] = 1
    input_ids_T = torch.tensor([*row.prompt_token_ids, *row.token_ids], dtype=torch.int32)
    return CapturedRow(row.response_id, input_ids_T, loss_mask_T, states_TNH)


def _free_memory() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
