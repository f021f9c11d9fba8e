"""What fits: the shapes of known models, laws of the estimate, and weights counted from headers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file

from corpus.manifest import Engine, Target
from fleet.devices import GIB, Device, group_of
from generation.cache_shape import CacheShape, cache_shape, is_hybrid, tensor_parallel_sizes
from generation.fit import MOST_NUM_SEQS, Fit, Model, cpu_fit, gpu_fit, max_num_seqs, read_model
from generation.weights import loaded_bytes, weights_bytes

QWEN_27B: dict[str, Any] = {
    "model_type": "qwen3_5",
    "vision_config": {"depth": 27},
    "text_config": {
        "num_hidden_layers": 64,
        "hidden_size": 5120,
        "intermediate_size": 17408,
        "vocab_size": 248320,
        "num_attention_heads": 24,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "full_attention_interval": 4,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 48,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
        "mamba_ssm_dtype": "float32",
    },
}
"""Qwen3.6-27B, assumed from what is public of it: every fourth of 64 layers attends, the others keep a float32 state of
48 heads of 128 x 128 and, in bf16, the last three inputs of a convolution over 10,240 channels."""
RTX_96 = 97_887 << 20
"""Bytes that a card sold with 96 GB reports."""
LLAMA_8B = {
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
}


def on_96_gb(mean_tokens: int, **changes: Any) -> Fit:
    arguments: dict[str, Any] = {
        "memory_bytes": RTX_96,
        "weights_bytes": 55_000_000_000,
        "shape": cache_shape(QWEN_27B),
        "model_config": QWEN_27B,
        "max_model_len": 8192,
        "mean_tokens": mean_tokens,
    }
    return gpu_fit(**arguments | changes)


def test_a_27b_hybrid_keeps_what_the_field_measured() -> None:
    shape = cache_shape(QWEN_27B)
    assert shape is not None
    assert (shape.full_layers, shape.linear_layers) == (16, 48)
    assert shape.kv_bytes_per_token == 64 * 1024
    assert shape.linear_layers * shape.recurrent_bytes_per_layer == 150_994_944  # the 151 MB
    assert shape.linear_layers * shape.conv_bytes_per_layer == 2_949_120  # and 3 MB of convolution
    assert shape.block_tokens == 784  # several hundred: an attention block is as large as one layer's state


@pytest.mark.parametrize("mean_tokens", [350, 784, 1024, 1568, 2000])
def test_so_many_sequences_run_beside_55_gb_on_96(mean_tokens: int) -> None:
    fit = on_96_gb(mean_tokens)
    assert fit.fits
    assert fit.concurrency is not None
    assert 115 <= fit.concurrency <= 176
    assert max_num_seqs(fit) == fit.concurrency
    assert fit.lines() == [
        "55.0 GB of weights, 36.3 GB for the KV cache",
        "64 KiB a token and 154 MB of state a sequence",
        f"about {fit.concurrency} sequences at once, of {mean_tokens:,} tokens each",
    ]
    assert all(len(line) <= 61 for line in fit.lines())


def test_state_in_half_precision_is_half() -> None:
    changed = {**QWEN_27B["text_config"], "mamba_ssm_dtype": "bfloat16"}
    full, half = cache_shape(QWEN_27B), cache_shape(changed)
    assert full is not None
    assert half is not None
    assert 2 * half.recurrent_bytes_per_layer == full.recurrent_bytes_per_layer
    assert half.conv_bytes_per_layer == full.conv_bytes_per_layer


def test_layer_types_say_the_same_as_an_interval() -> None:
    types = [("full_attention" if (layer + 1) % 4 == 0 else "linear_attention") for layer in range(64)]
    inner = {key: value for key, value in QWEN_27B["text_config"].items() if key != "full_attention_interval"}
    assert cache_shape({**inner, "layer_types": types}) == cache_shape(QWEN_27B)
    assert is_hybrid(QWEN_27B)
    assert is_hybrid({"layer_types": types})
    assert not is_hybrid(LLAMA_8B)


@pytest.mark.parametrize(
    ("config", "kib"),
    [
        (LLAMA_8B, 128),  # 32 layers x 2 x 8 heads x 128 x 2 bytes
        ({**LLAMA_8B, "num_key_value_heads": None}, 512),  # every head its own
        ({**LLAMA_8B, "head_dim": 64}, 64),
        ({"num_hidden_layers": 61, "num_attention_heads": 128, "kv_lora_rank": 512, "qk_rope_head_dim": 64}, 68.625),
    ],
)
def test_attention_keeps_so_much_a_token(config: dict[str, Any], kib: float) -> None:
    shape = cache_shape(config)
    assert shape is not None
    assert shape.kv_bytes_per_token == kib * 1024
    assert (shape.state_bytes_per_sequence, shape.block_tokens) == (0, 16)
    eight = cache_shape(config, kv_dtype="fp8")
    assert eight is not None
    assert 2 * eight.kv_bytes_per_token == shape.kv_bytes_per_token
    wide = cache_shape(config, dtype="float32")
    assert wide is not None
    assert wide.kv_bytes_per_token == 2 * shape.kv_bytes_per_token


@pytest.mark.parametrize(
    ("changes", "windows"),
    [
        ({"layer_types": ["sliding_attention", "full_attention"] * 16, "sliding_window": 1024}, 16),
        ({"model_type": "mistral", "sliding_window": 1024}, 32),
        ({"model_type": "gemma2", "sliding_window": 1024}, 16),
        ({"sliding_window": 1024, "sliding_window_pattern": 6}, 27),
        ({"sliding_window": 1024, "use_sliding_window": False, "max_window_layers": 28}, 0),
        ({"sliding_window": 1024, "use_sliding_window": True, "max_window_layers": 28}, 4),
        ({"layer_types": ["chunked_attention"] * 24 + ["full_attention"] * 8, "attention_chunk_size": 1024}, 24),
    ],
)
def test_windows_are_bounded(changes: dict[str, Any], windows: int) -> None:
    shape = cache_shape({**LLAMA_8B, **changes})
    assert shape is not None
    assert (shape.window_layers, shape.full_layers) == (windows, 32 - windows)
    longer = shape.sequence_bytes(16_384) - shape.sequence_bytes(8_192)
    assert longer == (32 - windows) * shape.kv_bytes_per_layer * 8_192
    assert shape.sequence_bytes(512) == 32 * shape.kv_bytes_per_layer * 512


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"num_hidden_layers": "many", "num_attention_heads": 8},
        {**LLAMA_8B, "num_attention_heads": 0},
        {**LLAMA_8B, "layer_types": ["mamba"] * 32},
        {**LLAMA_8B, "layer_types": ["full_attention"] * 31},
        {**LLAMA_8B, "hybrid_override_pattern": "M-M*"},
        {**LLAMA_8B, "is_encoder_decoder": True},
        {**LLAMA_8B, "linear_num_value_heads": 32},  # without the other keys of a gated delta net
        {"text_config": {**LLAMA_8B, "num_kv_shared_layers": 10}},
        {**LLAMA_8B, "layer_types": ["sliding_attention"] * 32},  # a window of no size
    ],
)
def test_a_config_that_is_not_understood_has_no_shape_and_no_error(config: dict[str, Any]) -> None:
    assert cache_shape(config) is None
    fit = gpu_fit(
        memory_bytes=RTX_96, weights_bytes=16_000_000_000, shape=None, model_config=config, max_model_len=4096
    )
    assert (fit.fits, fit.concurrency, fit.kv_bytes_per_token) == (True, None, None)
    assert "unknown" in fit.lines()[1]
    assert max_num_seqs(fit) == MOST_NUM_SEQS
    assert cache_shape(LLAMA_8B, kv_dtype="turbo") is None


def test_sizes_that_divide_the_heads() -> None:
    assert tensor_parallel_sizes(QWEN_27B) == (1, 2, 4, 8)
    assert tensor_parallel_sizes(QWEN_27B, (3, 5)) == ()
    assert tensor_parallel_sizes({"num_attention_heads": 9, "num_key_value_heads": 3}) == (1,)
    assert tensor_parallel_sizes({"num_attention_heads": 24, "num_key_value_heads": 2}) == (1, 2, 4, 8)  # repeated
    assert tensor_parallel_sizes({"num_attention_heads": 32, "num_key_value_heads": 6}) == (1, 2)
    assert tensor_parallel_sizes({}) == (1,)


shapes = st.builds(
    CacheShape,
    full_layers=st.integers(1, 64),
    window_layers=st.integers(0, 32),
    linear_layers=st.integers(0, 48),
    kv_bytes_per_layer=st.sampled_from([1024, 4096, 8192]),
    kv_heads=st.sampled_from([1, 2, 4, 8]),
    window_tokens=st.sampled_from([512, 1024, 4096]),
    recurrent_bytes_per_layer=st.sampled_from([1 << 20, 3 << 20]),
    conv_bytes_per_layer=st.just(61_440),
)


@given(shapes, st.integers(1, 20_000), st.integers(0, 20_000))
def test_longer_sequences_never_keep_less(shape: CacheShape, tokens: int, more: int) -> None:
    assert shape.sequence_bytes(tokens) <= shape.sequence_bytes(tokens + more)
    assert shape.mean_sequence_bytes(tokens) <= shape.mean_sequence_bytes(tokens + more)
    assert shape.sequence_bytes(tokens) >= shape.state_bytes_per_sequence
    one_block = shape.sequence_bytes(1)
    assert abs(shape.mean_sequence_bytes(tokens) - shape.sequence_bytes(tokens)) <= one_block


@given(shapes, st.integers(10, 200), st.integers(1, 120), st.integers(16, 8192), st.sampled_from([1, 2, 4, 8]))
def test_an_estimate_stays_inside_its_bounds(
    shape: CacheShape, memory_gib: int, weights_gib: int, mean_tokens: int, gpus: int
) -> None:
    def fit_of(memory: int) -> Fit:
        return gpu_fit(
            memory_bytes=memory * GIB,
            weights_bytes=weights_gib * GIB,
            shape=shape,
            model_config=LLAMA_8B,
            max_model_len=8192,
            gpus=gpus,
            mean_tokens=mean_tokens,
        )

    fit, larger = fit_of(memory_gib), fit_of(memory_gib + 10)
    assert fit.concurrency is not None
    assert max_num_seqs(fit) == max(1, min(MOST_NUM_SEQS, fit.concurrency, fit.state_blocks or MOST_NUM_SEQS))
    assert larger.concurrency is not None
    assert fit.concurrency <= larger.concurrency
    assert larger.fits or not fit.fits
    if fit.state_blocks:
        assert max_num_seqs(fit) <= fit.state_blocks
    if fit.fits:
        assert fit.kv_room_bytes is not None
        assert fit.kv_room_bytes >= gpus * shape.split(gpus).sequence_bytes(8192)
    model = Model(LLAMA_8B, weights_gib * GIB)
    if weights_gib > memory_gib * gpus:
        assert not fit.fits
    assert model.need_bytes(gpus) >= weights_gib * GIB / gpus


@given(shapes, st.sampled_from([2, 4, 8]), st.integers(1, 8192))
def test_members_of_a_group_keep_the_whole_between_them(shape: CacheShape, members: int, tokens: int) -> None:
    part = shape.split(members)
    together = members * part.sequence_bytes(tokens)
    assert part.kv_bytes_per_layer * members >= shape.kv_bytes_per_layer
    if shape.kv_heads % members == 0 and not shape.linear_layers:
        assert together == shape.sequence_bytes(tokens)
    if not shape.linear_layers:
        assert together >= shape.sequence_bytes(tokens)
    assert part.split(1) == part


def test_a_group_has_the_room_of_its_members() -> None:
    one = Device("cuda", 0, "", 48 * GIB)
    model = Model(QWEN_27B, 55_000_000_000)
    assert not model.fit_on(one).fits
    assert model.fit_on(one).lines() == ["55.0 GB of weights: does not fit"]
    both = model.fit_on(group_of([one, Device("cuda", 1, "", 48 * GIB)]))
    assert both.fits
    assert both.state_bytes_per_sequence == 153_944_064
    assert both.kv_room_bytes is not None
    assert both.kv_room_bytes < 2 * 48 * GIB * 0.92 - 55_000_000_000
    assert model.need_bytes(2) < 48 * GIB * 0.92 < model.need_bytes(1)


def test_memory_or_weights_that_are_unknown_forbid_nothing() -> None:
    for changes in ({"memory_bytes": 0}, {"weights_bytes": None}):
        fit = on_96_gb(1024, **changes)
        assert (fit.fits, fit.concurrency, fit.kv_room_bytes) == (True, None, None)
        assert "unknown" in fit.lines()[0]
    assert Model(LLAMA_8B, None).need_bytes(1) == 0


def test_a_core_has_the_kv_space_that_the_environment_gives() -> None:
    model = Model(LLAMA_8B, 2 * GIB, max_model_len=512)
    core = Device("cpu", 0, "", 12 * GIB)
    small, large = model.fit_on(core, outer={}), model.fit_on(core, outer={"VLLM_CPU_KVCACHE_SPACE": "4"})
    assert (small.kv_room_bytes, large.kv_room_bytes) == (GIB, 4 * GIB)
    assert small.concurrency is not None
    assert large.concurrency is not None
    assert large.concurrency // small.concurrency == 4
    assert not cpu_fit(memory_bytes=4 * GIB, weights_bytes=4 * GIB, shape=None, kv_space_gib=1, max_model_len=512).fits


# weights


def test_weights_count_in_the_dtype_that_they_are_loaded_as(tmp_path: Path) -> None:
    tensors = {
        "model.layers.0.w": np.zeros((4, 8), np.float16),
        "model.layers.0.scale": np.zeros(8, np.float32),
        "model.visual.blocks.0.w": np.zeros((64, 64), np.float16),
        "mtp.fc.weight": np.zeros((64, 64), np.float16),
        "model.layers.0.packed": np.zeros(10, np.uint8),
    }
    save_file(tensors, tmp_path / "a.safetensors")
    save_file({"lm_head.weight": np.zeros((2, 8), np.float16)}, tmp_path / "b.safetensors")
    assert weights_bytes(tmp_path, "bfloat16") == 2 * (32 + 8 + 16) + 10
    assert weights_bytes(tmp_path, "float32") == 4 * (32 + 8 + 16) + 10


@given(
    st.lists(st.tuples(st.just("a.w"), st.sampled_from(["BF16", "F32", "I8", "F8_E4M3", "I32"]), st.integers(0, 99)))
)
def test_the_whole_is_the_sum_of_its_tensors(tensors: list[tuple[str, str, int]]) -> None:
    assert loaded_bytes(tensors, "bfloat16") == sum(loaded_bytes([tensor], "bfloat16") for tensor in tensors)


def test_weights_that_are_not_here(tmp_path: Path) -> None:
    assert weights_bytes(tmp_path, "bfloat16") is None
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {"total_size": 55}}))
    assert weights_bytes(tmp_path, "bfloat16") == 55
    (tmp_path / "cut.safetensors").write_bytes(b"\xff" * 100)
    assert weights_bytes(tmp_path, "bfloat16") == 100


class Declared:
    """What `read_model` asks of a manifest."""

    def __init__(self, **engine: Any) -> None:
        self.engine = Engine(**engine)
        self.target = Target(model="m", max_model_len=512)


def test_a_manifest_says_how_the_model_is_run(tmp_path: Path) -> None:
    save_file({"w": np.zeros((1 << 10, 1 << 10), np.float16)}, tmp_path / "a.safetensors")

    def read(config: dict[str, Any], **engine: Any) -> Model:
        return read_model(Declared(**engine), tmp_path, config)  # type: ignore[arg-type]

    plain = read(LLAMA_8B)
    assert (plain.weights_bytes, plain.max_model_len, plain.max_num_batched_tokens) == (2 << 20, 512, 8192)
    assert read(LLAMA_8B, quantization="fp8").weights_bytes is None  # quantised as it is loaded
    assert read({**LLAMA_8B, "quantization_config": {}}, quantization="fp8").weights_bytes == 2 << 20
    assert read(LLAMA_8B, extra={"cpu_offload_gb": 1}).weights_bytes == 0
    wide, narrow = plain.shape, read(LLAMA_8B, kv_cache_dtype="fp8").shape
    assert wide is not None
    assert narrow is not None
    assert wide.kv_bytes_per_layer == 2 * narrow.kv_bytes_per_layer


@given(st.integers(16, 200_000), st.integers(0, 8))
def test_a_sequence_that_is_too_long_is_told_apart_from_weights_that_are_too_large(longest: int, space: int) -> None:
    fit = cpu_fit(
        memory_bytes=64 * GIB,
        weights_bytes=GIB,
        shape=cache_shape(LLAMA_8B),
        kv_space_gib=space,
        max_model_len=longest,
    )
    shape = cache_shape(LLAMA_8B)
    assert shape is not None
    lines = "\n".join(fit.lines())
    assert ("does not fit" in lines or "does not:" in lines) != fit.fits
    if fit.fits or not space:
        assert fit.longest is None
        return
    assert fit.longest is not None
    assert shape.sequence_bytes(fit.longest) <= space * GIB < shape.sequence_bytes(fit.longest + 1)
    assert f"lower target.max_model_len to about {fit.longest:,} at most" in lines
    assert all(len(line) <= 61 for line in fit.lines())


def test_weights_beyond_a_cores_memory_are_no_matter_of_length() -> None:
    fit = cpu_fit(
        memory_bytes=2 * GIB, weights_bytes=2 * GIB, shape=cache_shape(LLAMA_8B), kv_space_gib=1, max_model_len=100_000
    )
    assert fit.lines() == ["2.1 GB of weights: does not fit"]
