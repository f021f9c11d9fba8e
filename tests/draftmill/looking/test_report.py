"""A report of real ledgers: what it counts, at every stage of a build, and that text of data changes nothing."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest
from markdown_it import MarkdownIt

from corpus.building import commit_build
from corpus.errors import UserError
from corpus.ledger.query import LedgerReader, query
from corpus.ledger.writer import open_ledger
from corpus.runlog import RunLog
from draftmill.looking.report import data_is_old, make_report, report_path, write_data, write_report
from draftmill.looking.report_facts import Facts, Part
from draftmill.looking.report_mix import verdict
from draftmill.looking.report_reading import read_facts
from draftmill.stage_run import logged

World = Any
ROOT = Path(__file__).resolve().parents[3]


def _hostile() -> tuple[str, ...]:
    spec = spec_from_file_location("hostile", Path(__file__).with_name("hostile.py"))
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return tuple(module.HOSTILE)


class Page(HTMLParser):
    """Tags with their attributes, the text, and the headings."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def newest(world: World) -> str:
    return str(query(world.workspace, "SELECT build_id FROM latest_build").item())


def facts_of(world: World, build_id: str | None = None) -> Facts:
    build_id = build_id or newest(world)  # a snapshot is open once at a time
    return read_facts(LedgerReader(world.workspace), build_id, published_at=None, base=world.root)


def report(world: World, *, markdown: bool = False, build_id: str | None = None) -> str:
    return make_report(world.workspace, build_id or newest(world), world.root, markdown=markdown)


def built(world: World, **changes: Any) -> str:
    """A build that nobody answers."""
    with open_ledger(world.workspace, "build") as ledger:
        plan = world.plan(world.manifest(**changes))
        commit_build(plan, world.workspace, ledger)
        return str(plan.build_id)


def rows(text: str, title: str) -> list[list[str]]:
    """Cells of the Markdown table whose first column is called so."""
    table = text.split(f"\n| {title} |", 1)[1].split("\n\n", 1)[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table]


def test_it_counts_what_the_views_say(world: World) -> None:
    world.tell(world.manifest(), topped_up=True)
    facts, text = facts_of(world), report(world, markdown=True)
    accepted = facts.of_stage("accepted")
    sql = "SELECT category, sum(prompts)::BIGINT FROM composition WHERE stage = 'accepted' GROUP BY ALL"
    assert {name: part.prompts for name, part in accepted.items()} == dict(query(world.workspace, sql).iter_rows())
    assert rows(text, "prompts")[0][:4] == ["coding", "50.0%", "10", "10"]
    assert rows(text, "prompts")[-1][0] == "all"
    header = text.split("\n| prompts |", 1)[1].splitlines()[0]
    assert [name.strip() for name in header.split("|")][:7:2] == ["declared", "selected", "generated", "accepted"]
    sql = "SELECT sum(response_tokens) FROM composition WHERE stage = 'accepted'"
    assert sum(part.response_tokens or 0 for part in accepted.values()) == query(world.workspace, sql).item()
    assert sum(one.rows for one in facts.finish) == sum(part.rows for part in accepted.values())
    for one in facts.lengths:
        assert one.least <= one.p50 <= one.p90 <= one.p99 <= one.most
        assert sum(count for _, count in one.bins) == one.rows
        assert all(2 ** (place / 2) <= one.most for place, _ in one.bins)
    became = {one.reason: one.rows for one in facts.funnel if one.name == "code"}
    assert became["read"] == sum(n for reason, n in became.items() if reason != "read")
    assert re.search(r"The declared shares (do not )?hold(, of what is accepted so far)?: of accepted prompts", text)
    assert [run.command for run in facts.runs] == ["generate"]
    assert '"name": "small"' in text, "the manifest is there, to make it again"


def test_a_build_that_nobody_answered_says_so_and_draws_no_empty_axes(world: World) -> None:
    built(world)
    text, page = report(world, markdown=True), Page(report(world))
    for said in ("not measured yet", "No drafter is trained yet", "No prompt is answered yet", "none yet"):
        assert said in text
        assert said in page.text
    assert [tag for tag, _ in page.tags if tag == "svg"] == []
    assert "declared shares hold" not in text


def test_what_changed_since_the_build_before(world: World) -> None:
    world.tell(world.manifest())
    first = newest(world)
    world.tell(world.manifest(mix={"total": 20, "shares": {"coding": 3, "general": 1}, "holdout": 0.1}))
    text = report(world, markdown=True)
    assert f"Against `{first}`" in text
    assert "- share of coding: 50% -&gt; 75%" in text
    assert rows(text, "prompts of") == [
        ["coding", "10", "5", "0"], ["general", "5", "0", "5"], ["all", "15", "5", "5"],
    ]  # fmt: skip
    assert re.search(r"\n1[5-9] of the accepted answers were wanted by the build before too", text)
    assert "No build was made here before this one" in report(world, markdown=True, build_id=first)


