"""Tab: the protocol that bash, zsh and fish speak with the command, what it offers, and that it is cheap."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

HEAVY = ("torch", "vllm", "duckdb", "polars", "transformers", "datasets", "ray", "numpy")
IMPORTED = "import sys; sys.argv[0] = 'draftmill'; from draftmill.app import app\ntry: app(prog_name='draftmill')\n" + (
    f"finally: sys.stderr.write(' '.join(n for n in {HEAVY} if n in sys.modules))"
)
SOURCES = [{"source": "human-eval"}, {"source": "mt bench"}, {"source": "mt-bench"}, {"wrong": 1}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two builds of one name, an import, a damaged build, manifests, and a ledger that nobody could open."""
    root = tmp_path_factory.mktemp("tab")
    for build_id, name in {"aaaa11112222": "small", "bbbb11112222": "small", "cccc11112222": "left-behind"}.items():
        body = {"name": name, "targets": [{"category": "coding"}, {"category": "code-other"}], "sources": SOURCES}
        kind = {"kind": "import"} if name == "left-behind" else {}
        described(root, build_id, json.dumps(body | kind))
    described(root, "dddd11112222", "{")
    described(root, "eeee11112222", json.dumps({"name": "\x1b[31mred", "targets": 3, "sources": [3]}))
    (root / "workspace" / "ledger.snapshot.duckdb").write_text("no database")
    (root / "manifests").mkdir()
    for name in ("mix.yaml", "mine.yml", "notes.txt", "manifests/demo.yaml"):
        (root / name).touch()
    return root


def described(root: Path, build_id: str, text: str) -> None:
    path = root / "workspace" / "builds" / build_id / "build.json"
    path.parent.mkdir(parents=True)
    path.write_text(text)


def tab(folder: Path, line: str, environment: Mapping[str, str] | None = None) -> list[str]:
    """What bash is offered at the end of a line."""
    spoken = {"_DRAFTMILL_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
    return asked(folder, spoken | dict(environment or {})).stdout.split()


def asked(folder: Path, spoken: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    kept = {key: value for key, value in os.environ.items() if key != "DRAFTMILL_WORKSPACE"}
    done = subprocess.run(
        [sys.executable, "-c", IMPORTED],
        cwd=folder,
        env=kept | dict(spoken),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == "", "imported, or said, in the way of the shell"
    return done


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("draftmill gen", ["generate"]),
        ("draftmill ledger re", ["rebuild"]),
        ("draftmill generate --ret", ["--retry-rejected"]),
        ("draftmill composition --stage ", ["target", "selected", "generated", "accepted", "captured", "trained"]),
        ("draftmill generate m", ["mine.yml", "mix.yaml"]),
        ("draftmill generate manifests/", ["manifests/demo.yaml"]),
        ("draftmill generate nowhere/", []),
        ("draftmill doctor mix", ["mix.yaml"]),
        ("draftmill composition ", ["aaaa1111", "bbbb1111", "eeee1111", "left-behind", "mine.yml", "mix.yaml"]),
        ("draftmill funnel cccc", ["cccc1111"]),
        ("draftmill verify left", ["left-behind"]),
        ("draftmill report left", ["left-behind"]),
        ("draftmill diff left-behind aa", ["aaaa1111"]),
        ("draftmill sample --category co", ["code-other", "coding"]),
        ("draftmill sample --source ", ["human-eval", "mt-bench"]),
        ("draftmill sample --dropped near", ["near_duplicate", "near_empty"]),
        ("draftmill sample --dropped not_n", ["not_needed"]),
        ("draftmill sample --finish-reason l", ["length"]),
        ("draftmill plan --hardware h2", ["h200"]),
        ("draftmill diff left", []),
        ("draftmill composition -w nowhere left", []),
    ],
)
def test_tab_offers(folder: Path, line: str, offered: list[str]) -> None:
    assert tab(folder, line) == offered


def test_the_workspace_of_the_environment_is_read(folder: Path) -> None:
    workspace = {"DRAFTMILL_WORKSPACE": str(folder / "workspace")}
    assert tab(folder.parent, "draftmill composition left", workspace) == ["left-behind"]


def test_zsh_and_fish_are_offered_the_same(folder: Path) -> None:
    line = "draftmill composition left"
    zsh = asked(folder, {"_DRAFTMILL_COMPLETE": "complete_zsh", "_TYPER_COMPLETE_ARGS": line})
    assert '"left-behind"' in zsh.stdout
    fish = {"_DRAFTMILL_COMPLETE": "complete_fish", "_TYPER_COMPLETE_ARGS": line}
    assert asked(folder, fish | {"_TYPER_COMPLETE_FISH_ACTION": "get-args"}).stdout.split() == ["left-behind"]


def test_bash_takes_the_script_and_falls_back_to_files() -> None:
    script = asked(Path.cwd(), {"_DRAFTMILL_COMPLETE": "source_bash"}).stdout
    done = subprocess.run(
        ["bash", "--norc", "-c", f"{script}\ncomplete -p draftmill"], capture_output=True, text=True, check=False
    )
    assert "-o default" in done.stdout
    assert "_draftmill_completion draftmill" in done.stdout
    assert "compdef" in asked(Path.cwd(), {"_DRAFTMILL_COMPLETE": "source_zsh"}).stdout
