"""Reads a prompt as a whole: a small transformer encoder, for prompts that rules and single words leave open.

BERT (Devlin et al. 2019) of six layers, all-MiniLM-L6-v2 (sentence-transformers, Apache-2.0) fitted to the five
categories by tests/labelled/teach.py; weights are kept as 8-bit whole numbers with a scale a row. Scores are of
corpus.word_network.COLUMNS: agent has none, rules alone decide it.

It needs NumPy alone, some milliseconds a prompt and 90 MB. Its arithmetic is in 32-bit floats: other processors may
differ in a score's sixth digit, and so in the answer where two categories are equal to that.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib import resources
from math import sqrt
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
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

_Floats = npt.NDArray[np.float32]


class Dense(NamedTuple):
    """x @ weight + bias; weight (in, out)."""

    weight: _Floats
    bias: _Floats

    def __call__(self, x: _Floats) -> _Floats:
        made: _Floats = x @ self.weight
        made += self.bias
        return made


class Norm(NamedTuple):
    """Layer normalisation over the last axis (Ba et al. 2016)."""

    scale: _Floats
    shift: _Floats

    def __call__(self, x: _Floats) -> _Floats:
        centred: _Floats = x - x.mean(axis=-1, keepdims=True)
        variance = np.einsum("...i,...i->...", centred, centred)[..., None] / np.float32(x.shape[-1])
        centred /= np.sqrt(variance + np.float32(EPSILON))
        centred *= self.scale
        centred += self.shift
        return centred


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
        """Each prompt's logarithm of the share that each of COLUMNS has; the shares sum to 1."""
        found: list[dict[str, float]] = []
        some: list[list[int]] = []
        for messages in prompts:
            some.append(self.tokens(messages))
            if sum(map(len, some)) >= TOGETHER:
                found += self._read(some)
                some = []
        return found + (self._read(some) if some else [])

    def tokens(self, messages: Sequence[Message]) -> list[int]:
        """Token ids of a prompt: what the system turn says, then what the user says."""
        system, text = read_of(messages)
        ids = self._ids(text)
        if len(ids) > TOKENS:
            ids = ids[: TOKENS * 2 // 3] + ids[-(TOKENS // 3) :]
        before = self._ids(system)[:SYSTEM_TOKENS]
        start, end = self._ids("[CLS][SEP]")
        return [start, *before, *([end] if before else []), *ids, end]

    def _ids(self, text: str) -> list[int]:
        # a half of a surrogate pair is no character that can be cut into tokens
        whole = text.encode("utf-8", "replace").decode()
        ids: list[int] = self.tokenizer.encode(whole, add_special_tokens=False).ids
        return ids

    def _read(self, some: Sequence[Sequence[int]]) -> list[dict[str, float]]:
        ends = np.cumsum([len(one) for one in some])
        places = np.concatenate([np.arange(len(one)) for one in some])
        x = self.embedded_norm(self.embeddings[np.concatenate(some)] + self.positions[places])
        for layer in self.layers:
            x = layer.attended_norm(x + layer.attended(self._attention(layer, x, ends)))
            x = layer.narrow_norm(x + layer.narrow(gelu(layer.wide(x))))
        starts = np.concatenate([[0], ends[:-1]])
        scores = self.head(np.add.reduceat(x, starts, axis=0) / (ends - starts).astype(np.float32)[:, None])
        scores -= scores.max(axis=1, keepdims=True)
        scores -= np.log(np.exp(scores).sum(axis=1, keepdims=True))
        return [dict(zip(COLUMNS, row, strict=True)) for row in scores.tolist()]

    def _attention(self, layer: Layer, x: _Floats, ends: npt.NDArray[np.int64]) -> _Floats:
        """Of tokens of several prompts, one behind the other: each sees its own prompt's (Vaswani et al. 2017)."""
        size = x.shape[1] // self.heads
        query, key, value = (
            np.ascontiguousarray(dense(x).reshape(-1, self.heads, size).transpose(1, 0, 2))
            for dense in (layer.query, layer.key, layer.value)
        )
        query *= np.float32(1 / sqrt(size))
        seen, start = np.empty_like(x), 0
        for end in ends.tolist():
            weights = query[:, start:end] @ key[:, start:end].transpose(0, 2, 1)
            weights -= weights.max(axis=-1, keepdims=True)
            np.exp(weights, out=weights)
            weights /= weights.sum(axis=-1, keepdims=True)
            seen[start:end] = (weights @ value[:, start:end]).transpose(1, 0, 2).reshape(end - start, -1)
            start = end
        return seen


def read_of(messages: Sequence[Message]) -> tuple[str, str]:
    """(system turn, user's turns) of a prompt, as far as they are read."""
    said = [one.get("content") or "" for one in messages if one["role"] == "user"] or [""]
    system = " ".join(one.get("content") or "" for one in messages if one["role"] == "system")[:SYSTEM]
    if len(said) == 1:
        return system, said[0][:ONE_TURN]
    between = "\n".join(said[1:-1])
    turns = (said[0][:FIRST_TURN], between[:OTHER_TURNS], said[-1][:OTHER_TURNS])
    return system, "\n".join(filter(None, turns))


def gelu(x: _Floats) -> _Floats:
    """x times the normal distribution at x (Hendrycks and Gimpel 2016), by its tanh form: off by less than 5e-4."""
    inner: _Floats = x * x
    inner *= np.float32(0.044715)
    inner += 1
    inner *= x
    inner *= np.float32(sqrt(2 / np.pi))
    np.tanh(inner, out=inner)
    inner += 1
    inner *= x
    inner *= np.float32(0.5)
    return inner


@cache
def prompt_encoder() -> Encoder:
    """The encoder that comes with this version."""
    with resources.as_file(resources.files("corpus") / FILE) as path, np.load(path) as held:
        numbers = {name: held[name] for name in held.files}
    tokenizer = Tokenizer.from_buffer(numbers["tokenizer"].tobytes())

    def weight(name: str) -> _Floats:
        found: _Floats = numbers[name].astype(np.float32)
        return found * numbers[f"{name}.scale"][:, None] if f"{name}.scale" in numbers else found

    def dense(name: str) -> Dense:
        return Dense(np.ascontiguousarray(weight(f"{name}.weight").T), weight(f"{name}.bias"))

    def norm(name: str) -> Norm:
        return Norm(weight(f"{name}.weight"), weight(f"{name}.bias"))

    def layer(at: int) -> Layer:
        query, key, value, attended, wide, narrow = (
            dense(f"{at}.{name}") for name in ("query", "key", "value", "attended", "wide", "narrow")
        )
        norms = norm(f"{at}.attended_norm"), norm(f"{at}.narrow_norm")
        return Layer(query, key, value, attended, norms[0], wide, narrow, norms[1])

    layers = [layer(at) for at in range(int(numbers["layers"]))]
    embedded, positions = weight("embeddings"), weight("positions")
    return Encoder(tokenizer, int(numbers["heads"]), embedded, positions, norm("embedded_norm"), layers, dense("head"))
