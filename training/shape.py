"""The shape of a drafter: read off its target, written as z-lab's config.json, read from either format's.

A drafter is a Qwen3 decoder with its target's width, heads and vocabulary. Its RoPE is always the default
kind with the target's theta: it is trained from nothing, so the target's context scaling or partial rotation
would bring it nothing, and runtimes disagree on how to read them. Runtimes turn a drafter's heads by the drafter's
own config alone, so that config always says so; its positions go as far as the target's, or vLLM stops drafting
there. No torch here.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from corpus.errors import UserError, first_line
from corpus.layers import check_layer_ids
from training.export_speculators import SLIDING, from_speculators_config, is_speculators

FULL = "full_attention"
SCALED_ALREADY = frozenset({"default", "su", "longrope", "llama3", "yarn", "deepseek_yarn", "deepseek_llama_scaling"})
"""RoPE types whose max_position_embeddings holds the scaling (as transformers and vLLM read them)."""


@dataclass(frozen=True)
class DrafterShape:
    """Sizes of a drafter. block_size counts the anchor; the first `sliding_layers` layers slide."""

    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    rms_norm_eps: float
    rope_theta: float
    max_position_embeddings: int
    initializer_range: float
    draft_layers: int
    sliding_layers: int
    sliding_window: int
    block_size: int
    mask_token_id: int
    num_target_layers: int
    target_layer_ids: tuple[int, ...]

    @property
    def num_speculative_tokens(self) -> int:
        """Tokens that one block drafts: all slots but the anchor's."""
        return self.block_size - 1

    @property
    def layer_types(self) -> tuple[str, ...]:
        """One word a layer, as the config says it."""
        return tuple(SLIDING if i < self.sliding_layers else FULL for i in range(self.draft_layers))

    def window(self, layer: int) -> int | None:
        """Tokens that a sliding layer sees (itself included); None: a full layer."""
        return self.sliding_window if layer < self.sliding_layers else None


def read_target_config(target_dir: Path | str) -> Any:
    """The text part of the target's config, as transformers reads it.

    Raises:
        UserError: there is none that transformers can read.
    """
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(str(target_dir)).get_text_config()
    except (OSError, ValueError) as error:
        why = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise UserError(f"{target_dir}: no config that transformers can read ({why}). Fetch it again.") from error


