"""An engine without a model, for tests of what surrounds one: "generation.fake:create".

Same messages as `generation.worker`. Token ids are drawn from a hash, so the same item has the same answer in
every run and on every device; at temperature 0 the answer depends on the prompt alone. `EngineConfig.extra`
sets how it behaves (`FakeSettings`): how long it takes, which marker tokens make it crash or raise.
"""

from __future__ import annotations

import asyncio
import hashlib
import heapq
import os
import random
import signal
import time
from array import array
from collections.abc import Callable
from pathlib import Path

import msgspec

from corpus.token_ids import pack_ids, unpack_ids
from fleet.worker import BrokenError
from generation.diversity import SELF_TEST_ANSWERS, SELF_TEST_TOKENS
from generation.engine import capacity_of, max_num_seqs_of, seed_of
from generation.messages import (
    EngineConfig,
    EngineOutOfMemory,
    EngineReady,
    GenerateItem,
    GenerateResult,
    decode_config,
    decode_item,
    encode,
)
from generation.meter import Meter

ENGINE = "fake 1"
WORDS = (
    "the",
    "of",
    "and",
    "to",
    "in",
    "a",
    "is",
    "that",
    "for",
    "it",
    "with",
    "as",
    "was",
    "on",
    "be",
    "at",
    "by",
    "this",
)
"""What its token ids are as text: plainly English."""


class FakeSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What `EngineConfig.extra` may say to the fake engine."""

    start_s: float = 0.0
    latency_s: float = 0.0
    """Of each answer."""
    token_s: float = 0.0
    """More, for each generated token."""
    only_told: bool = False
    """The time that answers take is not spent, only told: each begins when another of its engine's has ended."""
    until: str | None = None
    """Answers wait until this file is there; `{max_num_seqs}` in its path is the engine's."""
    at_once: int = 0
    """So many of an engine's first answers do not wait for it."""
    vocabulary: int = 1000
    eos_token_id: int = 2
    """Ends every answer that is not cut; never drawn within one."""
    mean_tokens: int = 12
    """Answers are 1 to 2 * mean_tokens - 1 tokens long before they are cut."""
    crash_token_id: int | None = None
    """A prompt that holds it kills the process."""
    broken_token_id: int | None = None
    """A prompt that holds it breaks the engine, and the worker ends."""
    raise_token_id: int | None = None
    """A prompt that holds it fails alone."""
    garbled_token_id: int | None = None
    """A prompt that holds it is answered in another's name."""
    hang_token_id: int | None = None
    """A prompt that holds it stops the worker's loop."""
    fail_start: bool = False
    out_of_memory_above: int | None = None
    """More sequences at once than this, and the engine dies of it; one that may run more ends no answer before."""
    one_stream: bool = False
    """All requests share one random stream, and the self-test shows it."""
    enable_prefix_caching: bool = True
    """The real engine's word for it; there is no cache here."""
    inexact_kv_cache_dtype: str | None = None
    """With these numbers in its KV cache, each answer parts from what it is otherwise at its first token."""
    sample_every_s: float = 1.0


def answer(item: GenerateItem, settings: FakeSettings, max_model_len: int) -> tuple[list[int], str]:
    """(token ids, finish reason) of an item."""
    greedy = item.sampling.get("temperature", 1.0) == 0
    tail = "" if greedy else f"{item.response_id}/{item.attempt}"
    prompt_token_ids = unpack_ids(item.prompt_token_ids)
    digest = hashlib.sha256(f"{prompt_token_ids}/{sorted(item.sampling.items())}/{tail}".encode())
    draw = random.Random(digest.digest())
    usable = [token for token in range(settings.vocabulary) if token != settings.eos_token_id]
    length = draw.randint(1, 2 * settings.mean_tokens - 1)
    limit = max(1, min(item.max_tokens, max_model_len - len(prompt_token_ids)))
    token_ids = [*draw.choices(usable, k=length - 1), settings.eos_token_id]
    return (token_ids, "stop") if length <= limit else (draw.choices(usable, k=limit), "length")


