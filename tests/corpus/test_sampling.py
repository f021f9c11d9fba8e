"""Samples are simple and random, whatever the stream's pieces; parts get rows in proportion, and none is forgotten."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from corpus.sampling import Reservoir, allocate, group_files


def held(size: int, seed: int, pieces: list[int]) -> list[int]:
    """Numbers that a reservoir holds of a stream that comes in pieces."""
    reservoir = Reservoir[int](size, np.random.default_rng(seed))
    first = 0
    for length in pieces:
        reservoir.offer(length, lambda i, first=first: first + i)
        first += length
    assert reservoir.seen == first
    return reservoir.held


def test_every_item_is_as_likely_as_every_other() -> None:
    seeds, items, size = 4000, 40, 8
    taken = Counter(item for seed in range(seeds) for item in held(size, seed, [items]))
    share = size / items
    spread = (seeds * share * (1 - share)) ** 0.5
    assert max(abs(taken[item] - seeds * share) for item in range(items)) < 4.5 * spread


@given(size=st.integers(1, 20), seed=st.integers(0, 99), pieces=st.lists(st.integers(0, 300), max_size=6))
def test_a_sample_is_distinct_and_does_not_depend_on_the_pieces(size: int, seed: int, pieces: list[int]) -> None:
    once = held(size, seed, pieces)
    assert once == held(size, seed, [sum(pieces)])
    assert len(set(once)) == len(once) == min(size, sum(pieces))
    assert all(0 <= item < sum(pieces) for item in once)


def test_few_items_are_asked_for_of_a_long_stream() -> None:
    asked: list[int] = []

    def item(i: int) -> int:
        asked.append(i)
        return i

    reservoir = Reservoir[int](100, np.random.default_rng(1))
    reservoir.offer(10**12, item)
    assert len(reservoir.held) == 100
    assert len(asked) < 5000  # 100 (1 + log(10^10)) are expected
    assert np.mean(reservoir.held) > 10**11  # and not the first ones


def test_a_part_of_a_sample_is_random_too() -> None:
    counts: Counter[int] = Counter()
    for seed in range(3000):
        reservoir = Reservoir[int](6, np.random.default_rng(seed))
        reservoir.offer(12, lambda i: i)
        reservoir.trim(3)
        counts.update(reservoir.drawn(2))
    assert max(abs(counts[i] - 500) for i in range(12)) < 4.5 * (3000 / 6 * 5 / 6) ** 0.5


@given(populations=st.lists(st.integers(0, 10**6), min_size=1, max_size=30), rows=st.integers(1, 2000),
       least=st.integers(0, 40))  # fmt: skip
def test_parts_get_their_share_and_at_least_a_few(populations: list[int], rows: int, least: int) -> None:
    shares = allocate(populations, rows, least)
    total, parts = sum(populations), sum(1 for one in populations if one)
    assert sum(shares) == min(rows, total)
    floor = min(least, rows // (2 * parts)) if parts else 0
    for population, share in zip(populations, shares, strict=True):
        assert min(population, floor) <= share <= population
        if total > rows:  # what small parts get beyond their share, large ones lack
            assert share <= max(floor, rows * population / total + 1)


@given(names=st.lists(st.text("ab/", min_size=1, max_size=8).map(lambda text: f"{text}.jsonl"), unique=True,
                      min_size=1, max_size=60), most=st.integers(1, 12))  # fmt: skip
def test_groups_hold_each_file_once(names: list[str], most: int) -> None:
    groups = group_files(names, most)
    assert sorted(file for group in groups for file in group.files) == list(range(len(names)))
    assert len(groups) <= most
    assert all(group.files for group in groups)


def test_many_files_are_grouped_by_folder() -> None:
    names = [f"{folder}/{i}.json" for folder in ("chat", "code") for i in range(40)]
    assert [group.label for group in group_files(names, 50)] == ["chat/ (40 files)", "code/ (40 files)"]
