"""doctor: devices, links and what fits, said in one screen; nothing heavy imported, nothing changed."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from draftmill import doctor
from draftmill.app import run_app
from draftmill.doctor import Check, examine
from tests.conftest import SMOLLM2
from tests.fleet.fake_nvml import Card, FakeNvml, cards, pcie_machine
from tests.generation.test_fit import LLAMA_8B, QWEN_27B

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    """Eight PCIe cards of 96 GB, as this machine's."""
    return pcie_machine(monkeypatch, 8)


def write(folder: Path, config: dict[str, Any] | None, gigabytes: float = 0.0, **engine: Any) -> Path:
    """A manifest beside a target that has this config and weights of this size, as its index promises them."""
    model = folder / "model"
    model.mkdir()
    (model / "tokenizer.json").write_text("{}")
    (model / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ messages }}"}))
    if config is not None:
        (model / "config.json").write_text(json.dumps(config))
    if gigabytes:
        save_file({"norm": np.zeros(4, np.float16)}, model / "model.safetensors")
        (model / "model.safetensors").write_bytes(_header(int(gigabytes * 1e9)))
    path = folder / "mix.yaml"
    body = {
        "name": "small",
        "seed": 1,
        "mix": {"total": 4, "shares": {"coding": 1}},
        "sources": [{"name": "code", "path": "code.jsonl", "category": "coding"}],
        "target": {"model": "model", "max_model_len": 8192},
        "engine": engine,
    }
    path.write_text(json.dumps(body))
    return path


