"""What the explorer asks of a ledger: the rows of a build, a page of them, and all that is known of one.

Three lists: the answers that a build wants, its prompts, and the rows that its sources lost before selection. Each is
made once a snapshot (LISTS), then filtered and paged in DuckDB; no more than a page's rows come into Python.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from draftmill.looking.filters import CHOICES, Filters, condition
from draftmill.looking.paging import Paging

if TYPE_CHECKING:
    from draftmill.looking.explorer_snapshot import Snapshot

ANSWERS, PROMPTS, DROPPED = "answers", "prompts", "dropped"
KINDS = (ANSWERS, PROMPTS, DROPPED)
DROPPED_ROW = "prompt_id, pool_id, chunk, file, row_index, detail"
PAGE_ROWS = 25
MOST_CHOICES = 200
"""Values of one column that a form offers, the most frequent first."""

ORDERS = {
    "given": "", "longest": "ORDER BY response_tokens DESC NULLS LAST, prompt_tokens DESC NULLS LAST, rowid",
    "shortest": "ORDER BY response_tokens NULLS LAST, prompt_tokens NULLS LAST, rowid",
    "longest-prompt": "ORDER BY prompt_tokens DESC NULLS LAST, rowid",
}  # fmt: skip
"""`given` is the list's own order, which a table in memory keeps."""

LISTS = {
    # of an answer's attempts the accepted one counts, else the last: as in the view provenance
    ANSWERS: """
WITH mine AS (
    SELECT rowid AS place, response_id, category, source, holdout, left_out FROM build_responses WHERE build_id = $build
), taken AS (
    SELECT response_id, rowid AS tried, state, reason, finish_reason, prompt_tokens, response_tokens
    FROM responses WHERE state = 'accepted'
), refused AS (
    SELECT response_id, arg_max(rowid, (shard, shard_row)) AS tried FROM responses
    WHERE state <> 'accepted' AND response_id IN (SELECT response_id FROM mine ANTI JOIN taken USING (response_id))
    GROUP BY response_id
), best AS (
    SELECT * FROM taken UNION ALL
    SELECT f.response_id, f.tried, r.state, r.reason, r.finish_reason, r.prompt_tokens, r.response_tokens
    FROM refused f JOIN responses r ON r.rowid = f.tried
)
SELECT m.place, b.tried, m.category, m.source, m.holdout,
       CASE WHEN b.state = 'accepted' AND m.left_out IS NOT NULL THEN 'left_out'
            ELSE coalesce(b.state, 'unfinished') END AS state,
       coalesce(m.left_out, b.reason) AS reason, b.finish_reason, b.prompt_tokens, b.response_tokens
FROM mine m LEFT JOIN best b USING (response_id) ORDER BY m.place""",
    PROMPTS: """
SELECT s.rowid AS place, p.rowid AS tried, s.category, s.source, s.holdout,
       'selected' AS state, NULL::VARCHAR AS reason, NULL::VARCHAR AS finish_reason, p.prompt_tokens,
       NULL::BIGINT AS response_tokens
FROM selections s JOIN builds b USING (build_id)
LEFT JOIN prompts p ON p.candidates_id = b.candidates_id AND p.prompt_id = s.prompt_id
WHERE s.build_id = $build ORDER BY s.rowid""",
    DROPPED: """
WITH lost AS (
    SELECT 1 AS stage, r.rowid AS place, s.source, r.reason FROM sources s
    JOIN source_rows r ON r.pool_id = s.pool_id AND r.chunk < s.chunks
    WHERE s.build_id = $build AND r.reason IS NOT NULL
    UNION ALL
    SELECT 2, d.rowid, d.source, d.reason FROM drops d
    JOIN builds b ON b.candidates_id = d.candidates_id
    WHERE b.build_id = $build AND d.source IN (SELECT source FROM sources WHERE build_id = $build)
)
SELECT place, stage AS tried, NULL::VARCHAR AS category, source, NULL::BOOLEAN AS holdout,
       'dropped' AS state, reason, NULL::VARCHAR AS finish_reason, NULL::BIGINT AS prompt_tokens,
       NULL::BIGINT AS response_tokens
FROM lost ORDER BY stage, place""",
}
"""By kind. `place` is the row in build_responses, selections, source_rows or drops; `tried` the attempt, or the prompt,
or of a dropped row which of the two tables (1, 2)."""


