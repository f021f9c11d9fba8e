"""The commands about a corpus as a whole: diff, push."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from draftmill.commands import completion
from draftmill.commands.options import DEFAULT_WORKSPACE, DryRun, ManifestPath, WorkspacePath


class RowFormat(StrEnum):
    """How the groups of a diff are printed."""

    table = "table"
    json = "json"
    csv = "csv"


def register(app: typer.Typer) -> None:
    """Put these commands into the app."""
    app.command("diff")(diff)
    app.command("push")(push)


def diff(
    old: Annotated[
        str,
        typer.Argument(
            metavar="OLD",
            autocompletion=completion.selected_builds,
            help="A manifest, or a build of the workspace: its id (6 digits are enough) or its name.",
        ),
    ],
    new: Annotated[
        str,
        typer.Argument(
            metavar="NEW", autocompletion=completion.selected_builds, help="What it is compared with: likewise."
        ),
    ],
    workspace: WorkspacePath = DEFAULT_WORKSPACE,
    form: Annotated[
        RowFormat, typer.Option("--format", "-f", help="A table for eyes, or one row per category and source.")
    ] = RowFormat.table,
) -> None:
    """What changes from one manifest or build to another, and what the change costs.

    Prompts kept, added and removed by category and source, answers that are there already, answers to generate, and
    from what the ledger has measured the tokens and hours that these take. Makes no build; reads sources into their
    pools where that was not done.
    """
    from corpus.workspace import Workspace
    from draftmill.comparing import compare
    from draftmill.rows import write_rows

    plan = compare(old, new, Workspace(workspace))
    if form is RowFormat.table:
        for line in plan.lines():
            typer.echo(line)
        return
    for change in plan.changes:
        typer.echo(change, err=True)
    write_rows(plan.frame(), form.value, None)


def push(
    manifest: ManifestPath,
    repo: Annotated[
        str | None,
        typer.Argument(
            metavar="REPO", help="The dataset on the Hub, as owner/name; made if new. Not needed with --out."
        ),
    ] = None,
    workspace: WorkspacePath = DEFAULT_WORKSPACE,
    private: Annotated[bool, typer.Option("--private/--public", help="Who can see the dataset.")] = True,
    revision: Annotated[
        str | None, typer.Option("--revision", metavar="BRANCH", help="Branch to push to; made if new. Default: main.")
    ] = None,
    prompts_only: Annotated[bool, typer.Option("--prompts-only", help="Leave the target's answers out.")] = False,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FOLDER", help="Write the same files there instead; must not exist yet."),
    ] = None,
    dry_run: DryRun = False,
) -> None:
    """Publish the manifest's build as a dataset on the Hub: prompts, accepted answers, a card and the lock.

    `datasets.load_dataset(REPO, "prompts")` and `"responses"` open it. What an earlier push left in data/ is
    replaced. Needs a token that may write (HF_TOKEN, or `hf auth login`).
    """
    from corpus.workspace import Workspace
    from draftmill import publishing
    from draftmill.session import Session
    from draftmill.uploading import Place

    session = Session(manifest, Workspace(workspace))
    _ = session.manifest
    place = Place(repo, private, revision)
    plan = publishing.plan_push(session, place, prompts_only, out)
    if not dry_run:
        publishing.refuse_unanswered(plan)
    for line in plan.lines():
        typer.echo(line)
    if not dry_run:
        typer.echo(publishing.run_push(plan, session.workspace))
