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

from corpus.canonical import canonical_json
from corpus.errors import RowError
from corpus.formats import FORMATS, SHAREGPT_ROLES, originals, parse_row, recognise, recognise_rows, upstream_id
from corpus.manifest import FormatFields
from corpus.records import ROLES, Prompt, decode_prompt, encode_messages
from corpus.words import plain_likeness

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


def call(arguments: Any, **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", "arguments": arguments}, **more}


BLOCK = {"id": "c", "name": "f"}
CALLS: dict[str, dict[str, Any]] = {
    "openai": said("") | {"tool_calls": [call('{"a": 1}', id="c")]},
    "openai, null content": {"role": "assistant", "content": None, "tool_calls": [call({"a": 1})]},
    "openai, calls as text": said("") | {"tool_calls": json.dumps([call({"a": 1})])},
    "openai, the older key": said("") | {"tool_calls": None, "function_call": {"name": "f", "arguments": '{"a": 1}'}},
    "a parquet union": said("") | {"tool_calls": [{"function": None, "name": "f", "args": None, "input": {"a": 1}}]},
    "langchain": {"type": "ai", "content": "", "tool_calls": [{"name": "f", "args": {"a": 1}, "id": "c"}]},
    "langchain, kwargs": {"type": "ai", "content": "", "additional_kwargs": {"tool_calls": [call('{"a": 1}')]}},
    "langchain, both": {
        "type": "ai", "content": [BLOCK | {"type": "tool_use", "input": {"a": 1}}],
        "tool_calls": [{"name": "f", "args": {"a": 1}}],
    },
    "langchain, to dict": {"type": "ai", "data": {"content": "", "tool_calls": [{"name": "f", "args": {"a": 1}}]}},
    "langchain, serialised": {
        "lc": 1, "type": "constructor", "id": ["langchain", "schema", "AIMessage"],
        "kwargs": {"content": "", "tool_calls": [{"name": "f", "args": {"a": 1}}]},
    },
    "anthropic": {"role": "assistant", "content": [BLOCK | {"type": "tool_use", "input": {"a": 1}}]},
    "openclaw": {
        "role": "assistant",
        "content": [{"type": "thinking", "thinking": "hm"}, BLOCK | {"type": "toolCall", "arguments": {"a": 1}}],
    },
    "a role of its own": {"role": "tool_call", "content": '{"name": "f", "arguments": {"a": 1}}'},
    "sharegpt": {"from": "function_call", "value": '[{"name": "f", "arguments": "{\\"a\\": 1}"}]'},
    "responses": {"type": "function_call", "name": "f", "arguments": '{"a": 1}', "call_id": "c"},
}  # fmt: skip


@pytest.mark.parametrize("turn", CALLS.values(), ids=CALLS)
def test_a_call_in_every_dialect_is_the_same_call(turn: dict[str, Any]) -> None:
    for form, column in (("messages", "messages"), ("sharegpt", "conversations"), ("trace", "steps")):
        row = {column: [user("a"), turn, {"role": "tool", "content": "r"}, said("b")]}
        prompt = parse_row(row, form, None)
        assert prompt.messages[1] == said("") | {"tool_calls": [call({"a": 1})]}
        assert originals(row, form, None) == [canonical_json([call({"a": 1})]), "b"]


@pytest.mark.parametrize(
    ("turn", "message"),
    [
        ({"role": "tool", "content": {"n": 3}}, {"content": '{"n":3}'}),
        ({"role": "tool", "content": [{"title": "t"}]}, {"content": '[{"title":"t"}]'}),
        ({"role": "tool", "content": 3}, {"content": "3"}),
        ({"role": "tool", "content": None}, {"content": ""}),
        ({"role": "toolResult", "toolCallId": "c", "toolName": "f", "content": [{"type": "text", "text": "r"}]},
         {"content": "r", "name": "f", "tool_call_id": "c"}),
        ({"type": "tool", "content": "r", "tool_call_id": "c"}, {"content": "r", "tool_call_id": "c"}),
        ({"type": "function_call_output", "output": "r", "call_id": "c"}, {"content": "r", "tool_call_id": "c"}),
        (user("") | {"content": [{"type": "tool_result", "tool_use_id": "c", "content": ["r"]}]},
         {"content": "r", "tool_call_id": "c"}),
        ({"from": "observation", "value": "r"}, {"content": "r"}),
    ],
)  # fmt: skip
def test_a_result_in_every_dialect_is_a_tool_turn(turn: dict[str, Any], message: dict[str, Any]) -> None:
    row = {"messages": [user("a"), said("") | {"tool_calls": [call({})]}, turn]}
    assert parse_row(row, "messages", None).messages[2:] == ({"role": "tool", **message},)


def test_a_user_turn_with_results_and_text_is_both() -> None:
    parts = [{"type": "tool_result", "content": "r"}, {"type": "text", "text": "go on"}]
    prompt = parse_row({"messages": [user("a"), said("b"), user("") | {"content": parts}]}, "messages", None)
    assert roles(prompt) == "uatu"
    assert prompt.messages[3] == user("go on")


@pytest.mark.parametrize(
    "row",
    [
        {"trace": [user("a"), said("b")]},
        {"trajectory": json.dumps([user("a"), said("b")])},
        {"trace": {"messages": [user("a"), said("b")]}},
        {"history": json.dumps({"events": [user("a"), said("b")]})},
        {"events": [{"type": "session", "id": "s"}, {"type": "message", "message": user("a")}]},
        {"steps": [{"type": "human", "content": "a"}, {"type": "ai", "content": "b"}]},
        {"messages": [json.dumps(user("a")), json.dumps(said("b"))]},
        {"messages": None, "turns": [{"role": "user", "text": "a"}]},
    ],
)
def test_a_trace_is_found_where_exporters_put_it(row: dict[str, Any]) -> None:
    form = recognise(list(row), row)
    assert form in ("trace", "messages")
    assert parse_row(row, form, None).messages == (user("a"),)
    assert parse_row(row, "trace", None).messages == (user("a"),)


def test_what_stands_beside_a_nested_trace_belongs_to_it() -> None:
    row = {"id": 1, "system": "outer", "trace": {"messages": [user("a")], "tools": [TOOL], "system_prompt": "inner"}}
    prompt = parse_row(row, "trace", None)
    assert prompt.messages[0] == {"role": "system", "content": "inner"}
    assert prompt.tools == (TOOL,)


def test_a_task_of_a_crew_is_system_and_user() -> None:
    row = {
        "agent": {"role": "a cook", "goal": "feed all", "backstory": "You know spices."},
        "task": {"description": "Plan a meal.", "expected_output": "A list."},
        "raw": "Soup.",
    }
    assert recognise(list(row), row) == "trace"
    prompt = parse_row(row, "trace", None)
    assert [message["content"] for message in prompt.messages] == [
        "You are a cook.\nYou know spices.\nYour goal: feed all", "Plan a meal.\n\nExpected output: A list.",
    ]  # fmt: skip
    assert originals(row, "trace", None) == ["Soup."]
    flat = {"description": "Plan a meal.", "expected_output": "A list.", "agent": "cook"}
    assert parse_row(flat, "trace", None).messages[1] == prompt.messages[1]


def test_tools_in_the_metadata_belong_to_rows_that_call_them() -> None:
    metadata = json.dumps({"tools": [TOOL]})
    row = {"messages": [user("a"), said("") | {"tool_calls": [call({})]}], "metadata": metadata}
    assert parse_row(row, "messages", None).tools == (TOOL,)
    assert parse_row({"messages": [user("a"), said("b")], "metadata": metadata}, "messages", None).tools == ()


HH = "\n\nHuman: a\n\nAssistant: b\n\nHuman: c\n\nAssistant: d"
PAIRS: list[tuple[dict[str, Any], str, list[str | None]]] = [
    ({"chosen": [user("a"), said("b"), user("c"), said("d")], "rejected": []}, "uu", ["b", "d"]),
    ({"chosen": json.dumps([user("a"), said("d")]), "rejected": None}, "u", ["d"]),
    ({"prompt": "a", "chosen": [user("a"), said("d")], "rejected": []}, "u", ["d"]),
    ({"prompt": [user("a")], "chosen": [said("d")], "rejected": [said("e")]}, "u", ["d"]),
    ({"prompt": "a", "chosen": "d", "rejected": "e"}, "u", ["d"]),
    ({"system": "s", "question": "a", "chosen": "d", "rejected": "e"}, "su", ["d"]),
    ({"chosen": HH, "rejected": HH}, "uu", ["b", "d"]),
    ({"prompt": HH.removesuffix(" d"), "chosen": "d", "rejected": "e"}, "uu", ["b", "d"]),
    ({"prompt": "a", "chosen": None, "rejected": "e"}, "u", [None]),
]


@pytest.mark.parametrize(("row", "asked", "own"), PAIRS)
def test_a_preference_pair_asks_what_the_chosen_answer_answers(
    row: dict[str, Any], asked: str, own: list[str | None]
) -> None:
    if row["chosen"]:
        assert recognise(list(row), row) == "preference"
    prompt = parse_row(row, "preference", None)
    assert roles(prompt) == asked
    assert "d" not in prompt.user_text()
    assert originals(row, "preference", None) == own


def test_messages_in_a_prompt_column_may_be_json_text_and_other_brackets_are_text() -> None:
    assert parse_row({"prompt": json.dumps([user("a"), said("b"), user("c")])}, "prompt", None).turns == 2
    for text in ("[1, 2, 3]: sort this", "[1, 2]", "[]", '{"a": 1}', '[{"role": "x"}, 2]'):
        assert parse_row({"prompt": text}, "prompt", None).messages == (user(text),)


# the source's own answers


@pytest.mark.parametrize(
    ("row", "form", "history", "own"),
    [
        ({"messages": [user("a"), said("b"), user("c")]}, "messages", None, ["b", None]),
        ({"messages": [user("a"), user("b"), said("c")]}, "messages", None, [None, "c"]),
        ({"messages": [said("hi"), user("a"), said("b")]}, "messages", None, ["b"]),
        ({"messages": [said("hi"), user("a"), said("b")]}, "messages", "recorded", ["b"]),
        ({"messages": [user("a"), said("b"), user("c"), said("d")]}, "messages", "recorded", ["b", "d"]),
        ({"messages": [user("a"), said("b"), user("c")]}, "messages", "recorded", ["b", None]),
        ({"messages": [user("a"), said("b"), said("c")]}, "messages", "recorded", ["b"]),
        ({"messages": [user("a"), said("b"), said("c")]}, "messages", "regenerated", ["b"]),
        ({"messages": [user("a"), said("")]}, "messages", None, [None]),
        ({"messages": [user("a"), said("b\ud800")]}, "messages", None, [None]),
        ({"instruction": "a", "output": "b"}, "alpaca", None, ["b"]),
        ({"instruction": "a", "output": " "}, "alpaca", "recorded", [None]),
        ({"prompt": "a", "answer": 3, "solution": "b"}, "prompt", None, ["b"]),
        ({"prompt": "a"}, "prompt", None, [None]),
        ({"prompt": [user("a")], "completion": [said("b")]}, "prompt", "recorded", ["b"]),
        ({"ask": "a", "response": "b"}, FormatFields(fields={"prompt": "ask"}), None, ["b"]),
    ],
)
def test_the_sources_own_answers_stand_where_the_target_is_asked(
    row: dict[str, Any], form: Any, history: Any, own: list[str | None]
) -> None:
    assert originals(row, form, history) == own


def test_an_answer_column_that_is_odd_does_not_decide_about_the_row() -> None:
    row = {"prompt": "a", "completion": [said("b") | {"content": [{"type": "image"}]}]}
    assert parse_row(row, "prompt", None).messages == (user("a"),)
    assert originals(row, "prompt", None) == [None]


def test_the_user_text_is_the_user_turns_alone() -> None:
    row = {"messages": [{"role": "system", "content": "s"}, user("a"), said("b"), user(""), user("c")]}
    assert parse_row(row, "messages", "recorded").user_text() == "a\nc"


# content


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
    ("not_text", "trace", {"trace": [user("a") | {"content": [{"type": "video"}]}]}),
    ("not_text", "trace", {"trace": [user("a"), {"role": "tool", "content": [{"type": "image"}]}]}),
    ("not_text", "messages", {"messages": [user("a") | {"content": [{"type": ["x"]}]}]}),
    ("not_json", "trace", {"trace": [user("a"), {"role": "tool", "content": {"since": dt.date(2020, 1, 1)}}]}),
    ("not_messages", "trace", {"trace": "half a sentence"}),
    ("not_messages", "trace", {"task": "a", "agent": "b"}),
    ("empty_conversation", "trace", {"trace": {"messages": []}}),
    ("no_user_turn", "trace", {"steps": [{"type": "ai", "content": "a"}]}),
    ("bad_tool_call", "messages", {"messages": [user("a"), said("b") | {"tool_calls": [{"name": "f", "args": b"x"}]}]}),
    ("not_messages", "preference", {"chosen": 3}),
    ("empty_conversation", "preference", {"chosen": None}),
    ("no_user_turn", "preference", {"chosen": [said("a")]}),
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
        ({"instruction": "a", "input": "b"}, "alpaca"),
        ({"conversations": [{"from": "human", "content": "a"}]}, "sharegpt"),
        ({"conversations": [{"from": "human", "value": "a"}, {"from": "tool", "value": "b"}]}, "sharegpt"),
        ({"messages": [user("a"), {"role": "tool", "content": "b"}]}, "trace"),
        ({"messages": [{"type": "human", "content": "a"}]}, "trace"),
        ({"conversation": [{"from": "human", "value": "a"}]}, FormatFields(fields={"messages": "conversation"})),
        ({"chosen": "a", "rejected": "b", "prompt": "c"}, "preference"),
        ({"chosen": "B", "question": "which?"}, FormatFields(fields={"prompt": "question"})),
        ({"messages": None, "prompt": "a"}, "prompt"),
        ({"prompt": None, "question": "a"}, FormatFields(fields={"prompt": "question"})),
        ({"messages": None}, "messages"),
        ({"history": [["a", "b"]], "instruction": "c", "output": "d"}, "alpaca"),
    ],
)
def test_a_format_is_recognised_by_its_first_row(first: dict[str, Any], form: Any) -> None:
    assert recognise(list(first), first) == form


