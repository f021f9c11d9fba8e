"""`draftmill plan` on a config.json or a figure that nobody has checked: a line says so, and lines stay lines."""

from __future__ import annotations

import json
from typing import Any

import pytest

from draftmill.app import run_app
from draftmill.cost_lines import number, sized

World = Any
LLAMA = {
    "model_type": "llama", "num_hidden_layers": 8, "hidden_size": 64, "num_attention_heads": 4,
    "intermediate_size": 64, "vocab_size": 107,
}  # fmt: skip
ODD: dict[str, Any] = {
    "a bool": LLAMA | {"hidden_size": True},
    "a string": LLAMA | {"hidden_size": "64"},
    "a fraction": LLAMA | {"hidden_size": 64.5},
    "nothing": LLAMA | {"hidden_size": 0},
    "no heads": LLAMA | {"num_attention_heads": 0},
    "null": LLAMA | {"vocab_size": None},
    "left out": {key: value for key, value in LLAMA.items() if key != "vocab_size"},
    "huge": LLAMA | {"hidden_size": 10**30},
    "not a number": json.dumps(LLAMA).replace('"hidden_size": 64', '"hidden_size": NaN'),
    "infinite": json.dumps(LLAMA).replace('"hidden_size": 64', '"hidden_size": 1e999'),
    "odd quantisation": LLAMA | {"quantization_config": "x"},
    "odd layer types": LLAMA | {"layer_types": "x"},
    "odd type": LLAMA | {"model_type": ["a"]},
    "unknown type": {"model_type": "\x1b[31m", "text_config": LLAMA},
    "deep": "[" * 20_000,
    "a list": [],
}


def planned(world: World, config: Any, capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, str, str]:
    manifest = world.root / "odd.yaml"
    manifest.write_text(json.dumps(world.body()))
    if not (world.root / "model").is_dir():
        world.tiny_model()
    (world.root / "model" / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    capsys.readouterr()
    code = run_app(["plan", str(manifest), "-w", str(world.root / "none"), *options])
    return code, *capsys.readouterr()


@pytest.mark.parametrize("name", ODD)
def test_an_odd_config_is_said_in_a_line_and_the_rest_is_planned(
    name: str, world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = planned(world, ODD[name], capsys)
    assert (code, err) == (0, "")
    assert "hours and states are unknown: " in out
    assert "rows to make" in out
    assert max(map(len, out.splitlines())) <= 80
    assert "\x1b" not in out


def test_a_size_that_is_none_is_named(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    out = " ".join(planned(world, LLAMA | {"hidden_size": "64"}, capsys)[1].split())
    assert "hidden_size is '64'; a whole number from 1 is expected" in out
    out = " ".join(planned(world, ODD["left out"], capsys)[1].split())
    assert "vocab_size is missing; a whole number" in out


@pytest.mark.parametrize("price", ["inf", "nan", "-1", "1e308", "1000001"])
def test_a_price_is_one_that_somebody_may_pay(price: str, world: World, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = planned(world, LLAMA, capsys, "--price", price)
    assert (code, out) == (2, "")


def test_large_figures_stay_within_the_line(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = planned(world, LLAMA, capsys, "--price", "1000000", "--gpus", "1000000000000")
    assert code == 0
    assert max(map(len, out.splitlines())) <= 80


def test_what_is_no_number_is_a_dash() -> None:
    assert {number(value) for value in (float("nan"), float("inf"))} == {"-"}
    assert {sized(value) for value in (float("nan"), float("inf"))} == {"-"}
