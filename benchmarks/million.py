"""A corpus of made-up prompts in which every duplicate, near duplicate and leaked question is known.

    python benchmarks/million.py --out DIR --rows 1000000 --format both

Eight sources of four shapes, each in two files (DIR/parquet, DIR/jsonl, the same rows); 59 words a prompt on average.
A tenth of the rows repeat another row, half of them in other case and white space; another tenth are near duplicates:
`pairs.parquet` names both rows and the exact Jaccard index of their word bigrams. `evals.jsonl` holds questions, and
`planted.parquet` says which row holds 13 to 20 words in a row of which of them. Equal arguments give equal files.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

if TYPE_CHECKING:
    import numpy.typing as npt

    Int64s = npt.NDArray[np.int64]

VOCABULARY = 50_000
MEAN_WORDS, SPREAD, FEWEST, MOST = 59, 0.6, 4, 600
EXACT, NEAR, LEAKED = 0.1, 0.1, 0.01  # shares of the rows
LOWEST_JACCARD, HIGHEST_JACCARD = 0.55, 0.95
ITEMS = 20_000  # questions to a million rows
SHARED_WORDS = (13, 20)  # of a leaked question
ENDS = ("", ",", ".", ".\n\n")
END_CHANCES = (0.86, 0.06, 0.07, 0.01)
LABELS = ("coding", "math", "reasoning", "general")
BLOCK = 20_000  # rows written at a time


@dataclass(frozen=True)
class Texts:
    """The words of text r are word_ids[offsets[r] : offsets[r + 1]]; `ends` says what follows each of them."""

    word_ids: npt.NDArray[np.int32]
    ends: npt.NDArray[np.int8]
    offsets: Int64s

    def words(self, row: int) -> slice:
        return slice(int(self.offsets[row]), int(self.offsets[row + 1]))


@dataclass(frozen=True)
class Plan:
    """What each row is: `origin` is the row that it repeats, `item` the question that leaked into it; else -1."""

    origin: Int64s
    near: npt.NDArray[np.bool_]
    item: Int64s


def make_vocabulary(random: np.random.Generator) -> list[str]:
    """Distinct pronounceable words, short ones first: those are drawn most."""
    syllables = np.array([consonant + vowel for consonant in "bdfghjklmnprstvwyz" for vowel in "aeiou"])
    words = dict.fromkeys("aeiou")
    for count, wanted in ((1, 80), (2, 3000), (3, 30_000), (4, VOCABULARY)):
        while len(words) < wanted:
            drawn = syllables[random.integers(0, len(syllables), (wanted - len(words), count))]
            words |= dict.fromkeys("".join(row) for row in drawn)
    return list(words)


def draw_ids(random: np.random.Generator, count: int) -> npt.NDArray[np.int32]:
    """Words by Zipf's law, with the chance of a rank in proportion to 1 / (rank + 20)."""
    ranks = 20 * np.exp(random.random(count) * np.log((VOCABULARY + 20) / 20)) - 20
    ids: npt.NDArray[np.int32] = np.minimum(ranks.astype(np.int32), VOCABULARY - 1)
    return ids


def draw_texts(random: np.random.Generator, lengths: Int64s) -> Texts:
    """Unrelated texts of these numbers of words."""
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    ends = np.searchsorted(np.cumsum(END_CHANCES)[:-1], random.random(int(offsets[-1])), side="right")
    return Texts(draw_ids(random, int(offsets[-1])), ends.astype(np.int8), offsets)


def draw_lengths(random: np.random.Generator, rows: int) -> Int64s:
    drawn = random.lognormal(np.log(MEAN_WORDS) - SPREAD**2 / 2, SPREAD, rows)
    return np.clip(drawn, FEWEST, MOST).astype(np.int64)


