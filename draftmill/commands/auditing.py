"""The command that looks at a corpus of anybody: audit."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from draftmill.commands import completion

EXIT_SKEWED = 3
SAID = {
    "skewed": "skewed by more than {}",
    "may be skewed": "may be skewed by more than {}",
    "cannot tell": "cannot tell whether it is skewed by more than {}",
}


class AuditFormat(StrEnum):
    """How an audit is printed."""

    text = "text"
    json = "json"
    csv = "csv"
    markdown = "markdown"


class Shape(StrEnum):
    """What rows look like: a manifest's formats."""

    auto = "auto"
    messages = "messages"
    sharegpt = "sharegpt"
    alpaca = "alpaca"
    prompt = "prompt"
    preference = "preference"
    trace = "trace"


def register(app: typer.Typer) -> None:
    """Put this command into the app."""
    app.command("audit")(audit)


def audit(
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="PATH...",
            help="The corpus: files, folders, globs, a folder that `datasets` saved, responses or a pool of a "
            "workspace, or a dataset on the Hub (owner/name, hf://...). Several are one corpus.",
        ),
    ],
    manifest: Annotated[
        Path | None,
        typer.Option(
            "--manifest",
            "-m",
            metavar="FILE",
            autocompletion=completion.manifests,
            help="Compare with the shares of this manifest.",
        ),
    ] = None,
    shares: Annotated[
        str | None,
        typer.Option("--shares", metavar="LIST", help="Compare with these weights: coding=46,general=26,..."),
    ] = None,
    fail_on_skew: Annotated[
        str | None,
        typer.Option("--fail-on-skew", metavar="POINTS",
                     help="Exit 3 where a category's whole interval lies further than this from its target, as 5%."),
    ] = None,
    strict: Annotated[
        bool,
        typer.Option("--strict", help="With --fail-on-skew: exit 3 too where it may be skewed or cannot be told."),
    ] = False,
    rows: Annotated[
        int, typer.Option("--rows", "-n", metavar="N", min=1, help="Rows to sample, of all files together.")
    ] = 1_000,
    everything: Annotated[bool, typer.Option("--all", help="Read every row.")] = False,
    seed: Annotated[int, typer.Option("--seed", metavar="N", min=0, help="Which rows: the same seed, the same.")] = 0,
    shape: Annotated[
        Shape, typer.Option("--shape", help="What the rows look like, as a manifest's format says it.")
    ] = Shape.auto,
    field: Annotated[
        str | None, typer.Option("--field", metavar="COLUMN", help="The column that holds the prompts.")
    ] = None,
    label: Annotated[
        str | None,
        typer.Option("--label", metavar="COLUMN", help="The column that holds the category: nothing is classified."),
    ] = None,
    by: Annotated[
        str | None,
        typer.Option("--by", metavar="COLUMN", help="Show the categories of each value of this column too. Default: "
                     "of one file, its source column, if it has one."),
    ] = None,
    examples: Annotated[
        int, typer.Option("--examples", metavar="N", min=0, max=100, help="Show N prompts of each category.")
    ] = 0,
    explain: Annotated[
        bool, typer.Option("--explain", help="Say why the classifier said so, of categories and of examples.")
    ] = False,
    output: Annotated[AuditFormat, typer.Option("--format", "-f", help="How to print it.")] = AuditFormat.text,
    split: Annotated[
        str, typer.Option("--split", metavar="SPLIT", help="The split of a saved DatasetDict or a dataset on the Hub.")
    ] = "train",
    config: Annotated[
        str | None, typer.Option("--config", metavar="NAME", help="The configuration of a dataset on the Hub.")
    ] = None,
    revision: Annotated[
        str, typer.Option("--revision", metavar="REV", help="Branch, tag or commit of a dataset on the Hub.")
    ] = "main",
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Go on where a file breaks off, and count what it does not give.")
    ] = False,
) -> None:  # fmt: skip
    """Look at a corpus without labels: sample it, classify it, and say what it is made of.

    The first line is the verdict; every share has a 95% interval over sampling and classifier error together. Nothing
    is written, and no workspace is needed. Rows without a prompt are counted with their reasons.
    """
    from corpus.errors import UserError
    from corpus.found_files import Place
    from draftmill.looking.audit import audit as look
    from draftmill.looking.audit_figures import figures
    from draftmill.looking.audit_seen import Asked
    from draftmill.looking.audit_shares import State, find_shares, read_tolerance
    from draftmill.looking.audit_text import FORMATS, lines
    from draftmill.table import printable
    from draftmill.terminal import Screen, say

    if manifest is not None and shares is not None:
        raise UserError("audit: --manifest and --shares were both given; give one.")
    if fail_on_skew is not None and manifest is None and shares is None:
        raise UserError("audit: --fail-on-skew needs intended shares; add --manifest FILE or --shares coding=46,...")
    if strict and fail_on_skew is None:
        raise UserError("audit: --strict says when --fail-on-skew exits 3; add --fail-on-skew 5%.")
    if field is not None and shape is not Shape.auto:
        raise UserError("audit: --field and --shape were both given; --field says how rows are read. Give one.")
    if explain and label is not None:
        raise UserError("audit: --explain is about the classifier, which --label puts aside. Give one.")
    tolerance = None if fail_on_skew is None else read_tolerance(fail_on_skew)
    targets = _targets(manifest, shares)
    place = Place(tuple(paths), split, config, revision)
    asked = Asked(place, None if everything else rows, seed, shape.value, field, label, by, examples, explain, skip_bad)
    try:
        with Screen("looking") as screen:
            seen = look(asked, Path(), lambda text: screen.update(printable(text)))
    except UserError as error:  # names of files and columns are somebody else's
        # what reads rows takes the command for a source of that name
        raise UserError(printable(str(error).replace("source audit: ", "audit: ", 1))) from error
    found = find_shares(seen, targets, tolerance)
    told = figures(seen, found)
    if output is AuditFormat.text:
        for line in lines(told, detailed=explain):
            typer.echo(line)
    else:
        sys.stdout.write(FORMATS[output.value](told))
        sys.stdout.flush()
    doubts = (State.may_be_skewed, State.cannot_tell) if strict else ()
    if tolerance is not None and found.verdict.state in (State.skewed, *doubts):
        say(f"audit: {SAID[found.verdict.state.value].format(fail_on_skew)}: exit {EXIT_SKEWED}")
        raise typer.Exit(EXIT_SKEWED)


def _targets(manifest: Path | None, shares: str | None) -> dict[str, float] | None:
    """Intended weights, from wherever they were said."""
    if shares is not None:
        from draftmill.looking.audit_shares import read_shares

        return read_shares(shares)
    if manifest is None:
        return None
    from corpus.manifest_file import load_manifest
    from draftmill.terminal import say

    mix = load_manifest(manifest).mix
    if mix.unit != "prompts":
        say(f"audit: {manifest}: its shares count {mix.unit}; an audit counts rows, so read `off` with care")
    return dict(mix.shares)
