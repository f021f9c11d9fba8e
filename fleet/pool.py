"""A pool of workers, one a device, that pull items from one ordered queue; local ones, or a launcher's.

`async with Pool(...)` starts a worker on each device and returns when the first is ready; the others join
when they are. A worker that dies or falls silent is restarted (`crew`) and its items go back to the front; who
is to blame is decided in `leases`. The pool knows devices and bytes, not what they mean, and keeps nothing on
disk but the workers' logs. One consumer reads the outcomes.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from fleet import leases
from fleet.crew import Crew, Launch, PoolError, Rules
from fleet.devices import Device
from fleet.messages import Emitted, Item, ItemError, Result
from fleet.process import WorkerProcess

__all__ = ["Done", "Drained", "Failed", "Pool", "PoolError"]


@dataclass(frozen=True)
class Done:
    """An item was handled."""

    item_id: str
    payload: bytes
    device: Device
    worker_number: int
    crashes: int = 0
    """Workers that died while they held it, before."""


@dataclass(frozen=True)
class Failed:
    """An item raised, or was alone on a worker that died and is set aside."""

    item_id: str
    error: str
    device: Device
    worker_number: int
    crashes: int = 0
    set_aside: bool = False


class Drained(NamedTuple):
    """What a drain left: items that no worker has, and items that were still in flight at its end."""

    never_started: list[str]
    in_flight: list[str]


class Pool:
    """Worker processes on devices, and the items that they work on.

    Args:
        factory: "module:function", see `fleet.worker`.
        config_for: the factory's configuration for a device.
        devices: one worker each.
        on_event: called on the loop with what a handler emits.
        on_death: called on the loop with the device of a worker that was ready and is no more.
        start_timeout_s: silence that a starting worker is allowed.
        item_crashes: deaths that an item may be in flight in before it is suspected.
        worker_restarts: restarts of one device in a row, without one item returned between.
        heartbeat_timeout_s: silence that a running worker is allowed.
        log_dir: where workers print, one file a device; None is a temporary folder.
        warm_first: start the other workers when the first is up: compile caches are shared, not raced for.
        launch: how a worker is started: as a process here, or by `RayCluster.launch` where its device is.
    """

    def __init__(
        self,
        factory: str,
        config_for: Callable[[Device], bytes],
        devices: Sequence[Device],
        *,
        on_event: Callable[[Device, bytes], None] | None = None,
        on_death: Callable[[Device], None] | None = None,
        start_timeout_s: float = 900.0,
        item_crashes: int = 2,
        worker_restarts: int = 5,
        heartbeat_timeout_s: float = 120.0,
        log_dir: Path | None = None,
        warm_first: bool = False,
        launch: Launch = WorkerProcess,
    ) -> None:
        if not devices:
            raise ValueError("a pool needs at least one device")
        self._temporary = tempfile.TemporaryDirectory(prefix="draftmill-workers-") if log_dir is None else None
        log_dir = Path(self._temporary.name) if self._temporary else log_dir
        assert log_dir is not None
        log_dir.mkdir(parents=True, exist_ok=True)
        rules = Rules(start_timeout_s, heartbeat_timeout_s, worker_restarts, warm_first)
        self._crew = Crew(factory, config_for, devices, rules=rules, log_dir=log_dir, listener=self, launch=launch)
        self._on_event, self._on_death = on_event, on_death
        self._state = leases.State(item_crashes=item_crashes)
        self._payloads: dict[str, bytes] = {}
        self._outcomes: deque[Done | Failed] = deque()
        self._changed = asyncio.Event()
        self._broken: Exception | None = None

    async def __aenter__(self) -> Pool:
        try:
            self._crew.start()
            while self._broken is None and not self._crew.ready:
                await self._change()
            if self._broken is not None:
                raise self._broken
        except BaseException:
            await self.stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    @property
    def pending(self) -> int:
        """Items submitted and not finished, and outcomes that nobody took yet."""
        return len(self._payloads) + len(self._outcomes)

    @property
    def in_flight(self) -> int:
        """Items on a worker."""
        return self._state.in_flight

    @property
    def finished(self) -> int:
        """Outcomes that nobody took yet."""
        return len(self._outcomes)

    async def changed(self) -> None:
        """Wait until an outcome is there, or nothing more can come.

        Raises:
            PoolError: every worker is gone for good.
        """
        while not self._outcomes:
            if self._broken is not None:
                raise self._broken
            await self._change()

    @property
    def idle(self) -> int:
        """Items more that living workers would take now."""
        return sum(worker.room for worker in self._state.workers.values())

    def workers(self) -> dict[Device, int | None]:
        """Process id by device; None where no worker runs now, or its id is not known yet."""
        return self._crew.pids()

    def submit(self, item_id: str, payload: bytes, weight: float = 0.0) -> None:
        """Queue an item: the highest weight is handed out first, equals in the order of arrival.

        While the pool drains, it is kept and reported as never started.

        Raises:
            ValueError: an item of this id is not finished.
        """
        if item_id in self._payloads:
            raise ValueError(f"item {item_id} was submitted twice; it is not finished yet")
        self._payloads[item_id] = payload
        self._react(leases.Submitted(item_id, weight))

    async def next_outcome(self) -> Done | Failed | None:
        """The next finished item; None when nothing more can come.

        Raises:
            PoolError: every worker is gone for good.
        """
        while not self._outcomes:
            if self._broken is not None:
                raise self._broken
            ended = self._crew.resting and not self._state.in_flight
            if not self._payloads or ended:
                return None
            await self._change()
        return self._outcomes.popleft()

    async def outcomes(self) -> AsyncIterator[Done | Failed]:
        """Items as they finish, while any is pending; more may be submitted meanwhile."""
        while (outcome := await self.next_outcome()) is not None:
            yield outcome

    async def drain(self, timeout_s: float) -> Drained:
        """Hand out nothing more and wait for what is in flight; its outcomes are still to be read."""
        self._crew.resting = True
        self._react(leases.Drain())
        self._changed.set()
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + timeout_s
        while self._state.in_flight and loop.time() < deadline_s:
            await asyncio.sleep(0.05)
        in_flight = [item for worker in self._state.workers.values() for item in worker.leases]
        return Drained(leases.waiting_ids(self._state), in_flight)

    async def stop(self, grace_s: float = 0.0) -> None:
        """End every worker. Idle ones are asked to close; busy ones too if `grace_s`, else they are killed.

        What busy ones send within `grace_s` can still be read with `next_outcome`.
        """
        self._react(leases.Drain())
        busy = {number for number, worker in self._state.workers.items() if worker.leases}
        await self._crew.stop(busy, grace_s)
        self._changed.set()
        if self._temporary is not None:
            self._temporary.cleanup()
            self._temporary = None

    # What the crew tells (`crew.Listener`).

    def joined(self, number: int, capacity: int) -> None:
        """A worker is ready."""
        self._react(leases.Joined(number, capacity))
        self._changed.set()

    def heard(self, number: int, device: Device, message: Result | ItemError | Emitted) -> None:
        """A worker returned an item, or said something of its own."""
        match message:
            case Emitted(event):
                if self._on_event is not None:
                    self._on_event(device, event)
            case Result(item_id, payload):
                self._put(Done(item_id, payload, device, number, self._finish(number, item_id)))
            case ItemError(item_id, error):
                self._put(Failed(item_id, error, device, number, self._finish(number, item_id)))

    def died(self, number: int, device: Device, why: str) -> None:
        """A worker that was ready is no more."""
        if self._on_death is not None and not self._crew.resting:
            self._on_death(device)
        for action in self._react(leases.Died(number)):
            if isinstance(action, leases.SetAside):
                del self._payloads[action.item_id]
                error = f"{action.crashes} workers died with it, the last with nothing else in flight: {why}"
                self._put(Failed(action.item_id, error, device, number, action.crashes, set_aside=True))
        self._changed.set()

    def over(self, error: Exception) -> None:
        """Nothing more will come."""
        self._broken = self._broken or error
        self._changed.set()

    def _finish(self, number: int, item_id: str) -> int:
        """Free the lease of an item that came back; returns how many workers had died with it."""
        crashes = self._state.crashes.get(item_id, 0)
        del self._payloads[item_id]
        self._react(leases.Returned(number, item_id))
        return crashes

    def _react(self, event: leases.Event) -> tuple[leases.Action, ...]:
        self._state, actions = leases.react(self._state, event)
        for action in actions:
            if isinstance(action, leases.Send):
                self._crew.send(action.worker, Item(action.item_id, self._payloads[action.item_id]))
        return actions

    def _put(self, outcome: Done | Failed) -> None:
        self._outcomes.append(outcome)
        self._changed.set()

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()
