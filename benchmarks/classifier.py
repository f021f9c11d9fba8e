"""The classifier and the language identifier on real rows: rows a second, and what is taken for what.

    python -m benchmarks.classifier [--rounds 9]

Wanted: at most 200 us a row for languages; for categories 70 us of rules and words, and a few milliseconds where the
encoder reads (docs/categories.md tells what that comes to). Processor time of the best of several rounds over the
demo's files, on one core for rules and words, on all for the encoder. Confusion is shown of both halves of
tests/labelled (its README tells how they were made); `PYTHONPATH=TREE:. python benchmarks/classifier.py` judges with
the classifier of another commit's TREE. Of the held-out half design effects follow, and how often intervals hold:
corpora are drawn from a random half of its packages and judged by the matrix of the other half (see
corpus.classifier_quality.DESIGN_EFFECT). Then what each part does there: how much is right without the encoder, how
much it reads, and of prompts in other scripts than the Latin one.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl

from corpus import classifier
from corpus.classifier import classify, classify_rows
from corpus.classifier_quality import Stratum, adjusted_shares
from corpus.formats import parse_row
from corpus.language import languages
from corpus.manifest import CATEGORIES
from corpus.records import encode_messages
from tests.labelled.sets import SETS, labelled_rows

DEMO = Path(__file__).parents[1] / "manifests" / "demo"
FILES = (
    ("coding.jsonl.gz", "prompt", "coding"),
    ("general-mtbench.jsonl.gz", "messages", "general"),
    ("general-ifbench.parquet", "prompt", "general"),
    ("math.parquet", "messages", "math"),
    ("agent.jsonl.gz", "sharegpt", "agent"),
    ("code-other.parquet", "prompt", "code-other"),
)
MTBENCH = {"coding": "coding", "math": "math"}
EFFECTS = (1.0, 3.0, 10.0)
MIXES = ((0.77, 0.113, 0.048, 0.039, 0.03), (0.46, 0.26, 0.11, 0.09, 0.07))
ROWS, DRAWN = 956, 60
"""Rows that are read of a corpus, and corpora of each mix."""

Counts = npt.NDArray[np.int64]


def demo_rows() -> tuple[list[str], list[str], list[str | None], list[str]]:
    """(category, messages, tools, text of the user turns) of every row of the demo's sample."""
    wanted, messages, tools, texts = [], [], [], []
    for name, form, category in FILES:
        path = DEMO / name
        frame = pl.read_parquet(path) if path.suffix == ".parquet" else pl.read_ndjson(path)
        for row in frame.iter_rows(named=True):
            prompt = parse_row(row, form, None)
            shown, offered = encode_messages(prompt)
            wanted.append(MTBENCH.get(row["category"], category) if "mtbench" in name else category)
            messages.append(shown)
            tools.append(offered)
            texts.append("\n".join(message["content"] for message in prompt.messages if message["role"] == "user"))
    return wanted, messages, tools, texts


def judged() -> list[tuple[str, str, str, str]]:
    """(set and half, package, true category, predicted one) of every labelled row."""
    return [
        (f"{path.name.split('.')[0]}, {row['half']}", row["package"], row["category"],
         classify(row["messages"], row["tools"]))
        for path in SETS for row in labelled_rows([path])
    ]  # fmt: skip


def show(half: str, pairs: list[tuple[str, str]]) -> None:
    confusion, found = Counter(pairs), []
    print(f"\n{half}\n{'':<11}" + "".join(f"{category:>11}" for category in CATEGORIES) + f"{'right':>8}")
    for label in CATEGORIES:
        row = [confusion[label, category] for category in CATEGORIES]
        found.append(confusion[label, label] / sum(row))
        print(f"{label:<11}" + "".join(f"{count:>11}" for count in row) + f"{found[-1]:>8.3f}")
    right = sum(confusion[label, label] for label in CATEGORIES) / len(pairs)
    print(f"overall {right:.3f}, balanced {sum(found) / len(found):.3f}")


def show_packages(rows: Sequence[tuple[str, str, str]]) -> None:
    """How unlike packages are: design effects, and what intervals come to where sources are other ones."""
    by: dict[tuple[str, str], Counts] = defaultdict(lambda: np.zeros(len(CATEGORIES), dtype=np.int64))
    for package, true, got in rows:
        by[true, package][CATEGORIES.index(got)] += 1
    print(f"\n{'':<11}{'packages':>11}{'design effect':>15}")
    for at, label in enumerate(CATEGORIES):
        counts = np.array([row for (true, _), row in by.items() if true == label], dtype=float)
        read, right = counts.sum(axis=1), counts[:, at]
        part = right.sum() / read.sum()
        clusters = len(counts) / (len(counts) - 1) * ((right - part * read) ** 2).sum() / read.sum() ** 2
        print(f"{label:<11}{len(counts):>11}{clusters / (part * (1 - part) / read.sum()):>15.1f}")
    print(
        f"\nshares in their intervals\n{'effect':<11}" + "".join(f"{name:>11}" for name in CATEGORIES) + f"{'all':>8}"
    )
    for effect in EFFECTS:
        held = covered(by, effect)
        print(f"{effect:<11}" + "".join(f"{part:>11.2f}" for part in held) + f"{sum(held) / len(held):>8.2f}")


