"""The same corpus build written plainly with `datasets` and `datasketch`: what corpus_build.py is compared with.

    python benchmarks/plain_pipeline.py CORPUS OUT [--limit ROWS]

Reads the parquet files, normalises every shape to messages, drops exact and near duplicates (MinHash-LSH over word
pairs, 32 bands of 4 and an estimate of at least 0.7, which finds what must be found), decontaminates by 13-grams,
takes each category's quota in the order of a hash and writes parquet. It keeps no provenance and no ledger.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets
from datasketch import MinHash, MinHashLSH

CATEGORIES = ("coding", "general", "math", "agent", "code-other")
SHARES = (46, 26, 11, 9, 7)
WORD = re.compile(r"\w+")
THRESHOLD, BANDS, NGRAM = 0.7, (32, 4), 13


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("corpus", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--limit", type=int)
    options = parser.parse_args()
    names = sorted({path.name.rsplit("-", 1)[0] for path in (options.corpus / "parquet").iterdir()})
    parts = []
    for number, name in enumerate(names):
        files = sorted(str(path) for path in (options.corpus / "parquet").glob(f"{name}-*.parquet"))
        part = datasets.load_dataset("parquet", data_files=files, split="train", cache_dir=str(options.out / "cache"))
        if options.limit:
            part = part.select(range(min(len(part), options.limit // len(names))))
        category = CATEGORIES[number % len(CATEGORIES)]
        parts.append(part.map(normalise, fn_kwargs={"category": category}, remove_columns=part.column_names))
    whole = datasets.concatenate_datasets(parts)
    kept = whole.select(list(survivors(whole, eval_ngrams(options.corpus / "evals.jsonl"))))
    taken = select(kept)
    taken.to_parquet(str(options.out / "corpus.parquet"))
    print(f"{len(whole):,} rows read, {len(kept):,} kept, {len(taken):,} taken")


def normalise(row: dict[str, Any], category: str) -> dict[str, Any]:
    """Any of the four shapes as messages, with the text that is compared."""
    if row.get("messages"):
        turns = [(turn["role"], turn["content"]) for turn in row["messages"]]
    elif row.get("conversations"):
        names = {"human": "user", "gpt": "assistant", "system": "system"}
        turns = [(names[turn["from"]], turn["value"]) for turn in row["conversations"]]
    elif row.get("instruction"):
        turns = [("user", f"{row['instruction']}\n\n{row['input']}" if row["input"] else row["instruction"])]
    else:
        turns = [("user", row["prompt"])]
    asked = [{"role": role, "content": content} for role, content in turns if role != "assistant"]
    text = "\n".join(turn["content"] for turn in asked)
    messages = json.dumps(asked)
    return {
        "messages": messages,
        "text": text,
        "category": category,
        "id": hashlib.sha256(messages.encode()).hexdigest(),
    }


def survivors(whole: datasets.Dataset, leaked: set[tuple[str, ...]]) -> Iterator[int]:
    """Rows that are no duplicate, no near duplicate, and share no n-gram with an evaluation item."""
    seen: set[str] = set()
    permutations = BANDS[0] * BANDS[1]
    lsh, sketches = MinHashLSH(num_perm=permutations, params=BANDS), {}
    for number, text in enumerate(whole["text"]):
        key = " ".join(text.casefold().split())
        if key in seen:
            continue
        seen.add(key)
        words = WORD.findall(text.casefold())
        if any(gram in leaked for gram in ngrams(words, NGRAM)):
            continue
        sketch = MinHash(num_perm=permutations)
        sketch.update_batch([f"{a} {b}".encode() for a, b in ngrams(words, 2)])
        if any(sketch.jaccard(sketches[other]) >= THRESHOLD for other in lsh.query(sketch)):
            continue
        sketches[number] = sketch
        lsh.insert(number, sketch)
        yield number


def ngrams(words: list[str], size: int) -> Iterator[tuple[str, ...]]:
    """Every `size` words in a row."""
    return zip(*(words[i:] for i in range(size)), strict=False)


def eval_ngrams(path: Path) -> set[tuple[str, ...]]:
    """All n-grams of the evaluation items."""
    with path.open() as file:
        return {gram for line in file for gram in ngrams(WORD.findall(json.loads(line)["question"].casefold()), NGRAM)}


def select(kept: datasets.Dataset) -> datasets.Dataset:
    """The largest build that holds the shares, in the order of the ids' hashes."""
    by_category: dict[str, list[tuple[str, int]]] = {name: [] for name in CATEGORIES}
    for number, (name, identity) in enumerate(zip(kept["category"], kept["id"], strict=True)):
        by_category[name].append((identity, number))
    total = min(len(by_category[name]) / share for name, share in zip(CATEGORIES, SHARES, strict=True))
    chosen = [
        number
        for name, share in zip(CATEGORIES, SHARES, strict=True)
        for _, number in sorted(by_category[name])[: int(total * share)]
    ]
    return kept.select(sorted(chosen))


if __name__ == "__main__":
    main()
