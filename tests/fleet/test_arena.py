"""The arena's laws, with members whose messages cross: nothing overlaps, is lost, is taken twice, or waits in vain."""

from __future__ import annotations

import itertools
import random
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.arena import ALIGNMENT, Answer, Arena, ArenaError, End, Grant, Hand, Recall, Region, Space

JOBS = st.lists(st.integers(0, 9), max_size=12)


@dataclass
class Producer:
    """Reserves for each job, fills, publishes or abandons."""

    name: str
    jobs: deque[int]
    inbox: deque[Answer] = field(default_factory=deque)
    outbox: deque[Callable[[float], list[Answer]]] = field(default_factory=deque)
    asked: int | None = None
    open: Region | None = None
    done: bool = False


@dataclass
class Consumer:
    """As `gang_ports.ConsumerPort` and a main that stands at barriers."""

    name: str
    inbox: deque[Answer] = field(default_factory=deque)
    outbox: deque[Callable[[float], list[Answer]]] = field(default_factory=deque)
    waiting: bool = False
    at_hand: deque[Hand] = field(default_factory=deque)
    ended: int = 0
    held: deque[Region] = field(default_factory=deque)
    taken: int = 0
    rounds: int = 0
    done: bool = False


class World:
    """Members and the arena; each step is one thing that one of them does, chosen by chance."""

    def __init__(self, size: int, jobs: list[list[int]], ahead: list[int], barrier: int, seed: int) -> None:
        self.chance = random.Random(seed)
        self.producers = [Producer(f"p{i}", deque(mine)) for i, mine in enumerate(jobs)]
        self.consumers = [Consumer(f"c{i}") for i in range(len(ahead))]
        self.arena = Arena(
            size * ALIGNMENT,
            [p.name for p in self.producers],
            {c.name: n for c, n in zip(self.consumers, ahead, strict=True)},
        )
        self.barrier = barrier
        self.members = {m.name: m for m in (*self.producers, *self.consumers)}
        self.now_s = 0.0
        self.asked: list[str] = []
        self.granted: list[str] = []
        self.queued: dict[int, Region] = {}
        self.filled: list[Region] = []
        self.published: list[int] = []
        self.sequences: dict[int, int] = {}
        self.begun: Counter[int] = Counter()
        self.ends: Counter[str] = Counter()

    def run(self, stop_after: int | None = None) -> None:
        for step in itertools.count():
            if step == stop_after:
                self.say(self.arena.stop(self.now_s))
                self.queued.clear()
            steps = self.steps()
            if not steps:
                return
            self.chance.choice(steps)()
            self.now_s += 1
            self.check()

    def steps(self) -> list[Callable[[], None]]:
        """All that could happen next."""
        found: list[Callable[[], None]] = []
        for member in self.members.values():
            if member.outbox:
                found.append(lambda m=member: self.say(m.outbox.popleft()(self.now_s)))
            if member.inbox:
                found.append(lambda m=member: self.hear(m))
        found += [lambda p=p: self.produce(p) for p in self.producers if not p.done and p.asked is None]
        return found + [lambda c=c: self.consume(c) for c in self.consumers if self.may_go_on(c)]

    def say(self, answers: list[Answer]) -> None:
        for answer in answers:
            match answer:
                case Grant(name):
                    self.granted.append(name)
                case Hand(_, region, sequence):
                    self.queued.pop(region.number, None)
                    assert self.sequences.setdefault(region.number, sequence) == sequence
                case End(name):
                    self.ends[name] += 1
            name = answer.producer if isinstance(answer, Grant) else answer.consumer
            self.members[name].inbox.append(answer)

    def produce(self, p: Producer) -> None:
        if p.open is not None:
            region, p.open = p.open, None
            if self.chance.random() < 0.1:
                p.outbox.append(lambda now_s: self.arena.abandon(p.name, now_s))
            else:
                self.filled.append(region)
                p.outbox.append(lambda now_s: self.publish(p.name, region, now_s))
        elif p.jobs:
            p.asked = size = max(0, p.jobs.popleft() * ALIGNMENT - self.chance.randrange(ALIGNMENT))
            p.outbox.append(lambda now_s: self.reserve(p, size, now_s))
        else:
            p.done = True
            p.outbox.append(lambda now_s: self.arena.finish(p.name, now_s))

    def reserve(self, p: Producer, size: int, now_s: float) -> list[Answer]:
        try:
            answers = self.arena.reserve(p.name, size, now_s)
        except ArenaError:
            p.asked = None
            return []
        self.asked.append(p.name)
        return answers

    def publish(self, name: str, region: Region, now_s: float) -> list[Answer]:
        self.filled.remove(region)
        self.published.append(region.number)
        if not self.arena.stopped:
            self.queued[region.number] = region
        return self.arena.publish(name, now_s)

    def may_go_on(self, c: Consumer) -> bool:
        if c.done or (c.waiting and not c.at_hand and not c.ended):
            return False
        at_barrier = self.barrier and c.taken // self.barrier > c.rounds and not c.ended
        return not at_barrier or bool(c.held) or self.all_arrived(c)

    def all_arrived(self, c: Consumer) -> bool:
        """Those that have ended join every round."""
        return all(
            other.ended or other.done or other.taken // self.barrier > c.rounds or other.rounds > c.rounds
            for other in self.consumers
        )

    def consume(self, c: Consumer) -> None:
        if c.waiting:
            c.waiting = False
            if not c.at_hand:
                return  # the end
            c.held.append(c.at_hand.popleft().region)
            self.begun[c.held[-1].number] += 1
            c.taken += 1
        elif c.held:
            number = c.held.popleft().number
            c.outbox.append(lambda now_s: self.arena.release(c.name, number, now_s))
        elif c.ended:
            c.done = True
            c.outbox.append(lambda now_s: self.arena.finish(c.name, now_s))
        else:
            c.rounds = c.taken // self.barrier if self.barrier else 0
            c.waiting = True
            c.outbox.append(lambda now_s: self.arena.take(c.name, now_s))

    def hear(self, member: Producer | Consumer) -> None:
        answer = member.inbox.popleft()
        if isinstance(member, Producer):
            assert isinstance(answer, Grant)
            assert member.asked is not None
            assert answer.region.size_bytes == member.asked
            member.asked, member.open = None, answer.region
            return
        match answer:
            case Hand():
                assert len(member.at_hand) <= member.waiting
                member.at_hand.append(answer)
            case Recall(_, region):
                if member.at_hand and member.at_hand[-1].region == region:
                    self.give_back(member)
            case End():
                member.ended += 1
                self.give_back(member)

    def give_back(self, c: Consumer) -> None:
        if len(c.at_hand) > c.waiting:
            region = c.at_hand.pop().region
            if not self.arena.stopped:
                self.queued[region.number] = region
            c.outbox.append(lambda now_s: self.arena.returned(c.name, region.number, now_s))

    def check(self) -> None:
        in_flight = [a.region for c in self.consumers for a in c.inbox if isinstance(a, Hand)]
        granted = [a.region for p in self.producers for a in p.inbox if isinstance(a, Grant)]
        at_hand = [hand.region for c in self.consumers for hand in c.at_hand]
        held = [region for c in self.consumers for region in c.held]
        opened = [p.open for p in self.producers if p.open is not None]
        everything = [*in_flight, *granted, *at_hand, *held, *opened, *self.filled, *self.queued.values()]
        assert len({region.number for region in everything}) == len(everything)
        assert all(region.offset % ALIGNMENT == 0 for region in everything)
        spans = sorted((region.offset, max(1, region.size_bytes)) for region in everything)
        for (offset, size), (after, _) in itertools.pairwise(spans):
            assert offset + size <= after
        assert not spans or spans[-1][0] + spans[-1][1] <= self.arena.size_bytes
        assert self.arena.used_bytes <= self.arena.peak_bytes <= self.arena.size_bytes
        assert not (self.arena.queued and any(self.arena.waits(c.name) for c in self.consumers))
        assert max(self.begun.values(), default=0) <= 1
        assert self.granted == self.asked[: len(self.granted)]
        assert max(self.ends.values(), default=0) <= 1


