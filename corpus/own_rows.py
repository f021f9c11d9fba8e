"""Rows of draftmill's own files, told as anybody's: pools hold prompts, response shards hold answers to them.

A pool's row is a prompt, its original answers beside it, or the reason why it holds none. A response shard holds no
prompts: they are found by id in the candidates of the workspace that it lies in, and an attempt that was not accepted
is a bad row with its reason. Rows of other files stay as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from corpus.errors import UserError
from corpus.pieces import BadRow
from corpus.row_picks import Row, Value

POOL_COLUMNS = frozenset({"prompt_id", "likeness", "messages", "tools", "original", "reason", "upstream_id"})
RESPONSE_COLUMNS = frozenset({"response_id", "prompt_id", "state", "reason", "text"})


def own_columns(first: dict[str, Any]) -> frozenset[str] | None:
    """Columns that a file of draftmill's own is read for, judged on one row; None if it is another's file."""
    if _is_response(first):
        return RESPONSE_COLUMNS
    return POOL_COLUMNS if _is_prompt(first) else None


Prompts = dict[str, tuple[str, str | None]]
"""prompt_id to messages and tools, as canonical JSON."""


class OwnRows:
    """Turns rows of draftmill's files into a conversation each; prompts of responses are looked up below a folder."""

    def __init__(self, folder: Path, at: str) -> None:
        self._candidates = _candidates(folder)
        self._at = at

    def told(self, rows: Sequence[Row]) -> list[Row]:
        """The rows, own ones as a conversation.

        Raises:
            UserError: there are response shards, and the prompts that they answer are not in reach.
        """
        asked = [row.value["prompt_id"] for row in rows if isinstance(row.value, dict) and _is_response(row.value)]
        prompts = self._prompts(asked) if asked else {}
        return [replace(row, value=_told(row.row, row.value, prompts)) for row in rows]

    def _prompts(self, ids: Sequence[str]) -> Prompts:
        import polars as pl

        files = sorted(self._candidates.glob("*/prompts.parquet")) if self._candidates else []
        wanted = pl.Series(sorted({one for one in ids if isinstance(one, str)}), dtype=pl.String)
        found: Prompts = {}
        for file in files:
            frame = pl.scan_parquet(file, glob=False).filter(pl.col("prompt_id").is_in(wanted.implode()))
            rows = frame.select("prompt_id", "messages", "tools").collect()
            found |= {prompt_id: (messages, tools) for prompt_id, messages, tools in rows.iter_rows()}
        if not found:
            raise UserError(
                f"{self._at}: response shards of draftmill hold answers, and their prompts lie in the workspace's "
                "candidates, which are not beside this folder. Name the responses folder inside its workspace."
            )
        return found


def _candidates(folder: Path) -> Path | None:
    above = (folder, *folder.resolve().parents[:2])
    return next((one / "candidates" for one in above if (one / "candidates").is_dir()), None)


def _told(row: int, value: Value, prompts: Prompts) -> Value:
    if not isinstance(value, dict):
        return value
    if _is_response(value):
        return _response(row, value, prompts)
    return _prompt(row, value) if _is_prompt(value) else value


def _is_response(value: dict[str, Any]) -> bool:
    return value.keys() >= RESPONSE_COLUMNS and "messages" not in value


def _is_prompt(value: dict[str, Any]) -> bool:
    return value.keys() >= POOL_COLUMNS - {"upstream_id"}


def _response(row: int, value: dict[str, Any], prompts: Prompts) -> Value:
    if value["state"] != "accepted":
        return BadRow(row, "not_accepted", str(value["reason"] or value["state"])[:200])
    prompt = prompts.get(value["prompt_id"])
    if prompt is None:
        return BadRow(row, "prompt_not_found", "no candidates of this workspace hold its prompt")
    return _answered(*prompt, value["text"])


def _prompt(row: int, value: dict[str, Any]) -> Value:
    if value["messages"] is None:
        return BadRow(row, str(value["reason"] or "no_prompt"), "")
    answers = msgspec.json.decode(value["original"], type=list[str | None]) if value["original"] else []
    return {**value, **_answered(value["messages"], value["tools"], "\n".join(filter(None, answers)))}


def _answered(messages: str, tools: str | None, answer: str | None) -> dict[str, Any]:
    """A prompt with an answer behind it: the readers of conversations leave it out again."""
    turns = msgspec.json.decode(messages)
    said = [{"role": "assistant", "content": answer}] if answer else []
    return {"messages": [*turns, *said], "tools": msgspec.json.decode(tools) if tools else None}
