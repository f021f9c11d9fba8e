"""The difference of two builds: its sums hold in every group, and it is what `generate` would then find to do.

What becomes of answers is held to tests/generation/plain_plan.py: diff and generation share the code for it.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from corpus.building import commit_build, selected_rows, taken_groups
from corpus.errors import UserError
from corpus.identity import drafter_id
from corpus.ledger.query import query
from corpus.ledger.writer import LedgerWriter, open_ledger
from corpus.manifest import Manifest
from corpus.manifest_file import parse_manifest
from corpus.records import decode_prompt
from corpus.reuse import ImportedConversation
from draftmill.answer_lengths import Asked, expected_lengths
from draftmill.app import run_app
from draftmill.changes import SourceRead, depth_changes, manifest_changes, recipe_changes, training_changes
from draftmill.differing import DiffPlan, Rate, plan_diff
from draftmill.session import Session
from draftmill.taken import light_rows, taken_by_files
from generation.plan import (
    LABELS,
    ROW,
    Recipe,
    judged_answers,
    make_recipe,
    plan_generation,
    policy_of,
    wanted_answers,
)
from tests.draftmill import imports
from tests.generation.plain_plan import Ended, Wanted, done_frame, plain_plan

TARGET = {"model": "m", "revision": "r", "tokenizer": "t", "template": "p"}
CATEGORIES = ("coding", "math")
PROMPTS = {
    "prompt_id": pl.String, "replica": pl.Int32, "category": pl.String, "source": pl.String, "holdout": pl.Boolean,
    "turns": pl.Int32, "recorded": pl.Boolean,
}  # fmt: skip
MEANS: dict[str, Any] = {
    "category": pl.String, "recipe_id": pl.String, "answers": pl.Int64, "tokens": pl.Int64, "cut": pl.Int64,
    "cut_tokens": pl.Int64,
}  # fmt: skip


def manifest(**generation: Any) -> Manifest:
    body = {
        "name": "m",
        "mix": {"total": 10, "shares": dict.fromkeys(CATEGORIES, 1)},
        "sources": [{"name": name, "path": name, "category": name} for name in CATEGORIES],
        "target": {"model": "m"},
        "generation": {"max_tokens": 100, "thinking": {"share": 0.5}, **generation},
    }
    return parse_manifest(json.dumps(body), "m")


def recipes(of: Manifest) -> dict[tuple[str, bool], Recipe]:
    return {(c, thinking): make_recipe(of, TARGET, c, thinking) for c in CATEGORIES for thinking in (False, True)}


def prompt_id(number: int) -> str:
    return hashlib.sha256(str(number).encode()).hexdigest()[:32]


def turns(number: int) -> int:
    return 1 + number % 3


def prompts(rows: list[tuple[int, int, str, bool]]) -> pl.DataFrame:
    """(number, replica, category, holdout) of each row; a prompt's turns go by its number."""
    return pl.DataFrame(
        [
            (prompt_id(number), replica, category, f"{category}-{number % 2}", held, turns(number), number % 5 == 0)
            for number, replica, category, held in rows
        ],
        schema=PROMPTS, orient="row",
    )  # fmt: skip


builds = st.lists(
    st.tuples(st.integers(0, 30), st.integers(0, 2), st.sampled_from(CATEGORIES), st.booleans()),
    max_size=30, unique_by=lambda row: row[:2],
).map(prompts)  # fmt: skip


ends = st.sampled_from(
    [
        None, Ended(True), Ended(True, None, "length"), Ended(True, notes=("no_answer",)), Ended(False, "ended_abort"),
        Ended(False, "truncated"), Ended(False, "earlier_turn_rejected"), Ended(False, "repetition"),
    ]
)  # fmt: skip
ledgers = st.lists(ends, min_size=1, max_size=7)
sections = st.sampled_from(
    [{}, {"truncated": "drop"}, {"by_category": {"math": {"reject": ["no_answer"], "truncated": "drop"}}}]
)


def ledger(new: pl.DataFrame, states: list[Ended | None]) -> dict[str, Ended]:
    """What a ledger has of wanted answers, whose ends go around."""
    wanted = plain_plan(manifest(), TARGET, new, {})
    ended = {one.response_id: states[i % len(states)] for i, one in enumerate(wanted)}
    return {response_id: end for response_id, end in ended.items() if end is not None}


