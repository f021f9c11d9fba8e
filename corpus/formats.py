"""Rows of a source, in the shapes that sources really have, to prompts.

One reader per shape, each to the row's whole conversation, the source's own answers included; what of it is the
prompt, and what the source's answers, is said once for all shapes. `auto` looks at the first rows and says which
shape it took, so that it can be recorded. Everything a row can get wrong is a RowError with a reason code, never
a guess: those rows become drops. Pure functions over dicts; how turns are written is known to traces alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

from corpus.canonical import canonical_json
from corpus.errors import RowError
from corpus.manifest import FormatFields
from corpus.records import Message, Prompt, check_prompt
from corpus.toolcalls import decoded, read_tools
from corpus.traces import (
    ANSWER_COLUMNS,
    ROLE_NAMES,
    find_trace,
    hh_turns,
    is_agentic,
    is_turn,
    read_turns,
    task_messages,
    text_of,
)

Row = Mapping[str, Any]
History = Literal["regenerated", "recorded"] | None
Form = str | FormatFields

SHAREGPT_ROLES = ROLE_NAMES  # also the names that OpenAI's and LangChain's turns have
CHAT_COLUMNS = ("conversations", "messages", "conversation")
PROMPT_COLUMNS = ("prompt", "question", "problem", "query", "instruction", "text")
ID_COLUMNS = ("id", "uuid", "task_id", "question_id", "conversation_id", "key", "prompt_id", "session_id")


class Conversation(NamedTuple):
    """All that a row holds: messages, the source's answers among them, and tools."""

    messages: list[Message]
    tools: tuple[dict[str, Any], ...]


def recognise_rows(columns: Sequence[str], rows: Sequence[Row]) -> Form:
    """The format of a source, judged on its first rows: what most of the decisive ones are, else what columns say.

    A row is decisive if it holds a conversation or a prompt: first rows are null or empty in real sources.

    Raises:
        RowError: unknown_format, with the columns that were found.
    """
    judged = [form for row in rows if (form := _judge(row)) is not None]
    if judged:
        return max(judged, key=judged.count)  # of equals the first
    guessed = _judge_columns(columns, rows)
    if guessed is None:
        raise RowError("unknown_format", f"columns {', '.join(sorted(columns)[:8])}")
    return guessed


def recognise(columns: Sequence[str], first: Row) -> Form:
    """recognise_rows, of one row."""
    return recognise_rows(columns, [first])


def own_form(row: Row) -> Form | None:
    """The format that a row shows by itself, None where it shows none."""
    return _judge(row)


def form_name(form: Form) -> str:
    """A format in one word, or the column that holds what is asked."""
    if isinstance(form, FormatFields):
        what = "messages" if "messages" in form.fields else "prompt"
        return f"{what}: {form.fields['messages' if what == 'messages' else 'prompt']}"
    return form


def parse_row(row: Row, form: Form, history: History) -> Prompt:
    """The prompt that a row holds.

    Raises:
        RowError: with the reason code of the drop.
    """
    return _prompt_of(_read(row, form), history)


def originals(row: Row, form: Form, history: History) -> list[str | None]:
    """The source's own answer for each turn of the row's prompt; None where it has none that can be stored.

    An answer is the text of the assistant message that stands where the target is asked, or the canonical JSON of
    its calls where it has no text.

    Raises:
        RowError: as parse_row.
    """
    conversation = _read(row, form)
    prompt, messages = _prompt_of(conversation, history), conversation.messages
    if prompt.recorded:  # the prompt's messages are the first of the conversation's
        places = [messages[end : end + 1] for end in prompt.ends()]
    else:
        users = [i for i, message in enumerate(messages) if message["role"] == "user"]
        places = [messages[user + 1 : after] for user, after in zip(users, [*users[1:], len(messages)], strict=True)]
    return [next((_answer_text(m) for m in place if m["role"] == "assistant"), None) for place in places]


