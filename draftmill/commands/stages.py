"""The commands that make things: run, build, generate, extract, train, export, serve-check."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from draftmill.commands.options import (
    DEFAULT_WORKSPACE,
    Devices,
    DrafterForm,
    DryRun,
    ForceTensorParallel,
    Limit,
    ManifestPath,
    MaxDisk,
    Ray,
    WorkspacePath,
)
from training.export_speculators import Form

if TYPE_CHECKING:
    from corpus.building import BuildPlan
    from corpus.ledger.writer import LedgerWriter
    from draftmill.session import Session


def register(app: typer.Typer) -> None:
    """Put these commands into the app."""
    for name, command in (
        ("run", run),
        ("build", build),
        ("generate", generate),
        ("extract", extract),
        ("train", train),
        ("export", export),
        ("serve-check", serve_check),
    ):
        app.command(name)(command)


def run(
    manifest: ManifestPath,
    workspace: WorkspacePath = DEFAULT_WORKSPACE,
    devices: Devices = None,
    limit: Limit = None,
    serve: Annotated[
        bool, typer.Option("--serve/--no-serve", help="Measure the drafter in vLLM at the end, on held-out prompts.")
    ] = True,
    force_tensor_parallel: ForceTensorParallel = False,
    ray: Ray = None,
    dry_run: DryRun = False,
) -> None:
    """The whole chain: build, generate, extract, train, export, serve check.

    What is done already is not done again, so the same command resumes a run that stopped, and after an edit of the
    manifest only the difference is generated.
    """
    from draftmill import generating, pipeline, selecting, stage_run

    session = _session(manifest, workspace, devices, limit, force_tensor_parallel, ray)
    if dry_run:
        reader = stage_run.reader(session)
        plan = selecting.build_plan(session, reader)
        _print(selecting.build_lines(plan))
        _print(generating.generation_lines(session, reader, plan))
        _print(pipeline.later_lines(session, reader, plan))
        return
    pipeline.run_all(session, serve)


def build(
    manifest: ManifestPath,
    workspace: WorkspacePath = DEFAULT_WORKSPACE,
    dry_run: DryRun = False,
) -> None:
    """Read the sources, drop duplicates, select prompts by the declared shares, and enter the build in the ledger."""
    from draftmill import selecting

    session = _session(manifest, workspace)
    if dry_run:
        _print(selecting.build_lines(selecting.build_plan(session)))
        return
    _with_ledger(session, "build", selecting.build_stage)


def generate(
    manifest: ManifestPath,
    workspace: WorkspacePath = DEFAULT_WORKSPACE,
    devices: Devices = None,
    limit: Limit = None,
    retry_rejected: Annotated[
        bool, typer.Option("--retry-rejected", help="Ask again where an engine's failure rejected the answer.")
    ] = False,
    force_tensor_parallel: ForceTensorParallel = False,
    ray: Ray = None,
    dry_run: DryRun = False,
) -> None:
    """Have the target answer every selected prompt: one engine a device, all devices at once.

    Ctrl-C waits for the answers in flight and commits them; a second one stops at once. The same command resumes.
    """
    from draftmill import generating, selecting, stage_run

    session = _session(manifest, workspace, devices, limit, force_tensor_parallel, ray)
    if dry_run:
        reader = stage_run.reader(session)
        _print(generating.generation_lines(session, reader, selecting.build_plan(session, reader), retry_rejected))
        return
    _with_build(session, "generate", lambda s, ledger, b: generating.generate_stage(s, ledger, b, retry_rejected))


def extract(
    manifest: ManifestPath,
    workspace: WorkspacePath = DEFAULT_WORKSPACE,
    devices: Devices = None,
    limit: Limit = None,
    max_disk: MaxDisk = None,
    retry_set_aside: Annotated[
        bool, typer.Option("--retry-set-aside", help="Try rows again that an earlier run could not capture.")
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", help="Begin, however large: more than 10 GB is only told else.")
    ] = False,
    ray: Ray = None,
    dry_run: DryRun = False,
) -> None:
    """Capture the target's hidden states of every accepted answer, into safetensors shards.

    Rows go in batches of like length, by a token budget that each worker measures of its device first.
    """
    from draftmill import capturing, selecting, stage_run
    from draftmill.agreement import Choice

    session = _session(manifest, workspace, devices, limit, ray=ray)
    choice = Choice(max_disk, retry_set_aside, yes)
    if dry_run:
        reader = stage_run.reader(session)
        _print(capturing.extraction_lines(session, reader, selecting.build_plan(session, reader), choice))
        return
    _with_build(session, "extract", lambda s, ledger, b: capturing.extract_stage(s, ledger, b, choice))


def train(
    manifest: ManifestPath,
    workspace: WorkspacePath = DEFAULT_WORKSPACE,
    devices: Devices = None,
    limit: Limit = None,
    dry_run: DryRun = False,
) -> None:
    """Train the drafter on the captured states, measure it on held-out rows, and export it for vLLM."""
    from draftmill import drafting, selecting, stage_run
    from draftmill.terminal import INDENT, laid_out

    session = _session(manifest, workspace, devices, limit)
    if dry_run:
        reader = stage_run.reader(session)
        plan = drafting.training_plan(session, reader, selecting.build_plan(session, reader).build_id)
        _print(laid_out(drafting.training_lines(session, plan, reader), f"{'train':<{INDENT}}", " " * INDENT))
        return
    _with_build(session, "train", drafting.train_stage)


def export(
    manifest: ManifestPath,
    out: Annotated[Path, typer.Option("--out", metavar="FOLDER", help="Where to write it; must not exist yet.")],
    workspace: WorkspacePath = DEFAULT_WORKSPACE,
    untrained: Annotated[
        bool, typer.Option("--untrained", help="A drafter of the same shape with random weights, to compare with.")
    ] = False,
    form: DrafterForm = Form.zlab,
    limit: Limit = None,
    dry_run: DryRun = False,
) -> None:
    """Write the manifest's drafter as a folder that vLLM serves: weights, config.json and a card with its figures."""
    from draftmill import drafting, selecting

    session = _session(manifest, workspace, None, limit)
    plan = drafting.export_plan(session, selecting.build_plan(session), out, untrained, form)
    typer.echo(plan.line())
    if not dry_run:
        drafting.export_stage(session, plan)


