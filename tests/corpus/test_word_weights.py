"""The table of words: what it says is what its file holds, exactly, and the least of its sums is nothing."""

from __future__ import annotations

import gzip
import json
from math import sqrt
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import corpus
from corpus.manifest import CATEGORIES
from corpus.word_weights import COLUMNS, FILE, LANE, SHIFT, word_weights

LINES = gzip.decompress((Path(corpus.__file__).parent / FILE).read_bytes()).decode().splitlines()
PLAIN = {word.encode(): list(map(int, weights)) for word, *weights in (line.split("\t") for line in LINES[1:])}


def test_the_table_is_of_four_categories_and_its_weights_fit_their_lanes() -> None:
    head = json.loads(LINES[0].removeprefix("#"))
    assert {*head["columns"], "agent"} == set(CATEGORIES)
    assert set(head["bias"]) == set(head["gain"]) == set(COLUMNS)
    assert min(head["gain"].values()) > 0 and max(head["bias"], key=head["bias"].__getitem__) == "general"
    assert len(PLAIN) == len(LINES) - 1 >= 20_000
    assert all(len(weights) == 4 and max(map(abs, weights)) < SHIFT for weights in PLAIN.values())
    assert (2 * SHIFT) << 16 <= 1 << LANE  # a turn's judged parts hold far fewer words
    assert list(PLAIN) == sorted(PLAIN)


@settings(max_examples=60, deadline=None)
@given(st.sets(st.sampled_from(sorted(PLAIN)), max_size=400), st.sets(st.binary(max_size=3), max_size=9))
def test_sums_are_those_of_plain_arithmetic(words: set[bytes], others: set[bytes]) -> None:
    table, asked = word_weights(), words | others
    sums = [sum(PLAIN.get(word, [0] * 4)[at] for word in asked) for at in range(4)]
    scale = table.step / sqrt(len(asked) + 1)
    assert table.sums(asked) == pytest.approx([scale * (one - min(sums)) for one in sums])
    assert table.scores({}, asked) == pytest.approx(
        {name: table.bias[name] + scale * (one - min(sums)) for name, one in zip(COLUMNS, sums, strict=True)}
    )


def test_a_word_is_told_by_its_category() -> None:
    table = word_weights()
    assert table.weight(b"dockerfile", "code-other") == PLAIN[b"dockerfile"][COLUMNS.index("code-other")] > 0
    assert table.weight(b"no-such-word-here", "math") == 0
    assert table.scores({"math": 4.0}, frozenset())["math"] == table.bias["math"] + table.gain["math"] * 2
