"""The command that shows one build on one page: report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from draftmill.commands import completion
from draftmill.commands.options import DEFAULT_WORKSPACE, WorkspacePath


def register(app: typer.Typer) -> None:
    """Put this command into the app."""
    app.command("report")(report)


def report(
    named: Annotated[
        str | None,
        typer.Argument(
            metavar="MANIFEST|BUILD",
            autocompletion=completion.builds,
            help="Which build: its manifest, id (6 digits are enough) or name; an import too. Default: the newest.",
        ),
    ] = None,
    workspace: WorkspacePath = DEFAULT_WORKSPACE,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            metavar="FILE",
            help="Where to write it; - is standard output. Default: reports/BUILD.html (or .md) in the workspace.",
        ),
    ] = None,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Markdown instead of HTML: the same without figures, for a card.")
    ] = False,
) -> None:
    """Show one build on one page: what was wanted and reached, sources, lengths, rates, acceptance, what changed.

    One HTML file that needs no network, light and dark, to be printed too. Prints its path. It is made from the
    published ledger, also while a run is writing. The same Markdown lies beside every build as DATA.md.
    """
    from corpus.workspace import Workspace
    from draftmill.looking.chosen import chosen_build, open_reader
    from draftmill.looking.report import STDOUT, make_report, report_path, write_report
    from draftmill.verifying import named_build

    place = Workspace(workspace)
    build_id = named_build(named, place) or chosen_build(None, place, open_reader(place)).build_id
    path = out or report_path(place, build_id, markdown=markdown)
    base = Path(named).parent if named and Path(named).suffix in (".yaml", ".yml") else Path()
    write_report(make_report(place, build_id, base, markdown=markdown), path)
    if path != STDOUT:
        typer.echo(path)
