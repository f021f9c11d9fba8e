"""Checkpoints: weights, optimiser and place in the run, each folder whole or absent.

`step-<n>/` holds drafter.safetensors, optimizer.safetensors and state.json; no pickles anywhere, and a checksum of
each. It is filled under a temporary name, synced and renamed. The newest and the best by held-out acceptance stay,
others go; what has another name is let alone. A checkpoint of other data or settings is refused, never silently
started over.
"""

from __future__ import annotations

import base64
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from corpus.artefacts import read_description, replace_folder, sha256_file, write_description
from corpus.errors import DamagedError, UserError
from training.progress import STATE, Progress, checkpoint_name, checkpoints, damaged, read_state, step_of

DRAFTER, OPTIMIZER = "drafter.safetensors", "optimizer.safetensors"


def save_checkpoint(folder: Path, drafter: Any, optimizer: Any, progress: Progress) -> Path:
    """Write `folder`/step-<n> atomically and remove those that are neither newest nor best.

    Raises:
        UserError: the disk is full.
    """
    final = folder / checkpoint_name(progress.step)
    state = {**vars(progress), "rng": base64.b64encode(torch.get_rng_state().numpy().tobytes()).decode()}

    def fill(temporary: Path) -> None:
        weights = {name: tensor.contiguous().cpu() for name, tensor in drafter.state_dict().items()}
        save_file(weights, str(temporary / DRAFTER))
        save_file(_optimizer_tensors(drafter, optimizer), str(temporary / OPTIMIZER))
        marks = {name: sha256_file(temporary / name) for name in (DRAFTER, OPTIMIZER)}
        write_description(temporary / STATE, {**state, "files": marks})

    replace_folder(final, fill)
    for old in checkpoints(folder):
        if step_of(old) not in (progress.step, progress.best_step):
            shutil.rmtree(old)
    return final


def load_checkpoint(
    path: Path, drafter: Any, optimizer: Any, fingerprint: str, packs: int | None = None, packs_per_step: int = 1
) -> Progress:
    """Put a checkpoint back: weights, optimiser and random state.

    Args:
        packs, packs_per_step: of the whole run, see progress.read_state.

    Raises:
        UserError: it belongs to other data or settings, or is damaged.
    """
    progress, marks, rng = read_state(path, fingerprint, packs, packs_per_step)
    try:
        for name in (DRAFTER, OPTIMIZER):
            _check(path / name, marks.get(name))
        name = DRAFTER
        drafter.load_state_dict(load_file(str(path / DRAFTER)))
        name = OPTIMIZER
        _restore_optimizer(drafter, optimizer, load_file(str(path / OPTIMIZER)))
        name = STATE
        torch.set_rng_state(torch.frombuffer(bytearray(base64.b64decode(rng)), dtype=torch.uint8))
    except (OSError, KeyError, TypeError, ValueError, RuntimeError, SafetensorError) as error:
        raise damaged(path, name, error) from error
    return progress


def has_weights(path: Path, fingerprint: str) -> bool:
    """Whether a checkpoint's weights may be asked for later; its optimiser is not looked at."""
    try:
        _check(path / DRAFTER, read_state(path, fingerprint)[1].get(DRAFTER))
    except (OSError, ValueError, UserError):
        return False
    return True


def load_weights(path: Path, drafter: Any) -> None:
    """Only the weights of a checkpoint that was whole when the run began.

    Raises:
        UserError: it is gone or damaged since.
    """
    try:
        _check(path / DRAFTER, read_description(path / STATE)["files"][DRAFTER])
        drafter.load_state_dict(load_file(str(path / DRAFTER)))
    except (OSError, KeyError, TypeError, ValueError, RuntimeError, SafetensorError) as error:
        raise DamagedError(
            f"{path}: the best checkpoint is gone or damaged since the run began ({type(error).__name__}). Run again: "
            "the best of those that are left is taken, and nothing is trained twice."
        ) from error


def _check(path: Path, mark: str | None) -> None:
    if sha256_file(path) != mark:
        raise ValueError("its checksum is another than when it was written")


def _optimizer_tensors(drafter: Any, optimizer: Any) -> dict[str, Any]:
    """Optimiser state by parameter name: "<parameter>|<key>"."""
    names = {id(parameter): name for name, parameter in drafter.named_parameters()}
    return {
        f"{names[id(parameter)]}|{key}": value.contiguous().cpu()
        for parameter, values in optimizer.state.items()
        for key, value in values.items()
    }


def _restore_optimizer(drafter: Any, optimizer: Any, tensors: dict[str, Any]) -> None:
    for name, parameter in drafter.named_parameters():
        own = {key.split("|")[1]: value for key, value in tensors.items() if key.split("|")[0] == name}
        if own:
            optimizer.state[parameter] = {
                key: value if key == "step" else value.to(parameter.device) for key, value in own.items()
            }
