"""Turns as the target is shown them: rendered by its chat template and tokenised once, ahead of the engines.

What the template refuses is a row's error; a template that refuses everything is the run's. What it says is told
only where it said so of several prompts: of one alone it might be the prompt's own words.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from corpus.errors import RowError, UserError
from corpus.target import Renderer
from generation.conversation import Conversation

REFUSED_AT_FIRST = 50
"""Prompts that are refused before one is rendered: it is the template's fault then, not the prompts'."""


class Rendering:
    """The template at work in one run.

    Args:
        thinking: whether the next turn of a conversation is asked with thinking on.
    """

    def __init__(self, renderer: Renderer, thinking: Callable[[Conversation], bool]) -> None:
        self._renderer, self._thinking = renderer, thinking
        self._refused: Counter[str] = Counter()
        self._rendered = 0

    def render(self, conversations: Sequence[Conversation]) -> list[list[int] | RowError]:
        """Token ids of the next turn of each, or why there are none.

        Raises:
            UserError: the template has refused many prompts and rendered none.
        """
        texts: list[str | RowError] = []
        for conversation in conversations:
            try:
                thinking = self._thinking(conversation)
                texts.append(self._renderer.text(conversation.context(), conversation.prompt.tools, thinking))
            except RowError as error:
                texts.append(error)
        ids = iter(self._renderer.encode([text for text in texts if isinstance(text, str)]))
        nothing = RowError("template_error", "renders to nothing")
        rendered = [next(ids) or nothing if isinstance(text, str) else text for text in texts]
        self._count(rendered)
        return rendered

    def warnings(self) -> list[str]:
        """What a person should know at the end."""
        detail, count = next(iter(self._refused.most_common(1)), ("", 0))
        if count < 2:
            return []
        return [f"the chat template refused {self._refused.total():,} prompts; of {count:,} it says: {detail}"]

    def _count(self, rendered: Sequence[list[int] | RowError]) -> None:
        refused = [one.detail for one in rendered if isinstance(one, RowError)]
        self._refused.update(refused)
        self._rendered += len(rendered) - len(refused)
        if not self._rendered and self._refused.total() >= REFUSED_AT_FIRST:
            raise UserError(
                f"target.chat_template: renders none of the first {self._refused.total():,} prompts; it says: "
                f"{self._refused.most_common(1)[0][0]}. Mend it; the same command goes on."
            )
