"""What a live drafter does with a pack whose states are no numbers: it names the row and steps on nothing."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from corpus.errors import UserError
from corpus.packs import PackMeta, layout_of
from tests.training.test_loop import item  # noqa: F401  # the fixture
from training.frozen import load_frozen
from training.live_worker import LiveFeed
from training.messages import TrainItem

LENGTHS = [4, 6, 5]


class OneBatch:
    """A port with one pack."""

    stopped = False

    def __init__(self, states: Any) -> None:
        meta = PackMeta(
            pack=7, response_ids=["a", "b", "c"], categories=["x"] * 3, greedy=[True] * 3, lengths=LENGTHS,
            layers=states.shape[1], hidden=states.shape[2], dtype="float32",
        )  # fmt: skip
        layout = layout_of(meta)
        memory = bytearray(layout.size_bytes)
        tensors = layout.views(memoryview(memory))
        tensors.states_TLH.copy_(states)
        tensors.input_ids_T.fill_(5)
        tensors.loss_mask_T.fill_(1)
        self.released = 0
        self._batch = SimpleNamespace(meta=meta.encode(), view=memoryview(memory), sequence=0, release=self._release)

    def take(self) -> Any:
        return self._batch

    def _release(self) -> None:
        self.released += 1


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize(("token", "name"), [(0, "a"), (4, "b"), (14, "c")])
@pytest.mark.parametrize("layer", [0, 3])
def test_states_that_are_no_numbers_stop_it_and_name_the_row(
    item: TrainItem, token: int, name: str, layer: int, value: float  # noqa: F811
) -> None:  # fmt: skip
    target = load_frozen(item.target_dir)
    states = torch.randn(sum(LENGTHS), len(item.layer_ids) + 1, target.norm_H.shape[0])
    port = OneBatch(states)
    assert len(LiveFeed(cast(Any, port), item, target, 0).take(1)[1][0].documents) == 3
    states[token, layer, 3] = value
    port = OneBatch(states)
    with pytest.raises(UserError, match=rf"the states of response {name} are no numbers .* 1 of 3 rows of pack 7\."):
        LiveFeed(cast(Any, port), item, target, 0).take(1)
    assert port.released == 1
