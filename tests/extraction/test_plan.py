from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corpus.errors import UserError
from corpus.manifest_file import parse_manifest
from extraction.plan import Batch, halve, plan_batches, summary
from extraction.run import target_layers

LENGTHS = st.lists(st.integers(1, 300), max_size=80)


def rows_of(batches: list[Batch]) -> list[int]:
    return sorted(row for batch in batches for row in batch.rows)


@given(lengths=LENGTHS, budget=st.integers(1, 2000), max_rows=st.integers(1, 40))
def test_batches_are_disjoint_cover_and_keep_the_budget(lengths: list[int], budget: int, max_rows: int) -> None:
    batches = plan_batches(lengths, budget, max_rows)
    assert rows_of(batches) == list(range(len(lengths)))
    for batch in batches:
        assert batch.length == max(lengths[row] for row in batch.rows)
        assert batch.padded_tokens <= budget or len(batch.rows) == 1
        assert len(batch.rows) <= max_rows
    assert [batch.length for batch in batches] == sorted((b.length for b in batches), reverse=True)
    assert batches == plan_batches(list(lengths), budget, max_rows)


@given(lengths=LENGTHS.filter(bool), budget=st.integers(1, 4000), limit=st.integers(0, 1500))
def test_out_of_memory_always_ends_and_loses_only_what_cannot_fit(lengths: list[int], budget: int, limit: int) -> None:
    pending, done, lost, steps = plan_batches(lengths, budget), [], [], 0
    while pending:
        batch, *pending = pending
        steps += 1
        if batch.padded_tokens <= limit:
            done.append(batch)
        else:
            pending, given_up = halve(pending, batch, lengths)
            lost.extend(given_up)
    assert sorted(rows_of(done) + lost) == list(range(len(lengths)))
    assert set(lost) == {row for row, length in enumerate(lengths) if length > limit}
    assert steps <= 20 * len(lengths) + 20


def test_halving_concerns_one_length_band() -> None:
    lengths = [100] * 8 + [20] * 30
    failed, *pending = plan_batches(lengths, 400)
    assert failed == Batch((0, 1, 2, 3), 100)
    again, lost = halve(pending, failed, lengths)
    assert lost == ()
    assert [batch for batch in again if batch.length == 100] == [
        Batch((0, 1), 100),
        Batch((2, 3), 100),
        Batch((4, 5), 100),
        Batch((6, 7), 100),
    ]
    assert [b for b in again if b.length == 20] == [b for b in pending if b.length == 20]


def test_summary() -> None:
    lengths = [10, 10, 8, 3]
    assert summary(plan_batches(lengths, 30), lengths) == "2 batches, sizes 1 to 3, mean 2, padding 6.1%"
    assert summary([], []) == "0 batches"


@pytest.mark.parametrize(("lengths", "budget"), [([0], 5), ([4], 0)])
def test_bad_input(lengths: list[int], budget: int) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        plan_batches(lengths, budget)


@pytest.mark.parametrize("listed", [[], [1, 1], [3, 8]], ids=["none", "twice", "too high"])
def test_listed_layers_that_do_not_fit_are_one_line(listed: list[int]) -> None:
    manifest = parse_manifest(MANIFEST.replace("LAYERS", str(listed)), "m.yaml")
    with pytest.raises(UserError, match=r"extraction\.layers is"):
        target_layers(manifest, 8)


def test_listed_layers_are_taken_in_order() -> None:
    assert target_layers(parse_manifest(MANIFEST.replace("LAYERS", "[5, 0, 3]"), "m.yaml"), 8) == (0, 3, 5)


MANIFEST = """
name: layers
mix: {total: 1, shares: {coding: 1}}
sources: [{name: a, path: a.jsonl, category: coding}]
target: {model: m}
extraction: {layers: LAYERS}
"""
