"""draftmill beside the public way of having a model answer again: speculators' command against a `vllm serve`.

    python benchmarks/public_way.py rates [--rounds 5] [--rows 128]      rows/s, about 15 minutes on two quiet cores
    python benchmarks/public_way.py kills [--kills 10] [--rows 128]      rows lost and doubled, about 15 minutes

Wanted: at least 1.0 of its rows/s with one engine on one core, 1.5 with two on two; no row lost or doubled in 10 rounds
of kill -9 and resume. The public way is `speculators regenerate-responses` 0.9.0 as it comes (64 requests at once). It
needs, beside draftmill's extras:

    pip install --no-deps speculators==0.9.0 hs-connectors==0.9.0 && pip install click aiohttp httpx loguru

Both sides have SmolLM2-135M in float32, the same prompts (token ids are compared), max_tokens, sampling and sequences
at once in all, and no prefix cache, for every round has the same prompts. A round of `rates` runs the tool against a
server on core 0, draftmill's engine on core 0, the tool against one server on both cores, draftmill's engines on both;
servers and engines stay up, and one side works at a time. The tool's seconds are those that it prints, without its
start; draftmill's are from the engine that is up to the last commit.

`kills` ends each command (not the server) with SIGKILL a seeded moment after it began to work, so many times, resumes
it as it says, and counts what is in its files at the end: the tool with a server on core 0, `draftmill generate` with a
real engine on core 1, started anew each time; both at once, for no speed counts.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import polars as pl
from demo_runs import MODEL, SETTLE_S, Figures, demo_manifest, measured_run, selected
from kept_engines import KeptEngines
from public_tool import Server, Tool, started

from corpus.gguf import ensure_converted
from corpus.workspace import Workspace
from fleet.devices import Device
from generation.progress import PROGRESS_FILE

CORES = [Device("cpu", 0), Device("cpu", 1)]
EXTRA = {"enable_prefix_caching": False}
WANTED = {"one": 1.0, "two": 1.5}
DRAFTMILL = Path(sys.executable).with_name("draftmill")
SEED = 17
KILL_WITHIN_S = {"speculators": 6.0, "draftmill": 12.0}
"""After it began to work; draftmill writes a shard every 5 s, the tool a line for each answer."""
LOOK_EVERY_S = 0.1
BEGIN_TIMEOUT_S = 900.0


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("rates", "kills"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--rows", type=int, default=128, help="prompts; the demo has some 290")
    parser.add_argument("--max-tokens", type=int, default=40)
    parser.add_argument("--max-num-seqs", type=int, default=32, help="of one core; two cores have twice as many")
    parser.add_argument("--folder", type=Path, help="where to work, kept; default: a temporary folder")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        engine = {"max_num_seqs": options.max_num_seqs, "extra": EXTRA}
        manifest = demo_manifest(folder / "public.yaml", options.rows, options.max_tokens, engine)
        dataset = write_dataset(folder, manifest)
        if options.what == "rates":
            asyncio.run(rates(folder, manifest, dataset, options.rounds, options.max_tokens, options.max_num_seqs))
        else:
            kills(folder, manifest, dataset, options.kills, options.max_tokens, options.max_num_seqs)


def write_dataset(folder: Path, manifest: Path) -> Path:
    """The rows that the manifest selects, as the tool reads them."""
    path = folder / f"{manifest.stem}.jsonl"
    with path.open("w") as file:
        for prompt_id, messages in selected(manifest, Workspace(folder / f"{manifest.stem}-selected")).iter_rows():
            turns = [{"role": one["role"], "content": one["content"]} for one in json.loads(messages)]
            file.write(json.dumps({"id": prompt_id, "messages": turns}) + "\n")
    return path


async def rates(folder: Path, manifest: Path, dataset: Path, rounds: int, max_tokens: int, max_num_seqs: int) -> None:
    """All rounds, and their medians."""
    model = ensure_converted(MODEL, Path.cwd())
    kept = KeptEngines(folder)
    servers: dict[str, Server] = {}
    try:
        few = demo_manifest(folder / "few.yaml", 2 * max_num_seqs, 4, {"max_num_seqs": max_num_seqs, "extra": EXTRA})
        await measured_run(few, folder / "few", CORES, kept)
        await kept.up()
        for name, cores, sequences in (("one", "0", max_num_seqs), ("two", "0-1", 2 * max_num_seqs)):
            servers[name] = Server(model, cores, sequences, folder / f"server-{name}.log")
            await asyncio.to_thread(servers[name].wait)
        await both(folder, "warm", few, write_dataset(folder, few), servers, kept, model, 4)
        rows = len(dataset.read_text().splitlines())
        print(f"{rows} prompts, at most {max_tokens} tokens an answer, {max_num_seqs} sequences a core")
        print("rows/s:     one core: speculators   draftmill     two cores: speculators   draftmill", flush=True)
        ratios: dict[str, list[float]] = {"one": [], "two": [], "across": []}
        for number in range(rounds):
            ours, theirs = await both(folder, str(number), manifest, dataset, servers, kept, model, max_tokens)
            for name in ("one", "two"):
                ratios[name].append(ours[name].rows_per_s / theirs[name])
            ratios["across"].append(ours["two"].rows_per_s / theirs["one"])
            print(f"  round {number + 1}: {theirs['one']:22.2f} {ours['one'].rows_per_s:11.2f} "
                  f"{theirs['two']:28.2f} {ours['two'].rows_per_s:11.2f}", flush=True)  # fmt: skip
    finally:
        for server in servers.values():
            server.close()
        await kept.close()
    say("one engine / the tool with a server on one core", ratios["one"], f", wanted at least {WANTED['one']}")
    say("two engines / the tool with a server on two cores", ratios["two"], f", wanted at least {WANTED['two']}")
    say("two engines / the tool with a server on one core", ratios["across"], "")


async def both(
    folder: Path,
    label: str,
    manifest: Path,
    dataset: Path,
    servers: dict[str, Server],
    kept: KeptEngines,
    model: Path,
    max_tokens: int,
) -> tuple[dict[str, Figures], dict[str, float]]:
    """One round: draftmill's figures and the tool's rows/s, with one core and with two."""
    ours: dict[str, Figures] = {}
    theirs: dict[str, float] = {}
    for name, devices in (("one", CORES[:1]), ("two", CORES)):
        tool = Tool(dataset, folder / f"tool-{name}-{label}.jsonl", servers[name], model, max_tokens)
        seconds = await asyncio.to_thread(tool.run)
        written = tool.written()
        theirs[name] = written.rows.total() / seconds
        await asyncio.sleep(SETTLE_S)
        ours[name] = await measured_run(manifest, folder / f"{name}-{label}", devices, kept)
        if missing := ours[name].rows - written.rows.total():
            print(f"  the tool left {missing} of {ours[name].rows} rows in its error file", flush=True)
        asked = {tuple(prompt) for prompt in ours[name].prompts}
        if not asked.issuperset(map(tuple, written.prompts)):
            raise SystemExit(f"{tool.out}: the server was shown other token ids than draftmill's engines")
    return ours, theirs


def say(what: str, ratios: list[float], wanted: str) -> None:
    """A median with its spread."""
    print(f"{what}: median {median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}){wanted}")


def kills(folder: Path, manifest: Path, dataset: Path, times: int, max_tokens: int, max_num_seqs: int) -> None:
    """Both sides killed and resumed, and what they have at the end."""
    model = ensure_converted(MODEL, Path.cwd())
    selected_ids = [json.loads(line)["id"] for line in dataset.read_text().splitlines()]
    workspace = Workspace(folder / "killed")
    server = Server(model, "0", max_num_seqs, folder / "server.log")
    try:
        server.wait()
        tool = Tool(dataset, folder / "tool.jsonl", server, model, max_tokens)
        theirs = Command("speculators", tool.start, lambda: tool.at_work, tool.log)
        with ThreadPoolExecutor(2) as pool:
            for line in pool.map(lambda one: survive(one, times), (theirs, draftmill_command(manifest, workspace))):
                print(line, flush=True)
    finally:
        server.close()
    written = tool.written()
    print(f"{accounts('speculators', selected_ids, written.rows)}, {written.torn} torn lines")
    shards = pl.read_parquet(workspace.responses / "*.parquet")
    ended = shards.filter(pl.col("state").is_in(["accepted", "rejected"]))
    print(f"{accounts('draftmill', selected_ids, Counter(ended['prompt_id'].to_list()))}, wanted 0 and 0")
    verified = subprocess.run([DRAFTMILL, "verify", "-w", str(workspace.root)], capture_output=True, check=False)
    print(f"draftmill verify: exit {verified.returncode}, wanted 0")


@dataclass(frozen=True)
class Command:
    """Something that is killed and started again."""

    name: str
    start: Callable[[], subprocess.Popen[bytes]]
    at_work: Callable[[], bool]
    """True when the newest process has asked the model, or is about to."""
    log: Path


def draftmill_command(manifest: Path, workspace: Workspace) -> Command:
    """`draftmill generate` with one engine on core 1."""
    log = workspace.root.with_suffix(".log")
    command = [str(DRAFTMILL), "generate", str(manifest), "-w", str(workspace.root), "--devices", CORES[1].label]
    before: set[Path] = set()

    def seen() -> set[Path]:
        return set(workspace.root.glob(f"runs/*/{PROGRESS_FILE}"))

    def start() -> subprocess.Popen[bytes]:
        before.update(seen())
        return started(command, log, {})

    return Command("draftmill", start, lambda: bool(seen() - before), log)


def survive(command: Command, times: int) -> str:
    """Kill it so many times, then let it end; what happened, in a line."""
    draw = random.Random(f"{SEED} {command.name}")
    killed = 0
    for _ in range(times):
        process = command.start()
        deadline_s = time.monotonic() + BEGIN_TIMEOUT_S
        while not command.at_work() and process.poll() is None and time.monotonic() < deadline_s:
            time.sleep(LOOK_EVERY_S)
        time.sleep(draw.uniform(0.0, KILL_WITHIN_S[command.name]))
        process.kill()
        code = process.wait()
        killed += code == -signal.SIGKILL
        if code not in (-signal.SIGKILL, 0):
            raise SystemExit(f"{command.name} ended with {code} before it was killed; its log is {command.log}")
    code = command.start().wait()
    if code:
        raise SystemExit(f"{command.name} ended with {code} when it was resumed; its log is {command.log}")
    early = f" ({times - killed} times it had ended by itself)" if killed < times else ""
    return f"{command.name}: killed {killed} times at work and resumed{early}"


def accounts(name: str, wanted: list[str], rows: Counter[str]) -> str:
    """What was lost and doubled."""
    lost, doubled = sum(one not in rows for one in wanted), sum(count - 1 for count in rows.values())
    return f"{name}: {len(wanted)} rows wanted, {lost} lost, {doubled} doubled"


if __name__ == "__main__":
    main()
