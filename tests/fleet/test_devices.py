"""Devices: choosing is a function of the specification and what was found; nothing is guessed."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.devices import (
    CPU_DEVICE_BYTES,
    Device,
    DeviceError,
    choose_devices,
    cores_that_fit,
    find_cores,
    find_devices,
    gpus_in,
    group_of,
    visible_gpus,
)

machines = st.builds(
    lambda kind, count: tuple(Device(kind, index) for index in range(count)),
    st.sampled_from(["cpu", "cuda"]),
    st.integers(1, 9),
)


@given(machines)
def test_all_and_none_mean_every_device(found: tuple[Device, ...]) -> None:
    assert choose_devices(None, found) == choose_devices("all", found) == found


@given(machines, st.data())
def test_labels_give_those_devices_in_their_order(found: tuple[Device, ...], data: st.DataObject) -> None:
    chosen = data.draw(st.lists(st.sampled_from(found), min_size=1, unique=True))
    assert choose_devices(",".join(device.label for device in chosen), found) == tuple(chosen)


@given(machines, st.data())
def test_a_range_is_its_labels(found: tuple[Device, ...], data: st.DataObject) -> None:
    first = data.draw(st.integers(0, len(found) - 1))
    last = data.draw(st.integers(first, len(found) - 1))
    spec = f"{found[0].kind}:{first}-{last}"
    assert choose_devices(spec, found) == found[first : last + 1]


@given(machines, st.integers(-2, 12))
def test_a_number_is_that_many_or_an_error(found: tuple[Device, ...], count: int) -> None:
    if 1 <= count <= len(found):
        assert choose_devices(str(count), found) == found[:count]
    else:
        with pytest.raises(DeviceError):
            choose_devices(str(count), found)


@given(machines, st.text(max_size=12))
def test_any_text_is_devices_or_one_line(found: tuple[Device, ...], spec: str) -> None:
    try:
        chosen = choose_devices(spec, found)
    except DeviceError as error:
        assert len(str(error).splitlines()) == 1
        assert "devices: " in str(error)
    else:
        assert chosen
        assert set(chosen) <= set(found)


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("cuda:9", "this machine has cuda:0, cuda:1"),
        ("cuda:0,cuda:0", "twice"),
        ("cuda:1-0", "not understood"),
        ("3", "this machine has 2"),
        ("", "not understood"),
    ],
)
def test_an_impossible_spec_says_what_is_there(spec: str, said: str) -> None:
    with pytest.raises(DeviceError, match=said):
        choose_devices(spec, (Device("cuda", 0), Device("cuda", 1)))


def test_no_device_is_an_error_too() -> None:
    with pytest.raises(DeviceError, match="none was found"):
        choose_devices(None, ())


def test_a_gpu_is_alone_in_its_process() -> None:
    device = Device("cuda", 1, visible="GPU-8f3c")
    assert device.env({})["CUDA_VISIBLE_DEVICES"] == "GPU-8f3c"
    assert device.env({})["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert (device.label, device.torch_name) == ("cuda:1", "cuda:0")
    assert Device("cuda", 3).env({})["CUDA_VISIBLE_DEVICES"] == "3"


def test_a_group_is_one_device_whose_process_sees_its_members_in_order() -> None:
    first, second = Device("cuda", 2, "A100", 80, visible="GPU-b"), Device("cuda", 0, "A100", 40)
    group = group_of([first, second])
    assert group.env({})["CUDA_VISIBLE_DEVICES"] == "GPU-b,0"
    assert (group.label, group.torch_name, group.kind, group.index) == ("cuda:2+0", "cuda:0", "cuda", 2)
    assert group.memory_bytes == 80  # an engine is split evenly: twice the smaller
    assert (gpus_in(group.label), gpus_in("cuda:3"), gpus_in("cpu:0")) == (2, 1, 1)
    assert group != first
    assert not group.is_slice


def test_a_core_is_bound_and_an_outer_kv_space_is_kept() -> None:
    env = Device("cpu", 1).env({"VLLM_CPU_KVCACHE_SPACE": "7"})
    assert env == {
        "VLLM_CPU_OMP_THREADS_BIND": "1",
        "VLLM_CPU_KVCACHE_SPACE": "7",
        "OMP_NUM_THREADS": "1",
    }
    assert Device("cpu", 0).env({})["VLLM_CPU_KVCACHE_SPACE"] == "1"


@pytest.mark.parametrize(
    ("variable", "seen"),
    [
        (None, ("0", "1", "2", "3")),
        ("", ()),
        ("-1", ()),
        ("2,0", ("2", "0")),
        ("1, 7, 2", ("1",)),
        ("GPU-aa,GPU-bb", ("GPU-aa", "GPU-bb")),
        ("MIG-aa", ("MIG-aa",)),
        ("1,1", ("1",)),
    ],
)
def test_visible_gpus_are_read_as_cuda_reads_them(variable: str | None, seen: tuple[str, ...]) -> None:
    assert visible_gpus(variable, 4) == seen


@given(st.lists(st.integers(0, 200), min_size=1, unique=True), st.integers(0, 400))
def test_cores_are_capped_by_memory(cores: list[int], gib: int) -> None:
    fitting = cores_that_fit(cores, gib << 30)
    assert fitting == tuple(cores[: len(fitting)])
    assert len(fitting) == max(1, min(len(cores), (gib << 30) // CPU_DEVICE_BYTES))


def test_this_machine_has_devices() -> None:
    assert {device.index for device in find_cores()} <= os.sched_getaffinity(0)
    assert find_devices()
