"""Shares are promises about what is accepted: builds of which answers are rejected, topped up over the fake engine.

Answers of the fake engine are 1 to 11 tokens long here, one token is empty; a budget of 6 tokens under `truncated:
drop` rejects more than half of a category.
"""

from __future__ import annotations

import asyncio
import functools
from dataclasses import dataclass
from typing import Any

import pytest

from corpus.building import BuildPlan, commit_build
from corpus.ledger.query import query
from corpus.ledger.rebuild import adopt, rebuild_workspace
from corpus.ledger.writer import LedgerWriter, open_ledger
from corpus.manifest import Manifest
from corpus.rounds import round_files
from corpus.runlog import RunLog
from draftmill import generating
from draftmill.app import run_app
from fleet.devices import Device
from fleet.interrupt import Interrupt
from generation import run as running
from generation.progress import read_progress
from generation.run import RunSummary
from generation.shares import Shares
from generation.stage import load_feed, load_prompts
from generation.topup import Standing, allowed

World = Any
REJECTING = {"coding": {"truncated": "drop", "max_tokens": 6}}


def body(world: World, coding: int, general: int = 120, **changes: Any) -> dict[str, Any]:
    """80 prompts of two categories, of one of which more than half of the answers are rejected."""
    sources = [
        {"name": name, "path": world.prompts(name, count), "category": category}
        for name, category, count in (("code", "coding", coding), ("talk", "general", general))
    ]
    mix = {"total": 80, "shares": {"coding": 1, "general": 1}, "holdout": 0.0, "tolerance": 0.5} | changes.pop(
        "mix", {}
    )
    engine = {"extra": {"mean_tokens": 6, **changes.pop("extra", {})}, **changes.pop("engine", {})}
    return {
        "sources": sources,
        "mix": mix,
        "generation": {"max_tokens": 64, "by_category": REJECTING} | changes.pop("generation", {}),
        "engine": engine,
        **changes,
    }


@dataclass
class Ended:
    """How one `generate` of the whole build ended."""

    summary: RunSummary | None
    build: BuildPlan
    standings: dict[str, Standing]
    notes: list[str]
    lines: list[str]
    tolerance: float

    def missing(self, category: str) -> float:
        """What is missing beyond what is allowed; negative where shares hold."""
        one = self.standings[category]
        return abs(one.target - one.got) - allowed(self.standings, category, self.tolerance)


def generate(world: World, manifest: Manifest, **options: Any) -> Ended:
    """As `draftmill generate` does it, the screen apart."""
    with open_ledger(world.workspace, "run") as ledger:
        adopt(ledger)
        plan = world.plan(manifest)
        commit_build(plan, world.workspace, ledger)
        summary = world.generate(manifest, plan, ledger, topped_up=True, **options)
        shares = shares_of(world, manifest, plan, ledger)
        notes = shares.settle()
        return Ended(summary, plan, shares.standings(), notes, shares.lines(), manifest.mix.tolerance)


def shares_of(world: World, manifest: Manifest, plan: BuildPlan, ledger: LedgerWriter) -> Shares:
    return Shares(manifest, world.target(), plan, world.generation(manifest, plan, ledger), ledger)


def rounds(world: World, build: BuildPlan) -> int:
    return len(round_files(world.workspace.build(build.build_id)))


def counted(world: World, sql: str) -> Any:
    return query(world.workspace, sql).item()


def accepted_prompts(world: World) -> dict[str, int]:
    rows = query(world.workspace, "SELECT category, prompts FROM composition WHERE stage = 'accepted'")
    return dict(rows.iter_rows())


def nothing_is_left_to_do(world: World, manifest: Manifest, ended: Ended) -> None:
    """A second run starts no engine, writes no round and changes no line."""
    before = rounds(world, ended.build), counted(world, "SELECT count(*) FROM responses")
    again = generate(world, manifest)
    assert again.summary is None
    assert (rounds(world, ended.build), counted(world, "SELECT count(*) FROM responses")) == before
    assert again.lines == ended.lines
    assert all("surplus" not in note for note in again.notes)


