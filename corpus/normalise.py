"""Rows of a source to the columns of a pool, many at a time.

Most rows of most sources are plain: messages that are a role and a text, or one text. Those take a short way here;
every other row takes formats.parse_row, which is the reference: a property holds both to the same result.
Nothing is read or written.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from corpus.canonical import canonical_json
from corpus.errors import RowError
from corpus.formats import (
    SHAREGPT_ROLES,
    Form,
    History,
    Row,
    form_name,
    originals,
    own_form,
    parse_row,
    upstream_id,
)  # fmt: skip
from corpus.manifest import FormatFields
from corpus.records import encode_messages

PROMPT_PREFIX = b'prompt:v1:{"messages":'
PROMPT_SUFFIX = b',"tools":[]}'
_encode = msgspec.json.Encoder().encode

Messages = list[dict[str, Any]]


@dataclass
class Normalised:
    """Columns of a pool, one entry a row; what a row without a prompt has no value for is None."""

    row_index: list[int] = field(default_factory=list)
    upstream_id: list[str | None] = field(default_factory=list)
    upstream_label: list[str | None] = field(default_factory=list)
    prompt_id: list[str | None] = field(default_factory=list)
    messages: list[str | None] = field(default_factory=list)
    tools: list[str | None] = field(default_factory=list)
    original: list[str | None] = field(default_factory=list)
    turns: list[int | None] = field(default_factory=list)
    shown: list[str] = field(default_factory=list)
    """All shown text."""
    asked: list[str] = field(default_factory=list)
    """The text of the user turns."""
    format: list[str | None] = field(default_factory=list)
    """The format that the row was read as."""
    reason: list[str | None] = field(default_factory=list)
    detail: list[str | None] = field(default_factory=list)


@dataclass(frozen=True)
class Normaliser:
    """How the rows of one source become prompts."""

    form: str | FormatFields
    history: History
    label_column: str | None
    keep_original: bool
    auto: bool = False
    """True if a row that does not fit `form` may show another: folders of several shapes are common."""

    def rows(self, rows: Iterable[Row], indexes: Iterable[int]) -> Normalised:
        """Every row, in order; what cannot be a prompt has a reason."""
        out = Normalised()
        quick = self._quick()
        for index, row in zip(indexes, rows, strict=True):
            out.row_index.append(index)
            out.upstream_id.append(storable(upstream_id(row, self.form)))
            label = None if self.label_column is None else row.get(self.label_column)
            out.upstream_label.append(None if label is None else storable(str(label)))
            messages = quick(row) if quick else None
            plain = messages is not None and _add_plain(out, messages)
            form = self.form if plain else self._add_any(out, row)
            out.format.append(form_name(form))
            kept = self.keep_original and out.reason[-1] is None
            out.original.append(self._original(row, form, plain) if kept else None)
        return out

    def _quick(self) -> Callable[[Row], Messages | None] | None:
        if self.history == "recorded" or isinstance(self.form, FormatFields):
            return None
        return QUICK.get(self.form)

    def _add_any(self, out: Normalised, row: Row) -> Form:
        """Add a row by the reference; returns the format that it was read as."""
        form = (own_form(row) if self.auto else None) or self.form
        try:
            prompt = parse_row(row, form, self.history)
            prompt_id = prompt.prompt_id
            messages, tools = encode_messages(prompt)
            out.shown.append(prompt.shown_text())
            out.asked.append(prompt.user_text())
            turns: int | None = prompt.turns
            reason = detail = None
        except RowError as error:
            prompt_id = messages = tools = turns = None  # type: ignore[assignment]
            reason, detail = error.reason, storable(error.detail)
            out.shown.append("")
            out.asked.append("")
        out.prompt_id.append(prompt_id)
        out.messages.append(messages)
        out.tools.append(tools)
        out.turns.append(turns)
        out.reason.append(reason)
        out.detail.append(detail)
        return form

    def _original(self, row: Row, form: Form, plain: bool) -> str | None:
        """The source's own answers as JSON, one a turn; None where it has none at all."""
        turns = TURNS.get(form) if plain and isinstance(form, str) else None
        if turns is not None:
            answers = turns.answers(row)
            try:
                return _encode(answers).decode() if any(answers) else None
            except UnicodeEncodeError:
                pass  # the reference leaves that one answer out
        try:
            answers = originals(row, form, self.history)
            return canonical_json(answers) if any(answers) else None
        except RowError:
            return None


