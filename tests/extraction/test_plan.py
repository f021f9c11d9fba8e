from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corpus.errors import UserError
from corpus.manifest_file import parse_manifest
from extraction.budget import Budgets, band_of
from extraction.items import MAX_BYTES, SAMPLE_ROWS, SAMPLE_TOKENS, plan_items, rows_that_fit, sample_rows
from extraction.plan import MIN_SAVED_TOKENS, WASTE, Batch, Cut, cut_of, halve, plan_batches
from extraction.stage import gigabytes, states_line, target_layers

LENGTHS = st.lists(st.integers(1, 3000), max_size=80)
BANDS = [256, 512, 1024, 2048, 4096]
BUDGETS = st.builds(
    Budgets, st.integers(1, 9000), st.dictionaries(st.sampled_from(BANDS), st.integers(1, 9000), max_size=5)
)


def rows_of(batches: list[Batch]) -> list[int]:
    return sorted(row for batch in batches for row in batch.rows)


@given(lengths=LENGTHS, budgets=BUDGETS, max_rows=st.integers(1, 40), align=st.sampled_from([1, 8]))
def test_batches_are_disjoint_cover_and_keep_the_budget(
    lengths: list[int], budgets: Budgets, max_rows: int, align: int
) -> None:
    batches = plan_batches(lengths, budgets, max_rows, align)
    assert rows_of(batches) == list(range(len(lengths)))
    for batch in batches:
        longest = max(lengths[row] for row in batch.rows)
        assert batch.length % align == 0
        assert longest <= batch.length < longest + align
        assert batch.padded_tokens <= budgets.of(batch.length) or len(batch.rows) == 1
        assert len(batch.rows) <= max_rows
    assert [batch.length for batch in batches] == sorted((b.length for b in batches), reverse=True)
    assert batches == plan_batches(list(lengths), budgets, max_rows, align)


@given(lengths=LENGTHS.filter(bool), budgets=BUDGETS, limit=st.integers(0, 5000), align=st.sampled_from([1, 8]))
def test_out_of_memory_always_ends_and_loses_only_what_cannot_fit(
    lengths: list[int], budgets: Budgets, limit: int, align: int
) -> None:
    pending, done, lost, steps = plan_batches(lengths, budgets, align=align), [], [], 0
    while pending:
        batch, *pending = pending
        steps += 1
        if batch.padded_tokens <= limit:
            done.append(batch)
        else:
            pending, given_up, lowered = halve(pending, batch, lengths, budgets, align)
            assert lowered.of(batch.length) <= max(batch.padded_tokens // 2, 1)
            assert all(lowered.of(top) == budgets.of(top) for top in BANDS if top != band_of(batch.length))
            lost.extend(given_up)
            budgets = lowered
    assert sorted(rows_of(done) + lost) == list(range(len(lengths)))
    assert set(lost) == {row for row, length in enumerate(lengths) if -(-length // align) * align > limit}
    assert steps <= 20 * len(lengths) + 20


def test_halving_concerns_one_length_band() -> None:
    lengths = [1000] * 8 + [200] * 30
    failed, *pending = plan_batches(lengths, Budgets(4000))
    assert failed == Batch((0, 1, 2, 3), 1000)
    again, lost, lowered = halve(pending, failed, lengths, Budgets(4000))
    assert lost == ()
    assert (lowered.of(1000), lowered.of(200)) == (2000, 4000)
    assert [batch for batch in again if batch.length == 1000] == [
        Batch((0, 1), 1000),
        Batch((2, 3), 1000),
        Batch((4, 5), 1000),
        Batch((6, 7), 1000),
    ]
    assert [b for b in again if b.length == 200] == [b for b in pending if b.length == 200]


@given(lengths=LENGTHS.filter(bool), budget=st.integers(1, 9000), align=st.sampled_from([1, 8]))
def test_no_batch_is_left_that_a_cut_would_spare_much_padding(lengths: list[int], budget: int, align: int) -> None:
    for batch in plan_batches(lengths, Budgets(budget), align=align):
        waste = sum(batch.length - lengths[row] for row in batch.rows)
        saved = max((len(batch.rows) - i) * (batch.length - lengths[row]) for i, row in enumerate(batch.rows))
        assert waste <= WASTE * batch.padded_tokens or saved <= MIN_SAVED_TOKENS + align * len(batch.rows)


def test_what_a_person_reads_of_a_cut() -> None:
    lengths = [10, 10, 8, 3]
    whole = cut_of(plan_batches(lengths, Budgets(30)), lengths)
    assert str(whole) == "2 batches, sizes 1 to 3, mean 2, padding 6.1%"
    assert str(Cut()) == "0 batches"
    assert str(whole + Cut() + cut_of([Batch((0,), 10)], lengths)) == "3 batches, sizes 1 to 3, mean 2, padding 4.7%"


@pytest.mark.parametrize(("lengths", "max_rows", "align"), [([0], 5, 1), ([4], 0, 1), ([4], 1, 0)])
def test_bad_input(lengths: list[int], max_rows: int, align: int) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        plan_batches(lengths, Budgets(9), max_rows, align)


@given(
    lengths=LENGTHS, budgets=BUDGETS, devices=st.integers(1, 8), bytes_per_token=st.sampled_from([10, 61_440, 10**6])
)
def test_a_shard_is_whole_batches(lengths: list[int], budgets: Budgets, devices: int, bytes_per_token: int) -> None:
    batches = plan_batches(lengths, budgets)
    items = plan_items(batches, lengths, devices, bytes_per_token)
    assert [row for item in items for row in item] == [row for batch in batches for row in batch.rows]
    ends = set(itertools.accumulate(len(batch.rows) for batch in batches))
    assert set(itertools.accumulate(map(len, items))) <= ends
    largest = max((sum(lengths[row] for row in batch.rows) for batch in batches), default=0)
    for item in items:
        assert sum(lengths[row] for row in item) * bytes_per_token <= max(MAX_BYTES, largest * bytes_per_token)


def test_a_category_that_comes_first_takes_no_more_than_its_share() -> None:
    assert rows_that_fit(["a"] * 20 + ["b"] * 10, [1] * 30, 15) == [*range(10), *range(20, 25)]


def test_many_rows_make_several_shards_a_device() -> None:
    lengths = [100] * 4000
    batches = plan_batches(lengths, Budgets(2048))
    assert 16 <= len(plan_items(batches, lengths, 2, 1000)) <= 20


ROWS = st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 50)), max_size=60)


