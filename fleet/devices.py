"""The devices of this machine, and the environment that ties one worker process to one of them.

A device is a GPU, a MIG slice of one, a group of GPUs that one engine shares, or one core where there is no GPU.
Finding them asks NVML (`fleet.nvml`) and the kernel, never torch: the coordinator must not open a CUDA context.
Choosing among them is pure; which may form a group is `fleet.topology`'s. What runs on a device is not known here.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

GIB = 1 << 30
CPU_DEVICE_BYTES = 4 * GIB
"""Least memory of one CPU device: an engine's own libraries take over 1 GiB before any weight is loaded."""

Kind = Literal["cpu", "cuda"]
_ITEM = re.compile(r"^((?:[^/,\s]+/)?(?:cpu|cuda)):(\d+)(?:-(\d+))?$")


class DeviceError(ValueError):
    """A device specification that this machine cannot meet; the message is one line for a person."""


@dataclass(frozen=True)
class Device:
    """One GPU or one core. `index` counts the visible GPUs from 0, or is the number of the core."""

    kind: Kind
    index: int
    name: str = ""
    memory_bytes: int = 0
    """0: unknown (GPUs that share the machine's memory may not say)."""
    visible: str | None = None
    """What CUDA_VISIBLE_DEVICES must hold to mean this GPU: an ordinal or a UUID. None: the index."""
    members: tuple[Device, ...] = ()
    """The GPUs of a group, in the order in which its process sees them; empty for a device that is alone."""
    node: str = ""
    """The machine of a cluster that it is in; empty for this one."""

    @property
    def label(self) -> str:
        """How the device is written in ledgers and logs: cuda:0, cpu:1; a group is cuda:0+1; on a node, a/cuda:0."""
        where = f"{self.node}/" if self.node else ""
        if self.members:
            return f"{where}{self.kind}:{'+'.join(str(member.index) for member in self.members)}"
        return f"{where}{self.kind}:{self.index}"

    @property
    def is_slice(self) -> bool:
        """A MIG slice: it has no peers, and its process sees nothing else."""
        return self.visible is not None and self.visible.startswith("MIG-")

    @property
    def torch_name(self) -> str:
        """The name inside the worker, which sees one device only; a group's first GPU."""
        return "cpu" if self.kind == "cpu" else "cuda:0"

    def env(self, outer: Mapping[str, str] | None = None) -> dict[str, str]:
        """Variables that tie a new process to this device; `outer` (os.environ) may already have some."""
        outer = os.environ if outer is None else outer
        if self.kind == "cuda":
            gpus = self.members or (self,)
            return {
                "CUDA_VISIBLE_DEVICES": ",".join(gpu.visible or str(gpu.index) for gpu in gpus),
                # NVML counts in PCI order; without this CUDA may count the fastest card first
                "CUDA_DEVICE_ORDER": outer.get("CUDA_DEVICE_ORDER", "PCI_BUS_ID"),
            }
        return {
            "VLLM_CPU_OMP_THREADS_BIND": str(self.index),
            "VLLM_CPU_KVCACHE_SPACE": outer.get("VLLM_CPU_KVCACHE_SPACE", "1"),
            "OMP_NUM_THREADS": "1",
        }


def group_of(members: Sequence[Device]) -> Device:
    """One device for an engine that is split evenly over several GPUs: as much of each as the smallest holds."""
    first = members[0]
    memory_bytes = len(members) * min(member.memory_bytes for member in members)
    return Device(
        first.kind, first.index, f"{len(members)}x {first.name}", memory_bytes, None, tuple(members), first.node
    )


def gpus_in(label: str) -> int:
    """How many GPUs a device's label names, an engine's tensor parallelism: 1 for cuda:0 or a core, 2 for cuda:0+1."""
    return label.count("+") + 1


def kind_of(label: str) -> Kind:
    """The kind that a device's label names, on whatever node: cpu for cpu:1 and for alpha/cpu:1."""
    return "cpu" if label.rpartition("/")[2].startswith("cpu:") else "cuda"


