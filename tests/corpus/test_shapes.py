"""The five datasets of the mission in their real shapes: recognised, parsed, and every drop has its reason.

The fixtures are ours (shapes/make_shapes.py); read here without draftmill's readers, so that a count that changes
is a change of the formats.
"""

from __future__ import annotations

import json
from collections import Counter
from importlib import util
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from corpus.errors import RowError
from corpus.formats import originals, parse_row, recognise_rows, upstream_id
from corpus.manifest import CATEGORIES
from corpus.manifest_file import load_manifest
from corpus.records import Prompt

SHAPES = Path(__file__).parent / "shapes"
MANIFEST = Path(__file__).parents[2] / "manifests" / "dflash-qwen3.6-27b.yaml"

# file: format, rows kept, turns, recorded prompts, answers of the source's own, reasons of the drops
EXPECTED: dict[str, tuple[str, int, int, int, int, dict[str, int]]] = {
    "infinity-instruct-0625.parquet": (
        "sharegpt", 37, 49, 0, 49, {"empty_conversation": 1, "not_messages": 1, "empty_prompt": 2, "no_user_turn": 1},
    ),
    "nemotron-v2-math.parquet": ("messages", 14, 14, 0, 13, {"empty_conversation": 1}),
    "nemotron-v2-code.parquet": ("messages", 14, 14, 0, 13, {"empty_conversation": 1}),
    "nemotron-v2-chat.parquet": ("messages", 14, 15, 0, 14, {"empty_conversation": 1}),
    "nemotron-v2-stem.parquet": ("messages", 14, 14, 0, 13, {"empty_conversation": 1}),
    "hermes-func-calling-singleturn.json": ("sharegpt", 8, 8, 0, 8, {}),
    "hermes-func-calling.json": ("sharegpt", 6, 12, 6, 12, {"bad_tools": 1, "no_user_turn": 1}),
    "hermes-glaive-function-calling-5k.json": ("sharegpt", 8, 16, 8, 16, {}),
    "hermes-json-mode-agentic.json": ("sharegpt", 8, 8, 0, 8, {}),
    "hermes-json-mode-singleturn.json": ("sharegpt", 8, 8, 0, 8, {}),
    "agent-training.jsonl": (
        "trace", 34, 71, 33, 70,
        {"empty_conversation": 1, "no_user_turn": 1, "invalid_unicode": 1, "not_text": 1, "bad_tool_call": 1,
         "bad_role": 1},
    ),
    "wildclaw-opus.jsonl": ("trace", 25, 47, 22, 45, {"not_text": 1, "empty_conversation": 1, "not_messages": 1}),
}  # fmt: skip


def rows_of(name: str) -> list[dict[str, Any]]:
    path = SHAPES / name
    if path.suffix == ".parquet":
        return list(pl.read_parquet(path).iter_rows(named=True))
    if path.suffix == ".json":
        return list(json.loads(path.read_text()))
    return [json.loads(line) for line in path.read_text().splitlines()]


def form_of(rows: list[dict[str, Any]]) -> Any:
    return recognise_rows(sorted({column for row in rows for column in row}), rows[:20])


def prompts_of(name: str) -> list[Prompt | RowError]:
    rows = rows_of(name)
    form, found = form_of(rows), list[Prompt | RowError]()
    for row in rows:
        try:
            prompt = parse_row(row, form, None)
            assert prompt.prompt_id
            found.append(prompt)
        except RowError as error:
            found.append(error)
    return found


@pytest.mark.parametrize("name", EXPECTED)
def test_every_row_of_a_mission_source_is_a_prompt_or_a_drop_with_its_reason(name: str) -> None:
    form, kept, turns, recorded, answered, reasons = EXPECTED[name]
    rows, found = rows_of(name), prompts_of(name)
    assert form_of(rows) == form
    prompts = [prompt for prompt in found if isinstance(prompt, Prompt)]
    assert Counter(error.reason for error in found if isinstance(error, RowError)) == reasons
    assert (len(prompts), sum(prompt.turns for prompt in prompts)) == (kept, turns)
    assert sum(prompt.recorded for prompt in prompts) == recorded
    own = [originals(row, form, None) for row, prompt in zip(rows, found, strict=True) if isinstance(prompt, Prompt)]
    assert [len(answers) for answers in own] == [prompt.turns for prompt in prompts]
    assert sum(answer is not None for answers in own for answer in answers) == answered


@pytest.mark.parametrize("name", EXPECTED)
@pytest.mark.parametrize("history", ["regenerated", "recorded"])
def test_the_other_history_parses_the_same_rows(name: str, history: Any) -> None:
    rows = rows_of(name)
    form = form_of(rows)
    for row, prompt in zip(rows, prompts_of(name), strict=True):
        if isinstance(prompt, Prompt):
            other = parse_row(row, form, history)
            assert len(originals(row, form, history)) == other.turns
            assert other.user_text() == prompt.user_text()
            assert history == "recorded" or not other.recorded


