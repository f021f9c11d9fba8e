"""What the coordinator and a generation worker say to each other; the same for a real and a fake engine.

A worker is configured once (EngineConfig), gets items (GenerateItem) and returns results (GenerateResult);
beside them it reports itself (EngineReady once, EngineSample every few seconds). Tokens go in and come out
as ids, packed as int32: a list of Python numbers costs twenty times as much to send and to hold. Nothing is
tokenised here or there. Times are UTC unix seconds. Imports neither vllm nor torch.
"""

from __future__ import annotations

from typing import Any

import msgspec


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """One engine on one device."""

    model_dir: str
    dtype: str
    max_model_len: int
    max_num_seqs: int | None = None
    """Sequences that run at once; None: the engine's own choice for its device."""
    max_num_batched_tokens: int | None = None
    """Tokens of one step; None: vLLM's default for offline use."""
    gpu_memory_utilization: float = 0.92
    kv_cache_dtype: str = "auto"
    quantization: str | None = None
    seed: int = 0
    """The manifest's seed; the engine runs with seed + engine_number."""
    extra: dict[str, Any] = msgspec.field(default_factory=dict)
    """Further engine arguments, passed as they are."""
    trust_remote_code: bool = False
    engine_number: int = 0
    device: str = "cpu:0"
    """The device's label; what the process may use of it is set by its environment."""
    engines_here: int = 1
    """Engines on this machine, this one among them."""


class GenerateItem(msgspec.Struct, frozen=True, kw_only=True):
    """One response to be generated."""

    response_id: str
    prompt_token_ids: bytes
    """pack_ids"""
    max_tokens: int
    sampling: dict[str, float]
    """temperature, top_p, top_k, min_p, presence_penalty, repetition_penalty; what is missing is neutral."""
    attempt: int = 1
    logprobs: bool = False
    """Also return the log-probability of each chosen token."""


class GenerateResult(msgspec.Struct, frozen=True, kw_only=True):
    """One generated response, as the engine wrote it."""

    response_id: str
    attempt: int
    token_ids: bytes
    """Every generated token, the one that ended the turn included; pack_ids."""
    text: str
    """Without special tokens."""
    finish_reason: str
    """stop: it ended by itself; length: max_tokens or max_model_len."""
    stop_reason: str | None
    """The token id or string that stopped it, where it is not the tokenizer's own end token."""
    queued_at: float
    """When the engine received it."""
    started_at: float
    """When its prompt was first scheduled."""
    first_token_at: float
    ended_at: float
    engine: str
    """Name and version."""
    seed: int
    """The engine's seed; there is none of the request's own."""
    logprobs: bytes | None = None
    """float32, one a token: the natural logarithm of its probability before temperature and the like; if asked for."""


class EngineReady(msgspec.Struct, frozen=True, kw_only=True, tag="ready"):
    """Sent once, when the engine is up."""

    engine: str
    engine_number: int
    seed: int
    capacity: int
    max_num_seqs: int
    max_model_len: int
    """As the engine has it, which may be less than what was asked for."""
    kv_tokens: int | None
    """Tokens that the KV cache holds, where the engine says."""
    self_test: list[list[int]] = []
    """Token ids of a few answers at a temperature where the random stream alone decides (generation.diversity)."""


class EngineSample(msgspec.Struct, frozen=True, kw_only=True, tag="sample"):
    """How the engine is doing, over the time since the last sample."""

    sampled_at: float
    running: int
    waiting: int
    tokens_per_s: float
    """Generated tokens."""
    kv_use: float | None
    """Part of the KV cache in use, 0 to 1."""
    prefix_hits: float | None = None
    """Part of the prompt tokens that the prefix cache had, 0 to 1; None where none was looked up."""


class EngineOutOfMemory(msgspec.Struct, frozen=True, kw_only=True, tag="out_of_memory"):
    """The engine died of it; the worker ends."""

    max_num_seqs: int


EngineEvent = EngineReady | EngineSample | EngineOutOfMemory


_encoder = msgspec.msgpack.Encoder()
_config = msgspec.msgpack.Decoder(EngineConfig)
_item = msgspec.msgpack.Decoder(GenerateItem)
_result = msgspec.msgpack.Decoder(GenerateResult)
_event = msgspec.msgpack.Decoder(EngineEvent)


def encode(message: EngineConfig | GenerateItem | GenerateResult | EngineEvent) -> bytes:
    """One message as bytes."""
    return _encoder.encode(message)


def decode_config(data: bytes) -> EngineConfig:
    """What a worker was started with."""
    return _config.decode(data)


def decode_item(data: bytes) -> GenerateItem:
    """What a worker is to do."""
    return _item.decode(data)


def decode_result(data: bytes) -> GenerateResult:
    """What became of an item."""
    return _result.decode(data)


def decode_event(data: bytes) -> EngineEvent:
    """What a worker reports of itself."""
    return _event.decode(data)
