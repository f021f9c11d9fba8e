"""The ledger's own commands: path, rebuild."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from draftmill.commands.options import DEFAULT_WORKSPACE, WorkspacePath

if TYPE_CHECKING:
    from corpus.workspace import Workspace

app = typer.Typer(help="The ledger itself.", no_args_is_help=True, rich_markup_mode=None)


@app.command(short_help="print the file for your own DuckDB client")
def path(workspace: WorkspacePath = DEFAULT_WORKSPACE) -> None:
    """Print the file to open with your own DuckDB client: the published snapshot, never the live ledger."""
    from corpus.workspace import Workspace

    typer.echo(str(Workspace(workspace).published().resolve()))


@app.command(short_help="make the ledger again from the workspace's files")
def rebuild(workspace: WorkspacePath = DEFAULT_WORKSPACE) -> None:
    """Make the ledger again from the workspace's files. The old one is kept beside it as ledger.duckdb.old."""
    from corpus.errors import UserError
    from corpus.ledger.rebuild import rebuild_workspace
    from corpus.workspace import Workspace

    if not any((workspace / name).exists() for name in ("pools", "builds", "ledger.duckdb")):
        raise UserError(f"{workspace}: no workspace (it holds no pools, builds or ledger). Name the right --workspace.")
    place = Workspace(workspace)
    for kind, count in rebuild_workspace(place).items():
        typer.echo(f"{kind:<16}{count:>10,}")
    _write_missing_data(place)


def _write_missing_data(workspace: Workspace) -> None:
    """DATA.md of the builds that have none: a copy of a workspace may have been made without them."""
    from corpus.ledger.query import LedgerReader
    from draftmill.looking.report import DATA, write_data

    ledger = LedgerReader(workspace)
    for (build_id,) in ledger.rows("SELECT build_id FROM builds ORDER BY created_at"):
        if not (workspace.build(build_id) / DATA).exists():
            write_data(ledger, build_id)
