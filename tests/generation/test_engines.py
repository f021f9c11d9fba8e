"""What a run knows of its engines: how each is started, when it starves, what it is told when memory runs out."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.devices import Device
from generation.diversity import SELF_TEST_ANSWERS, SELF_TEST_TOKENS
from generation.engine import AUTO_MAX_NUM_SEQS
from generation.engines import SEEDS_PER_START, STARVED_SAMPLES, Engines
from generation.messages import (
    EngineConfig,
    EngineEvent,
    EngineOutOfMemory,
    EngineReady,
    EngineSample,
    decode_config,
    encode,
)
from generation.progress import Tally

World = Any
DEVICES = [Device("cuda", 0), Device("cuda", 1)]


class Log:
    """A run's log that keeps what it is told."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str]] = []
        self.samples: list[tuple[str, str, dict[str, Any]]] = []

    def event(self, kind: str, message: str) -> None:
        self.events.append((kind, message))

    def sample(self, engine: str, device: str, values: dict[str, Any]) -> None:
        self.samples.append((engine, device, values))


class Crew:
    """Engines of two devices, and what they said."""

    def __init__(self, world: World, fitting: int | None = None, **engine: Any) -> None:
        self.log, self.tally = Log(), Tally("run", "build", 0.0)
        log: Any = self.log
        self.engines = Engines(world.manifest(engine=engine), world.target(), log, self.tally)
        self.engines.expect(DEVICES, fitting)

    def start(self, device: Device) -> EngineConfig:
        return decode_config(self.engines.config_for(device))

    def say(self, device: Device, event: EngineEvent) -> None:
        self.engines.heard(device, encode(event))

    def sample(self, device: Device, running: int, waiting: int, dry: bool = False) -> None:
        self.say(device, EngineSample(sampled_at=1.0, running=running, waiting=waiting, tokens_per_s=2.0, kv_use=0.5))
        self.engines.look(dry)


def ready(max_num_seqs: int = 4, self_test: list[list[int]] | None = None) -> EngineReady:
    return EngineReady(
        engine="e 1", engine_number=0, seed=0, capacity=max_num_seqs + 4, max_num_seqs=max_num_seqs, max_model_len=64,
        kv_tokens=None, self_test=self_test or [],
    )  # fmt: skip


def test_no_two_engines_and_no_two_starts_have_one_seed(world: World) -> None:
    crew = Crew(world, seed=7)
    seeds = [(one.seed + one.engine_number) for _ in range(5) for one in map(crew.start, DEVICES)]
    assert seeds == [7 + SEEDS_PER_START * start + number for start in range(5) for number in (0, 1)]


@pytest.mark.parametrize(
    ("engine", "fitting", "expected"),
    [
        ({}, None, AUTO_MAX_NUM_SEQS["cuda"]),
        ({}, 48, 48),
        ({"max_num_seqs": 12}, 48, 12),
    ],
)
def test_what_the_manifest_says_goes_before_what_fits(
    world: World, engine: dict[str, Any], fitting: int | None, expected: int
) -> None:
    assert Crew(world, fitting, **engine).start(DEVICES[0]).max_num_seqs == expected


def test_an_engine_that_ran_out_of_memory_starts_again_with_half_and_the_others_stay(world: World) -> None:
    crew = Crew(world, max_num_seqs=10)
    sizes = []
    for _ in range(6):
        size = crew.start(DEVICES[0]).max_num_seqs
        assert size is not None
        sizes.append(size)
        crew.say(DEVICES[0], EngineOutOfMemory(max_num_seqs=size))
    assert sizes == [10, 5, 2, 1, 1, 1]
    assert crew.start(DEVICES[1]).max_num_seqs == 10
    kinds = [kind for kind, _ in crew.log.events]
    assert kinds == ["engine_out_of_memory"] * 6
    assert [message.split(" with ")[1] for _, message in crew.log.events[:3]] == [
        "5 sequences", "2 sequences", "1 sequences",
    ]  # fmt: skip
    (warning,) = crew.engines.warnings()
    assert "cuda:0 ran out of memory" in warning
    assert "engine.max_num_seqs" in warning


