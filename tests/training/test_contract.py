"""The contract of training and serving: nothing is said of what fits, and each difference is named by itself."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from corpus.errors import UserError
from tests.extraction.tiny import save_tiny, tiny_config
from tests.training.tiny_data import LAYERS, make_item
from training.contract import check_contract, check_final_state, contract_of_item, require
from training.facts import Captured, TargetFacts, norm_of_class, read_captured, read_target_facts
from training.shape import DrafterShape, longest_positions, shape_for_target, to_zlab_config

BLOCK, MASK = 6, 90
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128, "rope_theta": 10_000.0}
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64, "rope_theta": 500_000.0,
}  # fmt: skip


@pytest.fixture(scope="module")
def target_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("contract"), "qwen3")


def shape_of(target_dir: Path, **changes: Any) -> DrafterShape:
    shape = shape_for_target(
        target_dir,
        target_layer_ids=LAYERS,
        draft_layers=3,
        block_size=BLOCK,
        mask_token_id=MASK,
        sliding_layers=2,
        sliding_window=16,
    )
    return replace(shape, **changes)


CAPTURED = Captured(LAYERS, True, 32, "org/tiny", "abc", 60)


def problems(
    target_dir: Path,
    shape: dict[str, Any] | None = None,
    config: dict[str, Any] | None = None,
    target: dict[str, Any] | None = None,
    captured: list[Captured] | None = None,
    **more: Any,
) -> list[str]:
    """The contract with one thing changed."""
    trained = shape_of(target_dir, **shape or {})
    facts: TargetFacts = replace(read_target_facts(target_dir), **target or {})
    served = {**to_zlab_config(trained, "float32"), **(config or {})}
    asked = {"labels": "auto", "dtype": "float32", **more}
    return check_contract(trained, facts, served, [CAPTURED] if captured is None else captured, **asked)


def test_what_fits_is_not_spoken_of(target_dir: Path) -> None:
    assert problems(target_dir, used_token_ids={3, 4}, max_model_len=512) == []
    require([])


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"config": {"rope_parameters": YARN}}, ["rope type: ", "rope scaling: "]),
        ({"config": {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}}, ["rope theta: "]),
        (
            {"config": {"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.25}}},
            ["partial rotary: trained with whole heads turned, serving turns 0.25"],
        ),
        ({"config": {"rope_parameters": {"rope_theta": 1e4, "mrope_section": [2, 3, 3]}}}, ["rope scaling: "]),
        ({"config": {"is_neox_style": False}}, ["rope layout: "]),
        ({"config": {"is_causal": True}}, ["causality: layers are trained causal, causal, bidirectional"]),
        ({"config": {"layer_types": ["full_attention"] * 3}}, ["causality: ", "windows: "]),
        ({"config": {"sliding_window": 15}}, ["windows: "]),
        ({"shape": {"target_layer_ids": (1, 3, 8)}}, ["layer ids: [8] of [1, 3, 8] are none", "states: of layers"]),
        ({"shape": {"target_layer_ids": (1, 3, 3)}}, ["names a layer twice", "states: of layers"]),
        ({"shape": {"target_layer_ids": (3, 1, 5)}}, ["do not ascend", "states: of layers"]),
        (
            {"config": {"dflash_config": {"mask_token_id": MASK, "target_layer_ids": [2, 4, 6]}}},
            ["are [2, 4, 6] counted as vLLM and speculators do; serving reads [3, 5, 7]"],
        ),
        ({"target": {"num_layers": 9}}, ["target layers: "]),
        ({"shape": {"mask_token_id": 97}}, ["mask token: 97 is no row of the target's 97 embeddings"]),
        ({"shape": {"mask_token_id": 1}}, ["mask token: 1 is an end, begin, pad or unknown token"]),
        ({"used_token_ids": {5, MASK}}, [f"mask token: {MASK} occurs in training rows"]),
        (
            {"config": {"dflash_config": {"mask_token_id": 91, "target_layer_ids": list(LAYERS)}}},
            ["mask token: trained with 90, serving reads 91"],
        ),
        ({"config": {"vocab_size": 96}}, ["its export 96 tokens, the target has 97", "serving maps 96 draft tokens"]),
        ({"config": {"draft_vocab_size": 64}}, ["by a table that the export does not have"]),
        ({"target": {"embedding_rows": 96}}, ["the target's embeddings have 96 rows"]),
        ({"target": {"head_rows": 128}}, ["the target's head have 128 rows"]),
        ({"target": {"tokenizer_size": 98}}, ["the tokenizer has ids up to 97"]),
        ({"used_token_ids": {97}}, ["training rows hold token 97"]),
        ({"config": {"rms_norm_eps": 1e-5}}, ["norm: trained with eps 1e-06, serving reads 1e-05"]),
        ({"target": {"has_rms_norm": False}}, ["norm: qwen3 has no rms_norm_eps"]),
        (
            {"target": {"norm_adds_one": True, "taken_to_add_one": False}},
            ["norm: qwen3's final norm weighs by 1 + w, the teacher's labels are made with w."],
        ),
        ({"config": {"block_size": 8}}, ["block size: trained with 6, serving reads 8"]),
        ({"shape": {"block_size": 1}}, ["block size: 1 drafts nothing"]),
        ({"config": {"head_dim": 8}}, ["head_dim: trained with 16, serving reads 8"]),
        ({"config": {"num_key_value_heads": 4}}, ["num_key_value_heads: "]),
        ({"target": {"hidden_size": 64}}, ["hidden size: "]),
        ({"config": {"attention_bias": True}}, ["attention_bias: serving reads True, which training does not have"]),
        ({"config": {"hidden_act": "gelu"}}, ["hidden_act: serving reads 'gelu'"]),
        ({"config": {"dtype": "bfloat16"}}, ["dtype: weights are bfloat16, the target is served in float32"]),
        ({"dtype": "int8"}, ["dtype: weights are", "dtype: int8 is none of"]),
        ({"max_model_len": 513}, ["max positions: target.max_model_len is 513, the drafter goes to 512"]),
        ({"target": {"longest": 2048}}, ["the target goes to 2,048, the drafter to 512: vLLM stops drafting there"]),
        ({"captured": [replace(CAPTURED, longest=513)]}, ["max positions: a row of 513 tokens"]),
        ({"captured": [replace(CAPTURED, layer_ids=(1, 3, 6))]}, ["states: of layers [1, 3, 6], the drafter reads"]),
        ({"captured": [replace(CAPTURED, layer_ids=(1, 3))]}, ["states: of layers [1, 3]"]),
        ({"captured": [replace(CAPTURED, hidden_size=64)]}, ["states: 64 numbers a layer"]),
        ({"captured": [replace(CAPTURED, final_state=False)], "labels": "kl"}, ["states: without the final state"]),
        ({"captured": [CAPTURED, replace(CAPTURED, revision="def")]}, ["states: of several targets"]),
        ({"config": {"dflash_config": {}}}, ["export: config.json cannot be read"]),
    ],
    ids=str,
)
def test_each_difference_is_a_line_of_its_own(target_dir: Path, changed: dict[str, Any], said: list[str]) -> None:
    found = problems(target_dir, **changed)
    assert len(found) == len(said), found
    for line, words in zip(found, said, strict=True):
        assert words in line
        assert "\n" not in line


def test_labels_that_need_no_teacher_need_no_norm(target_dir: Path) -> None:
    assert problems(target_dir, target={"has_rms_norm": False}, labels="sampled") == []


def test_all_of_them_are_said_at_once(target_dir: Path) -> None:
    found = problems(target_dir, config={"is_neox_style": False, "block_size": 8}, target={"longest": 1024})
    with pytest.raises(UserError) as caught:
        require(found)
    first, *lines = str(caught.value).splitlines()
    assert first.startswith("training: 3 things differ")
    assert [line.strip() for line in lines] == found


@pytest.mark.parametrize(
    ("kind", "rope", "theta", "longest"),
    [
        ("qwen3", YARN, 10_000.0, 512),
        ("llama", LLAMA3, 500_000.0, 512),
        ("qwen3", {"rope_type": "linear", "factor": 4.0, "rope_theta": 10_000.0}, 10_000.0, 2048),
        ("qwen3", {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e6}, 1e6, 1024),
        ("gdn", {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25}, 1e7, 512),
    ],
)
def test_a_scaled_target_leaves_the_drafters_own_rope_alone(
    tmp_path: Path, kind: str, rope: dict[str, Any], theta: float, longest: int
) -> None:
    """The drafter turns whole heads by default RoPE as far as its target goes, and its export says so."""
    tiny_config(kind, rope_parameters=rope).save_pretrained(tmp_path)
    shape = shape_of(tmp_path)
    assert (shape.rope_theta, shape.max_position_embeddings) == (theta, longest)
    config = to_zlab_config(shape, "float32")
    assert config["rope_parameters"] == {"rope_theta": theta, "rope_type": "default"}
    assert problems(tmp_path) == []


@pytest.mark.parametrize("kind", ["qwen3", "llama", "gdn"])
def test_how_far_a_target_goes_is_how_far_vllm_lets_it_go(kind: str, tmp_path: Path) -> None:
    from vllm.config.model import _get_and_verify_max_len
    from vllm.transformers_utils.model_arch_config_convertor import ModelArchConfigConvertorBase

    ropes: list[dict[str, Any]] = [YARN, LLAMA3, {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4}]
    for rope in [*ropes, {"rope_type": "default", "rope_theta": 1e4}]:
        config = tiny_config(kind, rope_parameters=rope)
        described = ModelArchConfigConvertorBase(config, config).convert()
        theirs = _get_and_verify_max_len(config, described, None, None, False, None)
        assert longest_positions(config) == theirs, rope


def test_norms_are_taken_as_transformers_classes_have_them() -> None:
    from transformers import AutoConfig

    for kind in ("qwen3", "qwen3_5_text", "qwen3_next", "llama", "mistral", "gemma", "gemma2", "gemma3_text"):
        own, taken = norm_of_class(AutoConfig.for_model(kind))
        assert own == taken, kind
        assert own == (kind.startswith("gemma") or kind in ("qwen3_5_text", "qwen3_next")), kind


def test_an_items_files_are_read(tmp_path: Path) -> None:
    item = make_item(tmp_path)
    assert contract_of_item(item, max_model_len=512) == []
    (captured,) = read_captured([shard.path for shard in item.shards])
    assert (captured.layer_ids, captured.final_state, captured.hidden_size) == (LAYERS, True, 32)
    facts = read_target_facts(item.target_dir, classes=True)
    assert (facts.embedding_rows, facts.head_rows, facts.norm_adds_one) == (97, 97, False)
    assert facts.reserved_ids == {0, 1, 2}
    shape = replace(shape_of(Path(item.target_dir)), mask_token_id=2, rope_theta=5.0)
    said = contract_of_item(item, shape, used_token_ids={2}, max_model_len=600)
    assert [line.partition(":")[0] for line in said] == ["mask token", "mask token", "max positions"]
    (line,) = contract_of_item(msgspec.structs.replace(item, layer_ids=(1, 3, 9)))
    assert line.startswith("extraction.layers is [1, 3, 9]")


def test_final_states_of_another_layer_are_found() -> None:
    assert check_final_state(95, 100) == check_final_state(0, 63) == check_final_state(0, 0) == []
    (line,) = check_final_state(61, 100)
    assert "gives 61% of 100 greedily sampled tokens" in line
