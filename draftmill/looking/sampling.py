"""A few rows of a build, drawn at random and always the same for one seed.

Ids come first and texts after, so a large ledger is fast.
Ids are digests, so their order is random already: a sample is the ids that follow a point that the seed decides, round
and round. Rows that fit are looked for among ever more of them, all at last.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from corpus.errors import UserError
from corpus.ledger.query import LedgerReader
from corpus.ledger.texts import PromptTexts, ResponseTexts, response_texts
from corpus.suggestions import nearest
from corpus.workspace import Workspace
from draftmill.looking.chosen import Build
from draftmill.looking.reasons import NOT_NEEDED
from draftmill.looking.row_records import texts_of
from draftmill.looking.work_records import BEST_FIRST
from draftmill.table import printable

FIRST = 64
"""Ids looked at for each row wanted, at first."""
WIDER = 64

ANSWER = (
    "response_id prompt_id replica turn category source holdout state reason finish_reason response_tokens shard "
    "shard_row"
)
PROMPT = "prompt_id category source holdout"
LICENSE = "coalesce(s.license, p.license, 'unknown')"
LICENSED = "FROM sources s LEFT JOIN pools p USING (pool_id) WHERE s.build_id = $1"


@dataclass(frozen=True)
class Wanted:
    """Which rows are drawn; None is any."""

    n: int
    seed: int
    category: str | None = None
    source: str | None = None
    state: str | None = None
    finish_reason: str | None = None
    holdout: bool | None = None
    dropped: str | None = None
    license: str | None = None
    """Of sources under this licence, in any case; `unknown` is of those that state none."""

    @property
    def of_answers(self) -> bool:
        """Whether only answers can fit."""
        return self.state is not None or self.finish_reason is not None


@dataclass(frozen=True)
class Drawn:
    """One row: what labels it, and its texts."""

    labels: dict[str, Any]
    prompt: PromptTexts | None
    answer: ResponseTexts | None = None
    winner: PromptTexts | None = None


def draw(build: Build, wanted: Wanted, workspace: Workspace, reader: LedgerReader) -> list[Drawn]:
    """Rows that fit, as many as there are up to n, in an order that the seed decides.

    Raises:
        UserError: the build has no such category, source, finish reason or drop.
    """
    _refuse_unknown(build, wanted, reader)
    if wanted.dropped == NOT_NEEDED:
        return _not_needed(build, wanted, workspace, reader)
    if wanted.dropped is not None:
        return _dropped(build, wanted, workspace, reader)
    answered = bool(reader.rows("SELECT 1 FROM build_responses WHERE build_id = ? LIMIT 1", build.build_id))
    if not answered and wanted.of_answers:
        raise UserError(f"{build.label}: has no answers yet. Leave --state and --finish-reason out to see its prompts.")
    return _answers(build, wanted, workspace, reader) if answered else _prompts(build, wanted, workspace, reader)


def start_of(seed: int) -> str:
    """The point in the order of ids at which a sample begins."""
    return hashlib.sha256(f"sample:{seed}".encode()).hexdigest()[:32]


def _refuse_unknown(build: Build, wanted: Wanted, reader: LedgerReader) -> None:
    asked = [
        ("--category", wanted.category, "SELECT DISTINCT category FROM prompts WHERE candidates_id = $2 "
         "UNION SELECT category FROM build_targets WHERE build_id = $1"),
        ("--source", wanted.source, "SELECT source FROM sources WHERE build_id = $1 AND $2 IS NOT NULL"),
        ("--finish-reason", wanted.finish_reason, "SELECT DISTINCT finish_reason FROM responses WHERE "
         "$1 IS NOT NULL AND $2 IS NOT NULL"),
        ("--dropped", wanted.dropped, "SELECT DISTINCT reason FROM drops WHERE candidates_id = $2 UNION "
         "SELECT DISTINCT reason FROM source_rows WHERE pool_id IN (SELECT pool_id FROM sources WHERE build_id = $1) "
         f"UNION SELECT '{NOT_NEEDED}'"),
        ("--license", wanted.license, f"SELECT DISTINCT {LICENSE} {LICENSED} AND $2 IS NOT NULL"),
    ]  # fmt: skip
    for option, value, sql in asked:
        if value is None:
            continue
        known = {str(row[0]) for row in reader.rows(sql, build.build_id, build.candidates_id) if row[0] is not None}
        same = {one.lower() for one in known} if option == "--license" else known  # as licenses.deny takes them
        if (value.lower() if option == "--license" else value) not in same:
            there = printable(", ".join(sorted(known)[:20])) or "none"
            near = printable(nearest(value, known))
            raise UserError(f"{build.label}: {option} {ascii(value)[1:-1][:80]} is not there; there is: {there}.{near}")


def _widening(n: int, ask: Callable[[int], tuple[list[Any], bool]]) -> list[Any]:
    """Rows among the first ids of the order, and among ever more of them until n fit or all were looked at.

    Args:
        ask: how many ids to look at -> (rows that fit, whether these were all ids).
    """
    looked_at = FIRST * n
    while True:
        rows, everything = ask(looked_at)
        if len(rows) >= n or everything:
            return rows[:n]
        looked_at *= WIDER


def _answers(build: Build, wanted: Wanted, workspace: Workspace, reader: LedgerReader) -> list[Drawn]:
    conditions, values = _labels(build, wanted)
    start = start_of(wanted.seed)
    count = len(values)
    state = _state_condition(wanted, count + 3)
    names = ANSWER.split()

    def ask(most: int) -> tuple[list[Any], bool]:
        rows = reader.rows(
            f"""
            WITH drawn AS (
                SELECT response_id, prompt_id, replica, turn, category, source, holdout, left_out FROM build_responses
                WHERE {conditions} ORDER BY response_id < ${count + 1}, response_id LIMIT ${count + 2}
            ), best AS (
                SELECT * FROM responses WHERE response_id IN (SELECT response_id FROM drawn)
                QUALIFY row_number() OVER (PARTITION BY response_id ORDER BY {BEST_FIRST}) = 1
            ), judged AS (
                SELECT d.*, CASE WHEN r.state = 'accepted' AND d.left_out IS NOT NULL THEN 'left_out'
                                 ELSE coalesce(r.state, 'unfinished') END AS state,
                       coalesce(d.left_out, r.reason) AS reason, r.finish_reason, r.response_tokens, r.shard,
                       r.shard_row
                FROM drawn d LEFT JOIN best r ON r.response_id = d.response_id
            )
            SELECT {', '.join(names)}, (SELECT count(*) FROM drawn) FROM judged WHERE {state[0]}
            ORDER BY response_id < ${count + 1}, response_id
            """,
            *values, start, most, *state[1],
        )  # fmt: skip
        if rows:
            return [dict(zip(names, row[:-1], strict=True)) for row in rows], int(rows[0][-1]) < most
        ((there,),) = reader.rows(f"SELECT count(*) FROM build_responses WHERE {conditions}", *values)
        return [], int(there) <= most

    found = _widening(wanted.n, ask)
    prompts = texts_of([row["prompt_id"] for row in found], workspace, reader)
    places = [(row["response_id"], row["shard"], row["shard_row"]) for row in found if row["shard"] is not None]
    answers = response_texts(workspace, places)
    return [Drawn(row, prompts.get(row["prompt_id"]), answers.get((row["shard"], row["shard_row"]))) for row in found]


def _labels(build: Build, wanted: Wanted) -> tuple[str, list[Any]]:
    conditions: list[str] = ["build_id = $1"]
    values: list[Any] = [build.build_id]
    for name, value in (("category", wanted.category), ("source", wanted.source), ("holdout", wanted.holdout)):
        if value is not None:
            values.append(value)
            conditions.append(f"{name} = ${len(values)}")
    if wanted.license is not None:
        values.append(wanted.license)
        conditions.append(f"source IN (SELECT s.source {LICENSED} AND lower({LICENSE}) = lower(${len(values)}))")
    return " AND ".join(conditions), values


def _state_condition(wanted: Wanted, first: int) -> tuple[str, list[Any]]:
    conditions: list[str] = ["true"]
    values: list[Any] = []
    state = "accepted" if wanted.state == "truncated" else wanted.state
    finish = wanted.finish_reason or ("length" if wanted.state == "truncated" else None)
    for name, value in (("state", state), ("finish_reason", finish)):
        if value is not None:
            conditions.append(f"{name} = ${first + len(values)}")
            values.append(value)
    return " AND ".join(conditions), values


def _prompts(build: Build, wanted: Wanted, workspace: Workspace, reader: LedgerReader) -> list[Drawn]:
    conditions, values = _labels(build, wanted)
    names = PROMPT.split()
    rows = reader.rows(
        "SELECT prompt_id, category, source, holdout FROM selections "
        f"WHERE {conditions} AND replica = 0 ORDER BY prompt_id < ${len(values) + 1}, prompt_id "
        f"LIMIT ${len(values) + 2}",
        *values, start_of(wanted.seed), wanted.n,
    )  # fmt: skip
    found = [dict(zip(names, row, strict=True)) for row in rows]
    texts = texts_of([row["prompt_id"] for row in found], workspace, reader)
    return [Drawn(row, texts.get(row["prompt_id"])) for row in found]


DROP = (
    "prompt_id source file row_index reason detail winner_prompt_id winner_source similarity eval_set eval_item overlap"
)


def _dropped(build: Build, wanted: Wanted, workspace: Workspace, reader: LedgerReader) -> list[Drawn]:
    """Rows that were left out for one reason, with what they duplicate."""
    rows = reader.rows(
        f"""
        WITH left_out AS (
            SELECT {', '.join(DROP.split())} FROM drops WHERE candidates_id = $1 AND reason = $3
            UNION ALL
            SELECT r.prompt_id, s.source, r.file, r.row_index, r.reason, r.detail, NULL, NULL, NULL, NULL, NULL, NULL
            FROM source_rows r JOIN sources s ON s.pool_id = r.pool_id AND r.chunk < s.chunks
            WHERE s.build_id = $2 AND r.reason = $3
        )
        SELECT * EXCLUDE place FROM (
            SELECT *, md5(concat_ws(':', source, file, row_index)) AS place FROM left_out
            WHERE ($4 IS NULL OR source = $4)
              AND ($7 IS NULL OR source IN (SELECT s.source FROM sources s LEFT JOIN pools p USING (pool_id)
                                            WHERE s.build_id = $2 AND lower({LICENSE}) = lower($7)))
        ) ORDER BY place < $5, place LIMIT $6
        """,
        build.candidates_id, build.build_id, wanted.dropped, wanted.source, start_of(wanted.seed), wanted.n,
        wanted.license,
    )  # fmt: skip
    found = [dict(zip(DROP.split(), row, strict=True)) for row in rows]
    ids = [row[key] for row in found for key in ("prompt_id", "winner_prompt_id") if row[key] is not None]
    texts = texts_of(ids, workspace, reader)
    return [Drawn(row, texts.get(row["prompt_id"]), None, texts.get(row["winner_prompt_id"])) for row in found]


def _not_needed(build: Build, wanted: Wanted, workspace: Workspace, reader: LedgerReader) -> list[Drawn]:
    """Candidates that the mix had no need of: what a larger total would take next is among them."""
    conditions, values = _labels(build, wanted)
    start = len(values)
    rows = reader.rows(
        f"SELECT prompt_id, category, source FROM (SELECT *, $1 AS build_id FROM prompts "
        f"WHERE candidates_id = ${start + 1} AND source IN (SELECT source FROM sources WHERE build_id = $1)) "
        f"WHERE {conditions} "
        "AND prompt_id NOT IN (SELECT prompt_id FROM selections WHERE build_id = $1) "
        f"ORDER BY prompt_id < ${start + 2}, prompt_id LIMIT ${start + 3}",
        *values, build.candidates_id, start_of(wanted.seed), wanted.n,
    )  # fmt: skip
    found = [dict(zip(("prompt_id", "category", "source"), row, strict=True)) | {"reason": NOT_NEEDED} for row in rows]
    texts = texts_of([row["prompt_id"] for row in found], workspace, reader)
    return [Drawn(row, texts.get(row["prompt_id"])) for row in found]
