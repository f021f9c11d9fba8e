"""What changes an identity and what does not, side by side, for every identity that there is.

The table of what is left out (identity.LEFT_OUT) and this one are held to each other: nothing can be declared as
left out that is not tried here.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corpus import identity
from corpus.canonical import canonical_json, digest
from corpus.errors import RowError
from corpus.manifest import Manifest, Sampling, Source
from corpus.manifest_file import parse_manifest
from corpus.records import Prompt

Body = dict[str, Any]
TARGET = {"model": "org/m", "revision": "r1", "tokenizer": "t1", "template": "p1"}
SOURCE: Body = {
    "name": "s", "dataset": "a/b", "config": "c", "split": "train", "category": {"column": "kind", "default": "math"},
    "where": "x = 1", "limit": 9, "format": "prompt", "history": "recorded",
}  # fmt: skip


def manifest(**changes: Any) -> Manifest:
    """A manifest with sections merged over a small one; a key with dots goes deep."""
    body: Body = {
        "name": "m", "seed": 1, "mix": {"total": 10, "shares": {"coding": 1, "math": 1}},
        "sources": [
            {"name": "a", "path": "a", "category": "coding"}, {"name": "b", "path": "b", "category": "math"},
        ],
        "target": {"model": "org/m"},
    }  # fmt: skip
    for path, value in changes.items():
        here: Any = body
        *parts, last = path.split("__")
        for part in parts:
            here = here[int(part)] if isinstance(here, list) else here.setdefault(part, {})
        here[last] = value
    return parse_manifest(json.dumps(body), "m")


def pool(files: tuple[str, ...] = ("1", "2"), revision: str = "r", skip: bool = False, **changes: Any) -> str:
    source = Source.model_validate_json(json.dumps({**SOURCE, **changes}))
    return identity.pool_id(source, revision, list(files), skip)


def candidates(
    chunks: int = 1, pool_id: str = "p", tokenizer: str | None = "t", rules: str = "v", **changes: Any
) -> str:
    pools = [{"source": "a", "pool_id": pool_id, "chunks": chunks}, {"source": "b", "pool_id": "q", "chunks": 1}]
    return identity.candidates_id(manifest(**changes), pools, {"sets": rules}, tokenizer)


def build(of: str = "c", weight: float = 1.0, **changes: Any) -> str:
    return identity.build_id(of, manifest(**changes), {"a": weight, "b": 1.0})


def recipe(
    sampling: Body | None = None,
    max_tokens: int = 9,
    thinking: bool = False,
    target: Body | None = None,
    **changes: Any,
) -> str:
    body = identity.recipe_body(
        manifest(**changes), {**TARGET, **(target or {})}, Sampling(**(sampling or {})), max_tokens, thinking
    )
    return identity.recipe_id(body)


def family(
    sampling: Body | None = None,
    max_tokens: int = 9,
    thinking: bool = False,
    target: Body | None = None,
    **changes: Any,
) -> str:
    return identity.family_id(
        identity.recipe_body(
            manifest(**changes), {**TARGET, **(target or {})}, Sampling(**(sampling or {})), max_tokens, thinking
        )
    )


def response(prompt: str = "p", recipe: str = "r", replica: int = 0, turn: int = 0) -> str:
    return identity.response_id(prompt, recipe, replica, turn)


def capture(
    target: Body | None = None,
    layers: tuple[int, ...] = (1, 3),
    final: bool = True,
    dtype: str = "float32",
    stored: str = "bfloat16",
) -> str:
    return identity.capture_id({**TARGET, **(target or {})}, list(layers), final, dtype, stored)


def drafter(build: str = "b", responses: tuple[str, ...] = ("x", "y"), capture: str = "c", **training: Any) -> str:
    return identity.drafter_id(
        build, list(responses), capture, {"gamma": 4.0, "checkpoint_every": 9, "feed": "shards", **training}
    )


@dataclass(frozen=True)
class Pair:
    """One identity: what of its inputs changes it, and what does not (`left_out` names the table's entry)."""

    make: Callable[..., str]
    changes: tuple[Body, ...]
    keeps: dict[str, Body]


PAIRS = {
    "pool": Pair(
        pool,
        (
            {"dataset": "a/c"}, {"config": "d"}, {"split": "test"}, {"where": "x = 2"}, {"limit": 8},
            {"format": "sharegpt"}, {"history": "regenerated"}, {"revision": "r2"}, {"files": ("1",)},
            {"files": ("2", "1")}, {"category": {"column": "other"}}, {"category": "coding"},
            {"trust_remote_code": True}, {"keep_original": True}, {"skip": True},
        ),
        {
            "name": {"name": "t"}, "weight": {"weight": 2.0}, "priority": {"priority": 3},
            "category": {"category": {"column": "kind", "map": {"a": "coding"}}}, "license": {"license": "mit"},
        },
    ),
    "candidates": Pair(
        candidates,
        (
            {"chunks": 2}, {"pool_id": "o"}, {"tokenizer": None}, {"seed": 2}, {"filters__turns": 3},
            {"dedup__exact": False}, {"dedup__near": 0.5}, {"sources__0__priority": 2},
            {"decontaminate__against": [{"path": "x", "field": "q"}]}, {"mix__holdout": 0.5}, {"rules": "w"},
            {"filters__near_empty": 3}, {"filters__language": ["en"]}, {"sources__0__category": "classify"},
            {"decontaminate": {"ngram": 8, "against": [{"path": "x", "field": "q"}]}},
            {"mix__shares": {"coding": 1}, "sources__1__category": "coding"},
        ),
        {
            "mix": {"mix__total": 99, "mix__shares": {"coding": 5, "math": 1}, "mix__shortage": "rescale"},
            "weight": {"sources__0__weight": 7.0},
            "generation": {"generation__max_tokens": 3},
            "decontaminate": {},  # the sets' names, fields and revisions are given instead
            "a learning rate": {"training__learning_rate": 0.1},
            "a name": {"name": "other"},
        },
    ),
    "build": Pair(
        build,
        (
            {"of": "d"}, {"weight": 2.0}, {"mix__total": 11}, {"mix__shares": {"coding": 2, "math": 1}},
            {"mix__shortage": "rescale"}, {"mix__holdout": 0.3},
            {"mix__unit": "response_tokens", "mix__mean_response_tokens": {"coding": 9, "math": 9}},
        ),
        {
            "tolerance": {"mix__tolerance": 5.0},
            "reserve": {"mix__reserve": 3.0},
            "a learning rate": {"training__learning_rate": 0.1},
            "a recipe": {"generation__max_tokens": 3},
        },
    ),
    "recipe": Pair(
        recipe,
        (
            {"sampling": {"temperature": 0.5}}, {"sampling": {"top_p": 0.5}}, {"sampling": {"top_k": 4}},
            {"sampling": {"min_p": 0.1}}, {"sampling": {"presence_penalty": 1.0}},
            {"sampling": {"repetition_penalty": 1.1}}, {"max_tokens": 10}, {"thinking": True},
            {"target": {"revision": "r2"}}, {"target": {"model": "n"}}, {"target": {"tokenizer": "t2"}},
            {"target": {"template": "p2"}}, {"target__dtype": "float32"}, {"target__max_model_len": 99},
            {"target__trust_remote_code": True},
            {"engine__kv_cache_dtype": "fp8"}, {"engine__quantization": "fp8"}, {"engine__extra": {"a": 1}},
        ),
        {
            "devices": {},  # not in a manifest at all
            "max_num_seqs": {"engine__max_num_seqs": 3},
            "max_num_batched_tokens": {"engine__max_num_batched_tokens": 3},
            "gpu_memory_utilization": {"engine__gpu_memory_utilization": 0.5},
            "seed": {"engine__seed": 5, "seed": 6},
            "truncated": {"generation__truncated": "drop"},
            "extra.tensor_parallel_size": {"engine__extra": {"tensor_parallel_size": 2}},
            "reject": {"generation__reject": ["no_answer"]},
            "token_logprobs": {"generation__token_logprobs": True},
            "reuse": {"generation__reuse": "finished"},
            "a mix": {"mix__total": 3},
        },
    ),
    "family": Pair(
        family,
        (
            {"sampling": {"temperature": 0.5}}, {"thinking": True}, {"target": {"revision": "r2"}},
            {"target__max_model_len": 99}, {"target__dtype": "float32"}, {"target__trust_remote_code": True},
            {"engine__kv_cache_dtype": "fp8"}, {"engine__extra": {"a": 1}},
        ),
        {"max_tokens": {"max_tokens": 10}, "a policy": {"generation__truncated": "drop"}},
    ),
    "response": Pair(response, ({"prompt": "q"}, {"recipe": "s"}, {"replica": 1}, {"turn": 1}), {}),
    "capture": Pair(
        capture,
        (
            {"target": {"model": "n"}}, {"target": {"revision": "r2"}}, {"layers": (1,)}, {"layers": (3, 1)},
            {"final": False}, {"dtype": "bfloat16"}, {"stored": "float32"},
        ),
        {"max_tokens_per_batch": {}, "a template": {"target": {"template": "p2"}}},
    ),
    "drafter": Pair(
        drafter,
        (
            {"build": "d"}, {"responses": ("x",)}, {"capture": "d"}, {"gamma": 5.0}, {"seed": 3},
            {"loss_weights": "d_pace"}, {"loss_weights": "d_pace", "d_pace_alpha": 0.9}, {"gradient_accumulation": 2},
            {"init": "export-1"}, {"init": "export-2"}, {"feed": "live"},
            {"feed": "live", "live": {"average_every": 9}},
        ),
        {
            "checkpoint_every": {"checkpoint_every": 3}, "order": {"responses": ("y", "x")},
            "activation_checkpointing": {"activation_checkpointing": True}, "init_from": {"init_from": "moved"},
            "what live says without it": {"live": {"average_every": 9}},
            **{f"live.{key}": {"live": {key: 2}} for key in ("targets", "drafters", "queue_gb", "holdout_rows")},
            "keys that came later": {
                "loss_weights": "decay", "d_pace_alpha": 0.9, "gradient_accumulation": 1, "init": None,
            },
        },
    ),
}  # fmt: skip
NOT_INPUTS = {("pool", "revision")}  # a branch name: the resolved commit is given instead


@pytest.mark.parametrize("kind", PAIRS)
def test_what_changes_an_identity(kind: str) -> None:
    pair = PAIRS[kind]
    made = [pair.make(), *(pair.make(**change) for change in pair.changes)]
    assert len(set(made)) == len(made)


@pytest.mark.parametrize(("kind", "what"), [(kind, what) for kind, pair in PAIRS.items() for what in pair.keeps])
def test_what_does_not(kind: str, what: str) -> None:
    assert PAIRS[kind].make(**PAIRS[kind].keeps[what]) == PAIRS[kind].make()


def test_a_branch_name_is_not_in_a_pool_but_its_commit_is() -> None:
    source = {"name": "s", "dataset": "a/b", "category": "math"}
    main, tag = (Source.model_validate({**source, "revision": name}) for name in ("main", "v1"))
    assert identity.pool_id(main, "commit", ["f"], False) == identity.pool_id(tag, "commit", ["f"], False)
    assert identity.pool_id(main, "commit", ["f"], False) != identity.pool_id(main, "other", ["f"], False)


def test_the_table_of_what_is_left_out_is_tried_here_and_gives_reasons() -> None:
    left_out = {(kind, key) for kind, keys in identity.LEFT_OUT.items() for key in keys}
    tried = {(kind, key) for kind, pair in PAIRS.items() for key in pair.keeps} | NOT_INPUTS
    assert left_out <= tried
    assert all(reason for keys in identity.LEFT_OUT.values() for reason in keys.values())


def test_the_order_of_pools_does_not_matter() -> None:
    pools = [{"source": name, "pool_id": name, "chunks": 1} for name in ("a", "b")]
    made = [identity.candidates_id(manifest(), order, {}, None) for order in (pools, pools[::-1])]
    assert made[0] == made[1]


def test_ids_of_different_kinds_never_meet() -> None:
    assert len({digest(kind, {"a": 1}) for kind in ("prompt", "recipe", "build")}) == 3
    assert digest("prompt", {"a": 1}) != digest("prompt", {"a": 1}, version=2)


hex_ids = st.text("0123456789abcdef", min_size=1, max_size=32)


@given(st.lists(st.tuples(hex_ids, hex_ids, st.integers(0, 2**31), st.integers(0, 2**31)), max_size=9))
def test_many_response_ids_are_those_of_each(answers: list[tuple[str, str, int, int]]) -> None:
    assert identity.response_ids(answers) == [identity.response_id(*answer) for answer in answers]


def test_golden_ids() -> None:
    """Stored ids outlive a version of draftmill: a change here orphans every workspace there is."""
    prompt = Prompt(
        ({"role": "user", "content": "Grüße, 世界 \n"},), ({"type": "function", "function": {"name": "f"}},)
    )
    assert prompt.prompt_id == GOLDEN_PROMPT
    assert response("p", "r", 1, 2) == GOLDEN_RESPONSE


GOLDEN_PROMPT = "241879d02994127d3d94bc583e5703cd"
GOLDEN_RESPONSE = "83e257934ce22ca94a22d067dd94f908"

values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("abc", max_size=3), inner, max_size=4),
    max_leaves=12,
)


@given(values)
def test_canonical_json_is_a_fixed_point(value: Any) -> None:
    text = canonical_json(value)
    assert json.loads(text) == value
    assert canonical_json(json.loads(text)) == text


@given(st.dictionaries(st.text("abcdef", min_size=1, max_size=3), st.integers(), max_size=6), st.randoms())
def test_canonical_json_does_not_know_the_order_of_keys(value: dict[str, int], random: Any) -> None:
    names = list(value)
    random.shuffle(names)
    text = canonical_json({name: value[name] for name in names})
    assert text == canonical_json(value)
    assert " " not in text


@pytest.mark.parametrize(
    ("value", "reason"),
    [("a\ud800", "invalid_unicode"), (float("nan"), "not_json"), (b"bytes", "not_json"), ({1, 2}, "not_json")],
)
def test_what_has_no_canonical_form(value: Any, reason: str) -> None:
    with pytest.raises(RowError) as caught:
        canonical_json({"a": [value]})
    assert caught.value.reason == reason


def test_a_thousand_levels_have_none_either() -> None:
    deep: Any = 0
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(RowError) as caught:
        canonical_json(deep)
    assert caught.value.reason == "not_json"