def covered(by: Mapping[tuple[str, str], Counts], effect: float) -> list[float]:
    """The part of corpora whose true share of each category lies in its interval."""
    rng, hits = np.random.default_rng(0), []
    packages = sorted({package for _, package in by})
    for mix in MIXES:
        for seed in range(DRAWN):
            own = set(rng.choice(packages, len(packages) // 2, replace=False))
            corpus, others = (
                np.array([sum((row for (true, name), row in by.items() if true == label and (name in own) == inside),
                              np.zeros(len(CATEGORIES), dtype=np.int64)) for label in CATEGORIES])
                for inside in (True, False)
            )  # fmt: skip
            if not (corpus.sum(axis=1).all() and others.sum(axis=1).all()):
                continue
            truth = rng.multinomial(ROWS, mix)
            read = sum(rng.multinomial(count, row / row.sum()) for count, row in zip(truth, corpus, strict=True))
            stratum = Stratum(dict(zip(CATEGORIES, map(int, read), strict=True)), ROWS, 50_000)
            shares = adjusted_shares(
                [stratum], confusion=others.tolist(), design_effect=effect, draws=600, seed=seed
            )  # fmt: skip
            hits.append([shares[name].low <= part <= shares[name].high
                         for name, part in zip(CATEGORIES, truth / ROWS, strict=True)])  # fmt: skip
    return [float(part) for part in np.mean(hits, axis=0)]


def show_parts() -> None:
    """What is right on the held-out half by rules and words alone, and where the encoder reads."""
    if not hasattr(classifier, "OPEN"):
        return  # an older commit's classifier, which had no encoder
    rows = [row for row in labelled_rows() if row["half"] == "held_out"]
    found = [classifier.evidence(row["messages"], row["tools"]) for row in rows]
    limit, classifier.OPEN = classifier.OPEN, 0.0
    alone = [classifier.scored(one) for one in found]
    classifier.OPEN = limit
    read = [len(scores) > 1 and classifier._is_open(scores, one) for scores, one in zip(alone, found, strict=True)]
    right = [classify(row["messages"], row["tools"]) == row["category"] for row in rows]
    right_alone = [classifier._highest(scores) == row["category"] for scores, row in zip(alone, rows, strict=True)]
    other = [
        classifier._in_other_script("".join(one["content"] or "" for one in row["messages"] if one["role"] == "user"))
        for row in rows
    ]
    print(f"\nrules and words alone, held out: {sum(right_alone) / len(rows):.3f} of {len(rows)}")
    for what, chosen in (("read by the encoder", read), ("in another script", other)):
        both = [sum(itertools.compress(answers, chosen)) for answers in (right, right_alone)]
        print(f"{what}: {sum(chosen)}, right {both[0]}; by rules and words alone {both[1]}")


def best_seconds(call: Callable[[], object], rounds: int) -> float:
    seconds = []
    for _ in range(rounds):
        start = time.process_time()
        call()
        seconds.append(time.process_time() - start)
    return min(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description="Speed and confusion of the classifier on the demo's sample.")
    parser.add_argument("--rounds", type=int, default=9)
    rounds = parser.parse_args().rounds
    wanted, messages, tools, texts = demo_rows()
    chars = sum(map(len, messages)) / len(messages)
    languages(texts[:1])  # loads the model
    for what, call in (
        ("categories", lambda: classify_rows(messages, tools)),
        ("languages", lambda: languages(texts)),
    ):
        seconds = best_seconds(call, rounds)
        rate, micros = len(wanted) / seconds, seconds / len(wanted) * 1e6
        print(
            f"{what:<11} {rate:>8,.0f} rows/s  {micros:>6.1f} us a row ({len(wanted)} rows of {chars:.0f} characters)"
        )
    rows = judged()
    for half in dict.fromkeys(row[0] for row in rows):
        show(half, [row[2:] for row in rows if row[0] == half])
    show_parts()
    show_packages([row[1:] for row in rows if row[0].endswith("held_out")])
    print("\nlanguages: " + ", ".join(f"{code} {count}" for code, count in Counter(languages(texts)).most_common()))


if __name__ == "__main__":
    main()
