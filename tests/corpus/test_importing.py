"""Laws of imports: every answer of a corpus is in the ledger exactly once, whatever stops an import on its way."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from corpus import import_files
from corpus.building import commit_build
from corpus.errors import UserError
from corpus.identity import response_id
from corpus.import_source import ImportOptions
from corpus.importing import commit_import, is_imported, plan_import, read_import, settle_labels
from corpus.ledger.query import query
from corpus.ledger.rebuild import adopt, rebuild_workspace
from corpus.ledger.writer import open_ledger
from corpus.manifest import Target
from corpus.records import Prompt
from corpus.responses import read_rows_at
from corpus.sources import FileDigests
from corpus.target import Renderer, ResolvedTarget, resolve_target
from generation.plan import GenerationPlan
from generation.stage import commit_plan, load_plan, load_prompts

World = Any

TABLES = (
    "pools source_rows drops prompts prompt_sources builds sources selections recipes responses build_responses "
    "response_shards imports imported_answers composition funnel provenance unfinished"
)
ENDED = (
    "{% for m in messages %}{{ m.role }} : {{ m.content }}{% if m.role == 'assistant' %}<eos>{% endif %} {% endfor %}"
    "{% if add_generation_prompt %}assistant :{% endif %}"
)
CHATS: list[tuple[str, list[tuple[str, str | None]]]] = [
    ("a", [("Write a python function that sorts a list", "def f(): ..."), ("now in rust", "fn f() {}")]),
    ("b", [("What is the capital of France?", "Paris.")]),
    ("c", [("What is the capital of France?", "It is Paris.")]),
    ("d", [("What is the capital of Spain?", "  ")]),
    ("e", [("Solve the equation 3x + 3 = 12 for x.", "question 3"), ("Why?", None)]),
    ("f", [("Solve the equation 2x = 4 for x.", None)]),
    ("g", []),
]


def row(name: str, turns: list[tuple[str, str | None]]) -> dict[str, Any]:
    messages = []
    for asked, said in turns:
        messages.append({"role": "user", "content": asked})
        if said is not None:
            messages.append({"role": "assistant", "content": said})
    return {"id": name, "messages": messages}


def corpus(world: World, name: str = "team.jsonl") -> str:
    return str(world.jsonl(name, [row(*chat) for chat in CHATS]))


def bring_in(world: World, *paths: str, **options: Any) -> str:
    """Import as the command does; returns the import's id, or "" where there was nothing to do."""
    with open_ledger(world.workspace, "import") as ledger:
        adopt(ledger)
        said = ImportOptions(paths or ("team.jsonl",), **{"model": "model", **options})
        plan = settle_labels(plan_import(said, world.root, world.workspace), ledger)
        if is_imported(plan, ledger):
            return ""
        commit_import(plan, read_import(plan, world.workspace), ledger, lambda text: None)
        return plan.import_id


def contents(world: World) -> dict[str, pl.DataFrame]:
    found = {}
    for name in TABLES.split():
        frame = query(world.workspace, f"FROM {name}").select(pl.exclude("created_at").cast(pl.String))
        found[name] = frame.sort(frame.columns)
    return found


def equal(one: dict[str, pl.DataFrame], other: dict[str, pl.DataFrame]) -> bool:
    assert {name: frame.equals(other[name]) for name, frame in one.items()} == dict.fromkeys(one, True)
    return True


def ended_model(world: World) -> ResolvedTarget:
    """A tiny target whose template ends answers with a special token."""
    folder = world.tiny_model()
    (folder / "chat_template.jinja").write_text(ENDED)
    return resolve_target(Target(model="model"), world.root, FileDigests(world.root / "digests.json"))


# what is entered

says = st.one_of(st.none(), st.sampled_from(["", " ", "yes", "no", "a\nb \u2028 c"]))
chats = st.lists(st.tuples(st.sampled_from(["hello", "write code", "1 + 1?"]), says), min_size=0, max_size=3)


