"""The command line: exit codes, help, what it imports, and that wrong input is one line and changes nothing."""

from __future__ import annotations

import importlib.util
import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import polars as pl
import pytest
import typer.main
from typer.core import TyperArgument

from corpus.ledger.query import query
from corpus.manifest_file import manifest_schema
from draftmill.app import app, run_app

World = Any
HEAVY = ("torch", "vllm", "duckdb", "polars", "transformers", "datasets", "ray")
TINY = {"target": {"model": "model", "max_model_len": 64, "dtype": "float32"}}


def draftmill(world: World, *arguments: str, **options: Any) -> subprocess.CompletedProcess[Any]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "DRAFTMILL_"))}
    environment = kept | {"HF_ENDPOINT": "http://127.0.0.1:9"} | options.pop("env", {})
    settings = {"text": True, "cwd": world.root, "capture_output": True, "env": environment} | options
    return subprocess.run([sys.executable, "-m", "draftmill", *arguments], check=False, **settings)


def refused(world: World, *arguments: str, said: str, capsys: Any = None) -> None:
    """The command exits 2 with one line that says so."""
    if capsys is None:
        done = draftmill(world, *arguments)
        code, text = done.returncode, done.stderr
    else:
        code = run_app(arguments)
        text = capsys.readouterr().err
    assert code == 2, text
    assert said in text
    assert text.startswith("draftmill: ")
    assert text.count("\n") == 1


