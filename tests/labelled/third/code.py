"""The third set's coding, code-other and agents' prompts: readers of packages, most of them of few rows."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.labelled.second.drawing import Case, Package, draw_by_package
from tests.labelled.second.reading import (
    TYPES,
    Call,
    anywhere,
    assigned,
    calls_anywhere,
    evaluate,
    function,
    known,
    lettered,
    read_json,
    texts,
    tree,
    user,
)
from tests.labelled.sets import Row, json_lines

from .mended_code import MENDED

Reader = Callable[[Path], Iterator[Case]]

ASKS = re.compile(
    r"(What|Which|Who|When|Where|Why|How|Is|Are|Do|Does|Did|Can|Could|Show|List|Find|Get|Give|Create|Make|Build|Add|Set|"
    r"Search|Read|Write|Check|Compare|Analyze|Explain|Summarize|Describe|Calculate|Compute|Generate|Run|Help|Design|"
    r"Convert|Delete|Remove|Update|Estimate|Render|Validate|Plot|Start|Stop|Open|Ramp|Move|Send|Export|Debug|Fix|"
    r"Deploy|Containerize|Review|Identify|Tell|Use|Count|Monitor|Import|Apply|Test|Take|Query|Plan|Optimi[sz]e|Any|"
    r"Refactor|Implement|Extract|Top|Scan|Install|Solve|Record|Log|Play|Schedule|Implement|Fetch|Look)\b",
    re.I,
)


def about(base: Path) -> Path:
    """The page that a package shows at the registry."""
    return next(base.glob("*.dist-info/METADATA"))


def said(pattern: str = r'["“]([^"“”\n]{12,400})["”]') -> Callable[[Path], Iterator[tuple[int, str]]]:
    """What a package's page gives as things to ask: what the pattern finds there, where it asks for something."""

    def find(base: Path) -> Iterator[tuple[int, str]]:
        for index, text in enumerate(re.findall(pattern, about(base).read_text(), re.M)):
            plain = re.sub(r"[*`]{2,}|^[`\s>]+|[`\s]+$", "", text)
            if ASKS.match(plain) and len(plain.split()) > 2 and not re.search(r"[{}<>]|\\n", plain):
                yield index, plain

    return find


ITEMS = r'^\s*(?:[-*>]|\d+\.)\s+["“`*_]*([A-Z][^\n]{10,300}?)["”`*_]*$'


def summary(base: Path) -> str:
    found = re.search(r"^Summary: (.*)$", about(base).read_text(), re.M)
    return found[1].strip() if found else ""


def examples(category: str, described: bool = True) -> Reader:
    """What to ask a program, as its page says it; what the program is for stands above it."""

    def read(base: Path) -> Iterator[Case]:
        for index, text in said()(base):
            yield Case(category, about(base), index, user(text, summary(base) if described else None))

    return read


def schema(node: ast.FunctionDef | ast.AsyncFunctionDef) -> Row:
    """A function offered as a tool: its name, the first paragraph of what describes it, its arguments."""
    given = [one for one in node.args.args + node.args.kwonlyargs if one.arg not in ("self", "ctx", "context")]
    bare = len(node.args.args) - len(node.args.defaults)
    required = [one.arg for one in node.args.args[:bare] if one in given]
    kinds = {one.arg: re.match(r"\w*", ast.unparse(one.annotation) if one.annotation else "str") for one in given}
    properties = {name: {"type": TYPES.get(kind[0] if kind else "", "string")} for name, kind in kinds.items()}
    decorators = [evaluate(one, {}) for one in node.decorator_list]
    described = [one.named["description"] for one in decorators if isinstance(one, Call) and "description" in one.named]
    first = (ast.get_docstring(node) or next(filter(texts_only, described), "")).split("\n\n")[0]
    return function(node.name, re.sub(r"\s+", " ", first), properties, required)


def texts_only(value: Any) -> bool:
    return isinstance(value, str)


MOST_TOOLS = 12
FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef


def parsing(base: Path) -> Iterator[tuple[Path, ast.Module]]:
    """A package's modules, those that this Python can parse."""
    for file in sorted(base.rglob("*.py")):
        with suppress(SyntaxError):
            yield file, tree(file)


