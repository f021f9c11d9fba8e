"""The thin run: a plan's conversations through the pool, every attempt into shards, shards into the ledger.

Prompts are rendered and tokenised a little ahead of the engines, in a thread, longest expected first; engines pull.
Attempts are written every FLUSH_EVERY_S while the run goes on. Asked to stop, it hands out nothing more, waits for
what is in flight, and commits. What it decides is in plan and judge.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from corpus.errors import RowError, UserError
from corpus.ledger import ingest
from corpus.ledger.writer import LedgerWriter
from corpus.manifest import Manifest
from corpus.responses import Attempt, write_responses
from corpus.runlog import RunLog
from corpus.target import Renderer, ResolvedTarget
from fleet.devices import Device
from fleet.interrupt import Interrupt
from fleet.pool import Done, Failed, Pool, PoolError
from generation.conversation import Conversation
from generation.judge import budget, judge
from generation.messages import EngineConfig, EngineReady, EngineSample, GenerateItem, GenerateResult, decode_event
from generation.plan import GenerationPlan, Recipe

FLUSH_EVERY_S = 5.0
FLUSH_ROWS = 5_000
RENDER_BATCH = 64
AHEAD_PER_DEVICE = 768
DRAIN_S = 120.0
SEEDS_PER_START = 1_000


@dataclass
class Progress:
    """Where the run is; handed to the reporter after every change."""

    total: int
    accepted: int = 0
    rejected: int = 0
    tokens: int = 0
    started: float = field(default_factory=time.monotonic)
    engines: dict[str, EngineSample] = field(default_factory=dict)
    stopping: bool = False
    in_flight: int = 0

    @property
    def finished(self) -> int:
        """Answers with a state."""
        return self.accepted + self.rejected


@dataclass(frozen=True)
class RunSummary:
    """How the run ended."""

    accepted: int
    rejected: int
    tokens: int
    seconds: float
    interrupted: bool
    reasons: dict[str, int]
    """Rejected answers by reason."""


class GenerationRun:
    """One execution of a plan. `factory` is the engine's import string (a fake one in tests)."""

    def __init__(
        self,
        plan: GenerationPlan,
        manifest: Manifest,
        target: ResolvedTarget,
        renderer: Renderer,
        ledger: LedgerWriter,
        log: RunLog,
        factory: str = "generation.worker:create",
    ) -> None:
        self.plan, self.manifest, self.target, self.renderer = plan, manifest, target, renderer
        self.ledger, self.log, self.factory = ledger, log, factory
        self.progress = Progress(plan.to_make)
        self._engines: dict[str, str] = {}
        self._starts: Counter[str] = Counter()
        self._reasons: Counter[str] = Counter()
        self._open: dict[str, Conversation] = {}
        self._buffer: list[Attempt] = []
        self._shard = 0
        self._flushed = time.monotonic()

    async def run(
        self,
        conversations: Sequence[Conversation],
        devices: Sequence[Device],
        interrupt: Interrupt,
        report: Callable[[Progress], None],
    ) -> RunSummary:
        """Answer everything, or as much as an interrupt lets.

        Raises:
            UserError: the disk is full, or no engine starts or stays up.
        """
        numbers = {device: number for number, device in enumerate(devices)}
        pool = Pool(
            self.factory,
            lambda device: msgspec.msgpack.encode(self._engine_config(device, numbers[device])),
            devices,
            on_event=lambda device, event: self._event(device, event, report),
            log_dir=self.log.folder / "workers",
            warm_first=devices[0].kind == "cuda",
        )
        waiting = deque(sorted(conversations, key=lambda c: -c.weight))
        try:
            async with pool:
                interrupt.can_drain = True
                self.progress.started = self._flushed = time.monotonic()
                await self._loop(pool, waiting, len(devices), interrupt, report)
        except PoolError as error:
            await self._flush()
            raise UserError(
                f"generation stopped: {error}. What was answered is kept; run the same command to resume."
            ) from error
        await self._flush()
        seconds = time.monotonic() - self.progress.started
        done = self.progress
        return RunSummary(
            done.accepted, done.rejected, done.tokens, seconds, interrupt.asked.is_set(), dict(self._reasons)
        )

    async def _loop(
        self,
        pool: Pool,
        waiting: deque[Conversation],
        devices: int,
        interrupt: Interrupt,
        report: Callable[[Progress], None],
    ) -> None:
        asked = asyncio.ensure_future(interrupt.asked.wait())
        outcome: asyncio.Future[Done | Failed | None] | None = None
        drain: asyncio.Future[Any] | None = None
        while True:
            if drain is None and interrupt.asked.is_set():
                self.progress.stopping, self.progress.in_flight = True, pool.in_flight
                report(self.progress)
                drain = asyncio.ensure_future(pool.drain(DRAIN_S))
            if drain is None:
                while waiting and pool.pending < AHEAD_PER_DEVICE * devices:
                    batch = [waiting.popleft() for _ in range(min(RENDER_BATCH, len(waiting)))]
                    await self._submit(pool, batch)
            if outcome is None:
                outcome = asyncio.ensure_future(pool.next_outcome())
            watched: set[asyncio.Future[Any]] = {outcome, asked if drain is None else drain}
            await asyncio.wait(watched, return_when=asyncio.FIRST_COMPLETED, timeout=FLUSH_EVERY_S)
            if drain is not None and drain.done() and not outcome.done():
                await asyncio.wait({outcome}, timeout=1.0)
                if not outcome.done():
                    break  # what is still in flight did not end in time; it is asked again by the next run
            if outcome.done():
                result, outcome = outcome.result(), None
                if result is None and (not waiting or drain is not None):
                    break
                if result is not None:
                    await self._took(pool, result, drain is not None)
                    self.progress.in_flight = pool.in_flight
                    report(self.progress)
            if len(self._buffer) >= FLUSH_ROWS or time.monotonic() - self._flushed > FLUSH_EVERY_S:
                await self._flush()
        asked.cancel()

    async def _submit(self, pool: Pool, conversations: Sequence[Conversation]) -> None:
        """Render the next turn of each and queue it; what cannot be asked is rejected here."""
        rendered = await asyncio.to_thread(self._render, conversations)
        for conversation, outcome in zip(conversations, rendered, strict=True):
            recipe = self._recipe(conversation)
            if isinstance(outcome, RowError):
                self._reject(conversation, outcome.reason)
                continue
            conversation.prompt_token_ids, conversation.attempt = outcome, 0
            room = budget(len(outcome), recipe.max_tokens, self.manifest.target.max_model_len)
            if room < 1:
                self._reject(conversation, "prompt_too_long")
                continue
            conversation.max_tokens = room
            self._queue(pool, conversation)

    def _render(self, conversations: Sequence[Conversation]) -> list[list[int] | RowError]:
        texts: list[str | RowError] = []
        for conversation in conversations:
            try:
                turn = conversation.answers[0].turn
                messages = conversation.prompt.context(turn, conversation.said)
                thinking = self._recipe(conversation).thinking
                texts.append(self.renderer.text(messages, conversation.prompt.tools, thinking))
            except RowError as error:
                texts.append(error)
        ids = iter(self.renderer.encode([text for text in texts if isinstance(text, str)]))
        nothing = RowError("template_error", "renders to nothing")
        return [next(ids) or nothing if isinstance(text, str) else text for text in texts]

    def _queue(self, pool: Pool, conversation: Conversation) -> None:
        answer, recipe = conversation.answers[0], self._recipe(conversation)
        conversation.queued_at = time.time()
        self._open[answer.response_id] = conversation
        item = GenerateItem(
            response_id=answer.response_id,
            prompt_token_ids=conversation.prompt_token_ids,
            max_tokens=conversation.max_tokens,
            sampling=recipe.sampling,
            attempt=conversation.attempt,
        )
        pool.submit(answer.response_id, msgspec.msgpack.encode(item), conversation.weight)

    async def _took(self, pool: Pool, outcome: Done | Failed, draining: bool) -> None:
        conversation = self._open.pop(outcome.item_id)
        if isinstance(outcome, Failed):
            self.log.event("item_failed", f"{outcome.item_id}: {outcome.error}")
            self._reject(conversation, "engine_crashed" if outcome.set_aside else "engine_error", outcome.device)
            return
        result = msgspec.msgpack.decode(outcome.payload, type=GenerateResult)
        recipe = self._recipe(conversation)
        room = self.manifest.target.max_model_len - len(conversation.prompt_token_ids)
        verdict = judge(
            result.finish_reason, result.text, recipe.truncated, conversation.attempt, conversation.max_tokens, room
        )
        if verdict.state == "rejected":
            self._reject(conversation, verdict.reason or "rejected", outcome.device, result)
            return
        self._buffer.append(self._attempt(conversation, verdict.state, verdict.reason, outcome.device, result))
        self.progress.tokens += len(result.token_ids)
        if verdict.retry_max_tokens is not None:
            conversation.attempt, conversation.max_tokens = 1, verdict.retry_max_tokens
            if not draining:
                self._queue(pool, conversation)
            return
        self.progress.accepted += 1
        conversation.said.append(result.text)
        conversation.answers.popleft()
        if conversation.answers and not draining:
            conversation.weight += 1e9  # a conversation that has begun goes first: its prefix is warm
            await self._submit(pool, [conversation])

    def _reject(
        self,
        conversation: Conversation,
        reason: str,
        device: Device | None = None,
        result: GenerateResult | None = None,
    ) -> None:
        """The current turn gets its reason, and so do the turns that can no longer be asked: all in one shard."""
        self._buffer.append(self._attempt(conversation, "rejected", reason, device, result))
        self._reasons[reason] += 1
        self.progress.rejected += 1
        self.progress.tokens += len(result.token_ids) if result else 0
        conversation.answers.popleft()
        conversation.prompt_token_ids = []
        while conversation.answers:
            self._buffer.append(self._attempt(conversation, "rejected", "earlier_turn_rejected", None, None))
            self.progress.rejected += 1
            conversation.answers.popleft()

    def _attempt(
        self,
        conversation: Conversation,
        state: str,
        reason: str | None,
        device: Device | None,
        result: GenerateResult | None,
    ) -> Attempt:
        answer = conversation.answers[0]
        return Attempt(
            response_id=answer.response_id,
            prompt_id=answer.prompt_id,
            recipe_id=answer.recipe_id,
            replica=answer.replica,
            turn=answer.turn,
            attempt=conversation.attempt,
            state=state,
            reason=reason,
            prompt_token_ids=conversation.prompt_token_ids,
            token_ids=result.token_ids if result else [],
            text=result.text if result else "",
            finish_reason=result.finish_reason if result else None,
            stop_reason=result.stop_reason if result else None,
            seed=result.seed if result else None,
            engine=result.engine if result else None,
            device=device.label if device else None,
            queued_at=conversation.queued_at or None,
            started_at=result.started_at if result else None,
            first_token_at=result.first_token_at if result else None,
            ended_at=result.ended_at if result else time.time(),
            run_id=self.log.run_id,
        )

    async def _flush(self) -> None:
        self._flushed = time.monotonic()
        if not self._buffer:
            return
        attempts, self._buffer = self._buffer, []
        path = self.ledger.workspace.responses / f"{self.log.run_id}-{self._shard:05d}.parquet"
        self._shard += 1
        await asyncio.to_thread(write_responses, path, attempts)
        await asyncio.wrap_future(self.ledger.submit(lambda c: ingest.ingest_response_shard(c, path)))

    def _event(self, device: Device, data: bytes, report: Callable[[Progress], None]) -> None:
        event = decode_event(data)
        if isinstance(event, EngineReady):
            self._engines[device.label] = event.engine
            message = f"{device.label}: {event.engine}, takes {event.capacity} at once, runs {event.max_num_seqs}"
            self.log.event("engine_ready", message)
        elif isinstance(event, EngineSample):
            self.progress.engines[device.label] = event
            self.log.sample(self._engines.get(device.label, ""), device.label, msgspec.structs.asdict(event))
            report(self.progress)

    def _recipe(self, conversation: Conversation) -> Recipe:
        return self.plan.recipes[conversation.answers[0].recipe_id]

    def _engine_config(self, device: Device, number: int) -> EngineConfig:
        """Asked for at every start of a worker: one that is started again must not draw the same numbers again."""
        engine = self.manifest.engine
        start = self._starts[device.label]
        self._starts[device.label] += 1
        return EngineConfig(
            model_dir=str(self.target.folder),
            dtype=self.manifest.target.dtype,
            max_model_len=self.manifest.target.max_model_len,
            max_num_seqs=None if engine.max_num_seqs == "auto" else engine.max_num_seqs,
            max_num_batched_tokens=(None if engine.max_num_batched_tokens == "auto" else engine.max_num_batched_tokens),
            gpu_memory_utilization=engine.gpu_memory_utilization,
            kv_cache_dtype=engine.kv_cache_dtype,
            quantization=engine.quantization,
            seed=engine.seed + SEEDS_PER_START * start,
            extra=engine.extra,
            trust_remote_code=self.manifest.target.trust_remote_code,
            engine_number=number,
            device=device.label,
        )
