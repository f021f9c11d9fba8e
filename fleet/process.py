"""One worker process as the coordinator holds it: started, written to, read from, killed with its children.

Each has a reader, a writer and a waiter thread, which post to the coordinator's loop: nothing here blocks it,
a worker that does not read included. The process leads its own group, and the group is killed before the
leader is reaped, so no child of a dead worker survives and its number cannot have become another's. What a
worker prints goes to a file.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from multiprocessing import Pipe
from pathlib import Path

from fleet.devices import Device
from fleet.groups import kill_group
from fleet.messages import FromWorker, Start, ToWorker, decode_from_worker, encode

_BOOT = (
    "import json, sys; fd, pid, sys.path[:] = json.loads(sys.argv.pop()); from fleet.worker import main; main(fd, pid)"
)


class WorkerProcess:
    """A running worker. Callbacks come on the loop: every message in order, then the death, once."""

    def __init__(
        self,
        number: int,
        device: Device,
        *,
        start: Start,
        log_path: Path,
        on_message: Callable[[WorkerProcess, FromWorker], None],
        on_death: Callable[[WorkerProcess, int], None],
    ) -> None:
        self.number = number
        self.device = device
        self.log_path = log_path
        self._log_start = log_path.stat().st_size if log_path.exists() else 0
        self._on_message = on_message
        self._on_death = on_death
        self._loop = asyncio.get_running_loop()
        self._outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._ending = threading.Lock()
        self._reaped = False
        self._connection, theirs = Pipe()
        paths = [entry or str(Path.cwd()) for entry in sys.path]
        boot = json.dumps([theirs.fileno(), os.getpid(), paths])
        environment = {**os.environ, **device.env(), "PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1"}
        with log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _BOOT, boot],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        theirs.close()
        self._reader = threading.Thread(target=self._read, daemon=True, name=f"worker-{number}-reader")
        self._reader.start()
        for target, name in ((self._write, "writer"), (self._wait, "waiter")):
            threading.Thread(target=target, daemon=True, name=f"worker-{number}-{name}").start()
        self.send(start)

    @property
    def pid(self) -> int:
        """Process id, and id of the process group."""
        return self._process.pid

    def send(self, message: ToWorker) -> None:
        """Queue a message; one that a dead worker cannot take is dropped."""
        self._outbox.put(encode(message))

    def kill(self) -> None:
        """Kill the worker; its waiter and its guard then kill all that it started."""
        with self._ending:
            if not self._reaped:
                os.kill(self.pid, signal.SIGKILL)

    def last_lines(self, count: int = 3) -> str:
        """The last lines that this process printed, joined."""
        try:
            with self.log_path.open("rb") as log:
                size = log.seek(0, os.SEEK_END)
                log.seek(max(self._log_start, size - 8192))
                text = log.read().decode(errors="replace")
        except OSError:
            return ""
        return " | ".join([line.strip() for line in text.splitlines() if line.strip()][-count:])

    def _read(self) -> None:
        while True:
            try:
                data = self._connection.recv_bytes()
            except (EOFError, OSError):
                self.kill()  # without its pipe it is of no use
                return
            self._post(self._on_message, self, decode_from_worker(data))

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
        self._post(self._on_death, self, code)
        self._connection.close()

    def _post(self, callback: Callable[..., None], *arguments: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: the coordinator has left
            self._loop.call_soon_threadsafe(callback, *arguments)
