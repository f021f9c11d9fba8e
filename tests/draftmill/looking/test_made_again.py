"""The manifest that a report prints makes the build again: it names commits, and says which paths were cut."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from corpus.ledger.query import query
from corpus.locked import pinned_lock
from draftmill.looking.report import make_report
from tests.corpus.standin_hub import CARD, COMMIT, CONVERTED, Hub, Repository, draftmill, jsonl, parquet, serving

World = Any


def printed(page: str) -> dict[str, Any]:
    """The manifest of a Markdown report."""
    manifest: dict[str, Any] = json.loads(page.rsplit("```json\n", 1)[1].split("\n```", 1)[0])
    return manifest


def test_the_printed_manifest_of_a_hub_build_names_commits_and_selects_the_same_prompts(world: World) -> None:
    Hub.datasets["owner/again"] = Repository(
        {
            "README.md": CARD,
            "data/a.parquet": parquet("a", 30),
            "more/b.jsonl": jsonl("b", 9),
            "e/c.jsonl": jsonl("a", 2),
        },
        converted={"default/train/0000.parquet": parquet("d", 20)},
    )
    world.tiny_model()
    at = "hf://datasets/owner/again"
    path = world.write(
        mix={"total": 12, "shares": {"coding": 1, "general": 1}, "holdout": 0.1},
        sources=[
            {"name": "named", "dataset": "owner/again", "category": "coding"},
            {"name": "copy", "dataset": "owner/again", "revision": CONVERTED, "category": "coding"},
            {"name": "path", "path": f"{at}/more/*.jsonl", "category": "general"},
            {"name": "branch", "path": f"{at}@main/more/b.jsonl", "category": "general"},
        ],
        decontaminate={"ngram": 3, "against": [{"path": f"{at}/e/*.jsonl", "field": "prompt"}]},
    )

    def built(name: str) -> tuple[str, list[Any]]:
        done = draftmill(hub, world.root, "build", name, "-w", "ws")
        assert done.returncode == 0, done.stderr
        page = draftmill(hub, world.root, "report", name, "-w", "ws", "--markdown", "--out", "-").stdout
        sql = "SELECT prompt_id, category, holdout FROM selections SEMI JOIN latest_build USING (build_id) ORDER BY ALL"
        return page, query(world.workspace, sql).rows()

    with serving() as hub:
        page, prompts = built(path.name)
        manifest = printed(page)
        copy = f"{CONVERTED}@{'d' * 40}"
        assert [source["revision"] for source in manifest["sources"]] == [COMMIT, copy, COMMIT, COMMIT]
        assert [one["revision"] for one in manifest["decontaminate"]["against"]] == [COMMIT]
        assert "@main" not in json.dumps(manifest)
        (world.root / "again.yaml").write_text(json.dumps(manifest))
        assert built("again.yaml")[1] == prompts


def test_the_target_is_at_the_commit_that_answered(world: World) -> None:
    target = {"model": "org/double", "max_model_len": 512, "dtype": "float32"}
    world.tell(world.manifest(target=target))
    build_id = query(world.workspace, "SELECT build_id FROM latest_build").item()
    page = make_report(world.workspace, build_id, world.root, markdown=True)
    assert printed(page)["target"]["revision"] == "rev1"
    assert "is not known" not in page


def test_a_target_that_answered_nothing_has_no_commit_and_a_cut_path_is_said(world: World) -> None:
    sources = [{"name": "code", "path": str(world.root / world.prompts("code", 40)), "category": "coding"}]
    mix = {"total": 9, "shares": {"coding": 1}}
    for model, said in (("org/double", "`target.revision` is not known"), (str(world.tiny_model()), "`target.model`")):
        path = world.write(target={"model": model, "max_model_len": 512}, sources=sources, mix=mix)
        with serving() as hub:
            draftmill(hub, world.root, "build", path.name, "-w", "ws")
            page = draftmill(hub, world.root, "report", path.name, "-w", "ws", "--markdown", "--out", "-").stdout
        assert said in page
        assert "`sources[0].path`" in page
        assert str(world.root) not in page


def test_what_the_lock_does_not_know_stays(tmp_path: Path) -> None:
    """Two sets that are called alike may be of two commits."""
    against = [{"dataset": "o/e", "path": None, "config": None, "split": "test", "field": "q", "revision": "main"}] * 2
    local = {"name": "s", "path": "a.jsonl", "dataset": None, "revision": "main"}
    lock = {
        "manifest": {
            "target": {"model": "org/double", "revision": "main"},
            "sources": [local],
            "decontaminate": {"against": against},
        },
        "sources": [{"source": "s", "revision": "5" * 40}],
        "eval_sets": [{"set": "o/e test", "field": "q", "revision": digit * 40} for digit in "12"],
    }
    assert pinned_lock(lock, ("other/model", "9" * 40), tmp_path) == lock
    (tmp_path / "org" / "double").mkdir(parents=True)
    assert pinned_lock(lock, ("org/double", "9" * 40), tmp_path) == lock
