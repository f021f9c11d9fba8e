"""The common questions without SQL: composition, funnel, show, sample. They look at the published ledger alone."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from draftmill.commands import completion
from draftmill.commands.asking import EXIT_BREACH, Format, form_of
from draftmill.commands.options import DEFAULT_WORKSPACE, WorkspacePath

EXIT_SEVERAL = 2
DEFAULT_CHARS = 2000

BuildName = Annotated[
    str | None,
    typer.Argument(
        metavar="BUILD|MANIFEST",
        autocompletion=completion.builds,
        help="Its id (6 digits are enough), its name, or its manifest; an import likewise. Default: the newest.",
    ),
]
Output = Annotated[
    Format | None,
    typer.Option("--format", "-f", help="How to print it. Default: by FILE's name, else table."),
]
Out = Annotated[
    Path | None, typer.Option("--out", "-o", metavar="FILE", help="Write to a file instead of standard output.")
]


class By(StrEnum):
    """What else the rows of a composition are split by."""

    source = "source"


class Stage(StrEnum):
    """A stage of a build."""

    target = "target"
    selected = "selected"
    generated = "generated"
    accepted = "accepted"
    captured = "captured"
    trained = "trained"


class State(StrEnum):
    """What became of an answer."""

    accepted = "accepted"
    rejected = "rejected"
    truncated = "truncated"
    left_out = "left_out"
    unfinished = "unfinished"


def register(app: typer.Typer) -> None:
    """Put these commands into the app."""
    app.command("composition")(composition)
    app.command("funnel")(funnel)
    app.command("show")(show)
    app.command("sample")(sample)


def composition(
    build: BuildName = None,
    workspace: WorkspacePath = DEFAULT_WORKSPACE,
    stage: Annotated[
        Stage | None, typer.Option("--stage", help="This stage alone, with all its figures and bars.")
    ] = None,
    by: Annotated[By | None, typer.Option("--by", help="Split each category.")] = None,
    tokens: Annotated[
        bool, typer.Option("--tokens", help="Count response tokens. Default: what the build's shares are of.")
    ] = False,
    output: Output = None,
    out: Out = None,
) -> None:
    """What a build is made of at each stage, against its target, and in words where it is off.

    Held-out prompts are not counted. draftmill sql has the same as the view composition.
    """
    from corpus.workspace import Workspace
    from draftmill.looking.chosen import age_note, chosen_build, open_reader
    from draftmill.looking.composition import composition_frame, read_composition
    from draftmill.looking.composition_lines import composition_lines, stage_lines
    from draftmill.rows import write_rows

    form = form_of(output, out)
    place = Workspace(workspace)
    reader = open_reader(place)
    made = read_composition(reader, chosen_build(build, place, reader), tokens or None)
    if form is not Format.table:
        stages = [stage.value] if stage else made.stages
        write_rows(composition_frame(made, stages, by is By.source), form.value, out)
        return
    age = age_note(place)
    by_source = by is By.source
    lines = stage_lines(made, stage.value, by_source, age) if stage else composition_lines(made, by_source, age)
    _write_lines(lines, out)


def funnel(
    build: BuildName = None,
    workspace: WorkspacePath = DEFAULT_WORKSPACE,
    source: Annotated[
        str | None,
        typer.Option("--source", metavar="NAME", autocompletion=completion.sources, help="This source alone."),
    ] = None,
    output: Output = None,
    out: Out = None,
) -> None:
    """What became of the rows of each source, from reading to training, and why rows were left out.

    Every row that was read is in one line of it; exits 3 if the sums do not hold.
    """
    from corpus.workspace import Workspace
    from draftmill.looking.chosen import age_note, chosen_build, open_reader
    from draftmill.looking.funnel import funnel_frame, read_funnels
    from draftmill.looking.funnel_lines import funnel_lines
    from draftmill.rows import write_rows

    form = form_of(output, out)
    place = Workspace(workspace)
    reader = open_reader(place)
    chosen = chosen_build(build, place, reader)
    funnels = read_funnels(reader, chosen, source)
    if form is not Format.table:
        write_rows(funnel_frame(chosen, funnels), form.value, out)
    else:
        _write_lines(funnel_lines(chosen, funnels, age_note(place)), out)
    if any(one.breaches for one in funnels):
        raise typer.Exit(EXIT_BREACH)


def _write_lines(lines: list[str], out: Path | None) -> None:
    from draftmill.rows import write_text

    write_text("".join(f"{line}\n" for line in lines), out)


def show(
    named: Annotated[
        str,
        typer.Argument(
            metavar="ID",
            help="An id or its first digits (six or more) of a prompt, response, build, drafter or run; a source row "
            "as SOURCE:FILE:ROW or SOURCE:ROW (or DATASET:…); a row of a shard as SHARD:ROW; an upstream id.",
        ),
    ],
    workspace: WorkspacePath = DEFAULT_WORKSPACE,
    chars: Annotated[
        int | None,
        typer.Option(
            "--chars", metavar="N", min=0, help="Characters of each text; 0 is all. Default: 2000, with --json all."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON, for programs.")] = False,
) -> None:
    """The whole provenance of one thing, and its text.

    Where a prompt is from, by what rule it got its category, what became of it in each build, every attempt at an
    answer, its states, the drafters trained on it. Exits 2 where several things are called so, and lists them.
    """
    from corpus.errors import UserError
    from corpus.workspace import Workspace
    from draftmill.looking.chosen import age_note, open_reader
    from draftmill.looking.finding import find, not_found
    from draftmill.looking.records import record_of
    from draftmill.looking.shown import match_lines, record_json, record_lines

    place = Workspace(workspace)
    reader = open_reader(place)
    matches = find(named, reader)
    if not matches:
        raise UserError(not_found(named, reader))
    if len(matches) > 1:
        sys.stderr.write("".join(f"{line}\n" for line in match_lines(named, matches)))
        raise typer.Exit(EXIT_SEVERAL)
    record = record_of(matches[0], place, reader)
    if as_json:
        if chars:
            _clip(record.get("text"), chars)
        sys.stdout.write(record_json(record))
        return
    age = age_note(place)
    _write_lines([*record_lines(record, DEFAULT_CHARS if chars is None else chars), *([age] if age else [])], None)


def _clip(text: Any, chars: int) -> None:
    """Cut the texts of a record in place."""
    for message in (text or {}).get("messages") or []:
        if isinstance(message.get("content"), str):
            message["content"] = message["content"][:chars]
    if text and isinstance(text.get("answer"), str):
        text["answer"] = text["answer"][:chars]


def sample(
    build: BuildName = None,
    workspace: WorkspacePath = DEFAULT_WORKSPACE,
    category: Annotated[
        str | None,
        typer.Option("--category", metavar="NAME", autocompletion=completion.categories, help="Of this category."),
    ] = None,
    source: Annotated[
        str | None,
        typer.Option("--source", metavar="NAME", autocompletion=completion.sources, help="Of this source."),
    ] = None,
    state: Annotated[
        State | None,
        typer.Option("--state", help="Answers in this state; truncated ones are accepted and ran into max_tokens."),
    ] = None,
    finish_reason: Annotated[
        str | None,
        typer.Option(
            "--finish-reason", metavar="NAME", autocompletion=completion.finish_reasons,
            help="Answers that ended so: stop, length, …",
        ),
    ] = None,
    license_: Annotated[
        str | None,
        typer.Option("--license", metavar="NAME", help="Of sources under this licence; unknown: they state none."),
    ] = None,
    holdout: Annotated[
        bool | None, typer.Option("--holdout/--no-holdout", help="Held-out rows alone, or none of them.")
    ] = None,
    dropped: Annotated[
        str | None,
        typer.Option(
            "--dropped", metavar="REASON", autocompletion=completion.drop_reasons,
            help="Source rows that were left out for this reason; of duplicates both sides. not_needed: candidates "
            "that the mix did not take.",
        ),
    ] = None,
    number: Annotated[int, typer.Option("-n", "--number", metavar="N", min=1, max=1000, help="How many rows.")] = 5,
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="Another seed draws other rows.")] = 0,
    chars: Annotated[
        int, typer.Option("--chars", metavar="N", min=0, help="Characters of each text; 0 is all.")
    ] = 400,
) -> None:  # fmt: skip
    """Rows of a build at random: prompt and answer, with the ids that `show` takes.

    The same seed draws the same rows. Before answers there are, their prompts.
    """
    from corpus.errors import UserError
    from corpus.workspace import Workspace
    from draftmill.looking.chosen import age_note, chosen_build, open_reader
    from draftmill.looking.reasons import NOT_NEEDED
    from draftmill.looking.sample_lines import sample_lines
    from draftmill.looking.sampling import Wanted, draw

    labels = (state, finish_reason, holdout, None if dropped == NOT_NEEDED else category)
    if dropped is not None and labels != (None, None, None, None):
        raise UserError(
            "sample: dropped rows have no state, finish reason, category or holdout; give --source or --license."
        )
    place = Workspace(workspace)
    reader = open_reader(place)
    chosen = chosen_build(build, place, reader)
    of_state = state.value if state else None
    wanted = Wanted(number, seed, category, source, of_state, finish_reason, holdout, dropped, license_)
    drawn = draw(chosen, wanted, place, reader)
    _write_lines(sample_lines(chosen, drawn, number, chars, age_note(place)), None)
