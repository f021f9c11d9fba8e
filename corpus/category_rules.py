"""The rules by which prompts are classified, as data: words, marks of structure, and the table of both.

A rule is a pattern over the words of a turn, the category that it speaks for, a weight, and why. Marks find structure
(a code fence, an equation) and write it down as words that begin with "~", so that rules read it like any other word.
How they are applied is in corpus.classifier; whatever changes an answer raises CLASSIFIER_VERSION there.
"""

from __future__ import annotations

from typing import NamedTuple

DECISIVE = 100.0
"""The weight of proof that tools are offered: no sum of other rules reaches it."""


class Words(NamedTuple):
    """Any of these words occurs."""

    any_of: str


class Both(NamedTuple):
    """A word of each occurs, anywhere."""

    one: str
    other: str


class Pair(NamedTuple):
    """A word of `first`, and after it within SPAN words, none of BARRIER between, a word of `then`."""

    first: str
    then: str


class Mark(NamedTuple):
    """A structure, written down as `word`: `pattern`, searched where a text has one of `words` or holds one `inside`.

    Without a pattern these alone decide. The text is lower case, but for CASED_MARKS.
    """

    word: str
    words: str = ""
    inside: tuple[str, ...] = ()
    pattern: str = ""


class Rule(NamedTuple):
    """One row of the table."""

    pattern: Words | Both | Pair
    category: str
    weight: float
    why: str


LANGUAGES = (
    "python python3 java javascript typescript c++ cpp c# csharp golang kotlin haskell scala php perl matlab fortran "
    "cobol solidity es6 es2015 ecmascript django flask fastapi pandas numpy pytorch tensorflow keras sklearn "
    "scikit-learn "
    "vue svelte nextjs "
    "nodejs pygame tkinter opencv pytest junit jquery cuda verilog vhdl elixir erlang clojure ocaml prolog vba "
)
TAGS = (
    "~code~python ~code~py ~code~java ~code~javascript ~code~js ~code~jsx ~code~typescript ~code~ts ~code~tsx "
    "~code~cpp ~code~c++ ~code~c ~code~rust ~code~go ~code~kotlin ~code~swift ~code~csharp ~code~php ~code~ruby"
)
PROGRAMS = (
    "function functions program programs class method algorithm algorithms code script library module package app "
    "application game bot api endpoint endpoints backend frontend decorator compiler parser interpreter server "
    "client cli simulation simulator crawler scraper webapp plugin subroutine implementation contract component gui"
)
QUERIES = "sql mysql postgresql postgres sqlite nosql mongodb graphql sparql"
SHELLS = "bash powershell zsh awk gawk sed grep ripgrep cmd cli one-liner cron crontab linux unix git chmod chown ssh"
CONFIGS = (
    "dockerfile docker docker-compose kubernetes k8s helm terraform ansible nginx apache jenkins jenkinsfile makefile "
    "cmake cloudformation github gitlab systemd webpack eslint kubectl kubelet pods configmap systemctl sudo slurm "
    "sbatch"
)
MARKUP = "html css scss xml json csv tsv latex markdown regex regexp svg yaml yml toml xpath"
BLOCKS = "~code~sql ~code~bash ~code~sh ~code~yaml ~code~json ~code~html ~code~css ~code~xml ~code~dockerfile"
CONCEPTS = (
    "hashmap hashtable hash recursion closure closures pointers mutex semaphore deadlock threads multithreading "
    "concurrency polymorphism encapsulation oop object-oriented api apis restful compiler middleware microservices "
    "microservice async decorator heap queue orm mvc tuple array arrays database databases programming interface tcp "
    "iterable "
    "iterator iterators callback promises regex"
)
MAKE = "write implement create build develop make program generate design give provide complete need want show produce"
CHANGE = (
    "fix debug correct refactor optimize optimise port rewrite convert translate modify update improve add extend "
    "parallelize vectorize simplify migrate change adapt transpile test speed"
)
EXPLAIN = (
    "explain describe understand difference differences what why compare review analyze analyse explanation does mean "
    "means clarify document comment summarize concept"
)
SOLVE = "calculate compute evaluate find determine what sum express simplify solve"
CREATIVE = (
    "poem poems story stories essay song haiku letter email article blog speech joke jokes novel lyrics screenplay "
    "limerick title paragraph dialogue sketch caption slogan tweet plot recipe itinerary biography memo"
)
BARRIER = frozenset(f"about on whose that which regarding discussing {CREATIVE}".encode().split())
NUMBER_WORDS = frozenset(b"two three four five six seven eight nine ten twelve twenty dozen half twice double".split())

