"""The walk against a decoder written step by step, and the end of an answer as vLLM counts it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM

from extraction.capture import Capture
from tests.extraction.tiny import save_tiny
from tests.training.tiny_data import LAYERS, greedy_rows
from training.batch import Document, make_batch, padded_states, teach
from training.dflash import Drafter
from training.frozen import load_frozen
from training.serve import in_shares
from training.shape import shape_for_target
from training.walk import Acceptance, count_accepted, known_tokens, over_anchors, pooled, walk

BLOCK, MASK = 5, 90


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    torch.set_num_threads(1)
    target = save_tiny(tmp_path_factory.mktemp("walk"), "qwen3")
    frozen = load_frozen(target)
    documents = []
    rows = greedy_rows(target, prompts=5, answer=20)
    for i, (prompt, answer) in enumerate(rows):
        states = Capture(target, LAYERS).forward([prompt + answer])[0]
        document = Document(
            f"r{i}",
            "ab"[i % 2],
            True,
            torch.tensor(prompt + answer),
            [0] * len(prompt) + [1] * len(answer),
            states[:, :-1],
            frozen.normed(states[:, -1]),
        )
        teach(document, frozen)
        documents.append(document)
    shape = shape_for_target(target, target_layer_ids=LAYERS, draft_layers=1, block_size=BLOCK, mask_token_id=MASK)
    drafter = Drafter(shape, seed=1)
    overfit(drafter, frozen, documents)
    return {"target": target, "frozen": frozen, "documents": documents, "drafter": drafter, "rows": rows}


def overfit(drafter: Drafter, frozen: Any, documents: list[Document]) -> None:
    """A few steps, so that drafts are accepted here and there."""
    optimizer = torch.optim.AdamW(drafter.parameters(), lr=3e-3)
    places = [[p for p in range(len(d) - 1) if d.loss_mask[p]][::3] for d in documents]
    batch = make_batch(documents, places, block_size=BLOCK, mask_token_id=MASK, labels="sampled")
    for _ in range(12):
        hidden = drafter(batch.states_TNH, batch.position_T, frozen.embed(batch.block_tokens_Q), batch.visibility)
        logits = hidden[batch.supervised_M] @ frozen.head_VH.T
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(logits, batch.label_M).backward()
        optimizer.step()


def decode_with_drafts(scene: dict[str, Any], index: int) -> tuple[int, int]:
    """(drafts, accepted) of a speculative decoder with a live target, counting as vLLM's scheduler does."""
    model = AutoModelForCausalLM.from_pretrained(scene["target"], dtype=torch.float32).eval()
    drafter, frozen = scene["drafter"], scene["frozen"]
    prompt, answer = scene["rows"][index]
    tokens = list(prompt)

    def forward(ids: list[int]) -> Any:
        with torch.no_grad():
            return model(torch.tensor([ids]), output_hidden_states=True)

    tokens.append(int(forward(tokens).logits[0, -1].argmax()))
    drafts = accepted = 0
    while len(tokens) - len(prompt) < len(answer):
        hidden = forward(tokens).hidden_states
        states = torch.stack([hidden[i + 1][0] for i in LAYERS], dim=1)
        document = Document("x", "a", True, torch.tensor(tokens), [1] * len(tokens), states)
        batch = make_batch([document], [[len(tokens) - 1]], block_size=BLOCK, mask_token_id=MASK, labels="sampled")
        with torch.no_grad():
            out = drafter(batch.states_TNH, batch.position_T, frozen.embed(batch.block_tokens_Q), batch.visibility)
        drafted = (out[1:] @ frozen.head_VH.T).argmax(-1).tolist()
        verified = forward(tokens + drafted).logits[0, len(tokens) - 1 :].argmax(-1).tolist()
        run = 0
        while run < len(drafted) and drafted[run] == verified[run]:
            run += 1
        drafts, accepted = drafts + 1, accepted + run  # before the answer is cut at max_tokens
        tokens += [*drafted[:run], verified[run]]
    assert tokens[: len(prompt) + len(answer)] == prompt + answer
    return drafts, accepted