def shape_for_target(
    target_dir: Path | str,
    *,
    target_layer_ids: tuple[int, ...],
    draft_layers: int,
    block_size: int,
    mask_token_id: int,
    sliding_layers: int = 0,
    sliding_window: int = 2048,
) -> DrafterShape:
    """The shape of a drafter for a target.

    Raises:
        UserError: the layers are none of the target's, more layers slide than there are, or no config.
    """
    config = read_target_config(target_dir)
    heads = int(config.num_attention_heads)
    if sliding_layers > draft_layers:
        raise UserError(
            f"training.sliding_layers is {sliding_layers}; the drafter has {draft_layers} layers. Lower it."
        )
    return DrafterShape(
        hidden_size=int(config.hidden_size),
        intermediate_size=int(getattr(config, "intermediate_size", None) or 4 * config.hidden_size),
        num_attention_heads=heads,
        num_key_value_heads=int(getattr(config, "num_key_value_heads", None) or heads),
        head_dim=int(getattr(config, "head_dim", None) or config.hidden_size // heads),
        vocab_size=int(config.vocab_size),
        rms_norm_eps=float(getattr(config, "rms_norm_eps", 1e-6)),
        rope_theta=_rope_theta(config),
        max_position_embeddings=longest_positions(config),
        initializer_range=float(getattr(config, "initializer_range", 0.02)),
        draft_layers=draft_layers,
        sliding_layers=sliding_layers,
        sliding_window=sliding_window,
        block_size=block_size,
        mask_token_id=mask_token_id,
        num_target_layers=int(config.num_hidden_layers),
        target_layer_ids=check_layer_ids(target_layer_ids, int(config.num_hidden_layers)),
    )


def to_zlab_config(shape: DrafterShape, dtype: str, eos_token_id: Any = None) -> dict[str, Any]:
    """config.json in z-lab's format, which vLLM reads with method dflash."""
    return {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "block_size": shape.block_size,
        "dflash_config": {
            "mask_token_id": shape.mask_token_id,
            "target_layer_ids": list(shape.target_layer_ids),
        },
        "dtype": dtype,
        "eos_token_id": eos_token_id,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "hidden_size": shape.hidden_size,
        "initializer_range": shape.initializer_range,
        "intermediate_size": shape.intermediate_size,
        "layer_types": list(shape.layer_types),
        "max_position_embeddings": shape.max_position_embeddings,
        "max_window_layers": shape.draft_layers,
        "num_attention_heads": shape.num_attention_heads,
        "num_hidden_layers": shape.draft_layers,
        "num_key_value_heads": shape.num_key_value_heads,
        "num_target_layers": shape.num_target_layers,
        "rms_norm_eps": shape.rms_norm_eps,
        "rope_parameters": {"rope_theta": shape.rope_theta, "rope_type": "default"},
        "rope_theta": shape.rope_theta,
        "sliding_window": shape.sliding_window if shape.sliding_layers else None,
        "tie_word_embeddings": False,
        "use_cache": True,
        "use_sliding_window": bool(shape.sliding_layers),
        "vocab_size": shape.vocab_size,
    }


def read_exported_config(path: Path) -> dict[str, Any]:
    """An exported config.json of either format, in z-lab's words.

    Raises:
        UserError: it is no DFlash drafter's.
    """
    try:
        config: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: not a DFlash drafter's config ({first_line(error)}).") from error
    if not isinstance(config, dict):
        raise UserError(f"{path}: not a DFlash drafter's config (it holds no mapping).")
    return in_zlab_words(config, path)


def in_zlab_words(config: dict[str, Any], where: Path | str) -> dict[str, Any]:
    """A config of either format in z-lab's words.

    Raises:
        UserError: it is no DFlash drafter's. `where` begins the message.
    """
    try:
        return from_speculators_config(config) if is_speculators(config) else config
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise UserError(f"{where}: not a DFlash drafter's config ({first_line(error)}).") from error
    except UserError as error:
        raise UserError(f"{where}: {error}") from error


def drafts_of(config: Mapping[str, Any]) -> tuple[int, tuple[int, ...]]:
    """(block size, 0-based layer ids) of a config.json in z-lab's words, old or new.

    Raises:
        KeyError, TypeError, ValueError: it names none.
    """
    dflash = config["dflash_config"]
    return int(config.get("block_size") or dflash["block_size"]), tuple(int(i) for i in dflash["target_layer_ids"])


def layer_causality(config: Mapping[str, Any]) -> list[bool]:
    """Of each layer, whether vLLM lets a slot see earlier slots alone (qwen3_dflash._dflash_layer_causal)."""
    said = config.get("is_causal")
    said = (config.get("dflash_config") or {}).get("causal") if said is None else said
    kinds = config.get("layer_types") or [FULL] * config["num_hidden_layers"]
    return [kind == SLIDING if said is None else bool(said) for kind in kinds]


def from_exported_config(path: Path) -> DrafterShape:
    """The shape that an exported config.json of either format describes.

    Raises:
        UserError: it is no DFlash config of the kind that draftmill trains.
    """
    return shape_of_config(read_exported_config(path), path)


def shape_of_config(config: Mapping[str, Any], where: Path | str) -> DrafterShape:
    """The shape that a config in z-lab's words describes.

    Raises:
        UserError: it is none of the kind that draftmill trains. `where` begins the message.
    """
    try:
        layers = _count(config, "num_hidden_layers")
        types = config.get("layer_types") or [FULL] * layers
        if not isinstance(types, list) or len(types) != layers:
            raise ValueError(f"layer_types is {types!r}, of {layers} layers")
        sliding = types.count(SLIDING)
        if types != [SLIDING] * sliding + [FULL] * (len(types) - sliding):
            raise UserError(f"{where}: sliding layers must come first, got {types}")
        causal = layer_causality(config)
        if causal != [kind == SLIDING for kind in types]:
            raise UserError(f"{where}: sliding layers must be causal and full ones not; vLLM reads {causal} of {types}")
        block_size, layer_ids = drafts_of(config)
        return DrafterShape(
            hidden_size=_count(config, "hidden_size"),
            intermediate_size=_count(config, "intermediate_size"),
            num_attention_heads=_count(config, "num_attention_heads"),
            num_key_value_heads=_count(config, "num_key_value_heads"),
            head_dim=_count(config, "head_dim"),
            vocab_size=_count(config, "vocab_size"),
            rms_norm_eps=_number(config, "rms_norm_eps"),
            rope_theta=_number(config.get("rope_parameters") or config, "rope_theta"),
            max_position_embeddings=_count(config, "max_position_embeddings"),
            initializer_range=_number({"initializer_range": 0.02, **config}, "initializer_range"),
            draft_layers=layers,
            sliding_layers=sliding,
            sliding_window=_count(config, "sliding_window") if config.get("sliding_window") else 2048,
            block_size=block_size,
            mask_token_id=_count(config["dflash_config"], "mask_token_id", least=0),
            num_target_layers=_count(config, "num_target_layers"),
            target_layer_ids=layer_ids,
        )
    except KeyError as error:
        raise UserError(f"{where}: not a DFlash drafter's config ({error} is missing).") from error
    except (TypeError, ValueError, AttributeError) as error:
        raise UserError(f"{where}: not a DFlash drafter's config ({first_line(error)}).") from error


def _count(config: Mapping[str, Any], key: str, *, least: int = 1) -> int:
    value = config[key]
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{key} is {value!r}, expected a whole number of at least {least}")
    return value


def _number(config: Mapping[str, Any], key: str) -> float:
    value = config[key]
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise ValueError(f"{key} is {value!r}, expected a number above 0")
    return float(value)


def rope_parameters(config: Any) -> dict[str, Any]:
    """A target's RoPE, of its full-attention layers where they differ."""
    parameters = getattr(config, "rope_parameters", None) or {}
    if isinstance(parameters.get(FULL), dict):
        parameters = parameters[FULL]
    return dict(parameters)


def longest_positions(config: Any) -> int:
    """How far a target's positions go, scaling counted: what vLLM allows as its longest max_model_len."""
    parameters = rope_parameters(config)
    scaled = parameters.get("rope_type", "default") in SCALED_ALREADY or str(config.model_type).startswith("gemma3")
    factor = 1.0 if scaled else float(parameters.get("factor") or 1.0)
    return int(config.max_position_embeddings * factor)


def _rope_theta(config: Any) -> float:
    theta = rope_parameters(config).get("rope_theta") or getattr(config, "rope_theta", None)
    return float(theta or 10_000.0)
