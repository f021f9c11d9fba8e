"""A trained drafter on the Hub and in folders: what is said before, what is written, what a stand-in Hub is sent."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import ModelCard

from corpus.artefacts import sha256_file
from corpus.building import commit_build
from corpus.ledger.ingest import ingest_drafter
from corpus.ledger.writer import open_ledger
from draftmill import drafting, publishing_drafter
from draftmill.app import run_app
from tests.draftmill.test_push import TOKEN, Hub, hub  # noqa: F401  # the fixture
from tests.extraction.tiny import save_tiny
from training.export import export_untrained
from training.messages import AcceptanceRow, TrainRow
from training.plan import TrainingPlan
from training.record import acceptance_row, acceptance_rows
from training.shape import shape_for_target

DRAFTER = "d" * 24
LAYERS = (1, 3, 5)
MEASURED = [
    AcceptanceRow("walk", "coding", 40, 80, 4, 0, 410, 1700, 830),
    AcceptanceRow("walk", "general", 60, 30, 4, 0, 910, 230, 455),
]


@dataclass
class Trained:
    """A world with one drafter that looks trained."""

    world: Any
    manifest: Path
    plan: TrainingPlan

    @property
    def folder(self) -> Path:
        return Path(self.world.workspace.drafter(DRAFTER))

    def run(self, command: str, *arguments: str) -> int:
        return run_app([command, str(self.manifest), "-w", str(self.world.workspace.root), *arguments])


@pytest.fixture(scope="module", params=[(1, 0)], ids=str)
def trained(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Trained]:
    from tests.conftest import World

    world = World(tmp_path_factory.mktemp("trained"))
    layers, sliding = request.param
    save_tiny(world.tiny_model(), "llama", vocab_size=107)
    (world.root / "model" / "README.md").write_text("---\nlicense: mit\n---\n\n# Tiny\n")
    sampling = {"share": 0.25, "on": {"temperature": 0.6}, "off": {"temperature": 0.0}}
    path = world.write("mix.yaml", generation={"max_tokens": 64, "thinking": sampling})
    built = world.plan(world.manifest())
    rows = tuple(TrainRow(i, f"r{i}", "coding", "code" if i % 3 else "talk", True, i == 0) for i in range(9))
    plan = TrainingPlan(DRAFTER, built.build_id, "cap", LAYERS, 3, {"a": rows}, 0)
    shape = shape_for_target(
        world.root / "model",
        target_layer_ids=LAYERS,
        draft_layers=layers,
        block_size=4,
        mask_token_id=90,
        sliding_layers=sliding,
    )
    folder = world.workspace.drafter(DRAFTER)
    export = export_untrained(shape, folder / "export", target_dir=world.root / "model")
    (export / "README.md").write_text("an older card")
    walked = acceptance_rows(plan.build_id, MEASURED, "2026-01-01T00:00:00+00:00")
    served = acceptance_row(plan.build_id, "coding", "vllm", 50, 99, 4, "2026-01-02T00:00:00+00:00")
    (folder / "acceptance.json").write_text(json.dumps([*walked, served, {**walked[0], "build_id": "other"}]))
    described = {
        "drafter_id": DRAFTER, "build_id": plan.build_id, "capture_id": "cap", "algorithm": "dflash",
        "training": {"mask_token_id": 90}, "steps": 9, "rows": 8, "path": f"drafters/{DRAFTER}/export",
        "created_at": "2026-01-01T00:00:00+00:00",
        "files": {f"export/{path.name}": sha256_file(path) for path in export.iterdir()},
    }  # fmt: skip
    (folder / "drafter.json").write_text(json.dumps(described))
    with open_ledger(world.workspace, "test") as ledger:
        commit_build(built, world.workspace, ledger)
        ledger.call(lambda connection: ingest_drafter(connection, world.workspace, DRAFTER))
    with pytest.MonkeyPatch.context() as patch:
        for module in (drafting, publishing_drafter):
            patch.setattr(module, "training_plan", lambda *_: plan)
        yield Trained(world, path, plan)


def figures(card: str) -> dict[tuple[str, str], list[str]]:
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in card.splitlines() if "|" in line]
    return {(line[0], line[1].split(" ")[0]): line[2:] for line in lines if len(line) == 6}


def test_a_dry_run_says_files_sizes_and_repository_and_writes_nothing(trained: Trained, capsys: Any) -> None:
    before = sorted(trained.world.workspace.root.rglob("*"))
    assert trained.run("push-drafter", "--repo", "me/demo", "--dry-run") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"drafter {DRAFTER} to me/demo (private)"
    assert [line.split()[0] for line in lines[2:5]] == ["README.md", "config.json", "model.safetensors"]
    assert lines[5].startswith("format: zlab, ")
    assert max(map(len, lines)) <= 80
    assert trained.run("push-drafter", "--repo", "me/demo", "--public", "--format", "speculators", "--dry-run") == 0
    said = capsys.readouterr().out
    assert "me/demo (public)" in said
    assert "format: speculators" in said
    assert sorted(trained.world.workspace.root.rglob("*")) == before


@pytest.mark.parametrize("form", ["zlab", "speculators"])
def test_an_exported_folder_has_a_card_of_now_and_its_formats_config(
    trained: Trained, tmp_path: Path, form: str
) -> None:
    out = tmp_path / "out"
    assert trained.run("export", "--out", str(out), "--format", form) == 0
    assert sorted(path.name for path in out.iterdir()) == ["README.md", "config.json", "model.safetensors"]
    assert (out / "model.safetensors").read_bytes() == (trained.folder / "export/model.safetensors").read_bytes()
    config = json.loads((out / "config.json").read_text())
    if form == "zlab":
        assert config == json.loads((trained.folder / "export/config.json").read_text())
    else:
        assert config["aux_hidden_state_layer_ids"] == [2, 4, 6]
        verifier = config["speculators_config"]["verifier"]
        assert verifier == {
            "architectures": ["LlamaForCausalLM"],
            "name_or_path": str((trained.world.root / "model").resolve()),
        }
    text = (out / "README.md").read_text()
    data = ModelCard(text).data.to_dict()
    assert data["license"] == "mit"  # target and both sources
    assert data["library_name"] == ("transformers" if form == "zlab" else "speculators")
    assert "dflash" in data["tags"]
    assert "base_model" not in data, "a folder of this machine is no model of the Hub"
    found = figures(text)
    assert found["coding", "served"] == ["2.98", "(few rows)", "50", "4"]
    assert found["coding", "sequential"][::2] == ["3.00", "40"]
    assert found["general", "sequential"][0] == "1.50"
    assert found["all, pooled", "sequential"][0] == "2.10"
    assert " to " in found["coding", "sequential"][1]
    for words in (
        "| code | `code.jsonl` |", "| mit | 6 |", "| mit | 2 |", "| coding | 50.0% |", "thinking on | 25% of prompts",
        f"`{trained.plan.build_id}`", '"num_speculative_tokens": 3', "vllm serve TARGET_FOLDER",
    ):  # fmt: skip
        assert words in text, words
    assert ("sglang.launch_server" in text) == (form == "zlab")


@pytest.mark.parametrize("trained", [(3, 2)], indirect=True)
def test_a_mixed_drafter_is_exported_in_zlabs_format_alone(trained: Trained, tmp_path: Path, capsys: Any) -> None:
    assert trained.run("export", "--out", str(tmp_path / "a")) == 0
    assert "VLLM_USE_V2_MODEL_RUNNER=1 vllm serve" in (tmp_path / "a" / "README.md").read_text()
    capsys.readouterr()
    for command in (["export", "--out", str(tmp_path / "b")], ["push-drafter", "--repo", "me/demo", "--dry-run"]):
        assert trained.run(*command, "--format", "speculators") == 2
        said = capsys.readouterr().err
        assert "Use --format zlab" in said
        assert said.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir() if path.name in ("a", "b")] == ["a"]


@pytest.mark.parametrize(
    ("repo", "said"), [("demo", "names no owner; a model"), ("a/b/c", "no name of a model"), ("me/x!", "no name of a")]
)
def test_names_that_are_no_place_are_one_line(trained: Trained, repo: str, said: str, capsys: Any) -> None:
    assert trained.run("push-drafter", "--repo", repo, "--dry-run") == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_what_is_not_trained_says_what_to_run(trained: Trained, capsys: Any) -> None:
    weights = trained.folder / "export" / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(b"half")
    try:
        assert trained.run("push-drafter", "--repo", "me/demo") == 2
    finally:
        weights.write_bytes(whole)
    assert "is not trained yet. Run `draftmill train` first." in capsys.readouterr().err


def test_no_token_is_one_line(trained: Trained, capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    assert trained.run("push-drafter", "--repo", "me/demo") == 2
    assert "no Hub token. Set HF_TOKEN, or run `hf auth login`" in capsys.readouterr().err


@pytest.fixture
def online(hub: str, monkeypatch: Any, tmp_path: Path) -> str:  # noqa: F811
    """The stand-in Hub as the client's own."""
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", hub)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "token"))
    return hub


