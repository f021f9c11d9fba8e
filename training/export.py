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
from corpus.errors import UserError, first_line
from training.dflash import Drafter
from training.frozen import finite
from training.published import CONFIG, WEIGHTS, check_weights
from training.shape import DrafterShape, from_exported_config, read_target_config, to_zlab_config


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
        UserError: the folder holds no drafter, its weights are not of its config, or they are no numbers.
    """
    shape = from_exported_config(folder / CONFIG)
    found = check_weights(folder, shape)
    drafter = Drafter(shape)
    try:
        weights = {n: t for path in {one.file for one in found.values()} for n, t in load_file(str(path)).items()}
        for name, tensor in sorted(weights.items()):
            if not finite(tensor):
                raise UserError(
                    f"{folder}: {name} of the published drafter holds what is no number (NaN or infinite). Fetch it "
                    "again, or take another."
                )
        drafter.load_state_dict({n: t.float() for n, t in weights.items()})
    except (OSError, RuntimeError, SafetensorError) as error:
        raise UserError(f"{folder}: its weights cannot be read ({first_line(error)}). Fetch it again.") from error
    return drafter.to(device)
