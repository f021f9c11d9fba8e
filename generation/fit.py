"""What fits on a device beside a model's weights: KV room, sequences at once, and the automatic max_num_seqs.

Pure but for `read_model`, which reads the target's folder.

An estimate from file sizes and config.json, made before any engine starts; vLLM measures the real room when it is up.
What is not known (a GPU that does not tell its memory, a config that is not understood) stays None and is said; only
what is known to be too large does not fit. Bytes are those of a whole engine, a group of GPUs counted together.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from corpus.manifest import Manifest
from corpus.model_config import text_config
from fleet.devices import Device
from generation.cache_shape import CacheShape, cache_shape
from generation.weights import weights_bytes

GIB = 1 << 30
MOST_NUM_SEQS = 256
"""vLLM's own default for offline use before it looks at the card; beyond it a decode step is bound by compute."""
BATCHED_TOKENS = 8192
"""Tokens of one step, where the manifest leaves it to the engine."""
MEAN_TOKENS = 1024
"""Prompt and answer of a sequence, where nothing is measured yet."""
CPU_LIBRARY_BYTES = GIB
"""An engine's libraries on a core, before any weight."""


@dataclass(frozen=True)
class Fit:
    """One engine's memory. None is unknown; `fits` is False only where it is known that the model does not."""

    weights_bytes: int | None
    kv_room_bytes: int | None
    """Room for KV cache and recurrent states, beside weights and what a step needs."""
    kv_bytes_per_token: int | None
    state_bytes_per_sequence: int | None
    """Recurrent state of hybrids; 0 for attention alone."""
    concurrency: int | None
    """Sequences of `mean_tokens` that run at once."""
    mean_tokens: int
    """Tokens of a sequence (prompt and answer) that concurrency counts with."""
    state_blocks: int | None
    """Sequences whose recurrent state alone fills the room; None without such state."""
    fits: bool
    sequence_bytes: int | None = None
    """Of one sequence of max_model_len, without which the engine does not start; None is unknown."""
    max_model_len: int = 0
    longest: int | None = None
    """Tokens of the longest sequence that there is room for; only where that is what does not fit."""

    def lines(self) -> list[str]:
        """For a person, at most 61 columns."""
        weights = "weights unknown" if self.weights_bytes is None else f"{_gb(self.weights_bytes)} of weights"
        if not self.fits:
            if self.longest is None:
                return [f"{weights}: does not fit"]
            needs, left = _gb(self.sequence_bytes or 0), _gb(self.kv_room_bytes or 0)
            return [
                f"{weights} fit, one longest sequence does not:",
                f"{self.max_model_len:,} tokens need {needs} of KV cache, {left} are left",
                f"lower target.max_model_len to about {self.longest:,} at most",
            ]
        room = "KV room unknown" if self.kv_room_bytes is None else f"{_gb(self.kv_room_bytes)} for the KV cache"
        if self.kv_bytes_per_token is None or self.state_bytes_per_sequence is None:
            return [f"{weights}, {room}", "the model's config.json does not tell its cache: concurrency unknown"]
        each = f"{self.kv_bytes_per_token / 1024:,.0f} KiB a token"
        if self.state_bytes_per_sequence:
            each += f" and {self.state_bytes_per_sequence / 1e6:,.0f} MB of state a sequence"
        if self.concurrency is None:
            return [f"{weights}, {room}", f"{each}: concurrency unknown"]
        return [
            f"{weights}, {room}",
            each,
            f"about {self.concurrency:,} sequences at once, of {self.mean_tokens:,} tokens each",
        ]


