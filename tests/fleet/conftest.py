"""Where workers run in these tests: this machine, and a real Ray cluster of two nodes on it, started once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from fleet import ray_cluster as module
from fleet.crew import Launch
from fleet.devices import Device
from fleet.process import WorkerProcess
from fleet.ray_cluster import RayCluster
from tests.processes import LIMIT_S

NODE = {"num_cpus": 2, "object_store_memory": 80 << 20}


@dataclass(frozen=True)
class Place:
    """Two devices, and how workers come to them."""

    devices: Sequence[Device]
    launch: Launch


@pytest.fixture(scope="session")
def ray_nodes() -> Iterator[Any]:
    """`ray.cluster_utils.Cluster` of two nodes; the second one says that it has two GPUs."""
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={**NODE, "include_dashboard": False})
    cluster.add_node(**NODE, num_gpus=2)
    yield cluster
    cluster.shutdown()


@pytest.fixture(scope="session")
def ray_cluster(ray_nodes: Any) -> Iterator[RayCluster]:
    """The same cluster as draftmill joins it."""
    with pytest.MonkeyPatch.context() as patience:
        for limit in ("HEALTH_S", "ASK_S"):
            patience.setattr(module, limit, LIMIT_S)
        cluster = RayCluster(ray_nodes.address)
        yield cluster
        cluster.close()


@pytest.fixture(params=["local", pytest.param("ray", marks=pytest.mark.full)])
def place(request: pytest.FixtureRequest) -> Place:
    """One device a node where there are nodes."""
    if request.param == "local":
        return Place([Device("cpu", 0), Device("cpu", 1)], WorkerProcess)
    cluster: RayCluster = request.getfixturevalue("ray_cluster")
    first = cluster.devices[0]
    return Place([first, next(d for d in cluster.devices if d.node != first.node)], cluster.launch)
