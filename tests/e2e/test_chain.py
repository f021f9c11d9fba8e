"""What a finished chain left behind, against the files (tests/e2e/chain.py tells how it was made)."""

from __future__ import annotations

import json
import re
from pathlib import Path

import polars as pl
import pytest
import torch

from corpus.manifest_file import load_manifest
from corpus.shards import ShardReader
from draftmill.session import Session
from tests.e2e.chain import TOTAL, Chain, draftmill

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(3600)]

ROOT = Path(__file__).resolve().parents[2]


def test_no_process_outlives_a_killed_coordinator(chain: Chain) -> None:
    assert chain.orphans == []


def test_after_a_kill_every_wanted_answer_has_one_state(chain: Chain) -> None:
    wanted = chain.ask(
        f"""
        SELECT b.response_id, count(*) FILTER (r.state = 'accepted') AS accepted,
               count(*) FILTER (r.state = 'rejected' AND r.reason IS NOT NULL) AS rejected
        FROM build_responses b LEFT JOIN responses r USING (response_id)
        WHERE b.build_id = '{chain.build_id()}' GROUP BY ALL
        """
    )
    plan = chain.plan()
    assert wanted.height >= plan.selected + plan.held_out > TOTAL
    states = wanted.select("accepted", "rejected").rows()
    assert all(accepted == 1 or (accepted == 0 and rejected >= 1) for accepted, rejected in states)
    assert sum(accepted for accepted, _ in states) > 0.9 * wanted.height


def test_nothing_committed_before_the_kill_is_lost_or_doubled(chain: Chain) -> None:
    before = chain.committed_before_kill.filter(pl.col("state") == "accepted")
    assert before.height > 0
    now = chain.ask("SELECT response_id, shard FROM responses WHERE state = 'accepted'")
    assert now["response_id"].n_unique() == now.height
    kept = before.join(now, on=["response_id", "shard"], how="inner")
    assert kept.height == before.height


def test_a_second_run_does_nothing_and_says_so(chain: Chain) -> None:
    for stage in ("generate", "extract", "train", "serve"):
        assert re.search(rf"^{stage} +nothing to do", chain.second_run, re.MULTILINE), chain.second_run
    assert not chain.second_run_workers


def test_after_editing_a_share_what_both_builds_want_was_made_once(chain: Chain) -> None:
    old, new = chain.build_id(), chain.build_id(chain.edited)
    assert old != new
    shared = chain.ask(
        f"""
        SELECT a.response_id, count(r.response_id) AS made
        FROM build_responses a JOIN build_responses b USING (response_id) JOIN responses r USING (response_id)
        WHERE a.build_id = '{old}' AND b.build_id = '{new}' GROUP BY ALL
        """
    )
    assert shared.height > 100
    assert shared["made"].unique().to_list() == [1]
    added = chain.ask(
        f"SELECT count(*) AS n FROM build_responses WHERE build_id = '{new}' "
        f"AND response_id NOT IN (SELECT response_id FROM build_responses WHERE build_id = '{old}')"
    )["n"][0]
    assert 0 < added < shared.height
    unfinished = chain.ask(f"SELECT why FROM unfinished WHERE build_id = '{new}' AND why = 'not answered yet'")
    assert unfinished.height == 0


def test_prompt_response_and_states_of_a_row_are_one_query_apart(chain: Chain) -> None:
    sql = readme_blocks("sql")[1]
    rows = chain.ask(sql.replace("LIMIT 1", "LIMIT 25"))
    assert rows.height == 25
    for row in rows.iter_rows(named=True):
        response = pl.read_parquet(chain.workspace.responses / row["shard"])[row["shard_row"]].row(0, named=True)
        assert response["text"] == row["text"]
        if row["hidden_shard"] is None:
            continue  # an answer of the edited build, which was generated and not captured
        path = next((chain.workspace.root / "hidden").glob(f"*/{row['hidden_shard']}"))
        with ShardReader(path) as shard:
            captured = shard.row(row["hidden_row"])
        assert captured.response_id == response["response_id"]
        assert captured.input_ids_T.tolist() == response["prompt_token_ids"] + response["token_ids"]
        assert captured.loss_mask_T.tolist() == [0] * len(response["prompt_token_ids"]) + [1] * len(
            response["token_ids"]
        )


def test_shard_states_equal_a_plain_unpadded_forward(chain: Chain) -> None:
    from transformers import AutoModelForCausalLM

    session = Session(chain.manifest, chain.workspace)
    model = AutoModelForCausalLM.from_pretrained(session.target.folder, dtype=torch.float32)
    lm_states: dict[str, torch.Tensor] = {}
    model.model.norm.register_forward_pre_hook(lambda _, args: lm_states.update(final=args[0]))
    path = sorted((chain.workspace.root / "hidden").glob("*/*.safetensors"))[0]
    with ShardReader(path) as shard:
        for index in {0, len(shard) // 2, len(shard) - 1}:
            row = shard.row(index)
            with torch.no_grad():
                output = model(row.input_ids_T.long()[None], output_hidden_states=True)
            plain = [output.hidden_states[layer + 1][0] for layer in shard.meta.layer_ids] + [lm_states["final"][0]]
            for position, expected in enumerate(plain):
                difference = (row.states_TNH[:, position] - expected).abs().max()
                rms = expected.pow(2).mean().sqrt()
                assert difference <= 1e-4 * rms, (index, position, float(difference), float(rms))


def test_the_ledger_is_made_again_from_the_files(chain: Chain) -> None:
    views = ["composition", "funnel", "provenance", "unfinished", "throughput", "acceptance_by_category"]
    before = {view: sorted(map(repr, chain.ask(f"FROM {view}").rows())) for view in views}
    draftmill("ledger", "rebuild", "--workspace", chain.workspace.root)
    for view in views:
        assert sorted(map(repr, chain.ask(f"FROM {view}").rows())) == before[view], view


def test_readme_queries_answer(chain: Chain) -> None:
    blocks = readme_blocks("sql")
    assert len(blocks) >= 4
    for sql in blocks:
        assert chain.ask(sql).height > 0, sql


def test_the_drafter_card_and_config_are_what_vllm_reads(chain: Chain) -> None:
    drafter = chain.ask("SELECT drafter_id, path FROM drafters WHERE build_id IS NOT NULL")["path"][0]
    config = json.loads((chain.workspace.root / drafter / "config.json").read_text())
    manifest = load_manifest(chain.manifest)
    assert config["architectures"] == ["DFlashDraftModel"]
    assert config["block_size"] == manifest.training.block_size
    assert chain.build_id() in (chain.workspace.root / drafter / "README.md").read_text()


def readme_blocks(language: str) -> list[str]:
    """Fenced blocks of the README in one language."""
    return re.findall(rf"^```{language}\n(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