def diff(
    old: pl.DataFrame,
    new: pl.DataFrame,
    states: list[Ended | None],
    means: pl.DataFrame | None = None,
    imported: dict[str, list[ImportedConversation]] | None = None,
    told_thinking: bool | None = None,
    **section: Any,
) -> tuple[DiffPlan, list[Wanted]]:
    """The diff, and the plain plan of NEW's answers over the same ledger."""
    of, done = manifest(**section), ledger(new, states)
    policies = {category: policy_of(of, category) for category in CATEGORIES}
    wanted = wanted_answers(of, recipes(of), new, imported)
    answers = judged_answers(wanted, done_frame(done), policies)
    asked = [
        Asked(category, thinking, recipe.max_tokens, "m", frozenset([recipe.recipe_id]))
        for (category, thinking), recipe in recipes(of).items()
    ]
    told = as_told(pl.DataFrame(schema=MEANS) if means is None else means, told_thinking)
    plan = plan_diff(("a", "b"), old, new, answers, expected_lengths(told, asked), None)
    return plan, plain_plan(of, TARGET, new, done, imported=imported)


def as_told(means: pl.DataFrame, thinking: bool | None = None) -> pl.DataFrame:
    """Answers as the ledger counts them by their length: of each row the cut ones, and the others."""
    rows = [
        (category, recipe_id, "m", thinking, tokens / answers, cut, answers)
        for category, recipe_id, all_, sum_, cut_, cut_sum in means.iter_rows()
        for cut, answers, tokens in ((True, cut_, cut_sum), (False, all_ - cut_, sum_ - cut_sum))
        if answers
    ]
    schema = {
        "category": pl.String, "recipe_id": pl.String, "model": pl.String, "thinking": pl.Boolean,
        "tokens": pl.Float64, "cut": pl.Boolean, "answers": pl.Int64,
    }  # fmt: skip
    return pl.DataFrame(rows, schema=schema, orient="row")


def counted(plain: list[Wanted]) -> dict[tuple[Any, ...], tuple[int, int, int, int]]:
    """(wanted, reused, rejected, to generate) of each group that wants something."""
    groups: dict[tuple[Any, ...], list[str]] = {}
    for one in plain:
        groups.setdefault((one.category, one.source, one.holdout), []).append(one.state)
    return {
        group: (
            len(states), states.count("accepted"), states.count("rejected") + states.count("left_out"),
            states.count("to_make"),
        )
        for group, states in groups.items()
    }  # fmt: skip


def sizes(rows: pl.DataFrame) -> dict[tuple[Any, ...], int]:
    return {tuple(row[:3]): row[3] for row in rows.group_by(LABELS).len().iter_rows()}


@given(builds, builds, ledgers, sections)
def test_the_sums_hold_in_every_group_and_the_answers_are_those_of_the_plain_plan(
    old: pl.DataFrame, new: pl.DataFrame, states: list[Ended | None], section: dict[str, Any]
) -> None:
    plan, plain = diff(old, new, states, **section)
    groups = {(row.category, row.source, row.holdout): row for row in plan.rows}
    assert {key: row.kept + row.added for key, row in groups.items() if row.kept + row.added} == sizes(new)
    assert {key: row.kept + row.removed for key, row in groups.items() if row.kept + row.removed} == sizes(old)
    assert all(row.reused + row.rejected + row.to_generate == row.wanted for row in plan.rows)
    assert {
        key: (row.wanted, row.reused, row.rejected, row.to_generate) for key, row in groups.items() if row.wanted
    } == counted(plain)
    assert plan.moved == new.join(old, on=ROW).height - sum(row.kept for row in plan.rows)


