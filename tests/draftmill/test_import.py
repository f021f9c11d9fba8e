"""`draftmill import` as a person uses it: what it prints, what it refuses, and that a build then reuses the answers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from corpus.ledger.query import query

World = Any

ASKED = ["Write a python function that sorts a list", "Debug this python class", "What is the capital of France?"]


@pytest.fixture
def team(world: World) -> World:
    """A world with a target and a corpus of six answered rows, coding for the most part, and two others."""
    world.tiny_model()
    rows = [
        {
            "id": i,
            "messages": [{"role": "user", "content": f"{ASKED[i % 3]} {i}"}, {"role": "assistant", "content": "1"}],
        }
        for i in range(6)
    ]
    world.jsonl("team.jsonl", [*rows, rows[0], {"messages": []}])
    return world


def draftmill(world: World, *arguments: str) -> subprocess.CompletedProcess[str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "DRAFTMILL_"))}
    place = () if "--workspace" in arguments else ("--workspace", "ws")
    return subprocess.run(
        [sys.executable, "-m", "draftmill", *arguments, *place],
        capture_output=True, text=True, cwd=world.root, check=False, env=kept | {"HF_ENDPOINT": "http://127.0.0.1:9"},
    )  # fmt: skip


def done(world: World, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A command that ends well, in lines that fit a terminal."""
    ran = draftmill(world, *arguments)
    assert ran.returncode == 0, ran.stderr
    assert max(map(len, (ran.stdout + ran.stderr).splitlines()), default=0) <= 80
    return ran


def everything(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_an_import_shows_what_the_corpus_is_made_of_and_what_to_ask_next(team: World) -> None:
    ran = done(team, "import", "team.jsonl", "--model", "model")
    assert ran.stdout.splitlines() == [
        "category  answers  share  prompts  tokens",
        "coding          5  71.4%        4       -",
        "general         2  28.6%        2       -",
    ]
    assert "rows: 1 empty_conversation, 1 replica" in ran.stderr
    assert "--tokenizer" in ran.stderr
    asked = [text for text in ran.stderr.split('"') if " FROM " in text or text.startswith("FROM ")]
    assert len(asked) == 2
    assert all(query(team.workspace, text).height > 0 for text in asked)
    (data,) = team.workspace.root.glob("builds/*/DATA.md")
    assert "coding" in data.read_text()


def test_the_same_command_again_changes_nothing_and_says_so(team: World) -> None:
    first = done(team, "import", "team.jsonl", "--model", "model")
    before = query(team.workspace, "FROM responses ORDER BY ALL")
    again = done(team, "import", "team.jsonl", "--model", "model")
    assert "imported already, nothing to do" in again.stderr
    assert again.stdout == first.stdout
    assert query(team.workspace, "FROM responses ORDER BY ALL").equals(before)
    assert query(team.workspace, "SELECT count(*) FROM runs WHERE command = 'import'").item() == 1


def test_a_dry_run_enters_nothing(team: World) -> None:
    ran = done(team, "import", "team.jsonl", "--model", "model", "--dry-run")
    assert "coding       5  71.4%" in ran.stdout
    assert ran.stdout.splitlines()[-2:] == ["1 of 8 rows hold no prompt", "  1 empty_conversation"]
    assert not {name.split("/")[0] for name in everything(team.workspace.root)} - {"pools", "cache"}


def test_the_next_generate_says_how_many_answers_come_from_which_import(team: World) -> None:
    done(team, "import", "team.jsonl", "--model", "model", "--tokenizer", "model", "--name", "old-runs")
    path = team.write(
        sources=[{"name": "mine", "path": "team.jsonl", "category": "classify"}],
        mix={"total": 6, "shares": {"coding": 2, "general": 1}, "holdout": 0},
        generation={"imported": ["old-runs"]},
    )
    ran = done(team, "generate", str(path), "--dry-run")
    assert ran.stdout.splitlines() == [
        "6 answers wanted: 6 accepted, 0 rejected, 0 to make",
        "  6 of the accepted are from the import old-runs",
    ]


@pytest.mark.parametrize(
    ("options", "name", "said"),
    [
        (None, "nope", "generation.imported: nope: no corpus was imported under this name here"),
        (["--tokenizer", "model"], "nope", "no corpus was imported under this name here"),
        (["--model", "other", "--tokenizer", "model"], "team", "holds answers of other, and the target is model"),
        ([], "team", "has no token ids. Import it again with --tokenizer model"),
        (["--tokenizer", "else"], "team", "was tokenised with another tokenizer or chat template"),
    ],
)
def test_imports_that_cannot_be_taken_stop_a_build(team: World, options: Any, name: str, said: str) -> None:
    other = team.tiny_model("else")
    (other / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content }}{% endfor %}:")
    if options is not None:
        done(team, "import", "team.jsonl", "--model", "model", *options)
    path = str(team.write(generation={"imported": [name]}))
    good = str(team.write("good.yaml"))
    for command in (
        ["build", path],
        ["build", path, "--dry-run"],
        ["generate", path, "--dry-run"],
        ["diff", good, path],
    ):
        refused(team, *command, said=said)
    assert not list(team.workspace.root.glob("builds/*/manifest.lock.yaml"))


def test_a_shell_may_expand_the_pattern(team: World) -> None:
    for part in ("a", "b"):
        team.jsonl(f"old/{part}.jsonl", [{"prompt": f"question {part}{i}", "response": "yes"} for i in range(3)])
    ran = done(team, "import", "old/a.jsonl", "old/b.jsonl", "--model", "m")
    assert "old: 6 rows of 2 files" in ran.stderr
    assert "imported already" in done(team, "import", "old/*.jsonl", "--model", "m").stderr


