"""More of the third set's coding, code-other and agents' prompts: courses, quizzes, tasks with files, queries."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

from tests.labelled.second.drawing import Case, Package, draw_by_package
from tests.labelled.second.reading import (
    Call,
    anywhere,
    asked,
    assigned,
    body,
    calls_anywhere,
    evaluate,
    lettered,
    read_json,
    read_yaml,
    texts,
    user,
)
from tests.labelled.sets import Row, json_lines

from .code import examples, given, rows_of, server, summary
from .mended_code_more import MENDED

SHOWN = (".json", ".txt", ".py", ".csv", ".md", ".log", ".yaml", ".yml", ".conf", ".ini", ".sh", ".html", ".jsonl")


def files_shown(folder: Path, names: str, most: int = 3500) -> str:
    """The files of a folder, fenced, that a task names; none where they are long."""
    files = [one for one in sorted(folder.rglob("*")) if one.suffix in SHOWN and one.name in names]
    shown = "".join(f"\n\n{one.name}:\n```\n{one.read_text().strip()}\n```" for one in files)
    return shown if len(shown) < most else ""


def claw(base: Path) -> Iterator[Case]:
    """Tasks with the files that they are about: those on code, security, systems and formats."""
    tasks = base / "claw_bench-0.1.0.data/data/share/claw-bench/tasks"
    for name, category in (
        ("code-assistance", "coding"),
        ("security", "code-other"),
        ("system-admin", "code-other"),
        ("file-operations", "code-other"),
    ):
        for file in sorted(tasks.glob(f"{name}/*/instruction.md")):
            text = file.read_text().strip()
            shown = files_shown(file.parent / "environment/data", text)
            if shown or ("ead `workspace/" not in text and "given a" not in text):
                yield Case(category, file, 0, user(text + shown))


def norboten(base: Path) -> Iterator[Case]:
    for file in sorted(base.glob("norboten/data/content/quizzes/*.yaml")):
        for index, row in list(enumerate(read_yaml(file)["questions"]))[::6]:
            choices = [str(one["text"]) for one in row.get("choices") or []]
            code = f"\n\n```{row.get('code_lang', '')}\n{row['code'].strip()}\n```\n" if row.get("code") else ""
            yield Case("code-other", file, index, user(lettered(str(row["prompt"]).strip() + code, choices)))


def hallucinated(base: Path) -> Iterator[Case]:
    seen = set()
    for name, start, every in (("control", 0, 13), ("describe", 5, 61), ("specify", 9, 67)):
        file = base / f"libhallubench/data/libhallubench-{name}.jsonl"
        for index, row in list(json_lines(file))[start::every]:
            if row["seed_id"] not in seen and "{<" not in row["prompt"]:
                seen.add(row["seed_id"])
                yield Case("coding", file, index, user(row["prompt"]))


def exercises(base: Path) -> Iterator[Case]:
    file = base / "PyQuestion/__init__.py"
    for index, text in enumerate(assigned(file)["lst"]):
        plain = re.split(r"\nHints?:|\nHints?\b", text)[0].strip('" \n')
        if index % 3 == 0 and len(plain) > 20:
            yield Case("coding", file, index, user(plain))


def pybyu(base: Path) -> Iterator[Case]:
    """Tasks and questions of a course, every eighth of each topic's."""
    for file in sorted(base.glob("pybyu/content/*.py")):
        rows = anywhere(file, ast.Dict)
        tasks = [one for one in rows if isinstance(one.get("instruction"), str)]
        quiz = [one for one in rows if isinstance(one.get("question"), str) and texts(one.get("options"))]
        for index, row in list(enumerate(tasks))[::6]:
            yield Case("coding", file, index, user(row["instruction"], "Python exercise"))
        for index, row in list(enumerate(quiz))[::10]:
            yield Case("code-other", file, 100 + index, user(lettered(row["question"], row["options"])))