def handed(node: ast.Call) -> str:
    """The name of the function that is made a tool by a call: add_tool(f), or tool(...)(f)."""
    made = node.func.func if isinstance(node.func, ast.Call) else node.func
    first = node.args[0] if node.args else None
    wanted = "tool" if isinstance(node.func, ast.Call) else "add_tool"
    return first.id if isinstance(first, ast.Name) and getattr(made, "attr", "") == wanted else ""


def served(base: Path) -> list[Row]:
    """The first tools that a server of the Model Context Protocol offers: decorated functions, or Tool(...)."""
    found = []
    defined = [one for _, parsed in parsing(base) for one in ast.walk(parsed) if isinstance(one, FUNCTIONS)]
    for file, parsed in parsing(base):
        for node in ast.walk(parsed):
            if isinstance(node, FUNCTIONS):
                if any(re.search(r"\btool\b", ast.unparse(one)) for one in node.decorator_list):
                    found.append(schema(node))
            elif isinstance(node, ast.Call) and (name := handed(node)):
                found += [schema(one) for one in defined if one.name == name]
            elif isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) == "Tool":
                call = evaluate(node, assigned(file))
                if isinstance(call, Call) and known([call.named.get("name"), call.named.get("inputSchema")]):
                    given = call.named.get("inputSchema") or {}
                    if call.named.get("name") and isinstance(call.named.get("description"), str):
                        required = given.get("required", [])
                        head = call.named["name"], call.named["description"].strip()
                        found.append(function(*head, given.get("properties", {}), required))
    names: dict[str, Row] = {one["function"]["name"]: one for one in found if one["function"]["description"]}
    return list(names.values())[:MOST_TOOLS]


def server(pattern: str | None = None) -> Reader:
    """What to ask an assistant that has a server's tools, as the server's page says it."""

    def read(base: Path) -> Iterator[Case]:
        tools = served(base)
        for index, text in (said(pattern) if pattern else said())(base):
            yield Case("agent", about(base), index, user(text), tools)

    return read


def whole(pattern: str, category: str = "coding", end: str = "$^", head: str = "$^") -> Reader:
    """Exercises, one a file: all of it but its `head`, up to where `end` is found."""

    def read(base: Path) -> Iterator[Case]:
        for file in sorted(base.glob(pattern)):
            text = re.sub(rf"\A{head}", "", re.split(end, file.read_text())[0], flags=re.S).strip()
            if len(text) > 20:
                yield Case(category, file, 0, user(text))

    return read


FRONT = r"---\n.*?\n---\n"
TESTS = r'\n"""\n-{5}'


def rows_of(category: str, file: str, kinds: type[ast.AST], make: Callable[[Any], str | None]) -> Reader:
    """What is made of a module's literals or calls."""

    def read(base: Path) -> Iterator[Case]:
        for index, value in enumerate(anywhere(base / file, kinds, assigned(base / file))):
            if text := make(value):
                yield Case(category, base / file, index, user(text))

    return read


def given(name: str, call: str) -> Callable[[Any], str | None]:
    """A named argument of a call, where it is a text."""

    def make(value: Any) -> str | None:
        text = value.named.get(name) if isinstance(value, Call) and value.name == call else None
        return text if isinstance(text, str) else None

    return make


def together(*readers: Reader) -> Reader:
    def read(base: Path) -> Iterator[Case]:
        for one in readers:
            yield from one(base)

    return read


def gptme(base: Path) -> Iterator[Case]:
    """Tasks with the files that they are about."""
    suites = base / "gptme/eval/suites"
    for file in sorted([*suites.glob("*.py"), *suites.glob("behavioral/*.py")]):
        for index, row in enumerate(anywhere(file, ast.Dict, assigned(file))):
            if isinstance(row.get("prompt"), str):
                files = row.get("files") if isinstance(row.get("files"), dict) else {}
                texts = {name: text for name, text in files.items() if isinstance(name, str) and isinstance(text, str)}
                shown = "".join(f"\n\n{name}:\n```\n{text.strip()}\n```" for name, text in texts.items())
                yield Case("coding", file, index, user(row["prompt"] + shown))


def verilog(base: Path) -> Iterator[Case]:
    file = base / "bigcode_eval/tasks/datasets/verilog/VerilogDescription_Human.jsonl"
    for index, row in json_lines(file):
        head = "Implement the Verilog module based on the following description. Assume that signals are positive "
        head += "clock/clk edge triggered unless otherwise stated."
        yield Case("coding", file, index, user(f"{head}\n{row['detail_description']}"))