_QUANTITY = (
    r"(?:total|average|final|prices?|costs?|sum|speed|percent\w*|profit|area|volume|perimeter|width|length|ages?|"
    r"values?|number|amount|interest|remainder|distance|angles?|radius|worth|left|fraction|ratio|measure|chances?|"
    r"maximum|minimum|median|mean)\b"
)
_UNIT = (
    r"[ -]?(?:km|cm|mm|kg|miles?|mph|feet|ft|inch|inches|hours?|minutes?|lit(?:er|re)s?|gallons?|met(?:er|re)s?|pounds?"
    r"|cups?)"
)
CASED_MARKS = (
    Mark("~inline", "", ("()",), r"\b\w+\(\)"),
    Mark("~signature", "return returns", ("`",), r"`\w+\([^`\n]*\)`"),
    Mark("~language", "go c r", (), r"\b(?:in|using|to) (?:Go|C|R)\b(?![\w\[()^+#*=-]| m[ai])"),
    Mark("~language", "go c r", (), r"\b(?:Go|C|R) (?:program|function|code|script|struct|API)s?\b"),
    Mark(
        "~language",
        "react rust swift ruby dart angular unity spring",
        (),
        r"\b(?:in|using|an?|to|my|simple) (?:Rust|Swift|Ruby|Dart|Angular|React|Unity|Spring)\b"
        r"|(?:Rust|Swift|Ruby|Dart|Angular|React|Unity) (?:program|function|code|script|component|app|class|struct|"
        r"hook|service|API)",
    ),
    Mark(
        "~code",
        "#include import function public func fn const let var return print",
        (":\n", ");", ";\n", "{\n", ") {", "){"),
        r"(?m)^[ \t]*(?:def \w+\(|class \w+[^.?!\n]*[:{][ \t]*$|import [\w.]+[ \t]*(?:;|$|as )|from [\w.]+ import "
        r"|#include\b|(?:async )?function \w*\(|public (?:static|class|void|int)|func \w+\(|(?:pub )?fn \w+"
        r"|(?:const|let|var) \w+ = |return\b.*$|for .+ in .+:[ \t]*$|for ?\(.+[{;)][ \t]*$"
        r"|[\w.]+ ?[+:]?= ?[\w.]+\(.*\)|print\(|.*[;{][ \t]*$)"
        r"|\b(?:for(?:each)?|while|if|switch|catch) ?\([^)\n]{0,200}\)\s*\{",
    ),
    Mark("~code", "", ("```",), r"```[ \t]*[a-zA-Z]"),
    Mark("~stub", "def", (), r"""(?s)def \w+\(.*(?:["]{3}|[']{3})\s*(?:pass|\.\.\.)?\s*\Z"""),
    Mark("~stub", "todo", (), r"TODO"),
    Mark("~error", "error traceback", ("Error", "Exception"), r"(?:Error|Exception)\b|Traceback|error:"),
    Mark("~examples", "", (">>>",)),
    Mark("~inline", "", ("`",), r"(?<!`)`[^`\n]*[\w'\"\])]?(?:[(\[{=<>*:]|\.\w)[^`\n]*`(?!`)"),
    Mark(
        "~calls_in_code",
        "",
        ("console.log", "process.argv", "stdout", "stdin", "require(", "module.exports", "__init__"),
    ),
    Mark(
        "~file",
        "",
        (".py", ".js", ".ts", ".java", ".cpp", ".rs", ".go"),
        r"(?i)\b(?!node\.|next\.|vue\.|react\.|express\.|three\.|d3\.)[a-z_][\w-]*\.(?:py|js|ts|java|cpp|rs|go)\b",
    ),
    Mark(
        "~latex",
        "",
        ("\\",),
        r"\\(?:[(\[]|(?:d?frac|sqrt|int|sum|lim|cdot|times|leq?|geq?|in|mathbb|begin|boxed|pi|alpha|theta|angle|infty)\b)",
    ),
    Mark("~latex", "", ("$",), r"\$(?:[a-zA-Z]\$|[^$\s][^$\n]{0,80}[\\^=+_<>/*][^$\n]{0,80}[^$\s]\$(?!\d))"),
)
TEXT_MARKS = (
    Mark("~diff", "", ("\n@@ ",)),
    Mark("~equation", "", (" = ",), r"(?m)^[ \t]*(?:\d: )?[a-z] = \(?-?\w+\)? ?[-+*/]"),
    Mark("~options", "", ("one of the following", "which of the following", "which of these", "true or false")),
    Mark("~question", "what which why when is are does", (), r"\A\W*(?:what|which|why|when|is|are|does) "),
    Mark(
        "~named",
        "what which",
        (),
        r"\A\W*(?:what|which) (?:\w+ )?(?:keyword|method|function|operator|command|decorator|statement|flag|option)\b",
    ),
    Mark("~layout", "json", (), r"\s(?:as|in)(?: an?| the)?(?: \w+){0,2} json\b"),
    Mark(
        "~options",
        "",
        ("a)", "a.", "a:"),
        r"(?m)^\s*\(?a[).:].*\n(?:.*\n){0,2}\s*\(?b[).:]|[ (]a[).] .{1,200}[ (]b[).] ",
    ),
    Mark(
        "~sql",
        "select",
        (),
        r"select (?!the\b|an?\b|one\b|your\b|any\b|from\b)[\s\S]{1,200}\bfrom (?!the\b|an?\b|among\b|th[ei]s)",
    ),
    Mark("~sql", "insert create", (), r"insert into |create table "),
    Mark(
        "~table",
        "table tables column columns database",
        (),
        r"[\"'`]\w+[\"'`] (?:database )?(?:table|column|database)"
        r"|(?:table|columns?|database)(?: (?:is|named|called|names|in the database))*:? [\"'`]\w",
    ),
    Mark("~tags", "", ("</",), r"</[a-z]\w*>"),
    Mark("~arithmetic", "", ("*", "×", "÷", "^"), r"\d\s*[*×÷^]\s*[-(]?\s*\d"),
    Mark("~arithmetic", "", ("+", "-", "/", "="), r"\d(?:\s*\)*\s+[-+/]\s+[-(]*\s*\d|[+/*=]\(?\d+\)?[+*=/-])"),
    Mark("~sum", "", ("+", "*", "×", "÷"), r"\d[a-z]?[\s)]*[+*×÷]\s*[-(]*\s*\d"),
    Mark("~sum", "", ("=",), r"\d\)?\s*[-/]\s*\(?-?\d[\d.]*\)?\s*=\s*(?:\?|$)"),
    Mark("~equation", "", ("^", "**"), r"(?:\^|\*\*)\s?[({]?-?\d|\d\s?\^\s?[({]?[a-z]"),
    Mark(
        "~units",
        "km cm mm kg miles mph feet ft inch inches hours minutes liters litres gallons meters metres pounds cups",
        (),
        rf"\d{_UNIT}\b[\s\S]{{1,200}}?\d{_UNIT}\b",
    ),
    Mark("~equation", "", ("(x)", ") ="), r"[a-z]\((?:[a-z]\) ?=|x\))"),
    Mark("~equation", "", ("*",), r"\d\*[a-z]\b"),
    Mark("~equation", "", ("=", "<", "≤"), r"\d\*?[a-z]\s?[-+=<≤]"),
    Mark("~equation", "", ("=",), r"[-+*]\s?\d*[a-z]?\s?=\s?-?\d|= ?-?\d+ ?,"),
    Mark("~matrix", "", ("[",), r"\[\s*\[\s*-?\d"),
    Mark("~sum", "find", (), r"find \$?[a-z] ?[-+*/] ?[a-z]\b"),
    Mark("~money", "", ("$", "£", "€", "%", "percent"), r"[$£€] ?\d|\d ?%|\d percent"),
    Mark("~asked", "how", (), r"\bhow (?:many|much|long|far|old|fast|tall|heavy)\b"),
    Mark(
        "~asked",
        "what",
        (),
        r"what(?:'s| is| was| are| will| would| percent\w*| fraction)\b[^.?!\n]{0,60}?\b" + _QUANTITY,
    ),
    Mark(
        "~asked",
        "find calculate determine",
        (),
        r"(?:find|calculate|determine) (?:the|its|his|her|their) (?:\w+ ){0,3}?" + _QUANTITY,
    ),
    Mark("~asked", "", ("% of",), r"\d ?% of \$?\d"),
    Mark(
        "~asked",
        "wie combien quantos quanto quanti quante quantas hoeveel hur kuinka ile kolik berapa",
        (),
        r"\b(?:wie (?:viele?|hoch|lange|weit|alt)|combien|quant[oiae]s?|hoeveel|hur (?:m|l)|kuinka|ile|kolik|berapa)\b",
    ),
    Mark(
        "~asked",
        "",
        ("wieviel", "cuánt", "bao nhiêu", "сколько", "скільки", "몇", "얼마", "いくつ", "いくら", "कितन", "چند"),
    ),
    Mark("~asked", "weekday", ("day of the week", "count the ")),
    Mark("~io", "input", (), r"example ?\d*:?\s*input|input:[\s\S]{0,400}output:|input format|sample input"),
    Mark("~reading", "output print", (), r"what (?:is|will|would|does)\b[^.?!\n]{0,50}\b(?:output|print)"),
    Mark("~reading", "output", (), r"output of (?:this|the following)"),
    Mark(
        "~reading",
        "get what",
        (),
        r"what(?:'d|'s|'ll| will| would| is)\b[^.?!\n]{0,40}(?:\bget (?:for|if|when)|\blen\()",
    ),
    Mark(
        "~reference",
        "code function functions program script snippet method",
        (),
        r"\b(?:this|following|these|my|below|above) (?:\w+ ){0,2}(?:code|functions?|program|script|snippet|method)\b",
    ),
)
CHINESE_MARKS = (
    Mark(
        "~zh_program",
        "",
        ("程序", "函数", "代码", "算法", "脚本", "编程", "接口", "模式", "排序", "类"),
        r"(?:写|实现|编|设计|开发|完成|修改|优化|修复)[^。？\n]{0,24}(?:程序|函数|代码|算法|脚本|类|模式|接口|排序)",
    ),
    Mark(
        "~zh_explain",
        "",
        ("代码", "程序", "函数"),
        r"(?:解释|分析|说明|理解|审查)[^。？\n]{0,16}(?:代码|程序|函数)|(?:代码|程序)[^。？\n]{0,8}(?:作用|含义|意思|输出|结果)",
    ),
    Mark(
        "~zh_program",
        "",
        ("用",),
        r"(?i)用 ?(?:c\+\+|python|java|javascript|golang|go|rust|c#|php|c语言)[^。？\n]{0,12}(?:写|实现|编|做|画|完成)",
    ),
    Mark("~zh_other", "", ("查询语句", "数据库", "正则", "配置文件", "命令行")),
    Mark(
        "~zh_math",
        "",
        ("求", "计算", "证明", "方程", "概率", "面积", "三角形", "多少", "几", "积分", "导数", "最小值", "最大值"),
        r"计算[^。]{0,6}\d|(?<![要需请追])求(?:出|解|[^。]{0,16}(?:值|面积|和|积|解|概率|长|角))|证明[：:，]|解方程|方程|概率|三角形|积分|导数"
        r"|\d[^？]*(?:多少|几)|(?:最小|最大)值",
    ),
    Mark("~zh_general", "", ("翻译", "作文", "总结", "故事", "诗", "文章", "写一篇")),
)
TOOL_MARKS = (
    Mark(
        "~offer",
        "tool tools function functions api apis",
        (),
        r"(?:access to|provided with|can invoke|can call|may call)\b.{0,60}\b(?:tools?|functions?|apis?)\b"
        r"|(?:tools?|functions?|apis?)\b.{0,40}\bcan (?:invoke|call|use)\b"
        r"|(?:set|list) of (?:possible |available )?(?:functions|tools)\b",
    ),
    Mark("~offer", "tools", (), r"\b(?:given|provided|available) tools\b|\btools (?:provided|given|available)\b"),
    Mark(
        "~offer",
        "tool tools",
        (),
        r"\btools? allowed\b|\ballowed tools?\b|\btool (?:catalog|inventory)|\bexactly one tool\b",
    ),
    Mark("~offer", "access", (), r"\baccess to:?\s+[-*]?\s*\w+\("),
    Mark("~offer", "skill", (), r"\buse this skill (?:when|whenever|for|to|if)\b"),
    Mark("~offer", "tools tooling", (), r"(?m)^#+ (?:available )?tool(?:s|ing)\b|tools:\s"),
    Mark(
        "~calls", "calling calls", ("<tool", "<function_calls>"), r"<tools?>|<tool_|<function_c|function call(?:s|ing)"
    ),
    Mark("~react", "action", (), r"(?m)^action input:|thought:[\s\S]{0,1000}\naction:"),
    Mark("~framework", "openclaw crewai autogpt"),
    Mark("~framework", "langchain", (), r"langchain agent"),
    Mark("~machine", "interact", (), r"interact .{0,30}with (?:a|the) (?:computer|shell|terminal|browser|environment)"),
)

