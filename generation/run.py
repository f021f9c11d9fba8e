"""The thin run: a feed's conversations through the pool, every attempt into shards, shards into the ledger.

Two coroutines. One renders and tokenises ahead of the engines, in a thread; engines pull. The other takes what comes
back, judges it and keeps it; a conversation's next turn goes to the front of what is rendered. When nothing is left to
hand out, the build is topped up, while the engines still work. Asked to stop, it hands out nothing more, waits for
what is in flight, and commits. What it decides is in plan, judge and topup.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from corpus.errors import RowError, UserError
from corpus.ledger.writer import LedgerWriter
from corpus.manifest import Manifest
from corpus.responses import Attempt
from corpus.runlog import RunLog
from corpus.target import Renderer, ResolvedTarget
from corpus.token_ids import pack_ids
from fleet.crew import Launch
from fleet.devices import Device
from fleet.interrupt import Interrupt
from fleet.pool import Done, Failed, Pool, PoolError
from fleet.process import WorkerProcess
from generation.attempts import AttemptLog
from generation.conversation import Conversation
from generation.engines import Engines
from generation.examiner import Examined, Examiner
from generation.feed import Feed, turns_by_category
from generation.judge import FINISHED_BY_LENGTH, budget, fault, judge
from generation.messages import GenerateItem, GenerateResult
from generation.plan import EARLIER_TURN_REJECTED, Policy, Recipe
from generation.progress import Progress, Tally, publish_progress
from generation.rejections import Rejections
from generation.rendering import Rendering

if TYPE_CHECKING:
    import polars as pl

RENDER_BATCH = 64
AHEAD_PER_DEVICE = 512
TAKE_AT_ONCE = 256
TOP_UP_EVERY_S = 30.0
DRAIN_S = 120.0
HEARTBEAT_TIMEOUT_S = 120.0
"""Silence after which a worker is killed: its loop, which the engine's own work does not block, stands still."""
REPORT_EVERY_S = 0.25
PUBLISH_EVERY_S = 2.0
TICK_S = 0.5

TopUp = Callable[[], "pl.DataFrame | None"]
"""Asked when nothing is left to hand out and all that came back is entered; conversations, or None for no more."""


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
    warnings: tuple[str, ...] = ()
    """What a person should know of it."""


