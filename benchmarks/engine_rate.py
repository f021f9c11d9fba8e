"""What draftmill's whole path leaves of a bare engine's tokens/s, and what a second engine on a second core adds.

    python benchmarks/engine_rate.py [--rounds 5] [--rows 128] [--max-tokens 64] [--max-num-seqs 16]

Wanted: one engine through draftmill at least 0.97 of a bare `LLM.generate`; two engines on two cores at least 1.6
times one engine on one core. Real vLLM, SmolLM2-135M in float32. Each round runs, one after the other: the bare engine
on core 0 over the token ids, draftmill with the engine on core 0, draftmill with the engines on cores 0 and 1; a ratio
is of one round, and the median of the rounds is printed. All engines stay up from round to round and have the same
settings, made by the same code; only one side works at a time, so that noise hits all alike. The prefix cache is off,
for every round has the same prompts. Bare seconds are of the call of `generate` alone; draftmill's are from the first
prompt that is handed out to the last answer, while shards and ledger are written, and beside them those of the whole
run, from the pool that is up to the last commit. A first round, to warm up, does not count. About 12 minutes on two
quiet cores.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import tempfile
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median

from demo_runs import MAX_MODEL_LEN, MODEL, SAMPLING, SETTLE_S, Figures, demo_manifest, measured_run
from kept_engines import KeptEngines

from corpus.gguf import ensure_converted
from fleet.devices import Device
from fleet.groups import kill_group
from generation.engine import engine_arguments, read_model_config, sampling_arguments
from generation.messages import EngineConfig, GenerateItem

CORES = [Device("cpu", 0), Device("cpu", 1)]
EXTRA = {"enable_prefix_caching": False}
BARE_WANTED, TWO_WANTED = 0.97, 1.6


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", type=int, default=128, help="prompts of a round; the demo has some 290")
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--max-num-seqs", type=int, default=16)
    parser.add_argument("--folder", type=Path, help="where to work, kept; default: a temporary folder")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        asyncio.run(compare(folder, options.rounds, options.rows, options.max_tokens, options.max_num_seqs))


async def compare(folder: Path, rounds: int, rows: int, max_tokens: int, max_num_seqs: int) -> None:
    """All rounds, and their medians."""
    engine = {"max_num_seqs": max_num_seqs, "extra": EXTRA}
    manifest = demo_manifest(folder / "rate.yaml", rows, max_tokens, engine)
    few = demo_manifest(folder / "few.yaml", 2 * max_num_seqs, 4, engine)
    kept = KeptEngines(folder)
    bare = BareEngine(folder / "bare.log", max_num_seqs)
    try:
        await measured_run(few, folder / "few", CORES, kept)
        await kept.up()
        first = await measured_run(manifest, folder / "warm", CORES, kept)
        prompts = first.prompts
        await bare.generate(prompts[: 2 * max_num_seqs], max_tokens)
        mean = sum(map(len, prompts)) / len(prompts)
        print(f"{first.rows} prompts of {mean:.0f} tokens on average, at most {max_tokens} tokens an answer, "
              f"{max_num_seqs} sequences at once")  # fmt: skip
        print("tokens/s:    bare, core 0   draftmill, core 0   draftmill, two cores", flush=True)
        bares: list[float] = []
        ones: list[Figures] = []
        twos: list[Figures] = []
        for number in range(rounds):
            await asyncio.sleep(SETTLE_S)
            tokens, seconds = await bare.generate(prompts, max_tokens)
            one = await same_prompts(manifest, folder / f"one-{number}", CORES[:1], kept, prompts)
            two = await same_prompts(manifest, folder / f"two-{number}", CORES, kept, prompts)
            bares.append(tokens / seconds)
            ones.append(one)
            twos.append(two)
            print(f"  round {number + 1}: {bares[-1]:14.1f} {one.answering_tokens_per_s:19.1f} "
                  f"{two.answering_tokens_per_s:22.1f}   ({tokens:,}, {one.tokens:,} and {two.tokens:,} tokens)",
                  flush=True)  # fmt: skip
    finally:
        bare.close()
        await kept.close()
    answering = [figures.answering_tokens_per_s for figures in ones]
    whole = [figures.tokens_per_s for figures in ones]
    say("draftmill's one engine / bare LLM.generate", ratios(answering, bares), f", wanted at least {BARE_WANTED}")
    say("  to the last commit", ratios(whole, bares), "")
    of_two = ratios([figures.answering_tokens_per_s for figures in twos], answering)
    say("two engines on two cores / one on one", of_two, f", wanted at least {TWO_WANTED}")
    say("  to the last commit", ratios([figures.tokens_per_s for figures in twos], whole), "")


async def same_prompts(
    manifest: Path, root: Path, devices: list[Device], kept: KeptEngines, prompts: list[list[int]]
) -> Figures:
    """One run of draftmill, and proof that its engines were shown the bare engine's token ids."""
    await asyncio.sleep(SETTLE_S)
    figures = await measured_run(manifest, root, devices, kept)
    if sorted(figures.prompts) != sorted(prompts):
        raise SystemExit(f"{root.name}: its engines were shown other token ids than the bare engine; not comparable")
    return figures


