"""A training step beside speculators 0.9.0's own model, mask and eager losses; decoding by z-lab's own loop."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from extraction.capture import Capture
from tests.extraction.tiny import random_rows, save_tiny
from tests.training.speculators_model import GivenAnchors, PackedInputs, packed_inputs, speculators_model, trainable
from tests.training.tiny_data import LAYERS, greedy_rows
from training.batch import Batch, Document, make_batch, teach
from training.dflash import Drafter
from training.export import export_zlab
from training.frozen import FrozenTarget, load_frozen
from training.loss import block_loss
from training.shape import DrafterShape, shape_for_target
from training.walk import walk

BLOCK, MASK, WINDOW = 6, 90, 64
PROMPTS, ANSWERS = (8, 11, 9), (14, 7, 20)
TRAINED_STEPS = 60
ANCHORS = [[8, 9, 15], [12, 16], [10, 14, 24, 27]]


@dataclass
class Step:
    """One pack with its anchors, as either side takes it."""

    target: FrozenTarget
    documents: list[Document]
    finals: list[Any]
    shape: DrafterShape
    ours: Batch
    theirs: PackedInputs


@pytest.fixture(scope="module")
def target_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return save_tiny(tmp_path_factory.mktemp("parity"), "llama")


@pytest.fixture(scope="module")
def step(target_dir: Path) -> Step:
    """Documents are shorter than the window: within it both packages slide alike (see test_masks)."""
    target = load_frozen(target_dir)
    rows = random_rows([p + a for p, a in zip(PROMPTS, ANSWERS, strict=True)])
    states = Capture(target_dir, LAYERS).forward(rows)
    documents = []
    for i, (row, prompt) in enumerate(zip(rows, PROMPTS, strict=True)):
        loss_mask = [0] * prompt + [1] * (len(row) - prompt)
        document = Document(f"r{i}", "a", True, torch.tensor(row), loss_mask, states[i][:, :-1])
        document.normed_TH = target.normed(states[i][:, -1])
        teach(document, target)
        documents.append(document)
    shape = shape_for_target(
        target_dir,
        target_layer_ids=LAYERS,
        draft_layers=3,
        block_size=BLOCK,
        mask_token_id=MASK,
        sliding_layers=2,
        sliding_window=WINDOW,
    )
    finals = [state[:, -1] for state in states]
    ours = make_batch(documents, ANCHORS, block_size=BLOCK, mask_token_id=MASK, labels="kl")
    return Step(target, documents, finals, shape, ours, packed_inputs(documents, finals, ANCHORS, BLOCK))


def moved_drafter(shape: DrafterShape) -> Drafter:
    """Norms off their start, so that a swapped one shows; weights so large that logits differ by more than noise."""
    drafter = Drafter(shape, seed=5)
    generator = torch.Generator().manual_seed(6)
    with torch.no_grad():
        for parameter in drafter.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.rand(parameter.shape, generator=generator) - 0.5)
            else:
                parameter.mul_(3.0)
    return drafter


def our_hidden(drafter: Drafter, step: Step, **options: Any) -> Any:
    batch = step.ours
    embeddings = step.target.embed(batch.block_tokens_Q)
    return drafter(batch.states_TNH, batch.position_T, embeddings, batch.visibility, **options)


def backbone(step: Step, model: Any) -> tuple[Any, ...]:
    """speculators' (hidden, logits, targets, aligned loss mask, indices)."""
    with GivenAnchors(step.theirs.anchors), torch.no_grad():
        result: tuple[Any, ...] = model._backbone_forward(**step.theirs.tensors, max_anchors=len(step.theirs.anchors))
    return result


def test_logits_labels_and_supervised_slots_are_speculators(step: Step) -> None:
    drafter = moved_drafter(step.shape)
    _, logits, targets, loss_mask, _ = backbone(step, speculators_model(drafter, step.target))
    with torch.no_grad():
        ours = our_hidden(drafter, step) @ step.target.head_VH.T
    assert logits.std() > 0.5
    assert (ours - logits[0]).abs().max() < 1e-4
    supervised = step.ours.supervised_M
    assert loss_mask[0].nonzero().flatten().tolist() == supervised.tolist()
    assert 0 < len(supervised) < loss_mask.numel()
    assert torch.equal(step.ours.teacher_M, targets[0].argmax(-1)[supervised])
    assert not torch.equal(step.ours.teacher_M, step.ours.sampled_M)
    assert torch.allclose(step.target.logits(step.ours.normed_MH), targets[0][supervised], atol=1e-4)


