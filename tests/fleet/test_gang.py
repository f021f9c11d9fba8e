"""The gang with real processes: every byte arrives once, one failure ends all, nothing is left behind."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from fleet import gang as gang_module
from fleet import shared_bytes
from fleet.devices import Device
from fleet.gang import Gang, GangError, GangStartError, Member
from tests.processes import LIMIT_S, mapped, survivors

CORES = [Device("cpu", 0), Device("cpu", 1)]
HERE = Path(__file__).parent
KIB = 1 << 10


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The members' factories can be imported; after a test no process and no file in /dev/shm is new."""
    monkeypatch.syspath_prepend(str(HERE))
    this, files = psutil.Process(), shared_files()
    children = set(this.children())
    yield
    begun = [child for child in this.children() if child not in children and not is_tracker(child)]
    assert not survivors([process for child in begun for process in [child, *children_of(child)]])
    family = {process.pid for process in [this, *this.children(recursive=True)]}
    deadline_s = time.monotonic() + LIMIT_S
    while left := shared_files() - files - mapped(set(psutil.pids()) - family):
        assert time.monotonic() < deadline_s, left
        time.sleep(0.05)


def shared_files() -> set[str]:
    """Files in shared memory that are, or could be, a gang's."""
    return {path.name for path in Path("/dev/shm").iterdir() if "draftmill" in path.name or "psm_" in path.name}


def children_of(process: psutil.Process) -> list[psutil.Process]:
    with contextlib.suppress(psutil.NoSuchProcess):
        return list(process.children(recursive=True))
    return []


def is_tracker(process: psutil.Process) -> bool:
    try:
        return "multiprocessing.resource_tracker" in " ".join(process.cmdline())
    except psutil.Error:
        return False


def targets(count: int, factory: str = "fake_gang:produce", **settings: object) -> list[Member]:
    config = json.dumps(settings).encode()
    return [Member(f"target {i}", "producer", factory, config, CORES[0]) for i in range(count)]


def drafters(count: int, factory: str = "fake_gang:consume", ahead: int = 0, **settings: object) -> list[Member]:
    config = json.dumps(settings).encode()
    return [Member(f"drafter {i}", "consumer", factory, config, CORES[1], ahead) for i in range(count)]


def jobs(count: int | None = None, sizes: Callable[[int], list[int]] = lambda i: [100 + i % 50]) -> Callable[[], Any]:
    numbers = itertools.count() if count is None else iter(range(count))
    return lambda: json.dumps({"id": i, "sizes": sizes(i)}).encode() if (i := next(numbers, None)) is not None else None


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, LIMIT_S))


async def ready(gang: Gang) -> None:
    while gang.account().peak_bytes == 0:
        await asyncio.sleep(0.02)


async def until(holds: Callable[[], bool], running: asyncio.Task[Any]) -> None:
    """Wait for a state of a gang, or its end."""
    while not holds() and not running.done():
        await asyncio.sleep(0.02)


