"""What is said before training: sizes, labels, warnings, and which drafter of the build is the nearest."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corpus import identity
from corpus.errors import UserError
from corpus.manifest import Manifest
from corpus.manifest_file import parse_manifest
from corpus.workspace import Workspace
from tests.training.test_plans import tokenizer_folder
from training.begun import all_begun, asked_of, differences, nearest, write_begun
from training.mask_token import mask_sentences, mask_told
from training.messages import TrainRow
from training.outlook import labels_of_auto, others_sentence, outlook, standing, warnings
from training.pack import all_packs
from training.plan import TrainingPlan
from training.progress import Progress

BODY: dict[str, Any] = {
    "name": "m",
    "mix": {"total": 10, "shares": {"coding": 1}},
    "sources": [{"name": "coding", "path": "c", "category": "coding"}],
    "target": {"model": "m"},
}


def manifest(**training: Any) -> Manifest:
    return parse_manifest(json.dumps({**BODY, "training": training}), "m.yaml")


def plan(
    asked: Manifest, rows: int = 6, capture: str = "cap", seed: int = 0, init: str = "", held_out: int = 2
) -> TrainingPlan:
    """Row i has 10 + i tokens, 4 + i of them answer; every third was sampled."""
    training = asked.training.model_dump(mode="json") | {"seed": seed, "init": init or None}
    own = tuple(TrainRow(i, f"r{i}", "coding", "s", i % 3 != 0, i >= rows) for i in range(rows + held_out))
    drafter = identity.drafter_id("build", [f"r{i}" for i in range(rows)], capture, training)
    lengths = tuple(10 + i for i in range(rows)), tuple(4 + i for i in range(rows))
    return TrainingPlan(drafter, "build", capture, (1,), seed, {"a": own}, 0, (), "", init, *lengths)


def test_steps_are_those_of_the_loop() -> None:
    asked = manifest(epochs=3, gradient_accumulation=2, checkpoint_every=5)
    ahead = outlook(asked.training, len(all_packs(plan(asked).tokens, 10, epochs=3, seed=0)))
    assert (ahead.packs, ahead.steps) == (18, 9)
    assert ahead.sentence() == "9 steps: 3 epochs of 6 packs, 2 packs a step, a checkpoint every 5"
    one = outlook(manifest(epochs=1).training, 1)
    assert one.sentence().startswith("1 step: 1 epoch of 1 pack, 1 pack a step")


def test_where_a_drafter_stands() -> None:
    assert standing(Progress(0, "f"), 9).startswith("a new drafter")
    assert standing(Progress(4, "f", best_step=2, best_tau=2.5), 9) == "resumes at step 4 of 9, best τ 2.50 at step 2"


def test_what_auto_labels_came_to() -> None:
    assert labels_of_auto(plan(manifest()), manifest()) == "teacher for 4 greedy rows, sampled for 2 rows"
    blind = parse_manifest(json.dumps({**BODY, "extraction": {"final_state": False}}), "m.yaml")
    assert labels_of_auto(plan(blind), blind) == "sampled for 6 rows"


def warned(asked: Manifest, tokens: int = 64, gpus: int = 0, **changes: Any) -> str:
    return "\n".join(warnings(plan(asked, **changes), asked, tokens, gpus))


def test_warnings_name_the_key_and_the_value() -> None:
    fine = manifest(block_size=4)
    assert warned(fine) == ""
    assert "2 rows of 6 are longer than training.tokens_per_batch (13), up to 15 tokens" in warned(fine, tokens=13)
    assert "the longest answer has 9 tokens" in warned(manifest(block_size=10))
    assert warned(manifest(block_size=9)) == ""
    assert "nothing is measured: the last checkpoint is exported" in warned(fine, held_out=0)
    assert "one device of 4 trains. feed: live takes all" in warned(fine, gpus=4)
    assert "training.live is not used" in warned(manifest(block_size=4, live={"average_every": 9}))
    assert warned(manifest(block_size=4, feed="live", live={"average_every": 9}), gpus=4) == ""


EDITS = st.fixed_dictionaries(
    {},
    optional={
        "learning_rate": st.sampled_from([6e-4, 1e-3]),
        "epochs": st.sampled_from([6, 2]),
        "checkpoint_every": st.sampled_from([200, 7]),
        "activation_checkpointing": st.sampled_from(["auto", True]),
        "loss_weights": st.sampled_from(["decay", "d_pace"]),
        "d_pace_alpha": st.sampled_from([0.5, 0.25]),
        "feed": st.sampled_from(["shards", "live"]),
        "live": st.sampled_from([{}, {"average_every": 9}, {"queue_gb": 1.0}]),
        "mask_token_id": st.sampled_from(["auto", 5]),
        "tokens_per_batch": st.sampled_from(["auto", 64]),
        "gradient_accumulation": st.sampled_from([1, 2]),
        "seed": st.sampled_from([0, 1]),
    },
)


@given(one=EDITS, other=EDITS, rows=st.integers(1, 2), states=st.sampled_from(["cap", "other"]))
def test_drafters_differ_in_something_exactly_if_their_identities_do(
    one: dict[str, Any], other: dict[str, Any], rows: int, states: str
) -> None:
    before, after = manifest(**one), manifest(**other)
    first = plan(before, 2, seed=one.get("seed", 0))
    second = plan(after, rows, states, seed=other.get("seed", 0))
    names = differences(asked_of(first, before), asked_of(second, after))
    assert bool(names) == (first.drafter_id != second.drafter_id), names


def test_the_nearest_drafter_of_the_build_is_told_with_what_differs(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    here = manifest()
    assert others_sentence(plan(here), here, all_begun(workspace)) is None
    for other in (manifest(learning_rate=1e-3, epochs=2), manifest(learning_rate=1e-3)):
        write_begun(workspace, plan(other), other, 9)
    write_begun(workspace, plan(here), here, 9)
    (tmp_path / "drafters" / "foreign").mkdir()
    (tmp_path / "drafters" / "foreign" / "drafter.json").write_text('{"build_id": null}')
    known = all_begun(workspace)
    assert len(known) == 3
    said = others_sentence(plan(here), here, known)
    near = plan(manifest(learning_rate=1e-3)).drafter_id[:12]
    assert said == (
        f"the build has 2 other drafters, the nearest, {near} (at step 0 of 9), which differs in learning_rate"
    )
    fewer = others_sentence(plan(here, rows=4), here, known)
    assert fewer is not None
    assert fewer.endswith("differs in rows (6 and 4)")
    assert nearest(asked_of(plan(here), here), []) is None


def test_what_auto_came_to_in_an_older_folder_is_no_difference(tmp_path: Path) -> None:
    here = manifest(epochs=2)
    folder = tmp_path / "drafters" / "old"
    folder.mkdir(parents=True)
    training = manifest().training.model_dump(mode="json")
    training |= {
        "seed": 0,
        "tokens_per_batch": 1024,
        "mask_token_id": 7,
        "best_step": 3,
        "activation_checkpointing": False,
    }
    body = {"build_id": "build", "capture_id": "cap", "training": training, "rows": 6, "steps": 9}
    (folder / "drafter.json").write_text(json.dumps(body))
    (old,) = all_begun(Workspace(tmp_path))
    assert differences(old.asked, asked_of(plan(here), here)) == ["epochs"]


def test_a_mask_that_text_is_made_of_is_warned_of(tmp_path: Path) -> None:
    folder = tokenizer_folder(tmp_path, [(20, "<pad>", True), (22, "<think>", False), (23, "<file>", True)])
    assert len(mask_told(folder, 23)) == 1
    assert len(mask_told(folder, 29)) == 1  # behind the tokenizer
    _, said = mask_told(folder, 22)
    assert '22 ("<think>"), which the tokenizer has as ordinary text' in said
    assert len(mask_sentences(folder, 5, 30)) == 2
    assert mask_sentences(folder, "auto", 30)[0].startswith("mask token: chosen when training starts")
    bare = tokenizer_folder(tmp_path, [(20, "<pad>", True), (21, "<eos>", True)])
    assert mask_sentences(bare, "auto", 22)[0].startswith("warning: the target has no special token")


def test_more_sliding_layers_than_layers_are_a_manifests_mistake() -> None:
    with pytest.raises(UserError, match=r"training.*sliding_layers is 3.*the drafter has 1 layer"):
        manifest(draft_layers=1, sliding_layers=3)
