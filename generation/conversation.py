"""One prompt on its way through the engines: a state machine over its turns, and how a plan's are made.

Turn k + 1 can be rendered when turn k is accepted; what the target said before is part of what it is shown next.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from corpus.records import Prompt, decode_prompt
from generation.plan import Answer, GenerationPlan


@dataclass
class Conversation:
    """One prompt on its way: what is still to be answered, and what the target has said so far."""

    prompt: Prompt
    answers: deque[Answer]
    said: list[str]
    weight: float
    attempt: int = 0
    max_tokens: int = 0
    prompt_token_ids: list[int] = field(default_factory=list)
    queued_at: float = 0.0


def make_conversations(
    plan: GenerationPlan,
    texts: dict[str, tuple[str, str | None]],
    earlier: dict[tuple[str, int], list[str]],
    expected: Callable[[Answer], float],
) -> list[Conversation]:
    """A plan's conversations with their text.

    Args:
        texts: prompt_id to (messages, tools) as stored.
        earlier: (prompt_id, replica) to the accepted answers of the turns before the first that is missing.
        expected: tokens that an answer is expected to have.
    """
    return [
        Conversation(
            decode_prompt(*texts[answers[0].prompt_id]),
            deque(answers),
            list(earlier.get((answers[0].prompt_id, answers[0].replica), ())),
            sum(expected(answer) for answer in answers),
        )
        for answers in plan.conversations
    ]
