"""Turns as chats and agents record them, to messages: what each dialect calls a role, a text, a call, a result.

One turn may be several messages (a user turn of Anthropic's that carries tool results), or one message that lies in
a wrapper (OpenClaw's events, LangChain's serialised objects). What a model thought to itself is left out: no other
model is shown it. A part that is no text is a RowError: half a prompt is another prompt. Pure functions.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from corpus.canonical import canonical_json
from corpus.errors import RowError
from corpus.records import Message
from corpus.toolcalls import decoded, first, listed_calls, read_call, written_calls

ROLE_NAMES = {
    name: role
    for role, names in {
        "system": "system developer systemmessage",
        "user": "user human humanmessage",
        "assistant": "assistant gpt chatgpt bot model bing bard ai agent aimessage",
        "tool": "tool function observation function_response function_call_output tool_response tool_result toolresult "
        "tool_output ipython toolmessage functionmessage",
    }.items()
    for name in names.split()
}
CALL_ROLES = {"function_call", "tool_call", "tool_calls"}  # an assistant turn whose text is its calls as JSON
TEXT_PARTS = {"text", "input_text", "output_text"}
THOUGHT_PARTS = {"thinking", "redacted_thinking", "reasoning"}
CALL_PARTS = {"tool_use", "toolCall", "tool_call", "function_call"}
RESULT_PARTS = {"tool_result", "toolResult", "tool_response"}
ID_KEYS = ("tool_call_id", "toolCallId", "tool_use_id", "call_id")
NAME_KEYS = ("name", "toolName")
HH_SPEAKER = re.compile(r"(?:^|\n\n)(Human|Assistant): ?")
TRACE_COLUMNS = (
    "messages", "conversations", "conversation", "trace", "trajectory", "steps", "history", "events", "turns"
)  # fmt: skip
ANSWER_COLUMNS = ("output", "response", "answer", "completion", "solution")


class Trace(NamedTuple):
    """The turns of a row, unread, and the mapping beside them (the row, or an object in it)."""

    turns: list[Any]
    beside: Mapping[str, Any]


def read_turns(turns: Any, column: str) -> list[Message]:
    """Messages of a list of turns in any dialect.

    Raises:
        RowError: not_messages, bad_role, not_text or bad_tool_call.
    """
    if not isinstance(turns, list):
        raise RowError("not_messages", f"{column} is {type(turns).__name__}")
    turns = [decoded(turn) for turn in turns]
    if any(_is_event(turn) for turn in turns):  # a session log: its other entries (a changed model) are no turns
        turns = [turn["message"] for turn in turns if _is_event(turn)]
    return [message for turn in turns for message in _read_turn(turn)]


def find_trace(row: Mapping[str, Any]) -> Trace | None:
    """Where a row keeps its turns: a column, an object in a column, or JSON text of either; None if nowhere."""
    empty = None
    for value, beside in _lists(row):
        if any(is_turn(item) for item in value):
            return Trace(value, beside)
        empty = empty or (None if value else Trace(value, beside))
    return empty


def is_turn(item: Any) -> bool:
    """True if an item of a list is a turn of some dialect."""
    turn = _unwrapped(decoded(item))
    if not isinstance(turn, Mapping):
        return False
    name = turn.get("role") or turn.get("from") or turn.get("type")
    return _is_event(turn) or (isinstance(name, str) and (name.lower() in ROLE_NAMES or name.lower() in CALL_ROLES))


def is_agentic(turns: Any) -> bool:
    """True if turns call tools, or come in a dialect that agents alone have."""
    for turn in map(decoded, turns if isinstance(turns, list) else ()):
        if not isinstance(turn, Mapping):
            continue
        name = turn.get("role") or turn.get("from")
        if not isinstance(name, str):
            return is_turn(turn)
        parts: list[Any] = turn["content"] if isinstance(turn.get("content"), list) else []
        if turn.get("tool_calls") or name.lower() in CALL_ROLES or ROLE_NAMES.get(name.lower()) == "tool":
            return True
        if {_kind(part) for part in parts} & (CALL_PARTS | RESULT_PARTS):
            return True
    return False


def task_messages(row: Mapping[str, Any]) -> list[Message] | None:
    """A task in CrewAI's manner, as system, user and (where the row has one) assistant; None if it is none."""
    task, agent = decoded(row.get("task")), decoded(row.get("agent"))
    holder: Mapping[str, Any] = task if isinstance(task, Mapping) else row
    description = task if isinstance(task, str) else holder.get("description")
    expected = holder.get("expected_output", row.get("expected_output"))
    if not isinstance(description, str) or not isinstance(expected, str):
        return None
    agent = agent or decoded(holder.get("agent"))
    known = agent if isinstance(agent, Mapping) else {"role": agent}
    said = {"role": "You are {}.", "backstory": "{}", "goal": "Your goal: {}"}
    system = "\n".join(line.format(value) for key, line in said.items() if isinstance(value := known.get(key), str))
    messages = [{"role": "system", "content": system}] if system else []
    messages.append({"role": "user", "content": f"{description}\n\nExpected output: {expected}"})
    answers = (place.get(key) for place in (row, holder) for key in ("raw", "result", *ANSWER_COLUMNS))
    answer = next((value for value in answers if isinstance(value, str) and value.strip()), None)
    return messages + ([{"role": "assistant", "content": answer}] if answer else [])