@settings(max_examples=300, deadline=None)
@given(
    st.integers(1, 16),
    st.lists(JOBS, min_size=1, max_size=4),
    st.lists(st.integers(0, 1), min_size=1, max_size=4),
    st.integers(0, 3),
    st.one_of(st.none(), st.integers(0, 200)),
    st.integers(0, 1 << 32),
)
def test_laws(
    size: int, jobs: list[list[int]], ahead: list[int], barrier: int, stop_after: int | None, seed: int
) -> None:
    world = World(size, jobs, ahead, barrier, seed)
    world.run(stop_after)
    arena = world.arena
    assert all(member.done for member in world.members.values()), "deadlock"
    assert world.ends == Counter(c.name for c in world.consumers)
    assert arena.used_bytes == 0
    assert arena._space.free == [(0, arena.size_bytes)]
    assert world.granted == world.asked
    if not arena.stopped:
        assert world.begun == Counter(world.published)
        assert [world.sequences[number] for number in world.published] == list(range(len(world.published)))
        assert len(arena.arrivals) == len(arena.services) == len(world.published)
    assert sorted(service.sequence for service in arena.services) == sorted(
        world.sequences[number] for number in world.begun
    )
    assert all(0 <= arena.waited_s(name, world.now_s) <= world.now_s for name in world.members)


