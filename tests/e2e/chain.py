"""The whole chain with real parts, once: fresh prompts of five kinds, the structured target, real vLLM, a kill.

Made in this order: `generate` is killed with SIGKILL after its first answers are written; `run` goes on and does the
rest, and a second `run` finds nothing to do; a share is edited and `generate` adds the difference; a drafter with
random weights is exported and served. The tests hold what the ledger says against the files.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import polars as pl
import psutil

from corpus.building import BuildPlan
from corpus.ledger.query import query
from corpus.workspace import Workspace
from draftmill import selecting
from draftmill.session import Session
from tests.processes import LIMIT_S, survivors
from tests.structured.sources import manifest_body, write_sources

DRAFTMILL = Path(sys.executable).with_name("draftmill")
ROWS = 400
"""Prompts of each kind that there are."""
TOTAL = 800
SHARES = {"coding": 22, "general": 34, "math": 16, "agent": 14, "code-other": 14}
EDITED = SHARES | {"general": 28, "agent": 20}


@dataclass(frozen=True)
class Chain:
    """The finished workspace and what was seen on the way."""

    workspace: Workspace
    manifest: Path
    edited: Path
    committed_before_kill: pl.DataFrame
    orphans: list[str]
    second_run: str
    second_run_workers: set[Path]
    """Folders of workers that it started."""
    untrained: Path
    """A folder with the drafter of random weights."""

    def ask(self, sql: str) -> pl.DataFrame:
        """One query, as a user asks it."""
        return query(self.workspace, sql)

    def plan(self, manifest: Path | None = None) -> BuildPlan:
        """The build plan of a manifest; of the chain's own, if none is named."""
        return selecting.build_plan(Session(manifest or self.manifest, self.workspace))

    def build_id(self, manifest: Path | None = None) -> str:
        """The build of a manifest in this workspace."""
        return self.plan(manifest).build_id


def draftmill(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run the command and demand that it succeeds."""
    done = subprocess.run([DRAFTMILL, *map(str, arguments)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{arguments}: {done.returncode}\n{done.stderr[-3000:]}"
    return done


def make_chain(folder: Path) -> Chain:
    """All of it, below `folder`."""
    workspace = Workspace(folder / "work space")
    sources = write_sources(folder, ROWS)
    manifest, edited = folder / "chain.yaml", folder / "edited.yaml"
    manifest.write_text(json.dumps(manifest_body("chain", sources, TOTAL, SHARES), indent=1))
    edited.write_text(json.dumps(manifest_body("chain", sources, TOTAL, EDITED), indent=1))
    orphans = kill_in_generation(manifest, workspace)
    shards = sorted(workspace.responses.glob("*.parquet"))
    committed = pl.concat([pl.read_parquet(path).with_columns(shard=pl.lit(path.name)) for path in shards])
    draftmill("run", manifest, "--workspace", workspace.root)
    before = workers_of(workspace)
    assert before
    second = draftmill("run", manifest, "--workspace", workspace.root)
    started = workers_of(workspace) - before
    untrained = folder / "untrained"
    draftmill("export", manifest, "--workspace", workspace.root, "--untrained", "--out", untrained)
    draftmill("serve-check", manifest, "--workspace", workspace.root, "--drafter", untrained)
    draftmill("generate", edited, "--workspace", workspace.root)
    return Chain(workspace, manifest, edited, committed, orphans, second.stderr, started, untrained)


def workers_of(workspace: Workspace) -> set[Path]:
    """Every run that starts workers has a folder for what they print."""
    return set(workspace.root.glob("runs/*/workers"))


def kill_in_generation(manifest: Path, workspace: Workspace) -> list[str]:
    """SIGKILL the coordinator when answers are on disk; returns what does not end."""
    with subprocess.Popen(
        [DRAFTMILL, "generate", str(manifest), "--workspace", str(workspace.root)],
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        deadline = time.monotonic() + LIMIT_S
        while not any(workspace.responses.glob("*.parquet")):
            assert process.poll() is None, process.stderr and process.stderr.read().decode()
            assert time.monotonic() < deadline, f"no answer was written in {LIMIT_S:g} s"
            time.sleep(0.02)
        family = psutil.Process(process.pid).children(recursive=True)
        assert family, "the engines are processes of their own"
        os.kill(process.pid, signal.SIGKILL)
    return [str(one) for one in survivors(family)]
