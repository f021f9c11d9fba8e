"""The explorer without a browser: its lists are the ledger's, its files hold them, the guard lets nobody else in."""

from __future__ import annotations

import asyncio
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import polars as pl
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from corpus.building import commit_build
from corpus.errors import UserError
from corpus.ledger.query import query, views
from corpus.ledger.writer import open_ledger
from draftmill.looking.explorer_app import _views
from draftmill.looking.explorer_export import exported
from draftmill.looking.explorer_guard import Guard
from draftmill.looking.explorer_record import find_record
from draftmill.looking.explorer_rows import ANSWERS, DROPPED, KINDS, PROMPTS, choices, count_rows, kinds_of, listed
from draftmill.looking.explorer_snapshot import MOST_LISTS, Published
from draftmill.looking.explorer_sql import MOST_ROWS, answer, limited
from draftmill.looking.explorer_text import STEERING, cell, excerpt, visible
from draftmill.looking.filters import Filters

if TYPE_CHECKING:
    from tests.conftest import World

TOKEN = "the-token"


def build_of(published: Published) -> str:
    return str(published.now().rows("SELECT build_id FROM latest_build")[0][0])


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> World:
    """One such world for the tests that only read it."""
    from tests.conftest import World as Small

    made = Small(tmp_path_factory.mktemp("explored"))
    told(made)
    return made


def told(world: World) -> Published:
    """A finished small build with drops, unfinished and rejected answers."""
    rows = [{"id": i, "prompt": f"code question {i % 30}"} for i in range(40)]
    talk = [{"id": i, "prompt": "word " * (20 if i % 4 else 200) + str(i)} for i in range(40)]
    sources = [
        {"name": "code", "path": world.jsonl("code.jsonl", rows), "category": "coding", "license": "mit"},
        {"name": "talk", "path": world.jsonl("talk.jsonl", talk), "category": "general", "license": "mit"},
    ]
    world.tell(world.manifest(sources=sources, filters={"prompt_chars": 500}), limit=18)
    return Published(world.workspace)


def test_the_lists_are_the_views_rows(small: World) -> None:
    published = Published(small.workspace)
    snapshot, build = published.now(), build_of(published)
    provenance = snapshot.rows(
        "SELECT response_id, prompt_id, category, source, holdout, state, reason, finish_reason, prompt_tokens, "
        "response_tokens FROM provenance WHERE build_id = ? ORDER BY response_id", build,
    )  # fmt: skip
    names = "response_id prompt_id category source holdout state reason finish_reason prompt_tokens response_tokens"
    page = listed(snapshot, ANSWERS, build, Filters(), 1, "given")
    rows = [
        row
        for n in range(1, page.paging.pages + 1)
        for row in listed(snapshot, ANSWERS, build, Filters(), n, "given").rows
    ]
    assert sorted(tuple(row[name] for name in names.split()) for row in rows) == provenance
    assert {row["state"] for row in rows} == {"accepted", "rejected", "unfinished"}
    funnel = dict(snapshot.rows("SELECT reason, sum(rows)::INT FROM funnel WHERE build_id = ? GROUP BY 1", build))
    lost = dict(choices(snapshot, DROPPED, build)["reason"])
    assert lost == {k: v for k, v in funnel.items() if k not in ("read", "selected", "held_out", "not_needed")}
    assert lost
    assert count_rows(snapshot, PROMPTS, build, Filters()) == funnel["selected"] + funnel["held_out"]


