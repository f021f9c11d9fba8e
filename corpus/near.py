"""Near duplicates: which prompts lose to a better placed one that says nearly the same.

The similarity of two prompts is the Jaccard index of their sets of word bigrams (pairs of neighbouring words; a
text of one word is that word; a text without words is near nothing). Which pairs are looked at, MinHash with bands
decides, by chance but reproducibly: `Bands.chance` says how often. What is looked at is then counted, not estimated.
Rows come best first; every loser names a winner that is placed better, is kept and is at least `threshold` similar.

In a band's bucket every kept row was compared with the MAX_WINNERS best placed kept rows before it, maybe with no
more. In a bucket of up to MAX_WINNERS + 1 rows no two near ones stay, in a larger one they may. So the cost grows with
the rows and not with their square: 50,000 prompts out of one template, not near each other, take 4 million comparisons.

Similarity is counted on hashes of 51 bits: a bigram is taken for another one of the same two texts in less than one
of 10^11 pairs of texts of a hundred words. Nothing is read or written here.

Shapes: R rows, B bands, E entries of rows in buckets, P pairs.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import chain, pairwise
from typing import TYPE_CHECKING

import numpy as np

from corpus.words import Words, hash_words, mix, plain_words, row_blocks

if TYPE_CHECKING:
    import numpy.typing as npt

    UInt64s = npt.NDArray[np.uint64]
    Int64s = npt.NDArray[np.int64]
    Floats = npt.NDArray[np.float64]

CHANCE = 0.985  # that a pair which is exactly as similar as the threshold is compared
MAX_HASHES = 96  # of a sketch; more rows a band mean fewer vain comparisons and more hashes
MAX_WINNERS = 16
SEED = 1
NO_WORDS = 0  # the key of a row without words, in every band
PAIR_MULTIPLIER = np.uint64(0xD6E8FEB86659FD93)
ONE_WORD = np.uint64(0xA0761D6478BD642F)  # tells the text "a" from any bigram

SKETCH_WORDS = 1 << 18
FETCHED_PAIRS = 1 << 15  # so many pairs' texts are held at a time
SORTED_BIGRAMS = 1 << 16  # sorted at a time: they stay in a core's second cache
PAIR_BITS = 12  # of a sorted key; below it 51 bits of the bigram and one that says whose it is


@dataclass(frozen=True)
class Bands:
    """A sketch has `bands` keys of `rows` minimal hashes; two rows with a key in common are compared."""

    bands: int
    rows: int

    def chance(self, similarity: float) -> float:
        """How probably two prompts of this similarity are compared: 1 - (1 - s^rows)^bands."""
        return float(1 - (1 - similarity**self.rows) ** self.bands)


@dataclass(frozen=True)
class NearLosers:
    """Row `loser[k]` loses to row `winner[k]`, the best placed kept row that it was found near; losers ascend."""

    loser: Int64s
    winner: Int64s
    similarity: Floats


def plan_bands(threshold: float) -> Bands:
    """The bands for a threshold within (0, 1]: of those with CHANCE, the most rows that MAX_HASHES pays for."""
    if not 0 < threshold <= 1:
        raise ValueError(f"the threshold of near duplicates is {threshold}; it must be above 0 and at most 1")
    plans = [Bands(_bands_needed(threshold, rows), rows) for rows in range(1, MAX_HASHES + 1)]
    affordable = [plan for plan in plans if plan.bands * plan.rows <= MAX_HASHES]
    return affordable[-1] if affordable else min(plans, key=lambda plan: plan.bands * plan.rows)


def _bands_needed(threshold: float, rows: int) -> int:
    missed = 1 - threshold**rows  # by one band
    if missed in (0.0, 1.0):
        return 1 if missed == 0 else 1 << 62
    return max(1, math.ceil(math.log(1 - CHANCE) / math.log(missed)))


def bigrams(words: Words) -> Words:
    """The rows' bigrams in order of the text, repeated ones included; for a row of one word, that word."""
    if not len(words.hashes):
        return words
    hashes = words.hashes * PAIR_MULTIPLIER
    hashes[:-1] += words.hashes[1:]
    counts, last = words.counts, words.offsets[1:] - 1
    hashes[last[counts == 1]] = words.hashes[last[counts == 1]] ^ ONE_WORD
    mix(hashes)
    kept = np.ones(len(hashes), np.bool_)
    kept[last[counts > 1]] = False
    return Words(hashes[kept], np.concatenate([np.zeros(1, np.int64), np.cumsum(counts - (counts > 1))]))