def pylearn(base: Path) -> Iterator[Case]:
    for file in sorted(base.glob("pylearn/curriculum/*/__init__.py")):
        for index, call in enumerate(calls_anywhere(file, "Exercise")):
            text, code = call.named.get("description"), call.named.get("starter_code")
            if isinstance(text, str):
                starter = f"\n\n```python\n{code.strip()}\n```" if isinstance(code, str) and code.strip() else ""
                yield Case("coding", file, index, user(text + starter))
        for index, call in enumerate(calls_anywhere(file, "QuizQuestion")):
            text, options = call.named.get("question"), call.named.get("options")
            if isinstance(text, str) and texts(options):
                yield Case("code-other", file, 100 + index, user("\n".join([text, *list(options or [])])))


def circuits(base: Path) -> Iterator[Case]:
    """Circuits to be written as code in tscircuit, as the package asks for them."""
    for file in sorted(base.glob("package/benchmarks/problem-sets/*.toml")):
        for index, row in enumerate(tomllib.loads(file.read_text())["problems"]):
            head = "Please create a circuit board in tscircuit with the user-provided description."
            yield Case("coding", file, index, user(row["prompt"], head))


def wave(base: Path) -> Iterator[Case]:
    file = base / "h2o_wave_university-1.8.16.data/data/h2o_wave_university/static/component_snippets.json"
    rows = [row["description"] for row in read_json(file).values()]
    for index, text in list(enumerate(rows))[::15]:
        yield Case("coding", file, index, user(text, "Code for H2O Wave apps in Python"))


def aria(base: Path) -> Iterator[Case]:
    """Questions about health data, below the package's own instruction (without its schema)."""
    file = base / "ariasql/eval_runner.py"
    head = "You are an expert SQL analyst. You MUST only generate SELECT statements or WITH (CTE) + SELECT."
    for index, call in enumerate(calls_anywhere(file, "TestCase")):
        text = call.named.get("question")
        if isinstance(text, str):
            yield Case("code-other", file, index, user(text, head))


def traces(base: Path) -> Iterator[Case]:
    """Conversations up to the last turn that is not the assistant's."""
    file = base / "trace2train/demo/sample_traces.jsonl"
    for index, row in json_lines(file):
        turns = [{"role": one["role"], "content": one["content"].strip()} for one in row["messages"]]
        while turns and turns[-1]["role"] == "assistant":
            turns.pop()
        if len(turns) > 1:
            yield Case("agent", file, index, turns)


def routed(base: Path) -> Iterator[Case]:
    """Tasks for an assistant whose tools search for tools."""
    system = assigned(base / "tool_router_sim/config.py")["TOOL_ROUTER_SYSTEM_PROMPT"]
    returned = body(base / "tool_router_sim/simulator/runner.py", "get_tool_definitions")
    tools = next(evaluate(one.value, {}) for one in returned if isinstance(one, ast.Return))
    file = base / "tool_router_sim/benchmark/tasks.py"
    for index, call in enumerate(calls_anywhere(file, "BenchmarkTask")):
        text = call.named.get("task")
        if isinstance(text, str):
            yield Case("agent", file, index, user(text, system), tools)


def squaz(base: Path) -> Iterator[Case]:
    file = base / "quiz/QUESTIONS.toml"
    topics = tomllib.loads(file.read_text())
    for index, (topic, row) in enumerate((topic, row) for topic, one in topics.items() for row in one["questions"]):
        options = sorted({one for one in [*row.get("answers", []), *row.get("alternatives", [])] if len(one) > 1})
        if len(options) > 2 and "question" in row:
            category = "code-other" if topic == "python" else "general"
            yield Case(category, file, index, user(lettered(row["question"], options)))


def schedules(base: Path) -> Iterator[Case]:
    for index, text in enumerate(dict.fromkeys(re.findall(r'"(Every [^"]+)"', page(base)))):
        yield Case("code-other", next(base.glob("*.dist-info/METADATA")), index, user(text, summary(base)))


def specified(base: Path) -> Iterator[Case]:
    """Challenges in security, with what they specify and the files that they are about."""
    for file in sorted(base.glob("agentsec/challenges/*/*/challenge.json")):
        row = read_json(file)
        names = " ".join(row.get("files", {}).values())
        writes = file.parent.parent.name in ("secure_coding", "defensive")
        text = row["prompt"].strip() + files_shown(file.parent, names)
        yield Case("coding" if writes else "code-other", file, 0, user(text))