def atomics(base: Path) -> Iterator[Case]:
    folder = base / "atomics/eval"
    for file, call, category in (
        (folder / "fixtures.py", "EvalFixture", "code-other"),
        (folder / "refusal/fixtures.py", "RefusalFixture", "code-other"),
    ):
        for index, row in enumerate(calls_anywhere(file, call)):
            yield Case(category, file, index, user(row.named["prompt"]))
    file = folder / "codegen/fixtures.py"
    for index, row in enumerate(calls_anywhere(file, "CodegenFixture")):
        yield Case("coding", file, index, user(f"{row.named['description']}\n\n{row.named['signature']}"))
    file = folder / "codereview/fixtures.py"
    for index, row in enumerate(calls_anywhere(file, "SecureCodeFixture")):
        code = f"```{row.named['language']}\n{row.named['code'].strip()}\n```"
        head = f"Perform a security review of the following {row.named['language']} {row.named['mode']}."
        tail = "List any security vulnerabilities you find, name the vulnerability class, and recommend a fix."
        yield Case("code-other", file, index, user(f"{head}\n\n{code}\n\n{tail}"))
    file = folder / "multiturn/fixtures.py"
    for index, row in enumerate(calls_anywhere(file, "ConversationFixture")):
        turn = row.named["turns"][0].named["user_message"]
        yield Case("code-other", file, index, user(turn, row.named.get("system_prompt")))
    file = folder / "toolcall/fixtures.py"
    catalog = assigned(folder / "toolcall/catalog.py")["CATALOG"]
    for index, row in enumerate(calls_anywhere(file, "ToolCallFixture")):
        tools = [{"type": "function", "function": catalog[name]} for name in row.named["tools"]]
        yield Case("agent", file, index, user(row.named["prompt"]), tools)


def onset(base: Path) -> Iterator[Case]:
    """What is asked of a small model that has these tools: their classes, one a module."""
    tools = []
    for file in sorted(base.glob("onsetlab/tools/*.py")):
        for node in ast.walk(tree(file)):
            if isinstance(node, ast.ClassDef) and node.name != "BaseTool":
                names = {key: value for key, value in class_texts(node).items() if known(value)}
                returned = [one.value for one in ast.walk(node) if isinstance(one, ast.Return)]
                shapes = [evaluate(one, {}) for one in returned if isinstance(one, ast.Dict)]
                shape = next((one for one in shapes if isinstance(one.get("properties"), dict)), None)
                if shape and "description" in names:
                    properties = shape["properties"] if known(shape["properties"]) else {}
                    required = shape.get("required") if texts(shape.get("required")) else []
                    tools.append(function(names["name"], names["description"], properties, required or []))
    file = base / "onsetlab/benchmark/tests/suite.json"
    for index, row in enumerate(read_json(file)):
        yield Case("agent", file, index, user(row["query"]), tools)


def class_texts(node: ast.ClassDef) -> Row:
    return {
        one.targets[0].id: evaluate(one.value, {})
        for one in node.body
        if isinstance(one, ast.Assign) and isinstance(one.targets[0], ast.Name)
    }


def emox(base: Path) -> Iterator[Case]:
    suites = base / "emox/data/suites"
    file = suites / "code-bench-25/cases.py"
    names = assigned(file)
    returned = [node for node in ast.walk(tree(file)) if isinstance(node, ast.Return)]
    for index, node in enumerate(sorted(returned, key=lambda one: one.lineno)):
        value = evaluate(node.value, names)
        if isinstance(value, Call) and value.name == "_user" and known(value.given):
            yield Case("coding", file, index, user(value.given[0]))
    file = suites / "security/cases.py"
    for index, text in enumerate(assigned(file)["S1_BENIGN"]):
        yield Case("general", file, index, user(text))


def practicals(base: Path) -> Iterator[Case]:
    file = base / "ai_practicals/_codes.py"
    described = re.search(r"^DESCRIPTIONS = (\{.*?^\})", file.read_text(), re.S | re.M)
    lines = re.findall(r"\d: (['\"])(.*)\1,$", described[1] if described else "", re.M)
    for index, (_, text) in enumerate(lines):
        yield Case("coding", file, index, user(text, summary(base)))