def _header(size_bytes: int) -> bytes:
    """A safetensors header of one tensor of so many bytes, without the tensor."""
    entry = {"w": {"dtype": "BF16", "shape": [size_bytes // 2], "data_offsets": [0, size_bytes]}}
    text = json.dumps(entry).encode()
    return len(text).to_bytes(8, "little") + text


def found(checks: list[Check]) -> dict[str, tuple[str, str]]:
    """Mark and text by name; lines that go on belong to the finding before."""
    joined: dict[str, tuple[str, str]] = {}
    name = ""
    for check in checks:
        name = check.what or name
        mark, text = joined.get(name, (check.mark, ""))
        joined[name] = (mark, f"{text}\n{check.found}".strip())
    return joined


def test_eight_cards_and_their_links_on_one_screen(gpus: FakeNvml, tmp_path: Path, capsys: Any) -> None:
    run_app(["doctor", "-w", str(tmp_path / "ws")])
    lines = capsys.readouterr().out.splitlines()
    assert all(len(line) <= 80 for line in lines if "disk" not in line)
    assert "ok   devices       cuda:0 to cuda:7 (NVIDIA RTX PRO 6000, 96 GiB each)" in lines
    at = lines.index("ok   links         8 GPUs, PCIe only: one engine a GPU; tensor parallelism would")
    assert lines[at + 1].split() == ["wait", "on", "PCIe"]
    assert lines[at + 2].split() == [str(number) for number in range(8)]
    assert lines[at + 3].split() == ["cuda:0", "-", *["SYS"] * 7]


def test_a_27b_target_on_them(gpus: FakeNvml, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = {"flash-linear-attention": "0.4"}
    monkeypatch.setattr(doctor, "version", lambda name: here[name] if name in here else _missing(name))
    checks = found(examine(tmp_path / "ws", None, write(tmp_path, QWEN_27B, 55)))
    assert checks["an engine"][0] == "ok"
    assert "55.0 GB of weights, 36.3 GB for the KV cache" in checks["an engine"][1]
    assert "about 147 sequences at once" in checks["an engine"][1]
    assert "8 engines: cuda:0 to cuda:7" in checks["an engine"][1]
    assert checks["fla"] == ("ok", "0.4")
    assert checks["conv1d"][0] == "warn"
    here.clear()
    checks = found(examine(tmp_path / "ws", None, tmp_path / "mix.yaml"))
    assert checks["fla"][0] == "FAIL"
    assert "pip install flash-linear-attention" in checks["fla"][1]
    assert not (tmp_path / "ws").exists()


KERNELS = ("flash-linear-attention", "fla-core", "causal-conv1d")


@pytest.mark.parametrize(
    ("kernels", "code", "marks"),
    [
        ((), 3, ("FAIL", "warn")),
        (("causal-conv1d",), 3, ("FAIL", "ok  ")),
        (("flash-linear-attention",), 0, ("ok  ", "warn")),
        (("flash-linear-attention", "causal-conv1d"), 0, ("ok  ", "ok  ")),
    ],
)
def test_a_hybrid_target_needs_its_kernels_on_a_gpu(
    gpus: FakeNvml, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any,
    kernels: tuple[str, ...], code: int, marks: tuple[str, str],
) -> None:  # fmt: skip
    """Nothing else is missing, so the exit code is theirs."""
    missing = set(KERNELS) - set(kernels)
    monkeypatch.setattr(doctor, "version", lambda name: _missing(name) if name in missing else "9.9")
    assert run_app(["doctor", str(write(tmp_path, QWEN_27B, 55)), "-w", str(tmp_path / "ws")]) == code
    lines = {line[5:19].strip(): line for line in capsys.readouterr().out.splitlines()}
    assert (lines["fla"][:4], lines["conv1d"][:4]) == marks
    assert sum(line.startswith("FAIL") for line in lines.values()) == (code == 3)


def test_the_gpu_extra_brings_what_doctor_asks_for() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert {"vllm", "flash-linear-attention"} <= {need.partition(">=")[0] for need in extras["gpu"]}


def _missing(name: str) -> str:
    raise PackageNotFoundError(name)


def test_kernels_are_no_matter_to_plain_attention_or_to_cores(gpus: FakeNvml, tmp_path: Path) -> None:
    path = write(tmp_path, LLAMA_8B, 16)
    assert "fla" not in found(examine(tmp_path / "ws", None, path))
    gpus.driver = False
    (tmp_path / "model" / "config.json").write_text(json.dumps(QWEN_27B))
    checks = found(examine(tmp_path / "ws", None, path))
    assert "fla" not in checks
    assert "no GPU: one engine a core" in checks["devices"][1]
    assert "links" not in checks


def test_groups_and_their_cost_are_said(gpus: FakeNvml, tmp_path: Path) -> None:
    checks = examine(tmp_path / "ws", None, write(tmp_path, QWEN_27B, 145))
    assert found(checks)["an engine"][0] == "ok"
    said = found(checks)["an engine"][1].replace("\n", " ")
    assert "4 engines: cuda:0+1, cuda:2+3, cuda:4+5, cuda:6+7" in said
    assert "every layer waits for two all-reduces" in said
    assert all(len(check.found) <= 61 for check in checks if not check.what)


def test_refused_parallelism_fails(gpus: FakeNvml, tmp_path: Path) -> None:
    path = write(tmp_path, LLAMA_8B, 16, extra={"tensor_parallel_size": 2})
    mark, said = found(examine(tmp_path / "ws", None, path))["placement"]
    assert mark == "FAIL"
    assert "--force-tensor-parallel" in said
    assert run_app(["doctor", str(path), "-w", str(tmp_path / "ws")]) == 3


def test_slices_are_devices(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    machine = FakeNvml(cards(1))
    machine.cards[0].slices = [
        Card(name="A100 MIG 1g.10gb", memory_bytes=10 << 30, uuid=f"MIG-{number}") for number in range(7)
    ]
    monkeypatch.setitem(sys.modules, "pynvml", machine)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    checks = found(examine(tmp_path, None))
    assert checks["devices"][1] == "cuda:0 to cuda:6 (A100 MIG 1g.10gb, 10 GiB each)"
    assert checks["links"][1] == "7 MIG slices: one engine a slice; slices cannot be grouped"


@pytest.mark.parametrize(("config", "said"), [(LLAMA_8B, "no weights"), (None, "config.json"), ("[", "config.json")])
def test_a_target_that_is_not_whole_fails(config: Any, said: str, tmp_path: Path) -> None:
    path = write(tmp_path, config)
    mark, text = found(examine(tmp_path / "ws", None, path))["target"]
    assert (mark, said in text) == ("FAIL", True)


def test_a_target_at_home_is_looked_at_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, LLAMA_8B)
    monkeypatch.setenv("HOME", str(tmp_path))
    path.write_text(path.read_text().replace('"model": "model"', '"model": "~/model"'))
    mark, text = found(examine(tmp_path / "ws", None, path))["target"]
    assert (mark, "no weights" in text) == ("FAIL", True)


def test_a_target_that_is_nowhere_fails_and_a_wrong_manifest_exits_2(tmp_path: Path, capsys: Any) -> None:
    path = write(tmp_path, LLAMA_8B, 16)
    path.write_text(path.read_text().replace('"model": "model"', '"model": "gone.gguf"'))
    assert found(examine(tmp_path / "ws", None, path))["target"][0] == "FAIL"
    path.write_text("name: [")
    assert run_app(["doctor", str(path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_config_that_is_not_understood_is_said(gpus: FakeNvml, tmp_path: Path) -> None:
    mark, said = found(examine(tmp_path / "ws", None, write(tmp_path, {"model_type": "odd"}, 16)))["an engine"]
    assert mark == "ok"
    assert "concurrency unknown" in said.replace("\n", " ")


def test_nothing_heavy_is_imported(tmp_path: Path) -> None:
    path = write(tmp_path, QWEN_27B, 0.1)
    code = (
        "import sys\nfrom draftmill.app import run_app\n"
        f"run_app(['doctor', {str(path)!r}, '-w', {str(tmp_path / 'ws')!r}])\n"
        "sys.exit(','.join(name for name in ('torch', 'vllm', 'transformers', 'ray') if name in sys.modules) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "an engine" in done.stdout


# what the engine would refuse


def test_settings_that_the_engine_refuses_fail_before_any_engine(gpus: FakeNvml, tmp_path: Path) -> None:
    path = write(tmp_path, {**LLAMA_8B, "max_position_embeddings": 4096}, 16, kv_cache_dtype="fp99")
    mark, said = found(examine(tmp_path / "ws", None, path))["settings"]
    said = said.replace("\n", " ")
    assert mark == "FAIL"
    assert "engine.kv_cache_dtype is 'fp99'" in said
    assert "target.max_model_len is 8,192; the target has 4,096 positions" in said


def test_a_step_smaller_than_the_automatic_sequences_fails(gpus: FakeNvml, tmp_path: Path) -> None:
    path = write(tmp_path, QWEN_27B, 55, max_num_batched_tokens=64)
    mark, said = found(examine(tmp_path / "ws", None, path))["settings"]
    assert mark == "FAIL"
    assert "engine.max_num_batched_tokens is 64, less than engine.max_num_seqs" in said.replace("\n", " ")


def test_a_sequence_too_long_is_not_called_weights_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml([], {}))
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
    path = write(tmp_path, LLAMA_8B, 0.5)
    path.write_text(path.read_text().replace('"max_model_len": 8192', '"max_model_len": 100000'))
    mark, said = found(examine(tmp_path / "ws", None, path))["an engine"]
    assert mark == "FAIL"
    assert "0.5 GB of weights fit, one longest sequence does not" in said
    assert "100,000 tokens need 13.1 GB of KV cache, 1.1 GB are left" in said
    assert "lower target.max_model_len to about 8,192 at most" in said


def test_devices_that_are_not_there_do_not_drop_the_target(gpus: FakeNvml, tmp_path: Path) -> None:
    checks = found(examine(tmp_path / "ws", "cuda:9", write(tmp_path, QWEN_27B, 55, kv_cache_dtype="fp99")))
    assert checks["devices"][0] == "FAIL"
    assert "55.0 GB of weights, KV room unknown" in checks["an engine"][1]
    assert checks["settings"][0] == "FAIL"


def test_a_gguf_target_that_is_converted_already_is_looked_at(
    smollm2_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path, LLAMA_8B)
    path.write_text(path.read_text().replace('"model": "model"', f'"model": "{SMOLLM2}"'))
    assert "0.3 GB of weights" in found(examine(tmp_path / "ws", None, path))["an engine"][1]
    monkeypatch.setenv("DRAFTMILL_CACHE", str(tmp_path / "cache"))
    assert "converted before its first use" in found(examine(tmp_path / "ws", None, path))["target"][1]
    # a receipt whose files are not there is no conversion
    copy = tmp_path / "cache" / smollm2_dir.name
    copy.mkdir(parents=True)
    (copy / "draftmill-conversion.json").write_bytes((smollm2_dir / "draftmill-conversion.json").read_bytes())
    assert "converted before its first use" in found(examine(tmp_path / "ws", None, path))["target"][1]


def test_a_template_that_cannot_think_is_warned_of(smollm2_dir: Path, tmp_path: Path) -> None:
    path = write(tmp_path, LLAMA_8B)
    body = json.loads(path.read_text())
    body["target"]["model"] = str(smollm2_dir)
    body["generation"] = {"thinking": {"share": 0.5}}
    path.write_text(json.dumps(body))
    mark, said = found(examine(tmp_path / "ws", None, path))["thinking"]
    assert (mark, "target.chat_template" in said) == ("warn", True)
    (tmp_path / "thinks.jinja").write_text("{{ messages[0].content }}{% if enable_thinking %}<think>{% endif %}")
    body["target"]["chat_template"] = "thinks.jinja"
    path.write_text(json.dumps(body))
    assert "thinking" not in found(examine(tmp_path / "ws", None, path))