@given(st.lists(st.tuples(st.integers(1, 8), st.integers(0, 7))), st.integers(8, 40))
def test_free_ranges_never_touch_and_give_back_is_the_inverse_of_place(
    wanted: list[tuple[int, int]], size: int
) -> None:
    space = Space(size)
    taken: list[tuple[int, int]] = []
    for length, choice in wanted:
        offset = space.place(length)
        if offset is None:
            assert all(room < length for _, room in space.free)
            if taken:
                space.give_back(*taken.pop(choice % len(taken)))
        else:
            taken.append((offset, length))
        assert sum(room for _, room in space.free) + sum(length for _, length in taken) == size
        for (begin, room), (after, _) in itertools.pairwise(space.free):
            assert begin + room < after
    for place in taken:
        space.give_back(*place)
    assert space.free == [(0, size)]


def test_a_large_reservation_is_not_starved_by_small_ones() -> None:
    arena = Arena(4 * ALIGNMENT, ["a", "b", "c"], {"x": 0})
    arena.reserve("a", 3 * ALIGNMENT, 0)
    assert arena.reserve("b", 2 * ALIGNMENT, 1) == []
    assert arena.reserve("c", ALIGNMENT, 2) == []  # it would fit, and comes after
    large, small = arena.abandon("a", 5)
    assert isinstance(large, Grant)
    assert isinstance(small, Grant)
    assert (large.producer, small.producer) == ("b", "c")
    assert (arena.waited_s("b", 9), arena.waited_s("c", 9)) == (4, 3)


def test_what_can_never_be_granted_is_refused_in_one_line() -> None:
    arena = Arena(10 * ALIGNMENT, ["a"], {"x": 0})
    with pytest.raises(ArenaError, match=r"a batch of 700 bytes cannot be queued: the queue holds 640 bytes"):
        arena.reserve("a", 700, 0)
    arena.reserve("a", 640, 0)
    with pytest.raises(ArenaError, match=r"a asks for 64 bytes while it fills another batch"):
        arena.reserve("a", 64, 0)


def test_a_batch_as_large_as_the_bound_fits() -> None:
    arena = Arena(1001, ["a"], {"x": 0})
    assert arena.reserve("a", 1001, 0) == [Grant("a", Region(0, 0, 1001))]


def test_an_untouched_batch_is_called_back_for_one_that_waits() -> None:
    arena = Arena(4 * ALIGNMENT, ["p"], {"busy": 1, "hungry": 0})
    first, second = (_publish(arena, at_s) for at_s in (0.0, 1.0))
    assert isinstance(first, Hand)
    assert first.consumer == "busy"
    assert second is None  # queued: busy has one at hand
    (hand,) = arena.take("hungry", 2)
    assert isinstance(hand, Hand)
    assert hand.sequence == 1
    (recall,) = arena.take("hungry", 3)
    assert recall == Recall("busy", first.region)
    (again,) = arena.returned("busy", first.region.number, 4)
    assert again == Hand("hungry", first.region, 0)
    assert arena.waited_s("hungry", 9) == 1


def _publish(arena: Arena, at_s: float) -> Answer | None:
    arena.reserve("p", ALIGNMENT, at_s)
    return next(iter(arena.publish("p", at_s)), None)
