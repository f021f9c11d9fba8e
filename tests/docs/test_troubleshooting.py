"""Every message that docs/troubleshooting.md quotes is one that the code can say; some are said here."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from draftmill.app import run_app
from tests.conftest import World
from tests.docs.blocks import ROOT

PAGE = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
PACKAGES = ("corpus", "draftmill", "extraction", "fleet", "generation", "training")
ERRORS, NO_MESSAGE = PAGE.split("## No message")
QUOTED = re.findall(r"^\| `([^|]+)` \|", ERRORS, re.MULTILINE)
GAP = "…"


@cache
def said_in_code() -> list[str]:
    """Every text in the packages; what is filled in is a gap."""
    found = []
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    found.append(node.value)
                elif isinstance(node, ast.JoinedStr):
                    parts = [part.value if isinstance(part, ast.Constant) else GAP for part in node.values]
                    found.append("".join(map(str, parts)))
    return found


def pattern(message: str) -> re.Pattern[str]:
    """A message of the page as a regular expression: a gap stands for anything."""
    return re.compile(".*".join(re.escape(part.strip()) for part in message.split(GAP)), re.DOTALL)


def test_there_are_about_as_many_as_a_user_meets() -> None:
    assert 40 <= len(QUOTED) <= 80
    assert len(set(QUOTED)) == len(QUOTED)


@pytest.mark.parametrize("message", QUOTED)
def test_a_quoted_message_is_one_of_the_code(message: str) -> None:
    assert sum(part.strip(" .:,;") != "" for part in message.split(GAP)) >= 1
    assert len(message.replace(GAP, "").split()) >= 3, "too little to be found by"
    said = pattern(message)
    assert any(said.search(text) for text in said_in_code()), message


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["build", "unknown-key.yaml"], "… is not a known key."),
        (["build", "mxi.yaml"], "… no such manifest file…"),
        (["build", "broken.yaml"], "… not valid YAML: …"),
        (["build", "unwanted.yaml"], "…, which has no share; …"),
        (["build", "no-source.yaml"], "… is a category that no source gives…"),
        (["build", "no-file.yaml"], "…: path …: no file there…"),
        (["build", "large.yaml"], "…: too few prompts; nothing was built."),
        (["generate", "mix.yaml", "--devices", "cuda:7"], "devices: there is no …; this machine has …"),
        (["composition", "-w", "nowhere"], "…: holds no published ledger. …"),
        (["sql", "FROM read_text('/etc/hostname')"], "sql: only files of the workspace can be read (…)…"),
        (["show", "nobody"], "… no prompt, response, build, drafter or run has this id, …"),
        (["funnel", "--source", "nobody"], "…: has no source …"),
        (["sample", "--category", "nobody"], "… is not there; there is: …"),
        (["audit", "code.jsonl", "--fail-on-skew", "5%"], "audit: --fail-on-skew needs intended shares; …"),
    ],
    ids=lambda item: item[1] if isinstance(item, list) else "",
)
def test_a_command_says_it(
    command: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert message in QUOTED
    monkeypatch.chdir(tmp_path)
    world = World(tmp_path)
    shares = {"coding": 1, "general": 1}
    world.tiny_model()
    world.write("mix.yaml")
    world.write("unknown-key.yaml", mixx={})
    (tmp_path / "broken.yaml").write_text("name: [x\n")
    world.write("unwanted.yaml", mix={"total": 4, "shares": {"coding": 1}})
    world.write("no-source.yaml", mix={"total": 4, "shares": shares | {"math": 1}})
    world.write("no-file.yaml", sources=[{"name": name, "path": "gone.jsonl", "category": name} for name in shares])
    world.write("large.yaml", mix={"total": 4000, "shares": shares})
    if command[0] in ("sql", "show", "funnel", "sample"):
        assert run_app(["build", "mix.yaml"]) == 0
    assert run_app(command) == 2
    assert pattern(message).search(capsys.readouterr().err)
