"""The extraction worker: loads the target once, then writes one shard an item and answers with a receipt.

Made by "extraction.start:create" in a process that fleet.Pool spawned; config, events, items and receipts are msgpack
(see messages). It never opens the ledger. Before it takes items it checks its own states (`extraction.selftest`),
measures what a batch takes (`extraction.trials`) and tells both. Forwards run one after another; the states of one
batch, and the end of one shard, are written beside the next forward. A batch that runs out of memory is cut in half
and its length band has half the budget from then on; a row that cannot fit alone is reported as failed.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import msgspec
import torch

from corpus.errors import Retryable, UserError
from corpus.shard_writer import ShardWriter
from corpus.shards import ShardMeta
from corpus.token_ids import unpack_ids
from extraction.budget import MARGIN, BandModel, Budgets, announced_bytes, band_of, choose
from extraction.capture import Capture
from extraction.messages import (
    BudgetLowered,
    CapturedEntry,
    ExtractConfig,
    ExtractEvent,
    ExtractItem,
    ExtractReady,
    ExtractReceipt,
    FailedEntry,
    SelfTestFailed,
    encode,
    shard_name,
)
from extraction.outlet import DEPTH, Outlet
from extraction.plan import MAX_ROWS, Cut, cut_of, halve, plan_batches
from extraction.selftest import check_capture
from extraction.trials import TRIAL_TOKENS_CPU, TRIAL_TOKENS_GPU, Memory, free_memory, measure, memory_of

BESIDE_BYTES = 96 << 20
"""What a worker takes beside target and batches: items, libraries that load late, the allocator's pieces."""


class Packs(Protocol):
    """What the loop over batches needs of a capture."""

    def packed(self, rows: Sequence[Sequence[int]], length: int = 0) -> Any:
        """States [S, N, H] of all rows, one after another."""


@dataclass(frozen=True)
class Limits:
    """What batches are cut by."""

    budgets: Budgets
    max_rows: int = MAX_ROWS
    align: int = 1
    too_long: Callable[[int], str | None] = lambda length: None
    """Why a row of this length is not even tried; None: it is."""


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
        if config.threads:
            torch.set_num_threads(config.threads)
        self.config = config
        self._emit: Callable[[ExtractEvent], None] = lambda event: emit(encode(event))
        self.capture = Capture(
            config.target_dir,
            config.layer_ids,
            final_state=config.final_state,
            dtype=config.dtype,
            device=config.device,
            store_dtype=config.store_dtype,
            trust_remote_code=config.trust_remote_code,
        )
        try:
            difference = (
                check_capture(self.capture, [unpack_ids(row) for row in config.sample]) if config.sample else 0.0
            )
        except UserError as error:
            self._emit(SelfTestFailed(why=str(error)))
            raise
        ready, self._limits = measured(config, self.capture, memory_of(self.capture.device, config.memory_bytes))
        self._emit(msgspec.structs.replace(ready, difference=difference))
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
            loss_mask_S = torch.cat([_loss_mask(rows[i].prompt_tokens, rows[i].tokens) for i in batch])
            puts.append(self._outlet.put(writer, batch, states_SNH, input_ids_S, loss_mask_S))

        try:
            failed, cut, limits = capture_rows(
                self.capture, [unpack_ids(row.token_ids) for row in rows], self._limits, put,
                settle=self._outlet.settle, stop=self._stop.is_set,
            )  # fmt: skip
        except BaseException:
            self._outlet.drop(writer, puts)
            raise
        for top, tokens in limits.budgets.by_band.items():
            if tokens < self._limits.budgets.of(top):
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


