"""What a worker says after its death was told is not heard: its items are others' by then."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from fleet.crew import StartError, Worker
from fleet.devices import Device
from fleet.messages import FromWorker, Item, Ready, Result, Start, ToWorker
from fleet.pool import Done, Pool, PoolError


class Unreachable:
    """The first worker takes an item and is counted as dead; then it answers, twice. The second one works."""

    first: Unreachable | None = None

    def __init__(
        self,
        number: int,
        device: Device,
        *,
        start: Start,
        log_path: Path,
        on_message: Callable[[Worker, FromWorker], None],
        on_death: Callable[[Worker, str], None],
    ) -> None:
        self.number, self.device, self.log_path, self.pid = number, device, log_path, None
        self.on_message, self.on_death = on_message, on_death
        self.loop = asyncio.get_running_loop()
        self.loop.call_soon(on_message, self, Ready(4))

    def send(self, message: ToWorker) -> None:
        if not isinstance(message, Item):
            self.kill()
        elif self.number == 1:
            Unreachable.first = self
            self.loop.call_soon(self.on_death, self, "its node is gone")
        else:
            first = Unreachable.first
            assert first is not None
            for late in (Result(message.item_id, b"late"), Result(message.item_id, b"later")):
                self.loop.call_soon(first.on_message, first, late)
            self.loop.call_soon(first.on_death, first, "it is gone again")
            self.loop.call_soon(self.on_message, self, Result(message.item_id, b"in time"))

    def kill(self) -> None:
        self.loop.call_soon(self.on_death, self, "killed")

    def last_lines(self, count: int = 3) -> str:
        return ""


def test_a_dead_workers_late_results_are_dropped() -> None:
    async def work() -> None:
        async with Pool("no:factory", lambda _: b"", [Device("cpu", 0)], launch=Unreachable) as pool:
            pool.submit("a", b"")
            outcome = await pool.next_outcome()
            assert isinstance(outcome, Done)
            assert (outcome.payload, outcome.worker_number, outcome.crashes) == (b"in time", 2, 1)
            await asyncio.sleep(0)
            assert await pool.next_outcome() is None

    asyncio.run(asyncio.wait_for(work(), 10))


class Killed(Unreachable):
    """Comes up `ups` times, prints nothing that tells, and is killed."""

    ups = 0

    def __init__(self, number: int, device: Device, **how: object) -> None:
        self.number, self.device, self.log_path, self.pid = number, device, Path(), None
        told: Callable[[Worker, FromWorker], None] = how["on_message"]  # type: ignore[assignment]
        died: Callable[[Worker, str], None] = how["on_death"]  # type: ignore[assignment]
        loop = asyncio.get_running_loop()
        if number <= self.ups:
            loop.call_soon(told, self, Ready(4))
        loop.call_soon(died, self, "killed by signal 9")


class KilledLater(Killed):
    ups = 1


@pytest.mark.parametrize(("launch", "at_start"), [(Killed, True), (KilledLater, False)])
def test_a_death_without_last_words_is_its_signal_alone_and_a_failed_start_is_told_apart(
    launch: type[Killed], at_start: bool
) -> None:
    async def work() -> None:
        with pytest.raises(PoolError, match=r"killed by signal 9$") as caught:
            async with Pool("no:factory", lambda _: b"", [Device("cpu", 0)], launch=launch, worker_restarts=0) as pool:
                pool.submit("a", b"")
                await pool.next_outcome()
        assert isinstance(caught.value, StartError) == at_start

    asyncio.run(asyncio.wait_for(work(), 10))
