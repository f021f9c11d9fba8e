"""Which build a question is of, and how fresh the answer is.

The newest build where none is named, an import only where there is no build; else by id, first digits, name, or its
manifest. A name that nothing has gets the nearest that is there. Reads the published ledger; a manifest is read only
where one is named. Writes nothing.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from corpus.errors import UserError
from corpus.ledger.query import LedgerReader
from corpus.suggestions import nearest
from corpus.workspace import Workspace
from draftmill.builds import BUILD_ID, SHORT, safe_name
from draftmill.looking.answers import minute
from draftmill.table import printable

STALE_S = 60.0
"""Older than this, a snapshot's age is said while a run writes."""
MOST_NAMED = 3


@dataclass(frozen=True)
class Build:
    """One build of the ledger; an import is one too."""

    build_id: str
    name: str
    candidates_id: str
    unit: str
    """prompts or response_tokens: what total and shares count."""
    total: int
    selected: int
    held_out: int
    tolerance: float | None
    """Percentage points."""
    created_at: datetime | None
    imported: bool
    newest: bool
    """Of its kind: of builds, or of imports."""
    running: str | None
    """The command that works on it now, or None."""

    @property
    def label(self) -> str:
        """Its name and the first digits of its id."""
        return f"{printable(self.name)} {self.build_id[:8]}"

    @property
    def in_tokens(self) -> bool:
        """Whether its shares are of response tokens."""
        return self.unit == "response_tokens"


SELECT = """
    SELECT b.build_id, b.name, b.candidates_id, b.unit, b.total, b.selected, b.held_out, b.tolerance, b.created_at,
           b.build_id IN (SELECT import_id FROM imports)
    FROM builds b ORDER BY 10, b.created_at DESC, b.build_id
"""


def open_reader(workspace: Workspace) -> LedgerReader:
    """A reader of the snapshot.

    Raises:
        UserError: nothing is published there.
    """
    workspace.published()
    return LedgerReader(workspace)


def chosen_build(named: str | None, workspace: Workspace, reader: LedgerReader) -> Build:
    """The build that is meant.

    Raises:
        UserError: there is none, or more than one.
    """
    builds = all_builds(workspace, reader)
    if not builds:
        raise UserError(
            f"{workspace.root}: its ledger has no build yet. Run `draftmill build MANIFEST`, or `draftmill import`."
        )
    if named is None:
        return builds[0]
    path = Path(named)
    found = [one for one in builds if BUILD_ID.fullmatch(named) and one.build_id.startswith(named)]
    found = found or [one for one in builds if one.name == named]
    if not found and (path.suffix in (".yaml", ".yml") or path.is_file()):
        from draftmill.verifying import named_build

        wanted = named_build(named, workspace)
        found = [one for one in builds if one.build_id == wanted]
    if len(found) == 1:
        return found[0]
    if found:
        several = ", ".join(f"{one.build_id[:12]} ({minute(one.created_at)})" for one in found[:MOST_NAMED])
        more = ", …" if len(found) > MOST_NAMED else ""
        raise UserError(
            f"{workspace.root}: {safe_name(named)} names {len(found)} builds here: {several}{more}. Say which by its "
            "id."
        )
    if SHORT.fullmatch(named) and any(one.build_id.startswith(named) for one in builds):
        raise UserError(f"{safe_name(named)}: too short for an id; its first six digits are needed.")
    there = printable(", ".join(f"{one.build_id[:8]} ({one.name[:40]})" for one in builds[:MOST_NAMED]))
    near = printable(nearest(named, {one.name for one in builds}))
    raise UserError(
        f"{safe_name(named)}: neither a manifest nor a build in {workspace.root}; the newest here are {there}.{near}"
    )


def all_builds(workspace: Workspace, reader: LedgerReader) -> list[Build]:
    """Builds, the newest first, and then imports likewise: what was selected is what questions are of."""
    running: dict[str, str] = {}
    if workspace.coordinator() is not None:
        newest = reader.rows("SELECT command, build_id FROM runs WHERE outcome IS NULL ORDER BY run_id DESC LIMIT 1")
        running = {str(build_id): str(command) for command, build_id in newest}
    rows = reader.rows(SELECT)
    kinds = [bool(row[-1]) for row in rows]
    return [_build(row, kinds.index(kinds[place]) == place, running) for place, row in enumerate(rows)]


def _build(row: tuple[Any, ...], newest: bool, running: dict[str, str]) -> Build:
    build_id, name, candidates_id, unit, total, selected, held_out, tolerance, created_at, imported = row
    return Build(
        build_id, name or "", candidates_id, unit or "prompts", int(total or 0), int(selected or 0), int(held_out or 0),
        tolerance, created_at, bool(imported), newest, running.get(build_id),
    )  # fmt: skip


def age_note(workspace: Workspace, now: float | None = None) -> str | None:
    """How old the answer is, where a run writes on and that matters. `now`: UTC seconds since 1970."""
    if workspace.coordinator() is None:
        return None
    age = (time.time() if now is None else now) - workspace.snapshot.stat().st_mtime
    if age <= STALE_S:
        return None
    whole = int(age)
    return f"a run is writing here; this is as published {whole // 60}:{whole % 60:02} ago"


def heading(build: Build) -> str:
    """The first line: which build, and which of several it is."""
    what = "import" if build.imported else "build"
    which = f"the newest {what}" if build.newest else what
    made = f", made {minute(build.created_at)} UTC" if build.created_at else ""
    return f"{build.label}, {which}{made}"
