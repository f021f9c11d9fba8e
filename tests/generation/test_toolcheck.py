"""Which tool calls are broken, and that talk about tool calls is none."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from generation.toolcheck import is_broken_tool_call, tool_names

OFFERED = frozenset({"search", "get_weather"})
HERMES = '<tool_call>\n{"name": "search", "arguments": {"q": "a"}}\n</tool_call>'
XML = "<tool_call>\n<function=search>\n<parameter=q>\nif a < b:\n  1\n</parameter>\n</function>\n</tool_call>"


@pytest.mark.parametrize(
    "answer",
    [
        HERMES,
        "I will look.\n" + HERMES + "\n" + HERMES + "\nDone.",
        XML,
        XML + "\n" + XML,
        "<function=search>\n<parameter=q>\na\n</parameter>\n</function>",
        "<tool_call>\n<function=search>\n</function>\n</tool_call>",
        '<tool_call>{"name": "search"}</tool_call>',
        '<tool_call>{"name": "search", "arguments": "{\\"q\\": 1}"}</tool_call>',
        '<tool_call>[{"name": "search", "parameters": {}}]</tool_call>',
        "It is 12 degrees.",
        '{"name": "search", "arguments": {}}',  # no tags: not judged
        "",
    ],
)
def test_readable(answer: str) -> None:
    assert not is_broken_tool_call(answer, OFFERED)
    assert not is_broken_tool_call(answer, frozenset())


@pytest.mark.parametrize(
    "answer",
    [
        '<tool_call>\n{"name": "search", "arguments": {"q": "a"',
        '<tool_call>\n{"name": "search", "arguments": {"q": "a"}}',
        '<tool_call>\n{"name": "search", "arguments": {"q": a}}\n</tool_call>',
        '<tool_call>{"name": "search", "arguments": [1]}</tool_call>',
        '<tool_call>{"name": "search", "arguments": "q"}</tool_call>',
        '<tool_call>{"arguments": {}}</tool_call>',
        "<tool_call>[]</tool_call>",
        HERMES + "\n<tool_call>\n{",
        "<tool_call>\n<function=search>\n<parameter=q>\na",
        "<tool_call>\n<function=search>\n<parameter=q>\na\n</function>\n</tool_call>",
        "<tool_call>\n<function=search>\n</tool_call>",
        "<tool_call>\n<function=>\n</function></tool_call>",
    ],
)
def test_broken_whatever_was_offered(answer: str) -> None:
    assert is_broken_tool_call(answer, OFFERED)
    assert is_broken_tool_call(answer, frozenset())


@pytest.mark.parametrize(
    "answer",
    [
        HERMES.replace("search", "delete"),
        XML.replace("search", "delete"),
        HERMES + HERMES.replace("search", "delete"),
        "<tool_call>\nsearch q=a\n</tool_call>",
        '{"name": "search"}\n</tool_call>',
        "<function=search>\n<parameter=q>\na",
        "```\n" + HERMES[:-20] + "\n```",
    ],
)
def test_broken_where_tools_are_known(answer: str) -> None:
    assert is_broken_tool_call(answer, OFFERED)


@pytest.mark.parametrize(
    "answer",
    [
        "Wrap the call: `<tool_call>{...}</tool_call>`.",
        "```\n<tool_call>\n{name}\n```\nThat is the format.",
        "A <tool_call> tag opens a call; <function= names it.",
        HERMES.replace("search", "anything"),
    ],
)
def test_an_answer_may_be_about_tool_calls(answer: str) -> None:
    assert not is_broken_tool_call(answer, frozenset())


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.characters(exclude_characters="<")),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(
    st.lists(
        st.tuples(st.sampled_from(sorted(OFFERED)), st.dictionaries(st.text(max_size=8), json_values, max_size=4))
    ),
    st.integers(0, 10_000),
)
def test_calls_as_templates_write_them_are_readable_and_cut_ones_are_not(
    calls: list[tuple[str, dict[str, object]]], cut: int
) -> None:
    written = [
        "<tool_call>\n" + json.dumps({"name": name, "arguments": {k.replace("<", ""): v for k, v in given_.items()}})
        .replace("<", "") + "\n</tool_call>"
        for name, given_ in calls
    ]  # fmt: skip
    answer = "\n".join(written)
    assert not is_broken_tool_call(answer, OFFERED)
    if written:
        last = written[-1]
        kept = len(answer) - len(last) + len("<tool_call>") + cut % (len(last) - len("<tool_call>"))
        assert is_broken_tool_call(answer[:kept], OFFERED)


def test_names_of_tools() -> None:
    tools = [{"type": "function", "function": {"name": "search"}}, {"name": "get_weather"}, {"type": "other"}]
    assert tool_names(tools) == OFFERED