def labs(base: Path) -> Iterator[Case]:
    for file in sorted(base.glob("bcsl607_ml/labs/*.py")):
        if asked := re.search(r"Question:\n(.*?)\"\"\"", file.read_text(), re.S):
            yield Case("coding", file, 0, user(re.sub(r"^ +", "", asked[1], flags=re.M), summary(base)))


def programs(base: Path) -> Iterator[Case]:
    file = base / "aiml/programs.py"
    asked = re.findall(r'return """\n(.*?)\n *(?:Python Code|Code|Program):', file.read_text(), re.S)
    for index, text in enumerate(asked):
        yield Case("coding", file, index, user(re.sub(r"\s+", " ", text)))


def cli_quiz(base: Path) -> Iterator[Case]:
    file = base / "djinn/core/games.py"
    for index, row in enumerate(anywhere(file, ast.Dict)):
        if texts(row.get("options")):
            yield Case("code-other", file, index, user(lettered(row["q"], row["options"])))


def dolphin(base: Path) -> Iterator[Case]:
    for file in sorted(base.glob("dolphindb_skill_installer/skills/dolphindb/evals/tasks/*.md")):
        if asked := re.search(r"^## Prompt\n(.*?)^## ", file.read_text(), re.S | re.M):
            yield Case("code-other", file, 0, user(f"In DolphinDB: {asked[1].strip()}"))


def skills(base: Path) -> Iterator[Case]:
    """What should lead to one skill or another; the skill itself is not shown."""
    for file in sorted(base.glob("agtmls/_registry/evals/cases/*.json")):
        data = read_json(file)
        for index, text in enumerate([*data["positive"], *(one["prompt"] for one in data["negative"])]):
            if not re.match("use ", text, re.I) and data["skill"] not in text.replace(" ", "-"):
                yield Case("code-other", file, index, user(text))


def zap(base: Path) -> Iterator[Case]:
    for file in sorted(base.glob("zapgpt/prompts/*.json")):
        row = read_json(file)
        if row.get("assistant_input") and row.get("system_prompt"):
            yield Case("code-other", file, 0, user(row["assistant_input"], row["system_prompt"]))


def interview(base: Path) -> Iterator[Case]:
    file = base / "interview_rag_server/data/questions.json"
    for index, row in enumerate(next(iter(read_json(file).values()))):
        yield Case("code-other", file, index, user(row["question"]))


def routed(base: Path) -> Iterator[Case]:
    file = base / "claude_router/eval_prompts.json"
    for index, row in enumerate(read_json(file)["cases"]):
        yield Case("general", file, index, user(row["prompt"]))


def demo_shell(base: Path) -> Iterator[Case]:
    file = base / "ai_shell/demo_mode.py"
    for row in anywhere(file, ast.Dict):
        for index, text in enumerate(row if "show disk usage" in row else []):
            yield Case("code-other", file, index, user(text, summary(base)))


def react(base: Path) -> Iterator[Case]:
    """Questions of its page, under the template that asks for Thought, Action and Action Input."""
    prompt = assigned(base / "agentforge/core/prompts.py")["REACT_SYSTEM_PROMPT"]
    tools: dict[str, str] = {}
    for file in sorted(base.glob("agentforge/tools/*.py")):
        for node in ast.walk(tree(file)):
            if isinstance(node, ast.ClassDef):
                names = class_texts(node)
                if isinstance(names.get("name"), str) and isinstance(names.get("description"), str):
                    tools[names["name"]] = names["description"]
    block = "\n".join(f"- {name}: {text}" for name, text in tools.items())
    for index, text in said()(base):
        turns = user(f"Question: {text}\n\nThought:", prompt.format(tool_block=block, tool_names=", ".join(tools)))
        yield Case("agent", about(base), index, turns)


def primer(base: Path) -> Iterator[Case]:
    """Questions for children with their options: all on coding, every fourth of mathematics and science."""
    for name, category, every in (
        ("coding_basics", "code-other", 1),
        ("math_advanced", "math", 4),
        ("science", "general", 4),
    ):
        file = base / f"primer_game/skill-packs/{name}/zones.py"
        listed = [row for zone in assigned(file)["ZONES"].values() for row in zone["challenges"]]
        for index, row in list(enumerate(listed))[::every]:
            if texts(row.get("options")):
                text = lettered(row["question"], row["options"])
                yield Case(category, file, index, user(re.sub(r"\[/?bold[^\]]*\]", "", text)))