def everything(folder: Path) -> dict[str, tuple[int, int]]:
    return {
        str(path.relative_to(folder)): (path.stat().st_size, path.stat().st_mtime_ns)
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A world with a tiny target and one committed build, made by the command itself."""
    from tests.conftest import World as Small

    world = Small(tmp_path_factory.mktemp("cli"))
    world.tiny_model()
    path = world.write(filters={"prompt_tokens": 32}, **TINY)
    done = draftmill(world, "build", str(path), "--workspace", "ws")
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    return world


# help


def commands(group: Any = None, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    command = group or typer.main.get_command(app)
    yield path, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, (*path, name))


COMMANDS = dict(commands())


def test_the_commands_are_those_of_the_design() -> None:
    stages = {"run", "build", "generate", "extract", "train", "export", "serve-check"}
    corpora = {"diff", "push", "push-drafter", "import", "export-states"}
    questions = {"composition", "funnel", "show", "sample"}
    others = {"status", "sql", "schema", "doctor", "ledger"}
    assert {path[0] for path in COMMANDS if path} >= stages | corpora | questions | others


@pytest.mark.parametrize("path", COMMANDS, ids=[" ".join(path) or "draftmill" for path in COMMANDS])
def test_every_command_and_option_explains_itself(path: tuple[str, ...], capsys: Any) -> None:
    command = COMMANDS[path]
    assert command.help
    for parameter in command.params:
        if parameter.name in ("help", "install_completion", "show_completion"):
            continue
        assert getattr(parameter, "help", None), f"{path}: {parameter.name}"
    assert run_app([*path, "--help"]) == 0
    shown = capsys.readouterr().out
    for parameter in command.params:
        if not isinstance(parameter, TyperArgument | click.Argument) and not parameter.hidden:
            assert parameter.opts[0] in shown


@pytest.mark.parametrize("name", ["run", "generate", "extract", "train", "serve-check"])
def test_every_stage_takes_the_same_operational_options(name: str) -> None:
    options = {option for parameter in COMMANDS[name,].params for option in parameter.opts}
    assert {"--workspace", "--dry-run", "--limit", "--devices"} <= options


def test_help_is_cheap(world: World) -> None:
    code = (
        "import sys\nfrom draftmill.app import run_app\n"
        "for words in (['--help'], ['run', '--help'], ['sql', '--help'], ['ledger', '--help'], ['schema'],\n"
        "              ['diff', '--help'], ['push', '--help'], ['import', '--help'], ['show', '--help']):\n"
        "    assert run_app(words) == 0\n"
        f"sys.stderr.write(','.join(name for name in {HEAVY} if name in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=world.root, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_schema_is_json_on_standard_output(capsys: Any) -> None:
    assert run_app(["schema"]) == 0
    assert json.loads(capsys.readouterr().out) == manifest_schema()


# exit codes


@pytest.mark.parametrize(
    "arguments", [["nonsense"], ["build"], ["build", "x.yaml", "--nope"], ["sql", "x", "--format", "xml"], []]
)
def test_a_wrong_command_line_exits_2(arguments: list[str], capsys: Any) -> None:
    assert run_app(arguments) == (2 if arguments else 0 if "Usage" in capsys.readouterr().out else 2)


def test_a_bug_shows_its_traceback_and_exits_1(world: World) -> None:
    code = (
        "import sys\nfrom draftmill import app, status\n"
        "def broken(workspace): raise ZeroDivisionError('a bug')\n"
        "status.status_lines = broken\nsys.exit(app.run_app(['status']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=world.root, check=False)
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert "ZeroDivisionError: a bug" in done.stderr


def test_doctor_looks_at_this_machine_and_exits_3_where_something_is_missing(world: World, capsys: Any) -> None:
    code = run_app(["doctor", "--workspace", str(world.root / "ws")])
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert {line[1] for line in lines} >= {
        "python",
        "duckdb",
        "polars",
        "transformers",
        "torch",
        "vllm",
        "devices",
        "disk",
    }
    assert code == (3 if any(line[0] == "FAIL" for line in lines) else 0)
    assert run_app(["doctor", "--devices", "cuda:99"]) == 3
    assert "FAIL devices" in capsys.readouterr().out
    assert not (world.root / "ws").exists()


# build, status, ledger


def test_a_build_says_what_it_took_and_a_second_one_that_nothing_changed(built: World) -> None:
    again = draftmill(built, "build", "mix.yaml", "-w", "ws")
    assert again.returncode == 0
    assert "20 prompts and 2 held out, unchanged" in again.stderr
    assert query(built.workspace, "SELECT count(*) FROM runs").item() == 1
    tokens = query(built.workspace, "SELECT min(prompt_tokens), max(prompt_tokens) FROM prompts").row(0)
    assert 0 < tokens[0] <= tokens[1] <= 32


def test_status_and_ledger_path(built: World, capsys: Any) -> None:
    workspace = str(built.workspace.root)
    assert run_app(["status", "-w", workspace]) == 0
    shown = capsys.readouterr().out
    build_id = query(built.workspace, "SELECT build_id FROM builds").item()
    assert build_id[:8] in shown
    assert "small" in shown
    assert "22" in shown
    assert run_app(["ledger", "path", "-w", workspace]) == 0
    assert Path(capsys.readouterr().out.strip()).samefile(built.workspace.snapshot)


def test_ledger_rebuild_says_what_it_found(built: World, capsys: Any) -> None:
    before = query(built.workspace, "FROM selections").sort("prompt_id")
    assert run_app(["ledger", "rebuild", "-w", str(built.workspace.root)]) == 0
    counts = dict(line.rsplit(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert (counts["pools"], counts["candidates"], counts["builds"], counts["runs"]) == ("2", "1", "1", "1")
    assert query(built.workspace, "FROM selections").sort("prompt_id").equals(before)


@pytest.mark.parametrize("command", [["status"], ["sql", "SELECT 1"], ["ledger", "path"], ["ledger", "rebuild"]])
def test_commands_that_look_make_no_workspace(world: World, command: list[str], capsys: Any) -> None:
    refused(world, *command, "-w", str(world.root / "none"), said=str(world.root / "none"), capsys=capsys)
    assert not (world.root / "none").exists()


def test_a_dry_build_shows_the_plan_and_enters_nothing(world: World, capsys: Any) -> None:
    path = world.write()
    assert run_app(["build", str(path), "-w", str(world.workspace.root), "--dry-run"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["coding", "50.0%", "10", "37"] in lines or any(line[:3] == ["coding", "50.0%", "10"] for line in lines)
    made = everything(world.workspace.root)
    assert not [name for name in made if name.startswith(("ledger", "builds", "runs", "responses", "workspace.lock"))]
    assert run_app(["build", str(path), "-w", str(world.workspace.root), "--dry-run"]) == 0
    assert everything(world.workspace.root) == made


def test_dry_runs_of_stages_show_their_plan_and_change_nothing(built: World, capsys: Any) -> None:
    path, workspace = str(built.root / "mix.yaml"), str(built.workspace.root)
    before = everything(built.workspace.root)
    for stage in ("generate", "run"):
        assert run_app([stage, path, "-w", workspace, "--dry-run", "--limit", "4"]) == 0, capsys.readouterr().err
        assert "22 answers wanted: 0 accepted, 0 rejected, 4 to make" in capsys.readouterr().out
    assert everything(built.workspace.root) == before


def test_the_workspace_may_be_named_in_the_environment(built: World) -> None:
    done = draftmill(built, "sql", "SELECT 1 AS a", "-f", "csv", env={"DRAFTMILL_WORKSPACE": "ws"})
    assert (done.returncode, done.stdout) == (0, "a\n1\n")


# sql

SQL = "SELECT prompt_id, category, holdout FROM selections ORDER BY prompt_id"


def test_sql_gives_the_same_rows_in_every_format(built: World) -> None:
    rows = query(built.workspace, SQL)
    shown = {
        form: draftmill(built, "sql", SQL, "-w", "ws", "-f", form, text=False).stdout
        for form in ("table", "csv", "json", "parquet")
    }
    assert pl.read_parquet(io.BytesIO(shown["parquet"])).equals(rows)
    assert pl.DataFrame(json.loads(shown["json"])).equals(rows)
    assert pl.read_csv(io.BytesIO(shown["csv"])).equals(rows)
    assert shown["table"].decode().splitlines()[-1] == "(22 rows)"


def test_sql_from_standard_input_to_a_file(built: World) -> None:
    done = draftmill(built, "sql", "-", "-w", "ws", "-f", "parquet", "-o", "out.parquet", input=SQL)
    assert (done.returncode, done.stdout) == (0, "")
    assert pl.read_parquet(built.root / "out.parquet").height == 22


def test_sql_into_a_closed_pipe_is_no_bug(built: World) -> None:
    line = f"{sys.executable} -m draftmill sql 'FROM range(300000)' -w ws -f csv | head -1"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, cwd=built.root, check=False)
    assert done.stdout == "range\n"
    assert done.stderr == ""


def test_sql_that_writes_is_refused(built: World, capsys: Any) -> None:
    refused(built, "sql", "DROP TABLE runs", "-w", str(built.workspace.root), said="read-only", capsys=capsys)


# wrong input


def test_a_package_of_ones_own_that_shadows_ours_is_named(world: World) -> None:
    own = world.root / "training" / "__init__.py"
    own.parent.mkdir()
    own.write_text("raise RuntimeError('never imported')")
    done = draftmill(world, "status")
    assert done.returncode == 2
    assert f"the package training is {own}" in done.stderr
    assert "rename yours" in done.stderr
    assert done.stderr.count("\n") == 1


def test_the_packages_that_are_checked_are_those_that_there_are() -> None:
    from draftmill.__main__ import PACKAGES

    home = Path(importlib.util.find_spec("draftmill").origin).parent.parent  # type: ignore[union-attr,arg-type]
    assert {path.parent.name for path in home.glob("*/__init__.py")} - {"draftmill"} == set(PACKAGES)


def test_a_manifest_that_is_not_there(world: World, capsys: Any) -> None:
    refused(world, "build", str(world.root / "no.yaml"), "-w", str(world.workspace.root), said="no such", capsys=capsys)
    assert not world.workspace.root.exists()


def test_a_source_that_is_not_there(world: World, capsys: Any) -> None:
    sources = [{"name": "gone", "path": "gone.jsonl", "category": "coding"}]
    path = world.write(sources=sources, mix={"total": 2, "shares": {"coding": 1}})
    refused(world, "build", str(path), "-w", str(world.workspace.root), said="no file there", capsys=capsys)


def _no_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def _no_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()


def _empty_weights(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"")


def _no_config(folder: Path) -> None:
    (folder / "config.json").unlink()


def _no_template(folder: Path) -> None:
    (folder / "chat_template.jinja").unlink()


def _broken_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").write_text("{half")


def _missing_shard(folder: Path) -> None:
    index = {"weight_map": {"w": "model.safetensors", "v": "model-2.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def _broken_index(folder: Path) -> None:
    (folder / "model.safetensors.index.json").write_text("{half")


MODELS = {
    "no weights": (_no_weights, "has no weights (*.safetensors)"),
    "empty weights": (_empty_weights, "model.safetensors is empty"),
    "no tokenizer": (_no_tokenizer, "has no tokenizer (tokenizer.json)"),
    "no config": (_no_config, "has no config.json"),
    "no template": (_no_template, "has no chat template. Name a Jinja file in target.chat_template"),
    "broken tokenizer": (_broken_tokenizer, "its tokenizer cannot be loaded"),
    "missing shard": (_missing_shard, "lacks 1 weight files, model-2.safetensors first"),
    "broken index": (_broken_index, "model.safetensors.index.json"),
}


@pytest.mark.parametrize("what", MODELS)
def test_a_model_folder_that_is_not_whole(world: World, what: str, capsys: Any) -> None:
    breaking, said = MODELS[what]
    breaking(world.tiny_model())
    path = world.write(filters={"prompt_tokens": 32}, **TINY)
    refused(world, "build", str(path), "-w", str(world.workspace.root), said=said, capsys=capsys)
    assert not list(world.workspace.root.glob("builds/*"))


def test_a_template_of_ones_own(world: World, capsys: Any) -> None:
    shutil.rmtree(world.tiny_model().parent / "ws", ignore_errors=True)
    target = {**TINY["target"], "chat_template": "mine.jinja"}
    path = world.write(filters={"prompt_tokens": 32}, target=target)
    arguments = ("build", str(path), "-w", str(world.workspace.root))
    refused(world, *arguments, said="target.chat_template: ", capsys=capsys)
    (world.root / "mine.jinja").write_text("{{ messages[0].content }}")
    assert run_app(arguments) == 0
