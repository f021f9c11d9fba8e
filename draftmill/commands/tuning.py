"""The command that measures engine settings: tune."""

from __future__ import annotations

from typing import Annotated

import typer

from draftmill.commands.options import (
    DEFAULT_WORKSPACE,
    Devices,
    DryRun,
    ForceTensorParallel,
    ManifestPath,
    WorkspacePath,
)


def register(app: typer.Typer) -> None:
    """Put this command into the app."""
    app.command("tune")(tune)


def tune(
    manifest: ManifestPath,
    workspace: WorkspacePath = DEFAULT_WORKSPACE,
    devices: Devices = None,
    settings: Annotated[
        int, typer.Option("--settings", metavar="N", min=1, help="Try at most N settings, the present one among them.")
    ] = 6,
    rounds: Annotated[int, typer.Option("--rounds", metavar="N", min=1, help="Measured rounds of each setting.")] = 3,
    prompts: Annotated[
        int | None,
        typer.Option(
            "--prompts", metavar="N", min=1, help="Prompts of a round. Default: 64, and twice the most sequences."
        ),
    ] = None,
    max_tokens: Annotated[
        int, typer.Option("--max-tokens", metavar="N", min=2, help="Cut answers at N tokens, so that it ends soon.")
    ] = 256,
    kv_cache_dtype: Annotated[
        list[str] | None,
        typer.Option(
            "--kv-cache-dtype",
            metavar="TYPE",
            help="Try these numbers of the KV cache too, such as fp8; recommended only where answers stay the same. "
            "May be given again.",
        ),
    ] = None,
    write: Annotated[
        bool, typer.Option("--write", help="Put what is recommended into the manifest; nothing else in it changes.")
    ] = False,
    force_tensor_parallel: ForceTensorParallel = False,
    dry_run: DryRun = False,
) -> None:
    """Measure a handful of engine settings on a sample of the manifest's prompts, and print the engine section to take.

    Starts a real engine for each. Figures go to stderr, the section to stdout. Answers are not kept.
    """
    from corpus.workspace import Workspace
    from draftmill.session import Session
    from draftmill.tuning import Options, plan_lines
    from draftmill.tuning import tune as measure

    session = Session(manifest, Workspace(workspace), devices, None, force_tensor_parallel)
    _ = session.manifest  # a wrong manifest is answered before anything is touched
    options = Options(tuple(kv_cache_dtype or ()), settings, rounds, prompts, max_tokens, write)
    if dry_run:
        for line in plan_lines(session, options):
            typer.echo(line)
        return
    measure(session, options, typer.echo)
