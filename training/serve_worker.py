"""The handler of the serving check: target and drafter in a real vLLM, one category at a time.

Factory for `fleet.Pool`: "training.serve_worker:create"; items and results are `training.serve_messages`. It
decodes at temperature 0 and stops where the model stops. Acceptance is read from differences of vLLM's own
counters, so nothing is measured twice, and prefix caching is off, so every prompt is computed. The engine runs in
one thread of its own: the worker's loop keeps beating while a category decodes.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from fleet.devices import kind_of
from fleet.worker import BrokenError
from training.serve_messages import (
    Counters,
    ServeConfig,
    ServeItem,
    ServeResult,
    budgets,
    decode_config,
    decode_item,
    encode,
    room_for_drafts,
)

AUTO_MAX_NUM_SEQS = {"cuda": 64, "cpu": 16}
PREFIX = "vllm:spec_decode_num_"


class ServeHandler:
    """An engine with a drafter, or without one."""

    capacity = 1

    def __init__(self, llm: Any, config: ServeConfig, max_model_len: int) -> None:
        import vllm
        from vllm.v1.engine.exceptions import EngineDeadError

        self._llm = llm
        self._config = config
        self._max_model_len = max_model_len
        self._engine = f"vllm {vllm.__version__}"
        self._params: Callable[..., Any] = vllm.SamplingParams
        self._dead_error: type[Exception] = EngineDeadError
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="serve")

    async def handle(self, item: bytes) -> bytes:
        """Decode one category."""
        loop = asyncio.get_running_loop()
        try:
            return encode(await loop.run_in_executor(self._thread, self._serve, decode_item(item)))
        except self._dead_error as error:
            raise BrokenError(str(error)) from error

    def close(self) -> None:
        """Shut the engine down."""
        self._llm.llm_engine.engine_core.shutdown()

    def _serve(self, item: ServeItem) -> ServeResult:
        limits = budgets(item, self._max_model_len, self._config.num_speculative_tokens)
        decoded = [index for index, limit in enumerate(limits) if limit]
        before, began_s = read_counters(self._llm.get_metrics()), time.monotonic()
        outputs = self._llm.generate(
            [{"prompt_token_ids": item.prompts[index]} for index in decoded],
            [self._params(temperature=0.0, max_tokens=limits[index], detokenize=False) for index in decoded],
            use_tqdm=False,
        )
        counted = read_counters(self._llm.get_metrics()).since(before)
        token_ids: list[list[int]] = [[] for _ in item.prompts]
        finish_reasons: list[str | None] = [None for _ in item.prompts]
        for index, output in zip(decoded, outputs, strict=True):
            token_ids[index] = list(output.outputs[0].token_ids)
            finish_reasons[index] = output.outputs[0].finish_reason
        return ServeResult(
            category=item.category,
            drafts=counted.drafts,
            draft_tokens=counted.draft_tokens,
            accepted_tokens=counted.accepted_tokens,
            accepted_per_position=list(counted.accepted_per_position),
            rows=len(decoded),
            skipped=len(limits) - len(decoded),
            token_ids=token_ids,
            finish_reasons=finish_reasons,
            max_tokens=limits,
            engine=self._engine,
            seconds=time.monotonic() - began_s,
        )


def read_counters(metrics: Iterable[Any]) -> Counters:
    """The speculative-decoding counters among vLLM's metrics; zeros without a drafter."""
    values: dict[str, Any] = {}
    for metric in metrics:
        if metric.name.startswith(PREFIX):
            values[metric.name.removeprefix(PREFIX)] = getattr(metric, "values", None) or metric.value
    return Counters(
        drafts=values.get("drafts", 0),
        draft_tokens=values.get("draft_tokens", 0),
        accepted_tokens=values.get("accepted_tokens", 0),
        accepted_per_position=tuple(values.get("accepted_tokens_per_pos", ())),
    )


def engine_arguments(config: ServeConfig, model_configs: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Keyword arguments of vLLM's LLM. `model_configs`: config.json of the target, and of the drafter if any.

    The engine gets room for drafts above the longest row, as far as the models' positions go.
    """
    kind = kind_of(config.device)
    configs = list(model_configs)
    longest = config.max_model_len + room_for_drafts(config.num_speculative_tokens)
    for model_config in configs:
        inner = model_config.get("text_config") or model_config.get("transformer_layer_config") or model_config
        positions = inner.get("max_position_embeddings")
        longest = min(longest, positions or longest)
    arguments: dict[str, Any] = {
        "model": config.target_dir,
        "dtype": config.dtype,
        "max_model_len": longest,
        "max_num_seqs": config.max_num_seqs or AUTO_MAX_NUM_SEQS[kind],
        "gpu_memory_utilization": config.gpu_memory_utilization,
        "enable_prefix_caching": False,
        "enforce_eager": kind == "cpu",
        "disable_log_stats": False,
        "trust_remote_code": config.trust_remote_code,
        "seed": 0,
    }
    if any("vision_config" in model_config for model_config in configs):
        arguments["language_model_only"] = True
    if config.drafter_dir is not None:
        arguments["speculative_config"] = {
            "method": "dflash",
            "model": config.drafter_dir,
            "num_speculative_tokens": config.num_speculative_tokens,
        }
    return {**arguments, **config.extra}


def create(config: bytes, emit: Callable[[bytes], None]) -> ServeHandler:
    """Load target and drafter; takes a minute or two."""
    settings = decode_config(config)
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")  # this process has threads
    os.environ.setdefault("VLLM_ENGINE_READY_TIMEOUT_S", "7200")  # the pool's start timeout decides
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

    from vllm import LLM

    folders = [settings.target_dir, *([settings.drafter_dir] if settings.drafter_dir else [])]
    configs = [json.loads((Path(folder) / "config.json").read_text()) for folder in folders]
    arguments = engine_arguments(settings, configs)
    return ServeHandler(LLM(**arguments), settings, arguments["max_model_len"])
