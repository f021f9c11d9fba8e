"""How long it takes to look at a ledger of a million prompts and answers: whole commands, each a process of its own.

    python benchmarks/looking.py [--rows 1000000] [--times 5] [--folder DIR] [--only WORDS]

Medians of wall and CPU seconds (user and system). Composition is asked twice: as a large ledger is published, and
counted anew, as of a small one. The workspace (looking_workspace.py) is made once and kept in --folder; a command that
fails is named with its last line. The promise: composition, funnel and provenance of one row in 1 s on two quiet cores,
and the explorer's first view in 2 s, which is timed from the start of the command to the whole page.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import duckdb
import httpx
from looking_workspace import make_workspace

from corpus.ledger.query import LedgerReader
from corpus.ledger.writer import open_ledger
from corpus.workspace import Workspace

AUDITED_ROWS = 956


def main() -> None:
    """Make the workspace where it is missing, and ask."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000, help="prompts")
    parser.add_argument("--times", type=int, default=5, help="times that each is asked")
    parser.add_argument("--folder", type=Path, help="where to keep the workspace; default: a temporary folder")
    parser.add_argument("--only", nargs="*", default=[], help="questions whose name holds one of these words")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        root = (options.folder or Path(temporary)) / f"ws-{options.rows}"
        if not (root / "made").exists():
            shutil.rmtree(root, ignore_errors=True)
            started = time.monotonic()
            make_workspace(root, options.rows)
            (root / "made").touch()
            print(f"made {root} in {time.monotonic() - started:.0f} s")
        print(f"{options.rows:,} prompts, medians of {options.times} whole commands")
        for name, command in questions(root).items():
            if not options.only or any(word in name for word in options.only):
                prepare(Workspace(root), kept="anew" not in name)
                print(f"{name:<42} {measured(command, options.times)}", flush=True)
        if not options.only or "explore" in options.only:
            for name, seconds in explored(root, options.times).items():
                print(f"{name:<42} {seconds:6.2f} s wall", flush=True)


def questions(root: Path) -> dict[str, list[str]]:
    """Name and command of each."""
    response_id, prompt_id, build_id = LedgerReader(Workspace(root)).rows(
        "SELECT response_id, prompt_id, build_id FROM provenance SEMI JOIN latest_build USING (build_id) "
        "WHERE state = 'accepted' ORDER BY response_id LIMIT 1"
    )[0]
    audited = root / "audited.jsonl"
    if not audited.exists():
        lines = (json.dumps({"prompt": f"write a function that sorts list {n}"}) + "\n" for n in range(AUDITED_ROWS))
        audited.write_text("".join(lines))
    asked = {
        "nothing": "SELECT 1",
        "composition, every build": "FROM composition",
        "composition, one build": f"FROM composition WHERE build_id = '{build_id}'",
        "composition, counted anew": f"FROM composition WHERE build_id = '{build_id}'",
        "funnel, every build": "FROM funnel",
        "funnel, one build": f"FROM funnel WHERE build_id = '{build_id}'",
        "provenance of a response": f"FROM provenance WHERE response_id = '{response_id}'",
        "provenance of a prompt": f"FROM provenance WHERE prompt_id = '{prompt_id}'",
        "unfinished": "SELECT build_id, why, count(*) FROM unfinished GROUP BY ALL",
        "acceptance": "FROM acceptance_by_category",
        "dropped, by reason": "SELECT source, reason, count(*) FROM dropped GROUP BY ALL",
        "lengths": f"FROM lengths WHERE build_id = '{build_id}'",
        "truncated": f"SELECT count(*) FROM provenance WHERE build_id = '{build_id}' AND finish_reason = 'length'",
        "throughput by hour": "FROM throughput_by_hour",
        "difference of two builds": f"FROM build_difference WHERE new_build_id = '{build_id}'",
        "shared rows": "SELECT source, other_source, count(*) FROM shared_rows GROUP BY ALL",
    }
    place = ["-w", str(root)]
    commands = {f"sql: {name}": ["sql", sql, *place] for name, sql in asked.items()}
    return commands | {
        "composition": ["composition", *place],
        "composition, counted anew": ["composition", *place],
        "composition --by source": ["composition", "--by", "source", *place],
        "funnel": ["funnel", *place],
        "funnel --source": ["funnel", "--source", "commits", *place],
        "show a response": ["show", response_id, *place],
        "show a prompt": ["show", prompt_id, *place],
        "sample": ["sample", "--category", "agent", "-n", "5", *place],
        "sample --state rejected": ["sample", "--state", "rejected", "-n", "5", *place],
        "report": ["report", build_id, *place],
        f"audit of {AUDITED_ROWS} rows": ["audit", str(audited)],
    }


def prepare(workspace: Workspace, kept: bool) -> None:
    """Have the published ledger keep its composition, or not, as one of a small ledger."""
    if kept:
        with open_ledger(workspace, "benchmark") as ledger:
            ledger.publish()
    else:  # in the snapshot itself: the writer would count it before it publishes
        with duckdb.connect(str(workspace.snapshot)) as connection:
            connection.execute("DELETE FROM kept_fingerprint")


def measured(command: list[str], times: int) -> str:
    """Medians of some runs, or why it failed."""
    walls, cpus = [], []
    for _ in range(times):
        before, started = os.times(), time.monotonic()
        done = subprocess.run(
            [sys.executable, "-m", "draftmill", *command], capture_output=True, text=True, check=False
        )
        walls.append(time.monotonic() - started)
        after = os.times()
        cpus.append(sum(after[2:4]) - sum(before[2:4]))
        if done.returncode not in (0, 3):
            last = (done.stderr.strip().splitlines() or ["?"])[-1]
            return f"failed with {done.returncode}: {last[:120]}"
    return f"{median(walls):6.2f} s wall {median(cpus):6.2f} s CPU"


def explored(root: Path, times: int) -> dict[str, float]:
    """Median seconds from starting the explorer to its first page, and to get that page again."""
    command = [sys.executable, "-m", "draftmill", "explore", "-w", str(root), "--no-browser"]
    seconds: dict[str, list[float]] = {"explore: first view": [], "explore: the same page again": []}
    for _ in range(times):
        started = time.monotonic()
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as server:
            try:
                assert server.stdout is not None
                address = next(found[0] for line in server.stdout if (found := re.search(r"http://\S+", line)))
                for each in seconds.values():
                    httpx.get(address, timeout=600).raise_for_status()
                    each.append(time.monotonic() - started)
                    started = time.monotonic()
            finally:
                server.send_signal(signal.SIGINT)
    return {name: median(each) for name, each in seconds.items()}


if __name__ == "__main__":
    main()