def test_what_is_missing_is_there_with_its_reason(world: World) -> None:
    world.jsonl("odd.jsonl", ({"prompt": f"odd unrenderable question {i}"} for i in range(40)))
    sources = [
        {"name": "code", "path": world.prompts("code", 40), "category": "coding"},
        {"name": "odd", "path": "odd.jsonl", "category": "general"},
    ]
    world.tell(world.manifest(sources=sources))
    text = report(world, markdown=True)
    missing = text.split("## Rejected, left out, set aside", 1)[1]
    assert rows(missing, "category")[0] == ["general", "template_error", "11"], "one is held out"
    assert rows(missing, "category")[-1][0] == "all"
    assert "2 of 2 sources state no licence." in text
    assert "The declared shares do not hold, of what is accepted so far" in text


def test_two_sources_that_share_prompts_are_compared_by_their_categories(world: World) -> None:
    same = world.prompts("code", 40)
    sources = [
        {"name": "code", "path": same, "category": "coding", "priority": 1},
        {"name": "again", "path": same, "category": "coding"},
        {"name": "talk", "path": world.prompts("talk", 40), "category": "general", "priority": 1},
        {"name": "other", "path": world.prompts("talk", 40), "category": "coding"},
    ]
    built(world, sources=sources)
    shared = {(one.source, one.winner): (one.rows, one.alike) for one in facts_of(world).shared}
    assert shared == {("again", "code"): (40, 40), ("other", "talk"): (40, 0)}
    assert "Of 80 rows that were dropped because another source has the prompt, 40 (50.0%)" in report(
        world, markdown=True
    )


def test_acceptance_has_its_interval_and_a_pooled_figure(world: World) -> None:
    world.tell(world.manifest())
    build_id = newest(world)
    with open_ledger(world.workspace, "train") as ledger:
        ledger.call(
            lambda c: c.execute(
                "INSERT INTO drafters VALUES ('d1', ?, 'c', 'dflash', 10, '{}', 'x', 3, now())", [build_id]
            )
        )
        ledger.call(
            lambda c: c.execute(
                "INSERT INTO acceptance SELECT 'd1', ?, unnest(['coding', 'general']), 'walk', 100, "
                "unnest([150, 50]), 10, now(), 1000, unnest([2300, 300]), unnest([1500, 500])",
                [build_id],
            )
        )
    text, page = report(world, markdown=True), Page(report(world))
    table = rows(text.split("## Acceptance", 1)[1], "category")
    assert [(row[0], row[2]) for row in table] == [("coding", "2.50"), ("general", "1.50"), ("all, pooled", "2.00")]
    assert all(" to " in row[3] for row in table)
    assert {row[1] for row in table} == {"walk"}, "as the ledger calls it"
    assert [attrs["class"] for tag, attrs in page.tags if tag == "span" and attrs.get("class") == "dot"] == ["dot"] * 3


def test_engines_over_time_are_a_bounded_number_of_points(world: World) -> None:
    built(world)
    build_id = newest(world)
    with open_ledger(world.workspace, "generate") as ledger:
        for run in ("r1", "r2", "r3"):
            ledger.call(
                lambda c, run=run: c.execute(
                    "INSERT INTO runs VALUES (?, 'generate', ?, now(), now(), 'done')", [run, build_id]
                )
            )
            ledger.call(
                lambda c, run=run: c.execute(
                    "INSERT INTO engine_samples SELECT ?, 'vllm', 'cuda:' || e, TIMESTAMPTZ '2026-01-01 00:00:00+00' "
                    "+ to_seconds(5 * i), 4, 2, 100 + e, 0.5, 0.25 FROM range(3000) t(i), range(8) d(e)",
                    [run],
                )
            )
            ledger.call(
                lambda c, run=run: c.execute(
                    "INSERT INTO events SELECT ?, now(), 'shard', 'x' FROM range(20000)", [run]
                )
            )
    facts, html = facts_of(world), report(world)
    (rates,) = facts.rates
    assert len(rates.engines) == 8
    assert max(len(one.points) for one in rates.engines) <= 260
    assert rates.engines[3].mean == pytest.approx(103)
    assert {round(value) for _, value in rates.total if value is not None} == {sum(range(100, 108))}
    assert [event.rows for event in facts.events] == [60000]
    assert "3 runs laid end to end" in html
    assert len(html) < 300_000


def test_a_hundred_sources_and_categories_stay_readable(world: World) -> None:
    names = [f"s{i:03}" for i in range(100)]
    path = world.prompts("code", 40)
    sources = [{"name": name, "path": world.prompts(name, 3), "category": name} for name in names]
    built(world, sources=sources, mix={"total": 100, "shares": dict.fromkeys(names, 1), "holdout": 0.0})
    assert path
    html, text = report(world), report(world, markdown=True)
    page = Page(html)
    assert all(name in page.text for name in names)
    assert len(rows(text, "source")) == 101
    assert "The figures show 12 of 100 categories, the largest." in text
    assert len(html) < 500_000


