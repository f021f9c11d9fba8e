"""The commands that only look: sql, status, schema."""

from __future__ import annotations

import json
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from draftmill.commands.options import DEFAULT_WORKSPACE, WorkspacePath


class Format(StrEnum):
    """How rows are printed."""

    table = "table"
    csv = "csv"
    json = "json"
    parquet = "parquet"


def register(app: typer.Typer) -> None:
    """Put these commands into the app."""
    app.command("sql")(sql)
    app.command("status")(status)
    app.command("schema")(schema)


def sql(
    statement: Annotated[str, typer.Argument(metavar="SQL", help="One SELECT; - reads it from standard input.")],
    workspace: WorkspacePath = DEFAULT_WORKSPACE,
    output: Annotated[
        Format | None,
        typer.Option("--format", "-f", help="How to print the rows. Default: by FILE's name, else table."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="Write to a file instead of standard output.")
    ] = None,
) -> None:
    """Ask the ledger with SQL. Read-only: it opens the published snapshot, also while a run is writing.

    Views: composition, funnel, provenance, unfinished, throughput, acceptance_by_category, accepted_responses; and, in
    this command alone, prompt_text, original_text and response_text. docs/ledger.md has their columns.
    """
    from corpus.errors import UserError
    from corpus.ledger.query import query
    from corpus.workspace import Workspace
    from draftmill.rows import write_rows

    form = output or _form_of(out)
    if form is Format.parquet and out is None and sys.stdout.isatty():
        raise UserError("sql: parquet is binary; name a file with --out FILE.")
    rows = query(Workspace(workspace), sys.stdin.read() if statement == "-" else statement)
    write_rows(rows, form.value, out)


def _form_of(out: Path | None) -> Format:
    suffix = out.suffix.lstrip(".").lower() if out else ""
    return Format(suffix) if suffix in {form.value for form in Format} else Format.table


def status(workspace: WorkspacePath = DEFAULT_WORKSPACE) -> None:
    """What the workspace holds and how far each build is, from the published ledger."""
    from corpus.workspace import Workspace
    from draftmill.status import status_lines

    for line in status_lines(Workspace(workspace)):
        typer.echo(line)


def schema() -> None:
    """Print the manifest's JSON Schema, so that editors complete and check manifests."""
    from corpus.manifest_file import manifest_schema

    typer.echo(json.dumps(manifest_schema(), indent=2, ensure_ascii=False))
