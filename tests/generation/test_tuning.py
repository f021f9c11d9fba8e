"""The search over engine settings: what it may try, what it may recommend, and what its figures are made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corpus.manifest import Engine
from generation.engine import AUTO_MAX_NUM_SEQS
from generation.fit import Fit, max_num_seqs
from generation.tune_sample import taking_turns
from generation.tuning import (
    GREEDY_TOKENS,
    MARGIN,
    Advice,
    Outcome,
    Search,
    Setting,
    Timed,
    advise,
    agreement,
    allowed,
    best_of,
    changes,
    exactness,
    next_settings,
    round_rates,
    search_for,
    when_present_is_best,
)


def fit(concurrency: int | None, state_blocks: int | None = None) -> Fit:
    return Fit(None, None, None, None, concurrency, 1024, state_blocks, True)


def search(settings: int = 6, kv: tuple[str, ...] = (), most: int | None = None, **engine: object) -> Search:
    return search_for(Engine(**engine), fit(most), "cpu", 0, 512, kv, settings)  # type: ignore[arg-type]


def searched(search: Search, measure: Callable[[Setting], Outcome]) -> list[Outcome]:
    """The whole search over a made-up engine."""
    outcomes: list[Outcome] = []
    while batch := next_settings(search, outcomes):
        outcomes += [measure(setting) for setting in batch]
    return outcomes


def without_the_second_look(made: Search, outcomes: list[Outcome]) -> list[Outcome]:
    """Less the present setting's second time, which ends a search that found a better one."""
    seconds = [i for i, one in enumerate(outcomes) if i and one.setting == made.present]
    assert seconds in ([], [len(outcomes) - 1])
    return outcomes[: seconds[0]] if seconds else outcomes


def peak(at: int) -> Callable[[Setting], Outcome]:
    """The nearer to `at` sequences, the faster."""
    return lambda setting: Outcome(setting, (1000.0 - abs(setting.max_num_seqs - at),), 1.0)


searches = st.builds(
    search,
    settings=st.integers(1, 12),
    kv=st.lists(st.sampled_from(["fp8", "fp8_e5m2", "auto"]), max_size=3).map(tuple),
    most=st.one_of(st.none(), st.integers(1, 500)),
    max_num_seqs=st.one_of(st.just("auto"), st.integers(1, 300)),
    max_num_batched_tokens=st.one_of(st.just("auto"), st.integers(1, 40_000)),
)
rates = st.lists(st.floats(1, 1e5), min_size=1, max_size=4).map(tuple)


# the search


@given(searches, st.randoms(use_true_random=False))
def test_whatever_engines_do_a_search_ends_within_its_bounds(made: Search, draw: object) -> None:
    def measure(setting: Setting) -> Outcome:
        if draw.random() < 0.3:  # type: ignore[attr-defined]
            return Outcome(setting, error="no memory")
        return Outcome(setting, (draw.uniform(1, 1000),), 1.0)  # type: ignore[attr-defined]

    outcomes = without_the_second_look(made, searched(made, measure))
    tried = [outcome.setting for outcome in outcomes]
    assert tried[0] == made.present
    assert len(tried) == len(set(tried)) <= made.settings
    for setting in tried[1:]:
        assert setting.max_num_seqs >= 1
        if setting.max_num_seqs != made.present.max_num_seqs and made.most_num_seqs is not None:
            assert setting.max_num_seqs <= made.most_num_seqs


def test_the_second_look_at_the_present_setting_is_the_last() -> None:
    made = search(settings=10, max_num_seqs=33)
    # beaten at first, and the best when it is looked at again
    rates = iter([1.0, 10.0, 10.0, 1.0, 1.0, 100.0])
    outcomes = searched(made, lambda setting: Outcome(setting, (next(rates, 1.0),), 1.0))
    assert [at for at, one in enumerate(outcomes) if one.setting == made.present] == [0, len(outcomes) - 1]


