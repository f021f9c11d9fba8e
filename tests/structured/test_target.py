"""The structured target is the committed one, its chats are what they say, and it answers what it never saw."""

from __future__ import annotations

import hashlib
import json

import pytest
import torch

from tests.structured.chats import FRESH, KINDS, LEARNED, chats, endless
from tests.structured.sources import SEED, TARGET
from tests.structured.train_target import SEED as TRAINED_WITH
from tests.structured.train_target import TEMPLATE, encode, turns
from training.mask_token import choose_mask_token

SIZE_BYTES = 5_000_000


def test_the_checkpoint_is_the_committed_one() -> None:
    lines = (TARGET / "SHA256SUMS").read_text().splitlines()
    named = dict(reversed(line.split("  ", 1)) for line in lines)
    beside = {path.name for path in TARGET.iterdir()} - {"SHA256SUMS", "README.md", "LICENSE"}
    assert set(named) == beside
    for name, sha256 in named.items():
        assert hashlib.sha256((TARGET / name).read_bytes()).hexdigest() == sha256, name
    assert sum((TARGET / name).stat().st_size for name in named) < SIZE_BYTES


def test_it_is_a_qwen3_of_eight_layers_in_float32_with_a_template_of_tools() -> None:
    config = json.loads((TARGET / "config.json").read_text())
    assert config["architectures"] == ["Qwen3ForCausalLM"]
    assert config["num_hidden_layers"] >= 8
    assert config["dtype"] == "float32"
    assert (TARGET / "chat_template.jinja").read_text() == TEMPLATE.read_text()


@pytest.mark.parametrize("kind", KINDS)
def test_chats_follow_from_their_seed_and_are_distinct(kind: str) -> None:
    made = chats(kind, 200, SEED, FRESH)
    assert made == chats(kind, 200, SEED, FRESH)
    assert made[:50] != chats(kind, 50, SEED + 1, FRESH)
    assert len({chat.prompt_text for chat in made}) == 200
    assert len({chat.messages[-1]["content"] for chat in made}) > 150, "answers follow from prompts"
    assert {chat.part for chat in made} == {FRESH}


@pytest.mark.parametrize("kind", KINDS)
def test_what_the_target_learned_holds_no_fresh_prompt(kind: str) -> None:
    stream = endless(kind, TRAINED_WITH, LEARNED)
    learned = {next(stream).prompt_text for _ in range(5_000)}
    assert learned.isdisjoint(chat.prompt_text for chat in chats(kind, 300, SEED, FRESH))


@pytest.mark.parametrize("kind", KINDS)
def test_it_answers_fresh_prompts_and_ends_its_turn(kind: str) -> None:
    from transformers import AutoTokenizer, Qwen3ForCausalLM

    tokenizer = AutoTokenizer.from_pretrained(TARGET)
    model = Qwen3ForCausalLM.from_pretrained(TARGET, dtype=torch.float32).eval()
    asked = chats(kind, 12, SEED + 2, FRESH)
    right = 0
    for chat in asked:
        prompt, answer = encode(tokenizer, chat)
        with torch.no_grad():
            made = model.generate(torch.tensor([prompt]), max_new_tokens=128, do_sample=False)[0, len(prompt) :]
        assert int(made[-1]) == model.config.eos_token_id, tokenizer.decode(made)
        assert len(made) >= 15
        right += made.tolist() == answer
    assert right >= 8, f"{right} of {len(asked)} are the template's answers, word for word"


def test_the_reserved_token_is_the_mask() -> None:
    from safetensors.torch import load_file
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(TARGET)
    embeddings = load_file(TARGET / "model.safetensors")["model.embed_tokens.weight"]
    used = {
        token
        for kind in KINDS
        for chat in chats(kind, 50, SEED, FRESH)
        for part in encode(tokenizer, chat)
        for token in part
    }
    assert choose_mask_token(TARGET, used, embeddings) == tokenizer.convert_tokens_to_ids("<|reserved_0|>")


def test_a_conversation_ends_with_an_answer_of_the_target_s_own() -> None:
    import random

    draw = random.Random(1)
    for kind in KINDS:
        for chat in chats(kind, 60, SEED, FRESH):
            last = turns(chat, draw).messages[-1]
            assert last["role"] == "assistant"
            assert "tool_calls" not in last
