"""Rows in the shapes that sources really have: what prompt each holds, or why it holds none.

A row never ends a run: whatever it holds, parse_row gives a prompt that can be answered or a RowError with a
reason code.
"""

from __future__ import annotations

import datetime as dt
import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corpus.errors import RowError
from corpus.formats import FORMATS, SHAREGPT_ROLES, parse_row, recognise, upstream_id
from corpus.manifest import FormatFields
from corpus.records import ROLES, Prompt, decode_prompt, encode_messages, likeness_key

TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def said(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def roles(prompt: Prompt) -> str:
    return "".join(message["role"][0] for message in prompt.messages)


def reason(row: dict[str, Any], form: Any, history: Any = None) -> str:
    with pytest.raises(RowError) as caught:
        parse_row(row, form, history)
    return caught.value.reason


# shapes


def test_messages_keep_what_the_target_is_shown_and_drop_what_it_writes() -> None:
    row = {"messages": [{"role": "system", "content": "be"}, user("a"), said("b"), user("c"), said("d")]}
    prompt = parse_row(row, "messages", None)
    assert roles(prompt) == "suu"
    assert prompt.turns == 2
    assert prompt.context(0, []) == [{"role": "system", "content": "be"}, user("a")]
    assert prompt.context(1, ["mine"]) == [{"role": "system", "content": "be"}, user("a"), said("mine"), user("c")]


def test_recorded_history_stays_as_context_and_each_assistant_turn_is_asked_for() -> None:
    row = {"messages": [user("a"), said("b"), user("c"), said("d")]}
    prompt = parse_row(row, "messages", "recorded")
    assert roles(prompt) == "uau"  # the last answer is the target's to give
    assert prompt.turns == 2
    assert prompt.context(0, []) == [user("a")]
    assert prompt.context(1, ["never shown"]) == [user("a"), said("b"), user("c")]


def test_rows_with_tool_turns_are_recorded_unless_told_otherwise() -> None:
    call = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}
    row = {"messages": [user("a"), call, {"role": "tool", "content": "1", "name": "f"}, said("b")]}
    prompt = parse_row(row, "messages", None)
    assert roles(prompt) == "uat"
    assert prompt.messages[1]["content"] == ""
    assert prompt.turns == 2
    assert roles(parse_row(row, "messages", "regenerated")) == "u"


def test_a_greeting_of_the_assistant_is_context_and_no_turn() -> None:
    row = {"messages": [said("hello"), user("a"), said("b"), user("c")]}
    assert roles(parse_row(row, "messages", None)) == "uu"
    prompt = parse_row(row, "messages", "recorded")
    assert roles(prompt) == "auau"
    assert prompt.turns == 2
    assert prompt.context(0, []) == [said("hello"), user("a")]


@pytest.mark.parametrize("name", SHAREGPT_ROLES)
def test_every_role_name_of_sharegpt(name: str) -> None:
    turns = [{"from": "human", "value": "q"}, {"from": name.upper(), "value": "x"}, {"from": "human", "value": "r"}]
    prompt = parse_row({"conversations": turns}, "sharegpt", "recorded")
    assert prompt.messages[1] == {"role": SHAREGPT_ROLES[name], "content": "x"}
    assert SHAREGPT_ROLES[name] in ROLES


def test_sharegpt_with_a_system_column_and_tools_as_a_json_string() -> None:
    row = {"conversations": [{"from": "human", "value": "q"}], "system": "be", "tools": json.dumps([TOOL])}
    prompt = parse_row(row, "sharegpt", None)
    assert prompt.messages == ({"role": "system", "content": "be"}, user("q"))
    assert prompt.tools == (TOOL,)


def test_alpaca() -> None:
    assert parse_row({"instruction": "i", "input": "x", "output": "o"}, "alpaca", None).messages == (user("i\n\nx"),)
    assert parse_row({"instruction": "i", "input": " ", "output": "o"}, "alpaca", None).messages == (user("i"),)


def test_a_prompt_column_may_hold_text_or_messages() -> None:
    assert parse_row({"prompt": "p", "system": "s"}, "prompt", None).messages[0] == {"role": "system", "content": "s"}
    assert parse_row({"prompt": [user("p")]}, "prompt", None).messages == (user("p"),)


def test_named_columns() -> None:
    form = FormatFields(fields={"prompt": "ask", "system": "rule", "tools": "calls", "id": "nr"})
    row = {"ask": "p", "rule": "s", "calls": TOOL, "nr": 7, "id": "other"}
    prompt = parse_row(row, form, None)
    assert prompt == Prompt(({"role": "system", "content": "s"}, user("p")), (TOOL,))
    assert upstream_id(row, form) == "7"
    chat = FormatFields(fields={"messages": "dialog"})
    assert parse_row({"dialog": json.dumps([user("x")])}, chat, None).messages == (user("x"),)


