"""What a prompt's words say of its category, learned: a small network over words, beside the rules' sums.

Rules (corpus.category_rules) know how people ask; this knows what they ask about, also in words that no rule names.
Each word has a vector of WIDTH whole numbers. What is judged are the vectors' sums over all distinct words of a prompt,
over the first and over the last words of its request (each divided by the root of their number, and 1), and the roots
of the rules' sums; one hidden layer of rectified units and a direct one give the scores of COLUMNS. Agent has no
column: rules alone decide it. tests/labelled/fit_network.py made the numbers, from what is for developing of the
labelled sets.

All arithmetic is of whole numbers but one division and root that IEEE 754 fixes, so a prompt has the same scores on
every machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import cache
from importlib import resources
from itertools import islice
from math import sqrt
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

FILE = "category_network.npz"
COLUMNS = ("general", "code-other", "coding", "math")
WIDTH = 32
FIRST_WORDS, LAST_WORDS = 10, 12
"""How many known words of a request are judged for where they stand."""
FINE, ROOT_FINE = 64, 256
"""Parts of a vector's unit, and of 1, that sums and roots are rounded to."""
HIDDEN_BITS, SCORE_BITS = 26, 38
"""A hidden unit is counted in parts of 2^-26, a score in parts of 2^-38."""
ROOTS = 3 * WIDTH
"""Where the roots stand among the inputs, behind the three sums of vectors."""

_Whole = npt.NDArray[np.int64]


class Said(NamedTuple):
    """What is judged of a prompt: the rules' sums by category, its distinct words, its request's words in order."""

    sums: Mapping[str, float]
    words: AbstractSet[bytes]
    request: Sequence[bytes]


class Parts(NamedTuple):
    """What a prompt's scores are made of, by category: its rules, its words, what each word says, and the rest."""

    rules: dict[str, float]
    words: dict[str, float]
    by_word: dict[str, dict[bytes, float]]
    rest: dict[str, float]


class WordNetwork(NamedTuple):
    """Its numbers: vectors (words + 1, WIDTH), first (inputs, hidden), second (hidden, 4), direct (inputs, 4)."""

    places: Mapping[bytes, int]
    vectors: npt.NDArray[np.float32]
    first: _Whole
    first_bias: _Whole
    second: _Whole
    direct: _Whole
    bias: _Whole

    def scores(self, prompts: Sequence[Said]) -> list[dict[str, float]]:
        """Each prompt's score of each of COLUMNS; their mean over COLUMNS is near 0."""
        if not prompts:
            return []
        inputs = self._inputs([self._parts(prompt) for prompt in prompts], prompts)
        hidden = np.maximum(inputs @ self.first + self.first_bias, 0)
        whole = hidden @ self.second + inputs @ self.direct + self.bias
        return [dict(zip(COLUMNS, row, strict=True)) for row in (whole / 2.0**SCORE_BITS).tolist()]

    def _parts(self, prompt: Said) -> tuple[list[int], list[int], list[int]]:
        """The places of all words, of the first ones and of the last ones; words that are not known have none."""
        every = list(map(self.places.__getitem__, self.places.keys() & prompt.words))
        first, last = (map(self.places.get, words) for words in (prompt.request, reversed(prompt.request)))
        return every, list(islice(filter(None, first), FIRST_WORDS)), list(islice(filter(None, last), LAST_WORDS))

    def _inputs(self, parts: Sequence[tuple[list[int], ...]], prompts: Sequence[Said]) -> _Whole:
        flat: list[int] = []
        starts: list[int] = []
        counts: list[int] = []
        for some in parts:
            for places in some:
                starts.append(len(flat))
                counts.append(len(places))
                flat += [0, *places]  # row 0 is nothing, so that no part is empty
        sums = np.add.reduceat(self.vectors[flat], starts, axis=0)
        scaled = np.rint(sums * (FINE / np.sqrt(np.array(counts) + 1.0))[:, None]).reshape(len(parts), ROOTS)
        roots = np.array([[sqrt(one.sums.get(name, 0.0)) for name in COLUMNS] for one in prompts])
        inputs: _Whole = np.concatenate([scaled, np.rint(roots * ROOT_FINE)], axis=1).astype(np.int64)
        return inputs

    def parts(self, prompt: Said) -> Parts:
        """Whence a prompt's scores come: with the units that are on, they are linear in rules and words.

        `rules` holds what the rules of a category do for that category; what they do to others is of `rest`.
        """
        places = self._parts(prompt)
        inputs = self._inputs([places], [prompt])[0]
        before = inputs @ self.first + self.first_bias
        on = before > 0
        slopes = (self.direct + self.first[:, on] @ self.second[on]) / 2.0**SCORE_BITS
        whole = (np.maximum(before, 0) @ self.second + inputs @ self.direct + self.bias) / 2.0**SCORE_BITS
        of_words, of_roots = inputs[:ROOTS] @ slopes[:ROOTS], inputs[ROOTS:] * slopes[ROOTS:].diagonal()
        said = np.zeros((len(self.vectors), len(COLUMNS)))
        for at, some in enumerate(places):
            scale = FINE / sqrt(len(some) + 1)
            np.add.at(said, some, scale * self.vectors[some] @ slopes[at * WIDTH : (at + 1) * WIDTH])
        words = [word for word in {*prompt.words, *prompt.request} if word in self.places]
        by_word = {
            name: {word: float(said[self.places[word], column]) for word in words}
            for column, name in enumerate(COLUMNS)
        }
        rules, heard = (dict(zip(COLUMNS, map(float, part), strict=True)) for part in (of_roots, of_words))
        rest = dict(zip(COLUMNS, map(float, whole - of_roots - of_words), strict=True))
        return Parts(rules, heard, by_word, rest)


@cache
def word_network() -> WordNetwork:
    """The network that comes with this version."""
    with resources.as_file(resources.files("corpus") / FILE) as path, np.load(path) as held:
        words = held["words"].tobytes().split(b"\n")
        vectors = np.concatenate([np.zeros((1, WIDTH), np.float32), held["vectors"].astype(np.float32)])
        layers = (held[name].astype(np.int64) for name in ("first", "first_bias", "second", "direct", "bias"))
        return WordNetwork({word: at for at, word in enumerate(words, 1)}, vectors, *layers)
