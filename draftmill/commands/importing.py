"""The command that adopts a corpus of answers which somebody else's pipeline had a model write: import."""

from __future__ import annotations

import shlex
import time
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Annotated

import typer

from draftmill.commands.options import DEFAULT_WORKSPACE, DryRun, WorkspacePath

if TYPE_CHECKING:
    from corpus.importing import ImportPlan
    from corpus.ledger.writer import LedgerWriter
    from corpus.workspace import Workspace

MOST_DROPS = 6
MOST_NAME = 24  # of a line
WIDTH = 80
INDENT = " " * 11


def register(app: typer.Typer) -> None:
    """Put this command into the app."""
    app.command("import")(import_corpus)


def import_corpus(
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="PATH...",
            help="The corpus: files, folders or globs, or a folder that `datasets` saved to disk. Several are one "
            "corpus, in whatever order.",
        ),
    ],
    model: Annotated[
        str | None,
        typer.Option("--model", metavar="NAME", help="Needed: the model that answered, as manifests name it."),
    ] = None,
    revision: Annotated[
        str | None, typer.Option("--revision", metavar="REV", help="That model's revision, where it is known.")
    ] = None,
    name: Annotated[
        str | None,
        typer.Option("--name", metavar="LABEL",
                     help="What to call the corpus. Default: the last part of PATH, of several their folder."),
    ] = None,
    license_: Annotated[
        str | None, typer.Option("--license", metavar="LICENSE", help="Licence, recorded with every row.")
    ] = None,
    split: Annotated[
        str, typer.Option("--split", metavar="SPLIT", help="The split of a saved DatasetDict; else ignored.")
    ] = "train",
    form: Annotated[
        str,
        typer.Option("--format", metavar="FORMAT", help="Shape of the rows: auto, messages, sharegpt, alpaca, prompt, "
                     "preference or trace."),
    ] = "auto",
    where: Annotated[
        str | None,
        typer.Option("--where", metavar="SQL", help="Keep these rows: an expression over the corpus's own columns."),
    ] = None,
    limit: Annotated[int | None, typer.Option("--limit", metavar="N", min=1, help="Read at most N rows.")] = None,
    tokenizer: Annotated[
        str | None,
        typer.Option(
            "--tokenizer",
            metavar="FOLDER|HUB",
            help="The target: its tokenizer and chat template give token ids, which reuse in a build needs.",
        ),
    ] = None,
    chat_template: Annotated[
        str | None,
        typer.Option("--chat-template", metavar="FILE", help="A Jinja file in place of the tokenizer's own."),
    ] = None,
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Rows that cannot be read are drops with a reason, and do not stop it.")
    ] = False,
    workspace: WorkspacePath = DEFAULT_WORKSPACE,
    dry_run: DryRun = False,
) -> None:  # fmt: skip
    """Adopt a corpus of prompts with a model's answers: classify it, and enter it in the ledger.

    Each answer becomes a response of that model, with its source row; all views answer for the corpus as for a build.
    Importing the same corpus again changes only the labels that are said then (--name, --license). A manifest reuses
    the answers with generation.imported.
    """
    from corpus.errors import UserError
    from corpus.import_source import ImportOptions
    from corpus.importing import plan_import, settle_labels
    from corpus.ledger.query import LedgerReader
    from corpus.workspace import Workspace

    if model is None:
        raise UserError("import: --model NAME is missing; name the model that wrote these answers.")
    options = ImportOptions(
        tuple(paths), model, revision, name, license_, split, form, where, limit, tokenizer, chat_template, skip_bad
    )
    place = Workspace(workspace)
    plan = plan_import(options, Path(), place)
    if dry_run:
        _show_rows(settle_labels(plan, LedgerReader(place)), place)
        return
    from corpus.ledger.rebuild import adopt
    from corpus.ledger.writer import open_ledger

    with open_ledger(place, "import") as ledger:
        adopt(ledger)
        settled = settle_labels(plan, ledger)
        _say_kept(plan, settled)
        _import(settled, ledger)
        _show_import(settled, ledger)


def _say_kept(plan: ImportPlan, settled: ImportPlan) -> None:
    """Labels that were not said now and are other than they would be: they stay from an earlier import."""
    kept = {
        "--name": (plan.labels["name"], settled.labels["name"]),
        "--license": (plan.labels["license"], settled.labels["license"]),
    }
    changed = {option: now for option, (guessed, now) in kept.items() if guessed != now}
    if changed:
        from draftmill.terminal import say

        for option, now in changed.items():
            say(
                f"import     keeps the {option.removeprefix('--')} {now or 'unstated'} that it has; {option} changes it"
            )


