"""Anchors, packs, schedule, mask token: integers in, integers out."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from corpus.errors import UserError
from training.anchors import candidates, draw_anchors, label_counts
from training.loop import learning_rate
from training.mask_token import check_mask_token, choose_mask_token
from training.pack import epoch_order, epoch_packs, pack, position_ids
from training.plan import plan_training

MASKS = st.lists(st.integers(0, 1), max_size=60)


@given(mask=MASKS, limit=st.integers(1, 20), seed=st.integers(0, 5), epoch=st.integers(0, 5))
def test_anchors_are_supervised_and_repeatable(mask: list[int], limit: int, seed: int, epoch: int) -> None:
    drawn = draw_anchors(mask, limit, seed=seed, epoch=epoch, response_id="r")
    assert drawn == sorted(set(drawn))
    assert len(drawn) == min(limit, len(candidates(mask)))
    assert all(mask[p] and mask[p + 1] for p in drawn)
    assert drawn == draw_anchors(mask, limit, seed=seed, epoch=epoch, response_id="r")


def test_anchors_are_drawn_anew_by_epoch_and_document() -> None:
    mask = [1] * 400
    draws = {
        tuple(draw_anchors(mask, 8, seed=1, epoch=epoch, response_id=name)) for epoch in range(3) for name in "abc"
    }
    assert len(draws) == 9
    drawn = [p for epoch in range(300) for p in draw_anchors(mask, 8, seed=1, epoch=epoch, response_id="a")]
    assert len(set(drawn)) > 390


@given(mask=MASKS, block_size=st.integers(2, 9))
def test_labels_stay_in_the_anchors_span(mask: list[int], block_size: int) -> None:
    anchors = candidates(mask)
    for anchor, count in zip(anchors, label_counts(mask, anchors, block_size), strict=True):
        assert 1 <= count <= block_size - 1
        assert all(mask[anchor : anchor + count + 1])
        end = anchor + count + 1
        assert count == block_size - 1 or end == len(mask) or not mask[end]


@given(lengths=st.lists(st.integers(1, 50), max_size=40), budget=st.integers(1, 120), seed=st.integers(0, 9))
def test_packs(lengths: list[int], budget: int, seed: int) -> None:
    packs = epoch_packs(lengths, budget, seed=seed, epoch=0)
    assert [i for own in packs for i in own] == epoch_order(len(lengths), seed=seed, epoch=0)
    assert sorted(i for own in packs for i in own) == list(range(len(lengths)))
    assert all(len(own) == 1 or sum(lengths[i] for i in own) <= budget for own in packs)
    assert packs == epoch_packs(lengths, budget, seed=seed, epoch=0)


def test_order_changes_with_the_epoch_and_positions_restart() -> None:
    assert epoch_order(50, seed=1, epoch=0) != epoch_order(50, seed=1, epoch=1)
    assert pack([3, 4, 9, 1], [0, 1, 2, 3], 7) == [[0, 1], [2], [3]]
    assert position_ids([2, 3]) == [0, 1, 0, 1, 2]


def test_schedule() -> None:
    rates = [learning_rate(step, 100, 1.0, 0.04) for step in range(100)]
    assert rates[:4] == [0.25, 0.5, 0.75, 1.0]
    assert rates[4] == 1.0
    assert rates[4:] == sorted(rates[4:], reverse=True)
    assert 0 < rates[-1] < 0.001
    assert learning_rate(0, 1, 1.0, 0.0) == 1.0


def tokenizer_folder(folder: Path, added: list[tuple[int, str, bool]]) -> Path:
    entries = [{"id": i, "content": text, "special": special} for i, text, special in added]
    vocab = {f"t{i}": i for i in range(20)}
    (folder / "tokenizer.json").write_text(json.dumps({"added_tokens": entries, "model": {"vocab": vocab}}))
    (folder / "config.json").write_text(json.dumps({"eos_token_id": [21, 3], "text_config": {"bos_token_id": 4}}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"pad_token": "<pad>", "unk_token": None}))
    return folder


def test_mask_token_is_never_used_ended_padded_or_empty(tmp_path: Path) -> None:
    embeddings = torch.ones(30, 4)
    added = [(20, "<pad>", True), (21, "<eos>", True), (22, "<think>", False), (23, "<file>", True)]
    folder = tokenizer_folder(tmp_path, added)
    assert choose_mask_token(folder, {1, 2}, embeddings) == 23
    assert choose_mask_token(folder, {23}, embeddings) == 29  # behind the tokenizer
    embeddings[24:] = 0.0
    assert choose_mask_token(folder, {23}, embeddings) == 22
    assert choose_mask_token(folder, {22, 23}, embeddings) == 19
    reserved = tokenizer_folder(tmp_path, [*added, (10, "<|reserved_3|>", True)])
    assert choose_mask_token(reserved, set(), embeddings) == 10
    with pytest.raises(UserError, match="no embedding row is unused"):
        choose_mask_token(folder, set(range(30)), embeddings)
    for bad in (3, 4, 20, 21, 30):
        with pytest.raises(UserError, match="mask_token_id"):
            check_mask_token(folder, bad, 30)
    assert check_mask_token(folder, 23, 30) == 23


def ledger_of(answers: list[int]) -> Any:
    """A ledger whose build has captured rows with answers of so many tokens, and one that is held out."""
    rows = [
        (f"r{i:02d}", "coding", "s", i == len(answers), True, "a", i, "b", i, 5 + tokens, False, tokens)
        for i, tokens in enumerate([*answers, 9])
    ]
    return SimpleNamespace(rows=lambda *_: rows)


@pytest.mark.parametrize("feed", ["shards", "live"])
def test_answers_of_one_token_are_counted_and_never_trained_on_alone(world: Any, feed: str) -> None:
    manifest = world.manifest(training={"feed": feed})
    plan = plan_training(manifest, "b", "c", (1, 3), ledger_of([1, 7, 1, 2]))
    assert (plan.training_rows, plan.silent_rows) == (4, 2)
    assert "2 of 4 answers are of one token: nothing to learn from them" in plan.lines()
    assert not any("one token" in line for line in plan_training(manifest, "b", "c", (1,), ledger_of([2, 3])).lines())
    with pytest.raises(UserError, match=r"all 3 training rows are answers of one token.* Raise generation\.max_tokens"):
        plan_training(manifest, "b", "c", (1, 3), ledger_of([1, 1, 1]))
