"""How many threads a training worker gets on a CPU: what is said, else as many as there are cores that are idle now.

OMP_NUM_THREADS says it, as for every program with OpenMP. Without it the physical cores that this process may use are
counted (two threads of one core share its arithmetic), no more than a container's quota, and those that are busy with
something else at the start are left to it: a pool of threads runs as slowly as the one that has to wait for its core.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from corpus.columns import counted

LOOK_S = 0.25
"""How long cores are looked at: 25 ticks of the kernel's clock."""
BUSY = 0.5
QUOTA = Path("/sys/fs/cgroup/cpu.max")
STAT = Path("/proc/stat")
TOPOLOGY = Path("/sys/devices/system/cpu")


@dataclass(frozen=True)
class Threads:
    """How many, and why."""

    count: int
    why: str

    def sentence(self) -> str:
        """For a person."""
        return f"{counted(self.count, 'thread')} on the CPU ({self.why})"


def choose_threads(environment: Mapping[str, str] | None = None) -> Threads:
    """The threads for one worker that has this machine to itself; looks at the cores for a moment."""
    said = (os.environ if environment is None else environment).get("OMP_NUM_THREADS", "").split(",")[0].strip()
    if said.isdecimal() and int(said) > 0:
        return Threads(int(said), "OMP_NUM_THREADS")
    allowed = os.sched_getaffinity(0)
    before = core_times(allowed)
    time.sleep(LOOK_S)
    return idle_cores(sharers(allowed), busy_shares(before, core_times(allowed)), quota())


def idle_cores(cores: Collection[frozenset[int]], busy: Mapping[int, float], limit: float = math.inf) -> Threads:
    """A thread for every idle core.

    Args:
        cores: the logical CPUs of each physical core.
        busy: share of its time by logical CPU; those that are not named are idle.
        limit: CPUs' worth of time that the process may use.
    """
    idle = sum(max(busy.get(cpu, 0.0) for cpu in core) < BUSY for core in cores)
    of = counted(len(cores), "core")
    most = max(1, math.floor(limit)) if math.isfinite(limit) else len(cores)
    if most < idle:
        return Threads(most, f"of {of}, as many as the quota allows")
    if idle == len(cores):
        return Threads(max(1, idle), f"of {of}; OMP_NUM_THREADS sets another number")
    return Threads(max(1, idle), f"of {of}, {len(cores) - idle} busy; OMP_NUM_THREADS sets another number")


def busy_shares(
    before: Mapping[int, tuple[float, float]], after: Mapping[int, tuple[float, float]]
) -> dict[int, float]:
    """By logical CPU, of (busy, all) ticks until two moments."""
    shares = {}
    for cpu in before.keys() & after.keys():
        busy, total = (b - a for a, b in zip(before[cpu], after[cpu], strict=True))
        shares[cpu] = busy / total if total > 0 else 0.0
    return shares


def core_times(allowed: Collection[int]) -> dict[int, tuple[float, float]]:
    """(busy, all) ticks since the start by logical CPU; empty where the system does not tell."""
    found = {}
    try:
        lines = STAT.read_text(encoding="ascii").splitlines()
    except OSError:
        return {}
    for name, *ticks in (line.split() for line in lines if line.startswith("cpu")):
        cpu = name.removeprefix("cpu")
        if cpu.isdecimal() and int(cpu) in allowed and len(ticks) >= 5:
            numbers = [float(tick) for tick in ticks[:8]]  # what follows is counted in user time too
            found[int(cpu)] = (sum(numbers) - numbers[3] - numbers[4], sum(numbers))  # less idle and waiting for disks
    return found


def sharers(allowed: Collection[int]) -> set[frozenset[int]]:
    """Logical CPUs by physical core, of those that may be used; each for itself where the system does not tell."""
    cores: dict[tuple[str, str], set[int]] = {}
    for cpu in allowed:
        try:
            at = TOPOLOGY / f"cpu{cpu}" / "topology"
            key = ((at / "physical_package_id").read_text().strip(), (at / "core_id").read_text().strip())
        except OSError:
            key = ("cpu", str(cpu))
        cores.setdefault(key, set()).add(cpu)
    return {frozenset(core) for core in cores.values()}


def quota() -> float:
    """CPUs' worth of time that a container may use; infinite where nothing limits it."""
    try:
        most, period = QUOTA.read_text(encoding="ascii").split()
        return math.inf if most == "max" else int(most) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return math.inf
