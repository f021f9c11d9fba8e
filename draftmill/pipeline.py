"""The stages, joined: build -> generate -> extract -> train -> export -> serve check.

`run_all` reads as the mission does. Each stage function plans, says what it found, and runs what is left; a stage
with nothing left starts no engine. The stages never import each other: what one needs of another is in the ledger.
"""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from corpus.building import BuildPlan
from corpus.ledger.rebuild import adopt
from corpus.ledger.writer import Readable, open_ledger
from draftmill.agreement import ALL_ROWS
from draftmill.capturing import extract_stage, extraction_plan, extraction_sentences
from draftmill.drafting import serve_stage, train_stage, training_lines, training_plan
from draftmill.generating import generate_stage
from draftmill.selecting import build_stage
from draftmill.session import Session
from draftmill.terminal import INDENT, laid_out, say, workspace_flag
from training.plan import TrainingPlan


def run_all(session: Session, serve: bool) -> None:
    """The whole chain, in one workspace, resuming wherever it stopped."""
    with open_ledger(session.workspace, "run") as ledger:
        adopt(ledger)
        build = build_stage(session, ledger)
        generate_stage(session, ledger, build)
        extract_stage(session, ledger, build)
        plan = train_stage(session, ledger, build, alone=False)
        if serve:
            serve_stage(session, ledger, build, None, again=False)
        _what_next(session, plan)


def later_lines(session: Session, ledger: Readable, build: BuildPlan) -> Iterator[str]:
    """What follows the answers, for a person: each stage as far as it can be planned now.

    Raises:
        UserError, DeviceError: as the stages.
    """
    if not ledger.rows(
        "SELECT 1 FROM build_responses JOIN accepted_responses USING (response_id) WHERE build_id = ? LIMIT 1",
        build.build_id,
    ):
        yield from laid_out(["extract and train follow, on what is answered then"])
        return
    below = " " * INDENT
    plan = extraction_plan(session, ledger, build)
    yield from laid_out(extraction_sentences(session, plan, ALL_ROWS), f"{'extract':<{INDENT}}", below)
    if plan.rows:
        lines = ["follows, on the states that are captured then"]
    else:
        training = training_plan(session, ledger, build.build_id)
        lines = training_lines(session, training, ledger)
    yield from laid_out(lines, f"{'train':<{INDENT}}", below)


def _what_next(session: Session, plan: TrainingPlan) -> None:
    root = session.workspace.root
    export = root / "drafters" / plan.drafter_id / "export"
    flag = workspace_flag(root)
    command = "draftmill" if shutil.which("draftmill") else shlex.quote(_shown(Path(sys.argv[0])))
    steps = session.manifest.training.block_size - 1
    say("")
    say(f"The drafter is in {export}. Serve it:")
    say(f"  vllm serve {_shown(session.target.folder)} \\")
    say(f'    --speculative-config \'{{"method": "dflash", "num_speculative_tokens": {steps},')
    say(f'      "model": "{export}"}}\'')
    say("Ask what it was made of, and where its rows came from:")
    say(f'  {command} sql{flag} "SELECT stage, category, prompts FROM composition"')
    say(f'  {command} sql{flag} "SELECT category, dataset, row_index FROM provenance"')
    say("Then change a share in the manifest and run it again:")
    say("only what the change adds is generated.")


def _shown(path: Path) -> str:
    """A path as short as it can be typed here."""
    for base, prefix in ((Path.cwd(), ""), (Path.home(), "~/")):
        if path.is_relative_to(base):
            return f"{prefix}{path.relative_to(base)}"
    return str(path)