def test_rows_that_hold_nothing_do_not_decide_the_format() -> None:
    full, odd = {"messages": [user("a")], "prompt": None}, {"messages": None, "prompt": "b"}
    for rows in (
        [{"messages": None, "prompt": None}, full],
        [{"messages": [], "prompt": " "}, full],
        [odd, full, full],
    ):
        assert recognise_rows(["messages", "prompt"], rows) == "messages"
    assert recognise_rows(["messages", "prompt"], [odd, full]) == "prompt"  # as many of each: the first


def test_no_rows_at_all_are_judged_by_their_columns() -> None:
    assert recognise_rows(["instruction", "output"], []) == "alpaca"
    with pytest.raises(RowError, match="unknown_format"):
        recognise_rows([], [])


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
KEYS = (
    "role", "content", "from", "value", "tool_calls", "type", "text", "function", "name", "arguments", "message",
    "data", "kwargs", "input", "additional_kwargs", "messages",
)  # fmt: skip
NAMES = ("user", "assistant", "tool", "tool_call", "human", "ai", "tool_use", "tool_result")
junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6) | st.binary(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(KEYS),
            inner
            | st.sampled_from(["user", "assistant", "tool", "tool_call", "human", "ai", "tool_use", "tool_result"]),
            max_size=4,
        )
    ),
    max_leaves=12,
)
COLUMNS = (
    "messages", "conversations", "prompt", "tools", "system", "instruction", "input", "output", "id", "chosen",
    "rejected", "trace", "task", "agent", "metadata", "description", "expected_output",
)  # fmt: skip


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
        own = originals(row, form, history)
        assert len(own) == prompt.turns
        assert canonical_json(own)
    try:
        recognise(list(row), row)
    except RowError as error:
        assert error.reason == "unknown_format"


