"""Overlaps with evaluation sets against a plain search with sets of tuples."""

from __future__ import annotations

import random

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from corpus import decontamination as module
from corpus.decontamination import EvalIndex, EvalItem, Overlaps, index_items, overlaps
from corpus.words import hash_words, plain_words

words = st.sampled_from(["a", "B", "c", "中", "é,", "b.\n"])
texts = st.lists(st.lists(words, max_size=9).map(" ".join), max_size=12)
items = st.lists(
    st.builds(EvalItem, st.sampled_from(["x", "y"]), st.just("label"), st.lists(words, max_size=7).map(" ".join)),
    max_size=8,
)
Found = list[tuple[int, int, str]]


def find(rows: list[str], index: EvalIndex) -> Found:
    return triples(overlaps(hash_words(rows), rows, index))


def triples(found: Overlaps) -> Found:
    return list(zip(found.rows.tolist(), found.items.tolist(), found.texts, strict=True))


def plain_overlaps(rows: list[str], listed: list[EvalItem], ngram: int) -> Found:
    """The definition: the first n-gram of a prompt that an item has, and the first item that has it."""
    firsts: dict[tuple[str, ...], int] = {}
    for number in sorted(range(len(listed)), key=lambda number: (listed[number].set_name, number)):
        for gram in plain_grams(listed[number].text, ngram):
            firsts.setdefault(gram, number)
    found = []
    for row, text in enumerate(rows):
        hit = next((gram for gram in plain_grams(text, ngram) if gram in firsts), None)
        if hit:
            found.append((row, firsts[hit], " ".join(hit)))
    return found


def plain_grams(text: str, ngram: int) -> list[tuple[str, ...]]:
    """Every n words in a row; of a shorter text, all of them."""
    spelled = tuple(plain_words(text))
    if len(spelled) <= ngram:
        return [spelled] if spelled else []
    return [spelled[k : k + ngram] for k in range(len(spelled) - ngram + 1)]


@given(texts, items, st.integers(1, 5))
def test_every_overlap_is_found_and_no_other(rows: list[str], listed: list[EvalItem], ngram: int) -> None:
    assert find(rows, index_items(listed, ngram)) == plain_overlaps(rows, listed, ngram)


@given(texts, items, st.integers(1, 5))
def test_colliding_hashes_report_nothing_false(rows: list[str], listed: list[EvalItem], ngram: int) -> None:
    true = plain_overlaps(rows, listed, ngram)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "mix", lambda hashes: hashes & np.uint64(3))
        found = find(rows, index_items(listed, ngram))
    assert {row for row, _, _ in found} <= {row for row, _, _ in true}
    for row, item, shared in found:
        gram = tuple(shared.split())
        assert gram in plain_grams(rows[row], ngram)
        assert gram in plain_grams(listed[item].text, ngram)


@given(texts, items, st.integers(1, 3), st.integers(4, 9))
def test_blocks_of_any_size_find_the_same(rows: list[str], listed: list[EvalItem], ngram: int, block: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "BLOCK", block)
        patch.setattr(module, "ITEMS_AT_A_TIME", 2)
        assert find(rows, index_items(listed, ngram)) == plain_overlaps(rows, listed, ngram)


def test_thirteen_words_in_a_row_overlap_and_twelve_do_not() -> None:
    question = [f"q{k}" for k in range(30)]
    index = index_items([EvalItem("gsm", "test/7", " ".join(question))])
    rows = ["before " + ", ".join(question[5 : 5 + count]).upper() + "? after" for count in (12, 13, 14)]
    assert find(rows, index) == [(1, 0, " ".join(question[5:18])), (2, 0, " ".join(question[5:18]))]


def test_an_overlap_does_not_cross_prompts() -> None:
    question = [f"q{k}" for k in range(13)]
    index = index_items([EvalItem("gsm", "0", " ".join(question))])
    assert find([" ".join(question[:6]), " ".join(question[6:])], index) == []


def test_a_short_item_is_matched_by_its_exact_words_alone() -> None:
    index = index_items([EvalItem("set", "0", "What is 2 + 2?"), EvalItem("set", "1", "?!")])
    rows = ["what is 2 2", "So, what is 2 + 2?", "What is 2 + 2 + 2?", "", "?!"]
    assert find(rows, index) == [(0, 0, "what is 2 2")]


def test_the_first_set_by_name_has_a_question_that_several_have() -> None:
    text = " ".join(f"q{k}" for k in range(13))
    listed = [EvalItem("zebra", "0", text), EvalItem("ape", "0", text), EvalItem("ape", "1", text)]
    assert [item for _, item, _ in find([text], index_items(listed))] == [1]


def test_twenty_planted_overlaps_are_found_among_many_prompts() -> None:
    source = random.Random(3)
    listed = [EvalItem("set", str(k), " ".join(f"w{source.randrange(9999)}" for _ in range(40))) for k in range(3000)]
    rows = [" ".join(f"w{source.randrange(9999)}" for _ in range(60)) for _ in range(5000)]
    planted = {row: source.randrange(3000) for row in source.sample(range(5000), 20)}
    for row, item in planted.items():
        start = source.randrange(28)
        rows[row] = f"{rows[row]} {' '.join(listed[item].text.split()[start : start + 13])} {rows[row]}"
    index = index_items(listed)
    found = overlaps(hash_words(rows), pl.Series(rows), index)
    assert {row: item for row, item, _ in triples(found)} == planted


def test_nothing_overlaps_with_nothing() -> None:
    assert find(["some words"], index_items([])) == []
    assert find([], index_items([EvalItem("set", "0", "some words")])) == []
    with pytest.raises(ValueError, match="n-grams of 0 words"):
        index_items([], 0)


def test_words_that_many_items_share_are_boilerplate_where_that_is_asked() -> None:
    ending = "give the result as your final answer and do not include any units"
    items = [EvalItem("s", str(i), f"question {i} alone here {ending}") for i in range(5)]
    rows = [f"mine {ending}", f"question 3 alone here {ending} please"]
    words = hash_words(rows)
    assert overlaps(words, rows, index_items(items, 6)).rows.tolist() == [0, 1]
    found = overlaps(words, rows, index_items(items, 6, common=3))
    assert (found.rows.tolist(), found.items.tolist()) == ([1], [3])
    assert overlaps(words, rows, index_items(items, 6, common=5)).rows.tolist() == [1]  # all five share it
    assert overlaps(words, rows, index_items(items, 6, common=6)).rows.tolist() == [0, 1]
