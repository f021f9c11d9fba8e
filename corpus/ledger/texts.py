"""Texts of some hundred prompts or answers, from the very files that the ledger says hold them.

No other file is opened, and of these only the columns and row groups that are asked for; the views prompt_text and
response_text read every file instead. A file that is gone, damaged or holds something else is a stated reason in the
place of the text, never an error: who looks at a page of rows sees the others.
"""

from __future__ import annotations

import glob
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from corpus.errors import first_line
from corpus.workspace import Workspace

Row = tuple[Any, ...]


@dataclass(frozen=True)
class PromptTexts:
    """What a prompt shows; `why` says why that cannot be read."""

    messages: list[dict[str, Any]]
    tools: list[Any]
    why: str | None = None

    @property
    def asked(self) -> str:
        """The text of the user turns."""
        return "\n".join(_text(message) for message in self.messages if message.get("role") == "user")


@dataclass(frozen=True)
class ResponseTexts:
    """What was answered; `why` says why that cannot be read."""

    text: str
    prompt_token_ids: list[int]
    token_ids: list[int]
    why: str | None = None


def prompt_texts(workspace: Workspace, rows: Iterable[tuple[str, str, int]]) -> dict[str, PromptTexts]:
    """Prompts by id, each of `rows` among them.

    Args:
        rows: prompt_id, pool_id and chunk, as the table prompts (or source_rows, or drops) has them.
    """
    files: dict[Path, list[str]] = {}
    for prompt_id, pool_id, chunk in rows:
        files.setdefault(workspace.pool(pool_id) / f"{chunk}.parquet", []).append(prompt_id)
    found: dict[str, PromptTexts] = {}
    for path, wanted in files.items():
        there, why = _read(
            "SELECT prompt_id, messages, tools FROM read_parquet(?) WHERE list_contains(?, prompt_id)", [path], wanted
        )
        for prompt_id, messages, tools in there:
            found.setdefault(prompt_id, _prompt(path, messages, tools))
        for prompt_id in wanted:
            found.setdefault(prompt_id, PromptTexts([], [], why or f"{path}: holds no prompt {prompt_id}"))
    return found


def response_texts(
    workspace: Workspace, rows: Iterable[tuple[str, str, int]], tokens: bool = False
) -> dict[tuple[str, int], ResponseTexts]:
    """Answers by (shard, shard_row), each of `rows` among them.

    Args:
        rows: response_id, shard and shard_row, as the table responses has them.
        tokens: read the token ids too.
    """
    wanted = {(shard, row): response_id for response_id, shard, row in rows}
    shards = sorted({shard for shard, _ in wanted})
    columns = "prompt_token_ids, token_ids" if tokens else "NULL, NULL"
    sql = (
        f"SELECT parse_filename(filename), file_row_number, response_id, text, {columns} "
        "FROM read_parquet(?, filename = true, file_row_number = true) WHERE list_contains(?, response_id)"
    )
    found: dict[tuple[str, int], ResponseTexts] = {}
    ids = sorted(set(wanted.values()))
    there, why = _read(sql, [workspace.responses / shard for shard in shards], ids)
    reasons: dict[str, str] = {}
    if why is not None:  # one of them: which, and what the others hold
        for shard in shards:
            part, said = _read(sql, [workspace.responses / shard], ids)
            there += part
            if said is not None:
                reasons[shard] = said
    for shard, row, response_id, text, prompt_ids, token_ids in there:
        if wanted.get((shard, row)) == response_id:
            found[shard, row] = ResponseTexts(text or "", prompt_ids or [], token_ids or [])
    for (shard, row), response_id in wanted.items():
        if (shard, row) not in found:
            place = workspace.responses / shard
            said = reasons.get(shard, f"{place}: its row {row} is not answer {response_id}")
            found[shard, row] = ResponseTexts("", [], [], said)
    return found


def _text(message: dict[str, Any]) -> str:
    content = message.get("content")
    return content if isinstance(content, str) else "" if content is None else json.dumps(content, ensure_ascii=False)


def _read(sql: str, paths: Sequence[Path], ids: Sequence[str]) -> tuple[list[Row], str | None]:
    """Rows of the files that hold these ids, or the reason why there are none."""
    import duckdb

    if not paths:
        return [], None
    try:
        with duckdb.connect() as connection:
            return connection.execute(sql, [[glob.escape(str(path)) for path in paths], list(ids)]).fetchall(), None
    except (duckdb.Error, UnicodeError) as error:
        named = str(paths[0]) if len(paths) == 1 else f"{len(paths)} files"
        gone = len(paths) == 1 and not paths[0].exists()
        return [], f"{named}: {'is gone' if gone else f'cannot be read ({first_line(error)[:160]})'}"


def _prompt(path: Path, messages: str, tools: str | None) -> PromptTexts:
    try:
        said, offered = json.loads(messages), json.loads(tools or "[]")
    except (ValueError, TypeError) as error:
        return PromptTexts([], [], f"{path}: holds no JSON there ({first_line(error)[:160]})")
    if not (isinstance(said, list) and all(isinstance(message, dict) for message in said)):
        return PromptTexts([], [], f"{path}: holds no messages there")
    return PromptTexts(said, offered if isinstance(offered, list) else [])
