"""Rows of a source, in the shapes that sources really have, to prompts.

One function per shape; `auto` looks at the columns and says which it took, so that it can be recorded.
Everything a row can get wrong is a RowError with a reason code, never a guess: those rows become drops.
Tool arguments keep the type that the row gave them if it is an object, and stay a JSON string otherwise.
Pure functions over dicts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal

from corpus.errors import RowError
from corpus.manifest import FormatFields
from corpus.records import ROLES, Message, Prompt, check_prompt

Row = Mapping[str, Any]
History = Literal["regenerated", "recorded"] | None

SHAREGPT_ROLES = {
    "system": "system", "human": "user", "user": "user", "gpt": "assistant", "chatgpt": "assistant",
    "assistant": "assistant", "bot": "assistant", "model": "assistant", "bing": "assistant", "bard": "assistant",
    "tool": "tool", "function": "tool", "observation": "tool", "function_response": "tool",
    "function_call": "assistant",
}  # fmt: skip
MESSAGES_COLUMNS = ("messages", "conversation", "chosen")
PROMPT_COLUMNS = ("prompt", "question", "problem", "query", "instruction", "text")
ID_COLUMNS = ("id", "uuid", "task_id", "question_id", "conversation_id", "key", "prompt_id")


def recognise(columns: Sequence[str], first: Row) -> str | FormatFields:
    """The format of a source whose rows have these columns, judged on its first row.

    Raises:
        RowError: unknown_format, with the columns that were found.
    """
    if isinstance(_as_list(first.get("conversations")), list):
        turns = _as_list(first["conversations"])
        return "messages" if turns and isinstance(turns[0], dict) and "role" in turns[0] else "sharegpt"
    for column in MESSAGES_COLUMNS:
        turns = _as_list(first.get(column))
        if isinstance(turns, list) and (not turns or isinstance(turns[0], dict)):
            return "messages" if column == "messages" else FormatFields(fields={"messages": column})
    if {"instruction", "output"} <= set(columns):
        return "alpaca"
    for column in PROMPT_COLUMNS:
        if column in columns:
            return "prompt" if column == "prompt" else FormatFields(fields={"prompt": column})
    raise RowError("unknown_format", f"columns {', '.join(sorted(columns)[:8])}")


def parse_row(row: Row, form: str | FormatFields, history: History) -> Prompt:
    """The prompt that a row holds.

    Raises:
        RowError: with the reason code of the drop.
    """
    reader = partial(_from_fields, form=form) if isinstance(form, FormatFields) else FORMATS[form]
    prompt = reader(row, history=history)
    check_prompt(prompt)
    return prompt


def upstream_id(row: Row, form: str | FormatFields) -> str | None:
    """The row's own id, where it has one."""
    named = form.fields.get("id") if isinstance(form, FormatFields) else None
    for column in (named,) if named else ID_COLUMNS:
        value = row.get(column)
        if value is not None and not isinstance(value, list | dict):
            return str(value)
    return None


def _messages(row: Row, history: History, column: str = "messages") -> Prompt:
    turns = _as_list(row.get(column))
    if turns is None and column == "messages":
        turns = _as_list(row.get("conversations"))
    if not isinstance(turns, list):
        raise RowError("not_messages", f"{column} is {type(turns).__name__}")
    return _conversation([_message(turn) for turn in turns], row, history)


def _sharegpt(row: Row, history: History) -> Prompt:
    turns = _as_list(row.get("conversations"))
    if not isinstance(turns, list):
        raise RowError("not_messages", f"conversations is {type(turns).__name__}")
    messages: list[Message] = []
    for turn in turns:
        if not isinstance(turn, dict) or "from" not in turn:
            raise RowError("not_messages", "a turn without from")
        role = SHAREGPT_ROLES.get(str(turn["from"]).lower())
        if role is None:
            raise RowError("bad_role", str(turn["from"])[:40])
        messages.append({"role": role, "content": _content(turn.get("value"))})
    return _conversation(messages, row, history)


def _alpaca(row: Row, history: History) -> Prompt:
    instruction, extra = _text(row.get("instruction")), _text(row.get("input"))
    user = f"{instruction}\n\n{extra}" if extra.strip() else instruction
    return _prompt_of(user, _text(row.get("system")), row)


def _prompt(row: Row, history: History, column: str = "prompt", system: str = "system") -> Prompt:
    value = row.get(column)
    if isinstance(value, list):
        return _messages(row, history, column)
    return _prompt_of(_text(value), _text(row.get(system)), row)