def test_orders_and_filters_agree(small: World) -> None:
    published = Published(small.workspace)
    snapshot, build = published.now(), build_of(published)
    accepted = Filters(state=("accepted",))
    longest = [row["response_tokens"] for row in listed(snapshot, ANSWERS, build, accepted, 1, "longest").rows]
    assert longest == sorted(longest, reverse=True)
    assert listed(snapshot, ANSWERS, build, accepted, 1, "shortest").rows[0]["response_tokens"] == longest[-1]
    for name, values in choices(snapshot, ANSWERS, build).items():
        for value, rows in values:
            assert count_rows(snapshot, ANSWERS, build, Filters().but(name, (value,))) == rows


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_holds_the_filtered_rows(small: World, kind: str) -> None:
    published = Published(small.workspace)
    snapshot, build = published.now(), build_of(published)
    filters = Filters(source=("talk",))
    rows = count_rows(snapshot, kind, build, filters)
    assert rows > 0
    frames = {}
    for form, read in (("csv", pl.read_csv), ("jsonl", pl.read_ndjson), ("parquet", pl.read_parquet)):
        data = b"".join(exported(snapshot, kind, build, filters, form, texts=True))
        frames[form] = read(io.BytesIO(data), **({} if form == "parquet" else {"infer_schema_length": None}))
        assert frames[form].height == rows
        assert set(frames[form]["source"]) == {"talk"}
    assert frames["csv"].columns == frames["parquet"].columns
    assert set(frames["csv"].columns) == set(frames["jsonl"].columns)
    assert frames["parquet"]["unread"].null_count() == rows
    for messages in frames["parquet"]["messages"]:
        assert json.loads(messages)[0]["content"].startswith("word word")
    if kind == ANSWERS:
        texts = dict(query(small.workspace, "SELECT response_id, text FROM response_text").rows())
        answers = dict(frames["parquet"].select("response_id", "answer").rows())
        assert {key: value for key, value in answers.items() if value is not None}.items() <= texts.items()
        assert any(answers.values())
    without = b"".join(exported(snapshot, kind, build, filters, "parquet", texts=False))
    assert "messages" not in pl.read_parquet(io.BytesIO(without)).columns
    nothing = b"".join(exported(snapshot, kind, build, Filters(source=("no such",)), "csv", texts=False))
    assert nothing.decode().strip().split(",")[0] == frames["csv"].columns[0]


def test_a_build_before_generation_has_prompts_and_drops(world: World) -> None:
    manifest = world.manifest()
    with open_ledger(world.workspace, "build") as ledger:
        commit_build(world.plan(manifest), world.workspace, ledger)
    published = Published(world.workspace)
    build = build_of(published)
    assert kinds_of(published.now(), build)[0] == PROMPTS
    assert count_rows(published.now(), ANSWERS, build, Filters()) == 0
    page = listed(published.now(), PROMPTS, build, Filters(), 1, "given")
    record = find_record(world.workspace, published.now(), page.rows[0]["prompt_id"], None)
    assert "question" in record.messages[0][1]
    assert record.answer is None


def test_nothing_published_is_said(world: World) -> None:
    with pytest.raises(UserError, match="holds no published ledger"):
        Published(world.workspace).now()


def test_a_snapshot_that_is_replaced_is_opened_again(world: World) -> None:
    published = told(world)
    old = published.now()
    build = build_of(published)
    assert published.now() is old
    world.tell(world.manifest())
    new = published.now()
    assert new is not old
    assert build_of(published) != build
    assert count_rows(old, ANSWERS, build, Filters()) == count_rows(new, ANSWERS, build, Filters())
    assert old.rows("SELECT count(*) FROM builds") != new.rows("SELECT count(*) FROM builds")


def test_lists_that_nobody_asks_for_are_forgotten(small: World) -> None:
    published = Published(small.workspace)
    snapshot, build = published.now(), build_of(published)
    for number in range(MOST_LISTS + 3):
        snapshot.list_of(ANSWERS, f"{number}")
        snapshot.list_of(ANSWERS, build)
    kept = snapshot.rows("SELECT table_name FROM duckdb_tables() WHERE database_name = 'memory'")
    assert len(kept) == MOST_LISTS
    assert count_rows(snapshot, ANSWERS, build, Filters()) > 0


