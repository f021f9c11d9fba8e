"""What a corpus build costs, and what a rebuild does; beside a plain `datasets` + `datasketch` pipeline.

    python benchmarks/corpus_build.py [--rows 1000000] [--times 3] [--model FOLDER] [--folder DIR]

Every figure is of a process of its own (user and system CPU seconds, peak resident memory, medians of --times runs):
the whole build from parquet and from JSONL (read, normalise, exact and near dedup, decontaminate, mix, write, ledger);
with --model, exact token counts of the survivors too; a rebuild after changing shares; one after adding a source of
10,000 rows. What was planted in the corpus (million.py) is then looked for in the drops. The plain pipeline runs on
50,000 rows beside a build of the same rows.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import polars as pl

SHARES = {"coding": 46, "general": 26, "math": 11, "agent": 9, "code-other": 7}
PLAIN_ROWS = 50_000
ADDED_ROWS = 10_000
THRESHOLD = 0.7


@dataclass(frozen=True)
class Cost:
    """Of one process."""

    cpu_s: float
    wall_s: float
    peak_mb: float

    def __str__(self) -> str:
        return f"{self.cpu_s:7.1f} CPU s {self.wall_s:7.1f} s wall {self.peak_mb:7,.0f} MB"


def main() -> None:
    """Run everything and print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--model", help="a model folder: count tokens too")
    parser.add_argument("--folder", type=Path, help="where to keep the corpus; default: a temporary folder")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        root = options.folder or Path(temporary)
        corpus = root / f"rows-{options.rows}"
        if not (corpus / "planted.parquet").exists():
            make_corpus(corpus, options.rows, "both", 1)
        print(f"{options.rows:,} rows, medians of {options.times}; each line a process of its own")
        full = whole_builds(root, corpus, options.times, options.model)
        rebuilds(root, corpus, options.times, full)
        planted(root / "ws", corpus)
        beside_plain(root, options.times)


def whole_builds(root: Path, corpus: Path, times: int, model: str | None) -> Cost:
    """Builds in an empty workspace, by kind of file; returns that from parquet."""
    costs = {}
    for kind in ("jsonl", "parquet"):
        manifest = write_manifest(root / f"{kind}.yaml", sources(corpus, kind))
        costs[kind] = repeated(times, lambda m=manifest: build(m, root / "ws", fresh=True))
        print(f"whole build from {kind:<8}      {costs[kind]}")
    if model is not None:
        manifest = write_manifest(root / "tokens.yaml", sources(corpus, "parquet"), model)
        cost = repeated(times, lambda: build(manifest, root / "ws-tokens", fresh=True))
        print(f"  with token counts            {cost}")
    print(f"  JSONL costs {costs['jsonl'].cpu_s - costs['parquet'].cpu_s:+.1f} CPU s beside parquet")
    return costs["parquet"]


def rebuilds(root: Path, corpus: Path, times: int, full: Cost) -> None:
    """Rebuilds in the workspace of the whole build."""
    added = root / "added"
    if not (added / "planted.parquet").exists():
        make_corpus(added, 8 * ADDED_ROWS, "parquet", 2)
    base = sources(corpus, "parquet")
    shares, adds = [], []
    for number in range(times):
        changed = write_manifest(root / "changed.yaml", base, shares=SHARES | {"coding": 45 - number})
        shares.append(build(changed, root / "ws"))
        extra = {**sources(added, "parquet")[number], "name": f"added-{number}"}
        adds.append(build(write_manifest(root / "added.yaml", [*base, extra]), root / "ws"))
    for what, costs in (("rebuild after changing shares", shares), ("adding 10,000 rows", adds)):
        cost = middle(costs)
        print(f"{what:<30} {cost}  {cost.cpu_s / full.cpu_s:6.1%} of the whole build's CPU")


def planted(workspace: Path, corpus: Path) -> None:
    """How much of what was planted the last whole build found, and whether it dropped anything else."""
    query = (
        "SELECT DISTINCT source, file, row_index, reason, similarity FROM drops JOIN builds USING (candidates_id) "
        "WHERE created_at = (SELECT min(created_at) FROM builds)"
    )
    out = workspace / "drops.parquet"
    subprocess.run([*DRAFTMILL, "sql", query, "-w", str(workspace), "-o", str(out)], check=True)
    drops = pl.read_parquet(out)
    near = drops.filter(pl.col("reason") == "near_duplicate")
    pairs = pl.read_parquet(corpus / "pairs.parquet").filter(pl.col("jaccard") >= THRESHOLD)
    gone = located(drops, corpus)
    found = pairs.join(gone, on=["source", "row"], how="semi")
    other = pairs.join(gone, left_on=["origin_source", "origin_row"], right_on=["source", "row"], how="semi")
    either = pl.concat([found, other]).unique()
    print(f"near dedup: {either.height:,} of {pairs.height:,} planted pairs at or above {THRESHOLD} lost a row "
          f"({either.height / pairs.height:.4f})")  # fmt: skip
    true = near.filter(pl.col("similarity") >= THRESHOLD).height
    print(f"            {true:,} of {near.height:,} near duplicates are as alike as they must be "
          f"({true / max(1, near.height):.4f})")  # fmt: skip
    leaks = pl.read_parquet(corpus / "planted.parquet")
    contaminated = located(drops.filter(pl.col("reason") == "contaminated"), corpus)
    hits = leaks.join(contaminated, on=["source", "row"], how="semi").height
    print(f"decontamination: {hits:,} of {leaks.height:,} planted overlaps found, {contaminated.height:,} rows dropped")