def plan_rows(random: np.random.Generator, lengths: Int64s, items: int) -> Plan:
    """Choose copies, originals and leaks; no row is two of these."""
    rows = len(lengths)
    exact, near, leaked = int(EXACT * rows), int(NEAR * rows), int(LEAKED * rows)
    order = random.permutation(rows)
    copies, originals, others = np.split(order, [exact + near, 2 * (exact + near)])
    plan = Plan(np.full(rows, -1), np.zeros(rows, np.bool_), np.full(rows, -1))
    plan.origin[copies] = originals
    plan.near[copies[exact:]] = True
    roomy = others[lengths[others] >= SHARED_WORDS[1]][:leaked]
    plan.item[roomy] = random.integers(0, items, len(roomy))
    return plan


def apply_plan(random: np.random.Generator, plan: Plan, texts: Texts, questions: Texts) -> None:
    """Write copies and leaks into the texts."""
    for row in np.flatnonzero(plan.origin >= 0).tolist():
        here, there = texts.words(row), texts.words(int(plan.origin[row]))
        texts.word_ids[here], texts.ends[here] = texts.word_ids[there], texts.ends[there]
        if plan.near[row]:
            # each changed word costs both texts two bigrams
            wanted, length = random.uniform(LOWEST_JACCARD, HIGHEST_JACCARD), here.stop - here.start
            count = max(1, round((length - 1) * (1 - wanted) / (2 * (1 + wanted))))
            places = here.start + random.choice(length, count, replace=False)
            texts.word_ids[places] = draw_ids(random, count)
    for row in np.flatnonzero(plan.item >= 0).tolist():
        here, there = texts.words(row), questions.words(int(plan.item[row]))
        count = min(int(random.integers(SHARED_WORDS[0], SHARED_WORDS[1] + 1)), there.stop - there.start)
        to = int(random.integers(here.start, here.stop - count + 1))
        start = int(random.integers(there.start, there.stop - count + 1))
        texts.word_ids[to : to + count] = questions.word_ids[start : start + count]


def spell(texts: Texts, rows: Int64s, tokens: npt.NDArray[np.object_]) -> list[str]:
    """The rows as text: a capital after a full stop, words joined by a space."""
    spelled = []
    for row in rows.tolist():
        here = texts.words(row)
        ends = texts.ends[here]
        capital = np.concatenate([[True], ends[:-1] >= ENDS.index(".")])
        spelled.append(" ".join(tokens[capital.astype(np.int8), ends, texts.word_ids[here]].tolist()))
    return spelled


def make_tokens(vocabulary: list[str]) -> npt.NDArray[np.object_]:
    """Every word with and without a capital, with every end (2, ends, VOCABULARY)."""
    forms = [vocabulary, [word.capitalize() for word in vocabulary]]
    return np.array([[[word + end for word in form] for end in ENDS] for form in forms], dtype=object)


def jaccard(texts: Texts, row: int, other: int) -> float:
    """Of the sets of word bigrams; made-up words are ASCII, so an id is a word."""
    left, right = (set(pairwise(texts.word_ids[texts.words(r)].tolist())) for r in (row, other))
    return len(left & right) / len(left | right)


def chat(text: str, label: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}, {"role": "assistant", "content": "Yes."}], "label": label}


def bare_chat(text: str, label: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}]}


def prompt(text: str, label: str) -> dict[str, Any]:
    return {"prompt": text, "label": label}


def sharegpt(text: str, label: str) -> dict[str, Any]:
    return {"conversations": [{"from": "human", "value": text}, {"from": "gpt", "value": "Yes."}]}


def alpaca(text: str, label: str) -> dict[str, Any]:
    return {"instruction": text, "input": "", "output": "Yes."}


# the row r of all is row r // 8 of source r % 8
SOURCES: tuple[tuple[str, Callable[[str, str], dict[str, Any]]], ...] = (
    ("chat-a", chat), ("chat-b", bare_chat), ("chat-c", bare_chat), ("prompt-a", prompt), ("prompt-b", prompt),
    ("sharegpt-a", sharegpt), ("sharegpt-b", sharegpt), ("alpaca-a", alpaca),
)  # fmt: skip