def test_a_question_may_not_fill_the_disk(small: World) -> None:
    most, where = "current_setting('max_temp_directory_size')", "current_setting('temp_directory')"
    ((said, folder),) = Published(small.workspace).now().rows(f"SELECT {most}, {where}")
    assert "GiB" in said
    assert float(said.split()[0]) <= 10
    assert "draftmill-explore-" in folder


def test_every_view_that_can_be_asked_is_listed(small: World) -> None:
    listed_views = {name: (said, columns) for name, said, columns in _views(Published(small.workspace).now())}
    asked = {name: columns for name, _, columns in views(small.workspace)}
    assert set(asked) <= set(listed_views)
    for name, columns in asked.items():
        assert listed_views[name][1] == ", ".join(column for column, _, _ in columns)
    assert listed_views["original_text"][0].startswith("Answers that the sources' own rows have")


def test_an_older_snapshot_is_said_in_one_line(world: World) -> None:
    told(world)
    with duckdb.connect(str(world.workspace.snapshot)) as connection:
        connection.execute("DROP VIEW provenance")
    with pytest.raises(UserError, match="published by an older draftmill"):
        Published(world.workspace).now().rows("SELECT * FROM provenance")


def test_sql_reads_and_refuses(small: World) -> None:
    made = answer(small.workspace, "SELECT category, count(*) AS n FROM provenance GROUP BY 1 ORDER BY 1 -- all")
    assert (made.columns, made.numeric) == (["category", "n"], [False, True])
    assert [row[0] for row in made.rows] == ["coding", "general"]
    cut = answer(small.workspace, f"SELECT i FROM range({MOST_ROWS * 3}) t(i) ORDER BY i DESC")
    assert (len(cut.rows), cut.is_cut, cut.rows[0][0]) == (MOST_ROWS, True, str(MOST_ROWS * 3 - 1))
    assert limited("EXPLAIN SELECT 1") == "EXPLAIN SELECT 1"
    target = small.root / "written.csv"
    copying = f"COPY (SELECT 1) TO '{target}'"
    elsewhere = f"SELECT * FROM read_csv('{small.root}/code.jsonl')"
    for statement in (
        "DELETE FROM responses",
        copying,
        f"EXPLAIN ANALYZE {copying}",
        "SELECT 1) ; DROP TABLE builds --",
    ):
        with pytest.raises(UserError):
            limited(statement)
    assert "read-only" in (answer(small.workspace, copying).error or "")
    assert not target.exists()
    assert "disabled" in (answer(small.workspace, elsewhere).error or "")
    slow = "SELECT count(*) FROM range(10000000) a, range(10000000) b WHERE a.range * b.range % 7 = 3"
    assert "took longer than 1 s" in (answer(small.workspace, slow, limit_s=1).error or "")


@given(st.text(st.sampled_from("ab<&\n\t\x1b\x00\u202e\u2066\u200b\u200d👩👧\ud800\u0301\r")))
def test_nothing_that_steers_is_left(text: str) -> None:
    shown = visible(text)
    assert not STEERING.search(shown)
    assert "\u0301" * 5 not in shown
    assert "\n" not in excerpt(text, 10)
    shown.encode()


def test_a_cell_says_what_a_table_says() -> None:
    assert [cell(value) for value in (True, False, 1, 0.5, None)] == ["true", "false", "1", "0.5", ""]


def test_families_of_emoji_stay() -> None:
    assert visible("👩\u200d👧\r\n\ttab") == "👩\u200d👧\n\ttab"
    assert visible("\x1b[31mred\u202e") == "⟨ESC⟩[31mred⟨U+202E⟩"


def guarded(path: str, method: str = "GET", kind: str = "http", **headers: str) -> tuple[int, dict[str, str], str]:
    """What the guard answers; 299 is that it let through, with the inner path as the body."""

    async def inner(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 299, "headers": []})
        await send({"type": "http.response.body", "body": scope["path"].encode()})

    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.request"}

    given_ = {"host": "127.0.0.1:8000", **{name.replace("_", "-"): value for name, value in headers.items()}}
    pairs = [(name.encode(), value.encode()) for name, value in given_.items() if value]
    scope = {"type": kind, "method": method, "path": path, "headers": pairs}
    asyncio.run(Guard(inner, TOKEN)(scope, receive, send))
    if kind != "http":
        return sent[0]["code"], {}, sent[0]["type"]
    return sent[0]["status"], {k.decode(): v.decode() for k, v in sent[0]["headers"]}, sent[1]["body"].decode()


