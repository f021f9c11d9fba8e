"""Laws of top-ups: asking what is said brings a category to its target, and never more than there is is asked."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from corpus.selection import split_quota
from generation.topup import (
    FEW,
    MIN_RATE,
    Standing,
    allowed,
    rescaled,
    shortest_quota,
    still_short,
    surplus,
    top_ups,
)

EPSILON = 1e-6
NAMES = ("agent", "coding", "math")


@st.composite
def standing(draw: st.DrawFn) -> Standing:
    asked = draw(st.integers(0, 300))
    pending = draw(st.integers(0, asked))
    accepted = draw(st.integers(0, asked - pending))
    mean = draw(st.sampled_from([1.0, 2.5, 400.0]))
    return Standing(
        target=draw(st.integers(0, 400)) * mean,
        asked=asked,
        accepted=accepted,
        pending=pending,
        got=accepted * draw(st.sampled_from([1.0, 0.5, 1.7])) * mean,
        room=draw(st.integers(0, 300)),
        planned_mean=mean,
    )


builds = st.dictionaries(st.sampled_from(NAMES), standing(), min_size=1)
tolerances = st.sampled_from([0.0, 0.5, 3.0])


@given(builds, tolerances)
def test_what_is_asked_closes_the_gap_at_the_observed_rate_and_no_prompt_of_it_is_too_many(
    standings: dict[str, Standing], tolerance: float
) -> None:
    more = top_ups(standings, tolerance)
    for name, one in standings.items():
        each = one.rate * one.mean
        margin = allowed(standings, name, tolerance)
        if name not in more:
            assert one.short <= margin or not one.room
            continue
        prompts = more[name]
        assert one.short > margin
        assert 0 < prompts <= one.room
        assert one.short - (prompts - 1) * each > -EPSILON * one.target  # one fewer would not do, or be just enough
        if prompts < one.room:
            assert one.short - prompts * each <= EPSILON * one.target
            asked = replace(one, asked=one.asked + prompts, pending=one.pending + prompts, room=one.room - prompts)
            assert name not in top_ups(standings | {name: asked}, tolerance)  # nothing is asked twice


@given(builds, tolerances, st.sampled_from(NAMES), st.integers(1, 50))
def test_who_is_missing_more_is_asked_more(
    standings: dict[str, Standing], tolerance: float, name: str, prompts: int
) -> None:
    if name not in standings:
        return
    one = standings[name]
    before = top_ups(standings, tolerance).get(name, 0)
    fewer = replace(one, got=one.got, target=one.target + prompts * one.mean * (1 + 3 * tolerance))
    assert top_ups(standings | {name: fewer}, tolerance).get(name, 0) >= before
    pending = replace(one, asked=one.asked + prompts, pending=one.pending + prompts)
    assert top_ups(standings | {name: pending}, tolerance).get(name, 0) <= before


def test_a_rate_is_believed_from_a_few_on_and_never_below_its_floor() -> None:
    one = Standing(target=100, asked=FEW - 1, accepted=0, pending=0, got=0.0, room=9)
    assert one.rate == 1.0
    assert replace(one, asked=FEW).rate == MIN_RATE
    assert replace(one, asked=40, accepted=30, got=30.0).rate == 0.75
    assert replace(one, asked=40, accepted=30, got=90.0, planned_mean=7.0).mean == 3.0
    assert replace(one, accepted=FEW - 1, got=90.0, planned_mean=7.0).mean == 7.0


@pytest.mark.parametrize("seed", range(20))
def test_rounds_of_top_ups_end_and_end_within_tolerance_or_without_room(seed: int) -> None:
    draw = random.Random(seed)
    tolerance = 0.5
    rates = {name: draw.uniform(0.1, 1.0) for name in NAMES}
    targets = {name: draw.randint(50, 2000) for name in NAMES}
    standings = {
        name: Standing(targets[name], targets[name], 0, targets[name], 0.0, draw.randint(0, 20_000)) for name in NAMES
    }
    for _ in range(30):
        for name, one in standings.items():  # what is pending ends
            accepted = one.accepted + sum(draw.random() < rates[name] for _ in range(one.pending))
            standings[name] = replace(one, accepted=accepted, got=float(accepted), pending=0)
        more = top_ups(standings, tolerance)
        if not more:
            break
        for name, prompts in more.items():
            one = standings[name]
            standings[name] = replace(one, asked=one.asked + prompts, pending=prompts, room=one.room - prompts)
    assert not top_ups(standings, tolerance)
    short = still_short(standings, tolerance)
    for name, one in standings.items():
        assert (name in short) == (one.short > allowed(standings, name, tolerance))
        assert name not in short or not one.room
        assert one.got <= one.target * 1.15 + 30  # rates that were misjudged ask little too much


@given(builds, tolerances)
def test_who_is_short_for_good_has_nothing_pending_and_nothing_left(
    standings: dict[str, Standing], tolerance: float
) -> None:
    short = still_short(standings, tolerance)
    assert set(short).isdisjoint(top_ups(standings, tolerance))
    for name, missing in short.items():
        assert not standings[name].pending
        assert not standings[name].room
        assert missing == standings[name].short > allowed(standings, name, tolerance)


@given(builds)
def test_rescaled_targets_keep_their_proportions_and_can_be_reached(standings: dict[str, Standing]) -> None:
    after = rescaled(standings)
    factors = {after[name].target / one.target for name, one in standings.items() if one.target}
    assert all(0 <= factor <= 1 for factor in factors)
    assert not factors or max(factors) - min(factors) < EPSILON
    for name, one in after.items():
        assert replace(one, target=standings[name].target) == standings[name]
        if not one.room and not one.pending:
            assert one.got >= one.target * (1 - EPSILON)
    assert not still_short(after, 0.0)
    if all(one.room or one.pending or one.got >= one.target for one in standings.values()):
        assert after == standings
    again = rescaled(after)
    assert {name: one.target for name, one in again.items()} == pytest.approx(
        {name: one.target for name, one in after.items()}
    )


@given(builds, tolerances)
def test_a_surplus_is_what_is_over_the_target_by_more_than_the_tolerance(
    standings: dict[str, Standing], tolerance: float
) -> None:
    over = surplus(standings, tolerance)
    for name, one in standings.items():
        assert (name in over) == (one.got - one.target > allowed(standings, name, tolerance))
        assert over.get(name, one.target) == one.target
    assert set(over).isdisjoint(still_short(standings, tolerance))


@given(builds, tolerances, tolerances)
def test_a_larger_tolerance_allows_more_and_at_least_one_prompt(
    standings: dict[str, Standing], one: float, other: float
) -> None:
    small, large = sorted((one, other))
    for name, standing in standings.items():
        assert standing.mean <= allowed(standings, name, small) <= allowed(standings, name, large)


amounts = st.lists(st.sampled_from([0.0, 1.0, 2.5]), max_size=8)


@given(
    st.dictionaries(st.sampled_from("abc"), st.tuples(amounts, st.sampled_from([0.5, 1.0, 3.0])), min_size=1),
    st.floats(0, 30),
    st.integers(1, 3),
)
def test_the_shortest_quota_is_the_smallest_that_brings_so_much(
    sources: dict[str, tuple[list[float], float]], wanted: float, replicas: int
) -> None:
    brings = {name: np.array(rows * replicas) for name, (rows, _) in sources.items()}
    weights = {name: weight for name, (_, weight) in sources.items()}
    available = {name: len(rows) for name, (rows, _) in sources.items()}
    whole = sum(len(rows) for rows in brings.values())

    def brought(quota: int) -> float:
        return float(sum(brings[name][:rows].sum() for name, rows in split_quota(quota, available, weights).items()))

    enough = [quota for quota in range(whole + 1) if brought(quota) >= wanted]
    assert shortest_quota(brings, weights, available, wanted) == (enough[0] if enough else whole)
