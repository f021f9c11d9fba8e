"""Real vLLM engines in a real pool: two of them, each on its own core, with a tiny random target.

One pool serves all checks, for a start takes a minute: sampled answers differ, greedy ones are transformers'
own, end tokens are kept, what is killed loses nothing and leaves no engine behind.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from corpus.token_ids import pack_ids, unpack_ids
from fleet.devices import Device, find_devices
from fleet.pool import Done, Failed, Pool
from generation.diversity import diversity_verdict
from generation.messages import (
    EngineConfig,
    EngineReady,
    EngineSample,
    GenerateItem,
    GenerateResult,
    decode_event,
    decode_result,
    encode,
)
from tests.processes import alive, family, mapped, survivors

pytestmark = pytest.mark.e2e

WORDS = 62
EOS = WORDS
VOCABULARY = WORDS + 2
MAX_MODEL_LEN = 128
NEUTRAL = {"temperature": 1.0, "top_p": 1.0, "top_k": 0.0, "min_p": 0.0}


@pytest.fixture(scope="module")
def target_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Qwen3 of 64 tokens, so that its end token comes up, with a tokenizer of words."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

    folder = tmp_path_factory.mktemp("target")
    vocabulary = {f"w{i}": i for i in range(WORDS)} | {"<end>": EOS, "<pad>": EOS + 1}
    special = {"eos_token": "<end>", "pad_token": "<pad>", "unk_token": "w0"}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=special["unk_token"]))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens(["<end>", "<pad>"])
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(folder)
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        max_position_embeddings=256,
        initializer_range=0.1,
        eos_token_id=EOS,
        pad_token_id=EOS + 1,
        bos_token_id=None,
        tie_word_embeddings=False,
        dtype="float32",
    )
    Qwen3ForCausalLM(config).save_pretrained(folder)
    return folder


def greedy_by_transformers(target_dir: Path, prompts: Sequence[list[int]], max_tokens: int) -> list[list[int]]:
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(target_dir, dtype=torch.float32).eval()
    answers: list[list[int]] = []
    for prompt in prompts:
        tokens = list(prompt)
        while len(tokens) < len(prompt) + max_tokens and tokens[-1] != EOS:
            with torch.no_grad():
                tokens.append(int(model(torch.tensor([tokens])).logits[0, -1].argmax()))
        answers.append(tokens[len(prompt) :])
    return answers


def item(name: str, prompt: list[int], max_tokens: int, **sampling: float) -> bytes:
    return encode(
        GenerateItem(
            response_id=name, prompt_token_ids=pack_ids(prompt), max_tokens=max_tokens, sampling={**NEUTRAL, **sampling}
        )
    )


def tokens(result: GenerateResult) -> list[int]:
    return unpack_ids(result.token_ids)


async def collect(pool: Pool) -> tuple[dict[str, GenerateResult], dict[str, Done | Failed]]:
    results: dict[str, GenerateResult] = {}
    outcomes: dict[str, Done | Failed] = {}
    async for outcome in pool.outcomes():
        outcomes[outcome.item_id] = outcome
        if isinstance(outcome, Done):
            results[outcome.item_id] = decode_result(outcome.payload)
    return results, outcomes


async def all_ready(pool: Pool, events: list[object], engines: int) -> None:
    while sum(isinstance(event, EngineReady) for event in events) < engines:
        await asyncio.sleep(0.2)


def test_two_engines_in_a_pool(target_dir: Path, tmp_path: Path) -> None:
    devices = [device for device in find_devices() if device.kind == "cpu"][:2]
    assert len(devices) == 2, "needs two cores and 8 GiB"
    asyncio.run(asyncio.wait_for(_check(target_dir, tmp_path, devices), 1000))


async def _check(target_dir: Path, log_dir: Path, devices: list[Device]) -> None:
    events: list[object] = []
    starts: Counter[str] = Counter()

    def config_for(device: Device) -> bytes:
        starts[device.label] += 1
        return encode(
            EngineConfig(
                model_dir=str(target_dir),
                dtype="float32",
                max_model_len=MAX_MODEL_LEN,
                seed=100 * starts[device.label],  # an engine that is started again draws other numbers
                engine_number=devices.index(device),
                device=device.label,
            )
        )

    prompts = [[5, 6, 7], [9], list(range(40)), [61, 3, 61, 3]]
    async with Pool(
        "generation.worker:create",
        config_for,
        devices,
        on_event=lambda _, event: events.append(decode_event(event)),
        log_dir=log_dir,
    ) as pool:
        await all_ready(pool, events, 2)
        ready = [event for event in events if isinstance(event, EngineReady)]
        assert {event.seed for event in ready} == {100, 101}
        assert all(event.kv_tokens and event.kv_tokens > MAX_MODEL_LEN for event in ready)
        assert diversity_verdict({str(event.engine_number): event.self_test for event in ready}) is None

        # greedy: transformers' own tokens, the end token included
        for number, prompt in enumerate(prompts):
            pool.submit(f"greedy-{number}", item(f"greedy-{number}", prompt, 24, temperature=0.0))
        pool.submit("too-long", item("too-long", [1] * (MAX_MODEL_LEN + 1), 4))
        results, outcomes = await collect(pool)
        expected = greedy_by_transformers(target_dir, prompts, 24)
        assert [tokens(results[f"greedy-{number}"]) for number in range(len(prompts))] == expected
        refused = outcomes["too-long"]
        assert isinstance(refused, Failed)
        assert str(MAX_MODEL_LEN) in refused.error

        # sampling: equal settings, different answers, on both engines; a worker is killed half-way
        began_at = time.time()
        for number in range(300):
            pool.submit(f"s-{number}", item(f"s-{number}", [5, 6, 7], 60))
        first = await pool.next_outcome()
        assert isinstance(first, Done)
        pid = pool.workers()[devices[1]]
        assert pid is not None
        killed = family(pid)
        assert len(killed) >= 3  # the worker, its guard and an engine core at least
        shared = mapped(process.pid for process in killed)
        os.kill(pid, signal.SIGKILL)
        results, outcomes = await collect(pool)
        results["first"] = decode_result(first.payload)
        assert len(results) == 300
        assert all(isinstance(outcome, Done) for outcome in outcomes.values())
        assert any(isinstance(outcome, Done) and outcome.crashes for outcome in outcomes.values())
        answers = [tuple(tokens(result)) for result in results.values()]
        long = [answer for answer in answers if len(answer) >= 6]  # a few may end at once, and are equal then
        assert len(long) > 200
        assert len(set(long)) == len(long)
        stopped = [result for result in results.values() if result.finish_reason == "stop"]
        cut = [result for result in results.values() if result.finish_reason == "length"]
        assert stopped
        assert cut
        assert all(tokens(r)[-1] == EOS and EOS not in tokens(r)[:-1] for r in stopped)
        assert all(len(tokens(r)) == 60 and EOS not in tokens(r) for r in cut)
        for r in results.values():
            words = "".join(f"w{token}" for token in tokens(r) if 0 < token < WORDS)
            assert r.text.replace(" ", "") == words, "special tokens (w0 too) are in the ids, not in the text"
        for result in results.values():
            assert began_at <= result.queued_at <= result.started_at <= result.first_token_at <= result.ended_at
            assert result.engine.startswith("vllm ")
        while alive(killed):
            await asyncio.sleep(0.1)

        # the restarted engine works too
        await all_ready(pool, events, 3)
        for number in range(60):
            pool.submit(f"again-{number}", item(f"again-{number}", [number], 8))
        _, outcomes = await collect(pool)
        assert {outcome.device for outcome in outcomes.values()} == set(devices)
        samples = [event for event in events if isinstance(event, EngineSample)]
        assert any(sample.tokens_per_s > 0 for sample in samples)
        everything = [process for pid in pool.workers().values() if pid for process in family(pid)]
        shared |= mapped(process.pid for process in everything)
    assert not survivors(everything)
    assert shared
    while shared & {path.name for path in Path("/dev/shm").iterdir()}:  # what the dead engine had, too
        await asyncio.sleep(0.1)