def upstream_id(row: Row, form: Form) -> str | None:
    """The row's own id, where it has one."""
    named = form.fields.get("id") if isinstance(form, FormatFields) else None
    for column in (named,) if named else ID_COLUMNS:
        value = row.get(column)
        if value is not None and not isinstance(value, list | dict):
            return str(value)
    return None


# recognition


def _judge(row: Row) -> Form | None:
    for column in CHAT_COLUMNS:
        turns = decoded(row.get(column))
        if isinstance(turns, list) and any(is_turn(turn) for turn in turns):
            return _chat_form(column, turns)
    chosen = decoded(row.get("chosen"))
    if chosen and (isinstance(chosen, list) or (isinstance(chosen, str) and "rejected" in row)):
        return "preference"
    trace = find_trace(row)
    if (trace and trace.turns) or task_messages(row):
        return "trace"
    return _text_form([column for column, value in row.items() if _asks(value)], row)


def _chat_form(column: str, turns: list[Any]) -> Form:
    # a ShareGPT set with tool turns is ShareGPT still: the name says how most of its rows are written
    if column == "conversations" and not any(isinstance(turn, dict) and turn.get("role") for turn in turns):
        return "trace" if all(not isinstance(turn, dict) or "from" not in turn for turn in turns) else "sharegpt"
    if is_agentic(turns):
        return "trace"
    return FormatFields(fields={"messages": column}) if column == "conversation" else "messages"


def _text_form(asking: Sequence[str], columns: Sequence[str] | Row) -> Form | None:
    if "instruction" in asking and ("output" in columns or "input" in columns):
        return "alpaca"
    found = next((column for column in PROMPT_COLUMNS if column in asking), None)
    return found if found in (None, "prompt") else FormatFields(fields={"prompt": found})


def _judge_columns(columns: Sequence[str], rows: Sequence[Row]) -> Form | None:
    for column, form in (("conversations", "sharegpt"), ("messages", "messages"), ("chosen", "preference")):
        values = [decoded(row.get(column)) for row in rows]
        if column in columns and values and all(value is None or isinstance(value, list) for value in values):
            return form
    return _text_form(columns, columns)


def _asks(value: Any) -> bool:
    return bool(value.strip()) if isinstance(value, str) else isinstance(value, list) and any(map(is_turn, value))


# readers: a row to its whole conversation


def _read(row: Row, form: Form) -> Conversation:
    reader = partial(_read_fields, form=form) if isinstance(form, FormatFields) else FORMATS[form]
    return reader(row)


def _read_messages(row: Row, columns: Sequence[str] = ("messages", "conversations")) -> Conversation:
    values = {column: decoded(row.get(column)) for column in columns}
    column = next((column for column, value in values.items() if value is not None), columns[0])
    return _conversation(read_turns(values[column], column), row)


def _read_trace(row: Row) -> Conversation:
    trace = find_trace(row)
    if trace is None:
        messages = task_messages(row)
        if messages is None:
            raise RowError("not_messages", "no turns in any column")
        return _conversation(messages, row)
    system = next(
        (place[key] for place in (trace.beside, row) for key in ("system", "system_prompt") if place.get(key)), None
    )
    beside = {**row, **{key: value for key, value in trace.beside.items() if value is not None}, "system": system}
    return _conversation(read_turns(trace.turns, "the trace"), beside)


def _read_alpaca(row: Row) -> Conversation:
    instruction, extra = _text(row.get("instruction")), _text(row.get("input"))
    return _asked(f"{instruction}\n\n{extra}" if extra.strip() else instruction, "system", row)


def _read_prompt(row: Row, column: str = "prompt", system: str = "system") -> Conversation:
    value = decoded(row.get(column))
    if isinstance(value, list) and (value is row.get(column) or (value and all(map(is_turn, value)))):
        messages = read_turns(value, column)
        answer = [] if messages and messages[-1]["role"] == "assistant" else _own_answer(row)
        return _conversation([*messages, *answer] if messages else [], row)
    return _asked(_text(row.get(column)), system, row)


