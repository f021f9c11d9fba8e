"""A training step beside speculators' own: the same drafter, packs and anchors, float32 on one core.

    python benchmarks/training_step.py [--rounds 5] [--packs 4]        4 minutes on one quiet core

A drafter of two layers (hidden 256, 8,192 tokens in its vocabulary, blocks of 8) is trained on packs of documents with
random states. Ours: from documents to the optimiser's step, as the loop runs it (anchors, tensors, labels, forward,
loss, backward, clipping, AdamW). Theirs: speculators 0.9.0's DFlashDraftModel with eager attention and eager losses,
given the very anchors that ours drew and a ready packed input, then the same clipping and AdamW. Both make the
target's labels in the step; in a run ours are made once and kept through all epochs, which is timed as a third way.
Both begin each round with the same weights, and their losses of every step must agree, or nothing is printed.

Ways alternate within a round and change their order; a ratio is of one round, and medians are printed. Wanted: tokens/s
(context tokens) of ours / theirs at least 1.0.
"""

from __future__ import annotations

import argparse
import copy
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from fleet.devices import find_cores

HIDDEN, VOCABULARY, LAYERS, BLOCK, MASK = 256, 8_192, 2, 8, 8_191
FEATURES = 3
DOCUMENTS, PROMPT, ANSWER, ANCHORS = 6, (16, 64), (40, 160), 24
SEED, LEARNING_RATE, CLIP = 17, 6e-4, 1.0
SAME = 1e-4
"""Relative difference of two losses that are one."""
WANTED = 1.0
CASES = (("teacher", "decay"), ("teacher", "d_pace"), ("kl", "decay"))


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--packs", type=int, default=4, help="steps of a round")
    options = parser.parse_args()
    only_one_core()
    missed = [labels for labels, weights in CASES if not case(labels, weights, options.rounds, options.packs)]
    raise SystemExit(1 if missed else 0)


def only_one_core() -> None:
    """Tie this process to one core, as a worker is; torch is not imported yet."""
    core = find_cores()[0]
    os.environ.update(core.env())
    os.sched_setaffinity(0, {core.index})


@dataclass(frozen=True)
class Scene:
    """What both sides are given."""

    drafter: Any
    target: Any
    packs: list[Any]
    finals: list[list[Any]]
    """Of each document of each pack, the state before the target's norm."""

    @property
    def tokens(self) -> int:
        """Context tokens of a round."""
        return sum(pack.tokens for pack in self.packs)


def make_scene(packs: int) -> Scene:
    """Random states and tokens, seeded; a target that is an embedding, a norm and a head."""
    import torch

    from training.batch import Document
    from training.dflash import Drafter
    from training.frozen import FrozenTarget
    from training.shape import DrafterShape
    from training.step import Pack

    torch.set_num_threads(1)
    chance = torch.Generator().manual_seed(SEED)
    shape = DrafterShape(
        hidden_size=HIDDEN,
        intermediate_size=3 * HIDDEN,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=HIDDEN // 8,
        vocab_size=VOCABULARY,
        rms_norm_eps=1e-6,
        rope_theta=1e6,
        max_position_embeddings=4096,
        initializer_range=0.02,
        draft_layers=LAYERS,
        sliding_layers=0,
        sliding_window=2048,
        block_size=BLOCK,
        mask_token_id=MASK,
        num_target_layers=8,
        target_layer_ids=(1, 3, 5),
    )
    matrix = torch.randn(VOCABULARY, HIDDEN, generator=chance) * 0.05
    target = FrozenTarget(matrix, matrix, torch.ones(HIDDEN), 1e-6, False, None)

    def between(bounds: tuple[int, int]) -> int:
        return int(torch.randint(*bounds, (1,), generator=chance))

    made, finals = [], []
    for number in range(packs):
        documents, own_finals = [], []
        for i in range(DOCUMENTS):
            prompt, answer = between(PROMPT), between(ANSWER)
            states = torch.randn(prompt + answer, FEATURES + 1, HIDDEN, generator=chance)
            tokens = torch.randint(0, MASK, (prompt + answer,), generator=chance)
            mask = [0] * prompt + [1] * answer
            documents.append(Document(f"r{number}-{i}", "a", True, tokens, mask, states[:, :FEATURES]))
            own_finals.append(states[:, FEATURES])
        made.append(Pack(number=number, epoch=0, documents=documents))
        finals.append(own_finals)
    return Scene(Drafter(shape, SEED), target, made, finals)


