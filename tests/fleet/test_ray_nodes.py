"""Nodes are told apart by name, found again after a restart, and offer what Ray was told that they have."""

from __future__ import annotations

from fleet.devices import Device, gpus_in, group_of, kind_of
from fleet.ray_nodes import Node, find_again, join_topologies, name_nodes, offered
from fleet.topology import Link, Topology


def test_nodes_are_named_apart() -> None:
    a = Node("11111111aa", "alpha", "10.0.0.1", 8, 64)
    b = Node("22222222aa", "beta", "10.0.0.2", 8, 64)
    twin = Node("33333333aa", "beta", "10.0.0.3", 8, 64)
    same = Node("44444444aa", "beta", "10.0.0.3", 8, 64)
    assert name_nodes([b, a]) == {"alpha": a, "beta": b}
    assert name_nodes([a, b, twin]) == {"alpha": a, "10.0.0.2": b, "10.0.0.3": twin}
    assert name_nodes([b, twin, same]) == {"10.0.0.2": b, "beta-33333333": twin, "beta-44444444": same}


def test_a_node_that_came_up_anew_is_found_again() -> None:
    a = Node("1", "alpha", "10.0.0.1", 8, 64)
    b = Node("2", "beta", "10.0.0.2", 8, 64)
    anew = Node("3", "alpha", "10.0.0.1", 8, 64)
    known = {"alpha": a, "beta": b}
    assert find_again("alpha", known, [a, b]) == a
    assert find_again("alpha", known, [b, anew]) == anew
    assert find_again("alpha", known, [b]) is None


def test_a_node_offers_what_ray_was_told_that_it_has() -> None:
    devices = [Device("cuda", index) for index in range(8)]
    assert [d.label for d in offered("a", Node("1", "a", "", 2, 64), devices)] == ["a/cuda:0", "a/cuda:1"]
    assert offered("a", Node("1", "a", "", 0, 64), devices) == []
    assert [d.label for d in offered("a", Node("1", "a", "", 0, 1), [Device("cpu", 4), Device("cpu", 5)])] == [
        "a/cpu:4"
    ]


def test_links_are_those_inside_each_node() -> None:
    plain = [Device("cuda", index) for index in range(2)]
    nodes = {"a": Topology.of(plain, lambda a, b: Link("NV", 4)), "b": Topology.of(plain, lambda a, b: Link("PHB"))}
    devices = [Device("cuda", index, node=node) for node in ("a", "b") for index in (1, 0)]
    joined = join_topologies(devices, nodes)
    assert joined.devices == tuple(devices)
    assert [str(link) for link in joined.links[0]] == ["none", "NV4", "none", "none"]
    assert [str(link) for link in joined.links[3]] == ["none", "none", "PHB", "none"]
    assert joined.islands() == ((0, 1), (2,), (3,))
    assert joined.islands(force=True) == ((0, 1), (2, 3))


def test_a_label_tells_kind_and_size_on_any_node() -> None:
    for node in ("", "cpu-7", "alpha"):
        core, gpu = Device("cpu", 3, node=node), Device("cuda", 0, node=node)
        pair = group_of([gpu, Device("cuda", 1, node=node)])
        assert [kind_of(device.label) for device in (core, gpu, pair)] == ["cpu", "cuda", "cuda"]
        assert [gpus_in(device.label) for device in (core, gpu, pair)] == [1, 1, 2]
        assert pair.node == node
