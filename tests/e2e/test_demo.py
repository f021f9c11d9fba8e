"""`make demo` as it stands: real prompts, the real SmolLM2, every stage. What smaller models hide shows here."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from corpus.ledger.query import query
from corpus.shards import ShardReader
from corpus.workspace import Workspace
from draftmill.session import Session
from tests.docs.demo_questions import Question, answer, questions, same
from tests.e2e.chain import draftmill

pytestmark = [pytest.mark.e2e, pytest.mark.full, pytest.mark.timeout(3600)]

DEMO = Path(__file__).resolve().parents[2] / "manifests" / "demo.yaml"


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    folder = tmp_path_factory.mktemp("demo")
    draftmill("run", DEMO, "--workspace", folder / "workspace")
    return Workspace(folder / "workspace")


def test_the_demo_is_answered_captured_trained_and_served(workspace: Workspace) -> None:
    rows = dict(query(workspace, "SELECT stage, sum(prompts) FROM composition GROUP BY stage").iter_rows())
    assert rows["accepted"] >= rows["captured"] >= rows["trained"] > 100
    tau = {
        by: 1 + int(accepted) / int(drafts)
        for by, accepted, drafts in query(
            workspace,
            "SELECT measured_by, sum(accepted_tokens), sum(drafts) FROM acceptance_by_category GROUP BY ALL",
        ).iter_rows()
    }
    assert tau["vllm"] > 1.05
    assert tau["walk"] == pytest.approx(tau["vllm"], rel=0.10)


def test_smollm2_s_states_are_those_of_a_plain_forward(workspace: Workspace) -> None:
    """Its residual stream is large: what a smaller model forgives shows here."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(Session(DEMO, workspace).target.folder, dtype=torch.float32)
    final: list[torch.Tensor] = []
    model.model.norm.register_forward_pre_hook(lambda _, args: final.append(args[0]))
    path = sorted((workspace.root / "hidden").glob("*/*.safetensors"))[0]
    with ShardReader(path) as shard:
        row = shard.row(len(shard) // 2)
        with torch.no_grad():
            output = model(row.input_ids_T.long()[None], output_hidden_states=True)
        plain = [output.hidden_states[layer + 1][0] for layer in shard.meta.layer_ids] + [final[0][0]]
        for position, expected in enumerate(plain):
            difference = (row.states_TNH[:, position] - expected).abs().max()
            assert difference <= 1e-4 * expected.pow(2).mean().sqrt(), position


@pytest.mark.parametrize("question", questions(), ids=lambda question: str(question.number))
def test_the_ten_questions_are_answered_as_their_page_shows(
    workspace: Workspace, question: Question, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = workspace.root.parent
    shutil.copytree(DEMO.parent, folder / "manifests", dirs_exist_ok=True)
    monkeypatch.chdir(folder)
    monkeypatch.delenv("DRAFTMILL_WORKSPACE", raising=False)
    same(question, answer(question))