@given(searches)
def test_every_setting_that_is_changed_has_a_token_of_a_step_for_each_sequence(made: Search) -> None:
    outcomes = searched(made, peak(10_000))
    for setting in (one.setting for one in outcomes):
        if setting.max_num_batched_tokens is not None and setting.max_num_seqs != made.present.max_num_seqs:
            assert setting.max_num_batched_tokens >= setting.max_num_seqs


def test_sequences_first_then_tokens_at_the_best_of_these_then_kv_dtypes() -> None:
    made = search(settings=8, kv=("fp8",))
    auto = AUTO_MAX_NUM_SEQS["cpu"]
    assert [one.setting for one in searched(made, peak(2 * auto))] == [
        Setting(16, None, "auto"),
        Setting(32, None, "auto"),
        Setting(8, None, "auto"),
        Setting(64, None, "auto"),
        Setting(32, 4096, "auto"),
        Setting(32, 8192, "auto"),
        Setting(32, None, "fp8"),
        Setting(16, None, "auto"),
    ]


@pytest.mark.parametrize(("at", "seqs"), [(1, [16, 32, 8, 4, 2]), (128, [16, 32, 8, 64, 128]), (16, [16, 32, 8])])
def test_the_search_goes_on_where_the_best_is_at_an_end(at: int, seqs: list[int]) -> None:
    made = search(settings=7)
    outcomes = without_the_second_look(made, searched(made, peak(at)))
    assert [one.setting.max_num_seqs for one in outcomes if one.setting.max_num_batched_tokens is None] == seqs


def test_no_more_sequences_than_fit_and_an_engine_without_memory_ends_nothing() -> None:
    made = search(settings=8, most=24)
    assert {setting.max_num_seqs for setting in when_present_is_best(made)} == {16, 24, 8}

    def starved(setting: Setting) -> Outcome:
        return peak(1000)(setting) if setting.max_num_seqs < 30 else Outcome(setting, error="no memory")

    outcomes = searched(search(settings=8), starved)
    assert [one.setting.max_num_seqs for one in outcomes] == [16, 32, 8, 16, 16]
    assert best_of(outcomes) == outcomes[0]


def test_a_step_is_not_made_larger_than_its_sequences_can_fill() -> None:
    made = replace(search(), max_model_len=100)  # 16 sequences of 100 tokens: 1,600, and 2,048 are there already
    assert all(setting.max_num_batched_tokens is None for setting in when_present_is_best(made))


def test_what_was_asked_for_has_room_before_the_rest() -> None:
    assert [one.kv_cache_dtype for one in when_present_is_best(search(settings=2, kv=("fp8",)))] == ["auto", "fp8"]
    assert when_present_is_best(search(settings=1)) == (search().present,)


def test_what_fits_and_what_is_automatic_are_those_of_a_run() -> None:
    gpu = search_for(Engine(), fit(300, 200), "cuda", 96 << 30, 8192)
    assert (gpu.present.max_num_seqs, gpu.most_num_seqs) == (max_num_seqs(fit(300, 200)), 200)
    assert gpu.auto_batched_tokens == 16384
    assert search_for(Engine(), fit(None), "cuda", 24 << 30, 8192).auto_batched_tokens == 8192
    explicit = search_for(Engine(max_num_seqs=48, kv_cache_dtype="fp8"), fit(300), "cuda", 0, 8192, ("fp8", "auto"))
    assert explicit.present == Setting(48, None, "fp8")
    assert explicit.kv_cache_dtypes == ("auto",)  # the present one is no alternative
    assert next_settings(explicit, ())[:2] == (explicit.present, Setting(256, None, "fp8"))


def test_samples_are_sized_by_the_largest_setting_that_is_tried_first() -> None:
    assert search().largest_num_seqs == 32
    assert search(max_num_seqs=100).largest_num_seqs == 100


# the advice


