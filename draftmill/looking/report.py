"""`draftmill report`: one build on one page, as HTML or Markdown; and DATA.md, the same Markdown beside the build.

The report is made from the published snapshot and written wherever a person wants it, whole or not at all. DATA.md is
made by the process that writes the ledger, when a stage has ended; it is a page and no part of the build, so whatever
keeps it from being written is said and ends nothing.
"""

from __future__ import annotations

import logging
import sys
from datetime import UTC, datetime
from pathlib import Path

from corpus.artefacts import write_text
from corpus.building import manifest_folder
from corpus.errors import first_line
from corpus.ledger.query import LedgerReader
from corpus.ledger.writer import Readable
from corpus.outputs import write_output_text
from corpus.workspace import Workspace
from draftmill.looking.report_markdown import markdown_text
from draftmill.looking.report_reading import read_facts
from draftmill.looking.report_sections import document

log = logging.getLogger("draftmill")

DATA = "DATA.md"
STDOUT = Path("-")


def make_report(workspace: Workspace, build_id: str, base: Path, *, markdown: bool) -> str:
    """The text of a build's report, from what is published.

    Args:
        base: relative paths of the manifest start here.

    Raises:
        UserError: nothing is published, or the build is not in it.
    """
    published_at = datetime.fromtimestamp(workspace.published().stat().st_mtime, UTC)
    facts = read_facts(
        LedgerReader(workspace), build_id, published_at=published_at, base=base, writing=workspace.coordinator()
    )
    if markdown:
        return markdown_text(document(facts))
    from draftmill.looking.report_html import html_text  # DATA.md of every build needs none of it

    return html_text(document(facts))


def report_path(workspace: Workspace, build_id: str, *, markdown: bool) -> Path:
    """Where a report goes that nobody named a file for."""
    return workspace.root / "reports" / f"{build_id}.{'md' if markdown else 'html'}"


def write_report(text: str, out: Path) -> None:
    """Write it; `-` is standard output.

    Raises:
        UserError: `out` is no file that can be written.
    """
    if out == STDOUT:
        sys.stdout.write(text)
        return
    write_output_text(out, text)


def write_data(ledger: Readable, build_id: str) -> None:
    """Write builds/<build_id>/DATA.md from what is committed; a failure is a warning."""
    path = ledger.workspace.build(build_id) / DATA
    try:
        base = manifest_folder(ledger.workspace, build_id) or Path()
        facts = read_facts(ledger, build_id, published_at=None, base=base)
        write_text(path, markdown_text(document(facts)))
    except Exception as error:  # a page must not end a run whose answers took a night
        log.warning(
            "%s was not written (%s); `draftmill report --markdown` makes the same", path, first_line(error)[:200]
        )


def data_is_old(workspace: Workspace, build_id: str) -> bool:
    """Whether DATA.md is missing, or older than what describes the build."""
    folder = workspace.build(build_id)
    try:
        written = (folder / DATA).stat().st_mtime_ns
        return any(path.stat().st_mtime_ns > written for path in (folder / "build.json", folder / "manifest.lock.yaml"))
    except OSError:
        return True
