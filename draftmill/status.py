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
    age = datetime.now(UTC) - datetime.fromtimestamp(
        workspace.snapshot.stat().st_mtime if workspace.snapshot.exists() else 0, UTC
    )
    builds = query(
        workspace,
        """
        SELECT b.name, b.build_id, b.selected + b.held_out AS prompts,
               (SELECT count(*) FROM build_responses r WHERE r.build_id = b.build_id) AS wanted,
               (SELECT count(*) FROM build_responses r JOIN accepted_responses a USING (response_id)
                WHERE r.build_id = b.build_id) AS accepted,
               (SELECT count(DISTINCT r.response_id) FROM build_responses r JOIN hidden_rows h USING (response_id)
                WHERE r.build_id = b.build_id) AS captured,
               (SELECT count(*) FROM drafters d WHERE d.build_id = b.build_id) AS drafters
        FROM builds b ORDER BY b.created_at
        """,
    )
    header = ("build", "name", "prompts", "answers", "accepted", "captured", "drafters")
    rows = [
        (build_id[:12], name, f"{prompts:,}", f"{wanted:,}", f"{accepted:,}", f"{captured:,}", str(drafters))
        for name, build_id, prompts, wanted, accepted, captured, drafters in builds.iter_rows()
    ]
    lines = [f"{workspace.root}, ledger published {age.total_seconds():.0f} s ago", *table(header, rows)]
    running = query(
        workspace,
        "SELECT command, run_id, started_at FROM runs WHERE outcome IS NULL ORDER BY started_at DESC LIMIT 1",
    )
    if running.height:
        command, run_id, started = running.row(0)
        lines.append(f"last unfinished run: {command} {run_id}, started {started:%Y-%m-%d %H:%M} UTC")
    return lines
