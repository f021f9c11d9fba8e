"""The views equal their plain definitions on any history, and answer the ten questions, each in one short SELECT."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corpus.errors import UserError
from corpus.ledger import writer
from corpus.ledger.kept import keep_composition
from corpus.ledger.query import EMPTY_VIEWS, LedgerReader, query, views
from corpus.ledger.texts import prompt_texts, response_texts
from corpus.ledger.writer import migrate, open_ledger
from corpus.workspace import Workspace

World = Any
PLAIN = (Path(__file__).parent / "plain_views.sql").read_text()
COMPARED = ("composition", "funnel", "provenance", "unfinished")
NIGHT = datetime(2026, 3, 4, 19, tzinfo=UTC)
SOURCES = {"a": "coding", "b": "coding", "c": "math"}


def put(connection: Any, table: str, **values: Any) -> None:
    names, marks = ", ".join(values), ", ".join("?" for _ in values)
    connection.execute(f"INSERT INTO {table} ({names}) VALUES ({marks})", list(values.values()))


def ledger() -> Any:
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'; SET threads = 1")
    migrate(connection, "a ledger in memory")
    connection.execute(PLAIN)
    return connection


def read_sources(connection: Any, chance: random.Random, most: int) -> dict[str, list[str]]:
    """Pools, source rows, drops and the nested order; returns the prompts of each source."""
    prompts: dict[str, list[str]] = {}
    for source, category in SOURCES.items():
        put(connection, "pools", pool_id=f"pool {source}", dataset=source, chunks=2)
        ranks = {True: 0, False: 0}
        prompts[source] = []
        for row in range(chance.randint(0, most)):
            place = {"pool_id": f"pool {source}", "chunk": row % 2, "file": "f", "row_index": row}
            fate = chance.choice(["kept", "kept", "kept", "bad", "duplicate"])
            prompt_id = None if fate == "bad" else f"{source}{row}"
            reason = "not_text" if fate == "bad" else None
            put(connection, "source_rows", **place, prompt_id=prompt_id, reason=reason)
            if fate == "duplicate":
                put(connection, "drops", candidates_id="c", source=source, **place, prompt_id=prompt_id, reason=fate)
            elif fate == "kept":
                holdout = chance.random() < 0.2
                put(connection, "prompts", candidates_id="c", prompt_id=prompt_id, source=source, category=category,
                    holdout=holdout, source_rank=ranks[holdout], turns=chance.randint(1, 3),
                    prompt_tokens=chance.choice([None, 5, 7]), **place)  # fmt: skip
                ranks[holdout] += 1
                prompts[source].append(str(prompt_id))
    return prompts


def make_builds(connection: Any, chance: random.Random, prompts: dict[str, list[str]]) -> None:
    for build_id in ("one", "two")[: chance.randint(1, 2)]:
        put(connection, "builds", build_id=build_id, candidates_id="c", created_at=NIGHT)
        for category in ("coding", "math"):
            put(connection, "build_targets", build_id=build_id, category=category, rows=chance.randint(0, 9))
        for source, there in prompts.items():
            chunks = 2 if there else chance.randint(0, 2)
            put(connection, "sources", build_id=build_id, source=source, pool_id=f"pool {source}", chunks=chunks)
            for prompt_id in there[: chance.randint(0, len(there))]:
                holdout, turns = connection.execute(
                    "SELECT holdout, turns FROM prompts WHERE prompt_id = ?", [prompt_id]
                ).fetchone()
                for replica in range(1 if holdout else chance.choice([1, 1, 2])):
                    labels = {"category": SOURCES[source], "source": source, "holdout": holdout}
                    put(connection, "selections", build_id=build_id, prompt_id=prompt_id, replica=replica, **labels)
                    for turn in range(turns):
                        put(connection, "build_responses", build_id=build_id, prompt_id=prompt_id, replica=replica,
                            turn=turn, response_id=f"{prompt_id}/{replica}/{turn}", recipe_id="r",
                            left_out=chance.choice([None, None, None, "truncated"]), **labels)  # fmt: skip


def answer(connection: Any, chance: random.Random) -> None:
    """Attempts, at most one accepted; states of some, in one or two captures; a drafter of some."""
    put(connection, "recipes", recipe_id="r", model="m", thinking=False)
    row = 0
    for response_id, prompt_id, replica, turn in connection.execute(
        "SELECT DISTINCT response_id, prompt_id, replica, turn FROM build_responses ORDER BY ALL"
    ).fetchall():
        states = chance.choice([[], ["rejected"], ["rejected", "rejected"], ["accepted"], ["rejected", "accepted"]])
        for attempt, state in enumerate(states):
            put(connection, "responses", response_id=response_id, prompt_id=prompt_id, replica=replica, turn=turn,
                attempt=attempt, state=state, reason="empty" if state == "rejected" else None, prompt_tokens=3 + turn,
                response_tokens=chance.choice([None, 0, 1, 4]), shard=f"s{chance.randint(0, 2)}", shard_row=row,
                )  # fmt: skip
            row += 1
        for capture in ("x", "y"):
            for number in range(chance.choice([0, 1, 1, 2]) if capture == "x" else chance.choice([0, 0, 1])):
                put(connection, "hidden_rows", capture_id=capture, response_id=response_id,
                    shard=f"h{chance.randint(0, 1)}", shard_row=2 * row + number, tokens=9)  # fmt: skip
        for drafter in ("d", "e"):
            if chance.random() < 0.6:
                put(connection, "drafter_responses", drafter_id=drafter, response_id=response_id)
    for drafter, build_id in (("d", "one"), ("e", chance.choice(["one", None]))):
        put(connection, "drafters", drafter_id=drafter, build_id=build_id)


def differences(connection: Any) -> dict[str, Any]:
    found = {}
    for view in COMPARED:
        ours, plain = (
            [*map(repr, connection.execute(f"FROM {name} ORDER BY ALL").fetchall())] for name in (view, f"plain_{view}")
        )
        if ours != plain:
            found[view] = [pair for pair in zip(ours, plain, strict=False) if pair[0] != pair[1]][:1]
    return found


@settings(max_examples=25)
@given(seed=st.integers(0, 2**32), most=st.integers(0, 9))
def test_the_views_equal_their_plain_definitions_on_any_history(seed: int, most: int) -> None:
    chance = random.Random(seed)
    with ledger() as connection:
        make_builds(connection, chance, read_sources(connection, chance, most))
        assert differences(connection) == {}
        if chance.random() < 0.5:
            keep_composition(connection)  # before there is an answer
        answer(connection, chance)
        assert differences(connection) == {}, "counted anew"
        assert keep_composition(connection)
        assert not keep_composition(connection)
        assert connection.execute("SELECT count(*) FROM counted_composition").fetchone() == (0,)
        assert differences(connection) == {}, "kept"


CHANGES = (
    "INSERT INTO hidden_rows SELECT DISTINCT 'z', response_id, 's', 0, 1 FROM responses",
    "DELETE FROM hidden_rows",
    "DELETE FROM responses WHERE state = 'accepted'",
    "UPDATE responses SET state = 'rejected', reason = 'answered_twice'",
    "UPDATE build_responses SET left_out = 'truncated'",
    "UPDATE build_responses SET holdout = NOT holdout",
    "DELETE FROM drafter_responses",
    "DELETE FROM selections",
    "UPDATE responses SET response_tokens = response_tokens + 1",
)


@pytest.mark.parametrize("change", CHANGES)
def test_what_is_kept_is_left_alone_as_soon_as_anything_changes(change: str) -> None:
    chance = random.Random(4)
    with ledger() as connection:
        make_builds(connection, chance, read_sources(connection, chance, 12))
        answer(connection, chance)
        keep_composition(connection)
        before = connection.execute("FROM composition ORDER BY ALL").fetchall()
        connection.execute(change)
        assert connection.execute("FROM composition ORDER BY ALL").fetchall() != before
        assert differences(connection) == {}


def test_a_large_ledger_that_is_published_keeps_what_composition_comes_to(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "KEPT_FROM", 1)
    world.tell(world.manifest())
    kept = query(world.workspace, "SELECT stage, sum(rows) AS n FROM kept_composition GROUP BY ALL")
    shown = query(world.workspace, "SELECT stage, sum(rows) AS n FROM composition WHERE stage <> 'target' GROUP BY ALL")
    assert kept.sort("stage").equals(shown.sort("stage"))
    assert query(world.workspace, "FROM counted_composition").height == 0


# the ten questions, on a ledger whose numbers are made by hand

QUESTIONS = {
    "composition": """
