"""Engines that pause between two looks at their queue instead of spinning: only where a worker of ours asked."""

from __future__ import annotations

import sys
from importlib.metadata import entry_points
from types import ModuleType
from typing import Any

import pytest

from generation import vllm_plugin

MODULE = "vllm.distributed.device_communicators.shm_broadcast"


def yields() -> None:
    """As vLLM's."""


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Any:
    """vLLM's module, as far as it is looked at."""
    names = MODULE.split(".")
    for i in range(1, len(names) + 1):
        monkeypatch.setitem(sys.modules, ".".join(names[:i]), ModuleType(".".join(names[:i])))
    made: Any = sys.modules[MODULE]
    made.sched_yield = yields
    return made


def test_nothing_changes_unless_a_worker_asked(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(vllm_plugin.PAUSE, raising=False)
    vllm_plugin.register()
    assert module.sched_yield is yields


def test_it_sleeps_where_it_span(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setenv(vllm_plugin.PAUSE, "1")
    monkeypatch.setattr("time.sleep", slept.append)
    vllm_plugin.register()
    module.sched_yield()
    assert slept == [vllm_plugin.PAUSE_S]


def test_another_vllm_is_left_alone(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(vllm_plugin.PAUSE, "1")
    del module.sched_yield
    vllm_plugin.register()
    assert not hasattr(module, "sched_yield")


def test_vllm_finds_it() -> None:
    found = [point for point in entry_points(group="vllm.general_plugins") if point.name == "draftmill"]
    assert [point.load() for point in found] == [vllm_plugin.register]