def test_the_walk_is_a_decoder_draft_for_draft(scene: dict[str, Any]) -> None:
    documents, drafter, frozen = scene["documents"], scene["drafter"], scene["frozen"]
    model = AutoModelForCausalLM.from_pretrained(scene["target"], dtype=torch.float32).eval()
    tails = {}
    for document in documents:
        tokens = document.input_ids_T.tolist()
        for _ in range(BLOCK):
            with torch.no_grad():
                tokens.append(int(model(torch.tensor([tokens])).logits[0, -1].argmax()))
        tails[document.response_id] = tokens[len(document) :]
    walked = walk(drafter, frozen, documents, tails=tails)
    want = [decode_with_drafts(scene, i) for i in range(len(documents))]
    assert [(one.drafts, one.accepted) for one in walked] == want
    assert all(one.open_drafts == 0 for one in walked)
    assert sum(accepted for _, accepted in want) > 10  # the scene accepts something

    without = walk(drafter, frozen, documents)
    for short, full in zip(without, walked, strict=True):
        assert short.drafts == full.drafts
        assert full.accepted - (BLOCK - 2) * short.open_drafts <= short.accepted <= full.accepted
        assert short.open_drafts <= 1
        assert short.open_drafts or short.accepted == full.accepted


def test_batches_change_nothing(scene: dict[str, Any]) -> None:
    documents, drafter, frozen = scene["documents"], scene["drafter"], scene["frozen"]
    together = walk(drafter, frozen, documents)
    assert together == walk(drafter, frozen, documents, tokens_per_batch=1)
    assert over_anchors(drafter, frozen, documents) == over_anchors(drafter, frozen, documents, tokens_per_batch=1)


def test_over_anchors_sees_every_generated_token_once(scene: dict[str, Any]) -> None:
    every = over_anchors(scene["drafter"], scene["frozen"], scene["documents"])
    assert [one.drafts for one in every] == [19] * 5
    some = over_anchors(scene["drafter"], scene["frozen"], scene["documents"], anchors_per_document=4)
    assert [one.drafts for one in some] == [4] * 5


def test_a_row_of_one_token_drafts_nothing(scene: dict[str, Any]) -> None:
    states = torch.zeros(4, 3, 32)
    one = Document("x", "a", True, torch.tensor([4, 5, 6, 7]), [0, 0, 0, 1], states)
    assert walk(scene["drafter"], scene["frozen"], [one]) == [Acceptance(rows=1)]
    assert Acceptance(rows=1).acceptance_length == 1.0


def test_what_is_known_behind_the_end() -> None:
    document = Document("x", "a", True, torch.tensor([4, 5]), [0, 1], None)
    assert known_tokens(document) == [4, 5]
    assert known_tokens(document, [6, 7]) == [4, 5, 6, 7]
    document.teacher_T = torch.tensor([5, 9])
    assert known_tokens(document) == [4, 5, 9]


@given(drafted=st.lists(st.integers(0, 2), min_size=1, max_size=6), known=st.lists(st.integers(0, 2), max_size=6))
def test_count_accepted(drafted: list[int], known: list[int]) -> None:
    accepted, opened = count_accepted(drafted, known)
    assert drafted[:accepted] == known[:accepted]
    assert accepted == len(drafted) or accepted == len(known) or drafted[accepted] != known[accepted]
    assert opened == (accepted == len(known) < len(drafted))


def test_sums_pool() -> None:
    sums = pooled([("a", Acceptance(4, 6, 1)), ("b", Acceptance(1, 0, 1)), ("a", Acceptance(2, 0, 1, 1))])
    assert sums["a"] == Acceptance(6, 6, 2, 1)
    assert sums["a"].acceptance_length == 2.0


def test_a_limit_takes_categories_by_their_shares() -> None:
    categories = ["coding"] * 60 + ["math"] * 30 + ["agent"] * 10
    order = in_shares(categories)
    assert sorted(order) == list(range(100))
    first = [categories[i] for i in order[:20]]
    assert (first.count("coding"), first.count("math"), first.count("agent")) == (12, 6, 2)


def test_padding_lies_where_the_states_do() -> None:
    """Fed live, states are on the drafter's device before a step is made of them; meta stands for a GPU."""
    document = Document("r", "math", True, torch.zeros(3), [0, 1, 1], torch.zeros(3, 2, 4, device="meta"))
    states_TNH = padded_states([document], 5, "meta")
    assert (states_TNH.device.type, tuple(states_TNH.shape)) == ("meta", (8, 2, 4))