def odoo(base: Path) -> Iterator[Case]:
    """Requests in Spanish to an agent that works with a command line's skill."""
    for file in sorted(base.glob("**/evals/evals.json")):
        for index, row in enumerate(read_json(file)["evals"]):
            yield Case("code-other", file, index, user(row["prompt"]))


def testbed(base: Path) -> Iterator[Case]:
    file = base / "intercode/assets/datasets/bash_queries.json"
    for index, row in enumerate(read_json(file)):
        yield Case("code-other", file, index, user(row["query"], "Bash: the task is done with a command."))


def levels(base: Path) -> Iterator[Case]:
    """Levels of a game about git: what is to be reached."""
    for file in sorted(base.glob("gitgud/skills/*/_*/goal.txt")):
        told = file.with_name("explanation.txt")
        text = told.read_text().split(">>>")[-1].strip() if told.exists() else ""
        yield Case("code-other", file, 0, user(f"{text}\n\nGoal: {file.read_text().strip()}".strip(), summary(base)))


def packs(base: Path) -> Iterator[Case]:
    file = base / "sqlagent/hub.py"
    for index, row in enumerate(anywhere(file, ast.Call)):
        text = row.named.get("nl_query") if isinstance(row, Call) else None
        if isinstance(text, str):
            yield Case("code-other", file, index, user(text, summary(base)))


def ebpf(base: Path) -> Iterator[Case]:
    """Requests of its page, with a dozen tracing tools as functions."""
    functions = read_json(base / "data_save/funcs.json")[:12]
    tools = [{"type": "function", "function": one} for one in functions]
    for index, text in enumerate(re.findall(r'(?:gpttrace|GPTtrace)[^\n"]*"([^"\n]{10,200})"', page(base))):
        yield Case("agent", next(base.glob("*.dist-info/METADATA")), index, user(text), tools)


def page(base: Path) -> str:
    return next(base.glob("*.dist-info/METADATA")).read_text()


def assessment(base: Path) -> Iterator[Case]:
    file = base / "alo/assessment.py"
    for index, call in enumerate(calls_anywhere(file, "AssessmentQuestion")):
        if texts(call.named.get("choices")):
            yield Case("code-other", file, index, user(lettered(call.named["question"], call.named["choices"])))


def mini(base: Path) -> Iterator[Case]:
    for file in sorted(base.glob("inferencebench_code/datasets/*.jsonl")):
        for index, row in json_lines(file):
            yield Case("coding", file, index, asked(row["prompt"].strip()))


def red_team(base: Path) -> Iterator[Case]:
    """Requests that a shop's assistant is tested with."""
    for file in sorted(base.glob("agentic_redteam/payloads/*.yaml")):
        category = "code-other" if file.stem == "code_safety" else "general"
        rows = read_yaml(file)
        for index, row in list(enumerate(rows))[:: 1 if category == "code-other" else 6]:
            text = (row.get("vars") or {}).get("query")
            if isinstance(text, str):
                yield Case(category, file, index, user(text))


def golden(base: Path) -> Iterator[Case]:
    """Golden questions, in Chinese."""
    file = base / "forge/eval.py"
    for index, row in enumerate(anywhere(file, ast.Dict)):
        if isinstance(row.get("task"), str):
            yield Case("general", file, index, user(row["task"]))


SERVERS = {
    "ableton-mcp-extended": ("2.2.0", "MIT"),
    "awslabs-valkey-mcp-server": ("1.1.1", "Apache-2.0"),
    "azure-finops-mcp-server": ("2.0.0", "MIT"),
    "loenn-mcp": ("5.2.0", "MIT"),
    "lunar-mcp-server": ("1.2.1", "MIT"),
    "mcp-msdefenderkql": ("1.0.2", "MIT"),
    "mcp-sql-querystore": ("0.1.1", "MIT"),
    "news-monitor-mcp": ("0.4.0", "MIT"),
    "orange-k8s-mcp-server": ("1.1.0", "MIT"),
    "pptx-mcp": ("0.18.0", "MIT"),
    "sap-datasphere-mcp": ("2.0.3", "MIT"),
}
"""Servers of the Model Context Protocol, with their version and licence."""

