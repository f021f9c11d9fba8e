"""One worker process as the coordinator holds it: started, written to, read from, killed with its children.

Each has a reader, a writer and a waiter thread: nothing here blocks the coordinator's loop, a worker that does
not read included. The process leads its own group, and the group is killed before the leader is reaped, so no
child of a dead worker survives and its number cannot have become another's. `Child` is the process and its
bytes, and knows no loop (it also runs inside a Ray actor, `fleet.ray_remote`); `WorkerProcess` is a local one.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import queue
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import Pipe
from pathlib import Path
from typing import IO

from fleet.devices import Device
from fleet.groups import kill_group
from fleet.messages import FromWorker, Start, ToWorker, decode_from_worker, encode

TAIL_BYTES = 32_768
IN_PASSING = re.compile(
    r"^(\(\S+ pid=\d+\) )?(DEBUG|INFO|WARNING) \d\d-\d\d \d\d:|^Triton is (not )?installed|"
    r"\b(Deprecation|Future|User|Runtime|Resource|Syntax)Warning: |^warnings\.warn\("
)
"""Lines that vLLM and others print of themselves below an error, and Python's warnings with their second line."""

_BOOT = (
    "import importlib, json, sys; fd, pid, entry, sys.path[:] = json.loads(sys.argv.pop()); "
    "importlib.import_module(entry).main(fd, pid)"
)


class Child:
    """A running worker as bytes. Callbacks come from its threads: all that it sent in order, then its exit, once.

    Args:
        environment: all of it; nothing of this process's own is added.
        paths: where it imports from.
        folder: where it starts; None is this process's own.
        output: takes what the worker prints.
        on_data: called with each message, encoded.
        on_exit: called with the exit code, negative for a signal.
        entry: the module whose `main(connection_fd, coordinator_pid)` the process runs.
        pass_fds: files that it has open too, under the same numbers.
    """

    def __init__(
        self,
        environment: Mapping[str, str],
        paths: Sequence[str],
        folder: Path | None = None,
        *,
        output: IO[bytes],
        on_data: Callable[[bytes], None],
        on_exit: Callable[[int], None],
        entry: str = "fleet.worker",
        pass_fds: Sequence[int] = (),
    ) -> None:
        self._on_data = on_data
        self._on_exit = on_exit
        self._outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._ending = threading.Lock()
        self._reaped = False
        self._connection, theirs = Pipe()
        boot = json.dumps([theirs.fileno(), os.getpid(), entry, list(paths)])
        self._process = subprocess.Popen(
            [sys.executable, "-c", _BOOT, boot],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env={**environment, "PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1"},
            pass_fds=[theirs.fileno(), *pass_fds],
            start_new_session=True,
        )
        theirs.close()
        self._reader = threading.Thread(target=self._read, daemon=True, name=f"worker-{self.pid}-reader")
        self._reader.start()
        for target, name in ((self._write, "writer"), (self._wait, "waiter")):
            threading.Thread(target=target, daemon=True, name=f"worker-{self.pid}-{name}").start()

    @property
    def pid(self) -> int:
        """Process id, and id of the process group."""
        return self._process.pid

    def send(self, data: bytes) -> None:
        """Queue an encoded message; one that a dead worker cannot take is dropped."""
        self._outbox.put(data)

    def kill(self) -> None:
        """Kill the worker; its waiter and its guard then kill all that it started."""
        with self._ending:
            if not self._reaped:
                os.kill(self.pid, signal.SIGKILL)

    def _read(self) -> None:
        while True:
            try:
                data = self._connection.recv_bytes()
            except (EOFError, OSError):
                self.kill()  # without its pipe it is of no use
                return
            self._on_data(data)

    def _write(self) -> None:
        while (data := self._outbox.get()) is not None:
            try:
                self._connection.send_bytes(data)
            except OSError:
                return

    def _wait(self) -> None:
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        kill_group(self.pid)
        with self._ending:
            code = self._process.wait()
            self._reaped = True
        self._outbox.put(None)
        self._reader.join()  # all that it sent comes before its death
        self._on_exit(code)
        self._connection.close()


class WorkerProcess:
    """A worker on this machine (`crew.Worker`). What it prints is appended to `log_path`."""

    def __init__(
        self,
        number: int,
        device: Device,
        *,
        start: Start,
        log_path: Path,
        on_message: Callable[[WorkerProcess, FromWorker], None],
        on_death: Callable[[WorkerProcess, str], None],
    ) -> None:
        self.number = number
        self.device = device
        self.log_path = log_path
        self._log_start = log_path.stat().st_size if log_path.exists() else 0
        self._on_message = on_message
        self._on_death = on_death
        self._loop = asyncio.get_running_loop()
        with log_path.open("ab") as log:
            self._child = Child(
                {**os.environ, **device.env()},
                import_paths(),
                output=log,
                on_data=lambda data: self._post(self._on_message, self, decode_from_worker(data)),
                on_exit=lambda code: self._post(self._on_death, self, exit_words(code)),
            )
        self.send(start)

    @property
    def pid(self) -> int:
        """Process id, and id of the process group."""
        return self._child.pid

    def send(self, message: ToWorker) -> None:
        """Queue a message; one that a dead worker cannot take is dropped."""
        self._child.send(encode(message))

    def kill(self) -> None:
        """Kill the worker with all that it started."""
        self._child.kill()

    def last_lines(self, count: int = 3) -> str:
        """The last lines that this process printed, joined."""
        return last_lines(self.log_path, self._log_start, count)

    def _post(self, callback: Callable[..., None], *arguments: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: the coordinator has left
            self._loop.call_soon_threadsafe(callback, *arguments)


def import_paths() -> list[str]:
    """Where this process imports from, for a process that starts elsewhere."""
    return [entry or str(Path.cwd()) for entry in sys.path]


def last_lines(log_path: Path, start_bytes: int, count: int = 3) -> str:
    """The last telling lines of a log, joined, from an offset on; empty if it cannot be read.

    What libraries print of themselves in passing (information, warnings) is no cause of a death, and is left out.
    """
    try:
        with log_path.open("rb") as log:
            size = log.seek(0, os.SEEK_END)
            log.seek(max(start_bytes, size - TAIL_BYTES))
            text = log.read().decode(errors="replace")
    except OSError:
        return ""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " | ".join([line for line in lines if not IN_PASSING.search(line)][-count:])


def file_name(label: str) -> str:
    """A worker's label without what a path or a shell reads otherwise: cpu:0 is cpu-0."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", label)


def exit_words(code: int) -> str:
    """An exit code for a person."""
    return f"killed by signal {-code}" if code < 0 else f"exit code {code}"