def _add_plain(out: Normalised, messages: Messages) -> bool:
    """Add a prompt of plain messages; False, and nothing is added, where it is not one that can be asked."""
    users = [message["content"] for message in messages if message["role"] == "user"]
    if not any(map(str.strip, users)):
        return False
    try:
        encoded = _encode(messages)
    except UnicodeEncodeError:
        return False
    out.prompt_id.append(hashlib.sha256(PROMPT_PREFIX + encoded + PROMPT_SUFFIX).hexdigest()[:32])
    out.messages.append(encoded.decode())
    out.tools.append(None)
    out.turns.append(len(users))
    out.asked.append(users[0] if len(users) == 1 else "\n".join(filter(None, users)))
    out.shown.append(users[0] if len(messages) == 1 else "\n".join([m["content"] for m in messages if m["content"]]))
    out.reason.append(None)
    out.detail.append(None)
    return True


@dataclass(frozen=True)
class _Turns:
    """Plain rows of a format that holds turns."""

    column: str
    role: str
    text: str
    names: dict[str, str]
    """A turn's name to its role, those that are plain."""

    def messages(self, row: Row) -> Messages | None:
        """What is shown of a plain row; None where it is not plain."""
        turns = row.get(self.column)
        if type(turns) is not list or row.get("tools") is not None or row.get("system") is not None:
            return None
        messages = []
        for turn in turns:
            if type(turn) is not dict:
                return None
            name, content = turn.get(self.role), turn.get(self.text)
            role = self.names.get(name) if type(name) is str else None
            if role is None or type(content) is not str or (len(turn) > 2 and self._says_more(turn)):
                return None
            if role != "assistant":
                messages.append({"content": content, "role": role})
        return messages

    def answers(self, row: Row) -> list[str | None]:
        """The first answer after each user turn of a plain row."""
        answers: list[str | None] = []
        waits = False
        for turn in row[self.column]:
            role = self.names[turn[self.role]]
            if role == "user":
                answers.append(None)
                waits = True
            elif role == "assistant" and waits:
                answers[-1] = turn[self.text] or None
                waits = False
        return answers

    def _says_more(self, turn: dict[str, Any]) -> bool:
        """True if a turn has a value under another key: a tool call, a name, a weight."""
        return any(value is not None for key, value in turn.items() if key not in (self.role, self.text))


PLAIN_ROLES = ("system", "user", "assistant")
TURNS = {
    "messages": _Turns("messages", "role", "content", {role: role for role in PLAIN_ROLES}),
    "sharegpt": _Turns(
        "conversations", "from", "value", {name: role for name, role in SHAREGPT_ROLES.items() if role in PLAIN_ROLES}
    ),
}


def _quick_prompt(row: Row) -> Messages | None:
    text = row.get("prompt")
    if type(text) is not str or row.get("tools") is not None or row.get("system") is not None:
        return None
    return [{"content": text, "role": "user"}] if text[:1] not in "[{" and text.lstrip()[:1] not in "[{" else None


def _quick_alpaca(row: Row) -> Messages | None:
    text, extra = row.get("instruction"), row.get("input")
    plain = type(text) is str and (extra is None or type(extra) is str)
    if not plain or row.get("tools") is not None or row.get("system") is not None:
        return None
    return [{"content": f"{text}\n\n{extra}" if extra and extra.strip() else text, "role": "user"}]


QUICK: dict[str, Callable[[Row], Messages | None]] = {
    "messages": TURNS["messages"].messages,
    "sharegpt": TURNS["sharegpt"].messages,
    "prompt": _quick_prompt,
    "alpaca": _quick_alpaca,
}


def storable(text: str | None) -> str | None:
    """Text as UTF-8 can hold it."""
    return None if text is None else text.encode("utf-8", "replace").decode("utf-8")
