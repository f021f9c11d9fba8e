"""Topologies: tables are read, and groups follow the links: disjoint, over NVLink, as many as there can be."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.devices import GIB, Device, DeviceError
from fleet.grouping import groups_for, smallest_group
from fleet.topology import Link, Topology, parse_topology
from tests.fleet import tables

SLICES = tuple(Device("cuda", at, "A100 MIG 1g.10gb", 10 * GIB, f"MIG-{at}") for at in range(7))
kinds = st.sampled_from([Link("NV", 4), Link("NV", 18), Link("PIX"), Link("NODE"), Link("SYS"), Link("?")])


@st.composite
def topologies(draw: st.DrawFn, most: int = 8) -> Topology:
    """Up to `most` devices, some of them slices, any link between any two."""
    count = draw(st.integers(0, most))
    memory = [draw(st.sampled_from([0, 24, 48, 96])) * GIB for _ in range(count)]
    sliced = [draw(st.integers(0, 9)) == 0 for _ in range(count)]
    devices = [Device("cuda", at, "", memory[at], f"MIG-{at}" if sliced[at] else None) for at in range(count)]
    drawn = {pair: draw(kinds) for pair in combinations(range(count), 2)}
    return Topology.of(devices, lambda a, b: drawn[a, b])


def labels(topology: Topology, size: int, force: bool = False) -> list[str]:
    return [group.label for group in groups_for(topology, size, force).groups]


# tables


def test_eight_pcie_cards_without_nvlink() -> None:
    topology = parse_topology(tables.PCIE_8, "NVIDIA RTX PRO 6000", 96 * GIB)
    assert [str(link) for link in topology.links[0]] == ["none", "PIX", "PXB", "PXB", "SYS", "SYS", "SYS", "SYS"]
    assert str(topology.links[4][6]) == "NODE"
    assert topology.summary() == ["8 GPUs, PCIe only: one engine a GPU; tensor parallelism would wait on PCIe"]
    assert labels(topology, 1) == [f"cuda:{at}" for at in range(8)]
    with pytest.raises(DeviceError, match=r"8 engines, one a GPU, share the prompts.*--force-tensor-parallel"):
        groups_for(topology, 2)
    forced = groups_for(topology, 2, force=True)
    assert [group.label for group in forced.groups] == ["cuda:0+1", "cuda:2+3", "cuda:4+5", "cuda:6+7"]  # the PIX pairs
    assert "over PCIe (PIX)" in forced.notes[0]
    assert "well under 2 times" in forced.notes[0]
    assert labels(topology, 4, force=True) == ["cuda:0+1+2+3", "cuda:4+5+6+7"]  # no group spans the sockets


@pytest.mark.parametrize(("table", "lanes"), [(tables.NVSWITCH_8, 18), (tables.NVSWITCH_8_A100, 12)])
def test_eight_cards_on_nvswitches_group_in_any_size(table: str, lanes: int) -> None:
    topology = parse_topology(table)
    assert topology.summary() == [f"8 GPUs, NVLink between all (NV{lanes}): tensor parallelism is possible"]
    assert labels(topology, 8) == ["cuda:0+1+2+3+4+5+6+7"]
    assert labels(topology, 4) == ["cuda:0+1+2+3", "cuda:4+5+6+7"]
    assert len(labels(topology, 2)) == 4
    assert groups_for(topology, 2).notes == ()


def test_bridged_pairs_are_groups_of_two_and_no_more() -> None:
    topology = parse_topology(tables.PAIRS_8)
    assert labels(topology, 2) == ["cuda:0+1", "cuda:2+3", "cuda:4+5", "cuda:6+7"]
    assert topology.summary()[1:] == [f"  cuda:{at}+{at + 1} (NV4)" for at in (0, 2, 4, 6)]
    with pytest.raises(DeviceError, match=r"no 4 of .* have NVLink between every two"):
        groups_for(topology, 4)
    assert labels(topology, 4, force=True) == ["cuda:0+1+2+3", "cuda:4+5+6+7"]


def test_a_mesh_is_grouped_where_every_two_are_linked_and_the_wider_links_first() -> None:
    topology = parse_topology(tables.CUBE_8)
    assert labels(topology, 4) == ["cuda:0+1+2+3", "cuda:4+5+6+7"]
    assert {str(topology.slowest(pair)) for pair in ((0, 3), (1, 2), (4, 7), (5, 6))} == {"NV2"}
    widest = groups_for(topology, 2)
    assert {group.label for group in widest.groups} in (
        {"cuda:0+3", "cuda:1+2", "cuda:4+7", "cuda:5+6"},
        {"cuda:0+4", "cuda:1+5", "cuda:2+3", "cuda:6+7"},
    )
    with pytest.raises(DeviceError):
        groups_for(topology, 8)


def test_slices_are_never_grouped_even_forced() -> None:
    topology = tables.unlinked(SLICES)
    assert topology.summary() == ["7 MIG slices: one engine a slice; slices cannot be grouped"]
    assert groups_for(topology, 1).groups == SLICES
    for force in (False, True):
        with pytest.raises(DeviceError, match="MIG slices cannot be grouped, forced or not"):
            groups_for(topology, 2, force)


def test_one_card_and_none() -> None:
    one = parse_topology(tables.ONE)
    assert one.lines() == ["1 GPU: one engine"]
    with pytest.raises(DeviceError, match="only 1 of the chosen devices"):
        groups_for(one, 2, force=True)
    none = parse_topology(tables.NONE)
    assert (none.devices, none.lines()) == ((), [])


def test_cores_are_not_grouped() -> None:
    cores = tables.unlinked((Device("cpu", 0), Device("cpu", 1)))
    with pytest.raises(DeviceError, match="each core has its own engine"):
        groups_for(cores, 2, force=True)


def test_a_cut_table_says_which_row() -> None:
    cut = "\n".join(line for line in tables.PCIE_8.splitlines() if not line.startswith("GPU5"))
    with pytest.raises(DeviceError, match="the row of GPU5 is missing"):
        parse_topology(cut)
    with pytest.raises(DeviceError, match="the row of GPU0 is"):
        parse_topology(tables.PCIE_8.replace("PIX", "LASER"))


@pytest.mark.parametrize("table", [tables.PCIE_8, tables.NVSWITCH_8, tables.PAIRS_8, tables.CUBE_8])
def test_what_a_person_reads_fits_eighty_columns(table: str) -> None:
    lines = parse_topology(table).lines()
    assert all(len(line) <= 80 - 19 for line in lines[-9:])  # the matrix, beside doctor's mark and name
    assert all(len(line) <= 80 for line in lines)


# laws


@given(topologies(), st.sampled_from([2, 3, 4, 8]), st.booleans())
def test_groups_are_disjoint_whole_and_linked(topology: Topology, size: int, force: bool) -> None:
    try:
        grouping = groups_for(topology, size, force)
    except DeviceError as error:
        assert len(str(error).splitlines()) == 1
        possible = combinations(range(len(topology.devices)), size)
        assert not any(linked(topology, members, force) for members in possible)
        return
    members = [device for group in grouping.groups for device in group.members]
    assert sorted((*members, *grouping.left_over), key=topology.devices.index) == list(topology.devices)
    assert all(any(device.label in note for note in grouping.notes) for device in grouping.left_over[:1])
    for group in grouping.groups:
        assert len(group.members) == size
        assert linked(topology, [topology.devices.index(device) for device in group.members], force)


def linked(topology: Topology, members: object, force: bool) -> bool:
    return all(topology.may_group(a, b, force) for a, b in combinations(members, 2))  # type: ignore[call-overload]


@given(topologies(most=7), st.sampled_from([2, 3]))
def test_no_other_choice_covers_more(topology: Topology, size: int) -> None:
    def most(left: tuple[int, ...]) -> int:
        if len(left) < size:
            return 0
        tried = [most(left[1:])]
        for rest in combinations(left[1:], size - 1):
            if linked(topology, (left[0], *rest), False):
                tried.append(1 + most(tuple(at for at in left if at not in (left[0], *rest))))
        return max(tried)

    try:
        found = len(groups_for(topology, size).groups)
    except DeviceError:
        found = 0
    assert found == most(tuple(range(len(topology.devices))))


@given(st.integers(1, 24), st.sampled_from([2, 4, 8]))
def test_uniform_links_leave_less_than_a_group(count: int, size: int) -> None:
    topology = Topology.of([Device("cuda", at) for at in range(count)], lambda a, b: Link("NV", 18))
    if count < size:
        with pytest.raises(DeviceError):
            groups_for(topology, size)
    else:
        assert len(groups_for(topology, size).left_over) == count % size


def test_more_devices_than_are_searched_keep_their_bridges() -> None:
    topology = Topology.of(
        [Device("cuda", at) for at in range(16)],
        lambda a, b: Link("NV", 4) if abs(a - b) == 8 else Link("SYS"),
    )
    assert labels(topology, 2) == [f"cuda:{at}+{at + 8}" for at in range(8)]
    assert labels(topology, 2, force=True) == [f"cuda:{at}+{at + 8}" for at in range(8)]


@given(topologies(), st.integers(1, 400))
def test_the_smallest_group_holds_the_model_and_no_smaller_does(topology: Topology, gib: int) -> None:
    def need(size: int) -> int:
        return gib * GIB // size

    def holds(device: Device, size: int) -> bool:
        return not device.memory_bytes or device.memory_bytes >= need(size)

    try:
        grouping = smallest_group(topology, need)
    except DeviceError as error:
        assert len(str(error).splitlines()) == 1
        assert not any(holds(device, 1) for device in topology.devices)
        return
    size = max(1, len(grouping.groups[0].members))
    used = [device for group in grouping.groups for device in group.members or (group,)]
    assert all(holds(device, size) for device in used)
    assert len(set(used) | set(grouping.left_over)) == len(used) + len(grouping.left_over) == len(topology.devices)
    if size > 1:
        assert not any(holds(device, 1) for device in topology.devices)
        assert "fits no" in grouping.notes[0]


def test_a_model_too_large_for_one_card_is_told_the_cost_over_pcie() -> None:
    topology = parse_topology(tables.PCIE_8, memory_bytes=96 * GIB)
    grouping = smallest_group(topology, lambda size: 150 * GIB // size, usable=0.92)
    assert [group.label for group in grouping.groups] == ["cuda:0+1", "cuda:2+3", "cuda:4+5", "cuda:6+7"]
    assert "fits no single GPU" in grouping.notes[0]
    assert "every layer waits for two all-reduces" in grouping.notes[1]
    assert "quantised target" in grouping.notes[1]
    one = smallest_group(topology, lambda size: 80 * GIB // size, usable=0.92)
    assert (len(one.groups), one.notes) == (8, ())
    with pytest.raises(DeviceError, match=r"93.8 GiB on each of 8, and the largest offers 88.3 GiB"):
        smallest_group(topology, lambda size: 750 * GIB // size, usable=0.92)
    with pytest.raises(DeviceError, match="MIG slices cannot be grouped"):
        smallest_group(tables.unlinked(SLICES), lambda size: 12 * GIB // size)


def test_a_group_over_nvlink_is_not_told_of_pcie() -> None:
    grouping = smallest_group(parse_topology(tables.NVSWITCH_8, memory_bytes=80 * GIB), lambda n: 150 * GIB // n, 0.92)
    assert len(grouping.groups) == 2  # 75 GiB on each of two are more than 73.6
    assert not any("PCIe" in note for note in grouping.notes)


def test_sizes_that_do_not_divide_the_model_are_passed_over() -> None:
    topology = parse_topology(tables.NVSWITCH_8, memory_bytes=96 * GIB)
    grouping = smallest_group(topology, lambda size: 150 * GIB // size, sizes=(1, 8))
    assert [len(group.members) for group in grouping.groups] == [8]


def test_cards_too_small_for_a_group_do_not_spoil_one() -> None:
    devices = [Device("cuda", at, "", (24 if at in (1, 2) else 96) * GIB) for at in range(4)]
    grouping = smallest_group(Topology.of(devices, lambda a, b: Link("NV", 4)), lambda size: 150 * GIB // size)
    assert [group.label for group in grouping.groups] == ["cuda:0+3"]
    assert grouping.left_over == (devices[1], devices[2])
    assert grouping.notes[-1] == "cuda:1, cuda:2: left over, too small for the model"


def test_a_smaller_card_among_larger_ones_is_left_over_and_named() -> None:
    devices = [Device("cuda", at, "", (24 if at == 2 else 96) * GIB) for at in range(4)]
    grouping = smallest_group(Topology.of(devices, lambda a, b: Link("PIX")), lambda size: 60 * GIB // size)
    assert [group.label for group in grouping.groups] == ["cuda:0", "cuda:1", "cuda:3"]
    assert grouping.left_over == (devices[2],)
    assert grouping.notes == ("cuda:2: left over, too small for the model",)
