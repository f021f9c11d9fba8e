"""The thin run: rows of a plan through the target, states into shards, receipts into the ledger.

Workers measure themselves, then write the shards; the coordinator enters each when its receipt comes. What is
captured already, under the same capture_id and for whatever build, is not captured again. Rows that no worker can
capture are set aside with the reason (hidden/<capture_id>/set_aside.json).
"""

from __future__ import annotations

import asyncio
import json
import shutil
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from corpus.artefacts import remove_temporaries, write_text
from corpus.canonical import digest
from corpus.errors import UserError
from corpus.ledger import ingest
from corpus.ledger.writer import LedgerWriter
from corpus.manifest import Manifest
from corpus.runlog import RunLog
from corpus.set_aside import SetAside, forget, read_set_aside, write_set_aside
from corpus.shards import ShardMeta
from corpus.target import ResolvedTarget
from extraction.announcement import Announcement
from extraction.budget import Budgets
from extraction.configuration import target_config
from extraction.items import plan_items, sample_rows
from extraction.messages import (
    AUTO_TOKENS_CPU,
    BudgetLowered,
    ExtractConfig,
    ExtractItem,
    ExtractReady,
    ExtractReceipt,
    ExtractRow,
    SelfTestFailed,
    WorkerAt,
    align_of,
    decode_event,
    shard_name,
)
from extraction.plan import Cut, cut_of, plan_batches
from extraction.stage import ExtractionPlan, gigabytes
from extraction.tokens import RowTokens
from fleet.crew import Launch
from fleet.devices import Device
from fleet.interrupt import Interrupt
from fleet.pool import Done, Failed, Pool, PoolError
from fleet.process import WorkerProcess

AHEAD_PER_DEVICE = 3
DRAIN_S = 600.0
STATES_KEPT = "What was captured is kept"

Report = Callable[[int, int, float], None]


@dataclass(frozen=True)
class Watcher:
    """Who is told how a run goes.

    Attributes:
        step: with what the workers are at before the first row: a few words.
        report: with (rows done, tokens done, seconds since the first worker was ready), at first of none, then after
            every shard.
        stopping: with the shards that the run waits for, once an interrupt was asked for.
    """

    step: Callable[[str], None] = lambda words: None
    report: Report = lambda rows, tokens, seconds: None
    stopping: Callable[[int], None] = lambda shards: None


