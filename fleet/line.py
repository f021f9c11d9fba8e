"""A child's end of the pipe to its coordinator, and how the child ends.

SIGINT is left to the coordinator. When the coordinator is gone, or this process is, nothing of its process group
survives: whoever reads or writes the pipe notices, and a guard process watches both, since a native call that holds
the interpreter would keep them from it.
"""

from __future__ import annotations

import asyncio
import os
import select
import signal
import sys
import threading
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import NoReturn

from fleet.groups import kill_group

EXIT_BROKEN = 70
"""Exit code of a worker that found its own handler broken."""


class Line:
    """The pipe. Any thread may send, one reads."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._sending = threading.Lock()

    def send(self, data: bytes) -> None:
        """One message; ends the process group where nobody listens any more."""
        try:
            with self._sending:
                self._connection.send_bytes(data)
        except OSError:
            end_group()

    def received(self) -> Iterator[bytes]:
        """Messages as they come; ends the process group when the coordinator is gone."""
        while True:
            try:
                data = self._connection.recv_bytes()
            except (EOFError, OSError):
                end_group()
            yield data

    async def beat(self, data: bytes, beat_s: float) -> None:
        """Send the same message again and again."""
        while True:
            self.send(data)
            await asyncio.sleep(beat_s)


def open_line(connection_fd: int, coordinator_pid: int) -> Line:
    """The line over an open pipe; the first thing that a new process does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.set_inheritable(connection_fd, False)
    start_guard(coordinator_pid)
    return Line(Connection(connection_fd))


def leave(code: int) -> NoReturn:
    """End without waiting for threads: an engine's, or a long call's, must not keep the process."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def end_group() -> NoReturn:
    """End this process and everything that it started. The worker leads its own process group."""
    kill_group(os.getpgid(0))
    os._exit(EXIT_BROKEN)


def start_guard(coordinator_pid: int) -> None:
    """Fork a process that kills the group when the coordinator or this worker is gone.

    The reader sees a dead coordinator too, but not while a native call holds the interpreter; and nobody
    else would see a killed worker's children if the coordinator died with it. Must run before any thread.
    """
    watched = [os.pidfd_open(coordinator_pid), os.pidfd_open(os.getpid())]
    if os.getppid() != coordinator_pid:
        os._exit(EXIT_BROKEN)  # it died before it could be watched, and the number may be another's
    if os.fork():
        for pidfd in watched:
            os.close(pidfd)
        return
    try:
        os.dup2(watched[0], 3)  # the pipe is among what is closed: a guard must not hold it open
        os.dup2(watched[1], 4)
        os.closerange(5, os.sysconf("SC_OPEN_MAX"))
        select.select([3, 4], [], [])
        kill_group(os.getpgid(0))
    finally:
        os._exit(0)
