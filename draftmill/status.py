"""How far each build is, in a few lines, from the published ledger; and what runs there, from outside."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from textwrap import wrap

from corpus.columns import table
from corpus.ledger.query import query
from corpus.workspace import Workspace
from draftmill.looking.answers import UNLINKED, count
from draftmill.scene import ended_line, going_line, look
from draftmill.table import cut, printable
from draftmill.terminal import WIDTH
from training.begun import all_begun

NAME, FIGURE = 12, 7
"""Columns of a name and a count: all eight of a build, with their gaps, are a line."""
UNFINISHED = 5
"""That are listed."""


def status_lines(workspace: Workspace) -> list[str]:
    """Lines for a person: the builds, and what runs or ran last.

    Raises:
        UserError: nothing is published there.
    """
    lines, scene, now = build_lines(workspace), look(workspace), time.time()
    if scene.owner:
        return [*lines, *_wrapped(f"running now: {scene.owner}"), *_wrapped(going_line(scene, now))]
    return [*lines, *(_wrapped(f"last: {ended_line(scene.run, now)}") if scene.run else [])]


def _wrapped(line: str) -> list[str]:
    return wrap(printable(line), WIDTH, subsequent_indent="  ", break_on_hyphens=False)


def build_lines(workspace: Workspace) -> list[str]:
    """How far each build is.

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
            SELECT build_id, count(*) AS wanted, count(*) FILTER (f.accepted AND r.left_out IS NULL) AS accepted,
                   count(*) FILTER (r.left_out IS NOT NULL OR f.rejected AND NOT f.accepted) AS rejected,
                   count(c.response_id) AS captured
            FROM build_responses r LEFT JOIN final f USING (response_id) LEFT JOIN captured c USING (response_id)
            GROUP BY ALL
        )
        SELECT coalesce(b.name, '-'), b.build_id, coalesce(b.selected, 0) + coalesce(b.held_out, 0),
               coalesce(a.wanted, 0), coalesce(a.accepted, 0),
               coalesce(a.rejected, 0), coalesce(a.captured, 0),
               (SELECT count(*) FROM drafters d WHERE d.build_id = b.build_id)
        FROM builds b LEFT JOIN answers a USING (build_id) ORDER BY b.created_at
        """,
    )
    header = ("build", "name", "prompts", "answers", "accepted", "rejected", "captured", "drafters")
    rows = [
        (build_id[:8], cut(printable(name[:NAME]), NAME), *(count(number, FIGURE) for number in counts))
        for name, build_id, *counts in builds.iter_rows()
    ]
    published = datetime.fromtimestamp(workspace.snapshot.stat().st_mtime, UTC)
    age_s = (datetime.now(UTC) - published).total_seconds()
    published_line = f"as published {age_s:.0f} s ago"
    imports = {row[0] for row in query(workspace, "SELECT import_id FROM imports").iter_rows()}
    unlinked = any(wanted == 0 and build_id not in imports for _, build_id, _, wanted, *_ in builds.iter_rows())
    return [
        *_wrapped(str(workspace.root)), *table(header, rows), *(_wrapped(UNLINKED) if unlinked else []),
        *unfinished_lines(workspace), published_line,
    ]  # fmt: skip


def unfinished_lines(workspace: Workspace) -> list[str]:
    """Drafters that are begun and not finished, from their folders: the ledger knows those that are whole."""
    found = [one for one in all_begun(workspace) if not one.finished]
    lines = [
        printable(f"unfinished drafter {one.drafter_id} of {one.build_id[:8]}: step {one.step:,} of {one.steps:,}")
        for one in found[:UNFINISHED]
    ]
    more = len(found) - UNFINISHED
    return [*lines, f"{more:,} more unfinished drafters"] if more > 0 else lines
