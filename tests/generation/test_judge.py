"""Verdicts on answers: every answer ends in exactly one state, and a retry is granted once and only if it has room."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from generation.judge import RETRY_FACTOR, Verdict, budget, judge

POLICIES = ("keep", "drop", "retry")
reasons = st.sampled_from(["stop", "length", "abort", "error", None])
small = st.integers(1, 50)


@pytest.mark.parametrize(
    ("finish", "text", "truncated", "attempt", "room", "verdict"),
    [
        ("stop", "x", "drop", 0, 9, Verdict("accepted")),
        ("stop", " \n", "keep", 0, 9, Verdict("rejected", "empty")),
        ("length", "x", "keep", 0, 9, Verdict("accepted")),
        ("length", "", "keep", 0, 9, Verdict("rejected", "empty")),
        ("length", "x", "drop", 0, 9, Verdict("rejected", "truncated")),
        ("length", "x", "retry", 0, 99, Verdict("retried", "truncated", 8)),
        ("length", "x", "retry", 0, 6, Verdict("retried", "truncated", 6)),
        ("length", "x", "retry", 0, 4, Verdict("accepted")),
        ("length", "x", "retry", 1, 99, Verdict("accepted")),
        ("abort", "x", "keep", 0, 9, Verdict("rejected", "ended_abort")),
        (None, "x", "keep", 0, 9, Verdict("rejected", "ended_unknown")),
    ],
)
def test_verdicts(finish: str | None, text: str, truncated: str, attempt: int, room: int, verdict: Verdict) -> None:
    assert judge(finish, text, truncated, attempt, 4, room) == verdict


@given(reasons, st.text(max_size=3), st.sampled_from(POLICIES), st.integers(0, 3), small, small)
def test_every_answer_has_one_state_and_a_reason_where_it_is_not_accepted(
    finish: str | None, text: str, truncated: str, attempt: int, max_tokens: int, room: int
) -> None:
    verdict = judge(finish, text, truncated, attempt, max_tokens, room)
    assert verdict.state in ("accepted", "rejected", "retried")
    assert (verdict.reason is None) == (verdict.state == "accepted")
    assert (verdict.retry_max_tokens is not None) == (verdict.state == "retried")


@given(st.text(max_size=3), st.sampled_from(POLICIES), st.integers(0, 3), small, small)
def test_a_retry_comes_once_with_a_larger_budget_that_fits(
    text: str, truncated: str, attempt: int, max_tokens: int, room: int
) -> None:
    verdict = judge("length", text, truncated, attempt, max_tokens, room)
    if verdict.retry_max_tokens is None:
        return
    assert (truncated, attempt) == ("retry", 0)
    assert max_tokens < verdict.retry_max_tokens <= min(room, max_tokens * RETRY_FACTOR)


@given(st.integers(0, 100), small, small)
def test_a_budget_never_leaves_the_context(prompt_tokens: int, max_tokens: int, max_model_len: int) -> None:
    tokens = budget(prompt_tokens, max_tokens, max_model_len)
    assert tokens <= max_tokens
    assert prompt_tokens + tokens <= max_model_len
    assert tokens in (max_tokens, max_model_len - prompt_tokens)
