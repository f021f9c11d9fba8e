"""Two builds of the same prompts in one workspace: what one has decided stays decided, whatever the other accepts.

Answers of the fake engine are 1 to 11 tokens long here; a budget of 6 cuts about half of them. The builds differ in
their total, and in their policies, which are no part of a recipe: they share their answers.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from corpus.ledger.query import query
from corpus.ledger.rebuild import rebuild_workspace
from corpus.ledger.verify import verify
from draftmill import generating
from draftmill.app import run_app
from generation import run as running

World = Any
HAS = """
    SELECT response_id, finish_reason FROM build_responses JOIN accepted_responses USING (response_id)
    WHERE build_id = ? AND left_out IS NULL ORDER BY ALL
"""


@pytest.fixture
def generate(world: World, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> Callable[..., str]:
    """`draftmill generate` with the fake engine; returns the id of its build."""
    world.tiny_model()
    talk = world.prompts("talk", 200)
    fake = functools.partial(generating.GenerationRun, factory="generation.fake:create")
    monkeypatch.setattr(generating, "GenerationRun", fake)

    def run(name: str, total: int, *options: str, **generation: Any) -> str:
        body = world.body(
            name=name,
            sources=[{"name": "talk", "path": talk, "category": "general"}],
            mix={"total": total, "shares": {"general": 1}, "holdout": 0.0},
            generation={"max_tokens": 6, **generation},
            engine={"extra": {"mean_tokens": 6}},
        )
        manifest = world.root / f"{name}.yaml"
        manifest.write_text(json.dumps(body))
        arguments = ["generate", str(manifest), "-w", str(world.workspace.root), "--devices", "1"]
        code = run_app([*arguments, *options])
        said = capsys.readouterr().err
        assert code == 0, said
        return str(query(world.workspace, f"SELECT build_id FROM builds WHERE name = '{name}'").item())

    return run


def has(world: World, build: str) -> dict[str, str]:
    return dict(query(world.workspace, HAS.replace("?", f"'{build}'")).iter_rows())


def views(world: World, build: str) -> dict[str, Any]:
    """What the views say that a build has, lacks, and why."""
    composition = f"SELECT rows, prompts FROM composition WHERE build_id = '{build}' AND stage = 'accepted'"
    unfinished = f"SELECT prompt_id, turn, why FROM unfinished WHERE build_id = '{build}' ORDER BY ALL"
    provenance = f"SELECT response_id, state = 'accepted', reason FROM provenance WHERE build_id = '{build}' ORDER BY 1"
    return {name: query(world.workspace, sql).rows() for name, sql in (
        ("composition", composition), ("unfinished", unfinished), ("provenance", provenance)
    )}  # fmt: skip


def proven(world: World, build: str) -> dict[str, int]:
    """How many of a build's answers verify counts in each state; fails where anything is wrong."""
    findings = verify(world.workspace)
    assert [one for one in findings if not one.holds] == []
    said = next(one.said for one in findings if one.what == "states" and one.build == build)
    counts = {state: int(n) for n, state in re.findall(r"(\d+) ([a-z][a-z ]*[a-z])", said)}
    assert counts.pop("wanted") == sum(counts.values())
    return counts


def test_a_build_that_drops_cut_answers_has_none_after_another_has_kept_them(world: World, generate: Any) -> None:
    strict = generate("strict", 20, truncated="drop")
    before, shown = has(world, strict), views(world, strict)
    assert len(before) in (19, 20, 21)  # one prompt more or less is always allowed
    rejected = [why for _, _, why in shown["unfinished"]]
    assert rejected.count("truncated") > 5
    keeping = generate("keeping", 30, truncated="keep")
    both = "SELECT count(*) FROM responses a JOIN responses b USING (response_id) WHERE a.reason = 'truncated' AND b.state = 'accepted'"  # noqa: E501
    assert query(world.workspace, both).item() > 5
    assert "length" in has(world, keeping).values()
    assert (has(world, strict), views(world, strict)) == (before, shown)
    counts = proven(world, strict)
    assert (counts["accepted"], counts["unfinished"]) == (len(before), 0)
    assert counts["left out"] > 5
    assert counts["left out"] + counts["rejected"] == len(rejected)
    rebuild_workspace(world.workspace)
    assert (has(world, strict), views(world, strict)) == (before, shown)
    generate("strict", 20, truncated="drop")
    assert (has(world, strict), views(world, strict)) == (before, shown)
    # its own policy grown milder takes them back, and its shares hold again
    generate("strict", 20, truncated="keep")
    assert len(has(world, strict)) in (19, 20, 21)
    assert "length" in has(world, strict).values()


def test_an_answer_that_an_engine_failed_on_stays_out_until_the_build_asks_again(
    world: World, generate: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed: set[str] = set()

    def fault(result: Any, *_: Any) -> str | None:
        if int(result.response_id[-2:], 16) % 3:
            return None
        failed.add(result.response_id)
        return "no answer at all"

    with monkeypatch.context() as broken:
        broken.setattr(running, "fault", fault)
        first = generate("first", 20)
    before, shown = has(world, first), views(world, first)
    assert len(failed) > 3
    assert failed.isdisjoint(before)
    second = generate("second", 25, "--retry-rejected")
    assert failed & set(has(world, second))
    assert (has(world, first), views(world, first)) == (before, shown)
    assert proven(world, first)["accepted"] == len(before)
    generate("first", 20, "--retry-rejected")
    assert failed & set(has(world, first))
    assert proven(world, first)["accepted"] in (19, 20, 21)
