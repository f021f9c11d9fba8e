"""Who works on what: a pure state machine over workers and items.

`react(state, event)` returns the next state and what must be done. It knows ids, weights and crashes, never
payloads, processes or clocks. Held by its laws: a submitted item ends exactly once, as returned or as set
aside, or is still here; no item is leased to two living workers; only an item that was alone on a worker
that died is set aside.

Blame. When a worker dies, each item that it held has one crash more. Below `item_crashes` an item goes back
to the front of the queue. At or above, it is a suspect: the suspects of one death are halved into two groups,
and a group runs only on a worker that holds nothing else and takes nothing else until the group is through
(a worker that was just restarted, first of all). So k deaths part one bad item from 2**k neighbours, who end
as done; an item that is alone when the worker dies is set aside. Every death with items in flight raises
their counts or halves their group: deaths are bounded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

Key = tuple[int, float, int]
"""(0 if it comes back from a death else 1, -weight, order of arrival): the smallest is handed out first."""


class Entry(NamedTuple):
    """One waiting item."""

    key: Key
    item_id: str


class Heap(NamedTuple):
    """A leftist heap: immutable, so a state can be kept, compared and replayed; push and pop are O(log n)."""

    entry: Entry
    rank: int
    left: Heap | None
    right: Heap | None


@dataclass(frozen=True)
class Worker:
    """A living worker: how much it takes, what it holds, and whether that is a group of suspects."""

    capacity: int
    leases: Mapping[str, Key] = field(default_factory=dict)
    suspects: bool = False

    @property
    def room(self) -> int:
        """Items that it may be given from the queue."""
        return 0 if self.suspects else self.capacity - len(self.leases)


@dataclass(frozen=True)
class State:
    """Everything that is not finished."""

    item_crashes: int = 2
    queue: Heap | None = None
    queued: int = 0
    groups: tuple[tuple[Entry, ...], ...] = ()
    workers: Mapping[int, Worker] = field(default_factory=dict)
    crashes: Mapping[str, int] = field(default_factory=dict)
    arrivals: int = 0
    draining: bool = False

    @property
    def in_flight(self) -> int:
        """Items on a worker."""
        return sum(len(worker.leases) for worker in self.workers.values())

    @property
    def waiting(self) -> int:
        """Items on no worker."""
        return self.queued + sum(len(group) for group in self.groups)


@dataclass(frozen=True)
class Submitted:
    """A new item; its id is not among those that are unfinished."""

    item_id: str
    weight: float = 0.0


@dataclass(frozen=True)
class Joined:
    """A worker is ready. Numbers are never used again."""

    worker: int
    capacity: int


@dataclass(frozen=True)
class Returned:
    """A worker gave an item back, with an answer or an error of its own."""

    worker: int
    item_id: str


@dataclass(frozen=True)
class Died:
    """A worker is no more."""

    worker: int


@dataclass(frozen=True)
class Drain:
    """Hand out nothing more."""


@dataclass(frozen=True)
class Send:
    """Give the item to the worker."""

    worker: int
    item_id: str


@dataclass(frozen=True)
class SetAside:
    """The item has failed: it was alone on a worker that died, and in flight in `crashes` deaths."""

    item_id: str
    crashes: int


Event = Submitted | Joined | Returned | Died | Drain
Action = Send | SetAside


def react(state: State, event: Event) -> tuple[State, tuple[Action, ...]]:
    """The state after an event, and what must now be done, in order."""
    match event:
        case Submitted(item_id, weight):
            entry = Entry((1, -weight, state.arrivals), item_id)
            state = replace(_queue(state, entry), arrivals=state.arrivals + 1)
        case Joined(number, capacity):
            state = replace(state, workers={**state.workers, number: Worker(max(1, capacity))})
        case Returned(number, item_id):
            state = _returned(state, number, item_id)
        case Died(number):
            state, set_aside = _died(state, number)
            state, sends = _hand_out(state)
            return state, (*set_aside, *sends)
        case Drain():
            state = replace(state, draining=True)
    return _hand_out(state)


def waiting_ids(state: State) -> list[str]:
    """The items that are on no worker: suspects first, then in the order of the queue."""
    ids = [entry.item_id for group in state.groups for entry in group]
    queue = state.queue
    while queue is not None:
        ids.append(queue.entry.item_id)
        queue = _merge(queue.left, queue.right)
    return ids


def _returned(state: State, number: int, item_id: str) -> State:
    worker = state.workers.get(number)
    if worker is None or item_id not in worker.leases:
        return state  # the worker died in between, and the item is back in the queue
    leases = {held: key for held, key in worker.leases.items() if held != item_id}
    worker = replace(worker, leases=leases, suspects=worker.suspects and bool(leases))
    crashes = state.crashes
    if item_id in crashes:
        crashes = {other: count for other, count in crashes.items() if other != item_id}
    return replace(state, workers={**state.workers, number: worker}, crashes=crashes)


def _died(state: State, number: int) -> tuple[State, tuple[Action, ...]]:
    worker = state.workers.get(number)
    if worker is None:
        return state, ()
    crashes = {**state.crashes, **{item: state.crashes.get(item, 0) + 1 for item in worker.leases}}
    living = {other: held for other, held in state.workers.items() if other != number}
    state = replace(state, workers=living, crashes=crashes)
    held = sorted(Entry(key, item_id) for item_id, key in worker.leases.items())
    suspects = [entry for entry in held if crashes[entry.item_id] >= state.item_crashes]
    if len(held) == 1 and suspects:
        item_id = suspects[0].item_id
        rest = {other: count for other, count in crashes.items() if other != item_id}
        return replace(state, crashes=rest), (SetAside(item_id, crashes[item_id]),)
    for entry in held:
        if crashes[entry.item_id] < state.item_crashes:
            state = _queue(state, Entry((0, *entry.key[1:]), entry.item_id))
    middle = (len(suspects) + 1) // 2
    halves = tuple(tuple(half) for half in (suspects[:middle], suspects[middle:]) if half)
    return replace(state, groups=(*halves, *state.groups)), ()


def _hand_out(state: State) -> tuple[State, tuple[Action, ...]]:
    """Fill the workers: groups of suspects to empty ones, then the queue to whoever has most room."""
    if state.draining:
        return state, ()
    workers = dict(state.workers)
    groups = list(state.groups)
    queue, queued = state.queue, state.queued
    sends: list[Action] = []
    for number, worker in workers.items():
        if groups and not worker.leases:
            group = groups.pop(0)
            if len(group) > worker.capacity:
                groups.insert(0, group[worker.capacity :])
                group = group[: worker.capacity]
            workers[number] = replace(worker, leases={item: key for key, item in group}, suspects=True)
            sends.extend(Send(number, entry.item_id) for entry in group)
    while queue is not None and workers:
        number, worker = max(workers.items(), key=lambda pair: pair[1].room / pair[1].capacity)
        if worker.room <= 0:
            break
        entry, queue, queued = queue.entry, _merge(queue.left, queue.right), queued - 1
        workers[number] = replace(worker, leases={**worker.leases, entry.item_id: entry.key})
        sends.append(Send(number, entry.item_id))
    if not sends:
        return state, ()
    return replace(state, workers=workers, groups=tuple(groups), queue=queue, queued=queued), tuple(sends)


def _queue(state: State, entry: Entry) -> State:
    return replace(state, queue=_merge(state.queue, Heap(entry, 1, None, None)), queued=state.queued + 1)


def _merge(first: Heap | None, second: Heap | None) -> Heap | None:
    """Join two heaps along their right spines, which hold at most log2(n + 1) entries each."""
    if first is None or second is None:
        return first if second is None else second
    if second.entry < first.entry:
        first, second = second, first
    left, right = first.left, _merge(first.right, second)
    if left is None or (right is not None and left.rank < right.rank):
        left, right = right, left
    return Heap(first.entry, 1 if right is None else right.rank + 1, left, right)
