"""Laws of near duplicates: who loses, to whom, and how surely pairs are found."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from corpus import near
from corpus.near import Bands, NearLosers, bigrams, jaccard, near_losers, plan_bands, sketch
from corpus.words import hash_words

Rows = npt.NDArray[np.int64]
Keys = npt.NDArray[np.uint64]

texts = st.lists(st.lists(st.sampled_from("abcd"), max_size=7).map(" ".join), max_size=24)
thresholds = st.sampled_from([0.2, 0.5, 0.7, 1.0])


def fetch(rows: list[str]) -> Callable[[Rows], list[str]]:
    def texts_of(numbers: Rows) -> list[str]:
        assert numbers.dtype == np.int64
        assert (np.diff(numbers) > 0).all()
        return [rows[number] for number in numbers]

    return texts_of


def find(rows: list[str], threshold: float) -> NearLosers:
    return near_losers(sketch(hash_words(rows), plan_bands(threshold)), threshold, fetch(rows))


def triples(losers: NearLosers) -> list[tuple[int, int, float]]:
    return list(zip(losers.loser.tolist(), losers.winner.tolist(), losers.similarity.tolist(), strict=True))


def draw_keys(data: st.DataObject, rows: list[str]) -> Keys:
    """Buckets that have nothing to do with the texts."""
    keys = data.draw(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=len(rows), max_size=len(rows)))
    # the lowest bits of a key may be taken for the row's number
    return np.array(keys, np.uint64).reshape(len(rows), 2) << np.uint64(40)


def plain_greedy(rows: list[str], keys: Keys, threshold: float) -> list[int]:
    """The losers, each row in turn being compared with the kept ones before it in its buckets."""
    kept: list[int] = []
    for row in range(len(rows)):
        met = [other for other in kept if keys[row].any() and keys[other].any() and (keys[row] == keys[other]).any()]
        if not any(jaccard(rows[row], rows[other]) >= threshold for other in met):
            kept.append(row)
    return [row for row in range(len(rows)) if row not in kept]


def made_texts(seed: int, count: int, words: int = 40) -> list[list[str]]:
    source = random.Random(seed)
    return [[f"w{source.randrange(5000)}" for _ in range(words)] for _ in range(count)]


def changed(text: list[str], count: int, source: random.Random) -> list[str]:
    text = list(text)
    for place in source.sample(range(len(text)), count):
        text[place] = f"new{source.randrange(10**6)}"
    return text


# who loses


@given(texts, thresholds)
def test_every_loser_names_a_better_placed_kept_row_that_is_really_near(rows: list[str], threshold: float) -> None:
    found = triples(find(rows, threshold))
    losers = [loser for loser, _, _ in found]
    assert losers == sorted(set(losers))
    for loser, winner, similarity in found:
        assert winner < loser
        assert winner not in losers
        assert similarity == jaccard(rows[loser], rows[winner]) >= threshold


@given(texts.filter(lambda rows: len(rows) <= near.MAX_WINNERS + 1), thresholds, st.data())
def test_in_small_buckets_the_losers_are_those_of_the_plain_greedy_order(
    rows: list[str], threshold: float, data: st.DataObject
) -> None:
    keys = draw_keys(data, rows)
    assert near_losers(keys, threshold, fetch(rows)).loser.tolist() == plain_greedy(rows, keys, threshold)


@given(texts, thresholds, st.data())
def test_a_kept_row_is_near_to_none_of_the_first_kept_rows_of_its_buckets(
    rows: list[str], threshold: float, data: st.DataObject
) -> None:
    keys = draw_keys(data, rows)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(near, "MAX_WINNERS", 2)
        found = triples(near_losers(keys, threshold, fetch(rows)))
    kept = [row for row in range(len(rows)) if row not in {loser for loser, _, _ in found} and keys[row].any()]
    assert all(winner in kept and jaccard(rows[loser], rows[winner]) >= threshold for loser, winner, _ in found)
    for band in keys.T:
        for place, row in enumerate(kept):
            before = [other for other in kept[:place] if band[other] == band[row]][:2]
            assert all(jaccard(rows[row], rows[other]) < threshold for other in before)


@given(texts, thresholds)
def test_equal_texts_lose_to_the_first_and_texts_without_words_never(rows: list[str], threshold: float) -> None:
    found = {loser: winner for loser, winner, _ in triples(find(rows, threshold))}
    for row, text in enumerate(rows):
        if not text:
            assert row not in found
        elif text in rows[:row]:
            assert row in found


def test_a_row_whose_only_near_row_loses_is_kept() -> None:
    text = "b c d e f g h i j k l m n o p q r s"
    rows = [f"a {text} t", f"x {text} t", f"x {text} y"]
    assert [jaccard(rows[i], rows[j]) for i, j in ((0, 1), (1, 2), (0, 2))] == [18 / 20, 18 / 20, 17 / 21]
    assert [(loser, winner) for loser, winner, _ in triples(find(rows, 0.85))] == [(1, 0)]


def test_of_pairs_a_higher_threshold_drops_a_part_of_what_a_lower_one_does() -> None:
    # of chains it need not: a row that lost at the lower threshold is kept at the higher one, and wins
    source = random.Random(4)
    originals = made_texts(4, 200)
    rows = [" ".join(text) for text in originals + [changed(text, source.randint(1, 8), source) for text in originals]]
    keys = sketch(hash_words(rows), plan_bands(0.5))
    found = [set(near_losers(keys, threshold, fetch(rows)).loser.tolist()) for threshold in (0.5, 0.7, 0.9)]
    assert found[0] > found[1] > found[2]


# how surely


@pytest.mark.parametrize("threshold", [0.6, 0.7, 0.85])
def test_planted_pairs_are_found_and_nothing_unrelated_is_dropped(threshold: float) -> None:
    source = random.Random(7)
    originals = made_texts(7, 3000)
    copies = [changed(text, source.randint(1, 8), source) for text in originals]
    rows = [" ".join(text) for text in originals + copies]
    wanted = {3000 + k: k for k in range(3000) if jaccard(rows[k], rows[3000 + k]) >= threshold}
    found = {loser: winner for loser, winner, _ in triples(find(rows, threshold))}
    assert len(wanted) > 400
    assert found.items() <= wanted.items()
    assert len(found) >= 0.97 * len(wanted)


def test_pairs_are_compared_as_often_as_the_plan_says() -> None:
    plan = plan_bands(0.7)
    source = random.Random(8)
    originals = made_texts(8, 3000, words=52)
    rows = [" ".join(text) for text in originals + [changed(text, 5, source) for text in originals]]
    keys = sketch(hash_words(rows), plan)
    shared = (keys[:3000] == keys[3000:]).any(axis=1).mean()
    chances = [plan.chance(jaccard(rows[k], rows[3000 + k])) for k in range(3000)]
    assert abs(shared - np.mean(chances)) < 0.015


@given(st.floats(0.05, 1))
def test_planned_bands_compare_pairs_at_the_threshold(threshold: float) -> None:
    plan = plan_bands(threshold)
    assert plan.chance(threshold) >= near.CHANCE
    assert Bands(plan.bands - 1, plan.rows).chance(threshold) < near.CHANCE
    assert plan.bands * plan.rows <= near.MAX_HASHES or plan.rows == 1


def test_the_usual_threshold_has_the_bands_that_are_documented() -> None:
    assert plan_bands(0.7) == Bands(16, 4)
    assert round(Bands(16, 4).chance(0.7), 3) == 0.988
    for wrong in (0, -1, 1.01):
        with pytest.raises(ValueError, match="threshold of near duplicates"):
            plan_bands(wrong)


# what must not matter


@given(texts, st.sampled_from([1, 5, 1000]))
def test_a_sketch_knows_its_row_alone(rows: list[str], block: int) -> None:
    plan = plan_bands(0.7)
    whole = sketch(hash_words(rows), plan)
    alone = [sketch(hash_words([row]), plan)[0] for row in rows]
    assert whole.tolist() == [row.tolist() for row in alone]
    assert (whole == near.NO_WORDS).all(axis=1).tolist() == [not row for row in rows] or not rows
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(near, "SKETCH_WORDS", block)
        assert sketch(hash_words(rows), plan).tolist() == whole.tolist()


@given(texts, thresholds)
def test_blocks_of_any_size_give_the_same_losers(rows: list[str], threshold: float) -> None:
    whole = triples(find(rows, threshold))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(near, "FETCHED_PAIRS", 3)
        patch.setattr(near, "SORTED_BIGRAMS", 10)
        assert triples(find(rows, threshold)) == whole


def test_keys_are_the_same_on_every_machine_and_in_every_version() -> None:
    keys = sketch(hash_words(["the quick brown fox jumps over the lazy dog", "word", ""]), Bands(2, 4))
    assert [f"{key:016x}" for key in keys.reshape(-1).tolist()] == [
        "ea8c24f67fbceed2",
        "13cd691fecc0ef83",
        "96f101d2660de151",
        "c029777ae5e5516e",
        *["0" * 16] * 2,
    ]


@given(texts)
def test_bigrams_are_those_of_the_definition(rows: list[str]) -> None:
    words = bigrams(hash_words(rows))
    spelled = [gram for row in rows for gram in plain_grams(row)]
    assert words.counts.tolist() == [len(plain_grams(row)) for row in rows]
    pairs = set(zip(spelled, words.hashes.tolist(), strict=True))
    assert len(pairs) == len(set(spelled)) == len(set(words.hashes.tolist()))


def plain_grams(row: str) -> list[str]:
    words = row.split()
    return [f"{a} {b}" for a, b in pairwise(words)] if len(words) > 1 else words


def test_one_template_is_compared_in_proportion_to_its_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    source = random.Random(9)
    template = made_texts(9, 1)[0]
    rows = [" ".join(changed(template, 5, source)) for _ in range(3000)]
    compared = []
    similarities = near.similarities

    def counting(pairs: Keys, texts_of: Callable[[Rows], list[str]]) -> npt.NDArray[np.float64]:
        compared.extend(pairs.tolist())
        return similarities(pairs, texts_of)

    monkeypatch.setattr(near, "similarities", counting)
    found = find(rows, 0.7)
    assert len(compared) == len(set(compared)) < len(rows) * plan_bands(0.7).bands * near.MAX_WINNERS
    assert all(jaccard(rows[loser], rows[winner]) >= 0.7 for loser, winner, _ in triples(found))
