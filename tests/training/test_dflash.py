"""Parity with z-lab's `dflash` package: same weights, same target, same logits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from extraction.capture import Capture
from tests.extraction.tiny import random_rows, save_tiny
from training.batch import Document, make_batch
from training.dflash import Drafter
from training.export import export_untrained, export_zlab, load_exported
from training.frozen import load_frozen
from training.shape import shape_for_target

LAYERS = (1, 3, 5)
BLOCK, MASK = 6, 90


@pytest.fixture(scope="module", params=["qwen3", "llama", "gdn"])
def target(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return save_tiny(tmp_path_factory.mktemp(request.param), request.param)


def make_drafter(target: Path, layers: int, sliding: int, window: int = 8) -> Drafter:
    shape = shape_for_target(
        target,
        target_layer_ids=LAYERS,
        draft_layers=layers,
        block_size=BLOCK,
        mask_token_id=MASK,
        sliding_layers=sliding,
        sliding_window=window,
    )
    drafter = Drafter(shape, seed=3)
    generator = torch.Generator().manual_seed(9)
    with torch.no_grad():
        for parameter in drafter.parameters():
            if parameter.ndim == 1:  # norms off their start, so that a swapped one shows
                parameter.add_(torch.rand(parameter.shape, generator=generator) - 0.5)
    return drafter


def documents_of(target: Path, lengths: list[int]) -> list[Document]:
    rows = random_rows(lengths)
    states = Capture(target, LAYERS, final_state=False).forward(rows)
    return [Document(f"r{i}", "math", True, torch.tensor(row), [1] * len(row), states[i]) for i, row in enumerate(rows)]


def drafter_logits(drafter: Drafter, target: Path, documents: list[Document], anchors: list[list[int]]) -> Any:
    """[A, B, V] of our packed path."""
    batch = make_batch(documents, anchors, block_size=BLOCK, mask_token_id=MASK, labels="sampled")
    frozen = load_frozen(target)
    with torch.no_grad():
        hidden = drafter(batch.states_TNH, batch.position_T, frozen.embed(batch.block_tokens_Q), batch.visibility)
    return (hidden @ frozen.head_VH.T).unflatten(0, (-1, BLOCK))


@pytest.mark.parametrize(("layers", "sliding"), [(1, 0), (2, 0), (1, 1), (3, 2)])
def test_logits_equal_zlabs(target: Path, tmp_path: Path, layers: int, sliding: int) -> None:
    reference = pytest.importorskip("dflash.model")
    drafter = make_drafter(target, layers, sliding)
    folder = export_zlab(drafter, tmp_path / "out", target_dir=target)
    theirs = reference.DFlashDraftModel.from_pretrained(folder, dtype=torch.float32).eval()
    model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32).eval()
    assert theirs.target_layer_ids == list(LAYERS)
    assert theirs.block_size == BLOCK

    documents = documents_of(target, [12, 31, 22])
    anchors = [[1, 7], [20, 3, 28], [15]]
    ours = drafter_logits(drafter, target, documents, anchors)
    n = 0
    for document, own in zip(documents, anchors, strict=True):
        for anchor in own:
            ids = document.input_ids_T[None, :anchor]
            with torch.no_grad():
                hidden = model(ids, output_hidden_states=True).hidden_states
                feature = reference.extract_context_feature(hidden, theirs.target_layer_ids)
                block = torch.full((1, BLOCK), MASK)
                block[0, 0] = document.input_ids_T[anchor]
                out = theirs(
                    position_ids=torch.arange(anchor + BLOCK)[None],
                    noise_embedding=model.get_input_embeddings()(block),
                    target_hidden=feature,
                )
                want = model.lm_head(out)[0]
            assert (ours[n] - want).abs().max() < 1e-4, (anchor, layers, sliding)
            n += 1


@pytest.mark.parametrize(("layers", "sliding"), [(2, 0), (2, 1), (2, 2)])
def test_nothing_at_or_behind_the_anchor_and_no_other_document_leaks(target: Path, layers: int, sliding: int) -> None:
    drafter = make_drafter(target, layers, sliding)
    documents = documents_of(target, [14, 26, 9])
    anchors = [[4, 9], [12, 13, 20], [2]]
    before = drafter_logits(drafter, target, documents, anchors)
    middle = documents[1]
    middle.states_TNH = middle.states_TNH.clone()
    middle.states_TNH[13:] += 100.0  # the future of anchor 13, its own state included
    middle.input_ids_T = middle.input_ids_T.clone()
    middle.input_ids_T[14:] = 5
    for other in (documents[0], documents[2]):
        other.states_TNH = other.states_TNH * -3.0
    after = drafter_logits(drafter, target, documents, anchors)
    assert torch.equal(before[2], after[2])  # document 1, anchor 12
    assert torch.equal(before[3], after[3])  # document 1, anchor 13
    assert not torch.allclose(before[4], after[4])  # anchor 20 sees the change
    assert not torch.allclose(before[0], after[0])


@pytest.mark.parametrize("sliding", [0, 1, 2])
def test_no_later_place_and_no_other_document_changes_a_bit(target: Path, sliding: int) -> None:
    """Each place on its own: the state at the anchor and behind it, and every token behind it; then all else."""
    drafter = make_drafter(target, 2, sliding)
    anchor = 6
    plain = documents_of(target, [9, 12, 10])
    anchors = [[3], [anchor], [4, 7]]
    before = drafter_logits(drafter, target, plain, anchors)[1]

    def after(documents: list[Document], own: list[list[int]] = anchors) -> Any:
        return drafter_logits(drafter, target, documents, own)[1]

    for place in range(anchor, 12):
        changed = documents_of(target, [9, 12, 10])
        changed[1].states_TNH = changed[1].states_TNH.clone()
        changed[1].states_TNH[place] -= 50.0
        if place > anchor:  # the anchor's own token is known when the block is drafted
            changed[1].input_ids_T[place] = (changed[1].input_ids_T[place] + 1) % 80
        assert torch.equal(after(changed), before), place
    others = documents_of(target, [9, 12, 10])
    for one in (others[0], others[2]):
        one.states_TNH = one.states_TNH * -2.0
        one.input_ids_T = (one.input_ids_T + 7) % 80
        one.loss_mask = [0] + [1] * (len(one) - 1)
    assert torch.equal(after(others), before)
    assert torch.equal(after(plain, [[5], [anchor], [1, 2]]), before)
    longer = documents_of(target, [14, 12, 3])
    longer[1] = plain[1]
    assert torch.allclose(
        after(longer, [[2], [anchor], [1, 1]]), before, atol=1e-5
    )  # rounding alone: it lies elsewhere
    seen = documents_of(target, [9, 12, 10])
    seen[1].states_TNH = seen[1].states_TNH.clone()
    seen[1].states_TNH[anchor - 1] -= 50.0
    assert not torch.allclose(after(seen), before)


def test_a_block_is_alone(target: Path) -> None:
    drafter = make_drafter(target, 2, 1)
    documents = documents_of(target, [26])
    together = drafter_logits(drafter, target, documents, [[5, 6, 7, 20]])
    for n, anchor in enumerate([5, 6, 7, 20]):
        alone = drafter_logits(drafter, target, documents, [[anchor]])
        assert torch.allclose(together[n], alone[0], atol=1e-5)


def test_export_reads_back(target: Path, tmp_path: Path) -> None:
    drafter = make_drafter(target, 3, 2)
    folder = export_zlab(drafter, tmp_path / "out", target_dir=target)
    again = load_exported(folder)
    assert again.shape == drafter.shape
    assert all(torch.equal(a, b) for a, b in zip(again.parameters(), drafter.parameters(), strict=True))
    export_zlab(drafter, folder, target_dir=target)  # in place of what was
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out"]
    first = export_untrained(drafter.shape, tmp_path / "a", target_dir=target, seed=1)
    second = export_untrained(drafter.shape, tmp_path / "b", target_dir=target, seed=1)
    assert (first / "model.safetensors").read_bytes() == (second / "model.safetensors").read_bytes()


def test_the_teacher_is_the_targets_arg_max(target: Path) -> None:
    rows = random_rows([11, 23])
    states = Capture(target, LAYERS).forward(rows)
    frozen = load_frozen(target)
    model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32).eval()
    for row, state in zip(rows, states, strict=True):
        with torch.no_grad():
            want = model(torch.tensor([row])).logits[0]
        normed = frozen.normed(state[:, -1])
        assert torch.allclose(frozen.logits(normed), want, atol=1e-4)
        assert torch.equal(frozen.argmax(normed), want.argmax(-1))
