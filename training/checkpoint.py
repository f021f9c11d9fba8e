"""Checkpoints: weights, optimiser and place in the run, each folder whole or absent.

`step-<n>/` holds drafter.safetensors, optimizer.safetensors and state.json; no pickles anywhere. It is filled
under a temporary name, synced and renamed. The newest and the best by held-out acceptance stay, others go.
A checkpoint of other data or settings is refused, never silently started over.
"""

from __future__ import annotations

import base64
import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from corpus.artefacts import replace_folder, sha256_file
from corpus.errors import DamagedError
from training.progress import STATE, Progress, checkpoints, damaged, read_state, step_of

DRAFTER, OPTIMIZER = "drafter.safetensors", "optimizer.safetensors"


def save_checkpoint(folder: Path, drafter: Any, optimizer: Any, progress: Progress) -> Path:
    """Write `folder`/step-<n> atomically and remove those that are neither newest nor best.

    Raises:
        UserError: the disk is full.
    """
    final = folder / f"step-{progress.step:08d}"
    state = {**vars(progress), "rng": base64.b64encode(torch.get_rng_state().numpy().tobytes()).decode()}

    def fill(temporary: Path) -> None:
        weights = {name: tensor.contiguous().cpu() for name, tensor in drafter.state_dict().items()}
        save_file(weights, str(temporary / DRAFTER))
        save_file(_optimizer_tensors(drafter, optimizer), str(temporary / OPTIMIZER))
        marks = {name: sha256_file(temporary / name) for name in (DRAFTER, OPTIMIZER)}
        (temporary / STATE).write_text(json.dumps({**state, "files": marks}), encoding="utf-8")

    replace_folder(final, fill)
    for old in checkpoints(folder):
        if step_of(old) not in (progress.step, progress.best_step):
            shutil.rmtree(old)
    return final


def load_checkpoint(path: Path, drafter: Any, optimizer: Any, fingerprint: str) -> Progress:
    """Put a checkpoint back: weights, optimiser and random state.

    Raises:
        UserError: it belongs to other data or settings, or is damaged.
    """
    progress, marks, rng = read_state(path, fingerprint)
    try:
        _check_files(path, marks)
        drafter.load_state_dict(load_file(str(path / DRAFTER)))
        _restore_optimizer(drafter, optimizer, load_file(str(path / OPTIMIZER)))
        torch.set_rng_state(torch.frombuffer(bytearray(base64.b64decode(rng)), dtype=torch.uint8))
    except (OSError, KeyError, TypeError, ValueError, RuntimeError, SafetensorError) as error:
        raise damaged(path, error) from error
    return progress


def load_weights(path: Path, drafter: Any) -> None:
    """Only the weights of a checkpoint.

    Raises:
        UserError: it is gone or damaged.
    """
    try:
        _check_files(path, json.loads((path / STATE).read_text(encoding="utf-8"))["files"])
        drafter.load_state_dict(load_file(str(path / DRAFTER)))
    except (OSError, KeyError, TypeError, ValueError, RuntimeError, SafetensorError) as error:
        raise DamagedError(
            f"{path}: the best checkpoint is gone or damaged ({type(error).__name__}). Remove {path.parent} and train "
            "again."
        ) from error


def _check_files(path: Path, marks: dict[str, str]) -> None:
    for name in (DRAFTER, OPTIMIZER):
        if sha256_file(path / name) != marks[name]:
            raise ValueError(f"{name} has another checksum")


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
