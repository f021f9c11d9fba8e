"""The commands about this machine: doctor."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from draftmill.commands import completion
from draftmill.commands.options import DEFAULT_WORKSPACE, Devices, WorkspacePath


def register(app: typer.Typer) -> None:
    """Put these commands into the app."""
    app.command("doctor")(doctor)


def doctor(
    manifest: Annotated[
        Path | None,
        typer.Argument(
            metavar="MANIFEST",
            autocompletion=completion.manifests,
            help="Also say what fits of this manifest's target, and where.",
        ),
    ] = None,
    workspace: WorkspacePath = DEFAULT_WORKSPACE,
    devices: Devices = None,
) -> None:
    """Check that this machine can run draftmill: packages, devices and their links, memory, disk.

    With a manifest, also what its target leaves room for on them. Starts nothing. Exits 3 if something is missing.
    """
    from draftmill.doctor import examine

    checks = examine(workspace, devices, manifest)
    for check in checks:
        typer.echo(f"{check.mark:<5}{check.what:<14}{check.found}")
    if any(check.mark == "FAIL" for check in checks):
        raise typer.Exit(3)
