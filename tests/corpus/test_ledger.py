"""The ledger: migrations, the views' contract, and that everything in it can be made again from the files."""

from __future__ import annotations

import itertools
import math
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pytest

from corpus.building import commit_build
from corpus.errors import UserError
from corpus.ledger import ingest, writer
from corpus.ledger.query import LedgerReader, query
from corpus.ledger.rebuild import adopt, rebuild_workspace
from corpus.ledger.writer import migrate, migrations, open_ledger
from corpus.responses import Attempt, read_rows_at, write_responses
from corpus.token_ids import pack_ids
from corpus.workspace import Workspace

World = Any

CONTRACT = {
    "composition": "build_id stage category source rows prompt_tokens response_tokens share_rows share_tokens",
    "funnel": "build_id source reason rows",
    "provenance": (
        "build_id response_id prompt_id replica turn category source dataset revision config split row_index "
        "upstream_id license recipe_id model thinking state reason finish_reason prompt_tokens response_tokens seed "
        "attempt engine device started_at ended_at shard shard_row hidden_shard hidden_row"
    ),
    "unfinished": "build_id prompt_id replica turn category why",
    "throughput": "run_id engine device sampled_at running waiting tokens_per_s kv_use",
    "acceptance_by_category": (
        "drafter_id build_id category measured_by acceptance_length drafts accepted_tokens rows"
    ),
    "dropped": (
        "build_id source reason detail file row_index upstream_id prompt_id winner_prompt_id winner_source winner_file "
        "winner_row similarity eval_set eval_item overlap"
    ),
    "lengths": (
        "build_id category answers mean_tokens median_tokens p95_tokens most_tokens mean_prompt_tokens "
        "mean_reasoning_tokens truncated"
    ),
    "shared_rows": "build_id prompt_id source file row_index other_source other_file other_row reason similarity",
    "throughput_by_hour": "run_id device hour tokens_per_s running waiting kv_use samples command",
    "build_difference": "old_build_id new_build_id change category source prompts",
    "prompt_text": "prompt_id messages",
    "original_text": "prompt_id file row_index answers",
    "response_text": "response_id",
}
TABLES = (
    "sources pools source_rows drops prompts builds selections recipes responses build_responses "
    "response_shards captures hidden_shards hidden_rows hidden_failures drafters train_metrics acceptance "
    "engine_samples runs events"
)


def attempt(response_id: str, **changes: Any) -> Attempt:
    values: dict[str, Any] = {
        "response_id": response_id, "prompt_id": "p", "recipe_id": "r", "replica": 0, "turn": 0, "attempt": 0,
        "state": "accepted", "reason": None, "prompt_token_ids": pack_ids([1, 2]), "token_ids": pack_ids([3]),
        "text": "x", "finish_reason": "stop", "stop_reason": None, "seed": 1, "engine": "e", "device": "cpu:0",
        "queued_at": 1.0, "started_at": 2.0, "first_token_at": 3.0, "ended_at": 4.0, "run_id": "run",
    }  # fmt: skip
    return Attempt(**{**values, **changes})


def states(ledger: Any) -> list[Any]:
    return ledger.rows("SELECT response_id, shard, shard_row, state, reason FROM responses ORDER BY ALL")