@given(st.lists(chats, min_size=1, max_size=12))
@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_answer_is_entered_exactly_once_with_its_source_row(
    make_world: Callable[[], World], rows: list[list[tuple[str, str | None]]]
) -> None:
    world = make_world()
    world.jsonl("team.jsonl", [row(str(i), turns) for i, turns in enumerate(rows)])
    expected = Counter((i, turn, said or "") for i, turns in enumerate(rows) for turn, (_, said) in enumerate(turns))
    if not any(said for turns in rows for _, said in turns):
        with pytest.raises(UserError, match=r"not one of|no known format|no rows"):
            bring_in(world)
        return
    bring_in(world)
    places = query(
        world.workspace, "SELECT shard, shard_row, file, row_index, upstream_id, turn, state FROM provenance"
    )
    texts = read_rows_at(world.workspace.responses, places.select("shard", "shard_row").rows(), ["response_id", "text"])
    found = places.join(texts, on=["shard", "shard_row"])
    assert Counter(found.select("row_index", "turn", "text").rows()) == expected
    assert texts["response_id"].n_unique() == texts.height == sum(expected.values())
    assert set(found["file"]) == {"team.jsonl"}
    assert (found["row_index"].cast(pl.String) == found["upstream_id"]).all()
    assert (found["text"].str.strip_chars().ne("") == found["state"].eq("accepted")).all()
    funnel = dict(query(world.workspace, "SELECT reason, rows FROM funnel").rows())
    assert funnel.pop("read") == len(rows) == sum(funnel.values())


def test_rows_of_one_prompt_are_replicas_in_file_order(world: World) -> None:
    corpus(world)
    recipe = bring_in(world)
    found = query(
        world.workspace,
        "SELECT upstream_id, replica, text, response_id, prompt_id "
        "FROM provenance JOIN response_text USING (response_id) WHERE upstream_id IN ('b', 'c') ORDER BY 1",
    )
    assert found.select("upstream_id", "replica", "text").rows() == [("b", 0, "Paris."), ("c", 1, "It is Paris.")]
    assert found["response_id"].to_list() == [response_id(found["prompt_id"][0], recipe, r, 0) for r in (0, 1)]
    assert query(world.workspace, "SELECT rows FROM funnel WHERE reason = 'replica'").rows() == [(1,)]


def test_composition_says_what_is_in_it_and_unfinished_what_is_not(world: World) -> None:
    corpus(world)
    build = bring_in(world, license="mit", revision="abc")
    rows = query(
        world.workspace, "SELECT stage, category, rows, prompts, response_tokens FROM composition ORDER BY ALL"
    )
    assert rows.rows() == [
        ("accepted", "coding", 2, 1, None), ("accepted", "general", 2, 2, None), ("accepted", "math", 1, 1, None),
        ("selected", "coding", 1, 1, None), ("selected", "general", 2, 2, None), ("selected", "math", 2, 2, None),
    ]  # fmt: skip
    why = query(world.workspace, "SELECT why, count(*) FROM unfinished GROUP BY ALL ORDER BY 1")
    assert why.rows() == [("empty", 1), ("no_answer", 2)]
    one = query(world.workspace, "FROM provenance WHERE upstream_id = 'a' AND turn = 1").row(0, named=True)
    known = {
        "build_id": build, "recipe_id": build, "model": "model", "license": "mit", "row_index": 0, "state": "accepted",
        "thinking": None, "finish_reason": None, "prompt_tokens": None, "started_at": None, "imported_from": "team",
        "source": "team", "imported_row": 0,
    }  # fmt: skip
    assert {key: one[key] for key in known} == known
    assert query(world.workspace, "SELECT revision FROM recipes").rows() == [("abc",)]


def test_a_prompt_is_the_same_prompt_as_in_a_source(world: World) -> None:
    corpus(world)
    bring_in(world)
    ids = set(query(world.workspace, "SELECT prompt_id FROM prompts")["prompt_id"])
    assert Prompt(({"role": "user", "content": "What is the capital of Spain?"},)).prompt_id in ids


# again, after a kill, and from the files


def test_importing_twice_is_importing_once(world: World) -> None:
    corpus(world)
    assert bring_in(world)
    before = contents(world)
    assert bring_in(world) == ""
    assert bring_in(world, str(world.root / "team.jsonl")) == ""  # however the path is written
    assert equal(before, contents(world))


def test_another_name_is_another_label_on_the_same_answers(world: World) -> None:
    corpus(world)
    first = bring_in(world)
    before = contents(world)["responses"]
    assert bring_in(world, name="other") == first
    assert query(world.workspace, "SELECT name FROM imports").rows() == [("other",)]
    assert set(query(world.workspace, "SELECT source FROM composition")["source"]) == {"other"}
    assert contents(world)["responses"].equals(before)


