"""Engines that outlive the runs that use them, for benchmarks that compare runs: an engine takes a minute to start.

`KeptEngines` is a `fleet.crew.Launch`: the first pool that asks for a device starts its worker there, each later pool
is lent the same one. A pool that stops gives its workers back and believes that they ended. All that a run does is the
real thing (pool, leases, shards, ledger) but for the start and the end of its engines, which no rate should count.
All runs must be of one event loop, one at a time; a run that asks for another engine on a device gets another.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from fleet.crew import Worker
from fleet.devices import Device
from fleet.messages import Emitted, FromWorker, Ready, Result, Start, Stop, ToWorker
from fleet.process import WorkerProcess
from generation.messages import EngineReady, decode_event


class KeptEngines:
    """Worker processes by device."""

    def __init__(self, log_dir: Path) -> None:
        self._log_dir = log_dir
        self._kept: dict[tuple[str, bytes], _Kept] = {}

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
        """Lend the device's worker, started now if this is the first time.

        Raises:
            ValueError: it is lent already.
        """
        kept = self._kept.get((device.label, start.config))
        if kept is None:
            name = f"kept-{device.label}-{len(self._kept)}.log"
            kept = self._kept[device.label, start.config] = _Kept(device, start, self._log_dir / name)
        lent = _Lent(number, kept, on_message, on_death)
        kept.lend(lent)
        return lent

    async def up(self) -> None:
        """Wait for the workers that still start: a pool returns when its first is up, and may end before its last is.

        Raises:
            RuntimeError: one did not come up.
        """
        for kept in self._kept.values():
            await kept.settled.wait()
            if kept.ended.is_set():
                raise RuntimeError(f"{kept.device.label}: the engine did not come up; its log is {kept.log_path}")

    async def close(self) -> None:
        """Ask every worker to end, and wait until it has."""
        for kept in self._kept.values():
            kept.process.send(Stop())
        for kept in self._kept.values():
            try:
                await asyncio.wait_for(kept.ended.wait(), 30.0)
            except TimeoutError:
                kept.process.kill()
                await kept.ended.wait()


class _Kept:
    """A worker process, what it said when it came up, and who has it now."""

    def __init__(self, device: Device, start: Start, log_path: Path) -> None:
        self.device, self.start, self.log_path = device, start, log_path
        self.settled, self.ended = asyncio.Event(), asyncio.Event()
        self._introduction: list[FromWorker] = []
        self._lent: _Lent | None = None
        self.process = WorkerProcess(
            1, device, start=start, log_path=log_path, on_message=self._heard, on_death=self._died
        )

    def lend(self, lent: _Lent) -> None:
        """To one pool at a time; it hears what the worker said when it came up."""
        if self._lent is not None or self.ended.is_set():
            raise ValueError(f"{self.device.label}: the kept engine is {'lent already' if self._lent else 'gone'}")
        self._lent = lent
        for message in self._introduction:
            # later, as from a process: the pool holds the worker only when this call is over
            asyncio.get_running_loop().call_soon(lent.hear, message)

    def take_back(self) -> None:
        """The pool is through with it."""
        self._lent = None

    def _heard(self, _: WorkerProcess, message: FromWorker) -> None:
        if isinstance(message, Ready) or _is_introduction(message):
            self._introduction.append(message)
        if isinstance(message, Ready):
            self.settled.set()
        if self._lent is not None:
            self._lent.hear(message)
        elif isinstance(message, Result):
            raise RuntimeError(f"{self.device.label}: item {message.item_id} came back after its run had ended")

    def _died(self, _: WorkerProcess, how: str) -> None:
        self.ended.set()
        self.settled.set()
        if self._lent is not None:
            self._lent.end(how)


class _Lent:
    """A kept worker as one pool holds it."""

    def __init__(
        self,
        number: int,
        kept: _Kept,
        on_message: Callable[[Worker, FromWorker], None],
        on_death: Callable[[Worker, str], None],
    ) -> None:
        self.number, self._kept = number, kept
        self._on_message, self._on_death = on_message, on_death
        self._over = False

    @property
    def device(self) -> Device:
        return self._kept.device

    @property
    def log_path(self) -> Path:
        return self._kept.log_path

    @property
    def pid(self) -> int | None:
        return self._kept.process.pid

    def send(self, message: ToWorker) -> None:
        """To the process; but Stop only gives it back."""
        if not isinstance(message, Stop):
            self._kept.process.send(message)
        elif not self._over:
            asyncio.get_running_loop().call_soon(self.end, "given back")

    def kill(self) -> None:
        """A silent or busy worker ends for good; one that still starts when its pool ends is kept."""
        if self._kept.settled.is_set():
            self._kept.process.kill()
        elif not self._over:
            asyncio.get_running_loop().call_soon(self.end, "given back")

    def last_lines(self, count: int = 3) -> str:
        return self._kept.process.last_lines(count)

    def hear(self, message: FromWorker) -> None:
        """Pass it on, until the pool gave the worker back."""
        if not self._over:
            self._on_message(self, message)

    def end(self, how: str) -> None:
        """For this pool the worker is no more."""
        if not self._over:
            self._over = True
            self._kept.take_back()
            self._on_death(self, how)


def _is_introduction(message: FromWorker) -> bool:
    return isinstance(message, Emitted) and isinstance(decode_event(message.event), EngineReady)
