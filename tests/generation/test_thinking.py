"""A template that cannot think is found by its renderings, on the prompts of the categories that think."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from corpus.manifest import Manifest
from corpus.manifest_file import parse_manifest
from corpus.records import Message, Prompt
from generation.thinking import ANY_PROMPT, thinking_categories, thinking_warning, unheard_thinking


class Template:
    """Heeds thinking where tools are offered; refuses what it is told to."""

    def text_or_none(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]], thinking: bool) -> str | None:
        if messages[-1]["content"] == "refused":
            return None
        assert messages[-1]["role"] == "user"
        return f"{messages} {thinking if tools else ''}"


def manifest(share: float, **by_category: float) -> Manifest:
    body = {
        "name": "m",
        "mix": {"total": 1, "shares": {"agent": 1, "math": 1}},
        "sources": [{"name": "s", "path": "s", "category": name} for name in ("agent",)]
        + [{"name": "t", "path": "t", "category": "math"}],
        "target": {"model": "m"},
        "generation": {
            "thinking": {"share": share},
            "by_category": {name: {"thinking_share": value} for name, value in by_category.items()},
        },
    }
    return parse_manifest(json.dumps(body), "m")


def test_categories_that_think() -> None:
    assert thinking_categories(manifest(0.0)) == []
    assert thinking_categories(manifest(0.0, math=0.1)) == ["math"]
    assert thinking_categories(manifest(0.5, math=0.0)) == ["agent"]


def test_equal_renderings_are_unheard_and_refused_ones_say_nothing() -> None:
    with_tools = Prompt(ANY_PROMPT.messages, ({"name": "f"},))
    refused = Prompt(({"role": "user", "content": "refused"},))
    several = Prompt((*ANY_PROMPT.messages, {"role": "assistant", "content": "x"}, *ANY_PROMPT.messages))
    prompts = {"agent": with_tools, "math": ANY_PROMPT, "odd": refused, "long": several}
    assert unheard_thinking(Template(), prompts) == ["math", "long"]


@pytest.mark.parametrize(
    ("unheard", "where"), [(["math"], "prompts of math the same"), (["agent", "math"], "prompts the")]
)
def test_the_warning_names_categories_where_only_some_are_unheard(unheard: list[str], where: str) -> None:
    (warning,) = thinking_warning(manifest(0.5), unheard)
    assert where in warning
    assert "target.chat_template" in warning
    assert thinking_warning(manifest(0.5), []) == []
