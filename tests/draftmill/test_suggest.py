"""`draftmill suggest`: from a ledger with measurements to a new manifest, and what it refuses."""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from corpus.building import commit_build
from corpus.errors import DamagedError
from corpus.ledger.ingest import ingest_drafter, ingest_response_plan
from corpus.ledger.writer import open_ledger
from corpus.manifest_file import load_manifest
from draftmill import suggesting
from draftmill.app import run_app
from draftmill.suggesting import OwnDrafter, trained_alike
from training.begun import Asked

World = Any  # tests/conftest.py makes it

MANIFEST = """\
# what we serve
name: served
seed: 3
mix:
  total: 20
  shares: {coding: 77, general: 15, math: 8}  # as it came
  holdout: 0.1
sources:
  - {name: code, path: code.jsonl, category: coding}   # ours
  - {name: talk, path: talk.jsonl, category: general}
  - {name: sums, path: sums.jsonl, category: math}
target: {model: model, max_model_len: 512, dtype: float32}
generation: {max_tokens: 64}
"""
Row = dict[str, Any]


def build(world: World, text: str = MANIFEST, name: str = "mix.yaml") -> tuple[Path, str]:
    """A built manifest's path and its build."""
    for source in ("code", "talk", "sums"):
        world.prompts(source, 40)
    path = world.root / name
    path.write_text(text)
    with open_ledger(world.workspace, "build") as ledger:
        plan = world.plan(load_manifest(path))
        commit_build(plan, world.workspace, ledger)
        world.generation(load_manifest(path), plan, ledger)
    return path, plan.build_id


def measured(category: str, tau: float, by: str = "walk", rows: int = 100, spread: float = 0.1) -> Row:
    """`rows` documents of 50 drafts each, whose accepted tokens spread about the mean by this part."""
    accepted = 50 * (tau - 1)
    sums = {
        "sum_drafts_sq": rows * 2500,
        "sum_accepted_sq": round(rows * accepted**2 * (1 + spread**2)),
        "sum_cross": round(rows * 50 * accepted),
    }
    return {
        "category": category, "measured_by": by, "drafts": rows * 50, "accepted_tokens": round(rows * accepted),
        "rows": rows, "measured_at": "2026-01-02T03:04:05+00:00", **({} if by == "vllm" else sums),
    }  # fmt: skip


def enter(world: World, build_id: str, drafter_id: str, rows: list[Row], responses: list[str] | None = None) -> None:
    """A drafter with its measurements, in its files and the ledger."""
    import polars as pl

    folder = world.workspace.drafter(drafter_id)
    folder.mkdir(parents=True)
    body = {
        "build_id": build_id, "capture_id": "c", "algorithm": "dflash", "steps": 1, "path": "p", "rows": 1,
        "training": {"lr": 1, "best_step": int(drafter_id[-3:], 36), "checkpoint_every": len(rows), "mask_token_id": 7},
        "created_at": "2026-01-02T03:04:05+00:00",
    }  # fmt: skip
    (folder / "drafter.json").write_text(json.dumps(body))
    (folder / "acceptance.json").write_text(json.dumps([{"build_id": build_id, **row} for row in rows]))
    if responses is not None:
        pl.DataFrame({"response_id": responses}).write_parquet(folder / "responses.parquet")
    with open_ledger(world.workspace, "test") as ledger:
        ledger.call(lambda connection: ingest_drafter(connection, world.workspace, drafter_id))


SKEWED = [measured("coding", 4.2), measured("general", 2.4), measured("math", 2.6)]


def suggest(world: World, path: Path, *options: str) -> int:
    return run_app(["suggest", str(path), "-w", str(world.workspace.root), *options])


def test_a_skewed_mix_is_evened_out_in_a_new_file_and_nothing_else_of_it_changes(world: World, capsys: Any) -> None:
    path, build_id = build(world)
    enter(world, build_id, "aaaaaa111111", SKEWED)
    assert suggest(world, path) == 0
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines()[:-1])) <= 80
    assert "drafter aaaaaa111111 on build" in shown
    assert "by walk, 300 held-out rows" in shown
    assert "not stated: the manifest's own shares" in shown
    assert re.search(r"coding +77\.0 +66\.4 .* τ above mean", shown)
    assert re.search(r"general +15\.0 +22\.5 .* τ below mean, x1\.5", shown)
    assert path.read_text() == MANIFEST
    following = path.with_name("mix-next.yaml")
    assert following.read_text() == MANIFEST.replace(
        "{coding: 77, general: 15, math: 8}", "{coding: 66.4, general: 22.5, math: 11.1}"
    )
    shares = load_manifest(following).mix.shares
    assert sum(shares.values()) == 100
    assert "draftmill diff" in shown


