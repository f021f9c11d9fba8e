"""What is known of a build, a drafter or a run, as a nested mapping: see draftmill.looking.records."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from corpus.ledger.query import LedgerReader
from draftmill.looking.row_records import rule_words

Record = dict[str, Any]
BEST_FIRST = "state = 'accepted' DESC, shard DESC, shard_row DESC"
"""Of an answer's attempts the accepted one counts, else the last: as in the view provenance."""
MOST_EVENTS = 20
"""Kinds of events of a run that are shown, the latest."""


def one(reader: LedgerReader, names: str, sql: str, *values: Any) -> Record | None:
    """The first row as a mapping: of `names`, separated by spaces."""
    rows = reader.rows(sql, *values)
    return dict(zip(names.split(), rows[0], strict=True)) if rows else None


def many(reader: LedgerReader, names: str, sql: str, *values: Any) -> list[Record]:
    """All rows as mappings."""
    return [dict(zip(names.split(), row, strict=True)) for row in reader.rows(sql, *values)]


def build_record(build_id: str, reader: LedgerReader) -> Record:
    """The mix, where its prompts come from, and what was run for it."""
    names = "name candidates_id seed unit total selected held_out shortage tolerance created_at"
    made = one(reader, names, f"SELECT {', '.join(names.split())} FROM builds WHERE build_id = ?", build_id) or {}
    imported = one(
        reader, "model revision rows prompts answers accepted",
        "SELECT model, revision, rows, prompts, answers, accepted FROM imports WHERE import_id = ?", build_id,
    )  # fmt: skip
    targets = many(
        reader, "category share prompts response_tokens",
        "SELECT category, share, rows, response_tokens FROM build_targets WHERE build_id = ? ORDER BY share DESC, 1",
        build_id,
    )  # fmt: skip
    sources = many(
        reader,
        "source dataset config split revision license priority weight category_rule rows_read pool_id",
        "SELECT s.source, p.dataset, p.config, p.split, p.revision, coalesce(s.license, p.license), s.priority, "
        "s.weight, s.category_rule, p.rows_read, s.pool_id FROM sources s LEFT JOIN pools p USING (pool_id) "
        "WHERE s.build_id = ? ORDER BY s.source",
        build_id,
    )
    for row in sources:
        row["category_rule"] = rule_words(row["category_rule"], None, None)
    return {
        "build": made, **({"import": imported} if imported else {}), "targets": targets, "sources": sources,
        "runs": _runs_of(build_id, reader), "drafters": _drafters_in(build_id, reader),
    }  # fmt: skip


def _runs_of(build_id: str, reader: LedgerReader) -> list[Record]:
    return many(
        reader, "run_id command started_at ended_at outcome",
        "SELECT run_id, command, started_at, ended_at, outcome FROM runs WHERE build_id = ? ORDER BY run_id", build_id,
    )  # fmt: skip


def _drafters_in(build_id: str, reader: LedgerReader) -> list[Record]:
    return many(
        reader, "drafter_id algorithm steps rows created_at",
        "SELECT drafter_id, algorithm, steps, rows, created_at FROM drafters WHERE build_id = ? ORDER BY created_at",
        build_id,
    )  # fmt: skip


def drafter_record(drafter_id: str, reader: LedgerReader) -> Record:
    """How it was trained, on what, and how well it does."""
    names = "build_id capture_id algorithm steps rows path created_at training"
    made = one(reader, names, f"SELECT {', '.join(names.split())} FROM drafters WHERE drafter_id = ?", drafter_id) or {}
    training = made.pop("training", None)
    capture = "model revision layer_ids final_state dtype hidden_size"
    return {
        "drafter": made,
        "trained_with": _json(training),
        "capture": one(
            reader, capture, f"SELECT {', '.join(capture.split())} FROM captures WHERE capture_id = ?",
            made.get("capture_id"),
        ),
        "trained_on": many(
            reader, "category answers response_tokens",
            "SELECT b.category, count(*), sum(r.response_tokens) FROM (SELECT DISTINCT response_id FROM "
            "drafter_responses WHERE drafter_id = $1) d JOIN (FROM build_responses WHERE build_id = $2) b "
            "USING (response_id) JOIN accepted_responses r USING (response_id) GROUP BY 1 ORDER BY 2 DESC, 1",
            drafter_id, made.get("build_id"),
        ),
        "acceptance": acceptance([drafter_id], None, reader),
    }  # fmt: skip


def _json(text: Any) -> Any:
    try:
        return json.loads(text) if text else None
    except ValueError:
        return text


def run_record(run_id: str, reader: LedgerReader) -> Record:
    """When it ran, what it answered, and what happened."""
    names = "command build_id started_at ended_at outcome"
    return {
        "run": one(reader, names, f"SELECT {', '.join(names.split())} FROM runs WHERE run_id = ?", run_id),
        "answers": many(
            reader, "state reason finish_reason answers response_tokens",
            "SELECT state, reason, finish_reason, count(*), sum(response_tokens) FROM responses WHERE run_id = ? "
            "GROUP BY 1, 2, 3 ORDER BY 4 DESC, 1, 2, 3", run_id,
        ),
        "engines": many(
            reader, "engine device samples mean_tokens_per_s from_ to",
            "SELECT engine, device, count(*), round(avg(tokens_per_s), 1), min(sampled_at), max(sampled_at) "
            "FROM engine_samples WHERE run_id = ? GROUP BY 1, 2 ORDER BY 1, 2", run_id,
        ),
        "events": many(
            reader, "kind times last_at last_message",
            "SELECT kind, count(*), max(happened_at), max_by(message, happened_at) FROM events WHERE run_id = ? "
            f"GROUP BY 1 ORDER BY 3 DESC LIMIT {MOST_EVENTS}", run_id,
        ),
    }  # fmt: skip


def acceptance(drafters: Sequence[str], categories: Sequence[str] | None, reader: LedgerReader) -> list[Record]:
    """The newest measurements of some drafters, in some categories or all."""
    return many(
        reader,
        "drafter_id build_id category measured_by acceptance_length low high rows",
        "SELECT drafter_id, build_id, category, measured_by, acceptance_length, low, high, rows "
        "FROM acceptance_by_category WHERE list_contains($1, drafter_id) "
        "AND ($2 IS NULL OR list_contains($2, category)) ORDER BY drafter_id, category, measured_by",
        list(drafters), None if categories is None else list(categories),
    )  # fmt: skip