@pytest.mark.parametrize("weighting", ["decay", "d_pace"])
@pytest.mark.parametrize("kl", [False, True])
@pytest.mark.parametrize("checkpoint_layers", [False, True])
def test_loss_and_every_gradient_are_speculators(step: Step, kl: bool, weighting: str, checkpoint_layers: bool) -> None:
    from speculators.losses import eager

    drafter = moved_drafter(step.shape)
    model = speculators_model(drafter, step.target)
    with GivenAnchors(step.theirs.anchors):
        _, theirs, metrics = model(
            **step.theirs.tensors,
            max_anchors=len(step.theirs.anchors),
            loss_config={"loss": (eager.kl_div_loss if kl else eager.ce_loss, 1.0)},
            gamma=3.0,
            per_position_loss_weight="dpace" if weighting == "d_pace" else "fixed-exp-decay",
            dpace_alpha=0.4,
        )
    theirs.backward()
    hidden = our_hidden(drafter, step, checkpoint_layers=checkpoint_layers)
    ours = block_loss(
        hidden[step.ours.supervised_M],
        step.target,
        step.ours.label_M,
        step.ours.slot_M,
        weighting=weighting,
        gamma=3.0,
        alpha=0.4,
        normed_MH=step.ours.normed_MH if kl else None,
        chunk_rows=7,
    )
    ours.loss.backward()
    assert abs(ours.loss.item() - theirs.item()) < 1e-5 * max(1.0, theirs.item())
    right = int((ours.predicted_M == step.ours.teacher_M).sum())
    assert right == int(metrics["full_acc_sum"])
    wanted = trainable(model)
    names = dict(drafter.named_parameters())
    assert names.keys() == wanted.keys()
    for name, parameter in names.items():
        scale = wanted[name].grad.abs().max()
        assert scale > 0, name
        assert (parameter.grad - wanted[name].grad).abs().max() < 1e-5 * max(1.0, float(scale)), name


def test_a_checkpointed_drafter_is_the_same_to_the_bit(step: Step) -> None:
    drafter = moved_drafter(step.shape)
    outcomes = []
    for checkpoint_layers in (False, True):
        drafter.zero_grad()
        hidden = our_hidden(drafter, step, checkpoint_layers=checkpoint_layers)
        hidden.pow(2).sum().backward()
        outcomes.append([hidden.detach(), *(parameter.grad.clone() for parameter in drafter.parameters())])
    assert all(torch.equal(a, b) for a, b in zip(*outcomes, strict=True))


def test_a_checkpointed_layer_keeps_its_input_alone(step: Step) -> None:
    drafter = moved_drafter(step.shape)
    kept = []
    for checkpoint_layers in (False, True):
        sizes: list[int] = []
        weights = {parameter.data_ptr() for parameter in drafter.parameters()}

        def note(tensor: Any, sizes: list[int] = sizes, weights: set[int] = weights) -> Any:
            if tensor.data_ptr() not in weights:
                sizes.append(tensor.numel())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            our_hidden(drafter, step, checkpoint_layers=checkpoint_layers)
        kept.append(sum(sizes))
    assert kept[1] < kept[0] / 4


@dataclass
class Trained:
    """A drafter, its export, and answers of its target to try it on."""

    target_dir: Path
    export: Path
    drafter: Drafter
    rows: list[tuple[list[int], list[int]]]