def test_the_guard_lets_the_printed_address_in() -> None:
    assert guarded(f"/{TOKEN}/")[::2] == (299, "/")
    assert guarded(f"/{TOKEN}/row")[::2] == (299, "/row")
    assert guarded(f"/{TOKEN}/sql", host="localhost:9")[::2] == (299, "/sql")  # a forwarded port has another number
    assert (
        guarded(f"/{TOKEN}/", sec_fetch_site="cross-site", sec_fetch_mode="navigate", sec_fetch_dest="document")[0]
        == 299
    )
    _, headers, _ = guarded(f"/{TOKEN}/")
    assert "default-src 'none'" in headers["content-security-policy"]
    assert "script-src" not in headers["content-security-policy"]
    assert not any(name.startswith("access-control") for name in headers)


@pytest.mark.parametrize(
    ("status", "path", "headers"),
    [
        (403, "/", {}),
        (403, "/style.css", {}),
        (403, "/the-toke/", {}),
        (403, "/tökén/", {}),
        (403, f"//{TOKEN}x/", {}),
        (404, f"/{TOKEN}", {}),
        (421, f"/{TOKEN}/", {"host": "rebound.example:8000"}),
        (421, f"/{TOKEN}/", {"host": "127.0.0.1.evil.example"}),
        (421, f"/{TOKEN}/", {"host": ""}),
        (403, f"/{TOKEN}/", {"origin": "http://evil.example"}),
        (403, f"/{TOKEN}/", {"origin": "null"}),
        (403, f"/{TOKEN}/", {"sec_fetch_site": "cross-site", "sec_fetch_mode": "no-cors", "sec_fetch_dest": "image"}),
        (403, f"/{TOKEN}/", {"sec_fetch_site": "same-site", "sec_fetch_mode": "cors", "sec_fetch_dest": "empty"}),
        (403, f"/{TOKEN}/", {"sec_fetch_site": "cross-site", "sec_fetch_mode": "navigate", "sec_fetch_dest": "iframe"}),
    ],
)
def test_the_guard_keeps_others_out(status: int, path: str, headers: dict[str, str]) -> None:
    got, sent, body = guarded(path, **headers)
    assert got == status
    assert TOKEN not in body
    assert not any(name.startswith("access-control") for name in sent)


def test_the_guard_lets_nobody_write_or_open_sockets() -> None:
    assert guarded(f"/{TOKEN}/", method="POST")[0] == 405
    assert guarded(f"/{TOKEN}/", kind="websocket")[0] == 1008


SLOW_TO_END = """
import time
from draftmill.__main__ import main
from draftmill.looking.explorer_app import Explorer
def page(self, request):
    print("asked", flush=True)
    self._stopping.wait()
    time.sleep(2)  # more than a page is given
Explorer.rows_page = page
main()
"""


