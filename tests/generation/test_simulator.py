"""The simulator: against one that makes every step singly, and against what no run can beat."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from generation.engine import capacity_of
from generation.simulator import (
    Engines,
    Item,
    StepModel,
    fit_step,
    longest_answer_s,
    round_robin,
    simulate,
    static_split,
    total_work_s,
)

TICK = 1 / 64
"""All times are multiples of it, so that sums of floats are exact in any order."""
ticks = st.integers(0, 40).map(lambda n: n * TICK)
items_of = st.lists(st.builds(Item, st.integers(0, 9), st.integers(1, 30) | st.just(200)), min_size=1, max_size=40)


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[Item], Engines, list[int], list[int] | None]:
    items = draw(items_of)
    step = StepModel(draw(ticks), draw(st.integers(1, 40)) * TICK, draw(ticks))
    latency_s = draw(ticks) * draw(st.sampled_from([0, 1, 30]))  # slow: an engine has room and nothing that waits
    engines = Engines(draw(st.integers(1, 4)), draw(st.integers(1, 6)), step, latency_s)
    order = draw(st.permutations(range(len(items))))
    own = draw(st.booleans())
    engine_of = [draw(st.integers(0, engines.count - 1)) for _ in order] if own else None
    return items, engines, list(order), engine_of


def slow_pull(tokens: list[int]) -> tuple[list[Item], Engines, list[int], None]:
    """One long answer runs on while its engine has room and the short ones are on their way."""
    items = [Item(0, 600), *(Item(1, count) for count in tokens)]
    return items, Engines(1, 3, StepModel(TICK, TICK, TICK), 200 * TICK), list(range(len(items))), None


class Reference:
    """One step at a time, everything looked up in lists."""

    def __init__(self, items: list[Item], engines: Engines, order: list[int], engine_of: list[int] | None) -> None:
        self.items, self.engines = items, engines
        self.queue = [(item, engine_of[place] if engine_of else None) for place, item in enumerate(order)]
        self.ended: dict[int, float] = {}
        self.engine: dict[int, int] = {}
        held: list[list[tuple[float, int]]] = [[] for _ in range(engines.count)]
        running: list[dict[int, int]] = [{} for _ in range(engines.count)]
        for _ in range(engines.capacity):
            for number in range(engines.count):
                self.pull(number, 0.0, held)
        clocks = [engines.latency_s] * engines.count
        while any(held) or any(running):
            number = min((n for n in range(engines.count) if held[n] or running[n]), key=lambda n: (clocks[n], n))
            now = clocks[number]
            for item in sorted(item for item, left in running[number].items() if not left):
                del running[number][item]
                self.ended[item] = now
                self.pull(number, now, held)
            prompt = 0
            while held[number] and held[number][0][0] <= now and len(running[number]) < engines.max_num_seqs:
                item = held[number].pop(0)[1]
                running[number][item] = items[item].response_tokens
                prompt += items[item].prompt_tokens
            if running[number]:
                for item in running[number]:
                    running[number][item] -= 1
                step = engines.step
                clocks[number] += step.base_s + len(running[number]) * step.per_running_s
                clocks[number] += prompt * step.per_prompt_token_s
            elif held[number]:
                clocks[number] = held[number][0][0]

    def pull(self, number: int, now: float, held: list[list[tuple[float, int]]]) -> None:
        for place, (item, owner) in enumerate(self.queue):
            if owner in {None, number}:
                del self.queue[place]
                self.engine[item] = number
                held[number].append((now + self.engines.latency_s, item))
                return


@given(cases())
@example(slow_pull([1] * 12))
@example(slow_pull([2, 5, 3, 7, 2, 5, *[40] * 6]))
def test_jumps_are_steps(case: tuple[list[Item], Engines, list[int], list[int] | None]) -> None:
    items, engines, order, engine_of = case
    reference = Reference(items, engines, order, engine_of)
    run = simulate(items, engines, order, engine_of)
    assert list(run.ended_s) == [reference.ended[item] for item in range(len(items))]
    assert list(run.engine_of) == [reference.engine[item] for item in range(len(items))]
    if engine_of is not None:
        assert [run.engine_of[item] for item in order] == engine_of


@given(cases())
def test_laws(case: tuple[list[Item], Engines, list[int], list[int] | None]) -> None:
    items, engines, order, engine_of = case
    run = simulate(items, engines, order, engine_of)
    own = [sum(i.response_tokens for i, e in zip(items, run.engine_of, strict=True) if e == n) for n in range(4)]
    assert list(run.tokens) == own[: engines.count]
    assert sum(run.tokens) == sum(item.response_tokens for item in items)
    assert max(run.most_running) <= engines.max_num_seqs
    assert run.end_s == max(run.ended_s)
    assert run.dry_s <= run.end_s
    assert 0 <= run.idle_share <= 1
    assert 0 <= run.full_share <= 1
    for item, started_s, ended_s in zip(items, run.started_s, run.ended_s, strict=True):
        alone_s = item.response_tokens * engines.step.step_s(1) + item.prompt_tokens * engines.step.per_prompt_token_s
        assert ended_s - started_s >= alone_s
    assert run.end_s >= engines.latency_s + longest_answer_s(items, engines)
    assert run.end_s * engines.count >= total_work_s(items, engines) * (1 - 1e-12)


@given(items_of, st.integers(1, 6))
def test_total_work_is_reached_by_a_full_engine(items: list[Item], running: int) -> None:
    equal = [items[0]] * (running * 3)
    engines = Engines(1, running, StepModel(0.25, 0.5, 0.125))
    assert simulate(equal, engines, range(len(equal))).end_s == pytest.approx(total_work_s(equal, engines))


def test_full_and_idle() -> None:
    engines = Engines(2, 1, StepModel(1.0, 0.0))  # each holds 5
    items = [Item(0, 1)] * 12
    pulled = simulate(items, engines, range(12))
    assert (pulled.end_s, pulled.dry_s, pulled.full_share, pulled.idle_share) == (6.0, 1.0, 1.0, 0.0)
    apart = simulate(items, engines, range(12), [0] * 12)
    assert (apart.end_s, apart.dry_s, apart.full_share, apart.idle_share) == (12.0, 7.0, 0.5, 0.5)
    just_full = simulate([Item(0, 20), *items], engines, range(13), [1] + [0] * 12)
    assert (just_full.dry_s, just_full.full_share) == (7.0, 1.0), "one running of one is full"


def test_a_queue_of_the_engines_own_hides_a_slow_pull() -> None:
    step = StepModel(1.0, 0.0)
    items = [Item(0, 1)] * 50
    assert capacity_of(1) == 5
    assert simulate(items, Engines(1, 1, step, 3.0), range(50)).end_s == 3.0 + 50.0
    assert simulate(items, Engines(1, 1, step, 5.0), range(50)).end_s > 5.0 + 50.0
    assert simulate(items, Engines(1, 1, step, 3.0), range(50)).full_share == pytest.approx(1 - 3.0 / 48.0)


@given(st.integers(1, 200), st.integers(1, 9))
def test_shares(count: int, engines: int) -> None:
    for share in (round_robin(count, engines), static_split(count, engines)):
        sizes = [share.count(number) for number in range(engines)]
        assert sum(sizes) == len(share) == count
        assert max(sizes) - min(sizes) <= 1
    assert static_split(count, engines) == sorted(static_split(count, engines))
    assert all(number == place % engines for place, number in enumerate(round_robin(count, engines)))


@given(st.floats(0.001, 1), st.floats(0.001, 1), st.lists(st.integers(1, 256), min_size=2, max_size=20, unique=True))
def test_fit_finds_the_line(base: float, slope: float, counts: list[int]) -> None:
    step = fit_step([(count, base + slope * count) for count in counts], 0.5)
    assert step.base_s == pytest.approx(base, rel=1e-5, abs=1e-6)
    assert step.per_running_s == pytest.approx(slope, rel=1e-5)
    assert step.per_prompt_token_s == 0.5


def test_fit_has_no_negative_part() -> None:
    assert fit_step([(1, 3.0), (2, 1.0)]) == StepModel(2.0, 0.0)
    assert fit_step([(1, 1.0), (2, 3.0)]) == StepModel(0.0, 7 / 5)
    assert fit_step([(4, 2.0), (4, 4.0)]) == StepModel(0.0, 0.75)
    with pytest.raises(ValueError, match="no step was measured"):
        fit_step([])


def test_refusals() -> None:
    engines = Engines(2, 1, StepModel(1.0, 0.0))
    for order in ([0, 0], [0], [0, 2]):
        with pytest.raises(ValueError, match="each item once"):
            simulate([Item(1, 1)] * 2, engines, order)
    with pytest.raises(ValueError, match="one of 2 engines"):
        simulate([Item(1, 1)] * 2, engines, [0, 1], [0, 2])
    with pytest.raises(ValueError, match=r"items\[1\]"):
        simulate([Item(1, 1), Item(1, 0)], engines, [0, 1])
    with pytest.raises(ValueError, match="at least 1"):
        Engines(0, 1, StepModel(1.0, 0.0))
    with pytest.raises(ValueError, match="longer than 0 s"):
        StepModel(0.0, 0.0)


def test_longest_expected_first_ends_in_time() -> None:
    """20,000 lognormal answers known with correlation 0.7, an engine that gains nothing from a smaller batch."""
    chance = np.random.default_rng(7)
    known, unknown = chance.standard_normal((2, 20_000))
    length = 200 * np.exp(0.7 * known + np.sqrt(1 - 0.49) * unknown)
    items = [Item(0, max(1, round(tokens))) for tokens in length.tolist()]
    engines = Engines(8, 32, StepModel(0.08, 0.0), 0.01)
    bound = max(total_work_s(items, engines) / 8, longest_answer_s(items, engines))
    ours = simulate(items, engines, np.argsort(-known, kind="stable").tolist())
    assert ours.end_s <= 1.05 * bound
    arrival = range(len(items))
    for others in (None, round_robin(len(items), 8), static_split(len(items), 8)):
        assert simulate(items, engines, arrival, others).end_s > 1.05 * bound
