"""What `draftmill verify` looks at and prints: the build that a person means, and a proof of 80 columns.

A manifest is known by the build whose lock says the same of prompts (nothing is read of its sources, and nothing is
planned): so that verifying needs no source and writes nothing. Lines go to standard output, progress to standard error.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from textwrap import wrap
from typing import Any

from corpus.errors import UserError
from corpus.identity import LEFT_OUT
from corpus.ledger.findings import Finding
from corpus.ledger.query import LedgerReader
from corpus.manifest import Manifest
from corpus.manifest_file import load_manifest
from corpus.workspace import Workspace
from draftmill.builds import find_build
from draftmill.table import cut, printable

WIDTH = 80
INDENT = 28  # two spaces, the verdict and the name
OF_PROMPTS = ("seed", "mix", "sources", "filters", "dedup", "decontaminate")
"""Sections of a manifest that decide which prompts a build takes."""


def named_build(named: str | None, workspace: Workspace) -> str | None:
    """The build_id that a manifest's path, a build's or import's id or name means; None for all of them.

    Raises:
        UserError: there is none, or more than one.
    """
    if named is None:
        return None
    path = Path(named)
    if path.suffix in (".yaml", ".yml") or path.is_file():
        build_id = build_of(load_manifest(path), workspace)
        if build_id is None:
            _refuse_unpublished(workspace)
            raise UserError(
                f"{named}: is not built in {workspace.root} as it is now. Run `draftmill build` first, or name a "
                "build: `draftmill status` lists them."
            )
        return build_id
    _refuse_unpublished(workspace)
    return find_build(named, workspace, imports=True).build_id


def _refuse_unpublished(workspace: Workspace) -> None:
    """Where nothing is published and nothing built, that is the answer, whatever is named.

    Raises:
        UserError: it is so.
    """
    if not any(workspace.root.glob("builds/*")):
        workspace.published()


def proof_lines(findings: Sequence[Finding], workspace: Workspace) -> list[str]:
    """The proof for a person: whose it is and how old, a block a build, a block for the workspace, and the sum."""
    published = datetime.fromtimestamp(workspace.snapshot.stat().st_mtime, UTC)
    lines = wrap(f"{workspace.root}, as published {published:%Y-%m-%d %H:%M:%S} UTC", WIDTH)
    writing = workspace.coordinator()
    if writing:
        lines += wrap(f"{writing} is writing here; what it has done since is not looked at", WIDTH)
    names = dict(LedgerReader(workspace).rows("SELECT build_id, name FROM builds"))
    block: str | None = ""
    for one in findings:
        if one.build != block:
            block = one.build
            name = printable(str(names.get(block) or "")[:40])
            lines.append("workspace" if block is None else cut(f"{name} {block}".strip(), WIDTH))
        lines += _finding_lines(one)
    breached = sum(not one.holds for one in findings)
    lines.append(
        f"{breached:,} of {len(findings):,} checks breached" if breached else f"all {len(findings):,} checks hold"
    )
    return lines


def _finding_lines(one: Finding) -> list[str]:
    head = f"  {'ok' if one.holds else 'BREACH':<8}{one.what:<18}"
    return [
        *wrap(printable(one.said), WIDTH, initial_indent=head, subsequent_indent=" " * INDENT),
        *([] if one.said else [head.rstrip()]),
        *(line for text in (*one.notes, *one.examples, one.next_step) if text for line in _indented(text)),
    ]


def _indented(text: str) -> list[str]:
    """Wrapped between words: the name of a file that is too long for its line has one of its own, whole."""
    return wrap(
        printable(text), WIDTH, initial_indent=" " * 10, subsequent_indent=" " * 12,
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip


def build_of(manifest: Manifest, workspace: Workspace) -> str | None:
    """The newest build whose lock says the same of prompts; None where there is none."""
    wanted = _of_prompts(manifest.model_dump(mode="json"))
    fitting = []
    for path in workspace.root.glob("builds/*/manifest.lock.yaml"):
        try:
            if _of_prompts(json.loads(path.read_text(encoding="utf-8"))["manifest"]) == wanted:
                fitting.append((path.stat().st_mtime_ns, path.parent.name))
        except (OSError, ValueError, KeyError, TypeError):  # damaged: `draftmill build` writes it again
            continue
    return max(fitting)[1] if fitting else None


def _of_prompts(body: dict[str, Any]) -> dict[str, Any]:
    """What of a manifest decides which prompts are taken; a lock has resolved the revisions."""
    kept = {key: body[key] for key in OF_PROMPTS}
    mix = {key: value for key, value in kept["mix"].items() if key not in LEFT_OUT["build"]}
    sources = [{key: value for key, value in one.items() if key != "revision"} for one in kept["sources"]]
    return kept | {"mix": mix, "sources": sources}
