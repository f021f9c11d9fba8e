"""The lease machine: nothing is lost, nothing is done twice, and the innocent are not blamed."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fleet.leases import (
    Action,
    Died,
    Drain,
    Event,
    Joined,
    Returned,
    Send,
    SetAside,
    State,
    Submitted,
    react,
    waiting_ids,
)


def snapshot(state: State) -> object:
    """All that a state says, apart from the objects that say it."""
    workers = {n: (w.capacity, dict(w.leases), w.suspects) for n, w in state.workers.items()}
    return waiting_ids(state), workers, dict(state.crashes), state.groups, state.draining


@dataclass
class World:
    """Workers as the machine sees them, with the actions carried out."""

    state: State
    holds: dict[int, list[str]] = field(default_factory=dict)
    submitted: list[str] = field(default_factory=list)
    returned: Counter[str] = field(default_factory=Counter)
    set_aside: Counter[str] = field(default_factory=Counter)
    sent: list[tuple[int, str]] = field(default_factory=list)
    workers: int = 0
    deaths: int = 0

    def tell(self, event: Event) -> tuple[Action, ...]:
        before, seen = self.state, snapshot(self.state)
        self.state, actions = react(before, event)
        assert snapshot(before) == seen, "react changed a state that it was given"
        for action in actions:
            match action:
                case Send(worker, item_id):
                    assert not any(item_id in held for held in self.holds.values()), "leased twice"
                    self.holds[worker].append(item_id)
                    self.sent.append((worker, item_id))
                case SetAside(item_id):
                    self.set_aside[item_id] += 1
        return actions

    def submit(self, weight: float = 0.0) -> str:
        item_id = f"item-{len(self.submitted)}"
        self.submitted.append(item_id)
        self.tell(Submitted(item_id, weight))
        return item_id

    def join(self, capacity: int) -> int:
        self.workers += 1
        self.holds[self.workers] = []
        self.tell(Joined(self.workers, capacity))
        return self.workers

    def give_back(self, worker: int, item_id: str) -> None:
        self.holds[worker].remove(item_id)
        self.returned[item_id] += 1
        self.tell(Returned(worker, item_id))

    def die(self, worker: int) -> None:
        self.deaths += 1
        held = self.holds.pop(worker)
        actions = self.tell(Died(worker))
        for action in actions:
            if isinstance(action, SetAside):
                assert held == [action.item_id], "set aside, and it was not alone"


class Crashes(RuleBasedStateMachine):
    """Any order of submissions, joins, returns, deaths and a drain."""

    @initialize(item_crashes=st.integers(1, 3))
    def start(self, item_crashes: int) -> None:
        self.world = World(State(item_crashes=item_crashes))

    @rule(weight=st.sampled_from([0.0, 1.0, 2.0]))
    def submit(self, weight: float) -> None:
        self.world.submit(weight)

    @precondition(lambda self: len(self.world.holds) < 4)
    @rule(capacity=st.integers(1, 4))
    def join(self, capacity: int) -> None:
        self.world.join(capacity)

    @precondition(lambda self: any(self.world.holds.values()))
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        worker = data.draw(st.sampled_from([w for w, held in self.world.holds.items() if held]))
        self.world.give_back(worker, data.draw(st.sampled_from(self.world.holds[worker])))

    @precondition(lambda self: self.world.holds)
    @rule(data=st.data())
    def die(self, data: st.DataObject) -> None:
        self.world.die(data.draw(st.sampled_from(sorted(self.world.holds))))

    @precondition(lambda self: not self.world.state.draining)
    @rule()
    def drain(self) -> None:
        assert self.world.tell(Drain()) == ()

    @rule(item=st.integers(0, 5))
    def a_late_return_is_ignored(self, item: int) -> None:
        before = snapshot(self.world.state)
        self.world.tell(Returned(10_000, f"item-{item}"))
        self.world.tell(Died(10_000))
        assert snapshot(self.world.state) == before

    @invariant()
    def every_item_is_in_exactly_one_place(self) -> None:
        if not hasattr(self, "world"):
            return
        world = self.world
        places = Counter(waiting_ids(world.state))
        places.update(item for held in world.holds.values() for item in held)
        places.update(world.returned)
        places.update(world.set_aside)
        assert places == Counter(world.submitted)
        assert world.state.in_flight == sum(map(len, world.holds.values()))
        assert world.state.waiting == len(waiting_ids(world.state))
        for number, worker in world.state.workers.items():
            assert set(worker.leases) == set(world.holds[number])
            assert len(worker.leases) <= worker.capacity

    @invariant()
    def no_room_is_left_while_items_wait(self) -> None:
        if hasattr(self, "world") and not self.world.state.draining and self.world.state.queued:
            assert all(worker.room <= 0 for worker in self.world.state.workers.values())


TestCrashes = Crashes.TestCase
TestCrashes.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)


def run_to_the_end(world: World, guilty: set[str], capacity: int, data: st.DataObject) -> None:
    """Workers die exactly when they hold a guilty item, in any order; a dead one is replaced."""
    while world.state.in_flight:
        worker = data.draw(st.sampled_from([w for w, held in world.holds.items() if held]))
        bad = guilty & set(world.holds[worker])
        if bad and (len(bad) == len(world.holds[worker]) or data.draw(st.booleans())):
            world.die(worker)
            world.join(capacity)
        else:
            world.give_back(worker, data.draw(st.sampled_from([i for i in world.holds[worker] if i not in guilty])))


@settings(max_examples=60, deadline=None)
@given(st.data(), st.integers(1, 30), st.integers(1, 8), st.integers(1, 3), st.integers(1, 3))
def test_only_the_guilty_are_set_aside(
    data: st.DataObject, items: int, capacity: int, workers: int, item_crashes: int
) -> None:
    world = World(State(item_crashes=item_crashes))
    for _ in range(items):
        world.submit()
    guilty = set(data.draw(st.lists(st.sampled_from(world.submitted), max_size=3, unique=True)))
    for _ in range(workers):
        world.join(capacity)
    run_to_the_end(world, guilty, capacity, data)
    assert set(world.set_aside) == guilty
    assert set(world.returned) == set(world.submitted) - guilty
    assert world.deaths <= len(guilty) * (item_crashes + math.ceil(math.log2(capacity + 1)) + 1)


def test_one_bad_item_among_many_costs_a_logarithm_of_deaths() -> None:
    world = World(State(item_crashes=2))
    for _ in range(256):
        world.submit()
    world.join(256)
    bad = "item-200"
    while world.state.in_flight:
        (worker,) = world.holds
        if bad in world.holds[worker]:
            world.die(worker)
            world.join(256)
        else:
            for item_id in list(world.holds[worker]):
                world.give_back(worker, item_id)
    assert set(world.set_aside) == {bad}
    assert len(world.returned) == 255
    assert world.deaths <= 2 + 8


def test_highest_weight_first_equals_in_order() -> None:
    world = World(State())
    for weight in (1.0, 3.0, 2.0, 3.0, 1.0):
        world.submit(weight)
    world.join(5)
    assert [item for _, item in world.sent] == ["item-1", "item-3", "item-2", "item-0", "item-4"]


def test_what_a_death_gives_back_comes_before_all_else() -> None:
    world = World(State())
    for _ in range(6):
        world.submit()
    first = world.join(2)
    world.submit(weight=9.0)
    world.die(first)
    world.join(3)
    assert [item for _, item in world.sent[2:]] == ["item-0", "item-1", "item-6"]


def test_items_go_to_the_emptiest_worker() -> None:
    world = World(State())
    world.join(4)
    world.join(4)
    for _ in range(4):
        world.submit()
    assert sorted(len(held) for held in world.holds.values()) == [2, 2]


def test_a_suspect_runs_alone_and_clears_its_name() -> None:
    world = World(State(item_crashes=1))
    for _ in range(3):
        world.submit()
    world.die(world.join(2))
    worker = world.join(2)
    assert world.holds[worker] == ["item-0"], "a group of one, though the queue has more"
    world.give_back(worker, "item-0")
    assert world.holds[worker] == ["item-1"]
    world.give_back(worker, "item-1")
    assert world.holds[worker] == ["item-2"]
    assert not world.state.crashes


def test_nothing_is_handed_out_while_draining() -> None:
    world = World(State())
    for _ in range(3):
        world.submit()
    worker = world.join(1)
    world.tell(Drain())
    world.give_back(worker, "item-0")
    world.join(5)
    assert world.state.in_flight == 0
    assert waiting_ids(world.state) == ["item-1", "item-2"]


def test_a_long_queue_stays_shallow() -> None:
    state = State()
    for index in range(20_000):
        state, _ = react(state, Submitted(str(index), weight=float(index % 97)))
    state, actions = react(state, Joined(1, 20_000))
    assert len(actions) == 20_000
    weights = [float(int(action.item_id) % 97) for action in actions if isinstance(action, Send)]
    assert weights == sorted(weights, reverse=True)