def sketch(words: Words, plan: Bands) -> UInt64s:
    """Band keys (R, B), which depend on the row and the plan alone, on every machine; NO_WORDS without words."""
    from rensa import RMinHash

    keys_RB = np.zeros((words.rows, plan.bands), np.uint64)
    for first, stop in row_blocks(words.offsets, SKETCH_WORDS):
        grams = bigrams(words.between(first, stop))
        minima = RMinHash.digest_matrix_from_flat_token_hashes(
            grams.hashes, grams.offsets.astype(np.uint64), num_perm=plan.bands * plan.rows, seed=SEED
        )
        flat = np.frombuffer(array("I", chain.from_iterable(minima.to_rows())), np.uint32)
        minima_RBK = flat.reshape(-1, plan.bands, plan.rows)
        block_RB = keys_RB[first:stop]
        for k in range(plan.rows):
            block_RB += minima_RBK[:, :, k]
            mix(block_RB)
        np.maximum(block_RB, 1, out=block_RB)
        block_RB[grams.counts == 0] = NO_WORDS
    return keys_RB


def near_losers(
    keys_RB: UInt64s,
    threshold: float,
    texts_of: Callable[[Int64s], list[str]],
    compare: Callable[[UInt64s], Floats] | None = None,
) -> NearLosers:
    """The rows that lose, rows being in best-first order; `texts_of` gives the texts of ascending row numbers.

    Comparing more can revive a row (its winner turns out to lose), and a revived row must be compared in turn. So
    this goes on until every kept row was compared with all it has to be. A window that doubles lets the best placed
    row of a bucket take its duplicates out before the others are compared with each other. `compare` may answer for
    `similarities` where pairs (loser << 32 | winner, ascending) were compared before.
    """
    if compare is None:
        compare = partial(similarities, texts_of=texts_of)
    rows_E, bucket_E = _shared_buckets(keys_RB)
    kept_R = np.ones(len(keys_RB), np.bool_)
    compared_P = near_P = np.empty(0, np.uint64)  # pairs as loser << 32 | winner, ascending
    similarity_P = np.empty(0)
    losers = _decide(near_P, similarity_P)
    window = 1
    while True:
        alive_E = kept_R[rows_E]
        pairs = _without(_wanted(rows_E[alive_E], bucket_E[alive_E], window), compared_P)
        if not len(pairs) and window == MAX_WINNERS:
            return losers
        window = min(2 * window, MAX_WINNERS)
        found = compare(pairs)
        compared_P = np.sort(np.concatenate([compared_P, pairs]))
        near = found >= threshold
        near_P, similarity_P = np.concatenate([near_P, pairs[near]]), np.concatenate([similarity_P, found[near]])
        order = np.argsort(near_P)
        near_P, similarity_P = near_P[order], similarity_P[order]
        losers = _decide(near_P, similarity_P)
        kept_R[:] = True
        kept_R[losers.loser] = False


def jaccard(a: str, b: str) -> float:
    """The similarity of two texts, as the definition reads."""
    left, right = _plain_bigrams(a), _plain_bigrams(b)
    return len(left & right) / len(left | right) if left and right else 0.0


def _plain_bigrams(text: str) -> set[tuple[str, ...]]:
    words = plain_words(text)
    return {(words[0],)} if len(words) == 1 else set(pairwise(words))


def _shared_buckets(keys_RB: UInt64s) -> tuple[UInt64s, Int64s]:
    """Row and bucket (both E) of every row that shares a bucket of any band; by bucket, then by row.

    A key's lowest bits make room for the row number, so that one sort of plain numbers does. Buckets that fall
    together for it only lead to more comparisons.
    """
    bits = np.uint64(max(1, (len(keys_RB) - 1).bit_length()))
    rows, buckets, known = [np.empty(0, np.uint64)], [np.empty(0, np.int64)], 0
    present = np.flatnonzero(keys_RB.any(axis=1)).astype(np.uint64)
    for keys in keys_RB.T:
        packed = np.sort((keys[present] >> bits << bits) | present)
        same = np.diff(packed >> bits, prepend=~packed[:1] >> bits, append=~packed[-1:] >> bits) == 0
        shared = same[:-1] | same[1:]
        rows.append(packed[shared] & ((np.uint64(1) << bits) - np.uint64(1)))
        buckets.append(known + np.cumsum(~same[:-1][shared]))
        known += len(rows[-1])
    return np.concatenate(rows), np.concatenate(buckets)


