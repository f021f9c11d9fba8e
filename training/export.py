"""The drafter's weights in z-lab's format, which vLLM serves with method dflash: config.json, model.safetensors.

No embeddings and no output head: the runtime borrows the target's. The folder is filled under a temporary name
and renamed. An untrained drafter of the same shape is exported the same way; it is the floor (about 1.0) that
a trained one is measured against. speculators' format has the same weights (see export_speculators); the card comes
when there are figures (see card).
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from corpus.artefacts import replace_folder
from corpus.errors import UserError
from training.dflash import Drafter
from training.shape import DrafterShape, from_exported_config, read_target_config, to_zlab_config

CONFIG, WEIGHTS = "config.json", "model.safetensors"


def export_zlab(
    drafter: Drafter,
    out_dir: Path,
    *,
    target_dir: Path | str,
    dtype: str = "float32",
) -> Path:
    """Write a drafter for `vllm --speculative-config '{"method": "dflash", ...}'`; returns the folder.

    Args:
        drafter: its state dict has z-lab's names.
        out_dir: replaced as a whole if it exists.
        target_dir: gives the end token of the config.
        dtype: numbers of the weights.

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

    replace_folder(out_dir, fill)
    return out_dir


def export_untrained(
    shape: DrafterShape, out_dir: Path, *, target_dir: Path | str, seed: int = 0, dtype: str = "float32"
) -> Path:
    """A drafter with the seed's initial weights, in the same format."""
    return export_zlab(Drafter(shape, seed), out_dir, target_dir=target_dir, dtype=dtype)


def load_exported(folder: Path, device: str = "cpu") -> Drafter:
    """Read an exported drafter of either format back, in float32.

    Raises:
        UserError: the folder holds no drafter, or its weights are not of its config.
    """
    drafter = Drafter(from_exported_config(folder / CONFIG))
    try:
        drafter.load_state_dict({n: t.float() for n, t in load_file(str(folder / WEIGHTS)).items()})
    except (OSError, RuntimeError, SafetensorError) as error:
        raise UserError(f"{folder}: its weights are not those of its config ({type(error).__name__})") from error
    return drafter.to(device)