def _from_fields(row: Row, history: History, form: FormatFields) -> Prompt:
    row = dict(row)
    if "tools" in form.fields:
        row["tools"] = row.get(form.fields["tools"])
    if "messages" in form.fields:
        return _messages(row, history, form.fields["messages"])
    return _prompt(row, history, form.fields["prompt"], form.fields.get("system", "system"))


FORMATS: dict[str, Callable[..., Prompt]] = {
    "messages": _messages,
    "sharegpt": _sharegpt,
    "alpaca": _alpaca,
    "prompt": _prompt,
    "trace": _messages,
}


def _prompt_of(user: str, system: str, row: Row) -> Prompt:
    head = [{"role": "system", "content": system}] if system.strip() else []
    return Prompt((*head, {"role": "user", "content": user}), _tools(row.get("tools")))


def _conversation(messages: list[Message], row: Row, history: History) -> Prompt:
    if not messages:
        raise RowError("empty_conversation")
    recorded = history == "recorded" or (history is None and any(m["role"] == "tool" for m in messages))
    system = _text(row.get("system"))
    if system.strip() and messages[0]["role"] != "system":
        messages = [{"role": "system", "content": system}, *messages]
    if recorded:
        # the last assistant turn is what the target is asked for: it is not shown
        while messages and messages[-1]["role"] == "assistant":
            messages = messages[:-1]
    else:
        messages = [m for m in messages if m["role"] in ("system", "user")]
    return Prompt(tuple(messages), _tools(row.get("tools")))


def _message(turn: Any) -> Message:
    if not isinstance(turn, dict) or not isinstance(turn.get("role"), str):
        raise RowError("not_messages", "a turn without role")
    message: Message = {"role": turn["role"], "content": _content(turn.get("content"))}
    calls = _as_list(turn.get("tool_calls"))
    if calls and not isinstance(calls, list):
        raise RowError("bad_tool_call", f"tool_calls is {type(calls).__name__}")
    if calls:
        message["tool_calls"] = [_tool_call(call) for call in calls]
    for key in ("name", "tool_call_id"):
        if isinstance(turn.get(key), str):
            message[key] = turn[key]
    if message["role"] == "developer":
        message["role"] = "system"
    if message["role"] == "function":
        message["role"] = "tool"
    if message["role"] not in ROLES:
        raise RowError("bad_role", str(turn["role"])[:40])
    return message


def _tool_call(call: Any) -> dict[str, Any]:
    body = call.get("function", call) if isinstance(call, dict) else None
    if not isinstance(body, dict) or not isinstance(body.get("name"), str):
        raise RowError("bad_tool_call", "a call without a function name")
    arguments = body.get("arguments", {})
    if isinstance(arguments, str):
        try:
            parsed = json.loads(arguments)
        except (ValueError, RecursionError):
            parsed = arguments
        arguments = parsed if isinstance(parsed, dict) else arguments
    elif not isinstance(arguments, dict):
        arguments = json.dumps(arguments)
    return {"type": "function", "function": {"name": body["name"], "arguments": arguments}}


def _tools(value: Any) -> tuple[dict[str, Any], ...]:
    if value is None or value in ("", "null"):
        return ()
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise RowError("bad_tools", "tools is a string that is not JSON") from error
    if isinstance(value, dict):
        value = [value]
    if not isinstance(value, list) or not all(isinstance(tool, dict) for tool in value):
        raise RowError("bad_tools", "tools is not a list of objects")
    return tuple(tool if "function" in tool else {"type": "function", "function": tool} for tool in value)


def _content(value: Any) -> str:
    """Text of a message's content: a string, null, or a list of text parts."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        texts = []
        for part in value:
            if isinstance(part, str):
                texts.append(part)
            elif isinstance(part, dict) and part.get("type", "text") == "text" and isinstance(part.get("text"), str):
                texts.append(part["text"])
            else:
                kind = part.get("type") if isinstance(part, dict) else type(part).__name__
                raise RowError("not_text", f"a {kind} part")
        return "".join(texts)
    raise RowError("not_text", f"content is {type(value).__name__}")


def _text(value: Any) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise RowError("not_text", f"a prompt column holds {type(value).__name__}")
    return value


def _as_list(value: Any) -> Any:
    """Some sources keep their list as a JSON string."""
    if isinstance(value, str) and value.lstrip()[:1] == "[":
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            return value
    return value
