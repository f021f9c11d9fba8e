"""Laws of amounts: a range always holds its value, and arithmetic never makes it surer than what went in."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from draftmill.amounts import SURENESS, Amount, total


@st.composite
def amounts(draw: st.DrawFn) -> Amount:
    low, value, high = sorted(draw(st.tuples(*[st.floats(0.01, 1e6)] * 3)))
    return Amount.of(value, low, high, draw(st.sampled_from(SURENESS)), draw(st.sampled_from("abc")))


@given(amounts(), amounts(), st.floats(0, 1e3))
def test_a_range_holds_its_value(one: Amount, other: Amount, number: float) -> None:
    for made in (one * other, one / other, one + other, one.times(number), one.less(number), one.within(1.0, 2.0)):
        assert made.low <= made.value <= made.high
        assert made.low >= 0


@given(amounts(), amounts())
def test_sources_and_the_weakest_sureness_are_kept(one: Amount, other: Amount) -> None:
    worst = max(one.sure, other.sure, key=SURENESS.index)
    for made in (one * other, one / other, total([one, other])):
        assert made.sure == worst
        assert set(made.sources) == set(one.sources) | set(other.sources)


@given(st.lists(amounts(), max_size=5))
def test_a_total_is_the_sum_of_its_ends(parts: list[Amount]) -> None:
    made = total(parts)
    assert made.low == sum(part.low for part in parts)
    assert made.high == sum(part.high for part in parts)
    assert Amount.exact(3.0).sure == "exact"
