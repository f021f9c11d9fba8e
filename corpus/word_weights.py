"""What single words say of a prompt's category, learned: one table, four numbers a word.

Rules (corpus.category_rules) know how people ask; this table knows what they ask about, also in words that no rule
names. tests/labelled/fit_words.py made it from the develop half of the labelled set. It is data: whole numbers, so that
sums are the same on every machine, in a file beside this module. A score is
    bias + gain x sqrt(sum of the rules' weights) + step x (sum of its words' weights) / sqrt(words + 1)
per category, over the distinct words of a prompt. Agent has no column: rules alone decide it.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from functools import cache
from importlib import resources
from math import sqrt
from typing import NamedTuple

FILE = "category_words.tsv.gz"
COLUMNS = ("general", "code-other", "coding", "math")
LANE = 24
"""Bits of a category's sum: a prompt's judged parts have below 2^16 words, each weighs below 2^8."""
SHIFT = 128
"""Added to each weight in the packed table, so that lanes never borrow from each other."""


class WordWeights(NamedTuple):
    """The table: each word's weights of COLUMNS packed into one number, and what scores are made with."""

    packed: Mapping[bytes, int]
    step: float
    bias: Mapping[str, float]
    gain: Mapping[str, float]

    def sums(self, words: AbstractSet[bytes]) -> list[float]:
        """What the words say for each of COLUMNS, the least of them at 0."""
        known = self.packed.keys() & words
        total, scale = sum(map(self.packed.__getitem__, known)), self.step / sqrt(len(words) + 1)
        lanes = [(total >> LANE * at) % (1 << LANE) for at in range(len(COLUMNS))]
        least = min(lanes)
        return [scale * (lane - least) for lane in lanes]

    def scores(self, rules: Mapping[str, float], words: AbstractSet[bytes]) -> dict[str, float]:
        """Each of COLUMNS with its score. `rules`: the sum of the weights of the rules that spoke for it."""
        return {
            name: self.bias[name] + self.gain[name] * sqrt(rules.get(name, 0.0)) + said
            for name, said in zip(COLUMNS, self.sums(words), strict=True)
        }

    def weight(self, word: bytes, category: str) -> int:
        """What the table says of one word."""
        packed = self.packed.get(word)
        return 0 if packed is None else (packed >> LANE * COLUMNS.index(category)) % (1 << LANE) - SHIFT


@cache
def word_weights() -> WordWeights:
    """The table that comes with this version."""
    head, *lines = gzip.decompress((resources.files("corpus") / FILE).read_bytes()).decode().splitlines()
    said = json.loads(head.removeprefix("#"))
    assert tuple(said["columns"]) == COLUMNS
    packed = {}
    for line in lines:
        word, *weights = line.split("\t")
        packed[word.encode()] = sum(int(weight) + SHIFT << LANE * at for at, weight in enumerate(weights))
    return WordWeights(packed, said["step"], said["bias"], said["gain"])
