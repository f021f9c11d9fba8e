"""The short way of plain rows and the reference give the same prompts, whatever the rows hold."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corpus.canonical import canonical_json
from corpus.errors import RowError
from corpus.formats import originals, parse_row
from corpus.normalise import QUICK, Normalised, Normaliser

text = st.one_of(
    st.text(max_size=12),
    st.text(alphabet='ab \n\t\r\x00\x07\x1f\x7f"\\/<&é\u2028\u4e2d\U0001f600[{', max_size=12),
    st.sampled_from(["", "  ", "\ud800", "[not json", '["a"]', '{"a": 1}']),
)
odd = st.sampled_from([None, 3, True, ["x"], {"type": "text", "text": "t"}, [{"type": "text", "text": "part"}], b"x"])
content = st.one_of(text, text, text, odd)
roles = st.sampled_from(
    ["system", "user", "user", "user", "assistant", "tool", "developer", "User", "nobody", None, 4, ["user"]]
)
names = st.sampled_from(
    ["system", "human", "human", "gpt", "user", "tool", "Human", "function_call", "nobody", None, ["gpt"]]
)
extra = st.dictionaries(st.sampled_from(["name", "tool_calls", "weight"]), st.sampled_from([None, None, "n", [], 0]))
message = st.builds(lambda r, c, e: {"role": r, "content": c, **e}, roles, content, extra)
turn = st.builds(lambda r, c, e: {"from": r, "value": c, **e}, names, content, extra)
tools = st.sampled_from([None, None, None, "", "[]", [], [{"name": "f"}], "no json"])


def rows(**columns: Any) -> Any:
    shared = {"system": st.one_of(st.none(), st.none(), content), "tools": tools}
    return st.fixed_dictionaries({}, optional={**columns, **shared})


SHAPES: dict[str, Any] = {
    "messages": rows(messages=st.one_of(st.lists(st.one_of(message, message, odd), max_size=4), content)),
    "sharegpt": rows(conversations=st.one_of(st.lists(st.one_of(turn, turn, odd), max_size=4), content)),
    "prompt": rows(prompt=content),
    "alpaca": rows(instruction=content, input=content, output=content),
}


def reference(row: dict[str, Any], form: str, history: Any) -> tuple[Any, ...]:
    try:
        prompt = parse_row(row, form, history)
        stored = canonical_json(list(prompt.messages)), canonical_json(list(prompt.tools)) if prompt.tools else None
        return prompt.prompt_id, *stored, prompt.turns, prompt.shown_text(), prompt.user_text(), None
    except RowError as error:
        return None, None, None, None, "", "", error.reason


def columns(made: Normalised) -> list[tuple[Any, ...]]:
    names = ("prompt_id", "messages", "tools", "turns", "shown", "asked", "reason")
    return list(zip(*(getattr(made, name) for name in names), strict=True))


def test_every_short_way_is_tried_here() -> None:
    assert set(SHAPES) == set(QUICK)


@pytest.mark.parametrize("form", SHAPES)
@given(data=st.data(), history=st.sampled_from([None, "regenerated", "recorded"]))
def test_the_short_way_and_the_reference_agree(form: str, data: Any, history: Any) -> None:
    drawn = data.draw(st.lists(SHAPES[form], min_size=1, max_size=5))
    made = Normaliser(form, history, None, keep_original=False).rows(drawn, range(len(drawn)))
    assert columns(made) == [reference(row, form, history) for row in drawn]
    assert made.row_index == list(range(len(drawn)))


@pytest.mark.parametrize("form", SHAPES)
@given(data=st.data(), history=st.sampled_from([None, "regenerated", "recorded"]))
def test_the_sources_own_answers_are_those_of_the_reference(form: str, data: Any, history: Any) -> None:
    drawn = data.draw(st.lists(SHAPES[form], min_size=1, max_size=5))
    made = Normaliser(form, history, None, keep_original=True).rows(drawn, range(len(drawn)))
    for row, reason, original in zip(drawn, made.reason, made.original, strict=True):
        answers = originals(row, form, history) if reason is None else []
        assert (json.loads(original) if original else []) == (answers if any(answers) else [])


@pytest.mark.parametrize("form", SHAPES)
def test_plain_rows_take_the_short_way(form: str) -> None:
    row: dict[str, Any] = {
        "messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}],
        "conversations": [{"from": "human", "value": "u", "weight": None}, {"from": "gpt", "value": "a"}],
        "prompt": "u",
        "instruction": "u",
        "input": "",
    }
    messages = QUICK[form](row)
    assert messages is not None
    assert messages[-1] == {"content": "u", "role": "user"}


def test_the_sources_own_answers_are_kept_only_where_they_are_asked_for() -> None:
    row = {"messages": [{"role": "user", "content": "u"}, {"role": "assistant", "content": "a"}]}
    kept, left = (Normaliser("messages", None, None, keep).rows([row], [0]).original for keep in (True, False))
    assert [json.loads(answers) for answers in kept if answers] == [["a"]]
    assert left == [None]