def test_an_import_is_reported_as_one(world: World) -> None:
    built(world)
    with open_ledger(world.workspace, "import") as ledger:
        ledger.call(
            lambda c: c.execute(
                "INSERT INTO imports SELECT build_id, name, 'org/model', NULL, NULL, NULL, 1, 1, 1, 1, created_at "
                "FROM builds"
            )
        )
    text = report(world, markdown=True)
    assert text.splitlines()[2].startswith("An imported corpus of 20 prompts")
    assert "An import has no build before it." in text
    assert "`draftmill import`" in text


def test_text_of_data_changes_nothing(world: World) -> None:
    world.tell(world.manifest())
    plain = Page(report(world))
    script, image, ansi, bidi, table, long = _hostile()
    with open_ledger(world.workspace, "run") as ledger:
        for sql, value in (
            ("UPDATE sources SET license = ?", long), ("UPDATE sources SET license = ? WHERE source = 'code'", table),
            ("UPDATE pools SET dataset = ?", bidi), ("UPDATE pools SET revision = ?", ansi),
            ("UPDATE builds SET name = ?", script), ("UPDATE recipes SET model = ?", image),
            ("UPDATE responses SET finish_reason = ?", image + script), ("UPDATE runs SET outcome = ?", table),
            ("UPDATE build_targets SET category = ? WHERE category = 'coding'", script),
            ("UPDATE selections SET category = ? WHERE category = 'coding'", script),
            ("UPDATE build_responses SET category = ? WHERE category = 'coding'", script),
            ("UPDATE prompts SET category = ? WHERE category = 'coding'", script),
            ("UPDATE selections SET source = ? WHERE source = 'talk'", image),
            ("UPDATE sources SET source = ? WHERE source = 'talk'", image),
            ("UPDATE prompts SET source = ? WHERE source = 'talk'", image),
            ("UPDATE build_responses SET source = ? WHERE source = 'talk'", image),
            ("UPDATE engine_samples SET engine = ?", image),
            ("INSERT INTO drops SELECT candidates_id, source, pool_id, chunk, file, row_index, prompt_id, ?, NULL, "
             "NULL, NULL, NULL, NULL, NULL, NULL, NULL FROM prompts", ansi + table),
        ):  # fmt: skip
            ledger.call(lambda c, sql=sql, value=value: c.execute(sql, [value]))
    html, text = report(world), report(world, markdown=True)
    page = Page(html)
    inert = {"script", "img", "link", "iframe", "object", "form", "a"}
    assert {tag for tag, _ in page.tags} & inert == {"a"}
    assert all(str(attrs["href"]).startswith("#") for tag, attrs in page.tags if tag == "a")
    assert {key for _, attrs in page.tags for key in attrs} <= {key for _, attrs in plain.tags for key in attrs} | {
        "x1"
    }
    assert script in page.text, "it is shown, as text"
    for whole in (html, text):
        assert not {"\x1b", "\u202e", "\u2066"} & set(whole)
        assert "\\x1b[31mred" in whole or "\\\\x1b\\[31mred" in whole
        assert "wordword" in whole
        assert len(whole) < 200_000
    shown = Page(MarkdownIt("commonmark").enable("table").render(text))
    assert {tag for tag, _ in shown.tags} <= {
        "h1", "h2", "p", "table", "thead", "tbody", "tr", "th", "td", "code", "pre", "ul", "li",
    }  # fmt: skip
    assert script in shown.text
    assert not re.search(r"(?<!\\):(?=//evil)", text.split("```json")[0])


def test_the_age_of_the_snapshot_and_who_writes_are_said(world: World) -> None:
    built(world)
    with open_ledger(world.workspace, "generate"):
        text = report(world, markdown=True)
    assert re.search(r"from a snapshot of the ledger that was \d+ (s|min) old\.", text)
    assert "`draftmill generate`, process" in text.replace("\\`", "`")


def test_a_page_lies_beside_every_build_and_is_made_again_when_a_stage_has_ended(world: World) -> None:
    build_id = built(world)
    path = world.workspace.build(build_id) / "DATA.md"
    assert data_is_old(world.workspace, build_id)
    with open_ledger(world.workspace, "generate") as ledger:
        log = RunLog(ledger, "generate", build_id)
        assert logged(log, lambda: 3) == 3
    assert "| generate |" in path.read_text()
    assert "from the ledger as it was then" in path.read_text()
    assert not data_is_old(world.workspace, build_id)
    lock = world.workspace.build(build_id) / "manifest.lock.yaml"
    lock.write_text(lock.read_text())
    assert data_is_old(world.workspace, build_id)