def test_an_engine_with_fewer_than_it_runs_while_work_is_left_is_starved(world: World) -> None:
    crew = Crew(world)
    for device in DEVICES:
        crew.say(device, ready())
    assert crew.engines.capacity == 16
    for _ in range(STARVED_SAMPLES):
        crew.sample(DEVICES[0], 3, 0)
        crew.sample(DEVICES[1], 4, 2)
    starved = [message for kind, message in crew.log.events if kind == "engine_starved"]
    assert starved == ["cuda:0: 3 in flight, 4 fit, and work is left"]
    (warning,) = crew.engines.warnings()
    assert "cuda:0 had fewer answers in flight than it can run for 100% of the run" in warning
    crew.sample(DEVICES[0], 3, 0)
    assert len([kind for kind, _ in crew.log.events if kind == "engine_starved"]) == 1  # said once, not every sample
    assert [values["running"] for _, device, values in crew.log.samples if device == "cuda:0"] == [3] * 4


def test_an_engine_has_a_row_from_the_first_moment_and_again_while_it_is_started_anew(world: World) -> None:
    crew = Crew(world)
    rows = crew.tally.engines
    assert {label: one.starting for label, one in rows.items()} == {"cuda:0": True, "cuda:1": True}
    crew.start(DEVICES[0])
    crew.say(DEVICES[0], ready())
    crew.sample(DEVICES[0], 4, 2)
    assert (rows["cuda:0"].starting, rows["cuda:0"].running) == (False, 4)
    crew.start(DEVICES[0])
    assert (rows["cuda:0"].starting, rows["cuda:0"].running) == (True, 0)
    assert rows["cuda:0"].heard_at > 0


@pytest.mark.parametrize("full", [(3, 1), (4, 0), (4, 9)])
def test_a_full_engine_and_the_end_of_a_run_are_no_starving(world: World, full: tuple[int, int]) -> None:
    crew = Crew(world)
    crew.say(DEVICES[0], ready())
    for _ in range(2 * STARVED_SAMPLES):
        crew.sample(DEVICES[0], *full)
        crew.sample(DEVICES[0], 0, 0, dry=True)
    for _ in range(STARVED_SAMPLES - 1):
        crew.sample(DEVICES[0], 1, 0)
    crew.sample(DEVICES[0], *full)
    for _ in range(STARVED_SAMPLES - 1):
        crew.sample(DEVICES[0], 1, 0)
    assert "engine_starved" not in [kind for kind, _ in crew.log.events]


def test_one_starved_sample_among_hundreds_is_no_warning(world: World) -> None:
    crew = Crew(world)
    crew.say(DEVICES[0], ready())
    for number in range(400):
        crew.sample(DEVICES[0], 1 if number < STARVED_SAMPLES else 4, 0)
    assert crew.engines.warnings() == []


def stream(number: int) -> list[list[int]]:
    return [[1000 * number + 50 * a + t for t in range(SELF_TEST_TOKENS)] for a in range(SELF_TEST_ANSWERS)]


@given(st.permutations([0, 1, 2]))
def test_engines_that_share_a_stream_are_refused_whichever_comes_last(order: list[int]) -> None:
    tests = {0: stream(1), 1: stream(2), 2: stream(1)}
    refused: list[str | None] = []
    unasked: Any = None  # of manifest and target a verdict knows nothing
    log: Any = Log()
    engines = Engines(unasked, unasked, log, Tally("run", "build", 0.0))
    for number in order:
        engines.heard(Device("cuda", number), encode(ready(self_test=tests[number])))
        refused.append(engines.refused)
    last = max(order.index(0), order.index(2))
    assert all(one is None for one in refused[:last])
    assert "cuda:0" in str(refused[-1])
    assert "cuda:2" in str(refused[-1])
    assert "\n" not in str(refused[-1])


def test_an_engine_that_was_started_again_is_judged_by_its_newest_self_test(world: World) -> None:
    crew = Crew(world)
    crew.say(DEVICES[0], ready(self_test=stream(1)))
    crew.say(DEVICES[0], ready(self_test=stream(1)))  # the same device: nobody shares anything
    crew.say(DEVICES[1], ready(self_test=stream(2)))
    assert crew.engines.refused is None
    crew.say(DEVICES[1], ready(self_test=[stream(3)[0]] * SELF_TEST_ANSWERS))
    assert "cuda:1" in str(crew.engines.refused)
