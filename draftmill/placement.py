"""Where the engines of a run go: chosen devices and a target to one device (or group of GPUs) an engine.

One engine a GPU; a model too large for one takes the smallest groups that hold it, over PCIe too, and the cost is said.
Tensor parallelism that the manifest asks for (engine.extra.tensor_parallel_size) needs NVLink, or force.
Joins `fleet` (links) and `generation.fit` (bytes), and decides without starting anything or importing torch or vllm.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from textwrap import shorten
from typing import TYPE_CHECKING, Any

from corpus.errors import UserError
from fleet.devices import GIB, Device, DeviceError
from fleet.grouping import SIZES, Grouping, groups_for, smallest_group
from fleet.topology import Topology
from generation.cache_shape import tensor_parallel_sizes
from generation.engine import AUTO_MAX_NUM_SEQS
from generation.engine_settings import UNKNOWN, EngineNames, setting_faults, step_faults
from generation.fit import Fit, Model, max_num_seqs, read_model

if TYPE_CHECKING:
    from draftmill.session import Session

COLUMNS = 80
SHORTEST_NAME = 10
"""Less of a device's name than this tells nobody anything."""
TENSOR, PIPELINE, DATA = "tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size"


@dataclass(frozen=True)
class Placement:
    """The engines' devices, and what fits on each of them."""

    devices: tuple[Device, ...]
    """One engine each."""
    topology: Topology
    """Of the devices that were chosen, before they were grouped."""
    model: Model
    fit: Fit
    """Of the engine with the least memory."""
    notes: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        """The first lines of a run; notes are sentences of any length, the rest at most 80 columns."""
        return [*placement_lines(self.devices, self.topology, self.fit), *self.notes]


def place(session: Session, names: EngineNames = UNKNOWN) -> Placement:
    """Where the session's engines go; reads links from the driver and sizes from the target's folder.

    Args:
        names: what the engine knows by name, where it is vLLM (generation.engine_settings.vllm_names).

    Raises:
        DeviceError: the model fits no group, or tensor parallelism is refused.
        UserError: engine.extra asks for what draftmill does itself, or for a size that does not divide the model; or
            the engine would refuse another of its settings.
    """
    devices, target = session.devices, session.target
    check_settings(session, names)
    model = read_model(session.manifest, target.folder, target.config)
    placement = placed(devices, session.topology, model, session.manifest.engine.extra, session.force_tensor_parallel)
    _refuse(step_faults(session.manifest, engine_num_seqs(session, placement)))
    return placement


def check_settings(session: Session, names: EngineNames = UNKNOWN) -> None:
    """Refuse what the engine would refuse; a UserError with a sentence for each."""
    _refuse(setting_faults(session.manifest, session.target.config, names))


def engine_num_seqs(session: Session, placement: Placement) -> int:
    """The sequences that run at once in an engine, the automatic choice resolved."""
    asked = session.manifest.engine.max_num_seqs
    if isinstance(asked, int):
        return asked
    return max_num_seqs(placement.fit) if placement.devices[0].kind == "cuda" else AUTO_MAX_NUM_SEQS["cpu"]


def _refuse(faults: Sequence[str]) -> None:
    if faults:
        raise UserError(" ".join(faults))


def placed(
    devices: Sequence[Device], topology: Topology, model: Model, extra: Mapping[str, Any], force: bool = False
) -> Placement:
    """`place` without its reading: pure. Raises as it does."""
    chosen, notes = placed_devices(devices, topology, model, extra, force)
    least = min(chosen, key=lambda device: device.memory_bytes)
    return Placement(chosen, topology, model, model.fit_on(least), notes)


