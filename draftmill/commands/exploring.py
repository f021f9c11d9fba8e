"""The command that serves a page over the ledger: explore."""

from __future__ import annotations

from typing import Annotated

import typer

from draftmill.commands.options import DEFAULT_WORKSPACE, WorkspacePath


def register(app: typer.Typer) -> None:
    """Put this command into the app."""
    app.command("explore")(explore)


def explore(
    workspace: WorkspacePath = DEFAULT_WORKSPACE,
    port: Annotated[
        int, typer.Option("--port", metavar="N", min=0, max=65535, help="Listen on this port. Default: a free one.")
    ] = 0,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Print the address and open nothing.")] = False,
) -> None:
    """Look at builds and rows in a browser: composition, filters, texts with their provenance, SQL, export.

    Reads the published ledger, also while a run is writing. Serves this machine alone (127.0.0.1), and only who has the
    whole address that is printed. From elsewhere: ssh -L 8123:127.0.0.1:8123, with --port 8123. Ctrl-C ends it.
    """
    from corpus.workspace import Workspace
    from draftmill.looking.explorer import open_browser, serve

    def announce(address: str) -> None:
        typer.echo(address)
        typer.echo("draftmill: explore: Ctrl-C ends it.", err=True)
        if not no_browser:
            open_browser(address)

    serve(Workspace(workspace), port, announce)
