"""A manifest over fresh chats for the structured target: what a chain of real parts runs on in tests and benchmarks.

One JSONL file a kind beside the manifest, and the target by its path. Numbers that a caller leaves out are the ones
at which a drafter of one layer is worth something after a minute on one core.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.structured.chats import FRESH, KINDS, chats

TARGET = Path(__file__).with_name("target")
TRAINING = {
    "block_size": 8, "draft_layers": 1, "anchors_per_document": 24, "epochs": 5, "tokens_per_batch": 1024,
    "checkpoint_every": 400, "learning_rate": 5e-3,
}  # fmt: skip
SEED = 7
"""Of the prompts; the target was asked others at the end of its training."""
EVERY = 50
"""One prompt in so many is there a second time with a polite word: a near duplicate."""


def write_sources(folder: Path, rows: int, seed: int = SEED) -> list[dict[str, Any]]:
    """`rows` distinct prompts of each kind into JSONL files; the manifest's section that names them."""
    for kind in KINDS:
        lines = []
        for number, chat in enumerate(chats(kind, rows, seed, FRESH)):
            row = chat.row(number)
            lines.append(row)
            if number % EVERY == 0:
                last = max(i for i, message in enumerate(row["messages"]) if message["role"] == "user")
                asked = row["messages"][last]
                again = [*row["messages"]]
                again[last] = asked | {"content": f"{asked['content']} Thanks!"}
                lines.append(row | {"id": f"{row['id']}-again", "messages": again})
        (folder / f"{kind}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return [
        {"name": f"chats-{kind}", "path": f"{kind}.jsonl", "category": kind, "license": "apache-2.0"} for kind in KINDS
    ]


def manifest_body(
    name: str,
    sources: list[dict[str, Any]],
    total: int,
    shares: Mapping[str, float],
    *,
    holdout: float = 0.15,
    training: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The manifest as a mapping: float32 throughout, temperature 0."""
    return {
        "name": name,
        "seed": 17,
        "mix": {"total": total, "shares": dict(shares), "holdout": holdout},
        "sources": sources,
        "filters": {"prompt_tokens": 200, "turns": 2},
        "dedup": {"near": 0.9},
        "target": {"model": str(TARGET), "dtype": "float32", "max_model_len": 512},
        "generation": {"max_tokens": 128, "thinking": {"share": 0.0, "off": {"temperature": 0.0}}},
        "engine": {"max_num_seqs": 32},
        "extraction": {"features": 5, "dtype": "float32", "max_tokens_per_batch": 4096},
        "training": {**TRAINING, **(training or {})},
    }
