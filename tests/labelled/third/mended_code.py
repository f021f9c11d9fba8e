"""Rows of code.py that say something else than their file does, or are no prompt."""

from __future__ import annotations

from tests.labelled.second.mended import Mended

MENDED: Mended = {
    "agent-redteam": {
        "agent_redteam/suites/insecure_output/data.jsonl": [
            ("coding", "asks for a program", "40 60 80 100 140 160"),
            ("general", "a prompt is wanted", "120"),
        ],
        "agent_redteam/suites/over_refusal/data.jsonl": [
            ("coding", "asks for a program", "30 90"),
            ("general", "no software: a process, intelligence, fraud", "75 165 255 270 285"),
        ],
        "agent_redteam/suites/supply_chain/data.jsonl": [
            ("coding", "asks for a program", "60 180"),
        ],
    },
    "agtmls": {
        "agtmls/_registry/evals/cases/agent-loop-design.json": [
            ("general", "a plan in prose", "3"),
        ],
        "agtmls/_registry/evals/cases/brainstorming.json": [
            ("general", "talk about what is wanted", "0 1"),
        ],
        "agtmls/_registry/evals/cases/noyalib-coverage-campaign.json": [
            ("coding", "tests are programs", "0"),
        ],
        "agtmls/_registry/evals/cases/refactoring-safely.json": [
            ("coding", "a program is changed", "0"),
        ],
        "agtmls/_registry/evals/cases/verification-before-completion.json": [
            ("general", "no word of code", "2"),
        ],
        "agtmls/_registry/evals/cases/web-research-and-source-triage.json": [
            ("general", "research on the web", "2"),
        ],
    },
    "au-weather-mcp": {
        "au_weather_mcp-0.4.10.dist-info/METADATA": [
            (None, "a note on a source", "28"),
        ],
    },
    "aws-calculator-mcp": {
        "aws_calculator_mcp-1.3.4.dist-info/METADATA": [
            (None, "what the program answers", "25"),
        ],
    },
    "claude-dev-cli": {
        "claude_dev_cli-0.20.0.dist-info/METADATA": [
            ("code-other", "an error is explained", "26"),
            (None, "asks for nothing without what it is about", "36 40 61"),
        ],
    },
    "claude-router": {
        "claude_router/eval_prompts.json": [
            ("code-other", "code, designs of software and operations", "3 9 10 11 12 13 14 16 17 18 19"),
            ("coding", "a failing test is mended", "15"),
        ],
    },
    "emo-x-eval": {
        "emox/data/suites/code-bench-25/cases.py": [
            ("code-other", "a concept of programming", "4"),
            ("code-other", "asks for JSON, SQL, git, configuration or HTML", "6 9 10 11 16 19"),
            ("agent", "offers a function to be called", "14"),
            ("general", "a commit message is a text", "15"),
            ("math", "mathematics", "20 21 22"),
        ],
        "emox/data/suites/security/cases.py": [
            ("code-other", "security of software and networks", "4 5 8 9 19"),
        ],
    },
    "gptme": {
        "gptme/eval/suites/behavioral/git_selective_commit.py": [
            ("code-other", "git", "0"),
        ],
        "gptme/eval/suites/browser.py": [
            ("general", "knowledge", "0"),
        ],
        "gptme/eval/suites/computer.py": [
            ("agent", "names the tools to be used", "2 6"),
        ],
        "gptme/eval/suites/subagent.py": [
            ("agent", "names the tools to be used", "0 5"),
        ],
    },
    "nativ-mcp": {
        "nativ_mcp-0.5.0.dist-info/METADATA": [
            (None, "a text to be translated", "23"),
        ],
    },
    "nlpcmd-ai": {
        "nlpcmd_ai-0.1.3.dist-info/METADATA": [
            ("general", "asks the assistant about itself", "18"),
        ],
    },
    "obsidian-mcp": {
        "obsidian_mcp-2.1.6.dist-info/METADATA": [
            (None, "a heading", "141 142"),
        ],
    },
    "p6plab-mcp-calculator": {
        "p6plab_mcp_calculator-2.0.1.dist-info/METADATA": [
            ("general", "rates that are known, not worked out", "94 95 96"),
            (None, "asks for nothing, or what the program can do", "97 149"),
        ],
    },
    "primer-quest": {
        "primer_game/skill-packs/coding_basics/zones.py": [
            ("general", "plain knowledge of technology", "34 48 50 54 55 56 59"),
        ],
        "primer_game/skill-packs/math_advanced/zones.py": [
            ("general", "no mathematics to be worked out", "44"),
        ],
    },
    "quantalogic": {
        "quantalogic-0.93.dist-info/METADATA": [
            ("coding", "asks for a program", "1 5 10"),
            ("math", "arithmetic", "17"),
        ],
    },
    "shell-gpt": {
        "shell_gpt-1.5.1.dist-info/METADATA": [
            ("coding", "asks for a program", "13 14 15 18"),
            ("math", "a sum", "17"),
            ("general", "chat, knowledge, or a text", "1 25 32 37"),
        ],
    },
    "stoneburner-atomics": {
        "atomics/eval/codereview/fixtures.py": [
            (None, "holds what looks like a key", "3"),
        ],
        "atomics/eval/fixtures.py": [
            ("general", "a riddle", "18"),
        ],
        "atomics/eval/multiturn/fixtures.py": [
            ("general", "chat", "10 22 29 32 33"),
            ("math", "mathematics", "20 28"),
            ("coding", "asks for a program", "23 34"),
        ],
        "atomics/eval/refusal/fixtures.py": [
            ("coding", "asks for a program", "6"),
            ("general", "fraud, no code", "7"),
        ],
    },
    "t2s-cli": {
        "t2s_cli-0.3.2.dist-info/METADATA": [
            (None, "an entry of a menu", "0"),
        ],
    },
    "terma-ai": {
        "terma_ai-1.4.2.dist-info/METADATA": [
            (None, "what the program asks", "97"),
        ],
    },
    "zapgpt": {
        "zapgpt/prompts/DataScientist.json": [
            ("general", "a prompt is improved", "0"),
        ],
        "zapgpt/prompts/common_base.json": [
            (None, "a note on the template", "0"),
        ],
        "zapgpt/prompts/create_passwd.json": [
            ("general", "passwords", "0"),
        ],
        "zapgpt/prompts/ctf.json": [
            ("general", "a prompt is wanted", "0"),
        ],
        "zapgpt/prompts/cyber_awareness.json": [
            ("general", "a text", "0"),
        ],
        "zapgpt/prompts/default.json": [
            (None, "instructions without a question", "0"),
        ],
        "zapgpt/prompts/re.json": [
            ("coding", "an exploit is written", "0"),
        ],
        "zapgpt/prompts/theredtactician.json": [
            ("general", "a prompt is wanted", "0"),
        ],
        "zapgpt/prompts/vuln_assessment.json": [
            ("general", "a report", "0"),
        ],
    },
}
