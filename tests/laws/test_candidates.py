"""Laws of what becomes a candidate: near duplicates, evaluation sets, filters, labels, and what is computed once."""

from __future__ import annotations

import json
import random
import shutil
from collections import Counter
from collections.abc import Callable
from typing import Any

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from corpus import building, facts, near
from corpus.building import BuildPlan, commit_build, selected_rows
from corpus.candidates import TokenRule
from corpus.errors import UserError
from corpus.ledger.query import query
from corpus.ledger.writer import open_ledger
from corpus.near import jaccard
from corpus.workspace import Workspace

World = Any
FEW = settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
WORDS = [
    "red", "green", "blue", "tall", "wide", "river", "stone", "house", "garden", "night", "morning", "seven", "quiet",
    "broken", "silver", "road",
]  # fmt: skip

sentence = st.lists(st.sampled_from(WORDS), min_size=1, max_size=14).map(" ".join)
tables = st.lists(st.lists(sentence, min_size=1, max_size=15), min_size=1, max_size=3)


def of_sentences(world: World, drawn: list[list[str]], **changes: Any) -> dict[str, Any]:
    sources = []
    for number, texts in enumerate(drawn):
        world.jsonl(f"s{number}.jsonl", [{"id": f"{number}-{i}", "prompt": text} for i, text in enumerate(texts)])
        sources.append({"name": f"s{number}", "path": f"s{number}.jsonl", "category": "coding", "priority": number % 2})
    mix = {"total": 99, "shares": {"coding": 1}, "shortage": "rescale", "holdout": 0.0}
    return {"sources": sources, "mix": mix, **changes}


def frames(world: World, plan: BuildPlan) -> tuple[pl.DataFrame, pl.DataFrame]:
    folder = world.workspace.candidates(plan.candidates_id)
    return pl.read_parquet(folder / "prompts.parquet"), pl.read_parquet(folder / "drops.parquet")


def asked(row: dict[str, Any]) -> str:
    return str(json.loads(row["messages"])[-1]["content"])


def committed(world: World, plan: BuildPlan) -> BuildPlan:
    with open_ledger(world.workspace, "build") as ledger:
        commit_build(plan, world.workspace, ledger)
    return plan


# near duplicates


@FEW
@given(tables)
def test_a_near_duplicate_is_as_like_its_winner_as_it_says_and_no_two_kept_are_near(
    make_world: Callable[[], World], drawn: list[list[str]]
) -> None:
    world = make_world()
    plan = world.plan(world.manifest(**of_sentences(world, drawn, dedup={"near": 0.5})))
    kept, drops = frames(world, plan)
    texts = {row["prompt_id"]: asked(row) for row in kept.iter_rows(named=True)}
    lost = {f"{n}-{i}": text for n, rows in enumerate(drawn) for i, text in enumerate(rows)}
    assert kept.height + drops.height == len(lost)
    assert set(drops["winner_prompt_id"]) <= set(texts)
    for row in drops.filter(pl.col("reason") == "near_duplicate").iter_rows(named=True):
        assert jaccard(lost[row["upstream_id"]], texts[row["winner_prompt_id"]]) == pytest.approx(row["similarity"])
        assert row["similarity"] >= 0.5
    everything = list(texts.values())
    assert all(jaccard(a, b) < 0.5 for i, a in enumerate(everything) for b in everything[:i])


def test_a_duplicate_of_a_prompt_that_is_itself_near_another_names_the_one_that_is_kept(world: World) -> None:
    text = " ".join(WORDS)
    drawn = [[f"{text} now", f"{text}  NOW"], [text]]  # the second source has the higher priority
    kept, drops = frames(world, world.plan(world.manifest(**of_sentences(world, drawn, dedup={"near": 0.7}))))
    assert [asked(row) for row in kept.iter_rows(named=True)] == [text]
    assert sorted(drops["reason"]) == ["duplicate", "near_duplicate"]
    assert drops["winner_prompt_id"].to_list() == kept["prompt_id"].to_list() * 2


