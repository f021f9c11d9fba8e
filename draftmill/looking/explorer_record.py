"""All that is known of one row, made ready for a page: its messages, its answer, and its provenance as sections.

The record is the one that `draftmill show` prints. Which row is meant comes from an address, so it may be anything:
what is not found is said, and what has several meanings is listed.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from corpus.errors import UserError
from corpus.ledger.query import LedgerReader
from corpus.workspace import Workspace
from draftmill.looking.finding import Match, find, not_found
from draftmill.looking.records import record_of

MOST_SAID = 60


LINKED = frozenset({"prompt_id", "response_id", "build_id", "drafter_id", "run_id", "winner_prompt_id"})
"""Columns whose values lead to a record of their own."""


@dataclass(frozen=True)
class Field:
    """One value; `link` is the id that it leads to."""

    name: str
    text: str
    link: str | None = None


@dataclass(frozen=True)
class Section:
    """One part of a record: what all its rows have in common, then a table of what they do not."""

    title: str
    fields: list[Field]
    columns: list[str] = field(default_factory=list)
    rows: list[list[Field]] = field(default_factory=list)


@dataclass(frozen=True)
class Record:
    """What the page shows."""

    title: str
    messages: list[tuple[str, str]] = field(default_factory=list)
    """Role and text, in order."""
    tools: str | None = None
    answer: str | None = None
    unreadable: str | None = None
    sections: list[Section] = field(default_factory=list)
    several: list[tuple[str, str, str]] = field(default_factory=list)
    """Kind, id and what tells it from others, where more than one is meant."""
    has_text: bool = False


def find_record(workspace: Workspace, reader: LedgerReader, named: str, place: str | None) -> Record:
    """The record of whatever `draftmill show` takes, or of a source row's place: POOL:CHUNK:ROW:FILE.

    Raises:
        UserError: nothing is called so.
    """
    if place is not None:
        match = _at(place, reader)
        return as_page(record_of(match, workspace, reader))
    found = find(named.strip(), reader)
    if not found:
        raise UserError(not_found(named.strip(), reader))
    if len(found) > 1:
        return Record("Which one?", several=[(one.kind, one.id, one.said) for one in found])
    return as_page(record_of(found[0], workspace, reader))


def _at(place: str, reader: LedgerReader) -> Match:
    pool_id, chunk, row, file = [*place.split(":", 3), "", "", ""][:4]
    if chunk.isdecimal() and row.isdecimal():
        at = (pool_id, int(chunk[:9]), file, int(row[:18]))
        is_there = reader.rows(
            "SELECT 1 FROM source_rows WHERE pool_id = ? AND chunk = ? AND file = ? AND row_index = ? LIMIT 1", *at
        )
        if is_there:
            return Match("source row", f"{file}:{row}", at)
    raise UserError(f"{ascii(place)[:MOST_SAID]}: the ledger has no such source row.")


def as_page(record: dict[str, Any]) -> Record:
    """A record as `record_of` makes it, ready to be laid out. Pure."""
    body = {key: value for key, value in record.items() if key not in ("kind", "id", "text")}
    text = record.get("text") or {}
    plain = {key: value for key, value in body.items() if not isinstance(value, dict | list)}
    sections = [_section("This", [plain])] if plain else []
    for key, value in body.items():
        rows = value if isinstance(value, list) else [value] if isinstance(value, dict) else []
        rows = [row if isinstance(row, dict) else {"": row} for row in rows]
        if rows:
            inner = _inner(rows)
            outer = [{name: value for name, value in row.items() if name not in inner} for row in rows]
            sections.append(_section(_title(key), outer))
            sections += [_section(_title(name), listed) for name, listed in inner.items()]
    tools = text.get("tools")
    return Record(
        f"{record['kind'].capitalize()} {record['id']}",
        [(str(message.get("role", "?")), _said(message)) for message in text.get("messages") or []],
        json.dumps(tools, ensure_ascii=False, indent=1) if tools else None,
        text.get("answer"),
        text.get("unreadable"),
        sections,
        has_text="text" in record,
    )


def _title(key: str) -> str:
    return key.replace("_", " ").capitalize()


def _inner(rows: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Lists of rows within rows, by their name: tables of their own, each row with the build that it is of."""
    found: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        of_build = {"build_id": row["build_id"]} if len(rows) > 1 and "build_id" in row else {}
        for name, value in row.items():
            if isinstance(value, list) and value and all(isinstance(one, dict) for one in value):
                found.setdefault(name, []).extend({**of_build, **one} for one in value)
    return found


def _said(message: dict[str, Any]) -> str:
    content = message.get("content")
    said = content if isinstance(content, str) else "" if content is None else _json(content)
    others = {key: value for key, value in message.items() if key not in ("role", "content")}
    return "\n".join(part for part in (said, _json(others) if others else "") if part)


def _section(title: str, rows: list[dict[str, Any]]) -> Section:
    names = [name for name in dict.fromkeys(key for row in rows for key in row) if _any(rows, name)]
    common = [name for name in names if all(row.get(name) == rows[0].get(name) for row in rows)]
    columns = [name for name in names if name not in common]
    table = [[_field(name, row.get(name)) for name in columns] for row in rows] if columns else []
    return Section(
        title, [_field(name, rows[0].get(name)) for name in common], [_words(name) for name in columns], table
    )


def _field(name: str, value: Any) -> Field:
    # a person's first turn is 1, as in `show`
    said = str(value + 1) if name == "turn" and isinstance(value, int) else _value(value)
    return Field(_words(name), said, value if name in LINKED and isinstance(value, str) else None)


def _words(name: str) -> str:
    return name.replace("_", " ")


def _any(rows: list[dict[str, Any]], name: str) -> bool:
    return any(row.get(name) not in (None, [], {}) for row in rows)


def _value(value: Any) -> str:
    if value is None or value in ([], {}):
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, datetime):
        return f"{value.astimezone(UTC):%Y-%m-%d %H:%M:%S}" if value.tzinfo else f"{value:%Y-%m-%d %H:%M:%S}"
    if isinstance(value, list) and all(isinstance(one, str) for one in value):
        return ", ".join(value)
    return value if isinstance(value, str) else _json(value) if isinstance(value, dict | list) else str(value)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)
