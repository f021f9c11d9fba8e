"""The frozen sample is what LICENSES.md says, in the shapes that real sources have, and fits SmolLM2."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from transformers import AutoTokenizer

DEMO = Path(__file__).parents[2] / "manifests" / "demo"
TEMPLATE = (DEMO / "chat_template.jinja").read_text(encoding="utf-8")
PROMPT_TOKENS = 700
JSON_SCHEMA_TYPES = {"object", "array", "string", "number", "integer", "boolean", "null"}
# `| `file` | rows | … | `sha256` |`
DECLARED = {
    name: (int(rows), sha256)
    for name, rows, sha256 in re.findall(
        r"^\| `([\w.-]+)` \| (\d+) \|.*\| `([0-9a-f]{64})` \|$",
        (DEMO / "LICENSES.md").read_text(encoding="utf-8"),
        flags=re.MULTILINE,
    )
}
FILES = sorted(DECLARED)
DEFAULT_SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
TOOL = {
    "type": "function",
    "function": {"name": "add", "description": "a < b", "parameters": {"type": "object", "properties": {}}},
}


def read(name: str) -> list[dict[str, Any]]:
    path = DEMO / name
    if path.suffix == ".parquet":
        return pl.read_parquet(path).to_dicts()
    return [json.loads(line) for line in gzip.decompress(path.read_bytes()).decode().split("\n") if line]


def messages_of(row: dict[str, Any]) -> list[dict[str, Any]]:
    if "messages" in row:
        return list(row["messages"])
    if "conversations" in row:
        roles = {"system": "system", "human": "user"}
        return [{"role": roles[turn["from"]], "content": turn["value"]} for turn in row["conversations"]]
    return [{"role": "user", "content": row["prompt"]}]


def schemas_in(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield schema
    for inner in schema.get("properties", {}).values():
        yield from schemas_in(inner)
    if "items" in schema:
        yield from schemas_in(schema["items"])


@pytest.fixture(scope="module")
def tokenizer(smollm2_dir: Path) -> Any:
    return AutoTokenizer.from_pretrained(smollm2_dir)


def render(tokenizer: Any, messages: list[dict[str, Any]], **options: Any) -> str:
    return str(tokenizer.apply_chat_template(messages, chat_template=TEMPLATE, tokenize=False, **options)).removeprefix(
        f"<|im_start|>system\n{DEFAULT_SYSTEM}<|im_end|>\n"
    )


def test_every_file_is_declared_with_its_rows_and_checksum() -> None:
    data = [path for path in DEMO.iterdir() if path.suffix in {".gz", ".parquet"}]
    assert {path.name for path in data} == set(DECLARED)
    assert sum(path.stat().st_size for path in data) < 1_000_000
    found = {name: (len(read(name)), hashlib.sha256((DEMO / name).read_bytes()).hexdigest()) for name in FILES}
    assert found == DECLARED
    assert 300 <= sum(rows for rows, _ in DECLARED.values()) <= 500


def test_prompt_files_have_a_prompt_and_an_id_of_their_own() -> None:
    keys = {"coding.jsonl.gz": "task_id", "general-ifbench.parquet": "key", "code-other.parquet": "id"}
    for name, key in keys.items():
        rows = read(name)
        assert all(isinstance(row["prompt"], str) and row["prompt"].strip() for row in rows)
        assert len({row[key] for row in rows}) == len({row["prompt"] for row in rows}) == len(rows)


def test_messages_files_hold_user_turns() -> None:
    mtbench, math = read("general-mtbench.jsonl.gz"), read("math.parquet")
    assert all([turn["role"] for turn in row["messages"]] == ["user", "user"] for row in mtbench)
    assert len({row["question_id"] for row in mtbench}) == len(mtbench)
    assert len({row["category"] for row in mtbench}) == 8
    assert pl.read_parquet_schema(DEMO / "math.parquet")["messages"] == pl.List(
        pl.Struct({"role": pl.String, "content": pl.String})
    )
    assert all([turn["role"] for turn in row["messages"]] == ["user"] for row in math)
    assert len({row["id"] for row in math}) == len(math)


def test_agent_rows_are_sharegpt_with_tools_as_a_json_string() -> None:
    rows = read("agent.jsonl.gz")
    shapes = {tuple(turn["from"] for turn in row["conversations"]) for row in rows}
    assert shapes == {("human",), ("system", "human")}
    for row in rows:
        assert isinstance(row["tools"], str)
        tools = json.loads(row["tools"])
        assert isinstance(tools, list)
        assert tools
        for tool in tools:
            assert tool["type"] == "function"
            function = tool["function"]
            assert function["name"]
            assert function["description"]
            assert function["parameters"]["type"] == "object"
            assert set(function["parameters"].get("required", [])) <= set(function["parameters"]["properties"])
            for schema in schemas_in(function["parameters"]):
                assert schema.get("type", "string") in JSON_SCHEMA_TYPES, row["id"]


@pytest.mark.parametrize("name", FILES)
def test_every_prompt_renders_and_is_short(tokenizer: Any, name: str) -> None:
    for row in read(name):
        messages = messages_of(row)
        tools = json.loads(row["tools"]) if "tools" in row else None
        rendered = render(tokenizer, messages, tools=tools, add_generation_prompt=True)
        assert all(message["content"] in rendered for message in messages)
        assert rendered.endswith("<|im_end|>\n<|im_start|>assistant\n")
        assert len(tokenizer(rendered, add_special_tokens=False)["input_ids"]) <= PROMPT_TOKENS


def test_without_tools_the_template_is_smollm2s_own(tokenizer: Any) -> None:
    chat = [
        {"role": "user", "content": "<b>1 & 2</b>"},
        {"role": "assistant", "content": " three "},
        {"role": "user", "content": "why?"},
    ]
    for messages in (chat, [{"role": "system", "content": "Be brief."}, *chat]):
        for add in (False, True):
            options = {"tokenize": False, "add_generation_prompt": add}
            own = tokenizer.apply_chat_template(messages, **options)
            assert tokenizer.apply_chat_template(messages, chat_template=TEMPLATE, **options) == own


def test_tools_are_listed_in_the_system_turn_one_a_line(tokenizer: Any) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1+2?"}]
    assert render(tokenizer, messages, tools=[TOOL, TOOL], add_generation_prompt=True) == (
        "<|im_start|>system\nBe brief.\n\nYou can call these functions:\n<tools>\n"
        f"{json.dumps(TOOL)}\n{json.dumps(TOOL)}\n</tools>\nAnswer each call as\n"
        '<tool_call>{"name": "FUNCTION", "arguments": {"PARAMETER": "VALUE"}}</tool_call><|im_end|>\n'
        "<|im_start|>user\n1+2?<|im_end|>\n<|im_start|>assistant\n"
    )


@pytest.mark.parametrize("arguments", [{"a": 1, "b": "é"}, '{"a": 1, "b": "é"}'])
def test_tool_calls_make_the_round_trip(tokenizer: Any, arguments: Any) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "add", "arguments": arguments}}
    rendered = render(
        tokenizer,
        [
            {"role": "user", "content": "1+2?"},
            {"role": "assistant", "content": None, "tool_calls": [call, call]},
            {"role": "tool", "content": "3"},
            {"role": "tool", "content": "4"},
            {"role": "assistant", "content": "Again:", "tool_calls": [call]},
            {"role": "tool", "content": [{"type": "text", "text": "5"}]},
            {"role": "assistant", "content": "5"},
        ],
    )
    written = '<tool_call>{"name": "add", "arguments": {"a": 1, "b": "é"}}</tool_call>'
    assert rendered == (
        f"<|im_start|>user\n1+2?<|im_end|>\n<|im_start|>assistant\n{written}\n{written}<|im_end|>\n"
        "<|im_start|>user\n<tool_response>3</tool_response>\n<tool_response>4</tool_response><|im_end|>\n"
        f"<|im_start|>assistant\nAgain:\n{written}<|im_end|>\n"
        "<|im_start|>user\n<tool_response>5</tool_response><|im_end|>\n<|im_start|>assistant\n5<|im_end|>\n"
    )
    calls = [json.loads(text) for text in re.findall(r"<tool_call>(.*?)</tool_call>", rendered)]
    assert calls == [{"name": "add", "arguments": {"a": 1, "b": "é"}}] * 3


@pytest.mark.parametrize(
    ("content", "shown"),
    [
        (None, ""),
        ([], ""),
        ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "ab"),
        (["a"], "a"),
    ],
)
def test_null_and_list_content(tokenizer: Any, content: Any, shown: str) -> None:
    for role in ("user", "assistant"):
        rendered = render(tokenizer, [{"role": role, "content": content}])
        assert rendered == f"<|im_start|>{role}\n{shown}<|im_end|>\n"


def test_a_part_that_is_no_text_is_refused(tokenizer: Any) -> None:
    with pytest.raises(Exception, match="only text parts"):
        render(tokenizer, [{"role": "user", "content": [{"type": "image", "url": "x"}]}])