RULES = (
    # asks for a program
    Rule(Pair(MAKE, f"{PROGRAMS} {LANGUAGES} extension"), "coding", 4, "asks for a program"),
    Rule(
        Pair("write implement code", "function program class algorithm method decorator"),
        "coding", 2, "names the program",
    ),
    Rule(Words(f"{LANGUAGES} {TAGS}"), "coding", 2, "names a programming language or library"),
    Rule(Pair("in using with to into", LANGUAGES), "coding", 5, "wants it in that language"),
    Rule(Words("~language"), "coding", 5, "wants it in that language"),
    Rule(
        Both("solve calculate compute prove ~equation ~arithmetic ~latex", f"{LANGUAGES} ~language"),
        "coding", 3, "wants mathematics programmed",
    ),
    Rule(
        Pair("build develop",
             "tool tracker generator calculator form system dashboard checker manager website service"),
        "coding", 3, "asks for a program",
    ),
    Rule(Both("build develop", "users user"), "coding", 2, "asks for a program with users"),
    Rule(Words("refactor leetcode codeforces quicksort mergesort codebase"), "coding", 2.5, "a programmer's word"),
    Rule(
        Pair("write implement", "tree trie heap queue stack factorial fizzbuzz recursion"),
        "coding", 4, "asks for a program",
    ),
    Rule(Both("~signature", "return returns"), "coding", 4, "says what functions should return"),
    Rule(Words("subarray substring palindrome fibonacci"), "coding", 1.5, "a word of exercises"),
    Rule(
        Words("array arrays string nums integers list return returns binary tree sorted"),
        "coding", 0.5, "a word of exercises",
    ),
    Rule(Words("strings"), "coding", 1.5, "a word of exercises"),
    Rule(Pair("check sort reverse", "string strings list array sequence"), "coding", 1.5, "states an exercise"),
    Rule(Pair("your", "program function script solution module"), "coding", 3, "speaks of a program to be written"),
    Rule(Words("~calls_in_code"), "coding", 5, "speaks of calls that a program makes"),
    Rule(Words("~file"), "coding", 2.5, "names a file of a program"),
    Rule(Both("~inline", "should must challenge task exercise"), "coding", 1.5, "says how code should behave"),
    Rule(Both("return print output", "array integers nums"), "coding", 2.5, "states an exercise"),
    Rule(Words("~io"), "coding", 1.5, "examples of input and output"),
    Rule(Both("unit integration", "tests test"), "coding", 2, "asks for tests"),
    Rule(Both(CHANGE, "~code ~reference ~error"), "coding", 3, "wants code changed"),
    Rule(Pair(CHANGE, f"function method loop class {LANGUAGES}"), "coding", 2, "wants code changed"),
    Rule(Words("~code"), "coding", 2, "holds program code"),
    Rule(Words("~stub ~examples"), "coding", 12, "a function to be completed"),
    Rule(Words("~error"), "coding", 2, "an error of a program"),
    Rule(Words("~zh_program"), "coding", 4, "asks for a program, in Chinese"),
    # asks about code, or for what is no general-purpose program
    Rule(Words(QUERIES), "code-other", 3, "is about a database query"),
    Rule(Pair("write give show type enter", "command commands"), "code-other", 4, "asks for a command"),
    Rule(Pair("design", "service system architecture endpoints"), "code-other", 3, "asks how software is laid out"),
    Rule(Both("excel spreadsheet sheets", "formula formulas cell cells macro"), "code-other", 4, "asks for a formula"),
    Rule(
        Pair(f"{MAKE} {CHANGE} turn format parse transform", f"{QUERIES} {SHELLS} {CONFIGS} {MARKUP} query"),
        "code-other", 3, "asks for a query, command, configuration or format",
    ),
    Rule(Words("~sql"), "code-other", 4, "holds SQL"),
    Rule(Words("~table"), "code-other", 7, "speaks of named tables or columns"),
    Rule(Both("schema table column columns", "database"), "code-other", 3, "is about a database"),
    Rule(Words(SHELLS), "code-other", 3, "is about a shell or version control"),
    Rule(Words(CONFIGS), "code-other", 2.5, "is about configuration"),
    Rule(Words(MARKUP), "code-other", 1.5, "is about a format or markup"),
    Rule(Pair(EXPLAIN, f"{QUERIES} {SHELLS} {CONFIGS} {MARKUP} query command"), "code-other", 2.5, "asks about one"),
    Rule(Pair("how", MARKUP), "code-other", 2, "asks how to do it in a format"),
    Rule(Words(BLOCKS), "code-other", 3, "a block of a format, query or command"),
    Rule(Words("~tags"), "code-other", 1, "holds markup"),
    Rule(
        Both("npm pip", "package packages publish version install registry command"),
        "code-other", 3, "is about packages",
    ),
    Rule(
        Both("markdown", "syntax headers blockquote asterisk document"),
        "code-other", 3, "is about a format or markup",
    ),
    Rule(
        Pair(
            "create fork merge push pull submit clone commit connect delete",
            "branch repository repositories repo upstream",
        ),
        "code-other", 3, "is about version control",
    ),
    Rule(Words("~diff"), "code-other", 4, "holds a patch"),
    Rule(Words("regex regexes regexp"), "code-other", 2, "is about regular expressions"),
    Rule(Pair("regular", "expression expressions"), "code-other", 4, "is about regular expressions"),
    Rule(Both("select selects selector selectors", "elements element css"), "code-other", 3, "is about selectors"),
    Rule(Pair("programming", "language languages framework"), "code-other", 1.5, "is about programming languages"),
    Rule(Pair("stack", "stack machine representation"), "code-other", 3, "traces a stack"),
    Rule(Words("snippet snippets"), "code-other", 1.5, "is about a piece of code"),
    Rule(
        Both("~options", f"~inline ~code ~error {LANGUAGES} {CONCEPTS}"),
        "code-other", 8, "a question on code, with options",
    ),
    Rule(
        Both(
            "~options",
            "function iterator iterable module dict tuple loop operator keyword exception exceptions inheritance "
            "lambda decorator boolean float",
        ),
        "code-other", 3, "a question on code, with options",
    ),
    Rule(
        Both("executed enumerated printed invoked", "~asked ~reading ~options"),
        "code-other", 4, "wants code read, not written",
    ),
    Rule(Both("~reading", "~inline"), "code-other", 4, "wants code read, not written"),
    Rule(
        Pair("explain explanation describe difference differences meaning", f"{LANGUAGES} {CONCEPTS}"),
        "code-other", 5, "asks about a concept of programming",
    ),
    Rule(
        Both("explain explanation describe difference differences meaning", f"{LANGUAGES} {CONCEPTS}"),
        "code-other", 2, "asks about a concept of programming",
    ),
    Rule(Pair("does understand", f"{LANGUAGES} {CONCEPTS}"), "code-other", 7, "asks about a concept of programming"),
    Rule(Pair("what why compare", CONCEPTS), "code-other", 3.5, "asks about a concept of programming"),
    Rule(
        Words("recursion hashmap mutex polymorphism oop object-oriented"),
        "code-other", 1, "a concept of programming",
    ),
    Rule(Both(EXPLAIN, "~code ~reference"), "code-other", 2, "wants code explained or reviewed"),
    Rule(
        Pair(f"{EXPLAIN} through", f"code script snippet snippets {TAGS}"),
        "code-other", 4, "wants code explained or reviewed",
    ),
    Rule(
        Pair("explain review understand clarify document does", "function functions method class query program"),
        "code-other", 4, "wants code explained or reviewed",
    ),
    Rule(Both("~question", f"{LANGUAGES} ~language"), "code-other", 8, "a question about a language or library"),
    Rule(Words("~named"), "code-other", 4, "asks for the name of something in code"),
    Rule(Both("predict trace", "~code code"), "code-other", 15, "wants code read, not written"),
    Rule(Both("~reading", "~code code program script function"), "code-other", 6, "wants code read, not written"),
    Rule(Both("complexity", "algorithm time code ~code"), "code-other", 3, "asks about an algorithm"),
    Rule(
        Both("~options", "algorithm algorithms sort sorting traversal complexity"),
        "code-other", 4, "a question on algorithms, with options",
    ),
    Rule(
        Pair("determine decide judge classify identify evaluate assess", "code program snippet"),
        "code-other", 6, "wants code judged",
    ),
    Rule(Pair("what", "complexity"), "code-other", 3, "asks about an algorithm"),
    Rule(Words("~zh_explain"), "code-other", 7, "wants code explained, in Chinese"),
    Rule(Words("~zh_other"), "code-other", 5, "is about a query, pattern or format, in Chinese"),
    # asks for an answer that is worked out
    Rule(Words("solve prove proof simplify"), "math", 2, "asks to solve or prove"),
    Rule(Words("calculate compute"), "math", 1.5, "asks to calculate"),
    Rule(Both(SOLVE, "~arithmetic ~equation ~latex"), "math", 1.5, "asks about an expression"),
    Rule(Words("~latex"), "math", 2.5, "holds LaTeX mathematics"),
    Rule(Words("~arithmetic"), "math", 2, "holds arithmetic"),
    Rule(Words("~sum"), "math", 1, "holds a sum or product"),
    Rule(Words("~equation"), "math", 2, "holds an equation"),
    Rule(Words("polynomial quadratic logarithm algebra fraction squared cubed pythagorean"), "math", 2.5, "algebra"),
    Rule(Words("derivative integral integrate calculus differentiable"), "math", 2.5, "calculus"),
    Rule(Words("eigenvalues eigenvalue determinant"), "math", 2.5, "matrices"),
    Rule(
        Words(
            "triangle perimeter circumference hypotenuse polygon trapezoid hexagon octagon "
            "parallelogram slope diagonals"
        ),
        "math", 2.5, "geometry",
    ),
    Rule(Words("probability prob permutations dice coin coins"), "math", 2.5, "probability and counting"),
    Rule(
        Words("divisor divisible remainder gcd lcm modulo factorization factorial irrational"),
        "math", 2.5, "number theory",
    ),
    Rule(
        Words("theorem lemma isomorphic homomorphism abelian subspace bijection integral finite cyclic"),
        "math", 1, "a word of proofs",
    ),
    Rule(
        Words(
            "equation equations inequality roots decimal digits integers matrix vector limit sum product prime primes "
            "consecutive divide divided radius angle area"
        ),
        "math", 1, "a word of mathematics",
    ),
    Rule(Both("prime", "number numbers factors factor"), "math", 2, "number theory"),
    Rule(Pair("is", "prime composite"), "math", 1.5, "number theory"),
    Rule(Pair("common", "denominator multiple divisor factor factors"), "math", 2.5, "number theory"),
    Rule(Both("round", "nearest decimal places dp dps"), "math", 2.5, "rounds a number"),
    Rule(
        Both("collect expand factor rearrange express rewrite", "~equation ~arithmetic"),
        "math", 2, "rearranges an expression",
    ),
    Rule(Both("replacement", "picked drawn balls letters cards"), "math", 2.5, "probability and counting"),
    Rule(Both("ways", "arrange choose many select"), "math", 2.5, "counts arrangements"),
    Rule(Both("sum product average", "integers numbers digits squares"), "math", 2, "a sum or product of numbers"),
    Rule(Pair("convert", "decimal fraction binary percentage hexadecimal"), "math", 2, "converts a number"),
    Rule(Words("~units"), "math", 1.5, "measures, in numbers"),
    Rule(Words("~matrix"), "math", 2, "holds a matrix"),
    Rule(Both("~many", "~money"), "math", 2, "many amounts or percentages"),
    Rule(
        Both(
            "~many",
            "interest inflation discount shipping speed chance average mean median gallons per each twice height",
        ),
        "math", 1.5, "many numbers, and what is done with them",
    ),
    Rule(
        Words(
            "sphere pyramid cone cylinder cylindrical rectangle rectangles decagon pentagon vertices inscribed "
            "tetrahedron"
        ),
        "math", 2.5, "geometry",
    ),
    Rule(Both("interior exterior intersection", "angle angles line lines circle circles"), "math", 2, "geometry"),
    Rule(Both("chance probability odds percentage", "~numbers ~many ~money"), "math", 2.5, "probability and counting"),
    Rule(Pair("age ages old older", "times twice half sum difference years reversed"), "math", 2, "ages compared"),
    Rule(Both("~asked", "~numbers"), "math", 2.5, "numbers, and a quantity asked for"),
    Rule(Words("~digits"), "math", 2.5, "is largely numbers"),
    Rule(Words("~zh_math"), "math", 4, "asks to calculate or prove, in Chinese"),
    # is plainly something else
    Rule(Pair("write compose draft create tell make generate give", CREATIVE), "general", 4, "asks for a text"),
    Rule(
        Both("program script class course app",
             "training workout fitness marathon comedy sketch movie film scene podcast yoga video vlog youtube"),
        "general", 2, "a programme or script of another kind",
    ),
    Rule(
        Both("response answer", "sentences paragraphs keyword keywords word words"),
        "general", 2, "says how a text should read",
    ),
    Rule(Words("~layout"), "general", 3, "JSON is how the answer is laid out"),
    Rule(
        Both("snippet snippets passage excerpt", "story speech character characters author article news"),
        "general", 5, "works on a text",
    ),
    Rule(Words("seo headline marketing slogan"), "general", 3, "a text that is to be published"),
    Rule(Words("summarize summarise paraphrase proofread roleplay persona"), "general", 2, "works on a text"),
    Rule(
        Pair("translate", "sentence text following english french spanish german chinese japanese italian"),
        "general", 2, "asks for a translation",
    ),
    Rule(Words("~zh_general"), "general", 3, "asks for a text, in Chinese"),
    # speaks of tools (what proves them is DECISIVE, and no row here)
    Rule(Words("~offer"), "agent", 14, "says that tools may be called"),
    Rule(Words("~calls"), "agent", 5, "holds tags of tool calls"),
    Rule(Words("~react"), "agent", 4, "is a ReAct trace"),
    Rule(Words("~machine"), "agent", 4, "is to operate a machine"),
)  # fmt: skip

TOOLS = Rule(Words("~tools"), "agent", DECISIVE, "tools are offered")
TOOL_TURNS = Rule(Words("~tools"), "agent", DECISIVE, "holds calls of tools or their results")
TOOL_TEXT = Rule(Words("~tools"), "agent", DECISIVE, "its system turn or an earlier answer speaks of tools to call")