def test_a_page_that_cannot_be_made_is_a_warning(world: World, caplog: pytest.LogCaptureFixture) -> None:
    build_id = built(world)
    with open_ledger(world.workspace, "generate") as ledger:
        (world.workspace.build(build_id) / "DATA.md").mkdir()
        write_data(ledger, build_id)
    assert "DATA.md was not written" in caplog.text


def test_nothing_published_and_no_such_build_are_one_line(world: World) -> None:
    with pytest.raises(UserError, match="holds no published ledger"):
        make_report(world.workspace, "0" * 24, world.root, markdown=False)
    built(world)
    with pytest.raises(UserError, match="build 000000 is not in its ledger"):
        make_report(world.workspace, "000000", world.root, markdown=False)


def test_a_page_is_the_same_wherever_the_command_ran(
    world: World, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    model = "models/model"
    (world.root / model).mkdir(parents=True)
    build_id = built(world, target={"model": model, "max_model_len": 512, "dtype": "float32"})
    path, pages = world.workspace.build(build_id) / "DATA.md", []
    for folder in (world.root, tmp_path_factory.mktemp("elsewhere")):
        monkeypatch.chdir(folder)
        with open_ledger(world.workspace, "generate") as ledger:
            write_data(ledger, build_id)
        pages.append([line for line in path.read_text().splitlines() if "UTC" not in line])
    assert pages[0] == pages[1]
    assert '"model": "model"' in "\n".join(pages[0]), "of a folder of this machine only its last part is said"


def test_a_page_loads_nothing_that_only_html_needs(world: World) -> None:
    script = "import sys, draftmill.looking.report\nprint([m for m in ('jinja2', 'markupsafe') if m in sys.modules])"
    assert world.run_python(script, PYTHONPATH=str(ROOT)).strip() == "[]"


@pytest.mark.parametrize("unit", ["prompts", "response_tokens"])
def test_a_mix_is_judged_as_the_build_promises_it(world: World, unit: str) -> None:
    """Of tokens too, one prompt may lie beyond the tolerance: composition and the top-up allow it."""
    facts = facts_of(world, built(world))
    build = replace(facts.build, unit=unit, tolerance=1.0, selected=10)

    def judged(coding: int) -> str:
        parts = tuple(
            Part("accepted", name, count, count, 0, 100 * count)
            for name, count in (("coding", coding), ("general", 10 - coding))
        )
        (told,) = verdict(replace(facts, build=build, composition=parts))
        return "".join(piece if isinstance(piece, str) else piece.text for piece in told.pieces)

    assert judged(6).startswith("The declared shares hold: ")
    assert judged(7).startswith("The declared shares do not hold: ")
    assert judged(6).endswith("1 are allowed, and one prompt).")


def test_a_damaged_lock_is_said(world: World) -> None:
    build_id = built(world)
    (world.workspace.build(build_id) / "manifest.lock.yaml").write_text("{")
    assert "lock is gone or damaged" in report(world, markdown=True)


def test_where_it_goes(world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert report_path(world.workspace, "abc", markdown=True) == world.workspace.root / "reports" / "abc.md"
    write_report("text\n", Path("-"))
    assert capsys.readouterr().out == "text\n"
    with pytest.raises(UserError, match="is a folder; nothing was written"):
        write_report("text", tmp_path)
    write_report("text", tmp_path / "new" / "a.html")
    assert (tmp_path / "new" / "a.html").read_text() == "text"


def draftmill(world: World, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "draftmill", *arguments, "--workspace", "ws"],
        capture_output=True, text=True, cwd=world.root, check=False, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip


def test_the_commands_write_both_pages_and_say_where(world: World) -> None:
    world.tiny_model()
    manifest = world.write()
    made = draftmill(world, "build", manifest.name)
    assert made.returncode == 0, made.stderr
    (page,) = (world.root / "ws" / "builds").glob("*/DATA.md")
    assert page.read_text().startswith("# small\n")
    page.write_text("mine")
    draftmill(world, "build", manifest.name)
    assert page.read_text() == "mine", "nothing changed: it is not made again"

    shown = draftmill(world, "report", manifest.name)
    assert (shown.returncode, shown.stderr) == (0, "")
    path = world.root / shown.stdout.strip()
    assert path == world.root / "ws" / "reports" / f"{page.parent.name}.html"
    assert path.read_text().startswith("<!doctype html>")
    assert draftmill(world, "report").stdout == shown.stdout, "the newest build"
    printed = draftmill(world, "report", "small", "--markdown", "--out", "-")
    assert printed.stdout.startswith("# small\n")
    refused = draftmill(world, "report", "absent")
    assert refused.returncode == 2
    assert "neither a manifest nor a build" in refused.stderr
