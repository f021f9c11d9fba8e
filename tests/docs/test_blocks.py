"""Every block of every page is run on a small desk, or says above it why not; every command line is one that exists."""

from __future__ import annotations

import io
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import typer.main
from rich.cells import cell_len
from ruamel.yaml import YAML

from corpus.ledger.query import query
from corpus.manifest import Manifest
from corpus.manifest_file import parse_manifest
from corpus.shard_writer import write_shard
from corpus.shards import CapturedRow, ShardMeta
from corpus.workspace import Workspace
from draftmill.app import app, run_app
from tests.docs.blocks import LANGUAGES, PAGES, Block, all_blocks, blocks, command_lines, pipeline
from tests.docs.desk import at_desk, manifest, stand_ins

PLAIN = ("cat", "cp", "echo", "ls", "mkdir", "sed")
"""Programs that a page may use beside draftmill; they run in the desk's folder."""
NARROW = ("composition", "funnel", "sample", "show", "status", "plan", "verify")
"""What fits 80 columns, unless it is for programs."""
WIDE = {"--json", "--format", "--out"}
OF_THE_DEMO = ("quickstart.md", "questions.md")
EXITS = re.compile(r"# exits (\d)")
EMPTY = ("hidden_failures", "note,", "events")
"""Questions that name these may have no row as their answer."""


def test_every_fence_is_in_a_language_that_is_run() -> None:
    for page in PAGES:
        found = blocks(page)
        assert len(found) * 2 == len(re.findall(r"^\s*```", page.read_text(), re.MULTILINE)), f"{page.name}: a fence"
        for block in found:
            assert block.language in (*LANGUAGES, ""), f"{block.where}: {block.language}"
            if not block.language:
                asked = re.match(r"\$ |draftmill [a-z]|SELECT |make |pip |python ", block.text)
                assert asked is None, f"{block.where}: give this fence its language, so that it is run: {asked}"


def test_what_is_not_run_is_there_and_has_a_reason() -> None:
    for page in PAGES:
        for block in blocks(page):
            if block.why_not is not None:
                assert len(block.why_not.split()) >= 2, block.where
                for start in block.not_run:
                    assert any(line.startswith(start) for line in command_lines(block.text)), f"{block.where}: {start}"


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)], ids=lambda page: page.name)
def test_every_block_of_a_page_runs(
    request: pytest.FixtureRequest, page: Path, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """In their order, each page on a desk of its own: what a line leaves, the next ones find.

    Questions that have no answer there are asked of the desk as it was: a line may have made another build the newest.
    """
    made = request.getfixturevalue("demo_desk" if page.name in OF_THE_DEMO else "desk")
    with at_desk(shutil.copytree(made, tmp_path / "desk")) as workspace:
        said = ""
        for block in blocks(page):
            if block.language == "bash":
                for line in command_lines(block.text):
                    if block.is_run(line):
                        said = run_line(block.where, line, workspace, capfdbinary)
            elif block.printed:
                assert [line for line in block.text.splitlines() if line not in said.splitlines()] == [], block.where
            elif block.language == "sql":
                assert max(map(len, block.text.splitlines())) <= 120, block.where
                rows = query(workspace, block.text).height or query(Workspace(made / "workspace"), block.text).height
                assert rows or any(word in block.text for word in EMPTY), f"{block.where}: no row answers it"
            elif block.language == "python":
                run_program(block.text, workspace)


def run_line(where: str, line: str, workspace: Workspace, capfdbinary: pytest.CaptureFixture[bytes]) -> str:
    """What a line of a shell prints, its draftmill in this process; it must exit 0, or as its comment says."""
    expected = int(found[1]) if (found := EXITS.search(line)) else 0
    for said, ours in stand_ins(workspace).items():
        line = line.replace(said, ours)
    code, piped, err, to_file = 0, b"", b"", False
    for part in pipeline(line):
        if part == ["&&"] and code:
            break
        if part in (["|"], ["&&"], [">"]):
            to_file = part == [">"]
            continue
        program, *arguments = [name for word in part for name in expanded(word)]
        if to_file:
            Path(program).write_bytes(piped)
        elif program == "draftmill":
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(piped), encoding="utf-8"))
                code = run_app(arguments)
            piped, err = capfdbinary.readouterr()
            if arguments[0] in NARROW and not WIDE.intersection(arguments):
                assert max(map(cell_len, piped.decode().splitlines())) <= 80, f"{where}: {line}"
        else:
            assert program in PLAIN, f"{where}: {program} is not run here; mark the line"
            done = subprocess.run([program, *arguments], input=piped, capture_output=True, check=False)
            code, piped, err = done.returncode, done.stdout, done.stderr
        assert b"Traceback" not in err
    assert code == expected, f"{where}: {line}\n{err.decode()[-2000:]}"
    return piped.decode(errors="replace")


