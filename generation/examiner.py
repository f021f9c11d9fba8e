"""Looks at each answer as it comes: its notes, where its reasoning ends, and whether answers differ as they should."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from corpus.records import Prompt
from corpus.token_ids import unpack_ids
from generation.checks import Asked, notes_of
from generation.conversation import Conversation
from generation.diversity import DiversityCheck
from generation.messages import GenerateResult
from generation.plan import Recipe
from generation.spans import answer_span, prompt_opens, think_markers


@dataclass(frozen=True)
class Examined:
    """What was found of one answer."""

    notes: tuple[str, ...]
    reasoning_tokens: int


class Examiner:
    """The examiner of one run."""

    def __init__(self, renderer: Any) -> None:
        """`renderer`: corpus.target.Renderer, of which the tokenizer and the template are asked."""
        self._tokenizer = renderer.tokenizer
        self._markers = think_markers(renderer.tokenizer, renderer.template)
        self._diversity = DiversityCheck()
        self._warnings: list[str] = []

    def examine(self, conversation: Conversation, recipe: Recipe, result: GenerateResult) -> Examined:
        """Examine one answer of a conversation's next turn."""
        answer, prompt = conversation.answers[0], conversation.prompt
        token_ids = unpack_ids(result.token_ids)
        opened = prompt_opens(unpack_ids(conversation.prompt_token_ids[-TAIL:]), self._markers)
        spans = answer_span(token_ids, self._markers, opened=opened)
        shown = Prompt(prompt.messages[: prompt.ends()[answer.turn]])
        notes = notes_of(
            result.text,
            token_ids,
            spans,
            Asked.of(shown.user_text(), prompt.tools),
            finished=result.finish_reason == "stop",
            markers=self._markers,
            decode=lambda ids: str(self._tokenizer.decode(ids, skip_special_tokens=True)),
        )
        warning = self._diversity.add(
            recipe.recipe_id, answer.prompt_id, answer.turn, token_ids, temperature=recipe.sampling["temperature"]
        )
        if warning:
            self._warnings.append(warning)
        return Examined(notes, spans.reasoning[1] if spans.reasoning else 0)

    def warnings(self) -> list[str]:
        """What a person should know at the end."""
        return list(self._warnings)


TAIL = 64 * 4
"""Bytes of a prompt's token ids in which a template's opening marker is looked for."""