@given(searches, st.dictionaries(st.integers(0, 12), rates), rates)
def test_advice_is_never_slower_than_the_present_section(
    made: Search, by_number: dict[int, tuple[float, ...]], otherwise: tuple[float, ...]
) -> None:
    outcomes = [
        Outcome(setting, by_number.get(number, otherwise), 1.0)
        for number, setting in enumerate(when_present_is_best(made))
    ]
    advice = advise(made, outcomes)
    assert advice is not None
    chosen = next(one for one in outcomes if one.setting == advice.setting)
    assert advice.setting == made.present or min(chosen.rates) > max(outcomes[0].rates)
    assert advice.gain is None or advice.gain > 1
    assert set(changes(Engine(), made, advice.setting)) <= {"max_num_seqs", "max_num_batched_tokens", "kv_cache_dtype"}
    assert advice.setting != made.present or changes(Engine(), made, advice.setting) == {}


def outcomes_of(made: Search, *rates: tuple[float, ...]) -> list[Outcome]:
    return [Outcome(setting, rate, 1.0) for setting, rate in zip(when_present_is_best(made), rates, strict=False)]


def test_a_gain_within_the_spread_is_none() -> None:
    made = search()
    within = outcomes_of(made, (100.0, 104.0, 98.0), (110.0, 103.0, 112.0))
    assert advise(made, within) == Advice(made.present, None)
    beyond = outcomes_of(made, (100.0, 104.0, 98.0), (118.0, 105.0, 125.0))
    assert advise(made, beyond) == Advice(beyond[1].setting, 1.18)
    assert changes(Engine(), made, beyond[1].setting) == {"max_num_seqs": 32}


def test_a_machine_that_grew_faster_meanwhile_is_no_gain() -> None:
    """The present section is measured again at the end, and both times count."""
    made, speeds = search(settings=3), iter((50.0, 100.0, 110.0, 105.0, 120.0))
    outcomes = searched(made, lambda setting: Outcome(setting, (next(speeds),), 1.0))
    assert [one.setting == made.present for one in outcomes] == [True, False, False, True]
    assert advise(made, outcomes) == Advice(outcomes[2].setting, 110 / 77.5)
    drifted = [*outcomes[:3], Outcome(made.present, (112.0,), 1.0)]
    assert advise(made, drifted) == Advice(made.present, None)


def test_a_section_that_does_not_run_loses_to_any_that_does() -> None:
    made = search()
    outcomes = outcomes_of(made, (), (10.0,), (20.0,))
    assert advise(made, outcomes) == Advice(outcomes[2].setting, None)
    assert advise(made, outcomes_of(made, (), ())) is None


# exactness of KV dtypes

answers = st.lists(st.lists(st.integers(0, 3), max_size=80), max_size=6)


@given(answers)
def test_a_pass_agrees_with_itself(given_answers: list[list[int]]) -> None:
    assert agreement(given_answers, given_answers) == 1.0


@given(st.lists(st.tuples(st.lists(st.integers(0, 2)), st.lists(st.integers(0, 2))), max_size=6))
def test_agreement_is_symmetric_and_a_part(pairs: list[tuple[list[int], list[int]]]) -> None:
    first, second = [one for one, _ in pairs], [other for _, other in pairs]
    found = agreement(first, second)
    assert found == agreement(second, first)
    assert 0 <= found <= 1
    cut = [ids[:GREEDY_TOKENS] for ids in first], [ids[:GREEDY_TOKENS] for ids in second]
    assert (found == 1) == (cut[0] == cut[1])


@given(st.integers(0, 63))
def test_what_follows_a_difference_is_another_text(at: int) -> None:
    first = list(range(64))
    assert agreement([first], [[*first[:at], -1, *first[at + 1 :]]]) == at / 64
    assert agreement([first], [first[: at + 1]]) == (at + 1) / 64  # one ended, the other did not
    assert agreement([[*first, 1]], [[*first, 2]]) == 1.0  # beyond what is compared


