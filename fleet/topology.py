"""The devices of a machine and the link between each pair, as a value; and how a person reads it. Pure.

Links are in the words of `nvidia-smi topo -m`: NV# (that many NVLinks, straight or through NVSwitches), the PCIe
levels PIX, PXB, PHB, NODE, SYS from near to far, `?` where nobody says, none for cores and MIG slices, which have no
peers. `fleet.nvml` reads such a value from the driver, `parse_topology` from a table. What follows from it for
engines is `fleet.grouping`'s.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

from fleet.devices import Device, DeviceError, group_of

LinkKind = Literal["NV", "PIX", "PXB", "PHB", "NODE", "SYS", "?", "none"]
NEARNESS: dict[str, int] = {"none": 0, "?": 0, "SYS": 1, "NODE": 2, "PHB": 3, "PXB": 4, "PIX": 5}
"""PCIe levels from far to near; an NVLink is nearer than all of them, more lanes nearer still."""
MATRIX_UP_TO = 8
"""GPUs up to which the matrix of links is shown: 55 columns."""
_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_CELL = re.compile(r"X|NV(\d+)|PIX|PXB|PHB|NODE|SYS|SOC")


@dataclass(frozen=True)
class Link:
    """How two devices reach each other: `lanes` NVLinks, a PCIe level of nvidia-smi topo, ? (not told), none."""

    kind: LinkKind
    lanes: int = 0

    @property
    def is_pcie(self) -> bool:
        """A PCIe level that is known."""
        return NEARNESS.get(self.kind, 0) > 0

    @property
    def is_nvlink(self) -> bool:
        """NVLink, straight or through a switch."""
        return self.kind == "NV"

    @property
    def nearness(self) -> int:
        """Larger is nearer."""
        return 100 + self.lanes if self.is_nvlink else NEARNESS[self.kind]

    def __str__(self) -> str:
        return f"NV{self.lanes}" if self.is_nvlink else self.kind


NO_LINK = Link("none")


@dataclass(frozen=True)
class Topology:
    """Devices, and the link between each pair. `links[a][b]` is that of devices a and b by position."""

    devices: tuple[Device, ...]
    links: tuple[tuple[Link, ...], ...]

    @classmethod
    def of(cls, devices: Sequence[Device], link: Callable[[int, int], Link]) -> Topology:
        """From a function of two positions; it is asked for each pair once."""
        table = [[NO_LINK] * len(devices) for _ in devices]
        for a, b in combinations(range(len(devices)), 2):
            table[a][b] = table[b][a] = link(a, b)
        return cls(tuple(devices), tuple(tuple(row) for row in table))

    def without(self, devices: Sequence[Device]) -> Topology:
        """The others, with their links."""
        kept = [at for at, device in enumerate(self.devices) if device not in devices]
        return Topology.of([self.devices[at] for at in kept], lambda a, b: self.links[kept[a]][kept[b]])

    def may_group(self, a: int, b: int, force: bool = False) -> bool:
        """Whether tensor parallelism is sensible over these two, or with `force`: possible."""
        if any(device.kind != "cuda" or device.is_slice for device in (self.devices[a], self.devices[b])):
            return False
        if self.devices[a].node != self.devices[b].node:
            return False  # a worker is a process of one machine
        return force or self.links[a][b].is_nvlink

    def slowest(self, members: Sequence[int]) -> Link:
        """The link that a group of these would wait for."""
        return min((self.links[a][b] for a, b in combinations(members, 2)), key=lambda link: link.nearness)

    def islands(self, force: bool = False) -> tuple[tuple[int, ...], ...]:
        """Positions joined by a chain of links that groups may use, each island in order."""
        islands: list[tuple[int, ...]] = []
        left = set(range(len(self.devices)))
        while left:
            reached, edge = set(), {min(left)}
            while edge:
                reached |= edge
                edge = {b for b in left - reached if any(self.may_group(a, b, force) for a in edge)}
            islands.append(tuple(sorted(reached)))
            left -= reached
        return tuple(islands)

    def lines(self) -> list[str]:
        """A summary, and the matrix of links where there are two GPUs or more and it fits 80 columns."""
        return [*self.summary(), *self.matrix()]

    def summary(self) -> list[str]:
        """What the links allow, a line a kind of device."""
        gpus = [at for at, device in enumerate(self.devices) if device.kind == "cuda"]
        whole = [at for at in gpus if not self.devices[at].is_slice]
        lines = []
        if len(gpus) > len(whole):
            slices = len(gpus) - len(whole)
            lines.append(f"{slices} MIG slice{'s'[: slices > 1]}: one engine a slice; slices cannot be grouped")
        if len(whole) == 1:
            lines.append("1 GPU: one engine")
        if len(whole) < 2:
            return lines
        islands = [island for island in self.islands() if len(island) > 1]
        count = f"{len(whole)} GPUs"
        if not islands:
            lines.append(f"{count}, PCIe only: one engine a GPU; tensor parallelism would wait on PCIe")
        elif len(islands[0]) == len(whole) and self._is_clique(islands[0]):
            lines.append(f"{count}, NVLink between all ({self._lanes(islands[0])}): tensor parallelism is possible")
        else:
            lines.append(f"{count}, NVLink inside these, PCIe else:")
            lines += [f"  {self._shown(island)}" for island in islands]
        return lines

    def _shown(self, island: tuple[int, ...]) -> str:
        all_pairs = "" if self._is_clique(island) else ", not between all of them"
        return f"{group_of([self.devices[at] for at in island]).label} ({self._lanes(island)}{all_pairs})"

    def _is_clique(self, members: Sequence[int]) -> bool:
        return all(self.links[a][b].is_nvlink for a, b in combinations(members, 2))

    def _lanes(self, members: Sequence[int]) -> str:
        found = {self.links[a][b] for a, b in combinations(members, 2) if self.links[a][b].is_nvlink}
        return " and ".join(str(link) for link in sorted(found, key=lambda link: -link.lanes))

    def matrix(self) -> list[str]:
        """The link of each pair of whole GPUs, 55 columns at most; nothing for fewer than two or more than eight."""
        whole = [at for at, device in enumerate(self.devices) if device.kind == "cuda" and not device.is_slice]
        if not 2 <= len(whole) <= MATRIX_UP_TO:
            return []
        rows = [("", [str(self.devices[at].index) for at in whole])]
        for at in whole:
            links = ["-" if at == other else str(self.links[at][other]) for other in whole]
            rows.append((self.devices[at].label, links))
        return [f"{label:<7}" + "".join(f"{cell:>6}" for cell in cells) for label, cells in rows]


def parse_topology(text: str, name: str = "", memory_bytes: int = 0) -> Topology:
    """The GPUs and links of an `nvidia-smi topo -m` table; NICs, affinities and the legend are passed over.

    Args:
        text: the table, with or without its colours. "No devices were found" is no device.
        name: of each GPU, which the table does not tell.
        memory_bytes: of each GPU.

    Raises:
        DeviceError: a row is missing, or holds what is no link.
    """
    rows: dict[str, list[str]] = {}
    columns: list[str] = []
    for line in _ANSI.sub("", text).splitlines():
        words = line.split()
        if not columns and words and all(re.fullmatch(r"GPU\d+", word) for word in words[:1]):
            columns = [word for word in words if re.fullmatch(r"GPU\d+", word)]
        elif words and words[0] in columns:
            rows.setdefault(words[0], words[1 : len(columns) + 1])
    cells = {label: [_CELL.fullmatch(word) for word in rows.get(label, [])] for label in columns}
    for label, row in cells.items():
        if len(row) != len(columns) or None in row:
            raise DeviceError(
                f"nvidia-smi topo: the row of {label} is {' '.join(rows.get(label, [])) or 'missing'}; expected "
                f"{len(columns)} of X, NV#, PIX, PXB, PHB, NODE, SYS. Give the whole output of `nvidia-smi topo -m`."
            )
    devices = [Device("cuda", at, name, memory_bytes) for at in range(len(columns))]
    return Topology.of(devices, lambda a, b: _link(cells[columns[a]][b]))


def _link(cell: re.Match[str] | None) -> Link:
    assert cell is not None
    if cell[1] is not None:
        return Link("NV", int(cell[1]))
    kinds: dict[str, LinkKind] = {"PIX": "PIX", "PXB": "PXB", "PHB": "PHB", "NODE": "NODE", "SYS": "SYS", "SOC": "SYS"}
    return Link(kinds.get(cell[0], "?"))