class FakeHandler:
    """The fake engine at work."""

    def __init__(self, config: EngineConfig, settings: FakeSettings, emit: Callable[[bytes], None]) -> None:
        max_num_seqs = max_num_seqs_of(config)
        self.capacity = capacity_of(max_num_seqs)
        self.meter = Meter(max_num_seqs, time.monotonic())
        self.watcher: asyncio.Task[None] | None = None
        self._config = config
        self._settings = settings
        self._slots = asyncio.Semaphore(max_num_seqs)
        self._free_at = [0.0] * max_num_seqs
        self._running = self._begun = 0
        self._max_num_seqs, self._emit = max_num_seqs, emit

    async def handle(self, item: bytes) -> bytes:
        """Make up one response."""
        request, queued_at = decode_item(item), time.time()
        prompt_token_ids = unpack_ids(request.prompt_token_ids)
        if len(prompt_token_ids) >= self._config.max_model_len:
            raise ValueError(
                f"the prompt has {len(prompt_token_ids)} tokens; max_model_len is {self._config.max_model_len}"
            )
        self.meter.began(time.monotonic())
        try:
            async with self._slots:
                started_at = time.time()
                await self._may_begin()
                self._running += 1
                self._misbehave(prompt_token_ids)
                await self._may_end()
                token_ids, finish_reason = answer(request, self._settings, self._config.max_model_len)
                if self._config.kv_cache_dtype == self._settings.inexact_kv_cache_dtype:
                    token_ids = [token_ids[0] + 1, *token_ids[1:]]
                took_s = self._settings.latency_s + self._settings.token_s * len(token_ids)
                if self._settings.only_told:
                    started_at = heapq.heappop(self._free_at)
                    ended_at = started_at + took_s
                    heapq.heappush(self._free_at, ended_at)
                else:
                    await asyncio.sleep(took_s)
                    ended_at = time.time()
                self._running -= 1
        finally:
            self.meter.ended()
        self.meter.step(time.monotonic(), len(token_ids))
        shown = token_ids[:-1] if finish_reason == "stop" else token_ids
        garbled = self._settings.garbled_token_id in prompt_token_ids
        return encode(
            GenerateResult(
                response_id="another" if garbled else request.response_id,
                attempt=request.attempt,
                token_ids=pack_ids(token_ids),
                text=" ".join(WORDS[token % len(WORDS)] for token in shown),
                finish_reason=finish_reason,
                stop_reason=None,
                queued_at=queued_at,
                started_at=started_at,
                first_token_at=started_at,
                ended_at=ended_at,
                engine=ENGINE,
                seed=seed_of(self._config),
                logprobs=array("f", [-1.0] * len(token_ids)).tobytes() if request.logprobs else None,
            )
        )

    def close(self) -> None:
        """Nothing to let go of."""

    async def watch(self, emit: Callable[[bytes], None]) -> None:
        """Report now and then."""
        while True:
            await asyncio.sleep(self._settings.sample_every_s)
            emit(encode(self.meter.sample(time.time(), time.monotonic())))

    async def _may_begin(self) -> None:
        self._begun += 1
        if self._settings.until is None or self._begun <= self._settings.at_once:
            return
        until = Path(self._settings.until.format(max_num_seqs=self._max_num_seqs))
        while not until.exists():
            await asyncio.sleep(0.02)

    async def _may_end(self) -> None:
        most = self._settings.out_of_memory_above
        if most is not None and self._max_num_seqs > most:
            await asyncio.Event().wait()

    def _misbehave(self, prompt_token_ids: list[int]) -> None:
        settings = self._settings
        most = settings.out_of_memory_above
        if most is not None and self._running > most:
            self._emit(encode(EngineOutOfMemory(max_num_seqs=self._max_num_seqs)))
            raise BrokenError("the fake engine is out of memory")
        if settings.crash_token_id in prompt_token_ids:
            os.kill(os.getpid(), signal.SIGKILL)
        if settings.broken_token_id in prompt_token_ids:
            raise BrokenError("the fake engine is dead")
        if settings.raise_token_id in prompt_token_ids:
            raise ValueError("the fake engine refuses this prompt")
        if settings.hang_token_id in prompt_token_ids:
            time.sleep(3600)


def self_test(config: EngineConfig, settings: FakeSettings) -> list[list[int]]:
    """What the real engine's answers look like where streams differ, or do not."""
    draw = random.Random(0 if settings.one_stream else seed_of(config))
    first = draw.choices(range(settings.vocabulary), k=SELF_TEST_TOKENS)
    more = [draw.choices(range(settings.vocabulary), k=SELF_TEST_TOKENS) for _ in range(SELF_TEST_ANSWERS - 1)]
    return [first, *([first] * len(more) if settings.one_stream else more)]


async def create(config: bytes, emit: Callable[[bytes], None]) -> FakeHandler:
    """Start the fake engine.

    Raises:
        RuntimeError: `extra.fail_start`.
    """
    engine_config = decode_config(config)
    settings = msgspec.convert(engine_config.extra, FakeSettings)
    await asyncio.sleep(settings.start_s)
    if settings.fail_start:
        raise RuntimeError("the fake engine does not start")
    handler = FakeHandler(engine_config, settings, emit)
    emit(
        encode(
            EngineReady(
                engine=ENGINE,
                engine_number=engine_config.engine_number,
                seed=seed_of(engine_config),
                capacity=handler.capacity,
                max_num_seqs=max_num_seqs_of(engine_config),
                max_model_len=engine_config.max_model_len,
                kv_tokens=None,
                self_test=self_test(engine_config, settings),
            )
        )
    )
    handler.watcher = asyncio.create_task(handler.watch(emit))
    return handler
