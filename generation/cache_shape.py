"""What a running sequence keeps in an engine's memory, read off a model's config.json. Pure.

Attention layers keep keys and values a token (sliding windows only of their window, MLA one compressed vector), linear
attention layers (gated delta nets: Qwen3-Next, Qwen3.5, Qwen3.6) a state a sequence, whatever its length. A
configuration that this module does not understand in full has no shape: None, never a guess. Sizes are those of
vLLM's cache: whole blocks, and in a hybrid a block of attention is as large as one layer's state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from corpus.model_config import text_config

LayerKind = Literal["full", "window", "linear"]
DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "half": 2, "float": 4}
BLOCK_TOKENS = 16
"""vLLM's tokens a block, where no recurrent state asks for larger ones."""
NOT_UNDERSTOOD = (
    "is_encoder_decoder", "layers_block_type", "hybrid_override_pattern", "ssm_cfg", "ssm_state_size", "mamba_d_state",
    "mamba_d_ssm", "attn_layer_indices", "linear_attn_config", "num_kv_shared_layers", "global_head_dim",
    "num_global_key_value_heads", "index_topk", "block_configs", "cross_attention_layers", "state_size", "conv_L_cache",
)  # fmt: skip
"""Keys of models whose layers keep something else, or unlike amounts: with one of them set there is no shape."""
KINDS: dict[str, LayerKind] = {
    "full_attention": "full",
    "sliding_attention": "window",
    "chunked_attention": "window",
    "linear_attention": "linear",
}


