"""Threads of a worker on a CPU: what is said, else a thread an idle core."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from training import threads
from training.threads import Threads, busy_shares, choose_threads, core_times, idle_cores


@pytest.mark.parametrize(("said", "count"), [("1", 1), ("3", 3), ("2,4", 2), (" 6 ", 6)])
def test_what_is_said_is_taken(said: str, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "LOOK_S", math.nan)  # nothing is looked at
    assert choose_threads({"OMP_NUM_THREADS": said}) == Threads(count, "OMP_NUM_THREADS")


@pytest.mark.parametrize("said", ["", "0", "-1", "many"])
def test_else_the_cores_are_looked_at(said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "LOOK_S", 0.0)
    found = choose_threads({"OMP_NUM_THREADS": said})
    assert found.count >= 1
    assert "core" in found.why


@given(
    st.lists(st.integers(1, 3), min_size=1, max_size=8), st.data(), st.one_of(st.just(math.inf), st.floats(0.1, 9.0))
)
def test_a_thread_an_idle_core_within_the_quota_and_at_least_one(
    sizes: list[int], data: st.DataObject, limit: float
) -> None:
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    cores = {frozenset(range(start, start + size)) for start, size in zip(starts, sizes, strict=True)}
    busy = {cpu: data.draw(st.sampled_from([0.0, 0.4, 0.6, 1.0])) for core in cores for cpu in core}
    found = idle_cores(cores, busy, limit)
    idle = [core for core in cores if all(busy[cpu] < 0.5 for cpu in core)]
    assert found.count == max(1, min(len(idle), math.floor(min(limit, 99.0))))
    assert idle_cores(cores, {}, math.inf).count == len(cores)


def test_two_threads_of_a_core_are_one_and_busy_ones_are_said() -> None:
    cores = {frozenset({0, 4}), frozenset({1, 5})}
    assert idle_cores(cores, {}) == Threads(2, "of 2 cores; OMP_NUM_THREADS sets another number")
    assert idle_cores(cores, {5: 0.9}) == Threads(1, "of 2 cores, 1 busy; OMP_NUM_THREADS sets another number")
    assert idle_cores(cores, {0: 1.0, 1: 1.0}).count == 1
    assert idle_cores(cores, {}, 1.5) == Threads(1, "of 2 cores, as many as the quota allows")


def test_ticks_of_the_kernel_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stat = tmp_path / "stat"
    monkeypatch.setattr(threads, "STAT", stat)
    stat.write_text("cpu  9 9 9 9 9 9 9 9 9 9\ncpu0 10 0 5 80 5 0 0 0 7 0\ncpu1 1 1 1 1 1 1 1 1 1 1\nintr 5\n")
    before = core_times({0})
    assert before == {0: (15.0, 100.0)}
    stat.write_text("cpu0 85 0 5 100 10 0 0 0 7 0\n")
    assert busy_shares(before, core_times({0})) == {0: 0.75}
    assert busy_shares(before, before) == {0: 0.0}
    stat.unlink()
    assert core_times({0}) == {}