@pytest.mark.parametrize("ahead", [0, 1])
def test_all_bytes_arrive_once_and_whole_and_nobody_waits_beside_a_batch(
    ahead: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: dict[str, bytes] = {}
    say = Gang._say

    def checked(self: Gang, answers: Any) -> None:
        say(self, answers)
        queue = self._arena
        assert queue.used_bytes <= queue.size_bytes
        assert not (queue.queued and any(queue.waits(m.name) for m in self._members if m.role == "consumer"))

    monkeypatch.setattr(Gang, "_say", checked)

    async def work() -> None:
        both, most = str(tmp_path / "both"), str(tmp_path / "most")
        quick = drafters(1, ahead=ahead, awaits={"0": both}, says={"100": most})[0]
        slow = drafters(2, ahead=ahead, awaits={"0": most}, says={"0": both})[1]
        gang = Gang(
            [*targets(3), quick, slow],
            256 * KIB,
            jobs(60, lambda i: [(1 + i * 7919 % 80) * KIB + i, 5, 0]),
            on_event=told.__setitem__,
            log_dir=tmp_path / "logs",
        )
        results = {name: json.loads(result) for name, result in (await gang.run()).items()}
        seen = [entry for name in (quick.name, slow.name) for entry in results[name]["seen"]]
        assert sorted((job, part) for job, part, _ in seen) == [(i, part) for i in range(60) for part in range(3)]
        assert sorted(sequence for _, _, sequence in seen) == list(range(180))
        assert sum(results[f"target {i}"]["jobs"] for i in range(3)) == 60
        assert not results[slow.name]["stopped"]
        account = gang.account()
        assert 80 * KIB < account.peak_bytes <= account.queue_bytes == 256 * KIB
        assert account.batches_by_consumer == {name: len(results[name]["seen"]) for name in (quick.name, slow.name)}
        assert account.batches_by_consumer[quick.name] > account.batches_by_consumer[slow.name] > 0
        assert sum(member.batches for member in account.members if member.role == "producer") == 180
        assert all(member.busy_s > 0 and 0 <= member.idle_share < 1 for member in account.members)
        assert account.idle_s >= 0
        assert account.round_robin_idle_s > 0  # dealt in turn, the quick one waits for the slow one
        assert (account.queued, account.queued_bytes, gang.pids()) == (0, 0, {})

    run(work())
    assert set(told) == {"target 0", "target 1", "target 2"}
    assert all(json.loads(event)["threads"] == "1" for event in told.values())
    assert {path.name for path in (tmp_path / "logs").iterdir()} == {
        *(f"target-{i}.log" for i in range(3)),
        *(f"drafter-{i}.log" for i in range(2)),
    }


@pytest.mark.parametrize("victim", ["target 1", "drafter 0"])
def test_a_killed_member_ends_all_of_them(victim: str, tmp_path: Path) -> None:
    async def work() -> None:
        gang = Gang([*targets(3), *drafters(2, ahead=1)], 64 * KIB, jobs(), log_dir=tmp_path)
        running = asyncio.create_task(gang.run())
        await ready(gang)
        pids = gang.pids()
        assert len(pids) == 5
        os.kill(pids[victim], signal.SIGKILL)
        with pytest.raises(GangError, match=rf"^{victim} on cpu:\d failed: killed by signal 9 .*\.log\)$") as caught:
            await running
        assert caught.value.member == victim
        assert not isinstance(caught.value, GangStartError)
        assert not any(psutil.pid_exists(pid) for pid in pids.values())

    run(work())


def test_the_member_that_failed_first_is_named_and_not_those_that_lost_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gang_module, "SETTLE_S", 10.0)

    async def work() -> None:
        connected = asyncio.Event()
        where = str(tmp_path / "socket")
        gang = Gang(
            [*targets(1, "fake_gang:listen", socket=where), *drafters(1, "fake_gang:connect", socket=where)],
            KIB,
            jobs(),
            on_event=lambda _, event: connected.set() if event == b"connected" else None,
        )
        running = asyncio.create_task(gang.run())
        await connected.wait()
        os.kill(gang.pids()["target 0"], signal.SIGKILL)
        with pytest.raises(GangError, match=r"^target 0 on cpu:0 failed: killed by signal 9"):
            await running

    run(work())


@pytest.mark.parametrize(
    ("what", "line"),
    [
        ("raise", "did not start: RuntimeError: no weights in /nowhere"),
        ("die", "did not start: exit code 3; last printed: about to die"),
        ("stuck", "did not start: it did not come up in 2 s"),
    ],
)
def test_where_one_does_not_start_none_runs(
    what: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    async def work() -> None:
        members = [*targets(2), *drafters(1), *drafters(2, faults={"start": what})[1:]]
        gang = Gang(members, KIB, lambda: asked.append(1), log_dir=tmp_path, start_timeout_s=2)
        with monkeypatch.context() as patience:  # the others may be slow
            patience.setattr(gang, "_start_timeout_s", 3600.0)
            running = asyncio.create_task(gang.run())
            await until(lambda: what == "stuck" and sum(seat.up for seat in gang._seats.values()) == 3, running)
        with pytest.raises(GangStartError, match=f"^drafter 1 on cpu:1 {line} \\(its log is .*drafter-1.log\\)$"):
            await running

    run(work())
    assert not asked
    if what == "raise":
        assert "about to raise\nTraceback" in (tmp_path / "drafter-1.log").read_text()


@pytest.mark.parametrize(
    ("what", "line"),
    [
        ("raise", "RuntimeError: no weights in /nowhere"),
        ("exit", "SystemExit: wrong arguments"),
        ("die", "exit code 3; last printed: about to die"),
    ],
)
def test_a_main_that_raises_ends_all_of_them(what: str, line: str) -> None:
    async def work() -> None:
        gang = Gang([*targets(2), *drafters(2, faults={"2": what})[1:], *drafters(1)], KIB, jobs())
        with pytest.raises(GangError, match=f"^drafter 1 on cpu:1 failed: {line}$"):
            await gang.run()

    run(work())


def test_a_hung_member_is_found_by_its_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gang_module, "END_GRACE_S", 0.5)

    async def work() -> None:
        gang = Gang([*targets(1), *drafters(2)], KIB, jobs(), heartbeat_timeout_s=3)
        with monkeypatch.context() as patience:  # the others may be slow
            patience.setattr(gang, "_heartbeat_timeout_s", 3600.0)
            running = asyncio.create_task(gang.run())
            await ready(gang)
            os.kill(gang.pids()["drafter 1"], signal.SIGSTOP)
            hung, *others = (gang._seats[name] for name in ("drafter 1", "drafter 0", "target 0"))
            await until(lambda: hung.silent_s > 3 and not any(seat.silent_s for seat in others), running)
        with pytest.raises(GangError, match=r"^drafter 1 on cpu:1 failed: it sent no beat in 3 s"):
            await running

    run(work())


