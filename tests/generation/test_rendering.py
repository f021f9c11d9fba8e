from __future__ import annotations

import pytest

from corpus.errors import RowError, UserError
from generation.rendering import REFUSED_AT_FIRST, Rendering


class Prompt:
    tools = ()


class Turn:
    """Of a conversation, what rendering asks of it."""

    prompt = Prompt()

    def __init__(self, text: str) -> None:
        self.text = text

    def context(self) -> list[str]:
        return [self.text]


class Template:
    """Refuses what begins with !, and what it says is the rest."""

    def text(self, messages: list[str], tools: object, thinking: bool) -> str:
        if messages[0].startswith("!"):
            raise RowError("template_error", messages[0][1:])
        return messages[0]

    def encode(self, texts: list[str]) -> list[list[int]]:
        return [[ord(letter) for letter in text] for text in texts]


def rendering() -> Rendering:
    return Rendering(Template(), lambda turn: False)  # type: ignore[arg-type]


def turns(*texts: str) -> list[Turn]:
    return [Turn(text) for text in texts]


def test_each_turn_has_its_ids_or_its_reason() -> None:
    ids, refused, empty, more = rendering().render(turns("ab", "!no", "", "c"))  # type: ignore[arg-type]
    assert (ids, more) == ([97, 98], [99])
    assert isinstance(refused, RowError)
    assert isinstance(empty, RowError)
    assert (refused.detail, empty.detail) == ("no", "renders to nothing")


def test_what_it_says_of_one_prompt_alone_is_not_told() -> None:
    once = rendering()
    once.render(turns("a", "!the prompt's own words"))  # type: ignore[arg-type]
    assert once.warnings() == []
    once.render(turns("!no tools", "!no tools"))  # type: ignore[arg-type]
    assert once.warnings() == ["the chat template refused 3 prompts; of 2 it says: no tools"]


def test_a_template_that_refuses_everything_ends_the_run() -> None:
    broken = rendering()
    few, last = ["!line 3: unknown tag"] * (REFUSED_AT_FIRST - 1), ["!line 3: unknown tag"]
    broken.render(turns(*few))  # type: ignore[arg-type]
    with pytest.raises(UserError, match="renders none of the first 50 prompts; it says: line 3: unknown tag"):
        broken.render(turns(*last))  # type: ignore[arg-type]
    useful = rendering()
    useful.render(turns("a"))  # type: ignore[arg-type]
    useful.render(turns(*few, *last))  # type: ignore[arg-type]
