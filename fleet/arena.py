"""The bounded queue of a gang: regions of a byte arena that are reserved, filled, published, taken and released.

Deterministic: it knows offsets, names and the times that it is told, never memory, processes or clocks. Each call
returns what must now be said, in order. Regions lie first fit in a list of free ranges and are freed in any order.
Reservations are granted in the order in which they were asked (a large one is not starved by small ones), and a
producer has one at a time (two that hold one and want more could wait for each other). What is published is handed
out first in, first out, to a consumer that waits before one that only reads ahead. A batch that was handed out ahead
is called back when another consumer waits and nothing is queued: neither does anyone wait beside an untouched batch,
nor can a consumer that stands at a barrier starve the others. When all producers have finished and nothing is under
way, each consumer's next take is answered by one end marker.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

ALIGNMENT = 64
"""Regions begin at multiples of it and occupy multiples of it: a cache line."""


class ArenaError(ValueError):
    """A reservation that can never be granted; the message is one line with sizes and the next step."""


class Region(NamedTuple):
    """A place in the arena. Numbers are never used again."""

    number: int
    offset: int
    size_bytes: int


@dataclass(frozen=True)
class Grant:
    """To a producer: the region that it asked for."""

    producer: str
    region: Region


@dataclass(frozen=True)
class Hand:
    """To a consumer: a published region. `sequence` counts batches in the order in which they left the queue."""

    consumer: str
    region: Region
    sequence: int


@dataclass(frozen=True)
class Recall:
    """To a consumer: give this region back (`returned`), unless you have begun it."""

    consumer: str
    region: Region


@dataclass(frozen=True)
class End:
    """To a consumer, once: nothing more comes."""

    consumer: str
    stopped: bool


Answer = Grant | Hand | Recall | End


class Arrival(NamedTuple):
    """A batch was published."""

    at_s: float
    size_bytes: int


class Service(NamedTuple):
    """A batch was worked on: from its take until its consumer's next one."""

    consumer: str
    sequence: int
    taken_s: float
    done_s: float


class Space:
    """Free ranges of 0..size, sorted and never touching each other."""

    def __init__(self, size_bytes: int) -> None:
        self.free: list[tuple[int, int]] = [(0, size_bytes)] if size_bytes else []

    def place(self, size_bytes: int) -> int | None:
        """The first offset that has this much room, now taken; None if there is none."""
        for index, (offset, room) in enumerate(self.free):
            if room >= size_bytes:
                left = (offset + size_bytes, room - size_bytes)
                self.free[index : index + 1] = [left] if left[1] else []
                return offset
        return None

    def give_back(self, offset: int, size_bytes: int) -> None:
        """Free a range, joined with its neighbours."""
        index = bisect_left(self.free, (offset, 0))
        begin, end = offset, offset + size_bytes
        first, last = index, index
        if index and sum(self.free[index - 1]) == begin:
            first, begin = index - 1, self.free[index - 1][0]
        if index < len(self.free) and self.free[index][0] == end:
            last, end = index + 1, sum(self.free[index])
        self.free[first:last] = [(begin, end - begin)]


@dataclass
class _Producer:
    waits_since_s: float | None = None
    waited_s: float = 0.0
    open: Region | None = None
    """Granted, and not yet published."""
    finished: bool = False


@dataclass
class _Consumer:
    ahead: int
    waits_since_s: float | None = None
    waited_s: float = 0.0
    untouched: tuple[Region, int] | None = None
    """Handed out ahead and not begun, with its sequence."""
    working: tuple[int, float] | None = None
    """The sequence of the batch that it works on, and since when."""
    held: dict[int, Region] = field(default_factory=dict)
    """Regions that it has taken and not released."""
    recalled: bool = False
    ended: bool = False


