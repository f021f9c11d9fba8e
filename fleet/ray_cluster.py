"""A Ray cluster as a place for workers: its nodes, their devices, and the launcher that a pool takes.

Ray finds the nodes, starts one relay actor a worker on the node of its device, and tells when one is gone; queue,
leases, restarts and worker code are those of one machine. Ray is imported here alone, when a cluster is asked for.
Ray counts GPUs and does not say which of a node's is whose: name all of a node's, or share it with no other job.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import pickle
import re
import secrets
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fleet import ray_remote
from fleet.devices import Device, DeviceError
from fleet.messages import FromWorker, Start
from fleet.process import import_paths
from fleet.ray_nodes import Node, find_again, join_topologies, living_nodes, name_nodes, offered
from fleet.ray_worker import RayWorker
from fleet.topology import Topology

if TYPE_CHECKING:
    from fleet.crew import Worker

logger = logging.getLogger(__name__)

CONNECT_S = 5.0
HEALTH_S = 15.0
ASK_S = 60.0
RELAY_THREADS = 8
CLIENT_PORT = 10001

_ADDRESS = re.compile(r"^(?:auto|(ray://)?([^\s/:]+|\[[0-9a-fA-F:]+\])(?::(\d+))?)$")


class RayCluster:
    """A connected cluster. `devices` are those of all its nodes: the GPUs, or the cores where there is none.

    Raises:
        DeviceError: no Ray here, nothing answers at the address, or a node cannot run draftmill's workers.
    """

    def __init__(self, address: str) -> None:
        self._ray = _connect(address)
        self._nodes = name_nodes(living_nodes(self._ray.nodes()))
        self._topologies: dict[str, Topology] = {}
        self._relay_class = self._ray.remote(ray_remote.Relay)
        self.devices = self._find_devices()

    def launch(
        self,
        number: int,
        device: Device,
        *,
        start: Start,
        log_path: Path,
        on_message: Callable[[Worker, FromWorker], None],
        on_death: Callable[[Worker, str], None],
    ) -> RayWorker:
        """Start a worker on the node of its device (`crew.Launch`)."""
        return RayWorker(
            number,
            device,
            start=start,
            log_path=log_path,
            on_message=on_message,
            on_death=on_death,
            make_relay=self._make_relay,
            end_relay=self._end_relay,
            why_gone=self._why_gone,
        )

    def topology(self, devices: Sequence[Device]) -> Topology:
        """The links between these devices, as each node's driver tells them; none between nodes."""
        return join_topologies(devices, self._topologies)

    def check_shared_path(self, devices: Iterable[Device], path: Path, *, written: bool = False) -> None:
        """Check that the nodes of these devices see at this path what this machine sees.

        Args:
            written: workers write there: a file put there now must be seen by all.

        Raises:
            DeviceError: a node does not; names it and the path.
        """
        path = path.resolve()
        probe = path / f".shared-{secrets.token_hex(8)}" if written else path
        if written:
            probe.touch()
        try:
            here = ray_remote.look_at(str(probe))
            if not here:
                raise DeviceError(f"{path} is not there. Workers on a cluster need it at the same path on every node.")
            seen = self._ask(sorted({device.node for device in devices}), ray_remote.look_at, str(probe))
        finally:
            if written:
                probe.unlink()
        for name, there in seen.items():
            if there != here:
                what = "sees other files" if there and not written else "does not see what this machine has"
                raise DeviceError(
                    f"node {name} {what} at {path}. Workers on a cluster need a shared path: mount it there."
                )

    def close(self) -> None:
        """Leave the cluster; whatever still runs there for this process ends."""
        self._ray.shutdown()

    def _find_devices(self) -> tuple[Device, ...]:
        mine = _version()
        found: list[Device] = []
        for name, (told, error) in self._ask(list(self._nodes), ray_remote.ask_node, import_paths()).items():
            if error:
                raise DeviceError(
                    f"node {name} cannot run draftmill: {error}. Install the same draftmill there, in the Python "
                    "that Ray runs."
                )
            theirs, topology = json.loads(told)
            if theirs != mine:
                raise DeviceError(
                    f"node {name} has draftmill {theirs or 'of no version'} and this machine {mine}. "
                    "Install the same on both."
                )
            self._topologies[name] = pickle.loads(bytes.fromhex(topology))  # noqa: S301 - the same draftmill's
            found.extend(offered(name, self._nodes[name], self._topologies[name].devices))
        gpus = tuple(device for device in found if device.kind == "cuda")
        return gpus or tuple(found)

    def _ask(self, names: Sequence[str], question: Callable[..., Any], *arguments: object) -> dict[str, Any]:
        """The answers of nodes to a function that is sent to them.

        Raises:
            DeviceError: a node did not answer.
        """
        task = self._ray.remote(question)
        asked = {
            name: task.options(num_cpus=0, max_retries=0, scheduling_strategy=self._on(self._nodes[name])).remote(
                *arguments
            )
            for name in names
        }
        answers: dict[str, Any] = {}
        for name, reference in asked.items():
            try:
                answers[name] = self._ray.get(reference, timeout=ASK_S)
            except self._ray.exceptions.RayError as error:
                raise DeviceError(
                    f"node {name} did not answer: {_one_line(error)}. Look at `ray status`, or stop Ray on that node."
                ) from error
        return answers

    def _make_relay(self, device: Device) -> Any:
        node = find_again(device.node, self._nodes, living_nodes(self._ray.nodes()))
        if node is None:
            raise DeviceError(f"node {device.node} is gone")
        self._nodes[device.node] = node
        gpus = max(1, len(device.members)) if device.kind == "cuda" else 0
        options = self._relay_class.options(
            num_cpus=0 if gpus else 1,
            num_gpus=gpus,
            max_restarts=0,  # the crew restarts workers
            max_concurrency=RELAY_THREADS,
            scheduling_strategy=self._on(node),
        )
        return options.remote(import_paths(), str(Path.cwd()))

    def _end_relay(self, relay: Any) -> None:
        with contextlib.suppress(Exception):  # it is gone already, or Ray is
            self._ray.kill(relay, no_restart=True)

    def _why_gone(self, device: Device, error: Exception) -> str:
        if isinstance(error, DeviceError):
            return str(error)
        died = isinstance(error, self._ray.exceptions.RayActorError)
        with contextlib.suppress(Exception):
            living = {node.node_id for node in living_nodes(self._ray.nodes())}
            if died and self._nodes[device.node].node_id not in living:
                return f"node {device.node} is gone"
        return f"its Ray actor ended: {_one_line(error)}"

    def _on(self, node: Node) -> Any:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        return NodeAffinitySchedulingStrategy(node.node_id, soft=False)