@given(rows=ROWS, room=st.integers(0, 1500), more=st.integers(0, 500))
def test_a_disk_is_filled_in_nested_order_with_the_shares_kept(
    rows: list[tuple[str, int]], room: int, more: int
) -> None:
    categories, tokens = [row[0] for row in rows], [row[1] for row in rows]
    kept = rows_that_fit(categories, tokens, room)
    assert sum(tokens[i] for i in kept) <= room
    assert set(kept) <= set(rows_that_fit(categories, tokens, room + more))
    assert rows_that_fit(categories, tokens, sum(tokens)) == list(range(len(rows)))
    for category in set(categories):
        of_it = [i for i, name in enumerate(categories) if name == category]
        taken = [i for i in of_it if i in set(kept)]
        assert taken == of_it[: len(taken)]  # its first rows
        part = len(kept) / len(rows)
        assert abs(len(taken) - part * len(of_it)) <= 1.5


@pytest.mark.parametrize("listed", [[], [1, 1], [3, 8]], ids=["none", "twice", "too high"])
def test_listed_layers_that_do_not_fit_are_one_line(listed: list[int]) -> None:
    manifest = parse_manifest(MANIFEST.replace("LAYERS", str(listed)), "m.yaml")
    with pytest.raises(UserError, match=r"extraction\.layers is"):
        target_layers(manifest, 8)


def test_listed_layers_are_taken_in_order() -> None:
    assert target_layers(parse_manifest(MANIFEST.replace("LAYERS", "[5, 0, 3]"), "m.yaml"), 8) == (0, 3, 5)


MANIFEST = """
name: layers
mix: {total: 1, shares: {coding: 1}}
sources: [{name: a, path: a.jsonl, category: coding}]
target: {model: m}
extraction: {layers: LAYERS}
"""


@given(tokens=st.lists(st.integers(0, 2 * SAMPLE_TOKENS), max_size=30))
def test_a_self_test_takes_a_few_short_rows_from_end_to_end(tokens: list[int]) -> None:
    rows = sample_rows(tokens)
    assert rows == sorted(set(rows))
    short = [count for count in tokens if 0 < count <= SAMPLE_TOKENS]
    taken = [tokens[row] for row in rows]
    if short:
        assert len(rows) == min(SAMPLE_ROWS, len(short))
        assert (min(taken), max(taken)) == (min(short), max(short))
    else:
        assert taken == sorted(filter(None, tokens))[:1]  # nothing is short enough: the shortest there is


def test_a_layer_that_is_named_twice_or_features_beside_a_list_are_refused_with_a_next_step() -> None:
    with pytest.raises(UserError, match=r"\[3, 0, 3\], which names 3 more than once\. Name each layer once"):
        target_layers(parse_manifest(MANIFEST.replace("LAYERS", "[3, 0, 3]"), "m.yaml"), 8)
    with pytest.raises(UserError, match=r"features is used with layers: auto only, .*; remove one of them"):
        parse_manifest(MANIFEST.replace("LAYERS", "[0, 3], features: 2"), "m.yaml")


@pytest.mark.parametrize(
    ("ids", "final", "said"),
    [
        ((3,), False, "layer 3, no final state"),
        ((1, 8, 14), True, "layers 1, 8, 14 and the final state"),
        (tuple(range(30)), True, "layers 0 to 29 and the final state"),
        ((0, 1, 5, 6, 7, 9), False, "layers 0, 1, 5 to 7, 9, no final state"),
    ],
)
def test_the_states_of_a_token_in_words(ids: tuple[int, ...], final: bool, said: str) -> None:
    assert states_line(ids, final) == said


@pytest.mark.parametrize(
    ("size", "said"),
    [
        (5, "5 bytes"),
        (999, "999 bytes"),
        (1000, "1.0 kB"),
        (2_500_000, "2.50 MB"),
        (5e11, "500.00 GB"),
        (2e12, "2.00 TB"),
    ],
)
def test_sizes_in_words(size: float, said: str) -> None:
    assert gigabytes(size) == said


def test_batches_of_one_size_say_it_once() -> None:
    lengths = [4, 4, 4, 4, 4, 4]
    three = [Batch((0, 1, 2), 4), Batch((3, 4, 5), 4)]
    assert str(cut_of(three, lengths)) == "2 batches, 3 rows each, padding 0.0%"
    assert str(cut_of(three[:1], lengths)) == "1 batch, 3 rows, padding 0.0%"
    assert str(cut_of([Batch((0,), 4)], lengths)) == "1 batch, 1 row, padding 0.0%"