def test_rows_that_share_a_long_system_prompt_are_not_alike(world: World) -> None:
    system = " ".join(WORDS * 20)
    rows = [
        {"messages": [{"role": "system", "content": system}, {"role": "user", "content": f"question {word} {word}s"}]}
        for word in WORDS
    ]
    world.jsonl("s.jsonl", rows)
    source = {"name": "s", "path": "s.jsonl", "category": "coding"}
    mix = {"total": 9, "shares": {"coding": 1}, "holdout": 0.0}
    kept, _ = frames(world, world.plan(world.manifest(sources=[source], mix=mix, dedup={"near": 0.7})))
    assert kept.height == len(WORDS)


# evaluation sets


def evals(world: World, items: list[str], name: str = "evals.jsonl") -> dict[str, Any]:
    world.jsonl(name, [{"task_id": f"t{i}", "question": item} for i, item in enumerate(items)])
    return {"decontaminate": {"ngram": 4, "against": [{"path": name, "field": "question"}]}}


@FEW
@given(tables, st.lists(sentence, min_size=1, max_size=6))
def test_what_shares_a_run_of_words_is_dropped_with_set_item_and_overlap_and_nothing_else(
    make_world: Callable[[], World], drawn: list[list[str]], items: list[str]
) -> None:
    world = make_world()
    body = of_sentences(world, drawn, **evals(world, items))

    def runs(text: str) -> set[tuple[str, ...]]:
        words = text.split()
        return {tuple(words[i : i + 4]) for i in range(len(words) - 3)} or {tuple(words)}

    leaked = {f"{n}-{i}" for n, rows in enumerate(drawn) for i, text in enumerate(rows)
              if any(runs(text) & runs(item) for item in items)}  # fmt: skip
    try:
        plan = world.plan(world.manifest(**body))
    except UserError as error:
        assert "Not even one prompt" in str(error)
        return
    _, drops = frames(world, plan)
    found = drops.filter(pl.col("reason") == "contaminated")
    assert set(found["upstream_id"]) == leaked
    for row in found.iter_rows(named=True):
        assert row["eval_set"] == "evals.jsonl"
        number = int(row["eval_item"].partition(" ")[0][1:])
        assert row["eval_item"] == f"t{number} (evals.jsonl row {number})"
        assert tuple(row["overlap"].split()) in runs(items[number])


def test_an_overlap_in_a_system_prompt_counts_too_and_is_in_the_ledger(world: World) -> None:
    shown = [{"role": "system", "content": "the river STONE, house garden"}, {"role": "user", "content": "go on"}]
    world.jsonl("s.jsonl", [{"id": 7, "messages": shown}, {"id": 8, "messages": shown[1:]}])
    source = {"name": "s", "path": "s.jsonl", "category": "coding"}
    mix = {"total": 1, "shares": {"coding": 1}, "holdout": 0.0}
    body = {"sources": [source], "mix": mix, **evals(world, ["what of river stone house garden"])}
    committed(world, world.plan(world.manifest(**body)))
    with open_ledger(world.workspace, "test") as ledger:
        assert ledger.rows("SELECT reason, eval_set, eval_item, overlap FROM drops") == [
            ("contaminated", "evals.jsonl", "t0 (evals.jsonl row 0)", "river stone house garden")
        ]


def test_another_item_in_an_evaluation_set_makes_other_candidates_and_its_order_in_the_manifest_does_not(
    world: World,
) -> None:
    body = of_sentences(world, [["a b c d e", "f g h i j"]])
    evals(world, ["x y z w"], "one.jsonl")
    evals(world, ["p q r s"], "two.jsonl")
    sets = [{"path": name, "field": "question"} for name in ("one.jsonl", "two.jsonl")]

    def planned(against: list[dict[str, str]]) -> str:
        return world.plan(world.manifest(**body, decontaminate={"ngram": 4, "against": against})).candidates_id

    first = planned(sets)
    assert planned(sets[::-1]) == first
    evals(world, ["x y z w", "a b c d"], "one.jsonl")
    assert planned(sets) != first


def test_an_evaluation_set_without_the_field_is_one_line(world: World) -> None:
    body = of_sentences(world, [["a b c d e"]], **evals(world, ["x"]))
    body["decontaminate"]["against"][0]["field"] = "query"
    with pytest.raises(UserError, match=r"no row has a text in field query; columns are question, task_id\.$"):
        world.plan(world.manifest(**body))


# filters, labels, tokens


