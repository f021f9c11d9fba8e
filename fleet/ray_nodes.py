"""The nodes of a cluster as values: their names, what each offers, the links inside them. Pure.

A node's name is what people write before a device (alpha/cuda:0) and what the ledger shows, so it is the hostname
where that tells nodes apart, and as steady as the cluster allows.
"""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fleet.devices import Device
from fleet.topology import NO_LINK, Link, Topology


class Node(NamedTuple):
    """A living machine of the cluster, as Ray tells it."""

    node_id: str
    hostname: str
    ip: str
    gpus: int
    cores: int


def name_nodes(nodes: Sequence[Node]) -> dict[str, Node]:
    """Nodes by the name that devices carry: the hostname, or the address or id too where hosts share one."""
    hosts = Counter(node.hostname for node in nodes)
    addresses = Counter((node.hostname, node.ip) for node in nodes)
    names: dict[str, Node] = {}
    for node in sorted(nodes, key=lambda node: (node.hostname, node.ip, node.node_id)):
        name = node.hostname
        if hosts[name] > 1:
            once = addresses[node.hostname, node.ip] == 1
            name = node.ip if once else f"{name}-{node.node_id[:8]}"
        names[re.sub(r"[^A-Za-z0-9._-]", "-", name)] = node
    return names


def offered(name: str, node: Node, devices: Sequence[Device]) -> list[Device]:
    """A node's own devices as the cluster's: as many as Ray was told that the node has."""
    limit = {"cuda": node.gpus, "cpu": node.cores}
    counts: Counter[str] = Counter()
    kept: list[Device] = []
    for device in devices:
        counts[device.kind] += 1
        if counts[device.kind] <= limit[device.kind]:
            kept.append(dataclasses.replace(device, node=name))
    return kept


def join_topologies(devices: Sequence[Device], nodes: Mapping[str, Topology]) -> Topology:
    """Devices of several nodes, with the links inside each node."""

    def link(a: int, b: int) -> Link:
        one, other = devices[a], devices[b]
        if one.node != other.node:
            return NO_LINK
        topology = nodes[one.node]
        place = {(device.kind, device.index): at for at, device in enumerate(topology.devices)}
        return topology.links[place[one.kind, one.index]][place[other.kind, other.index]]

    return Topology.of(devices, link)


def find_again(name: str, known: Mapping[str, Node], living: Sequence[Node]) -> Node | None:
    """The node of this name as it is now: the same, or one that came up anew at the same address."""
    before = known[name]
    others = {node.node_id for other, node in known.items() if other != name}
    for node in living:
        if node.node_id == before.node_id:
            return node
    for node in living:
        if (node.hostname, node.ip) == (before.hostname, before.ip) and node.node_id not in others:
            return node
    return None


def living_nodes(told: Sequence[Mapping[str, Any]]) -> list[Node]:
    """The living among what `ray.nodes()` tells."""
    return [
        Node(
            node["NodeID"],
            node["NodeManagerHostname"],
            node["NodeManagerAddress"],
            int(node["Resources"].get("GPU", 0)),
            int(node["Resources"].get("CPU", 0)),
        )
        for node in told
        if node["Alive"]
    ]