def hh_turns(text: str) -> list[Message]:
    """Turns of Anthropic's HH text; none where a text is not written so, and no last turn that is still empty."""
    if not re.match(r"\s*(Human|Assistant):", text):
        return []
    _, *parts = HH_SPEAKER.split(text.lstrip())
    roles = {"Human": "user", "Assistant": "assistant"}
    turns = [{"role": roles[name], "content": said.strip()} for name, said in zip(parts[::2], parts[1::2], strict=True)]
    return turns if turns[-1]["content"] else turns[:-1]


def text_of(value: Any) -> str:
    """Text of a content: a string, null, or a list of text parts.

    Raises:
        RowError: not_text, with the kind of the part that is none.
    """
    return _read_content(value).text


class _Content(NamedTuple):
    text: str
    calls: list[Any]
    results: list[Message]


def _read_turn(turn: Any) -> list[Message]:
    turn = _unwrapped(turn)
    if not isinstance(turn, Mapping):
        raise RowError("not_messages", f"a turn is {type(turn).__name__}")
    key = next((key for key in ("role", "from", "type") if turn.get(key) is not None), "role")
    name = turn.get(key)
    if not isinstance(name, str):
        raise RowError("not_messages", "a turn without role")
    role = "assistant" if name.lower() in CALL_ROLES else ROLE_NAMES.get(name.lower())
    if role is None:
        raise RowError("bad_role", name[:40])
    places = ("value", "content", "text") if key == "from" else ("content", "value", "text", "output")
    raw = first(turn, places)
    text, calls, results = _result_content(raw) if role == "tool" else _read_content(raw)
    calls = listed_calls(turn) or calls
    if name.lower() in CALL_ROLES and not calls:
        calls = [turn] if "arguments" in turn else written_calls(text)
        text = "" if calls else text
    message: Message = {"role": role, "content": text}
    if calls:
        message["tool_calls"] = [read_call(call) for call in calls]
    if key != "from" and name.lower() not in CALL_ROLES:
        named = {"name": first(turn, NAME_KEYS), "tool_call_id": first(turn, ID_KEYS)}
        message |= {what: value for what, value in named.items() if isinstance(value, str)}
    return [*results, message] if text or calls or not results else results


def _read_content(value: Any) -> _Content:
    if value is None or isinstance(value, str):
        return _Content(value or "", [], [])
    if not isinstance(value, list):
        raise RowError("not_text", f"content is {type(value).__name__}")
    content = _Content("", [], [])
    texts = []
    for part in value:
        kind = _kind(part)
        if isinstance(part, str):
            texts.append(part)
        elif kind in TEXT_PARTS and isinstance(part.get("text"), str):
            texts.append(part["text"])
        elif kind in CALL_PARTS:
            content.calls.append(part)
        elif kind in RESULT_PARTS:
            result: Message = {"role": "tool", "content": _result_content(part.get("content")).text}
            named = {"name": first(part, NAME_KEYS), "tool_call_id": first(part, ID_KEYS)}
            content.results.append(result | {key: name for key, name in named.items() if isinstance(name, str)})
        elif kind not in THOUGHT_PARTS:
            raise RowError("not_text", f"a {kind} part")
    return content._replace(text="".join(texts))


def _result_content(value: Any) -> _Content:
    """What a tool gave back: text, text parts, or any value at all, which is shown as JSON."""
    parts = isinstance(value, list) and all(isinstance(p, str) or _kind(p) != "dict" for p in value)
    return _read_content(value if value is None or isinstance(value, str) or parts else canonical_json(value))


def _lists(row: Mapping[str, Any]) -> Iterator[tuple[list[Any], Mapping[str, Any]]]:
    for column in TRACE_COLUMNS:
        value = decoded(row.get(column))
        if isinstance(value, list):
            yield value, row
        elif isinstance(value, Mapping):
            inner = (decoded(value.get(key)) for key in TRACE_COLUMNS)
            yield from ((turns, value) for turns in inner if isinstance(turns, list))


def _kind(part: Any) -> str:
    """What a part of a content calls itself; the name of its Python type, where it is no part."""
    kind = part.get("type") or ("text" if "text" in part else None) if isinstance(part, Mapping) else None
    return kind if isinstance(kind, str) else type(part).__name__


def _names_role(turn: Mapping[str, Any]) -> bool:
    return turn.get("role") is not None or turn.get("from") is not None


def _is_event(turn: Any) -> bool:
    inner = turn.get("message") if isinstance(turn, Mapping) and not _names_role(turn) else None
    return isinstance(inner, Mapping) and _names_role(inner)


def _unwrapped(turn: Any) -> Any:
    """LangChain's two serialised forms as the one that its messages have themselves."""
    if not isinstance(turn, Mapping) or _names_role(turn):
        return turn
    if isinstance(turn.get("data"), Mapping):
        return {"type": turn.get("type"), **turn["data"]}
    if isinstance(turn.get("kwargs"), Mapping):
        path = turn.get("id")
        return {"type": path[-1] if isinstance(path, list) and path else None, **turn["kwargs"]}
    return turn