def serve_check(
    manifest: ManifestPath,
    workspace: WorkspacePath = DEFAULT_WORKSPACE,
    drafter: Annotated[
        str | None,
        typer.Option(
            "--drafter",
            metavar="PATH|HUB",
            help="Any DFlash drafter: a folder or a Hub id. Default: the manifest's own.",
        ),
    ] = None,
    devices: Devices = None,
    limit: Limit = None,
    dry_run: DryRun = False,
) -> None:
    """Decode held-out prompts in vLLM with the drafter and report its acceptance length, by category.

    Beside it stands the offline estimate (a sequential walk over the same rows). Both are recorded in the ledger.
    """
    from draftmill import drafting, selecting, stage_run
    from draftmill.terminal import INDENT, laid_out

    session = _session(manifest, workspace, devices, limit)
    if dry_run:
        reader = stage_run.reader(session)
        told = drafting.serve_sentences(session, reader, selecting.build_plan(session, reader), drafter)
        _print(laid_out(told, f"{'serve':<{INDENT}}", " " * INDENT))
        return
    _with_build(session, "serve-check", lambda s, ledger, b: drafting.serve_stage(s, ledger, b, drafter))


def _session(
    manifest: Path,
    workspace: Path,
    devices: str | None = None,
    limit: int | None = None,
    force_tensor_parallel: bool = False,
    ray: str | None = None,
) -> Session:
    from corpus.workspace import Workspace
    from draftmill.session import Session

    session = Session(manifest, Workspace(workspace), devices, limit, force_tensor_parallel, ray)
    _ = session.manifest, session.cluster  # what is wrong with either is answered before anything is touched
    return session


def _with_ledger(session: Session, command: str, work: Callable[[Session, LedgerWriter], object]) -> None:
    from corpus.ledger.rebuild import adopt
    from corpus.ledger.writer import open_ledger

    with open_ledger(session.workspace, command) as ledger:
        adopt(ledger)
        work(session, ledger)


def _with_build(session: Session, command: str, work: Callable[[Session, LedgerWriter, BuildPlan], object]) -> None:
    from draftmill.selecting import build_stage

    _with_ledger(session, command, lambda s, ledger: work(s, ledger, build_stage(s, ledger)))


def _print(lines: Iterable[str]) -> None:
    for line in lines:
        typer.echo(line)