@dataclass(frozen=True)
class Model:
    """A target as its files tell it, and how the manifest runs it."""

    config: Mapping[str, Any]
    """Its config.json."""
    weights_bytes: int | None
    dtype: str = "bfloat16"
    max_model_len: int = 8192
    kv_dtype: str = "auto"
    gpu_memory_utilization: float = 0.92
    max_num_batched_tokens: int = BATCHED_TOKENS

    @property
    def shape(self) -> CacheShape | None:
        """What a running sequence keeps; None where the config is not understood."""
        return cache_shape(dict(self.config), self.dtype, self.kv_dtype)

    def fit_on(self, device: Device, mean_tokens: int = MEAN_TOKENS, outer: Mapping[str, str] | None = None) -> Fit:
        """What fits on this device, a group counted together. `outer` (os.environ) may set the KV space of a core."""
        if device.kind == "cpu":
            return cpu_fit(
                memory_bytes=device.memory_bytes,
                weights_bytes=self.weights_bytes,
                shape=self.shape,
                kv_space_gib=float(device.env(outer)["VLLM_CPU_KVCACHE_SPACE"]),
                max_model_len=self.max_model_len,
                mean_tokens=mean_tokens,
            )
        gpus = device.members or (device,)
        return gpu_fit(
            memory_bytes=min(gpu.memory_bytes for gpu in gpus),
            weights_bytes=self.weights_bytes,
            shape=self.shape,
            model_config=dict(self.config),
            max_model_len=self.max_model_len,
            gpu_memory_utilization=self.gpu_memory_utilization,
            gpus=len(gpus),
            mean_tokens=mean_tokens,
            max_num_batched_tokens=self.max_num_batched_tokens,
        )

    def need_bytes(self, gpus: int) -> int:
        """What each of `gpus` GPUs must offer one engine; 0 where the weights are unknown."""
        if self.weights_bytes is None:
            return 0
        return member_need_bytes(
            weights_bytes=self.weights_bytes,
            shape=self.shape,
            model_config=dict(self.config),
            max_model_len=self.max_model_len,
            gpus=gpus,
            max_num_batched_tokens=self.max_num_batched_tokens,
        )


def read_model(manifest: Manifest, folder: Path, config: Mapping[str, Any]) -> Model:
    """The target in `folder`. Weights that the engine quantises as it loads them are unknown, not guessed."""
    engine, target = manifest.engine, manifest.target
    stored_so = any("quantization_config" in part for part in (config, text_config(dict(config))))
    on_the_fly = engine.quantization is not None and not stored_so
    read = None if on_the_fly else weights_bytes(folder, target.dtype)
    offloaded = engine.extra.get("cpu_offload_gb", 0)
    if read is not None and isinstance(offloaded, int | float):
        read = max(0, read - int(offloaded * GIB))
    tokens = engine.max_num_batched_tokens
    return Model(
        config=config,
        weights_bytes=read,
        dtype=target.dtype,
        max_model_len=target.max_model_len,
        kv_dtype=engine.kv_cache_dtype,
        gpu_memory_utilization=engine.gpu_memory_utilization,
        max_num_batched_tokens=BATCHED_TOKENS if tokens == "auto" else tokens,
    )


def max_num_seqs(fit: Fit) -> int:
    """The automatic max_num_seqs of an engine on a GPU: what fits, from 1 to 256, never above the state blocks.

    A running sequence is half written on average, yet the long ones run longer: with lognormal lengths (sigma 1) the
    two make 1.36 times the mean, so sequences are counted at their whole mean length, and not less. Unknown: 256.
    """
    most = MOST_NUM_SEQS if fit.concurrency is None else min(MOST_NUM_SEQS, fit.concurrency)
    return max(1, most if fit.state_blocks is None else min(most, fit.state_blocks))