@dataclass(frozen=True)
class Listed:
    """One page."""

    paging: Paging
    rows: list[dict[str, Any]]


def kinds_of(snapshot: Snapshot, build_id: str) -> list[str]:
    """The lists that have rows, the one to show first at their head."""
    (has,) = snapshot.rows("SELECT EXISTS (FROM build_responses WHERE build_id = ?)", build_id)[0]
    return [ANSWERS, PROMPTS, DROPPED] if has else [PROMPTS, DROPPED]


def choices(snapshot: Snapshot, kind: str, build_id: str) -> dict[str, list[tuple[str, int]]]:
    """Of each column that a form filters by: its values and their rows; "" stands for none. All rows are counted."""
    table = snapshot.list_of(kind, build_id)
    names = [name for name in CHOICES if name != "holdout"]
    counted = snapshot.rows(
        f"SELECT {', '.join(f'coalesce({name}, {chr(39) * 2})' for name in names)}, coalesce(holdout, false), count(*) "
        f"FROM {table} GROUP BY ALL"
    )
    found: dict[str, dict[str, int]] = {name: {} for name in CHOICES}
    for *values, held, rows in counted:
        for name, value in [*zip(names, values, strict=True), ("holdout", "yes" if held else "no")]:
            found[name][value] = found[name].get(value, 0) + rows
    return {
        name: sorted(values.items(), key=lambda pair: (-pair[1], pair[0]))[:MOST_CHOICES]
        for name, values in found.items()
    }


def count_rows(snapshot: Snapshot, kind: str, build_id: str, filters: Filters) -> int:
    """How many rows the filters leave."""
    where, values = condition(filters)
    table = snapshot.list_of(kind, build_id)
    return int(snapshot.rows(f"SELECT count(*) FROM {table} WHERE {where}", *values)[0][0])


def listed(snapshot: Snapshot, kind: str, build_id: str, filters: Filters, page: int, order: str) -> Listed:
    """One page of the rows that the filters leave, with the ids that lead to the rest."""
    where, values = condition(filters)
    table = snapshot.list_of(kind, build_id)
    paging = Paging(count_rows(snapshot, kind, build_id, filters), PAGE_ROWS, page)
    rows = snapshot.records(
        f"SELECT * FROM {table} WHERE {where} {ORDERS[order]} LIMIT ? OFFSET ?",
        *values, paging.size, paging.offset,
    )  # fmt: skip
    _add_ids(snapshot, kind, rows)
    return Listed(paging, rows)


def _add_ids(snapshot: Snapshot, kind: str, rows: list[dict[str, Any]]) -> None:
    """Names of the very rows, and where their prompts lie."""
    tables = {ANSWERS: ("build_responses",), PROMPTS: ("selections",), DROPPED: ("source_rows", "drops")}[kind]
    columns = {
        "build_responses": "response_id, prompt_id, replica, turn",
        "selections": "prompt_id, replica",
        "source_rows": f"{DROPPED_ROW}, NULL AS winner_prompt_id, NULL AS winner_source, NULL AS similarity",
        "drops": f"{DROPPED_ROW}, winner_prompt_id, winner_source, similarity",
    }
    for stage, table in enumerate(tables, start=1):
        mine = [row for row in rows if kind != DROPPED or row["tried"] == stage]
        if not mine:
            continue
        marks = ", ".join("?" * len(mine))
        found = snapshot.records(
            f"SELECT rowid AS place, {columns[table]} FROM {table} WHERE rowid IN ({marks})",
            *(row["place"] for row in mine),
        )
        by_place = {one["place"]: one for one in found}
        for row in mine:
            row.update(by_place[row["place"]])


def places(snapshot: Snapshot, build_id: str, prompt_ids: list[str]) -> dict[str, tuple[str, int]]:
    """The pool and chunk that hold each prompt of a build."""
    if not prompt_ids:
        return {}
    marks = ", ".join("?" * len(prompt_ids))
    return {
        prompt_id: (pool_id, chunk)
        for prompt_id, pool_id, chunk in snapshot.rows(
            f"SELECT prompt_id, pool_id, chunk FROM prompts WHERE prompt_id IN ({marks}) "
            "AND candidates_id = (SELECT candidates_id FROM builds WHERE build_id = ?)",
            *prompt_ids, build_id,
        )
    }  # fmt: skip
