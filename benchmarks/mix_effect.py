"""What the mix does: one drafter trained on 77% coding rows and one on the mission's mix, measured on the same prompts.

    python -m benchmarks.mix_effect [--rows 900] [--epochs 5] [--folder FOLDER]

Both builds lie in one workspace, with the structured target of tests/structured, its chats of five kinds, the same
number of rows, the same settings and seed, and the same number of steps (packs are cut so that both have as many). It
runs the public command alone: build, generate, extract and train for each manifest, then `serve-check` of both drafters
on the held-out prompts of the balanced build. One SQL query over the ledger (QUERY below) makes the table: acceptance
length by the offline walk, its 95% interval with rows as clusters, and vLLM's own figure beside it. With --folder the
workspace stays, and a second start does only what is missing. Six and a half minutes on two shared cores.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.structured.sources import TRAINING, manifest_body, write_sources
from training.pack import all_packs

DRAFTMILL = Path(sys.executable).with_name("draftmill")
BALANCED = {"coding": 46, "general": 26, "math": 11, "agent": 9, "code-other": 7}
SKEWED = {"coding": 77, "general": 11, "math": 5, "agent": 4, "code-other": 3}
HOLDOUT = 0.3
"""Of each kind, beside the rows: the smallest kind must have some to measure on."""
PROMPTS = 2.0
"""Prompts written of each kind, for each coding row of the skewed build: some are held out, some near duplicates."""
TRAINED_ROWS = """
SELECT r.prompt_tokens + r.response_tokens AS tokens
FROM build_responses b JOIN accepted_responses r USING (response_id) JOIN builds USING (build_id)
WHERE builds.name = '{name}' AND NOT b.holdout AND b.left_out IS NULL ORDER BY response_id
"""
QUERY = """
WITH trained AS (
    SELECT build_id, category, sum(prompts) AS rows FROM composition WHERE stage = 'trained' GROUP BY ALL
), measured AS (
    SELECT own.name, a.category, a.measured_by, a.acceptance_length AS tau, a.low, a.high, a.rows, trained.rows AS seen
    FROM acceptance_by_category a
    JOIN builds measured_on ON measured_on.build_id = a.build_id AND measured_on.name = 'balanced'
    JOIN drafters USING (drafter_id)
    JOIN builds own ON own.build_id = drafters.build_id
    JOIN trained ON trained.build_id = own.build_id AND trained.category = a.category
    WHERE a.measured_by IN ('walk', 'vllm')
)
SELECT category, any_value(rows) AS held_out,
       any_value(seen) FILTER (name = 'skewed') AS skewed_rows,
       any_value(tau) FILTER (name = 'skewed' AND measured_by = 'walk') AS skewed_tau,
       any_value(low) FILTER (name = 'skewed' AND measured_by = 'walk') AS skewed_low,
       any_value(high) FILTER (name = 'skewed' AND measured_by = 'walk') AS skewed_high,
       any_value(tau) FILTER (name = 'skewed' AND measured_by = 'vllm') AS skewed_vllm,
       any_value(seen) FILTER (name = 'balanced') AS balanced_rows,
       any_value(tau) FILTER (name = 'balanced' AND measured_by = 'walk') AS balanced_tau,
       any_value(low) FILTER (name = 'balanced' AND measured_by = 'walk') AS balanced_low,
       any_value(high) FILTER (name = 'balanced' AND measured_by = 'walk') AS balanced_high,
       any_value(tau) FILTER (name = 'balanced' AND measured_by = 'vllm') AS balanced_vllm
