"""The next mix: what holds of it whatever the shares, the traffic and the measurements are."""

from __future__ import annotations

import math
from dataclasses import replace
from decimal import Decimal

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from rich.cells import cell_len

from draftmill.suggestion import (
    FLOOR,
    GROWTH,
    STEP,
    Build,
    Measured,
    Suggestion,
    relative_growth,
    rounded,
    suggest,
)

CATEGORIES = ("agent", "coding", "general", "math", "日本語の長い長い分類")
Mix = dict[str, float]

weights = st.floats(0.02, 100)
lengths = st.builds(
    lambda tau, below, above: Measured(tau, max(1.0, tau * (1 - below)), tau * (1 + above)),
    st.floats(1.0, 16.0), st.floats(0, 0.3), st.floats(0, 0.3),
)  # fmt: skip
uncertain = st.one_of(lengths, st.builds(Measured, st.floats(1.0, 16.0)))
growths = st.dictionaries(st.sampled_from(CATEGORIES), st.floats(1 / GROWTH, GROWTH))


@st.composite
def cases(draw: st.DrawFn) -> tuple[Mix, dict[str, Measured], Mix | None, Mix]:
    """Shares, measurements of some of their categories, traffic or none, growth."""
    names = draw(st.lists(st.sampled_from(CATEGORIES), min_size=1, unique=True))
    shares = {name: draw(weights) for name in names}
    measured = {name: draw(uncertain) for name in names if draw(st.integers(0, 5))}
    traffic = {name: draw(st.one_of(st.just(0.0), weights)) for name in names} if draw(st.booleans()) else None
    flow = traffic or shares
    assume(any(flow[name] > 0 for name in measured))
    return shares, measured, traffic, draw(growths)


def percent(weights: Mix) -> Mix:
    whole = sum(weights.values())
    return {name: 100 * weight / whole for name, weight in weights.items()}


def narrow(tau: float) -> Measured:
    return Measured(tau, tau * 0.99, tau * 1.01)


def why(found: Suggestion) -> dict[str, str]:
    return {one.category: one.why for one in found.changes}


@given(cases())
def test_shares_sum_to_100_and_stay_within_a_step_and_above_the_floor(
    case: tuple[Mix, dict[str, Measured], Mix | None, Mix],
) -> None:
    shares, measured, traffic, growth = case
    found = suggest(shares, measured, traffic, growth)
    before = percent(shares)
    assert list(found.shares) == list(shares)
    assert math.fsum(found.shares.values()) == pytest.approx(100, abs=1e-6)
    for name, share in found.shares.items():
        assert before[name] / STEP - 1e-9 <= share <= before[name] * STEP + 1e-9
        assert share >= min(FLOOR, before[name]) - 1e-9
        if name not in measured:
            assert share == pytest.approx(before[name], rel=1e-12)
            assert why(found)[name] == "left: not measured"


@given(cases())
def test_every_line_is_a_reason_and_fits_80_columns(case: tuple[Mix, dict[str, Measured], Mix | None, Mix]) -> None:
    found = suggest(*case)
    lines = found.lines()
    assert len(lines) == 1 + len(case[0])
    assert max(map(cell_len, lines)) <= 80
    assert all(line.endswith(one.why) and one.why for line, one in zip(lines[1:], found.changes, strict=True))


@given(st.dictionaries(st.sampled_from(CATEGORIES), weights, min_size=1), st.floats(1, 16), st.booleans())
def test_equal_lengths_and_the_mixs_own_traffic_change_nothing(shares: Mix, tau: float, stated: bool) -> None:
    found = suggest(shares, dict.fromkeys(shares, narrow(tau)), shares if stated else None)
    assert found.shares == pytest.approx(percent(shares), rel=1e-12)
    assert not found.moved
    assert found.mean == pytest.approx(tau)


@given(cases(), st.data())
@example(  # what falls below the mean may bring the mean above others
    ({"agent": 30.0, "coding": 30.0, "math": 40.0},
     {"agent": Measured(3, 2.9, 3.1), "coding": Measured(2.9, 2, 4), "math": Measured(3.2, 2.9, 3.5)}, None, {}),
    None,
)  # fmt: skip
def test_a_lower_length_never_gets_a_smaller_share(
    case: tuple[Mix, dict[str, Measured], Mix | None, Mix], data: st.DataObject | None
) -> None:
    shares, measured, traffic, growth = case
    name = data.draw(st.sampled_from(sorted(measured))) if data else "agent"
    one = measured[name]
    factor = data.draw(st.floats(1 / one.tau, 1)) if data else 0.8
    lower = Measured(*(None if x is None else x * factor for x in (one.tau, one.low, one.high)))  # type: ignore[arg-type]
    before = suggest(shares, measured, traffic, growth).shares
    after = suggest(shares, measured | {name: lower}, traffic, growth).shares
    assert after[name] >= before[name] - 1e-7


@given(cases(), st.data())
def test_what_cannot_be_told_from_the_mean_is_left_where_traffic_is_as_the_shares(
    case: tuple[Mix, dict[str, Measured], Mix | None, Mix], data: st.DataObject
) -> None:
    shares, measured, _, _ = case
    assume(any(name in measured for name in shares))
    found = suggest(shares, measured)
    before = percent(shares)
    fallers = [one for one in found.changes if one.measured and one.why.startswith("τ above mean")]
    for one in found.changes:
        held = one.measured and (
            one.measured.low is None or one.measured.high is None or one.measured.low <= found.mean <= one.measured.high
        )
        if held:  # it only ever gives, after those above the mean, and no larger part than they do
            assert one.next <= before[one.category] + 1e-9
            given_part = 1 - one.next / before[one.category]
            for other in fallers:
                room = 1 - max(1 / STEP, min(1.0, FLOOR / other.share))
                assert 1 - other.next / other.share >= min(room, given_part) - 1e-9


