"""The drafter in z-lab's format, which vLLM serves with method dflash: config.json, model.safetensors, README.md.

No embeddings and no output head: the runtime borrows the target's. The folder is filled under a temporary name
and renamed. An untrained drafter of the same shape is exported the same way; it is the floor (about 1.0) that
a trained one is measured against.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from corpus.artefacts import replace_folder
from corpus.errors import UserError
from training.dflash import Drafter
from training.shape import DrafterShape, from_zlab_config, read_target_config, to_zlab_config

CONFIG, WEIGHTS, CARD = "config.json", "model.safetensors", "README.md"


def export_zlab(
    drafter: Drafter,
    out_dir: Path,
    *,
    target_dir: Path | str,
    dtype: str = "float32",
    card: Mapping[str, str] | None = None,
) -> Path:
    """Write a drafter for `vllm --speculative-config '{"method": "dflash", ...}'`; returns the folder.

    Args:
        drafter: its state dict has z-lab's names.
        out_dir: replaced as a whole if it exists.
        target_dir: gives the end token of the config.
        dtype: numbers of the weights.
        card: lines of the model card, by title.

    Raises:
        UserError: the disk is full.
    """
    kind = getattr(torch, dtype)
    eos = read_target_config(target_dir).eos_token_id
    config = to_zlab_config(drafter.shape, dtype, eos)

    def fill(folder: Path) -> None:
        weights = {n: t.detach().to("cpu", kind).contiguous() for n, t in drafter.state_dict().items()}
        save_file(weights, str(folder / WEIGHTS), metadata={"format": "pt"})
        (folder / CONFIG).write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
        (folder / CARD).write_text(model_card(drafter.shape, card or {}), encoding="utf-8")

    replace_folder(out_dir, fill)
    return out_dir


def export_untrained(
    shape: DrafterShape, out_dir: Path, *, target_dir: Path | str, seed: int = 0, dtype: str = "float32"
) -> Path:
    """A drafter with the seed's initial weights, in the same format."""
    card = {"state": f"untrained, seed {seed}: a floor to compare with"}
    return export_zlab(Drafter(shape, seed), out_dir, target_dir=target_dir, dtype=dtype, card=card)


def load_exported(folder: Path, device: str = "cpu") -> Drafter:
    """Read an exported drafter back, in float32.

    Raises:
        UserError: the folder holds no drafter, or its weights are not of its config.
    """
    drafter = Drafter(from_zlab_config(folder / CONFIG))
    try:
        drafter.load_state_dict({n: t.float() for n, t in load_file(str(folder / WEIGHTS)).items()})
    except (OSError, RuntimeError, SafetensorError) as error:
        raise UserError(f"{folder}: its weights are not those of its config ({type(error).__name__})") from error
    return drafter.to(device)


def model_card(shape: DrafterShape, lines: Mapping[str, str]) -> str:
    """README.md: what it drafts for, what it was trained on, how to serve it."""
    serve = json.dumps(
        {"method": "dflash", "model": "THIS_FOLDER", "num_speculative_tokens": shape.num_speculative_tokens}
    )
    mixed = 0 < shape.sliding_layers < shape.draft_layers
    return "\n".join(
        [
            "---",
            "library_name: transformers",
            "tags: [speculative-decoding, dflash, draftmill]",
            "---",
            "",
            "# A DFlash drafter",
            "",
            f"{shape.draft_layers} draft layers, block size {shape.block_size} "
            f"({shape.num_speculative_tokens} drafted tokens), reads the target's layers "
            f"{', '.join(map(str, shape.target_layer_ids))} of {shape.num_target_layers} (0-based outputs), "
            f"mask token {shape.mask_token_id}.",
            "",
            *[f"- {title}: {text}" for title, text in lines.items()],
            "",
            "Serve it beside its target:",
            "",
            "```",
            f"{'VLLM_USE_V2_MODEL_RUNNER=1 ' if mixed else ''}vllm serve TARGET --speculative-config '{serve}'",
            "```",
            "",
        ]
    )