def test_a_kv_dtype_is_recommended_only_where_it_agrees_like_the_present_one_with_itself() -> None:
    made = search(kv=("fp8",), settings=2)
    present, fp8 = when_present_is_best(made)
    first = tuple(tuple(range(50)) for _ in range(4))
    noise = (*first[:3], (*range(40), -1, *range(41, 50)))  # 10 of 200 tokens

    def told(theirs: tuple[tuple[int, ...], ...]) -> list[Outcome]:
        return [Outcome(present, (100.0,), 1.0, None, (first, noise)), Outcome(fp8, (200.0,), 1.0, None, (theirs,))]

    close = told((*first[:3], (*range(39), -2, *range(40, 50))))
    exact = exactness(made, close[1], close)
    assert exact is not None
    assert (exact.itself, exact.agreement) == (0.95, 0.945)
    assert exact.itself - exact.agreement < MARGIN
    assert allowed(made, close[1], close)
    assert advise(made, close) == Advice(fp8, 2.0)
    assert changes(Engine(), made, fp8) == {"kv_cache_dtype": "fp8"}
    far = told((*first[:2], (-1,) * 50, first[3]))
    assert not allowed(made, far[1], far)
    assert advise(made, far) == Advice(present, None)


def test_a_kv_dtype_without_a_comparison_is_not_recommended() -> None:
    made = search(kv=("fp8",), settings=2)
    present, fp8 = when_present_is_best(made)
    outcomes = [Outcome(present, error="no memory"), Outcome(fp8, (200.0,), 1.0, None, (((1,),),))]
    assert exactness(made, outcomes[1], outcomes) is None
    assert advise(made, outcomes) is None


# rates


@given(
    seqs=st.integers(1, 8), count=st.integers(1, 30), tokens=st.integers(1, 50), rounds=st.integers(1, 4),
    start=st.floats(0, 1e9),
)  # fmt: skip
def test_a_full_engine_of_even_answers_has_its_true_rate_in_every_round(
    seqs: int, count: int, tokens: int, rounds: int, start: float
) -> None:
    """Slot k answers from k on, each in a second, one after the other: seqs * tokens a second while all are full."""
    timed = [
        Timed(start + k / seqs + i, start + k / seqs + i, start + k / seqs + i + 1, tokens)
        for k in range(seqs)
        for i in range(count + 1)
    ]
    measured = round_rates(timed, seqs, rounds)
    assert len(measured) == rounds
    assert measured == pytest.approx([seqs * tokens] * rounds, rel=1e-4)


def test_filling_up_and_running_dry_count_for_nothing() -> None:
    """One straggler of 100 s after everything else is done does not make the engine slow."""
    timed = [Timed(float(i), float(i), i + 1.0, 10) for i in range(10)]
    rate = median(round_rates(timed, 1, 3))
    assert rate == pytest.approx(10.0)
    straggler = Timed(9.0, 9.0, 109.0, 10)
    assert median(round_rates([*timed[:-1], straggler], 1, 3)) == pytest.approx(rate)


def test_time_between_start_and_first_token_writes_nothing() -> None:
    timed = [Timed(float(i), i + 0.5, i + 1.0, 10) for i in range(11)]
    assert round_rates(timed, 1, 10) == pytest.approx((10.0,) * 10)
    assert round_rates(timed, 1, 20) == pytest.approx((0.0, 20.0) * 10)


def test_an_engine_that_was_never_full_has_no_rate() -> None:
    with pytest.raises(ValueError, match="2 answers fill no engine of 2"):
        round_rates([Timed(0, 0, 1, 1), Timed(0, 0, 1, 1)], 2, 3)
    with pytest.raises(ValueError, match="no time to measure"):
        round_rates([Timed(0, 0, 1, 1)] * 3, 2, 3)


@given(st.lists(st.sampled_from("abc"), max_size=40), st.integers(0, 40))
def test_every_beginning_of_a_sample_has_about_the_shares_of_all(categories: list[str], cut: int) -> None:
    order = taking_turns(categories)
    assert sorted(order) == list(range(len(categories)))
    head = order[:cut]
    for category in set(categories):
        share = categories.count(category) / len(categories)
        taken = [i for i in head if categories[i] == category]
        assert abs(len(taken) - share * len(head)) <= len(set(categories))
        assert taken == sorted(taken)
