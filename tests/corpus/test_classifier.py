"""The classifier against prompts labelled by hand, the demo's real rows, and what it promises about itself."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from corpus.canonical import canonical_json, digest
from corpus.category_rules import (
    CASED_MARKS,
    CHINESE_MARKS,
    DECISIVE,
    RULES,
    TEXT_MARKS,
    TOOL_MARKS,
    Rule,
    Words,
)
from corpus.classifier import (
    BASE,
    CLASSIFIER_VERSION,
    TIE_ORDER,
    Evidence,
    classify,
    classify_rows,
    evidence,
    explain,
    scored,
)
from corpus.formats import parse_row
from corpus.manifest import CATEGORIES
from corpus.records import decode_prompt, encode_messages
from corpus.word_network import Said, word_network

DEMO = Path(__file__).parents[2] / "manifests" / "demo"
PROOF = re.compile(r"[Pp]rove |Show (?:that|if) ")
"""IFBench puts words that must occur beside a proof that is asked for: mathematics by its definition."""
WEATHER = [{"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}]

CODING = (
    "Write a Python function that returns the n-th Fibonacci number.",
    "Implement a LRU cache in C++ with O(1) get and put.",
    "Fix the bug in this code:\n```python\ndef f(x):\n    return x + '1'\n```",
    "Port this Java class to Kotlin.",
    "Write unit tests for the following function using pytest.\n\n```python\ndef add(a, b):\n    return a + b\n```",
    "Optimize this loop, it is too slow:\n```js\nfor (let i = 0; i < a.length; i++) { out.push(a[i]) }\n```",
    "Complete the function:\n\ndef is_prime(n: int) -> bool:\n    \"\"\"Return True if n is prime.\"\"\"\n",
    "How do I reverse a linked list in Java?",
    "Create a REST API in Go with two endpoints for users and orders.",
    "Build a todo app with React and TypeScript.",
    "Solve x^2 - 5x + 6 = 0 in Python and print both roots.",
    "Write a program to check whether a number is a palindrome.",
    "Given an array of integers nums and an integer target, return indices of the two numbers such that they add up "
    "to target. You may assume that each input has exactly one solution.",
    "Develop a Rust command line tool that counts words in a file.",
    "Refactor this method so that it uses streams instead of loops.\n```java\npublic int sum(List<Integer> xs) {}\n```",
    "I get 'TypeError: unsupported operand type(s) for +: int and str' when I run my script. How can I fix it?",
    "Write a Python script that reads a CSV file and prints the average of each column.",
    "Can you make a snake game in pygame?",
    "Implement quicksort.",
    "Write a C program that prints the first 100 prime numbers.",
    "Convert this Python code to JavaScript:\n\nfor i in range(10):\n    print(i * i)",
    "Add error handling and type hints to my function.\n\ndef load(p):\n    return json.load(open(p))",
    "Design and implement a thread-safe queue class in C#.",
    "Write a decorator in Python that measures execution time.",
    "How can I sort a dictionary by value in Python?",
    "Please write a Swift function which parses an ISO date string.",
    "Train a small image classifier in PyTorch and show me the code.",
    "Using pandas, merge two dataframes on the column id and drop duplicates.",
    "Write a recursive algorithm in Haskell that computes the powerset of a list.",
    "My React component re-renders on every key press. Fix it:\n```jsx\nconst App = () => <Input onChange={f} />\n```",
    "用Python写一个快速排序函数。",
    "请用Java实现一个单例模式。",
    "编写一个程序，输入一个字符串，输出它的反转。",
    "Calculate the factorial of a number using recursion in JavaScript.",
    "There are n cities connected by some number of flights. You are given an array flights where flights[i] = "
    "[from, to, price]. Return the cheapest price from src to dst with at most k stops. Example 1: Input: n = 4, "
    "Output: 700",
    "write me a discord bot that replies hello",
    "Write a Solidity smart contract for a simple auction.",
    "function debounce(fn, ms) {\n  // TODO: complete\n}",
)  # fmt: skip
CODE_OTHER = (
    "Write a SQL query that returns the three highest salaries per department.",
    "Explain this Python function:\n```python\ndef f(n):\n    return n if n < 2 else f(n-1) + f(n-2)\n```",
    "What does this code do?\n\nx = [i for i in range(10) if i % 2]\nprint(x)",
    "Write a bash script that deletes files older than 30 days.",
    "Convert this JSON to CSV: [{\"a\": 1, \"b\": 2}, {\"a\": 3, \"b\": 4}]",
    "What is a hash map?",
    "Design a database schema for an online bookstore.",
    "Write a regex that matches email addresses.",
    "Create a Dockerfile for a Node.js application.",
    "Write an HTML page with a contact form and style it with CSS.",
    "Review the following code and point out possible problems.\n```go\nfunc main() { ch := make(chan int) }\n```",
    "Give me a docker-compose.yml with postgres and redis.",
    "How do I undo the last commit in git?",
    "Explain the difference between a process and a thread in operating systems and how a mutex works.",
    "Write a GitHub Actions workflow that runs the tests on every push.",
    "Configure nginx as a reverse proxy for port 8080.",
    "What is the time complexity of this algorithm?\n```\nfor i in range(n):\n  for j in range(i): pass\n```",
    "How do I center a div horizontally in CSS?",
    "Give me a one-liner to find all .log files larger than 100 MB on Linux.",
    "Format the following data as a markdown table: name, age; Bob, 4; Eve, 7.",
    "Explain what a closure is in JavaScript.",
    "SELECT * FROM orders WHERE total > 100 -- rewrite this so that it uses an index",
    "Write a Kubernetes deployment YAML with 3 replicas.",
    "What is the difference between an abstract class and an interface in Java?",
    "Turn this table into LaTeX: a | b | c.",
    "Predict the output of the program without running it:\n\ndef f(a):\n    return a[::-1]\nprint(f('abc'))",
    "Write an Excel formula that sums column B where column A is 'paid'.",
    "Parse this XML and output it as YAML: <a><b>1</b></a>",
    "What does the command `chmod 755 file` do?",
    "How does garbage collection work in Java?",
    "写一个SQL查询，找出每个部门工资最高的员工。",
    "请解释下面这段代码的作用：\n```python\nprint(sum(range(10)))\n```",
    "写一个匹配手机号码的正则表达式。",
    "Add a column 'email' to the 'users' table and set it to NULL for all existing rows.",
    "Write a PowerShell command that lists all running services.",
    "Explain the SOLID principles of object-oriented programming.",
    "Create a Terraform configuration for an S3 bucket.",
)  # fmt: skip
MATH = (
    "How many apples are left if Tom has 12 apples and gives away 5?",
    "Prove that the square root of 2 is irrational.",
    "Solve for x: 3x + 7 = 22.",
    "What is the derivative of x^3 sin(x)?",
    "Compute $\\int_0^1 x^2 \\, dx$.",
    "Find the area of a triangle with sides 3, 4 and 5.",
    "What is 17 * 23?",
    "If a train travels 120 km in 1.5 hours, what is its average speed?",
    "What is the probability of rolling two sixes with two dice?",
    "Simplify (x^2 - 1)/(x - 1).",
    "A shirt costs $40 and is discounted by 25%. What is the final price?",
    "Find all integers n such that n^2 + 1 is divisible by 5.",
    "Let $f(x) = 2x + 3$. Find $f^{-1}(7)$.",
    "Show that every finite integral domain is a field.",
    "What is the greatest common divisor of 84 and 126?",
    "Evaluate the limit of (1 + 1/n)^n as n goes to infinity.",
    "A bag has 3 red and 5 blue balls. Two balls are drawn without replacement. What is the probability that both "
    "are red?",
    "Sarah is twice as old as Tim. In 5 years the sum of their ages will be 40. How old is Tim?",
    "Determine the eigenvalues of the matrix [[2, 1], [1, 2]].",
    "How many ways are there to arrange the letters of the word BANANA?",
    "Convert 3/8 to a decimal.",
    "What is the sum of the first 100 positive integers?",
    "In triangle ABC, AB = 5, BC = 7 and angle B = 60 degrees. Find AC.",
    "Calculate the compound interest on $1,000 at 5% for 3 years.",
    "Prove by induction that 1 + 2 + ... + n = n(n+1)/2.",
    "Let G be a group of order 15. Prove that G is cyclic.",
    "12 workers build a wall in 10 days. How long would 8 workers need?",
    "Solve the system of equations: x + y = 10, x - y = 2.",
    "Factor the polynomial x^4 - 16 completely.",
    "What is the remainder when 7^100 is divided by 13?",
    "已知三角形的三边长为3、4、5，求它的面积。",
    "计算 25 × 4 + 18 的值。",
    "小明有12个苹果，给了小红5个，还剩多少个？",
    "证明：任意两个奇数的和是偶数。",
    "求函数 f(x)=x^2-4x+3 的最小值。",
    "A rectangle's length is 4 cm more than its width and its perimeter is 36 cm. Find its width.",
    "What's the value of log2(64)?",
)  # fmt: skip
GENERAL = (
    "Write a poem about recursion.",
    "What is the capital of Australia?",
    "Write a short story about a dragon who is afraid of fire.",
    "Translate the following sentence into French: Where is the station?",
    "Summarize the article below in three sentences.\n\nThe city council met on Tuesday to discuss 3 new parks.",
    "Give me ideas for a birthday party for a 7 year old.",
    "You are a pirate. Answer all my questions as a pirate would. How was your day?",
    "Write an email to my boss asking for two days off.",
    "Explain photosynthesis to a ten year old.",
    "What are the main causes of the French Revolution?",
    "Plan a 5-day trip to Japan with a budget of $2000.",
    "Rewrite this paragraph so that it sounds more professional: we did good this year.",
    "Who wrote Pride and Prejudice?",
    "I feel sad today.",
    "Write a blog post about the advantages of the Python programming language for beginners.",
    "What is the function of the mitochondria in a cell?",
    "Should I learn Java or Python first to get a job?",
    "Explain the theory of evolution.",
    "Tom is taller than Ann. Ann is taller than Bob. Who is the tallest?",
    "Give me a recipe for pancakes that serves 4 people.",
    "What class of drugs does ibuprofen belong to?",
    "How many countries are there in Africa?",
    "Write a cover letter for a software engineer position.",
    "What is the history of the table as a piece of furniture?",
    "Tell me a joke about programmers.",
    "Design a training program for a marathon in 12 weeks.",
    "Compare the works of Hemingway and Fitzgerald.",
    "How can I select a good school for my children?",
    "Which of the following is a mammal? A) shark B) dolphin C) trout D) eagle",
    "Write a script for a two-minute comedy sketch about a dentist.",
    "What happened in 1969 and why was it important in the 20th century?",
    "写一篇关于春天的作文。",
    "把下面的句子翻译成英文：我昨天去了图书馆。",
    "中国的首都是哪里？",
    "Create a marketing strategy for a new coffee brand.",
    "How does the immune system work?",
    "Proofread my essay: Climate change are a big problem for all off us.",
)  # fmt: skip


def asked(text: str, system: str = "") -> list[dict[str, Any]]:
    head = [{"role": "system", "content": system}] if system else []
    return [*head, {"role": "user", "content": text}]


AGENT: tuple[tuple[list[dict[str, Any]], Any], ...] = (
    *((asked(text), WEATHER) for text in (
        "What is the weather in Paris?",
        "Find the area of a triangle with a base of 10 units and height of 5 units.",
        "Write a Python function that adds two numbers.",
        "Run SELECT * FROM users and tell me how many rows there are.",
        "hi",
        "请帮我查一下北京的天气。",
        "What is 17 * 23?",
        "Translate 'good morning' into Spanish.",
    )),
    *((asked("Book a table for two at seven.", system), None) for system in (
        "You are a function calling AI model. You are provided with function signatures within <tools></tools> XML "
        "tags.",
        "You have access to the following tools:\nsearch: useful for questions about current events.",
        "You have access to the following functions. Use them if required: [{\"name\": \"book\"}]",
        "Use the following format:\nThought: what to do\nAction: the action\nAction Input: its input\nObservation: "
        "the result",
        "For each function call return a JSON object inside <tool_call></tool_call> tags.",
        "You are a personal assistant running inside OpenClaw.\n## Tooling\nTool availability (filtered by policy):",
        "You are an expert in composing functions. You are given a question and a set of possible functions. Based "
        "on the question, you will need to make one or more function calls.",
        "You are an autonomous agent that can interact multiple times with a computer shell to solve tasks.",
        "You are a LangChain agent. Tools: calculator, search.",
        "Here is a list of functions in JSON format that you can invoke: []",
        "Available tools:\n- read_file\n- write_file",
        "You can call tools by writing <function_calls> blocks.",
        "You are a helpful assistant with access to the following functions. Use them if required -",
        "You ONLY have access to the following tools, and should NEVER make up tools that are not listed here.",
    )),
    *((messages, None) for messages in (
        [*asked("How warm is it?"), {"role": "assistant", "content": "", "tool_calls": [{"type": "function",
          "function": {"name": "get_weather", "arguments": {}}}]}, {"role": "tool", "content": "21"}],
        [*asked("Fix the failing test."), {"role": "assistant", "content": "Looking."}, {"role": "tool",
          "content": "1 failed"}],
        [*asked("List my files"), {"role": "assistant", "content": "<tool_call>\n{\"name\": \"ls\"}\n</tool_call>"},
         *asked("and now the folders")],
        [*asked("Who won in 2018?"), {"role": "assistant", "content": "Thought: search it.\nAction: search\nAction "
          "Input: winner 2018"}, *asked("Observation: France")],
    )),
    *((asked(text), None) for text in (
        "Answer the following questions as best you can. You have access to the following tools:\n\nSearch: a search "
        "engine\n\nUse the following format:\n\nQuestion: the question\nThought: what to do\nAction: one of "
        "[Search]\nAction Input: the input\nObservation: the result\n\nQuestion: How old is the Eiffel tower?",
        "<tools>[{\"name\": \"send_mail\"}]</tools>\nSend a mail to Ann that I am late.",
        "You are given a question and a set of possible functions. Call the right one.\n[{\"name\": \"f\"}]\nWhat "
        "is the tallest mountain?",
        "Here are the functions that you can call in JSON: get_stock_price(symbol). What does AAPL cost?",
    )),
)  # fmt: skip

LABELLED: list[tuple[str, list[dict[str, Any]], Any]] = [
    *(("coding", asked(text), None) for text in CODING),
    *(("code-other", asked(text), None) for text in CODE_OTHER),
    *(("math", asked(text), None) for text in MATH),
    *(("general", asked(text), None) for text in GENERAL),
    *(("agent", messages, tools) for messages, tools in AGENT),
]
# written when version 1 was finished; nothing was changed for them, and nothing fitted to them
UNSEEN = {
    "coding": (
        "Implement a rate limiter in Go.",
        "Write a Ruby method that flattens a nested array without using flatten.",
        "Can you turn this pseudocode into working Java code? for each item: if item > max then max = item",
        "Create a command line calculator in Python that supports brackets.",
        "My unit test fails with AssertionError: 3 != 4. Here is the code:\n```python\ndef add(a, b):\n"
        "    return a + b + 1\n```",
        "Write a GLSL shader that produces a ripple effect.",
        "Given the root of a binary tree, return its maximum depth.",
        "Design a class for a parking lot with methods to park and leave.",
        "用JavaScript实现一个防抖函数。",
        "Develop an Android app screen in Kotlin that shows a list of contacts.",
    ),
    "code-other": (
        "How can I list all tables of a PostgreSQL database?",
        "What is dependency injection?",
        "Write a cron expression that runs at 3 am on weekdays.",
        "Explain how async and await work in JavaScript.",
        "Produce an XML document for a list of three books.",
        "Which HTTP status code means too many requests?",
        "Write a GitLab CI pipeline with build and test stages.",
        "Walk me through this snippet line by line:\n```js\nconst a = [...b].reverse()\n```",
        "Convert this table to markdown:\nname age\nAnn 4",
        "解释一下什么是死锁以及如何避免。",
    ),
    "math": (
        "Find x if 2^x = 32.",
        "Two trains start 300 km apart and move towards each other at 60 and 90 km/h. When do they meet?",
        "Show that the sum of two odd numbers is even.",
        "What is the volume of a cylinder with radius 3 and height 10?",
        "Differentiate ln(x^2 + 1) with respect to x.",
        "In how many ways can 5 people sit in a row?",
        "A recipe needs 2 cups of flour for 12 cookies. How many cups are needed for 30 cookies?",
        "Let $a, b > 0$ with $a + b = 1$. Prove that $ab \\le 1/4$.",
        "What is the median of 3, 8, 1, 9, 4?",
        "甲乙两人同时从相距100千米的两地出发，速度分别为4和6千米每小时，几小时后相遇？",
    ),
    "general": (
        "Write a wedding speech for my best friend.",
        "What are the symptoms of iron deficiency?",
        "Explain supply and demand in simple words.",
        "Make this sentence shorter: In spite of the fact that it was raining, we went out.",
        "Suggest a name for a bakery that sells gluten-free bread.",
        "Why is the sky blue?",
        "List five famous paintings from before 1900 and their painters.",
        "Pretend that you are Sherlock Holmes and introduce yourself.",
        "What is the difference between a crocodile and an alligator?",
        "请给我推荐三个北京的旅游景点。",
    ),
}


def shares(wanted: list[str], got: list[str]) -> tuple[float, dict[str, float]]:
    """(share of right answers, the same by category)."""
    right, rows = Counter[str](), Counter(wanted)
    for label, answer in zip(wanted, got, strict=True):
        right[label] += label == answer
    return right.total() / len(wanted), {label: right[label] / rows[label] for label in rows}


def demo(name: str, form: str) -> list[tuple[list[dict[str, Any]], Any]]:
    path = DEMO / name
    frame = pl.read_parquet(path) if path.suffix == ".parquet" else pl.read_ndjson(path)
    prompts = [parse_row(row, form, None) for row in frame.iter_rows(named=True)]
    return [(list(prompt.messages), list(prompt.tools)) for prompt in prompts]


def test_at_least_150_prompts_are_labelled_by_hand_and_30_a_category() -> None:
    counts = Counter(label for label, _, _ in LABELLED)
    assert counts.total() >= 150
    assert set(counts) == set(CATEGORIES)
    assert min(counts.values()) >= 30


def test_nine_in_ten_labelled_prompts_are_right_and_no_category_is_left_behind() -> None:
    overall, by_category = shares([label for label, _, _ in LABELLED], [classify(m, t) for _, m, t in LABELLED])
    assert overall >= 0.9
    assert min(by_category.values()) >= 0.85, by_category


def test_prompts_that_nothing_was_made_for_are_mostly_right() -> None:
    rows = [(label, text) for label, texts in UNSEEN.items() for text in texts]
    overall, _ = shares([label for label, _ in rows], [classify(asked(text)) for _, text in rows])
    assert overall >= 0.85


def test_general_is_what_the_unknown_becomes() -> None:
    for text in ("", "?!", "zzqxv", "blorp fnargle wibbet", "Ĝi estas tre bela ĉu ne", "\u202e\u0007"):
        assert classify(asked(text)) == "general"
    assert classify([]) == "general"


@pytest.mark.parametrize(
    ("name", "form", "category", "least"),
    [
        ("coding.jsonl.gz", "prompt", "coding", 0.98),
        ("code-other.parquet", "prompt", "code-other", 0.98),
        ("math.parquet", "messages", "math", 0.98),
        ("agent.jsonl.gz", "sharegpt", "agent", 1.0),
        ("general-ifbench.parquet", "prompt", "general", 0.85),
    ],
)
def test_real_rows_of_the_demo_are_found_again(name: str, form: str, category: str, least: float) -> None:
    rows = [row for row in demo(name, form) if name != "general-ifbench.parquet" or not PROOF.search(str(row[0]))]
    assert sum(classify(messages, tools) == category for messages, tools in rows) >= least * len(rows)


def test_stored_rows_are_judged_as_parsed_ones() -> None:
    messages = [canonical_json(m) for _, m, _ in LABELLED]
    tools = [canonical_json(t) if t else None for _, _, t in LABELLED]
    assert classify_rows(messages, tools) == [classify(m, t) for _, m, t in LABELLED]
    with pytest.raises(ValueError):
        classify_rows(messages, tools[1:])


def test_what_corpus_records_encodes_is_what_rows_are_read_from() -> None:
    prompt = decode_prompt(canonical_json(asked("Is 7 prime?")), None)
    assert classify_rows([encode_messages(prompt)[0]], [encode_messages(prompt)[1]]) == ["math"]


def test_offered_tools_outweigh_everything_else() -> None:
    for _, messages, _ in LABELLED:
        assert classify(messages, WEATHER) == "agent"
    assert all(sum(w for c, _, w in explain(m, t) if c != "agent") < DECISIVE for _, m, t in LABELLED)


def test_an_empty_list_of_tools_offers_none() -> None:
    assert classify(asked("Write a haiku."), []) == "general"


def test_an_answer_that_speaks_about_functions_is_no_offer_of_tools() -> None:
    answer = {"role": "assistant", "content": "Here is a list of functions: you have access to the functions of numpy."}
    messages = [*asked("Write a Python function that sorts."), answer, *asked("Now in reverse.")]
    assert classify(messages) == "coding"


def test_the_first_turn_says_more_than_the_last_and_a_greeting_says_nothing() -> None:
    code, joke = "Write a Python function that sorts a list.", "Tell me a joke."
    assert classify([*asked(code), *asked(joke)]) == "coding"
    assert classify([*asked("hi"), *asked(code)]) == "coding"
    assert classify([*asked("hi"), *asked(code), *asked("thanks")]) == "coding"


def test_what_explain_says_adds_up_to_the_answer() -> None:
    for _, messages, tools in LABELLED:
        found = evidence(messages, tools)
        scores = scored(found)
        rest = {} if "agent" in scores else word_network().parts(Said(found.sums(), found.words, found.request)).rest
        sums = defaultdict[str, float](float, rest)
        for category, why, weight in explain(messages, tools):
            assert why and weight
            sums[category] += weight
        assert dict(sums) == pytest.approx(scores, abs=1e-6)
        assert classify(messages, tools) == max(scores, key=scores.__getitem__)


def test_agent_must_have_more_than_general_has_before_any_rule_speaks() -> None:
    assert TIE_ORDER[0] == "general"
    assert sorted(TIE_ORDER) == sorted(CATEGORIES)
    rule = Rule(Words("word"), "agent", BASE, "a word")
    assert not Evidence([(rule, 1.0)], frozenset()).is_agent()
    assert Evidence([(rule, 1.1)], frozenset()).is_agent()


def test_a_second_question_weighs_with_its_rules_and_only_a_greeting_gives_its_words_up() -> None:
    first, last = "Write a haiku about kubectl.", "And the derivative of a polynomial?"
    assert b"polynomial" not in evidence([*asked(first), *asked(last)]).words
    assert b"polynomial" in evidence([*asked("hello"), *asked(last)]).words


def test_every_mark_is_read_by_a_rule_and_every_rule_reads_marks_that_exist() -> None:
    written = {mark.word for mark in (*CASED_MARKS, *TEXT_MARKS, *CHINESE_MARKS, *TOOL_MARKS)}
    read = {word for rule in RULES for words in rule.pattern for word in words.split() if word.startswith("~")}
    # counted rather than searched, or what a fence says of itself
    read = {word for word in read if not word.startswith("~code~")} - {"~numbers", "~digits", "~many"}
    assert read == written - {"~framework"}  # evidence in a system turn alone
    assert {rule.category for rule in RULES} == set(CATEGORIES)
    assert all(rule.why and 0 < rule.weight < DECISIVE for rule in RULES)


def test_rules_hold_words_and_no_sentences() -> None:
    words = [word for rule in RULES for part in rule.pattern for word in part.split()]
    assert all(word == word.lower() and len(word) <= 20 for word in words)


def test_the_hash_seed_of_a_process_changes_nothing() -> None:
    script = (
        "import sys, msgspec; from corpus.classifier import classify_rows\n"
        "rows = msgspec.json.decode(sys.stdin.read()); print(classify_rows(rows, [None] * len(rows)))"
    )
    rows = canonical_json([canonical_json(m) for _, m, t in LABELLED if not t])
    said = {
        subprocess.run(
            [sys.executable, "-c", script], input=rows, env={**os.environ, "PYTHONHASHSEED": seed}, cwd=DEMO.parents[1],
            capture_output=True, text=True, check=True,
        ).stdout
        for seed in ("1", "2")
    }  # fmt: skip
    assert len(said) == 1


def test_answers_belong_to_a_version() -> None:
    """Another digest means other answers: raise CLASSIFIER_VERSION, then write the new digest here."""
    answers = [classify(m, t) for _, m, t in LABELLED]
    answers += [classify(asked(text)) for texts in UNSEEN.values() for text in texts]
    assert (CLASSIFIER_VERSION, digest("answers", answers)) == (5, "ea35cec53a202def62b69919238a0b8c")


@given(st.lists(st.tuples(st.sampled_from(["system", "user", "assistant"]), st.text()), max_size=5))
def test_any_text_has_a_category(turns: list[tuple[str, str]]) -> None:
    assert classify([{"role": role, "content": text} for role, text in turns]) in CATEGORIES


@pytest.mark.parametrize(
    "piece", ["\n", " ", "```", "$", "select ", "def f(", "class A ", "what is ", "how many 1 ", "1+"]
)
def test_no_text_takes_long(piece: str) -> None:
    classify(asked("1+1"))  # loads what there is to load
    start = time.thread_time()
    classify(asked(piece * 20_000))
    assert time.thread_time() - start < 5
