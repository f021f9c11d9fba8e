"""Reads a prompt as a whole: a small transformer encoder, for prompts that rules and single words leave open.

BERT (Devlin et al. 2019) of six layers, all-MiniLM-L6-v2 (sentence-transformers, Apache-2.0) fitted to the five
categories by tests/labelled/teach.py. Scores are of corpus.word_network.COLUMNS: agent has none, rules alone decide it.

A prompt has the same scores, to the last bit, on every machine. Weights are 8-bit whole numbers with a scale a row, and
what they are multiplied with is rounded to whole numbers first, so few that each sum of a product is one that its
floating type holds exactly (EXACT_32, EXACT_64): then the order in which a processor adds does not matter. What is not
a sum is one operation that IEEE 754 fixes, or is looked up in a table. As Kim et al. 2021 (I-BERT) keep BERT in whole
numbers for speed, this does for sameness.

It needs NumPy alone, some milliseconds a prompt and 90 MB.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib import resources
from math import erfc, sqrt
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
from threadpoolctl import ThreadpoolController
from tokenizers import Tokenizer

from corpus.records import Message
from corpus.word_network import COLUMNS

FILE = "category_encoder.npz"
TOKENS, SYSTEM_TOKENS = 96, 40
"""Read of a prompt: of what the user says, two thirds from the start and a third from the end; of the system turn."""
ONE_TURN, FIRST_TURN, OTHER_TURNS, SYSTEM = 2000, 900, 500, 300
"""Characters that are cut into tokens: of an only user turn; of the first of several; of those between, and of the last
one; of the system turn."""
TOGETHER = 512
"""Tokens that are read at a time, of one or more prompts: what fits a processor's cache."""
EPSILON = 1e-12
"""In the normalisation of layers, as the model was made."""
EXACT_32, EXACT_64 = 2**24, 2**53
"""Up to here 32-bit and 64-bit floats hold every whole number."""
INNER = 384
"""How many products a matrix's sum has at most: a wider one is multiplied in parts."""
STEPS = EXACT_32 // (127 * INNER)
"""What the largest number of a token's state is rounded to where it is multiplied with 8-bit weights: 344."""
FINE = 256
"""Parts of 1 that states are rounded to where they are summed."""
EXP_FINE, EXP_LEAST = 256, 16
"""The exponential is looked up for each 256th from 0 to -16, below which it is nothing, in parts of EXP_PARTS."""
EXP_PARTS = 2**16
GELU_FINE, GELU_MOST = 256, 8
"""What GELU adds to the rectified number is looked up for each 256th to 8, above which it is nothing."""

_Floats = npt.NDArray[np.float32]
_Fine = npt.NDArray[np.float64]
_Table = TypeVar("_Table", _Floats, _Fine)


class Rounded(NamedTuple):
    """whole * step: whole numbers of at most STEPS, and the step of each row, or of each matrix."""

    whole: _Floats
    step: _Floats


class Dense(NamedTuple):
    """x @ (weight * scale) + bias: weight (in, out) of whole numbers, scale and bias (out)."""

    weight: _Floats
    scale: _Floats
    bias: _Floats

    def __call__(self, x: _Floats) -> _Floats:
        return self.of(rounded(x))

    def of(self, x: Rounded) -> _Floats:
        """The same of numbers that are rounded already."""
        made: _Floats = x.whole[:, :INNER] @ self.weight[:INNER]
        for at in range(INNER, len(self.weight), INNER):
            made += x.whole[:, at : at + INNER] @ self.weight[at : at + INNER]
        made *= x.step
        made *= self.scale
        made += self.bias
        return made


class Norm(NamedTuple):
    """Layer normalisation over the last axis (Ba et al. 2016)."""

    scale: _Floats
    shift: _Floats

    def __call__(self, x: _Floats) -> _Floats:
        whole, width = finely(x), x.shape[-1]
        mean = whole.sum(axis=-1, keepdims=True) / width
        variance = np.einsum("...i,...i->...", whole, whole)[..., None] / width - mean * mean
        whole -= mean
        whole /= np.sqrt(np.maximum(variance, 0) + EPSILON * FINE * FINE)
        made: _Floats = whole.astype(np.float32)
        made *= self.scale
        made += self.shift
        return made


