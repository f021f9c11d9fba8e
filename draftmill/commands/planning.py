"""The command that says what a manifest will take: plan."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from draftmill.commands import completion
from draftmill.commands.options import DEFAULT_WORKSPACE, Devices, ManifestPath, WorkspacePath


def register(app: typer.Typer) -> None:
    """Put this command into the app."""
    app.command("plan")(plan)


def plan(
    manifest: ManifestPath,
    workspace: WorkspacePath = DEFAULT_WORKSPACE,
    hardware: Annotated[
        str | None,
        typer.Option(
            "--hardware",
            metavar="GPU",
            autocompletion=completion.hardware,
            help="Reckon for this GPU of docs/hardware.md (b200, h200, h100, rtx-pro-6000, …). Default: this machine.",
        ),
    ] = None,
    gpus: Annotated[
        int | None, typer.Option("--gpus", metavar="N", min=1, help="How many. Default: 8, or all here.")
    ] = None,
    price: Annotated[
        float | None,
        typer.Option("--price", metavar="USD", min=0, help="Of one GPU and hour, instead of list prices."),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            metavar="FILE",
            help="The target's config.json, where neither its folder nor the Hub is at hand.",
        ),
    ] = None,
    devices: Devices = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print every number with its range and source as JSON.")
    ] = False,
) -> None:
    """Say what a manifest will take before it is run: rows, tokens, GPU-hours, money and disk, stage by stage.

    Each number says where it comes from: the manifest, this ledger's own lengths and rates, arithmetic on published
    figures, or an assumption. Nothing is read of the sources, nothing started.
    """
    from corpus.workspace import Workspace
    from draftmill.cost_lines import cost_lines
    from draftmill.planning import plan_costs
    from draftmill.session import Session

    costs = plan_costs(
        Session(manifest, Workspace(workspace), devices),
        hardware,
        gpus,
        None if price is None else (price, price),
        config,
    )
    if as_json:
        from dataclasses import asdict

        typer.echo(json.dumps(asdict(costs), indent=2))
        return
    for line in cost_lines(costs):
        typer.echo(line)
