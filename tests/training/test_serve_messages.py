"""The serving check's own arithmetic: differences of counters, and room for drafts."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from training.serve_messages import (
    Counters,
    ServeConfig,
    ServeItem,
    ServeResult,
    budgets,
    decode_config,
    decode_item,
    decode_result,
    encode,
    room_for_drafts,
)
from training.serve_worker import engine_arguments, read_counters


@dataclass
class Counter:
    name: str
    value: int


@dataclass
class Vector:
    name: str
    values: list[int]


def config(**changes: object) -> ServeConfig:
    fields: dict[str, object] = {
        "target_dir": "t",
        "dtype": "float32",
        "max_model_len": 96,
        "drafter_dir": "d",
        "num_speculative_tokens": 3,
    }
    return ServeConfig(**{**fields, **changes})  # type: ignore[arg-type]


@given(st.lists(st.integers(1, 90), min_size=1), st.integers(1, 50), st.integers(1, 15), st.integers(64, 128))
def test_no_row_comes_near_the_limit(lengths: list[int], most: int, drafted: int, max_model_len: int) -> None:
    item = ServeItem(category="c", prompts=[[0] * length for length in lengths], max_tokens=most)
    for length, limit in zip(lengths, budgets(item, max_model_len, drafted), strict=True):
        assert 0 <= limit <= most
        assert limit == 0 or length + limit + room_for_drafts(drafted) <= max_model_len
        assert limit == most or length + limit + 1 + room_for_drafts(drafted) > max_model_len


def test_a_budget_for_each_prompt_or_an_error() -> None:
    item = ServeItem(category="c", prompts=[[1], [2]], max_tokens=[3, 4])
    assert budgets(item, 96, 3) == [3, 4]
    with pytest.raises(ValueError, match="1 max_tokens for 2 prompts"):
        budgets(ServeItem(category="c", prompts=[[1], [2]], max_tokens=[3]), 96, 3)


def test_counters_are_read_and_subtracted() -> None:
    metrics = [
        Counter("vllm:generation_tokens", 9),
        Counter("vllm:spec_decode_num_drafts", 5),
        Counter("vllm:spec_decode_num_draft_tokens", 15),
        Counter("vllm:spec_decode_num_accepted_tokens", 4),
        Vector("vllm:spec_decode_num_accepted_tokens_per_pos", [3, 1, 0]),
    ]
    after = read_counters(metrics)
    assert after == Counters(drafts=5, draft_tokens=15, accepted_tokens=4, accepted_per_position=(3, 1, 0))
    before = Counters(drafts=2, draft_tokens=6, accepted_tokens=1, accepted_per_position=(1, 0, 0))
    assert after.since(before).accepted_per_position == (2, 1, 0)
    assert after.since(Counters()) == after
    assert read_counters([]) == Counters()


def test_the_engine_gets_room_for_drafts_as_far_as_positions_go() -> None:
    arguments = engine_arguments(config(), [{"max_position_embeddings": 256}, {}])
    assert arguments["max_model_len"] == 96 + 8
    assert arguments["speculative_config"]["num_speculative_tokens"] == 3
    speculators = {"speculators_config": {}, "transformer_layer_config": {"max_position_embeddings": 98}}
    assert engine_arguments(config(), [{"max_position_embeddings": 256}, speculators])["max_model_len"] == 98
    nested = {"text_config": {"max_position_embeddings": 100}, "vision_config": {}}
    arguments = engine_arguments(config(drafter_dir=None), [nested])
    assert arguments["max_model_len"] == 100
    assert arguments["language_model_only"] is True
    assert "speculative_config" not in arguments


def test_messages_come_back_as_they_went() -> None:
    item = ServeItem(category="c", prompts=[[1]], max_tokens=[3])
    result = ServeResult(
        category="c",
        drafts=4,
        draft_tokens=12,
        accepted_tokens=2,
        accepted_per_position=[1, 1, 0],
        rows=1,
        skipped=0,
        token_ids=[[7, 8]],
        finish_reasons=["length"],
        max_tokens=[3],
        engine="e",
        seconds=0.5,
    )
    assert decode_config(encode(config())) == config()
    assert decode_item(encode(item)) == item
    assert decode_result(encode(result)) == result
    assert result.acceptance_length == 1.5
