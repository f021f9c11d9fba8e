"""`draftmill verify` as a person runs it: what it prints, its exit codes, which build is meant, beside a run or not."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import duckdb
import pytest

from corpus.ledger.findings import Finding
from corpus.ledger.query import query
from draftmill.app import run_app
from draftmill.verifying import proof_lines

World = Any

CHAIN = """
import functools, sys
from draftmill import generating
from draftmill.app import run_app
generating.GenerationRun = functools.partial(generating.GenerationRun, factory="generation.fake:create")
sys.exit(run_app(sys.argv[1:]))
"""


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Two manifests built and the first answered, by the commands themselves; and an import."""
    from tests.conftest import World as Small

    world = Small(tmp_path_factory.mktemp("finished"))
    world.tiny_model()
    small, large = world.write("small.yaml"), called(world, "large", mix=mix(26))
    said = [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "So."}]
    world.jsonl("team.jsonl", [{"messages": said}])
    for words in (
        ("generate", str(small), "--devices", "1"),
        ("build", str(large)),
        ("import", str(world.root / "team.jsonl"), "--model", "m", "--name", "team"),
    ):
        line = [sys.executable, "-c", CHAIN, *words, "-w", str(world.workspace.root)]
        done = subprocess.run(line, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    return world


def called(world: World, name: str, **changes: Any) -> Path:
    """A manifest of this name."""
    path: Path = world.write(f"{name}.yaml", **changes)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"name": name}))
    return path


def mix(total: int) -> dict[str, Any]:
    return {"total": total, "shares": {"coding": 1, "general": 1}, "holdout": 0.1}


@pytest.fixture
def copy(finished: World, tmp_path: Path) -> Any:
    from tests.conftest import World as Small

    shutil.copytree(finished.root, tmp_path / "copy")
    return Small(tmp_path / "copy")


def verified(world: World, *arguments: str, capsys: Any) -> tuple[int, list[str], str]:
    """(exit code, lines of the proof, what else was said)."""
    code = run_app(["verify", *arguments, "-w", str(world.workspace.root)])
    said = capsys.readouterr()
    return code, said.out.splitlines(), said.err


def builds(world: World) -> dict[str, str]:
    return dict(query(world.workspace, "SELECT name, build_id FROM builds").rows())


def headed(lines: list[str]) -> list[str]:
    """The names of the blocks."""
    first = next(at for at, line in enumerate(lines) if line.endswith("UTC")) + 1
    return [line for line in lines[first:-1] if not line.startswith(" ")]


def test_a_sound_workspace_is_proven_in_80_columns_and_exits_0(finished: World, capsys: Any) -> None:
    code, lines, errors = verified(finished, capsys=capsys)
    assert (code, errors) == (0, "")
    assert max(map(len, lines[1:])) <= 80
    assert lines[-1].startswith("all ")
    assert "BREACH" not in "\n".join(lines)
    there = builds(finished)
    assert set(headed(lines)) == {f"{name} {build_id}" for name, build_id in there.items()} | {"workspace"}
    wanted = query(
        finished.workspace, f"SELECT count(*) FROM build_responses WHERE build_id = '{there['small']}'"
    ).item()
    assert any(f"{wanted} wanted = " in line for line in lines)


def test_a_breach_is_named_with_its_ids_and_the_next_step_and_exits_3(copy: World, capsys: Any) -> None:
    chosen = query(copy.workspace, "SELECT min(response_id) FROM responses").item()
    with duckdb.connect(str(copy.workspace.snapshot)) as connection:
        connection.execute("UPDATE responses SET state = 'rejected', reason = NULL WHERE response_id = ?", [chosen])
    code, lines, _ = verified(copy, capsys=capsys)
    assert code == 3
    breaches = [at for at, line in enumerate(lines) if line.startswith("  BREACH")]
    assert [lines[at].split()[1] for at in breaches] == ["states", "response"]
    block = "\n".join(lines[breaches[0] :])
    assert f"1 rejected without a reason: {chosen}" in block
    assert "`draftmill ledger rebuild`" in block
    assert lines[-1].endswith(" checks breached")
    assert lines[-1].startswith("2 of ")
    assert max(map(len, lines[1:])) <= 80


def test_one_build_is_meant_by_its_manifest_its_id_or_its_name(finished: World, capsys: Any) -> None:
    there = builds(finished)
    for named, name in (
        (str(finished.root / "small.yaml"), "small"),
        (str(finished.root / "large.yaml"), "large"),
        (there["large"], "large"),
        (there["small"][:8], "small"),
        ("small", "small"),
        ("team", "team"),
    ):
        code, lines, _ = verified(finished, named, "--all", "--fast", capsys=capsys)
        assert code == 0
        assert headed(lines) == [f"{name} {there[name]}", "workspace"]


def test_what_is_not_there_exits_2_with_one_line(finished: World, world: World, capsys: Any) -> None:
    edited = finished.write("edited.yaml", mix=mix(30))
    never = str(finished.root / "never.yaml")
    for place, arguments, said in (
        (world, (), "holds no published ledger"),
        (finished, (str(edited),), "is not built in"),
        (finished, (never,), "never.yaml"),
        (finished, ("nobody",), "neither a file nor a build"),
    ):
        code, lines, errors = verified(place, *arguments, capsys=capsys)
        assert (code, lines) == (2, [])
        assert said in errors
        assert errors.startswith("draftmill: ")
        assert errors.count("\n") == 1
    assert not world.workspace.root.exists()


def test_a_tolerance_and_a_recipe_make_no_other_build(finished: World, capsys: Any) -> None:
    changed = finished.write("tolerant.yaml", mix=mix(20) | {"tolerance": 5}, generation={"max_tokens": 9})
    code, lines, errors = verified(finished, str(changed), capsys=capsys)
    assert code == 0, errors
    assert headed(lines) == [f"small {builds(finished)['small']}", "workspace"]


def test_a_run_that_is_writing_is_said_and_not_waited_for(finished: World, capsys: Any) -> None:
    with finished.workspace.coordinate("generate"):
        code, lines, _ = verified(finished, capsys=capsys)
    assert code == 0
    assert "`draftmill generate`" in " ".join(lines[:4])
    assert "is writing here" in " ".join(lines[:4])


def test_a_snapshot_that_is_damaged_exits_2(copy: World, capsys: Any) -> None:
    copy.workspace.snapshot.write_bytes(b"no database" * 2000)
    code, lines, errors = verified(copy, capsys=capsys)
    assert (code, lines) == (2, [])
    assert "cannot be read" in errors


def test_a_lock_that_is_damaged_hides_its_build_alone(copy: World, capsys: Any) -> None:
    there = builds(copy)
    (copy.workspace.build(there["large"]) / "manifest.lock.yaml").write_text(json.dumps([1]))
    assert verified(copy, str(copy.root / "small.yaml"), capsys=capsys)[0] == 0
    code, _, errors = verified(copy, str(copy.root / "large.yaml"), capsys=capsys)
    assert code == 2
    assert "is not built in" in errors


def test_the_name_of_a_file_is_never_broken(finished: World) -> None:
    name = f"{'0123456789abcdef' * 6}.safetensors"
    finding = Finding(
        "hidden shards", 1, 1, (f"a-b {name}: not a whole hidden-state shard (3 bytes, expected 9)",), "1", (), "", None
    )
    lines = proof_lines([finding], finished.workspace)
    (line,) = [line for line in lines if name in line]
    assert line.strip() == f"{name}:"
    assert all(len(other) <= 80 for other in lines if other != line)
