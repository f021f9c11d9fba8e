"""Which prompts share a run of words with an evaluation set.

A prompt overlaps with an item if `ngram` words in a row are the same in both (words as in corpus.words: case,
punctuation and white space do not count). An item of fewer words is matched as a whole: only by a prompt that has
exactly its words. Hashes find, words decide: every overlap that is reported was compared word for word. One that
exists is missed only where two different runs of words of the evaluation sets have the same 64-bit hash (for ten
million runs, one chance in 300,000). Nothing is read or written here.

Shapes: G distinct n-grams of the items, W words of all prompts, H hits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from corpus.words import BLOCK, INVERSE_POWERS, POWERS, Words, hash_words, mix, plain_words

if TYPE_CHECKING:
    import numpy.typing as npt
    import polars as pl

    UInt64s = npt.NDArray[np.uint64]
    Int64s = npt.NDArray[np.int64]

NGRAM = 13
SIEVE_BITS = 32  # for each n-gram: one of 32 others passes, and the sieve of a million n-grams stays in the cache
ITEMS_AT_A_TIME = 4096


class EvalItem(NamedTuple):
    """One question of an evaluation set; `label` is how people find it there."""

    set_name: str
    label: str
    text: str


@dataclass(frozen=True)
class Table:
    """Distinct hashes, ascending, and for each the number of the first item that has it."""

    hashes: UInt64s
    items: Int64s

    def find(self, hashes: UInt64s) -> Int64s:
        """For each hash the number of its item, -1 if there is none."""
        if not len(self.hashes):
            return np.full(len(hashes), -1)
        at = np.minimum(np.searchsorted(self.hashes, hashes), len(self.hashes) - 1)
        return np.where(self.hashes[at] == hashes, self.items[at], -1)

    @cached_property
    def sieve(self) -> npt.NDArray[np.uint8]:
        """A bit for each value of the upper bits of a hash: 0 where no hash of the table has it; 8 to a byte."""
        size = 1 << max(16, (SIEVE_BITS * len(self.hashes)).bit_length())
        bits = np.zeros(size, np.bool_)
        bits[self.hashes >> np.uint64(65 - size.bit_length())] = True
        return np.packbits(bits, bitorder="little")

    def maybe(self, hashes: UInt64s) -> npt.NDArray[np.bool_]:
        """False for nearly all hashes that are not in the table, True for all that are."""
        bits = hashes >> np.uint64(62 - len(self.sieve).bit_length())
        found: npt.NDArray[np.uint8] = self.sieve[bits >> np.uint64(3)] >> (bits & np.uint64(7)).astype(np.uint8) & 1
        return found.view(np.bool_)


@dataclass(frozen=True)
class EvalIndex:
    """What prompts are looked up in: items by their n-grams, and by all their words where these are fewer than n."""

    items: Sequence[EvalItem]
    ngram: int
    ngrams: Table
    wholes: Table


@dataclass(frozen=True)
class Overlaps:
    """Prompt `rows[k]` (ascending, at most once) shares the words `texts[k]` with item number `items[k]`."""

    rows: Int64s
    items: Int64s
    texts: list[str]


def index_items(items: Sequence[EvalItem], ngram: int = NGRAM, common: int | None = None) -> EvalIndex:
    """The index of evaluation items; of several with the same n-gram, the first by set name, then as listed, has it.

    N-grams that `common` items or more share are left out.
    """
    if not 1 <= ngram <= BLOCK:
        raise ValueError(f"n-grams of {ngram} words cannot be compared; ask for 1 to {BLOCK}")
    order = np.array(sorted(range(len(items)), key=lambda number: items[number].set_name), np.int64)
    grams, gram_items = [np.empty(0, np.uint64)], [np.empty(0, np.int64)]
    wholes, whole_items = [np.empty(0, np.uint64)], [np.empty(0, np.int64)]
    for first in range(0, len(order), ITEMS_AT_A_TIME):
        numbers = order[first : first + ITEMS_AT_A_TIME]
        words = hash_words([items[number].text for number in numbers])
        for start, hashes in _ngram_blocks(words.hashes, ngram):
            rows, inside = _rows_of(start + np.arange(len(hashes)), words, ngram)
            grams.append(hashes[inside])
            gram_items.append(numbers[rows[inside]])
        short = _short_rows(words, ngram)
        wholes.append(_hash_short_rows(words, short))
        whole_items.append(numbers[short])
    if common is not None:
        grams, gram_items = _without_common(grams, gram_items, common)
    return EvalIndex(items, ngram, _table(grams, gram_items), _table(wholes, whole_items))


def _without_common(hashes: list[UInt64s], items: list[Int64s], common: int) -> tuple[list[UInt64s], list[Int64s]]:
    """N-grams that fewer than `common` items have."""
    pairs = np.unique(np.stack([np.concatenate(hashes), np.concatenate(items).astype(np.uint64)], axis=1), axis=0)
    distinct, counts = np.unique(pairs[:, 0], return_counts=True)
    boilerplate = distinct[counts >= common]
    kept = [~np.isin(block, boilerplate) for block in hashes]
    return [h[k] for h, k in zip(hashes, kept, strict=True)], [i[k] for i, k in zip(items, kept, strict=True)]


def overlaps(words: Words, texts: Sequence[str] | pl.Series, index: EvalIndex) -> Overlaps:
    """The prompts that overlap with an item; `words` are those of `texts`. The first overlap in a prompt counts."""
    hits: list[tuple[Int64s, ...]] = [(np.empty(0, np.int64),) * 3]  # row, first word within it, item
    for start, hashes in _ngram_blocks(words.hashes, index.ngram):
        positions = np.flatnonzero(index.ngrams.maybe(hashes))
        items = index.ngrams.find(hashes[positions])
        positions, items = positions[items >= 0] + start, items[items >= 0]
        rows, inside = _rows_of(positions, words, index.ngram)
        hits.append((rows[inside], (positions - words.offsets[rows])[inside], items[inside]))
    short = _short_rows(words, index.ngram)
    items = index.wholes.find(_hash_short_rows(words, short))
    hits.append((short[items >= 0], np.zeros(np.count_nonzero(items >= 0), np.int64), items[items >= 0]))
    return _confirm(hits, texts, index)


def _confirm(hits: list[tuple[Int64s, ...]], texts: Sequence[str] | pl.Series, index: EvalIndex) -> Overlaps:
    """The first hit of each row that holds word for word."""
    row_H, first_H, item_H = (np.concatenate(column) for column in zip(*hits, strict=True))
    order = np.argsort(row_H, kind="stable")
    found: list[tuple[int, int, str]] = []
    item_words: dict[int, str] = {}  # padded, so that words are found as wholes
    ordered = zip(row_H[order].tolist(), first_H[order].tolist(), item_H[order].tolist(), strict=True)
    for row, row_hits in groupby(ordered, key=itemgetter(0)):
        words = plain_words(texts[row])
        for _, first, item in row_hits:
            if item not in item_words:
                item_words[item] = f" {' '.join(plain_words(index.items[item].text))} "
            shared = " ".join(words[first : first + index.ngram])
            padded = f" {shared} "
            if padded in item_words[item] if len(words) >= index.ngram else padded == item_words[item]:
                found.append((row, item, shared))
                break
    rows, items = (np.array([hit[k] for hit in found], np.int64) for k in (0, 1))
    return Overlaps(rows, items, [text for _, _, text in found])


def _table(hashes: list[UInt64s], items: list[Int64s]) -> Table:
    distinct, first = np.unique(np.concatenate(hashes), return_index=True)  # the first of equal ones
    return Table(distinct, np.concatenate(items)[first])


def _ngram_blocks(hashes_W: UInt64s, ngram: int) -> Iterator[tuple[int, UInt64s]]:
    """Position of the first word, and the hash of every n words in a row from there on, whatever rows they are in."""
    step = BLOCK + 1 - ngram
    for start in range(0, len(hashes_W) + 1 - ngram, step):
        block = hashes_W[start : start + BLOCK]
        sums = np.zeros(len(block) + 1, np.uint64)
        np.cumsum(block * POWERS[: len(block)], out=sums[1:])
        yield start, mix((sums[ngram:] - sums[:-ngram]) * INVERSE_POWERS[: len(block) + 1 - ngram])


def _rows_of(positions: Int64s, words: Words, ngram: int) -> tuple[Int64s, npt.NDArray[np.bool_]]:
    """The row of each position among the words, and whether an n-gram that starts there ends in the same row."""
    rows = np.searchsorted(words.offsets, positions, side="right") - 1
    return rows, positions + ngram <= words.offsets[rows + 1]


def _short_rows(words: Words, ngram: int) -> Int64s:
    """The rows with words, but fewer than n."""
    return np.flatnonzero((words.counts > 0) & (words.counts < ngram))


def _hash_short_rows(words: Words, rows: Int64s) -> UInt64s:
    """One hash for all words of each of these rows."""
    short = words.take(rows)
    place = np.arange(len(short.hashes)) - np.repeat(short.offsets[:-1], short.counts)
    sums = np.cumsum(short.hashes * POWERS[place])[short.offsets[1:] - 1] if len(rows) else np.empty(0, np.uint64)
    return mix(np.diff(sums, prepend=np.uint64(0)))