def measured(config: ExtractConfig, capture: Capture, memory: Memory | None) -> tuple[ExtractReady, Limits]:
    """What trial batches show, and the limits that follow; without `memory`, the plain number of tokens."""
    most = config.most_tokens
    if memory is None or not config.longest:
        ready = ExtractReady(
            loaded_bytes=0, announced_bytes=0, limit_bytes=0, otherwise=most, budgets={}, tokens_per_s=0.0,
            difference=0.0,
        )  # fmt: skip
        return ready, Limits(Budgets(most), align=config.align)
    on_cpu = config.device == "cpu"
    trial_tokens = min(most, TRIAL_TOKENS_CPU if on_cpu else TRIAL_TOKENS_GPU)
    loaded_bytes, limit_bytes = memory.loaded_bytes(), memory.limit_bytes()
    models = [_with_outlet(model, capture) for model in measure(capture, config.longest, trial_tokens, memory)]
    free_memory()
    loaded_bytes = max(loaded_bytes, memory.loaded_bytes())
    room_bytes = limit_bytes - loaded_bytes - BESIDE_BYTES
    budgets = choose(models, room_bytes, most)
    longest = {band_of(length): length for length in config.longest}
    # a GPU says when it is full; a process that takes too much of a machine's memory is killed, so it does not try
    top_bytes = {model.top: model for model in models}

    def too_long(length: int) -> str | None:
        model = top_bytes.get(band_of(length))
        if not on_cpu or (model is not None and model.peak_bytes(length) <= room_bytes):
            return None
        needed = (
            f"{(loaded_bytes + BESIDE_BYTES + model.peak_bytes(length)) / 1e9:.2f} GB"
            if model
            else "more than there is"
        )
        return f"{length} tokens alone need {needed}; a worker here has {limit_bytes / 1e9:.2f} GB"

    tried = {top: length for top, length in longest.items() if too_long(length) is None}
    announced = loaded_bytes + BESIDE_BYTES + announced_bytes(models, budgets, tried)
    ready = ExtractReady(
        loaded_bytes=loaded_bytes,
        announced_bytes=announced,
        limit_bytes=limit_bytes,
        otherwise=budgets.otherwise,
        budgets=dict(budgets.by_band),
        tokens_per_s=max((model.tokens_per_s for model in models), default=0.0),
        difference=0.0,
    )
    return ready, Limits(budgets, align=config.align, too_long=too_long)


def capture_rows(
    capture: Packs,
    rows: Sequence[Sequence[int]],
    limits: Limits,
    put: Callable[[Sequence[int], Any], None],
    *,
    settle: Callable[[], None] = lambda: None,
    stop: Callable[[], bool] = lambda: False,
) -> tuple[dict[int, str], Cut, Limits]:
    """Run rows in batches; `put` gets the rows of each and their states [S, N, H].

    Returns:
        Reasons of rows without states, how the rest was cut, and the limits from now on.

    Raises:
        Retryable: `stop` said so.
    """
    lengths = [len(row) for row in rows]
    failed = {i: "it has no tokens" for i, length in enumerate(lengths) if not length}
    failed |= {i: why for i, length in enumerate(lengths) if length and (why := limits.too_long(length)) is not None}
    left = [i for i in range(len(rows)) if i not in failed]
    lengths = [lengths[i] for i in left]
    budgets = limits.budgets
    pending = plan_batches(lengths, budgets, limits.max_rows, limits.align)
    done = []
    while pending:
        if stop():
            raise Retryable("extraction was stopped within a shard; it is captured again next time")
        batch, *pending = pending
        try:
            states_SNH = capture.packed([rows[left[i]] for i in batch.rows], batch.length)
        except (torch.OutOfMemoryError, MemoryError):
            states_SNH = None
        if states_SNH is None:  # outside the handler: its traceback would keep the tensors alive
            settle()
            free_memory()
            pending, given_up, budgets = halve(pending, batch, lengths, budgets, limits.align)
            for i in given_up:
                failed[left[i]] = f"out of memory with {lengths[i]} tokens alone"
            continue
        done.append(batch)
        put([left[i] for i in batch.rows], states_SNH)
    return failed, cut_of(done, lengths), replace(limits, budgets=budgets)


def create(config: bytes, emit: Callable[[bytes], None]) -> ExtractHandler:
    """Called once in a spawned process."""
    return ExtractHandler(msgspec.msgpack.decode(config, type=ExtractConfig), emit)


def _with_outlet(model: BandModel, capture: Capture) -> BandModel:
    """With the states of batches that are on their way out while the next one is computed."""
    stored = capture.states_per_token * capture.hidden_size * capture.store_dtype.itemsize
    under_way = 1 if capture.device.type == "cuda" else DEPTH
    more = under_way * stored / MARGIN  # known exactly: no margin on it
    return BandModel(model.top, model.fixed_bytes, model.bytes_per_token + more, model.tokens_per_s)


def _loss_mask(prompt_tokens: int, tokens: int) -> Any:
    """1 on every token that the target generated: reasoning, tool calls, end of turn."""
    loss_mask_T = torch.zeros(tokens, dtype=torch.uint8)
    loss_mask_T[prompt_tokens:] = 1
    return loss_mask_T