@dataclass(frozen=True)
class CacheShape:
    """Bytes of one engine on one GPU; `split` gives those of one member of a tensor-parallel group."""

    full_layers: int
    window_layers: int
    linear_layers: int
    kv_bytes_per_layer: int
    """Keys and values of one token in one attention layer."""
    kv_heads: int
    """What tensor parallelism can divide; 1 for MLA, whose vector every member keeps whole."""
    window_tokens: int = 0
    recurrent_bytes_per_layer: int = 0
    """The state matrix of one sequence in one linear layer (float32, where the model asks for it)."""
    conv_bytes_per_layer: int = 0
    """Its last inputs of the convolution, in the model's dtype."""

    @property
    def state_bytes_per_sequence(self) -> int:
        """Recurrent and convolution state of one sequence, whatever its length."""
        return self.linear_layers * (self.recurrent_bytes_per_layer + self.conv_bytes_per_layer)

    @property
    def kv_bytes_per_token(self) -> int:
        """Keys and values of one more token, while it is inside every window."""
        return (self.full_layers + self.window_layers) * self.kv_bytes_per_layer

    @property
    def block_tokens(self) -> int:
        """Tokens of an attention block: vLLM makes it as large as one layer's state, rounded up to whole 16."""
        state = self.recurrent_bytes_per_layer + self.conv_bytes_per_layer
        if not self.linear_layers or not self.kv_bytes_per_layer:
            return BLOCK_TOKENS
        tokens = -(-state // self.kv_bytes_per_layer)
        return -(-tokens // BLOCK_TOKENS) * BLOCK_TOKENS

    def sequence_bytes(self, tokens: int) -> int:
        """A sequence of exactly so many tokens: whole blocks and its state."""
        return int(self._of_blocks(-(-tokens // self.block_tokens), tokens))

    def mean_sequence_bytes(self, tokens: float) -> float:
        """Expected bytes of sequences of so many tokens on average: the last block is half full, and one is needed."""
        return self._of_blocks(max(1.0, tokens / self.block_tokens + 0.5), tokens)

    def _of_blocks(self, blocks: float, tokens: float) -> float:
        held = blocks * self.block_tokens
        windowed = min(held, self.window_tokens + self.block_tokens) if self.window_layers else 0
        return self.kv_bytes_per_layer * (self.full_layers * held + self.window_layers * windowed) + (
            self.state_bytes_per_sequence
        )

    def split(self, members: int) -> CacheShape:
        """What one of `members` GPUs keeps: heads are divided, and repeated where there are fewer than members."""
        kv_bytes = self.kv_bytes_per_layer * -(-self.kv_heads // members) // self.kv_heads
        return CacheShape(
            self.full_layers,
            self.window_layers,
            self.linear_layers,
            kv_bytes,
            -(-self.kv_heads // members),
            self.window_tokens,
            self.recurrent_bytes_per_layer // members,
            self.conv_bytes_per_layer // members,
        )


def is_hybrid(model_config: dict[str, Any]) -> bool:
    """Whether some layers are linear attention, which wants flash-linear-attention on a GPU."""
    config = text_config(model_config)
    return "linear_attention" in (config.get("layer_types") or ()) or "linear_num_value_heads" in config


def tensor_parallel_sizes(model_config: dict[str, Any], sizes: Sequence[int] = (1, 2, 4, 8)) -> tuple[int, ...]:
    """Group sizes that vLLM can divide this model by; one alone where the config does not tell its heads."""
    config = text_config(model_config)
    heads = config.get("num_attention_heads")
    if type(heads) is not int or heads < 1:
        return (1,)
    kv_heads = config.get("num_key_value_heads") or heads
    linear = [config[name] for name in ("linear_num_key_heads", "linear_num_value_heads") if config.get(name)]
    return tuple(
        size
        for size in sizes
        if heads % size == 0
        and (kv_heads % size == 0 or size % kv_heads == 0)
        and all(number % size == 0 for number in linear)
    )


def cache_shape(model_config: dict[str, Any], dtype: str = "bfloat16", kv_dtype: str = "auto") -> CacheShape | None:
    """The shape of a config.json, or None where it is not understood.

    Args:
        model_config: the file's content; of a multimodal model, the text part counts.
        dtype: the manifest's target.dtype.
        kv_dtype: the manifest's engine.kv_cache_dtype; auto is the model's.
    """
    config = text_config(model_config)
    kv_size = _kv_bytes(kv_dtype, dtype)
    if kv_size is None or any(model_config.get(name) or config.get(name) for name in NOT_UNDERSTOOD):
        return None
    try:
        return _shape(config, DTYPE_BYTES[dtype], kv_size)
    except (KeyError, TypeError, ValueError, ZeroDivisionError):  # a key is missing, or is no number
        return None


def _shape(config: dict[str, Any], size: int, kv_size: int) -> CacheShape | None:
    kinds = _layer_kinds(config)
    if kinds is None:
        return None
    full, window, linear = (kinds.count(kind) for kind in ("full", "window", "linear"))
    heads = int(config["num_attention_heads"])
    if config.get("kv_lora_rank"):  # MLA: one latent and one rotary key a token, shared by all heads
        kv_heads, kv_bytes = 1, (int(config["kv_lora_rank"]) + int(config["qk_rope_head_dim"])) * kv_size
    else:
        kv_heads = int(config.get("num_key_value_heads") or heads)
        head_dim = int(config.get("head_dim") or config["hidden_size"] // heads)
        kv_bytes = 2 * kv_heads * head_dim * kv_size
    window_tokens = int(config.get("sliding_window") or config["attention_chunk_size"]) if window else 0
    if not linear:
        return CacheShape(full, window, 0, kv_bytes, kv_heads, window_tokens)
    key_dim, value_dim = int(config["linear_key_head_dim"]), int(config["linear_value_head_dim"])
    key_heads, value_heads = int(config["linear_num_key_heads"]), int(config["linear_num_value_heads"])
    channels = 2 * key_heads * key_dim + value_heads * value_dim
    state_size = DTYPE_BYTES[config["mamba_ssm_dtype"]] if config.get("mamba_ssm_dtype") else size
    return CacheShape(
        full,
        window,
        linear,
        kv_bytes,
        kv_heads,
        window_tokens,
        value_heads * value_dim * key_dim * state_size,
        channels * (int(config["linear_conv_kernel_dim"]) - 1) * size,
    )


def _layer_kinds(config: dict[str, Any]) -> list[LayerKind] | None:
    """What each layer is, from whichever of the field's ways the config has of saying it."""
    layers = int(config["num_hidden_layers"])
    types = config.get("layer_types")
    if types:
        kinds = [KINDS.get(kind) for kind in types]
        return None if None in kinds or len(kinds) != layers else [kind for kind in kinds if kind]
    if "linear_num_value_heads" in config:
        interval = int(config.get("full_attention_interval", 4))
        return ["linear" if (layer + 1) % interval else "full" for layer in range(layers)]
    if not config.get("sliding_window") or config.get("use_sliding_window") is False:
        return ["full"] * layers
    pattern = config.get("sliding_window_pattern") or (2 if config.get("model_type") == "gemma2" else None)
    if pattern:
        return ["window" if (layer + 1) % int(pattern) else "full" for layer in range(layers)]
    first = int(config.get("max_window_layers", 0)) if config.get("use_sliding_window") else 0
    return ["window" if layer >= first else "full" for layer in range(layers)]


def _kv_bytes(kv_dtype: str, dtype: str) -> int | None:
    """Bytes of one number in the KV cache."""
    if kv_dtype == "auto":
        return DTYPE_BYTES.get(dtype)
    return 1 if kv_dtype.startswith(("fp8", "int8")) else DTYPE_BYTES.get(kv_dtype)
