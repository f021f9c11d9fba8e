"""The encoder: its arithmetic is that of transformers' BERT, to the last bit on every processor; any text is read."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import BertConfig, BertModel

import corpus
from corpus.prompt_encoder import (
    EXACT_32,
    EXACT_64,
    EXP_FINE,
    EXP_PARTS,
    FILE,
    FINE,
    GELU_FINE,
    INNER,
    STEPS,
    SYSTEM_TOKENS,
    TOKENS,
    Dense,
    Norm,
    exponentials,
    gelu,
    gelu_rests,
    prompt_encoder,
    read_of,
    rounded,
    token_ids,
)
from corpus.word_network import COLUMNS
from tests.labelled.teach import NAMES

TEXTS = (
    "Write a haiku about kubectl.",
    "What is 17 * 23?",
    "",
    "def f(x):\n    return x + 1\n\nWhat does this print for f(2)? " + "And why? " * 60,
    "帮我写一个Python爬虫",
)


def asked(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


@pytest.fixture(scope="module")
def model() -> tuple[BertModel, torch.Tensor, torch.Tensor]:
    """transformers' model with the file's numbers, and the head's weight and bias."""
    held = dict(np.load(Path(corpus.__file__).parent / FILE))

    def number(name: str) -> torch.Tensor:
        value = held[name].astype(np.float32)
        return torch.tensor(value * held[f"{name}.scale"][:, None] if f"{name}.scale" in held else value)

    tokens, width = held["embeddings"].shape
    config = BertConfig(
        vocab_size=tokens, hidden_size=width, num_hidden_layers=int(held["layers"]), hidden_act="gelu",
        num_attention_heads=int(held["heads"]), intermediate_size=len(held["0.wide.bias"]),
        max_position_embeddings=len(held["positions"]),
    )  # fmt: skip
    state = {
        "embeddings.word_embeddings.weight": number("embeddings"),
        "embeddings.position_embeddings.weight": number("positions"),  # the kind of turn is part of it
        "embeddings.token_type_embeddings.weight": torch.zeros(2, width),
    }
    parts = {"embeddings.LayerNorm": "embedded_norm"}
    parts |= {
        f"encoder.layer.{at}.{name}": f"{at}.{own}" for at in range(int(held["layers"])) for name, own in NAMES.items()
    }
    state |= {f"{name}.{what}": number(f"{own}.{what}") for name, own in parts.items() for what in ("weight", "bias")}
    bert = BertModel(config, add_pooling_layer=False).eval()
    missing, unexpected = bert.load_state_dict(state, strict=False)
    assert not unexpected and not missing
    return bert, number("head.weight"), number("head.bias")


def test_scores_are_those_of_transformers(model: tuple[BertModel, torch.Tensor, torch.Tensor]) -> None:
    bert, weight, bias = model
    for text, scores in zip(TEXTS, prompt_encoder().scores([asked(text) for text in TEXTS]), strict=True):
        ids = torch.tensor([token_ids(prompt_encoder().tokenizer, asked(text))])
        with torch.no_grad():
            states = bert(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state
            wanted = (states.mean(1) @ weight.T + bias)[0].tolist()
        assert list(scores.values()) == pytest.approx(wanted, abs=0.1)
        assert list(scores) == list(COLUMNS)


@settings(max_examples=15, deadline=None)
@given(st.lists(st.sampled_from(TEXTS), max_size=6))
def test_a_prompt_is_read_alike_whoever_stands_beside_it(some: list[str]) -> None:
    together = prompt_encoder().scores([asked(text) for text in some])
    assert len(together) == len(some)
    assert together == [prompt_encoder().scores([asked(text)])[0] for text in some]


SCORES_DIGEST = "dc42ef035ccec1dd18d17d2f68d57533ca27f53b5d016313ba2ee440d374b94f"
OLD_PROCESSOR = (
    "SSSE3 SSE41 POPCNT SSE42 AVX F16C FMA3 AVX2 AVX512F AVX512CD AVX512_SKX AVX512_CLX AVX512_CNL AVX512_ICL"
)


SCORES_OF = """
import hashlib, json, sys
from corpus.prompt_encoder import prompt_encoder
scores = prompt_encoder().scores([[{"role": "user", "content": text}] for text in json.load(sys.stdin)])
print(hashlib.sha256(json.dumps(scores).encode()).hexdigest())
"""


@pytest.mark.parametrize(
    "processor",
    [
        {},
        {"OPENBLAS_CORETYPE": "Haswell", "OPENBLAS_NUM_THREADS": "1"},
        {"OPENBLAS_CORETYPE": "Prescott", "NPY_DISABLE_CPU_FEATURES": OLD_PROCESSOR},
    ],
)
def test_every_processor_has_the_same_scores_to_the_last_bit(processor: dict[str, str]) -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)} | processor
    command = [sys.executable, "-c", SCORES_OF]
    got = subprocess.run(command, input=json.dumps(TEXTS), env=environment, capture_output=True, text=True, check=True)
    assert got.stdout.split() == [SCORES_DIGEST]