@pytest.fixture(scope="module", params=[0, 1], ids=["full", "sliding"])
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """A few steps on the answers themselves, so that drafts of every length are accepted."""
    folder = tmp_path_factory.mktemp("decoding")
    target_dir = save_tiny(folder / "target", "qwen3")
    rows = greedy_rows(target_dir, prompts=4, answer=36)
    target = load_frozen(target_dir)
    shape = shape_for_target(
        target_dir,
        target_layer_ids=LAYERS,
        draft_layers=2,
        block_size=BLOCK,
        mask_token_id=MASK,
        sliding_layers=request.param,
        sliding_window=8,
    )
    drafter = Drafter(shape, seed=1)
    optimizer = torch.optim.AdamW(drafter.parameters(), lr=3e-3)
    documents = documents_of(target_dir, rows)
    places = [[p for p in range(len(d) - 1) if d.loss_mask[p]][::2] for d in documents]
    batch = make_batch(documents, places, block_size=BLOCK, mask_token_id=MASK, labels="sampled")
    for _ in range(TRAINED_STEPS):
        hidden = drafter(batch.states_TNH, batch.position_T, target.embed(batch.block_tokens_Q), batch.visibility)
        optimizer.zero_grad()
        block_loss(hidden[batch.supervised_M], target, batch.label_M, batch.slot_M).loss.backward()
        optimizer.step()
    return Trained(target_dir, export_zlab(drafter, folder / "export", target_dir=target_dir), drafter, rows)


def test_zlabs_own_loop_decodes_the_targets_tokens_in_the_walks_steps(
    trained: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dflash import model as zlab

    target = AutoModelForCausalLM.from_pretrained(trained.target_dir, dtype=torch.float32).eval()
    theirs = zlab.DFlashDraftModel.from_pretrained(trained.export, dtype=torch.float32).eval()
    generate = partial(zlab.dflash_generate, theirs, target, stop_token_ids=None)
    frozen = load_frozen(trained.target_dir)
    seen: list[int] = []
    for (prompt, answer), document in zip(trained.rows, documents_of(trained.target_dir, trained.rows), strict=True):
        asked = torch.tensor([prompt])
        plain = generate(input_ids=asked, max_new_tokens=len(answer), return_stats=False)
        assert plain[0, len(prompt) :].tolist() == answer
        with monkeypatch.context() as patched:
            patched.setattr(zlab, "_cuda_time", time.perf_counter)  # all that its figures need a GPU for
            told = generate(input_ids=asked, max_new_tokens=len(answer), return_stats=True)
        lengths = told.acceptance_lengths
        assert torch.equal(told.output_ids, plain)
        assert sum(lengths) == len(answer) - 1  # its first token comes out of the prefill
        # cut where a round begins, the answer has the rounds before it; the last one is cut by z-lab, not by the walk
        ends = [len(prompt) + 1 + sum(lengths[:n]) for n in range(1, len(lengths))]
        walked = walk(trained.drafter, frozen, [shortened(document, end) for end in ends])
        assert [one.drafts for one in walked] == list(range(1, len(lengths)))
        assert [one.accepted + one.drafts for one in walked] == [sum(lengths[:n]) for n in range(1, len(lengths))]
        (whole,) = walk(trained.drafter, frozen, [document])
        assert whole.drafts == len(lengths)
        seen.extend(lengths[:-1])
    assert len(set(seen)) > 2
    assert max(seen) == BLOCK


def documents_of(target_dir: Path, rows: list[tuple[list[int], list[int]]]) -> list[Document]:
    """Answered rows with their states and teacher."""
    frozen = load_frozen(target_dir)
    states = Capture(target_dir, LAYERS).forward([prompt + answer for prompt, answer in rows])
    documents = []
    for i, (prompt, answer) in enumerate(rows):
        loss_mask = [0] * len(prompt) + [1] * len(answer)
        document = Document(f"r{i}", "a", True, torch.tensor(prompt + answer), loss_mask, states[i][:, :-1])
        document.normed_TH = frozen.normed(states[i][:, -1])
        teach(document, frozen)
        documents.append(document)
    return documents


def shortened(document: Document, length: int) -> Document:
    """Its first tokens."""
    return Document(
        document.response_id,
        document.category,
        document.greedy,
        document.input_ids_T[:length],
        document.loss_mask[:length],
        document.states_TNH[:length],
        document.normed_TH[:length],
        document.teacher_T[:length],
    )
