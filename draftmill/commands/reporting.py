"""The command that shows one build on one page: report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from draftmill.commands import completion
from draftmill.commands.options import DEFAULT_WORKSPACE, WorkspacePath

HTML = (".html", ".htm")
MARKDOWN = (".md", ".markdown")


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
            help="Where to write it: as HTML (.html) or Markdown (.md), by its name; - is standard output. Default: "
            "reports/BUILD.html (or .md) in the workspace.",
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
    from corpus.building import manifest_folder
    from corpus.outputs import refuse_output
    from corpus.workspace import Workspace
    from draftmill.looking.chosen import chosen_build, open_reader
    from draftmill.looking.report import STDOUT, make_report, report_path, write_report

    place = Workspace(workspace)
    if out is not None and out != STDOUT:
        refuse_output(out)
        markdown = _is_markdown(out, markdown)
    build_id = chosen_build(named, place, open_reader(place)).build_id
    path = out or report_path(place, build_id, markdown=markdown)
    of_manifest = named is not None and Path(named).suffix in (".yaml", ".yml")
    base = Path(named or "").parent if of_manifest else manifest_folder(place, build_id) or Path()
    write_report(make_report(place, build_id, base, markdown=markdown), path)
    if path != STDOUT:
        typer.echo(path)


def _is_markdown(out: Path, markdown: bool) -> bool:
    """Whether a file is to hold Markdown: as its name says, else as the option does.

    Raises:
        UserError: they contradict each other, or the name is of neither.
    """
    from corpus.errors import UserError

    suffix = out.suffix.lower()
    if suffix not in ("", *HTML, *MARKDOWN):
        raise UserError(
            f"report: {ascii(out.name)[1:-1]}: a report is HTML or Markdown; name it .html or .md, or give no ending."
        )
    if markdown and suffix in HTML:
        raise UserError(f"report: {out.name} is HTML by its name, and --markdown was given. Leave one of them out.")
    return markdown or suffix in MARKDOWN