def red_team(base: Path) -> Iterator[Case]:
    """Questions in Chinese: on security that may be answered, and requests that should not."""
    for name, every in (("over_refusal", 15), ("insecure_output", 20), ("supply_chain", 20)):
        file = base / f"agent_redteam/suites/{name}/data.jsonl"
        for index, row in list(json_lines(file))[::every]:
            yield Case("code-other", file, index, user(row["question"]))


def commands(base: Path) -> Iterator[Case]:
    """The two forms of question that the package's quiz asks about the commands that it knows."""
    file = base / "package/scripts/knowledge_base.py"
    for index, (name, row) in enumerate(sorted(assigned(file)["COMMAND_DB"].items())):
        flags, patterns = row.get("flags") or {}, row.get("common_patterns") or []
        if index % 2 and flags:
            wanted = str(flags[sorted(flags)[index % len(flags)]]).lower()
            text = f"You want to **{wanted}** when using `{name}`. Which flag should you use?"
            yield Case("code-other", file, index, user(text))
        elif texts(patterns) and patterns:
            shown = patterns[index % len(patterns)].split("#")[0].strip()
            yield Case("code-other", file, index, user(f"What does this command do?\n\n```bash\n{shown}\n```"))


SERVERS = {
    "abs-mcp": ("0.13.15", "MIT"),
    "ableton-mcp-server": ("0.1.0", "MIT"),
    "airtable-mcp": ("0.1.3", "MIT"),
    "apra-mcp": ("0.8.29", "MIT"),
    "arxiv-research-mcp": ("1.0.0", "MIT"),
    "au-weather-mcp": ("0.4.10", "MIT"),
    "aws-calculator-mcp": ("1.3.4", "MIT"),
    "aws-finops-mcp-server": ("0.1.1", "MIT"),
    "aws-health-mcp-server": ("2.0.0", "MIT-0"),
    "aws-iac-cost-estimator-mcp-server": ("0.1.1", "Apache-2.0"),
    "awslabs-dynamodb-mcp-server": ("2.1.8", "Apache-2.0"),
    "awslabs-ecs-mcp-server": ("0.1.37", "Apache-2.0"),
    "blender-fx-mcp": ("0.7.0", "MIT"),
    "blender-mcp-server": ("0.2.0", "MIT"),
    "ctags-mcp": ("1.0.0", "MIT"),
    "diagrams-mcp-server": ("0.3.0", "MIT"),
    "elasticsearch-mcp": ("0.1.1", "Apache-2.0"),
    "federal-register-mcp": ("1.0.20", "MIT"),
    "frappe-crm-mcp": ("0.0.6", "MIT"),
    "geoseo-mcp": ("0.4.0", "MIT"),
    "github-repo-explainer-mcp": ("0.1.0", "MIT"),
    "harvard-library-mcp": ("0.1.1", "MIT"),
    "hubstaff-mcp": ("0.1.3", "MIT"),
    "ipl-text2sql-mcp": ("0.1.0", "MIT"),
    "kubernetes-readonly-mcp": ("0.2.1", "Apache-2.0"),
    "labmcp-modbus": ("0.1.3", "Apache-2.0"),
    "matlab-mcp-python": ("2.1.0", "MIT"),
    "mcp-bitbucket-dc": ("1.0.1", "MIT"),
    "mcp-deutsche-bahn": ("0.2.0", "MIT"),
    "mcfortigate": ("2026.9.12.1", "Apache-2.0"),
    "mlflow-mcp-server": ("0.1.1", "MIT"),
    "nativ-mcp": ("0.5.0", "MIT"),
    "obsidian-mcp": ("2.1.6", "MIT"),
    "openai-image-mcp": ("0.2.1", "MIT"),
    "prometheus-mcp": ("0.5.0", "MIT"),
    "ros2-inspector-mcp": ("0.3.1", "MIT"),
    "steamworks-mcp": ("0.4.0", "MIT"),
    "uefn-mcp": ("0.1.6", "MIT"),
}
"""Servers of the Model Context Protocol, with their version and licence."""


