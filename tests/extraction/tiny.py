"""Tiny targets with random weights, for the tests of extraction and training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen3_5TextConfig, Qwen3Config

SIZES: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.15,
    "eos_token_id": 1,
    "bos_token_id": 2,
    "pad_token_id": 0,
}


def tiny_config(kind: str, **changes: Any) -> Any:
    """A config of one of the three families that the tests run."""
    if kind == "qwen3":
        return Qwen3Config(**{**SIZES, "head_dim": 16, "tie_word_embeddings": True, **changes})
    if kind == "llama":
        return LlamaConfig(**{**SIZES, "tie_word_embeddings": False, **changes})
    if kind == "gdn":
        return Qwen3_5TextConfig(
            **{
                **SIZES,
                "head_dim": 16,
                "linear_num_key_heads": 2,
                "linear_num_value_heads": 4,
                "linear_key_head_dim": 8,
                "linear_value_head_dim": 8,
                **changes,
            }
        )
    raise ValueError(kind)


def save_tiny(folder: Path, kind: str, seed: int = 0, **changes: Any) -> Path:
    """Write a tiny target; norms are moved off their start, so that a forgotten norm shows."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(tiny_config(kind, **changes)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name and parameter.ndim == 1:
                parameter.add_(torch.rand_like(parameter) * 0.5)
    model.save_pretrained(folder)
    return folder


def random_rows(lengths: list[int], seed: int = 0, vocab: int = 97) -> list[list[int]]:
    """Token ids of the given lengths."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(3, vocab, (n,), generator=generator).tolist() for n in lengths]
