"""The byte kernel against plain Python: words, hashes and likeness keys."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from corpus import words as module
from corpus.words import Words, hash_words, likeness, plain_likeness, plain_words, row_blocks, word_hash

ODD = "aZ09_ \n\t\x00\x1c\x85\xa0\u3000.,'-éÉßİıſΣςﬁẞ́中文・ーカナｶﾅ한국ᄒ々𠀀हिअ😀\u200b\u2019٣²"
texts = st.lists(
    st.one_of(
        st.text(st.sampled_from(ODD), max_size=40),
        st.text(st.characters(codec="utf-8"), max_size=40),
        st.text(st.characters(max_codepoint=127), max_size=80),
    ),
    max_size=12,
)


def rows_of(words: Words) -> list[list[int]]:
    return [words.hashes[a:b].tolist() for a, b in zip(words.offsets[:-1], words.offsets[1:], strict=True)]


def expected(rows: list[str]) -> list[list[int]]:
    return [[word_hash(word) for word in plain_words(row)] for row in rows]


@given(texts)
def test_the_kernel_finds_the_words_of_the_definition(rows: list[str]) -> None:
    assert rows_of(hash_words(rows)) == expected(rows)


@given(texts)
def test_equal_words_and_equal_hashes_are_the_same_thing(rows: list[str]) -> None:
    spelled = [word for row in rows for word in plain_words(row)]
    hashes = hash_words(rows).hashes.tolist()
    assert len(set(spelled)) == len(set(hashes)) == len(set(zip(spelled, hashes, strict=True)))


@given(texts)
def test_a_likeness_key_is_that_of_the_definition(rows: list[str]) -> None:
    assert likeness(rows) == [plain_likeness(row) for row in rows]


def test_every_character_is_judged_as_the_definition_does() -> None:
    rows = [f"ab{chr(code)}Cd" for code in range(0x110000)]
    counts = [len(plain_words(row)) for row in rows]
    assert hash_words(rows).counts.tolist() == counts


@pytest.mark.parametrize("size", [2, 7, 100])
def test_blocks_of_any_size_give_the_same_words_and_keys(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = ["", "one", "Two  words", "x" * 40, " y" * 60, "中文 and " + "é" * 30, "a" * 7 + " " + "b" * 6, " ", "end."]
    words, keys = rows_of(hash_words(rows)), likeness(rows)
    monkeypatch.setattr(module, "BLOCK", size)
    monkeypatch.setattr(module, "BLOCK_ROWS", 2)
    assert rows_of(hash_words(rows)) == words == expected(rows)
    assert likeness(rows) == keys


def test_a_text_and_a_word_may_be_longer_than_a_block() -> None:
    rows = ["before", "word " * 50_000, "q" * 200_000, "é " * 70_000, "p" * module.BLOCK, "after"]
    words = hash_words(rows)
    assert words.counts.tolist() == [1, 50_000, 1, 70_000, 1, 1]
    found = [words.hashes[start].item() for start in words.offsets[[0, 1, 3, 5]]]
    assert found == [word_hash(word) for word in ("before", "word", "é", "after")]
    assert words.hashes[words.offsets[2]] == word_hash("q" * 200_000)


def test_a_lone_surrogate_is_no_word_and_leaves_its_neighbours_alone() -> None:
    rows = ["one", "t\ud800wo", "three"]
    assert rows_of(hash_words(rows)) == expected(["one", "t wo", "three"])
    assert likeness(rows)[::2] == likeness(["one", "three"])


@pytest.mark.parametrize("rows", [[], [""], ["", " \n", "\x00"]])
def test_texts_without_words_are_rows_without_words(rows: list[str]) -> None:
    words = hash_words(rows)
    assert words.hashes.dtype == np.uint64
    assert (words.rows, len(words.hashes)) == (len(rows), 0)
    assert words.counts.tolist() == [0] * len(rows)
    assert likeness(rows) == [plain_likeness(row) for row in rows]


def test_a_series_is_read_as_a_list_is() -> None:
    rows = [f"row {number} — naïve" for number in range(1000)]
    assert rows_of(hash_words(pl.Series(rows))) == rows_of(hash_words(rows))
    assert likeness(pl.Series(rows)) == likeness(rows)
    assert hash_words(pl.Series([], dtype=pl.String)).rows == 0


def test_a_cjk_character_is_a_word_and_a_kana_mark_too() -> None:
    assert plain_words("GPT4は速い。カー・한국 Straße") == ["gpt4", *"は速いカー한국", "strasse"]


def test_hashes_and_keys_are_fixed_for_ever() -> None:
    assert [f"{word_hash(word):016x}" for word in ("a", "straße", "中")] == [
        "80731053f12389a6",
        "1ad685eef11f7744",
        "7ac0b7a6caea0df9",
    ]
    assert likeness(["Hello  World"]) == ["81ef95a7d3046c7dec678e3126d813bf"]
    assert likeness(["Hello  World"]) == likeness([" hello\x1cworld\n"])


@given(texts, st.data())
def test_taken_rows_keep_their_words(rows: list[str], data: st.DataObject) -> None:
    chosen = data.draw(st.lists(st.integers(0, len(rows) - 1)) if rows else st.just([]))
    taken = hash_words(rows).take(np.array(chosen, np.int64))
    assert rows_of(taken) == [rows_of(hash_words(rows))[row] for row in chosen]


@given(st.lists(st.integers(0, 9)), st.integers(1, 20))
def test_row_blocks_cover_all_rows_in_order_and_keep_to_their_size(counts: list[int], size: int) -> None:
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(np.array(counts, np.int64))])
    blocks = list(row_blocks(offsets, size))
    assert [row for first, stop in blocks for row in range(first, stop)] == list(range(len(counts)))
    for first, stop in blocks:
        assert stop - first == 1 or max(stop - first, offsets[stop] - offsets[first]) <= size