def test_what_holds_no_letter_and_what_is_in_another_language_are_drops(world: World) -> None:
    texts = ["...?", "  !", "Please tell me how the weather will be in the mountains tomorrow.",
             "Bitte erkläre mir in einfachen Worten, wie das Wetter morgen in den Bergen wird.", "42"]  # fmt: skip
    body = of_sentences(world, [texts], filters={"language": ["en"], "near_empty": 1})
    kept, drops = frames(world, world.plan(world.manifest(**body)))
    assert sorted(kept["upstream_id"]) == ["0-2", "0-4"]
    assert Counter(drops.select("upstream_id", "reason", "detail").rows()) == Counter(
        [("0-0", "near_empty", "0"), ("0-1", "near_empty", "0"), ("0-3", "other_language", "de")]
    )


def test_a_source_without_a_category_is_classified(world: World) -> None:
    rows = [{"prompt": "Write a Python function that reverses a list."}, {"prompt": "Write a poem about the sea."}]
    world.jsonl("s.jsonl", rows)
    mix = {"total": 2, "shares": {"coding": 1, "general": 1}, "holdout": 0.0}
    manifest = world.manifest(sources=[{"name": "s", "path": "s.jsonl"}], mix=mix)
    kept, _ = frames(world, world.plan(manifest))
    assert {row["category"]: asked(row)[:13] for row in kept.iter_rows(named=True)} == {
        "coding": "Write a Pytho",
        "general": "Write a poem ",
    }


def test_what_lost_to_a_prompt_that_is_itself_too_long_is_looked_at_again(world: World) -> None:
    body = of_sentences(world, [["Red green", "red  GREEN", "blue"]], filters={"prompt_tokens": 5})

    def count(rows: Any) -> list[int | None]:
        return [9 if "Red green" in messages else 3 for messages, _ in rows]

    plan = building.plan_build(world.manifest(**body), world.root, world.workspace, TokenRule(count, "t"))
    kept, drops = frames(world, plan)
    assert dict(drops.select("upstream_id", "reason").iter_rows()) == {"0-0": "too_many_tokens"}
    assert sorted(kept["upstream_id"]) == ["0-1", "0-2"]


def test_tokens_are_counted_once_for_each_prompt_and_tokenizer(world: World) -> None:
    body = of_sentences(world, [["red", "green", "blue"]], filters={"prompt_tokens": 5})
    counted: list[str] = []

    def count(rows: Any) -> list[int | None]:
        counted.extend(messages for messages, _ in rows)
        return [3 for _ in rows]

    def plan(tokenizer: str, **changes: Any) -> None:
        manifest = world.manifest(**{**body, **changes})
        building.plan_build(manifest, world.root, world.workspace, TokenRule(count, tokenizer))

    plan("t")
    plan("t", seed=9)
    assert len(counted) == 3
    plan("u")
    assert len(counted) == 6


# computed once


