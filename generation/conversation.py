"""One prompt on its way through the engines: a state machine over its turns.

Turn k + 1 can be rendered when turn k is accepted; what the target said before is part of what it is shown next.
Where the history is recorded, each turn is a conversation of its own: it waits for no other.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

from corpus.records import Message, Prompt


class Answer(NamedTuple):
    """One answer to be made."""

    response_id: str
    prompt_id: str
    recipe_id: str
    replica: int
    turn: int
    category: str


@dataclass
class Conversation:
    """What is still to be answered, and what the target has said so far."""

    prompt: Prompt
    answers: deque[Answer]
    said: dict[int, str]
    """Accepted answers by turn."""
    weight: float = 0.0
    prompt_chars: int = 0
    holdout: bool = False
    counted: bool = False
    """True once one of its turns is accepted: the build has the prompt."""
    attempt: int = 0
    max_tokens: int = 0
    prompt_token_ids: bytes = b""
    before: bytes = b""
    """Prompt and answer of the turn that was answered last, as token ids; empty where that is not known."""
    before_turn: int = -1
    extends_turn: int | None = None
    queued_at: float | None = None

    @property
    def category(self) -> str:
        """The same for all its turns."""
        return self.answers[0].category

    def context(self) -> list[Message]:
        """The messages that its next answer is to."""
        turn = self.answers[0].turn
        return self.prompt.context(turn, [] if self.prompt.recorded else [self.said[one] for one in range(turn)])

    def rendered(self, prompt_token_ids: bytes) -> None:
        """Its next turn is ready to be asked."""
        self.prompt_token_ids, self.attempt = prompt_token_ids, 0
        # what a chat template makes of an earlier turn may part from what was said: looked at, never assumed
        self.extends_turn = self.before_turn if self.before and prompt_token_ids.startswith(self.before) else None

    def accepted(self, text: str, token_ids: bytes) -> None:
        """Its turn is answered, and the next one may be asked."""
        self.before_turn = self.answers.popleft().turn
        self.said[self.before_turn] = text
        self.before = self.prompt_token_ids + token_ids