SELECT stage, category, sum(c.rows) AS rows, sum(c.response_tokens) AS tokens,
       round(100 * sum(share_rows), 1) AS percent, round(100 * any_value(share), 1) AS target
FROM composition c SEMI JOIN latest_build USING (build_id)
LEFT JOIN build_targets USING (build_id, category)
WHERE stage <> 'target' GROUP BY stage, category
ORDER BY instr('selected generated accepted captured trained', stage), category""",
    "funnel": """
SELECT reason, rows FROM funnel SEMI JOIN latest_build USING (build_id)
WHERE source = 'books' ORDER BY rows DESC, reason""",
    "provenance": """
SELECT dataset, revision, file, row_index, upstream_id, license, model, seed, device, shard,
       shard_row
FROM provenance SEMI JOIN latest_build USING (build_id)
WHERE response_id = 'r1'""",
    "dropped": """
SELECT source, row_index, reason, similarity, winner_source, winner_file, winner_row
FROM dropped SEMI JOIN latest_build USING (build_id)
ORDER BY source, row_index""",
    "lengths": """
SELECT category, answers, mean_tokens, median_tokens, most_tokens
FROM lengths SEMI JOIN latest_build USING (build_id) ORDER BY category""",
    "truncated": """
SELECT response_id, category, response_tokens, state
FROM provenance SEMI JOIN latest_build USING (build_id)
WHERE finish_reason = 'length' ORDER BY response_id""",
    "throughput": """
