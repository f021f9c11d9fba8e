"""Engines that wait instead of spinning: only where a worker of ours asked, and only when both ends are connected."""

from __future__ import annotations

import sys
from importlib.metadata import entry_points
from types import ModuleType
from typing import Any

import pytest

from generation import vllm_plugin

MODULE = "vllm.distributed.device_communicators.shm_broadcast"


class SpinCondition:
    """As vLLM's: each read that it is told of grants a second of spinning."""

    def __init__(self) -> None:
        self.told = 0

    def record_read(self) -> None:
        self.told += 1


@pytest.fixture
def condition(monkeypatch: pytest.MonkeyPatch) -> Any:
    """vLLM's class, in a module of its name."""
    made = type("SpinCondition", (SpinCondition,), {"record_read": SpinCondition.record_read})
    names = MODULE.split(".")
    for i in range(1, len(names) + 1):
        monkeypatch.setitem(sys.modules, ".".join(names[:i]), ModuleType(".".join(names[:i])))
    sys.modules[MODULE].SpinCondition = made  # type: ignore[attr-defined]
    return made


def test_nothing_changes_unless_a_worker_asked(condition: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(vllm_plugin.WAIT, raising=False)
    vllm_plugin.register()
    assert condition.record_read is SpinCondition.record_read


def test_after_the_first_reads_nobody_spins(condition: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(vllm_plugin.WAIT, "1")
    vllm_plugin.register()
    vllm_plugin.register()  # vLLM loads plugins more than once
    one, other = condition(), condition()
    for _ in range(3 * vllm_plugin.SETTLING_READS):
        one.record_read()
    other.record_read()
    assert (one.told, other.told) == (vllm_plugin.SETTLING_READS, 1)


def test_another_vllm_is_left_alone(condition: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(vllm_plugin.WAIT, "1")
    del condition.record_read
    del sys.modules[MODULE].SpinCondition  # type: ignore[attr-defined]
    vllm_plugin.register()


def test_vllm_finds_it() -> None:
    found = [point for point in entry_points(group="vllm.general_plugins") if point.name == "draftmill"]
    assert [point.load() for point in found] == [vllm_plugin.register]
