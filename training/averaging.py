"""Drafters that train side by side become one: rounds over gloo, on the CPU, trainable parameters only.

Every member joins every round. Parameters are averaged by the tokens that each has been supervised on since the last
round; a member whose data ended joins with weight 0 until all have ended, so no round waits for somebody who is gone.
Optimiser moments stay each member's own between checkpoints and are averaged in the same way at a checkpoint: what is
saved is one drafter, and any number of drafters may go on from it. One tensor at a time passes through host memory,
so a round needs no more memory of a GPU than a step does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol

import torch
from torch import distributed

ROUND_TIMEOUT = timedelta(hours=12)
"""A member that hangs is found by its missing beats, not here."""


@dataclass(frozen=True)
class Round:
    """What all members know after a round."""

    done: tuple[int, ...]
    """Packs that were trained since the last round, by all."""
    weight: float
    """Tokens supervised since the last round, by all."""
    agreement: dict[str, tuple[int, int]]
    """By category: sampled tokens that were the target's arg max, of how many, since the last round, by all."""
    ended: bool
    """Every member's data has ended."""


@dataclass(frozen=True)
class Share:
    """What one member has done since the last round."""

    weight: float = 0.0
    done: tuple[int, ...] = ()
    agreement: tuple[tuple[str, int, int], ...] = ()
    ended: bool = False


def joined(shares: Sequence[Share]) -> Round:
    """The round that members' shares make."""
    agreement: dict[str, tuple[int, int]] = {}
    for share in shares:
        for category, agreed, of in share.agreement:
            before = agreement.get(category, (0, 0))
            agreement[category] = (before[0] + agreed, before[1] + of)
    return Round(
        tuple(number for share in shares for number in share.done),
        sum(share.weight for share in shares),
        agreement,
        all(share.ended for share in shares),
    )


class Team(Protocol):
    """The drafters of one run."""

    rank: int
    every: int
    """Steps of a member between rounds."""

    def join(self, parameters: Sequence[Any], own: Share) -> Round:
        """Take part in a round; the parameters are averaged in place."""

    def average_moments(self, optimizer: Any) -> None:
        """Average the optimiser's moments by the last round's weights, in place."""


class Alone:
    """A team of one: nothing is averaged, every step is a round."""

    rank = 0
    every = 1

    def join(self, parameters: Sequence[Any], own: Share) -> Round:
        """Nothing to wait for."""
        del parameters
        return joined([own])

    def average_moments(self, optimizer: Any) -> None:
        """They are one drafter's already."""


class GlooTeam:
    """Member `rank` of `size`, met at a file that all of them can reach.

    Raises:
        RuntimeError: from any call, if a member is gone.
    """

    def __init__(self, rank: int, size: int, meeting_file: str, every: int) -> None:
        self.rank, self.size, self.every = rank, size, every
        self._share = 1.0 / size
        self._store = distributed.FileStore(meeting_file, size)
        distributed.init_process_group("gloo", store=self._store, rank=rank, world_size=size, timeout=ROUND_TIMEOUT)

    def join(self, parameters: Sequence[Any], own: Share) -> Round:
        """One round. With weight 0 everywhere the parameters stay: they have been equal since the last round."""
        said: list[Any] = [None] * self.size
        distributed.all_gather_object(said, own)
        result = joined(said)
        if result.weight:
            self._share = own.weight / result.weight
            average(parameters, self._share)
        return result

    def average_moments(self, optimizer: Any) -> None:
        """Moments by the last round's shares. A member that has made no step yet has none and gives zeros."""
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                state = optimizer.state[parameter]
                for key in ("exp_avg", "exp_avg_sq"):
                    state.setdefault(key, torch.zeros_like(parameter))
                # AdamW's bias correction counts the steps that the moments have seen
                steps = torch.tensor([float(state.get("step", 0.0)) * self._share])
                distributed.all_reduce(steps)
                state["step"] = steps[0].round()
                average((state["exp_avg"], state["exp_avg_sq"]), self._share)

    def leave(self) -> None:
        """After the last round, once all others are through it too: a connection that closes would end theirs."""
        self._store.set(f"through-{self.rank}", "1")
        self._store.wait([f"through-{rank}" for rank in range(self.size)], ROUND_TIMEOUT)
        distributed.destroy_process_group()


@torch.no_grad()
def average(tensors: Iterable[Any], share: float) -> None:
    """Each tensor becomes the sum over members of share * tensor, in place; one at a time, in float32 on the CPU."""
    for tensor in tensors:
        own = tensor.detach().to("cpu", torch.float32)
        # a share of 0 must also silence what is no number
        part = own * share if share else torch.zeros_like(own)
        distributed.all_reduce(part)
        tensor.copy_(part)
