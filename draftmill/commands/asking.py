"""The commands that only look: sql, status, verify, schema."""

from __future__ import annotations

import json
import stat
import sys
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from draftmill.commands import completion
from draftmill.commands.options import DEFAULT_WORKSPACE, WorkspacePath

if TYPE_CHECKING:
    from corpus.workspace import Workspace

EXIT_BREACH = 3
MOST_SQL_BYTES = 16_000_000
"""Of a file that holds one SELECT."""


class Format(StrEnum):
    """How rows are printed."""

    table = "table"
    csv = "csv"
    json = "json"
    parquet = "parquet"


def register(app: typer.Typer) -> None:
    """Put these commands into the app."""
    app.command("sql")(sql)
    app.command("status")(status)
    app.command("verify")(verify)
    app.command("schema")(schema)


def sql(
    statement: Annotated[
        str | None, typer.Argument(metavar="SQL", help="One SELECT; - reads it from standard input.")
    ] = None,
    workspace: WorkspacePath = DEFAULT_WORKSPACE,
    file: Annotated[
        Path | None, typer.Option("--file", "-F", metavar="FILE", help="Read the SELECT from this file.")
    ] = None,
    views: Annotated[
        bool, typer.Option("--views", help="List the views: what each answers, and its columns. Needs no workspace.")
    ] = False,
    output: Annotated[
        Format | None,
        typer.Option("--format", "-f", help="How to print the rows. Default: by FILE's name, else table."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="Write to a file instead of standard output.")
    ] = None,
) -> None:
    """Ask the ledger with SQL. Read-only: it opens the published snapshot, also while a run is writing.

    --views lists what can be asked; the views prompt_text, original_text and response_text are there in this command
    alone. Without SQL, composition, funnel, show and sample answer the common questions.
    """
    from corpus.workspace import Workspace

    place = Workspace(workspace)
    if views:
        _list_views(place, asked=statement is not None or file is not None)
        return
    form = form_of(output, out)
    from corpus.ledger.query import is_explain, query
    from draftmill.rows import write_rows, write_text
    from draftmill.table import printable_lines

    asked = _statement(statement, file)
    rows = query(place, asked)
    if form is Format.table and is_explain(asked):
        write_text("".join(f"{printable_lines(plan).rstrip()}\n" for plan in rows["explain_value"]), out)
    else:
        write_rows(rows, form.value, out)


def _list_views(workspace: Workspace, asked: bool) -> None:
    from corpus.errors import UserError
    from corpus.ledger.query import views
    from draftmill.looking.view_lines import view_lines

    if asked:
        raise UserError("sql: --views lists the views and runs nothing; leave the SELECT out.")
    for line in view_lines(views(workspace)):
        typer.echo(line)


def _statement(said: str | None, file: Path | None) -> str:
    """The SELECT, wherever it is.

    Raises:
        UserError: there is none, there are two, or the file cannot be read.
    """
    from corpus.errors import UserError

    if (said is None) == (file is None):
        what = "is missing" if said is None else "is said twice"
        raise UserError(f"sql: the SELECT {what}; give it as an argument, as - on standard input, or with --file FILE.")
    if file is not None:
        try:
            about = file.stat()
            if not stat.S_ISREG(about.st_mode):  # a device or pipe may never end
                raise UserError(f"{ascii(str(file))[1:-1]}: is no plain file. Name one that holds one SELECT.")
            if about.st_size > MOST_SQL_BYTES:
                raise UserError(
                    f"{ascii(str(file))[1:-1]}: has {about.st_size / 1e6:,.0f} MB, which is no SELECT; "
                    f"{MOST_SQL_BYTES // 10**6} MB are read. Name a file that holds one."
                )
            return file.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
            raise UserError(
                f"{ascii(str(file))[1:-1]}: cannot be read ({why}). Name a file that holds one SELECT."
            ) from error
    assert said is not None
    if said == "-":
        return sys.stdin.read()
    if said.endswith(".sql") and Path(said).is_file():
        raise UserError(f"sql: {said} is a file; run it with --file {said}.")
    return said


