"""A record for a person in 80 columns: fields under headings, small tables, then the text turn by turn. Pure.

Whatever a value says, no line is wider than WIDTH and none steers the terminal. A programmer's key is shown as words.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

from rich.cells import cell_len

from draftmill.looking.answers import WIDTH, left
from draftmill.looking.finding import MOST, Match
from draftmill.looking.plain_text import clipped, folded, text_lines
from draftmill.looking.reasons import ANSWERS, ROWS
from draftmill.table import cut, printable

NAME = 24
GAP = 2
ID_DIGITS = 12
MOST_BLOCKS = 8
MOST_ROWS = 40
MOST_VALUE = 600
RULE = "──"
HIDDEN = ("pool_id", "chunk")
"""Where a row lies in the workspace; --json has it."""
RARE = ("imported_row",)
KINDS = ("prompt", "response", "build", "drafter", "run", "source row")
UNITS = {"share": "%"}


def record_lines(record: dict[str, Any], chars: int) -> list[str]:
    """The whole record. `chars`: how much of each text is shown; 0 is all."""
    lines = [left(f"{record['kind']} {record['id']}", WIDTH).rstrip()]
    for key, value in record.items():
        if key in ("kind", "id", "text") or (key in RARE and not value):
            continue
        if isinstance(value, dict | list):
            lines += _section(_words(key), value)
        elif value is not None:
            lines += list(_field(key, value, ""))
    if record.get("text"):
        lines += _text(record["text"], chars)
    return lines


def _words(key: str) -> str:
    return key.strip("_").replace("_", " ")


def _section(title: str, value: Any) -> Iterator[str]:
    yield ""
    if not value:
        yield f"{title}: none"
        return
    if isinstance(value, dict):
        yield title
        yield from _fields(value)
        return
    yield title if len(value) == 1 else f"{title} ({len(value):,})"
    rows = value[:MOST_ROWS]
    same = _same(rows) if len(rows) > 1 else []
    table = _table([{key: row[key] for key in row if key not in same} for row in rows]) if len(rows) > 1 else None
    if table is not None:
        yield from _fields({key: rows[0][key] for key in same})
        yield from table
    else:
        rows = rows[:MOST_BLOCKS]
        for place, row in enumerate(rows):
            if place:
                yield f"  {RULE}"
            yield from _fields(row)
    if len(value) > len(rows):
        yield f"  … {len(value) - len(rows):,} more (--json has all)"


def _same(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Keys that say the same in every row, and are said once."""
    return [
        key for key, value in rows[0].items()
        if value is not None and key not in HIDDEN and all(row.get(key) == value for row in rows)
    ]  # fmt: skip


def _fields(body: dict[str, Any], indent: str = "  ") -> Iterator[str]:
    for key, value in body.items():
        if key in HIDDEN or value in (None, "", [], {}):
            continue
        if isinstance(value, list) and value and isinstance(value[0], dict):
            for place, row in enumerate(value[:MOST_BLOCKS]):
                yield f"{indent}{_words(key)}" if not place else f"{indent}  {RULE}"
                yield from _fields(row, indent + "  ")
            if len(value) > MOST_BLOCKS:
                yield f"{indent}  … {len(value) - MOST_BLOCKS:,} more (--json has all)"
        else:
            yield from _field(key, value, indent)


def _field(key: str, value: Any, indent: str) -> Iterator[str]:
    name = left(_words(key), NAME)
    room = WIDTH - len(indent) - NAME - GAP
    text, more = clipped(_said(key, value), MOST_VALUE)
    pieces = folded(printable(text), room)
    if more:
        pieces[-1:] = [cut(pieces[-1] + "…", room)] if cell_len(pieces[-1]) < room else [pieces[-1], "…"]
    for place, piece in enumerate(pieces):
        yield f"{indent}{name if not place else ' ' * NAME}{' ' * GAP}{piece}".rstrip()


