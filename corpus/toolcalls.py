"""Tools and calls of tools as sources write them, to OpenAI's shape, which chat templates take.

Arguments have another type in every row of real traces: an object stays an object, in JSON text or not; anything
else is kept as a JSON string, as templates print it. Pure functions over plain values.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from corpus.errors import RowError

ARGUMENT_KEYS = ("arguments", "args", "input")
SCHEMA_KEYS = ("parameters", "input_schema", "args_schema", "inputSchema")


def read_tools(value: Any) -> tuple[dict[str, Any], ...]:
    """Tools as OpenAI writes them: from such a list, one tool, bare functions, Anthropic's, or JSON text of any.

    Raises:
        RowError: bad_tools.
    """
    if isinstance(value, str):
        if value.strip() in ("", "null"):
            return ()
        value = _json(value, RowError("bad_tools", "tools is a string that is not JSON"))
    if value is None:
        return ()
    tools = [decoded(tool) for tool in value] if isinstance(value, list) else [value]
    if not all(isinstance(tool, dict) for tool in tools):
        raise RowError("bad_tools", "tools is not a list of objects")
    return tuple(tool if "function" in tool else {"type": "function", "function": _function(tool)} for tool in tools)


def listed_calls(turn: Mapping[str, Any]) -> list[Any]:
    """The calls that a turn lists, unread: OpenAI's, its older function_call, or LangChain's copy of either.

    Raises:
        RowError: bad_tool_call.
    """
    more = turn.get("additional_kwargs")
    for place in (turn, more if isinstance(more, Mapping) else {}):
        calls = decoded(place.get("tool_calls"))
        if calls and not isinstance(calls, list):
            raise RowError("bad_tool_call", f"tool_calls is {type(calls).__name__}")
        legacy = place.get("function_call")
        if calls or (isinstance(legacy, Mapping) and isinstance(legacy.get("name"), str)):
            return calls or [legacy]
    return []


def written_calls(text: str) -> list[Any]:
    """The calls, unread, of a turn whose whole text is one call or a list of them; none if it is something else."""
    value = decoded(text)
    calls = value if isinstance(value, list) else [value]
    return calls if all(isinstance(call, Mapping) and ("name" in call or "function" in call) for call in calls) else []


def read_call(call: Any) -> dict[str, Any]:
    """One call in OpenAI's shape, without its id.

    Raises:
        RowError: bad_tool_call.
    """
    call = decoded(call)
    body = call.get("function") or call if isinstance(call, Mapping) else None
    if not isinstance(body, Mapping) or not isinstance(body.get("name"), str):
        raise RowError("bad_tool_call", "a call without a function name")
    given = [body[key] for key in ARGUMENT_KEYS if key in body] or [{}]
    arguments = next((value for value in given if value is not None), None)
    parsed = decoded(arguments)
    if isinstance(parsed, dict):
        arguments = parsed
    elif not isinstance(arguments, str):
        try:
            arguments = json.dumps(arguments)
        except (TypeError, ValueError, RecursionError) as error:
            raise RowError("bad_tool_call", "arguments are no JSON value") from error
    return {"type": "function", "function": {"name": body["name"], "arguments": arguments}}


def decoded(value: Any) -> Any:
    """Some sources keep a list or an object as JSON text; other text stays as it is."""
    if isinstance(value, str) and value.lstrip()[:1] in ("[", "{"):
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            return value
    return value


def first(mapping: Mapping[str, Any], keys: tuple[str, ...]) -> Any:
    """The value of the first key that has one: parquet gives every row all keys, most of them null."""
    return next((mapping[key] for key in keys if mapping.get(key) is not None), None)


def _function(tool: dict[str, Any]) -> dict[str, Any]:
    """A bare function; its schema is called parameters, whoever wrote it."""
    key = next((key for key in SCHEMA_KEYS if tool.get(key) is not None), "parameters")
    return tool if key == "parameters" else {"parameters" if k == key else k: v for k, v in tool.items() if k != "type"}


def _json(text: str, error: RowError) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as cause:
        raise error from cause