@pytest.fixture(scope="module")
def lived(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A workspace with two builds, answered by the fake engine in worker processes; some answers rejected."""
    from tests.conftest import World as Small

    world = Small(tmp_path_factory.mktemp("lived"))
    world.jsonl("code.jsonl", [{"id": f"c{i}", "prompt": f"code question {i}"} for i in range(30)] + [{"prompt": 1}])
    chats = [
        {"id": f"t{i}", "messages": [{"role": "user", "content": f"talk {i}"}, {"role": "user", "content": "more"}]}
        for i in range(30)
    ]
    world.jsonl("talk/a.jsonl", chats[:15])
    world.jsonl("talk/b.jsonl", [*chats[10:], {"messages": [{"role": "user", "content": "unrenderable"}]}])
    sources = [
        {"name": "code", "path": "code.jsonl", "category": "coding", "license": "mit"},
        {"name": "talk", "path": "talk", "category": "general"},
    ]
    shares = {"total": 40, "shares": {"coding": 1, "general": 1}, "holdout": 0.1, "shortage": "rescale"}
    generation = {"max_tokens": 16, "truncated": "drop"}
    body = {"sources": sources, "mix": shares, "generation": generation, "engine": {"extra": {"mean_tokens": 10}}}
    for total in (12, 40):
        manifest = world.manifest(**body | {"mix": {**shares, "total": total}})
        with open_ledger(world.workspace, "run") as ledger:
            plan = world.plan(manifest)
            commit_build(plan, world.workspace, ledger)
            world.generate(manifest, plan, ledger, devices=2, limit=None if total == 40 else 6)
    return world


def build_ids(world: World) -> list[str]:
    return [row[0] for row in query(world.workspace, "SELECT build_id FROM builds ORDER BY total").rows()]


# migrations


def test_a_fresh_ledger_has_every_table_and_view_and_says_what_each_is_for(world: World) -> None:
    with open_ledger(world.workspace, "test") as ledger:
        tables = dict(ledger.rows("SELECT table_name, comment FROM duckdb_tables()"))
        views = dict(ledger.rows("SELECT view_name, comment FROM duckdb_views() WHERE NOT internal"))
    assert set(TABLES.split()) <= set(tables)
    assert {name for name in tables if not tables[name]} <= {"schema_migrations"}
    assert all(views.values())


def test_migrations_are_numbered_recorded_and_applied_once(world: World) -> None:
    numbers = [version for version, _, _ in migrations()]
    assert numbers == list(range(1, len(numbers) + 1))
    for _ in range(2):
        with open_ledger(world.workspace, "test") as ledger:
            assert ledger.rows("SELECT version FROM schema_migrations ORDER BY 1") == [(n,) for n in numbers]


def test_opening_again_keeps_what_is_there(world: World) -> None:
    with open_ledger(world.workspace, "test") as ledger:
        ledger.call(lambda c: c.execute("INSERT INTO runs (run_id) VALUES ('kept')"))
    with open_ledger(world.workspace, "test") as ledger:
        assert ledger.rows("SELECT run_id FROM runs") == [("kept",)]


def test_a_ledger_of_the_first_schema_keeps_where_its_prompts_are_from() -> None:
    with duckdb.connect() as connection:
        connection.execute(migrations()[0][2])
        connection.execute("CREATE TABLE schema_migrations (version INTEGER, name VARCHAR, applied_at TIMESTAMPTZ)")
        connection.execute("INSERT INTO schema_migrations VALUES (1, 'tables', now())")
        connection.execute("CREATE VIEW old AS SELECT * FROM prompt_sources")
        connection.execute("INSERT INTO prompts (candidates_id, prompt_id, source) VALUES ('c', 'p', 's')")
        connection.execute("INSERT INTO prompt_sources VALUES ('c', 'p', 's', 'pool', 3, 'f', 7, 'u', true)")
        connection.execute("INSERT INTO prompt_sources VALUES ('c', 'p', 't', 'pool2', 1, 'g', 9, 'v', false)")
        migrate(connection, "x")
        assert connection.execute(
            "SELECT pool_id, chunk, file, row_index, upstream_id, kept FROM prompt_sources"
        ).fetchall() == [("pool", 3, "f", 7, "u", True)]


def test_a_failed_migration_leaves_no_record_and_no_half(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    last = migrations()[-1][0]
    broken = [*migrations(), (last + 1, "broken", "CREATE TABLE half (a INT); CREATE TABLE runs (a INT);")]
    connection = duckdb.connect()
    monkeypatch.setattr("corpus.ledger.writer.migrations", lambda: broken)
    with pytest.raises(duckdb.Error):
        migrate(connection, "x")
    connection.execute("ROLLBACK")
    assert connection.execute("SELECT max(version) FROM schema_migrations").fetchone() == (last,)
    assert not connection.execute("SELECT 1 FROM duckdb_tables() WHERE table_name = 'half'").fetchall()


def test_a_ledger_of_a_newer_draftmill_is_refused_in_one_line_and_left_alone(world: World) -> None:
    with open_ledger(world.workspace, "test") as ledger:
        ledger.call(lambda c: c.execute("INSERT INTO schema_migrations (version, name) VALUES (99, 'future')"))
    before = world.workspace.snapshot.read_bytes()
    done = draftmill(world, "build", str(world.write()))
    assert done.returncode == 2
    known = migrations()[-1][0]
    assert f"has schema 99, this draftmill knows {known}. Upgrade draftmill, or choose another" in done.stderr
    assert done.stderr.count("\n") == 1
    assert world.workspace.snapshot.read_bytes() == before


def test_a_damaged_ledger_says_how_it_is_made_again(world: World) -> None:
    world.workspace.root.mkdir()
    world.workspace.ledger.write_bytes(b"no database" * 2000)
    with (
        pytest.raises(UserError, match=r"Run `draftmill ledger rebuild`") as caught,
        open_ledger(world.workspace, "test"),
    ):
        pass
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("part", [0.5, 0.9])
def test_a_ledger_that_is_found_damaged_does_not_replace_the_last_good_snapshot(world: World, part: float) -> None:
    """The snapshot knows the checksums that a rebuild goes by."""
    workspace = world.workspace
    world.tell(world.manifest())
    good, data = workspace.snapshot.read_bytes(), workspace.ledger.read_bytes()
    workspace.ledger.write_bytes(data[: int(part * len(data))])
    with (
        pytest.raises(UserError, match="Run `draftmill ledger rebuild`"),
        open_ledger(workspace, "test") as ledger,
    ):
        adopt(ledger)
    assert workspace.snapshot.read_bytes() == good


def test_a_snapshot_that_cannot_be_copied_ends_no_run(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def killed(command: list[str], **_: Any) -> None:
        raise subprocess.CalledProcessError(-9, command, stderr=b"")

    with open_ledger(world.workspace, "test") as ledger:
        ledger.publish()
        with monkeypatch.context() as patched:
            patched.setattr(subprocess, "run", killed)
            ledger.call(lambda c: c.execute("INSERT INTO runs (run_id) VALUES ('first')"))
            ledger.publish()
        assert "is not as new as it should be" in caplog.text
        assert query(world.workspace, "FROM runs").height == 0
    assert query(world.workspace, "FROM runs").height == 1  # the next one has it


def draftmill(world: World, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "draftmill", *arguments, "--workspace", str(world.workspace.root)],
        capture_output=True, text=True, cwd=world.root, check=False,
    )  # fmt: skip


# views


@pytest.mark.parametrize("view", CONTRACT)
def test_the_columns_of_a_view_are_a_promise(lived: World, view: str) -> None:
    columns = CONTRACT[view].split()
    assert query(lived.workspace, f"FROM {view} LIMIT 1").columns[: len(columns)] == columns


def test_the_funnel_sums_for_every_build_and_source(lived: World) -> None:
    funnel = query(lived.workspace, "FROM funnel")
    assert set(funnel["source"]) == {"code", "talk"}
    for _, rows in funnel.group_by("build_id", "source"):
        counts = dict(zip(rows["reason"], rows["rows"], strict=True))
        read = counts.pop("read")
        assert read == sum(counts.values())
        assert counts["selected"] > 0
        assert rows["reason"].n_unique() == rows.height
    reasons = set(funnel["reason"])
    assert {"read", "selected", "held_out", "not_needed", "same_prompt", "not_text"} <= reasons


def test_composition_of_each_stage_sums_to_one(lived: World) -> None:
    rows = query(
        lived.workspace,
        "SELECT build_id, stage, sum(share_rows) AS s, sum(rows) AS n FROM composition GROUP BY ALL",
    )
    assert {"target", "selected", "generated", "accepted"} <= set(rows["stage"])
    assert all(abs(share - 1) < 1e-9 for share in rows["s"])
    small, large = build_ids(lived)
    count = {(build, stage): n for build, stage, n in rows.select("build_id", "stage", "n").iter_rows()}
    assert count[small, "target"] == count[small, "selected"] == 12
    assert count[large, "accepted"] <= count[large, "generated"]


def test_provenance_leads_from_an_answer_to_the_row_that_asked_for_it(lived: World) -> None:
    rows = query(
        lived.workspace,
        "SELECT p.*, t.messages, r.text, r.prompt_token_ids FROM provenance p JOIN prompt_text t USING (prompt_id) "
        "JOIN response_text r USING (response_id)",
    )
    assert rows.height == query(lived.workspace, "FROM provenance WHERE state = 'accepted'").height > 0
    for row in rows.iter_rows(named=True):
        path = lived.root / (f"talk/{row['file']}" if row["source"] == "talk" else row["file"])
        line = path.read_text().splitlines()[row["row_index"]]
        assert f'"id": "{row["upstream_id"]}"' in line
        assert row["upstream_id"].startswith("c" if row["category"] == "coding" else "t")
        assert row["prompt_tokens"] == len(row["prompt_token_ids"])
        stored = read_rows_at(lived.workspace.responses, [(row["shard"], row["shard_row"])], ["response_id", "text"])
        assert stored.row(0)[:2] == (row["response_id"], row["text"])
        assert row["license"] == ("mit" if row["source"] == "code" else None)
        assert row["started_at"] <= row["ended_at"]
        assert row["model"] == "org/double"


def test_provenance_has_one_row_per_build_and_wanted_answer(lived: World) -> None:
    provenance = query(lived.workspace, "SELECT build_id, response_id FROM provenance")
    wanted = query(lived.workspace, "SELECT build_id, response_id FROM build_responses")
    assert provenance.sort(provenance.columns).equals(wanted.sort(wanted.columns))
    assert provenance.n_unique() == provenance.height
    two_turns = query(lived.workspace, "SELECT max(turn) FROM provenance WHERE category = 'general'")
    assert two_turns.item() == 1


def test_unfinished_is_what_is_wanted_and_not_accepted_with_its_reason(lived: World) -> None:
    small, large = build_ids(lived)
    unfinished = query(lived.workspace, "SELECT build_id, why, count(*) AS n FROM unfinished GROUP BY ALL")
    why = {(build, reason): n for build, reason, n in unfinished.iter_rows()}
    assert {reason for build, reason in why if build == large} <= {
        "truncated", "earlier_turn_rejected", "template_error", "empty"
    }  # fmt: skip
    assert why[large, "truncated"] > 0
    for build in (small, large):
        wanted, accepted = query(
            lived.workspace,
            f"SELECT count(*), count(*) FILTER (state = 'accepted') FROM provenance WHERE build_id = '{build}'",
        ).row(0)
        assert sum(n for (b, _), n in why.items() if b == build) == wanted - accepted


def test_an_answer_that_two_builds_share_was_made_once(lived: World) -> None:
    small, large = build_ids(lived)
    shared = query(
        lived.workspace,
        f"SELECT response_id FROM build_responses WHERE build_id = '{small}' "
        f"INTERSECT SELECT response_id FROM build_responses WHERE build_id = '{large}'",
    )
    made = query(lived.workspace, "SELECT response_id, count(*) AS n FROM responses GROUP BY ALL")
    assert shared.height > 0
    assert made.join(shared, on="response_id")["n"].max() == 1


# made again from the files

VIEWS = [name for name in CONTRACT if not name.endswith("_text")] + ["accepted_responses"]


def contents(world: World) -> dict[str, pl.DataFrame]:
    found = {}
    for name in [*VIEWS, *TABLES.split()]:
        frame = query(world.workspace, f"FROM {name}")
        text = frame.select(pl.exclude(pl.List).cast(pl.String))
        found[name] = text.sort(text.columns)
    return found


def test_a_rebuilt_ledger_equals_the_one_that_was_written(lived: World) -> None:
    before = contents(lived)
    assert before["throughput"].columns
    assert before["responses"].height > 20
    counts = rebuild_workspace(lived.workspace)
    after = contents(lived)
    for name, frame in before.items():
        assert after[name].equals(frame), name
    assert counts["builds"] == 2
    assert lived.workspace.ledger.with_name("ledger.duckdb.old").exists()


def test_a_lost_ledger_is_made_again_by_the_command(lived: World) -> None:
    before = contents(lived)
    lived.workspace.ledger.unlink()
    lived.workspace.snapshot.unlink()
    done = draftmill(lived, "ledger", "rebuild")
    assert done.returncode == 0, done.stderr
    assert {name: frame.equals(before[name]) for name, frame in contents(lived).items()} == dict.fromkeys(before, True)


def test_a_shard_that_no_transaction_named_is_adopted(world: World) -> None:
    write_responses(world.workspace.responses / "a.parquet", [attempt("x"), attempt("y", state="rejected", reason="r")])
    with open_ledger(world.workspace, "test") as ledger:
        assert adopt(ledger) == 1
        assert adopt(ledger) == 0
        assert states(ledger) == [
            ("x", "a.parquet", 0, "accepted", None), ("y", "a.parquet", 1, "rejected", "r"),
        ]  # fmt: skip
        assert ledger.rows("SELECT shard, rows FROM response_shards") == [("a.parquet", 2)]


def test_a_torn_shard_is_moved_aside_and_never_deleted(world: World) -> None:
    whole = write_responses(world.workspace.responses / "b.parquet", [attempt("x")])
    torn = world.workspace.responses / "a.parquet"
    torn.write_bytes(whole.path.read_bytes()[:-40])
    with open_ledger(world.workspace, "test") as ledger:
        assert adopt(ledger) == 1
        assert [row[0] for row in states(ledger)] == ["x"]
        assert not torn.exists()
        assert torn.with_name("a.parquet.damaged").stat().st_size > 0
        assert adopt(ledger) == 0


@pytest.mark.parametrize("order", [("a.parquet", "b.parquet"), ("b.parquet", "a.parquet")])
def test_of_two_accepted_answers_the_lowest_shard_wins_whichever_comes_first(
    world: World, order: tuple[str, str]
) -> None:
    folder = world.workspace.responses
    write_responses(folder / "a.parquet", [attempt("x"), attempt("x"), attempt("y", state="rejected", reason="empty")])
    write_responses(folder / "b.parquet", [attempt("y"), attempt("x")])
    with open_ledger(world.workspace, "test") as ledger:
        for name in order:
            ledger.call(lambda c, name=name: ingest.ingest_response_shard(c, folder / name))
        expected = [
            ("x", "a.parquet", 0, "accepted", None),
            ("x", "a.parquet", 1, "rejected", "answered_twice"),
            ("x", "b.parquet", 1, "rejected", "answered_twice"),
            ("y", "a.parquet", 2, "rejected", "empty"),
            ("y", "b.parquet", 0, "accepted", None),
        ]
        assert states(ledger) == expected
        ledger.call(lambda c: ingest.ingest_response_shard(c, folder / "a.parquet"))
        assert states(ledger) == expected  # entering it twice changes nothing


# one writer, many readers


def test_a_second_coordinator_is_refused_and_told_who_is_there(world: World) -> None:
    path = world.write()
    with open_ledger(world.workspace, "generate"):
        done = draftmill(world, "build", str(path))
    assert done.returncode == 2
    assert f"`draftmill generate`, process {os.getpid()} on " in done.stderr
    assert "one coordinator at a time" in done.stderr
    assert done.stderr.count("\n") == 1
    assert draftmill(world, "build", str(path)).returncode == 0


def test_the_snapshot_is_readable_while_the_writer_is_open(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "PUBLISH_EVERY_S", math.inf)
    with open_ledger(world.workspace, "test") as ledger:
        ledger.call(lambda c: c.execute("INSERT INTO runs (run_id) VALUES ('first')"))
        ledger.publish()
        ledger.call(lambda c: c.execute("INSERT INTO runs (run_id) VALUES ('second')"))
        done = draftmill(world, "sql", "SELECT run_id FROM runs", "--format", "csv")
        assert done.returncode == 0, done.stderr
        assert done.stdout == "run_id\nfirst\n"
        assert [row[0] for row in LedgerReader(world.workspace).rows("SELECT run_id FROM runs")] == ["first"]
    assert query(world.workspace, "FROM runs").height == 2


class Clock:
    """A clock that stands still unless it is told, and timers that go off when it is."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.daemon = True

    def monotonic(self) -> float:
        return self.now_s

    def timer(self, delay_s: float, call: Callable[[], None]) -> Clock:
        self.timers.append((self.now_s + delay_s, call))
        return self

    def start(self) -> None: ...

    def cancel(self) -> None:
        self.timers.clear()

    def wait(self, seconds: float) -> None:
        self.now_s += seconds
        due = [call for at_s, call in self.timers if at_s <= self.now_s]
        self.timers = [(at_s, call) for at_s, call in self.timers if at_s > self.now_s]
        for call in due:
            call()


@pytest.mark.parametrize("cost_s", [0.01, 0.5, 3.0])
def test_a_snapshot_is_seldom_and_cheap_and_never_older_than_promised(
    cost_s: float, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At most every 10 s and 5% of the time; at most max(10 s, 20 times its cost) old, whether or not work follows."""
    clock, published, copy = Clock(), [], subprocess.run
    monkeypatch.setattr(writer, "time", clock)
    monkeypatch.setattr(writer.threading, "Timer", clock.timer)

    def slow_copy(command: list[str], **options: Any) -> Any:
        clock.now_s += cost_s
        published.append(clock.now_s)
        return copy(command, **options)

    monkeypatch.setattr(writer.subprocess, "run", slow_copy)
    chance, most_s = random.Random(cost_s), max(10.0, 20 * cost_s) + cost_s
    with open_ledger(world.workspace, "test") as ledger:
        ledger.publish()
        started_s, committed = clock.now_s, 0
        for number in range(120):
            if number % 40 < 25:  # then nothing is committed for a while
                ledger.call(lambda c, number=number: c.execute("INSERT INTO runs (run_id) VALUES (?)", [str(number)]))
                committed, committed_s = committed + 1, clock.now_s
            clock.wait(chance.choice([0.05, 0.4, 2.0, 5.0]) if number % 40 < 25 else most_s / 8)
            ledger.rows("SELECT 1")  # what the timer asked for is done
            if clock.now_s - committed_s > most_s:
                assert query(world.workspace, "FROM runs").height == committed
        gaps = [later - earlier for earlier, later in itertools.pairwise(published)]
        assert len(gaps) > 5 and min(gaps) >= 10.0
        assert cost_s * (len(published) - 1) <= 0.05 * (published[-1] - started_s) + 1e-9
    assert query(world.workspace, "FROM runs").height == committed


def test_a_reader_without_a_ledger_sees_an_empty_one(world: World) -> None:
    assert LedgerReader(world.workspace).rows("SELECT count(*) FROM provenance") == [(0,)]
    assert not world.workspace.root.exists()


def test_a_job_that_fails_changes_nothing(world: World) -> None:
    def job(connection: Any) -> None:
        connection.execute("INSERT INTO runs (run_id) VALUES ('half')")
        raise ValueError("no")

    with open_ledger(world.workspace, "test") as ledger:
        with pytest.raises(ValueError, match="no"):
            ledger.call(job)
        assert ledger.rows("SELECT count(*) FROM runs") == [(0,)]


@pytest.mark.parametrize("name", ['it\'s "mine"', "with space", "runs [old]", "a;b--c", "ünï*"])
def test_a_workspace_may_have_any_name(tmp_path: Path, name: str) -> None:
    from tests.conftest import World as Small

    (tmp_path / name).mkdir()
    world = Small(tmp_path / name)
    with open_ledger(world.workspace, "test") as ledger:
        plan = world.plan(world.manifest())
        commit_build(plan, world.workspace, ledger)
        write_responses(world.workspace.responses / "a.parquet", [attempt("x")])
        adopt(ledger)
    assert query(world.workspace, "FROM prompt_text").height == 80
    assert query(world.workspace, "SELECT text FROM response_text").rows() == [("x",)]
    assert query(world.workspace, "SELECT count(*) FROM selections").item() == plan.selected + plan.held_out
    rebuild_workspace(world.workspace)
    assert query(world.workspace, "SELECT count(*) FROM selections").item() == plan.selected + plan.held_out


def composition(workspace: Workspace) -> list[tuple[Any, ...]]:
    return query(workspace, "FROM composition ORDER BY ALL").rows()


def kept_rows(workspace: Workspace) -> int:
    return int(query(workspace, "SELECT count(*) FROM kept_composition WHERE stage = 'accepted'").item())


def test_a_large_ledgers_snapshot_has_its_composition_counted(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a run goes on too; it says what counting anew says."""
    world.tell(world.manifest())
    assert kept_rows(world.workspace) == 0
    plain = composition(world.workspace)
    monkeypatch.setattr(writer, "KEPT_FROM", 1)
    with open_ledger(world.workspace, "run") as ledger:
        ledger.publish()
        assert kept_rows(world.workspace) > 0
        assert composition(world.workspace) == plain


@pytest.mark.parametrize("error", [duckdb.OutOfMemoryException("no room"), duckdb.BinderException("no such view")])
def test_composition_that_cannot_be_counted_leaves_the_ledger_as_it_was(
    world: World, monkeypatch: pytest.MonkeyPatch, error: duckdb.Error
) -> None:
    """Want of memory ends no run: the snapshot is published without."""
    world.tell(world.manifest())
    plain = composition(world.workspace)
    before_ns = world.workspace.snapshot.stat().st_mtime_ns

    def fails(connection: duckdb.DuckDBPyConnection) -> bool:
        connection.execute("DELETE FROM builds")
        raise error

    monkeypatch.setattr(writer, "KEPT_FROM", 1)
    with open_ledger(world.workspace, "run") as ledger:
        with monkeypatch.context() as patch:
            patch.setattr(writer, "keep_composition", fails)
            if isinstance(error, duckdb.OutOfMemoryException):
                ledger.publish()
                assert world.workspace.snapshot.stat().st_mtime_ns > before_ns
            else:
                with pytest.raises(duckdb.BinderException):
                    ledger.publish()
        assert ledger.rows("SELECT count(*) FROM builds") == [(1,)]
    assert composition(world.workspace) == plain


def test_a_ledger_of_an_older_draftmill_is_published_anew_by_whoever_opens_it(world: World) -> None:
    world.tell(world.manifest())
    older = "DELETE FROM schema_migrations WHERE version = 7; DROP VIEW composition; DROP VIEW counted_composition; "
    older += "DROP TABLE kept_composition; DROP TABLE kept_fingerprint"
    with open_ledger(world.workspace, "run") as ledger:
        ledger.call(lambda c: c.execute(older))
    with pytest.raises(UserError, match="older draftmill"):
        query(world.workspace, "FROM composition")
    with open_ledger(world.workspace, "run"):
        pass
    assert composition(world.workspace)


def test_two_readers_of_one_process_share_a_snapshot(world: World) -> None:
    world.tell(world.manifest())
    first, second = LedgerReader(world.workspace), LedgerReader(world.workspace)
    assert first.rows("SELECT count(*) FROM builds") == second.rows("SELECT count(*) FROM builds")
    with pytest.raises(UserError):
        second.rows("SELECT * FROM read_csv('/etc/hosts')")
