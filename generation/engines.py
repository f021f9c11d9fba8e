"""What a run knows of its engines: how each is started, how full it is, what it said of itself.

An engine has one seed: the manifest's, its number, and a thousand for each time it was started again, so that it never
draws the same numbers twice. One that ran out of memory is started again with half of its sequences. Engines that
share a random stream are refused as soon as they are up.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence

import msgspec

from corpus.manifest import Manifest
from corpus.runlog import RunLog
from corpus.target import ResolvedTarget
from fleet.devices import Device
from generation.diversity import diversity_verdict
from generation.engine import max_num_seqs_of
from generation.messages import EngineConfig, EngineOutOfMemory, EngineReady, EngineSample, decode_event
from generation.progress import EngineProgress, Tally

SEEDS_PER_START = 1_000
STARVED_SAMPLES = 3
"""Samples in a row with work left elsewhere that make a warning: one may fall between two answers."""


def engine_config(
    manifest: Manifest,
    target: ResolvedTarget,
    device: Device,
    number: int,
    fitting: int | None,
    reseed: int = 0,
    engines_here: int = 1,
) -> EngineConfig:
    """What the manifest says of an engine.

    Args:
        number: the engine's among those of the run.
        fitting: sequences that run at once where the manifest leaves that open; None is the engine's own choice.
        reseed: added to the seed.
        engines_here: engines on the device's machine.
    """
    engine = manifest.engine
    return EngineConfig(
        model_dir=str(target.folder),
        dtype=manifest.target.dtype,
        max_model_len=manifest.target.max_model_len,
        max_num_seqs=fitting if engine.max_num_seqs == "auto" else engine.max_num_seqs,
        max_num_batched_tokens=(None if engine.max_num_batched_tokens == "auto" else engine.max_num_batched_tokens),
        gpu_memory_utilization=engine.gpu_memory_utilization,
        kv_cache_dtype=engine.kv_cache_dtype,
        quantization=engine.quantization,
        seed=engine.seed + reseed,
        extra=engine.extra,
        trust_remote_code=manifest.target.trust_remote_code,
        engine_number=number,
        device=device.label,
        engines_here=engines_here,
    )


class Engines:
    """The engines of one run."""

    def __init__(self, manifest: Manifest, target: ResolvedTarget, log: RunLog, tally: Tally) -> None:
        self._manifest, self._target, self._log, self._tally = manifest, target, log, tally
        self._numbers: dict[Device, int] = {}
        self._fitting: int | None = None
        self._starts: Counter[str] = Counter()
        self._shrunk: Counter[str] = Counter()
        self._capacity: dict[str, int] = {}
        self._told: dict[str, list[list[int]]] = {}
        self._fresh: set[str] = set()
        self._starved: Counter[str] = Counter()
        self._deaths: Counter[str] = Counter()
        self._short_of_memory: set[str] = set()
        self._starved_in_all: Counter[str] = Counter()
        self._samples: Counter[str] = Counter()
        self.refused: str | None = None
        """Why no answer of these engines should be kept."""

    def expect(self, devices: Sequence[Device], max_num_seqs: int | None = None) -> None:
        """The devices of the run, and the sequences that fit where the manifest leaves that open."""
        self._numbers = {device: number for number, device in enumerate(devices)}
        self._fitting = max_num_seqs
        for device in devices:
            self._starts_up(device.label)

    @property
    def count(self) -> int:
        """Engines, up or not."""
        return len(self._numbers)

    @property
    def capacity(self) -> int:
        """Items that the engines which are up hold."""
        return sum(self._capacity.values())

    def config_for(self, device: Device) -> bytes:
        """How an engine is started; asked at every start."""
        start = self._starts[device.label]
        self._starts[device.label] += 1
        self._starts_up(device.label)
        here = sum(other.node == device.node for other in self._numbers)
        config = engine_config(
            self._manifest, self._target, device, self._numbers[device], self._fitting, SEEDS_PER_START * start, here
        )
        fewer = max(1, max_num_seqs_of(config) >> self._shrunk[device.label])
        return msgspec.msgpack.encode(msgspec.structs.replace(config, max_num_seqs=fewer))

    def heard(self, device: Device, data: bytes) -> None:
        """An engine said something of itself."""
        event = decode_event(data)
        label = device.label
        match event:
            case EngineReady():
                self._ready(label, event)
            case EngineOutOfMemory():
                self._shrunk[label] += 1
                self._short_of_memory.add(label)
                fewer = max(1, event.max_num_seqs // 2)
                self._log.event("engine_out_of_memory", f"{label}: starts again with {fewer} sequences")
            case EngineSample():
                self._sampled(label, event)

    def died(self, device: Device) -> None:
        """The process of a ready engine is no more."""
        if device.label in self._short_of_memory:  # it has said so, and ends by itself
            self._short_of_memory.discard(device.label)
            return
        self._deaths[device.label] += 1
        self._log.worker_died(device.label)

    def _starts_up(self, label: str) -> None:
        self._tally.engines[label] = EngineProgress(device=label, starting=True, heard_at=time.time())

    def _ready(self, label: str, event: EngineReady) -> None:
        self._capacity[label] = event.capacity
        self._tally.engines[label] = EngineProgress(device=label, engine=event.engine, max_num_seqs=event.max_num_seqs)
        message = f"{label}: {event.engine}, takes {event.capacity} at once, runs {event.max_num_seqs}"
        self._log.event("engine_ready", message)
        if event.self_test:
            self._told[label] = event.self_test
            self.refused = self.refused or diversity_verdict(self._told)

    def _sampled(self, label: str, sample: EngineSample) -> None:
        one = self._tally.engines.setdefault(label, EngineProgress(device=label))
        one.running, one.waiting, one.tokens_per_s = sample.running, sample.waiting, sample.tokens_per_s
        one.kv_use, one.prefix_hits = sample.kv_use, sample.prefix_hits
        one.starting, one.heard_at = False, time.time()  # ours: another machine's clock may differ
        self._log.sample(one.engine, label, msgspec.structs.asdict(sample))
        self._fresh.add(label)

    def look(self, dry: bool) -> None:
        """Judge the newest samples. An engine with fewer items than it runs at once is starved, unless all is `dry`."""
        for label in self._fresh:
            one = self._tally.engines[label]
            self._samples[label] += 1
            if dry or one.running + one.waiting >= one.max_num_seqs:
                self._starved[label] = 0
                continue
            self._starved[label] += 1
            self._starved_in_all[label] += 1
            if self._starved[label] == STARVED_SAMPLES:
                self._log.event(
                    "engine_starved",
                    f"{label}: {one.running + one.waiting} in flight, {one.max_num_seqs} fit, and work is left",
                )
        self._fresh.clear()

    def warnings(self) -> list[str]:
        """What a person should know at the end."""
        found = []
        for label, starved in sorted(self._starved_in_all.items()):
            share = starved / self._samples[label]
            if starved >= STARVED_SAMPLES and share > 0.02:
                found.append(
                    f"{label} had fewer answers in flight than it can run for {share:.0%} of the run, with work left: "
                    "the coordinator was too slow. Give it more cores, or lower engine.max_num_seqs."
                )
        found += [
            f"{label} ran out of memory and runs fewer sequences since. Lower engine.max_num_seqs or "
            "engine.gpu_memory_utilization."
            for label in sorted(self._shrunk)
        ]
        found += [
            f"{label} died {'once' if deaths == 1 else f'{deaths} times'} and was started again; no answer is lost. "
            "FROM events WHERE kind = 'worker_died' says where its log is."
            for label, deaths in sorted(self._deaths.items())
        ]
        return found
