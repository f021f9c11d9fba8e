"""A tiny target, its own greedy answers and their hidden states, as a training item."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import torch
from transformers import AutoModelForCausalLM

from corpus.shard_writer import write_shard
from corpus.shards import CapturedRow, ShardMeta
from extraction.capture import Capture
from tests.extraction.tiny import random_rows, save_tiny
from training.messages import ShardRows, TrainItem, TrainRow

LAYERS = (1, 3, 5)
PROMPTS, ANSWER = 14, 24


def greedy_rows(target: Path, prompts: int = PROMPTS, answer: int = ANSWER) -> list[tuple[list[int], list[int]]]:
    """(prompt, answer) token ids: the target's own greedy continuation of random prompts."""
    model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32).eval()
    rows = []
    for prompt in random_rows([5 + i % 6 for i in range(prompts)]):
        tokens = list(prompt)
        with torch.no_grad():
            for _ in range(answer):
                tokens.append(int(model(torch.tensor([tokens])).logits[0, -1].argmax()))
        rows.append((prompt, tokens[len(prompt) :]))
    return rows


def make_item(folder: Path, kind: str = "qwen3", **changes: Any) -> TrainItem:
    """An item over one shard; the last two rows are held out."""
    torch.set_num_threads(1)
    target = save_tiny(folder / "target", kind)
    rows = greedy_rows(target)
    states = Capture(target, LAYERS).forward([prompt + answer for prompt, answer in rows])
    captured = [
        CapturedRow(
            f"r{i:02d}",
            torch.tensor(prompt + answer, dtype=torch.int32),
            torch.tensor([0] * len(prompt) + [1] * len(answer), dtype=torch.uint8),
            states[i],
        )
        for i, (prompt, answer) in enumerate(rows)
    ]
    meta = ShardMeta("cap", LAYERS, True, "org/tiny", "abc", "float32")
    path = write_shard(folder / "hidden" / "a.safetensors", captured, meta).path
    entries = [
        TrainRow(i, f"r{i:02d}", "coding" if i % 2 else "math", "s", True, i >= len(rows) - 2) for i in range(len(rows))
    ]
    item = TrainItem(
        item_id="drafter",
        target_dir=str(target),
        out_dir=str(folder / "drafter"),
        shards=[ShardRows(str(path), entries)],
        layer_ids=LAYERS,
        block_size=4,
        draft_layers=1,
        sliding_layers=0,
        sliding_window=16,
        anchors_per_document=8,
        gamma=4.0,
        labels="auto",
        epochs=4,
        tokens_per_batch=96,
        learning_rate=3e-3,
        warmup=0.1,
        weight_decay=0.01,
        clip=1.0,
        checkpoint_every=10,
        seed=7,
        threads=1,
    )
    return msgspec.structs.replace(item, **changes)
