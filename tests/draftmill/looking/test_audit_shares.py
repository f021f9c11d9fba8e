"""Intervals hold the truth as often as they say, and the verdict follows its rule."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from corpus.classifier_quality import Interval, Stratum
from corpus.errors import UserError
from corpus.sampling import allocate
from draftmill.looking.audit_figures import weighted_quantile
from draftmill.looking.audit_shares import (
    State,
    judge,
    normalised,
    read_shares,
    read_tolerance,
    sampled_shares,
)

COUNTS = st.dictionaries(st.sampled_from("abc"), st.integers(1, 40), min_size=1)


def test_intervals_of_labels_hold_the_truth_as_often_as_they_say() -> None:
    rng = np.random.default_rng(5)
    held = tried = 0
    for _ in range(150):
        parts = int(rng.integers(1, 8))
        populations = rng.integers(20, 4000, size=parts).tolist()
        mixes = rng.dirichlet([2, 1, 0.5], size=parts)
        rows = [rng.choice(3, size=size, p=mix) for size, mix in zip(populations, mixes, strict=True)]
        strata = []
        for part, take in zip(rows, allocate(populations, 300, 30), strict=True):
            counts = Counter("abc"[i] for i in rng.permutation(part)[:take])
            strata.append(Stratum(counts, take, len(part)))
        found = sampled_shares(strata)
        everything = np.concatenate(rows)
        for i, name in enumerate("abc"):
            if name in found:
                tried += 1
                held += found[name].low - 1e-9 <= float((everything == i).mean()) <= found[name].high + 1e-9
    assert tried > 400
    assert 0.93 <= held / tried <= 0.995


@given(counts=st.lists(COUNTS, min_size=1, max_size=5), more=st.integers(0, 500))
def test_shares_of_labels_sum_to_one_and_are_exact_where_all_was_read(counts: list[dict[str, int]], more: int) -> None:
    strata = [Stratum(one, sum(one.values()), sum(one.values()) + more) for one in counts]
    found = sampled_shares(strata)
    assert sum(one.estimate for one in found.values()) == pytest.approx(1)
    for one in found.values():
        assert 0 <= one.low <= one.estimate <= one.high <= 1 + 1e-9
        assert more or one.high - one.low < 1e-9
    if not more:
        total = sum(sum(one.values()) for one in counts)
        for name, share in found.items():
            assert share.estimate == pytest.approx(sum(one.get(name, 0) for one in counts) / total)


def test_a_file_that_was_read_more_densely_counts_for_no_more() -> None:
    found = sampled_shares([Stratum({"a": 30}, 30, 30), Stratum({"b": 30}, 30, 2970)])
    assert found["a"].estimate == pytest.approx(0.01)


def test_rows_without_a_prompt_are_no_part_of_the_whole() -> None:
    found = sampled_shares([Stratum({"a": 10}, 100, 1000), Stratum({"b": 100}, 100, 1000)])
    assert found["a"].estimate == pytest.approx(100 / 1100)


SHARES = st.tuples(st.floats(0, 1), st.floats(0, 1), st.floats(0, 1)).map(sorted).map(
    lambda three: Interval(three[1], three[0], three[2])
)  # fmt: skip


@given(shares=st.dictionaries(st.sampled_from("abcd"), SHARES, min_size=1),
       weights=st.dictionaries(st.sampled_from("abcd"), st.floats(0.1, 9), min_size=1),
       tolerance=st.floats(0.001, 0.5))  # fmt: skip
def test_the_verdict_follows_its_rule(shares: dict[str, Interval], weights: dict[str, float], tolerance: float) -> None:
    targets = normalised(weights)
    shares = shares | {name: Interval(0, 0, 0) for name in targets if name not in shares}
    verdict = judge(shares, targets, tolerance)
    outside = [
        n for n, s in shares.items() if s.low - targets.get(n, 0) > tolerance or targets.get(n, 0) - s.high > tolerance
    ]
    inside = all(s.low >= targets.get(n, 0) - tolerance and s.high <= targets.get(n, 0) + tolerance
                 for n, s in shares.items())  # fmt: skip
    assert (verdict.state is State.skewed) == bool(outside)
    assert not outside or verdict.worst in outside
    if verdict.state is State.as_intended:
        assert all(max(s.high - targets.get(n, 0), targets.get(n, 0) - s.low) <= tolerance + 1e-9
                   for n, s in shares.items())  # fmt: skip
    elif not outside:
        assert not inside or tolerance < 0.0011
        far = any(abs(s.estimate - targets.get(n, 0)) > tolerance for n, s in shares.items())
        assert verdict.state is (State.may_be_skewed if far else State.cannot_tell)
    assert "\n" not in verdict.line


def test_the_lines_of_the_verdict() -> None:
    def line(estimate: float, low: float, high: float, tolerance: float = 0.05) -> str:
        rest = Interval(1 - estimate, 1 - high, 1 - low)
        return judge(
            {"coding": Interval(estimate, low, high), "math": rest}, {"coding": 0.46, "math": 0.54}, tolerance
        ).line

    assert line(0.772, 0.745, 0.797) == "coding 77.2% (74.5 to 79.7), target 46%: skewed"
    assert line(0.53, 0.50, 0.56) == "coding 53.0% (50.0 to 56.0), target 46%: may be skewed"
    assert line(0.47, 0.40, 0.50) == "coding 47.0% (40.0 to 50.0), target 46%: cannot tell to ± 5 points"
    assert line(0.47, 0.45, 0.50) == "no category is off by more than 4 points (coding): as intended"
    assert judge({"coding": Interval(0.8, 0.7, 0.9)}, None, 0.05).line == (
        "mostly coding 80.0% (70.0 to 90.0); no target was given"
    )


@pytest.mark.parametrize(
    ("text", "tolerance"), [("5%", 0.05), ("5", 0.05), (" 2.5 % ", 0.025), ("0.5%", 0.005), ("1", 0.01)]
)
def test_tolerances_are_percentage_points(text: str, tolerance: float) -> None:
    assert read_tolerance(text) == pytest.approx(tolerance)


@pytest.mark.parametrize("text", ["0.05", ".5", "0", "0%", "100", "-5%", "5 points", "", "nan", "1e1", "5%%"])
def test_tolerances_that_may_mean_two_things_are_refused(text: str) -> None:
    with pytest.raises(UserError, match="--fail-on-skew") as said:
        read_tolerance(text)
    assert "\n" not in str(said.value)


def test_shares_are_written_as_weights() -> None:
    assert read_shares("coding=46, code-other=7%,general=.5") == {"coding": 46.0, "code-other": 7.0, "general": 0.5}


@given(values=st.lists(st.integers(0, 50), min_size=1, max_size=40), times=st.integers(1, 5),
       quantile=st.sampled_from([0.05, 0.5, 0.95]))  # fmt: skip
def test_a_row_that_stands_for_several_counts_as_several(values: list[int], times: int, quantile: float) -> None:
    weights = np.array([float(1 + i % times) for i in range(len(values))])
    repeated = sorted(value for value, weight in zip(values, weights, strict=True) for _ in range(int(weight)))
    plain = repeated[int(np.ceil(quantile * len(repeated))) - 1]
    assert weighted_quantile(np.array(values), weights, quantile) == plain


def test_a_quantile_of_nothing_is_none() -> None:
    assert weighted_quantile(np.array([]), np.array([]), 0.5) is None