def test_no_sum_of_a_product_can_leave_what_its_type_holds_exactly() -> None:
    """By the lengths of vectors (Cauchy and Schwarz): a normalised row's is known, a product's at most the two's."""
    encoder = prompt_encoder()
    width, tokens = len(encoder.head.weight), TOKENS + SYSTEM_TOKENS + 3
    off = 1 + math.sqrt(INNER) / STEPS / 2  # what rounding may add

    def length(norm: Norm) -> float:
        return float(np.abs(norm.scale).max() * math.sqrt(width) + np.linalg.norm(norm.shift))

    def made(dense: Dense, read: float) -> np.ndarray[Any, Any]:
        assert np.array_equal(dense.weight, np.rint(dense.weight)) and np.abs(dense.weight).max() <= 127
        assert len(dense.weight) % INNER == 0
        return np.linalg.norm(dense.weight * dense.scale, axis=0) * read * off + np.abs(dense.bias)

    assert STEPS * 127 * INNER <= EXACT_32
    read = length(encoder.embedded_norm)
    for layer in encoder.layers:
        query, key, value = (made(dense, read) for dense in (layer.query, layer.key, layer.value))
        assert query.max() * key.max() * FINE**2 * width / encoder.heads <= EXACT_64
        assert value.max() * FINE * EXP_PARTS * tokens <= EXACT_64
        attended = made(layer.attended, float(np.linalg.norm(value))) + read
        read = length(layer.attended_norm)
        narrow = made(layer.narrow, float(np.linalg.norm(made(layer.wide, read)))) + read
        assert max(attended.max(), narrow.max()) ** 2 * FINE**2 * width <= EXACT_64
        read = length(layer.narrow_norm)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 6), st.sampled_from([0.0, 1e-30, 1e-3, 1.0, 1e4]), st.integers(0, 2**32 - 1))
def test_numbers_are_rounded_by_half_a_step_at_most(rows: int, size: float, seed: int) -> None:
    x = (np.random.default_rng(seed).normal(size=(rows, 48)) * size).astype(np.float32)
    whole, step = rounded(x)
    assert np.array_equal(whole, np.rint(whole)) and np.abs(whole).max() <= STEPS
    assert (np.abs(whole * step - x) <= 0.501 * step).all()


def test_tables_are_far_from_being_rounded_otherwise_and_near_what_they_stand_for() -> None:
    """Another machine's exponential differs in the last bits: nowhere does that round to another whole number."""
    x = np.linspace(-12, 12, 9001, dtype=np.float32)
    wanted = [float(one) * (1 + math.erf(float(one) / math.sqrt(2))) / 2 for one in x]
    assert gelu(x.copy()) == pytest.approx(wanted, abs=0.0011)
    assert exponentials()[-1] == 0 and (np.diff(exponentials()) <= 0).all()
    whole = [EXP_PARTS * math.exp(-at / EXP_FINE) for at in range(len(exponentials()) - 1)]
    rests = [2**16 * at * math.erfc(at / math.sqrt(2)) / 2 for at in np.arange(len(gelu_rests())) / GELU_FINE]
    for exact, table in ((whole, exponentials()[:-1]), (rests, gelu_rests() * 2.0**16)):
        assert np.array_equal(np.rint(exact), table)
        assert np.abs(np.modf(exact)[0] - 0.5).min() > 1e-6


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["system", "user", "assistant"]), st.text() | st.just("\ud83d[SEP]")), max_size=5
    )
)
def test_any_text_is_a_bounded_number_of_tokens(turns: list[tuple[str, str]]) -> None:
    messages = [{"role": role, "content": text} for role, text in turns]
    tokens = token_ids(prompt_encoder().tokenizer, messages)
    assert 2 <= len(tokens) <= TOKENS + SYSTEM_TOKENS + 3
    assert all(map(math.isfinite, prompt_encoder().scores([messages])[0].values()))


def test_start_and_end_of_what_is_said_are_read_and_turns_between_where_the_first_is_short() -> None:
    start, end, long = (
        token_ids(prompt_encoder().tokenizer, asked(text))
        for text in ("alpha", "omega", "alpha " + "word " * 300 + "omega")
    )
    assert long[1] == start[1] and long[-2] == end[-2]
    turns = [*asked("hi"), *asked("Write a sort in Go."), {"role": "assistant", "content": "no"}, *asked("thanks")]
    assert read_of([{"role": "system", "content": "Be brief."}, *turns]) == (
        "Be brief.",
        "hi\nWrite a sort in Go.\nthanks",
    )


def test_a_megabyte_of_one_word_takes_no_longer_than_a_page() -> None:
    encoder = prompt_encoder()
    start = time.thread_time()
    assert len(token_ids(encoder.tokenizer, asked("x" * 1_000_000))) <= TOKENS + 2
    assert time.thread_time() - start < 5