def _read_preference(row: Row) -> Conversation:
    chosen = decoded(row.get("chosen"))
    if isinstance(chosen, list):
        messages = read_turns(chosen, "chosen")
    elif isinstance(chosen, str):
        messages = hh_turns(chosen) or [{"role": "assistant", "content": chosen}]
    elif chosen is None:
        messages = []
    else:
        raise RowError("not_messages", f"chosen is {type(chosen).__name__}")
    if not any(message["role"] == "user" for message in messages):
        column = next((column for column in PROMPT_COLUMNS if row.get(column) is not None), None)
        asked = decoded(row[column]) if column else []
        if isinstance(asked, list):
            messages = [*read_turns(asked, column or "prompt"), *messages]
        else:
            messages = [*(hh_turns(_text(asked)) or [{"role": "user", "content": _text(asked)}]), *messages]
    answers = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
    return _conversation(messages[: answers[-1] + 1] if answers else messages, row)


def _read_fields(row: Row, form: FormatFields) -> Conversation:
    row = dict(row)
    if "tools" in form.fields:
        row["tools"] = row.get(form.fields["tools"])
    if "messages" in form.fields:
        return _read_messages(row, (form.fields["messages"],))
    return _read_prompt(row, form.fields["prompt"], form.fields.get("system", "system"))


FORMATS: dict[str, Callable[[Row], Conversation]] = {
    "messages": _read_messages,
    "sharegpt": partial(_read_messages, columns=("conversations",)),
    "alpaca": _read_alpaca,
    "prompt": _read_prompt,
    "preference": _read_preference,
    "trace": _read_trace,
}


def _asked(user: str, system_column: str, row: Row) -> Conversation:
    system = _text(row.get(system_column))
    head = [{"role": "system", "content": system}] if system.strip() else []
    return Conversation([*head, {"role": "user", "content": user}, *_own_answer(row)], read_tools(row.get("tools")))


def _conversation(messages: list[Message], row: Row) -> Conversation:
    if not messages:
        raise RowError("empty_conversation")
    given = row.get("system")
    system = text_of(given) if isinstance(given, list) else _text(given)
    if system.strip() and messages[0]["role"] != "system":
        messages = [{"role": "system", "content": system}, *messages]
    tools = row.get("tools")
    if not tools and any(message["role"] == "tool" or message.get("tool_calls") for message in messages):
        # Nemotron v1 keeps the tools of its tool_calling rows in its metadata, which is JSON text
        metadata = decoded(row.get("metadata"))
        tools = metadata.get("tools") if isinstance(metadata, Mapping) else tools
    return Conversation(messages, read_tools(tools))


def _own_answer(row: Row) -> list[Message]:
    """What the source answered to a prompt that stands in a column of its own."""
    for column in ANSWER_COLUMNS:
        value = row.get(column)
        if isinstance(value, str) and value.strip():
            return [{"role": "assistant", "content": value}]
        if isinstance(value, list) and value and is_turn(value[0]):
            try:
                return [m for m in read_turns(value, column) if m["role"] == "assistant"][:1]
            except RowError:  # an answer is no part of the prompt: it does not decide about the row
                return []
    return []


# from a conversation to what is asked


def _prompt_of(conversation: Conversation, history: History) -> Prompt:
    messages = conversation.messages
    if history == "recorded" or (history is None and any(message["role"] == "tool" for message in messages)):
        # the last assistant turn is what the target is asked for: it is not shown
        while messages and messages[-1]["role"] == "assistant":
            messages = messages[:-1]
    else:
        messages = [message for message in messages if message["role"] in ("system", "user")]
    prompt = Prompt(tuple(messages), conversation.tools)
    check_prompt(prompt)
    return prompt


def _answer_text(message: Message) -> str | None:
    calls = message.get("tool_calls")
    try:
        text = message["content"] or (canonical_json(calls) if calls else "")
        canonical_json(text)
    except RowError:  # a lone surrogate: it cannot be stored
        return None
    return text or None


def _text(value: Any) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise RowError("not_text", f"a prompt column holds {type(value).__name__}")
    return value
