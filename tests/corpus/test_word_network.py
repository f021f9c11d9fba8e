"""The network over words: its scores are those of plain whole-number arithmetic over its file, alone or together."""

from __future__ import annotations

from math import sqrt
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import corpus
from corpus.manifest import CATEGORIES
from corpus.word_network import (
    COLUMNS,
    FILE,
    FINE,
    FIRST_WORDS,
    LAST_WORDS,
    ROOT_FINE,
    ROOTS,
    SCORE_BITS,
    WIDTH,
    Said,
    word_network,
)

HELD = dict(np.load(Path(corpus.__file__).parent / FILE))
WORDS = HELD["words"].tobytes().split(b"\n")
VECTORS = dict(zip(WORDS, HELD["vectors"].tolist(), strict=True))

some_words = st.lists(st.sampled_from(WORDS) | st.binary(max_size=3), max_size=40)
some_sums = st.dictionaries(st.sampled_from(COLUMNS), st.floats(0, 60), max_size=4)
prompts = st.builds(
    lambda sums, said, others: Said(sums, frozenset(said + others), said), some_sums, some_words, some_words
)


def plainly(prompt: Said) -> dict[str, float]:
    """The scores as the module's text says them, number by number."""
    request = [word for word in prompt.request if word in VECTORS]
    inputs: list[int] = []
    for words in ([w for w in prompt.words if w in VECTORS], request[:FIRST_WORDS], request[-LAST_WORDS:]):
        sums = [sum(VECTORS[word][at] for word in words) for at in range(WIDTH)]
        inputs += [round(one * (FINE / sqrt(len(words) + 1.0))) for one in sums]
    inputs += [round(sqrt(prompt.sums.get(name, 0.0)) * ROOT_FINE) for name in COLUMNS]
    layer = {name: HELD[name].tolist() for name in ("first", "first_bias", "second", "direct", "bias")}
    hidden = [
        max(0, bias + sum(one * row[unit] for one, row in zip(inputs, layer["first"], strict=True)))
        for unit, bias in enumerate(layer["first_bias"])
    ]
    return {
        name: (
            layer["bias"][at]
            + sum(unit * row[at] for unit, row in zip(hidden, layer["second"], strict=True))
            + sum(one * row[at] for one, row in zip(inputs, layer["direct"], strict=True))
        )
        / 2**SCORE_BITS
        for at, name in enumerate(COLUMNS)
    }


def test_the_file_holds_words_once_and_layers_that_fit_each_other() -> None:
    assert {*COLUMNS, "agent"} == set(CATEGORIES)
    assert len(set(WORDS)) == len(WORDS) >= 20_000
    assert all(word == word.lower() and not set(word) & set(b" \t\r") for word in WORDS)
    hidden = len(HELD["first_bias"])
    assert HELD["vectors"].shape == (len(WORDS), WIDTH) and HELD["first"].shape == (ROOTS + 4, hidden)
    assert HELD["second"].shape == (hidden, 4) and HELD["direct"].shape == (ROOTS + 4, 4)
    assert max(word_network().scores([Said({}, frozenset(), ())])[0].items(), key=lambda one: one[1])[0] == "general"


def test_no_sum_can_leave_64_bits_nor_a_score_the_53_of_a_float() -> None:
    largest = np.array([127 * FINE * 200] * ROOTS + [ROOT_FINE * 100] * 4, dtype=float)  # 40,000 words, all alike
    hidden = largest @ np.abs(HELD["first"].astype(float)) + np.abs(HELD["first_bias"])
    score = hidden @ np.abs(HELD["second"].astype(float)) + largest @ np.abs(HELD["direct"].astype(float))
    assert hidden.max() < 2.0**62 and score.max() < 2.0**62


@settings(max_examples=60, deadline=None)
@given(st.lists(prompts, max_size=5))
def test_scores_are_those_of_plain_arithmetic_whoever_stands_beside(some: list[Said]) -> None:
    assert word_network().scores(some) == [plainly(prompt) for prompt in some]


@settings(max_examples=60, deadline=None)
@given(prompts)
def test_parts_add_up_to_the_scores_and_words_to_their_part(prompt: Said) -> None:
    scores, parts = word_network().scores([prompt])[0], word_network().parts(prompt)
    for name in COLUMNS:
        assert parts.rules[name] + parts.words[name] + parts.rest[name] == pytest.approx(scores[name], abs=1e-6)
        assert sum(parts.by_word[name].values()) == pytest.approx(parts.words[name], abs=0.2)  # sums are rounded
        assert prompt.sums.get(name) or parts.rules[name] == 0
    assert sum(scores.values()) == pytest.approx(0, abs=0.01)  # of rounded numbers


def test_a_word_is_told_by_its_category_and_an_unknown_one_says_nothing() -> None:
    said = word_network().parts(Said({}, frozenset({b"dockerfile", b"no-such-word-here"}), (b"dockerfile",)))
    assert max(COLUMNS, key=lambda name: said.by_word[name][b"dockerfile"]) == "code-other"
    assert all(set(words) == {b"dockerfile"} for words in said.by_word.values())