@given(builds, st.dictionaries(st.integers(0, 30), st.integers(1, 3), max_size=20), ledgers)
def test_imported_answers_count_as_the_plain_plan_has_them(
    new: pl.DataFrame, rows: dict[int, int], states: list[Ended | None]
) -> None:
    imported = {
        prompt_id(number): [
            ImportedConversation(
                f"import-{row % 2}", "i" * 24, tuple(f"{number}-{row}-{t}" for t in range(turns(number)))
            )
            for row in range(count)
        ]
        for number, count in rows.items()
    }
    plan, plain = diff(new, new, states, imported=imported)
    groups = {(row.category, row.source, row.holdout): row for row in plan.rows}
    assert {
        key: (row.wanted, row.reused, row.rejected, row.to_generate) for key, row in groups.items() if row.wanted
    } == counted(plain)
    assert dict(plan.imported) == Counter(one.imported_from for one in plain if one.imported_from)


@given(builds, ledgers)
def test_a_diff_costs_what_generation_plans(new: pl.DataFrame, states: list[Ended | None]) -> None:
    plan, _ = diff(new, new, states)
    generation = plan_generation(manifest(), TARGET, "b", new, done_frame(ledger(new, states)))
    assert plan.sum("wanted") == generation.answers.height
    assert (plan.sum("reused"), plan.sum("rejected")) == (generation.accepted, generation.rejected)
    assert plan.sum("to_generate") == generation.to_make


@given(builds)
def test_wanted_answers_are_those_of_the_plain_plan(new: pl.DataFrame) -> None:
    of = manifest(by_category={"math": {"thinking_share": 1.0, "max_tokens": 7}})
    wanted = wanted_answers(of, recipes(of), new)
    columns = ["response_id", "prompt_id", "replica", "turn", "recipe_id", "max_tokens"]
    assert wanted.select(columns).rows() == [
        tuple(getattr(one, name) for name in columns) for one in plain_plan(of, TARGET, new, {})
    ]
    assert set(wanted.filter(pl.col("category") == "math")["max_tokens"]) <= {7}


@given(builds)
def test_a_build_beside_itself_keeps_everything(build: pl.DataFrame) -> None:
    plan, _ = diff(build, build, [Ended(True)])
    assert (plan.sum("kept"), plan.sum("added"), plan.sum("removed")) == (build.height, 0, 0)
    assert (plan.sum("to_generate"), plan.sum("expected_tokens"), plan.basis) == (0, 0, "none")


def test_tokens_are_measured_by_recipe_then_by_category_then_bounded() -> None:
    new = prompts([(0, 0, "coding", False), (3, 0, "math", False), (6, 1, "math", True)])  # one turn each
    of = manifest()
    own = {row[0]: row[1] for row in wanted_answers(of, recipes(of), new).select("category", "recipe_id").iter_rows()}
    means = [
        ("coding", own["coding"], 4, 80, 0, 0), ("coding", "other", 1, 9, 0, 0), ("math", "other", 10, 300, 0, 0)
    ]  # fmt: skip
    measured, _ = diff(new, new, [None], pl.DataFrame(means, schema=MEANS, orient="row"))
    by_category = {row.category: (row.expected_tokens, row.tokens_basis) for row in measured.rows}
    assert by_category == {"coding": (20, "measured"), "math": (30, "category")}
    bounded, _ = diff(new, new, [None])
    assert {row.tokens_basis for row in bounded.rows} == {"max_tokens"}
    assert bounded.sum("expected_tokens") == 300
    assert "at most 300 tokens" in "\n".join(bounded.lines())
    assert "hours unknown" in "\n".join(bounded.lines())


@pytest.mark.parametrize(
    ("cut", "cut_tokens", "each"),
    [
        (0, 0, 100),  # a mean of 150 is more than max_tokens lets an answer have
        (1, 40, (1500 - 40 + 100) / 10),
        (10, 1500, 100),
    ],
)
def test_an_answer_that_was_cut_counts_as_long_as_the_new_recipe_lets_it_become(
    cut: int, cut_tokens: int, each: float
) -> None:
    new = prompts([(3, 0, "math", False)])  # max_tokens is 100
    measured, _ = diff(
        new, new, [None], pl.DataFrame([("math", "other", 10, 1500, cut, cut_tokens)], schema=MEANS, orient="row")
    )
    assert measured.sum("expected_tokens") == min(each, 100)
    assert "about" in "\n".join(measured.lines())