PACKAGES = {
    "aaws": Package("0.3.0", "MIT", examples("code-other"), 15),
    "agentsec-bench": Package("0.1.2", "MIT", specified),
    "aerrik": Package("5.4.0", "MIT", examples("coding", False), 10),
    "agentic-redteam": Package("1.0.0", "MIT", red_team, 25),
    "alo-learning-os": Package("1.1.2", "MIT", assessment),
    "ariasql": Package("1.0.1", "MIT", aria, 24),
    "asksh": Package("1.1.0", "MIT", examples("code-other"), 10),
    "autobolt-cli": Package("0.1.0", "MIT", rows_of(
        "coding", "distributed_agents/benchmark.py", ast.Call, given("description", "BenchmarkTask"))
    ),
    "cachellm-proxy": Package("0.3.0", "MIT", examples("code-other", False), 15),
    "castwright": Package("0.3.0", "Apache-2.0", examples("code-other", False)),
    "claw-bench": Package("0.1.0", "Apache-2.0", claw, 45),
    "cli-modelarium": Package("0.2.0", "Apache-2.0", examples("code-other", False), 12),
    "cmdo-cli": Package("0.1.0", "MIT", examples("code-other"), 10),
    "coding-router": Package("0.5.0", "MIT", examples("coding", False), 10),
    "commandrex": Package("0.2", "MIT", examples("code-other"), 12),
    "composio-tool-router-sim": Package("0.1.0", "MIT", routed, 20),
    "conclave-cli": Package("1.3.0", "MIT", examples("code-other", False)),
    "doforme": Package("0.1.3", "MIT", examples("code-other"), 14),
    "git-gud": Package("0.4.5", "MIT", levels, 20),
    "gpttrace": Package("0.1.2", "MIT", ebpf, 12),
    "h2o-wave-university": Package("1.8.16", "Apache-2.0", wave),
    "handcraft-agent": Package("0.5.1", "MIT", golden),
    "inferencebench-code": Package("0.1.0", "Apache-2.0", mini),
    "intercode-bench": Package("0.1.22", "MIT", testbed, 24),
    "libhallubench": Package("1.0.2", "CC-BY-4.0", hallucinated, 40),
    "llm-benchmarker": Package("0.1.0", "MIT", examples("code-other", False)),
    "llm-cache-router": Package("0.3.2", "MIT", examples("code-other", False)),
    "mongosense": Package("0.1.0", "MIT", examples("code-other"), 8),
    "norboten": Package("0.2.0", "Apache-2.0", norboten, 40),
    "npm/@tscircuit/prompt-benchmarks": Package("0.0.44", "MIT", circuits, 36),
    "oiko-query-builder": Package("0.3.0", "MIT", examples("code-other"), 10),
    "odoo-mcp-multi": Package("0.18.0", "MIT", odoo),
    "openadapt-consilium": Package("0.4.1", "MIT", examples("code-other", False)),
    "ora-sql": Package("2.1.2", "MIT", packs, 20),
    "praisonaibench": Package("0.1.1", "MIT", examples("coding", False), 12),
    "pybyu": Package("0.1.0", "MIT", pybyu, 60),
    "pylearn-cli": Package("1.0.0", "MIT", pylearn, 60),
    "pyquestion": Package("0.1.0", "Apache-2.0", exercises, 40),
    "pyslop-cronslator": Package("0.2.3", "CC0-1.0", schedules),
    "query-crafter-cli": Package("0.1.0", "MIT", examples("code-other"), 15),
    "queryclaw": Package("0.5.16", "Apache-2.0", examples("code-other"), 8),
    "rawdog-ai": Package("0.1.6", "MIT", examples("code-other"), 8),
    "selenium-ai-agent": Package("1.0.0", "MIT", examples("coding", False), 12),
    "squaz": Package("0.1.2", "MIT", squaz),
    "terra-tai": Package("0.1.0", "MIT", examples("code-other"), 8),
    "trace2train": Package("0.1.0", "MIT", traces, 18),
} | {name: Package(version, licence, server(), 13) for name, (version, licence) in SERVERS.items()}  # fmt: skip


def rows(folder: Path) -> list[Row]:
    return draw_by_package(folder, PACKAGES, MENDED)