FROM measured GROUP BY category ORDER BY balanced_rows DESC
"""


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=900, help="training rows of each build")
    parser.add_argument("--epochs", type=int, default=TRAINING["epochs"])
    parser.add_argument("--folder", type=Path, help="where to work, kept; default: a temporary folder")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        compare(folder, options.rows, options.epochs)


def compare(folder: Path, rows: int, epochs: int) -> None:
    """Both builds, both drafters, one query."""
    workspace = folder / "workspace"
    most = max(share / sum(shares.values()) for shares in (BALANCED, SKEWED) for share in shares.values())
    sources = write_sources(folder, round(rows * most * PROMPTS))
    manifests = {}
    for name, shares in (("balanced", BALANCED), ("skewed", SKEWED)):
        body = manifest_body(name, sources, rows, shares, holdout=HOLDOUT)
        body["filters"]["turns"] = 1  # a prompt is a row: both builds have as many
        manifests[name] = Manifest(folder, workspace, body)
    for manifest in manifests.values():
        manifest.set(epochs=epochs)
        for command in ("generate", "extract"):
            manifest.run(command)
    seed = manifests["balanced"].body["seed"]
    lengths = {name: manifest.lengths() for name, manifest in manifests.items()}
    if len({len(own) for own in lengths.values()}) != 1:
        raise SystemExit(f"builds of {[len(own) for own in lengths.values()]} rows; both must have as many")
    budgets, steps = equal_steps(lengths, TRAINING["tokens_per_batch"], epochs, seed)
    for name, manifest in manifests.items():
        manifest.set(tokens_per_batch=budgets[name])
        manifest.run("train")
    found = dict(manifests["balanced"].ask("SELECT b.name, d.steps FROM drafters d JOIN builds b USING (build_id)"))
    paths = dict(manifests["balanced"].ask("SELECT b.name, d.path FROM drafters d JOIN builds b USING (build_id)"))
    if set(found.values()) != {steps}:
        raise SystemExit(f"drafters of {found} steps; both must have {steps}")
    for own in ([], ["--drafter", str(workspace / paths["skewed"])]):
        manifests["balanced"].run("serve-check", *own)
    packs = " and ".join(f"{budget} ({name})" for name, budget in budgets.items())
    print(f"{rows} rows and {steps} steps each, packs of at most {packs} tokens; held-out rows of the balanced build")
    print(table([dict(row) for row in manifests["balanced"].records(QUERY)]))


class Manifest:
    """A manifest's file, and the command on it."""

    def __init__(self, folder: Path, workspace: Path, body: dict[str, Any]) -> None:
        self.path = folder / f"{body['name']}.yaml"
        self.workspace, self.body = workspace, body

    def set(self, **training: Any) -> None:
        """Write it, with other values in its training section."""
        self.body["training"] |= training
        self.path.write_text(json.dumps(self.body, indent=1))

    def run(self, command: str, *options: str) -> None:
        """One command, its words to the terminal."""
        print(f"$ draftmill {command} {self.path.name} {' '.join(options)}", flush=True)
        subprocess.run([DRAFTMILL, command, self.path, "--workspace", self.workspace, *options], check=True)

    def records(self, sql: str) -> list[dict[str, Any]]:
        """The rows of a query, by `draftmill sql`."""
        command = [DRAFTMILL, "sql", sql, "--workspace", self.workspace, "--format", "json"]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        return [dict(row) for row in json.loads(done.stdout)]

    def ask(self, sql: str) -> list[tuple[Any, ...]]:
        """The same as tuples."""
        return [tuple(row.values()) for row in self.records(sql)]

    def lengths(self) -> list[int]:
        """Tokens of each training row, in the order that training packs them from."""
        return [tokens for (tokens,) in self.ask(TRAINED_ROWS.format(name=self.body["name"]))]


def equal_steps(lengths: dict[str, list[int]], budget: int, epochs: int, seed: int) -> tuple[dict[str, int], int]:
    """(tokens of a pack by name, steps): the first build has `budget`, the others the nearest with as many steps."""
    names = list(lengths)
    steps = len(all_packs(lengths[names[0]], budget, epochs=epochs, seed=seed))
    budgets = {names[0]: budget}
    for name in names[1:]:
        around = round(budget * sum(lengths[name]) / sum(lengths[names[0]]))
        tried = sorted(range(around // 2, around * 2), key=lambda tokens: abs(tokens - around))
        fits = (t for t in tried if len(all_packs(lengths[name], t, epochs=epochs, seed=seed)) == steps)
        found = next(fits, None)
        if found is None:
            raise SystemExit(f"no pack size gives {name} {steps} steps; choose another --rows")
        budgets[name] = found
    return budgets, steps


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown: a line a category; `told apart`: the two intervals share no value."""
    lines = [
        "| category | held out | rows, 77% coding | τ [95%] | vLLM | rows, balanced | τ [95%] | vLLM | difference |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        apart = row["skewed_high"] < row["balanced_low"] or row["balanced_high"] < row["skewed_low"]
        difference = row["balanced_tau"] - row["skewed_tau"]
        sides = [
            f"{row[f'{side}_rows']} | {row[f'{side}_tau']:.2f} [{row[f'{side}_low']:.2f}, {row[f'{side}_high']:.2f}] "
            f"| {row[f'{side}_vllm']:.2f}"
            for side in ("skewed", "balanced")
        ]
        lines.append(
            f"| {row['category']} | {row['held_out']} | {sides[0]} | {sides[1]} | "
            f"{difference:+.2f}{'' if apart else ' (intervals overlap)'} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
