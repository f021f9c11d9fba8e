"""The engine's side of the messages, without an engine; and the fake engine, in a real pool."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from array import array
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from corpus.token_ids import pack_ids, unpack_ids
from fleet.devices import Device
from fleet.pool import Done, Failed, Pool
from generation.engine import capacity_of, engine_arguments, result_of, sampling_arguments
from generation.fake import FakeSettings, answer
from generation.messages import (
    EngineConfig,
    EngineEvent,
    EngineOutOfMemory,
    EngineReady,
    EngineSample,
    GenerateItem,
    GenerateResult,
    decode_config,
    decode_event,
    decode_item,
    decode_result,
    encode,
)
from generation.meter import Meter


def config(**changes: Any) -> EngineConfig:
    fields: dict[str, Any] = {"model_dir": "m", "dtype": "float32", "max_model_len": 64}
    return EngineConfig(**{**fields, **changes})


def item(name: str = "r", **changes: Any) -> GenerateItem:
    fields: dict[str, Any] = {"prompt_token_ids": [5, 6], "max_tokens": 20, "sampling": {"temperature": 1.0}} | changes
    packed = pack_ids(fields.pop("prompt_token_ids"))
    return GenerateItem(response_id=name, prompt_token_ids=packed, **fields)


def test_the_engine_is_what_the_manifest_says() -> None:
    arguments = engine_arguments(config(seed=7, engine_number=3, extra={"block_size": 32}), {})
    assert arguments["seed"] == 10
    assert arguments["enforce_eager"] is True
    assert arguments["block_size"] == 32
    assert "language_model_only" not in arguments
    on_gpu = engine_arguments(config(device="cuda:0"), {"vision_config": {}})
    assert on_gpu["enforce_eager"] is False
    assert on_gpu["max_num_seqs"] == 256
    assert on_gpu["language_model_only"] is True


def test_extra_may_not_contradict_the_manifest() -> None:
    with pytest.raises(ValueError, match=r"engine\.extra\.seed"):
        engine_arguments(config(extra={"seed": 1}), {})


def test_a_step_on_a_core_is_as_large_as_its_caches_hold_and_on_a_gpu_vllm_s_own() -> None:
    def tokens(**changes: Any) -> Any:
        return engine_arguments(config(**changes), {})["max_num_batched_tokens"]

    assert tokens(device="cpu:0", max_num_batched_tokens=None) == 2048
    assert tokens(device="cpu:0", max_num_batched_tokens=None, max_num_seqs=3000) == 3000
    assert tokens(device="cuda:0", max_num_batched_tokens=None) is None
    assert tokens(device="cpu:0", max_num_batched_tokens=512) == 512


def test_a_request_has_no_seed_of_its_own() -> None:
    arguments = sampling_arguments(item(sampling={"temperature": 0.7, "top_k": 20.0, "min_p": 0.1}))
    assert "seed" not in arguments
    assert arguments["max_tokens"] == 20
    assert arguments["top_k"] == 20
    assert isinstance(arguments["top_k"], int)


@given(st.integers(1, 2000))
def test_a_worker_holds_more_than_its_engine_runs(max_num_seqs: int) -> None:
    assert capacity_of(max_num_seqs) >= max(max_num_seqs + 4, int(max_num_seqs * 1.25))


@given(st.floats(0, 1e9), st.floats(-1e3, 1e3), st.floats(-1e3, 1e3), st.floats(0, 1e3), st.booleans())
def test_times_are_in_order_whatever_the_clocks_say(
    queued_at: float, scheduled: float, first: float, took: float, has_stats: bool
) -> None:
    stats = SimpleNamespace(scheduled_ts=scheduled, first_token_ts=first) if has_stats else None
    completion = SimpleNamespace(token_ids=(1, 2), text="x", finish_reason="stop", stop_reason=2)
    result = result_of(
        item(),
        SimpleNamespace(outputs=[completion], metrics=stats),
        engine="e",
        seed=1,
        queued_at=queued_at,
        ended_at=queued_at + took,
        clock_offset_s=queued_at,
    )
    assert result.queued_at <= result.started_at <= result.first_token_at <= result.ended_at
    assert (unpack_ids(result.token_ids), result.stop_reason) == ([1, 2], "2")
    assert result.logprobs is None


def test_log_probabilities_are_those_of_the_chosen_tokens_and_come_only_if_asked_for() -> None:
    at = [{1: SimpleNamespace(logprob=-0.5), 7: SimpleNamespace(logprob=-0.1)}, {2: SimpleNamespace(logprob=-2.25)}]
    completion = SimpleNamespace(token_ids=(1, 2), text="x", finish_reason="stop", stop_reason=None, logprobs=at)
    output = SimpleNamespace(outputs=[completion], metrics=None)
    times = {"engine": "e", "seed": 1, "queued_at": 1.0, "ended_at": 2.0, "clock_offset_s": 0.0}
    asked = result_of(item(logprobs=True), output, **times)  # type: ignore[arg-type]
    assert array("f", asked.logprobs or b"").tolist() == [-0.5, -2.25]
    assert result_of(item(), output, **times).logprobs is None  # type: ignore[arg-type]
    assert sampling_arguments(item(logprobs=True))["logprobs"] == 0
    assert "logprobs" not in sampling_arguments(item())


@given(st.lists(st.integers(-(2**31), 2**31 - 1)))
def test_token_ids_are_packed_in_four_bytes_each_and_come_back(token_ids: list[int]) -> None:
    packed = pack_ids(token_ids)
    assert len(packed) == 4 * len(token_ids)
    assert unpack_ids(packed) == token_ids


def test_the_meter_counts_between_samples() -> None:
    meter = Meter(max_num_seqs=2, monotonic_s=0.0)
    for _ in range(3):
        meter.began(1.0)
    meter.step(2.0, tokens=10)
    sample = meter.sample(100.0, 5.0)
    assert (sample.running, sample.waiting, sample.tokens_per_s, sample.kv_use) == (2, 1, 2.0, None)
    meter.step(6.0, tokens=0, running=1, kv_use=0.25)
    meter.ended()
    sample = meter.sample(101.0, 6.0)
    assert (sample.running, sample.waiting, sample.tokens_per_s, sample.kv_use) == (1, 1, 0.0, 0.25)
    assert meter.stalled_s(16.0) == 10.0
    meter.ended()
    meter.ended()
    assert meter.stalled_s(99.0) == 0.0
    meter.began(200.0)
    assert meter.stalled_s(201.0) == 1.0, "an idle engine has not stalled"


def test_messages_come_back_as_they_went() -> None:
    result = GenerateResult(
        response_id="r",
        attempt=2,
        token_ids=pack_ids([1, 2]),
        text="t",
        finish_reason="stop",
        stop_reason=None,
        queued_at=1.0,
        started_at=2.0,
        first_token_at=3.0,
        ended_at=4.0,
        engine="e",
        seed=5,
    )
    ready = EngineReady(
        engine="e", engine_number=1, seed=2, capacity=3, max_num_seqs=2, max_model_len=64, kv_tokens=None
    )
    sample = EngineSample(sampled_at=1.0, running=2, waiting=3, tokens_per_s=4.0, kv_use=0.5)
    assert decode_config(encode(config(extra={"a": [1]}))) == config(extra={"a": [1]})
    assert decode_item(encode(item())) == item()
    assert decode_result(encode(result)) == result
    events: list[EngineEvent] = [ready, sample, EngineOutOfMemory(max_num_seqs=8)]
    assert [decode_event(encode(event)) for event in events] == events


def test_importing_the_handlers_imports_no_engine() -> None:
    code = (
        "import sys, generation.worker, generation.fake, training.serve_worker, fleet.pool; "
        "print([name for name in ('torch', 'vllm', 'transformers', 'duckdb', 'polars') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@given(st.integers(1, 40), st.integers(0, 1000), st.sampled_from([0.0, 1.0]))
def test_the_fake_answers_like_an_engine(max_tokens: int, token: int, temperature: float) -> None:
    asked = item(prompt_token_ids=[token], max_tokens=max_tokens, sampling={"temperature": temperature})
    token_ids, finish_reason = answer(asked, FakeSettings(), 64)
    assert (token_ids, finish_reason) == answer(asked, FakeSettings(), 64)
    assert 1 <= len(token_ids) <= max_tokens
    if finish_reason == "stop":
        assert token_ids[-1] == 2
        assert 2 not in token_ids[:-1]
    else:
        assert len(token_ids) == max_tokens
        assert 2 not in token_ids
    other = answer(msgspec.structs.replace(asked, response_id="s"), FakeSettings(mean_tokens=30), 64)
    same = answer(asked, FakeSettings(mean_tokens=30), 64)
    assert (other == same) == (temperature == 0) or len(same[0]) == 1


def test_the_fake_engine_in_a_pool() -> None:
    events: list[EngineEvent] = []
    extra = {"crash_token_id": 13, "raise_token_id": 14, "latency_s": 0.01, "sample_every_s": 0.05}
    devices = [Device("cpu", 0), Device("cpu", 1)]

    def config_for(device: Device) -> bytes:
        return encode(config(seed=40, engine_number=device.index, device=device.label, extra=extra))

    async def work() -> dict[str, Done | Failed]:
        async with Pool(
            "generation.fake:create",
            config_for,
            devices,
            on_event=lambda _, event: events.append(decode_event(event)),
        ) as pool:
            for number in range(100):
                pool.submit(f"r{number}", encode(item(f"r{number}")))
            pool.submit("crash", encode(item("crash", prompt_token_ids=[1, 13])), weight=1.0)
            pool.submit("raise", encode(item("raise", prompt_token_ids=[14])))
            pool.submit("long", encode(item("long", prompt_token_ids=[1] * 64)))
            return {outcome.item_id: outcome async for outcome in pool.outcomes()}

    found = asyncio.run(work())
    crash, refused, long = (found.pop(name) for name in ("crash", "raise", "long"))
    assert isinstance(crash, Failed)
    assert crash.set_aside
    assert isinstance(refused, Failed)
    assert refused.error == "ValueError: the fake engine refuses this prompt"
    assert isinstance(long, Failed)
    assert "max_model_len is 64" in long.error
    results = [decode_result(outcome.payload) for outcome in found.values() if isinstance(outcome, Done)]
    assert len(results) == 100
    assert {result.seed for result in results} <= {40, 41}
    assert len({result.token_ids for result in results}) > 90
    assert any(isinstance(event, EngineReady) for event in events)


def test_a_fake_engine_may_refuse_to_start() -> None:
    async def work() -> None:
        async with Pool(
            "generation.fake:create",
            lambda _: encode(config(extra={"fail_start": True})),
            [Device("cpu", 0)],
        ):
            pass

    with pytest.raises(Exception, match="the fake engine does not start"):
        asyncio.run(work())
