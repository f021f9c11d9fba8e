"""Workers on a real Ray cluster of two nodes: a node that dies, or falls silent, loses nothing and doubles nothing."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
import pytest

from fleet import ray_cluster as module
from fleet import ray_remote
from fleet.devices import Device, DeviceError, choose_devices, find_cores
from fleet.pool import Done, Pool, PoolError
from fleet.ray_cluster import RayCluster
from tests.fleet.conftest import NODE
from tests.fleet.test_pool import HERE, both_ready, collect, config, run
from tests.processes import family, survivors


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(HERE))


def test_every_core_of_every_node_is_a_device_of_its_own(ray_cluster: RayCluster) -> None:
    cores = [device.index for device in find_cores()[: NODE["num_cpus"]]]
    labels = [device.label for device in ray_cluster.devices]
    assert len(set(labels)) == len(labels)
    assert Counter(device.index for device in ray_cluster.devices) == dict.fromkeys(cores, 2)
    chosen = choose_devices(f"{labels[-1]},{labels[0]}", ray_cluster.devices)
    assert [device.label for device in chosen] == [labels[-1], labels[0]]
    node = ray_cluster.devices[0].node
    of_node = choose_devices(f"{node}/cpu:{cores[0]}-{cores[-1]}", ray_cluster.devices)
    assert {device.node for device in of_node} == {node}


def test_a_node_killed_in_mid_run_loses_and_doubles_nothing(ray_nodes: Any, ray_cluster: RayCluster) -> None:
    doomed = ray_nodes.add_node(**NODE)
    cluster = RayCluster(ray_nodes.address)
    known = {device.node for device in ray_cluster.devices}
    lost = next(device for device in cluster.devices if device.node not in known)

    async def work() -> None:
        devices = [ray_cluster.devices[0], lost]
        async with Pool("fake_handler:create", config(child=True), devices, launch=cluster.launch) as pool:
            await both_ready(pool)
            for i in range(300):
                pool.submit(str(i), b"sleep 0.02")
            outcomes = [await pool.next_outcome() for _ in range(40)]
            pid = pool.workers()[lost]
            assert pid is not None
            processes = family(pid)
            ray_nodes.remove_node(doomed, allow_graceful=False)
            rest = await collect(pool)
            assert all(isinstance(outcome, Done) for outcome in (*outcomes, *rest.values()))
            ids = [outcome.item_id for outcome in outcomes if outcome is not None] + list(rest)
            assert sorted(ids, key=int) == [str(i) for i in range(300)]
            assert any(outcome.crashes == 1 for outcome in rest.values())
            assert not survivors(processes)

    run(work())


@pytest.mark.full
def test_a_node_that_falls_silent_and_comes_back_is_not_heard(
    ray_cluster: RayCluster, caplog: pytest.LogCaptureFixture
) -> None:
    first = ray_cluster.devices[0]
    devices = [first, next(d for d in ray_cluster.devices if d.node != first.node)]

    async def work() -> None:
        async with Pool(
            "fake_handler:create",
            config(),
            devices,
            heartbeat_timeout_s=2,
            worker_restarts=0,
            launch=ray_cluster.launch,
        ) as pool:
            await both_ready(pool)
            for i in range(8):
                pool.submit(str(i), b"sleep 0.5")
            pid = pool.workers()[first]
            assert pid is not None
            relay = psutil.Process(pid).parent()
            assert relay is not None
            relay.suspend()  # the worker goes on, and its results wait in a machine that nobody reaches
            found = await collect(pool)
            assert all(isinstance(outcome, Done) for outcome in found.values())
            assert {outcome.device for outcome in found.values()} == {devices[1]}
            relay.resume()
            assert not survivors([relay])
            assert len(found) == 8
            assert await pool.next_outcome() is None

    run(work())
    assert "killed, for it sent no beat in 2 s" in caplog.text


@pytest.mark.full
def test_a_killed_coordinator_leaves_no_orphan_on_any_node(ray_nodes: Any) -> None:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), *filter(None, sys.path)])}
    command = [sys.executable, str(HERE / "coordinator_script.py"), "hang", ray_nodes.address]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=env) as script:
        assert script.stdout is not None
        workers = json.loads(script.stdout.readline())
        everything = [process for pid in workers for process in family(pid)]
        assert len(everything) >= 6
        script.kill()
        assert not survivors(everything)


def test_what_a_worker_prints_is_brought_here(ray_cluster: RayCluster, tmp_path: Path) -> None:
    device = ray_cluster.devices[-1]

    async def work() -> None:
        with pytest.raises(PoolError, match=r"no worker started.*RuntimeError: no weights in /nowhere"):
            async with Pool(
                "fake_handler:create",
                config(fail="/nowhere"),
                [device],
                log_dir=tmp_path,
                launch=ray_cluster.launch,
            ):
                pass

    run(work())
    (log,) = tmp_path.iterdir()
    assert "loading weights" in log.read_text()
    assert log.name == f"worker-{device.label.replace('/', '-').replace(':', '-')}.log"


def test_a_gpu_is_counted_by_ray_and_bound_as_on_one_machine(ray_nodes: Any, ray_cluster: RayCluster) -> None:
    import ray

    node = next(name for name, node in ray_cluster._nodes.items() if node.gpus)
    pair = Device("cuda", 1, members=(Device("cuda", 1, visible="5"), Device("cuda", 0, visible="3")), node=node)

    async def work() -> None:
        async with Pool("fake_handler:create", config(), [pair], launch=ray_cluster.launch) as pool:
            while ray.available_resources().get("GPU", 0):  # its account follows a moment later
                await asyncio.sleep(0.1)
            for name in ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS"):
                pool.submit(name, f"env {name}".encode())
            found = await collect(pool)
        told = {name: outcome.payload.decode() for name, outcome in found.items() if isinstance(outcome, Done)}
        assert told == {"CUDA_VISIBLE_DEVICES": "5,3", "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "unset")}

    run(work())


def test_a_path_must_be_shared(ray_cluster: RayCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.json").write_text("{}")
    ray_cluster.check_shared_path(ray_cluster.devices, tmp_path)
    ray_cluster.check_shared_path(ray_cluster.devices, tmp_path, written=True)
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]
    with pytest.raises(DeviceError, match="nowhere is not there"):
        ray_cluster.check_shared_path(ray_cluster.devices, tmp_path / "nowhere")
    here = os.getpid()
    monkeypatch.setattr(ray_remote, "look_at", lambda path: "here" if os.getpid() == here else "")
    node = min(device.node for device in ray_cluster.devices)
    with pytest.raises(DeviceError, match=f"node {node} does not see what this machine has at {tmp_path}"):
        ray_cluster.check_shared_path(ray_cluster.devices, tmp_path)


def test_what_is_seen_at_a_path_follows_names_and_sizes(tmp_path: Path) -> None:
    assert ray_remote.look_at(str(tmp_path / "nothing")) == ""
    (tmp_path / "a").write_text("1")
    one = ray_remote.look_at(str(tmp_path))
    (tmp_path / "a").write_text("12")
    two = ray_remote.look_at(str(tmp_path))
    (tmp_path / "b").mkdir()
    assert len({one, two, ray_remote.look_at(str(tmp_path)), ""}) == 4


def test_a_node_without_draftmill_is_named(
    ray_nodes: Any, ray_cluster: RayCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = ray_cluster.devices[0].node
    monkeypatch.setattr(ray_remote, "_ASK", "import nowhere_at_all")
    with pytest.raises(DeviceError, match=rf"node {node} cannot run draftmill: ModuleNotFoundError.*nowhere_at_all"):
        RayCluster(ray_nodes.address)
    monkeypatch.setattr(ray_remote, "_ASK", 'print(\'["0.0.1", ""]\')')
    with pytest.raises(DeviceError, match=rf"node {node} has draftmill 0\.0\.1 and this machine"):
        RayCluster(ray_nodes.address)


@pytest.mark.parametrize("address", ["somewhere", "local", "host:port", "ray://", "host:1/x"])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(DeviceError, match=r"is no address of a cluster. Write host:port, ray://host:port, or auto"):
        module._connect(address)


def test_a_silent_address_is_one_line_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HEALTH_S", 2.0)
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port = listening.getsockname()[1]
        for scheme in ("", "ray://"):
            with pytest.raises(DeviceError, match=r"^--ray: nothing answers at .*127\.0\.0\.1.*ray status"):
                module._check_answers(f"{scheme}127.0.0.1:{port}", scheme, "127.0.0.1", str(port))
        listening.listen()
        with pytest.raises(DeviceError, match="no Ray cluster answers at"):
            module._check_answers(f"127.0.0.1:{port}", None, "127.0.0.1", str(port))


def test_without_the_extra_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(DeviceError, match=r"pip install 'draftmill\[ray\]'"):
        module._connect("auto")


def test_variables_that_ray_sets_are_the_nodes_own(ray_cluster: RayCluster) -> None:
    asked = ray_cluster._ask([ray_cluster.devices[0].node], ray_remote.node_environment)
    (environment,) = asked.values()
    for name in ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS"):
        assert environment.get(name) == os.environ.get(name)
    assert environment["PATH"] == os.environ["PATH"]
