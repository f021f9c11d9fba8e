"""Rows of code_more.py that say something else than their file does, or are no prompt."""

from __future__ import annotations

from tests.labelled.second.mended import Mended

CLAW = "claw_bench-0.1.0.data/data/share/claw-bench/tasks"

MENDED: Mended = {
    "aaws": {
        "aaws-0.3.0.dist-info/METADATA": [
            (None, "what the program says, or a turn without its beginning", "33 43"),
        ],
    },
    "aerrik": {
        "aerrik-5.4.0.dist-info/METADATA": [
            ("code-other", "a design", "3"),
        ],
    },
    "agentic-redteam": {
        "agentic_redteam/payloads/code_safety.yaml": [
            ("coding", "asks for Python", "10"),
        ],
    },
    "agentsec-bench": {
        "agentsec/challenges/harness_safety/injected-notes/challenge.json": [
            ("general", "a summary", "0"),
        ],
        "agentsec/challenges/harness_safety/multi-step-injection/challenge.json": [
            (None, "its file is not shown", "0"),
        ],
    },
    "alo-learning-os": {
        "alo/assessment.py": [
            ("general", "language models and products, no code", "9 10"),
        ],
    },
    "asksh": {
        "asksh-1.1.0.dist-info/METADATA": [
            (None, "nothing to look at", "5 7"),
        ],
    },
    "cachellm-proxy": {
        "cachellm_proxy-0.3.0.dist-info/METADATA": [
            ("general", "accounts of a customer", "47 49 50 54 56 57"),
            (None, "asks the same again", "4 33 60 61 65"),
        ],
    },
    "castwright": {
        "castwright-0.3.0.dist-info/METADATA": [
            ("coding", "asks for a program, or that one is mended", "6 16"),
        ],
    },
    "claw-bench": {
        f"{CLAW}/file-operations/file-003-find-and-replace/instruction.md": [
            ("general", "a text is worked on", "0"),
        ],
        f"{CLAW}/file-operations/file-004-sort-lines/instruction.md": [
            ("general", "a text is worked on", "0"),
        ],
        f"{CLAW}/file-operations/file-006-extract-emails/instruction.md": [
            ("general", "a text is worked on", "0"),
        ],
        f"{CLAW}/file-operations/file-008-deduplicate-lines/instruction.md": [
            ("general", "a text is worked on", "0"),
        ],
        f"{CLAW}/file-operations/file-009-word-frequency/instruction.md": [
            ("general", "a text is worked on", "0"),
        ],
        f"{CLAW}/file-operations/file-012-csv-stats/instruction.md": [
            ("math", "statistics", "0"),
        ],
        f"{CLAW}/security/sec-002-validate-password-strength/instruction.md": [
            ("general", "texts are held against rules", "0"),
        ],
        f"{CLAW}/security/sec-005-xss-vulnerability-scan/instruction.md": [
            (None, "its files are not shown", "0"),
        ],
        f"{CLAW}/security/sec-015-full-security-assessment/instruction.md": [
            (None, "its files are not shown", "0"),
        ],
        f"{CLAW}/system-admin/sys-006-config-file-audit/instruction.md": [
            (None, "its files are not shown", "0"),
        ],
        f"{CLAW}/system-admin/sys-010-infrastructure-migration-plan/instruction.md": [
            (None, "its files are not shown", "0"),
        ],
    },
    "cli-modelarium": {
        "cli_modelarium-0.2.0.dist-info/METADATA": [
            ("general", "knowledge, no code", "11 18 29"),
            (None, "an earlier set has it", "22"),
            ("coding", "asks for a program", "17"),
            ("general", "JSON is only how the answer is laid out", "24"),
            (None, "asks for nothing without what it is about", "14 19"),
        ],
    },
    "cmdo-cli": {
        "cmdo_cli-0.1.0.dist-info/METADATA": [
            (None, "an earlier set has it", "3"),
        ],
    },
    "coding-router": {
        "coding_router-0.5.0.dist-info/METADATA": [
            ("code-other", "a design, a query", "1 15"),
        ],
    },
    "commandrex": {
        "commandrex-0.2.dist-info/METADATA": [
            (None, "an earlier set has it", "1"),
        ],
    },
    "conclave-cli": {
        "conclave_cli-1.3.0.dist-info/METADATA": [
            (None, "an earlier set has it", "11 12 20"),
            ("code-other", "complexity theory", "24 25"),
            (None, "asks the same again, or nothing to go on", "6 9"),
        ],
    },
    "doforme": {
        "doforme-0.1.3.dist-info/METADATA": [
            (None, "an earlier set has it", "7 12"),
            (None, "sets up the program itself", "14 16"),
        ],
    },
    "handcraft-agent": {
        "forge/eval.py": [
            ("math", "arithmetic", "0"),
            ("code-other", "a command lists the files", "2"),
        ],
    },
    "intercode-bench": {
        "intercode/assets/datasets/bash_queries.json": [
            (None, "an earlier set has it", "0 3 8 10 23"),
        ],
    },
    "llm-benchmarker": {
        "llm_benchmarker-0.1.0.dist-info/METADATA": [
            ("coding", "asks for a program, or that one is mended", "13"),
            (None, "an earlier set has it", "8 9"),
            ("general", "knowledge, no code", "10 11 20"),
        ],
    },
    "llm-cache-router": {
        "llm_cache_router-0.3.2.dist-info/METADATA": [
            (None, "asks for nothing without what it is about", "29"),
        ],
    },
    "mcp-msdefenderkql": {
        "mcp_msdefenderkql-1.0.2.dist-info/METADATA": [
            (None, "asks the same again", "10"),
        ],
    },
    "news-monitor-mcp": {
        "news_monitor_mcp-0.4.0.dist-info/METADATA": [
            (None, "asks the same again, or code", "4 5 24 40"),
        ],
    },
    "odoo-mcp-multi": {
        "odoo_mcp_multi/plugins/odoo-mcp/skills/odoo-financial-reports/evals/evals.json": [
            ("general", "a company's figures", "0 1"),
        ],
        "odoo_mcp_multi/plugins/odoo-mcp/skills/odoo-mcp-tools/evals/evals.json": [
            ("general", "a company's data", "0 1 4"),
        ],
    },
    "openadapt-consilium": {
        "openadapt_consilium-0.4.1.dist-info/METADATA": [
            ("general", "no code", "23 26 27"),
            (None, "asks for nothing without its picture", "10 25"),
        ],
    },
    "orange-k8s-mcp-server": {
        "orange_k8s_mcp_server-1.1.0.dist-info/METADATA": [
            (None, "pieces of commands", "21 22"),
        ],
    },
    "pptx-mcp": {
        "pptx_mcp-0.18.0.dist-info/METADATA": [
            (None, "titles of slides", "65 158"),
        ],
    },
    "praisonaibench": {
        "praisonaibench-0.1.1.dist-info/METADATA": [
            (None, "an earlier set has it", "0 3 4"),
            ("math", "arithmetic", "9"),
            ("general", "knowledge and stories", "12 14 16 36"),
            ("code-other", "a page, no program named", "1"),
        ],
    },
    "pybyu": {
        "pybyu/content/installation.py": [
            ("code-other", "a command", "0"),
        ],
    },
    "query-crafter-cli": {
        "query_crafter_cli-0.1.0.dist-info/METADATA": [
            (None, "schemas, or nothing to go on", "1 22 23 26"),
        ],
    },
    "queryclaw": {
        "queryclaw-0.5.16.dist-info/METADATA": [
            ("general", "a page is summed up", "9"),
        ],
    },
    "rawdog-ai": {
        "rawdog_ai-0.1.6.dist-info/METADATA": [
            (None, "a turn without its beginning", "1 4"),
            ("coding", "what pandas says", "2"),
        ],
    },
    "selenium-ai-agent": {
        "selenium_ai_agent-1.0.0.dist-info/METADATA": [
            ("code-other", "plans of tests", "9 19 20"),
            (None, "the name of a test", "11"),
        ],
    },
}
