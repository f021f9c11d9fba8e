"""Options that several commands share: one declaration each, so that name, help and default never part."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

ManifestPath = Annotated[Path, typer.Argument(metavar="MANIFEST", help="The manifest: a YAML file.")]
WorkspacePath = Annotated[
    Path,
    typer.Option(
        "--workspace",
        "-w",
        metavar="FOLDER",
        envvar="DRAFTMILL_WORKSPACE",
        help="Folder of pools, builds, responses, states, drafters and the ledger. Commands that write make it.",
    ),
]
Devices = Annotated[
    str | None,
    typer.Option(
        "--devices",
        metavar="LIST",
        help="Devices to use: all, a number of them, or a list such as cuda:0-3 or cpu:0,cpu:1. Default: all.",
    ),
]
Limit = Annotated[
    int | None,
    typer.Option("--limit", metavar="N", min=1, help="Work on at most N rows now, category shares kept."),
]
ForceTensorParallel = Annotated[
    bool,
    typer.Option(
        "--force-tensor-parallel",
        help="Take the manifest's engine.extra.tensor_parallel_size over GPUs without NVLink too; slower as a rule.",
    ),
]
Ray = Annotated[
    str | None,
    typer.Option(
        "--ray",
        metavar="ADDRESS",
        help="Run the workers on this Ray cluster: host:port, ray://host:port, or auto. Needs draftmill[ray].",
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the plan and start nothing.")]

DEFAULT_WORKSPACE = Path("workspace")
