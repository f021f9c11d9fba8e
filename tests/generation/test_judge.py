"""Verdicts on answers: every answer ends in exactly one state, and a retry is granted once and only if it has room."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from corpus.token_ids import pack_ids
from generation.checks import NOTES
from generation.judge import RETRY_FACTOR, Verdict, budget, fault, judge
from generation.messages import GenerateResult
from generation.plan import CHECKS, Policy

POLICIES = ("keep", "drop", "retry")
reasons = st.sampled_from(["stop", "length", "abort", "error", None])
small = st.integers(1, 50)
found = st.lists(st.sampled_from(CHECKS), unique=True).map(lambda notes: tuple(sorted(notes, key=list(NOTES).index)))
policies = st.builds(Policy, st.sampled_from(POLICIES), st.frozensets(st.sampled_from(CHECKS)))
LOOP, EMPTY, NO_ANSWER = ("repetition",), ("empty",), ("no_answer",)


@pytest.mark.parametrize(
    ("finish", "notes", "truncated", "attempt", "room", "verdict"),
    [
        ("stop", (), "drop", 0, 9, Verdict("accepted")),
        ("stop", EMPTY, "keep", 0, 9, Verdict("rejected", "empty")),
        ("stop", LOOP, "keep", 0, 9, Verdict("rejected", "repetition")),
        ("stop", NO_ANSWER, "keep", 0, 9, Verdict("accepted")),  # a note that the policy does not reject
        ("stop", ("repetition", "no_answer"), "keep", 0, 9, Verdict("rejected", "repetition")),
        ("length", (), "keep", 0, 9, Verdict("accepted")),
        ("length", EMPTY, "keep", 0, 9, Verdict("rejected", "empty")),
        ("length", (), "drop", 0, 9, Verdict("rejected", "truncated")),
        ("length", LOOP, "drop", 0, 9, Verdict("rejected", "repetition")),
        ("length", NO_ANSWER, "drop", 0, 9, Verdict("rejected", "truncated")),
        ("length", (), "retry", 0, 99, Verdict("retried", "truncated", 8)),
        ("length", (), "retry", 0, 6, Verdict("retried", "truncated", 6)),
        ("length", NO_ANSWER, "retry", 0, 99, Verdict("retried", "truncated", 8)),  # the answer may come yet
        ("length", LOOP, "retry", 0, 99, Verdict("rejected", "repetition")),  # a loop goes on for ever
        ("length", (), "retry", 0, 4, Verdict("accepted")),
        ("length", (), "retry", 1, 99, Verdict("accepted")),
        ("length", LOOP, "retry", 1, 99, Verdict("rejected", "repetition")),
        ("abort", (), "keep", 0, 9, Verdict("rejected", "ended_abort")),
        ("abort", EMPTY, "keep", 0, 9, Verdict("rejected", "ended_abort")),
        (None, (), "keep", 0, 9, Verdict("rejected", "ended_unknown")),
    ],
)
def test_verdicts(
    finish: str | None, notes: tuple[str, ...], truncated: str, attempt: int, room: int, verdict: Verdict
) -> None:
    policy = Policy(truncated, frozenset({"empty", "repetition"}))
    assert judge(finish, notes, policy, attempt, 4, room) == verdict


@given(reasons, found, policies, st.integers(0, 3), small, small)
def test_every_answer_has_one_state_and_a_reason_where_it_is_not_accepted(
    finish: str | None, notes: tuple[str, ...], policy: Policy, attempt: int, max_tokens: int, room: int
) -> None:
    verdict = judge(finish, notes, policy, attempt, max_tokens, room)
    assert verdict.state in ("accepted", "rejected", "retried")
    assert (verdict.reason is None) == (verdict.state == "accepted")
    assert (verdict.retry_max_tokens is not None) == (verdict.state == "retried")


@given(reasons, found, policies, st.integers(0, 3), small, small)
def test_what_is_accepted_has_no_finding_that_the_policy_rejects_and_is_cut_only_where_it_may(
    finish: str | None, notes: tuple[str, ...], policy: Policy, attempt: int, max_tokens: int, room: int
) -> None:
    verdict = judge(finish, notes, policy, attempt, max_tokens, room)
    if verdict.state == "accepted":
        assert not policy.reject & set(notes)
        assert finish == "stop" or (finish == "length" and policy.truncated != "drop")
    if verdict.reason in CHECKS:
        assert verdict.reason in policy.reject & set(notes)


@given(found, policies, st.integers(0, 3), small, small)
def test_a_retry_comes_once_with_a_larger_budget_that_fits(
    notes: tuple[str, ...], policy: Policy, attempt: int, max_tokens: int, room: int
) -> None:
    verdict = judge("length", notes, policy, attempt, max_tokens, room)
    granted = policy.truncated == "retry" and attempt == 0 and room > max_tokens and "repetition" not in notes
    assert (verdict.state == "retried") == granted
    if verdict.retry_max_tokens is not None:
        assert max_tokens < verdict.retry_max_tokens <= min(room, max_tokens * RETRY_FACTOR)


def test_every_finding_that_a_manifest_may_reject_is_one_that_is_looked_for() -> None:
    assert tuple(NOTES) == CHECKS


@given(st.integers(0, 100), small, small)
def test_a_budget_never_leaves_the_context(prompt_tokens: int, max_tokens: int, max_model_len: int) -> None:
    tokens = budget(prompt_tokens, max_tokens, max_model_len)
    assert tokens <= max_tokens
    assert prompt_tokens + tokens <= max_model_len
    assert tokens in (max_tokens, max_model_len - prompt_tokens)


RESULT = GenerateResult(
    response_id="r", attempt=0, token_ids=pack_ids([5, 6, 7]), text="", finish_reason="stop", stop_reason=None,
    queued_at=1.0, started_at=1.0, first_token_at=1.0, ended_at=2.0, engine="e", seed=0, logprobs=b"\0" * 12,
)  # fmt: skip


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({}, None),
        ({"logprobs": None}, None),
        ({"token_ids": b"", "logprobs": None, "finish_reason": "abort"}, None),
        ({"response_id": "s"}, "the answer is of s, attempt 0"),
        ({"attempt": 1}, "the answer is of r, attempt 1"),
        ({"token_ids": b"", "logprobs": None}, "0 bytes are not 1 to 3 token ids"),
        ({"token_ids": pack_ids([5, 6, 7, 8]), "logprobs": None}, "16 bytes are not 1 to 3 token ids"),
        ({"token_ids": b"12345", "logprobs": None}, "5 bytes are not 1 to 3 token ids"),
        ({"token_ids": pack_ids([5, -1]), "logprobs": None}, "holds a negative token id"),
        ({"logprobs": b"\0" * 8}, "3 tokens and 2 log-probabilities"),
        ({"ended_at": float("nan")}, "times are no times"),
    ],
)
def test_an_answer_that_cannot_be_one_is_the_engine_s_error(change: dict[str, Any], said: str | None) -> None:
    found = fault(msgspec.structs.replace(RESULT, **change), "r", 0, 3)
    assert (found is None) if said is None else (said in str(found))