def test_labels_that_are_not_said_again_are_kept(world: World) -> None:
    corpus(world)
    world.tiny_model()
    first = bring_in(world, name="old-runs", license="mit")
    assert bring_in(world) == ""
    assert bring_in(world, license="cc0-1.0") == first
    with_tokens = bring_in(world, tokenizer="model")
    assert with_tokens not in ("", first)
    labels = query(world.workspace, "SELECT name, license FROM imports JOIN sources ON build_id = import_id ORDER BY 1")
    assert labels.rows() == [("old-runs", "cc0-1.0")] * 2


def test_a_name_is_one_corpus_alone(world: World) -> None:
    corpus(world)
    world.jsonl("else/team.jsonl", [row(*chat) for chat in CHATS[:3]])
    first = bring_in(world)
    before = contents(world)
    with pytest.raises(UserError) as caught:
        bring_in(world, "else/team.jsonl", model="other")
    assert "the name team is another corpus's here (7 rows, answered by model)" in str(caught.value)
    assert "--name" in str(caught.value)
    assert equal(before, contents(world))
    second = bring_in(world, "else/team.jsonl", name="else")
    with pytest.raises(UserError, match="the name else is another corpus's here"):
        bring_in(world, name="else")
    assert bring_in(world, "else/team.jsonl", name="third") == second  # which frees the name
    assert bring_in(world, name="else") == first


def test_several_paths_are_one_corpus_in_any_order_and_spelling(world: World, make_world: Callable[[], World]) -> None:
    ways: list[list[str]] = [
        ["old/a.jsonl", "old/b.jsonl"],
        ["old/b.jsonl", "./old/a.jsonl", "old/../old/b.jsonl"],
        ["ROOT/old/a.jsonl", "old/b.jsonl"],
        ["old/a.jsonl", "old"],
        ["old/*.jsonl"],
        ["old"],
    ]
    found, ids = [], set()
    for paths in ways:
        place = make_world()
        place.jsonl("old/a.jsonl", [row(*chat) for chat in CHATS[:3]])
        place.jsonl("old/b.jsonl", [row(*chat) for chat in CHATS[3:]])
        ids.add(bring_in(place, *(path.replace("ROOT", str(place.root)) for path in paths)))
        names = "SELECT DISTINCT imported_from, file FROM provenance ORDER BY ALL"
        found.append(
            (query(place.workspace, names).rows(), query(place.workspace, "FROM response_text ORDER BY 1").rows())
        )
    assert found[0][0] == [("old", "a.jsonl"), ("old", "b.jsonl")]
    assert all(one == found[0] for one in found)
    assert len(ids) == 1
    assert len(found[0][1]) == 5


def test_files_of_one_name_are_told_apart_and_a_file_said_twice_is_one(world: World) -> None:
    for folder, chats in (("one", CHATS[:1]), ("two", CHATS[1:3])):
        world.jsonl(f"{folder}/x.jsonl", [row(*chat) for chat in chats])
    bring_in(world, "one/x.jsonl", "two/x.jsonl", name="both")
    files = query(world.workspace, "SELECT DISTINCT file FROM provenance ORDER BY 1")["file"]
    assert files.to_list() == ["one/x.jsonl", "two/x.jsonl"]
    alone = bring_in(world, "one/x.jsonl", name="alone")
    assert alone
    assert bring_in(world, "one/x.jsonl", "./one/x.jsonl") == ""
    with pytest.raises(UserError, match="on the Hub, where one PATH"):
        bring_in(world, "one/x.jsonl", "hf://datasets/a/b/c.jsonl")


@pytest.mark.parametrize(
    ("form", "rows", "said"),
    [
        (
            "sharegpt",
            [row("a", [("hello", "yes")])],
            "columns are id, messages, which --format auto would read as messages",
        ),
        ("prompt", [row("a", [("hello", "yes")])], "would read as messages"),
        ("messages", [{"question": "why?", "answer": "so"}], "would read as rows with prompt in question"),
        ("messages", [row("a", [("hello", None)])], "beside its prompt"),
    ],
)
def test_a_format_that_is_not_the_rows_is_said(world: World, form: str, rows: list[Any], said: str) -> None:
    world.jsonl("team.jsonl", rows * 3)
    with pytest.raises(UserError) as caught:
        bring_in(world, format=form)
    assert "not one of 3 rows holds an answer" in str(caught.value)
    assert said in str(caught.value)


