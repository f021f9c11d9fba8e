"""The pool with real processes, local ones and a cluster's: what is killed comes back, nothing survives."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import psutil
import pytest

from fleet import crew
from fleet.devices import Device
from fleet.pool import Done, Failed, Pool, PoolError
from tests.fleet.conftest import Place
from tests.processes import LIMIT_S, family, survivors

CORES = [Device("cpu", 0), Device("cpu", 1)]
HERE = Path(__file__).parent


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(HERE))


def config(**settings: object) -> Callable[[Device], bytes]:
    return lambda _: json.dumps(settings).encode()


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, LIMIT_S))


async def collect(pool: Pool) -> dict[str, Done | Failed]:
    found: dict[str, Done | Failed] = {}
    async for outcome in pool.outcomes():
        assert outcome.item_id not in found
        found[outcome.item_id] = outcome
    return found


async def both_ready(pool: Pool, capacity: int = 4) -> None:
    while pool.idle < 2 * capacity:
        await asyncio.sleep(0.02)


@pytest.mark.parametrize("factory", ["fake_handler:create", "fake_handler:create_later"])
def test_items_come_back_and_the_device_is_bound(factory: str, tmp_path: Path) -> None:
    events: list[tuple[Device, bytes]] = []

    async def work() -> None:
        async with Pool(
            factory, config(), CORES, on_event=lambda d, e: events.append((d, e)), log_dir=tmp_path
        ) as pool:
            await both_ready(pool)
            for i in range(100):
                pool.submit(str(i), f"echo {i}".encode())
            pool.submit("large", b"large 5000000")
            found = await collect(pool)
            assert pool.pending == pool.in_flight == 0
            assert await pool.next_outcome() is None
        large = found.pop("large")
        assert isinstance(large, Done)
        assert len(large.payload) == 5_000_000
        for item_id, outcome in found.items():
            assert isinstance(outcome, Done)
            assert outcome.payload == item_id.encode()
        assert {outcome.device for outcome in found.values()} == set(CORES)

    run(work())
    told = [json.loads(event) for _, event in events]
    assert {event["bind"] for event in told} == {"0", "1"}
    assert not any(psutil.pid_exists(event["pid"]) for event in told)
    assert {path.name for path in tmp_path.iterdir()} == {"worker-cpu-0.log", "worker-cpu-1.log"}


def test_twenty_thousand_items_arrive_once_each(place: Place) -> None:
    async def work() -> None:
        async with Pool("fake_handler:create", config(capacity=64), place.devices, launch=place.launch) as pool:
            for i in range(20_000):
                pool.submit(str(i), f"echo {i}".encode(), weight=float(i % 50))
            found = await collect(pool)
        assert len(found) == 20_000
        assert all(isinstance(outcome, Done) for outcome in found.values())

    run(work())


def test_an_item_that_raises_fails_alone(place: Place) -> None:
    async def work() -> None:
        async with Pool("fake_handler:create", config(), place.devices[:1], launch=place.launch) as pool:
            pool.submit("bad", b"raise no such prompt")
            pool.submit("good", b"pid")
            found = await collect(pool)
            bad, good = found["bad"], found["good"]
            assert isinstance(bad, Failed)
            assert (bad.error, bad.crashes, bad.set_aside) == ("ValueError: no such prompt", 0, False)
            assert isinstance(good, Done)
            pool.submit("bad", b"echo again")
            again = await pool.next_outcome()
            assert isinstance(again, Done)
            assert again.worker_number == good.worker_number

    run(work())


def test_an_unfinished_item_is_not_taken_twice() -> None:
    async def work() -> None:
        async with Pool("fake_handler:create", config(), CORES[:1]) as pool:
            pool.submit("a", b"sleep 5")
            with pytest.raises(ValueError, match="item a was submitted twice"):
                pool.submit("a", b"echo")

    run(work())


def test_a_killed_worker_loses_nothing(place: Place) -> None:
    async def work() -> None:
        async with Pool("fake_handler:create", config(child=True), place.devices, launch=place.launch) as pool:
            await both_ready(pool)
            for i in range(200):
                pool.submit(str(i), b"sleep 0.02")
            await asyncio.sleep(0.2)
            pid = pool.workers()[place.devices[0]]
            assert pid is not None
            killed = family(pid)
            assert len(killed) >= 3  # the worker, its guard and the handler's own child
            os.kill(pid, signal.SIGKILL)
            found = await collect(pool)
            assert len(found) == 200
            assert all(isinstance(outcome, Done) for outcome in found.values())
            assert any(outcome.crashes == 1 for outcome in found.values())
            assert not survivors(killed)

    run(work())


def test_shared_memory_of_a_killed_worker_is_unlinked() -> None:
    segment = Path(f"/dev/shm/of-a-worker-{os.getpid()}")

    async def work() -> None:
        async with Pool("fake_handler:create", config(memory=segment.name), CORES[:1]) as pool:
            assert segment.exists()
            pid = pool.workers()[CORES[0]]
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            # the next worker makes it again, which it could not while it exists
            while pool.workers()[CORES[0]] in (None, pid) or not pool.idle:
                await asyncio.sleep(0.05)
        while segment.exists():
            await asyncio.sleep(0.05)

    run(work())


def test_the_item_that_kills_workers_is_set_aside_and_its_neighbours_are_done(place: Place) -> None:
    async def work() -> None:
        async with Pool("fake_handler:create", config(), place.devices, launch=place.launch) as pool:
            await both_ready(pool)
            for i in range(30):
                pool.submit(str(i), b"sleep 0.05")
            pool.submit("crash", b"crash", weight=1.0)
            found = await collect(pool)
        crash = found.pop("crash")
        assert isinstance(crash, Failed)
        assert crash.set_aside
        assert crash.crashes >= 2
        assert "killed by signal 11" in crash.error
        assert all(isinstance(outcome, Done) for outcome in found.values())
        assert len(found) == 30

    run(work())


def test_a_broken_handler_ends_its_process(place: Place) -> None:
    async def work() -> None:
        async with Pool(
            "fake_handler:create", config(), place.devices[:1], item_crashes=1, launch=place.launch
        ) as pool:
            pool.submit("broken", b"broken engine is dead")
            found = await collect(pool)
            outcome = found["broken"]
            assert isinstance(outcome, Failed)
            assert "worker ends: BrokenError: engine is dead" in outcome.error

    run(work())


def test_an_item_that_is_cancelled_within_its_worker_is_not_waited_for_for_ever(place: Place) -> None:
    async def work() -> None:
        async with Pool(
            "fake_handler:create", config(), place.devices[:1], item_crashes=1, launch=place.launch
        ) as pool:
            pool.submit("cancelled", b"cancelled")
            outcome = (await collect(pool))["cancelled"]
            assert isinstance(outcome, Failed)
            assert outcome.set_aside
            assert "worker ends: CancelledError" in outcome.error

    run(work())


@pytest.mark.parametrize("how", ["stopped", "blocked"])
def test_a_silent_worker_is_replaced(how: str, place: Place) -> None:
    async def work() -> None:
        async with Pool(
            "fake_handler:create",
            config(),
            place.devices[:1],
            heartbeat_timeout_s=2,
            item_crashes=2 if how == "blocked" else 99,
            worker_restarts=99,  # on a busy machine one is silent that does not hang: it costs a restart, and no more
            launch=place.launch,
        ) as pool:
            if how == "blocked":
                pool.submit("hang", b"hang")
                outcome = (await collect(pool))["hang"]
                assert isinstance(outcome, Failed)
                assert "sent no beat in 2 s" in outcome.error
            else:
                pid = pool.workers()[place.devices[0]]
                assert pid is not None
                os.kill(pid, signal.SIGSTOP)
                pool.submit("fine", b"echo")
                outcome = (await collect(pool))["fine"]
                assert isinstance(outcome, Done)
                assert outcome.crashes >= 1

    run(work())


def test_when_no_worker_starts_the_error_is_quoted(tmp_path: Path) -> None:
    async def work() -> None:
        with pytest.raises(PoolError, match=r"no worker started.*RuntimeError: no weights in /nowhere"):
            async with Pool("fake_handler:create", config(fail="/nowhere"), CORES, log_dir=tmp_path):
                pass
        assert "loading weights" in (tmp_path / "worker-cpu-0.log").read_text()
        with pytest.raises(PoolError, match=r"exit code 3; last printed: .*about to die"):
            async with Pool("fake_handler:create", config(die=True), CORES[:1]):
                pass
        with pytest.raises(PoolError, match=r"ModuleNotFoundError: No module named 'nowhere'"):
            async with Pool("nowhere:create", config(), CORES[:1]):
                pass
        with pytest.raises(PoolError, match=r"did not come up in 1 s"):
            async with Pool("fake_handler:create", config(stuck=True), CORES[:1], start_timeout_s=1):
                pass

    run(work())


def test_when_some_workers_start_the_pool_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    def config_for(device: Device) -> bytes:
        return json.dumps({"fail": "/x"} if device.index == 0 else {}).encode()

    async def work() -> None:
        async with Pool("fake_handler:create", config_for, CORES) as pool:
            for i in range(20):
                pool.submit(str(i), b"sleep 0.02")
            found = await collect(pool)
            while "cpu:0 is given up" not in caplog.text:
                await asyncio.sleep(0.02)
        assert {outcome.device for outcome in found.values()} == {CORES[1]}

    run(work())
    assert "no weights in /x" in caplog.text


def test_when_every_worker_is_gone_the_pool_says_so() -> None:
    async def work() -> None:
        async with Pool("fake_handler:create", config(), CORES[:1], worker_restarts=1, item_crashes=99) as pool:
            pool.submit("crash", b"crash")
            with pytest.raises(PoolError, match="every worker is gone"):
                await pool.next_outcome()

    run(work())


def test_the_first_worker_may_warm_up_alone() -> None:
    started: list[str] = []

    async def work() -> None:
        async with Pool(
            "fake_handler:create",
            config(),
            CORES,
            warm_first=True,
            on_event=lambda device, _: started.append(device.label),
        ) as pool:
            assert started == ["cpu:0"]
            await both_ready(pool)
        assert started == ["cpu:0", "cpu:1"]

    run(work())


def test_a_drain_finishes_what_is_in_flight_and_returns_the_rest() -> None:
    async def work() -> None:
        async with Pool("fake_handler:create", config(capacity=2), CORES) as pool:
            await both_ready(pool, 2)
            for i in range(20):
                pool.submit(str(i), b"sleep 0.5")
            drained = await pool.drain(10)
            assert drained.in_flight == []
            found = await collect(pool)
            assert set(found) | set(drained.never_started) == {str(i) for i in range(20)}
            assert len(found) == 4

    run(work())


def test_a_drain_that_runs_out_of_time_names_what_is_left() -> None:
    async def work() -> None:
        async with Pool("fake_handler:create", config(capacity=2), CORES[:1]) as pool:
            for i in range(3):
                pool.submit(str(i), b"sleep 30")
            drained = await pool.drain(0.2)
            assert (drained.never_started, sorted(drained.in_flight)) == (["2"], ["0", "1"])

    run(work())


def test_a_stop_with_grace_lets_a_busy_worker_put_its_work_in_order(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crew, "STOP_GRACE_S", 3600.0)  # what an idle one has

    async def work() -> None:
        async with Pool("fake_handler:create", config(), place.devices[:1], launch=place.launch) as pool:
            pool.submit("long", b"until-closed")
            pool.submit("longer", b"sleep 3600")
            await asyncio.sleep(0.2)
            began_s = time.monotonic()
            await pool.stop(grace_s=5)
            assert time.monotonic() - began_s >= 5
            outcome = await pool.next_outcome()
            assert isinstance(outcome, Done)
            assert outcome.payload == b"put in order"
            assert await pool.next_outcome() is None
            assert pool.workers() == {place.devices[0]: None}

    run(work())


def test_a_bug_in_the_event_callback_reaches_the_consumer() -> None:
    def on_event(device: Device, event: bytes) -> None:
        if event == b"now":
            raise ZeroDivisionError("a bug")

    async def work() -> None:
        async with Pool("fake_handler:create", config(), CORES[:1], on_event=on_event) as pool:
            pool.submit("emit", b"emit now")
            with pytest.raises(ZeroDivisionError):
                while True:
                    await pool.next_outcome()
                    pool.submit("wait", b"sleep 60")

    run(work())


def test_sigint_does_not_reach_the_workers() -> None:
    async def work() -> None:
        async with Pool("fake_handler:create", config(), CORES[:1]) as pool:
            pool.submit("slow", b"sleep 0.5")
            pid = pool.workers()[CORES[0]]
            assert pid is not None
            assert os.getpgid(pid) == pid != os.getpgid(0)
            os.killpg(pid, signal.SIGINT)
            outcome = await pool.next_outcome()
            assert isinstance(outcome, Done)
            assert outcome.crashes == 0

    run(work())


@pytest.mark.parametrize("item", ["sleep 60", "hang"])
def test_a_killed_coordinator_leaves_no_orphan(item: str) -> None:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), *filter(None, sys.path)])}
    with subprocess.Popen(
        [sys.executable, str(HERE / "coordinator_script.py"), item], stdout=subprocess.PIPE, env=env
    ) as script:
        assert script.stdout is not None
        workers = json.loads(script.stdout.readline())
        everything = [process for pid in workers for process in family(pid)]
        assert len(everything) >= 6
        script.kill()
        assert not survivors(everything)


def test_a_worker_killed_with_its_coordinator_leaves_no_orphan() -> None:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), *filter(None, sys.path)])}
    with subprocess.Popen(
        [sys.executable, str(HERE / "coordinator_script.py"), "sleep 60"], stdout=subprocess.PIPE, env=env
    ) as script:
        assert script.stdout is not None
        workers = json.loads(script.stdout.readline())
        everything = [process for pid in workers for process in family(pid)]
        script.send_signal(signal.SIGSTOP)
        for pid in workers:
            os.kill(pid, signal.SIGKILL)
        script.kill()
        assert not survivors(everything)