def placed_devices(
    devices: Sequence[Device], topology: Topology, model: Model, extra: Mapping[str, Any], force: bool = False
) -> tuple[tuple[Device, ...], tuple[str, ...]]:
    """One device an engine, and what a person should know of the choice.

    Args:
        devices: the chosen devices, all of one kind.
        topology: the links between them.
        model: the target.
        extra: the manifest's engine.extra.
        force: --force-tensor-parallel.

    Raises:
        DeviceError: the model fits no group, or tensor parallelism is refused.
        UserError: engine.extra asks for what draftmill does itself, or for a size that does not divide the model.
    """
    for name in (PIPELINE, DATA):
        if extra.get(name, 1) != 1:
            raise UserError(
                f"engine.extra.{name} is {extra[name]!r}; draftmill runs one engine a GPU itself, all from one queue. "
                "Remove it."
            )
    asked = _asked(model, extra)
    grouping = _grouping(topology, model, asked, force)
    notes = list(grouping.notes)
    if force and (asked is None or asked == 1):
        notes.append(f"--force-tensor-parallel has nothing to force: engine.extra.{TENSOR} is not set")
    return grouping.groups, tuple(notes)


def _asked(model: Model, extra: Mapping[str, Any]) -> int | None:
    asked = extra.get(TENSOR)
    if asked is None:
        return None
    if type(asked) is not int or asked < 1:
        raise UserError(f"engine.extra.{TENSOR} is {asked!r}; it must be a whole number from 1. Correct or remove it.")
    if asked > 1 and asked not in tensor_parallel_sizes(dict(model.config), (asked,)):
        allowed = ", ".join(str(size) for size in tensor_parallel_sizes(dict(model.config)))
        raise UserError(
            f"engine.extra.{TENSOR} is {asked}, which does not divide the target's heads. Choose of {allowed}."
        )
    return asked


def _grouping(topology: Topology, model: Model, asked: int | None, force: bool) -> Grouping:
    if all(device.kind == "cpu" for device in topology.devices):
        return groups_for(topology, asked or 1)  # more than one is refused there: each core has its own engine
    if asked == 1:
        return groups_for(topology, 1)
    sizes = sorted({*tensor_parallel_sizes(dict(model.config), SIZES), asked or 1})
    smallest = smallest_group(topology, model.need_bytes, model.gpu_memory_utilization, sizes)
    if asked is None:
        return smallest
    needed = max(1, len(smallest.groups[0].members))
    if needed > asked:
        raise DeviceError(
            f"engine.extra.{TENSOR} is {asked}, and the target fits no group of {asked}: it needs "
            f"{model.need_bytes(asked) / GIB:.1f} GiB on each. The smallest that holds it is {needed}; ask for that, "
            "or remove it and have it chosen."
        )
    # what the model needs is no mere wish: without it there is no engine at all
    return groups_for(topology, asked, force or needed == asked)


def placement_lines(devices: Sequence[Device], topology: Topology, fit: Fit | None) -> list[str]:
    """Engines, links and what fits, at most 80 columns a line."""
    lines = [engines_line(devices), *topology.summary()]
    if fit is not None:
        head, *rest = fit.lines()
        lines += [f"an engine: {head}", *rest]
    return lines


def engines_line(devices: Sequence[Device]) -> str:
    """How many engines, where, and the memory of each."""
    engines = "1 engine on " if len(devices) == 1 else f"{len(devices)} engines on "
    return engines + shown(devices, COLUMNS - len(engines))


def shown(devices: Sequence[Device], columns: int) -> str:
    """Devices in a few words: labels, the common name as far as there is room, memory."""
    labels = [device.label for device in devices]
    listed = len(labels) <= (4 if devices[0].members else 2)
    where = ", ".join(labels) if listed else f"{labels[0]} to {labels[-1]}"
    sizes = sorted({round(device.memory_bytes / GIB) for device in devices if device.memory_bytes})
    memory = " to ".join(str(size) for size in dict.fromkeys((sizes[0], sizes[-1]))) + " GiB" if sizes else ""
    memory = f"{memory}{' each' if len(devices) > 1 else ''}" if memory else "memory unknown"
    names = {device.name for device in devices}
    name = names.pop() if len(names) == 1 else ""
    room = columns - len(f"{where} (, {memory})")
    name = shorten(name, room, placeholder="") if room >= SHORTEST_NAME else ""
    return f"{where} ({name}, {memory})" if name else f"{where} ({memory})"
