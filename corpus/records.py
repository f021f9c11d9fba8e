"""A prompt, its turns, and how both become text that can be stored and compared.

A prompt is all that the target is shown and does not write itself. Without assistant messages every user
message is answered in turn (history: regenerated); with them (history: recorded) the target is asked for
each assistant message in its place, over the recorded ones before it, and for one after the last message.
Pure values: no files, no tokenizer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from corpus.canonical import canonical_json, digest
from corpus.errors import RowError

ROLES = ("system", "user", "assistant", "tool")
THINK_START, THINK_END = "<think>", "</think>"
RECORDED_MARK = '"role":"assistant"'
"""In messages as canonical JSON, of which assistant turns stay as context: inside a text its quotation marks would have
backslashes before them."""
Message = dict[str, Any]


class Prompt(msgspec.Struct, frozen=True):
    """Messages as chat templates take them, and the tools that they may call."""

    messages: tuple[Message, ...]
    tools: tuple[dict[str, Any], ...] = ()

    @property
    def prompt_id(self) -> str:
        """Digest of the canonical JSON of messages and tools, text unchanged."""
        return digest("prompt", {"messages": list(self.messages), "tools": list(self.tools)})

    @property
    def recorded(self) -> bool:
        """True if assistant messages stay as context."""
        return any(message["role"] == "assistant" for message in self.messages)

    @property
    def turns(self) -> int:
        """How many assistant turns the target is asked for."""
        return len(self.ends())

    def context(self, turn: int, answers: Sequence[str]) -> list[Message]:
        """The messages shown before assistant turn `turn`; `answers` are the texts of the target's earlier ones."""
        ends = self.ends()
        if self.recorded:
            return list(self.messages[: ends[turn]])
        shown: list[Message] = []
        for i in range(turn + 1):
            shown += self.messages[ends[i - 1] if i else 0 : ends[i]]
            if i < turn:
                shown.append(spoken(answers[i]))
        return shown

    def ends(self) -> list[int]:
        """For each turn, how many of the messages are shown before it."""
        roles = [message["role"] for message in self.messages]
        if self.recorded:
            # what the assistant said before anybody asked (a greeting) is context alone
            first = roles.index("user") if "user" in roles else len(roles)
            ends = [i for i, role in enumerate(roles) if role == "assistant" and i > first]
            return ends + ([len(roles)] if roles[-1] != "assistant" else [])
        users = [i for i, role in enumerate(roles) if role == "user"]
        return [*users[1:], len(roles)] if users else []

    def user_text(self) -> str:
        """The text of the user turns, one a line: what near dedup compares, and what a language is told from."""
        return "\n".join(
            message["content"] for message in self.messages if message["role"] == "user" and message["content"]
        )

    def shown_text(self) -> str:
        """All text that the target is shown, one part a line: what exact dedup compares."""
        parts = [text for message in self.messages for text in _message_texts(message)]
        return "\n".join(parts + [canonical_json(tool) for tool in self.tools])


def spoken(text: str) -> Message:
    """An answer as the message that later turns are shown, its reasoning apart as an engine's reasoning parser has it.

    What of the reasoning is shown again is the chat template's to say: most show none of it.
    """
    reasoning, closed, answer = text.rpartition(THINK_END)
    if not closed:
        return {"role": "assistant", "content": text}
    thought = reasoning.strip().removeprefix(THINK_START).strip("\n")
    return {"role": "assistant", "content": answer.lstrip("\n"), "reasoning_content": thought}


def encode_messages(prompt: Prompt) -> tuple[str, str | None]:
    """(messages, tools) as canonical JSON, the form in which parquet holds them."""
    return (
        canonical_json(list(prompt.messages)),
        canonical_json(list(prompt.tools)) if prompt.tools else None,
    )


def decode_prompt(messages: str, tools: str | None) -> Prompt:
    """The inverse of encode_messages."""
    return Prompt(tuple(msgspec.json.decode(messages)), tuple(msgspec.json.decode(tools)) if tools else ())


def check_prompt(prompt: Prompt) -> None:
    """Refuse what cannot be answered.

    Raises:
        RowError: no_user_turn, empty_prompt or bad_role.
    """
    for message in prompt.messages:
        if message["role"] not in ROLES:
            raise RowError("bad_role", str(message["role"])[:40])
    if not any(message["role"] == "user" for message in prompt.messages):
        raise RowError("no_user_turn")
    if not any(text.strip() for m in prompt.messages if m["role"] == "user" for text in _message_texts(m)):
        raise RowError("empty_prompt")


def _message_texts(message: Message) -> list[str]:
    texts = [message["content"]] if message.get("content") else []
    return texts + [canonical_json(call) for call in message.get("tool_calls") or ()]