def address(rows: Int64s, prefix: str = "") -> dict[str, Any]:
    """The columns that say where rows are."""
    names = [SOURCES[number][0] for number in (rows % len(SOURCES)).tolist()]
    return {f"{prefix}source": names, f"{prefix}row": rows // len(SOURCES)}


def source_blocks(
    source: int, rows: Int64s, texts: Texts, plan: Plan, tokens: npt.NDArray[np.object_]
) -> Iterator[list[dict[str, Any]]]:
    """The given rows of all, in the shape of their source."""
    name, shape = SOURCES[source]
    for first in range(0, len(rows), BLOCK):
        block = rows[first : first + BLOCK]
        made = []
        for row, text in zip(block.tolist(), spell(texts, block, tokens), strict=True):
            if plan.origin[row] >= 0 and not plan.near[row] and row // len(SOURCES) % 2:
                text = f"  {text.upper()}\n".replace(", ", ",\t")  # noqa: PLW2901
            made.append({"id": f"{name}-{row // len(SOURCES)}"} | shape(text, LABELS[row % 31 % len(LABELS)]))
        yield made


def write_corpus(out: Path, rows: int, formats: tuple[str, ...], seed: int) -> None:
    """Write everything below `out`."""
    random = np.random.default_rng(seed)
    tokens = make_tokens(make_vocabulary(random))
    items = max(1, ITEMS * rows // 1_000_000)
    questions = draw_texts(random, random.integers(SHARED_WORDS[0], 80, items))
    lengths = draw_lengths(random, rows)
    plan = plan_rows(random, lengths, items)
    copied = plan.origin >= 0
    lengths[copied] = lengths[plan.origin[copied]]
    texts = draw_texts(random, lengths)
    apply_plan(random, plan, texts, questions)

    for form in formats:
        (out / form).mkdir(parents=True, exist_ok=True)
    for source, (name, _) in enumerate(SOURCES):
        for part, numbers in enumerate(np.array_split(np.arange(source, rows, len(SOURCES)), 2)):
            writer: pq.ParquetWriter | None = None
            lines = (out / "jsonl" / f"{name}-{part}.jsonl").open("w") if "jsonl" in formats else None
            for block in source_blocks(source, numbers, texts, plan, tokens):
                if lines:
                    lines.writelines(json.dumps(row) + "\n" for row in block)
                if "parquet" in formats:
                    table = pa.Table.from_pylist(block)
                    writer = writer or pq.ParquetWriter(out / "parquet" / f"{name}-{part}.parquet", table.schema)
                    writer.write_table(table)
            for file in filter(None, (writer, lines)):
                file.close()

    near, leaked = np.flatnonzero(plan.near), np.flatnonzero(plan.item >= 0)
    similarity = [jaccard(texts, row, int(plan.origin[row])) for row in near.tolist()]
    pairs = address(near) | address(plan.origin[near], "origin_") | {"jaccard": similarity}
    pq.write_table(pa.table(pairs), out / "pairs.parquet")
    pq.write_table(pa.table(address(leaked) | {"item": plan.item[leaked]}), out / "planted.parquet")
    with (out / "evals.jsonl").open("w") as file:
        spelled = spell(questions, np.arange(items), tokens)
        file.writelines(json.dumps({"id": k, "question": text}) + "\n" for k, text in enumerate(spelled))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder to write into")
    parser.add_argument("--rows", type=int, default=1_000_000, help="prompts of all sources together")
    parser.add_argument("--format", choices=("parquet", "jsonl", "both"), default="parquet", help="of the sources")
    parser.add_argument("--seed", type=int, default=0, help="another seed, another corpus")
    args = parser.parse_args()
    formats = ("parquet", "jsonl") if args.format == "both" else (args.format,)
    write_corpus(args.out, args.rows, formats, args.seed)


if __name__ == "__main__":
    main()
