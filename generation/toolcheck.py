"""Tool calls as a model writes them into its answer: can a server read them?

Two forms, told by their tags: JSON in `<tool_call>` (Hermes, Qwen) and `<function=name><parameter=x>` with or without
`<tool_call>` around it (Qwen3-Coder and later). Broken is what is cut, what cannot be read, and a name that was not
offered. Arguments are not held against the tool's schema: a missing one is the tool's to say. Other forms are not
judged, nor is an answer without tags. Where no tools are known to be offered, names are not judged and tags count
only around something like a call, outside code: an answer may be about tool calls. Pure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

OPEN, CLOSE = "<tool_call>", "</tool_call>"
FUNCTION, END_FUNCTION = "<function=", "</function>"
PARAMETER, END_PARAMETER = "<parameter=", "</parameter>"
ARGUMENT_KEYS = ("arguments", "parameters")

_CALL = re.compile(f"{OPEN}.*?(?:{CLOSE}|\\Z)|{FUNCTION}.*?(?:{END_FUNCTION}|\\Z)", re.DOTALL)
_CODE = re.compile(r"```.*?(?:```|\Z)|`[^`\n]*`", re.DOTALL)


def tool_names(tools: Sequence[Mapping[str, Any]]) -> frozenset[str]:
    """The names of tools as OpenAI writes them, or of bare functions."""
    functions = [tool["function"] if isinstance(tool.get("function"), Mapping) else tool for tool in tools]
    return frozenset(function["name"] for function in functions if isinstance(function.get("name"), str))


def without_calls(answer: str) -> str:
    """What an answer says beside its tool calls."""
    return _CALL.sub(" ", answer) if OPEN in answer or FUNCTION in answer else answer


def is_broken_tool_call(answer: str, offered: frozenset[str]) -> bool:
    """True if the answer holds a tool call that a server could not carry out.

    Args:
        answer: its text without the reasoning.
        offered: names of the tools of the prompt; empty where none are known.
    """
    if OPEN not in answer:
        if not offered:
            return False
        at = answer.find(FUNCTION)
        return not _readable_function(answer[at:], offered) if at >= 0 else CLOSE in answer
    if not offered:
        answer = _CODE.sub(" ", answer)
    before, *calls = answer.split(OPEN)
    if offered and CLOSE in before:
        return True
    return any(_is_broken(call, offered) for call in calls)


def _is_broken(call: str, offered: frozenset[str]) -> bool:
    """Judge what stands between an opening tag and the next one."""
    body, closed, _ = call.partition(CLOSE)
    body = body.strip()
    if not offered and not body.startswith(("{", "[", FUNCTION)):
        return False
    if not closed:
        return True
    return not (_readable_function(body, offered) if body.startswith(FUNCTION) else _readable_json(body, offered))


def _readable_json(body: str, offered: frozenset[str]) -> bool:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return False
    calls = value if isinstance(value, list) else [value]
    return bool(calls) and all(_readable_call(call, offered) for call in calls)


def _readable_call(call: Any, offered: frozenset[str]) -> bool:
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        return False
    arguments: Any = next((call[key] for key in ARGUMENT_KEYS if call.get(key) is not None), {})
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            return False
    return isinstance(arguments, dict) and (not offered or call["name"] in offered)


def _readable_function(body: str, offered: frozenset[str]) -> bool:
    """Judge one or more functions; what follows the last is text."""
    for written in body.split(FUNCTION)[1:]:
        name, named, rest = written.partition(">")
        inner, closed, _ = rest.rpartition(END_FUNCTION)
        if not named or not closed or inner.count(PARAMETER) != inner.count(END_PARAMETER):
            return False
        if not name.strip() or (offered and name.strip() not in offered):
            return False
    return True
