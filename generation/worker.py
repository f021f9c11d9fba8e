"""The handler that a generation worker runs: one vLLM engine, many requests at once.

`create` is the factory for `fleet.Pool` ("generation.worker:create"); items and results are
`generation.messages`. The handler keeps the engine full and knows nothing of prompts, recipes or shards. A
dead or stalled engine ends the process, and the pool starts another; a request that the engine refuses (too
long, for one) fails alone.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from corpus.token_ids import pack_ids, unpack_ids
from fleet.worker import BrokenError, end_worker
from generation.diversity import SELF_TEST_ANSWERS, SELF_TEST_SAMPLING, SELF_TEST_TOKENS
from generation.engine import (
    capacity_of,
    max_num_seqs_of,
    result_of,
    sampling_arguments,
    seed_of,
    start_engine,
)
from generation.messages import (
    EngineOutOfMemory,
    EngineReady,
    GenerateItem,
    decode_config,
    decode_item,
    decode_result,
    encode,
)
from generation.meter import Meter

SAMPLE_EVERY_S = 5.0
STALL_AFTER_S = 900.0
"""An engine with work that makes no step for so long hangs: the longest step is a prefill of seconds."""
LAST_BYTES = 64 << 10
Emit = Callable[[bytes], None]


class VllmHandler:
    """An engine that is up."""

    def __init__(self, engine: Any, meter: Meter, name: str, max_num_seqs: int, seed: int, emit: Emit) -> None:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind
        from vllm.v1.engine.exceptions import EngineDeadError

        self.capacity = capacity_of(max_num_seqs)
        self._max_num_seqs, self._emit, self._said = max_num_seqs, emit, False
        self.watcher: asyncio.Task[None] | None = None
        self._engine = engine
        self._meter = meter
        self._name = name
        self._seed = seed
        self._params: Callable[..., Any] = SamplingParams
        self._final_only = RequestOutputKind.FINAL_ONLY
        self._dead_error: type[Exception] = EngineDeadError

    async def handle(self, item: bytes) -> bytes:
        """Generate one response."""
        request = decode_item(item)
        params = self._params(output_kind=self._final_only, **sampling_arguments(request))
        prompt = {"prompt_token_ids": unpack_ids(request.prompt_token_ids)}
        queued_at = time.time()
        self._meter.began(time.monotonic())
        try:
            request_id = f"{request.response_id}-{request.attempt}"
            outputs = [output async for output in self._engine.generate(prompt, params, request_id)]
        except self._dead_error as error:
            self._say_why()
            raise BrokenError(str(error)) from error
        finally:
            self._meter.ended()
        ended_at = time.time()
        return encode(
            result_of(
                request,
                outputs[-1],
                engine=self._name,
                seed=self._seed,
                queued_at=queued_at,
                ended_at=ended_at,
                clock_offset_s=ended_at - time.monotonic(),
            )
        )

    async def watch(self) -> None:
        """Report every few seconds; end the process with its engine."""
        while True:
            await asyncio.sleep(SAMPLE_EVERY_S)
            if self._engine.errored:
                self._say_why()
                end_worker("the engine is dead")
            if (stalled_s := self._meter.stalled_s(time.monotonic())) > STALL_AFTER_S:
                end_worker(f"the engine has made no step for {stalled_s:.0f} s")
            self._emit(encode(self._meter.sample(time.time(), time.monotonic())))

    async def self_test(self) -> list[list[int]]:
        """A few answers over the path that every item takes, for generation.diversity."""
        items = [
            GenerateItem(
                response_id=f"self-test-{number}",
                prompt_token_ids=pack_ids([1]),
                max_tokens=SELF_TEST_TOKENS,
                sampling=SELF_TEST_SAMPLING,
            )
            for number in range(SELF_TEST_ANSWERS)
        ]
        results = await asyncio.gather(*(self.handle(encode(item)) for item in items))
        return [unpack_ids(decode_result(result).token_ids) for result in results]

    def _say_why(self) -> None:
        """The engine's own process took the reason with it; its last words are in this worker's log."""
        if not self._said and ran_out_of_memory(_last_words()):
            self._said = True
            self._emit(encode(EngineOutOfMemory(max_num_seqs=self._max_num_seqs)))

    def close(self) -> None:
        """Shut the engine down."""
        self._engine.shutdown(timeout=5)


def ran_out_of_memory(text: str) -> bool:
    """True if the last words of an engine say so: torch's error, or the device's own."""
    return any(words in text for words in ("OutOfMemoryError", "CUDA out of memory", "can't allocate memory"))


def _last_words() -> str:
    """The end of what this worker and its engine printed; nothing where that is no file."""
    try:
        path = Path("/proc/self/fd/1").readlink()
        with path.open("rb") as log:
            log.seek(max(0, path.stat().st_size - LAST_BYTES))
            return log.read().decode(errors="replace")
    except OSError:
        return ""


async def create(config: bytes, emit: Emit) -> VllmHandler:
    """Start the engine of a configuration; returns when it can take items."""
    settings = decode_config(config)
    max_num_seqs = max_num_seqs_of(settings)
    meter = Meter(max_num_seqs, time.monotonic())
    engine = start_engine(settings, meter, time.monotonic)

    import vllm

    name, seed = f"vllm {vllm.__version__}", seed_of(settings)
    handler = VllmHandler(engine, meter, name, max_num_seqs, seed, emit)
    self_test = await handler.self_test() if settings.max_model_len > SELF_TEST_TOKENS + 1 else []
    emit(
        encode(
            EngineReady(
                engine=name,
                engine_number=settings.engine_number,
                seed=seed,
                capacity=handler.capacity,
                max_num_seqs=max_num_seqs,
                max_model_len=engine.vllm_config.model_config.max_model_len,
                kv_tokens=getattr(engine.vllm_config.cache_config, "kv_cache_size_tokens", None),
                self_test=self_test,
            )
        )
    )
    handler.watcher = asyncio.create_task(handler.watch())
    return handler