class Arena:
    """The queue's state.

    Args:
        size_bytes: the bound, rounded up to whole cache lines; nothing is ever granted beyond it.
        producers: their names.
        consumers: by name, how many batches it is handed before it asks for them: 0 or 1.
    """

    def __init__(self, size_bytes: int, producers: Iterable[str], consumers: Mapping[str, int]) -> None:
        self.size_bytes = _occupied(size_bytes)
        self.used_bytes = 0
        self.peak_bytes = 0
        self.arrivals: list[Arrival] = []
        self.services: list[Service] = []
        self.stopped = False
        self._space = Space(self.size_bytes)
        self._producers = {name: _Producer() for name in producers}
        self._consumers = {name: _Consumer(ahead) for name, ahead in consumers.items()}
        self._asked: deque[tuple[str, int]] = deque()
        self._queue: deque[tuple[Region, int | None]] = deque()
        """Published regions; one that was called back keeps its sequence."""
        self._regions = 0
        self._handed = 0

    @property
    def queued(self) -> int:
        """Published batches that no consumer has."""
        return len(self._queue)

    @property
    def queued_bytes(self) -> int:
        """Their bytes."""
        return sum(region.size_bytes for region, _ in self._queue)

    def waited_s(self, name: str, now_s: float) -> float:
        """Seconds in which a producer has waited for room, or a consumer for a batch, until now."""
        member = self._producers.get(name) or self._consumers[name]
        since_s = member.waits_since_s
        return member.waited_s + (now_s - since_s if since_s is not None else 0.0)

    def waits(self, name: str) -> bool:
        """Whether it waits now."""
        return (self._producers.get(name) or self._consumers[name]).waits_since_s is not None

    def reserve(self, producer: str, size_bytes: int, now_s: float) -> list[Answer]:
        """A producer wants room for a batch.

        Raises:
            ArenaError: it can never be granted, or could wait for itself.
        """
        state = self._producers[producer]
        if _occupied(size_bytes) > self.size_bytes:
            raise ArenaError(
                f"a batch of {size_bytes} bytes cannot be queued: the queue holds {self.size_bytes} bytes in all. "
                "Make batches smaller, or the queue larger."
            )
        if state.open is not None or state.waits_since_s is not None:
            raise ArenaError(
                f"{producer} asks for {size_bytes} bytes while it fills another batch: two producers could wait for "
                "each other for ever. Publish the first one before."
            )
        state.waits_since_s = now_s
        self._asked.append((producer, size_bytes))
        return self._settle(now_s)

    def publish(self, producer: str, now_s: float) -> list[Answer]:
        """A producer's region is filled: it joins the queue."""
        region = self._close(producer)
        self.arrivals.append(Arrival(now_s, region.size_bytes))
        if self._drops:
            self._free(region)
        else:
            self._queue.append((region, None))
        return self._settle(now_s)

    def abandon(self, producer: str, now_s: float) -> list[Answer]:
        """A producer's region is given up unpublished."""
        self._free(self._close(producer))
        return self._settle(now_s)

    def take(self, consumer: str, now_s: float) -> list[Answer]:
        """A consumer wants its next batch: it begins the one that it was handed ahead, or waits for one."""
        state = self._consumers[consumer]
        self._done(consumer, now_s)
        if state.untouched is not None:
            region, sequence = state.untouched
            state.untouched, state.recalled = None, False
            self._begin(state, region, sequence, now_s)
        elif not state.ended:
            state.waits_since_s = now_s
        return self._settle(now_s)

    def returned(self, consumer: str, number: int, now_s: float) -> list[Answer]:
        """A consumer gives back, untouched, what it was handed ahead."""
        state = self._consumers[consumer]
        assert state.untouched is not None and state.untouched[0].number == number
        (region, sequence), state.untouched, state.recalled = state.untouched, None, False
        if self._drops:
            self._free(region)
        else:
            self._queue.appendleft((region, sequence))
        return self._settle(now_s)

    def release(self, consumer: str, number: int, now_s: float) -> list[Answer]:
        """A consumer reads a region no more."""
        self._free(self._consumers[consumer].held.pop(number))
        return self._settle(now_s)

    def finish(self, name: str, now_s: float) -> list[Answer]:
        """A member's work is over: what it still holds is freed."""
        if producer := self._producers.get(name):
            producer.finished = True
            left = [] if producer.open is None else [self._close(name)]
        else:
            consumer = self._consumers[name]
            self._done(name, now_s)
            left = list(consumer.held.values())
            consumer.held.clear()
            if consumer.untouched is not None:  # it left before the end: others take what it was handed
                self._queue.appendleft(consumer.untouched)
                consumer.untouched, consumer.recalled = None, False
            consumer.ended = True
            if self._drops:
                self._drop_queue()
        for region in left:
            self._free(region)
        return self._settle(now_s)

    def stop(self, now_s: float) -> list[Answer]:
        """End early: every consumer gets its end marker now, and what is queued, or published later, is dropped."""
        self.stopped = True
        self._drop_queue()
        ends: list[Answer] = []
        for name, state in self._consumers.items():
            if not state.ended:
                self._waits_no_more(state, now_s)
                state.ended = True
                ends.append(End(name, stopped=True))
        return ends + self._settle(now_s)

    @property
    def _drops(self) -> bool:
        """Nobody will take anything any more."""
        return self.stopped or all(state.ended for state in self._consumers.values())

    def _settle(self, now_s: float) -> list[Answer]:
        """Grant, hand out, call back and end whatever can be by now."""
        answers: list[Answer] = []
        while self._asked and (region := self._place(self._asked[0][1])) is not None:
            producer, _ = self._asked.popleft()
            self._waits_no_more(self._producers[producer], now_s)
            self._producers[producer].open = region
            answers.append(Grant(producer, region))
        while self._queue and (consumer := self._next_consumer()) is not None:
            region, sequence = self._queue.popleft()
            if sequence is None:
                sequence = self._handed
                self._handed += 1
            state = self._consumers[consumer]
            if state.waits_since_s is None:
                state.untouched = (region, sequence)
            else:
                self._waits_no_more(state, now_s)
                self._begin(state, region, sequence, now_s)
            answers.append(Hand(consumer, region, sequence))
        answers += self._recalls()
        if self._nothing_comes():
            for name, state in self._consumers.items():
                if state.waits_since_s is not None:
                    self._waits_no_more(state, now_s)
                    state.ended = True
                    answers.append(End(name, self.stopped))
        return answers

    def _place(self, size_bytes: int) -> Region | None:
        """A region of this size, if there is room now."""
        occupied = _occupied(size_bytes)
        offset = self._space.place(occupied)
        if offset is None:
            return None
        self.used_bytes += occupied
        self.peak_bytes = max(self.peak_bytes, self.used_bytes)
        self._regions += 1
        return Region(self._regions - 1, offset, size_bytes)

    def _next_consumer(self) -> str | None:
        """Who has waited longest; else the first of those that read ahead and have nothing at hand."""
        waiting = [
            (state.waits_since_s, name) for name, state in self._consumers.items() if state.waits_since_s is not None
        ]
        if waiting:
            return min(waiting, key=lambda pair: pair[0])[1]
        for name, state in self._consumers.items():
            if state.ahead and state.untouched is None and not state.ended:
                return name
        return None

    def _recalls(self) -> list[Answer]:
        """One untouched batch for each consumer that waits beside an empty queue, the oldest first."""
        waiting = sum(state.waits_since_s is not None for state in self._consumers.values())
        answers: list[Answer] = []
        untouched = sorted(
            (state.untouched[1], name) for name, state in self._consumers.items() if state.untouched is not None
        )
        under_way = sum(self._consumers[name].recalled for _, name in untouched)
        for _, name in untouched:
            state = self._consumers[name]
            if under_way < waiting and not state.recalled and state.untouched is not None:
                state.recalled = True
                under_way += 1
                answers.append(Recall(name, state.untouched[0]))
        return answers

    def _nothing_comes(self) -> bool:
        if self._queue or self._asked or any(state.recalled for state in self._consumers.values()):
            return False
        return all(state.finished and state.open is None for state in self._producers.values())

    def _close(self, producer: str) -> Region:
        """A producer fills its region no more."""
        state = self._producers[producer]
        assert state.open is not None
        region, state.open = state.open, None
        return region

    def _begin(self, state: _Consumer, region: Region, sequence: int, now_s: float) -> None:
        state.working = (sequence, now_s)
        state.held[region.number] = region

    def _done(self, consumer: str, now_s: float) -> None:
        state = self._consumers[consumer]
        if state.working is not None:
            self.services.append(Service(consumer, *state.working, now_s))
            state.working = None

    @staticmethod
    def _waits_no_more(state: _Producer | _Consumer, now_s: float) -> None:
        if state.waits_since_s is not None:
            state.waited_s += now_s - state.waits_since_s
            state.waits_since_s = None

    def _drop_queue(self) -> None:
        while self._queue:
            self._free(self._queue.popleft()[0])

    def _free(self, region: Region) -> None:
        self._space.give_back(region.offset, _occupied(region.size_bytes))
        self.used_bytes -= _occupied(region.size_bytes)


def _occupied(size_bytes: int) -> int:
    """The bytes that a region of this size takes up."""
    return max(1, -(-size_bytes // ALIGNMENT)) * ALIGNMENT
