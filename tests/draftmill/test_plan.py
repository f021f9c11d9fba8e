"""`draftmill plan`: what a manifest will take, where each number comes from, and that nothing is written."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from corpus.ledger.query import LedgerReader, query
from corpus.manifest import Training
from corpus.manifest_file import load_manifest
from corpus.workspace import Workspace
from draftmill.amounts import Amount, total
from draftmill.answer_lengths import THOUGHT_TOKENS, Asked, expected_length
from draftmill.app import run_app
from draftmill.cost_lines import _ranged, cost_lines, duration, number, sized
from draftmill.costing import Captured, CategoryNeed, EngineFit, Measured, Stage, TargetFacts, plan_stages
from draftmill.hardware import GPUS, gpu_named, gpu_of_driver
from draftmill.lengths import PROMPT_TOKENS, RESPONSE_TOKENS, TURNS, read_lengths
from draftmill.planning import plan_costs
from draftmill.session import Session

World = Any
ROOT = Path(__file__).resolve().parents[2]
HYBRID = {
    "architectures": ["Qwen3_5ForCausalLM"], "model_type": "qwen3_5_text", "hidden_size": 5120, "num_hidden_layers": 64,
    "num_attention_heads": 24, "num_key_value_heads": 4, "head_dim": 256, "intermediate_size": 17408,
    "vocab_size": 248320, "full_attention_interval": 4, "linear_num_value_heads": 48, "linear_num_key_heads": 16,
    "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4, "rms_norm_eps": 1e-6,
    "max_position_embeddings": 262144, "rope_theta": 10000000, "tie_word_embeddings": False,
}  # fmt: skip
"""A 27B hybrid in the shape of Qwen3.6-27B."""
TARGET = TargetFacts(27_000_000_000, 54_000_000_000, 61_445, 2_000_000_000, 5120 * 248_320)
TRAINING = Training()


def need(name: str = "coding", **changes: Any) -> CategoryNeed:
    values: dict[str, Any] = {"prompts": 1000, "held_out": 20, "turns": TURNS, "prompt_tokens": PROMPT_TOKENS,
                              "response_tokens": RESPONSE_TOKENS}  # fmt: skip
    return CategoryNeed(name, **(values | changes))


def by_name(stages: tuple[Stage, ...]) -> dict[str, Stage]:
    return {stage.name: stage for stage in stages}


def stages_of(*needs: CategoryNeed, training: Training = TRAINING, measured: Measured | None = None, captured: int = 0,
              target: TargetFacts | None = TARGET) -> dict[str, Stage]:  # fmt: skip
    engine = EngineFit(1, 256, 200_000_000)
    gpu = gpu_named("b200")
    return by_name(
        plan_stages(
            needs,
            target,
            training,
            gpu,
            engine,
            measured or Measured(),
            Captured(100, captured) if captured else Captured(),
        )
    )


def mission(folder: Path) -> Path:
    """The mission's manifest with a target whose files tell its size, as a Hub snapshot without weights does."""
    model = folder / "big"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(HYBRID))
    (model / "model.safetensors.index.json").write_text('{"metadata": {"total_size": 53800000000}, "weight_map": {}}')
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(ROOT / "tests" / "structured" / "target" / name, model / name)
    text = (ROOT / "manifests" / "dflash-qwen3.6-27b.yaml").read_text()
    assert "model: Qwen/Qwen3.6-27B" in text
    path = folder / "mission.yaml"
    path.write_text(text.replace("model: Qwen/Qwen3.6-27B", f"model: {model}"))
    return path


def test_the_missions_own_estimate_lies_in_the_range(tmp_path: Path) -> None:
    """13 hours on 7 B200, about 350 USD, were reckoned by hand for the answers."""
    path = mission(tmp_path)
    costs = plan_costs(Session(path, Workspace(tmp_path / "ws")), "b200", 7, None)
    answers = by_name(costs.stages)["responses"]
    assert answers.gpu_hours is not None
    assert answers.gpu_hours.low < 13 * 7 < answers.gpu_hours.high
    assert costs.price_usd is not None
    assert costs.price_usd[0] * answers.gpu_hours.low < 350 < costs.price_usd[1] * answers.gpu_hours.high
    assert by_name(costs.stages)["prompts"].rows.value == 918_000
    assert not (tmp_path / "ws").exists()
    assert all(len(line) <= 80 for line in cost_lines(costs))
    assert [one.gpu for one in costs.elsewhere] == list(GPUS)
    engines = {one.gpu.name: one.engine.gpus for one in costs.elsewhere if one.engine}
    assert engines["b200"] == 1
    assert engines["l40s"] > 1


