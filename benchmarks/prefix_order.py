"""What it brings that rows with one tools block run near each other: one engine, the same rows with and without.

    python benchmarks/prefix_order.py [--rounds 3] [--blocks 20] [--rows-a-block 6] [--kv-blocks 58]

Agent rows: --blocks distinct tools blocks of some 750 tokens, --rows-a-block short questions to each. Each round runs
them twice through draftmill on core 0 (real vLLM, SmolLM2-135M in float32, prefix cache on): in the order of the feed,
and with the prefix keys taken from it, which leaves the nested order, by hash. Nothing else differs; the tools of every
run have names of their own, in a fixed number of digits, so that no run finds another's prefixes in the cache. The KV
cache (--kv-blocks of 128 tokens) holds 6 running rows and less than half of the prefixes: a run of agent rows has
thousands of tools blocks, and no GPU holds them all. Prints tokens/s (generated), the part of prompt tokens that the
cache had (mean of the engine's samples) and seconds; medians. About 10 minutes on two quiet cores.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from demo_runs import Figures, measured_run, write_manifest
from kept_engines import KeptEngines

from fleet.devices import Device

CORE = Device("cpu", 0)
TOOLS = 4
"""Functions of one block."""
MAX_TOKENS = 32
MAX_NUM_SEQS = 6
MAX_MODEL_LEN = 1024
TOPICS = ("orders", "invoices", "tickets", "shipments", "accounts", "sensors", "bookings", "courses")
FIELDS = ("region", "owner", "status", "priority", "warehouse", "currency", "channel", "category")


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--blocks", type=int, default=20, help="distinct tools blocks")
    parser.add_argument("--rows-a-block", type=int, default=6)
    parser.add_argument("--kv-blocks", type=int, default=58, help="of 128 tokens: all that the engine's KV cache holds")
    parser.add_argument("--folder", type=Path, help="where to work, kept; default: a temporary folder")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        asyncio.run(compare(folder, options.rounds, options.blocks, options.rows_a_block, options.kv_blocks))


async def compare(folder: Path, rounds: int, blocks: int, rows_a_block: int, kv_blocks: int) -> None:
    """All rounds, and their medians."""
    engine = {
        "max_num_seqs": MAX_NUM_SEQS,
        "extra": {"enable_prefix_caching": True, "num_gpu_blocks_override": kv_blocks},
    }
    kept = KeptEngines(folder)
    found: dict[str, list[Figures]] = {"grouped": [], "by hash": []}
    try:
        await run(folder, "warm", 2, 4, engine, kept, grouped=True)
        print(f"{blocks} tools blocks x {rows_a_block} rows; the KV cache holds {kv_blocks * 128:,} tokens")
        print("           tokens/s   prefix hits   seconds", flush=True)
        for number in range(rounds):
            # the order of the two turns from round to round, so that neither is always the second
            for name in list(found) if number % 2 == 0 else list(found)[::-1]:
                label = f"{'g' if name == 'grouped' else 'h'}{number:03d}"
                figures = await run(folder, label, blocks, rows_a_block, engine, kept, grouped=name == "grouped")
                found[name].append(figures)
                print(line(name, [figures]), flush=True)
    finally:
        await kept.close()
    prompt_tokens = [len(prompt) for figures in found["grouped"] for prompt in figures.prompts]
    print(f"medians of {rounds}; prompts of {min(prompt_tokens)} to {max(prompt_tokens)} tokens")
    for name, several in found.items():
        print(line(name, several))
    ratios = [own.tokens_per_s / other.tokens_per_s for own, other in zip(*found.values(), strict=True)]
    print(f"grouped / by hash: median {median(ratios):.2f} times the tokens/s ({min(ratios):.2f} to {max(ratios):.2f})")


def line(name: str, several: list[Figures]) -> str:
    """Medians of some runs."""
    rate = median(figures.tokens_per_s for figures in several)
    hits = median(figures.prefix_hits or 0.0 for figures in several)
    return f"{name:<9} {rate:9.1f} {hits:13.1%} {median(figures.seconds for figures in several):9.1f}"


async def run(
    folder: Path,
    label: str,
    blocks: int,
    rows_a_block: int,
    engine: dict[str, Any],
    kept: KeptEngines,
    *,
    grouped: bool,
) -> Figures:
    """One run over rows that no other run has seen. `label` is in the name of every function."""
    rows = folder / f"{label}.jsonl"
    rows.write_text("".join(json.dumps(row) + "\n" for row in agent_rows(label, blocks, rows_a_block)))
    sources = [{"name": "agent", "path": str(rows), "category": "agent", "license": "mit"}]
    manifest = write_manifest(
        folder / f"{label}.yaml", sources, {"agent": 1}, blocks * rows_a_block, MAX_TOKENS, engine, MAX_MODEL_LEN
    )
    figures = await measured_run(manifest, folder / label, [CORE], kept, grouped=grouped)
    if figures.rows != blocks * rows_a_block:
        raise SystemExit(f"{label}: {figures.rows} rows were answered, expected {blocks * rows_a_block}")
    return figures


def agent_rows(label: str, blocks: int, rows_a_block: int) -> list[dict[str, Any]]:
    """Rows of every block, alike in all labels but for the functions' names."""
    draw = random.Random(17)
    rows = []
    for block in range(blocks):
        tools = [function(f"{label}_{block:03d}_{number}", draw) for number in range(TOOLS)]
        for number in range(rows_a_block):
            topic, field = draw.choice(TOPICS), draw.choice(FIELDS)
            asked = f"Find the {topic} of {field} {draw.randint(100, 999)} and sum them up, case {block}-{number}."
            rows.append({"messages": [{"role": "user", "content": asked}], "tools": tools})
    return rows


def function(name: str, draw: random.Random) -> dict[str, Any]:
    """One function of a tools block, some 180 tokens."""
    topic = draw.choice(TOPICS)
    fields = draw.sample(FIELDS, 4)
    properties = {
        field: {"type": "string", "description": f"Only {topic} with this {field}, at most {draw.randint(10, 99)}."}
        for field in fields
    }
    return {
        "type": "function",
        "function": {
            "name": f"find_{name}",
            "description": f"Searches {topic} by {' and '.join(fields)}.",
            "parameters": {"type": "object", "properties": properties, "required": fields[:2]},
        },
    }


if __name__ == "__main__":
    main()