@pytest.mark.parametrize("tools", [[TOOL], TOOL, json.dumps([TOOL]), json.dumps(TOOL), [TOOL["function"]]])
def test_tools_in_every_shape_are_the_same_tools(tools: Any) -> None:
    assert parse_row({"prompt": "p", "tools": tools}, "prompt", None).tools == (TOOL,)


@pytest.mark.parametrize("tools", [None, "", "null", [], "[]"])
def test_no_tools_in_every_shape(tools: Any) -> None:
    assert parse_row({"prompt": "p", "tools": tools}, "prompt", None) == Prompt((user("p"),))


@pytest.mark.parametrize(
    ("arguments", "stored"),
    [
        ('{"a": 1}', {"a": 1}), ({"a": [1, None]}, {"a": [1, None]}), ("[1]", "[1]"), ("not json", "not json"),
        (7, "7"), ([1, 2], "[1, 2]"), (None, "null"), (True, "true"),
    ],
)  # fmt: skip
def test_tool_arguments_of_any_type(arguments: Any, stored: Any) -> None:
    call = {"role": "assistant", "content": "", "tool_calls": [{"name": "f", "arguments": arguments}]}
    prompt = parse_row({"messages": [user("a"), call, {"role": "tool", "content": "r"}]}, "messages", None)
    assert prompt.messages[1]["tool_calls"][0]["function"] == {"name": "f", "arguments": stored}


def test_content_as_text_parts() -> None:
    parts = [{"type": "text", "text": "a"}, "b", {"text": "c"}]
    assert parse_row({"messages": [user("x") | {"content": parts}]}, "messages", None).messages == (user("abc"),)


def test_other_names_of_roles() -> None:
    row = {"messages": [{"role": "developer", "content": "d"}, user("a"), {"role": "function", "content": "r"}]}
    assert roles(parse_row(row, "messages", None)) == "sut"


# drops

IMAGE = {"type": "image_url", "image_url": {"url": "x"}}
DROPS: list[tuple[str, str, dict[str, Any]]] = [
    ("empty_conversation", "messages", {"messages": []}),
    ("not_messages", "messages", {"messages": None}),
    ("not_messages", "messages", {"messages": ["text"]}),
    ("not_messages", "messages", {"messages": [{"content": "no role"}]}),
    ("not_messages", "messages", {"messages": [{"role": None, "content": "x"}]}),
    ("not_messages", "messages", {"messages": "[half"}),
    ("not_text", "messages", {"messages": [user("a") | {"content": [IMAGE]}]}),
    ("not_text", "messages", {"messages": [user("a") | {"content": {"text": "x"}}]}),
    ("not_text", "messages", {"messages": [user("a") | {"content": 3}]}),
    ("bad_role", "messages", {"messages": [{"role": "narrator", "content": "x"}, user("a")]}),
    ("no_user_turn", "messages", {"messages": [said("a")]}),
    ("no_user_turn", "messages", {"messages": [{"role": "system", "content": "s"}]}),
    ("empty_prompt", "messages", {"messages": [user(" \n")]}),
    ("bad_tool_call", "messages", {"messages": [user("a"), said("b") | {"tool_calls": [{"arguments": "{}"}]}]}),
    ("bad_tool_call", "messages", {"messages": [user("a"), said("b") | {"tool_calls": 5}]}),
    ("bad_tool_call", "messages", {"messages": [user("a"), said("b") | {"tool_calls": [None]}]}),
    ("bad_tools", "prompt", {"prompt": "p", "tools": "{half"}),
    ("bad_tools", "prompt", {"prompt": "p", "tools": [3]}),
    ("bad_tools", "prompt", {"prompt": "p", "tools": 3}),
    ("bad_role", "sharegpt", {"conversations": [{"from": "narrator", "value": "x"}]}),
    ("not_messages", "sharegpt", {"conversations": [{"value": "x"}]}),
    ("not_messages", "sharegpt", {"conversations": [None]}),
    ("not_messages", "sharegpt", {}),
    ("empty_prompt", "alpaca", {"instruction": None, "output": "o"}),
    ("empty_prompt", "prompt", {"prompt": ""}),
    ("not_text", "prompt", {"prompt": 3}),
    ("not_text", "prompt", {"prompt": "p", "system": {"a": 1}}),
]


@pytest.mark.parametrize(("code", "form", "row"), DROPS, ids=[f"{f}-{c}-{i}" for i, (c, f, _) in enumerate(DROPS)])
def test_a_row_without_a_prompt_has_a_reason(code: str, form: str, row: dict[str, Any]) -> None:
    assert reason(row, form) == code


def test_text_that_is_not_unicode_has_no_identity() -> None:
    prompt = parse_row({"prompt": "a\ud800b"}, "prompt", None)
    with pytest.raises(RowError) as caught:
        _ = prompt.prompt_id
    assert caught.value.reason == "invalid_unicode"