def _import(plan: ImportPlan, ledger: LedgerWriter) -> None:
    from corpus.importing import commit_import, is_imported, read_import
    from corpus.runlog import RunLog
    from draftmill.looking.report import write_data
    from draftmill.terminal import Screen, clock, say

    name = _short(plan.name)
    if is_imported(plan, ledger):
        say(f"import     {name}: imported already, nothing to do")
        return
    started = time.monotonic()
    with Screen("reading and classifying") as screen:
        rows = read_import(plan, ledger.workspace)
        log = RunLog(ledger, "import", plan.import_id)
        try:
            commit_import(plan, rows, ledger, screen.update)
        except BaseException:
            log.finish("failed")
            raise
        log.finish("done")
        write_data(ledger, plan.import_id)
    took = clock(time.monotonic() - started)
    files = f"{len(plan.resolved.files):,} file{'s' * (len(plan.resolved.files) != 1)}"
    say(f"import     {name}: {rows.pool.rows:,} rows of {files} in {took}")


def _show_rows(plan: ImportPlan, workspace: Workspace) -> None:
    """What an import would enter: prompts by category, and why other rows hold none."""
    from corpus.columns import table
    from corpus.importing import read_import, unusable_rows

    found = read_import(plan, workspace)
    counts = found.rows.group_by("category").len("rows").sort(["rows", "category"], descending=[True, False])
    total = max(found.rows.height, 1)
    rows = [(category, f"{count:,}", f"{count / total:.1%}") for category, count in counts.iter_rows()]
    for line in table(("category", "rows", "share"), rows):
        typer.echo(line)
    typer.echo(f"{found.pool.rows - found.rows.height:,} of {found.pool.rows:,} rows hold no prompt")
    for reason, count in unusable_rows(found, workspace):
        typer.echo(f"  {count:,} {reason}")


def _show_import(plan: ImportPlan, ledger: LedgerWriter) -> None:
    """What the corpus is made of, what became of its other rows, and what to ask next."""
    from corpus.columns import table
    from draftmill.terminal import say

    build = plan.import_id
    found = ledger.rows(
        "SELECT b.category, count(*), count(DISTINCT b.prompt_id), sum(r.response_tokens) "
        "FROM build_responses b JOIN accepted_responses r USING (response_id) "
        "WHERE b.build_id = ? AND b.left_out IS NULL GROUP BY b.category ORDER BY 2 DESC, 1",
        build,
    )
    total = sum(int(row[1]) for row in found)
    rows = [
        (category, f"{int(answers):,}", f"{answers / total:.1%}", f"{int(prompts):,}", _count(tokens))
        for category, answers, prompts, tokens in found
    ]
    for line in table(("category", "answers", "share", "prompts", "tokens"), rows):
        typer.echo(line)
    for what, reasons in (("rows", _drops(ledger, build)), ("answers", _rejected(ledger, build))):
        if reasons:
            listed = f"{what}: " + ", ".join(f"{count:,} {reason}" for reason, count in reasons)
            for line in wrap(listed, WIDTH, initial_indent=INDENT, subsequent_indent=INDENT + "  "):
                say(line)
    if plan.encoder is None:
        say("           no token ids: with --tokenizer, builds can reuse the answers")
    for line in _next_steps(plan, ledger.workspace.root):
        say(line)


def _next_steps(plan: ImportPlan, root: Path) -> list[str]:
    """What to ask next, to be copied: in lines of WIDTH unless the workspace's own path is longer."""
    command = "draftmill sql" if root == DEFAULT_WORKSPACE else f"draftmill sql -w {shlex.quote(str(root))}"
    lines = ["Ask what is in it, and where its rows lie:"]
    by_id, by_name = f"WHERE build_id = '{plan.import_id}'", f"WHERE imported_from = '{plan.name}'"
    for select, where in (
        ("FROM composition", by_id),
        ("SELECT category, file, row_index FROM provenance", by_name if len(by_name) + 5 <= WIDTH else by_id),
    ):
        whole = f'  {command} "{select}'
        lines += [whole] if len(whole) <= WIDTH else [f"  {command} \\", f'    "{select}']
        lines.append(f'    {where}"')
    if plan.encoder is not None:
        reuse = f"generation: {{imported: [{plan.name}]}}"
        one = f"Reuse its answers: {reuse}"
        lines += [one] if len(one) <= WIDTH else ["Reuse its answers:", f"  {reuse}"]
    return lines


def _short(name: str) -> str:
    return name if len(name) <= MOST_NAME else name[: MOST_NAME - 1] + "…"


def _drops(ledger: LedgerWriter, build: str) -> list[tuple[str, int]]:
    found = ledger.rows(
        "SELECT reason, rows FROM funnel WHERE build_id = ? AND reason NOT IN ('read', 'selected') ORDER BY 2 DESC, 1",
        build,
    )
    return [(str(reason), int(rows)) for reason, rows in found[:MOST_DROPS]]


def _rejected(ledger: LedgerWriter, build: str) -> list[tuple[str, int]]:
    found = ledger.rows(
        "SELECT why, count(*) FROM unfinished WHERE build_id = ? GROUP BY why ORDER BY 2 DESC, 1", build
    )
    return [(str(why), int(rows)) for why, rows in found[:MOST_DROPS]]


def _count(tokens: int | None) -> str:
    return "-" if tokens is None else f"{int(tokens):,}"
