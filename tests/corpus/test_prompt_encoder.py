"""The encoder: its arithmetic is that of transformers' BERT, whoever is read beside, and any text can be read."""

from __future__ import annotations

import math
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
from corpus.prompt_encoder import FILE, SYSTEM_TOKENS, TOKENS, prompt_encoder, read_of
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
        vocab_size=tokens, hidden_size=width, num_hidden_layers=int(held["layers"]), hidden_act="gelu_new",
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
        ids = torch.tensor([prompt_encoder().tokens(asked(text))])
        with torch.no_grad():
            states = bert(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state
            wanted = torch.log_softmax(states.mean(1) @ weight.T + bias, 1)[0].tolist()
        assert list(scores.values()) == pytest.approx(wanted, abs=1e-3)
        assert list(scores) == list(COLUMNS)


@settings(max_examples=15, deadline=None)
@given(st.lists(st.sampled_from(TEXTS), max_size=6))
def test_a_prompt_is_read_alike_whoever_stands_beside_it(some: list[str]) -> None:
    together = prompt_encoder().scores([asked(text) for text in some])
    assert len(together) == len(some)
    for text, scores in zip(some, together, strict=True):
        assert list(scores.values()) == pytest.approx(
            list(prompt_encoder().scores([asked(text)])[0].values()), abs=1e-3
        )
        assert sum(map(math.exp, scores.values())) == pytest.approx(1, abs=1e-4)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["system", "user", "assistant"]), st.text() | st.just("\ud83d[SEP]")), max_size=5
    )
)
def test_any_text_is_a_bounded_number_of_tokens(turns: list[tuple[str, str]]) -> None:
    messages = [{"role": role, "content": text} for role, text in turns]
    tokens = prompt_encoder().tokens(messages)
    assert 2 <= len(tokens) <= TOKENS + SYSTEM_TOKENS + 3
    assert all(map(math.isfinite, prompt_encoder().scores([messages])[0].values()))


def test_start_and_end_of_what_is_said_are_read_and_turns_between_where_the_first_is_short() -> None:
    encoder = prompt_encoder()
    long = encoder.tokens(asked("alpha " + "word " * 300 + "omega"))
    assert {encoder._ids("alpha")[0], encoder._ids("omega")[0]} <= set(long)
    turns = [*asked("hi"), *asked("Write a sort in Go."), {"role": "assistant", "content": "no"}, *asked("thanks")]
    assert read_of([{"role": "system", "content": "Be brief."}, *turns]) == (
        "Be brief.",
        "hi\nWrite a sort in Go.\nthanks",
    )


def test_a_megabyte_of_one_word_takes_no_longer_than_a_page() -> None:
    prompt_encoder()
    start = time.process_time()
    prompt_encoder().scores([asked("x" * 1_000_000)])
    assert time.process_time() - start < 1
