"""What a question may take of the machine: memory, and where DuckDB puts what does not fit there.

DuckDB's own choice is a folder beside the file that is open, which would be the workspace: whoever only looks writes
nothing there. A folder of the system's temporary ones is named instead; DuckDB makes it when it first spills, and it
goes with the process, or sooner with whoever named it.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

GB = 10**9
MOST_MEMORY_BYTES = 4 * GB
MOST_SPILL_BYTES = 10 * GB
CGROUP_MEMORY = Path("/sys/fs/cgroup/memory.max")


@dataclass(frozen=True)
class Limits:
    """Of one question."""

    folder: Path
    """Where it spills; need not exist."""
    memory_bytes: int
    spill_bytes: int


def modest_limits(folder: Path) -> Limits:
    """For questions beside a run, which needs the rest: a quarter of the memory, half of the free disk, and no more."""
    return Limits(folder, min(MOST_MEMORY_BYTES, memory_bytes() // 4), min(MOST_SPILL_BYTES, _free_bytes(folder) // 2))


def memory_bytes() -> int:
    """What this process may have: the machine's, or its container's where that is less."""
    whole = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        return min(whole, int(CGROUP_MEMORY.read_text()))
    except (OSError, ValueError):  # no container, or one without a limit: max
        return whole


def _free_bytes(folder: Path) -> int:
    there = next((one for one in (folder, *folder.parents) if one.exists()), Path("/"))
    return shutil.disk_usage(there).free


@cache
def process_folder() -> Path:
    """The folder of this process; removed when it ends."""
    # not made here: most questions never spill
    name = Path(tempfile.gettempdir()) / f"draftmill-spill-{os.getpid()}-{os.urandom(4).hex()}"
    atexit.register(shutil.rmtree, name, ignore_errors=True)
    return name
