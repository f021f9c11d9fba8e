"""Laws of the selection: quotas, prefixes, holdout and duplicates, as pure functions over numbers and frames."""

from __future__ import annotations

import hashlib
from fractions import Fraction
from itertools import combinations
from typing import Any

import numpy as np
import polars as pl
from hypothesis import assume, given
from hypothesis import strategies as st

from corpus import selection
from corpus.manifest import Filters, Source

NAMES = ("agent", "code-other", "coding", "general", "math")
shares = st.dictionaries(st.sampled_from(NAMES), st.floats(0.01, 100), min_size=1)
totals = st.integers(1, 5000)


def ids(count: int, salt: str = "") -> list[str]:
    return [hashlib.sha256(f"{salt}{i}".encode()).hexdigest()[:32] for i in range(count)]


# quotas


@given(totals, shares)
def test_quotas_sum_to_the_total_and_are_within_one_row_of_their_share(total: int, weights: dict[str, float]) -> None:
    rows = selection.largest_remainder(total, weights)
    whole = sum(map(Fraction, weights.values()))
    assert sum(rows.values()) == total
    for name, weight in weights.items():
        assert abs(rows[name] - total * Fraction(weight) / whole) < 1


@given(totals, shares, st.randoms())
def test_quotas_do_not_know_the_order_or_scale_of_shares(total: int, weights: dict[str, float], random: Any) -> None:
    names = list(weights)
    random.shuffle(names)
    assert selection.largest_remainder(total, {name: weights[name] for name in names}) == selection.largest_remainder(
        total, weights
    )
    assert selection.largest_remainder(total, {name: weights[name] * 4 for name in names}) == (
        selection.largest_remainder(total, weights)
    )


@given(totals, shares, st.dictionaries(st.sampled_from(NAMES), st.integers(0, 3000)))
def test_a_shortage_is_counted_to_the_row(total: int, weights: dict[str, float], available: dict[str, int]) -> None:
    quotas = selection.plan_quotas(total, weights, available, rescale=False)
    assert sum(quotas.rows.values()) == total
    for name, rows in quotas.rows.items():
        assert quotas.short.get(name, 0) == max(0, rows - available.get(name, 0))


@given(totals, shares, st.dictionaries(st.sampled_from(NAMES), st.integers(0, 3000)))
def test_rescaling_keeps_shares_and_never_takes_more_than_there_is(
    total: int, weights: dict[str, float], available: dict[str, int]
) -> None:
    quotas = selection.plan_quotas(total, weights, available, rescale=True)
    left = sum(quotas.rows.values())
    assert not quotas.short
    assert left <= total
    assert all(rows <= available.get(name, 0) for name, rows in quotas.rows.items())
    assert quotas.rows == selection.largest_remainder(left, weights)
    assert quotas.rescaled == (left < total)
    if left < total:  # not needlessly small: two rows more and somebody runs short
        more = [selection.largest_remainder(left + step, weights) for step in (1, 2)]
        assert any(rows[name] > available.get(name, 0) for rows in more for name in rows)


# a category's sources

sources = st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 300), min_size=1)


@given(st.data(), sources, st.integers(0, 900))
def test_a_quota_over_sources_sums_exactly_and_repeats_nothing_before_all_is_taken(
    data: Any, available: dict[str, int], quota: int
) -> None:
    weights = {name: data.draw(st.floats(0.1, 1000)) for name in available}
    taken = selection.split_quota(quota, available, weights)
    whole = sum(available.values())
    assert sum(taken.values()) == (quota if whole else 0)
    for name, rows in taken.items():
        assert quota // whole * available[name] <= rows <= -(-quota // whole) * available[name]
    larger = selection.split_quota(quota + data.draw(st.integers(1, 50)), available, weights)
    assert all(larger[name] >= rows for name, rows in taken.items())


@given(st.integers(1, 900), st.floats(0.1, 1000), st.floats(0.1, 1000))
def test_two_sources_are_within_one_row_of_their_weights(quota: int, first: float, second: float) -> None:
    taken = selection.split_quota(quota, {"a": 1000, "b": 1000}, {"a": first, "b": second})
    assert abs(taken["a"] - quota * first / (first + second)) <= 1