class Layer(NamedTuple):
    """One layer: attention, then two dense layers, each added to what it reads and normalised."""

    query: Dense
    key: Dense
    value: Dense
    attended: Dense
    attended_norm: Norm
    wide: Dense
    narrow: Dense
    narrow_norm: Norm


class Encoder(NamedTuple):
    """The model. Shapes: embeddings (tokens, width), positions (512, width)."""

    tokenizer: Tokenizer
    heads: int
    embeddings: _Floats
    positions: _Floats
    embedded_norm: Norm
    layers: Sequence[Layer]
    head: Dense

    def scores(self, prompts: Sequence[Sequence[Message]]) -> list[dict[str, float]]:
        """Each prompt's score of each of COLUMNS: its share's logarithm, but for what all four have in common."""
        batches = list(_batches(token_ids(self.tokenizer, messages) for messages in prompts))
        if not batches:
            return []
        cores = len(os.sched_getaffinity(0))
        # one batch a core, and its products on this core alone: they are too small to be worth several
        with _libraries().limit(limits=1, user_api="blas"), ThreadPoolExecutor(min(cores, len(batches))) as threads:
            return [scores for batch in threads.map(self._read, batches) for scores in batch]

    def _read(self, some: Sequence[Sequence[int]]) -> list[dict[str, float]]:
        ends = np.cumsum([len(one) for one in some])
        places = np.concatenate([np.arange(len(one)) for one in some])
        x = self.embedded_norm(self.embeddings[np.concatenate(some)] + self.positions[places])
        for layer in self.layers:
            x = layer.attended_norm(x + layer.attended(self._attention(layer, x, ends)))
            x = layer.narrow_norm(x + layer.narrow(gelu(layer.wide(x))))
        starts = np.concatenate([[0], ends[:-1]])
        means = np.add.reduceat(finely(x), starts, axis=0) / (FINE * (ends - starts))[:, None]
        return [dict(zip(COLUMNS, row, strict=True)) for row in self.head(means.astype(np.float32)).tolist()]

    def _attention(self, layer: Layer, x: _Floats, ends: npt.NDArray[np.int64]) -> _Floats:
        """Of tokens of several prompts, one behind the other: each sees its own prompt's (Vaswani et al. 2017)."""
        size, given = x.shape[1] // self.heads, rounded(x)
        query, key, value = (
            np.ascontiguousarray(dense.of(given).reshape(-1, self.heads, size).transpose(1, 0, 2))
            for dense in (layer.query, layer.key, layer.value)
        )
        whole, seen, start = finely(value), np.empty_like(x), 0
        for end in ends.tolist():
            one, other = rounded(query[:, start:end], (1, 2)), rounded(key[:, start:end], (1, 2))
            below = one.whole @ other.whole.transpose(0, 2, 1)
            np.subtract(below.max(axis=-1, keepdims=True), below, out=below)
            below *= one.step * other.step * np.float32(EXP_FINE / sqrt(size))
            weights = looked_up(exponentials(), below)
            sums = weights @ whole[:, start:end]
            sums /= FINE * weights.sum(axis=-1, keepdims=True)
            seen[start:end] = sums.transpose(1, 0, 2).reshape(end - start, -1)
            start = end
        return seen


def _batches(prompts: Iterable[list[int]]) -> Iterator[list[list[int]]]:
    """Prompts' tokens by TOGETHER and what is left of the last prompt."""
    some: list[list[int]] = []
    for ids in prompts:
        some.append(ids)
        if sum(map(len, some)) >= TOGETHER:
            yield some
            some = []
    if some:
        yield some


