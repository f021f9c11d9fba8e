"""Which build of a workspace a person means: by its id, the first digits of it, or its name.

Asks the builds' own files, so it also answers where no ledger is published.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from corpus.errors import UserError
from corpus.suggestions import nearest_file
from corpus.workspace import Workspace

NEWEST = 3  # builds that are named where there is no such one
BUILD_ID = re.compile(r"[0-9a-f]{6,24}")
SHORT = re.compile(r"[0-9a-f]{1,5}")


@dataclass(frozen=True)
class Known:
    """What the workspace says of one of its builds, an import's too."""

    build_id: str
    name: str
    created_at: str
    imported: bool


def find_build(named: str, workspace: Workspace, *, imports: bool = False) -> Known:
    """The build that is called so.

    Args:
        imports: an import will do too.

    Raises:
        UserError: there is none, more than one, or it is an import and none will do.
    """
    known = _builds(workspace)
    found = [one for one in known if BUILD_ID.fullmatch(named) and one.build_id.startswith(named)]
    found = found or [one for one in known if one.name == named]
    if len(found) > 1:
        several = ", ".join(f"{one.build_id[:12]} ({safe_name(one.created_at[:16])})" for one in found[:NEWEST])
        more = ", …" if len(found) > NEWEST else ""
        raise UserError(
            f"{workspace.root}: {safe_name(named)} names {len(found)} builds here: {several}{more}. Say which by its "
            "id."
        )
    if not found and SHORT.fullmatch(named) and any(one.build_id.startswith(named) for one in known):
        raise UserError(f"{safe_name(named)}: too short for an id; its first six digits are needed.")
    if not found:
        built = [f"{one.build_id[:8]} ({safe_name(one.name)})" for one in known if not one.imported]
        there = f"the newest here are {', '.join(built[:NEWEST])}" if built else "there is none yet"
        raise UserError(
            f"{safe_name(named)}: neither a file nor a build in {workspace.root}; {there}.{_near_file(named)}"
        )
    (one,) = found
    if one.imported and not imports:
        raise UserError(
            f"{safe_name(named)}: is the import {safe_name(one.name)}; a diff is of builds, which shares select. Ask "
            f"what is in it: draftmill sql \"FROM composition WHERE build_id = '{one.build_id}'\""
        )
    return one


def safe_name(named: str) -> str:
    """A name in a line for a person: anybody's text, of which nothing steers the terminal."""
    return ascii(named)[1:-1][:200]


def _near_file(named: str) -> str:
    path = Path(named)
    near = nearest_file(path.name, [one.name for one in path.parent.glob("*.y*ml")])
    return f" Did you mean {path.parent / near}?" if near else ""


def _builds(workspace: Workspace) -> list[Known]:
    """Builds and imports of the workspace, the newest first; a damaged one has no name."""
    found = []
    for build_id, body in described(workspace.root):
        name, created_at = (str(body.get(key) or "") for key in ("name", "created_at"))
        found.append(Known(build_id, name, created_at, body.get("kind") == "import"))
    return sorted(found, key=lambda one: (one.created_at, one.build_id), reverse=True)


def described(root: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """(id, what its file says) of every build and import of a workspace, by id; a damaged file says nothing."""
    for path in sorted(root.glob("builds/*/build.json")):
        try:
            body = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            body = {}
        yield path.parent.name, body if isinstance(body, dict) else {}
