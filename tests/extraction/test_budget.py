from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extraction.budget import (
    MARGIN,
    BandModel,
    Budgets,
    Trial,
    announced_bytes,
    band_of,
    bands_of,
    choose,
    fit,
    trial_shapes,
)

LENGTH = st.integers(1, 20_000)


@given(length=LENGTH)
def test_a_band_ends_at_a_power_of_two(length: int) -> None:
    top = band_of(length)
    assert length <= top
    assert top == 256 or length > top // 2
    assert top & (top - 1) == 0


@given(lengths=st.lists(LENGTH, max_size=50))
def test_the_longest_row_of_each_band(lengths: list[int]) -> None:
    longest = bands_of(lengths)
    assert list(longest) == sorted({band_of(length) for length in lengths})
    assert all(longest[band_of(length)] >= length for length in lengths)
    assert set(longest.values()) <= set(lengths)


@given(longest=LENGTH, most=st.integers(1, 40_000))
def test_three_trial_batches_that_grow_and_never_pass_what_is_allowed(longest: int, most: int) -> None:
    shapes = trial_shapes(longest, most)
    tokens = [rows * length for rows, length in shapes]
    assert len(shapes) == 3
    assert tokens == sorted(tokens)
    assert all(length <= longest for _, length in shapes)
    assert tokens[-1] <= max(most, longest)
    assert longest < 4 or len(set(tokens)) == 3


@given(
    fixed=st.floats(0, 1e9),
    slope=st.floats(1, 1e6),
    noise=st.lists(st.integers(0, 10**6), min_size=3, max_size=3),
    room=st.integers(10**6, 10**11),
    most=st.integers(64, 40_000),
)
def test_the_line_lies_above_every_trial_and_the_budget_below_the_room(
    fixed: float, slope: float, noise: list[int], room: int, most: int
) -> None:
    trials = [
        Trial(rows, 256, int(fixed + slope * rows * 256) + more, 1.0)
        for rows, more in zip((1, 2, 4), noise, strict=True)
    ]
    model = fit(256, trials)
    assert all(model.peak_bytes(trial.tokens) >= trial.peak_bytes for trial in trials)
    tokens = choose([model], room, most).of(256)
    assert 1 <= tokens <= most
    assert tokens == 1 or model.peak_bytes(tokens) <= room + MARGIN
    if tokens < most:
        assert model.peak_bytes(tokens + 1) > room - 2 * MARGIN


def test_an_exact_line_is_found() -> None:
    model = fit(512, [Trial(rows, 500, 1_000_000 + 300 * rows * 500, rows * 0.5) for rows in (1, 2, 4)])
    assert model.bytes_per_token == pytest.approx(300)
    assert model.fixed_bytes == pytest.approx(1_000_000)
    assert model.tokens_per_s == pytest.approx(1000)


def test_peaks_that_do_not_grow_are_no_licence() -> None:
    model = fit(256, [Trial(1, 256, 900_000, 1.0), Trial(2, 256, 900_000, 1.0), Trial(4, 256, 500_000, 1.0)])
    assert model.bytes_per_token > 0
    assert choose([model], 10**7, 10**9).of(256) < 10**5


def test_a_band_without_a_model_has_the_smallest_budget() -> None:
    budgets = choose([BandModel(256, 0, 10, 1.0), BandModel(512, 0, 100, 1.0)], 111_000, 5_000)
    assert (budgets.of(200), budgets.of(300), budgets.of(9_000)) == (5_000, 1_009, 1_009)


def test_budgets_are_lowered_and_joined() -> None:
    budgets = Budgets(100, {256: 80, 512: 60})
    assert budgets.lowered(300, 30) == Budgets(100, {256: 80, 512: 30})
    assert budgets.lowered(300, 90) == budgets
    assert budgets.lowered(5_000, 0).of(5_000) == 1


def test_what_is_announced_covers_a_row_that_is_longer_than_its_budget() -> None:
    models = [BandModel(256, 0, 10, 1.0), BandModel(8192, 0, 20, 1.0)]
    budgets = Budgets(2_048, {256: 2_048, 8192: 2_048})
    assert announced_bytes(models, budgets, {256: 256}) == int(MARGIN * 20 * 2_048)
    assert announced_bytes(models, budgets, {256: 256, 8192: 8_000}) == int(MARGIN * 20 * 8_000)
