"""Settings that the engine would refuse: found where that is sure, silent elsewhere."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

import pytest

from corpus.manifest import Manifest
from corpus.manifest_file import parse_manifest
from generation.engine_settings import SET_ELSEWHERE, EngineNames, setting_faults, step_faults, vllm_names

NAMES = EngineNames(frozenset({"model", "block_size", "enforce_eager"}), frozenset({"auto", "fp8"}))


def manifest(max_model_len: int = 512, **engine: Any) -> Manifest:
    body = {
        "name": "m",
        "mix": {"total": 1, "shares": {"math": 1}},
        "sources": [{"name": "s", "path": "s", "category": "math"}],
        "target": {"model": "m", "max_model_len": max_model_len},
        "engine": engine,
    }
    return parse_manifest(json.dumps(body), "m")


def faults(of: Manifest, config: dict[str, Any] | None = None, **outer: str) -> list[str]:
    return setting_faults(of, config or {}, NAMES, outer)


def test_what_the_engine_takes_is_no_fault() -> None:
    assert faults(manifest(kv_cache_dtype="fp8", extra={"block_size": 32, "enforce_eager": True})) == []


@pytest.mark.parametrize("name", sorted(SET_ELSEWHERE))
def test_what_the_manifest_sets_elsewhere_is_refused(name: str) -> None:
    (fault,) = faults(manifest(extra={name: 1}))
    assert fault.startswith(f"engine.extra.{name} is set by {SET_ELSEWHERE[name]}")


def test_unknown_names_are_refused_only_where_the_known_are_known() -> None:
    of = manifest(kv_cache_dtype="fp9", extra={"blocksize": 1})
    assert faults(of) == [
        "engine.extra.blocksize is no argument of this vLLM's engine (did you mean block_size?). Correct or remove it.",
        "engine.kv_cache_dtype is 'fp9'; this vLLM knows auto, fp8.",
    ]
    assert setting_faults(of, {}, outer={}) == []


def test_a_step_has_a_token_for_each_sequence() -> None:
    assert step_faults(manifest(max_num_batched_tokens=8, max_num_seqs=8), 8) == []
    (fault,) = step_faults(manifest(max_num_batched_tokens=8, max_num_seqs=9), 9)
    assert fault.startswith("engine.max_num_batched_tokens is 8, less than engine.max_num_seqs, 9:")
    assert step_faults(manifest(max_num_batched_tokens=8), "auto") == []
    assert "16 (auto)" in step_faults(manifest(max_num_batched_tokens=8), 16)[0]
    assert step_faults(manifest(), 16) == []


@pytest.mark.parametrize(
    ("config", "extra", "outer", "refused"),
    [
        ({"max_position_embeddings": 511}, {}, {}, True),
        ({"max_position_embeddings": 512}, {}, {}, False),
        ({}, {}, {}, False),
        ({"text_config": {"num_hidden_layers": 1, "max_position_embeddings": 511}}, {}, {}, True),
        ({"max_position_embeddings": 511, "rope_scaling": None}, {}, {}, True),
        ({"max_position_embeddings": 511, "rope_parameters": {"rope_type": "default", "rope_theta": 1}}, {}, {}, True),
        ({"max_position_embeddings": 511, "rope_scaling": {"type": "linear", "factor": 2.0}}, {}, {}, False),
        ({"max_position_embeddings": 511, "rope_parameters": {"full_attention": {"rope_type": "yarn"}}}, {}, {}, False),
        ({"max_position_embeddings": 511, "model_max_length": 4096}, {}, {}, False),
        ({"max_position_embeddings": 511}, {"hf_overrides": {}}, {}, False),
        ({"max_position_embeddings": 511}, {}, {"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"}, False),
        ({"max_position_embeddings": 511}, {}, {"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "0"}, True),
    ],
)
def test_a_context_longer_than_the_positions_is_refused_where_nothing_scales_them(
    config: dict[str, Any], extra: dict[str, Any], outer: dict[str, str], refused: bool
) -> None:
    found = setting_faults(manifest(extra=extra), config, outer=outer)
    assert bool(found) == refused
    assert not found or "target.max_model_len is 512; the target has 511 positions" in found[0]


@pytest.mark.e2e
def test_the_names_read_off_vllms_source_are_its_own() -> None:
    arguments = pytest.importorskip("vllm.engine.arg_utils")
    cache = pytest.importorskip("vllm.config.cache")
    names = vllm_names()
    assert names.arguments == {field.name for field in fields(arguments.AsyncEngineArgs)}
    assert names.kv_cache_dtypes == set(cache.CacheDType.__args__)
