"""What a new user stumbled over in what looks at data: which build is meant, what a file's name says, turns."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from corpus.building import commit_build, manifest_folder
from corpus.ledger.query import LedgerReader, query
from corpus.ledger.texts import PromptTexts
from corpus.ledger.writer import open_ledger
from draftmill.app import run_app
from draftmill.looking.answers import UNLINKED
from draftmill.looking.charts import Intervals
from draftmill.looking.explorer_record import as_page
from draftmill.looking.report_facts import Acceptance
from draftmill.looking.report_figures import WIDEST, _intervals
from draftmill.looking.sample_lines import _until
from draftmill.looking.shown import record_lines
from draftmill.session import Session
from draftmill.table import PIPED_WIDTH, format_table
from tests.draftmill import imports

World = Any


def ran(world: World, capsys: Any, *arguments: str, code: int = 0) -> str:
    assert run_app([*arguments, "-w", str(world.workspace.root)]) == code
    ended = capsys.readouterr()
    return str(ended.out if code == 0 else ended.err)


@pytest.fixture
def behind(world: World) -> World:
    """A build, and a later import."""
    with open_ledger(world.workspace, "test") as ledger:
        commit_build(world.plan(world.manifest()), world.workspace, ledger)
    rows = [{"prompt": f"team question {i}", "response": f"{i}"} for i in range(6)]
    imports.imported(world, world.jsonl("team.jsonl", rows), model="model", name="team")
    return world


# which build is meant


def test_a_later_import_is_not_the_newest_build(behind: World, capsys: Any) -> None:
    assert query(behind.workspace, "SELECT name FROM latest_build").item() == "small"
    assert ran(behind, capsys, "composition").startswith("small ")
    assert ", the newest build, " in ran(behind, capsys, "funnel").splitlines()[0]
    assert ", the newest import, " in ran(behind, capsys, "composition", "team").splitlines()[0]


def test_an_import_is_meant_where_nothing_was_selected(world: World, capsys: Any) -> None:
    rows = [{"prompt": "a question", "response": "an answer"}]
    imports.imported(world, world.jsonl("team.jsonl", rows), model="model", name="team")
    assert query(world.workspace, "SELECT name FROM latest_build").item() == "team"
    assert ran(world, capsys, "composition").startswith("team ")


def test_an_import_has_no_wanted_and_declares_nothing(behind: World, capsys: Any) -> None:
    text = ran(behind, capsys, "report", "team", "--markdown", "--out", "-")
    assert "An import declares no shares" in text
    assert "wanted" not in text.split("## From rows read")[0]
    assert "#declared" not in text
    assert "| declared |" not in text


def test_too_short_an_id_is_called_so(behind: World, capsys: Any) -> None:
    build_id = query(behind.workspace, "SELECT build_id FROM latest_build").item()
    for command in ("composition", "verify", "report"):
        assert "its first six digits are needed" in ran(behind, capsys, command, build_id[:4], code=2)


@pytest.mark.parametrize("command", ["report", "verify"])
def test_a_manifest_without_a_workspace_is_told_what_is_missing(world: World, capsys: Any, command: str) -> None:
    path = world.write()
    assert "holds no published ledger" in ran(world, capsys, command, str(path), code=2)


@pytest.mark.parametrize(
    ("named", "told"),
    [
        ("code", "is a source. Ask draftmill funnel --source code"),
        ("coding", "is a category. Ask draftmill composition"),
    ],
)
def test_show_says_what_another_word_is(behind: World, capsys: Any, named: str, told: str) -> None:
    text = ran(behind, capsys, "show", named, code=2)
    assert told in text
    assert "Did you mean" not in text


def test_show_says_what_a_command_is(asked: World, capsys: Any) -> None:
    assert "is a command. Its runs: draftmill sql" in ran(asked, capsys, "show", "generate", code=2)


# the manifest's folder


def test_a_build_is_planned_with_its_target_from_any_folder(
    world: World, capsys: Any, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    world.tiny_model()
    path = world.write(target={"model": "model", "max_model_len": 512, "dtype": "float32"})
    with open_ledger(world.workspace, "test") as ledger:
        plan = world.plan(Session(path, world.workspace).manifest)
        commit_build(plan, world.workspace, ledger)
    assert manifest_folder(world.workspace, plan.build_id) == world.root.resolve()
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    assert "kept" in ran(world, capsys, "diff", "small", "small")


def test_a_build_of_an_older_draftmill_holds_without_the_folder(world: World) -> None:
    plan = world.plan(world.manifest())
    with open_ledger(world.workspace, "test") as ledger:
        commit_build(plan, world.workspace, ledger)
        path = world.workspace.build(plan.build_id) / "build.json"
        whole = path.read_text()
        body = {key: value for key, value in json.loads(whole).items() if key not in ("manifest_folder", "digest")}
        rounds = world.workspace.build(plan.build_id) / "rounds" / "0.parquet"
        before = rounds.stat().st_ino
        path.write_text(json.dumps(body))
        assert manifest_folder(world.workspace, plan.build_id) is None
        assert not commit_build(plan, world.workspace, ledger)
    assert rounds.stat().st_ino == before, "it was taken for a damaged build"
    assert path.read_text() == whole


# what a file's name says


@pytest.mark.parametrize(("name", "begins"), [("r.md", "# small"), ("r.html", "<!doctype html>"), ("r", "<!doctype")])
def test_a_report_is_written_as_its_name_says(behind: World, capsys: Any, name: str, begins: str) -> None:
    ran(behind, capsys, "report", "--out", str(behind.root / name))
    assert (behind.root / name).read_text().lower().startswith(begins)


def test_a_report_that_contradicts_its_name_is_refused(behind: World, capsys: Any) -> None:
    out = behind.root / "r.html"
    assert "Leave one of them out" in ran(behind, capsys, "report", "--markdown", "--out", str(out), code=2)
    assert not out.exists()


@pytest.mark.parametrize("options", [[], ["--markdown"]])
@pytest.mark.parametrize("name", ["x.pdf", "x.txt", "x.HTLM"])
def test_a_report_of_another_kind_is_refused_before_anything_is_read(
    world: World, capsys: Any, name: str, options: list[str]
) -> None:
    told = ran(world, capsys, "report", *options, "--out", str(world.root / name), code=2)
    assert f"report: {name}: a report is HTML or Markdown; name it .html or .md" in told
    assert told.count("\n") == 1
    assert not (world.root / name).exists()


@pytest.mark.parametrize("command", [["composition"], ["funnel"], ["sql", "SELECT 1"]])
def test_an_unknown_ending_needs_a_format(behind: World, capsys: Any, command: list[str]) -> None:
    out = behind.root / "answer.xlsx"
    text = ran(behind, capsys, *command, "--out", str(out), code=2)
    assert "no format is called 'xlsx'" in text
    assert text.count("\n") == 1
    assert not out.exists()
    ran(behind, capsys, *command, "--out", str(out), "--format", "csv")
    assert out.exists()


# before answers are linked, and after a rebuild


@pytest.mark.parametrize("command", ["composition", "funnel", "status"])
def test_before_the_first_generate_it_says_how_answers_are_linked(behind: World, capsys: Any, command: str) -> None:
    assert UNLINKED in " ".join(ran(behind, capsys, command).split())
    if command != "status":
        assert UNLINKED not in " ".join(ran(behind, capsys, command, "team").split())


def test_a_rebuild_writes_the_page_of_a_build_that_lacks_it(behind: World, capsys: Any) -> None:
    pages = [path.parent / "DATA.md" for path in behind.workspace.root.glob("builds/*/build.json")]
    for page in pages:
        page.unlink(missing_ok=True)
    assert run_app(["ledger", "rebuild", "-w", str(behind.workspace.root)]) == 0
    capsys.readouterr()
    assert len(pages) == 2
    assert all(page.read_text().startswith("# ") for page in pages)


# samples


def test_a_sample_of_a_licence_and_of_what_was_not_needed(asked: World, capsys: Any) -> None:
    reader = LedgerReader(asked.workspace)
    text = ran(asked, capsys, "sample", "small", "--license", "MIT", "-n", "9")
    assert ", talk," not in text
    assert "coding, code" in text
    assert "is not there; there is: cc0" in ran(asked, capsys, "sample", "small", "--license", "gpl", code=2)
    ((left,),) = reader.rows(
        "SELECT count(*) FROM prompts p JOIN builds b USING (candidates_id) WHERE b.name = 'small' AND p.prompt_id "
        "NOT IN (SELECT prompt_id FROM selections s WHERE s.build_id = b.build_id) AND p.category = 'general'"
    )
    text = ran(asked, capsys, "sample", "small", "--dropped", "not_needed", "--category", "general", "-n", "999")
    assert left > 0
    assert text.count("not needed: the mix has enough (not_needed)") == left


def test_a_turn_is_shown_with_what_it_answers_and_counted_from_one() -> None:
    users = [{"role": role, "content": f"{role} {n}"} for n, role in enumerate(("system", "user", "user", "user"))]
    prompt = PromptTexts(users, [])
    assert [_until(prompt, turn).asked for turn in (0, 1)] == ["user 1", "user 1\nuser 2"]
    assert _until(prompt, None) is prompt
    recorded = PromptTexts([users[1], {"role": "assistant", "content": "-"}, users[2]], [])
    assert [_until(recorded, turn).asked for turn in (0, 1)] == ["user 1", "user 1\nuser 2"]
    record = {"kind": "response", "id": "r", "answer": {"turn": 0, "state": "accepted"}}
    assert [line.split() for line in record_lines(record, 9) if "turn" in line] == [["turn", "1"]]
    assert [one.text for one in as_page(record).sections[0].fields if one.name == "turn"] == ["1"]


def test_rows_within_a_record_are_a_table_with_links() -> None:
    drop = {"source": "a", "reason": "near_duplicate", "winner_prompt_id": "w" * 32, "similarity": 0.75}
    builds = [{"build_id": one, "outcome": "dropped", "dropped_rows": [drop]} for one in ("b1", "b2")]
    page = as_page({"kind": "prompt", "id": "p", "builds": builds})
    (section,) = [one for one in page.sections if one.title == "Dropped rows"]
    assert {one.link for one in section.fields} >= {"w" * 32}
    assert [row[0].text for row in section.rows] == ["b1", "b2"]
    assert all("{" not in one.text for part in page.sections for one in part.fields)


# the report's chart of τ


class _Facts:
    def categories(self) -> list[str]:
        return ["math"]


def chart(*intervals: Mapping[str, Any]) -> Intervals:
    own = [Acceptance("d", "math", "walk", drafts=9, rows=2, **one) for one in intervals]
    return _intervals(own, _Facts())  # type: ignore[arg-type]


def test_the_axis_holds_a_wide_interval_and_marks_one_that_goes_on() -> None:
    wide = chart({"tau": 2.0, "low": 1.0, "high": 2.0 * WIDEST})
    assert wide.last >= 2.0 * WIDEST
    assert "→" not in wide.groups[0][1][0].text
    beyond = chart({"tau": 2.0, "low": 1.0, "high": 40.0})
    assert 2.0 * WIDEST <= beyond.last < 40.0
    assert beyond.groups[0][1][0].text.endswith("→")
    unknown = chart({"tau": 2.0, "low": None, "high": None})
    assert unknown.last >= 2.0


# audits


def audited(tmp_path: Path, capsys: Any, *arguments: str, code: int = 0) -> str:
    rows = [{f"column_{i:02}": i for i in range(20)} | {"prompt": f"write a function {i}"} for i in range(7)]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert run_app(["audit", str(path), *arguments]) == code
    ended = capsys.readouterr()
    return str(ended.err if code else ended.out)


def test_an_unknown_column_is_answered_with_all_there_are(tmp_path: Path, capsys: Any) -> None:
    text = audited(tmp_path, capsys, "--by", "colour", code=2)
    assert all(f"column_{i:02}" in text for i in range(20))
    assert "prompt" in text


def test_an_audit_for_programs_and_pages_is_plain(tmp_path: Path, capsys: Any) -> None:
    found = json.loads(audited(tmp_path, capsys, "--format", "json"))
    shares = [one[key] for one in found["categories"] for key in ("share", "low", "high", "as_put")]
    assert all(share == round(share, 4) for share in shares)
    text = audited(tmp_path, capsys, "--format", "markdown")
    assert "`" not in text
    assert "as put" not in text


# tables, the version


def test_tables_say_true_and_are_as_wide_as_columns_says(monkeypatch: pytest.MonkeyPatch) -> None:
    import polars as pl

    frame = pl.DataFrame({"is": [True, False, None], "text": ["x" * 300] * 3})
    monkeypatch.delenv("COLUMNS", raising=False)
    text = format_table(frame)
    assert [line.split()[0] for line in text.splitlines()[2:4]] == ["true", "false"]
    assert max(map(len, text.splitlines())) == PIPED_WIDTH
    monkeypatch.setenv("COLUMNS", "60")
    assert max(map(len, format_table(frame).splitlines())) == 60
    monkeypatch.setenv("COLUMNS", "wide")
    assert format_table(frame) == text


def test_the_version_is_said(capsys: Any) -> None:
    assert run_app(["--version"]) == 0
    assert capsys.readouterr().out.startswith("draftmill ")


def test_an_import_of_a_bad_row_names_its_own_option(world: World, capsys: Any) -> None:
    path: Path = world.root / "bad.jsonl"
    path.write_text('{"prompt": "a", "response": "b"}\nnot json\n')
    text = ran(world, capsys, "import", str(path), "--model", "m", code=2)
    assert "or add --skip-bad." in text
    assert "on_bad_row" not in text


def test_a_share_too_large_to_rescale_says_why(world: World) -> None:
    from corpus.errors import UserError

    mix = {"total": 1000, "shares": {"coding": 1000, "general": 1}, "holdout": 0.0}
    with pytest.raises(UserError) as caught:
        world.plan(world.manifest(mix=mix))
    text = str(caught.value)
    assert "beside 40 of coding these shares leave no prompt of general" in text
    assert "Not even one" not in text
    assert "builds 1,000 with max_repeats: 25" in text