def test_a_member_that_hangs_is_named_before_one_that_raises_for_want_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gang_module, "END_GRACE_S", 0.5)
    monkeypatch.setattr(gang_module, "SUSPICIOUS_BEATS", 1)
    monkeypatch.setattr(gang_module, "MAX_BEAT_S", 0.5)
    monkeypatch.setattr(gang_module, "SETTLE_S", 0.0)

    async def work() -> None:
        late = {"id": 0, "sizes": [2 * KIB], "awaits": str(tmp_path / "silence")}
        up = asyncio.Event()
        gang = Gang([*targets(1), *drafters(1)], KIB, lambda: json.dumps(late).encode(), on_up=up.set)
        running = asyncio.create_task(gang.run())
        await up.wait()
        os.kill(gang.pids()["drafter 0"], signal.SIGSTOP)
        await until(lambda: gang._seats["drafter 0"].silent_s >= 5, running)
        (tmp_path / "silence").touch()
        line = r"^drafter 0 on cpu:1 failed: sent no beat for \d+ s; then target 0: QueueError: a batch of 2048 bytes"
        with pytest.raises(GangError, match=line):
            await running

    run(work())


def test_a_member_that_is_stuck_keeps_beating_and_one_that_lingers_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gang_module, "END_GRACE_S", 0.5)
    monkeypatch.setattr(gang_module, "SUSPICIOUS_BEATS", 300)

    async def work() -> None:
        members = [*targets(1), *drafters(1, faults={"2": "stuck"}), *drafters(2, "fake_gang:linger")[1:]]
        # without an end: whoever takes faster, the other gets a third batch, and is stuck
        endless = (json.dumps({"id": i, "sizes": [100], "sleep_s": 0.01}).encode() for i in itertools.count())
        gang = Gang(members, KIB, lambda: next(endless), heartbeat_timeout_s=3)
        assert gang._beat_s < 3 / 4
        monkeypatch.setattr(gang, "_heartbeat_timeout_s", 120.0)  # it may be slow, too
        running = asyncio.create_task(gang.run())
        await until(lambda: gang.account().batches_by_consumer.get("drafter 0") == 2, running)
        stuck = gang._seats["drafter 0"]
        for _ in range(4):
            await until(lambda: stuck.silent_s > 0, running)
            await until(lambda: stuck.silent_s == 0, running)
        assert not running.done(), running
        pids = gang.pids()
        assert len(pids) == 3
        os.kill(pids["target 0"], signal.SIGKILL)
        with pytest.raises(GangError, match=r"^target 0 on cpu:0 failed: killed"):
            await running
        assert not any(psutil.pid_exists(pid) for pid in pids.values())

    run(work())


@pytest.mark.parametrize("how", ["stop", "interrupt", "at once"])
def test_a_stop_is_a_normal_end(how: str) -> None:
    async def work() -> None:
        gang = Gang([*targets(3), *drafters(2, ahead=1, sleep_s=0.01)], 4 * KIB, jobs())
        interrupt = asyncio.Event()
        running = asyncio.create_task(gang.run(interrupt))
        if how == "at once":
            await asyncio.sleep(0)
            gang.stop()
        else:
            await until(lambda: sum(gang.account().batches_by_consumer.values()) > 0, running)
            gang.stop() if how == "stop" else interrupt.set()
        results = {name: json.loads(result) for name, result in (await running).items()}
        assert all(results[f"target {i}"]["stopping"] for i in range(3))
        assert all(results[f"drafter {i}"]["stopped"] for i in range(2))
        seen = [(job, part) for i in range(2) for job, part, _ in results[f"drafter {i}"]["seen"]]
        assert len(set(seen)) == len(seen)
        assert bool(seen) == (how != "at once")

    run(work())