def test_states_of_five_layers_and_the_final_one_are_61_440_bytes_a_token(tmp_path: Path) -> None:
    text = mission(tmp_path).read_text()
    shards = tmp_path / "shards.yaml"
    assert "feed: live" in text
    shards.write_text(text.replace("feed: live", "feed: shards"))
    hidden = by_name(plan_costs(Session(shards, Workspace(tmp_path / "ws")), "h200", None, None).stages)[
        "hidden states"
    ]
    assert hidden.disk_bytes is not None
    assert hidden.disk_bytes.value == pytest.approx(hidden.tokens.value * 61_440, rel=0.001)


def test_what_is_there_is_not_counted_again() -> None:
    fresh, half = stages_of(need()), stages_of(need(planned=1020, accepted=500), captured=100_000)
    assert half["responses"].rows.value == 520
    assert half["responses"].gpu_hours is not None
    assert fresh["responses"].gpu_hours is not None
    assert half["responses"].gpu_hours.value < fresh["responses"].gpu_hours.value
    assert half["hidden states"].tokens.value == fresh["hidden states"].tokens.value - 100_000
    done = stages_of(need(planned=1020, accepted=1020))
    assert done["responses"].rows.value == 0
    assert done["drafter"].rows.value == pytest.approx(1000)


def test_measured_rates_come_first() -> None:
    rate = Amount.of(1000.0, 900.0, 1100.0, "measured", "run x")
    measured = Measured(rate, rate, rate)
    stages = stages_of(need(), measured=measured)
    for name in ("responses", "hidden states", "drafter"):
        hours = stages[name].gpu_hours
        assert hours is not None
        assert ("measured", "run x") in hours.sources
        assert not any("published" in source for _, source in hours.sources)
    written = need().to_make.value * RESPONSE_TOKENS.value
    assert stages["responses"].gpu_hours is not None
    assert stages["responses"].gpu_hours.value == pytest.approx(written / 1000 / 3600)


def test_a_live_feed_stores_held_out_states_alone_and_computes_the_others_each_epoch() -> None:
    shards, live = stages_of(need()), stages_of(need(), training=Training(feed="live"))
    assert live["hidden states"].rows.value == pytest.approx(20)
    assert shards["hidden states"].rows.value == pytest.approx(1020)
    once, trained, fed = shards["hidden states"].gpu_hours, shards["drafter"].gpu_hours, live["drafter"].gpu_hours
    assert once is not None
    assert trained is not None
    assert fed is not None
    assert fed.value == pytest.approx(trained.value + 6 * once.value * 1000 / 1020)


