"""Processes that a test did not make itself, as it may look at them: any of them can be gone by the next line."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import psutil

LIMIT_S = 600.0
"""How long what must happen is waited for. It ends a test that hangs, and says nothing of speed."""


def family(pid: int) -> list[psutil.Process]:
    """A process and all that it started."""
    process = psutil.Process(pid)
    return [process, *process.children(recursive=True)]


def alive(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    """Those that still run; one that is dead and not reaped does not."""
    found = []
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def survivors(processes: Sequence[psutil.Process]) -> list[psutil.Process]:
    """Wait until they are gone; returns those that never are."""
    deadline_s = time.monotonic() + LIMIT_S
    while (left := alive(processes)) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    return left


def mapped(pids: Iterable[int]) -> set[str]:
    """What these processes, and none of another run, have in /dev/shm."""
    found = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
            found |= {line.partition("/dev/shm/")[2] for line in lines if "/dev/shm/" in line}
    return found