def gpu_fit(
    *,
    memory_bytes: int,
    weights_bytes: int | None,
    shape: CacheShape | None,
    model_config: dict[str, Any],
    max_model_len: int,
    gpu_memory_utilization: float = 0.92,
    gpus: int = 1,
    mean_tokens: int = MEAN_TOKENS,
    max_num_batched_tokens: int = BATCHED_TOKENS,
) -> Fit:
    """What fits on one GPU, or on `gpus` of them that share an engine.

    Args:
        memory_bytes: of each GPU; 0 is unknown.
        weights_bytes: of the whole model; None is unknown.
        shape: of the whole model; None is not understood.
        model_config: its config.json, for what a step needs.
        max_model_len: the engine refuses to start without room for one such sequence.
        gpu_memory_utilization: part of each GPU that the engine takes.
        gpus: tensor parallelism.
        mean_tokens: of one sequence, prompt and answer.
        max_num_batched_tokens: tokens of one step.
    """
    mean_tokens = min(mean_tokens, max_model_len)
    part = None if shape is None else shape.split(gpus)
    if not memory_bytes or weights_bytes is None:
        return _fit(weights_bytes, None, part, gpus, mean_tokens, max_model_len)
    step = step_bytes(model_config, max_num_batched_tokens, gpus)
    room = int(memory_bytes * gpu_memory_utilization) - -(-weights_bytes // gpus) - step
    return _fit(weights_bytes, room, part, gpus, mean_tokens, max_model_len)


def cpu_fit(
    *,
    memory_bytes: int,
    weights_bytes: int | None,
    shape: CacheShape | None,
    kv_space_gib: float,
    max_model_len: int,
    mean_tokens: int = MEAN_TOKENS,
) -> Fit:
    """What fits on one core: vLLM's KV cache has VLLM_CPU_KVCACHE_SPACE GiB there, whatever the weights leave."""
    room = int(kv_space_gib * GIB)
    fit = _fit(weights_bytes, room, shape, 1, min(mean_tokens, max_model_len), max_model_len)
    if weights_bytes is None or not memory_bytes or weights_bytes + room + CPU_LIBRARY_BYTES <= memory_bytes:
        return fit
    return replace(fit, fits=False, longest=None)  # it is the weights, however short a sequence is


def member_need_bytes(
    *,
    weights_bytes: int | None,
    shape: CacheShape | None,
    model_config: dict[str, Any],
    max_model_len: int,
    gpus: int,
    max_num_batched_tokens: int = BATCHED_TOKENS,
) -> int:
    """What each of `gpus` GPUs must offer an engine: its part of the weights, one step, one longest sequence."""
    one = 0 if shape is None else shape.split(gpus).sequence_bytes(max_model_len)
    return -(-(weights_bytes or 0) // gpus) + step_bytes(model_config, max_num_batched_tokens, gpus) + one


def step_bytes(model_config: dict[str, Any], tokens: int, gpus: int = 1) -> int:
    """What one step needs on each GPU beside weights and cache: CUDA's own, activations, logits. A rough upper bound.

    Activations: eight hidden and three MLP vectors a token alive at once, two bytes a number; logits of
    MOST_NUM_SEQS sequences in float32, twice (sampling copies them); 1 GiB for context, graphs and workspaces.
    """
    config = text_config(model_config)
    hidden, inner, vocabulary = (
        value if type(value := config.get(name)) is int else 0
        for name in ("hidden_size", "intermediate_size", "vocab_size")
    )
    return GIB + 2 * tokens * (8 * hidden + 3 * inner // gpus) + MOST_NUM_SEQS * vocabulary * 8


def _fit(
    weights_bytes: int | None, room: int | None, part: CacheShape | None, gpus: int, mean_tokens: int, longest: int
) -> Fit:
    """`room` and `part` are those of one member."""
    concurrency = blocks = sequence_bytes = within = None
    fits = room is None or room > 0
    if part is not None and room is not None:
        concurrency = max(0, int(room / part.mean_sequence_bytes(mean_tokens)))
        if part.state_bytes_per_sequence:
            blocks = max(0, room // part.state_bytes_per_sequence)
        sequence_bytes = part.sequence_bytes(longest)
        fits = room >= sequence_bytes
        within = None if fits else _longest_within(part, room, longest)
    return Fit(
        weights_bytes=weights_bytes,
        kv_room_bytes=None if room is None else max(0, room) * gpus,
        kv_bytes_per_token=None if part is None else part.kv_bytes_per_token * gpus,
        state_bytes_per_sequence=None if part is None else part.state_bytes_per_sequence * gpus,
        concurrency=concurrency,
        mean_tokens=mean_tokens,
        state_blocks=blocks,
        fits=fits,
        sequence_bytes=None if sequence_bytes is None else sequence_bytes * gpus,
        max_model_len=longest,
        longest=within,
    )


def _longest_within(part: CacheShape, room: int, above: int) -> int | None:
    """Tokens of the longest sequence that `room` holds, fewer than `above`; None where not even one token has room."""
    if room < part.sequence_bytes(1):
        return None
    # bytes never shrink with tokens
    return bisect_right(range(1, above), room, key=part.sequence_bytes)


def _gb(size_bytes: int) -> str:
    """Decimal, as cards and files are sold."""
    return f"{size_bytes / 1e9:,.1f} GB"