def test_the_fixtures_are_what_their_maker_makes(tmp_path: Path) -> None:
    spec = util.spec_from_file_location("make_shapes", SHAPES / "make_shapes.py")
    assert spec is not None and spec.loader is not None
    maker = util.module_from_spec(spec)
    spec.loader.exec_module(maker)
    maker.make(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == EXPECTED.keys()
    for name in EXPECTED:
        if name.endswith(".parquet"):  # its bytes are polars' own, and change with its version
            assert pl.read_parquet(tmp_path / name).equals(pl.read_parquet(SHAPES / name))
        else:
            assert (tmp_path / name).read_bytes() == (SHAPES / name).read_bytes()


def test_a_nemotron_row_keeps_its_uuid_and_loses_the_other_models_thoughts() -> None:
    rows = rows_of("nemotron-v2-math.parquet")
    assert upstream_id(rows[3], "messages") == rows[3]["uuid"]
    prompt = parse_row(rows[3], "messages", None)
    assert [message["role"] for message in prompt.messages] == ["system", "user"]
    assert "<think>" not in prompt.shown_text()


def test_a_prompt_that_was_taken_out_of_its_set_is_almost_empty_text() -> None:
    assert parse_row(rows_of("nemotron-v2-code.parquet")[0], "messages", None).user_text() == "-"


def test_hermes_rows_have_their_tools_and_their_calls_as_text() -> None:
    row = rows_of("hermes-func-calling.json")[0]
    prompt = parse_row(row, "sharegpt", None)
    assert [tool["function"]["name"] for tool in prompt.tools] == ["look_up_0", "look_up_1"]
    assert [message["role"] for message in prompt.messages] == ["system", "user", "assistant", "tool"]
    assert prompt.messages[2]["content"].startswith("<tool_call>")
    assert originals(row, "sharegpt", None) == [prompt.messages[2]["content"], "Three were found."]


def test_tool_arguments_of_another_type_in_every_row_are_an_object_or_json_text() -> None:
    prompts = prompts_of("agent-training.jsonl")[:8]
    calls = [prompt.messages[2]["tool_calls"][0]["function"] for prompt in prompts if isinstance(prompt, Prompt)]
    assert [call["arguments"] for call in calls] == [
        {"path": "a.txt"}, {"path": "b.txt"}, '["ls", "-l"]', "ls -l", "7", "null", {"deep": [{"x": None}]}, "true",
    ]  # fmt: skip


def test_every_dialect_of_the_traces_is_the_same_conversation() -> None:
    prompts = prompts_of("wildclaw-opus.jsonl")
    shapes = {}
    for number in (0, 16, 17, 18, 19, 20, 21, 22):
        prompt = prompts[number]
        assert isinstance(prompt, Prompt)
        shapes[number] = "".join(message["role"][0] for message in prompt.messages)
    assert shapes == {0: "suat", 16: "uat", 17: "suat", 18: "uat", 19: "uat", 20: "suat", 21: "suat", 22: "su"}
    openclaw, blocks = prompts[0], prompts[20]
    assert isinstance(openclaw, Prompt) and isinstance(blocks, Prompt)
    assert openclaw.messages[2] == {
        "role": "assistant", "content": "Let me look.",
        "tool_calls": [{"type": "function", "function": {"name": "exec", "arguments": {"path": "a.txt"}}}],
    }  # fmt: skip
    assert openclaw.messages[3] == {"role": "tool", "content": "0 lines", "name": "exec", "tool_call_id": "toolu_0"}
    assert blocks.messages[3] == {"role": "tool", "content": "9", "tool_call_id": "t"}
    assert blocks.tools == ({"type": "function", "function": {"name": "exec", "parameters": {"type": "object"}}},)


def test_the_missions_manifest_declares_its_mix() -> None:
    manifest = load_manifest(MANIFEST)
    assert manifest.mix.total == 900_000
    assert manifest.mix.shares == {"coding": 46, "general": 26, "math": 11, "agent": 9, "code-other": 7}
    assert manifest.mix.shortage == "rescale"
    assert {source.dataset for source in manifest.sources} == {
        "BAAI/Infinity-Instruct",
        "nvidia/Nemotron-Post-Training-Dataset-v2",
        "NousResearch/hermes-function-calling-v1",
        "Atum09/agent-training-dataset",
        "sammshen/wildclaw-opus-traces",
    }
    given = {category for source in manifest.sources for category in manifest.source_categories(source)}
    assert given == set(CATEGORIES) == set(manifest.mix.shares)
    agents = [source for source in manifest.sources if source.category == "agent"]
    assert all(source.history == "recorded" for source in agents if source.config != "func_calling_singleturn")
    assert manifest.decontaminate is not None
    assert len(manifest.decontaminate.against) == 5
