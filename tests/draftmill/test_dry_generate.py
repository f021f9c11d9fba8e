"""A dry run of generate, or of the chain, places engines as the run would: same lines and refusals, nothing written."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from corpus.ledger.query import query
from draftmill import generating
from draftmill.app import run_app
from generation.engine_settings import vllm_names
from generation.run import GenerationRun
from tests.fleet.fake_nvml import FakeNvml, pcie_machine

World = Any  # tests/conftest.py makes it


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    """Four PCIe cards of 96 GB."""
    return pcie_machine(monkeypatch, 4)


def dry(world: World, path: Path, *options: str, command: str = "generate") -> int:
    return run_app([command, str(path), "-w", str(world.workspace.root), "--dry-run", *options])


def manifest(world: World, engine: dict[str, Any] | None = None, config: dict[str, Any] | None = None) -> Path:
    folder = world.tiny_model()
    body = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(body | (config or {})))
    path: Path = world.write(engine=engine or {})
    return path


def files(world: World) -> set[str]:
    return {str(path) for path in world.workspace.root.rglob("*") if path.is_file() and "cache" not in path.parts}


@pytest.mark.parametrize("command", ["generate", "run"])
def test_engines_and_what_fits_are_printed_and_nothing_is_entered(
    gpus: FakeNvml, world: World, capsys: Any, command: str
) -> None:
    assert dry(world, manifest(world), command=command) == 0
    said = capsys.readouterr().out
    assert "22 answers wanted: 0 accepted, 0 rejected, 22 to make" in said
    assert "4 engines on cuda:0 to cuda:3" in said
    assert "4 GPUs, PCIe only" in said
    assert "sequences at once" in said
    assert all(len(line) <= 80 for line in said.splitlines())
    assert not [name for name in files(world) if "/builds/" in name or "/runs/" in name or "ledger" in name]


@pytest.mark.parametrize(
    ("engine", "options", "said"),
    [
        ({}, ("--devices", "cuda:9"), "cuda:9"),
        ({"extra": {"tensor_parallel_size": 2}}, (), "--force-tensor-parallel"),
        ({"extra": {"tensor_parallel_size": 3}}, (), "does not divide the target's heads"),
        ({"extra": {"pipeline_parallel_size": 2}}, (), "one engine a GPU itself"),
        ({"extra": {"data_parallel_size": 2}}, (), "one engine a GPU itself"),
        ({"extra": {"max_model_len": 100}}, (), "engine.extra.max_model_len is set by target.max_model_len"),
        ({"max_num_batched_tokens": 8, "max_num_seqs": 16}, (), "engine.max_num_batched_tokens is 8, less than"),
        ({"max_num_batched_tokens": 8}, (), "engine.max_num_seqs, 256 (auto)"),
    ],
)
def test_what_the_run_would_refuse_is_refused(
    gpus: FakeNvml, world: World, capsys: Any, engine: dict[str, Any], options: tuple[str, ...], said: str
) -> None:
    command = "run" if options else "generate"
    assert dry(world, manifest(world, engine), *options, command=command) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


@pytest.mark.skipif(vllm_names().arguments is None, reason="vLLM is not installed")
def test_names_that_this_vllm_does_not_know_are_refused(world: World, capsys: Any) -> None:
    engine = {"kv_cache_dtype": "fp99", "extra": {"enable_prefix_cachin": False}}
    assert dry(world, manifest(world, engine), "--devices", "1") == 2
    error = capsys.readouterr().err
    assert "engine.kv_cache_dtype is 'fp99'" in error
    assert "enable_prefix_cachin is no argument of this vLLM's engine (did you mean enable_prefix_caching?)" in error


def test_a_context_beyond_the_targets_positions_is_refused(world: World, capsys: Any) -> None:
    path = manifest(world, config={"max_position_embeddings": 256})
    assert dry(world, path, "--devices", "1") == 2
    assert "target.max_model_len is 512; the target has 256 positions" in capsys.readouterr().err


def test_the_run_itself_refuses_before_a_worker_starts(world: World, capsys: Any) -> None:
    path = manifest(world, {"extra": {"dtype": "float16"}})
    assert run_app(["generate", str(path), "-w", str(world.workspace.root), "--devices", "1"]) == 2
    assert "engine.extra.dtype is set by target.dtype" in capsys.readouterr().err
    assert not list(world.workspace.root.glob("runs/*/workers"))


@pytest.mark.skipif(vllm_names().arguments is None, reason="vLLM is not installed")
def test_the_run_with_vllm_itself_refuses_an_unknown_argument_before_a_worker_starts(world: World, capsys: Any) -> None:
    path = manifest(world, {"extra": {"nonsense_key": 1}})
    assert run_app(["generate", str(path), "-w", str(world.workspace.root), "--devices", "1"]) == 2
    assert "engine.extra.nonsense_key is no argument of this vLLM's engine" in capsys.readouterr().err
    assert not list(world.workspace.root.glob("runs/*/workers"))


def thinking(world: World, share: float, **generation: Any) -> Path:
    path: Path = world.write(generation={"max_tokens": 64, "thinking": {"share": share}, **generation})
    return path


def test_a_template_that_cannot_think_is_warned_of(world: World, capsys: Any) -> None:
    world.tiny_model()
    assert dry(world, thinking(world, 0.5), "--devices", "1") == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "warning: thinking is asked for (generation.thinking.share)" in said
    assert "target.chat_template" in said
    assert dry(world, thinking(world, 0.0), "--devices", "1") == 0
    assert "warning" not in capsys.readouterr().out
    template = world.root / "model" / "chat_template.jinja"
    template.write_text(template.read_text() + "{% if enable_thinking %} system{% endif %}")
    assert dry(world, thinking(world, 0.5), "--devices", "1") == 0
    assert "warning" not in capsys.readouterr().out


def test_the_run_warns_at_its_start_and_records_it(world: World, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generating, "GenerationRun", partial(GenerationRun, factory="generation.fake:create"))
    world.tiny_model()
    path = thinking(world, 0.0, by_category={"coding": {"thinking_share": 1.0}})
    assert run_app(["generate", str(path), "-w", str(world.workspace.root), "--devices", "1"]) == 0
    said = " ".join(capsys.readouterr().err.split())
    assert said.index("warning: thinking is asked for") < said.index("accepted,")
    told = query(world.workspace, "SELECT message FROM events WHERE kind = 'warning'")["message"].to_list()
    assert any(one.startswith("thinking is asked for") for one in told)