def form_of(output: Format | None, out: Path | None) -> Format:
    """The format that is asked for, or that the file's name says; asked before the ledger is, which may take long.

    Raises:
        UserError: the ending is another one, the file cannot be written, or a terminal would get bytes.
    """
    from corpus.errors import UserError

    if out is not None:
        from corpus.outputs import refuse_output

        refuse_output(out)
    form = output or _named_form(out)
    if form is Format.parquet and out is None and sys.stdout.isatty():
        raise UserError("parquet is binary; name a file with --out FILE.")
    return form


def _named_form(out: Path | None) -> Format:
    """A table for standard output, a .txt, or a name without an ending."""
    suffix = out.suffix.lstrip(".").lower() if out else ""
    if suffix in ("", "txt"):
        return Format.table
    if suffix not in {form.value for form in Format}:
        from corpus.errors import UserError

        known = ", ".join(form.value for form in Format)
        raise UserError(f"{ascii(str(out))[1:-1]}: no format is called {suffix[:40]!a}; say --format ({known}).")
    return Format(suffix)


def status(
    workspace: WorkspacePath = DEFAULT_WORKSPACE,
    watch: Annotated[
        bool, typer.Option("--watch", help="Show the run that goes on here, until it ends. It is not disturbed.")
    ] = False,
    every: Annotated[
        float | None,
        typer.Option(
            "--every",
            metavar="SECONDS",
            min=0.1,
            help="With --watch: seconds between two looks. Default: 2 on a terminal, 60 between two lines elsewhere.",
        ),
    ] = None,
) -> None:
    """What the workspace holds and how far each build is, from the published ledger, and what runs there now.

    --watch may be ended with Ctrl-C at any time, and ends itself with the run, saying how that ended.
    """
    from corpus.errors import UserError
    from corpus.workspace import Workspace

    if every is not None and not watch:
        raise UserError("status: --every is how often --watch looks; add --watch.")
    if watch:
        from draftmill.watching import watch as follow

        with suppress(KeyboardInterrupt):
            follow(Workspace(workspace), every)
        return
    from draftmill.status import status_lines

    for line in status_lines(Workspace(workspace)):
        typer.echo(line)


def verify(
    named: Annotated[
        str | None,
        typer.Argument(
            metavar="MANIFEST|BUILD",
            autocompletion=completion.builds,
            help="Verify one build: its manifest, id (6 digits are enough) or name; an import likewise. Default: all.",
        ),
    ] = None,
    workspace: WorkspacePath = DEFAULT_WORKSPACE,
    all_prompts: Annotated[
        bool, typer.Option("--all", help="Make the id of every selected prompt again, not of 1,000 a build.")
    ] = False,
    fast: Annotated[
        bool,
        typer.Option(
            "--fast",
            help="Take a file's size for its checksum, and leave captured rows' tokens alone: terabytes of states take "
            "hours to read.",
        ),
    ] = False,
) -> None:
    """Prove the accounts: every selected answer is accepted, rejected with its reason, or unfinished, exactly once.

    And every shard has its checksum and rows, every id is the digest of what it names and leads somewhere. Looks at the
    published ledger and its files, also while a run is writing. Exits 3 where a check is breached.
    """
    from corpus.ledger.verify import verify as prove
    from corpus.workspace import Workspace
    from draftmill.terminal import Screen
    from draftmill.verifying import named_build, proof_lines

    place = Workspace(workspace)
    with Screen("opening the ledger") as screen:
        findings = prove(place, named_build(named, place), all_prompts=all_prompts, fast=fast, report=screen.update)
    for line in proof_lines(findings, place):
        typer.echo(line)
    if not all(one.holds for one in findings):
        raise typer.Exit(EXIT_BREACH)


def schema() -> None:
    """Print the manifest's JSON Schema, so that editors complete and check manifests."""
    from corpus.manifest_file import manifest_schema

    typer.echo(json.dumps(manifest_schema(), indent=2, ensure_ascii=False))
