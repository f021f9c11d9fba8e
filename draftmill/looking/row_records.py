"""Where a prompt is from, row by row, and what became of it in each build: the middle of every record.

Reads the published ledger by prompt_id or place.
"""

from __future__ import annotations

import json
from typing import Any

from corpus.ledger.query import LedgerReader
from corpus.ledger.texts import PromptTexts, prompt_texts
from corpus.workspace import Workspace

ROW = (
    "source dataset config split revision file row_index upstream_id upstream_label license format pool_id chunk "
    "reason detail"
)
PLACE = ("pool_id", "chunk", "file", "row_index")
DROP = "source file row_index reason detail winner_prompt_id winner_source similarity eval_set eval_item overlap"


def places_of(
    prompt_id: str | None, reader: LedgerReader, place: tuple[str, int, str, int] | None = None
) -> list[dict[str, Any]]:
    """Every source row that holds the prompt, or the one at a place."""
    where = "prompt_id = ?" if place is None else "pool_id = ? AND chunk = ? AND file = ? AND row_index = ?"
    values = (prompt_id,) if place is None else place
    rows = reader.rows(
        "SELECT string_agg(DISTINCT s.source, ', ' ORDER BY s.source), any_value(p.dataset), any_value(p.config), "
        "any_value(p.split), any_value(p.revision), r.file, r.row_index, any_value(r.upstream_id), "
        "any_value(r.upstream_label), coalesce(any_value(s.license), any_value(p.license)), any_value(p.format), "
        "r.pool_id, r.chunk, any_value(r.reason), any_value(r.detail) "
        f"FROM (FROM source_rows WHERE {where}) r LEFT JOIN pools p USING (pool_id) LEFT JOIN sources s USING (pool_id)"
        " GROUP BY r.pool_id, r.chunk, r.file, r.row_index ORDER BY 1, r.file, r.row_index",
        *values,
    )
    return [dict(zip(ROW.split(), row, strict=True)) for row in rows]


def texts_of(ids: list[str], workspace: Workspace, reader: LedgerReader) -> dict[str, PromptTexts]:
    """Texts of prompts, each from the first file that holds it; one that no file is named for is left out."""
    places = reader.rows(
        "SELECT prompt_id, arg_min(pool_id, (pool_id, chunk)), arg_min(chunk, (pool_id, chunk)) FROM source_rows "
        "WHERE prompt_id IN (SELECT unnest($1)) GROUP BY prompt_id",
        list(dict.fromkeys(ids)),
    )
    return prompt_texts(workspace, [(str(a), str(b), int(c)) for a, b, c in places if c is not None])


def fate(prompt_id: str, places: list[dict[str, Any]], reader: LedgerReader) -> list[dict[str, Any]]:
    """What became of a prompt in each build that read a row of it, the newest build first.

    Args:
        places: its source rows, as `places_of` gives them.
    """
    builds = reader.rows(
        "SELECT DISTINCT b.build_id, b.name, b.candidates_id, b.created_at FROM "
        "(SELECT DISTINCT pool_id, chunk FROM source_rows WHERE prompt_id = ?) r "
        "JOIN sources s ON s.pool_id = r.pool_id AND r.chunk < s.chunks JOIN builds b USING (build_id) "
        "ORDER BY b.created_at DESC, b.build_id",
        prompt_id,
    )
    kept = {
        row[0]: row[1:]
        for row in reader.rows(
            "SELECT p.candidates_id, p.source, p.category, p.holdout, p.source_rank, p.turns, p.prompt_chars, "
            "p.prompt_tokens, p.pool_id, p.chunk, p.file, p.row_index FROM prompts p WHERE p.prompt_id = ?",
            prompt_id,
        )
    }
    drops: dict[str, list[dict[str, Any]]] = {}
    names = DROP.split()
    for candidates_id, *values in reader.rows(
        f"SELECT candidates_id, {', '.join(names)} FROM drops WHERE prompt_id = ? ORDER BY ALL", prompt_id
    ):
        drops.setdefault(candidates_id, []).append(_known(dict(zip(names, values, strict=True))))
    taken = {
        row[0]: row[1:]
        for row in reader.rows(
            "SELECT build_id, count(*), min(round), bool_or(holdout) FROM selections WHERE prompt_id = ? GROUP BY 1",
            prompt_id,
        )
    }
    labels = {tuple(row[key] for key in PLACE): row["upstream_label"] for row in places}
    rules = {
        (build_id, source): rule
        for build_id, source, rule in reader.rows(
            "SELECT build_id, source, category_rule FROM sources WHERE list_contains(?, build_id)",
            [build_id for build_id, *_ in builds],
        )
    }
    found = []
    for build_id, name, candidates, _ in builds:
        row = kept.get(candidates)
        rule = None
        if row is not None:
            rule = rule_words(rules.get((build_id, row[0])), labels.get(row[-len(PLACE) :]), row[0])
        found.append(_one_fate(build_id, name, row, rule, drops.get(candidates, []), taken.get(build_id)))
    return found


def _known(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


def _one_fate(
    build_id: str,
    name: str,
    kept: tuple[Any, ...] | None,
    rule: str | None,
    drops: list[dict[str, Any]],
    taken: tuple[Any, ...] | None,
) -> dict[str, Any]:
    body: dict[str, Any] = {"build_id": build_id, "name": name}
    if kept is None:
        return body | {"outcome": "dropped" if drops else "not entered", "dropped_rows": drops}
    source, category, holdout, rank, turns, chars, tokens, *place = kept
    outcome = "not needed"
    if taken is not None:
        outcome = "held out" if taken[2] else "selected"
    return body | {
        "outcome": outcome,
        "replicas": taken[0] if taken and taken[0] != 1 else None,
        "round": taken[1] if taken else None,
        "category": category,
        "category_rule": rule,
        "labelled_by": f"{source}:{place[2]}:{place[3]}",
        "rank_in_its_source": rank,
        "turns": turns,
        "prompt_chars": chars,
        "prompt_tokens": tokens,
        "dropped_rows": drops,
        "could_be_held_out": holdout or None,
    }


def rule_words(rule: str | None, label: str | None, source: str | None) -> str | None:
    """By what rule a source's rows get their category, as a sentence; `label` is a row's own.

    Args:
        rule: as sources.category_rule has it.
    """
    if not rule:
        return None
    try:
        body = json.loads(rule)
    except ValueError:
        return rule
    if body == "classify":
        return "classified by its words (docs/categories.md)"
    if isinstance(body, str):
        return f"every row of {source or 'the source'} is {body}"
    if not isinstance(body, dict) or "column" not in body:
        return rule
    column, known = body["column"], body.get("map") or {}
    if label is None:
        default = f", else {body['default']}" if body.get("default") else ""
        return f"by column {column}{default}"
    if label in known:
        return f"column {column} says {label}, which is {known[label]}"
    return f"column {column} says {label}, which has no category of its own: the default"
