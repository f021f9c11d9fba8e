"""`show` finds whatever an id or a place may mean, tells all of it, and nothing in a text steers the terminal."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pytest
from rich.cells import cell_len

from corpus.ledger.query import query
from draftmill.app import run_app
from tests.draftmill.looking.conftest import EVIL, HOSTILE

World = Any


def ask(world: World, sql: str) -> pl.DataFrame:
    return query(world.workspace, sql)


def shown(world: World, capsys: Any, *arguments: str, code: int = 0) -> str:
    assert run_app(["show", "-w", str(world.workspace.root), *arguments]) == code
    ended = capsys.readouterr()
    text = ended.out if code == 0 else ended.err
    assert all(line.isprintable() for line in text.splitlines())
    return str(text)


def record(world: World, capsys: Any, *arguments: str) -> dict[str, Any]:
    assert run_app(["show", "-w", str(world.workspace.root), "--json", *arguments]) == 0
    out = capsys.readouterr().out
    assert all(line.isprintable() for line in out.splitlines())
    body: dict[str, Any] = json.loads(out, parse_constant=pytest.fail)
    return body


def test_a_response_is_told_from_its_source_row_to_its_shard_row(asked: World, capsys: Any) -> None:
    wanted = ask(asked, "SELECT * FROM provenance WHERE state = 'accepted' ORDER BY response_id LIMIT 1").row(
        0, named=True
    )
    body = record(asked, capsys, wanted["response_id"][:12])
    assert body["id"] == wanted["response_id"]
    assert body["answer"]["category"] == wanted["category"]
    rows = {(row["source"], row["file"], row["row_index"], row["license"]) for row in body["source_rows"]}
    assert (wanted["source"], wanted["file"], wanted["row_index"], wanted["license"]) in rows
    attempt = body["attempts"][-1]
    for key in ("state", "finish_reason", "prompt_tokens", "response_tokens", "engine", "device", "shard", "shard_row"):
        assert attempt[key] == wanted[key]
    text = ask(asked, f"SELECT text FROM response_text WHERE response_id = '{wanted['response_id']}'").item()
    assert body["text"]["answer"] == text
    assert {row["build_id"] for row in body["wanted_by"]} <= set(ask(asked, "SELECT build_id FROM builds")["build_id"])
    by_place = record(asked, capsys, f"{wanted['shard']}:{wanted['shard_row']}")
    assert by_place == body


def test_the_attempt_that_counts_is_that_of_the_view(asked: World, capsys: Any, tmp_path: Path) -> None:
    """A later run may start at attempt 0 again: the last row written counts, as in provenance."""
    response_id = ask(asked, "SELECT min(response_id) FROM provenance WHERE state = 'accepted'").item()
    place = asked.with_own_snapshot(tmp_path)
    with duckdb.connect(str(place.snapshot)) as ledger:
        ledger.execute(
            "UPDATE responses SET state = 'rejected', reason = 'empty', attempt = 3 WHERE response_id = ?",
            [response_id],
        )
        ledger.execute(
            "INSERT INTO responses SELECT * REPLACE (0 AS attempt, 'zz' AS shard, 'accepted' AS state) FROM responses "
            "WHERE response_id = ?", [response_id],
        )  # fmt: skip
        ledger.execute("UPDATE responses SET state = 'truncated' WHERE shard = 'zz'")
        (state,) = ledger.execute("SELECT state FROM provenance WHERE response_id = ?", [response_id]).fetchone() or ()
    assert run_app(["show", "-w", str(tmp_path), "--json", response_id]) == 0
    body = json.loads(capsys.readouterr().out)
    assert body["answer"]["state"] == state == "truncated"
    assert [row["attempt"] for row in body["attempts"]] == [0, 3]


def test_a_later_turn_is_shown_after_the_answers_before_it(asked: World, capsys: Any) -> None:
    rows = ask(asked, "SELECT response_id, turn FROM provenance WHERE turn = 1 AND state = 'accepted'")
    body = record(asked, capsys, rows["response_id"][0])
    assert [message["role"] for message in body["text"]["messages"]] == ["system", "user", "assistant", "user"]
    first = body["text"]["messages"][2]
    answer = ask(asked, f"SELECT text FROM response_text WHERE response_id = '{first['response_id']}'").item()
    assert first["content"] == answer


def test_a_row_that_lost_says_to_whom(asked: World, capsys: Any) -> None:
    lost = ask(asked, "SELECT * FROM drops WHERE reason = 'near_duplicate' LIMIT 1").row(0, named=True)
    body = record(asked, capsys, f"code:{lost['file']}:{lost['row_index']}")
    assert body["kind"] == "source row"
    assert {one["outcome"] for one in body["builds"]} == {"dropped"}
    (dropped,) = body["builds"][0]["dropped_rows"]
    assert dropped["winner_prompt_id"] == lost["winner_prompt_id"]
    assert dropped["similarity"] == pytest.approx(lost["similarity"])
    text = shown(asked, capsys, f"code:{lost['row_index']}")
    assert "near_duplicate: nearly the same as another" in text
    assert lost["winner_prompt_id"] in text


def test_a_row_without_a_prompt_says_why(asked: World, capsys: Any) -> None:
    text = shown(asked, capsys, "code:13")
    assert "empty_prompt" in text


def test_a_prompt_says_what_each_build_made_of_it(asked: World, capsys: Any) -> None:
    selected = ask(
        asked, "SELECT prompt_id, count(DISTINCT build_id) AS builds FROM selections GROUP BY 1 ORDER BY ALL"
    )
    prompt_id, builds = selected.row(0)
    body = record(asked, capsys, prompt_id)
    outcomes = [one["outcome"] for one in body["builds"]]
    assert len(outcomes) == 2
    assert sum(outcome in ("selected", "held out") for outcome in outcomes) == builds
    assert body["builds"][0]["category_rule"].startswith("every row of ")


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_texts_are_shown_and_do_nothing(asked: World, capsys: Any, name: str) -> None:
    row = list(HOSTILE).index(name)
    text = shown(asked, capsys, f"code:{row}")
    assert max(cell_len(line) for line in text.splitlines()) <= 80
    assert len(text) < 20_000
    for forbidden in ("\x1b", "\u202e", "\x00", "\u200d", "\r"):
        assert forbidden not in text
    assert record(asked, capsys, f"code:{row}")["text"]["messages"][0]["content"] == HOSTILE[name]


def test_long_texts_are_cut_and_whole_where_asked(asked: World, capsys: Any) -> None:
    row = list(HOSTILE).index("one word")
    assert "… 998,000 more characters" in shown(asked, capsys, f"code:{row}")
    assert shown(asked, capsys, f"code:{row}", "--chars", "0").count("W") == 1_000_000
    assert shown(asked, capsys, f"code:{row}", "--chars", "7").count("W") == 7


def test_a_row_is_found_by_its_upstream_id(asked: World, capsys: Any) -> None:
    text = shown(asked, capsys, EVIL)
    assert "evil\\x1b[31m<b>\\u202e" in text


def test_builds_runs_and_their_names(asked: World, capsys: Any) -> None:
    build_id = ask(asked, "SELECT build_id FROM builds WHERE name = 'larger'").item()
    assert shown(asked, capsys, "larger") == shown(asked, capsys, build_id[:8])
    run_id = ask(asked, "SELECT max(run_id) FROM runs").item()
    assert "generate" in shown(asked, capsys, run_id)
    assert shown(asked, capsys, run_id.split("-")[1]) == shown(asked, capsys, run_id)


def test_several_matches_are_listed(asked: World, capsys: Any) -> None:
    day = ask(asked, "SELECT left(max(run_id), 8) FROM runs").item()
    text = shown(asked, capsys, day, code=2)
    assert text.count("\n") == 3
    assert "say which" in text
    assert all(cell_len(line) <= 80 for line in text.splitlines())


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ("abc12", "its first 6 digits are needed"),
        ("deadbeef0000", "no prompt, response, build, drafter or run has this id"),
        ("codee:3", "no source or dataset is called codee here. Did you mean code?"),
        ("code:9999", "code has no such row here; what was read of it: code.jsonl (rows up to 13)"),
        ("larges", "Did you mean larger?"),
        ("\x1b[31mx\udc80", "x"),
        ("nul\0:3", "nul"),
    ],
)
def test_what_is_not_there_is_one_line(asked: World, capsys: Any, named: str, said: str) -> None:
    text = shown(asked, capsys, named, code=2)
    assert said in text
    assert text.count("\n") == 1


def test_a_file_that_is_gone_is_said_in_place_of_the_text(asked: World, capsys: Any, tmp_path: Any) -> None:

    root = tmp_path / "ws"
    shutil.copytree(asked.workspace.root, root)
    row = ask(asked, "SELECT response_id, shard FROM accepted_responses ORDER BY ALL LIMIT 1").row(0)
    (root / "responses" / row[1]).write_bytes(b"torn")
    shutil.rmtree(root / "pools")
    assert run_app(["show", "-w", str(root), row[0]]) == 0
    out = capsys.readouterr().out
    assert "no text:" in out
    assert "shard row" in out
