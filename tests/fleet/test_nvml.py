"""NVML: what a machine answers becomes devices and links, and what it does not answer is no error."""

from __future__ import annotations

import sys
from itertools import combinations

import pytest

from fleet.devices import GIB, Device, find_devices, find_gpus
from fleet.grouping import groups_for
from fleet.nvml import read_gpus, read_topology
from tests.fleet.fake_nvml import SWITCH_BUS, Card, FakeNvml, bus, cards


def pairs(count: int, level: int = 50) -> dict[frozenset[int], int]:
    return {frozenset(pair): level for pair in combinations(range(count), 2)}


def links(machine: FakeNvml) -> list[list[str]]:
    topology = read_topology(read_gpus(None, machine), machine)
    assert machine.open == 0
    return [[str(link) for link in row] for row in topology.links]


def test_eight_pcie_cards_have_their_levels() -> None:
    levels = pairs(8) | {frozenset((0, 1)): 10, frozenset((0, 2)): 20, frozenset((0, 3)): 30, frozenset((4, 5)): 40}
    machine = FakeNvml(cards(8), levels, peers={frozenset(pair): False for pair in combinations(range(8), 2)})
    found = read_gpus(None, machine)
    assert [(gpu.label, gpu.name, gpu.memory_bytes) for gpu in found[:2]] == [
        ("cuda:0", "NVIDIA RTX PRO 6000", 96 * GIB),
        ("cuda:1", "NVIDIA RTX PRO 6000", 96 * GIB),
    ]
    table = links(machine)
    assert table[0] == ["none", "PIX", "PXB", "PHB", "SYS", "SYS", "SYS", "SYS"]
    assert table[4][5] == table[5][4] == "NODE"


@pytest.mark.parametrize("peers", [{}, {frozenset(pair): True for pair in combinations(range(8), 2)}])
def test_eight_cards_on_switches_reach_each_other(peers: dict[frozenset[int], bool]) -> None:
    machine = FakeNvml(cards(8, lanes=[SWITCH_BUS] * 18), pairs(8), peers)
    assert {cell for row in links(machine) for cell in row} == {"none", "NV18"}
    assert len(groups_for(read_topology(read_gpus(None, machine), machine), 8).groups) == 1


def test_bridged_pairs_are_told_by_where_their_lanes_lead() -> None:
    machine = FakeNvml(cards(4), pairs(4))
    for at, card in enumerate(machine.cards):
        card.lanes = [bus(at ^ 1).replace("00000000", "0000").lower()] * 4  # the domain in four digits
    assert links(machine) == [
        ["none", "NV4", "SYS", "SYS"],
        ["NV4", "none", "SYS", "SYS"],
        ["SYS", "SYS", "none", "NV4"],
        ["SYS", "SYS", "NV4", "none"],
    ]


def test_a_bridge_that_the_driver_does_not_use_is_none() -> None:
    machine = FakeNvml(cards(2), pairs(2, 40), {frozenset((0, 1)): False})
    for at, card in enumerate(machine.cards):
        card.lanes = [bus(at ^ 1)] * 4
    assert links(machine)[0][1] == "NODE"


def test_a_lane_to_a_card_that_is_not_shown_joins_nothing() -> None:
    machine = FakeNvml(cards(2), pairs(2, 40))
    for card in machine.cards:
        card.lanes = [bus(7)] * 4
    assert links(machine)[0][1] == "NODE"


def test_peers_of_a_container_that_hides_the_lanes_are_believed() -> None:
    machine = FakeNvml(cards(2), {}, {frozenset((0, 1)): True})
    assert links(machine)[0][1] == "NV1"


def test_a_card_that_tells_nothing_is_a_device_all_the_same() -> None:
    silent = FakeNvml([Card(name=None, memory_bytes=None, has_mig=False), Card(bus="odd", has_mig=False)])
    assert [(gpu.name, gpu.memory_bytes) for gpu in read_gpus(None, silent)] == [
        ("", 0),
        ("NVIDIA RTX PRO 6000", 96 * GIB),
    ]
    assert links(silent)[0][1] == "?"


def test_a_pynvml_without_these_functions_is_no_error() -> None:
    class Old(FakeNvml):
        nvmlDeviceGetP2PStatus = None  # type: ignore[assignment]  # noqa: N815
        nvmlDeviceGetMigMode = None  # type: ignore[assignment]  # noqa: N815

    assert links(Old(cards(2), pairs(2, 30)))[0][1] == "PHB"


def sliced() -> FakeNvml:
    """One card cut in two, one whole card, one in MIG mode without a slice."""
    parts = [Card(name="A100 MIG 3g.40gb", memory_bytes=40 * GIB, uuid=f"MIG-{at}") for at in range(2)]
    machine = FakeNvml(cards(3), pairs(3))
    machine.cards[0].slices, machine.cards[2].slices = parts, []
    return machine


def test_a_card_in_mig_mode_is_its_slices() -> None:
    machine = sliced()
    found = read_gpus(None, machine)
    assert [(gpu.label, gpu.visible, gpu.is_slice) for gpu in found] == [
        ("cuda:0", "MIG-0", True),
        ("cuda:1", "MIG-1", True),
        ("cuda:2", "1", False),
    ]
    assert found[0].env({})["CUDA_VISIBLE_DEVICES"] == "MIG-0"
    assert {cell for row in links(machine) for cell in row} == {"none"}
    assert [gpu.visible for gpu in read_gpus("MIG-1", machine)] == ["MIG-1"]


@pytest.mark.parametrize(
    ("variable", "visible"),
    [("2,0", ["2", "0"]), ("GPU-1", ["GPU-1"]), ("GPU-1,GPU-9,GPU-0", ["GPU-1"]), ("", []), ("7", [])],
)
def test_an_outer_variable_narrows_and_orders(variable: str, visible: list[str]) -> None:
    machine = FakeNvml(cards(3), pairs(3) | {frozenset((0, 2)): 10})
    found = read_gpus(variable, machine)
    assert [gpu.visible for gpu in found] == visible
    assert [gpu.index for gpu in found] == list(range(len(found)))
    if variable == "2,0":
        assert str(read_topology(found, machine).links[0][1]) == "PIX"


def test_no_driver_is_no_gpu_and_the_cores_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(cards(2), driver=False))
    assert find_gpus() == ()
    assert {device.kind for device in find_devices()} == {"cpu"}
    assert read_topology(find_devices()).summary() == []
    monkeypatch.setitem(sys.modules, "pynvml", None)  # not installed
    assert find_gpus() == ()


def test_the_installed_module_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = FakeNvml(cards(2), pairs(2, 10))
    monkeypatch.setitem(sys.modules, "pynvml", machine)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert find_gpus() == (Device("cuda", 0, "NVIDIA RTX PRO 6000", 96 * GIB, "1"),)
    assert machine.open == 0
