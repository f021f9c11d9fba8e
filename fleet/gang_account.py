"""What a gang's run was like: how its members spent their time, how full its queue was. Pure, from the arena's log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from fleet.arena import Arena
from fleet.round_robin import round_robin_idle_s, shared_idle_s

Role = Literal["producer", "consumer"]


class Named(Protocol):
    """A member, as far as it is counted here."""

    @property
    def name(self) -> str:
        """Its own."""

    @property
    def role(self) -> Role:
        """What it does."""


@dataclass(frozen=True)
class MemberAccount:
    """One member's time, from when all were up until its main returned."""

    name: str
    role: Role
    busy_s: float
    waiting_s: float
    """A producer waited for room, a consumer for a batch."""
    batches: int
    """Published, or taken and worked through."""

    @property
    def idle_share(self) -> float:
        """Waiting over all of its time."""
        all_s = self.busy_s + self.waiting_s
        return self.waiting_s / all_s if all_s else 0.0


@dataclass(frozen=True)
class Account:
    """A gang's figures."""

    members: tuple[MemberAccount, ...]
    queue_bytes: int
    """The bound."""
    peak_bytes: int
    """The most that was ever reserved, queued or read at once."""
    queued: int
    """Batches that nobody has taken, now."""
    queued_bytes: int
    idle_s: float
    """Of all consumers together, until the last batch was done."""
    round_robin_idle_s: float
    """The same, had the same batches been dealt to the consumers in turn."""

    @property
    def batches_by_consumer(self) -> dict[str, int]:
        """Batches that each consumer has worked through."""
        return {member.name: member.batches for member in self.members if member.role == "consumer"}


@dataclass(frozen=True)
class Depth:
    """What is cheap to know of a running gang, however long it has run."""

    members: tuple[MemberAccount, ...]
    """Their times; batches are not counted (0)."""
    queue_bytes: int
    queued_bytes: int


def account_of(
    arena: Arena,
    members: Sequence[Named],
    finished_s: Mapping[str, float],
    published: Mapping[str, int],
    started_s: float | None,
    now_s: float,
) -> Account:
    """The figures until now.

    Args:
        arena: the queue's state, with its log.
        members: all of them.
        finished_s: when the main of each one returned that has.
        published: batches by producer.
        started_s: when all were up; None: they are not.
        now_s: the present, of the same clock.
    """
    taken = Counter(service.consumer for service in arena.services)
    consumers = sum(member.role == "consumer" for member in members)
    accounts = [
        replace(one, batches=published.get(one.name, 0) if one.role == "producer" else taken[one.name])
        for one in times_of(arena, members, finished_s, started_s, now_s)
    ]
    services = sorted(arena.services, key=lambda service: service.sequence)
    arrivals_s = [arena.arrivals[service.sequence].at_s for service in services]
    durations_s = [service.done_s - service.taken_s for service in services]
    begun = started_s is not None and bool(services)
    return Account(
        members=tuple(accounts),
        queue_bytes=arena.size_bytes,
        peak_bytes=arena.peak_bytes,
        queued=arena.queued,
        queued_bytes=arena.queued_bytes,
        idle_s=shared_idle_s(services, consumers, started_s or 0.0) if begun else 0.0,
        round_robin_idle_s=round_robin_idle_s(arrivals_s, durations_s, consumers, started_s or 0.0) if begun else 0.0,
    )


def times_of(
    arena: Arena,
    members: Sequence[Named],
    finished_s: Mapping[str, float],
    started_s: float | None,
    now_s: float,
) -> list[MemberAccount]:
    """How members spent their time until now, of arguments as account_of has them; batches are not counted."""
    accounts = []
    for member in members:
        waiting_s = arena.waited_s(member.name, now_s)
        all_s = 0.0 if started_s is None else finished_s.get(member.name, now_s) - started_s
        accounts.append(MemberAccount(member.name, member.role, max(0.0, all_s - waiting_s), waiting_s, 0))
    return accounts