def test_another_model_and_another_corpus_do_not_mix(world: World) -> None:
    corpus(world)
    world.jsonl("more.jsonl", [row(*chat) for chat in CHATS[:3]])
    two = bring_in(world, limit=2, name="two")
    ids = {bring_in(world), bring_in(world, model="else"), bring_in(world, "more.jsonl"), two}
    assert len(ids) == 4
    counts = query(world.workspace, "SELECT count(*), count(DISTINCT response_id) FROM responses").row(0)
    assert counts[0] == counts[1] == 8 + 8 + 4 + 3


class KilledError(BaseException):
    """What a test kills an import with."""


@pytest.mark.parametrize("survived", range(10))
def test_an_import_that_was_killed_is_completed_and_nothing_is_doubled(
    world: World, make_world: Callable[[], World], monkeypatch: pytest.MonkeyPatch, survived: int
) -> None:
    whole = make_world()
    corpus(whole)
    bring_in(whole)
    corpus(world)
    left = [survived]

    def killed_after(write: Callable[..., Any]) -> Callable[..., Any]:
        def writing(*arguments: Any) -> Any:
            if not left[0]:
                raise KilledError
            left[0] -= 1
            return write(*arguments)

        return writing

    with monkeypatch.context() as patch:
        for name in ("write_atomically", "write_text", "write_description"):
            patch.setattr(import_files, name, killed_after(getattr(import_files, name)))
        with pytest.raises(KilledError):
            bring_in(world)
    assert bring_in(world)
    assert equal(contents(whole), contents(world))
    assert bring_in(world) == ""


