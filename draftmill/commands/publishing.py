"""The command that publishes a trained drafter: push-drafter."""

from __future__ import annotations

from typing import Annotated

import typer

from draftmill.commands.options import DEFAULT_WORKSPACE, DrafterForm, DryRun, Limit, ManifestPath, WorkspacePath
from training.export_speculators import Form


def register(app: typer.Typer) -> None:
    """Put this command into the app."""
    app.command("push-drafter")(push_drafter)


def push_drafter(
    manifest: ManifestPath,
    repo: Annotated[
        str, typer.Option("--repo", metavar="OWNER/NAME", help="The model on the Hub that it becomes; made if new.")
    ],
    workspace: WorkspacePath = DEFAULT_WORKSPACE,
    private: Annotated[bool, typer.Option("--private/--public", help="Who can see the drafter.")] = True,
    form: DrafterForm = Form.zlab,
    revision: Annotated[
        str | None, typer.Option("--revision", metavar="BRANCH", help="Branch to push to; made if new. Default: main.")
    ] = None,
    limit: Limit = None,
    dry_run: DryRun = False,
) -> None:
    """Publish the manifest's trained drafter as a model on the Hub: weights, config.json and a card.

    The card says what it was trained on, what it accepts by category, and how it is served. Needs a token that may
    write (HF_TOKEN, or `hf auth login`).
    """
    from corpus.workspace import Workspace
    from draftmill.publishing_drafter import plan_drafter_push, run_drafter_push
    from draftmill.session import Session
    from draftmill.uploading import Place

    session = Session(manifest, Workspace(workspace), limit=limit)
    _ = session.manifest
    plan = plan_drafter_push(session, Place(repo, private, revision, "model"), form)
    for line in plan.lines():
        typer.echo(line)
    if not dry_run:
        typer.echo(run_drafter_push(plan, session))