def test_short_answers_that_were_cut_are_not_taken_for_short() -> None:
    new = prompts([(3, 0, "math", False)])
    means = pl.DataFrame([("math", "other", 10, 10 * 8, 5, 5 * 8)], schema=MEANS, orient="row")
    measured, _ = diff(new, new, [None], means)
    assert measured.sum("expected_tokens") == 54  # five of 8, five of 100


@given(builds, ledgers, st.integers(1, 10**4), st.integers(0, 10))
def test_expected_tokens_are_never_more_than_max_tokens_of_every_answer(
    new: pl.DataFrame, states: list[Ended | None], tokens: int, cut: int
) -> None:
    rows = [(category, "other", 10, 10 * tokens, cut, cut * tokens) for category in CATEGORIES]
    plan, _ = diff(new, new, states, pl.DataFrame(rows, schema=MEANS, orient="row"))
    assert all(row.expected_tokens <= 100 * row.to_generate for row in plan.rows)


def test_a_bound_is_said_only_where_all_of_it_is_one() -> None:
    new = prompts([(0, 0, "coding", False), (3, 0, "math", False)])
    means = pl.DataFrame([("math", "other", 1, 30, 0, 0)], schema=MEANS, orient="row")
    measured, _ = diff(new, new, [None], means)
    assert "2 answers to generate, about 130 tokens" in "\n".join(measured.lines())
    (all_,) = (line for line in measured.lines() if line.startswith("all "))
    assert all_.endswith(" ?130")
    assert any(line.startswith("  ? assumed: 500 response tokens an answer") for line in measured.lines())
    assert "no answer was accepted under the new recipe" in "\n".join(measured.lines())


def test_hours_come_from_the_measured_rate() -> None:
    plan = DiffPlan("a", "b", (), 0, Rate("run", 100.0))
    assert plan.hours(720_000) == 2.0
    assert DiffPlan("a", "b", (), 0, None).hours(5) is None


def test_below_a_minute_hours_are_said_as_that() -> None:
    new = prompts([(0, 0, "coding", False)])
    plan, _ = diff(new, new, [None])
    for tokens_per_s, said in ((1e6, "less than a minute"), (1.0, "at most 2 min"), (0.005, "at most 5.56 h")):
        shown = replace(plan, rate=Rate("run", tokens_per_s)).lines()
        assert any(line.endswith(f"100 tokens: {said}") for line in shown), shown


def test_a_bound_beside_a_mean_is_no_bound() -> None:
    """Of one source some think, whose tokens are bounded by max_tokens alone, and some do not."""
    new = prompts([(number, 0, "math", False) for number in range(0, 30, 2)])
    plain = pl.DataFrame([("math", "other", 10, 300, 0, 0)], schema=MEANS, orient="row")
    plan, _ = diff(new, new, [None], plain, told_thinking=False)
    assert {row.tokens_basis for row in plan.rows} == {"assumed"}
    said = "\n".join(plan.lines())
    assert "about" in said
    assert "? assumed: answers of this target here without thinking; 2,200 tokens of" in said


@given(builds, builds)
def test_a_table_fits_80_columns_and_its_frame_has_one_type_a_column(old: pl.DataFrame, new: pl.DataFrame) -> None:
    many = pl.col("source").str.pad_end(70, "x")
    plan, _ = diff(old.with_columns(many), new.with_columns(many), [Ended(True), None])
    assert all(len(line) <= 80 for line in plan.lines())
    assert plan.frame().height == len(plan.rows)
    assert plan.frame().schema["hours"] == pl.Float64


# words


def test_changes_are_said_by_key() -> None:
    old = manifest()
    body = old.model_dump(mode="json")
    body["seed"], body["mix"]["total"], body["mix"]["shares"] = 5, 2000, {"coding": 3, "math": 1}
    body["filters"]["turns"] = [None, 4]
    body["generation"]["thinking"]["share"] = 0.25
    body["sources"][1]["limit"] = 7
    body["sources"].append({"name": "third", "path": "p", "category": "math"})
    new = parse_manifest(json.dumps(body), "n")
    assert manifest_changes(old, new) == [
        "share of coding: 50% -> 75%",
        "share of math: 50% -> 25%",
        "filters.turns: none -> [null, 4]",
        "mix.total: 10 -> 2,000",
        "seed: 0 -> 5",
        "generation.thinking.share: 0.5 -> 0.25",
        "source math: limit: none -> 7",
        "source third is added",
    ]
    assert manifest_changes(new, old)[-1] == "source third is removed"
    assert manifest_changes(old, old) == []


