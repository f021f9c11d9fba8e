"""A stand-in for the module pynvml: the machine that a test describes, and NotSupported for all else."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from itertools import combinations
from types import SimpleNamespace
from typing import Any

import pytest

GIB = 1 << 30
SWITCH_BUS = "00000000:F0:00.0"


class NVMLError(Exception):
    """As pynvml's."""


@dataclass
class Card:
    """One GPU, or one slice of one."""

    bus: str = "00000000:01:00.0"
    name: str | None = "NVIDIA RTX PRO 6000"
    memory_bytes: int | None = 96 * GIB
    uuid: str = "GPU-0"
    lanes: list[str] | None = None
    """Where each active NVLink leads; None: the card says NotSupported."""
    slices: list[Card] | None = None
    """MIG slices; None: MIG is off, or there is none."""
    has_mig: bool = True


@dataclass
class FakeNvml:
    """A machine. `levels` and `peers` are by pair of positions."""

    cards: list[Card]
    levels: dict[frozenset[int], int] = field(default_factory=dict)
    peers: dict[frozenset[int], bool] = field(default_factory=dict)
    driver: bool = True
    open: int = 0
    NVMLError = NVMLError

    def nvmlInit(self) -> None:  # noqa: N802 - pynvml's names
        if not self.driver:
            raise NVMLError("Driver Not Loaded")
        self.open += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.open -= 1

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return len(self.cards)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Card:  # noqa: N802
        return self.cards[index]

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> Card:  # noqa: N802
        everything = [*self.cards, *(part for card in self.cards for part in card.slices or [])]
        return said(next((card for card in everything if card.uuid == uuid), None))

    def nvmlDeviceGetName(self, card: Card) -> bytes:  # noqa: N802
        return str(said(card.name)).encode()

    def nvmlDeviceGetUUID(self, card: Card) -> str:  # noqa: N802
        return card.uuid

    def nvmlDeviceGetMemoryInfo(self, card: Card) -> Any:  # noqa: N802
        return SimpleNamespace(total=said(card.memory_bytes))

    def nvmlDeviceGetPciInfo(self, card: Card) -> Any:  # noqa: N802
        return SimpleNamespace(busId=card.bus.encode())

    def nvmlDeviceGetMigMode(self, card: Card) -> list[int]:  # noqa: N802
        if not card.has_mig:
            raise NVMLError("Not Supported")
        return [int(card.slices is not None)] * 2

    def nvmlDeviceGetMaxMigDeviceCount(self, card: Card) -> int:  # noqa: N802
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, card: Card, number: int) -> Card:  # noqa: N802
        assert card.slices is not None
        return said(card.slices[number] if number < len(card.slices) else None)

    def nvmlDeviceGetNvLinkState(self, card: Card, link: int) -> int:  # noqa: N802
        lanes: list[str] = said(card.lanes)
        if link >= 18:
            raise NVMLError("Invalid Argument")
        return int(link < len(lanes))

    def nvmlDeviceGetNvLinkRemotePciInfo(self, card: Card, link: int) -> Any:  # noqa: N802
        return SimpleNamespace(busId=said(card.lanes)[link])

    def nvmlDeviceGetNvLinkRemoteDeviceType(self, card: Card, link: int) -> int:  # noqa: N802
        return 2 if said(card.lanes)[link] == SWITCH_BUS else 0

    def nvmlDeviceGetTopologyCommonAncestor(self, one: Card, other: Card) -> int:  # noqa: N802
        return int(said(self.levels.get(self.pair(one, other))))

    def nvmlDeviceGetP2PStatus(self, one: Card, other: Card, index: int) -> int:  # noqa: N802
        assert index == 2
        return 0 if said(self.peers.get(self.pair(one, other))) else 5

    def pair(self, one: Card, other: Card) -> frozenset[int]:
        return frozenset(at for at, card in enumerate(self.cards) if card is one or card is other)


def said(value: Any) -> Any:
    """The value, or NotSupported where the machine does not tell."""
    if value is None:
        raise NVMLError("Not Supported")
    return value


def cards(count: int, **changes: Any) -> list[Card]:
    """Cards at buses 01, 02, …"""
    return [Card(bus=bus(at), uuid=f"GPU-{at}", **changes) for at in range(count)]


def bus(at: int) -> str:
    """The PCI address of a card."""
    return f"00000000:{at + 1:02X}:00.0"


def pcie_machine(monkeypatch: pytest.MonkeyPatch, count: int) -> FakeNvml:
    """A machine of PCIe cards of 96 GB, any two of them behind the same host bridge, in the place of this one."""
    levels = {frozenset(pair): 50 for pair in combinations(range(count), 2)}
    machine = FakeNvml(cards(count, memory_bytes=97_887 << 20), levels)
    monkeypatch.setitem(sys.modules, "pynvml", machine)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return machine
