"""Killing a worker's process group to the last member, but for what cleans up after it.

Python's resource trackers are spared: they end by themselves when all who use them are dead, and unlink the
shared memory that the dead left in /dev/shm (an engine has hundreds of MB there). Reads /proc: Linux only.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

_TRACKER = b"multiprocessing.resource_tracker"
_ROUNDS = 50


def kill_group(group: int) -> None:
    """SIGKILL every process of the group but the caller and resource trackers, newly forked ones included."""
    for _ in range(_ROUNDS):
        doomed = [pid for pid in members(group) if pid != os.getpid() and not _is_tracker(pid)]
        if not doomed:
            return
        for pid in doomed:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def members(group: int) -> list[int]:
    """Process ids of a group, without those that are dead and not reaped yet."""
    found: list[int] = []
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        try:
            stat = Path(entry.path, "stat").read_bytes()
        except OSError:
            continue  # it ended meanwhile
        state, _, process_group = stat.rpartition(b")")[2].split()[:3]
        if int(process_group) == group and state not in (b"Z", b"X"):
            found.append(int(entry.name))
    return found


def _is_tracker(pid: int) -> bool:
    try:
        return _TRACKER in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
