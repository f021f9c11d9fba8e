"""The classifier and the language identifier on real rows: rows a second, and what is taken for what.

    python benchmarks/classifier.py [--rounds 9]

Wanted: at most 70 us a row for categories (half a minute of two cores for a million rows), 200 us for languages.
Processor time of the best of several rounds over the demo's files, on one core. Confusion is shown of both halves of
tests/labelled; docs/categories.md tells how that set was made.
"""

from __future__ import annotations

import argparse
import gzip
import json
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import polars as pl

from corpus.classifier import classify, classify_rows
from corpus.formats import parse_row
from corpus.language import languages
from corpus.manifest import CATEGORIES
from corpus.records import encode_messages

LABELLED = Path(__file__).parents[1] / "tests" / "labelled" / "prompts.jsonl.gz"
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


def labelled_pairs() -> dict[str, list[tuple[str, str]]]:
    """(true category, predicted one) of every row of the labelled set, by half."""
    pairs: dict[str, list[tuple[str, str]]] = {}
    for line in gzip.decompress(LABELLED.read_bytes()).splitlines():
        row = json.loads(line)
        pairs.setdefault(row["half"], []).append((row["category"], classify(row["messages"], row["tools"])))
    return pairs


def show(half: str, pairs: list[tuple[str, str]]) -> None:
    confusion, found = Counter(pairs), []
    print("\n" + f"{half:<11}" + "".join(f"{category:>11}" for category in CATEGORIES) + f"{'right':>8}")
    for label in CATEGORIES:
        row = [confusion[label, category] for category in CATEGORIES]
        found.append(confusion[label, label] / sum(row))
        print(f"{label:<11}" + "".join(f"{count:>11}" for count in row) + f"{found[-1]:>8.3f}")
    right = sum(confusion[label, label] for label in CATEGORIES) / len(pairs)
    print(f"overall {right:.3f}, balanced {sum(found) / len(found):.3f}")


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
    for half, pairs in labelled_pairs().items():
        show(half, pairs)
    print("\nlanguages: " + ", ".join(f"{code} {count}" for code, count in Counter(languages(texts)).most_common()))


if __name__ == "__main__":
    main()
