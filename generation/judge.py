"""Reactions to an answer: is it accepted, is it tried again. Pure.

The policies are the manifest's; the reason codes are stored with the attempt. A conversation whose turn was
rejected ends there: its later turns are rejected too (earlier_turn_rejected), so that every wanted answer ends in
exactly one state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite

from corpus.token_ids import ID_BYTES, unpack_ids
from generation.messages import GenerateResult
from generation.plan import TRUNCATED, Policy

FINISHED_BY_LENGTH = "length"
RETRY_FACTOR = 2


@dataclass(frozen=True)
class Verdict:
    """What becomes of one attempt: accepted, rejected, or retried with a larger budget (then not yet final)."""

    state: str
    reason: str | None = None
    retry_max_tokens: int | None = None


def fault(result: GenerateResult, response_id: str, attempt: int, max_tokens: int) -> str | None:
    """Why this cannot be the answer to what was asked, an engine's or a worker's error; None if it can.

    Args:
        max_tokens: the budget that it had.
    """
    tokens = len(result.token_ids) // ID_BYTES
    if (result.response_id, result.attempt) != (response_id, attempt):
        return f"the answer is of {result.response_id}, attempt {result.attempt}; asked was attempt {attempt}"
    least = 1 if result.finish_reason in ("stop", FINISHED_BY_LENGTH) else 0  # an aborted one may have none
    if len(result.token_ids) % ID_BYTES or not least <= tokens <= max_tokens:
        return f"the answer's {len(result.token_ids)} bytes are not {least} to {max_tokens} token ids"
    if min(unpack_ids(result.token_ids), default=0) < 0:
        return "the answer holds a negative token id"
    if result.logprobs is not None and len(result.logprobs) != len(result.token_ids):
        return f"the answer has {tokens} tokens and {len(result.logprobs) // ID_BYTES} log-probabilities"
    if not all(map(isfinite, (result.queued_at, result.started_at, result.first_token_at, result.ended_at))):
        return "the answer's times are no times"
    return None


def judge(
    finish_reason: str | None, notes: Sequence[str], policy: Policy, attempt: int, max_tokens: int, room: int
) -> Verdict:
    """Judge a finished answer.

    Args:
        notes: what was found of it (generation.checks).
        max_tokens: the budget that it had.
        room: most tokens that max_model_len leaves for an answer.
    """
    if finish_reason not in ("stop", FINISHED_BY_LENGTH):
        return Verdict("rejected", f"ended_{finish_reason or 'unknown'}")
    found = next((note for note in notes if note in policy.reject), None)
    if finish_reason == FINISHED_BY_LENGTH:
        larger = min(max_tokens * RETRY_FACTOR, room)
        # a loop that was cut goes on for as long as it is let
        if policy.truncated == "retry" and attempt == 0 and larger > max_tokens and "repetition" not in notes:
            return Verdict("retried", TRUNCATED, larger)
        if policy.truncated == "drop":
            return Verdict("rejected", found or TRUNCATED)
    return Verdict("rejected", found) if found else Verdict("accepted")


def budget(prompt_tokens: int, max_tokens: int, max_model_len: int) -> int:
    """Tokens that an answer may have; 0 or less if the prompt leaves no room."""
    return min(max_tokens, max_model_len - prompt_tokens)