def _wanted(rows_E: UInt64s, bucket_E: Int64s, window: int) -> UInt64s:
    """The pairs of each row and the `window` first rows of its bucket before it."""
    starts = np.flatnonzero(np.diff(bucket_E, prepend=-1))
    start_E = np.repeat(starts, np.diff(starts, append=len(rows_E)))
    rank_E = np.arange(len(rows_E)) - start_E
    pairs = [np.empty(0, np.uint64)]
    for k in range(window):
        later = np.flatnonzero(rank_E > k)
        pairs.append(_unique(rows_E[later] << np.uint64(32) | rows_E[start_E[later] + k]))
    return _unique(np.concatenate(pairs))


def similarities(pairs: UInt64s, texts_of: Callable[[Int64s], list[str]]) -> Floats:
    """The similarity of every pair; texts are fetched once for each FETCHED_PAIRS."""
    found = [np.empty(0)]
    for first in range(0, len(pairs), FETCHED_PAIRS):
        block = pairs[first : first + FETCHED_PAIRS]
        loser, winner = block >> np.uint64(32), block & np.uint64(0xFFFFFFFF)
        rows = _unique(np.concatenate([loser, winner]))
        grams = bigrams(hash_words(texts_of(rows.astype(np.int64))))
        sides = np.stack([np.searchsorted(rows, loser), np.searchsorted(rows, winner)], axis=1)
        ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(grams.counts[sides].sum(axis=1))])
        for start, stop in row_blocks(ends, SORTED_BIGRAMS):
            for part in range(start, stop, 1 << PAIR_BITS):
                found.append(_pair_similarities(grams, sides[part : min(stop, part + (1 << PAIR_BITS))]))
    return np.concatenate(found)


def _pair_similarities(grams: Words, sides: Int64s) -> Floats:
    """Of pairs of rows (P, 2), at most 2^PAIR_BITS: one sort brings what the two have in common together."""
    taken = grams.take(sides.reshape(-1))
    # the number of the pair, 51 bits of the bigram, and the side
    pair = np.arange(len(sides), dtype=np.uint64) << np.uint64(64 - PAIR_BITS)
    tags = np.stack([pair, pair | np.uint64(1)], axis=1).reshape(-1)
    keys = _unique(taken.hashes >> np.uint64(PAIR_BITS + 1) << np.uint64(1) | np.repeat(tags, taken.counts))
    twice = np.flatnonzero(keys[1:] ^ keys[:-1] == 1)  # on both sides
    bounds = np.searchsorted(keys, pair)
    total = np.diff(bounds, append=len(keys))
    common = np.diff(np.searchsorted(twice, bounds), append=len(twice))
    similarity: Floats = common / np.maximum(total - common, 1)
    return similarity


def _decide(near_P: UInt64s, similarity_P: Floats) -> NearLosers:
    """Greedy in the rows' order: a row that is near a kept row before it loses to the first of those."""
    lost: dict[int, int] = {}  # loser: position of its pair
    for position, pair in enumerate(near_P.tolist()):
        loser = pair >> 32
        if loser not in lost and pair & 0xFFFFFFFF not in lost:
            lost[loser] = position
    at = np.fromiter(lost.values(), np.int64, len(lost))
    winner = (near_P[at] & np.uint64(0xFFFFFFFF)).astype(np.int64)
    return NearLosers(np.fromiter(lost, np.int64, len(lost)), winner, similarity_P[at])


def _without(pairs: UInt64s, known: UInt64s) -> UInt64s:
    """The pairs that are not among the known ones, which ascend."""
    is_new: npt.NDArray[np.bool_] = np.append(known, ~np.uint64(0))[np.searchsorted(known, pairs)] != pairs
    return pairs[is_new]


def _unique(numbers: UInt64s) -> UInt64s:
    """The distinct numbers, ascending; np.unique takes four times as long."""
    numbers = np.sort(numbers)
    distinct: UInt64s = numbers[np.diff(numbers, prepend=~numbers[:1]) != 0]
    return distinct
