"""Which GPUs share one engine, decided from a topology. Pure.

Tensor parallelism makes the members of a group wait for one another twice a layer and step, so a group wants NVLink
between every two of its GPUs; over PCIe it is refused unless forced, or unless the model fits no smaller group. A MIG
slice has no peers and is never grouped. Groups are disjoint, cover as many devices as they can, and what is left over
is named. What a model is or needs is not known here: callers bring bytes and the sizes that divide it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations

from fleet.devices import GIB, Device, DeviceError, group_of
from fleet.topology import Link, Topology

SIZES = (1, 2, 4, 8)
EXACT_UP_TO = 12
"""GPUs of an island up to which the best grouping is searched for; beyond, each group takes the nearest left."""


@dataclass(frozen=True)
class Grouping:
    """Devices for engines, those that no engine uses, and what a person should know of the choice."""

    groups: tuple[Device, ...]
    left_over: tuple[Device, ...] = ()
    notes: tuple[str, ...] = ()


def groups_for(topology: Topology, size: int, force: bool = False) -> Grouping:
    """Groups of `size` GPUs (tensor parallelism of `size`) inside NVLink islands; with `force`, over PCIe too.

    Raises:
        DeviceError: no such group exists, with the reason and what to do instead.
    """
    if size < 1:
        raise DeviceError(f"tensor parallelism of {size}: it must be at least 1. Remove it for one engine a GPU.")
    if size == 1:
        return Grouping(topology.devices)
    chosen: list[tuple[int, ...]] = []
    for island in topology.islands(force):
        chosen += _pack(topology, island, size, force)
    if not chosen:
        raise DeviceError(_refusal(topology, size, force))
    taken = {at for members in chosen for at in members}
    left_over = tuple(device for at, device in enumerate(topology.devices) if at not in taken)
    notes = [] if not left_over else [f"{_labels(left_over)}: left over, in no group of {size}"]
    slowest = min((topology.slowest(members) for members in chosen), key=lambda link: link.nearness)
    if not slowest.is_nvlink:
        notes.insert(0, _cost(size, slowest))
    ordered = sorted(chosen)
    return Grouping(
        tuple(group_of([topology.devices[at] for at in members]) for members in ordered), left_over, tuple(notes)
    )


def smallest_group(
    topology: Topology,
    need_bytes: Callable[[int], int],
    usable: float = 1.0,
    sizes: Sequence[int] = SIZES,
) -> Grouping:
    """One engine a GPU where the model fits one, else the smallest groups that hold it, NVLink before PCIe.

    A model that fits no single GPU is worth PCIe: it would not run at all. The cost is in the notes.

    Args:
        topology: the devices.
        need_bytes: what each member of a group of n must hold, in bytes.
        usable: part of a device's memory that an engine may take, 0 to 1.
        sizes: group sizes that divide the model, ascending.

    Raises:
        DeviceError: no group holds it.
    """
    for size in sizes:
        small = tuple(device for device in topology.devices if not _holds(device, need_bytes(size), usable))
        large = topology.without(small)
        try:
            grouping = groups_for(large, size, force=True)  # prefers NVLink, and leaves no GPU idle for want of it
        except DeviceError:
            continue
        if grouping.groups:
            return _named(grouping, small, size)
    raise DeviceError(_too_large(topology, need_bytes, usable, sizes))


def _named(grouping: Grouping, small: tuple[Device, ...], size: int) -> Grouping:
    notes = list(grouping.notes)
    if size > 1:
        notes.insert(0, f"the model fits no {'single GPU' if size == 2 else 'smaller group'}: {size} GPUs an engine")
    if small:
        notes.append(f"{_labels(small)}: left over, too small for the model")
    return Grouping(grouping.groups, (*grouping.left_over, *small), tuple(notes))


def _holds(device: Device, need: int, usable: float) -> bool:
    return not device.memory_bytes or device.memory_bytes * usable >= need


def _pack(topology: Topology, island: tuple[int, ...], size: int, force: bool) -> list[tuple[int, ...]]:
    """Disjoint groups inside one island: as many as possible, then over the nearest links, then in order."""
    links = {topology.links[a][b] for a, b in combinations(island, 2)}
    all_pairs = all(topology.may_group(a, b, force) for a, b in combinations(island, 2))
    if all_pairs and len(links) == 1:
        return [island[at : at + size] for at in range(0, len(island) - size + 1, size)]

    def groups_from(first: int, others: Sequence[int]) -> list[tuple[int, ...]]:
        near = [b for b in others if topology.may_group(first, b, force)]
        return [
            (first, *rest)
            for rest in combinations(near, size - 1)
            if all(topology.may_group(a, b, force) for a, b in combinations(rest, 2))
        ]

    if len(island) > EXACT_UP_TO:
        taken: list[tuple[int, ...]] = []
        left = list(island)
        while left:
            found = groups_from(left[0], left[1:])
            if found:
                taken.append(max(found, key=lambda members: topology.slowest(members).nearness))
            gone = set(taken[-1]) if found else {left[0]}
            left = [at for at in left if at not in gone]
        return taken

    @cache
    def best(left: tuple[int, ...]) -> tuple[int, int, tuple[tuple[int, ...], ...]]:
        """(groups, sum of nearness, the groups) of these positions."""
        if len(left) < size:
            return 0, 0, ()
        tried = [best(left[1:])]
        for members in groups_from(left[0], left[1:]):
            count, near, rest = best(tuple(at for at in left if at not in members))
            tried.append((count + 1, near + topology.slowest(members).nearness, (members, *rest)))
        return max(tried, key=lambda one: one[:2])

    return list(best(island)[2])


def _refusal(topology: Topology, size: int, force: bool) -> str:
    asked = f"tensor parallelism of {size}"
    whole = [device for device in topology.devices if device.kind == "cuda" and not device.is_slice]
    if all(device.kind == "cpu" for device in topology.devices):
        return f"{asked}: there is no GPU here; on a CPU each core has its own engine. Remove it from engine.extra."
    if len(whole) < size and len(whole) < len(topology.devices):
        return (
            f"{asked}: MIG slices cannot be grouped, forced or not: CUDA shows a process one slice, and slices have no "
            "peers. Remove it for one engine a slice, or switch MIG off."
        )
    if len(whole) < size:
        return (
            f"{asked}: only {len(whole)} of the chosen devices are GPUs ({_labels(topology.devices)}). "
            "Choose more with --devices, or remove it for one engine a GPU."
        )
    if not force:
        return (
            f"{asked}: no {size} of {_labels(whole)} have NVLink between every two, and over PCIe every layer waits "
            f"for two all-reduces. Remove it: {len(whole)} engines, one a GPU, share the prompts and are faster "
            "(--force-tensor-parallel insists)."
        )
    return f"{asked}: {_labels(topology.devices)} cannot be grouped so. Remove it for one engine a GPU."


def _too_large(topology: Topology, need_bytes: Callable[[int], int], usable: float, sizes: Sequence[int]) -> str:
    largest = max((device.memory_bytes for device in topology.devices), default=0)
    asked = ", ".join(f"{need_bytes(size) / GIB:.1f} GiB on each of {size}" for size in sizes)
    slices = " MIG slices cannot be grouped." if any(device.is_slice for device in topology.devices) else ""
    return (
        f"the model fits no group of {_labels(topology.devices)}: it needs {asked}, and the largest offers "
        f"{largest * usable / GIB:.1f} GiB.{slices} Use a quantised target, a smaller max_model_len, or larger devices."
    )


def _cost(size: int, slowest: Link) -> str:
    over = f"PCIe ({slowest})" if slowest.is_pcie else "PCIe"
    return (
        f"tensor parallelism of {size} over {over}: every layer waits for two all-reduces over it; expect well under "
        f"{size} times one GPU's rate. A quantised target that fits one GPU, or NVLink, would be faster"
    )


def _labels(devices: Sequence[Device]) -> str:
    labels = [device.label for device in devices]
    return ", ".join(labels) if len(labels) <= 4 else f"{labels[0]} to {labels[-1]} ({len(labels)})"
