"""Idle time of one shared queue and of batches dealt in turn, from the same log."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.arena import Service
from fleet.round_robin import round_robin_idle_s, shared_idle_s

LOG = st.lists(st.tuples(st.floats(0, 10), st.floats(0.1, 10)), min_size=1, max_size=30)


def shared_queue(arrivals_s: list[float], service_s: list[float], consumers: int) -> list[Service]:
    """First in, first out, to whoever is free first."""
    free_s = [0.0] * consumers
    services = []
    for sequence, (arrival_s, duration_s) in enumerate(zip(arrivals_s, service_s, strict=True)):
        mine = min(range(consumers), key=lambda i: free_s[i])
        taken_s = max(free_s[mine], arrival_s)
        free_s[mine] = taken_s + duration_s
        services.append(Service(str(mine), sequence, taken_s, free_s[mine]))
    return services


def log_of(steps: list[tuple[float, float]]) -> tuple[list[float], list[float]]:
    arrivals_s, now_s = [], 0.0
    for gap_s, _ in steps:
        now_s += gap_s
        arrivals_s.append(now_s)
    return arrivals_s, [duration_s for _, duration_s in steps]


def test_by_hand() -> None:
    # c0 works 10 s on the first; dealt in turn, the third waits for it while c1 stands idle
    arrivals_s, service_s = [0.0, 0.0, 0.0, 0.0], [10.0, 1.0, 10.0, 1.0]
    services = shared_queue(arrivals_s, service_s, 2)
    assert shared_idle_s(services, 2, 0.0) == 2 * 11 - 22
    assert round_robin_idle_s(arrivals_s, service_s, 2, 0.0) == 2 * 20 - 22


def test_nothing_was_worked_on() -> None:
    assert shared_idle_s([], 2, 0.0) == round_robin_idle_s([], [], 2, 0.0) == 0.0


@given(LOG)
def test_for_one_consumer_both_are_the_same(steps: list[tuple[float, float]]) -> None:
    arrivals_s, service_s = log_of(steps)
    services = shared_queue(arrivals_s, service_s, 1)
    assert round_robin_idle_s(arrivals_s, service_s, 1, 0.0) == pytest.approx(shared_idle_s(services, 1, 0.0))


@given(LOG, st.integers(1, 4), st.floats(0.1, 10))
def test_for_equal_batches_both_are_the_same(steps: list[tuple[float, float]], consumers: int, each_s: float) -> None:
    arrivals_s, _ = log_of(steps)
    service_s = [each_s] * len(steps)
    services = shared_queue(arrivals_s, service_s, consumers)
    assert round_robin_idle_s(arrivals_s, service_s, consumers, 0.0) == pytest.approx(
        shared_idle_s(services, consumers, 0.0), abs=1e-6
    )


@given(LOG, st.integers(1, 4), st.floats(-100, 0))
def test_idle_is_never_negative_and_counts_the_time_before_the_first(
    steps: list[tuple[float, float]], consumers: int, start_s: float
) -> None:
    arrivals_s, service_s = log_of(steps)
    idle_s = round_robin_idle_s(arrivals_s, service_s, consumers, start_s)
    assert idle_s >= consumers * (arrivals_s[0] - start_s) - 1e-6
    later_s = [start_s + at_s for at_s in arrivals_s]
    assert round_robin_idle_s(later_s, service_s, consumers, start_s) == pytest.approx(
        round_robin_idle_s(arrivals_s, service_s, consumers, 0.0), abs=1e-6
    )