def test_adding_a_source_computes_sketches_and_overlaps_for_that_source_alone(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = of_sentences(
        world, [["red green blue"], ["tall wide river"]], dedup={"near": 0.7}, **evals(world, ["a b c d"])
    )
    hashed: list[str] = []
    real = facts.hash_words
    monkeypatch.setattr(facts, "hash_words", lambda texts: hashed.extend(texts) or real(texts))
    first = body["sources"][:1]
    world.plan(world.manifest(**body | {"sources": first}))
    assert hashed == ["red green blue"]
    world.plan(world.manifest(**body))
    assert hashed == ["red green blue", "tall wide river"]
    world.plan(world.manifest(**body | {"seed": 5}))
    assert len(hashed) == 2


@pytest.mark.parametrize("damage", ["cut", "gone", "other"])
def test_a_damaged_sketch_is_made_again_and_the_candidates_are_the_same(world: World, damage: str) -> None:
    chance = random.Random(3)
    texts = [" ".join(chance.choices(WORDS, k=12)) for _ in range(40)]
    body = of_sentences(world, [texts, [text + " now" for text in texts]], dedup={"near": 0.6})
    before, drops = frames(world, world.plan(world.manifest(**body)))
    assert "near_duplicate" in drops["reason"].to_list()
    for path in (world.workspace.cache / "derived").rglob("*.parquet"):
        if damage == "gone":
            path.unlink()
        elif damage == "cut":
            path.write_bytes(path.read_bytes()[:-20])
        else:
            pl.DataFrame({"b0": [1]}).write_parquet(path)
    shutil.rmtree(world.workspace.root / "candidates")
    assert frames(world, world.plan(world.manifest(**body)))[0].equals(before)


def test_the_same_manifest_gives_the_same_candidates_with_another_number_of_threads(world: World) -> None:
    chance = random.Random(5)
    texts = [" ".join(chance.choices(WORDS, k=10)) for _ in range(60)]
    body = of_sentences(world, [texts[:40], texts[20:]], dedup={"near": 0.5}, **evals(world, texts[5:6]))
    path = world.write(**body)
    made = []
    for threads in ("1", "4"):
        workspace = Workspace(world.root / f"ws{threads}")
        script = (
            "import sys; from pathlib import Path; from corpus.building import plan_build; "
            "from corpus.manifest_file import load_manifest; from corpus.workspace import Workspace; "
            "path, root = map(Path, sys.argv[1:]); "
            "plan = plan_build(load_manifest(path), path.parent, Workspace(root), None); "
            "print(plan.build_id, plan.candidates_id)"
        )
        made.append(world.run_python(script, str(path), str(workspace.root), POLARS_MAX_THREADS=threads))
        plan = world.plan(world.manifest(**body), workspace)
        folder = workspace.candidates(plan.candidates_id)
        made.append((folder / "prompts.parquet").read_bytes())
    assert made[0] == made[2]
    assert pl.read_parquet(made[1]).equals(pl.read_parquet(made[3]))


# replicas, token shares, licences


def test_repeat_asks_every_prompt_once_more_before_any_is_asked_thrice(world: World) -> None:
    mix = {"total": 100, "shares": {"coding": 3, "general": 1}, "holdout": 0.1, "shortage": "repeat", "max_repeats": 3}
    plan = committed(world, world.plan(world.manifest(mix=mix)))
    assert plan.quotas.rows == {"coding": 75, "general": 25}
    rows = selected_rows(world.workspace, plan)
    assert rows.select("prompt_id", "replica").is_unique().all()
    times = rows.filter(~pl.col("holdout"), category="coding").group_by("prompt_id").len()["len"].to_list()
    assert sum(times) == 75
    assert max(times) - min(times) <= 1
    assert len(times) == plan.available["coding"]
    assert set(rows.filter("holdout")["replica"]) == {0}
    assert any("asked" in note for note in plan.notes)
    with open_ledger(world.workspace, "test") as ledger:
        entered = ledger.rows("SELECT prompt_id, replica FROM selections")
        assert sorted(entered) == sorted(rows.select("prompt_id", "replica").rows())
        shares = ledger.rows(
            "SELECT category, sum(rows) FROM composition WHERE stage = 'selected' GROUP BY ALL ORDER BY 1"
        )
        assert shares == [("coding", 75), ("general", 25)]


def test_repeat_beyond_max_repeats_runs_short_and_the_table_says_how_many_would_do(world: World) -> None:
    mix = {"total": 400, "shares": {"coding": 3, "general": 1}, "holdout": 0.0, "shortage": "repeat", "max_repeats": 2}
    with pytest.raises(
        UserError, match=r"repeat   builds 400 with max_repeats: 8 \(it is 2 now; coding asked 7\.5 times"
    ):
        world.plan(world.manifest(mix=mix))


@pytest.mark.parametrize(
    ("generation", "refused"),
    [
        ({"thinking": {"off": {"temperature": 0}}}, "agent"),
        ({"thinking": {"share": 0.5, "on": {"temperature": 0}}}, "agent"),
        ({"thinking": {"share": 1.0, "off": {"temperature": 0}}}, None),
        ({"by_category": {"agent": {"temperature": 0}}}, "agent"),
        ({}, None),
    ],
)
def test_repeat_is_refused_where_sampling_is_greedy(world: World, generation: Any, refused: str | None) -> None:
    source = {"name": "a", "path": world.prompts("a", 5), "category": "agent"}
    mix = {"total": 9, "shares": {"agent": 1}, "shortage": "repeat"}
    if refused is None:
        world.manifest(sources=[source], mix=mix, generation=generation)
        return
    with pytest.raises(UserError, match=f"mix.shortage is repeat and {refused} is sampled at temperature 0"):
        world.manifest(sources=[source], mix=mix, generation=generation)


def test_token_shares_are_prompts_through_the_declared_means(world: World) -> None:
    means = {"coding": 300, "general": 100}
    mix = {"total": 9000, "unit": "response_tokens", "shares": {"coding": 2, "general": 1}, "holdout": 0.0}
    plan = committed(world, world.plan(world.manifest(mix=mix | {"mean_response_tokens": means})))
    assert plan.quotas.rows == {"coding": 20, "general": 30}
    with open_ledger(world.workspace, "test") as ledger:
        assert ledger.rows(
            "SELECT category, rows, response_tokens, share_tokens FROM composition WHERE stage = 'target' ORDER BY 1"
        ) == [("coding", 20, 6000, 2 / 3), ("general", 30, 3000, 1 / 3)]
    with pytest.raises(UserError, match=r"mix\.mean_response_tokens\.general is missing"):
        world.manifest(mix=mix | {"mean_response_tokens": {"coding": 300}})


def test_a_denied_licence_stops_a_build_before_anything_is_read(world: World) -> None:
    sources = world.body()["sources"]
    sources[1]["license"] = "CC-BY-NC-4.0"
    with pytest.raises(
        UserError, match=r"source talk is under CC-BY-NC-4\.0, which licenses\.deny \(\*-nc-\*\) excludes"
    ):
        world.plan(world.manifest(sources=sources, licenses={"deny": ["*-nc-*"]}))
    del sources[1]["license"]
    with pytest.raises(UserError, match=r"source talk is under unknown, which licenses\.deny \(unknown\) excludes"):
        world.plan(world.manifest(sources=sources, licenses={"deny": ["unknown"]}))
    assert not (world.workspace.root / "pools").exists()
    plan = world.plan(world.manifest(sources=sources, licenses={"deny": ["*-nc-*"]}))
    assert any(note.startswith("no licence is stated for talk") for note in plan.notes)


def test_licences_are_shown_in_the_composition(world: World) -> None:
    committed(world, world.plan(world.manifest()))
    with open_ledger(world.workspace, "test") as ledger:
        assert ledger.rows("SELECT DISTINCT source, license FROM composition WHERE stage = 'selected' ORDER BY 1") == [
            ("code", "mit"),
            ("talk", "mit"),
        ]


def test_the_sources_own_answers_lie_beside_the_prompts_where_they_are_asked_for(world: World) -> None:
    turns = [{"role": "user", "content": "u"}, {"role": "assistant", "content": "a"}]
    world.jsonl("s.jsonl", [{"messages": turns}])
    source = {"name": "s", "path": "s.jsonl", "category": "coding", "keep_original": True}
    mix = {"total": 1, "shares": {"coding": 1}, "holdout": 0.0}
    plan = world.plan(world.manifest(sources=[source], mix=mix))
    assert selected_rows(world.workspace, plan)["original"].to_list() == ['["a"]']
    committed(world, plan)
    found = query(world.workspace, "SELECT answers FROM original_text JOIN prompt_text USING (prompt_id)")
    assert found["answers"].to_list() == [["a"]]


def test_pairs_that_were_compared_are_not_compared_again_and_a_lost_memory_changes_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(7)
    texts = [" ".join(chance.choices(WORDS, k=12)) for _ in range(30)]
    body = of_sentences(world, [texts, [text + " now" for text in texts]], dedup={"near": 0.6})
    asked_for: list[int] = []
    real = near.similarities
    monkeypatch.setattr(
        near, "similarities", lambda pairs, texts_of: asked_for.append(len(pairs)) or real(pairs, texts_of)
    )
    before, _ = frames(world, world.plan(world.manifest(**body)))
    first, asked_for[:] = sum(asked_for), []
    assert first >= 30
    world.plan(world.manifest(**body | {"seed": 8}))
    assert sum(asked_for) < first / 2  # another order compares a few pairs more
    (world.workspace.cache / "derived" / "pairs-1.parquet").write_bytes(b"PAR1 no more")
    shutil.rmtree(world.workspace.root / "candidates")
    again, _ = frames(world, world.plan(world.manifest(**body)))
    assert again.equals(before)