def test_recipes_that_change_are_said_by_category() -> None:
    old = {key: recipe.body for key, recipe in recipes(manifest()).items()}
    new = {key: recipe.body for key, recipe in recipes(manifest(by_category={"math": {"max_tokens": 7}})).items()}
    assert recipe_changes(old, new) == ["recipe of math: max_tokens: 100 -> 7; all its answers are made again"]
    other = {key: {**body, "target": {**TARGET, "revision": "s"}} for key, body in old.items()}
    assert recipe_changes(old, other) == [
        "recipe of coding, math: target.revision: r -> s; all its answers are made again"
    ]
    assert recipe_changes({}, new) == []
    kept = ["recipe of math: max_tokens: 100 -> 7; what ended by itself and fits is reused"]
    assert recipe_changes(old, new, finished=True) == kept
    assert recipe_changes(old, other, finished=True) == recipe_changes(old, other)


def test_what_was_read_of_a_source_is_said() -> None:
    old, deeper, other = SourceRead("p", 1), SourceRead("p", 3), SourceRead("q", 1)
    assert depth_changes({"s": old}, {"s": deeper}) == ["source s: read deeper, 1 -> 3 chunks"]
    assert depth_changes({"s": deeper}, {"s": old}) == ["source s: read less deep, 3 -> 1 chunks"]
    assert depth_changes({"s": old}, {"s": other}) == ["source s: other rows are read (revision or reading changed)"]
    assert depth_changes({"s": old}, {"t": other}) == []


# the command

BUILD = {"target": {"model": "model", "max_model_len": 512, "dtype": "float32"}}


