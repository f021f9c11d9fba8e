"""Fits a small language model to the labelled prompts: the encoder that is shipped, and its opinion of unlabelled ones.

    python -m tests.labelled.teach --model DIR [--packages DIR]

It writes corpus/category_encoder.npz (corpus.prompt_encoder reads it) and unlabelled.jsonl.gz, from which the network
over words learns too (fit_network.py): the prompts that this file holds, judged again, or prompts drawn anew from the
unpacked packages in DIR of --packages (see unlabelled.py). DIR of --model holds all-MiniLM-L6-v2 (see fit_network.py).
Nothing held out is read, but to leave out unlabelled prompts that a held-out row has. It takes about half an hour
of two cores; another machine's arithmetic gives other last digits.
"""

from __future__ import annotations

import argparse
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from tokenizers import Tokenizer
from torch.nn.functional import cross_entropy
from transformers import AutoModel

from corpus.prompt_encoder import FILE, token_ids
from corpus.word_network import COLUMNS
from tests.labelled.fit_network import develop_rows, group_of
from tests.labelled.second.drawing import plain
from tests.labelled.sets import HERE, UNLABELLED, WRITTEN, Row, json_lines, labelled_rows, write_lines
from tests.labelled.unlabelled import unlabelled

OUT = HERE.parents[1] / "corpus" / FILE
EPOCHS, BATCH, RATE, HEAD_RATE, SMOOTHING = 2, 32, 6e-5, 1e-3, 0.05
SEEDS = (1, 2, 3)
"""Of the fits whose weights are averaged: they begin alike and read the prompts in other orders."""
WRITTEN_WEIGHT = 0.4
"""What a prompt that was written for the purpose weighs beside a package's only one."""


class Teacher(torch.nn.Module):
    """The encoder, the mean of its states, and a linear layer over COLUMNS."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()
        self.encoder = AutoModel.from_pretrained(folder)
        self.head = torch.nn.Linear(self.encoder.config.hidden_size, len(COLUMNS))
        self.dropout = torch.nn.Dropout(0.1)

    def tokens(self, row: Row) -> list[int]:
        return token_ids(self.tokenizer, row["messages"])

    def forward(self, some: list[list[int]]) -> torch.Tensor:
        """Scores, prompts by COLUMNS."""
        longest = max(map(len, some))
        ids = torch.tensor([[*one, *[0] * (longest - len(one))] for one in some])
        mask = torch.tensor([[1.0] * len(one) + [0.0] * (longest - len(one)) for one in some])
        states = self.encoder(input_ids=ids, attention_mask=mask).last_hidden_state
        return self.head(self.dropout((states * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)))


def batches(tokens: list[list[int]], random: Random) -> list[list[int]]:
    """Places of prompts in batches of like lengths, shuffled."""
    order, made = random.sample(range(len(tokens)), len(tokens)), []
    for first in range(0, len(order), 16 * BATCH):
        near = sorted(order[first : first + 16 * BATCH], key=lambda at: len(tokens[at]))
        made += [near[at : at + BATCH] for at in range(0, len(near), BATCH)]
    random.shuffle(made)
    return made


def taught(folder: Path, seed: int) -> Teacher:
    """The model, fitted to the labelled prompts for developing and those that were written."""
    torch.manual_seed(0)
    random, teacher = Random(seed), Teacher(folder)
    torch.manual_seed(seed)
    rows = [row for row in develop_rows() if row["category"] in COLUMNS and row["messages"]]
    tokens, labels = (
        [teacher.tokens(row) for row in rows],
        torch.tensor([COLUMNS.index(row["category"]) for row in rows]),
    )
    files = Counter((group_of(row), row["category"]) for row in rows)
    weights = torch.tensor([files[group_of(row), row["category"]] ** -0.5 for row in rows])
    for label in range(len(COLUMNS)):
        weights[labels == label] /= weights[labels == label].sum()
    weights *= len(rows) / weights.sum()
    weights *= torch.tensor([WRITTEN_WEIGHT if row["set"] == WRITTEN.name else 1.0 for row in rows])
    groups = [
        {"params": teacher.encoder.parameters(), "lr": RATE},
        {"params": teacher.head.parameters(), "lr": HEAD_RATE},
    ]
    solver, steps = torch.optim.AdamW(groups, weight_decay=0.01), EPOCHS * math.ceil(len(rows) / BATCH)
    rate = torch.optim.lr_scheduler.LambdaLR(solver, lambda step: min(10 * step / steps, max(0.0, 1 - step / steps)))
    for epoch in range(EPOCHS):
        losses = []
        for chosen in batches(tokens, random):
            scores = teacher([tokens[at] for at in chosen])
            each = cross_entropy(scores, labels[chosen], reduction="none", label_smoothing=SMOOTHING)
            loss = (each * weights[chosen]).mean()
            solver.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(teacher.parameters(), 1.0)
            solver.step()
            rate.step()
            losses.append(float(loss.detach()))
        print(f"seed {seed}, epoch {epoch}: loss {sum(losses) / len(losses):.3f} of {len(rows):,} prompts", flush=True)
    return teacher.eval()


def averaged(teachers: Sequence[Teacher]) -> Teacher:
    """A model with the mean of their weights (a uniform soup, Wortsman et al. 2022)."""
    states = [teacher.state_dict() for teacher in teachers]
    mean = {
        name: torch.stack([state[name] for state in states]).mean(0) if value.is_floating_point() else value
        for name, value in states[0].items()
    }
    teachers[0].load_state_dict(mean)
    return teachers[0]


NAMES = {
    "attention.self.query": "query", "attention.self.key": "key", "attention.self.value": "value",
    "attention.output.dense": "attended", "attention.output.LayerNorm": "attended_norm",
    "intermediate.dense": "wide", "output.dense": "narrow", "output.LayerNorm": "narrow_norm",
}  # fmt: skip
"""A layer's parts as transformers and as corpus.prompt_encoder name them."""