def _connect(address: str) -> Any:
    match = _ADDRESS.match(address.strip())
    if match is None or (match[2] is not None and match[3] is None and not match[1]):
        raise DeviceError(f"--ray: {address!r} is no address of a cluster. Write host:port, ray://host:port, or auto.")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # Ray warns where it is not said
    try:
        import ray
    except ImportError as error:
        raise DeviceError("--ray: Ray is not installed. Run: pip install 'draftmill[ray]'") from error
    if not ray.is_initialized():
        _check_answers(address.strip(), match[1], match[2], match[3])
        try:
            ray.init(address=address.strip(), log_to_driver=False, logging_level=logging.WARNING)
        except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
            raise DeviceError(f"--ray: {address} cannot be joined: {_one_line(error)}") from error
    _keep_stdout_clean()
    # by value: a node without draftmill can then say so
    ray.cloudpickle.register_pickle_by_value(ray_remote)
    return ray


def _check_answers(address: str, scheme: str | None, host: str | None, port: str | None) -> None:
    """Ask before Ray does: Ray tries a dead address for minutes."""
    advice = "Look at `ray status` on its head node, and at firewalls between."
    if host is not None:
        try:
            socket.create_connection((host.strip("[]"), int(port or CLIENT_PORT)), CONNECT_S).close()
        except OSError as error:
            raise DeviceError(f"--ray: nothing answers at {address} ({error}). {advice}") from error
    if scheme:
        return
    command = [sys.executable, "-m", "ray.scripts.scripts", "health-check"]
    command += [] if host is None else ["--address", address]
    try:
        healthy = subprocess.run(command, capture_output=True, timeout=HEALTH_S, check=False).returncode == 0
    except subprocess.TimeoutExpired:
        healthy = False
    if not healthy:
        where = (
            "no running cluster is known on this machine" if host is None else f"no Ray cluster answers at {address}"
        )
        raise DeviceError(f"--ray: {where}. {advice}")


def _keep_stdout_clean() -> None:
    """Ray prints what raylets report to stdout, where data goes; it has no switch for that."""
    import ray._private.worker as internals

    def log(data: Mapping[str, Any], **_: object) -> None:
        for text in data["lines"]:
            logger.warning("ray: %s", str(text).partition(" Last 20 lines")[0].strip())

    if hasattr(internals, "print_to_stdstream"):
        internals.print_to_stdstream = log


def _version() -> str:
    try:
        return version("draftmill")
    except PackageNotFoundError:
        return ""


def _one_line(error: BaseException, limit: int = 300) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= limit else f"{text[:limit]}…"