def settings_of(labels: str, loss_weights: str) -> Any:
    """Of our step."""
    from training.step import StepSettings

    return StepSettings(
        anchors_per_document=ANCHORS,
        labels=labels,
        loss_weights=loss_weights,
        gamma=4.0,
        d_pace_alpha=0.5,
        weight_decay=0.01,
        clip=CLIP,
        seed=SEED,
    )


def ours(scene: Scene, settings: Any, *, labels_kept: bool) -> Callable[[], list[float]]:
    """A round of our steps with a drafter of its own; returns their losses."""
    from training.batch import teach
    from training.step import Stepper

    stepper = Stepper(settings, copy.deepcopy(scene.drafter), scene.target)

    def run() -> list[float]:
        losses = []
        for pack, finals in zip(scene.packs, scene.finals, strict=True):
            for document, final in zip(pack.documents, finals, strict=True):
                make_labels = not labels_kept or document.teacher_T is None
                if make_labels or settings.labels == "kl":
                    document.normed_TH = scene.target.normed(final)
                if make_labels:
                    teach(document, scene.target)
            stepper.step([pack], LEARNING_RATE)
            losses.append(stepper.take_sums().loss)
        return losses

    return run


def theirs(scene: Scene, settings: Any) -> Callable[[], list[float]]:
    """A round of speculators' steps; packed inputs are ready."""
    import torch
    from speculators.losses import eager

    from tests.training.speculators_model import GivenAnchors, packed_inputs, speculators_model, trainable
    from training.step import draw_pack

    model = speculators_model(scene.drafter, scene.target)
    parameters = list(trainable(model).values())
    groups = [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": settings.weight_decay},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=LEARNING_RATE)
    inputs = [
        packed_inputs(pack.documents, finals, draw_pack(settings, pack), BLOCK)
        for pack, finals in zip(scene.packs, scene.finals, strict=True)
    ]
    how = {
        "loss_config": {"loss": (eager.kl_div_loss if settings.labels == "kl" else eager.ce_loss, 1.0)},
        "gamma": settings.gamma,
        "per_position_loss_weight": "dpace" if settings.loss_weights == "d_pace" else "fixed-exp-decay",
        "dpace_alpha": settings.d_pace_alpha,
    }

    def run() -> list[float]:
        losses = []
        for one in inputs:
            optimizer.zero_grad(set_to_none=True)
            with GivenAnchors(one.anchors):
                _, loss, _ = model(**one.tensors, max_anchors=len(one.anchors), **how)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(parameters, CLIP)
            optimizer.step()
            losses.append(loss.item())
        return losses

    return run


def case(labels: str, loss_weights: str, rounds: int, packs: int) -> bool:
    """One loss, all rounds; whether ours is fast enough."""
    scene = make_scene(packs)
    settings = settings_of(labels, loss_weights)
    makers: dict[str, Callable[[], Callable[[], list[float]]]] = {
        "ours": lambda: ours(scene, settings, labels_kept=False),
        "theirs": lambda: theirs(scene, settings),
        "labels kept": lambda: ours(scene, settings, labels_kept=True),
    }
    seconds: dict[str, list[float]] = {name: [] for name in makers}
    names = list(makers)
    for number in range(-1, rounds):  # the first warms up, and is not counted
        losses: dict[str, Sequence[float]] = {}
        for name in names[number % len(names) :] + names[: number % len(names)]:
            run = makers[name]()
            began = time.perf_counter()
            losses[name] = run()
            if number >= 0:
                seconds[name].append(time.perf_counter() - began)
        check_equal(losses)
    print(f"labels {labels}, weights {loss_weights}: {packs} steps of {scene.tokens / packs:,.0f} tokens a round")
    for name, times in seconds.items():
        print(f"  {name:12} {scene.tokens / median(times):8,.0f} tokens/s")
    kept = say("labels kept", seconds["theirs"], seconds["labels kept"])
    return say("ours", seconds["theirs"], seconds["ours"]) and kept


def check_equal(losses: dict[str, Sequence[float]]) -> None:
    """SystemExit if two ways did not compute the same."""
    for name, own in losses.items():
        for step, (one, wanted) in enumerate(zip(own, losses["theirs"], strict=True)):
            if abs(one - wanted) > SAME * abs(wanted):
                raise SystemExit(f"step {step}: the loss is {one} ({name}), speculators' is {wanted}: not comparable")


def say(name: str, slow: Sequence[float], fast: Sequence[float]) -> bool:
    """The median of the ratios of all rounds, with its spread."""
    ratios = [a / b for a, b in zip(slow, fast, strict=True)]
    spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
    print(f"  tokens/s, {name} / theirs: median {median(ratios):.2f} ({spread}), wanted at least {WANTED}", flush=True)
    return median(ratios) >= WANTED


if __name__ == "__main__":
    main()
