"""The workers of a pool, one a device: started, watched, restarted, given up. Knows nothing of items.

A worker whose factory fails at its first start is given up; one that dies later, or falls silent, is started
again, up to `worker_restarts` times in a row without an item returned between. When the last is given up the
crew is over. Reports to its pool through `Listener`, always on the loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from fleet.devices import Device
from fleet.messages import Beat, Emitted, FromWorker, ItemError, Ready, Result, Start, StartFailed, Stop, ToWorker
from fleet.process import WorkerProcess

logger = logging.getLogger(__name__)

MAX_BEAT_S = 5.0
STOP_GRACE_S = 15.0
MAX_BACKOFF_S = 30.0


class PoolError(Exception):
    """No worker is left, or none came up; the message is one line that quotes the last failure."""


class Listener(Protocol):
    """What a pool hears of its workers. `number` is never used again for another worker."""

    def joined(self, number: int, capacity: int) -> None:
        """A worker is ready."""

    def heard(self, number: int, device: Device, message: Result | ItemError | Emitted) -> None:
        """A worker returned an item, or said something of its own."""

    def died(self, number: int, device: Device, why: str) -> None:
        """A worker that was ready is no more."""

    def over(self, error: Exception) -> None:
        """Nothing more will come: every worker is given up, or there is a bug."""


@dataclass(frozen=True)
class Rules:
    """What a crew holds its workers to."""

    start_timeout_s: float
    heartbeat_timeout_s: float
    worker_restarts: int
    warm_first: bool


@dataclass
class Slot:
    """One device and the worker on it now."""

    device: Device
    process: WorkerProcess | None = None
    ready: bool = False
    was_ready: bool = False
    silent_s: float = 0.0
    restarts: int = 0
    gone: bool = False
    error: str = ""


class Crew:
    """Workers on devices."""

    def __init__(
        self,
        factory: str,
        config_for: Callable[[Device], bytes],
        devices: Sequence[Device],
        *,
        rules: Rules,
        log_dir: Path,
        listener: Listener,
    ) -> None:
        self._factory = factory
        self._config_for = config_for
        self._rules = rules
        self._log_dir = log_dir
        self._listener = listener
        self._slots = [Slot(device) for device in devices]
        self._numbers = 0
        self._held_back = self._slots[1:] if rules.warm_first else []
        self._tasks: set[asyncio.Task[None]] = set()
        self.resting = False
        """Set it, and no worker is restarted any more."""

    def start(self) -> None:
        """Start the workers, or the first of them."""
        self._background(self._monitor())
        for slot in self._slots[: len(self._slots) - len(self._held_back)]:
            self._spawn(slot)

    @property
    def ready(self) -> int:
        """Workers that take items."""
        return sum(slot.ready for slot in self._slots)

    @property
    def running(self) -> int:
        """Worker processes, ready or not."""
        return sum(slot.process is not None for slot in self._slots)

    def pids(self) -> dict[Device, int | None]:
        """Process id by device; None where no worker runs now."""
        return {slot.device: slot.process.pid if slot.process else None for slot in self._slots}

    def send(self, number: int, message: ToWorker) -> None:
        """Send to a worker; one that is no more misses it, and its death is on the way."""
        for slot in self._slots:
            if slot.process is not None and slot.process.number == number:
                slot.process.send(message)

    async def stop(self, busy: set[int], grace_s: float) -> None:
        """End every worker: idle ones are asked, busy ones too if there is a grace, then they are killed."""
        self.resting = True
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        limits_s: dict[int, float] = {}
        for slot in self._slots:
            if slot.process is not None:
                idle = slot.ready and slot.process.number not in busy
                limits_s[slot.process.number] = max(STOP_GRACE_S, grace_s) if idle else grace_s
                if slot.ready:
                    slot.process.send(Stop())
        while self.running:
            for slot in self._slots:
                number = slot.process.number if slot.process else 0
                if slot.process is not None and loop.time() - began_s >= limits_s.get(number, 0.0):
                    slot.process.kill()
            await asyncio.sleep(0.02)
        for task in self._tasks:
            task.cancel()

    def _spawn(self, slot: Slot) -> None:
        self._numbers += 1
        slot.ready, slot.silent_s, slot.error = False, 0.0, ""
        beat_s = min(MAX_BEAT_S, self._rules.heartbeat_timeout_s / 8)
        slot.process = WorkerProcess(
            self._numbers,
            slot.device,
            start=Start(self._factory, self._config_for(slot.device), beat_s),
            log_path=self._log_dir / f"worker-{slot.device.kind}-{slot.device.index}.log",
            on_message=lambda process, message: self._guarded(self._heard, slot, process, message),
            on_death=lambda process, code: self._guarded(self._died, slot, process, code),
        )

    def _guarded(self, callback: Callable[..., None], *arguments: object) -> None:
        """A bug in a callback ends the pool and reaches its consumer, instead of a log line."""
        try:
            callback(*arguments)
        except Exception as error:
            self._listener.over(error)

    def _heard(self, slot: Slot, process: WorkerProcess, message: FromWorker) -> None:
        slot.silent_s = 0.0
        match message:
            case Beat():
                pass
            case Ready(capacity):
                slot.ready = slot.was_ready = True
                logger.info("worker %d on %s takes %d items", process.number, slot.device.label, capacity)
                self._listener.joined(process.number, capacity)
                self._start_rest()
            case StartFailed(error):
                slot.error = f"{error} (its log is {process.log_path})"
            case Result() | ItemError() | Emitted():
                if not isinstance(message, Emitted):
                    slot.restarts = 0
                self._listener.heard(process.number, slot.device, message)

    def _died(self, slot: Slot, process: WorkerProcess, code: int) -> None:
        was_ready, slot.process, slot.ready = slot.ready, None, False
        why = slot.error or f"{_exit_words(code)}; last printed: {process.last_lines() or 'nothing'}"
        if not self.resting:
            what = "died" if was_ready else "did not start"
            logger.warning("worker %d on %s %s: %s", process.number, slot.device.label, what, why)
        if was_ready:
            self._listener.died(process.number, slot.device, why)
        if self.resting:
            return
        if slot.was_ready and slot.restarts < self._rules.worker_restarts:
            slot.restarts += 1
            self._background(self._restart(slot))
        else:
            self._give_up(slot, why)

    async def _restart(self, slot: Slot) -> None:
        await asyncio.sleep(0 if slot.restarts == 1 else min(2.0 ** (slot.restarts - 2), MAX_BACKOFF_S))
        if not self.resting:
            self._guarded(self._spawn, slot)

    def _give_up(self, slot: Slot, why: str) -> None:
        slot.gone = True
        self._start_rest()
        left = [other.device.label for other in self._slots if not other.gone]
        if left:
            logger.warning("%s is given up; left: %s", slot.device.label, ", ".join(left))
            return
        ran = any(other.was_ready for other in self._slots)
        what = "every worker is gone" if ran else "no worker started"
        self._listener.over(PoolError(f"{what}; the last, on {slot.device.label}: {why}"))

    def _start_rest(self) -> None:
        while self._held_back:
            self._spawn(self._held_back.pop(0))

    async def _monitor(self) -> None:
        """Kill the silent. Ticks are counted: time in which this loop itself stood still blames nobody."""
        rules = self._rules
        tick_s = min(1.0, rules.heartbeat_timeout_s / 8, rules.start_timeout_s / 8)
        while True:
            await asyncio.sleep(tick_s)
            for slot in self._slots:
                slot.silent_s += tick_s
                limit_s = rules.heartbeat_timeout_s if slot.ready else rules.start_timeout_s
                if slot.process is not None and slot.silent_s > limit_s:
                    what = "sent no beat" if slot.ready else "did not come up"
                    slot.error, slot.silent_s = f"killed, for it {what} in {limit_s:g} s", 0.0
                    slot.process.kill()

    def _background(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _exit_words(code: int) -> str:
    return f"killed by signal {-code}" if code < 0 else f"exit code {code}"
