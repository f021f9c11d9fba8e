"""What the contract of training and serving is about: a target's facts, a served config, captured states.

`served_by` reads an exported config.json as vLLM 0.32 does (qwen3_dflash, SpeculativeConfig, the speculators
configs); a test holds it against vLLM's own functions. The other readers take configs, tokenizer, and the headers of
weights and shards; no weight is loaded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from corpus.layers import to_vllm_ids
from corpus.shards import capture_body, shard_index
from training.export_speculators import SLIDING
from training.mask_token import reserved_ids, tokenizer_size
from training.shape import drafts_of, layer_causality, longest_positions, read_target_config

DEFAULT_THETA = 1_000_000.0
"""vLLM's for a drafter whose config names none."""


@dataclass(frozen=True)
class TargetFacts:
    """What a drafter borrows from its target. None: not known."""

    model_type: str
    hidden_size: int
    num_layers: int
    vocab_size: int
    longest: int
    """Positions, scaling counted."""
    has_rms_norm: bool
    norm_adds_one: bool | None = None
    """How the target's own class weighs its final norm: by 1 + w."""
    taken_to_add_one: bool | None = None
    """How training takes it (see frozen)."""
    embedding_rows: int | None = None
    head_rows: int | None = None
    tokenizer_size: int = 0
    reserved_ids: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Served:
    """What vLLM reads in an exported config.json."""

    rope: dict[str, Any]
    is_neox_style: bool
    causal: list[bool]
    windows: list[int | None]
    vllm_layer_ids: tuple[int, ...]
    block_size: int
    mask_token_id: int
    vocab_size: int
    draft_vocab_size: int
    max_positions: int
    dtype: str
    sizes: dict[str, Any]
    """By name of a DrafterShape's field."""
    plain: dict[str, Any]
    """Keys that change the arithmetic, where they are not what training has."""


@dataclass(frozen=True)
class Captured:
    """What the states of one or more shards are. `longest`: tokens of the longest row."""

    layer_ids: tuple[int, ...]
    final_state: bool
    hidden_size: int
    target: str
    revision: str
    longest: int


def served_by(config: Mapping[str, Any]) -> Served:
    """An exported config.json (in z-lab's words) as vLLM reads it.

    Raises:
        KeyError, TypeError, ValueError: it is no DFlash drafter's.
    """
    dflash = config["dflash_config"]
    kinds = config.get("layer_types") or [None] * config["num_hidden_layers"]
    everywhere = bool(dflash.get("use_swa")) and SLIDING not in kinds
    width = dflash.get("swa_window_size", config.get("sliding_window"))
    windows = [width if kind == SLIDING or everywhere else None for kind in kinds]
    block_size, layer_ids = drafts_of(config)
    said = {"attention_bias": False, "hidden_act": "silu", "logit_scale": 1.0, "use_aux_hidden_state": True}
    own = {
        **config,
        "use_aux_hidden_state": dflash.get("use_aux_hidden_state", config.get("use_aux_hidden_state", True)),
    }
    rope = dict(config.get("rope_parameters") or {"rope_type": "default"})
    return Served(
        rope={"rope_theta": config.get("rope_theta", DEFAULT_THETA), **rope},
        is_neox_style=bool(config.get("is_neox_style", True)),
        causal=layer_causality(config),
        windows=windows,
        vllm_layer_ids=tuple(config.get("eagle_aux_hidden_state_layer_ids") or to_vllm_ids(layer_ids)),
        block_size=block_size,
        mask_token_id=dflash["mask_token_id"],
        vocab_size=config["vocab_size"],
        draft_vocab_size=config.get("draft_vocab_size") or config["vocab_size"],
        max_positions=config["max_position_embeddings"],
        dtype=str(config.get("dtype") or config.get("torch_dtype")),
        sizes={
            "hidden_size": config["hidden_size"],
            "intermediate_size": config["intermediate_size"],
            "num_attention_heads": config["num_attention_heads"],
            "num_key_value_heads": config["num_key_value_heads"],
            "head_dim": config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"],
            "draft_layers": config["num_hidden_layers"],
            "rms_norm_eps": config["rms_norm_eps"],
        },
        plain={key: own[key] for key, plain in said.items() if own.get(key, plain) != plain},
    )


