"""Acceptance length as serving sees it: the sequential walk of a greedy decoder over recorded answers.

The first anchor is the first generated token, with the prompt's states as context. A draft accepts the leading
slots that equal the answer; the walk goes on at the anchor + accepted + 1 (the bonus token), until the last
token is out. tau = 1 + accepted / drafts, from raw sums, so that rows and categories pool as vLLM's counters
do. The mean over *all* anchors is another number (`anchors`) and predicts no serving.

The end, as vLLM 0.32 counts it (v1/core/sched/scheduler.py, update_from_output): a draft is counted with all
its accepted tokens *before* the answer is cut at its end token or max_tokens, and drafts are as long near
max_tokens as elsewhere. Tokens behind the recorded end can therefore be accepted there. Here the first of
them is known from the final state of the last token (the target's arg max); the rest is known only if the
caller gives `tail`. What is unknown counts as not accepted: the walk is a lower bound, at most one draft a row
is concerned, and `open_drafts` counts those that matched all that is known. A longer guess would reward
drafters for tokens that nobody serves. Exact on greedy rows; on sampled rows it asks for the sampled tokens.

Shapes: R rows (documents), T tokens, A anchors.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any

import torch

from corpus.errors import UserError
from training.anchors import candidates, draw_anchors
from training.batch import Document, make_batch
from training.dflash import ContextKeys, Drafter, block_tokens
from training.frozen import FrozenTarget
from training.masks import visibility_of_blocks
from training.pack import pack
from training.tree import accepted_depth

LOGIT_ROWS = 256
"""Slots whose logits exist at once."""


@dataclass(frozen=True)
class Acceptance:
    """Raw sums of one row or of many."""

    drafts: int = 0
    accepted: int = 0
    rows: int = 0
    open_drafts: int = 0
    """Drafts that matched everything known and reached beyond it."""
    drafts_sq: int = 0
    """Sum over rows of drafts squared; with the next two an interval follows, rows being clusters."""
    accepted_sq: int = 0
    cross: int = 0
    """Sum over rows of drafts times accepted."""

    @classmethod
    def of_row(cls, drafts: int, accepted: int, open_drafts: int = 0) -> Acceptance:
        """The sums of one whole row."""
        return cls(drafts, accepted, 1, open_drafts, drafts**2, accepted**2, drafts * accepted)

    @property
    def acceptance_length(self) -> float:
        """tau, the bonus token included; 1.0 without drafts."""
        return 1.0 + self.accepted / self.drafts if self.drafts else 1.0

    def __add__(self, other: Acceptance) -> Acceptance:
        return Acceptance(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))


def pooled(results: Iterable[tuple[str, Acceptance]]) -> dict[str, Acceptance]:
    """Sums by category."""
    sums: dict[str, Acceptance] = defaultdict(Acceptance)
    for category, one in results:
        sums[category] = sums[category] + one
    return dict(sums)


def known_tokens(document: Document, tail: Sequence[int] = ()) -> list[int]:
    """The row's tokens and what is known of those behind its end."""
    tokens = document.input_ids_T.tolist()
    if tail:
        return [*tokens, *tail]
    after = -1 if document.teacher_T is None else int(document.teacher_T[-1])
    return [*tokens, after] if after >= 0 else list(tokens)


def count_accepted(drafted: Sequence[int], known: Sequence[int]) -> tuple[int, bool]:
    """(leading drafted tokens that equal the known ones, whether all known ones matched before the block's end)."""
    accepted = 0
    for token, wanted in zip(drafted, known, strict=False):
        if token != wanted:
            return accepted, False
        accepted += 1
    return accepted, accepted < len(drafted)


def walk(
    drafter: Drafter,
    target: FrozenTarget,
    documents: Sequence[Document],
    *,
    tokens_per_batch: int = 4096,
    device: str = "cpu",
    tails: Mapping[str, Sequence[int]] | None = None,
    tree_size: int | None = None,
) -> list[Acceptance]:
    """The sequential walk of each document, in order.

    Args:
        tails: tokens behind the end, by response id.
        tree_size: verify a tree of so many drafts at each step (see tree) in place of the one most probable path.

    Raises:
        UserError: the drafter's output is no number somewhere.
    """
    counts = [[0, 0, 0] for _ in documents]
    for rows in pack([len(d) for d in documents], range(len(documents)), tokens_per_batch):
        part = [documents[row] for row in rows]
        known = [known_tokens(d, (tails or {}).get(d.response_id, ())) for d in part]
        blocks = _Blocks(drafter, target, part, device)
        places = {i: first for i, d in enumerate(part) if (first := _first_generated(d)) is not None}
        while places := {i: p for i, p in places.items() if p < len(part[i]) - 1}:
            now = list(places.items())
            behind = [known[i][place + 1 :] for i, place in now]
            for (i, place), (accepted, opened) in zip(now, blocks.verify(now, behind, tree_size), strict=True):
                own = counts[rows[i]]
                own[0], own[1], own[2] = own[0] + 1, own[1] + accepted, own[2] + opened
                places[i] = place + accepted + 1
    return [Acceptance.of_row(*own) for own in counts]