@pytest.fixture(scope="module")
def answered(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A world with one build, all answered by the fake engine."""
    from tests.conftest import World

    world = World(tmp_path_factory.mktemp("diff"))
    world.tiny_model()
    session = Session(world.write("old.yaml", **BUILD), world.workspace)
    world.target = lambda: session.target  # type: ignore[method-assign]
    with open_ledger(world.workspace, "test") as writer:
        generate(world, session.manifest, writer)
    world.accepted = str(query(world.workspace, "SELECT count(*) FROM accepted_responses").item())  # type: ignore[attr-defined]
    return world


def generate(world: Any, of: Manifest, writer: LedgerWriter) -> None:
    plan = world.plan(of)
    commit_build(plan, world.workspace, writer)
    world.generate(of, plan, writer)


def run(world: Any, capsys: Any, *arguments: str) -> Any:
    code = run_app(["diff", *arguments, "-w", str(world.workspace.root)])
    said = capsys.readouterr()
    assert code == 0, said.err
    return said


def table(text: str) -> dict[str, list[str]]:
    return {line.split()[0]: line.split()[1:] for line in text.splitlines() if line and not line.startswith(" ")}


def test_a_larger_share_costs_only_what_it_adds(answered: Any, capsys: Any) -> None:
    mix = {"total": 30, "shares": {"coding": 2, "general": 1}, "holdout": 0.1}
    new = str(answered.write("larger.yaml", mix=mix, **BUILD))
    said = run(answered, capsys, str(answered.root / "old.yaml"), new)
    rows = table(said.out)
    assert rows["all"][:5] == ["22", "11", "0", answered.accepted, "11"]  # ten more for coding, and one held out
    assert "share of coding: 50% -> 66.67%" in said.out
    assert "11 answers to generate, about " in said.out
    assert "tokens/s" in said.out
    assert max(len(line) for line in said.out.splitlines()) <= 80
    assert len(list(answered.workspace.root.glob("builds/*"))) == 1


def test_formats_give_the_same_rows(answered: Any, capsys: Any) -> None:
    old, new = str(answered.root / "old.yaml"), str(answered.write("same.yaml", seed=9, **BUILD))
    said = run(answered, capsys, old, new, "--format", "json")
    rows = pl.DataFrame(json.loads(said.out))
    assert said.err.splitlines()[-1] == "seed: 3 -> 9"
    assert rows.equals(pl.read_csv(io.StringIO(run(answered, capsys, old, new, "-f", "csv").out)))
    assert rows["kept"].sum() + rows["added"].sum() == 22
    assert rows["to_generate"].sum() > 0


def test_a_changed_recipe_keeps_prompts_and_makes_answers_again(answered: Any, capsys: Any) -> None:
    new = str(answered.write("recipe.yaml", generation={"max_tokens": 32}, **BUILD))
    said = run(answered, capsys, str(answered.root / "old.yaml"), new)
    assert table(said.out)["all"][:5] == ["22", "0", "0", "0", "22"]
    assert "recipe of coding, general: max_tokens: 64 -> 32" in said.out
    assert "~" in said.out


def test_a_build_whose_source_is_gone_is_named_by_its_id(answered: Any, capsys: Any) -> None:
    (folder,) = answered.workspace.root.glob("builds/*")
    by_id = run(answered, capsys, folder.name[:7], str(answered.root / "old.yaml"))
    assert table(by_id.out)["all"][:5] == ["22", "0", "0", answered.accepted, "0"]
    assert "nothing to generate" in by_id.out
    sources = [{"name": "code", "path": answered.prompts("code", 40), "category": "coding", "license": "mit"}]
    mix = {"total": 10, "shares": {"coding": 1}, "holdout": 0.1}
    new = str(answered.write("less.yaml", mix=mix, sources=sources, **BUILD))
    (answered.root / "talk.jsonl").rename(answered.root / "gone.jsonl")
    try:
        gone = run_app(["diff", str(answered.root / "old.yaml"), new, "-w", str(answered.workspace.root)])
        assert (gone, "talk.jsonl" in capsys.readouterr().err) == (2, True)
        said = run(answered, capsys, folder.name[:7], new)
    finally:
        (answered.root / "gone.jsonl").rename(answered.root / "talk.jsonl")
    assert table(said.out)["all"][:3] == ["11", "0", "11"]
    assert "source talk is removed" in said.out


def refused(world: Any, capsys: Any, *arguments: str) -> str:
    code = run_app(["diff", *arguments, "-w", str(world.workspace.root)])
    said = capsys.readouterr()
    assert (code, said.out, said.err.count("\n")) == (2, "", 1)
    return str(said.err)


@pytest.mark.parametrize("name", ["0123456789ab", "nothing.yaml", "abc", "x" * 300])
def test_what_is_no_build_and_no_manifest_is_one_line(answered: Any, name: str, capsys: Any) -> None:
    (folder,) = answered.workspace.root.glob("builds/*")
    for arguments in ([name, str(answered.root / "old.yaml")], [str(answered.root / "old.yaml"), name]):
        said = refused(answered, capsys, *arguments)
        assert f"{name[:200]}: neither a file nor a build in {answered.workspace.root}" in said
        assert f"the newest here are {folder.name[:8]} (small)" in said
    assert "Did you mean" in refused(answered, capsys, str(answered.root / "odl.yaml"), name)


def test_builds_are_named_by_id_or_by_name_on_both_sides(answered: Any, capsys: Any) -> None:
    (folder,) = answered.workspace.root.glob("builds/*")
    expected = run(answered, capsys, str(answered.root / "old.yaml"), str(answered.root / "old.yaml")).out
    for names in ([folder.name[:6], folder.name], ["small", "small"], ["small", str(answered.root / "old.yaml")]):
        assert run(answered, capsys, *names).out == expected


def test_a_name_that_several_builds_have_is_one_line(world: Any, capsys: Any) -> None:
    with open_ledger(world.workspace, "test") as writer:
        for seed in (1, 2):
            commit_build(world.plan(world.manifest(seed=seed)), world.workspace, writer)
    said = refused(world, capsys, "small", "small")
    assert "small names 2 builds here: " in said
    assert all(path.name[:12] in said for path in world.workspace.root.glob("builds/*"))


def test_a_build_before_its_first_generate_is_planned_with_its_target(
    world: Any, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = world.tiny_model()
    body = {"target": {"model": "model", "max_model_len": 512, "dtype": "float32"}}
    path = world.write("old.yaml", **body)
    with open_ledger(world.workspace, "test") as writer:
        commit_build(world.plan(Session(path, world.workspace).manifest), world.workspace, writer)
    monkeypatch.chdir(world.root)
    assert run(world, capsys, "small", "small").out == run(world, capsys, str(path), str(path)).out
    model.rename(world.root / "gone")
    assert "Or name the build's manifest instead" in refused(world, capsys, "small", "small")


@pytest.fixture
def importing(world: Any) -> Any:
    """A world with an import that answers ten of twenty prompts, and a manifest that takes it."""
    world.tiny_model()
    rows = [{"prompt": f"talk question {i}", "response": f"{i}"} for i in range(10)]
    imports.imported(world, world.jsonl("team.jsonl", rows), model="model", tokenizer="model", name="team")
    sources = [{"name": "talk", "path": world.prompts("talk", 20), "category": "general"}]
    mix = {"total": 16, "shares": {"general": 1}, "holdout": 0.2, "shortage": "rescale"}
    world.write("new.yaml", sources=sources, mix=mix, generation={"imported": ["team"], "max_tokens": 64}, **BUILD)
    return world


def test_a_diff_takes_imported_answers_as_generate_does_before_and_after(importing: Any, capsys: Any) -> None:
    world, path = importing, importing.root / "new.yaml"
    session = Session(path, world.workspace)
    world.target = lambda: session.target
    before = run(world, capsys, str(path), str(path)).out
    with open_ledger(world.workspace, "test") as writer:
        plan = world.plan(session.manifest)
        commit_build(plan, world.workspace, writer)
        made = world.generation(session.manifest, plan, writer)
    (taken,) = made.reused.values()
    assert 0 < taken <= 10
    for names in ([str(path), str(path)], [plan.build_id, plan.build_id], ["small", str(path)]):
        after = run(world, capsys, *names).out
        assert table(after)["all"][3:5] == table(before)["all"][3:5] == [str(made.accepted), str(made.to_make)]
        assert f"{taken} of the reused answers are from the import team" in after
    assert made.accepted == taken


def test_a_diff_of_an_import_is_one_line(importing: Any, capsys: Any) -> None:
    for name in (query(importing.workspace, "SELECT import_id FROM imports").item(), "team"):
        said = refused(importing, capsys, name, str(importing.root / "new.yaml"))
        assert "is the import team" in said


def test_an_import_that_a_manifest_cannot_take_stops_a_diff(importing: Any, capsys: Any) -> None:
    old = str(importing.root / "new.yaml")
    body = json.loads((importing.root / "new.yaml").read_text())
    wrong = importing.root / "wrong.yaml"
    wrong.write_text(json.dumps(body | {"generation": {"imported": ["nope"]}}))
    said = refused(importing, capsys, old, str(wrong))
    assert "generation.imported: nope: no corpus was imported under this name here" in said
    assert 'generation.imported: ["nope"] -> ["team"]' in run(importing, capsys, str(wrong), old).out


def test_light_rows_are_the_selected_rows(world: Any) -> None:
    mix = {"total": 100, "shares": {"coding": 1, "general": 1}, "shortage": "repeat", "holdout": 0.1}
    plan = world.plan(world.manifest(mix=mix))
    light = light_rows(world.workspace, plan.candidates_id, taken_groups(world.workspace, plan)).drop("recorded")
    whole = selected_rows(world.workspace, plan).select(light.columns)
    assert light.sort(ROW).equals(whole.sort(ROW))
    assert light["replica"].max() > 0


def test_light_rows_know_where_the_history_is_recorded(world: Any) -> None:
    def say(*texts: str) -> list[dict[str, str]]:
        return [{"role": "user" if i % 2 == 0 else "assistant", "content": text} for i, text in enumerate(texts)]

    quoting = 'why does {"role":"assistant"} and "role":"assistant" stand there?'
    chats = [say(f"a{i}", "b", f"c{i}") for i in range(5)] + [say(quoting, "b", "c"), say(f"{quoting} alone")]
    rows = [{"messages": chat} for chat in chats]
    sources = [
        {"name": name, "path": world.jsonl(f"{name}.jsonl", rows), "category": name, "history": history}
        for name, history in (("coding", "recorded"), ("general", "regenerated"))
    ]
    mix = {"total": 12, "shares": {"coding": 1, "general": 1}, "shortage": "rescale", "holdout": 0.0}
    plan = world.plan(world.manifest(sources=sources, mix=mix, dedup={"exact": False}))
    light = light_rows(world.workspace, plan.candidates_id, taken_groups(world.workspace, plan))
    whole = selected_rows(world.workspace, plan)
    recorded = {
        prompt_id: decode_prompt(messages, None).recorded
        for prompt_id, messages in whole.select("prompt_id", "messages").iter_rows()
    }
    several = light.filter(pl.col("turns") > 1)
    assert several["recorded"].to_list() == [recorded[one] for one in several["prompt_id"]]
    assert set(several["recorded"]) == {True, False}


def test_the_last_round_is_in_force_whether_it_takes_more_or_less(world: Any) -> None:
    plan = world.plan(world.manifest())
    with open_ledger(world.workspace, "test") as writer:
        commit_build(plan, world.workspace, writer)
    folder = world.workspace.build(plan.build_id)
    first = pl.read_parquet(folder / "rounds" / "0.parquet")
    assert taken_by_files(folder).sort(LABELS).equals(taken_groups(world.workspace, plan).sort(LABELS))
    coding = ~pl.col("holdout") & (pl.col("category") == "coding")
    for number, more in ((1, 2), (2, -3)):
        later = first.with_columns(
            pl.when(coding).then(pl.col("prefix") + more).otherwise("prefix"), round=pl.lit(number, pl.Int32)
        )
        later.write_parquet(folder / "rounds" / f"{number}.parquet")
        taken = taken_groups(world.workspace, plan)
        assert taken.equals(taken_by_files(folder))
        assert taken["prefix"].sum() == first["prefix"].sum() + more
        assert light_rows(world.workspace, plan.candidates_id, taken).height == first["prefix"].sum() + more


def test_rounds_that_are_damaged_are_one_line(world: Any) -> None:
    folder = world.workspace.build("b" * 24)
    (folder / "rounds").mkdir(parents=True)
    with pytest.raises(UserError, match="`draftmill build` writes it again"):
        taken_by_files(folder)
    (folder / "rounds" / "0.parquet").write_bytes(b"no parquet")
    with pytest.raises(UserError, match="cannot be read"):
        taken_by_files(folder)


def test_an_empty_workspace_knows_nothing_and_stays_without_builds(world: Any, capsys: Any) -> None:
    world.tiny_model()
    old = world.write("old.yaml", **BUILD)
    said = run(world, capsys, str(old), str(old))
    assert table(said.out)["all"][:5] == ["22", "0", "0", "0", "22"]
    assert f"at most {22 * 64:,} tokens: hours unknown" in said.out
    assert {path.name for path in Path(world.workspace.root).iterdir()} == {"cache", "candidates", "pools"}


def trained_as(**training: Any) -> Manifest:
    body = manifest().model_dump(mode="json") | {"training": training}
    return parse_manifest(json.dumps(body), "m")


@given(
    one=st.sampled_from([{}, {"feed": "live"}]),
    edit=st.sampled_from(
        [
            {"learning_rate": 1e-3}, {"epochs": 2}, {"checkpoint_every": 9}, {"activation_checkpointing": True},
            {"live": {"average_every": 9}}, {"live": {"queue_gb": 1.0}}, {"d_pace_alpha": 0.25}, {"feed": "live"},
        ]
    ),
)  # fmt: skip
def test_diff_says_of_an_edit_whether_another_drafter_follows(one: dict[str, Any], edit: dict[str, Any]) -> None:
    before, after = trained_as(**one), trained_as(**one, **{k: v for k, v in edit.items() if k not in one})
    ids = [drafter_id("b", ["r"], "c", m.training.model_dump(mode="json") | {"seed": 0}) for m in (before, after)]
    said = " ".join(training_changes(before, after))
    assert ("another drafter" in said) == (ids[0] != ids[1])
    assert ("drafter stays" in said) == (ids[0] == ids[1] and before != after)
