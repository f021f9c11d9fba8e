"""A gang: producers and consumers as processes on devices, all or none, joined by one bounded queue.

`await Gang(...).run()` starts every member, lets all run when the last is up, and returns what each one's main
returned. The queue's bytes lie in shared memory that all members map; who may touch which is arbitrated here
(`arena`), over the members' pipes: no lock lives in the memory, so a killed process can lock nothing. A member that
dies, raises or falls silent ends all of them, and the error names the one that failed first. No process outlives
`run`, nor a killed coordinator. The gang knows devices and bytes, not what they mean; it runs on this machine only.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fleet import arena, shared_bytes
from fleet.devices import Device
from fleet.gang_account import Account, Depth, MemberAccount, Role, account_of, times_of
from fleet.gang_messages import (
    Abandon,
    Ask,
    Close,
    Ended,
    Finished,
    FromMember,
    Go,
    Granted,
    Handed,
    Join,
    Publish,
    Raised,
    Recalled,
    Refused,
    Release,
    Reserve,
    Returned,
    Stopping,
    Take,
    ToMember,
    Up,
    Work,
    decode_from_member,
    encode,
)
from fleet.messages import Emitted
from fleet.process import Child, exit_words, file_name, import_paths, last_lines

__all__ = ["Account", "Depth", "Gang", "GangError", "GangStartError", "Member", "MemberAccount"]

logger = logging.getLogger(__name__)

MAX_BEAT_S = 5.0
SETTLE_S = 0.5
"""How long further signs of a failure are waited for: a broken connection may be told before what broke it."""
SUSPICIOUS_BEATS = 4
"""A member that has missed so many when another fails has failed before it."""
END_GRACE_S = 5.0
"""What running members are given to end by themselves before they are killed."""


class GangError(Exception):
    """A member failed, and so the gang; the message is one line that names it, its error and its log."""

    next_step = "run the same command to resume"

    def __init__(self, member: str, message: str) -> None:
        super().__init__(message)
        self.member = member
        """The name of the member that failed first."""


class GangStartError(GangError):
    """A member did not come up: none ran."""

    next_step = "mend that first: the same command would start it the same way"


@dataclass(frozen=True)
class Member:
    """One process of a gang."""

    name: str
    role: Role
    factory: str
    """"module:function" of `create(config, port) -> main`, see `fleet.gang_worker`."""
    config: bytes
    device: Device
    ahead: int = 0
    """Of a consumer: batches that it is handed before it asks for them, 0 or 1."""


@dataclass(frozen=True)
class _Failure:
    """A sign that a member failed, and when it did, as far as that is known."""

    at_s: float
    member: str
    error: str


class _Seat:
    """A member and its process."""

    def __init__(self, member: Member, log_path: Path) -> None:
        self.member = member
        self.log_path = log_path
        self.log_start = log_path.stat().st_size if log_path.exists() else 0
        self.child: Child | None = None
        self.exited = asyncio.Event()
        self.silent_s = 0.0
        self.up = False
        self.result: bytes | None = None
        self.finished_s = 0.0

    @property
    def alive(self) -> bool:
        return self.child is not None and not self.exited.is_set()

    def send(self, message: ToMember) -> None:
        if self.child is not None:
            self.child.send(encode(message))


class Gang:
    """Members and their queue. It runs once.

    Args:
        members: at least one producer and one consumer, under names of their own.
        queue_bytes: the bound of the queue: all that is reserved, queued or being read.
        next_work: called on the loop for a producer's next work; None is no more, and is then asked again.
        on_event: called on the loop with the name of a member and what it emits.
        on_up: called on the loop when the last member is up.
        log_dir: where members print, one file each; None is a temporary folder.
        start_timeout_s: what a member may take to come up.
        heartbeat_timeout_s: silence that a running member is allowed.
    """

    def __init__(
        self,
        members: Sequence[Member],
        queue_bytes: int,
        next_work: Callable[[], bytes | None],
        *,
        on_event: Callable[[str, bytes], None] | None = None,
        on_up: Callable[[], None] | None = None,
        log_dir: Path | None = None,
        start_timeout_s: float = 900.0,
        heartbeat_timeout_s: float = 120.0,
    ) -> None:
        _check(members)
        self._members = tuple(members)
        self._queue_bytes = queue_bytes
        self._next_work = next_work
        self._on_event = on_event
        self._on_up = on_up
        self._log_dir = log_dir
        self._start_timeout_s = start_timeout_s
        self._heartbeat_timeout_s = heartbeat_timeout_s
        self._beat_s = min(MAX_BEAT_S, heartbeat_timeout_s / 8)
        self._arena = arena.Arena(
            queue_bytes,
            [member.name for member in members if member.role == "producer"],
            {member.name: member.ahead for member in members if member.role == "consumer"},
        )
        self._metas: dict[int, bytes] = {}
        """By region."""
        self._open: dict[str, int] = {}
        """The region that each producer fills, or has filled last."""
        self._published: Counter[str] = Counter()
        self._seats: dict[str, _Seat] = {}
        self._changed = asyncio.Event()
        self._failures: list[_Failure] = []
        self._bug: Exception | None = None
        self._started_s: float | None = None
        self._stopping = False
        self._ending = False

    async def run(self, interrupt: asyncio.Event | None = None) -> dict[str, bytes]:
        """Start all, and see them through; returns what each member's main returned.

        Args:
            interrupt: when it is set, the gang stops as by `stop`.

        Raises:
            GangError: a member failed; it is the one that failed first.
            fleet.shared_bytes.SharedBytesError: the queue's memory cannot be had.
        """
        memory_fd = shared_bytes.create(self._arena.size_bytes)
        helpers: list[asyncio.Task[None]] = []
        grace_s = 0.0
        try:
            with contextlib.ExitStack() as stack:
                log_dir = self._log_dir or Path(
                    stack.enter_context(tempfile.TemporaryDirectory(prefix="draftmill-gang-"))
                )
                log_dir.mkdir(parents=True, exist_ok=True)
                try:
                    for member in self._members:
                        self._spawn(member, log_dir, memory_fd)
                    helpers.append(asyncio.create_task(self._monitor()))
                    if interrupt is not None:
                        helpers.append(asyncio.create_task(self._stop_when(interrupt)))
                    await self._until(lambda: all(seat.up for seat in self._seats.values()))
                    self._go()
                    grace_s = END_GRACE_S
                    await self._until(lambda: all(seat.result is not None for seat in self._seats.values()))
                except asyncio.CancelledError:
                    grace_s = 0.0
                    raise
                finally:
                    await self._end(grace_s)
        finally:
            for task in helpers:
                task.cancel()
            os.close(memory_fd)
        return {name: seat.result or b"" for name, seat in self._seats.items()}

    def stop(self) -> None:
        """Bring all to an end: consumers are told so at their next take, producers that they should come to one."""
        self._stopping = True
        if self._started_s is None or self._arena.stopped:
            return  # told when all are up, or told already
        for seat in self._seats.values():
            if seat.member.role == "producer":
                seat.send(Stopping())
        self._say(self._arena.stop(time.monotonic()))

    def pids(self) -> dict[str, int]:
        """Process id by member, of those that live."""
        return {name: seat.child.pid for name, seat in self._seats.items() if seat.child is not None and seat.alive}

    def depth(self) -> Depth:
        """The queue and everybody's times now: cheap, however long the gang has run."""
        finished_s = {name: seat.finished_s for name, seat in self._seats.items() if seat.result is not None}
        times = times_of(self._arena, self._members, finished_s, self._started_s, time.monotonic())
        return Depth(tuple(times), self._arena.size_bytes, self._arena.queued_bytes)

    def account(self) -> Account:
        """What each member did with its time, and the queue with its room, until now."""
        return account_of(
            self._arena,
            self._members,
            {name: seat.finished_s for name, seat in self._seats.items() if seat.result is not None},
            self._published,
            self._started_s,
            time.monotonic(),
        )

    def _spawn(self, member: Member, log_dir: Path, memory_fd: int) -> None:
        seat = self._seats[member.name] = _Seat(member, log_dir / f"{file_name(member.name)}.log")
        loop = asyncio.get_running_loop()

        def post(callback: Callable[..., None], *arguments: object) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: the coordinator has left
                loop.call_soon_threadsafe(self._guarded, callback, seat, *arguments)

        with seat.log_path.open("ab") as log:
            seat.child = Child(
                {**os.environ, **member.device.env()},
                import_paths(),
                output=log,
                on_data=lambda data: post(self._received, data),
                on_exit=lambda code: post(self._exited, code, time.monotonic()),
                entry="fleet.gang_worker",
                pass_fds=[memory_fd],
            )
        pinned = member.device.kind == "cuda"
        memory = (memory_fd, self._arena.size_bytes, pinned)
        seat.send(Join(member.name, member.role, member.factory, member.config, self._beat_s, *memory))

    def _go(self) -> None:
        self._started_s = time.monotonic()
        logger.info("%d members are up", len(self._seats))
        if self._on_up is not None:
            self._on_up()
        for seat in self._seats.values():
            seat.send(Go())
        if self._stopping:
            self.stop()

    async def _until(self, condition: Callable[[], bool]) -> None:
        """Wait for it; a failure or a bug comes first."""
        while True:
            if self._failures:
                raise await self._cause()
            if self._bug is not None:
                raise self._bug
            if condition():
                return
            self._changed.clear()
            await self._changed.wait()

    async def _cause(self) -> GangError:
        """Who failed first: the others' errors may follow from its own, and be told before it."""
        await asyncio.sleep(SETTLE_S)
        now_s = time.monotonic()
        first = min(self._failures, key=lambda failure: failure.at_s)
        for seat in self._seats.values():
            since_s = now_s - seat.silent_s
            suspicious = seat.up and seat.alive and seat.silent_s > SUSPICIOUS_BEATS * self._beat_s
            if suspicious and since_s < first.at_s and seat.member.name != first.member:
                error = f"sent no beat for {seat.silent_s:.0f} s; then {first.member}: {first.error}"
                first = _Failure(since_s, seat.member.name, error)
        seat = self._seats[first.member]
        kind, what = (GangError, "failed") if self._started_s is not None else (GangStartError, "did not start")
        where = f"{first.member} on {seat.member.device.label}"
        log = f" (its log is {seat.log_path})" if self._log_dir is not None else ""
        return kind(first.member, f"{where} {what}: {first.error.removesuffix('.') if log else first.error}{log}")

    async def _end(self, grace_s: float) -> None:
        """See every process gone: told to leave, then killed."""
        self._ending = True
        for seat in self._seats.values():
            seat.send(Close())
        if grace_s:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._all_exited(), grace_s)
        for seat in self._seats.values():
            if seat.alive and seat.child is not None:
                seat.child.kill()
        await self._all_exited()

    async def _all_exited(self) -> None:
        for seat in self._seats.values():
            if seat.child is not None:
                await seat.exited.wait()

    async def _stop_when(self, interrupt: asyncio.Event) -> None:
        await interrupt.wait()
        self.stop()

    async def _monitor(self) -> None:
        """Find the silent. Ticks are counted: time in which this loop itself stood still blames nobody."""
        tick_s = min(1.0, self._heartbeat_timeout_s / 8, self._start_timeout_s / 8)
        while True:
            await asyncio.sleep(tick_s)
            for seat in self._seats.values():
                seat.silent_s += tick_s
                limit_s = self._heartbeat_timeout_s if seat.up else self._start_timeout_s
                if seat.alive and seat.silent_s > limit_s:
                    what = "sent no beat" if seat.up else "did not come up"
                    self._fail(seat, f"it {what} in {limit_s:g} s", time.monotonic() - seat.silent_s)
                    seat.silent_s = 0.0

    def _guarded(self, callback: Callable[..., None], *arguments: object) -> None:
        """A bug in a callback ends the gang and reaches its owner, instead of a log line."""
        try:
            callback(*arguments)
        except Exception as error:
            self._bug = self._bug or error
        self._changed.set()

    def _fail(self, seat: _Seat, error: str, at_s: float) -> None:
        if not self._ending:
            logger.warning("%s on %s: %s", seat.member.name, seat.member.device.label, error)
            self._failures.append(_Failure(at_s, seat.member.name, error))
            self._changed.set()

    def _exited(self, seat: _Seat, code: int, now_s: float) -> None:
        seat.exited.set()
        printed = last_lines(seat.log_path, seat.log_start)
        how = exit_words(code)
        # others hear of a death sooner than its parent may: what they said in the last moment follows from it
        self._fail(seat, f"{how}; last printed: {printed}" if printed else how, now_s - SETTLE_S)

    def _received(self, seat: _Seat, data: bytes) -> None:
        """On the loop, where an error has an owner: in the reading thread it would end that thread alone."""
        self._heard(seat, decode_from_member(data))

    def _heard(self, seat: _Seat, message: FromMember) -> None:
        if seat.up:
            seat.silent_s = 0.0
        match message:
            case Up():
                seat.up, seat.silent_s = True, 0.0
            case Raised(error, at_s):
                self._fail(seat, error, at_s)
            case Finished(payload):
                self._finished(seat, payload)
            case Emitted(event):
                if self._on_event is not None:
                    self._on_event(seat.member.name, event)
            case Ask():
                seat.send(Work(None if self._stopping else self._next_work()))
            case _ if not self._ending:
                self._say(self._react(seat.member.name, message, time.monotonic()))

    def _finished(self, seat: _Seat, payload: bytes) -> None:
        seat.result, seat.finished_s = payload, time.monotonic()
        self._say(self._arena.finish(seat.member.name, seat.finished_s))
        if all(other.result is not None for other in self._seats.values() if other.member.role == "consumer"):
            self.stop()  # whatever is produced now, nobody takes

    def _react(self, name: str, message: FromMember, now_s: float) -> list[arena.Answer]:
        match message:
            case Reserve(size_bytes):
                try:
                    return self._arena.reserve(name, size_bytes, now_s)
                except arena.ArenaError as error:
                    self._seats[name].send(Refused(str(error)))
            case Publish(meta):
                self._metas[self._open[name]] = meta
                self._published[name] += 1
                return self._arena.publish(name, now_s)
            case Abandon():
                return self._arena.abandon(name, now_s)
            case Take():
                return self._arena.take(name, now_s)
            case Returned(region):
                return self._arena.returned(name, region, now_s)
            case Release(region):
                del self._metas[region]
                return self._arena.release(name, region, now_s)
        return []

    def _say(self, answers: Iterable[arena.Answer]) -> None:
        for answer in answers:
            match answer:
                case arena.Grant(name, region):
                    self._open[name] = region.number
                    self._seats[name].send(Granted(region.offset))
                case arena.Hand(name, region, sequence):
                    meta = self._metas[region.number]
                    self._seats[name].send(Handed(region.number, region.offset, region.size_bytes, sequence, meta))
                case arena.Recall(name, region):
                    self._seats[name].send(Recalled(region.number))
                case arena.End(name, stopped):
                    self._seats[name].send(Ended(stopped))


def _check(members: Sequence[Member]) -> None:
    names = [member.name for member in members]
    if len({file_name(name) for name in names}) < len(names):
        raise ValueError(f"members of a gang need names of their own; got {', '.join(names)}")
    for role in ("producer", "consumer"):
        if not any(member.role == role for member in members):
            raise ValueError(f"a gang needs a {role}; its members are {', '.join(names) or 'none'}")
    for member in members:
        if member.device.node:
            raise ValueError(f"{member.name} is on {member.device.label}: a gang's members share one machine's memory")
        if member.ahead not in (0, 1):
            raise ValueError(f"{member.name} reads {member.ahead} batches ahead; it must be 0 or 1")
