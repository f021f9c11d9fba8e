"""How far each build is, in a few lines, from the published ledger."""

from __future__ import annotations

from datetime import UTC, datetime

from corpus.ledger.query import query
from corpus.workspace import Workspace
from draftmill.terminal import table


def status_lines(workspace: Workspace) -> list[str]:
    """Lines for a person.

    Raises:
        UserError: nothing is published there.
    """
    builds = query(
        workspace,
        """
        WITH final AS (
            SELECT response_id, bool_or(state = 'accepted') AS accepted, bool_or(state = 'rejected') AS rejected
            FROM responses GROUP BY ALL
        ), captured AS (
            SELECT DISTINCT response_id FROM hidden_rows
        ), answers AS (
            SELECT build_id, count(*) AS wanted, count(*) FILTER (f.accepted) AS accepted,
                   count(*) FILTER (f.rejected AND NOT f.accepted) AS rejected, count(c.response_id) AS captured
            FROM build_responses r LEFT JOIN final f USING (response_id) LEFT JOIN captured c USING (response_id)
            GROUP BY ALL
        )
        SELECT b.name, b.build_id, b.selected + b.held_out, coalesce(a.wanted, 0), coalesce(a.accepted, 0),
               coalesce(a.rejected, 0), coalesce(a.captured, 0),
               (SELECT count(*) FROM drafters d WHERE d.build_id = b.build_id)
        FROM builds b LEFT JOIN answers a USING (build_id) ORDER BY b.created_at
        """,
    )
    header = ("build", "name", "prompts", "answers", "accepted", "rejected", "captured", "drafters")
    rows = [
        (build_id[:8], name[:16], *(f"{count:,}" for count in counts)) for name, build_id, *counts in builds.iter_rows()
    ]
    published = datetime.fromtimestamp(workspace.snapshot.stat().st_mtime, UTC)
    age_s = (datetime.now(UTC) - published).total_seconds()
    lines = [str(workspace.root), *table(header, rows), f"as published {age_s:.0f} s ago"]
    owner = workspace.coordinator()
    if owner:
        return [*lines, f"running now: {owner}"]
    stopped = query(workspace, "SELECT command, started_at, outcome FROM runs ORDER BY started_at DESC LIMIT 1")
    for command, started, outcome in stopped.iter_rows():
        lines.append(f"last: {command}, started {started:%Y-%m-%d %H:%M} UTC, {outcome or 'killed'}")
    return lines