SELECT hour, device, round(sum(tokens_per_s * samples) / sum(samples)) AS tokens_per_s
FROM throughput_by_hour WHERE command = 'generate' GROUP BY ALL ORDER BY ALL""",
    "difference": """
SELECT change, category, prompts FROM build_difference
WHERE old_build_id = 'old' AND new_build_id = 'new' ORDER BY change, category""",
    "acceptance": """
SELECT build_id, category, acceptance_length, low, high
FROM acceptance_by_category WHERE measured_by = 'walk' ORDER BY build_id, category""",
    "shared": """
SELECT source, row_index, other_source, other_row, reason
FROM shared_rows SEMI JOIN latest_build USING (build_id) ORDER BY other_row""",
}

ANSWERS: dict[str, list[Any]] = {
    "composition": [
        ("selected", "coding", 2, None, 66.7, 66.7), ("selected", "math", 1, None, 33.3, 33.3),
        ("generated", "coding", 2, 60, 66.7, 66.7), ("generated", "math", 1, 30, 33.3, 33.3),
        ("accepted", "coding", 1, 10, 50.0, 66.7), ("accepted", "math", 1, 30, 50.0, 33.3),
    ],
    "funnel": [
        ("read", 6), ("selected", 2), ("duplicate", 1), ("near_duplicate", 1), ("not_needed", 1), ("not_text", 1)
    ],
    "provenance": [("org/books", "f00d", "books.jsonl", 0, "u0", "mit", "m", 7, "cuda:0", "s.parquet", 0)],
    "dropped": [
        ("books", 3, "duplicate", None, "web", "web.jsonl", 0),
        ("books", 4, "near_duplicate", 0.75, "books", "books.jsonl", 0),
        ("books", 5, "not_text", None, None, None, None),
    ],
    "lengths": [("coding", 1, 10.0, 10.0, 10), ("math", 1, 30.0, 30.0, 30)],
    "truncated": [("r2", "coding", 50, "rejected")],
    "throughput": [
        (NIGHT, "cuda:0", 150.0), (NIGHT, "cuda:1", 50.0), (NIGHT + timedelta(hours=1), "cuda:0", 300.0)
    ],
    "difference": [("added", "coding", 1), ("kept", "coding", 1), ("labelled otherwise", "math", 1)],
    "acceptance": [("new", "coding", 3.0, 3.0, 3.0), ("old", "coding", 2.0, 2.0, 2.0)],
    "shared": [("web", 0, "books", 3, "duplicate")],
}  # fmt: skip


def by_hand(connection: Any) -> None:
    """Two sources, two builds; of the new one two answers are accepted and one is cut off."""
    for source, rows in {"books": 6, "web": 1}.items():
        put(connection, "pools", pool_id=source, dataset=f"org/{source}", revision="f00d", chunks=1)
        for row in range(rows):
            reason = "not_text" if row == 5 else None
            put(
                connection, "source_rows", pool_id=source, chunk=0, file=f"{source}.jsonl", row_index=row, reason=reason
            )
    for number, (prompt_id, category) in enumerate(
        {"p1": "coding", "p2": "coding", "p3": "coding", "w": "math"}.items()
    ):
        source, row = ("web", 0) if prompt_id == "w" else ("books", number)
        put(connection, "prompts", candidates_id="c", prompt_id=prompt_id, source=source, category=category, turns=1,
            holdout=False, prompt_tokens=5, pool_id=source, chunk=0, file=f"{source}.jsonl", row_index=row,
            upstream_id=f"u{row}")  # fmt: skip
    for row, reason, winner, of, alike in (
        (3, "duplicate", "w", "web", None),
        (4, "near_duplicate", "p1", "books", 0.75),
    ):
        put(connection, "drops", candidates_id="c", source="books", pool_id="books", chunk=0, file="books.jsonl",
            row_index=row, prompt_id=f"d{row}", reason=reason, winner_prompt_id=winner, winner_source=of,
            similarity=alike)  # fmt: skip
    put(connection, "recipes", recipe_id="r", model="m")
    chosen = {"old": {"p1": "coding", "w": "coding"}, "new": {"p1": "coding", "p2": "coding", "w": "math"}}
    for day, (build_id, prompts) in enumerate(chosen.items()):
        put(connection, "builds", build_id=build_id, candidates_id="c", created_at=NIGHT + timedelta(days=day), total=3)
        for category, rows in (("coding", 2), ("math", 1)):
            put(connection, "build_targets", build_id=build_id, category=category, rows=rows, share=rows / 3)
        for source in ("books", "web"):
            put(connection, "sources", build_id=build_id, source=source, pool_id=source, chunks=1, license="mit")
        for prompt_id, category in prompts.items():
            labels = {
                "build_id": build_id,
                "prompt_id": prompt_id,
                "replica": 0,
                "category": category,
                "holdout": False,
            }
            labels["source"] = "web" if prompt_id == "w" else "books"
            put(connection, "selections", **labels)
            put(connection, "build_responses", response_id=f"r{prompt_id[1:]}", recipe_id="r", turn=0, **labels)
    for row, (response_id, prompt_id, tokens, ended) in enumerate(
        (("r1", "p1", 10, "stop"), ("r2", "p2", 50, "length"), ("r", "w", 30, "stop"))
    ):
        cut = ended == "length"
        put(connection, "responses", response_id=response_id, prompt_id=prompt_id, recipe_id="r", replica=0, turn=0,
            attempt=0, state="rejected" if cut else "accepted", reason="truncated" if cut else None, seed=7,
            finish_reason=ended, prompt_tokens=6, response_tokens=tokens, device="cuda:0", shard="s.parquet",
            shard_row=row)  # fmt: skip
    sampled = {
        "n": ((1, "cuda:0", 100), (59, "cuda:0", 200), (30, "cuda:1", 50), (61, "cuda:0", 300)),
        "captures": ((2, "cuda:0", 9139),),
        "again": ((58, "cuda:0", 150),),
    }
    for run_id, samples in sampled.items():
        put(connection, "runs", run_id=run_id, command="extract" if run_id == "captures" else "generate")
        for minute, device, rate in samples:
            put(connection, "engine_samples", run_id=run_id, device=device, tokens_per_s=rate,
                sampled_at=NIGHT + timedelta(minutes=minute))  # fmt: skip
    for build_id, accepted in (("old", 1000), ("new", 2000)):  # 20 rows of 50 drafts each, all alike
        put(connection, "acceptance", drafter_id=build_id, build_id=build_id, category="coding", measured_by="walk",
            drafts=1000, accepted_tokens=accepted, rows=20, measured_at=NIGHT, sum_drafts_sq=50_000,
            sum_accepted_sq=accepted**2 // 20, sum_cross=50 * accepted)  # fmt: skip


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    workspace = Workspace(tmp_path_factory.mktemp("asked") / "ws")
    with open_ledger(workspace, "test") as writer:
        writer.call(by_hand)
    return workspace


@pytest.mark.parametrize("question", QUESTIONS)
def test_each_question_has_its_answer_in_one_short_select(asked: Workspace, question: str) -> None:
    lines = QUESTIONS[question].strip().splitlines()
    assert len(lines) <= 8
    assert max(map(len, lines)) <= 100
    assert query(asked, QUESTIONS[question]).rows() == ANSWERS[question]


# what can be asked


def test_every_view_says_what_it_is_for_also_without_a_workspace(asked: Workspace) -> None:
    alone = views()
    names = [name for name, _, _ in alone]
    assert {*COMPARED, *EMPTY_VIEWS, "dropped", "lengths", "shared_rows", "build_difference"} <= set(names)
    assert names == sorted(names)
    assert all(comment and columns for _, comment, columns in alone)
    known = {(name, column): (kind, said) for name, _, columns in alone for column, kind, said in columns}
    assert known["composition", "share_rows"] == ("DOUBLE", "Part of the stage, 0 to 1")
    assert known["prompt_text", "tools"] == ("VARCHAR", "JSON")
    assert views(asked) == alone


def test_every_column_comment_belongs_to_a_column_that_is_there() -> None:
    assert all(said is not None for _, _, columns in views() for _, _, said in columns)
    assert sum(1 for _, _, columns in views() for _, _, said in columns if said) > 60


OLDER = (
    ("DROP VIEW shared_rows", "FROM shared_rows", "lacks shared_rows"),
    ("CREATE OR REPLACE VIEW lengths AS SELECT 'b' AS build_id", "SELECT answers FROM lengths", "lengths.answers"),
    ("DROP TABLE hidden_failures", "FROM hidden_failures", "lacks hidden_failures"),
)


@pytest.mark.parametrize(("change", "asked_for", "said"), OLDER)
def test_a_snapshot_of_an_older_draftmill_says_in_one_line_what_to_do(
    world: World, change: str, asked_for: str, said: str
) -> None:
    world.tell(world.manifest())
    with duckdb.connect(str(world.workspace.snapshot)) as connection:
        connection.execute(change)
    with pytest.raises(UserError, match="is of an older draftmill") as caught:
        query(world.workspace, asked_for)
    line = str(caught.value)
    assert said in line
    assert "\n" not in line
    assert line.endswith(f"run `draftmill ledger rebuild -w {world.workspace.root}`.")
    with pytest.raises(UserError, match="The published ledger is of an older draftmill"):
        LedgerReader(world.workspace).rows(asked_for)
    with pytest.raises(UserError) as mistyped:
        query(world.workspace, "SELECT nope FROM builds WHERE 1 = 'x'")
    assert "\n" not in str(mistyped.value)


# texts of a page


@pytest.fixture
def told(world: World) -> World:
    world.tell(world.manifest())
    return world


def prompt_places(world: World) -> list[Any]:
    return query(world.workspace, "SELECT prompt_id, pool_id, chunk FROM prompts ORDER BY ALL").rows()


def answer_places(world: World) -> list[Any]:
    sql = "SELECT response_id, shard, shard_row FROM accepted_responses ORDER BY ALL"
    return query(world.workspace, sql).rows()


def test_texts_of_a_page_are_those_of_the_text_views(told: World) -> None:
    prompts = prompt_texts(told.workspace, prompt_places(told))
    asked_for = dict(query(told.workspace, "SELECT prompt_id, asked FROM prompt_text").rows())
    assert len(prompts) > 10
    assert {key: one.messages[-1]["content"] for key, one in prompts.items()} == {
        key: asked_for[key] for key in prompts
    }
    places = answer_places(told)
    read = response_texts(told.workspace, places, tokens=True)
    sql = "SELECT response_id, text, prompt_token_ids, token_ids FROM response_text"
    expected = {row[0]: row[1:] for row in query(told.workspace, sql).rows()}
    assert len(read) == len(places) > 10
    for response_id, shard, row in places:
        one = read[shard, row]
        assert (one.text, one.prompt_token_ids, one.token_ids, one.why) == (*expected[response_id], None)


def test_files_that_are_gone_or_damaged_are_a_reason_and_the_others_are_read(told: World) -> None:
    (pool, _, *_), places = sorted({(pool, chunk) for _, pool, chunk in prompt_places(told)}), prompt_places(told)
    path = told.workspace.pool(pool[0]) / f"{pool[1]}.parquet"
    path.unlink()
    read = prompt_texts(told.workspace, places)
    for prompt_id, pool_id, _ in places:
        assert (read[prompt_id].why is not None) == (pool_id == pool[0])
        assert bool(read[prompt_id].messages) == (pool_id != pool[0])
    assert f"{path}: is gone" in {one.why for one in read.values()}
    answers = answer_places(told)
    shard = told.workspace.responses / answers[0][1]
    copy = shard.with_name("copy.parquet")
    copy.write_bytes(shard.read_bytes())
    shard.write_bytes(shard.read_bytes()[: shard.stat().st_size // 2])
    both = [*answers, *((one, "copy.parquet", row) for one, name, row in answers if name == shard.name)]
    texts = response_texts(told.workspace, both)
    assert {name for (name, _), one in texts.items() if one.why is not None} == {shard.name}
    assert all("cannot be read" in str(one.why) for (name, _), one in texts.items() if name == shard.name)


def test_a_row_that_holds_another_answer_is_a_reason(told: World) -> None:
    (_, shard, row), *_ = answer_places(told)
    one = response_texts(told.workspace, [("another", shard, row)])[shard, row]
    assert one.text == ""
    assert "is not answer another" in str(one.why)
    assert response_texts(told.workspace, []) == {}
    (_, pool_id, chunk), *_ = prompt_places(told)
    assert "holds no prompt nobody" in str(prompt_texts(told.workspace, [("nobody", pool_id, chunk)])["nobody"].why)
