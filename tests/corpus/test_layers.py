from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corpus.errors import UserError
from corpus.layers import check_layer_ids, draft_layer_ids, from_vllm_ids, to_hidden_states_index, to_vllm_ids


def test_published_ids() -> None:
    assert draft_layer_ids(64, 5) == (1, 16, 31, 46, 61)
    assert draft_layer_ids(36, 1) == (18,)
    assert to_vllm_ids((1, 16, 31, 46, 61)) == (2, 17, 32, 47, 62)


@settings(deadline=None)  # the first example imports torch
@given(layers=st.integers(4, 128), features=st.integers(1, 12))
def test_equal_to_the_dflash_package(layers: int, features: int) -> None:
    reference = pytest.importorskip("dflash.model").build_target_layer_ids(layers, features)
    if reference == sorted(set(reference)):
        assert list(draft_layer_ids(layers, features)) == reference
    else:
        with pytest.raises(UserError, match="repeats layers"):
            draft_layer_ids(layers, features)


def test_duplicates_are_refused_in_one_line() -> None:
    with pytest.raises(UserError, match=r"only 6 layers: the formula gives \[1, 2, 2, 3\]") as caught:
        draft_layer_ids(6, 4)
    assert "\n" not in str(caught.value)


@given(st.lists(st.integers(0, 200), unique=True, min_size=1).map(sorted))
def test_conversions_are_inverse(ids: list[int]) -> None:
    assert from_vllm_ids(to_vllm_ids(ids)) == tuple(ids)
    assert [to_hidden_states_index(i) for i in ids] == list(to_vllm_ids(ids))


@pytest.mark.parametrize("ids", [[], [2, 1], [1, 1], [-1, 2], [3, 8]])
def test_bad_ids(ids: list[int]) -> None:
    with pytest.raises(UserError):
        check_layer_ids(ids, 8)


def test_embeddings_are_no_layer() -> None:
    with pytest.raises(UserError):
        from_vllm_ids([0, 2])
