"""Placement: one engine a GPU, groups where model or manifest ask for them, and the reason where one is refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corpus.errors import UserError
from draftmill.placement import Placement, placed, placed_devices, placement_lines
from fleet.devices import GIB, Device, DeviceError
from fleet.topology import Topology, parse_topology
from generation.fit import Model
from tests.fleet import tables
from tests.generation.test_fit import LLAMA_8B, QWEN_27B, RTX_96

CARD = "NVIDIA RTX PRO 6000 Blackwell Server Edition"
PCIE = parse_topology(tables.PCIE_8, CARD, RTX_96)
PAIRS = parse_topology(tables.PAIRS_8, "NVIDIA A100 80GB PCIe", 80 * GIB)
SWITCHED = parse_topology(tables.NVSWITCH_8, "NVIDIA H100 80GB HBM3", 80 * GIB)
MODEL = Model(QWEN_27B, 55_000_000_000)
TOO_LARGE = Model(QWEN_27B, 145_000_000_000)


def place(
    topology: Topology, model: Model = MODEL, extra: dict[str, Any] | None = None, force: bool = False
) -> Placement:
    return placed(topology.devices, topology, model, extra or {}, force)


def labels(placement: Placement) -> list[str]:
    return [device.label for device in placement.devices]


@pytest.mark.parametrize("topology", [PCIE, PAIRS, SWITCHED])
def test_one_engine_a_gpu_whatever_the_links(topology: Topology) -> None:
    placement = place(topology)
    assert placement.devices == topology.devices
    assert placement.notes == ()


def test_the_first_lines_of_a_run() -> None:
    assert place(PCIE).lines() == [
        "8 engines on cuda:0 to cuda:7 (NVIDIA RTX PRO 6000 Blackwell, 96 GiB each)",
        "8 GPUs, PCIe only: one engine a GPU; tensor parallelism would wait on PCIe",
        "an engine: 55.0 GB of weights, 36.3 GB for the KV cache",
        "64 KiB a token and 154 MB of state a sequence",
        "about 147 sequences at once, of 1,024 tokens each",
    ]


def test_tensor_parallelism_over_pcie_is_refused_or_forced() -> None:
    extra = {"tensor_parallel_size": 2}
    with pytest.raises(DeviceError, match=r"^tensor parallelism of 2: .* 8 engines, one a GPU") as refused:
        place(PCIE, extra=extra)
    assert len(str(refused.value).splitlines()) == 1
    forced = place(PCIE, extra=extra, force=True)
    assert labels(forced) == ["cuda:0+1", "cuda:2+3", "cuda:4+5", "cuda:6+7"]
    assert "expect well under 2 times" in forced.notes[0]
    assert labels(place(PAIRS, extra=extra)) == labels(forced)
    with pytest.raises(DeviceError, match="NVLink between every two"):
        place(PAIRS, extra={"tensor_parallel_size": 4})


def test_a_model_that_fits_no_single_gpu_gets_groups_unasked_and_asked() -> None:
    for extra in ({}, {"tensor_parallel_size": 2}):
        placement = place(PCIE, TOO_LARGE, extra)
        assert labels(placement) == ["cuda:0+1", "cuda:2+3", "cuda:4+5", "cuda:6+7"]
        assert any("two all-reduces" in note for note in placement.notes)
        assert placement.fit.fits
    with pytest.raises(DeviceError, match="NVLink"):  # four where two hold it is a wish again
        place(PCIE, TOO_LARGE, {"tensor_parallel_size": 4})
    with pytest.raises(DeviceError, match="The smallest that holds it is 8"):
        place(PCIE, Model(QWEN_27B, 500_000_000_000), {"tensor_parallel_size": 2})
    with pytest.raises(DeviceError, match="fits no group"):
        place(PCIE, Model(QWEN_27B, 900_000_000_000))


def test_one_gpu_an_engine_can_be_insisted_on() -> None:
    placement = place(SWITCHED, TOO_LARGE, {"tensor_parallel_size": 1})
    assert placement.devices == SWITCHED.devices
    assert not placement.fit.fits


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        ({"tensor_parallel_size": "two"}, "whole number"),
        ({"tensor_parallel_size": True}, "whole number"),
        ({"tensor_parallel_size": 0}, "whole number"),
        ({"tensor_parallel_size": 3}, "Choose of 1, 2, 4, 8"),
        ({"pipeline_parallel_size": 2}, "one engine a GPU itself"),
        ({"data_parallel_size": 8}, "one engine a GPU itself"),
    ],
)
def test_what_engine_extra_may_not_ask(extra: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said) as refused:
        place(SWITCHED, extra=extra)
    assert str(refused.value).startswith("engine.extra.")
    assert len(str(refused.value).splitlines()) == 1


def test_cores_have_an_engine_each() -> None:
    cores = (Device("cpu", 0, "EPYC", 12 * GIB), Device("cpu", 1, "EPYC", 12 * GIB))
    topology = tables.unlinked(cores)
    assert place(topology, Model(LLAMA_8B, GIB)).lines()[:2] == [
        "2 engines on cpu:0, cpu:1 (EPYC, 12 GiB each)",
        "an engine: 1.1 GB of weights, 1.1 GB for the KV cache",
    ]
    with pytest.raises(DeviceError, match="each core has its own engine"):
        place(topology, Model(LLAMA_8B, GIB), {"tensor_parallel_size": 2}, force=True)


def test_force_without_anything_to_force_is_said() -> None:
    (note,) = place(PCIE, force=True).notes
    assert "nothing to force" in note


def test_slices_keep_an_engine_each_and_a_model_too_large_for_one_is_refused() -> None:
    slices = tuple(Device("cuda", at, "A100 MIG 3g.40gb", 40 * GIB, f"MIG-{at}") for at in range(2))
    topology = tables.unlinked(slices)
    assert place(topology, Model(LLAMA_8B, 16_000_000_000)).devices == slices
    with pytest.raises(DeviceError, match="MIG slices cannot be grouped"):
        place(topology)


def test_what_is_unknown_is_placed_and_said() -> None:
    topology = tables.unlinked((Device("cuda", 0, "NVIDIA GB10"),))
    placement = place(topology)
    assert placement.devices == topology.devices
    assert placement.lines()[0] == "1 engine on cuda:0 (NVIDIA GB10, memory unknown)"
    assert "KV room unknown" in placement.lines()[2]


@given(
    st.sampled_from([PCIE, PAIRS, SWITCHED]),
    st.integers(1, 8),
    st.integers(1, 600),
    st.sampled_from([None, 1, 2, 4, 8]),
    st.booleans(),
)
def test_every_placement_holds_the_model_and_uses_a_device_once(
    topology: Topology, count: int, weights_gb: int, asked: int | None, force: bool
) -> None:
    devices = topology.devices[:count]
    part = Topology(devices, tuple(row[:count] for row in topology.links[:count]))
    model = Model(QWEN_27B, weights_gb * 10**9)
    extra = {} if asked is None else {"tensor_parallel_size": asked}
    try:
        chosen, notes = placed_devices(devices, part, model, extra, force)
    except DeviceError as error:
        assert len(str(error).splitlines()) == 1
        return
    used = [member for device in chosen for member in device.members or (device,)]
    assert len(set(used)) == len(used)
    assert set(used) <= set(devices)
    sizes = {len(device.members or (device,)) for device in chosen}
    assert len(sizes) == 1
    assert asked is None or sizes == {asked}
    if asked != 1:
        assert all(model.fit_on(device).fits for device in chosen)
    if len(used) < count:
        assert any("left over" in note for note in notes)
    assert all(len(line) <= 80 for line in placement_lines(chosen, part, model.fit_on(chosen[0])))