tool_turn = st.sampled_from([said("") | {"tool_calls": [call({"a": 1})]}, {"role": "tool", "content": "r"}])
any_turn = turn.map(lambda pair: {"role": pair[0], "content": pair[1]}) | tool_turn


@given(st.lists(any_turn, min_size=1, max_size=9), st.sampled_from([None, "recorded", "regenerated"]))
def test_a_source_has_one_answer_or_none_for_each_turn_of_a_prompt(turns: list[dict[str, Any]], history: Any) -> None:
    row = {"messages": turns}
    if not any(message["role"] == "user" for message in turns):
        assert reason(row, "messages", history) == "no_user_turn"
        return
    prompt, own = parse_row(row, "messages", history), originals(row, "messages", history)
    assert len(own) == prompt.turns
    if prompt.recorded:  # what the source said there is what a recorded context goes on with
        for answer, end in zip(own, prompt.ends(), strict=True):
            shown = turns[end] if end < len(turns) and turns[end]["role"] == "assistant" else None
            assert answer == (shown and (shown["content"] or canonical_json(shown["tool_calls"])))


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
    assert plain_likeness(plain.shown_text()) == plain_likeness(other.shown_text())
    assert plain.prompt_id != other.prompt_id
    assert plain_likeness(plain.shown_text()) != plain_likeness(Prompt((user("Crème Brûlée!"),)).shown_text())
    assert plain_likeness(plain.shown_text()) != plain_likeness(Prompt(plain.messages, (TOOL,)).shown_text())
