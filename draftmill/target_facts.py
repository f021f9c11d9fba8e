"""A target as `draftmill plan` needs it: parameters, bytes of a token's states, its drafter, and what an engine takes.

Read off config.json and the headers of the weights, nothing more: a folder that has config.json alone will do, and its
parameters are then counted as transformers would build them. Whatever is odd in a config is one line, never a crash.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from corpus.errors import UserError, first_line
from corpus.model_config import text_config
from draftmill.costing import EngineFit, TargetFacts
from draftmill.doctor import looked_at
from draftmill.hardware import Gpu
from draftmill.session import Session
from extraction.stage import target_layers
from fleet.devices import Device
from generation.cache_shape import DTYPE_BYTES
from generation.fit import Model, max_num_seqs, read_model

MOST_GPUS = 8
"""The largest group that one engine is spread over."""
ID_BYTES = 5
"""Of a token in a hidden shard, beside its states: its id, and whether it is supervised."""
MOST_SIZE = 10**9
"""Beyond it a width or a vocabulary is none."""


@dataclass(frozen=True)
class PlannedTarget:
    """What is known; `facts` None and why, where nothing follows."""

    facts: TargetFacts | None
    model: Model | None
    said: str
    """Why facts are missing, or what is to be known of them; "" where all is plain."""


def planned_target(session: Session, config: Path | None) -> PlannedTarget:
    """The target that the manifest names, or the one of this config.json (or its folder).

    Raises:
        UserError: `config` is no config.json.
    """
    name = session.manifest.target.model
    try:
        told: dict[str, Any] | None
        if config is not None:
            folder, told = _named_config(config)
        else:
            target = looked_at(session)
            if target is None:
                return PlannedTarget(None, None, f"{name} is converted before its first use; then its size is known")
            folder, told = target.folder, None
    except UserError as error:
        if config is not None:
            raise
        return PlannedTarget(None, None, f"{error} Name a config.json with --config to plan without it.")
    try:
        return _facts(session, folder, json.loads((folder / "config.json").read_text()) if told is None else told)
    except Exception as error:  # a config.json may hold anything, and transformers runs into it in any way
        return PlannedTarget(None, None, f"{name}: its config.json cannot be understood ({first_line(error)[:160]})")


def engine_on(model: Model, gpu: Gpu, mean_tokens: int) -> EngineFit | None:
    """The smallest group of these GPUs that the target fits on; None where it fits on no group."""
    gpus = 1
    while gpus <= MOST_GPUS:
        members = tuple(Device("cuda", i, gpu.driver, gpu.memory_bytes) for i in range(gpus))
        device = members[0] if gpus == 1 else Device("cuda", 0, gpu.driver, gpu.memory_bytes, members=members)
        fit = model.fit_on(device, mean_tokens)
        if fit.fits:
            shape = model.shape
            return EngineFit(gpus, max(1, max_num_seqs(fit)), 0 if shape is None else shape.sequence_bytes(mean_tokens))
        gpus *= 2
    return None


def _named_config(config: Path) -> tuple[Path, dict[str, Any]]:
    path = config / "config.json" if config.is_dir() else config
    try:
        body = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"--config {config}: no config.json can be read there ({first_line(error)[:120]}).") from error
    if not isinstance(body, dict) or path.name != "config.json":
        raise UserError(f"--config {config}: name a model's config.json, or the folder that holds it.")
    return path.parent, body


def _facts(session: Session, folder: Path, told: Mapping[str, Any]) -> PlannedTarget:
    manifest = session.manifest
    config = text_config(dict(told))
    hidden, vocabulary, layers = (_size(config, name) for name in ("hidden_size", "vocab_size", "num_hidden_layers"))
    model = read_model(manifest, folder, told)
    number = DTYPE_BYTES[manifest.target.dtype]
    parameters = _counted(folder) if model.weights_bytes is None else model.weights_bytes // number
    if model.weights_bytes is None:
        model = Model(
            config=told, weights_bytes=parameters * number, dtype=manifest.target.dtype,
            max_model_len=manifest.target.max_model_len, kv_dtype=manifest.engine.kv_cache_dtype,
            gpu_memory_utilization=manifest.engine.gpu_memory_utilization,
        )  # fmt: skip
    layer_ids = target_layers(manifest, layers)
    states = len(layer_ids) + manifest.extraction.final_state
    mixture = any("expert" in key for key in config)
    facts = TargetFacts(
        parameters=parameters,
        weights_bytes=parameters * number,
        captured_bytes_per_token=states * hidden * DTYPE_BYTES[manifest.extraction.dtype] + ID_BYTES,
        drafter_parameters=_drafter_parameters(session, folder, layer_ids),
        head_parameters=hidden * vocabulary,
        mixture=mixture,
    )
    said = "its experts are all counted, though few are active: hours are upper bounds" if mixture else ""
    return PlannedTarget(facts, model, said)


def _size(config: Mapping[str, Any], name: str) -> int:
    value = config.get(name)
    if type(value) is not int or not 1 <= value <= MOST_SIZE:
        got = f"is {ascii(value)[:40]}" if name in config else "is missing"
        raise ValueError(f"{name} {got}; a whole number from 1 is expected")
    return value


def _counted(folder: Path) -> int:
    """Parameters of the model that transformers makes of a config.json, without any memory for them."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(str(folder)))
    return sum(parameter.numel() for parameter in model.parameters())


def _drafter_parameters(session: Session, folder: Path, layer_ids: tuple[int, ...]) -> int:
    from training.memory import parameter_counts
    from training.shape import shape_for_target

    section = session.manifest.training
    shape = shape_for_target(
        folder,
        target_layer_ids=layer_ids,
        draft_layers=section.draft_layers,
        block_size=section.block_size,
        mask_token_id=0,
        sliding_layers=min(section.sliding_layers, section.draft_layers),
        sliding_window=section.sliding_window,
    )
    return sum(parameter_counts(shape))
