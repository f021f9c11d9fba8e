"""The workers of a pool, one a device: started, watched, restarted, given up. Knows nothing of items.

A worker whose factory fails at its first start is given up; one that dies later, or falls silent, is started
again, up to `worker_restarts` times in a row without an item returned between. When the last is given up the
crew is over. How a worker is held is its launcher's: a local process, or a Ray actor on another machine. Reports
to its pool through `Listener`, always on the loop.
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
from fleet.process import file_name

logger = logging.getLogger(__name__)

MAX_BEAT_S = 5.0
STOP_GRACE_S = 15.0
MAX_BACKOFF_S = 30.0


class PoolError(Exception):
    """No worker is left, or none came up; the message is one line that quotes the last failure."""

    next_step = "run the same command to resume"
    """What a person does then, where a run can be gone on with."""


class StartError(PoolError):
    """No worker came up: what was wrong with the start is wrong with the next one too."""

    next_step = "mend that first: the same command would start it the same way"


class Worker(Protocol):
    """A worker as the coordinator holds it. None of its methods blocks."""

    @property
    def number(self) -> int:
        """Never used again for another worker."""

    @property
    def device(self) -> Device:
        """Where it runs."""

    @property
    def log_path(self) -> Path:
        """What it prints, on this machine."""

    @property
    def pid(self) -> int | None:
        """Process id on its machine; None while that is not known."""

    def send(self, message: ToWorker) -> None:
        """Queue a message; one that a dead worker cannot take is dropped."""

    def kill(self) -> None:
        """End it with all that it started; may be called again. Its death is told within seconds, reachable or not."""

    def last_lines(self, count: int = 3) -> str:
        """The last lines that it printed, joined."""


class Launch(Protocol):
    """Starts a worker. Callbacks come on the loop: every message in order, then the death in words, once."""

    def __call__(
        self,
        number: int,
        device: Device,
        *,
        start: Start,
        log_path: Path,
        on_message: Callable[[Worker, FromWorker], None],
        on_death: Callable[[Worker, str], None],
    ) -> Worker:
        """Start it; returns at once."""


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
    worker: Worker | None = None
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
        launch: Launch,
    ) -> None:
        self._factory = factory
        self._config_for = config_for
        self._rules = rules
        self._log_dir = log_dir
        self._listener = listener
        self._launch = launch
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
        """Living workers, ready or not."""
        return sum(slot.worker is not None for slot in self._slots)

    def pids(self) -> dict[Device, int | None]:
        """Process id by device; None where no worker runs now, or its id is not known yet."""
        return {slot.device: slot.worker.pid if slot.worker else None for slot in self._slots}

    def send(self, number: int, message: ToWorker) -> None:
        """Send to a worker; one that is no more misses it, and its death is on the way."""
        for slot in self._slots:
            if slot.worker is not None and slot.worker.number == number:
                slot.worker.send(message)

    async def stop(self, busy: set[int], grace_s: float) -> None:
        """End every worker: idle ones are asked, busy ones too if there is a grace, then they are killed."""
        self.resting = True
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        limits_s: dict[int, float] = {}
        for slot in self._slots:
            if slot.worker is not None:
                idle = slot.ready and slot.worker.number not in busy
                limits_s[slot.worker.number] = max(STOP_GRACE_S, grace_s) if idle else grace_s
                if slot.ready:
                    slot.worker.send(Stop())
        while self.running:
            for slot in self._slots:
                number = slot.worker.number if slot.worker else 0
                if slot.worker is not None and loop.time() - began_s >= limits_s.get(number, 0.0):
                    slot.worker.kill()
            await asyncio.sleep(0.02)
        for task in self._tasks:
            task.cancel()

    def _spawn(self, slot: Slot) -> None:
        self._numbers += 1
        slot.ready, slot.silent_s, slot.error = False, 0.0, ""
        beat_s = min(MAX_BEAT_S, self._rules.heartbeat_timeout_s / 8)
        slot.worker = self._launch(
            self._numbers,
            slot.device,
            start=Start(self._factory, self._config_for(slot.device), beat_s),
            log_path=self._log_dir / f"worker-{file_name(slot.device.label)}.log",
            on_message=lambda worker, message: self._guarded(self._heard, slot, worker, message),
            on_death=lambda worker, how: self._guarded(self._died, slot, worker, how),
        )

    def _guarded(self, callback: Callable[..., None], *arguments: object) -> None:
        """A bug in a callback ends the pool and reaches its consumer, instead of a log line."""
        try:
            callback(*arguments)
        except Exception as error:
            self._listener.over(error)

    def _heard(self, slot: Slot, worker: Worker, message: FromWorker) -> None:
        if slot.worker is None or slot.worker.number != worker.number:
            return  # counted as dead: its items are others' by now
        slot.silent_s = 0.0
        match message:
            case Beat():
                pass
            case Ready(capacity):
                slot.ready = slot.was_ready = True
                logger.info("worker %d on %s takes %d items", worker.number, slot.device.label, capacity)
                self._listener.joined(worker.number, capacity)
                self._start_rest()
            case StartFailed(error):
                slot.error = f"{error} (its log is {worker.log_path})"
            case Result() | ItemError() | Emitted():
                if not isinstance(message, Emitted):
                    slot.restarts = 0
                self._listener.heard(worker.number, slot.device, message)

    def _died(self, slot: Slot, worker: Worker, how: str) -> None:
        if slot.worker is None or slot.worker.number != worker.number:
            return
        was_ready, slot.worker, slot.ready = slot.ready, None, False
        printed = worker.last_lines()
        why = slot.error or (f"{how}; last printed: {printed}" if printed else how)
        if not self.resting:
            what = "died" if was_ready else "did not start"
            logger.warning("worker %d on %s %s: %s", worker.number, slot.device.label, what, why)
        if was_ready:
            self._listener.died(worker.number, slot.device, why)
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
        kind, what = (PoolError, "every worker is gone") if ran else (StartError, "no worker started")
        self._listener.over(kind(f"{what}; the last, on {slot.device.label}: {why}"))

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
                if slot.worker is not None and slot.silent_s > limit_s:
                    what = "sent no beat" if slot.ready else "did not come up"
                    slot.error, slot.silent_s = f"killed, for it {what} in {limit_s:g} s", 0.0
                    slot.worker.kill()

    def _background(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
