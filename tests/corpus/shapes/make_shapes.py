"""Makes the fixtures beside it: for each dataset of the mission a small file in its shape and file type.

    python tests/corpus/shapes/make_shapes.py

The text is ours; the shapes are read off the datasets' cards. What the cards do not say is marked "assumed" below: the
columns of the two agent sets beyond their file names, and how often an odd row comes. Every odd row that is named in a
comment is counted by tests/corpus/test_shapes.py. Nothing is random and nothing is fetched: the same files each time.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl

HERE = Path(__file__).parent
Row = dict[str, Any]

TOPICS = (
    "a harbour at low tide", "the colour of old paper", "a queue with two readers", "the price of a train ticket",
    "how bread rises", "a clock that runs backwards", "the shortest route home", "a garden in three seasons",
    "an empty list", "the weight of a cloud",
)  # fmt: skip
WHATS = (
    "Explain",
    "Write a short story about",
    "Write a Python function for",
    "Prove something about",
    "List facts on",
)


def ask(i: int) -> str:
    return f"{WHATS[i % len(WHATS)]} {TOPICS[i * 3 % len(TOPICS)]}, number {i}."


def answer(i: int) -> str:
    return f"Answer {i}: there is much to say about {TOPICS[i * 3 % len(TOPICS)]}."


# BAAI/Infinity-Instruct, config 0625: parquet; conversations, label, langdetect, source, id


def infinity() -> pl.DataFrame:
    def turn(who: str, value: str | None) -> Row:
        return {"from": who, "value": value}

    chats: list[list[Row] | None] = [[turn("human", ask(i)), turn("gpt", answer(i))] for i in range(24)]
    chats += [
        [t for k in range(3) for t in (turn("human", ask(i + k)), turn("gpt", answer(i + k)))] for i in range(24, 30)
    ]
    chats += [
        [turn("system", "Answer in one line."), turn("human", ask(i)), turn("gpt", answer(i))] for i in range(30, 34)
    ]
    chats += [
        [turn("human", "请用一句话介绍潮汐。"), turn("gpt", "潮汐是海水的涨落。")],
        [turn("human", ask(0)), turn("gpt", "Another answer.")],  # a prompt that was there before
        [turn("gpt", "Hello!"), turn("human", ask(36)), turn("gpt", answer(36))],  # assistant first
        [],  # empty_conversation
        None,  # not_messages
        [turn("human", " \n"), turn("gpt", answer(39))],  # empty_prompt
        [turn("human", None), turn("gpt", answer(40))],  # empty_prompt
        [turn("gpt", "Nobody asked.")],  # no_user_turn
    ]
    abilities = (("programming ability", "code"), ("mathematical calculation", "math"))
    labels: list[Any] = [
        {"ability_en": [ability], "ability_zh": ["能力"], "cate_ability_en": [kind], "cate_ability_zh": ["类别"]}
        for ability, kind in abilities
    ] + [None]
    rows = [
        {
            "conversations": chat,
            "label": labels[i % 3],
            "langdetect": "zh-cn" if i == 34 else "en",
            "source": ("code_exercises", "MetaMath", "flan")[i % 3],
            "id": i,
        }
        for i, chat in enumerate(chats)
    ]
    text_list = pl.List(pl.String)
    return pl.DataFrame(rows, schema={
        "conversations": pl.List(pl.Struct({"from": pl.String, "value": pl.String})),
        "label": pl.Struct(dict.fromkeys(labels[0], text_list)),
        "langdetect": pl.String, "source": pl.String, "id": pl.Int64,
    })  # fmt: skip


# nvidia/Nemotron-Post-Training-Dataset-v2: parquet, one set of files a split


def nemotron(split: str) -> pl.DataFrame:
    def turn(role: str, content: str) -> Row:
        return {"role": role, "content": content}

    start = {"math": 100, "code": 200, "chat": 300, "stem": 400}[split]
    chats = []
    for i in range(start, start + 13):
        thought = f"<think>\nLet me think about {i}.\n</think>\n\n" if i % 2 else "<think>\n\n</think>\n\n"
        chats.append([turn("system", ""), turn("user", ask(i)), turn("assistant", thought + answer(i))])
    if split == "chat":
        chats[4] += [turn("user", "Say it shorter."), turn("assistant", "No.")]
        chats[5][1:1] = [turn("assistant", "How can I help?")]  # assistant first
    if split == "code":
        # assumed of v2; v1 has it: prompts of other datasets are left out, a dash stands for them. They parse, and
        # near_empty drops them
        chats[0][1]["content"] = "-"
    chats.append([turn("user", ask(start + 13))])  # no answer yet
    chats.append([])  # empty_conversation
    rows = [
        {
            "uuid": f"00000000-0000-4000-8000-{start + i:012d}",
            "license": "CC BY 4.0",
            "generator": "DeepSeek-R1-0528" if i % 2 else "Qwen3-235B-A22B",
            "version": "v2",
            "category": split,
            "reasoning": "on" if i % 2 else "off",
            "messages": chat,
        }
        for i, chat in enumerate(chats)
    ]
    columns = ("uuid", "license", "generator", "version", "category", "reasoning")
    turns = pl.List(pl.Struct({"role": pl.String, "content": pl.String}))
    return pl.DataFrame(rows, schema={**dict.fromkeys(columns, pl.String), "messages": turns})


# NousResearch/hermes-function-calling-v1: one JSON file a config


def tool(i: int) -> Row:
    parameters = {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]}
    return {"type": "function", "function": {"name": f"look_up_{i % 4}", "description": "", "parameters": parameters}}


def hermes(config: str) -> list[Row]:
    rows: list[Row] = []
    for i in range(8):
        tools = [tool(i), tool(i + 1)]
        call = f"<tool_call>\n{{'name': 'look_up_{i % 4}', 'arguments': {{'place': 'harbour {i}'}}}}\n</tool_call>"
        rules = f"You call functions. These exist:\n<tools>{tools}</tools>\nWrite each call in <tool_call> tags."
        chat = [("system", rules), ("human", f"{config}: {ask(i)}"), ("gpt", call)]
        if config != "func-calling-singleturn":
            chat += [("tool", '<tool_response>\n{"found": 3}\n</tool_response>'), ("gpt", "Three were found.")]
        if config.startswith("json-mode"):
            schema = {"title": "Place", "type": "object", "properties": {"name": {"type": "string"}}}
            chat = [("system", f"You answer in JSON of this schema:\n<schema>\n{json.dumps(schema)}\n</schema>"),
                    ("human", f"{config}: {ask(i)}"), ("gpt", "{\"name\": \"harbour\"}")]  # fmt: skip
        row: Row = {
            "id": f"{config}-{i}",
            "conversations": [{"from": who, "value": text} for who, text in chat],
            "category": "Travel",
            "subcategory": "Ports",
            "task": "Look up a harbour",
        }
        if not config.startswith("json-mode"):
            row["tools"] = json.dumps(tools)
        rows.append(row)
    if config == "func-calling":
        rows[6]["tools"] = "[{'type': 'function'"  # bad_tools: cut, and Python's quotes
        rows[7]["conversations"] = rows[7]["conversations"][:1]  # no_user_turn
    if config == "glaive-function-calling-5k":
        rows[0]["tools"] = ""  # glaive asks without tools, too
        rows[7]["tools"] = None
    return rows


HERMES = (
    "func-calling-singleturn", "func-calling", "glaive-function-calling-5k", "json-mode-agentic", "json-mode-singleturn"
)  # fmt: skip

# Atum09/agent-training-dataset: data/chatml/train_chatml.jsonl. Assumed: OpenAI's messages with tool_calls

ARGUMENTS: tuple[Any, ...] = (
    {"path": "a.txt"},
    '{"path": "b.txt"}',
    ["ls", "-l"],
    "ls -l",
    7,
    None,
    {"deep": [{"x": None}]},
    True,
)


def agent_training() -> list[Row]:
    rows = []
    for i in range(32):
        arguments = ARGUMENTS[i % len(ARGUMENTS)]
        call = {"id": f"call_{i}", "type": "function", "function": {"name": "shell", "arguments": arguments}}
        messages: list[Row] = [
            {"role": "system", "content": "You are an agent with a shell."},
            {
                "role": "user",
                "content": [{"type": "text", "text": ask(i)}, " Use the shell."] if i % 4 == 1 else ask(i),
            },
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {
                "role": "tool",
                "tool_call_id": f"call_{i}",
                "name": "shell",
                "content": "3 files" if i % 3 else {"files": 3},
            },
            {"role": "assistant", "content": answer(i)},
        ]
        if i % 8 == 6:
            messages += [{"role": "user", "content": "And now?"}, {"role": "assistant", "content": "Done."}]
        rows.append({"id": i, "messages": messages, "tools": [tool(i)] if i % 2 else json.dumps([tool(i)]),
                     "metadata": {"language": "en", "difficulty": i % 5}})  # fmt: skip

    def said(role: str, content: Any, **more: Any) -> Row:
        return {"role": role, "content": content, **more}

    image, nameless = {"type": "image_url", "image_url": {"url": "data:,"}}, {"function": {"arguments": "{}"}}
    odd = [
        [],  # empty_conversation
        [said("system", "You wait."), said("assistant", "Still waiting.")],  # no_user_turn
        [said("assistant", "I am ready."), *rows[0]["messages"][1:]],  # assistant first
        [said("user", "half an emoji \ud83d"), said("assistant", "Thanks.")],  # invalid_unicode
        [said("user", "Thanks."), said("assistant", "half an emoji \ud83d")],  # kept, its answer cannot be
        [said("user", [image])],  # not_text
        [said("user", "Hi"), said("assistant", None, tool_calls=[nameless])],  # bad_tool_call
        [said("narrator", "Night falls."), said("user", "Hi")],  # bad_role
    ]
    return [*rows, *({"id": 32 + i, "messages": messages, "tools": None} for i, messages in enumerate(odd))]


# sammshen/wildclaw-opus-traces: JSON lines. Assumed: OpenClaw's own message format, and its session log's


def openclaw(i: int) -> list[Row]:
    call = {"type": "toolCall", "id": f"toolu_{i}", "name": "exec", "arguments": ARGUMENTS[i % len(ARGUMENTS)]}
    thought = {"type": "thinking", "thinking": "I need to look.", "thinkingSignature": "x"}
    result = {"role": "toolResult", "toolCallId": f"toolu_{i}", "toolName": "exec", "isError": False,
              "content": [{"type": "text", "text": f"{i} lines"}], "details": {"lines": i}}  # fmt: skip
    said: list[Row] = [] if i % 3 else [{"type": "text", "text": "Let me look."}]
    return [
        {"role": "user", "content": [{"type": "text", "text": f"Look after {ask(i)}"}], "timestamp": 1740000000000 + i},
        {"role": "assistant", "content": [thought, *said, call], "stopReason": "toolUse", "usage": {"input": i}},
        result,
        {"role": "assistant", "content": [{"type": "text", "text": answer(i)}], "stopReason": "stop"},
    ]


def wildclaw() -> list[Row]:
    bare = {"name": "exec", "label": "exec", "description": "Runs a command.", "parameters": {"type": "object"}}
    rows: list[Row] = [
        {
            "session_id": f"s{i}",
            "model": "claude-opus",
            "system_prompt": "You are Claw.",
            "tools": [bare],
            "messages": openclaw(i),
        }
        for i in range(16)
    ]
    log = [{"type": "session", "version": 3, "id": "s16"}, {"type": "model_change", "modelId": "claude-opus"}]
    rows += [
        {"session_id": "s16", "events": log + [{"type": "message", "id": "e", "message": m} for m in openclaw(16)]},
        {"session_id": "s17", "trace": {"messages": openclaw(17), "tools": [bare], "system": "You are nested."}},
        {"session_id": "s18", "trajectory": json.dumps(openclaw(18))},
        {"session_id": "s19", "trace": json.dumps({"messages": openclaw(19)})},
        {"session_id": "s20", "system": [{"type": "text", "text": "You are blocks."}],  # Anthropic's
         "tools": [{"name": "exec", "input_schema": {"type": "object"}}],
         "messages": [
             {"role": "user", "content": "Count the lines."},
             {"role": "assistant",
              "content": [{"type": "tool_use", "id": "t", "name": "exec", "input": {"cmd": "wc"}}]},
             {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "9"}]},
             {"role": "assistant", "content": [{"type": "text", "text": "Nine."}]}]},
        {"session_id": "s21", "steps": [  # LangChain's
            {"type": "system", "content": "You are a chain."},
            {"type": "human", "content": "What time is it?"},
            {"type": "ai", "content": "", "tool_calls": [{"name": "clock", "args": {"zone": "UTC"}, "id": "c"}]},
            {"type": "tool", "name": "clock", "tool_call_id": "c", "content": "12:00"},
            {"type": "ai", "content": "It is noon."}]},
        {"session_id": "s22", "agent": {"role": "a researcher", "goal": "find facts", "backstory": "You read much."},
         "task": {"description": "Find three facts on tides.", "expected_output": "A list."},  # CrewAI's
         "raw": "1. They come twice a day."},
        {"session_id": "s23", "messages": [*openclaw(23)[:2], openclaw(23)[2] | {"content": [{"type": "image"}]}]},
        {"session_id": "s24", "messages": [{"role": "user", "content": "A long log: " + "line after line, " * 8_000}]},
        {"session_id": "s25", "messages": []},
        {"session_id": "s26", "messages": None, "error": "the run was aborted"},
        {"session_id": "s27", "messages": [openclaw(27)[0], {"role": "assistant", "content": [], "error": "529"}]},
    ]  # fmt: skip
    return rows


def make(folder: Path) -> None:
    """Write all fixtures into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    infinity().write_parquet(folder / "infinity-instruct-0625.parquet")
    for split in ("math", "code", "chat", "stem"):
        nemotron(split).write_parquet(folder / f"nemotron-v2-{split}.parquet")
    for config in HERMES:
        (folder / f"hermes-{config}.json").write_text(json.dumps(hermes(config), indent=1) + "\n")
    for name, rows in (("agent-training", agent_training()), ("wildclaw-opus", wildclaw())):
        # escapes keep the lone surrogates, as the files on the Hub do
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


if __name__ == "__main__":
    make(HERE)