def find_devices() -> tuple[Device, ...]:
    """The GPUs that this process may use, else one CPU device for each core that has memory enough."""
    return find_gpus() or find_cores()


def find_gpus() -> tuple[Device, ...]:
    """GPUs through NVML, narrowed and ordered by an outer CUDA_VISIBLE_DEVICES; none without NVML."""
    from fleet.nvml import read_gpus

    return read_gpus(os.environ.get("CUDA_VISIBLE_DEVICES"))


def visible_gpus(variable: str | None, count: int) -> tuple[str, ...]:
    """CUDA_VISIBLE_DEVICES as CUDA reads it: unset means all, the first bad entry ends the list."""
    if variable is None:
        return tuple(str(index) for index in range(count))
    entries: list[str] = []
    for entry in (part.strip() for part in variable.split(",")):
        known = int(entry) < count if entry.isdigit() else entry.startswith(("GPU-", "MIG-"))
        if not known or entry in entries:
            break
        entries.append(entry)
    return tuple(entries)


def find_cores() -> tuple[Device, ...]:
    """One device for each core of this process, as many as have CPU_DEVICE_BYTES each (at least one)."""
    memory_bytes = machine_memory_bytes()
    cores = cores_that_fit(sorted(os.sched_getaffinity(0)), memory_bytes)
    name = _processor_name()
    return tuple(Device("cpu", core, name, memory_bytes // len(cores)) for core in cores)


def cores_that_fit(cores: Sequence[int], memory_bytes: int) -> tuple[int, ...]:
    """The first cores, as many as the memory allows, and one in any case."""
    return tuple(cores[: max(1, memory_bytes // CPU_DEVICE_BYTES)])


def choose_devices(spec: str | None, found: Sequence[Device]) -> tuple[Device, ...]:
    """The devices that a specification means, in its own order.

    `None` and "all" mean every device, "2" the first two, "cuda:0,cuda:3" and "cuda:0-3" those.

    Raises:
        DeviceError: the specification is not understood, or names what is not there.
    """
    available = ", ".join(device.label for device in found) or "no device"
    if not found:
        raise DeviceError("devices: none was found on this machine. Check the driver with nvidia-smi.")
    if spec is None or spec.strip() == "all":
        return tuple(found)
    text = spec.strip()
    if text.isascii() and text.isdigit():
        return _first(int(text), found, available)
    by_label = {device.label: device for device in found}
    chosen: dict[str, Device] = {}
    for label in _labels(spec):
        if label not in by_label:
            raise DeviceError(
                f"devices: there is no {label}; this machine has {available}. Choose among those, or all."
            )
        if label in chosen:
            raise DeviceError(f"devices: {spec!r} names {label} twice. Name each device once.")
        chosen[label] = by_label[label]
    return tuple(chosen.values())


def _first(count: int, found: Sequence[Device], available: str) -> tuple[Device, ...]:
    if not 1 <= count <= len(found):
        raise DeviceError(
            f"devices: {count} were asked for, and this machine has {len(found)} ({available}). "
            f"Choose a number from 1 to {len(found)}, or all."
        )
    return tuple(found[:count])


def _labels(spec: str) -> Iterable[str]:
    for part in spec.split(","):
        match = _ITEM.match(part.strip())
        first, last = (int(match[2]), int(match[3] or match[2])) if match else (1, 0)
        if match is None or first > last:
            raise DeviceError(
                f"devices: {spec!r} has {part.strip()!r}, which is not understood. "
                "Write all, a number, cuda:0, cuda:0-3, or several of these with commas."
            )
        for index in range(first, last + 1):
            yield f"{match[1]}:{index}"


def machine_memory_bytes() -> int:
    """Memory of the machine, or of this container if that is less."""
    memory_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for limit in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            text = Path(limit).read_text().strip()
        except OSError:
            continue
        if text.isdigit():
            memory_bytes = min(memory_bytes, int(text))
    return memory_bytes


def _processor_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
