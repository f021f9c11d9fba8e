"""A worker behind a relay that is slow, unreachable for a while, or gone: told once, in order, and dead for good."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import pytest
from ray.exceptions import ActorUnavailableError

from fleet import ray_worker
from fleet.devices import Device
from fleet.messages import Emitted, FromWorker, Item, Start, Stop, decode_to_worker, encode
from fleet.ray_remote import Told
from fleet.ray_worker import RayWorker
from tests.processes import LIMIT_S

DEVICE = Device("cpu", 0, node="far")


class Method:
    """A method of an actor's handle."""

    def __init__(self, call: Callable[..., Coroutine[Any, Any, Any]]) -> None:
        self.remote = call


class FakeRelay:
    """Answers of `receive` come from a queue; an exception among them is raised."""

    def __init__(self) -> None:
        self.answers: asyncio.Queue[Told | Exception] = asyncio.Queue()
        self.asked: list[tuple[int, int]] = []
        self.sent: list[tuple[int, list[bytes]]] = []
        self.unreachable_sends = 0
        self.started = self.killed = self.ended = False
        self.start, self.send = Method(self._start), Method(self._send)
        self.receive, self.kill = Method(self._receive), Method(self._kill)

    async def _start(self, device: bytes) -> int:
        self.started = True
        return 77

    async def _send(self, first: int, batch: Sequence[bytes]) -> None:
        self.sent.append((first, list(batch)))
        if self.unreachable_sends:
            self.unreachable_sends -= 1
            raise ActorUnavailableError("lost on the way back", None)

    async def _receive(self, acknowledged: int, printed_bytes: int) -> Told:
        self.asked.append((acknowledged, printed_bytes))
        answer = await self.answers.get()
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def _kill(self) -> None:
        self.killed = True

    def end(self) -> None:
        self.ended = True


class Crew:
    """What the crew is told."""

    def __init__(self, log_path: Path, make_relay: Callable[[Device], FakeRelay]) -> None:
        self.heard: list[bytes] = []
        self.deaths: list[str] = []
        self.dead = asyncio.Event()
        self.worker = RayWorker(
            1,
            DEVICE,
            start=Start("a:b", b"", 1.0),
            log_path=log_path,
            on_message=self.hear,
            on_death=self.die,
            make_relay=make_relay,
            end_relay=FakeRelay.end,
            why_gone=lambda device, error: f"{device.label}: {error}",
        )

    def hear(self, worker: RayWorker, message: FromWorker) -> None:
        assert isinstance(message, Emitted)
        self.heard.append(message.event)

    def die(self, worker: RayWorker, how: str) -> None:
        self.deaths.append(how)
        self.dead.set()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_worker, "RETRY_S", 0.001)
    monkeypatch.setattr(ray_worker, "KILL_GRACE_S", 0.05)


def events(*names: bytes) -> list[bytes]:
    return [encode(Emitted(name)) for name in names]


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, LIMIT_S))


def test_an_answer_that_was_lost_is_asked_for_again(tmp_path: Path) -> None:
    async def work() -> None:
        relay = FakeRelay()
        told = Crew(tmp_path / "log", lambda device: relay)
        relay.answers.put_nowait(Told(0, events(b"a", b"b"), b"one\n", None))
        relay.answers.put_nowait(ActorUnavailableError("lost", None))
        relay.answers.put_nowait(Told(1, events(b"b", b"c"), b"two\n", None))  # b is there twice: it was heard
        relay.answers.put_nowait(Told(3, [], b"", -9))
        await told.dead.wait()
        assert told.heard == [b"a", b"b", b"c"]
        assert told.deaths == ["killed by signal 9"]
        assert relay.asked == [(0, 0), (2, 4), (2, 4), (3, 8)]
        assert (tmp_path / "log").read_bytes() == b"one\ntwo\n"
        assert told.worker.last_lines() == "one | two"
        assert told.worker.pid == 77

    run(work())


def test_what_may_not_have_arrived_is_sent_again_under_its_number(tmp_path: Path) -> None:
    async def work() -> None:
        relay = FakeRelay()
        relay.unreachable_sends = 2
        told = Crew(tmp_path / "log", lambda device: relay)
        told.worker.send(Item("a", b"1"))
        while len(relay.sent) < 3:
            await asyncio.sleep(0)
        assert relay.sent[0] == relay.sent[1] == relay.sent[2]
        told.worker.send(Stop())
        while len(relay.sent) < 4:
            await asyncio.sleep(0)
        received = [(first, [type(decode_to_worker(data)) for data in batch]) for first, batch in relay.sent[2:]]
        assert received == [(0, [Start, Item]), (2, [Stop])]

    run(work())


def test_a_killed_worker_that_does_not_answer_is_dead_once_and_not_heard_again(tmp_path: Path) -> None:
    async def work() -> None:
        relay = FakeRelay()
        told = Crew(tmp_path / "log", lambda device: relay)
        while not relay.asked:
            await asyncio.sleep(0)
        told.worker.kill()
        told.worker.kill()
        await told.dead.wait()
        assert relay.killed
        relay.answers.put_nowait(Told(0, events(b"late"), b"late", 0))
        while not relay.answers.empty():
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        told.worker.kill()
        assert (told.heard, told.deaths) == ([], ["killed; its node did not answer"])
        assert not (tmp_path / "log").exists()
        while not relay.ended:
            await asyncio.sleep(0)

    run(work())


def test_an_actor_that_comes_up_after_the_death_starts_nothing(tmp_path: Path) -> None:
    async def work() -> None:
        relay = FakeRelay()
        go = threading.Event()

        def make_relay(device: Device) -> FakeRelay:
            go.wait(LIMIT_S)
            return relay

        told = Crew(tmp_path / "log", make_relay)
        told.worker.kill()
        await told.dead.wait()
        go.set()
        while not relay.ended:
            await asyncio.sleep(0)
        assert not relay.started
        assert len(told.deaths) == 1

    run(work())


def test_what_ray_says_of_an_end_is_the_death(tmp_path: Path) -> None:
    async def work() -> None:
        relay = FakeRelay()
        told = Crew(tmp_path / "log", lambda device: relay)
        relay.answers.put_nowait(OSError("the node burnt down"))
        await told.dead.wait()
        assert told.deaths == ["far/cpu:0: the node burnt down"]

    run(work())