PACKAGES = {
    "agent-redteam": Package("0.5.0", "MIT", red_team, 40),
    "agentforge-ml": Package("0.1.0", "MIT", react),
    "agentprobe": Package("0.3.13", "MIT", whole("agentprobe/scenarios/*/*.txt", "code-other", head=FRONT), 30),
    "agtmls": Package("0.0.27", "Apache-2.0 OR MIT", skills, 25),
    "ai-ffmpeg-cli": Package("0.2.6", "MIT", examples("code-other"), 20),
    "ai-practical": Package("1.0.0", "MIT", practicals),
    "ai-shell-cli": Package("0.1.0", "MIT", demo_shell, 12),
    "ai-sqlx": Package("0.1.5", "MIT", examples("code-other")),
    "aiml-dsce": Package("1.0.0", "MIT", programs),
    "ask2cmd": Package("0.1.0", "MIT", examples("code-other"), 20),
    "bcsl607-ml": Package("1.0.0", "MIT", labs),
    "claude-dev-cli": Package("0.20.0", "MIT", examples("coding", False), 12),
    "claude-router": Package("1.1.1", "MIT", routed),
    "cyphersmith": Package("0.2.0", "MIT", examples("code-other")),
    "django-yoloquery": Package("0.1.4", "MIT", examples("code-other")),
    "djinn-cli": Package("2.3.3", "MIT", cli_quiz),
    "dolphindb-agent-skills": Package("0.2.4", "Apache-2.0", dolphin),
    "emo-x-eval": Package("2.0.0rc1", "Apache-2.0", emox, 45),
    "engy": Package("0.0.9", "MIT", examples("coding")),
    "faststream-gen": Package("0.1.7", "Apache-2.0", examples("coding", False)),
    "gitops-by-veera": Package("1.0.3", "MIT", examples("code-other")),
    "gptme": Package("0.35.1", "MIT", gptme, 40),
    "hypnex-bench": Package("0.1.0", "MIT", together(
        rows_of("coding", "hypnex_bench/_evals/coding.py", ast.Call, given("prompt", "_CodeProblem")),
        rows_of("code-other", "hypnex_bench/_evals/json_mode.py", ast.Call, given("prompt", "_JsonProblem")),
        rows_of("math", "hypnex_bench/_evals/math.py", ast.Call, given("prompt", "_MathProblem")),
    )),
    "jupyterpilot": Package("1.0.0", "MIT", examples("coding")),
    "kubewhisper": Package("2.0.0", "MIT", examples("code-other")),
    "mcp-server-interview-rag": Package("0.1.0", "MIT", interview, 30),
    "nlpcmd-ai": Package("0.1.3", "MIT", examples("code-other"), 20),
    "npm/learn_bash_from_session_data": Package("1.1.1", "MIT", commands, 30),
    "nvidia-bigcode-eval": Package("26.3", "Apache-2.0", verilog, 25),
    "onsetlab": Package("0.2.3", "Apache-2.0", onset, 25),
    "p6plab-mcp-calculator": Package("2.0.1", "MIT", examples("math", False), 25),
    "primer-quest": Package("1.9.1", "MIT", primer, 60),
    "psql-chat": Package("0.3.1", "PostgreSQL", examples("code-other")),
    "quantalogic": Package("0.93", "MIT", examples("general", False)),
    "querysmith": Package("0.2.0", "MIT", examples("code-other")),
    "raylings": Package("0.10.1", "Apache-2.0", whole("raylings/exercises/*/*.py"), 40),
    "reasonforge-geometry": Package("0.1.1", "MIT", examples("math", False)),
    "shell-gpt": Package("1.5.1", "MIT", examples("code-other"), 15),
    "snakelings": Package("1.0.0.dev5", "MIT", whole("snakelings/exercises/*/main.py")),
    "stoneburner-atomics": Package("0.29.0", "MIT", atomics, 60),
    "t2s-cli": Package("0.3.2", "MIT", examples("code-other")),
    "terma-ai": Package("1.4.2", "MIT", examples("code-other"), 25),
    "torchlings": Package("0.2.7", "MIT", whole("torchlings/exercises/*/*.py", end=TESTS), 40),
    "zapgpt": Package("3.8.1", "MIT", zap),
} | {name: Package(version, licence, server(), 12) for name, (version, licence) in SERVERS.items()}  # fmt: skip


def rows(folder: Path) -> list[Row]:
    return draw_by_package(folder, PACKAGES, MENDED)
