"""What runs inside Ray on each node: the questions asked of it, and the relay beside a worker process.

Sent by value (`fleet.ray_cluster`), and imports of the top are the standard library's alone: a node that has no
draftmill can say so. A worker is the same process as on one machine (`fleet.process.Child`, `fleet.worker`); the
relay passes its bytes, its printed lines and its exit code, and its guard ends it when the relay is gone. Every
call may be repeated: what came is kept until it is acknowledged, what was sent is counted.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

POLL_S = 5.0
"""A relay with nothing to tell answers after this time."""
LINGER_S = 0.01
"""A relay that has something to tell waits this long for more: a call costs more than a message."""
BATCH_BYTES = 8 << 20
LOG_BYTES = 1 << 20

_OVERRIDDEN = ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS")

_ASK = """
import json, pickle, sys
from importlib.metadata import PackageNotFoundError, version
sys.path[:] = json.loads(sys.argv[1])
from fleet.devices import find_devices
from fleet.nvml import read_topology
try:
    known = version("draftmill")
except PackageNotFoundError:
    known = ""
print(json.dumps([known, pickle.dumps(read_topology(find_devices())).hex()]))
"""


class Told(NamedTuple):
    """What a relay answers: messages from number `first` on, printed bytes, and the exit code when all is told."""

    first: int
    messages: list[bytes]
    printed: bytes
    code: int | None


def ask_node(paths: Sequence[str]) -> tuple[str, str]:
    """What a worker process of this node would import and see.

    Returns:
        (JSON of [draftmill's version, pickled topology in hex], ""), or ("", the reason in one line).
    """
    command = [sys.executable, "-c", _ASK, json.dumps(worker_paths(paths))]
    done = subprocess.run(command, capture_output=True, text=True, env=node_environment(), check=False)
    if done.returncode:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        return "", lines[-1] if lines else f"exit code {done.returncode}"
    return done.stdout.strip().splitlines()[-1], ""


def look_at(path: str) -> str:
    """What is at a path: "" for nothing, else a digest of a file's size, or of the names and sizes in a folder."""
    place = Path(path)
    try:
        entries = sorted(place.iterdir()) if place.is_dir() else [place]
        seen = [(entry.name, 0 if entry.is_dir() else entry.stat().st_size) for entry in entries]
    except OSError:
        return ""
    return hashlib.sha256(json.dumps(seen).encode()).hexdigest()


def worker_paths(paths: Sequence[str]) -> list[str]:
    """Where a worker imports from: as this process but for what Ray put there, then the coordinator's own places."""
    import ray

    rays_own = str(Path(ray.__file__).parent) + os.sep
    mine = [entry or str(Path.cwd()) for entry in sys.path if not entry.startswith(rays_own)]
    return [*mine, *(path for path in paths if path not in mine and Path(path).exists())]


def node_environment() -> dict[str, str]:
    """This process's variables, but those that Ray sets in its workers as the node itself has them."""
    environment = dict(os.environ)
    raylet = Path(f"/proc/{os.getppid()}")
    try:
        if (raylet / "comm").read_text().strip() != "raylet":
            return environment
        pairs = [pair.partition(b"=") for pair in (raylet / "environ").read_bytes().split(b"\0")]
    except OSError:
        return environment
    nodes_own = {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}
    for name in _OVERRIDDEN:
        environment.pop(name, None)
        if name in nodes_own:
            environment[name] = nodes_own[name]
    return environment


class Relay:
    """One worker process on this node. Its methods run in threads, several at a time."""

    def __init__(self, paths: Sequence[str], folder: str) -> None:
        self._paths = worker_paths(paths)
        self._folder = Path(folder) if Path(folder).is_dir() else None
        self._changed = threading.Condition()
        self._messages: deque[bytes] = deque()
        self._first = 0
        self._taken = 0
        self._code: int | None = None
        self._child: Any = None
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - it has no name, so nothing is left of it

    def start(self, device: bytes) -> int:
        """Start the worker on a device (pickled); returns its process id."""
        sys.path.extend(path for path in self._paths if path not in sys.path)
        import pickle

        from fleet.process import Child

        with self._changed:
            if self._child is None:
                environment = node_environment()
                environment |= pickle.loads(device).env(environment)  # noqa: S301 - the coordinator's own
                self._child = Child(
                    environment, self._paths, self._folder, output=self._log, on_data=self._hear, on_exit=self._end
                )
            return int(self._child.pid)

    def send(self, first: int, batch: Sequence[bytes]) -> None:
        """Pass messages on; `first` is the number of the first, and those that came before are passed over."""
        with self._changed:
            for data in batch[max(0, self._taken - first) :]:
                self._child.send(data)
            self._taken = max(self._taken, first + len(batch))

    def receive(self, acknowledged: int, printed_bytes: int) -> Told:
        """What the worker sent and printed since; waits up to POLL_S while there is nothing.

        Args:
            acknowledged: number of the first message that the caller has not got.
            printed_bytes: how much it has of what the worker printed.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._first + len(self._messages) > acknowledged or self._ended, POLL_S)
        if not self._ended:
            time.sleep(LINGER_S)
        with self._changed:
            while self._first < acknowledged:
                self._messages.popleft()
                self._first += 1
            batch: list[bytes] = []
            size_bytes = 0
            for data in self._messages:
                size_bytes += len(data)
                if batch and size_bytes > BATCH_BYTES:
                    break
                batch.append(data)
            ended = self._ended and len(batch) == len(self._messages)
            printed = os.pread(self._log.fileno(), LOG_BYTES, printed_bytes)
            return Told(self._first, batch, printed, self._code if ended and len(printed) < LOG_BYTES else None)

    def kill(self) -> None:
        """Kill the worker; its exit is told as any other."""
        self._child.kill()

    @property
    def _ended(self) -> bool:
        return self._code is not None

    def _hear(self, data: bytes) -> None:
        with self._changed:
            self._messages.append(data)
            self._changed.notify_all()

    def _end(self, code: int) -> None:
        with self._changed:
            self._code = code
            self._changed.notify_all()