def test_stated_traffic_decides_and_may_come_of_a_file(world: World, capsys: Any) -> None:
    path, build_id = build(world)
    enter(world, build_id, "aaaaaa111111", SKEWED)
    stated = ["--traffic", "coding=95", "--traffic", "general=5"]
    assert suggest(world, path, *stated, "--out", str(path.with_name("a.yaml"))) == 0
    shown = capsys.readouterr().out
    assert "traffic as stated" in shown
    assert "not in the stated traffic, so counted as 0: math" in shown
    assert re.search(r"math +8\.0 .* less traffic", shown)
    (world.root / "traffic.json").write_text('{"coding": 190, "general": 10}')
    chosen = ["--traffic-file", str(world.root / "traffic.json"), "--out", str(path.with_name("b.yaml"))]
    assert suggest(world, path, *chosen) == 0
    assert path.with_name("a.yaml").read_text() == path.with_name("b.yaml").read_text()


def test_what_cannot_be_told_is_left_and_the_new_manifest_is_the_old_one(world: World, capsys: Any) -> None:
    path, build_id = build(world)
    rows = [measured("coding", 3.0, spread=3), measured("general", 2.4, by="vllm"), measured("general", 2.9, rows=1)]
    enter(world, build_id, "aaaaaa111111", rows)
    assert suggest(world, path) == 0
    shown = capsys.readouterr().out
    for reason in (r"coding .* left: holds the mean", r"general .* left: no interval", r"math .* left: not measured"):
        assert re.search(reason, shown)
    assert "no share changes" in shown
    assert path.with_name("mix-next.yaml").read_bytes() == path.read_bytes()


def test_a_dry_run_writes_nothing(world: World, capsys: Any) -> None:
    path, build_id = build(world)
    enter(world, build_id, "aaaaaa111111", SKEWED)
    before = sorted(world.root.rglob("*"))
    assert suggest(world, path, "--dry-run", "--out", str(path)) == 0
    assert "coding" in capsys.readouterr().out
    assert sorted(world.root.rglob("*")) == before


def test_walk_and_vllm_are_told_apart_and_the_newest_drafter_is_taken(world: World, capsys: Any) -> None:
    path, build_id = build(world)
    late = {"measured_at": "2026-03-02T03:04:05+00:00"}
    both = [{**measured("coding", 3.0, by=by), **late} for by in ("vllm", "anchors", "ddtree_8")]
    enter(world, build_id, "bbbbbb222222", both)
    enter(world, build_id, "aaaaaa111111", SKEWED)
    assert suggest(world, path, "--dry-run") == 0
    assert "drafter bbbbbb222222" in (shown := capsys.readouterr().out)
    assert "by vllm" in shown
    assert suggest(world, path, "--dry-run", "--drafter", "aaaaaa") == 0
    assert "by walk" in capsys.readouterr().out