@pytest.fixture
def served(small: World, request: pytest.FixtureRequest) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`draftmill explore` over a small world, or a program around it, and its address."""
    program = getattr(request, "param", ("-m", "draftmill"))
    command = [sys.executable, *program, "explore", "--no-browser", "-w", str(small.workspace.root)]
    root = Path(__file__).resolve().parents[3]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(root)}
    )
    assert process.stdout is not None
    yield process, process.stdout.readline().strip()
    process.kill()
    process.communicate()


def test_it_serves_until_ctrl_c(served: tuple[subprocess.Popen[str], str], small: World) -> None:
    process, address = served
    page = urllib.request.urlopen(address).read().decode()  # noqa: S310 (our own address)
    assert "Composition by stage" in page
    with pytest.raises(urllib.error.HTTPError, match="403"):
        urllib.request.urlopen(address.rsplit("/", 2)[0] + "/")  # noqa: S310
    token = address.rsplit("/", 2)[1]
    slow = "SELECT+count(*)+FROM+range(10000000)+a,+range(10000000)+b+WHERE+a.range*b.range%257=3"
    script = f"import urllib.request as u; u.urlopen({address + 'sql?q=' + slow!r})"
    asking = subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.DEVNULL)
    while not psutil.Process(process.pid).children() and asking.poll() is None:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate()
    asking.wait()
    assert process.returncode == 0
    assert "Traceback" not in err
    assert token not in out + err  # it was printed once, and that line has been read
    assert not any(token.encode() in path.read_bytes() for path in small.workspace.root.rglob("*") if path.is_file())


@pytest.mark.parametrize("served", [("-c", SLOW_TO_END)], indirect=True)
def test_a_page_that_is_cut_off_by_the_end_is_no_error(served: tuple[subprocess.Popen[str], str]) -> None:
    process, address = served
    script = f"import urllib.request as u; u.urlopen({address!r})"
    asking = subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.DEVNULL)
    assert process.stdout is not None
    assert process.stdout.readline() == "asked\n"
    process.send_signal(signal.SIGINT)
    err = process.communicate()[1]
    asking.wait()
    assert process.returncode == 0
    assert err == "draftmill: explore: Ctrl-C ends it.\n"


def test_a_taken_port_is_said(served: tuple[subprocess.Popen[str], str], small: World) -> None:
    port = served[1].split(":")[2].split("/")[0]
    command = [
        sys.executable,
        "-m",
        "draftmill",
        "explore",
        "--no-browser",
        "--port",
        port,
        "-w",
        str(small.workspace.root),
    ]
    root = Path(__file__).resolve().parents[3]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": str(root)}
    )
    assert done.returncode == 2
    assert f"port {port} is taken" in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize("damage", ["cut", "middle", "gone"])
@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet"])
def test_a_file_with_texts_says_which_it_could_not_read(world: World, damage: str, form: str) -> None:
    published = told(world)
    build = build_of(published)
    chosen = Filters(state=("accepted",))
    shard, *others = sorted(world.workspace.responses.glob("*.parquet"))
    for pool in world.workspace.root.glob("pools/*/0.parquet"):
        pool.unlink()
    whole = shard.read_bytes()
    if damage == "gone":
        for one in (shard, *others):
            one.unlink()
    elif damage == "cut":
        shard.write_bytes(whole[: len(whole) // 2])
    else:
        shard.write_bytes(whole[:8] + b"\xff" * (len(whole) // 2) + whole[8 + len(whole) // 2 :])
    read = {"csv": pl.read_csv, "jsonl": partial(pl.read_ndjson, infer_schema_length=None), "parquet": pl.read_parquet}
    data = b"".join(exported(published.now(), ANSWERS, build, chosen, form, texts=True))
    frame = read[form](io.BytesIO(data))  # type: ignore[operator]
    assert frame.height == count_rows(published.now(), ANSWERS, build, chosen) > 0
    for row in frame.iter_rows(named=True):
        assert not row["messages"]
        assert "prompt: its file of pools/ is gone" in row["unread"]
        bad = damage == "gone" or row["shard"] == shard.name
        assert (f"answer: responses/{row['shard']} is gone" in row["unread"]) == bad
        assert bool(row["answer"]) != bad


def test_damaged_texts_are_said_in_their_place(world: World) -> None:
    published = told(world)
    build = build_of(published)
    row = listed(published.now(), ANSWERS, build, Filters(state=("accepted",)), 1, "given").rows[0]
    shutil.rmtree(world.workspace.root / "pools")
    record = find_record(world.workspace, published.now(), row["response_id"], None)
    assert "is gone" in (record.unreadable or "")
    assert record.answer
