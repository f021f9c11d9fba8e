"""How far a run is: counts add up, the time left is right where the rate is steady, and its error covers the truth."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from generation.progress import (
    FEW,
    PROGRESS_FILE,
    RATE_WINDOW_S,
    Baseline,
    CategoryProgress,
    EngineProgress,
    Progress,
    Tally,
    publish_progress,
    read_progress,
)

CATEGORIES = ("coding", "math")


def tally(started_s: float = 100.0, **wanted: int) -> Tally:
    made = Tally("run", "build", started_s)
    made.want(wanted)
    return made


def seen(one: Tally, monotonic_s: float) -> Progress:
    return one.progress(monotonic_s, 1e9, in_flight=3, queued=4)


events = st.lists(
    st.tuples(
        st.sampled_from(["accept", "reject", "fail", "spend", "want"]), st.sampled_from(CATEGORIES), st.integers(0, 50)
    )
)


@given(events)
def test_counts_add_up(said: list[tuple[str, str, int]]) -> None:
    one = tally(coding=100)
    for what, category, tokens in said:
        match what:
            case "accept":
                one.accept(category, tokens, truncated=tokens % 2 == 0)
            case "reject" | "fail":
                one.reject(category, f"why {tokens % 3}", tokens, failed=what == "fail", truncated=tokens % 2 == 0)
            case "spend":
                one.spend(tokens)
            case _:
                one.want({category: tokens})
    progress = seen(one, 110.0)
    kinds = [what for what, _, _ in said]
    assert progress.accepted == kinds.count("accept")
    assert progress.rejected == kinds.count("reject") + kinds.count("fail") == sum(one.reasons.values())
    assert progress.failed == kinds.count("fail")
    assert progress.finished == progress.accepted + progress.rejected
    assert progress.tokens == sum(tokens for what, _, tokens in said if what != "want")
    assert progress.total == 100 + sum(tokens for what, _, tokens in said if what == "want")
    ended = [tokens for what, _, tokens in said if what in ("accept", "reject", "fail")]
    assert progress.truncated == sum(tokens % 2 == 0 for tokens in ended)
    of = progress.categories.values()
    assert (sum(c.wanted for c in of), sum(c.accepted for c in of), sum(c.rejected for c in of)) == (
        progress.total, progress.accepted, progress.rejected,
    )  # fmt: skip
    assert (progress.in_flight, progress.queued, progress.seconds) == (3, 4, 10.0)


def test_nothing_is_said_of_the_time_left_before_anything_is_known() -> None:
    progress = seen(tally(coding=5), 101.0)
    assert (progress.left_s, progress.left_error_s) == (None, None)
    only_failures = tally(coding=5)
    only_failures.reject("coding", "engine_error", 0, failed=True)
    assert seen(only_failures, 101.0).left_s is None


def test_the_time_left_is_unknown_until_lengths_and_rate_are_both_measured() -> None:
    few_answers = tally(coding=51)
    few_answers.accept("coding", 30, truncated=False)
    for second in range(60):
        assert seen(few_answers, 101.0 + second).left_s is None
    fresh = tally(coding=51)
    for _ in range(FEW + 12):
        fresh.accept("coding", 30, truncated=False)
    assert seen(fresh, 101.0).left_s is None
    known = []
    for second in range(30):
        fresh.accept("coding", 30, truncated=False)
        known.append(seen(fresh, 102.0 + second).left_s is not None)
    assert known == sorted(known)
    assert known[-1]


def test_what_the_build_had_before_is_counted_in_and_the_runs_own_counts_are_its_own() -> None:
    had = {
        "coding": CategoryProgress(wanted=12, accepted=10, rejected=2, truncated=3, target=40.0, got=9.0),
        "math": CategoryProgress(target=10.0),
    }
    one = tally(coding=43)
    one.baseline = Baseline(had, failed=1)
    first = seen(one, 110.0)
    assert (first.finished, first.total, first.before, first.failed, first.truncated) == (12, 55, 12, 1, 3)
    one.accept("coding", 7, truncated=True)
    one.accept("coding", 7, truncated=False, first=False)
    one.accept("coding", 7, truncated=False, holdout=True)
    one.reject("coding", "truncated", 7, failed=False, truncated=True)
    progress = seen(one, 120.0)
    assert (progress.finished, progress.total, progress.truncated) == (16, 55, 5)
    assert (one.accepted, one.rejected) == (3, 1)
    assert progress.categories["coding"].got == 10.0  # neither a later turn nor what is held out
    assert progress.categories["math"] == had["math"]
    in_tokens = tally(coding=5)
    in_tokens.baseline = Baseline(had, in_tokens=True)
    in_tokens.accept("coding", 7, truncated=False, first=False)
    in_tokens.accept("coding", 7, truncated=False, holdout=True)
    assert seen(in_tokens, 110.0).categories["coding"].got == 16.0


def test_a_prompt_whose_turns_are_asked_by_themselves_counts_once() -> None:
    one = tally(coding=5)
    one.baseline = Baseline(begun=frozenset({("old", 0)}))
    rows = [("old", 0), ("new", 0), ("new", 1), ("new", 0)]
    assert [one.begins(*row) for row in rows] == [False, True, True, False]


def test_an_engine_with_nothing_in_flight_runs_nothing_whatever_its_last_sample_said() -> None:
    one = tally(coding=5)
    one.engines["a"] = EngineProgress(device="a", running=3, waiting=5, tokens_per_s=9.0, max_num_seqs=4, kv_use=0.5)
    one.engines["b"] = EngineProgress(device="b", starting=True, heard_at=7.0)
    busy, done = (one.progress(120.0, 1e9, in_flight=in_flight, queued=0).engines for in_flight in (1, 0))
    assert (busy[0].running, busy[0].waiting) == (3, 5)
    assert (done[0].running, done[0].waiting, done[0].tokens_per_s, done[0].max_num_seqs) == (0, 0, 0.0, 4)
    assert done[1] == busy[1] == one.engines["b"]


def test_a_steady_run_knows_its_end() -> None:
    one = tally(coding=100, math=100)
    now_s = 100.0
    for number in range(50):
        now_s += 1.0
        one.accept("coding", 30, truncated=False)
        if number % 5 == 0:
            one.accept("math", 300, truncated=False)
        progress = seen(one, now_s)
    # 90 tokens a second; 50 of 30 and 90 of 300 are left
    assert progress.tokens_per_s == pytest.approx(90, rel=0.1)
    assert progress.left_s == pytest.approx((50 * 30 + 90 * 300) / progress.tokens_per_s, rel=1e-6)
    assert progress.left_error_s is not None


def test_the_rate_is_that_of_the_last_minutes_alone() -> None:
    one = tally(coding=10**6)
    now_s = 100.0
    for rate, seconds in ((1000, 600), (10, int(3 * RATE_WINDOW_S))):
        for _ in range(seconds):
            now_s += 1.0
            one.accept("coding", rate, truncated=False)
            progress = seen(one, now_s)
    assert progress.tokens_per_s == pytest.approx(10, rel=0.05)


def test_the_error_covers_the_truth_most_of_the_time() -> None:
    """Answers of lognormal length at a steady rate: the end lies within two sigma in nearly all runs."""
    inside = 0
    for seed in range(40):
        draw = random.Random(seed)
        lengths = [1 + int(draw.lognormvariate(4, 1)) for _ in range(600)]
        one = tally(coding=len(lengths))
        now_s = 100.0
        for length in lengths[:150]:
            now_s += length / 250  # tokens a second
            one.accept("coding", length, truncated=False)
            progress = seen(one, now_s)
        assert progress.left_s is not None
        assert progress.left_error_s is not None
        truth_s = sum(lengths[150:]) / 250
        inside += abs(progress.left_s - truth_s) <= progress.left_error_s
        assert progress.left_error_s < truth_s
    assert inside >= 34


def test_a_category_with_few_answers_is_judged_by_all() -> None:
    one = tally(coding=100, math=10)
    for second in range(90):
        one.accept("coding", 100, truncated=False)
        seen(one, 100.0 + second)
    one.accept("math", 5, truncated=False)
    progress = seen(one, 200.0)
    mean = (90 * 100 + 5) / 91
    assert progress.left_s == pytest.approx((10 * 100 + 9 * mean) / progress.tokens_per_s)


def test_what_is_published_is_read_by_another_shell_and_what_is_no_progress_is_none(tmp_path: Path) -> None:
    assert read_progress(tmp_path) is None
    one = tally(coding=5)
    one.engines["cuda:0"] = EngineProgress(device="cuda:0", engine="e", running=3, kv_use=0.5)
    one.accept("coding", 7, truncated=True)
    progress = seen(one, 130.0)
    publish_progress(tmp_path, progress)
    assert read_progress(tmp_path) == progress
    one.engines["cuda:0"].running = 9
    assert progress.engines[0].running == 3  # a value, not a view
    assert [path.name for path in tmp_path.iterdir()] == [PROGRESS_FILE]
    for text in ("", "[]", '{"run_id": 1}'):
        (tmp_path / PROGRESS_FILE).write_text(text)
        assert read_progress(tmp_path) is None
    publish_progress(tmp_path / "gone", progress)  # nobody's run ends because nobody can watch it