class ExtractionRun:
    """One run of extraction over a plan.

    Args:
        announce: called once with what a worker measured, before the first row; it may raise to stop.
        watcher: told how it goes.
        launch: how a worker is started; on other machines the capture's folder must be theirs too.
    """

    def __init__(
        self,
        plan: ExtractionPlan,
        manifest: Manifest,
        target: ResolvedTarget,
        ledger: LedgerWriter,
        log: RunLog,
        *,
        announce: Callable[[Announcement], None] = lambda announcement: None,
        watcher: Watcher = Watcher(),  # frozen
        launch: Launch = WorkerProcess,
        factory: str = "extraction.start:create",
    ) -> None:
        self.plan, self.manifest, self.target, self.ledger, self.log = plan, manifest, target, ledger, log
        self.announce, self.watcher, self.launch, self.factory = announce, watcher, launch, factory
        self.folder = ledger.workspace.hidden(plan.capture_id)
        self.cut = Cut()
        """How all shards were cut, together."""
        self.failed = 0
        """Rows set aside."""
        self.seconds = 0.0
        """Since the first worker was ready."""
        self._ready: dict[str, ExtractReady] = {}
        self._untrusted = ""
        self._cut_short = False
        self._items: dict[str, list[int]] = {}

    async def run(self, devices: Sequence[Device], interrupt: Interrupt, measure_on: int | None = None) -> bool:
        """Capture every row of the plan; False if an interrupt ended it early.

        Args:
            measure_on: start workers on so many devices only, for `announce` will raise; what it is told is of all.

        Raises:
            UserError: the disk cannot hold the states, the self-test failed, or no worker starts.
        """
        plan, workspace = self.plan, self.ledger.workspace
        check_disk(plan, workspace.root)
        body = self._meta().description(plan.hidden_size, self.manifest.target.dtype)
        write_text(self.folder / "capture.json", json.dumps(body, indent=1, sort_keys=True))
        self.ledger.call(lambda connection: ingest.ingest_capture(connection, workspace, plan.capture_id))
        places = [(row.shard, row.shard_row) for row in plan.rows]
        with await asyncio.to_thread(RowTokens, workspace.responses, places, workspace.cache) as tokens:
            sample = tuple(tokens.of(i)[1] for i in sample_rows([row.tokens for row in plan.rows]))
            pool = Pool(
                self.factory,
                lambda device: msgspec.msgpack.encode(self._config(device, sample)),
                devices[:measure_on],
                on_event=self._heard,
                on_death=lambda device: self.log.worker_died(device.label),
                log_dir=self.log.folder / "workers",
                launch=self.launch,
            )
            try:
                async with pool:
                    return await self._work(pool, tokens, devices, interrupt)
            except PoolError as error:
                why = self._untrusted or f"{error}. {STATES_KEPT}; {error.next_step}."
                raise UserError(f"extraction stopped: {why}") from error
            finally:
                remove_temporaries(self.folder)  # of workers that died; those of others are at an end

    async def _work(self, pool: Pool, tokens: RowTokens, devices: Sequence[Device], interrupt: Interrupt) -> bool:
        waiting = deque(self._cut_into_items(devices))
        began = time.monotonic()
        rows_done = tokens_done = 0
        interrupt.can_drain = True
        self.watcher.report(0, 0, 0.0)
        draining = asyncio.create_task(self._drain(pool, interrupt))
        try:
            while True:
                if self._untrusted:
                    raise UserError(f"extraction stopped: {self._untrusted}")
                while waiting and pool.pending < AHEAD_PER_DEVICE * len(devices) and not interrupt.asked.is_set():
                    self._submit(pool, waiting.popleft(), tokens)
                outcome = await pool.next_outcome()
                if outcome is None:
                    break
                rows = self._items.pop(outcome.item_id)
                if isinstance(outcome, Failed) and self._cut_short:
                    continue  # ended here, and no row is to blame
                if isinstance(outcome, Failed):
                    halves = await self._given_back(outcome, rows)
                    waiting.extendleft(halves)
                    rows_done += 0 if halves else len(rows)
                else:
                    receipt = msgspec.msgpack.decode(outcome.payload, type=ExtractReceipt)
                    await self._enter(receipt, outcome)
                    rows_done += len(rows)
                    tokens_done += receipt.tokens
                self.seconds = time.monotonic() - began
                self.watcher.report(rows_done, tokens_done, self.seconds)
        finally:
            draining.cancel()
        return not interrupt.asked.is_set()

    async def _drain(self, pool: Pool, interrupt: Interrupt) -> None:
        """Once it is asked for: hand out nothing more, and end what does not end in time."""
        await interrupt.asked.wait()
        self.watcher.stopping(pool.in_flight)
        await pool.drain(DRAIN_S)
        if pool.in_flight:
            self._cut_short = True
            await pool.stop()

    def _cut_into_items(self, devices: Sequence[Device]) -> list[list[int]]:
        """Shards as the first worker that is up would cut their rows; the others cut theirs by what they measured."""
        lengths = [row.tokens for row in self.plan.rows]
        ready = next(iter(self._ready.values()), None)
        budgets = Budgets(ready.otherwise, ready.budgets) if ready else Budgets(AUTO_TOKENS_CPU)
        align = align_of(devices[0].torch_name)
        batches = plan_batches([max(length, 1) for length in lengths], budgets, align=align)
        rate = len(devices) * ready.tokens_per_s if ready else 0.0
        cut = cut_of(batches, lengths)
        self.announce(Announcement(ready, cut, cut.padded_tokens / rate if rate else None, len(devices)))
        return [list(rows) for rows in plan_items(batches, lengths, len(devices), self.plan.bytes_per_token)]

    def _submit(self, pool: Pool, rows: list[int], tokens: RowTokens) -> None:
        chosen = [self.plan.rows[i] for i in rows]
        item = ExtractItem(
            item_id=digest("item", [row.response_id for row in chosen]),
            rows=[ExtractRow(row.response_id, *tokens.of(i)) for i, row in zip(rows, chosen, strict=True)],
        )
        self._items[item.item_id] = rows
        pool.submit(item.item_id, msgspec.msgpack.encode(item), float(sum(row.tokens for row in chosen)))

    async def _given_back(self, outcome: Failed, rows: list[int]) -> list[list[int]]:
        """What to do with an item that raised or ended workers: its halves, until one row is to blame.

        Raises:
            UserError: it raised: the disk is full, or there is a bug.
        """
        if not outcome.set_aside:
            raise UserError(f"extraction stopped: {outcome.error}. {STATES_KEPT}.")
        name = shard_name(self.plan.capture_id, [self.plan.rows[i].response_id for i in rows])
        (self.folder / name).unlink(missing_ok=True)  # written whole before the worker died: its rows come again
        if len(rows) > 1:
            middle = len(rows) // 2
            self.log.event("item_halved", f"{len(rows)} rows: {outcome.error}")
            return [rows[middle:], rows[:middle]]
        row = self.plan.rows[rows[0]]
        await self._set_aside({row.response_id: SetAside(row.tokens, outcome.error, outcome.device.label)})
        return []

    async def _enter(self, receipt: ExtractReceipt, outcome: Done) -> None:
        if receipt.failed:
            device = outcome.device.label
            await self._set_aside({e.response_id: SetAside(e.tokens, e.reason, device) for e in receipt.failed})
        if not receipt.shard:
            return
        cut = Cut(*receipt.cut)
        self.cut += cut
        path = self.folder / receipt.shard
        self.log.event("shard", f"{receipt.shard}: {cut}")
        rate = cut.tokens / receipt.seconds if receipt.seconds else None
        values = {"sampled_at": time.time(), "running": None, "waiting": None, "tokens_per_s": rate, "kv_use": None,
                  "prefix_hits": None}  # fmt: skip
        self.log.sample(f"extract-{outcome.worker_number}", outcome.device.label, values)
        forget(self.folder, [entry.response_id for entry in receipt.rows])  # an earlier run could not capture them
        await asyncio.wrap_future(self.ledger.submit(lambda c: ingest.ingest_hidden_shard(c, path, receipt.sha256)))

    async def _set_aside(self, rows: dict[str, SetAside]) -> None:
        for response_id, entry in rows.items():
            self.log.event("not_captured", f"{response_id}: {entry.reason}")
        self.failed += len(rows)
        write_set_aside(self.folder, read_set_aside(self.folder) | rows)
        workspace, capture_id = self.ledger.workspace, self.plan.capture_id
        await asyncio.wrap_future(self.ledger.submit(lambda c: ingest.ingest_capture(c, workspace, capture_id)))

    def _heard(self, device: Device, data: bytes) -> None:
        event = decode_event(data)
        match event:
            case ExtractReady():
                self._ready[device.label] = event
                peak = f"at most {gigabytes(event.announced_bytes)} of {gigabytes(event.limit_bytes)}"
                taken = peak if event.limit_bytes else "memory not measured"
                self.log.event("extractor", f"{device.label}: {taken}, self-test {event.difference:.2g}")
            case BudgetLowered(length=length, tokens=tokens):
                self.log.event(
                    "out_of_memory", f"{device.label}: rows up to {length} tokens in batches of {tokens} now"
                )
            case SelfTestFailed(why=why):
                self._untrusted = f"{device.label}: {why}"
            case WorkerAt(step=step) if not self._ready:
                self.watcher.step(step)

    def _meta(self) -> ShardMeta:
        """What all shards of the run share."""
        plan, target = self.plan, self.target
        return ShardMeta(
            plan.capture_id, plan.layer_ids, plan.final_state, target.target.model, target.revision, plan.stored_dtype
        )

    def _config(self, device: Device, sample: tuple[bytes, ...]) -> ExtractConfig:
        plan, target = self.plan, self.target
        lengths = [row.tokens for row in plan.rows]
        return ExtractConfig(
            **msgspec.structs.asdict(target_config(self.manifest, target, device, lengths)),
            target=target.target.model,
            revision=target.revision,
            capture_id=plan.capture_id,
            out_dir=str(self.folder),
            sample=sample,
        )


def check_disk(plan: ExtractionPlan, root: Path) -> None:
    """Refuse what the disk cannot hold.

    Raises:
        UserError: it names what does hold it.
    """
    free = shutil.disk_usage(root).free
    if plan.size_bytes > free:
        raise UserError(
            f"{root}: the hidden states need {gigabytes(plan.size_bytes)} and {gigabytes(free)} are free. Feed the "
            "training live, without a disk (training.feed: live); or take --max-disk with what they may use (category "
            "shares are kept), free space, or choose another --workspace."
        )