def located(rows: pl.DataFrame, corpus: Path) -> pl.DataFrame:
    """Distinct (source, row) with rows counted over both files of a source, as what was planted names them."""
    first = {path.name[: -len("-0.parquet")]: _height(path) for path in (corpus / "parquet").glob("*-0.parquet")}
    second = pl.col("file").str.ends_with("-1.parquet").cast(pl.Int64)
    row = pl.col("row_index") + second * pl.col("source").replace_strict(first, return_dtype=pl.Int64)
    return rows.select("source", row=row).unique()


def _height(path: Path) -> int:
    return int(pl.scan_parquet(path).select(pl.len()).collect().item())


def beside_plain(root: Path, times: int) -> None:
    """Both on the same 50,000 rows."""
    corpus = root / f"rows-{PLAIN_ROWS}"
    if not (corpus / "planted.parquet").exists():
        make_corpus(corpus, PLAIN_ROWS, "parquet", 3)
    manifest = write_manifest(root / "plain.yaml", sources(corpus, "parquet"))
    ours, theirs = [], []
    for _ in range(times):
        ours.append(build(manifest, root / "ws-plain", fresh=True))
        shutil.rmtree(root / "plain", ignore_errors=True)
        script = str(Path(__file__).parent / "plain_pipeline.py")
        theirs.append(measured([sys.executable, script, str(corpus), str(root / "plain")]))
    print(f"{PLAIN_ROWS:,} rows, draftmill          {middle(ours)}")
    print(f"{PLAIN_ROWS:,} rows, plain pipeline     {middle(theirs)}")
    ratios = [plain.cpu_s / own.cpu_s for plain, own in zip(theirs, ours, strict=True)]
    print(f"ratio of CPU seconds: {median(ratios):.1f} ({min(ratios):.1f} to {max(ratios):.1f})")


def make_corpus(out: Path, rows: int, form: str, seed: int) -> None:
    """million.py, in a process of its own: a child's peak memory counts what its parent held when it was forked."""
    script = str(Path(__file__).parent / "million.py")
    arguments = ["--out", str(out), "--rows", str(rows), "--format", form, "--seed", str(seed)]
    subprocess.run([sys.executable, script, *arguments], check=True)


def sources(corpus: Path, kind: str) -> list[dict[str, Any]]:
    """The corpus's sources, labelled in turn."""
    names = sorted({path.name.rsplit("-", 1)[0] for path in (corpus / kind).iterdir()})
    categories = list(SHARES)
    return [
        {
            "name": name, "path": str((corpus / kind / f"{name}-*").absolute()), "license": "mit",
            "category": categories[number % len(categories)], "priority": number % 3,
        }
        for number, name in enumerate(names)
    ]  # fmt: skip


def write_manifest(path: Path, of: list[dict[str, Any]], model: str | None = None, shares: Any = None) -> Path:
    """A manifest over these sources; JSON is YAML."""
    evals = Path(of[0]["path"]).parent.parent / "evals.jsonl"
    filters: dict[str, Any] = {"prompt_chars": [4, 24000], "turns": 8}
    body = {
        "name": path.stem,
        "mix": {"total": 10**9, "shares": shares or SHARES, "shortage": "rescale"},
        "sources": of,
        "filters": filters | ({"prompt_tokens": 3072} if model else {}),
        "dedup": {"near": THRESHOLD},
        "decontaminate": {"against": [{"path": str(evals), "field": "question"}]},
        "target": {"model": model or "none"},
    }
    path.write_text(json.dumps(body))
    return path


DRAFTMILL = [sys.executable, "-m", "draftmill"]


def build(manifest: Path, workspace: Path, fresh: bool = False) -> Cost:
    """One `draftmill build`."""
    if fresh:
        shutil.rmtree(workspace, ignore_errors=True)
    return measured([*DRAFTMILL, "build", str(manifest), "-w", str(workspace)])


def repeated(times: int, run: Any) -> Cost:
    """The median of several runs."""
    return middle([run() for _ in range(times)])


def middle(costs: list[Cost]) -> Cost:
    """Medians of each figure."""
    return Cost(*(median(getattr(cost, name) for cost in costs) for name in ("cpu_s", "wall_s", "peak_mb")))


def measured(command: list[str]) -> Cost:
    """Run a command; its processes' CPU seconds and the peak memory of the largest."""
    started = time.monotonic()
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(command, stdout=said, stderr=subprocess.STDOUT)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            said.seek(0)
            raise SystemExit(f"{' '.join(command)} failed:\n{said.read().decode()[-2000:]}")
    return Cost(usage.ru_utime + usage.ru_stime, time.monotonic() - started, usage.ru_maxrss / 1024)


if __name__ == "__main__":
    main()
