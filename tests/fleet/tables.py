"""Tables in the form of `nvidia-smi topo -m`, written after published ones; each names its model machine."""

from __future__ import annotations

from collections.abc import Sequence

from fleet.devices import Device
from fleet.topology import NO_LINK, Topology

LEGEND = """
Legend:

  X    = Self
  NV#  = joined by that many NVLinks
"""


def table(links: list[list[str]], nics: int = 0, colours: bool = False) -> str:
    """The table of these links, with NIC columns and rows, affinities and a legend around it."""
    names = [f"GPU{at}" for at in range(len(links))] + [f"NIC{at}" for at in range(nics)]
    head = "\t".join(["", *names, "CPU Affinity", "NUMA Affinity", "GPU NUMA ID"])
    lines = [f"\x1b[4m{head}\x1b[0m" if colours else head]
    for at, row in enumerate(links):
        cells = [" X " if at == other else cell for other, cell in enumerate(row)]
        lines.append("\t".join([names[at], *cells, *["SYS"] * nics, "0-31,64-95", "0", "N/A"]))
    lines += ["\t".join([name, *["SYS"] * len(links), *[" X "] * nics]) for name in names[len(links) :]]
    return "\n".join(lines) + "\n" + LEGEND


def unlinked(devices: Sequence[Device]) -> Topology:
    """Devices of which no two reach each other: cores, MIG slices, one GPU."""
    return Topology.of(devices, lambda a, b: NO_LINK)


def mixed_pcie(at: int, other: int) -> str:
    """Two sockets of four, each two switches of two under one root complex or two."""
    if at // 4 != other // 4:
        return "SYS"
    if at // 2 == other // 2:
        return "PIX"
    return "PXB" if at < 4 else "NODE"


PCIE_8 = table([[mixed_pcie(a, b) for b in range(8)] for a in range(8)], nics=2)
"""A two-socket server with eight PCIe cards of 96 GB (RTX PRO 6000 class) behind switches; no NVLink."""
NVSWITCH_8 = table([["NV18"] * 8 for _ in range(8)], nics=4, colours=True)
"""HGX H100: every pair through NVSwitches, 18 links."""
NVSWITCH_8_A100 = table([["NV12"] * 8 for _ in range(8)], nics=10)
"""DGX A100: the same with 12 links."""
PAIRS_8 = table([["NV4" if a // 2 == b // 2 else "SYS" for b in range(8)] for a in range(8)])
"""Eight PCIe cards bridged two by two (A100 PCIe, RTX A6000 class)."""
CUBE_8 = table(
    [
        ["X", "NV1", "NV1", "NV2", "NV2", "SYS", "SYS", "SYS"],
        ["NV1", "X", "NV2", "NV1", "SYS", "NV2", "SYS", "SYS"],
        ["NV1", "NV2", "X", "NV2", "SYS", "SYS", "NV1", "SYS"],
        ["NV2", "NV1", "NV2", "X", "SYS", "SYS", "SYS", "NV1"],
        ["NV2", "SYS", "SYS", "SYS", "X", "NV1", "NV1", "NV2"],
        ["SYS", "NV2", "SYS", "SYS", "NV1", "X", "NV2", "NV1"],
        ["SYS", "SYS", "NV1", "SYS", "NV1", "NV2", "X", "NV2"],
        ["SYS", "SYS", "SYS", "NV1", "NV2", "NV1", "NV2", "X"],
    ]
)
"""DGX-1 with V100: a mesh where each GPU has NVLink to four others only."""
ONE = table([["X"]], nics=1)
"""A workstation with one card."""
NONE = "No devices were found\n"
"""A machine whose driver finds no card."""
