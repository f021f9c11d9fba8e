"""The thin run of a search over engine settings: starts each engine, asks it the sample, measures, ends it.

One engine a device and a setting, in a pool of its own. The first engine warms the compile caches; the other devices
begin when it is up. An engine that does not start, or dies, is an outcome and not the end. The prompts of all rounds
go in at once, so that the engine stays full. Nothing is kept but the workers' logs. What is tried, and what the
figures mean, is in `tuning`.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from corpus.manifest import Manifest
from corpus.target import ResolvedTarget
from corpus.token_ids import unpack_ids
from fleet.devices import Device
from fleet.interrupt import Interrupt
from fleet.pool import Done, Pool, PoolError
from generation.engines import engine_config
from generation.messages import (
    EngineConfig,
    EngineOutOfMemory,
    EngineSample,
    GenerateItem,
    GenerateResult,
    decode_event,
    decode_result,
    encode,
)
from generation.tune_sample import Ask, Sample
from generation.tuning import GREEDY_TOKENS, Outcome, Search, Setting, Timed, next_settings, round_rates

WARM_UP_TOKENS = 16
GREEDY_PROMPTS = 64
LEAST_PROMPTS = 64


@dataclass(frozen=True)
class Rounds:
    """How much is measured of each setting."""

    count: int
    prompts: int
    """Of each."""

    def asks(self, max_num_seqs: int) -> int:
        """Answers of all rounds, and those that fill the engine before the first."""
        return self.count * self.prompts + max_num_seqs

    def wanted(self, search: Search) -> int:
        """Distinct prompts that no setting asks twice: those of the rounds, and of the warm-up."""
        return self.asks(2 * search.largest_num_seqs) + 2 * search.largest_num_seqs


def rounds_for(search: Search, rounds: int, prompts: int | None) -> Rounds:
    """As many prompts as were asked for, else LEAST_PROMPTS and twice what the largest setting runs at once."""
    return Rounds(rounds, prompts or max(LEAST_PROMPTS, 2 * search.largest_num_seqs))


class TuneRun:
    """One execution of a search. `factory` is the engine's import string (a fake one in tests)."""

    def __init__(
        self,
        search: Search,
        rounds: Rounds,
        sample: Sample,
        manifest: Manifest,
        target: ResolvedTarget,
        log_dir: Path,
        factory: str = "generation.worker:create",
    ) -> None:
        self.search, self.rounds, self.sample = search, rounds, sample
        self.manifest, self.target = manifest, target
        self.log_dir, self.factory = log_dir, factory
        self.outcomes: list[Outcome] = []
        """In the order in which they came."""
        self._report: Callable[[str], None] = lambda text: None
        self._warmed = asyncio.Event()
        self._starts = 0

    @property
    def repeats(self) -> bool:
        """The build has too few prompts: they are asked again, and the prefix cache must not know them."""
        return len(self.sample.asks) < self.rounds.wanted(self.search)

    async def run(
        self,
        devices: Sequence[Device],
        interrupt: Interrupt,
        report: Callable[[str], None],
        done: Callable[[Outcome], None] = lambda outcome: None,
    ) -> bool:
        """Measure until the search is over; False if an interrupt ended it before. `outcomes` has what was measured.

        Args:
            devices: each measures a setting of its own.
            report: told in words how it goes.
            done: called with each outcome.
        """
        self._report = report
        interrupt.can_drain = True
        work = asyncio.create_task(self._search(devices, done))
        asked = asyncio.create_task(interrupt.asked.wait())
        try:
            await asyncio.wait({work, asked}, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                work.result()
                return True
            return False
        finally:
            for task in (work, asked):
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, Exception):
                    await task

    async def _search(self, devices: Sequence[Device], done: Callable[[Outcome], None]) -> None:
        while batch := next_settings(self.search, self.outcomes):
            left = deque(batch)

            async def measure(device: Device, first: bool, left: deque[Setting] = left) -> None:
                if not first:
                    await self._warmed.wait()
                while left:
                    outcome = await self._measure(left.popleft(), device)
                    self.outcomes.append(outcome)
                    done(outcome)

            async with asyncio.TaskGroup() as group:
                for number, device in enumerate(devices):
                    group.create_task(measure(device, first=number == 0))

    async def _measure(self, setting: Setting, device: Device) -> Outcome:
        """Start an engine, ask it everything, end it."""
        started_s = time.monotonic()
        self._starts += 1
        log_dir = self.log_dir / f"engine-{self._starts}"  # a worker reads its own last words
        start_s: float | None = None
        rates: tuple[float, ...] = ()
        greedy: list[tuple[tuple[int, ...], ...]] = []
        starved = False

        def heard(_: Device, data: bytes) -> None:
            nonlocal starved
            match decode_event(data):
                case EngineSample(tokens_per_s=tokens_per_s):
                    self._report(f"{device.label}: {setting}: {tokens_per_s:,.0f} tokens/s")
                case EngineOutOfMemory():
                    starved = True

        self._report(f"{device.label}: {setting}: starting the engine")
        config = encode(self._config(setting, device))
        pool = Pool(
            self.factory, lambda _: config, [device], on_event=heard, worker_restarts=0, log_dir=log_dir
        )  # fmt: skip
        try:
            async with pool:
                start_s = time.monotonic() - started_s
                self._warmed.set()
                self._report(f"{device.label}: {setting}: the engine is up")
                rates = await self._rates(pool, setting)
                for backwards in self._passes(setting):
                    greedy.append(await self._greedy(pool, backwards))
        except PoolError as error:
            return Outcome(setting, (), start_s, "ran out of memory" if starved else str(error))
        except ValueError as error:
            return Outcome(setting, (), start_s, str(error))
        finally:
            self._warmed.set()  # one that does not start holds nobody back
        return Outcome(setting, rates, start_s, None, tuple(greedy))

    def _config(self, setting: Setting, device: Device) -> EngineConfig:
        engine = self.manifest.engine
        extra = {"enable_prefix_caching": False, **engine.extra} if self.repeats else engine.extra
        tokens = setting.max_num_batched_tokens
        tried = engine.model_copy(
            update={
                "max_num_seqs": setting.max_num_seqs,
                "max_num_batched_tokens": "auto" if tokens is None else tokens,
                "kv_cache_dtype": setting.kv_cache_dtype,
                "extra": extra,
            }
        )
        return engine_config(self.manifest.model_copy(update={"engine": tried}), self.target, device, 0, None)

    async def _rates(self, pool: Pool, setting: Setting) -> tuple[float, ...]:
        """Tokens/s of each round, after a warm-up over other prompts.

        Raises:
            ValueError: nothing can be measured; the message says why.
        """
        asks, seqs = self.sample.asks, setting.max_num_seqs
        first = self.rounds.asks(2 * self.search.largest_num_seqs)
        await self._ask(pool, "warm-up", [_short(asks[(first + i) % len(asks)]) for i in range(seqs)])
        wanted = [asks[i % len(asks)] for i in range(self.rounds.asks(seqs))]
        answers = [answer for answer in await self._ask(pool, "round", wanted) if isinstance(answer, GenerateResult)]
        timed = [
            Timed(one.started_at, one.first_token_at, one.ended_at, len(one.token_ids) // 4) for one in answers
        ]  # fmt: skip
        return round_rates(timed, seqs, self.rounds.count)

    def _passes(self, setting: Setting) -> tuple[bool, ...]:
        """Greedy passes over an engine, backwards or not: batched in another order, it may already part from itself."""
        if setting == self.search.present:
            again = any(outcome.setting == setting for outcome in self.outcomes)
            return (False, True) if self.search.kv_cache_dtypes and not again else ()
        return (False,) if setting.kv_cache_dtype != self.search.present.kv_cache_dtype else ()

    async def _greedy(self, pool: Pool, backwards: bool) -> tuple[tuple[int, ...], ...]:
        asks = [
            Ask(ask.prompt_token_ids, {"temperature": 0.0}, min(ask.max_tokens, GREEDY_TOKENS))
            for ask in self.sample.asks[:GREEDY_PROMPTS]
        ]
        answers = await self._ask(pool, f"greedy-{backwards}", asks, backwards)
        return tuple(
            tuple(unpack_ids(answer.token_ids)) if isinstance(answer, GenerateResult) else () for answer in answers
        )

    async def _ask(
        self, pool: Pool, name: str, asks: Sequence[Ask], backwards: bool = False
    ) -> list[GenerateResult | str]:
        """The answers in the order of the asks, or why there is none."""
        answers: dict[str, GenerateResult | str] = {}
        ids = [f"{name}-{number}" for number in range(len(asks))]
        for number, (item_id, ask) in enumerate(zip(ids, asks, strict=True)):
            item = GenerateItem(
                response_id=item_id,
                prompt_token_ids=ask.prompt_token_ids,
                max_tokens=ask.max_tokens,
                sampling=ask.sampling,
            )
            pool.submit(item_id, encode(item), float(number if backwards else -number))
        async for outcome in pool.outcomes():
            answers[outcome.item_id] = (
                decode_result(outcome.payload) if isinstance(outcome, Done) else outcome.error
            )  # fmt: skip
        failed = [answer for answer in answers.values() if isinstance(answer, str)]
        if failed and len(failed) == len(asks):
            raise ValueError(f"every answer failed, the first with: {failed[0]}")
        return [answers[item_id] for item_id in ids]


def _short(ask: Ask) -> Ask:
    return Ask(ask.prompt_token_ids, ask.sampling, min(ask.max_tokens, WARM_UP_TOKENS))