def expanded(word: str) -> list[str]:
    """A word as the shell hands it over: a pattern as the files that it names."""
    return sorted(map(str, Path().glob(word))) if "*" in word and "/" in word and " " not in word else [word]


def run_program(code: str, workspace: Workspace) -> None:
    (row,) = query(
        workspace, "SELECT capture_id, hidden_shard, response_id FROM provenance WHERE hidden_row = 1 LIMIT 1"
    ).rows()
    shard = str(workspace.root / "hidden" / row[0] / row[1])
    exec(code.replace("hidden/CAPTURE/SHARD", shard).replace("RESPONSE", row[2]), {})  # noqa: S102


def categories(said: Any) -> list[str]:
    """All that a source's category key can give."""
    return [said] if isinstance(said, str) else [*said["map"].values(), said["default"]]


@pytest.mark.parametrize("block", all_blocks("yaml"), ids=lambda block: block.where)
def test_every_manifest_is_one(block: Block) -> None:
    """Whole manifests as they stand; a section, or a source without its rows, in a manifest that has the rest."""
    if "name:" in block.text and "mix:" in block.text:
        parse_manifest(block.text, block.where)
        return
    said = YAML(typ="safe", pure=True).load(block.text)
    assert set(said) <= set(Manifest.model_fields), block.where
    whole = manifest()
    for section, body in said.items():
        old = whole.get(section)
        whole[section] = {**old, **body} if isinstance(old, dict) and section != "target" else body
    if "sources" in said:
        given = [category for source in said["sources"] for category in categories(source["category"])]
        whole["mix"]["shares"] = dict.fromkeys(given, 1)
        whole["sources"] = [{"path": "rows.jsonl"} | source for source in said["sources"] if "dataset" not in source]
    elif "mix" in said:
        whole["sources"] = [{"name": name, "path": "rows.jsonl", "category": name} for name in whole["mix"]["shares"]]
    text = io.StringIO()
    YAML(typ="safe", pure=True).dump(whole, text)
    parse_manifest(text.getvalue(), block.where)


def test_one_row_of_a_shard_is_read_as_the_page_says(tmp_path: Path) -> None:
    (block,) = (block for block in all_blocks("python") if block.page == "extraction.md")
    rows = [CapturedRow(f"r{n}", torch.arange(n), torch.arange(n) % 2, torch.randn(n, 2, 3)) for n in (4, 2)]
    meta = ShardMeta("capture", (1,), True, "org/model", "abc", "float32")
    path = write_shard(tmp_path / "a.safetensors", rows, meta).path
    read: dict[str, Any] = {}
    exec(block.text.replace("hidden/CAPTURE/SHARD", str(path)).replace("RESPONSE", "r2"), read)  # noqa: S102
    assert read["input_ids"].tolist() == [0, 1]
    assert read["loss_mask"].tolist() == [0, 1]
    assert torch.equal(read["states"], rows[1].states_TNH)


def test_lines_run_or_not_are_commands_that_exist() -> None:
    """Each `draftmill COMMAND` in fences and in running text, and each long option beside it, is in its --help."""
    inline = [
        (page.name, command)
        for page in PAGES
        for command in re.findall(r"`(draftmill [a-z][^`\n]*)`", page.read_text())
    ]
    fenced = [
        (block.where, shlex.join(part))
        for block in all_blocks("bash")
        for line in command_lines(block.text)
        for part in pipeline(line)
        if part[0] == "draftmill" and len(part) > 1
    ]
    assert len(fenced) > 40
    whole: Any = typer.main.get_command(app)
    for where, line in [*inline, *fenced]:
        said = re.sub(r"(\"|')(?:(?!\1).)*\1", "QUOTED", line).split()[1:]
        command = whole
        while said and said[0] in getattr(command, "commands", {}):
            command = command.commands[said.pop(0)]
        assert command.name != "draftmill" or said[0].startswith("-"), f"{where}: {line}"
        known = {option for each in command.params for option in (*each.opts, *each.secondary_opts)} | {"--help", "-h"}
        for word in said:
            option = re.match(r"--?[a-z][a-z-]*", word)
            if option is not None:
                assert option[0] in known, f"{where}: {line}: {option[0]}"


def test_every_command_and_option_is_in_a_page() -> None:
    """Of an option that has several names, one of them."""
    pages = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    assert [path for path, _ in commands() if f"draftmill {' '.join(path)}" not in pages] == []
    for path, command in commands():
        for each in command.params:
            names = [name for name in (*each.opts, *each.secondary_opts) if name.startswith("-")]
            told = any(re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", pages) for name in names)
            assert told or not names, f"draftmill {' '.join(path)} {names}"


def commands(group: Any = None, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    command = typer.main.get_command(app) if group is None else group
    inner = getattr(command, "commands", {})
    if not inner:
        yield path, command
    for name, one in inner.items():
        yield from commands(one, (*path, name))
