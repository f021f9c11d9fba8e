"""How well an audit finds a skew, and what it costs on a big corpus.

The story: eleven sources of different names, 77% coding together, looked at through 956 rows. Real prompts whose
category is known (the held-out half of tests/labelled: each time of a random half of its packages, so that sources
differ as they do in life) are drawn again into eleven files, each of a mix of its own; `draftmill audit` is run as a
whole, over many corpora, and the truth of each is compared with the intervals. Then a file of a million rows, as JSON
lines (plain and .gz) and as parquet: seconds of CPU and peak memory.

    python -m benchmarks.audit [--runs 20] [--rows 1000000] [--folder FOLDER]
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tests.labelled.sets import labelled_rows

HOME = Path(__file__).resolve().parent.parent
STORY = {"coding": 77.0, "general": 9.0, "math": 6.0, "agent": 4.0, "code-other": 4.0}
INTENDED = "coding=46,general=26,math=11,agent=9,code-other=7"
FILES, ROWS, CORPUS = 11, 956, 20_000
ANSWERS, ANSWER, GROUP = 1 << 24, 1_500, 50_000
Prompt = dict[str, Any]


def known_prompts() -> dict[str, list[Prompt]]:
    """Prompts of the held-out half by true category; each names its package."""
    found: dict[str, list[Prompt]] = {name: [] for name in STORY}
    for row in labelled_rows():
        if row["half"] == "held_out":
            found[row["category"]].append(row)
    return found


def some_packages(prompts: dict[str, list[Prompt]], seed: int) -> dict[str, list[Prompt]]:
    """Those of a random half of the packages that hold each category."""
    rng, kept = np.random.default_rng(seed), {}
    for name, of in prompts.items():
        packages = sorted({prompt["package"] for prompt in of})
        half = set(rng.choice(packages, len(packages) // 2, replace=False))
        kept[name] = [prompt for prompt in of if prompt["package"] in half]
    return kept


def make_corpus(folder: Path, prompts: dict[str, list[Prompt]], seed: int, rows: int = CORPUS) -> dict[str, float]:
    """Eleven files, each of a mix of its own around the story's; returns the true shares, which are the story's."""
    rng = np.random.default_rng(seed)
    counts = {name: round(rows * share / 100) for name, share in STORY.items()}
    spread = {name: rng.multinomial(count, rng.dirichlet(np.full(FILES, 4.0))) for name, count in counts.items()}
    for number in range(FILES):
        lines = [
            json.dumps({key: prompts[name][int(i)][key] for key in ("messages", "tools")})
            for name in STORY
            for i in rng.integers(len(prompts[name]), size=spread[name][number])
        ]
        rng.shuffle(lines)
        (folder / f"source-{number:02}.jsonl").write_text("".join(f"{line}\n" for line in lines))
    return {name: count / rows for name, count in counts.items()}


def run_audit(*arguments: str) -> tuple[subprocess.CompletedProcess[str], float, float]:
    """(what it said, CPU seconds, seconds) of the whole command."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "draftmill", "audit", *arguments],
        capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": str(HOME)},
    )  # fmt: skip
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return done, cpu, time.monotonic() - began


def covered(prompts: dict[str, list[Prompt]], runs: int, folder: Path) -> None:
    """The story, again and again: how often found, how often covered."""
    found = Counter[str]()
    cpus, seconds, widths = [], [], []
    for seed in range(runs):
        place = folder / f"story-{seed}"
        place.mkdir()
        truth = make_corpus(place, some_packages(prompts, seed), seed)
        done, cpu, took = run_audit(
            str(place), "--rows", str(ROWS), "--seed", str(seed), "--shares", INTENDED, "--fail-on-skew", "5%",
            "--format", "json",
        )  # fmt: skip
        if done.returncode not in (0, 3):
            raise SystemExit(done.stderr)
        told = json.loads(done.stdout)
        cpus.append(cpu)
        seconds.append(took)
        found["exit 3"] += done.returncode == 3
        found["worst is coding"] += told["worst"] == "coding"
        for one in told["categories"]:
            found[one["category"]] += one["low"] <= truth[one["category"]] <= one["high"]
            if one["category"] == "coding":
                widths.append(one["high"] - one["low"])
                off = one["share"] - truth["coding"]
                print(f"  seed {seed:2}: coding {truth['coding']:.3f}: {one['share']:.3f} "
                      f"({one['low']:.3f} to {one['high']:.3f}), off {off:+.3f}")  # fmt: skip
    for what in ("exit 3", "worst is coding", *STORY):
        print(f"{'covers ' * (what in STORY) + what:<24}{found[what]:>4} of {runs}")
    print(f"mean width {np.mean(widths):.3f}; command: {np.mean(cpus):.2f} CPU s, {np.max(seconds):.1f} s at most")


def big(prompts: dict[str, list[Prompt]], rows: int, folder: Path) -> None:
    """One file of many rows, in three forms."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng = np.random.default_rng(0)
    known = [json.dumps(prompt["messages"]) for of in prompts.values() for prompt in of]
    said = rng.bytes(ANSWERS).hex()  # answers that hardly shrink, as text does
    plain = folder / "big.jsonl"
    schema = pa.schema([("prompt", pa.string()), ("response", pa.string())])
    with plain.open("w") as out, pq.ParquetWriter(folder / "big.parquet", schema, compression="zstd") as table:
        for first in range(0, rows, GROUP):
            size = min(GROUP, rows - first)
            asked = [known[i] for i in rng.integers(len(known), size=size)]
            answers = [said[i : i + ANSWER] for i in rng.integers(len(said) - ANSWER, size=size)]
            out.write("".join(f'{{"prompt": {a}, "response": "{b}"}}\n' for a, b in zip(asked, answers, strict=True)))
            table.write_table(pa.table({"prompt": asked, "response": answers}, schema))
    packed = folder / "big.jsonl.gz"
    with plain.open("rb") as source, gzip.open(packed, "wb", compresslevel=1) as out_gz:
        while block := source.read(1 << 22):
            out_gz.write(block)
    for path in (plain, folder / "big.parquet", packed):
        done, cpu, took = run_audit(str(path), "--format", "json")
        peak = _peak(path)
        told = json.loads(done.stdout) if done.returncode == 0 else {"rows": done.stderr}
        print(f"{path.name:<14}{path.stat().st_size / 1e9:6.2f} GB  {told['rows']:>9,} rows  {cpu:5.1f} CPU s  "
              f"{took:5.1f} s  {peak / 1024:6.0f} MB")  # fmt: skip


def _peak(path: Path) -> int:
    """Peak resident KiB of the command. Not getrusage's: that begins at what this process had when it forked."""
    script = (
        "import re, sys; from draftmill.app import run_app; run_app(['audit', sys.argv[1], '--format', 'csv']); "
        "sys.stderr.write('\\npeak ' + re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[1])"
    )
    done = subprocess.run([sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=True,
                          env={**os.environ, "PYTHONPATH": str(HOME)})  # fmt: skip
    return int(done.stderr.rsplit(" ", 1)[1])


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--folder", type=Path, default=None)
    asked = parser.parse_args(arguments)
    prompts = known_prompts()
    print("prompts of the held-out half: " + ", ".join(f"{len(of)} {name}" for name, of in prompts.items()))
    with tempfile.TemporaryDirectory(dir=asked.folder) as folder:
        if asked.runs:
            covered(prompts, asked.runs, Path(folder))
        if asked.rows:
            big(prompts, asked.rows, Path(folder))


if __name__ == "__main__":
    main()