def test_growth_is_fitted_where_the_ledger_has_two_builds(world: World, capsys: Any) -> None:
    """Two drafters trained alike, the second on more rows: general gains most from them."""
    import polars as pl

    path, build_id = build(world)
    _, more_id = build(world, MANIFEST.replace("total: 20", "total: 40"), "more.yaml")

    def trained(one: str) -> list[str]:
        frame = pl.read_parquet(world.workspace.build(one) / "responses.parquet")
        return frame.filter(~pl.col("holdout"))["response_id"].to_list()

    enter(world, build_id, "aaaaaa111111", SKEWED, trained(build_id))
    better = [measured("coding", 4.3, spread=0.01), measured("general", 3.6, spread=0.01), measured("math", 2.7)]
    enter(world, more_id, "bbbbbb222222", better, trained(more_id))
    with open_ledger(world.workspace, "test") as ledger:
        for one in (build_id, more_id):
            ledger.call(partial(ingest_response_plan, workspace=world.workspace, build_id=one))
    assert suggest(world, world.root / "more.yaml", "--dry-run") == 0
    shown = capsys.readouterr().out
    assert "growth of τ with rows measured for 2 categories" in shown
    assert re.search(r"math +8\.0 .* grows slowly", shown)
    assert suggest(world, path, "--dry-run") == 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--traffic", "codng=40"], r"mix\.yaml: has no share for codng.* Did you mean coding\?"),
        (["--traffic", "coding"], r"--traffic is coding; it is CATEGORY=WEIGHT, such as coding=40"),
        (["--traffic", "coding=-1"], r"--traffic coding is -1; it must be a number of at least 0"),
        (["--traffic", "coding=nan"], r"must be a number"),
        (["--traffic", "coding=0"], r"the stated traffic is 0 throughout"),
        (["--traffic", "coding=1", "--traffic", "coding=2"], r"names coding twice"),
        (["--traffic", "coding=1", "--traffic-file", "x"], r"both given"),
        (["--traffic-file", "nowhere.yaml"], r"nowhere\.yaml: cannot be read"),
        (["--traffic-file", "list.yaml"], r"list\.yaml: holds no mapping"),
        (["--drafter", "ffffff"], r"--drafter ffffff names no drafter of this ledger"),
        (["--drafter", "aaaaaa"], r"--drafter aaaaaa names 2 drafters"),
        (["--out", "mix.yaml"], r"mix\.yaml: is there already; it is not changed"),
        (["--out", "elsewhere/mix.yaml"], r"is in another folder than .*mix\.yaml"),
        (["--traffic", "math=1", "--drafter", "aaaaaa3"], r"was measured in coding, of which none has traffic"),
    ],
)
def test_what_it_cannot_do_is_one_line_and_exit_2(
    world: World, options: list[str], said: str, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, build_id = build(world)
    enter(world, build_id, "aaaaaa111111", SKEWED)
    enter(world, build_id, "aaaaaa333333", SKEWED[:1])
    monkeypatch.chdir(world.root)
    (world.root / "list.yaml").write_text("- coding\n")
    before = sorted(world.root.rglob("*"))
    assert suggest(world, path, *options) == 2
    told = capsys.readouterr()
    assert re.search(said, told.err)
    assert (told.out, told.err.count("\n")) == ("", 1)
    assert path.read_text() == MANIFEST
    assert [one for one in sorted(world.root.rglob("*")) if one not in before] == []


def test_where_nothing_was_measured_it_says_what_to_run(world: World, capsys: Any) -> None:
    path = world.root / "mix.yaml"
    path.write_text(MANIFEST)
    assert suggest(world, path) == 2
    assert "holds no published ledger" in capsys.readouterr().err
    build(world)
    assert suggest(world, path) == 2
    assert re.search(r"nothing is measured of a drafter of .*mix\.yaml.*`draftmill train`", capsys.readouterr().err)


def test_traffic_of_any_size_counts_by_its_shares(world: World, capsys: Any) -> None:
    path, build_id = build(world)
    enter(world, build_id, "d1", SKEWED)
    said = []
    for weight in ("1e308", "1", "1e-320"):
        traffic = [f"--traffic={name}={weight}" for name in ("coding", "general", "math")]
        assert suggest(world, path, "--dry-run", *traffic) == 0
        said.append(capsys.readouterr())
    assert said[0] == said[1] == said[2]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"accepted_tokens": -5}, "accepted_tokens is -5"),
        ({"drafts": -5}, "drafts is -5"),
        ({"drafts": 0}, "accepted tokens of no draft"),
        ({"drafts": True}, "drafts is True"),
        ({"drafts": 10**30}, f"drafts is {10**30}"),
        ({"rows": 1.5}, "rows is 1.5"),
        ({"sum_cross": float("nan")}, "sum_cross is nan"),
        ({"accepted_tokens": 15_001}, "15,001 accepted tokens of 5,000 drafts of 3"),
    ],
)
def test_what_nobody_can_have_measured_is_refused_when_it_is_entered(
    world: World, change: Row, why: str, caplog: Any, capsys: Any
) -> None:
    path, build_id = build(world)
    enter(world, build_id, "d1", SKEWED)
    folder = world.workspace.drafter("d1")
    body = json.loads((folder / "drafter.json").read_text())
    body["training"]["block_size"] = 4
    (folder / "drafter.json").write_text(json.dumps(body))
    rows = json.loads((folder / "acceptance.json").read_text())
    (folder / "acceptance.json").write_text(json.dumps([rows[0] | change, *rows[1:]]))
    with (
        open_ledger(world.workspace, "test") as ledger,
        pytest.raises(DamagedError, match=r"acceptance\.json") as caught,
    ):
        ledger.call(lambda connection: ingest_drafter(connection, world.workspace, "d1"))
    assert why in str(caught.value)
    assert "\n" not in str(caught.value)
    caplog.clear()
    assert run_app(["ledger", "rebuild", "-w", str(world.workspace.root)]) == 0
    assert any(why in record.getMessage() for record in caplog.records)
    assert suggest(world, path, "--dry-run") == 2
    assert "nothing is measured" in capsys.readouterr().err


