"""What is said of rejected answers: early, once a category, with the main reason and a key that the manifest has."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corpus.ledger.query import query
from generation.plan import CHECKS, EARLIER_TURN_REJECTED
from generation.rejections import MANY, NEARLY_ALL, Rejections, cure, rejection_line

World = Any
KEEP = "raise generation.max_tokens (32) or set generation.truncated: keep"
NO_MANIFEST: Any = None


def manifest(world: World, **generation: Any) -> Any:
    return world.manifest(generation={"max_tokens": 32, "truncated": "drop", **generation})


def test_a_category_that_loses_its_first_answers_is_told_once_with_reason_and_cure(world: World) -> None:
    seen = Rejections(manifest(world))
    said = [seen.rejected("coding", "truncated") for _ in range(2 * MANY)]
    assert said[: MANY - 1] == [None] * (MANY - 1)
    assert said[MANY - 1] == f"coding: {MANY} of {MANY} answers rejected so far, all truncated; {KEEP}"
    assert set(said[MANY:]) == {None}
    assert seen.rejected("math", "truncated") is None  # counted by itself


def test_a_warning_comes_as_soon_as_nearly_all_are_lost_and_not_before(world: World) -> None:
    seen = Rejections(manifest(world))
    for _ in range(MANY):
        seen.accepted("coding")
    said = [seen.rejected("coding", "empty") for _ in range(10 * MANY)]
    (at,) = [i for i, line in enumerate(said) if line is not None]
    lost = at + 1
    assert lost >= NEARLY_ALL * (lost + MANY)
    assert lost - 1 < NEARLY_ALL * (lost - 1 + MANY)


def test_turns_behind_a_rejected_one_are_no_loss_of_their_own(world: World) -> None:
    seen = Rejections(manifest(world))
    for _ in range(10 * MANY):
        assert seen.rejected("coding", EARLIER_TURN_REJECTED) is None
    assert seen.rejected("coding", "empty") is None


def test_the_main_reason_is_named_with_its_count(world: World) -> None:
    line = rejection_line(manifest(world), "coding", {"truncated": 30, "empty": 4}, 1_040)
    assert line == f"coding: 34 of 1,040 answers rejected, 30 of them truncated; {KEEP}"


def test_a_cure_names_the_key_that_holds(world: World) -> None:
    own = manifest(world, by_category={"coding": {"max_tokens": 6, "reject": ["repetition"]}})
    assert cure(own, "coding", "truncated") == (
        "raise generation.by_category.coding.max_tokens (6) or set generation.truncated: keep"
    )
    assert cure(own, "math", "truncated") == KEEP
    assert cure(own, "coding", "repetition").endswith("take repetition out of generation.by_category.coding.reject")
    assert cure(own, "math", "empty").endswith("take empty out of generation.reject")


@pytest.mark.parametrize(
    "reason", [*CHECKS, "truncated", "prompt_too_long", "template_error", "engine_error", "engine_crashed", "ended_x"]
)
def test_every_reason_has_a_cure(world: World, reason: str) -> None:
    assert len(cure(manifest(world), "coding", reason)) > 10


@given(st.integers(0, MANY - 1))
def test_few_answers_are_no_warning(ended: int) -> None:
    seen = Rejections(NO_MANIFEST)
    assert {seen.rejected("coding", "truncated") for _ in range(ended)} <= {None}


def test_a_run_warns_while_it_goes_on_and_in_the_ledger_and_shows_what_was_cut(world: World) -> None:
    rows = [{"messages": [{"role": "user", "content": f"question {i}"}]} for i in range(60)]
    world.jsonl("all.jsonl", rows)
    shown: list[Any] = []
    losing = world.manifest(
        sources=[{"name": "all", "path": "all.jsonl", "category": "coding"}],
        mix={"total": 60, "shares": {"coding": 1}, "holdout": 0.0},
        generation={"max_tokens": 2, "truncated": "drop"},
        engine={"max_num_seqs": 4, "extra": {"mean_tokens": 30}},
    )
    world.tell(losing, report=shown.append)
    said = query(world.workspace, "SELECT message FROM events WHERE kind = 'warning'")["message"].to_list()
    (warning,) = [line for line in said if line.startswith("coding: ")]
    assert "rejected so far" in warning
    assert "raise generation.max_tokens (2) or set generation.truncated: keep" in warning
    assert shown[-1].warnings == [warning]
    cut = query(world.workspace, "SELECT count(*) FROM responses WHERE finish_reason = 'length'").item()
    assert shown[-1].truncated == shown[-1].categories["coding"].truncated == cut > 40