def test_a_category_of_which_answers_are_rejected_is_topped_up_while_the_engines_run(world: World) -> None:
    manifest = world.manifest(**body(world, coding=400))
    ended = generate(world, manifest)
    assert max(ended.missing("coding"), ended.missing("general")) <= 0
    assert accepted_prompts(world).keys() == {"coding", "general"}
    assert all(abs(n - 40) <= 1 for n in accepted_prompts(world).values())
    assert rounds(world, ended.build) > 1
    assert counted(world, "SELECT count(*) FROM events WHERE kind = 'engine_ready'") == 1
    assert counted(world, "SELECT count(*) FROM runs") == 1
    # nobody is asked twice, and the next prompts of the nested order are asked, none is passed over
    assert counted(world, "SELECT count(*) - count(DISTINCT response_id) FROM responses") == 0
    asked = query(world.workspace, "SELECT count(*) AS n, max(source_rank) AS last FROM selections JOIN prompts "
                  "USING (prompt_id) GROUP BY selections.category")  # fmt: skip
    assert (asked["n"] == asked["last"] + 1).all()
    first = query(world.workspace, "SELECT min(round) AS first, max(round) AS last FROM selections").row(0)
    assert first[0] == 0
    assert 0 < first[1] < rounds(world, ended.build)
    header, *table = [line.split() for line in ended.lines]
    assert header == ["target", "asked", "accepted", "share", "declared"]
    for name, target, asked_here, accepted, *_ in table:
        assert (name, int(target)) in {("coding", 40), ("general", 40)}
        assert 39 <= int(accepted) <= int(asked_here)
    nothing_is_left_to_do(world, manifest, ended)
    before = query(world.workspace, "SELECT * FROM provenance ORDER BY ALL").drop("started_at", "ended_at")
    rebuild_workspace(world.workspace)
    after = query(world.workspace, "SELECT * FROM provenance ORDER BY ALL").drop("started_at", "ended_at")
    assert after.equals(before)


