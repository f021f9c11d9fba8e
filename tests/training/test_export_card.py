"""What a drafter's card states for sure: its licence, its base model, and how answers were sampled."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import ModelCard

from corpus.errors import UserError
from corpus.manifest import Target
from corpus.target import ResolvedTarget
from training.card import (
    CardFacts,
    Init,
    Source,
    Trained,
    card_text,
    is_on_hub,
    sampling_lines,
    target_license,
    target_name,
    training_lines,
)
from training.messages import AcceptanceRow, TrainRow
from training.plan import TrainingPlan
from training.record import acceptance_rows
from training.shape import DrafterShape, to_zlab_config

SHAPE = DrafterShape(64, 96, 4, 2, 16, 97, 1e-6, 1e4, 512, 0.02, 2, 2, 2048, 16, 90, 8, (1, 3, 5))


def facts(target_license: str | None, *licenses: str | None, on_hub: bool = True) -> CardFacts:
    sources = tuple(Source(f"s{i}", "org/data train", "abc", name, 9) for i, name in enumerate(licenses))
    return CardFacts("org/target", on_hub, "rev", target_license, "d", "b", "mix", (("math", 1.0),), (), (), sources)


@pytest.mark.parametrize(
    ("target_license", "licenses", "stated"),
    [
        ("apache-2.0", ("apache-2.0", "Apache-2.0"), "apache-2.0"),
        ("apache-2.0", ("mit",), "other"),
        ("my-own", ("my-own",), "other"),
        ("apache-2.0", ("apache-2.0", None), None),
        (None, ("mit",), None),
        ("mit", (), "mit"),
    ],
)
def test_a_licence_is_stated_where_all_of_them_are_known(
    target_license: str | None, licenses: tuple[str | None, ...], stated: str | None
) -> None:
    own = facts(target_license, *licenses)
    assert own.license == stated
    data = ModelCard(card_text(to_zlab_config(SHAPE, "bfloat16"), own, [])).data.to_dict()
    assert data.get("license") == stated
    assert (data.get("license_name") == "by-source") == (stated == "other")


def test_the_header_is_the_hubs_own() -> None:
    text = card_text(to_zlab_config(SHAPE, "bfloat16"), facts("mit", "mit"), [], "me/drafter")
    data = ModelCard(text).data.to_dict()
    assert (data["base_model"], data["datasets"], data["library_name"]) == ("org/target", ["org/data"], "transformers")
    assert "Not measured." in text
    assert "--speculative-draft-model-path me/drafter" in text
    assert "--speculative-num-draft-tokens 16" in text
    assert '"num_speculative_tokens": 15' in text
    assert "the first 2 sliding by 2048" in text
    local = card_text(to_zlab_config(SHAPE, "bfloat16"), facts("mit", "mit", on_hub=False), [])
    assert "base_model" not in ModelCard(local).data.to_dict()
    with pytest.raises(UserError, match="not a DFlash drafter's config"):
        card_text({"model_type": "qwen3"}, facts(None), [])


@pytest.mark.parametrize(
    ("model", "folder", "on_hub", "name"),
    [
        ("Qwen/Qwen3-8B", "/cache/models--Qwen--Qwen3-8B/snapshots/abc", True, "Qwen/Qwen3-8B"),
        ("models/mine", "/home/me/models/mine", False, "mine"),
        ("/home/me/mine", "/home/me/mine", False, "mine"),
        ("../mine", "/home/me/x/../mine", False, "mine"),
        ("package:llm/x.gguf", "/cache/gguf/x", False, "package:llm/x.gguf"),
        ("/home/me/x.gguf", "/cache/gguf/x", False, "x.gguf"),
    ],
)
def test_a_target_is_named_as_others_know_it(model: str, folder: str, on_hub: bool, name: str) -> None:
    target = ResolvedTarget(Target(model=model, max_model_len=512), "rev", Path(folder), "t", "h")
    assert (is_on_hub(target), target_name(target)) == (on_hub, name)


@pytest.mark.parametrize(
    ("text", "found"),
    [("---\nlicense: mit\n---\n", "mit"), ("# No header", None), ("---\nlicense: [\n---\n", None), (None, None)],
)
def test_the_targets_licence_is_read_from_its_card(tmp_path: Path, text: str | None, found: str | None) -> None:
    if text is not None:
        (tmp_path / "README.md").write_text(text)
    assert target_license(tmp_path) == found


def test_sampling_is_said_as_the_manifest_has_it(world: Any) -> None:
    generation = {
        "thinking": {"share": 0.25, "on": {"temperature": 0.6}, "off": {"temperature": 0.0}},
        "by_category": {"general": {"max_tokens": 32, "temperature": 0.9}},
    }
    lines = dict(sampling_lines(world.manifest(generation=generation)))
    assert lines["sampling, thinking on"].startswith("25% of prompts: temperature 0.6")
    assert lines["sampling, thinking off"].startswith("75% of prompts: temperature 0.0")
    assert lines["sampling of general"] == "max_tokens 32, temperature 0.9"
    assert lines["most tokens of an answer"] == "4,096 (keep what is cut)"
    greedy = dict(sampling_lines(world.manifest(generation={"thinking": {"share": 0.0}})))
    assert "sampling, thinking on" not in greedy


def card(**changes: Any) -> str:
    return card_text(to_zlab_config(SHAPE, "bfloat16"), replace(facts("mit", "mit"), **changes), [])


def test_the_drafter_that_it_started_from_is_named_and_its_licence_counts() -> None:
    init = Init("org/drafter", "c0ffee", "apache-2.0")
    text = card(init=init)
    assert "| started from | `org/drafter` at `c0ffee`, licence: apache-2.0 |" in text
    assert ModelCard(text).data.to_dict()["license"] == "other"
    unknown = card(init=replace(init, license=None))
    assert "license" not in ModelCard(unknown).data.to_dict()


def test_datasets_are_those_of_the_hub_alone() -> None:
    there = Source("a", "org/data train", "abc", "mit", 9)
    local = Source("b", "chats/agent.jsonl train", "abc", "mit", 9, on_hub=False)
    spelled = Source("c", "hf://datasets/org/more@main/x.jsonl train", "abc", "mit", 9)
    header = ModelCard(card(sources=(there, local, spelled))).data.to_dict()
    assert header["datasets"] == ["org/data", "org/more"]
    assert "datasets" not in ModelCard(card(sources=(local,))).data.to_dict()


def test_a_local_target_is_served_from_a_folder_and_not_by_its_name() -> None:
    text = card(target="mine", on_hub=False)
    assert "# A DFlash drafter for mine, a model that is not on the Hub" in text
    assert "vllm serve TARGET_FOLDER" in text
    assert "vllm serve mine" not in text


def test_what_compares_with_serving_stands_first_and_few_rows_are_marked() -> None:
    names = ("anchors", "ddtree_8", "walk", "vllm")
    rows = [
        acceptance_rows("b", [AcceptanceRow(name, "coding", 10, 10, few, 0, 30, 30, 30)], "2026-01-01T00:00:00+00:00")
        for name, few in zip(names, (9, 9, 3, 9), strict=True)
    ]
    text = card_text(to_zlab_config(SHAPE, "bfloat16"), facts("mit", "mit"), [row for own in rows for row in own])
    order = ("served by vLLM", "sequential walk", "Measured in other ways", "tree of 8")
    places = [text.index(words) for words in order]
    assert places == sorted(places)
    (walk,) = [line for line in text.splitlines() if "sequential walk over" in line]
    assert "(few rows)" in walk
    assert text.count("(few rows)") == 1


def test_the_recipe_says_what_auto_came_to_and_which_checkpoint_it_is(world: Any) -> None:
    manifest = world.manifest(training={"weight_decay": 0.1, "gradient_accumulation": 2})
    own = tuple(TrainRow(i, f"r{i}", "coding", "s", i > 1, i == 8) for i in range(9))
    plan = TrainingPlan("d", "b", "cap", (1,), 3, {"a": own}, 0)
    lines = dict(training_lines(plan, manifest, Trained(360, 300, 1024)))
    assert lines["labels"] == "auto: teacher for 6 greedy rows, sampled for 2 rows"
    assert lines["steps, exported checkpoint"] == "360, step 300 (best walk on held-out rows)"
    assert lines["tokens a pack, packs a step"] == "1024, 2"
    assert lines["weight decay, gradient clip"] == "0.1, 1"
    assert dict(training_lines(plan, manifest))["tokens a pack, packs a step"] == "auto, 2"
