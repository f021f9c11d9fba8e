"""The generation run with an engine that has no model, in real worker processes: policies, failures, interrupts.

The fake engine draws its tokens from a hash; words in a prompt make it crash or refuse. After every story each
wanted answer is accepted exactly once or has its reason, and a second run has nothing to do.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from corpus import artefacts
from corpus.building import commit_build
from corpus.errors import UserError
from corpus.ledger.query import query
from corpus.ledger.writer import open_ledger
from corpus.responses import read_rows_at
from corpus.runlog import RunLog
from fleet.devices import Device
from fleet.interrupt import Interrupt
from generation import attempts as writing
from generation import run as running
from generation.engines import Engines
from generation.messages import EngineReady
from generation.stage import load_feed, load_prompts

World = Any
COUNTS = "SELECT state, reason, count(*) FROM responses GROUP BY ALL ORDER BY ALL"


@pytest.fixture(autouse=True)
def every_answer_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test does at an answer happens before many more are made, however slow the machine is."""
    monkeypatch.setattr(running, "REPORT_EVERY_S", 0.0)


@pytest.fixture
def five_rows_a_shard(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither more nor fewer, however long a shard is written."""
    monkeypatch.setattr(writing, "FLUSH_ROWS", 5)
    monkeypatch.setattr(writing, "FLUSH_EVERY_S", 1e9)
    monkeypatch.setattr(writing, "BACKLOG", 1)
    monkeypatch.setattr(running, "TAKE_AT_ONCE", 1)


def story(world: World, prompts: list[Any], *, extra: dict[str, Any] | None = None, **generation: Any) -> Any:
    """A manifest that takes all prompts; a list is a conversation."""
    rows = [
        {"messages": [{"role": "user", "content": text} for text in ([prompt] if isinstance(prompt, str) else prompt)]}
        for prompt in prompts
    ]
    world.jsonl("all.jsonl", rows)
    return world.manifest(
        sources=[{"name": "all", "path": "all.jsonl", "category": "coding"}],
        mix={"total": len(prompts), "shares": {"coding": 1}, "holdout": 0.0},
        generation={"max_tokens": 64, **generation},
        engine={"extra": {"mean_tokens": 6, **(extra or {})}},
    )


def each_wanted_once(world: World) -> Counter[str]:
    """How many wanted answers are in which state; fails where one has two or none."""
    rows = query(
        world.workspace,
        "SELECT b.response_id, count(*) FILTER (state = 'accepted') AS accepted, "
        "count(*) FILTER (state = 'rejected') AS rejected FROM build_responses b "
        "LEFT JOIN responses r USING (response_id) GROUP BY ALL",
    )
    states: Counter[str] = Counter()
    for _, accepted, rejected in rows.iter_rows():
        assert (accepted, min(rejected, 1)) in ((1, 0), (0, 1), (1, 1))
        states["accepted" if accepted else "rejected"] += 1
    return states


def test_every_answer_is_kept_with_its_exact_tokens(world: World) -> None:
    manifest = story(world, [f"question {i}" for i in range(30)])
    summary = world.tell(manifest, devices=2)
    done = each_wanted_once(world)
    assert (summary.accepted, summary.rejected) == (done["accepted"], done["rejected"])
    assert summary.accepted + summary.rejected == 30
    rows = query(
        world.workspace,
        "SELECT response_id, r.prompt_tokens, r.response_tokens, shard, shard_row, messages, finish_reason, reason, "
        "device FROM responses r JOIN prompt_text USING (prompt_id)",
    )
    assert summary.tokens == rows["response_tokens"].sum()
    assert set(rows["device"]) <= {"cpu:0", "cpu:1"}
    places = list(rows.select("shard", "shard_row").iter_rows())
    shown = read_rows_at(world.workspace.responses, places, ["response_id", "prompt_token_ids", "token_ids"])
    tokens = {response_id: (prompt, answer) for response_id, prompt, answer, *_ in shown.iter_rows()}
    for row in rows.iter_rows(named=True):
        prompt, answer = tokens[row["response_id"]]
        text = world.words.text(json.loads(row["messages"]), (), False)
        assert prompt == world.words.encode([text])[0]
        assert (len(prompt), len(answer)) == (row["prompt_tokens"], row["response_tokens"])
        assert (row["reason"] == "empty") == (answer == [2])  # the end token alone
        assert answer[-1] == 2  # the token that ended the turn is part of the answer
    assert world.tell(manifest) is None


@pytest.mark.parametrize("policy", ["keep", "drop", "retry"])
def test_what_becomes_of_an_answer_that_is_cut(world: World, policy: str) -> None:
    manifest = story(world, [f"question {i}" for i in range(24)], max_tokens=6, truncated=policy)
    world.tell(manifest)
    counts = {(state, reason): n for state, reason, n in query(world.workspace, COUNTS).iter_rows()}
    cut = query(world.workspace, "SELECT count(*) FROM responses WHERE finish_reason = 'length' AND attempt = 0").item()
    assert cut > 3
    assert each_wanted_once(world).total() == 24
    assert counts.get(("rejected", "truncated"), 0) == (cut if policy == "drop" else 0)
    assert counts.get(("retried", "truncated"), 0) == (cut if policy == "retry" else 0)
    if policy == "retry":
        longer = query(world.workspace, "SELECT max(response_tokens) FROM responses WHERE attempt = 1").item()
        assert 6 < longer <= 12
    assert world.tell(manifest) is None


def test_a_prompt_that_leaves_no_room_and_one_that_cannot_be_rendered(world: World) -> None:
    long = " ".join(f"w{i}" for i in range(600))
    world.tell(story(world, ["short", long, "unrenderable", ["unrenderable", "later"]]))
    rows = query(world.workspace, "SELECT reason, turn, prompt_tokens FROM responses WHERE state = 'rejected'").rows()
    reasons = Counter(reason for reason, _, _ in rows if reason != "empty")
    assert reasons == {"prompt_too_long": 1, "template_error": 2, "earlier_turn_rejected": 1}
    assert each_wanted_once(world).total() == 5


def test_a_conversation_is_shown_its_own_earlier_answers(world: World) -> None:
    world.tell(story(world, [["first", "second", "third"] for _ in range(1)] + [["a", "b"]], extra={"mean_tokens": 20}))
    rows = query(
        world.workspace,
        "SELECT prompt_id, turn, text, prompt_token_ids, messages FROM provenance "
        "JOIN response_text USING (response_id) JOIN prompt_text USING (prompt_id) ORDER BY prompt_id, turn",
    )
    assert rows.height == 5
    said: dict[str, list[str]] = {}
    for prompt_id, turn, text, prompt_token_ids, messages in rows.iter_rows():
        shown: list[dict[str, str]] = []
        for number, message in enumerate(json.loads(messages)[: turn + 1]):
            shown.append(message)
            if number < turn:
                shown.append({"role": "assistant", "content": said[prompt_id][number]})
        assert prompt_token_ids == world.words.encode([world.words.text(shown, (), False)])[0]
        said.setdefault(prompt_id, []).append(text)


def test_a_conversation_goes_on_where_an_earlier_run_ended(world: World) -> None:
    manifest = story(world, [["first", "second"]], extra={"mean_tokens": 20})
    with open_ledger(world.workspace, "run") as ledger:
        plan = world.plan(manifest)
        commit_build(plan, world.workspace, ledger)
        world.generate(manifest, plan, ledger)
        whole = ledger.rows("SELECT turn, response_id FROM responses ORDER BY turn")
        ledger.call(lambda c: c.execute("DELETE FROM responses WHERE turn = 1"))
        made = world.generation(manifest, plan, ledger)
        assert made.left["turn"].to_list() == [1]
        feed = load_feed(made, load_prompts(plan, ledger), plan, ledger)
        feed.read()
        (conversation,) = feed.take(9)
        place = ledger.rows("SELECT shard, shard_row FROM responses")
        text = read_rows_at(world.workspace.responses, place, ["text"])["text"].to_list()
        assert conversation.said == dict(enumerate(text))
        world.generate(manifest, plan, ledger)
        assert ledger.rows("SELECT turn, response_id FROM responses ORDER BY turn") == whole


def test_an_engine_that_refuses_one_prompt_answers_the_others_and_may_be_asked_again(world: World) -> None:
    token = world.words.token("poison")
    prompts: list[Any] = [*(f"question {i}" for i in range(8)), ["poison", "later"]]
    bad = story(world, prompts, extra={"raise_token_id": token, "mean_tokens": 20})
    world.tell(bad)
    rejected = "SELECT reason, turn FROM responses WHERE state = 'rejected' AND reason <> 'empty' ORDER BY turn"
    assert query(world.workspace, rejected).rows() == [("engine_error", 0), ("earlier_turn_rejected", 1)]
    assert world.tell(bad) is None  # not without being told to
    with open_ledger(world.workspace, "run") as ledger:
        again = world.generation(bad, world.plan(bad), ledger, retry_rejected=True)
    assert again.left["turn"].to_list() == [0, 1]
    assert again.left["prompt_id"].n_unique() == 1
    events = query(world.workspace, "SELECT count(*) FROM events WHERE kind = 'item_failed'")
    assert events.item() == 1


def test_a_prompt_that_kills_its_engine_is_set_aside_and_the_others_are_answered(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    seeds: list[int] = []
    ready = Engines._ready

    def hear(self: Engines, label: str, event: EngineReady) -> None:
        seeds.append(event.seed)
        ready(self, label, event)

    monkeypatch.setattr(Engines, "_ready", hear)
    token = world.words.token("killer")
    prompts = [*(f"question {i}" for i in range(6)), "killer"]
    world.tell(story(world, prompts, extra={"crash_token_id": token, "latency_s": 0.05}))
    reasons = Counter(row[0] for row in query(world.workspace, "SELECT reason FROM responses").rows())
    assert reasons["engine_crashed"] == 1
    assert len(set(seeds)) == len(seeds) >= 2  # an engine that is started again does not draw the same numbers again
    assert set(query(world.workspace, "SELECT DISTINCT seed FROM accepted_responses")["seed"]) <= set(seeds)
    assert each_wanted_once(world).total() == 7


def test_an_engine_that_does_not_start_is_one_line(world: World) -> None:
    manifest = story(world, ["question"], extra={"fail_start": True})
    with pytest.raises(UserError) as caught:
        world.tell(manifest)
    assert "the fake engine does not start" in str(caught.value)
    assert "mend that first" in str(caught.value)
    assert "to resume" not in str(caught.value)
    assert "\n" not in str(caught.value)
    assert world.tell(story(world, ["question"])).accepted >= 0


def test_a_limit_makes_so_many_and_the_rest_later(world: World) -> None:
    manifest = story(world, [f"question {i}" for i in range(12)])
    assert world.tell(manifest, limit=5).accepted <= 5
    assert query(world.workspace, "FROM responses").height == 5
    world.tell(manifest)
    assert each_wanted_once(world).total() == 12


def test_an_interrupt_drains_commits_and_resumes(world: World) -> None:
    manifest = story(world, [f"question {i}" for i in range(60)], extra={"latency_s": 0.1})
    summary = interrupted(world, with_engine(manifest, max_num_seqs=4), lambda progress: progress.finished >= 5)
    assert summary.interrupted
    stored = query(world.workspace, "SELECT count(*), count(DISTINCT response_id) FROM responses").row(0)
    assert stored == (summary.accepted + summary.rejected,) * 2
    assert 5 <= stored[0] < 60
    world.tell(manifest)
    assert each_wanted_once(world).total() == 60


@pytest.mark.usefixtures("five_rows_a_shard")
def test_answers_are_committed_while_the_run_goes_on(world: World) -> None:
    manifest = story(world, [f"question {i}" for i in range(23)], extra={"latency_s": 0.05})
    world.tell(with_engine(manifest, max_num_seqs=2))
    shards = query(world.workspace, "SELECT rows FROM response_shards ORDER BY shard")["rows"].to_list()
    assert shards == [5, 5, 5, 5, 3]
    assert each_wanted_once(world).total() == 23


def interrupted(world: World, manifest: Any, stop: Callable[[Any], bool]) -> Any:
    """One run that is asked to stop as soon as `stop` says so of its progress; returns its summary."""
    with open_ledger(world.workspace, "run") as ledger:
        plan = world.plan(manifest)
        commit_build(plan, world.workspace, ledger)
        made = world.generation(manifest, plan, ledger)
        feed = load_feed(made, load_prompts(plan, ledger), plan, ledger)
        log = RunLog(ledger, "generate", plan.build_id)
        interrupt = Interrupt()

        def report(progress: Any) -> None:
            if stop(progress):
                interrupt.asked.set()

        run = world.run(made, manifest, ledger, log)
        summary = asyncio.run(run.run(feed, [Device("cpu", 0)], interrupt, report))
        log.finish("stopped")
        return summary


def with_engine(manifest: Any, **engine: Any) -> Any:
    return manifest.model_copy(update={"engine": manifest.engine.model_copy(update=engine)})


def test_a_drain_with_retries_pending_makes_no_answer_twice(world: World) -> None:
    prompts = [f"question {i}" for i in range(60)]
    manifest = story(world, prompts, extra={"latency_s": 0.1}, max_tokens=4, truncated="retry")
    # a third of the answers is cut: when a few are accepted, some wait for their second try
    summary = interrupted(world, with_engine(manifest, max_num_seqs=4), lambda progress: progress.accepted >= 3)
    assert summary.interrupted
    states = {state: n for state, _, n in query(world.workspace, COUNTS).iter_rows()}
    assert states["retried"] > 0
    world.tell(manifest)
    assert each_wanted_once(world).total() == 60
    attempts = query(world.workspace, "SELECT response_id, attempt, state FROM responses")
    final = attempts.filter(pl.col("state") != "retried")
    assert final["response_id"].n_unique() == final.height == 60
    second = final.filter(attempt=1)
    assert set(second["response_id"]) == set(attempts.filter(state="retried")["response_id"])
    assert world.tell(manifest) is None


def test_an_engine_that_runs_out_of_memory_starts_again_smaller_and_all_is_answered(world: World) -> None:
    manifest = story(world, [f"question {i}" for i in range(40)], extra={"out_of_memory_above": 3, "latency_s": 0.02})
    summary = world.tell(with_engine(manifest, max_num_seqs=10))
    assert each_wanted_once(world).total() == 40
    assert set(summary.reasons) <= {"empty"}
    said = query(world.workspace, "SELECT message FROM events WHERE kind = 'engine_out_of_memory' ORDER BY ALL DESC")
    assert said["message"].to_list() == ["cpu:0: starts again with 5 sequences", "cpu:0: starts again with 2 sequences"]
    (warning,) = summary.warnings
    assert "cpu:0 ran out of memory" in warning
    assert query(world.workspace, "SELECT message FROM events WHERE kind = 'warning'")["message"].to_list() == [warning]


def test_engines_that_share_a_random_stream_are_refused_in_one_line_and_nothing_is_kept(world: World) -> None:
    manifest = story(world, [f"question {i}" for i in range(20)], extra={"one_stream": True})
    with pytest.raises(UserError, match="share one random stream") as caught:
        world.tell(manifest)
    assert "\n" not in str(caught.value)
    assert query(world.workspace, "SELECT count(*) FROM responses").item() == 0
    assert not list(world.workspace.responses.glob("*.parquet"))
    world.tell(story(world, [f"question {i}" for i in range(20)]))
    assert each_wanted_once(world).total() == 20


@pytest.mark.usefixtures("five_rows_a_shard")
def test_a_disk_that_fills_up_in_the_middle_stops_the_run_in_one_line_and_tears_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = story(world, [f"question {i}" for i in range(60)], extra={"latency_s": 0.02})
    small = with_engine(manifest, max_num_seqs=4)
    synced = artefacts.sync_path

    def full(path: Path) -> None:
        if path.parent == world.workspace.responses and len(list(path.parent.glob("*.parquet"))) >= 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        synced(path)

    with monkeypatch.context() as patched:
        patched.setattr(artefacts, "sync_path", full)
        with pytest.raises(UserError, match="the disk is full") as caught:
            world.tell(small)
    assert "\n" not in str(caught.value)
    kept = query(world.workspace, "SELECT response_id FROM responses")["response_id"].to_list()
    assert len(kept) == 10
    assert not list(world.workspace.root.rglob(".*.tmp"))
    world.tell(manifest)
    assert each_wanted_once(world).total() == 60
    assert query(world.workspace, "SELECT count(*) FROM responses").item() == 60


COORDINATOR = """
import sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from corpus.manifest_file import load_manifest
from generation import attempts
from tests.conftest import World

if __name__ == "__main__":
    attempts.FLUSH_ROWS = 4
    world = World(Path(sys.argv[2]))
    manifest = load_manifest(world.root / "mix.yaml")
    from corpus.building import commit_build
    from corpus.ledger.rebuild import adopt
    from corpus.ledger.writer import open_ledger
    with open_ledger(world.workspace, "run") as ledger:
        adopt(ledger)
        plan = world.plan(manifest)
        commit_build(plan, world.workspace, ledger)
        world.generate(manifest, plan, ledger, devices=2)
"""


def test_a_killed_coordinator_loses_nothing_that_was_written_and_doubles_nothing(world: World) -> None:
    prompts = [[f"question {i}", "and then"] if i % 3 else f"question {i}" for i in range(90)]
    manifest = story(world, prompts, extra={"latency_s": 0.15}, truncated="retry", max_tokens=8)
    body = manifest.model_dump(mode="json", exclude_unset=True)
    body["engine"]["max_num_seqs"] = 4
    (world.root / "mix.yaml").write_text(json.dumps(body))
    script = world.root / "coordinator.py"
    script.write_text(COORDINATOR)
    command = [sys.executable, str(script), str(Path(__file__).parents[2]), str(world.root)]
    held: set[str] = set()
    for wanted_shards in (3, 6):
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)
        while len(list(world.workspace.responses.glob("*.parquet"))) < wanted_shards:
            assert process.poll() is None, process.stdout.read() if process.stdout else ""
            time.sleep(0.02)
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
        held |= {path.name for path in world.workspace.responses.glob("*.parquet")}
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    states = each_wanted_once(world)
    assert states.total() == 30 + 2 * 60
    assert states["accepted"] > 50
    shards = set(query(world.workspace, "SELECT shard FROM response_shards")["shard"])
    assert held <= shards  # nothing that was written is lost
    twice = query(
        world.workspace, "SELECT response_id FROM responses WHERE state = 'accepted' GROUP BY ALL HAVING count(*) > 1"
    )
    assert twice.height == 0
    before = query(world.workspace, "SELECT count(*) FROM responses").item()
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0
    assert query(world.workspace, "SELECT count(*) FROM responses").item() == before
    assert not list(world.workspace.root.rglob(".*.tmp"))