def token_ids(tokenizer: Tokenizer, messages: Sequence[Message]) -> list[int]:
    """Token ids of a prompt: what the system turn says, then what the user says."""

    def cut(text: str) -> list[int]:
        # a half of a surrogate pair is no character that can be cut into tokens
        whole = text.encode("utf-8", "replace").decode()
        ids: list[int] = tokenizer.encode(whole, add_special_tokens=False).ids
        return ids

    system, text = read_of(messages)
    ids = cut(text)
    if len(ids) > TOKENS:
        ids = ids[: TOKENS * 2 // 3] + ids[-(TOKENS // 3) :]
    before = cut(system)[:SYSTEM_TOKENS]
    start, end = cut("[CLS][SEP]")
    return [start, *before, *([end] if before else []), *ids, end]


def read_of(messages: Sequence[Message]) -> tuple[str, str]:
    """(system turn, user's turns) of a prompt, as far as they are read."""
    said = [one.get("content") or "" for one in messages if one["role"] == "user"] or [""]
    system = " ".join(one.get("content") or "" for one in messages if one["role"] == "system")[:SYSTEM]
    if len(said) == 1:
        return system, said[0][:ONE_TURN]
    between = "\n".join(said[1:-1])
    turns = (said[0][:FIRST_TURN], between[:OTHER_TURNS], said[-1][:OTHER_TURNS])
    return system, "\n".join(filter(None, turns))


def rounded(x: _Floats, axes: int | tuple[int, ...] = -1) -> Rounded:
    """With one step for what lies along some axes."""
    most = np.maximum(x.max(axis=axes, keepdims=True), -x.min(axis=axes, keepdims=True))
    most = np.maximum(most, np.float32(EPSILON))
    whole = x * (np.float32(STEPS) / most)
    return Rounded(np.rint(whole, out=whole), most / np.float32(STEPS))


def finely(x: _Floats) -> _Fine:
    """Whole numbers of 1 / FINE: their products' sums are exact where they stay below EXACT_64."""
    whole: _Floats = x * np.float32(FINE)
    return np.rint(whole, out=whole).astype(np.float64)


def gelu(x: _Floats) -> _Floats:
    """x times the normal distribution at x (Hendrycks and Gimpel 2016), off by less than 0.001."""
    made: _Floats = np.maximum(x, np.float32(0))
    places = np.abs(x)
    places *= np.float32(GELU_FINE)
    made -= looked_up(gelu_rests(), places)
    return made


def looked_up(table: _Table, places: _Floats) -> _Table:
    """The table's entry that is nearest to each place, the last one beyond; `places` is used up."""
    places += np.float32(0.5)
    return table.take(places.astype(np.intp), mode="clip")


@cache
def _libraries() -> ThreadpoolController:
    return ThreadpoolController()


@cache
def exponentials() -> _Fine:
    """exp(-i / EXP_FINE) in whole parts of EXP_PARTS; the last is 0."""
    steps = np.arange(EXP_FINE * EXP_LEAST + 1)
    table: _Fine = np.rint(EXP_PARTS * np.exp(-steps / EXP_FINE))
    table[-1] = 0
    return table


@cache
def gelu_rests() -> _Floats:
    """What the rectified x has above GELU, for |x| = i / GELU_FINE, in whole parts of 2^16."""
    steps = (at / GELU_FINE for at in range(GELU_FINE * GELU_MOST + 1))
    return np.array([round(at * erfc(at / sqrt(2)) / 2 * 2**16) / 2**16 for at in steps], dtype=np.float32)


@cache
def prompt_encoder() -> Encoder:
    """The encoder that comes with this version."""
    with resources.as_file(resources.files("corpus") / FILE) as path, np.load(path) as held:
        numbers = {name: held[name] for name in held.files}
    tokenizer = Tokenizer.from_buffer(numbers["tokenizer"].tobytes())

    def table(name: str) -> _Floats:
        found: _Floats = numbers[name].astype(np.float32) * numbers[f"{name}.scale"][:, None]
        return found

    def dense(name: str) -> Dense:
        weight = np.ascontiguousarray(numbers[f"{name}.weight"].T.astype(np.float32))
        return Dense(weight, numbers[f"{name}.weight.scale"], numbers[f"{name}.bias"])

    def norm(name: str) -> Norm:
        return Norm(numbers[f"{name}.weight"], numbers[f"{name}.bias"])

    def layer(at: int) -> Layer:
        query, key, value, attended, wide, narrow = (
            dense(f"{at}.{name}") for name in ("query", "key", "value", "attended", "wide", "narrow")
        )
        norms = norm(f"{at}.attended_norm"), norm(f"{at}.narrow_norm")
        return Layer(query, key, value, attended, norms[0], wide, narrow, norms[1])

    layers = [layer(at) for at in range(int(numbers["layers"]))]
    embedded, positions = table("embeddings"), table("positions")
    return Encoder(tokenizer, int(numbers["heads"]), embedded, positions, norm("embedded_norm"), layers, dense("head"))
