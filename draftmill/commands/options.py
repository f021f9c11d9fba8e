"""Options that several commands share: one declaration each, so that name, help and default never part."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from draftmill.commands import completion
from training.export_speculators import Form

SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?\s*", re.IGNORECASE)
POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def size_bytes(text: str) -> int:
    """Bytes that a size such as 500GB, 1.5TB or 2TiB means; a bare number is bytes."""
    match = SIZE.fullmatch(text)
    if match is None:
        raise typer.BadParameter(f"got {text!r}; a size is written as 500GB, 1.5TB or 2TiB.")
    number, unit, binary = match.groups()
    return int(float(number) * (1024 if binary else 1000) ** POWERS[unit.lower()])


ManifestPath = Annotated[
    Path,
    typer.Argument(metavar="MANIFEST", help="The manifest: a YAML file.", autocompletion=completion.manifests),
]
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
    typer.Option(
        "--limit",
        metavar="N",
        min=1,
        help="Work on at most N prompts (generate) or rows (extract, train) now, category shares kept.",
    ),
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
MaxDisk = Annotated[
    int | None,
    typer.Option(
        "--max-disk",
        metavar="SIZE",
        parser=size_bytes,
        help="Keep this build's states below SIZE (500GB, 1.5TB, 2TiB; a number alone is bytes): the first rows of the "
        "nested order, category shares kept.",
    ),
]
DrafterForm = Annotated[
    Form,
    typer.Option("--format", help="Whose config.json: z-lab's (vLLM, SGLang) or speculators' (vLLM, speculators)."),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the plan and start nothing.")]

DEFAULT_WORKSPACE = Path("workspace")