def test_when_all_consumers_have_left_the_producers_are_told_to_stop() -> None:
    async def work() -> None:
        gang = Gang([*targets(2), *drafters(2, ahead=1, leave_after=3)], KIB, jobs())
        results = {name: json.loads(result) for name, result in (await gang.run()).items()}
        assert [len(results[f"drafter {i}"]["seen"]) for i in range(2)] == [3, 3]
        assert results["target 0"]["stopping"]

    run(work())


def test_what_is_put_wrongly_is_not_published() -> None:
    async def work() -> None:
        gang = Gang([*targets(1, "fake_gang:put_wrongly"), *drafters(1)], KIB, jobs())
        results = {name: json.loads(result) for name, result in (await gang.run()).items()}
        large, nested, failed = results["target 0"]
        assert large.startswith("a batch of 1073741824 bytes cannot be queued: the queue holds 1024 bytes in all")
        assert nested.startswith("a put within a put")
        assert failed == "in a put"
        assert results["drafter 0"]["seen"] == [["good", 0, 0]]

    run(work())


def test_a_bug_in_a_callback_reaches_the_caller() -> None:
    def next_work() -> bytes | None:
        raise ZeroDivisionError("a bug")

    async def work() -> None:
        with pytest.raises(ZeroDivisionError):
            await Gang([*targets(1), *drafters(1)], KIB, next_work).run()

    run(work())


def test_a_run_that_is_cancelled_leaves_nothing() -> None:
    async def work() -> None:
        gang = Gang([*targets(1), *drafters(1, faults={"2": "stuck"})], KIB, jobs())
        running = asyncio.create_task(gang.run())
        await ready(gang)
        pids = gang.pids()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert not any(psutil.pid_exists(pid) for pid in pids.values())

    run(work())


@pytest.mark.parametrize("fault", ["none", "stuck"])
@pytest.mark.parametrize("with_member", [False, True])
def test_a_killed_coordinator_leaves_no_process_and_no_memory(fault: str, with_member: bool) -> None:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), *filter(None, sys.path)])}
    with subprocess.Popen(
        [sys.executable, str(HERE / "gang_script.py"), fault], stdout=subprocess.PIPE, env=env
    ) as script:
        assert script.stdout is not None
        pids = json.loads(script.stdout.readline())
        members = [p for pid in pids for p in (psutil.Process(pid), *psutil.Process(pid).children(recursive=True))]
        assert len(members) >= 4 + 4 + 2  # members, their guards, two children of their own
        mapped = [pid for pid in pids if "memfd:draftmill-gang" in Path(f"/proc/{pid}/maps").read_text()]
        assert mapped == pids
        if with_member:
            script.send_signal(signal.SIGSTOP)
            os.kill(pids[-1], signal.SIGKILL)
        script.kill()
        assert not survivors(members)


def test_a_queue_that_does_not_fit_into_memory_is_one_line() -> None:
    async def work() -> None:
        with pytest.raises(shared_bytes.SharedBytesError, match=r"^a queue of 1048576.00 GiB does not fit .* GiB are"):
            await Gang([*targets(1), *drafters(1)], 1 << 50, jobs()).run()

    run(work())


@pytest.mark.parametrize(
    ("members", "line"),
    [
        ([*targets(1), *targets(1), *drafters(1)], "names of their own; got target 0, target 0, drafter 0"),
        (targets(1), "needs a consumer; its members are target 0"),
        (drafters(1), "needs a producer"),
        ([*targets(1), *drafters(1, ahead=2)], "drafter 0 reads 2 batches ahead"),
        ([*drafters(1), Member("far", "producer", "a:b", b"", Device("cpu", 0, node="b"))], "far is on b/cpu:0"),
    ],
)
def test_a_gang_that_cannot_be_is_refused(members: list[Member], line: str) -> None:
    with pytest.raises(ValueError, match=line):
        Gang(members, KIB, jobs())
