"""The command that gives captured states to other trainers: export-states."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from draftmill.commands.options import DEFAULT_WORKSPACE, DryRun, Limit, ManifestPath, WorkspacePath


class StatesFormat(StrEnum):
    """Whose folder it is."""

    speculators = "speculators"


def register(app: typer.Typer) -> None:
    """Put this command into the app."""
    app.command("export-states")(export_states)


def export_states(
    manifest: ManifestPath,
    folder: Annotated[
        Path,
        typer.Argument(metavar="FOLDER", help="Where to write it: new, empty, or begun by this command before."),
    ],
    form: Annotated[
        StatesFormat, typer.Option("--format", help="The trainer that reads it; its offline trainer, without a server.")
    ] = StatesFormat.speculators,
    workspace: WorkspacePath = DEFAULT_WORKSPACE,
    limit: Limit = None,
    dry_run: DryRun = False,
) -> None:
    """Copy the captured states of the manifest's build into the folder that another trainer reads.

    Rows to train on come first and held-out rows last, and the ratio that splits them there is printed. Each row keeps
    its category, source, license and ids as columns. The same command goes on after a stop.
    """
    from corpus.workspace import Workspace
    from draftmill.exporting_states import plan_states, run_states
    from draftmill.session import Session
    from draftmill.terminal import laid_out

    session = Session(manifest, Workspace(workspace), limit=limit)
    _ = session.manifest
    plan = plan_states(session, folder)
    for line in laid_out(plan.lines()):
        typer.echo(line)
    if not dry_run:
        for line in laid_out([run_states(plan, session)], below=""):
            typer.echo(line)