def read_target_facts(target_dir: Path | str, *, classes: bool = False) -> TargetFacts:
    """A target's facts from its folder: configs, tokenizer, and the heads of its weights where they are there.

    Args:
        classes: ask transformers' own class how it weighs its norms too; imports torch.

    Raises:
        UserError: there is no config that transformers can read.
    """
    folder = Path(target_dir)
    config = read_target_config(folder)
    rows = _weight_rows(folder)
    embeddings = _shortest(rows, "embed_tokens.weight")
    tied = bool(getattr(config, "tie_word_embeddings", False))
    adds_one, taken = norm_of_class(config) if classes else (None, None)
    return TargetFacts(
        model_type=str(config.model_type),
        hidden_size=int(config.hidden_size),
        num_layers=int(config.num_hidden_layers),
        vocab_size=int(config.vocab_size),
        longest=longest_positions(config),
        has_rms_norm=getattr(config, "rms_norm_eps", None) is not None,
        norm_adds_one=adds_one,
        taken_to_add_one=taken,
        embedding_rows=embeddings,
        head_rows=embeddings if tied else _shortest(rows, "lm_head.weight") or embeddings,
        tokenizer_size=tokenizer_size(folder),
        reserved_ids=reserved_ids(folder),
    )


def read_captured(paths: Sequence[Path | str]) -> list[Captured]:
    """What shards say of themselves; equal ones are one.

    Raises:
        UserError: a shard is damaged.
    """
    found: dict[Captured, int] = {}
    for path in map(Path, paths):
        meta, _, tokens = shard_index(path)
        hidden = int(capture_body(path)["hidden_size"])
        own = Captured(meta.layer_ids, meta.final_state, hidden, meta.target, meta.revision, 0)
        found[own] = max([found.get(own, 0), *tokens])
    return [replace(own, longest=longest) for own, longest in found.items()]


def norm_of_class(config: Any) -> tuple[bool | None, bool]:
    """(whether the norm of transformers' class weighs by 1 + w, or None if it has none; how training takes it)."""
    import sys

    import torch
    from transformers import AutoModelForCausalLM

    from training.frozen import norm_adds_one

    taken = norm_adds_one(str(config.model_type))
    try:
        module = sys.modules[AutoModelForCausalLM._model_mapping[type(config)].__module__]
        names = [name for name in vars(module) if name.endswith("RMSNorm") and "Gated" not in name]
        norm = getattr(module, min(names, key=len))(4)
        with torch.no_grad():
            norm.weight.zero_()
            return bool(norm(torch.ones(1, 4)).abs().sum() > 1), taken
    except (KeyError, ValueError, TypeError, AttributeError):
        return None, taken


def _weight_rows(folder: Path) -> dict[str, int]:
    """Rows of every matrix whose safetensors lie in the folder, by name; from their headers."""
    from safetensors import SafetensorError, safe_open

    rows: dict[str, int] = {}
    for path in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(str(path), framework="numpy") as file:
                for name in file.keys():  # noqa: SIM118  # a handle, no mapping
                    if name.endswith(("embed_tokens.weight", "lm_head.weight")):
                        rows[name] = int(file.get_slice(name).get_shape()[0])
        except (OSError, SafetensorError):
            continue  # whoever reads the weights says what is wrong with them
    return rows


def _shortest(rows: Mapping[str, int], ending: str) -> int | None:
    """Of the name with this ending that is shortest: a drafting head of the target's own has a longer one."""
    names = [name for name in rows if name.endswith(ending)]
    return rows[min(names, key=len)] if names else None