class GenerationRun:
    """One execution of a plan. `factory` is the engine's import string (a fake one in tests)."""

    def __init__(
        self,
        build_id: str,
        recipes: dict[str, Recipe],
        policies: dict[str, Policy],
        manifest: Manifest,
        target: ResolvedTarget,
        renderer: Renderer,
        ledger: LedgerWriter,
        log: RunLog,
        factory: str = "generation.worker:create",
        *,
        launch: Launch = WorkerProcess,
        heartbeat_timeout_s: float = HEARTBEAT_TIMEOUT_S,
    ) -> None:
        self.recipes, self.policies = recipes, policies
        self.manifest, self.log = manifest, log
        self.factory, self.launch, self.heartbeat_timeout_s = factory, launch, heartbeat_timeout_s
        self.tally = Tally(log.run_id, build_id, time.monotonic())
        self.engines = Engines(manifest, target, log, self.tally)
        self.rejections = Rejections(manifest)
        self.examiner = Examiner(renderer)
        self.rendering = Rendering(renderer, lambda conversation: self._recipe(conversation).thinking)
        self.attempts = AttemptLog(ledger, log.run_id)
        self._open: dict[str, Conversation] = {}
        self._next_turns: deque[Conversation] = deque()
        self._again: deque[Conversation] = deque()
        self._wake = asyncio.Event()
        self._told_s = self._published_s = 0.0

    async def run(
        self,
        feed: Feed,
        devices: Sequence[Device],
        interrupt: Interrupt,
        report: Callable[[Progress], None],
        top_up: TopUp | None = None,
        max_num_seqs: int | None = None,
    ) -> RunSummary:
        """Answer everything, or as much as an interrupt lets.

        Args:
            max_num_seqs: what fits on a device, where the manifest leaves it open.

        Raises:
            UserError: the disk is full, or no engine starts or stays up.
        """
        pool = Pool(
            self.factory,
            self.engines.config_for,
            devices,
            on_event=self.engines.heard,
            on_death=self.engines.died,
            log_dir=self.log.folder / "workers",
            warm_first=devices[0].kind == "cuda",
            heartbeat_timeout_s=self.heartbeat_timeout_s,
            launch=self.launch,
        )
        self.engines.expect(devices, max_num_seqs)
        self.tally.want(feed.turns)
        try:
            async with pool:
                interrupt.can_drain = True
                self.tally.started_s = time.monotonic()
                await self._work(pool, feed, interrupt, report, top_up)
        except PoolError as error:
            await self.attempts.flush()
            raise UserError(f"generation stopped: {error}. What was answered is kept; {error.next_step}.") from error
        await self.attempts.flush()
        tally = self.tally
        warnings = [*self.engines.warnings(), *self.examiner.warnings(), *self.rendering.warnings()]
        for warning in warnings:
            self.log.event("warning", warning)
        return RunSummary(
            tally.accepted, tally.rejected, tally.tokens, time.monotonic() - tally.started_s,
            interrupt.asked.is_set(), dict(tally.reasons), tuple(warnings),
        )  # fmt: skip

    async def _work(
        self,
        pool: Pool,
        feed: Feed,
        interrupt: Interrupt,
        report: Callable[[Progress], None],
        top_up: TopUp | None,
    ) -> None:
        """Hand out and take in, side by side; what fails in one ends both."""
        handing = asyncio.create_task(self._hand_out(pool, feed, top_up))
        drain: asyncio.Task[Any] | None = None
        try:
            while not handing.done() or self._open:
                if handing.done() and not handing.cancelled():
                    handing.result()
                if drain is None and interrupt.asked.is_set():
                    handing.cancel()
                    self.tally.stopping = True
                    drain = asyncio.create_task(pool.drain(DRAIN_S))
                if not await self._take_in(pool, interrupt, handing, drain) and drain is not None and drain.done():
                    break  # what is still in flight did not end in time; it is asked again by the next run
                self._tell(pool, feed, report)
                await self.attempts.keep_up()
            if handing.done() and not handing.cancelled():
                handing.result()
        finally:
            for task in filter(None, (handing, drain)):
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, Exception):
                    await task
            self._tell(pool, feed, report, now=True)

    async def _hand_out(self, pool: Pool, feed: Feed, top_up: TopUp | None) -> None:
        """Render ahead of the engines until nothing is left."""
        topped_up_at = -1  # rejections that the last top-up knew of
        topped_up_s = -math.inf
        while True:
            self._wake.clear()
            while self._again:
                self._queue(pool, self._again.popleft())
            if self._next_turns:
                few = min(RENDER_BATCH, len(self._next_turns))
                await self._submit(pool, [self._next_turns.popleft() for _ in range(few)])
            elif len(feed) and pool.pending < max(AHEAD_PER_DEVICE * self.engines.count, 2 * self.engines.capacity):
                if feed.low:
                    await asyncio.to_thread(feed.read)
                await self._submit(pool, feed.take(RENDER_BATCH))
            elif len(feed) or len(self._open) > pool.in_flight:
                await self._woken()
            elif top_up is not None and (
                not self._open
                or (self.tally.rejected > topped_up_at and time.monotonic() - topped_up_s > TOP_UP_EVERY_S)
            ):
                topped_up_at, topped_up_s = self.tally.rejected, time.monotonic()
                ended = not self._open
                await self.attempts.flush()
                more = await asyncio.to_thread(top_up)
                if more is not None:
                    feed.add(more)
                    self.tally.want(turns_by_category(more))
                elif ended and not self._open:
                    return
            elif self._open:
                await self._woken()
            else:
                return

    async def _woken(self) -> None:
        # not wait_for: it swallows a cancellation that comes together with what it waits for (Python 3.11)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(TICK_S):
                await self._wake.wait()

    async def _take_in(
        self, pool: Pool, interrupt: Interrupt, handing: asyncio.Task[None], drain: asyncio.Task[Any] | None
    ) -> bool:
        """Take what is there, or wait a moment for it or for the end of handing out; False if nothing came."""
        if not pool.finished:
            waits: set[asyncio.Future[Any]] = {asyncio.ensure_future(pool.changed())}
            if drain is None:
                waits.add(asyncio.ensure_future(interrupt.asked.wait()))
            ends = set() if handing.done() else {handing}
            await asyncio.wait(waits | ends, return_when=asyncio.FIRST_COMPLETED, timeout=TICK_S)
            for one in waits:
                if one.done():
                    one.result()
                one.cancel()
        took = 0
        while pool.finished and took < TAKE_AT_ONCE:
            outcome = await pool.next_outcome()
            assert outcome is not None
            self._took(outcome, drain is not None)
            took += 1
        if self.engines.refused is not None:
            raise UserError(f"generation stopped: {self.engines.refused} Only what was written before is kept.")
        self._wake.set()
        return took > 0

    async def _submit(self, pool: Pool, conversations: Sequence[Conversation]) -> None:
        """Render the next turn of each and queue it; what cannot be asked is rejected here."""
        for conversation, outcome in zip(
            conversations, await asyncio.to_thread(self.rendering.render, conversations), strict=True
        ):
            recipe = self._recipe(conversation)
            if isinstance(outcome, RowError):
                self._reject(conversation, outcome.reason)
                continue
            conversation.rendered(pack_ids(outcome))
            room = budget(len(outcome), recipe.max_tokens, self.manifest.target.max_model_len)
            if room < 1:
                self._reject(conversation, "prompt_too_long")
                continue
            conversation.max_tokens = room
            self._queue(pool, conversation)

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
            logprobs=self.manifest.generation.token_logprobs,
        )
        pool.submit(answer.response_id, msgspec.msgpack.encode(item), conversation.weight)

    def _took(self, outcome: Done | Failed, draining: bool) -> None:
        conversation = self._open.pop(outcome.item_id)
        if isinstance(outcome, Failed):
            self.log.event("item_failed", f"{outcome.item_id}: {outcome.error}")
            reason = "engine_crashed" if outcome.set_aside else "engine_error"
            self._reject(conversation, reason, outcome.device, failed=True)
            return
        result = msgspec.msgpack.decode(outcome.payload, type=GenerateResult)
        wrong = fault(result, outcome.item_id, conversation.attempt, conversation.max_tokens)
        if wrong is not None:
            self.log.event("item_failed", f"{outcome.item_id}: {wrong}")
            self._reject(conversation, "engine_error", outcome.device, failed=True)
            return
        examined = self.examiner.examine(conversation, self._recipe(conversation), result)
        room = self.manifest.target.max_model_len - len(conversation.prompt_token_ids) // 4
        verdict = judge(
            result.finish_reason, examined.notes, self.policies[conversation.category], conversation.attempt,
            conversation.max_tokens, room,
        )  # fmt: skip
        if verdict.state == "rejected":
            self._reject(conversation, verdict.reason or "rejected", outcome.device, result, examined)
            return
        self._keep(conversation, verdict.state, verdict.reason, outcome.device, result, examined)
        tokens = len(result.token_ids) // 4
        if verdict.retry_max_tokens is not None:
            self.tally.spend(tokens)
            conversation.attempt, conversation.max_tokens = 1, verdict.retry_max_tokens
            if not draining:
                self._again.append(conversation)
            return
        self._count(conversation, tokens, result.finish_reason == FINISHED_BY_LENGTH)
        conversation.accepted(result.text, result.token_ids)
        if conversation.answers and not draining:
            conversation.weight = abs(conversation.weight) + 1  # one that has begun goes first: its prefix is warm
            self._next_turns.append(conversation)

    def _count(self, conversation: Conversation, tokens: int, cut: bool) -> None:
        """An answer is accepted; shares count its prompt once."""
        answer, first = conversation.answers[0], not conversation.counted
        conversation.counted = True
        if conversation.prompt.recorded and conversation.prompt.turns > 1:
            first = self.tally.begins(answer.prompt_id, answer.replica)
        self.tally.accept(answer.category, tokens, cut, first=first, holdout=conversation.holdout)
        self.rejections.accepted(answer.category)

    def _reject(
        self,
        conversation: Conversation,
        reason: str,
        device: Device | None = None,
        result: GenerateResult | None = None,
        examined: Examined | None = None,
        failed: bool = False,
    ) -> None:
        """The current turn gets its reason, and so do the turns that can no longer be asked: all in one shard."""
        category = conversation.category
        self._keep(conversation, "rejected", reason, device, result, examined)
        cut = result is not None and result.finish_reason == FINISHED_BY_LENGTH
        self.tally.reject(category, reason, len(result.token_ids) // 4 if result else 0, failed, cut)
        if (warning := self.rejections.rejected(category, reason)) is not None:
            self.tally.warnings.append(warning)
            self.log.event("warning", warning)
        conversation.answers.popleft()
        conversation.prompt_token_ids, conversation.extends_turn, conversation.queued_at = b"", None, None
        while conversation.answers:
            self._keep(conversation, "rejected", EARLIER_TURN_REJECTED, None, None, None)
            self.tally.reject(category, EARLIER_TURN_REJECTED, 0, failed=False)
            conversation.answers.popleft()

    def _keep(
        self,
        conversation: Conversation,
        state: str,
        reason: str | None,
        device: Device | None,
        result: GenerateResult | None,
        examined: Examined | None,
    ) -> None:
        answer = conversation.answers[0]
        self.attempts.add(
            Attempt(
                response_id=answer.response_id,
                prompt_id=answer.prompt_id,
                recipe_id=answer.recipe_id,
                replica=answer.replica,
                turn=answer.turn,
                attempt=conversation.attempt,
                state=state,
                reason=reason,
                prompt_token_ids=conversation.prompt_token_ids,
                token_ids=result.token_ids if result else b"",
                text=result.text if result else "",
                finish_reason=result.finish_reason if result else None,
                stop_reason=result.stop_reason if result else None,
                seed=result.seed if result else None,
                engine=result.engine if result else None,
                device=device.label if device else None,
                queued_at=conversation.queued_at,
                started_at=result.started_at if result else None,
                first_token_at=result.first_token_at if result else None,
                ended_at=result.ended_at if result else time.time(),
                run_id=self.log.run_id,
                notes=examined.notes if examined else (),
                reasoning_tokens=examined.reasoning_tokens if examined else None,
                extends_turn=conversation.extends_turn,
                token_logprobs=result.logprobs if result else None,
            )
        )

    def _tell(self, pool: Pool, feed: Feed, report: Callable[[Progress], None], now: bool = False) -> None:
        """Show where the run is, here and, now and then, to other shells."""
        moment_s = time.monotonic()
        if not now and moment_s - self._told_s < REPORT_EVERY_S:
            return
        self._told_s = moment_s
        waiting = len(feed) + len(self._next_turns) + len(self._open) - pool.in_flight
        self.engines.look(dry=not waiting or self.tally.stopping)
        progress = self.tally.progress(moment_s, time.time(), pool.in_flight, waiting)
        report(progress)
        if now or moment_s - self._published_s >= PUBLISH_EVERY_S:
            self._published_s = moment_s
            publish_progress(self.log.folder, progress)

    def _recipe(self, conversation: Conversation) -> Recipe:
        return self.recipes[conversation.answers[0].recipe_id]
