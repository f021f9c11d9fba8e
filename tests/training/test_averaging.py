from __future__ import annotations

import itertools
import multiprocessing
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from training.averaging import Alone, GlooTeam, Share, joined
from training.progress import left_to_do, with_done

WEIGHTS = [(3.0, 1.0), (0.0, 2.0), (0.0, 0.0)]
"""Of two members, by round; the last round changes nothing."""


def member(rank: int, meeting_file: str, answers: Any) -> None:
    """Rounds with other parameters in each member; in its own process."""
    import os

    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    team = GlooTeam(rank, 2, meeting_file, every=5)
    parameter = torch.nn.Parameter(torch.tensor([1.0, 2.0]) * (rank + 1))
    optimizer = torch.optim.AdamW([parameter])
    seen = []
    for number, weights in enumerate(WEIGHTS):
        if weights[rank]:
            parameter.grad = torch.full((2,), float(rank + 1))
            optimizer.step()
        before = parameter.detach().clone()
        share = Share(weights[rank], (10 * number + rank,), (("math", rank, 2),), ended=number == len(WEIGHTS) - 1)
        result = team.join([parameter], share)
        if number == 0:
            moments = optimizer.state[parameter]["exp_avg"].clone()
            team.average_moments(optimizer)
            seen.append((moments.tolist(), optimizer.state[parameter]["exp_avg"].tolist()))
        seen.append((before.tolist(), parameter.tolist(), result))
    team.leave()
    answers.put((rank, seen))  # no tensors: they would lie in this process' memory, which ends


def test_members_become_their_weighted_mean(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    answers: Any = context.Queue()
    processes = [context.Process(target=member, args=(rank, str(tmp_path / "meet"), answers)) for rank in range(2)]
    for process in processes:
        process.start()
    said = dict(answers.get(timeout=600) for _ in processes)
    for process in processes:
        process.join()
        assert process.exitcode == 0
    (moments, one), (others, two) = said[0].pop(0), said[1].pop(0)
    assert one == two == pytest.approx([0.75 * a + 0.25 * b for a, b in zip(moments, others, strict=True)])
    for (before, after, result), (other_before, other_after, other_result), weights in zip(
        said[0], said[1], WEIGHTS, strict=True
    ):
        assert after == other_after
        assert result == other_result
        assert result.weight == sum(weights)
        if sum(weights):
            pairs = zip(before, other_before, strict=True)
            assert after == pytest.approx([(weights[0] * a + weights[1] * b) / sum(weights) for a, b in pairs])
        else:
            assert after == before
    assert [result.done for *_, result in said[0]] == [(0, 1), (10, 11), (20, 21)]
    assert [result.ended for *_, result in said[0]] == [False, False, True]
    assert said[0][0][2].agreement == {"math": (1, 4)}


def test_alone_a_round_is_what_one_said() -> None:
    parameter = torch.ones(2)
    share = Share(4.0, (1, 2), (("math", 1, 2),), ended=True)
    assert Alone().join([parameter], share) == joined([share])
    assert torch.equal(parameter, torch.ones(2))


@given(st.sets(st.integers(0, 60)), st.integers(1, 60), st.randoms())
def test_ranges_hold_each_pack_once(numbers: set[int], packs: int, random: Any) -> None:
    order = sorted(numbers)
    random.shuffle(order)
    done: list[list[int]] = []
    for start in range(0, len(order), 7):
        done = with_done(done, order[start : start + 7])
    assert [n for start, end in done for n in range(start, end)] == sorted(numbers)
    assert all(one[1] < two[0] for one, two in itertools.pairwise(done))
    inside = [[start, min(end, packs)] for start, end in done if start < packs]
    assert list(left_to_do(inside, packs)) == [n for n in range(packs) if n not in numbers]


def test_a_pack_that_is_trained_twice_is_an_error() -> None:
    with pytest.raises(ValueError, match="pack 4 was trained twice"):
        with_done([[0, 5]], [4])