def encoder_arrays(teacher: Teacher) -> Iterator[tuple[str, npt.NDArray[Any]]]:
    """What corpus.prompt_encoder reads: matrices as 8-bit whole numbers with a scale a row, the rest as floats."""
    state = {name: value.numpy() for name, value in teacher.state_dict().items()}
    before = "encoder.embeddings"
    arrays = {
        "embeddings": state[f"{before}.word_embeddings.weight"],
        "positions": state[f"{before}.position_embeddings.weight"] + state[f"{before}.token_type_embeddings.weight"][0],
    }
    layers = teacher.encoder.config.num_hidden_layers
    parts = {f"{before}.LayerNorm": "embedded_norm", "head": "head"}
    parts |= {
        f"encoder.encoder.layer.{at}.{theirs}": f"{at}.{ours}" for at in range(layers) for theirs, ours in NAMES.items()
    }
    arrays |= {
        f"{ours}.{what}": state[f"{theirs}.{what}"] for theirs, ours in parts.items() for what in ("weight", "bias")
    }
    for name, array in arrays.items():
        if array.ndim == 1:
            yield name, array
        else:
            scale = np.abs(array).max(axis=1) / 127
            yield name, np.rint(array / scale[:, None]).astype(np.int8)
            yield f"{name}.scale", scale
    yield "layers", np.array(layers)
    yield "heads", np.array(teacher.encoder.config.num_attention_heads)
    yield "tokenizer", np.frombuffer(teacher.tokenizer.to_str().encode(), dtype=np.uint8)


def write_encoder(teacher: Teacher) -> None:
    np.savez_compressed(OUT, **dict(encoder_arrays(teacher)))
    print(f"{OUT}: {OUT.stat().st_size:,} bytes")


def opinions(teacher: Teacher, rows: list[Row]) -> Iterator[list[int]]:
    """What the teacher says of each row, in percent of COLUMNS."""
    tokens = [teacher.tokens(row) for row in rows]
    order = sorted(range(len(rows)), key=lambda at: len(tokens[at]))
    said = torch.zeros(len(rows), len(COLUMNS))
    with torch.inference_mode():
        for first in range(0, len(order), 128):
            chosen = order[first : first + 128]
            said[chosen] = torch.softmax(teacher([tokens[at] for at in chosen]), 1)
    for shares in (100 * said).tolist():
        yield [round(share) for share in shares]


def unlabelled_prompts(packages: Path | None) -> list[Row]:
    """Unlabelled prompts of these packages, or of unlabelled.jsonl.gz; none that the labelled sets or their held-out
    packages have."""
    labelled = labelled_rows()
    held_out = {row["package"] for row in labelled if row["half"] == "held_out"}
    known = {beginning(one["content"]) for row in labelled for one in row["messages"] if one["role"] == "user"}
    if packages is None:
        rows = [row for _, row in json_lines(UNLABELLED) if row["package"] not in held_out]
    else:
        rows = [one._asdict() for one in unlabelled(packages, held_out)]
    return [row for row in rows if beginning(row["text"]) not in known]


def judged(teacher: Teacher, rows: list[Row]) -> list[Row]:
    """Unlabelled prompts with the teacher's opinion."""
    asked = [{"messages": [{"role": "user", "content": row["text"]}]} for row in rows]
    return [row | {"says": says} for row, says in zip(rows, opinions(teacher, asked), strict=True)]


def beginning(text: str) -> str:
    return plain(text).strip()[:100]


def main() -> None:
    """Teach, judge and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="the folder of all-MiniLM-L6-v2")
    parser.add_argument("--packages", type=Path, help="unpacked packages; without: the prompts of the file")
    options = parser.parse_args()
    prompts = unlabelled_prompts(options.packages)
    teacher = averaged([taught(options.model, seed) for seed in SEEDS])
    write_encoder(teacher)
    write_lines(UNLABELLED, judged(teacher, prompts))
    print(f"{len(prompts):,} prompts of {len({row['package'] for row in prompts}):,} packages")


if __name__ == "__main__":
    main()
