"""The real engine's side of the messages: EngineConfig to vLLM's arguments, its outputs to GenerateResult.

Translation only, no loop: `generation.worker` drives the engine. Importing this module imports neither vllm
nor torch; only `start_engine` does. An engine has one seed and requests have none: a request's own seed
switches vLLM's fast sampler off, and one shared by requests gives them all the same answer.
"""

from __future__ import annotations

import json
import os
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

from corpus.token_ids import pack_ids
from fleet.devices import gpus_in, kind_of
from generation import vllm_plugin
from generation.engine_settings import SET_ELSEWHERE
from generation.messages import EngineConfig, GenerateItem, GenerateResult
from generation.meter import Meter

AUTO_MAX_NUM_SEQS = {"cuda": 256, "cpu": 16}
"""One core, SmolLM2-135M in float32: 8 make 152 tok/s, 16 make 203, 32 make 211, 64 make 240; more in flight than
16 leaves little for an engine that comes up later. On a GPU, vLLM's own default before it looks at the card."""
CPU_BATCHED_TOKENS = 2_048
"""On a core: activations of vLLM's 4,096 do not fit its caches; 128 prompts of 150 tokens took 1.2 times as long."""


def capacity_of(max_num_seqs: int) -> int:
    """Items that a worker holds: the engine's queue must never run dry while one result is on its way."""
    return max_num_seqs + max(4, max_num_seqs // 4)


def max_num_seqs_of(config: EngineConfig) -> int:
    """The sequences that run at once, the automatic choice resolved."""
    return config.max_num_seqs or AUTO_MAX_NUM_SEQS[kind_of(config.device)]


def batched_tokens_of(config: EngineConfig) -> int | None:
    """Tokens of one step, the automatic choice resolved; None leaves vLLM's own."""
    if config.max_num_batched_tokens is None and kind_of(config.device) == "cpu":
        return max(CPU_BATCHED_TOKENS, max_num_seqs_of(config))
    return config.max_num_batched_tokens


def engine_arguments(config: EngineConfig, model_config: dict[str, Any]) -> dict[str, Any]:
    """Keyword arguments of AsyncEngineArgs. `model_config` is the model's config.json.

    Raises:
        ValueError: `extra` names an argument that the manifest sets elsewhere.
    """
    for name in config.extra:
        if name in SET_ELSEWHERE:
            raise ValueError(f"engine.extra.{name} is set elsewhere in the manifest; remove it from engine.extra")
    arguments: dict[str, Any] = {
        "model": config.model_dir,
        "dtype": config.dtype,
        "max_model_len": config.max_model_len,
        "max_num_seqs": max_num_seqs_of(config),
        "max_num_batched_tokens": batched_tokens_of(config),
        "gpu_memory_utilization": config.gpu_memory_utilization,
        "kv_cache_dtype": config.kv_cache_dtype,
        "quantization": config.quantization,
        "seed": seed_of(config),
        "trust_remote_code": config.trust_remote_code,
        "enforce_eager": kind_of(config.device) == "cpu",
        "enable_log_requests": False,
        "disable_log_stats": True,
    }
    if "vision_config" in model_config:
        arguments["language_model_only"] = True  # leaves the vision tower out of memory
    # a group of GPUs is one engine's, whatever the manifest asked: placement has decided
    return {**arguments, **config.extra, "tensor_parallel_size": gpus_in(config.device)}


def seed_of(config: EngineConfig) -> int:
    """The engine's own seed."""
    return config.seed + config.engine_number


def sampling_arguments(item: GenerateItem) -> dict[str, Any]:
    """Keyword arguments of one request's SamplingParams; top_k is a count."""
    sampling: dict[str, Any] = dict(item.sampling)
    if "top_k" in sampling:
        sampling["top_k"] = int(sampling["top_k"])
    if item.logprobs:
        sampling["logprobs"] = 0  # the chosen token's own, and no more
    return {**sampling, "max_tokens": item.max_tokens, "skip_special_tokens": True}


def read_model_config(model_dir: str) -> dict[str, Any]:
    """The model's config.json."""
    read: dict[str, Any] = json.loads((Path(model_dir) / "config.json").read_text())
    return read


def start_engine(config: EngineConfig, meter: Meter, monotonic_s: Callable[[], float]) -> Any:
    """An AsyncLLM whose steps `meter` counts. Must be called on a running loop; takes a minute."""
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")  # this process has threads
    os.environ.setdefault("VLLM_ENGINE_READY_TIMEOUT_S", "7200")  # the pool's start timeout decides
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if kind_of(config.device) == "cpu" and config.engines_here >= len(os.sched_getaffinity(0)):
        # every core has an engine: what schedules this one stays on its own core, and pauses there instead of spinning
        os.sched_setaffinity(0, {int(config.device.rpartition(":")[2])})
        vllm_plugin.ask()

    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.usage.usage_lib import UsageContext
    from vllm.v1.engine.async_llm import AsyncLLM
    from vllm.v1.metrics.loggers import StatLoggerBase

    class Steps(StatLoggerBase):  # type: ignore[misc]
        """Hands vLLM's statistics of each step to the meter."""

        def __init__(self, vllm_config: Any, engine_index: int = 0) -> None:
            pass

        def record(self, scheduler_stats: Any, iteration_stats: Any, *_: Any, **__: Any) -> None:
            meter.step(
                monotonic_s(),
                iteration_stats.num_generation_tokens if iteration_stats else 0,
                scheduler_stats.num_running_reqs if scheduler_stats else None,
                scheduler_stats.kv_cache_usage if scheduler_stats else None,
            )
            looked_up = scheduler_stats.prefix_cache_stats if scheduler_stats else None
            if looked_up is not None:
                meter.looked_up(looked_up.queries, looked_up.hits)

        def log_engine_initialized(self) -> None:
            pass

    arguments = AsyncEngineArgs(**engine_arguments(config, read_model_config(config.model_dir)))
    # LLM_CLASS: vLLM then takes its defaults for offline throughput, not for latency
    return AsyncLLM.from_engine_args(arguments, usage_context=UsageContext.LLM_CLASS, stat_loggers=[Steps])


def result_of(
    item: GenerateItem, output: Any, *, engine: str, seed: int, queued_at: float, ended_at: float, clock_offset_s: float
) -> GenerateResult:
    """The result in vLLM's final RequestOutput. `clock_offset_s` is UTC minus the engine's monotonic clock."""
    (completion,) = output.outputs
    stats = output.metrics
    scheduled_at = stats.scheduled_ts + clock_offset_s if stats and stats.scheduled_ts else queued_at
    first_token_at = stats.first_token_ts + clock_offset_s if stats and stats.first_token_ts else ended_at
    started_at = min(max(scheduled_at, queued_at), ended_at)
    return GenerateResult(
        response_id=item.response_id,
        attempt=item.attempt,
        token_ids=pack_ids(completion.token_ids),
        text=completion.text,
        finish_reason=str(completion.finish_reason),
        stop_reason=None if completion.stop_reason is None else str(completion.stop_reason),
        queued_at=queued_at,
        started_at=started_at,
        first_token_at=min(max(first_token_at, started_at), ended_at),
        ended_at=ended_at,
        engine=engine,
        seed=seed,
        logprobs=_chosen(completion) if item.logprobs else None,
    )


def _chosen(completion: Any) -> bytes:
    """The log-probability of each token that was chosen, as float32."""
    chosen = zip(completion.token_ids, completion.logprobs or (), strict=True)
    return array("f", (at[token].logprob for token, at in chosen)).tobytes()
