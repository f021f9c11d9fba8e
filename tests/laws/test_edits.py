"""A manifest that is edited again and again in one workspace: each build is the one that a fresh workspace makes."""

from __future__ import annotations

import copy
import random
from collections import Counter
from typing import Any

import pytest

from corpus.building import BuildPlan, commit_build, plan_build, selected_rows
from corpus.candidates import TokenRule
from corpus.errors import UserError
from corpus.ledger.query import query
from corpus.ledger.writer import open_ledger
from corpus.workspace import Workspace

World = Any
Body = dict[str, Any]
VIEWS = {
    "builds": "SELECT * EXCLUDE (created_at) FROM builds WHERE build_id = '{}' ORDER BY ALL",
    "sources": "SELECT * FROM sources WHERE build_id = '{}' ORDER BY ALL",
    "composition": "SELECT * FROM composition WHERE build_id = '{}' ORDER BY ALL",
    "funnel": "SELECT * FROM funnel WHERE build_id = '{}' ORDER BY ALL",
    "licences": "SELECT p.license FROM pools p JOIN sources USING (pool_id) WHERE build_id = '{}' ORDER BY ALL",
}  # fmt: skip


def sentences(tag: str, count: int) -> list[dict[str, Any]]:
    """Rows of which some are alike, some are equal but for case, and every fourth is the same in all sources."""
    words = [
        f"{tag if i % 4 else 'shared'} number {i // 2} of the {'long' if i % 3 else 'Long'} list" for i in range(count)
    ]
    return [{"prompt": text, "kind": "py" if i % 2 else "m"} for i, text in enumerate(words)]


def begin(world: World) -> Body:
    for tag in ("one", "two", "three"):
        world.jsonl(f"{tag}.jsonl", sentences(tag, 24))
    world.jsonl("evals.jsonl", [{"q": "one number 3 of the"}])
    sources = [
        {"name": "a", "path": "one.jsonl", "category": {"column": "kind", "map": {"py": "coding", "m": "math"}}},
        {"name": "a.b", "path": "two.jsonl", "category": "coding", "license": "mit"},
    ]
    mix = {"total": 12, "shares": {"coding": 2, "math": 1}, "shortage": "rescale", "holdout": 0.2}
    body: Body = world.body(sources=sources, mix=mix)
    return body | {"dedup": {}, "filters": {}}


def edit(world: World, body: Body, which: str, number: int) -> None:  # noqa: PLR0912
    """One thing that a person does to a manifest, or to a file that it names."""
    mix, sources = body["mix"], body["sources"]
    source = sources[number % len(sources)]
    labelled = {"column": "kind", "map": {"py": "coding", "m": ("math", "coding", "general")[number % 3]}}
    if which == "shares":
        mix["shares"] = {"coding": 1 + number % 5, "math": 1 + number % 3}
    elif which == "total":
        mix["total"] = 3 + number % 20
    elif which == "holdout":
        mix["holdout"] = (0.0, 0.1, 0.4)[number % 3]
    elif which == "tolerance":
        mix["tolerance"] = float(number % 7)
    elif which == "seed":
        body["seed"] = number % 3
    elif which == "name":
        body["name"] = f"run-{number % 3}"
    elif which == "filters":
        body["filters"] = ({}, {"prompt_chars": [30, 90]}, {"prompt_tokens": 25}, {"near_empty": 27})[number % 4]
    elif which == "near":
        body["dedup"] = ({}, {"near": 0.5}, {"near": 0.8}, {"exact": False})[number % 4]
    elif which == "sets":
        against = [{"path": "evals.jsonl", "field": "q"}]
        body["decontaminate"] = ({"ngram": 3, "against": against}, {"ngram": 5, "against": against}, None)[number % 3]
    elif which == "items":
        world.jsonl("evals.jsonl", [{"q": f"two number {number % 5} of the"}, {"q": "no such words"}])
    elif which == "rows":
        world.jsonl("two.jsonl", sentences("two", 20 + number % 9))
    elif which == "add" and len(sources) < 4:
        sources.append({"name": f"s{number % 9}-{len(sources)}", "path": ("three.jsonl", "one.jsonl")[number % 2]})
    elif which == "remove" and len(sources) > 1:
        sources.remove(source)
    elif which == "rename":
        source["name"] = f"r{number % 50}-{len({s['name'] for s in sources})}-{sources.index(source)}"
    elif which == "priority":
        source["priority"] = number % 3
    elif which == "weight":
        source["weight"] = 0.5 + number % 3
    elif which == "licence":
        source["license"] = ("mit", "cc-by-4.0", None)[number % 3]
    elif which == "category":
        source["category"] = (labelled, "coding", "math", "classify")[number % 4]
    elif which == "order":
        sources.reverse()
    elif which == "where":
        source["where"] = ("kind = 'py'", None, "length(prompt) > 35")[number % 3]
    elif which == "limit":
        source["limit"] = (7, None, 15)[number % 3]


EDITS = [
    "shares",
    "total",
    "holdout",
    "tolerance",
    "seed",
    "name",
    "filters",
    "near",
    "sets",
    "items",
    "rows",
    "add",
    "remove",
    "rename",
    "priority",
    "weight",
    "licence",
    "category",
    "order",
    "where",
    "limit",
]


def built(world: World, body: Body, workspace: Workspace) -> tuple[BuildPlan, dict[str, Any]] | str:
    """The build, its rows and what the ledger says of it; or why it cannot be."""
    rule = TokenRule(lambda rows: [len(messages) // 4 for messages, _ in rows], "quarters")
    try:
        with open_ledger(workspace, "build") as ledger:
            plan = plan_build(world.manifest(**body), world.root, workspace, rule)
            commit_build(plan, workspace, ledger)
    except UserError as error:
        return str(error)
    said = {name: query(workspace, sql.format(plan.build_id)).rows() for name, sql in VIEWS.items()}
    said["rows"] = selected_rows(workspace, plan).sort("prompt_id", "replica").rows()
    return plan, said


@pytest.mark.parametrize("seed", range(3))
def test_after_any_edits_a_build_is_the_one_that_a_fresh_workspace_makes(world: World, seed: int) -> None:
    chance = random.Random(seed)
    edits = [(which, chance.randrange(1000)) for which in chance.sample(EDITS, len(EDITS) // 2)]
    body = begin(world)
    built(world, body, world.workspace)
    for number, (which, value) in enumerate(edits):
        edit(world, body, which, value)
        used = built(world, copy.deepcopy(body), world.workspace)
        fresh = built(world, copy.deepcopy(body), Workspace(world.root / f"fresh-{number}"))
        if isinstance(used, str) or isinstance(fresh, str):
            assert used == fresh
            continue
        assert (used[0].candidates_id, used[0].build_id) == (fresh[0].candidates_id, fresh[0].build_id)
        assert used[1] == fresh[1]
        left: Counter[str] = Counter()
        for _, source, reason, rows in used[1]["funnel"]:
            left[source] += rows if reason == "read" else -rows
        assert set(left.values()) == {0}
