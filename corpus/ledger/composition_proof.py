"""The proof that `composition` says what is there: its rows by stage, category and source, counted once more, plainly.

What composition comes to is kept in the ledger (corpus.ledger.kept), so it is held against the tables that it is of.
"""

from __future__ import annotations

from corpus.ledger.accounts import REBUILD, Build
from corpus.ledger.findings import MOST_EXAMPLES, Finding, Problems
from corpus.ledger.writer import Readable

WANTED = "FROM build_responses b WHERE b.build_id = $1 AND NOT b.holdout"
ACCEPTED = "b.response_id IN (SELECT response_id FROM responses WHERE state = 'accepted')"
COMPARED = f"""
    WITH counted AS (
        SELECT 'selected' AS stage, b.category, b.source, count(*) AS rows
        FROM selections b WHERE b.build_id = $1 AND NOT b.holdout GROUP BY ALL
        UNION ALL
        SELECT 'accepted', b.category, b.source, count(*) {WANTED} AND b.left_out IS NULL AND {ACCEPTED} GROUP BY ALL
        UNION ALL
        SELECT 'captured', b.category, b.source, count(*) {WANTED} AND b.left_out IS NULL AND {ACCEPTED}
        AND b.response_id IN (SELECT response_id FROM hidden_rows) GROUP BY ALL
        UNION ALL
        SELECT 'trained', b.category, b.source, count(*) {WANTED} AND {ACCEPTED} AND b.response_id IN (
            SELECT t.response_id FROM drafters d JOIN drafter_responses t USING (drafter_id) WHERE d.build_id = $1
        ) GROUP BY ALL
    )
    SELECT stage, category, source, c.rows, v.rows
    FROM counted c FULL JOIN (
        SELECT stage, category, source, rows FROM composition
        WHERE build_id = $1 AND stage IN ('selected', 'accepted', 'captured', 'trained')
    ) v USING (stage, category, source)
    WHERE coalesce(c.rows, 0) <> coalesce(v.rows, 0) ORDER BY ALL
"""


def check_composition(ledger: Readable, build: Build) -> Finding:
    """The view's rows are those of the tables."""
    problems = Problems()
    rows = ledger.rows(COMPARED, build.build_id)
    shown = [f"{stage} {category}/{source}: {there or 0:,}, composition says {said or 0:,}"
             for stage, category, source, there, said in rows]  # fmt: skip
    problems.add("counts that differ", shown[:MOST_EXAMPLES], len(shown))
    checked = ledger.rows("SELECT count(*) FROM composition WHERE build_id = ?", build.build_id)[0][0]
    return problems.finding(
        "composition", checked, f"{checked:,} counts", REBUILD, proven="as the tables have them", build=build.build_id
    )