@pytest.mark.parametrize("accepted", [-1_000_000, -1])
def test_an_older_ledger_that_holds_what_cannot_be_is_refused(
    world: World, accepted: int, capsys: Any, monkeypatch: Any
) -> None:
    path, build_id = build(world)
    monkeypatch.setattr("corpus.ledger.ingest.nonsense", lambda *_: "")
    enter(world, build_id, "d1", [SKEWED[0] | {"accepted_tokens": accepted}, *SKEWED[1:]])
    assert suggest(world, path, "--dry-run") == 2
    error = capsys.readouterr().err
    assert re.search(r"drafter d1 has an acceptance length of -?[\d.e+]+ in coding by walk, which cannot be\. ", error)
    assert error.count("\n") == 1


def test_an_interval_of_fewer_than_five_rows_decides_nothing(world: World, capsys: Any) -> None:
    path, build_id = build(world)
    rows = [measured("coding", 4.2), measured("general", 2.4), measured("math", 1.2, rows=4, spread=0.0)]
    enter(world, build_id, "aaaaaa111111", rows)
    assert suggest(world, path, "--dry-run") == 0
    assert re.search(r"math .* left: few rows", capsys.readouterr().out)
    enter(world, build_id, "bbbbbb111111", [*rows[:2], measured("math", 1.2, rows=5, spread=0.0)])
    assert suggest(world, path, "--dry-run", "--drafter", "bbbbbb") == 0
    assert "few rows" not in capsys.readouterr().out


def test_the_manifests_own_drafter_is_taken_where_it_is_measured_else_another_is_said_loudly(
    world: World, capsys: Any, monkeypatch: Any
) -> None:
    path, build_id = build(world)
    enter(world, build_id, "aaaaaa111111", SKEWED)
    enter(world, build_id, "bbbbbb111111", [measured("coding", 3.0)])
    asked = Asked({"learning_rate": 1.0}, 9, "", "c")
    monkeypatch.setattr(suggesting, "own_drafter", lambda *_: OwnDrafter("bbbbbb111111", asked))
    assert suggest(world, path, "--dry-run") == 0
    shown = capsys.readouterr().out
    assert "drafter bbbbbb111111 on build" in shown
    assert "NOTE" not in shown
    monkeypatch.setattr(suggesting, "own_drafter", lambda *_: OwnDrafter("cccccc111111", asked))
    assert suggest(world, path, "--dry-run") == 0
    shown = capsys.readouterr().out
    said = " ".join(shown.split())
    assert "NOTE: the manifest's own drafter cccccc111111 is not measured; drafter aaaaaa111111 is the newest" in said
    assert "it differs in" in said
    assert max(map(len, shown.splitlines())) <= 80
    assert suggest(world, path, "--dry-run", "--drafter", "bbbbbb") == 0
    assert "NOTE" not in capsys.readouterr().out


def test_a_drafter_from_before_a_key_was_trained_as_one_that_says_the_usual() -> None:
    sections: dict[str, Row] = {
        "older": {"lr": 1, "best_step": 5},
        "newer": {"lr": 1, "best_step": 9, "gradient_accumulation": 1, "loss_weights": "decay", "d_pace_alpha": 0.3},
        "other": {"lr": 1, "best_step": 5, "gradient_accumulation": 2},
        "paced": {"lr": 1, "loss_weights": "d_pace", "d_pace_alpha": 0.3},
    }
    rows = [(name, "dflash", "c", json.dumps(training)) for name, training in sections.items()]
    ledger = cast(Any, SimpleNamespace(rows=lambda *_: rows))
    assert trained_alike(ledger, "older") == ["older", "newer"]
    assert trained_alike(ledger, "other") == ["other"]
    assert trained_alike(ledger, "paced") == ["paced"]
