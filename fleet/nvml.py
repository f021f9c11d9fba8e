"""What NVML says of this machine: its GPUs and MIG slices, and the link between each pair.

The only module that asks NVML. Every question may go unanswered (GeForce and unified-memory cards answer
NotSupported, containers hide bridges, old drivers lack functions): an unanswered one is a value, never an error,
and without a driver there is simply no GPU. `nvml` arguments are the module pynvml, or a stand-in of a test.
What a link is good for is decided in `fleet.topology`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from fleet.devices import Device, visible_gpus
from fleet.topology import NO_LINK, Link, LinkKind, Topology

MAX_LINKS = 36
"""More NVLinks than any GPU has; asking stops at the first that does not exist."""
LEVELS: dict[int, LinkKind] = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
"""nvmlGpuTopologyLevel_t in the words of `nvidia-smi topo`; 0 is two chips on one board."""
P2P_NVLINK = 2
SWITCH = 2
"""nvmlIntNvLinkDeviceType_t: the other end is an NVSwitch."""


@dataclass(frozen=True)
class _Lane:
    """One active NVLink of a GPU, as far as it says where it leads."""

    remote: tuple[int, str] | None
    to_switch: bool


class Nvml:
    """NVML where no question fails: what is not answered is None."""

    def __init__(self, module: Any) -> None:
        self._module = module

    def ask(self, name: str, *arguments: Any) -> Any:
        """`nvml<name>(*arguments)`, or None where this driver, card or pynvml does not say."""
        function: Callable[..., Any] | None = getattr(self._module, f"nvml{name}", None)
        if function is None:
            return None
        try:
            return function(*arguments)
        except self._module.NVMLError:
            return None

    def handle(self, visible: str) -> Any:
        """The handle of an entry of CUDA_VISIBLE_DEVICES; None if there is no such GPU."""
        if visible.isdigit():
            return self.ask("DeviceGetHandleByIndex", int(visible))
        return self.ask("DeviceGetHandleByUUID", visible)


@contextmanager
def opened(nvml: Any = None) -> Iterator[Nvml | None]:
    """NVML between its init and its shutdown; None where there is no pynvml or no driver."""
    module = nvml or _pynvml()
    if module is None:
        yield None
        return
    try:
        module.nvmlInit()
    except module.NVMLError:
        yield None
        return
    asked = Nvml(module)
    try:
        yield asked
    finally:
        asked.ask("Shutdown")


def read_gpus(variable: str | None, nvml: Any = None) -> tuple[Device, ...]:
    """The GPUs that a CUDA_VISIBLE_DEVICES of `variable` leaves, in its order; a GPU in MIG mode is its slices."""
    with opened(nvml) as asked:
        if asked is None:
            return ()
        found: list[Device] = []
        for visible in visible_gpus(variable, int(asked.ask("DeviceGetCount") or 0)):
            handle = asked.handle(visible)
            if handle is None:
                break  # as CUDA: the first entry that it cannot find hides itself and all that follow
            for entry, part in _parts(asked, visible, handle):
                memory = asked.ask("DeviceGetMemoryInfo", part)
                memory_bytes = 0 if memory is None else int(memory.total)
                found.append(Device("cuda", len(found), _text(asked.ask("DeviceGetName", part)), memory_bytes, entry))
        return tuple(found)


def read_topology(devices: Sequence[Device], nvml: Any = None) -> Topology:
    """The link between each pair of these devices; cores, slices and what NVML does not know have none."""
    links: dict[tuple[int, int], Link] = {}
    with opened(nvml) as asked:
        gpus = [] if asked is None else _handles(asked, devices)
        buses = {at: _bus(asked.ask("DeviceGetPciInfo", handle)) for at, handle in gpus} if asked else {}
        lanes = {at: _lanes(asked, handle) for at, handle in gpus} if asked else {}
        for (one, first), (other, second) in combinations(gpus, 2):
            assert asked is not None
            p2p = asked.ask("DeviceGetP2PStatus", first, second, P2P_NVLINK)
            nvlink = _nvlink(lanes[one], lanes[other], buses[one], buses[other], None if p2p is None else p2p == 0)
            level = LEVELS.get(asked.ask("DeviceGetTopologyCommonAncestor", first, second), "?")
            links[one, other] = nvlink or Link(level)
    return Topology.of(devices, lambda a, b: links.get((min(a, b), max(a, b)), NO_LINK))


def _pynvml() -> Any:
    """The module, where it is installed."""
    try:
        import pynvml
    except ImportError:
        return None
    return pynvml


def _parts(asked: Nvml, visible: str, handle: Any) -> Iterator[tuple[str, Any]]:
    """A GPU is itself; one in MIG mode is its slices, each by its UUID: CUDA runs nothing on the whole of it."""
    mode = None if visible.startswith("MIG-") else asked.ask("DeviceGetMigMode", handle)
    if not mode or mode[0] != 1:
        yield visible, handle
        return
    for number in range(int(asked.ask("DeviceGetMaxMigDeviceCount", handle) or 0)):
        part = asked.ask("DeviceGetMigDeviceHandleByIndex", handle, number)
        uuid = None if part is None else asked.ask("DeviceGetUUID", part)
        if uuid is not None:
            yield _text(uuid), part


def _handles(asked: Nvml, devices: Sequence[Device]) -> list[tuple[int, Any]]:
    """Position and handle of each whole GPU among the devices."""
    handles = [
        (at, asked.handle(device.visible or str(device.index)))
        for at, device in enumerate(devices)
        if device.kind == "cuda" and not device.is_slice
    ]
    return [(at, handle) for at, handle in handles if handle is not None]


def _lanes(asked: Nvml, handle: Any) -> list[_Lane]:
    """The GPU's active NVLinks."""
    lanes: list[_Lane] = []
    for number in range(MAX_LINKS):
        state = asked.ask("DeviceGetNvLinkState", handle, number)
        if state is None:
            break
        if state:
            remote = _bus(asked.ask("DeviceGetNvLinkRemotePciInfo", handle, number))
            lanes.append(_Lane(remote, asked.ask("DeviceGetNvLinkRemoteDeviceType", handle, number) == SWITCH))
    return lanes


def _nvlink(
    first: Sequence[_Lane],
    second: Sequence[_Lane],
    first_bus: tuple[int, str] | None,
    second_bus: tuple[int, str] | None,
    peers: bool | None,
) -> Link | None:
    """NVLink between two GPUs: lanes that lead straight to each other, or an NVSwitch that both hang on.

    `peers` is what the driver says of peer access over NVLink. Its no outweighs lanes: the bridge is there, and the
    fabric manager or a setting keeps it from being used. Its yes outweighs lanes that a container does not show.
    """
    if peers is False:
        return None
    direct = max(_leading(first, second_bus), _leading(second, first_bus))
    switched = min(sum(lane.to_switch for lane in first), sum(lane.to_switch for lane in second))
    if direct or switched:
        return Link("NV", direct or switched)
    return Link("NV", max(1, min(len(first), len(second)))) if peers else None


def _leading(lanes: Sequence[_Lane], bus: tuple[int, str] | None) -> int:
    return 0 if bus is None else sum(lane.remote == bus for lane in lanes)


def _bus(info: Any) -> tuple[int, str] | None:
    """Domain and bus:device of a PCI address, which NVML writes with four or eight digits of domain."""
    if info is None:
        return None
    domain, _, rest = _text(info.busId).lower().partition(":")
    try:
        return int(domain, 16), rest
    except ValueError:
        return None


def _text(value: Any) -> str:
    if value is None:
        return ""
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
