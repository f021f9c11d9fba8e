"""The target's parts that a drafter borrows and never trains: embeddings, final norm, output head.

They are read from the target's safetensors by name, without loading the model; a tied head is the embedding
matrix. What the target's logits need beyond that (Gemma and Qwen3.5 norms weigh by 1 + w, Gemma 2 caps its
logits) is read off its config. A capture's final state is *before* this norm.

Shapes: T tokens, H hidden, V vocabulary.
"""

# ruff: noqa: N815  # shape suffixes in field names

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from corpus.errors import UserError
from training.shape import read_target_config

ONE_PLUS_WEIGHT = frozenset(
    {"gemma", "gemma2", "gemma3", "vaultgemma", "recurrent_gemma"}
    | {"qwen3_5", "qwen3_5_moe", "qwen3_next", "qwen4_exp"}
)
"""Model types whose norms multiply by 1 + w. (Gemma 3n and Gemma 4 multiply by w.)"""
EMBEDDINGS = "embed_tokens.weight"


@dataclass(frozen=True)
class FrozenTarget:
    """Frozen tensors of a target, in one dtype on one device."""

    embeddings_VH: Any
    head_VH: Any
    norm_H: Any
    norm_eps: float
    norm_adds_one: bool
    logit_cap: float | None

    def embed(self, token_ids_T: Any) -> Any:
        """[T] to [T, H]."""
        return functional.embedding(token_ids_T, self.embeddings_VH)

    def normed(self, final_TH: Any) -> Any:
        """The final state through the target's own norm, in float32, then the head's dtype."""
        x = final_TH.to(self.norm_H.device).float()
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.norm_eps)
        weight = self.norm_H.float()
        return (x * (weight + 1.0 if self.norm_adds_one else weight)).to(self.head_VH.dtype)

    def draft_logits(self, hidden_MH: Any) -> Any:
        """A drafter's logits [M, V] in float32: its output through the head, uncapped, as serving has them."""
        return functional.linear(hidden_MH.to(self.head_VH.dtype), self.head_VH).float()

    def logits(self, normed_TH: Any) -> Any:
        """The target's logits [T, V] in float32; capped where the target caps them."""
        logits = functional.linear(normed_TH.to(self.head_VH.dtype), self.head_VH).float()
        return logits if self.logit_cap is None else self.logit_cap * torch.tanh(logits / self.logit_cap)

    @torch.no_grad()
    def argmax(self, normed_TH: Any, chunk: int = 256) -> Any:
        """Arg max over the vocabulary [T], in chunks (a cap changes no order)."""
        parts = [functional.linear(part, self.head_VH).argmax(-1) for part in normed_TH.split(chunk)]
        return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.long, device=normed_TH.device)


def load_frozen(target_dir: Path | str, dtype: str = "float32", device: str = "cpu") -> FrozenTarget:
    """Read the frozen parts from a target's folder.

    Raises:
        UserError: the folder has no safetensors, or a tensor is missing from them; head or norm are no numbers.
    """
    folder = Path(target_dir)
    config = read_target_config(folder)
    files = _tensor_files(folder)
    embedding_names = sorted((name for name in files if name.endswith(EMBEDDINGS)), key=len)
    if not embedding_names:
        raise UserError(f"{folder}: no tensor named *{EMBEDDINGS} in its safetensors. Fetch it again.")
    embeddings_name = embedding_names[0]
    prefix = embeddings_name.removesuffix(EMBEDDINGS)
    norm_name = f"{prefix}norm.weight"
    head_names = [name for name in files if name.endswith("lm_head.weight")]
    tied = bool(getattr(config, "tie_word_embeddings", False)) or not head_names
    if norm_name not in files:
        raise UserError(f"{folder}: no final norm named {norm_name} in its safetensors. Fetch it again.")
    wanted = getattr(torch, dtype)

    def read(name: str) -> Any:
        from safetensors import safe_open

        with safe_open(str(files[name]), framework="pt") as file:
            return file.get_tensor(name).to(device=device, dtype=wanted)

    def numbers(name: str, tensor: Any) -> Any:
        """The teacher's arg max over a row that is no number would always be that row."""
        if not finite(tensor):
            raise UserError(
                f"{folder}: {name} of the target holds what is no number (NaN or infinite). Fetch the target again."
            )
        return tensor

    embeddings_VH = read(embeddings_name)
    head_name = embeddings_name if tied else min(head_names, key=len)
    return FrozenTarget(
        embeddings_VH=embeddings_VH,
        head_VH=numbers(head_name, embeddings_VH if tied else read(head_name)),
        norm_H=numbers(norm_name, read(norm_name)),
        norm_eps=float(getattr(config, "rms_norm_eps", 1e-6)),
        norm_adds_one=norm_adds_one(str(config.model_type)),
        logit_cap=getattr(config, "final_logit_softcapping", None),
    )


def finite(tensor: Any) -> bool:
    """Whether all of it are numbers: neither NaN nor infinite. One pass, and no copy."""
    if not tensor.numel():
        return True
    low, high = torch.aminmax(tensor)
    return bool(torch.isfinite(low) & torch.isfinite(high))


def norm_adds_one(model_type: str) -> bool:
    """Whether a model type's norms weigh by 1 + w."""
    return model_type.removesuffix("_text") in ONE_PLUS_WEIGHT


def _tensor_files(folder: Path) -> dict[str, Path]:
    """Which file holds which tensor."""
    from safetensors import safe_open

    index = folder / "model.safetensors.index.json"
    if index.is_file():
        weight_map = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        return {name: folder / file for name, file in weight_map.items()}
    found: dict[str, Path] = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(str(path), framework="pt") as file:
            found.update(dict.fromkeys(file.keys(), path))
    if not found:
        raise UserError(f"{folder}: no safetensors; a drafter borrows the target's embeddings from them")
    return found