def test_time_goes_where_drafts_are_short_and_rows_follow_it() -> None:
    measured = {"coding": narrow(4.0), "general": narrow(2.5), "math": Measured(3.2, 2.9, 3.6)}
    found = suggest({"coding": 60, "general": 20, "math": 20}, measured)
    assert found.mean == pytest.approx(1 / (0.6 / 4 + 0.2 / 2.5 + 0.2 / 3.2))
    assert found.shares["math"] == pytest.approx(20), "its interval holds the mean"
    assert found.shares["general"] == pytest.approx(20 * found.mean / 2.5), "what it takes of the time, at that mean"
    assert why(found) == {"coding": "τ above mean", "general": "τ below mean", "math": "left: holds the mean"}


def test_traffic_pulls_and_says_so() -> None:
    measured = dict.fromkeys(("coding", "general"), narrow(3.0))
    found = suggest({"coding": 77, "general": 23}, measured, {"coding": 40, "general": 60})
    assert found.shares["general"] == pytest.approx(23 * STEP)
    assert why(found) == {"coding": "less traffic", "general": "more traffic, x1.5"}


def test_one_that_is_below_the_mean_alone_takes_of_all_others() -> None:
    wide = Measured(3.2, 2.0, 4.5)
    found = suggest({"agent": 10, "coding": 45, "math": 45}, {"agent": narrow(1.6), "coding": wide, "math": wide})
    assert found.shares == pytest.approx({"agent": 15, "coding": 42.5, "math": 42.5})
    assert why(found)["coding"] == "gives as all others do"


def test_a_small_share_is_not_taken_from_and_none_without_measurement() -> None:
    measured = {"a": narrow(1.5), "b": narrow(9.0)}
    found = suggest({"a": 50, "b": 0.9, "c": 49.1}, measured)
    assert found.shares == pytest.approx({"a": 50, "b": 0.9, "c": 49.1})
    assert why(found) == {"a": "wants more; none gives", "b": "at the floor", "c": "left: not measured"}


def test_nothing_to_go_by_is_refused() -> None:
    with pytest.raises(ValueError, match="no category"):
        suggest({"a": 1, "b": 1}, {})
    with pytest.raises(ValueError, match="no category"):
        suggest({"a": 1, "b": 1}, {"a": narrow(2)}, {"b": 1})


# growth with rows


def grown(slope: float, *rows: int, error: float = 0.01) -> list[Build]:
    """Builds of one category whose tau rises by `slope` with each e-fold of rows."""
    taus = [3 + slope * math.log(n / 1000) for n in rows]
    return [Build(n, Measured(tau, tau - error, tau + error)) for n, tau in zip(rows, taus, strict=True)]


def test_what_grows_faster_is_pulled_more() -> None:
    builds = {"coding": grown(0.2, 1000, 4000), "math": grown(0.6, 1000, 2000, 4000)}
    growth = relative_growth(builds)
    assert growth["math"] > 1 > growth["coding"]
    shares = {"coding": 50, "math": 50}
    measured = dict.fromkeys(shares, narrow(3.0))
    found = suggest(shares, measured, None, growth)
    assert found.shares["math"] > 50
    assert why(found) == {"coding": "grows slowly, /1.5", "math": "grows fast"}
    assert found.grown == ("coding", "math")


@pytest.mark.parametrize(
    "builds",
    [
        {},
        {"coding": grown(0.4, 1000), "math": grown(0.4, 1000)},
        {"coding": grown(0.4, 1000, 1100), "math": grown(0.4, 1000, 1100)},
        {"coding": grown(0.1, 1000, 2000, error=0.5), "math": grown(0.1, 1000, 2000, error=0.5)},
        {"coding": grown(0.4, 1000, 4000)},
        {"coding": grown(-0.4, 1000, 4000), "math": grown(-0.4, 1000, 4000)},
        {"coding": [Build(1000, Measured(2)), Build(9000, Measured(3))], "math": grown(0.4, 1000, 4000)},
    ],
    ids=["nothing", "one build", "like rows", "within errors", "one category", "falling", "no intervals"],
)
def test_growth_that_cannot_be_told_is_not_used(builds: dict[str, list[Build]]) -> None:
    assert relative_growth(builds) == {}


@given(st.lists(st.tuples(st.floats(-3, 3), st.integers(1, 10**6), st.integers(2, 50)), min_size=2, max_size=5))
def test_growth_is_bounded_and_does_not_depend_on_order(made: list[tuple[float, int, int]]) -> None:
    builds = {str(i): grown(slope, rows, rows * times) for i, (slope, rows, times) in enumerate(made)}
    for name, there in builds.items():
        builds[name] = [replace(one, measured=narrow(max(1.0, one.measured.tau))) for one in there]
    growth = relative_growth(builds)
    assert all(1 / GROWTH <= value <= GROWTH for value in growth.values())
    again = relative_growth({name: builds[name][::-1] for name in reversed(builds)})
    assert again == pytest.approx(growth)


# as a manifest has it


@given(st.dictionaries(st.integers(0, 40), st.floats(1e-4, 1e3), min_size=1))
def test_rounded_shares_sum_to_exactly_100_and_are_each_near(weights: dict[int, float]) -> None:
    exact = percent({str(name): weight for name, weight in weights.items()})
    written = rounded(exact)
    assert sum(Decimal(str(value)) for value in written.values()) == 100
    for name, value in written.items():
        assert value > 0
        assert value == pytest.approx(exact[name], rel=0.11, abs=0.11)