@given(st.data(), st.integers(1, 500))
def test_no_row_could_pass_from_one_source_to_another_and_be_fairer(data: Any, quota: int) -> None:
    weights = {name: data.draw(st.integers(1, 60)) for name in "abcde"}
    taken = selection.split_quota(quota, dict.fromkeys(weights, 1000), {name: float(w) for name, w in weights.items()})
    for one, other in combinations(weights, 2):
        for more, less in ((one, other), (other, one)):
            assert (2 * taken[more] - 1) * weights[less] <= (2 * taken[less] + 1) * weights[more]


@given(st.integers(0, 10_000), st.floats(0, 0.99))
def test_a_holdout_is_at_least_one_row_where_there_is_one(rows: int, holdout: float) -> None:
    quota = selection.holdout_quota(rows, holdout)
    assert (quota > 0) == (rows > 0 and holdout > 0)
    assert quota == 0 or quota == max(1, round(rows * holdout))


# order and hashes


@given(st.integers(0, 2**32), st.integers(1, 300))
def test_the_order_is_a_function_of_id_and_seed(seed: int, count: int) -> None:
    names = ids(count)
    spread = selection.spread(names, seed)
    assert len(set(spread.tolist())) == count
    assert spread[::-1].tolist() == selection.spread(names[::-1], seed).tolist()
    assert spread.tolist() != selection.spread(names, seed + 1).tolist()


def splitmix64(word: int) -> int:
    """The published mixer in plain integers."""
    z = (word + 0x9E3779B97F4A7C15) % 2**64
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
    return z ^ (z >> 31)


@given(st.integers(0, 2**64 - 1), st.integers(-(2**63), 2**63 - 1))
def test_the_order_is_the_published_mixer_of_id_and_seed(word: int, seed: int) -> None:
    assert selection.spread([f"{word:016x}" * 2], seed).tolist() == [splitmix64(word ^ splitmix64(seed % 2**64))]


def test_the_order_is_the_same_on_every_machine_and_in_every_version() -> None:
    assert selection.spread(["0123456789abcdef" * 2], 17).tolist() == [14201717549861301799]


@given(st.floats(0, 1), st.floats(0, 1))
def test_a_larger_share_chooses_a_superset(one: float, other: float) -> None:
    names = ids(200)
    small, large = (selection.chosen(names, share, 7) for share in sorted((one, other)))
    assert not np.any(small & ~large)


def test_chosen_is_as_many_as_its_share_says() -> None:
    names = ids(20_000)
    assert selection.chosen(names, 0.0, 7).sum() == 0
    assert selection.chosen(names, 1.0, 7).all()
    assert abs(selection.chosen(names, 0.02, selection.HOLDOUT_SALT).mean() - 0.02) < 0.004
    both = selection.chosen(names, 0.5, selection.HOLDOUT_SALT) & selection.chosen(names, 0.5, selection.THINKING_SALT)
    assert abs(both.mean() - 0.25) < 0.02  # the two draws know nothing of each other


# frames


@st.composite
def candidates(draw: Any) -> pl.DataFrame:
    """Rows of two or three sources that share some prompts and some likenesses."""
    count = draw(st.integers(1, 30))
    rows = []
    for number in range(count):
        source = draw(st.sampled_from("abc"))
        text = draw(st.integers(0, 12))
        rows.append(
            {
                "prompt_id": ids(1, f"{text}")[0],
                "likeness": f"like {text // 2}",
                "source": source,
                "pool_id": f"pool-{source}",
                "priority": {"a": 0, "b": 1, "c": 1}[source],
                "chunk": draw(st.integers(0, 2)),
                "file": "f",
                "row_index": number,
                "at": number,
                "category": draw(st.sampled_from(["coding", "math"])),
                "holdout": text % 5 == 0,
            }
        )
    frame = pl.DataFrame(rows)
    return frame.with_columns(order=pl.Series(selection.spread(frame["prompt_id"].to_list(), 3), dtype=pl.UInt64))