@pytest.mark.parametrize("form", ["zlab", "speculators"])
def test_a_push_sends_weights_config_and_card_and_no_path_of_this_machine(
    trained: Trained, online: str, form: str, capsys: Any, caplog: Any
) -> None:
    with caplog.at_level(logging.DEBUG):
        assert trained.run("push-drafter", "--repo", "me/demo", "--format", form, "--revision", "next") == 0
    said = capsys.readouterr()
    assert said.out.splitlines()[-1].startswith(online)
    assert TOKEN not in said.out + said.err
    assert (Hub.made["name"], Hub.made["visibility"]) == ("demo", "private")
    assert Hub.made.get("type", "model") == "model"
    assert Hub.branches == ["next"]
    assert set(Hub.files) == {"README.md", "config.json", "model.safetensors"}
    assert Hub.files["model.safetensors"] == (trained.folder / "export/model.safetensors").read_bytes()
    for content in Hub.files.values():
        assert str(trained.world.root).encode() not in content
    assert b'"model": "me/demo"' in Hub.files["README.md"]
    if form == "speculators":
        verifier = json.loads(Hub.files["config.json"])["speculators_config"]["verifier"]
        assert verifier["name_or_path"] == "model"
    left = [path.name for path in trained.world.workspace.root.iterdir() if "push" in path.name]
    assert not left


