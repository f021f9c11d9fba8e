"""What the pages promise is so: generated references are current, blocks parse, commands and links exist."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from ruamel.yaml import YAML

from corpus.manifest import Target
from corpus.manifest_file import load_manifest, parse_manifest
from corpus.shard_writer import write_shard
from corpus.shards import CapturedRow, ShardMeta

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
README = (ROOT / "README.md").read_text()


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def generated() -> dict[str, str]:
    spec = importlib.util.spec_from_file_location("docs_generate", ROOT / "docs" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return dict(module.pages())


@pytest.mark.parametrize("name", ["manifest.md", "ledger.md", "manifest.schema.json"])
def test_generated_pages_are_current(name: str) -> None:
    assert (ROOT / "docs" / name).read_text() == generated()[name], "run `make docs`"


def test_every_key_of_the_manifest_is_documented() -> None:
    page = (ROOT / "docs" / "manifest.md").read_text()
    for key in ("block_size", "holdout", "kv_cache_dtype", "max_tokens_per_batch", "decontaminate", "top_p"):
        assert f"`{key}`" in page


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_relative_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        if "://" not in link:
            assert (page.parent / link).exists(), link


def test_readme_manifests_parse() -> None:
    target_line, manifest = blocks(README, "yaml")
    Target.model_validate(YAML(typ="safe", pure=True).load(target_line)["target"])
    assert parse_manifest(manifest, "README.md").name == "first"


def test_one_row_of_a_shard_is_read_as_the_page_says(tmp_path: Path) -> None:
    (block,) = blocks((ROOT / "docs" / "extraction.md").read_text(), "python")
    rows = [CapturedRow(f"r{n}", torch.arange(n), torch.arange(n) % 2, torch.randn(n, 2, 3)) for n in (4, 2)]
    meta = ShardMeta("capture", (1,), True, "org/model", "abc", "float32")
    path = write_shard(tmp_path / "a.safetensors", rows, meta).path
    assert "hidden/CAPTURE/SHARD" in block
    read: dict[str, Any] = {}
    exec(block.replace("hidden/CAPTURE/SHARD", str(path)).replace("RESPONSE", "r2"), read)  # noqa: S102
    assert read["input_ids"].tolist() == [0, 1]
    assert read["loss_mask"].tolist() == [0, 1]
    assert torch.equal(read["states"], rows[1].states_TNH)


def test_readme_make_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {name for page in PAGES for name in re.findall(r"(?:^|`)make ([a-z-]+)", page.read_text(), re.MULTILINE)}
    assert {"demo", "test", "test-full"} <= named
    assert named <= targets


def test_every_command_line_in_the_pages_is_one_that_exists() -> None:
    """Each `draftmill COMMAND` and each long option beside it is in that command's --help."""
    seen = 0
    for page in PAGES:
        lines = re.findall(r"(?:^|`)draftmill ((?:ledger )?[a-z][a-z-]+)([^`\n#]*)", page.read_text(), re.MULTILINE)
        for command, rest in lines:
            helped = help_of(*command.split())
            assert helped is not None, f"{page.name}: draftmill {command}"
            for option in re.findall(r"--[a-z-]+", rest.partition('"')[0]):
                assert option in helped, f"{page.name}: draftmill {command} {option}"
            seen += 1
    assert seen > 10


def help_of(*command: str) -> str | None:
    done = subprocess.run(
        [sys.executable, "-m", "draftmill", *command, "--help"], capture_output=True, text=True, check=False, cwd=ROOT
    )
    return done.stdout if done.returncode == 0 else None


def test_the_demo_manifest_is_a_manifest_of_about_120_prompts() -> None:
    manifest = load_manifest(ROOT / "manifests" / "demo.yaml")
    assert 100 <= manifest.mix.total <= 140
    assert len(manifest.mix.shares) == 5