@pytest.fixture
def command(world: World, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> Any:
    """`draftmill generate` with the fake engine: (exit code, lines of stderr)."""
    world.tiny_model()
    fake = functools.partial(generating.GenerationRun, factory="generation.fake:create")
    monkeypatch.setattr(generating, "GenerationRun", fake)

    def run(name: str, *options: str) -> tuple[int, list[str]]:
        path = str(world.root / name)
        code = run_app(["generate", path, "-w", str(world.workspace.root), "--devices", "1", *options])
        return code, capsys.readouterr().err.splitlines()

    return run


def test_a_category_that_stays_short_ends_in_one_table_and_exit_2_and_keeps_its_answers(
    world: World, command: Any
) -> None:
    world.write("short.yaml", **body(world, coding=50))
    code, said = command("short.yaml")
    assert code == 2, said
    (at,) = [i for i, line in enumerate(said) if "miss their shares by more than mix.tolerance" in line]
    assert said[at].startswith("draftmill: small: ")
    lost = counted(world, "SELECT count(*) FROM responses WHERE reason IS NOT NULL AND response_id IN "
                   "(SELECT response_id FROM build_responses WHERE category = 'coding')")  # fmt: skip
    assert f"All answers are kept. coding: {lost} of 50 answers rejected, " in said[at]
    cures = "raise generation.by_category.coding.max_tokens (6) or set generation.by_category.coding.truncated: keep. "
    assert f"truncated; {cures}Or add a source, set mix.reserve" in said[at]
    header, *table = [line.split() for line in said[at + 1 : at + 4]]
    assert header == ["target", "asked", "accepted", "share", "declared"]
    shown = {name: (int(target), int(asked), int(accepted)) for name, target, asked, accepted, *_ in table}
    assert shown["coding"][:2] == (40, 50)
    assert shown["coding"][2] == accepted_prompts(world)["coding"] < 39
    assert not any("Traceback" in line for line in said)
    responses = counted(world, "SELECT count(*) FROM responses")
    again, said_again = command("short.yaml")
    assert again == 2
    assert said_again[-3:] == said[-3:]
    assert counted(world, "SELECT count(*) FROM responses") == responses
    # and `rescale` takes what is there
    milder = body(world, coding=50)
    milder["mix"]["shortage"] = "rescale"
    world.write("rescale.yaml", **milder)
    code, said = command("rescale.yaml")
    assert code == 0, said
    assert any("total rescaled from 80 to" in line for line in said)
    assert counted(world, "SELECT count(*) - count(DISTINCT response_id) FROM responses") == 0


def test_where_no_answer_is_accepted_the_error_says_what_cures_that(world: World, command: Any) -> None:
    losing = {"max_tokens": 1, "truncated": "drop", "by_category": {}}
    world.write("none.yaml", **body(world, coding=100, generation=losing))
    code, said = command("none.yaml", "--limit", "30")
    assert code == 2, said
    assert "no answer was accepted" in said[-1]
    assert "coding: " in said[-1]
    assert "raise generation.max_tokens (1) or set generation.truncated: keep." in said[-1]


def test_a_limit_tops_nothing_up(world: World, command: Any) -> None:
    world.write("mix.yaml", **body(world, coding=200))
    code, said = command("mix.yaml", "--limit", "30")
    assert code == 0, said
    assert counted(world, "SELECT count(*) FROM responses") == 30
    assert counted(world, "SELECT max(round) FROM selections") == 0
    # what it made is the ground of the next run's counts
    command("mix.yaml", "--limit", "10")
    newest = max((world.workspace.root / "runs").iterdir(), key=lambda path: path.name)
    shown = read_progress(newest)
    assert shown is not None
    assert (shown.before, shown.finished) == (30, 40)
    assert shown.categories["coding"].target == 40.0


def test_rescaled_shares_hold_among_the_accepted_and_the_surplus_is_left_out(world: World) -> None:
    manifest = world.manifest(**body(world, coding=50, mix={"shortage": "rescale"}))
    ended = generate(world, manifest)
    got = accepted_prompts(world)
    assert got["coding"] < 39
    assert abs(got["coding"] - got["general"]) <= 1
    assert any(note.startswith("total rescaled from 80 to") for note in ended.notes)
    assert "general: a surplus is left out of the build; its answers stay in the ledger" in ended.notes
    assert counted(world, "SELECT count(*) FROM accepted_responses") > sum(got.values())
    nothing_is_left_to_do(world, manifest, ended)


def test_with_repeat_a_short_category_is_asked_in_replicas(world: World) -> None:
    manifest = world.manifest(**body(world, coding=45, mix={"shortage": "repeat", "max_repeats": 6}))
    ended = generate(world, manifest)
    assert max(ended.missing("coding"), ended.missing("general")) <= 0
    replicas = query(
        world.workspace,
        "SELECT category, max(replica) AS most FROM provenance WHERE state = 'accepted' GROUP BY category",
    )
    most = dict(replicas.iter_rows())
    assert 0 < most["coding"] < 6
    assert most["general"] == 0
    for category, rows, prompts, percent in query(
        world.workspace,
        "SELECT category, sum(rows), sum(prompts), 100 * sum(share_prompts) FROM composition "
        "WHERE stage = 'accepted' GROUP BY category",
    ).iter_rows():
        assert prompts == rows  # one turn each: a prompt that is sampled twice counts twice, as in the target
        assert percent == pytest.approx(50, abs=2), category
    nothing_is_left_to_do(world, manifest, ended)


def test_shares_of_response_tokens_are_corrected_by_measured_means(world: World) -> None:
    means = {"coding": 10.0, "general": 10.0}  # cut at 6 tokens, coding brings half of that
    mix = {"unit": "response_tokens", "total": 800, "mean_response_tokens": means, "tolerance": 1.0}
    generation = {"by_category": {"coding": {"max_tokens": 6}}}
    manifest = world.manifest(**body(world, coding=400, general=400, mix=mix, generation=generation))
    ended = generate(world, manifest)
    assert ended.build.prefixes["coding", "code", False] == 40
    tokens = query(
        world.workspace, "SELECT category, response_tokens FROM composition WHERE stage = 'accepted'"
    )  # fmt: skip
    got = dict(tokens.iter_rows())
    for category in ("coding", "general"):
        assert ended.missing(category) <= 0
        assert got[category] == ended.standings[category].got
        assert abs(got[category] - 400) <= allowed(ended.standings, category, 1.0)
    assert ended.standings["coding"].mean < 6
    assert accepted_prompts(world)["coding"] > 60
    assert ended.lines[0].split() == ["target", "asked", "accepted", "tokens", "share", "declared"]
    nothing_is_left_to_do(world, manifest, ended)


@pytest.mark.parametrize("history", ["regenerated", "recorded"])
@pytest.mark.parametrize("unit", ["prompts", "response_tokens"])
def test_shares_that_are_shown_live_are_those_of_the_final_table_whatever_earlier_runs_made(
    world: World, unit: str, history: str
) -> None:
    """Conversations, a holdout, rejected answers, a first run of a part: then the last value shown is the table."""
    turns = [{"role": role, "content": f"{role} says"} for role in ("user", "assistant")]
    for name, count in (("code", 60), ("talk", 40)):
        rows = [
            {"messages": [*(turns if i % 3 else []), {"role": "user", "content": f"{name} question {i}"}]}
            for i in range(count)
        ]
        world.jsonl(f"{name}.jsonl", rows)
    sources = [
        {"name": name, "path": f"{name}.jsonl", "category": category, "history": history}
        for name, category in (("code", "coding"), ("talk", "general"))
    ]
    mix: dict[str, Any] = {"total": 60, "shares": {"coding": 2, "general": 1}, "holdout": 0.2, "tolerance": 100.0}
    if unit == "response_tokens":
        mix |= {"unit": unit, "total": 300, "mean_response_tokens": {"coding": 5.0, "general": 5.0}}
    manifest = world.manifest(
        sources=sources, mix=mix, engine={"max_num_seqs": 4, "extra": {"mean_tokens": 6}},
        generation={"max_tokens": 6, "truncated": "keep"},
    )  # fmt: skip
    with open_ledger(world.workspace, "run") as ledger:
        plan = world.plan(manifest)
        commit_build(plan, world.workspace, ledger)
        world.generate(manifest, plan, ledger, limit=20)
        # of half of the conversations the last turn is not there yet
        ledger.call(lambda c: c.execute("DELETE FROM responses WHERE turn = 1 AND hash(response_id) % 2 = 0"))
        before = world.generation(manifest, plan, ledger)
        had = shares_of(world, manifest, plan, ledger).standings()
        shown: list[Any] = []
        world.generate(manifest, plan, ledger, report=shown.append)
        whole = world.generation(manifest, plan, ledger)
        standings = shares_of(world, manifest, plan, ledger).standings()
    first, last = shown[0], shown[-1]
    assert first.before == before.accepted + before.rejected > 10
    assert (last.finished, last.total) == (whole.answers.height,) * 2
    assert (last.accepted, last.rejected) == (whole.accepted, whole.rejected)
    assert last.truncated == counted(world, "SELECT count(*) FROM responses WHERE finish_reason = 'length'") > 0
    for category, standing in standings.items():
        assert had[category].got < standing.got == last.categories[category].got
        assert standing.target == last.categories[category].target


def test_a_top_up_that_is_interrupted_is_resumed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "REPORT_EVERY_S", 0.0)
    manifest = world.manifest(**body(world, coding=400, extra={"latency_s": 0.02}, engine={"max_num_seqs": 4}))
    with open_ledger(world.workspace, "run") as ledger:
        plan = world.plan(manifest)
        commit_build(plan, world.workspace, ledger)
        shares = shares_of(world, manifest, plan, ledger)
        feed = load_feed(shares.plan, load_prompts(plan, ledger), plan, ledger)
        log = RunLog(ledger, "generate", plan.build_id)
        interrupt = Interrupt()

        def report(progress: Any) -> None:
            if rounds(world, plan) > 1 and progress.finished > 80:
                interrupt.asked.set()

        run = world.run(shares.plan, manifest, ledger, log)
        summary = asyncio.run(run.run(feed, [Device("cpu", 0)], interrupt, report, shares.top_up))
        log.finish("stopped")
        assert summary.interrupted
        stored = ledger.rows("SELECT count(*), count(DISTINCT response_id) FROM responses")[0]
        assert stored == (summary.accepted + summary.rejected,) * 2
        assert stored[0] < sum(
            n for (n,) in ledger.rows("SELECT count(*) FROM build_responses WHERE build_id = ?", plan.build_id)
        )
    ended = generate(world, manifest)
    assert max(ended.missing("coding"), ended.missing("general")) <= 0
    assert counted(world, "SELECT count(*) - count(DISTINCT response_id) FROM responses") == 0
    nothing_is_left_to_do(world, manifest, ended)


def test_prompts_that_another_build_has_answered_count_and_are_not_asked(world: World) -> None:
    """A top-up may take what is answered already: then the next prompts are taken, without a run between."""
    large = world.manifest(**body(world, coding=400, general=400, mix={"total": 300, "tolerance": 100.0}))
    with open_ledger(world.workspace, "run") as ledger:
        plan = world.plan(large.model_copy(update={"name": "large"}))
        commit_build(plan, world.workspace, ledger)
        world.generate(large, plan, ledger)
    answered = counted(world, "SELECT count(*) FROM responses")
    small = world.manifest(**body(world, coding=400, general=400))
    ended = generate(world, small)
    assert ended.summary is None
    assert max(ended.missing("coding"), ended.missing("general")) <= 0
    assert counted(world, "SELECT count(*) FROM responses") == answered