@pytest.mark.parametrize(
    ("repo", "said"),
    [("me/forbidden", "refuses this token (403)"), ("me/public", "is public, and this push is private")],
)
def test_a_hub_that_refuses_is_one_line(trained: Trained, online: str, repo: str, said: str, capsys: Any) -> None:
    assert trained.run("push-drafter", "--repo", repo) == 2
    error = capsys.readouterr().err
    assert said in error
    assert TOKEN not in error
    assert error.count("\n") == 1
    assert not Hub.files


def test_a_hub_that_is_not_there_is_one_line(trained: Trained, online: str, capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    assert trained.run("push-drafter", "--repo", "me/demo") == 2
    assert "Is the Hub reachable (HF_ENDPOINT)?" in capsys.readouterr().err


def test_only_what_the_description_lists_is_sent_and_an_edited_card_stops_nothing(
    trained: Trained, online: str, tmp_path: Path
) -> None:
    export = trained.folder / "export"
    card = (export / "README.md").read_text()
    (export / "notes.txt").write_text("a secret")
    (export / "private").mkdir()
    (export / "README.md").write_text("edited by hand")
    listed = {"README.md", "config.json", "model.safetensors"}
    try:
        assert trained.run("export", "--out", str(tmp_path / "a")) == 0
        assert {path.name for path in (tmp_path / "a").iterdir()} == listed
        assert "edited by hand" not in (tmp_path / "a" / "README.md").read_text()
        assert trained.run("push-drafter", "--repo", "me/demo") == 0
        assert set(Hub.files) == listed
    finally:
        (export / "notes.txt").unlink()
        (export / "private").rmdir()
        (export / "README.md").write_text(card)


def test_a_dry_run_lists_what_is_sent_and_nothing_else(trained: Trained, capsys: Any) -> None:
    (trained.folder / "export" / "notes.txt").write_text("a secret")
    try:
        assert trained.run("push-drafter", "--repo", "me/demo", "--dry-run") == 0
    finally:
        (trained.folder / "export" / "notes.txt").unlink()
    assert "notes" not in capsys.readouterr().out


@pytest.mark.parametrize("place", ["file/below", "x" * 250, "/proc/x", "link"])
def test_a_place_that_is_none_is_one_line(trained: Trained, tmp_path: Path, place: str, capsys: Any) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "link").symlink_to("gone")
    assert trained.run("export", "--out", str(tmp_path / place)) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith(f"draftmill: {tmp_path / place}: ")
    assert "Traceback" not in error
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "link"]