def over_anchors(
    drafter: Drafter,
    target: FrozenTarget,
    documents: Sequence[Document],
    *,
    anchors_per_document: int = 512,
    seed: int = 0,
    tokens_per_batch: int = 4096,
    device: str = "cpu",
) -> list[Acceptance]:
    """Accepted run at every anchor of each document (a seeded sample above `anchors_per_document`).

    Labels end where the answer does, as in training: no token behind the end counts.
    """
    counts = [[0, 0] for _ in documents]
    for rows in pack([len(d) for d in documents], range(len(documents)), tokens_per_batch):
        part = [documents[row] for row in rows]
        blocks = _Blocks(drafter, target, part, device)
        places = [
            (i, anchor)
            for i, d in enumerate(part)
            for anchor in draw_anchors(
                d.loss_mask, anchors_per_document, seed=seed, epoch=-1, response_id=d.response_id
            )
        ]
        if not places:
            continue
        tokens = [d.input_ids_T.tolist() for d in part]
        for (i, place), drafted in zip(places, blocks.draft(places), strict=True):
            accepted, _ = count_accepted(drafted, tokens[i][place + 1 :])
            own = counts[rows[i]]
            own[0], own[1] = own[0] + 1, own[1] + accepted
    return [Acceptance.of_row(*own) for own in counts]


class _Blocks:
    """Documents of one pack with their context keys, ready to draft from any anchors."""

    def __init__(self, drafter: Drafter, target: FrozenTarget, documents: Sequence[Document], device: str) -> None:
        self.drafter, self.target, self.device = drafter, target, device
        shape = drafter.shape
        empty = make_batch(
            documents,
            [[] for _ in documents],
            block_size=shape.block_size,
            mask_token_id=shape.mask_token_id,
            labels="sampled",
            device=device,
        )
        self.position_T = empty.position_T
        self.document_T = empty.visibility.key_document_K[: len(empty.position_T)]
        self.tokens = [document.input_ids_T.tolist() for document in documents]
        self.response_ids = [document.response_id for document in documents]
        with torch.no_grad(), precision(device):
            self.context: ContextKeys = drafter.context(empty.states_TNH, empty.position_T)

    def draft(self, places: Sequence[tuple[int, int]]) -> list[list[int]]:
        """block_size - 1 tokens from each (document, anchor position)."""
        drafted = self.target.argmax(self._slots(places).to(self.target.head_VH.dtype))
        rows: list[list[int]] = drafted.unflatten(0, (len(places), -1)).tolist()
        return rows

    def verify(
        self, places: Sequence[tuple[int, int]], known: Sequence[Sequence[int]], tree_size: int | None
    ) -> list[tuple[int, bool]]:
        """(accepted tokens, whether all that is known matched) of one step from each place."""
        if tree_size is None:
            drafts = self.draft(places)
            return [count_accepted(drafted, wanted) for drafted, wanted in zip(drafts, known, strict=True)]
        logs, tokens = self.most_probable(places, tree_size)
        return [accepted_depth(*of_place, tree_size) for of_place in zip(logs, tokens, known, strict=True)]

    @torch.no_grad()
    def most_probable(
        self, places: Sequence[tuple[int, int]], count: int
    ) -> tuple[list[list[list[float]]], list[list[list[int]]]]:
        """(log-probabilities, token ids) by place and slot of the `count` most probable tokens, descending."""
        slots = self._slots(places)
        parts = []
        for part in slots.split(LOGIT_ROWS):
            log_probs = torch.log_softmax(self.target.draft_logits(part), -1)
            parts.append(log_probs.topk(min(count, log_probs.shape[-1]), dim=-1))
        logs, ids = (torch.cat(list(own)).unflatten(0, (len(places), -1)) for own in zip(*parts, strict=True))
        return logs.tolist(), ids.tolist()

    @torch.no_grad()
    def _slots(self, places: Sequence[tuple[int, int]]) -> Any:
        """The drafter's output [places * (block_size - 1), H] at all slots but the anchors."""
        shape = self.drafter.shape
        document_A = torch.tensor([i for i, _ in places], device=self.device)
        anchor_A = torch.tensor([place for _, place in places], device=self.device)
        tokens_A = torch.tensor([self.tokens[i][place] for i, place in places], device=self.device)
        visibility = visibility_of_blocks(self.document_T, self.position_T, document_A, anchor_A, shape.block_size)
        tokens_Q = block_tokens(tokens_A, shape.block_size, shape.mask_token_id)
        with precision(self.device):
            hidden_QH = self.drafter.draft(self.context, self.target.embed(tokens_Q), visibility)
        if not bool(torch.isfinite(hidden_QH).all()):  # an arg max over no numbers would be counted like any other
            raise UserError(
                f"held-out response {self._not_numbers(hidden_QH, places)}: the drafter's output is no number (NaN or "
                "infinite), so nothing was measured. Look at its states and at the drafter's weights."
            )
        return hidden_QH.unflatten(0, (len(places), shape.block_size))[:, 1:].flatten(0, 1)

    def _not_numbers(self, hidden_QH: Any, places: Sequence[tuple[int, int]]) -> str:
        """The row to blame: whose context has none (others of its pack may suffer from it), or the first slot's."""
        keys, values = self.context[0]
        well_T = torch.isfinite(keys).flatten(1).all(1) & torch.isfinite(values).flatten(1).all(1)
        if not bool(well_T.all()):
            return self.response_ids[int(self.document_T[~well_T][0])]
        of_place = torch.isfinite(hidden_QH).unflatten(0, (len(places), -1)).flatten(1).all(1).tolist()
        return self.response_ids[next(i for (i, _), well in zip(places, of_place, strict=True) if not well)]


def precision(device: str) -> torch.autocast:
    """bf16 autocast on a GPU, nothing on a CPU."""
    kind = "cpu" if device == "cpu" else "cuda"
    return torch.autocast(kind, dtype=torch.bfloat16, enabled=kind == "cuda")


def _first_generated(document: Document) -> int | None:
    """Position of the first token of the last generated span, None where it has no successor to draft."""
    possible = candidates(document.loss_mask)
    if not possible:
        return None
    first = possible[-1]
    while first > 0 and document.loss_mask[first - 1]:
        first -= 1
    return first