def test_an_unknown_target_leaves_hours_unknown_and_says_why(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    path = world.write(target={"model": "no/such-model"})
    assert run_app(["plan", str(path), "-w", str(world.root / "none")]) == 0
    shown = capsys.readouterr().out
    assert "hours and states are unknown: " in shown.split("category")[0]
    assert "no/such-model" in shown.split("category")[0]
    assert max(map(len, shown.splitlines())) <= 80


def test_the_ledgers_own_lengths_and_rates_are_used(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    target = {"model": "org/double", "max_model_len": 512, "dtype": "float32"}
    world.tell(world.manifest(target=target))
    path = world.write(target=target)
    assert load_manifest(path).name == "small"
    assert run_app(["plan", str(path), "-w", str(world.workspace.root), "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert all(need["counted"] > 0 for need in plan["needs"])
    assert {sure for need in plan["needs"] for sure, _ in need["response_tokens"]["sources"]} == {"measured"}
    responses = next(stage for stage in plan["stages"] if stage["name"] == "responses")
    (accepted,) = query(world.workspace, "SELECT count(*) FROM accepted_responses").row(0)
    assert accepted > 0
    assert responses["rows"]["value"] == 22 - accepted
    assert any(f"has {accepted} accepted answers" in note for note in plan["notes"])
    # a training setting is no part of a build: its answers are still there
    trained = world.write("trained.yaml", target=target, training={"epochs": 2})
    assert run_app(["plan", str(trained), "-w", str(world.workspace.root), "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert next(stage for stage in again["stages"] if stage["name"] == "responses")["rows"]["value"] == 22 - accepted
    # another seed is another build: all of it is to be made, at the same measured lengths
    other = world.write("other.yaml", seed=4, target=target)
    assert run_app(["plan", str(other), "-w", str(world.workspace.root), "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert next(stage for stage in plan["stages"] if stage["name"] == "responses")["rows"]["value"] == 22


def test_hardware_is_found_by_name_or_refused(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu_named("RTX PRO 6000").name == "rtx-pro-6000"
    assert gpu_of_driver("NVIDIA H100 80GB HBM3").name == "h100"  # type: ignore[union-attr]
    assert gpu_of_driver("NVIDIA H100 PCIe").name == "h100-pcie"  # type: ignore[union-attr]
    assert gpu_of_driver("NVIDIA GeForce GT 1030") is None
    assert run_app(["plan", str(world.write()), "--hardware", "b300"]) == 2
    assert "Did you mean b200?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (918_000, "918,000"),
        (1_300_000, "1.3M"),
        (999_900, "1M"),
        (12.34, "12.3"),
        (0.001, "<0.01"),
        (0, "0"),
        (4.05e9, "4.05G"),
    ],
)
def test_numbers_are_short(value: float, text: str) -> None:
    assert number(value) == text


def test_sizes_are_decimal() -> None:
    assert [sized(n) for n in (0, 10, 2_000, 4.4e10, 1.88e13)] == ["0", "<1 kB", "2 kB", "44 GB", "18.8 TB"]


def test_times_are_those_of_a_person() -> None:
    assert [duration(h) for h in (0, 0.0001, 0.5, 13, 63.8)] == ["0", "<1 min", "30 min", "13 h", "63.8 h"]


def test_a_config_alone_is_enough_and_odd_ones_are_one_line(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = world.write(target={"model": "no/such-model"})
    config = tmp_path / "config.json"
    small = {**HYBRID, "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "hidden_size": 256, "head_dim": 64,
             "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 512, "vocab_size": 1000,
             "num_hidden_layers": 12}  # fmt: skip
    config.write_text(json.dumps(small))
    command = ["plan", str(path), "-w", str(world.root / "none"), "--hardware", "h200", "--config", str(config)]
    assert run_app([*command, "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert all(stage["gpu_hours"] for stage in plan["stages"] if stage["name"] != "prompts")
    odd: list[tuple[str, Any]] = [
        ("hidden_size", True), ("vocab_size", None), ("num_attention_heads", 0), ("num_hidden_layers", "x"),
        ("hidden_size", 10**30), ("model_type", ["x"]),
    ]  # fmt: skip
    for key, value in odd:
        config.write_text(json.dumps({**small, key: value}))
        assert run_app(command) == 0, key
        shown = capsys.readouterr()
        assert shown.err == ""
        assert max(map(len, shown.out.splitlines())) <= 80
        assert "hours and states are unknown" in shown.out, key
    config.write_text("[")
    assert run_app(command) == 2
    assert "no config.json can be read there" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--price", "inf"], "--price is inf"),
        (["--price", "1e308"], "USD an hour"),
        (["--devices", "cuda:0"], "there is no cuda:0"),
        (["--hardware", "h100", "--devices", "cpu:0"], "with --hardware say how many: --gpus N"),
    ],
)
def test_what_cannot_be_planned_is_one_line(
    world: World, capsys: pytest.CaptureFixture[str], options: list[str], said: str
) -> None:
    assert run_app(["plan", str(world.write()), *options]) == 2
    assert said in capsys.readouterr().err


def test_answers_of_others_and_cut_ones_are_no_measurement(world: World) -> None:
    """48 tokens that a small model was cut at say nothing of what a large one writes within 4,096."""
    target = {"model": "org/double", "max_model_len": 512, "dtype": "float32"}
    own = world.manifest(target=target, generation={"max_tokens": 6, "reject": []})
    world.tell(own)
    found = read_lengths(own, LedgerReader(world.workspace))
    assert {known.response_tokens.sure for known in found.values()} == {"measured"}
    longer = world.manifest(target=target, generation={"max_tokens": 400, "reject": []})
    for known in read_lengths(longer, LedgerReader(world.workspace)).values():
        assert known.response_tokens.sure == "assumed"
        assert known.response_tokens.high <= 400
    other = world.manifest(target=target | {"model": "org/another"}, generation={"max_tokens": 6, "reject": []})
    for known in read_lengths(other, LedgerReader(world.workspace)).values():
        assert (known.response_tokens.sure, known.counted) == ("assumed", 0)


def told(*rows: tuple[bool | None, str, str, int, bool, int]) -> pl.DataFrame:
    """Answers of coding as the ledger counts them: thinking, recipe, model, tokens, cut, how many."""
    schema = ["category", "thinking", "recipe_id", "model", "tokens", "cut", "answers"]
    return pl.DataFrame([("coding", *row) for row in rows], schema=schema, orient="row")


def asked(thinking: bool = False, most: int = 4096, recipe: str = "own") -> Asked:
    return Asked("coding", thinking, most, "m", frozenset([recipe]))


def test_answers_with_thinking_and_without_are_counted_apart() -> None:
    both = told((False, "plain", "m", 10, False, 40), (True, "thinks", "m", 900, False, 40))
    for thinking, recipe, mean in ((False, "plain", 10), (True, "thinks", 900)):
        length = expected_length(both, asked(thinking, recipe=recipe))
        assert length.tokens.value == pytest.approx(mean)
        assert (length.basis, length.counted) == ("measured", 40)
        other = expected_length(both, asked(thinking))
        assert other.tokens.value == pytest.approx(mean)
        assert (other.basis, other.counted) == ("category", 0)
        assert other.tokens.sure == "assumed"
        assert "under another recipe" in other.tokens.sources[0][1]


def test_a_thought_is_assumed_beside_plain_answers_and_cut_by_max_tokens() -> None:
    plain = told((False, "plain", "m", 10, False, 40))
    length = expected_length(plain, asked(True))
    assert length.tokens.value == pytest.approx(10 + THOUGHT_TOKENS.value)
    assert (length.basis, length.tokens.sure, length.tokens.high) == ("assumed", "assumed", 4096)
    short = expected_length(plain, asked(True, 150))
    assert (short.tokens.low, short.tokens.value, short.basis) == (150, 150, "max_tokens")
    nothing = expected_length(plain.clear(), asked(True, 9000))
    assert nothing.tokens.value == RESPONSE_TOKENS.value + THOUGHT_TOKENS.value
    assert nothing.tokens.high == RESPONSE_TOKENS.high + THOUGHT_TOKENS.high


def test_the_missions_thinking_half_is_in_its_lengths(tmp_path: Path) -> None:
    costs = plan_costs(Session(mission(tmp_path), Workspace(tmp_path / "ws")), "b200", 7, None)
    tokens = {need.name: need.response_tokens for need in costs.needs}
    assert tokens["coding"].value == (RESPONSE_TOKENS.value * 2 + THOUGHT_TOKENS.value) / 2
    assert tokens["coding"].high == (RESPONSE_TOKENS.high + 4096) / 2
    assert tokens["agent"].value == (RESPONSE_TOKENS.value + 2048) / 2
    assert all({THOUGHT_TOKENS.sources[0], RESPONSE_TOKENS.sources[0]} <= set(one.sources) for one in tokens.values())
    (answers,) = (line for line in cost_lines(costs) if line.startswith("responses") and " h (" in line)
    value, low, high = re.findall(r"([\d.,]+ h)\b", answers)
    page = (ROOT / "docs" / "hardware.md").read_text().replace("\n", " ")
    assert f"gives {value} there at its own assumptions, in a range from {low} to {high}" in page
    shown = " ".join(line.strip() for line in cost_lines(costs))
    assert f"resp. tok.: assumed, {RESPONSE_TOKENS.sources[0][1]}; {THOUGHT_TOKENS.sources[0][1]}" in shown


def test_lengths_are_measured_under_the_same_recipe_alone(world: World) -> None:
    target = {"model": "org/double", "max_model_len": 512, "dtype": "float32"}
    world.tell(world.manifest(target=target, generation={"max_tokens": 6, "reject": []}))
    thinking = world.manifest(target=target, generation={"max_tokens": 6, "reject": [], "thinking": {"share": 1}})
    for known in read_lengths(thinking, LedgerReader(world.workspace)).values():
        assert (known.response_tokens.sure, known.counted) == ("assumed", 0)
    colder = {"share": 0, "off": {"temperature": 0.1}}
    sampled = world.manifest(target=target, generation={"max_tokens": 6, "reject": [], "thinking": colder})
    for known in read_lengths(sampled, LedgerReader(world.workspace)).values():
        ((sure, said),) = known.response_tokens.sources
        assert (sure, "under another recipe" in said, known.counted) == ("assumed", True, 0)


def test_what_is_left_is_written_at_its_own_length() -> None:
    """Where the plain half is there and the thinking half is not, each answer to make is a long one."""
    mean, long = Amount.exact(100.0), Amount.exact(190.0)
    half = stages_of(need(planned=1000, accepted=500, response_tokens=mean, left_tokens=long))
    assert half["responses"].tokens.value == 500 * 190
    assert half["drafter"].tokens.value == pytest.approx(1000 * 1000 / 1020 * 350 * TRAINING.epochs)


@pytest.mark.parametrize(
    "generation",
    [
        {"max_tokens": 64, "thinking": {"share": 1}},
        {"max_tokens": 300, "thinking": {"share": 0.5}},
        {"max_tokens": 300, "thinking": {"share": 0}},
        {"max_tokens": 9000, "thinking": {"share": 1}},
    ],
)
def test_plan_and_diff_reckon_the_same(
    world: World, capsys: pytest.CaptureFixture[str], generation: dict[str, Any]
) -> None:
    world.tiny_model()
    target = {"model": "model", "max_model_len": 512, "dtype": "float32"}
    cut = {"max_tokens": 6, "reject": []}
    session = Session(world.write(target=target, generation=cut), world.workspace)
    world.target = lambda: session.target
    world.tell(session.manifest)
    longer = target | {"max_model_len": 16_384}
    new = world.write("new.yaml", target=longer, generation={"reject": [], **generation})
    workspace = ["-w", str(world.workspace.root)]
    assert run_app(["plan", str(new), "--json", *workspace]) == 0
    planned = next(one for one in json.loads(capsys.readouterr().out)["stages"] if one["name"] == "responses")
    assert run_app(["diff", str(world.root / "mix.yaml"), str(new), "--format", "json", *workspace]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert sum(row["to_generate"] for row in rows) == planned["rows"]["value"] == 22
    assert sum(row["expected_tokens"] for row in rows) == pytest.approx(planned["tokens"]["value"], abs=len(rows))
    assert not any(row["tokens_basis"] == "measured" for row in rows)


def test_every_source_line_names_the_column_that_it_is_for(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    target = {"model": "org/double", "max_model_len": 512, "dtype": "float32"}
    world.tell(world.manifest(target=target, generation={"max_tokens": 6, "reject": []}))
    path = world.write(target=target, generation={"max_tokens": 400, "reject": []})
    assert run_app(["plan", str(path), "-w", str(world.workspace.root)]) == 0
    shown = capsys.readouterr().out
    legend, sources = shown.split("where each number comes from, by column\n")
    assert "unmarked: exact or measured; ~ arithmetic" in legend.splitlines()[-1]
    told_of = [line.split(":")[0].strip() for line in sources.splitlines() if line[2] != " " and ": " in line]
    assert told_of[:5] == ["prompts, held out", "answers", "prompt tok.", "resp. tok.", "rows, tokens"]
    assert {"disk of prompts", "disk of responses"} <= set(told_of)
    assert any("-hours" in what for what in told_of)
    assert sources.count("cut") == 1
    assert not any(said in shown for said in ("?0 ", "~0 ", "0–<", "0 s"))
    assert max(map(len, shown.splitlines())) <= 80


def test_nothing_is_marked_on_nothing(world: World) -> None:
    none = total([Amount.of(0.0, 0.0, 0.0, "assumed", "a guess")])
    little = Amount.of(0.001, 0.0, 0.002, "assumed", "a guess")
    assert [_ranged(none, text) for text in (number, sized, duration)] == ["0", "0", "0"]
    assert _ranged(little, number) == "?<0.01"
    assert _ranged(little, duration) == "?<1 min"
    assert _ranged(Amount.of(5.0, 2.0, 9.0, "assumed", "a guess"), number) == "?5 (2–9)"


def test_prices_can_be_looked_up() -> None:
    for gpu in GPUS:
        assert bool(gpu.price_usd) == bool(gpu.price_source) == gpu.price_url.startswith("https://")
    page = (ROOT / "docs" / "hardware.md").read_text()
    assert all(f"[{gpu.price_source}]({gpu.price_url})" in page for gpu in GPUS if gpu.price_usd)
    assert page.count("without a public address") == sum(not gpu.source_url for gpu in GPUS)