def test_labels_that_stay_are_said(team: World) -> None:
    done(team, "import", "team.jsonl", "--model", "m", "--name", "old-runs", "--license", "mit")
    ran = done(team, "import", "team.jsonl", "--model", "m")
    assert "keeps the name old-runs that it has; --name changes it" in ran.stderr
    assert "keeps the license mit that it has; --license changes it" in ran.stderr
    assert "imported already, nothing to do" in ran.stderr
    assert "keeps" not in done(team, "import", "team.jsonl", "--model", "m", "--name", "n", "--license", "l").stderr


def test_a_name_that_is_taken_is_one_line(team: World) -> None:
    done(team, "import", "team.jsonl", "--model", "m")
    team.jsonl("more/team.jsonl", [{"prompt": "a", "response": "b"}])
    for dry in ([], ["--dry-run"]):
        refused(team, "import", "more/team.jsonl", "--model", "m", *dry, said="the name team is another corpus's here")


def test_what_to_ask_next_fits_80_columns_and_runs(team: World) -> None:
    name, folder = "n" * 70, "w" * 30
    ran = draftmill(team, "import", "team.jsonl", "--model", "model", "--name", name, "--workspace", folder)
    assert ran.returncode == 0, ran.stderr
    assert max(map(len, (ran.stdout + ran.stderr).splitlines())) <= 80
    asked = ran.stderr.replace("\\\n", "").split('"')[1::2]
    assert len(asked) == 2
    for text in asked:
        again = draftmill(team, "sql", text, "--workspace", folder)
        assert again.returncode == 0, again.stderr


def test_rebuild_brings_an_import_back(team: World) -> None:
    done(team, "import", "team.jsonl", "--model", "model")
    before = query(team.workspace, "FROM provenance ORDER BY ALL")
    team.workspace.ledger.unlink()
    refused(team, "import", "team.jsonl", "--model", "model", said="Run `draftmill ledger rebuild`")
    assert "imports" in done(team, "ledger", "rebuild").stdout
    assert query(team.workspace, "FROM provenance ORDER BY ALL").equals(before)


def refused(world: World, *arguments: str, said: str) -> None:
    """The command exits 2 with one line that says so."""
    ran = draftmill(world, *arguments)
    assert ran.returncode == 2, ran.stderr
    assert said in ran.stderr
    assert ran.stderr.startswith("draftmill: ")
    assert ran.stderr.count("\n") == 1, ran.stderr
    assert ran.stdout == ""


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["team.jsonl"], "--model NAME is missing"),
        (["team.jsonl", "--model", " "], "--model is empty"),
        (["nowhere.jsonl", "--model", "m"], "no file there"),
        (["", "--model", "m"], "PATH is ''"),
        (["team.jsonl", "--model", "m", "--format", "xml"], "--format is 'xml'"),
        (["team.jsonl", "--model", "m", "--name", "a b"], "--name is 'a b'"),
        (["odd.jsonl", "--model", "m"], "no known format"),
        (["prompts.jsonl", "--model", "m"], "not one of 2 rows holds an answer"),
        (["team.jsonl", "--model", "m", "--where", "nope = 1"], "nope"),
        (["torn.jsonl", "--model", "m"], "row 1 "),
        (["team.jsonl", "--model", "m", "--tokenizer", "elsewhere"], "elsewhere"),
        (["team.jsonl", "--model", "m", "--tokenizer", "bare"], "has no chat template"),
        (["team.jsonl", "--model", "m", "--chat-template", "x.jinja"], "--chat-template is used with --tokenizer only"),
    ],
)
def test_wrong_input_is_one_line_and_enters_nothing(team: World, arguments: list[str], said: str) -> None:
    team.jsonl("odd.jsonl", [{"number": 1}, {"number": 2}])
    team.jsonl("prompts.jsonl", [{"prompt": "one"}, {"prompt": "two"}])
    (team.root / "torn.jsonl").write_text(json.dumps({"prompt": "a", "answer": "b"}) + '\n{"prompt": "c')
    bare = team.tiny_model("bare")
    (bare / "chat_template.jinja").unlink()
    refused(team, "import", *arguments, said=said)
    if team.workspace.snapshot.exists():
        assert query(team.workspace, "SELECT count(*) FROM builds").item() == 0
        assert query(team.workspace, "SELECT count(*) FROM responses").item() == 0
    made = everything(team.workspace.root)
    assert not [name for name in made if name.split("/")[0] in ("responses", "builds", "candidates", "imports", "runs")]


def test_rows_that_cannot_be_read_are_drops_where_that_is_asked_for(team: World) -> None:
    (team.root / "torn.jsonl").write_text(json.dumps({"prompt": "a", "answer": "b"}) + '\n{"prompt": "c')
    ran = done(team, "import", "torn.jsonl", "--model", "m", "--skip-bad")
    assert "rows: 1 not_json" in ran.stderr


def test_a_dataset_that_was_saved_to_disk_is_imported(team: World) -> None:
    import datasets

    rows = [{"prompt": f"Tell me a tale of the sea, part {i}.", "response": "yes"} for i in range(3)]
    datasets.Dataset.from_list(rows).save_to_disk(str(team.root / "saved"))
    ran = done(team, "import", "saved", "--model", "m")
    assert "general         3" in ran.stdout