def _said(key: str, value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if key == "turn" and isinstance(value, int):
        return str(value + 1)  # for a person the first is 1; --json has the ledger's own
    if key in ("reason", "left_out") and isinstance(value, str):
        words = ROWS.get(value) or ANSWERS.get(value)
        return f"{value}: {words}" if words and words != value else value
    if isinstance(value, datetime):
        return f"{value.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
    if isinstance(value, int):
        return str(value) if key in ("seed", "row_index", "shard_row") else f"{value:,}"
    if isinstance(value, float):
        return (
            f"{100 * value:.1f}%" if UNITS.get(key) == "%" else f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
        )
    if isinstance(value, list):
        return ", ".join(_said(key, one) for one in value)
    if isinstance(value, dict):
        return json.dumps(value, ensure_ascii=False, default=str)
    return str(value)


def _table(rows: Sequence[dict[str, Any]]) -> list[str] | None:
    """Rows side by side; None where they do not fit."""
    keys = [key for key in rows[0] if key not in HIDDEN and any(row.get(key) is not None for row in rows)]
    if any(isinstance(row.get(key), dict | list) for row in rows for key in keys):
        return None
    body = [["" if row.get(key) is None else printable(_short(key, row[key])) for key in keys] for row in rows]
    right = [all(isinstance(row.get(key), int | float | None) and not isinstance(row.get(key), bool) for row in rows)
             for key in keys]  # fmt: skip
    header = [_words(key) for key in keys]
    widths = [max(cell_len(line[i]) for line in [header, *body]) for i in range(len(keys))]
    if sum(widths) + GAP * len(widths) > WIDTH:
        return None
    return [
        "  " + (" " * GAP).join(_cell(line[i], widths[i], right[i]) for i in range(len(keys))).rstrip()
        for line in [header, *body]
    ]


def _short(key: str, value: Any) -> str:
    if key.endswith("_id") and isinstance(value, str) and key not in ("run_id", "upstream_id"):
        return value[:ID_DIGITS]
    if isinstance(value, datetime):
        return f"{value.astimezone(UTC):%m-%d %H:%M}"
    return _said(key, value)


def _cell(text: str, width: int, right: bool) -> str:
    padding = " " * (width - cell_len(text))
    return padding + text if right else text + padding


def _text(text: dict[str, Any], chars: int) -> Iterator[str]:
    yield ""
    for tool in text.get("tools") or []:
        yield from _part_lines("tool", json.dumps(tool, ensure_ascii=False), chars)
    for message in text.get("messages") or []:
        yield from _message_lines(message, chars)
    if "answer" in text and text["answer"] is not None:
        yield from _part_lines("answer", text["answer"] or "(nothing)", chars)
    if text.get("unreadable"):
        yield from (f"  {piece}" for piece in folded(printable(f"no text: {text['unreadable']}"), WIDTH - 2))


def _message_lines(message: dict[str, Any], chars: int) -> Iterator[str]:
    """One message: its role, its text, and the tools that it calls."""
    role = str(message.get("role") or "?")
    content = message.get("content")
    if message.get("response_id"):
        role += f", response {message['response_id'][:ID_DIGITS]}"
    if message.get("name"):
        role += f" {message['name']}"
    said = content if isinstance(content, str) else "" if content is None else json.dumps(content, ensure_ascii=False)
    yield from _part_lines(role, said, chars)
    for call in message.get("tool_calls") or ():
        yield from _part_lines(f"{message.get('role')} calls", json.dumps(call, ensure_ascii=False), chars)


def _part_lines(title: str, text: str, chars: int) -> Iterator[str]:
    """A part of a text under its title."""
    yield f"{RULE} {cut(printable(title), WIDTH - 6)} {RULE}"
    yield from text_lines(text, WIDTH, chars, "  ")


def match_lines(named: str, matches: Sequence[Match]) -> list[str]:
    """Several things that are called so."""
    many = f"{MOST}+" if any(sum(one.kind == kind for one in matches) >= MOST for kind in KINDS) else len(matches)
    head = f"draftmill: {ascii(named)[1:-1][:60]} may be any of {many}; say which:"
    rows = [cut(printable(f"  {one.kind:<10}  {one.id}  {one.said}"), WIDTH).rstrip() for one in matches]
    return [head, *rows]


def record_json(record: dict[str, Any]) -> str:
    """The record as JSON; what does not print is an escape, so that it steers no terminal and reads back the same."""
    text = json.dumps(_jsonable(record), ensure_ascii=False, indent=1)
    return "".join(ch if ch.isprintable() or ch == "\n" else _escaped(ch) for ch in text) + "\n"


def _escaped(ch: str) -> str:
    return json.dumps(ch)[1:-1]


def _jsonable(value: Any) -> Any:
    """The record with times as text, for json.dumps."""
    if isinstance(value, dict):
        return {str(key).strip("_"): _jsonable(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_jsonable(inner) for inner in value]
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
