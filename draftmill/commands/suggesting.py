"""The command that proposes the next mix: suggest."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from draftmill.commands.options import DEFAULT_WORKSPACE, DryRun, ManifestPath, WorkspacePath


def register(app: typer.Typer) -> None:
    """Put this command into the app."""
    app.command("suggest")(suggest)


def suggest(
    manifest: ManifestPath,
    workspace: WorkspacePath = DEFAULT_WORKSPACE,
    traffic: Annotated[
        list[str] | None,
        typer.Option(
            "--traffic",
            metavar="CATEGORY=WEIGHT",
            help="How much of what is served is of this category, in generated tokens, such as coding=40. May be given "
            "again; what is not named has none. Default: the manifest's own shares.",
        ),
    ] = None,
    traffic_file: Annotated[
        Path | None,
        typer.Option("--traffic-file", metavar="FILE", help="The same as a YAML or JSON file: category to weight."),
    ] = None,
    drafter: Annotated[
        str | None,
        typer.Option(
            "--drafter",
            metavar="ID",
            help="Whose acceptance lengths: its id, or the first digits. Default: the manifest's own, or else the "
            "newest measured one of its build, which is said.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", metavar="FILE", help="The next manifest; must not exist yet. Default: MANIFEST-next.yaml."
        ),
    ] = None,
    dry_run: DryRun = False,
) -> None:
    """Propose the next mix from the acceptance lengths by category, and write it as a new manifest.

    Shares move toward where decoding time goes, a factor of 1.5 at most; a category whose interval holds the mean is
    left as it is. Everything else of the manifest, its comments too, stays; the manifest itself is never changed.
    """
    from corpus.workspace import Workspace
    from draftmill.suggesting import next_mix, refuse_out, stated_traffic, write_next

    plan = next_mix(manifest, Workspace(workspace), stated_traffic(traffic or (), traffic_file), drafter, out)
    if not dry_run:
        refuse_out(plan)
    for line in plan.lines():
        typer.echo(line)
    if not dry_run:
        typer.echo(write_next(plan))