def test_an_import_that_was_killed_in_its_transaction_is_adopted(
    world: World, make_world: Callable[[], World], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = make_world()
    corpus(whole)
    bring_in(whole)
    corpus(world)

    def killed(*arguments: Any) -> None:
        raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr("corpus.ledger.ingest.enter_import", killed)
        with pytest.raises(KilledError):
            bring_in(world)
    assert bring_in(world) == ""
    assert equal(contents(whole), contents(world))


def test_an_import_that_no_transaction_named_is_adopted(world: World) -> None:
    corpus(world)
    import_id = bring_in(world)
    before = contents(world)
    names = {
        "imports": "import_id",
        "imported_answers": "import_id",
        "builds": "build_id",
        "build_responses": "build_id",
    }
    with open_ledger(world.workspace, "test") as ledger:
        for table, column in names.items():
            ledger.call(lambda c, t=table, k=column: c.execute(f"DELETE FROM {t} WHERE {k} = ?", [import_id]))
        assert adopt(ledger) == 1
        assert adopt(ledger) == 0
    assert equal(before, contents(world))


def test_a_rebuilt_ledger_has_the_import_as_it_was(world: World) -> None:
    corpus(world)
    bring_in(world)
    before = contents(world)
    assert rebuild_workspace(world.workspace)["imports"] == 1
    assert equal(before, contents(world))
    assert bring_in(world) == ""


def test_a_damaged_file_is_written_again(world: World) -> None:
    corpus(world)
    import_id = bring_in(world)
    before = contents(world)
    for path in (
        world.workspace.candidates(import_id) / "prompts.parquet",
        world.workspace.imported(import_id) / "answers.parquet",
    ):
        path.write_bytes(path.read_bytes()[:-20])
        assert bring_in(world) == import_id
        assert equal(before, contents(world))


# token ids


def test_answers_are_tokenised_over_their_own_earlier_turns_up_to_the_end_of_turn(world: World) -> None:
    target = ended_model(world)
    world.jsonl(
        "team.jsonl",
        [row("a", [("question 1", "question 2"), ("question 3", "question 4")]), row("b", [("question 5", " ")])],
    )
    bring_in(world, tokenizer="model")
    texts = Renderer(target)
    found = query(
        world.workspace,
        "SELECT turn, prompt_token_ids, token_ids FROM response_text JOIN responses USING (response_id) ORDER BY 1",
    )
    user, said = {"role": "user"}, {"role": "assistant"}
    shown = [
        [{**user, "content": "question 1"}],
        [{**user, "content": "question 1"}, {**said, "content": "question 2"}, {**user, "content": "question 3"}],
    ]
    prompts = texts.encode([texts.text(messages, (), thinking=False) for messages in shown])
    end = texts.tokenizer.eos_token_id
    answers = [[*ids, end] for ids in texts.encode(["question 2", "question 4"])]
    assert found.rows() == [(0, prompts[0], answers[0]), (1, prompts[1], answers[1])]
    counted = query(world.workspace, "SELECT prompt_tokens, response_tokens FROM responses WHERE turn = 1").rows()
    assert counted == [(len(prompts[1]), 3)]
    assert query(world.workspace, "SELECT count(*) FROM responses WHERE response_tokens IS NULL").item() == 1


def test_calls_of_tools_are_tokenised_as_the_template_writes_them(world: World) -> None:
    target = ended_model(world)
    calls = "{% for c in m.tool_calls or [] %}question {{ c.function.name }}{% endfor %}"
    (target.folder / "chat_template.jinja").write_text(ENDED.replace("{{ m.content }}", "{{ m.content }}" + calls))
    called = [
        {"role": "assistant", "tool_calls": [{"function": {"name": name, "arguments": "{}"}}]} for name in ("7", "8")
    ]
    shown = [{"role": "user", "content": "question 1"}, called[0], {"role": "tool", "content": "2"}]
    world.jsonl(
        "team.jsonl", [{"messages": [*shown, called[1]]}, {"messages": [*shown, {**called[1], "content": "3"}]}]
    )
    bring_in(world, tokenizer="model")
    found = query(
        world.workspace,
        "SELECT replica, turn, token_ids FROM response_text JOIN responses USING (response_id) ORDER BY 1, 2",
    )
    texts = Renderer(target)
    first, last, said = texts.encode(["question 7<eos>", "question 8<eos>", "3<eos>"])
    # beside a text, the calls of a last turn are not known any more (formats.originals)
    assert found.rows() == [(0, 0, first), (0, 1, last), (1, 0, first), (1, 1, said)]


def test_a_thought_that_the_prompt_opens_is_not_opened_twice(world: World) -> None:
    target = ended_model(world)
    opened = ENDED.replace(
        "assistant :{% endif %}", "assistant :{% if enable_thinking %} <think>\n{% endif %}{% endif %}"
    )
    (target.folder / "chat_template.jinja").write_text(opened)
    world.jsonl("team.jsonl", [row("a", [("question 1", "<think>\n2</think>3")]), row("b", [("question 2", "3")])])
    bring_in(world, tokenizer="model")
    found = query(
        world.workspace,
        "SELECT prompt_token_ids, token_ids FROM response_text JOIN provenance USING (response_id) ORDER BY row_index",
    )
    texts = Renderer(target).encode(
        ["user : question 1 assistant : <think>\n", "2</think>3<eos>", "user : question 2 assistant :", "3<eos>"]
    )
    assert found.rows() == [tuple(texts[:2]), tuple(texts[2:])]


def test_a_template_without_an_end_of_turn_gives_the_answer_alone(world: World) -> None:
    world.tiny_model()
    world.jsonl("team.jsonl", [row("a", [("question 1", "question 2")])])
    bring_in(world, tokenizer="model")
    assert query(world.workspace, "SELECT response_tokens FROM responses").rows() == [(2,)]


def test_a_kill_loses_no_tokens(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    ended_model(world)
    corpus(world)
    with monkeypatch.context() as patch:
        patch.setattr("corpus.importing.write_artefacts", lambda *arguments: (_ for _ in ()).throw(KilledError))
        with pytest.raises(KilledError):
            bring_in(world, tokenizer="model")
    monkeypatch.setattr("corpus.imported.AnswerEncoder.token_rows", lambda *arguments: pytest.fail("tokenised twice"))
    bring_in(world, tokenizer="model")
    assert query(world.workspace, "SELECT count(*) FROM accepted_responses WHERE response_tokens > 0").item() == 5


# reuse


def planned(world: World, target: ResolvedTarget, **generation: Any) -> GenerationPlan:
    """The plan of a build over the corpus's own prompts, entered."""
    sources = [{"name": "mine", "path": "team.jsonl", "category": "general"}]
    mix = {"total": 4, "shares": {"general": 1}, "holdout": 0.0, "shortage": "rescale"} | generation.pop("mix", {})
    section = {"model": "model", "max_model_len": generation.pop("max_model_len", 512), "dtype": "float32"}
    manifest = world.manifest(sources=sources, mix=mix, target=section, generation=generation)
    with open_ledger(world.workspace, "generate") as ledger:
        build = world.plan(manifest)
        commit_build(build, world.workspace, ledger)
        rows = load_prompts(build, ledger)
        plan = load_plan(manifest, target, build.build_id, rows, ledger, limit=None, retry_rejected=False)
        commit_plan(plan, ledger)
    return plan


def test_a_build_takes_whole_imported_conversations_and_generates_the_rest(world: World) -> None:
    target = ended_model(world)
    corpus(world)
    recipe = bring_in(world, tokenizer="model")
    plan = planned(world, target, imported=["team"], mix={"total": 5})
    # of five prompts a (two turns) and b have all their answers; d is empty, e and f lack one
    assert plan.reused == {"team": 3}
    assert plan.accepted == 3
    assert plan.to_make == 1 + 2 + 1
    assert "  3 of the accepted are from the import team" in plan.lines()
    linked = query(
        world.workspace,
        f"SELECT upstream_id, turn, source, imported_from, imported_row, recipe_id FROM provenance "
        f"WHERE build_id = '{plan.build_id}' AND state = 'accepted' ORDER BY 1, 2",
    )
    assert linked.rows() == [
        ("a", 0, "mine", "team", 0, recipe), ("a", 1, "mine", "team", 0, recipe), ("b", 0, "mine", "team", 1, recipe),
    ]  # fmt: skip
    assert planned(world, target, mix={"total": 5}).reused == {}


def test_replicas_of_a_build_take_the_rows_of_a_prompt_one_after_another(world: World) -> None:
    target = ended_model(world)
    corpus(world)
    bring_in(world, tokenizer="model", where="id = 'b' OR id = 'c'", name="twice")
    plan = planned(world, target, imported=["twice"], mix={"total": 15, "shortage": "repeat", "max_repeats": 3})
    assert plan.reused == {"twice": 2}
    texts = query(
        world.workspace,
        f"SELECT replica, text FROM build_responses JOIN response_text USING (response_id) "
        f"WHERE build_id = '{plan.build_id}' ORDER BY 1",
    )
    assert texts.rows() == [(0, "Paris."), (1, "It is Paris.")]


def test_a_conversation_that_does_not_fit_the_target_is_generated(world: World) -> None:
    target = ended_model(world)
    corpus(world)
    bring_in(world, tokenizer="model")
    assert planned(world, target, imported=["team"], mix={"total": 5}, max_model_len=16).reused == {"team": 1}


def test_held_out_prompts_are_always_generated(world: World) -> None:
    target = ended_model(world)
    world.jsonl("team.jsonl", [row(str(i), [(f"question {i}", "yes")]) for i in range(60)])
    recipe = bring_in(world, tokenizer="model")
    plan = planned(world, target, imported=["team"], mix={"total": 20, "holdout": 0.3})
    held = plan.answers["holdout"].to_list()
    assert set(held) == {True, False}
    assert [recipe_id != recipe for recipe_id in plan.answers["recipe_id"]] == held
    assert plan.to_make == sum(held)
    assert plan.left["holdout"].all()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"name": "else", "tokenizer": "model"}, "no corpus was imported under this name here"),
        ({"model": "other", "tokenizer": "model"}, "holds answers of other, and the target is model"),
        ({}, "has no token ids. Import it again with --tokenizer model"),
        ({"tokenizer": "model", "chat_template": "other.jinja"}, "another tokenizer or chat template"),
    ],
)
def test_answers_that_are_not_the_targets_are_refused_in_one_line(
    world: World, options: dict[str, Any], said: str
) -> None:
    target = ended_model(world)
    (world.root / "other.jinja").write_text(ENDED.replace("assistant :", "Assistant:"))
    corpus(world)
    bring_in(world, **options)
    with pytest.raises(UserError) as caught:
        planned(world, target, imported=["team"])
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_corpus_that_was_imported_without_tokens_first_is_reused_after_it_got_them(world: World) -> None:
    target = ended_model(world)
    corpus(world)
    bring_in(world, tokenizer="model")
    bring_in(world)  # the newest of the name has none
    assert planned(world, target, imported=["team"], mix={"total": 5}).reused == {"team": 3}


def test_the_recipe_says_what_is_known_of_the_answers_and_nothing_more(world: World) -> None:
    corpus(world)
    import_id = bring_in(world)
    body = json.loads(query(world.workspace, "SELECT body FROM recipes").item())
    assert body["imported"] is True
    assert body["target"] == {"model": "model", "revision": None, "tokenizer": None, "template": None}
    folder: Path = world.workspace.imported(import_id)
    assert json.loads((folder / "import.json").read_text())["recipe"] == body