@given(candidates(), st.booleans(), st.randoms())
def test_of_each_likeness_one_row_stays_and_the_others_name_it(frame: pl.DataFrame, exact: bool, random: Any) -> None:
    key = "likeness" if exact else "prompt_id"
    kept, lost = selection.deduplicate(selection.best_first(frame), exact)
    assert kept.height + lost.height == frame.height
    assert kept[key].n_unique() == kept.height == frame[key].n_unique()
    assert kept["prompt_id"].n_unique() == kept.height
    winners = {row[key]: row for row in kept.iter_rows(named=True)}
    for row in lost.iter_rows(named=True):
        winner = winners[row[key]]
        assert (row["winner_prompt_id"], row["winner_source"]) == (winner["prompt_id"], winner["source"])
        assert row["reason"] == ("same_prompt" if row["prompt_id"] == winner["prompt_id"] else "duplicate")
        assert winner["priority"] >= row["priority"]
    shuffled = frame.sample(fraction=1.0, shuffle=True, seed=random.randint(0, 99))
    assert selection.deduplicate(selection.best_first(shuffled), exact)[0].equals(kept)


@given(candidates())
def test_a_rank_counts_within_category_source_and_holdout_and_deeper_chunks_come_later(frame: pl.DataFrame) -> None:
    kept, _ = selection.deduplicate(selection.best_first(frame), exact=True)
    ordered = selection.nested_order(kept)
    for _, group in ordered.group_by("category", "source", "holdout", maintain_order=True):
        assert group["source_rank"].to_list() == list(range(group.height))
        assert group["chunk"].is_sorted()
        assert group.sort("chunk", "order").equals(group)
    shallow = selection.nested_order(kept.filter(pl.col("chunk") == 0))
    key = ["prompt_id", "source_rank"]
    first = ordered.filter(pl.col("chunk") == 0).select(key).sort("prompt_id")
    assert shallow.select(key).sort("prompt_id").equals(first)  # reading more never reorders


@given(st.integers(0, 9), st.integers(0, 9), st.lists(st.integers(0, 12), min_size=1, max_size=20))
def test_a_filter_keeps_what_is_in_its_range_and_gives_the_rest_a_reason(low: int, high: int, turns: list[int]) -> None:
    assume(low <= high)
    frame = pl.DataFrame({"turns": turns}).with_columns(reason=pl.lit(None, pl.String), detail=pl.lit(None, pl.String))
    judged = selection.filter_rows(frame, Filters(turns=(low, high)))
    expected = ["too_few_turns" if t < low else "too_many_turns" if t > high else None for t in turns]
    assert judged["reason"].to_list() == expected
    assert [d for d in judged["detail"] if d] == [str(t) for t, r in zip(turns, expected, strict=True) if r]


def test_a_reason_is_never_replaced() -> None:
    frame = pl.DataFrame({"turns": [99], "prompt_chars": [0], "reason": ["no_category"], "detail": ["x"]})
    judged = selection.filter_rows(frame, Filters(turns=3, prompt_chars=(1, 9)))
    assert judged.select("reason", "detail").rows() == [("no_category", "x")]


def test_labels_become_categories_or_reasons() -> None:
    source = Source.model_validate(
        {"name": "s", "path": "x", "category": {"column": "kind", "map": {"py": "coding", "it": "news"}}, "priority": 4}
    )
    pool = pl.DataFrame({"upstream_label": ["py", "it", "other", None]}).with_columns(
        reason=pl.lit(None, pl.String), detail=pl.lit(None, pl.String)
    )
    rows = selection.label_rows(pool, source, ["coding", "math"])
    assert rows["category"].to_list() == ["coding", "news", None, None]
    assert rows["reason"].to_list() == [None, "not_in_mix", "no_category", "no_category"]
    assert rows["detail"].to_list() == [None, "it -> news", "other", None]
    assert rows["priority"].unique().to_list() == [4]