def ratios(above: Sequence[float], below: Sequence[float]) -> list[float]:
    """Round by round."""
    return [one / other for one, other in zip(above, below, strict=True)]


def say(what: str, of: Sequence[float], wanted: str) -> None:
    """A median with its spread, beside what is wanted."""
    print(f"{what}: median {median(of):.3f} ({min(of):.3f} to {max(of):.3f}){wanted}")


class BareEngine:
    """`vllm.LLM` in a process of its own, with the arguments that draftmill gives its engines."""

    def __init__(self, log: Path, max_num_seqs: int) -> None:
        config = EngineConfig(
            model_dir=str(ensure_converted(MODEL, Path.cwd())), dtype="float32", max_model_len=MAX_MODEL_LEN,
            max_num_seqs=max_num_seqs, extra=EXTRA, device=CORES[0].label,
        )  # fmt: skip
        self._log = log
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=serve_bare, args=(theirs, config, str(log)))
        self._process.start()
        theirs.close()

    async def generate(self, prompts: list[list[int]], max_tokens: int) -> tuple[int, float]:
        """(tokens, seconds) of one call of `LLM.generate`; the first call waits for the engine's start besides."""
        try:
            self._connection.send((prompts, max_tokens))
            tokens, seconds = await asyncio.to_thread(self._connection.recv)
        except (OSError, EOFError):
            raise SystemExit(f"the bare engine ended; its log is {self._log}") from None
        return tokens, seconds

    def close(self) -> None:
        """End the process with its engine."""
        self._connection.close()
        self._process.join(30.0)
        if self._process.pid is not None:
            kill_group(self._process.pid)
        self._process.join()


def serve_bare(connection: Connection, config: EngineConfig, log: str) -> None:
    """The bare engine's process: a call of `generate` for each message, until nobody asks any more."""
    os.setsid()  # vLLM's processes are killed with this one
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(out, 1)
    os.dup2(out, 2)
    os.environ.update(CORES[0].env())
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

    from vllm import LLM, SamplingParams

    arguments = engine_arguments(config, read_model_config(config.model_dir))
    del arguments["enable_log_requests"]  # AsyncLLM's own
    engine = LLM(**arguments)
    while True:
        try:
            prompts, max_tokens = connection.recv()
        except EOFError:
            engine.llm_engine.engine_core.shutdown()
            return
        item = GenerateItem(response_id="", prompt_token_ids=b"", max_tokens=max_tokens, sampling=SAMPLING)
        params = SamplingParams(**sampling_arguments(item))
        began = time.perf_counter()
        outputs = engine.generate([{"prompt_token_ids": ids} for ids in prompts], params, use_tqdm=False)
        seconds = time.perf_counter() - began
        connection.send((sum(len(output.outputs[0].token_ids) for output in outputs), seconds))


if __name__ == "__main__":
    main()