def test_a_value_that_json_does_not_have_is_no_prompt() -> None:
    prompt = parse_row({"prompt": "a", "tools": [{"name": "f", "since": dt.date(2020, 1, 1)}]}, "prompt", None)
    with pytest.raises(RowError) as caught:
        _ = prompt.prompt_id
    assert caught.value.reason == "not_json"


# recognition


@pytest.mark.parametrize(
    ("first", "form"),
    [
        ({"messages": [user("a")]}, "messages"),
        ({"messages": json.dumps([user("a")])}, "messages"),
        ({"conversations": [{"from": "human", "value": "a"}]}, "sharegpt"),
        ({"conversations": [user("a")]}, "messages"),
        ({"conversations": []}, "sharegpt"),
        ({"conversations": [None]}, "sharegpt"),
        ({"conversation": [user("a")]}, FormatFields(fields={"messages": "conversation"})),
        ({"instruction": "a", "input": "", "output": "b"}, "alpaca"),
        ({"instruction": "a"}, FormatFields(fields={"prompt": "instruction"})),
        ({"prompt": "a", "text": "b"}, "prompt"),
        ({"question": "a"}, FormatFields(fields={"prompt": "question"})),
    ],
)
def test_a_format_is_recognised_by_its_first_row(first: dict[str, Any], form: Any) -> None:
    assert recognise(list(first), first) == form


def test_an_unknown_format_names_the_columns() -> None:
    with pytest.raises(RowError, match="unknown_format: columns a, b"):
        recognise(["b", "a"], {"b": 1, "a": 2})


def test_an_upstream_id_is_a_plain_value() -> None:
    assert upstream_id({"id": 3}, "prompt") == "3"
    assert upstream_id({"id": None, "uuid": "u"}, "prompt") == "u"
    assert upstream_id({"id": {"a": 1}}, "prompt") is None


# laws

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
filled = texts.filter(lambda text: text.strip())
turn = st.tuples(st.sampled_from(["user", "assistant", "system"]), filled)
junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6) | st.binary(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["role", "content", "from", "value", "tool_calls", "type", "text", "function", "name"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)
COLUMNS = ("messages", "conversations", "prompt", "tools", "system", "instruction", "input", "output", "id")


@given(st.dictionaries(st.sampled_from(COLUMNS), junk, max_size=5), st.sampled_from([None, "recorded", "regenerated"]))
def test_no_row_whatever_it_holds_is_more_than_a_drop(row: dict[str, Any], history: Any) -> None:
    for form in FORMATS:
        try:
            prompt = parse_row(row, form, history)
            encode_messages(prompt)
        except RowError as error:
            assert error.reason
            continue
        assert prompt.turns >= 1
    try:
        recognise(list(row), row)
    except RowError as error:
        assert error.reason == "unknown_format"


@given(st.lists(turn, min_size=1, max_size=8), st.sampled_from(["recorded", "regenerated"]))
def test_every_turn_is_asked_over_a_longer_context_that_ends_before_an_answer(
    turns: list[tuple[str, str]], history: Any
) -> None:
    row = {"messages": [{"role": role, "content": text} for role, text in turns]}
    if not any(role == "user" for role, _ in turns):
        assert reason(row, "messages", history) in ("no_user_turn", "empty_prompt")
        return
    prompt = parse_row(row, "messages", history)
    answers = [f"answer {i}" for i in range(prompt.turns)]
    contexts = [prompt.context(i, answers) for i in range(prompt.turns)]
    for shorter, longer in pairwise(contexts):
        assert longer[: len(shorter)] == shorter
        assert len(longer) > len(shorter)
    assert all(any(message["role"] == "user" for message in context) for context in contexts)
    if history == "regenerated":
        assert prompt.turns == sum(role == "user" for role, _ in turns)
        own = [message["content"] for message in contexts[-1] if message["role"] == "assistant"]
        assert own == answers[: len(own)]
        assert [m for m in contexts[-1] if m["role"] != "assistant"] == list(prompt.messages)


@given(st.lists(filled, min_size=1, max_size=3), st.lists(st.dictionaries(texts, texts, max_size=2), max_size=2))
def test_a_prompt_is_stored_and_read_back_unchanged(parts: list[str], tools: list[dict[str, str]]) -> None:
    prompt = Prompt(tuple(user(part) for part in parts), tuple(tools))
    again = decode_prompt(*encode_messages(prompt))
    assert again == prompt
    assert again.prompt_id == prompt.prompt_id


def test_likeness_is_blind_to_case_space_and_composition_and_identity_is_not() -> None:
    plain, other = Prompt((user("Crème  Brûlée\n"),)), Prompt((user("cre\u0300me bru\u0302le\u0301e"),))
    assert likeness_key(plain) == likeness_key(other)
    assert plain.prompt_id != other.prompt_id
    assert likeness_key(plain) != likeness_key(Prompt((user("Crème Brûlée!"),)))
    assert likeness_key(plain) != likeness_key(Prompt(plain.messages, (TOOL,)))
