"""`draftmill audit` as a person uses it: what it says of a corpus, what it refuses, and when it exits 3."""

from __future__ import annotations

import csv
import gzip
import importlib.util
import io
import json
import os
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import datasets
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from corpus.classifier import ITS_WORDS, classify_rows
from corpus.classifier_quality import CATEGORIES, adjusted_shares
from corpus.normalise import Normaliser
from draftmill.app import run_app
from draftmill.looking import audit_shares
from draftmill.looking.audit import MOST_LABELS, OTHERS, _kinds

HOME = Path(__file__).resolve().parents[3]
INTENDED = "coding=46,general=26,math=11,agent=9,code-other=7"
CODE = "Write a Python function that returns the sum of the list number {}."
CHAT = "What is the capital of the country called number {}?"
World = Any
Ran = tuple[int, str, str]
Run = Callable[..., Ran]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """The command, in a folder of its own: exit code, stdout, stderr. Lines fit a terminal."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")

    def command(*arguments: object) -> Ran:
        capsys.readouterr()
        code = run_app(["audit", *map(str, arguments)])
        out, err = capsys.readouterr()
        if code in (0, 3) and "--format" not in arguments:
            assert max(map(len, out.splitlines())) <= 80
        return code, out, err

    return command


def lines(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def asked(text: str, count: int) -> list[dict[str, Any]]:
    return [{"prompt": text.format(i)} for i in range(count)]


def told(ran: Ran) -> dict[str, Any]:
    assert ran[0] in (0, 3), ran[2]
    found: dict[str, Any] = json.loads(ran[1])
    return found


def share(found: dict[str, Any], category: str) -> dict[str, Any]:
    return next(one for one in found["categories"] if one["category"] == category)


# the story


@pytest.fixture(scope="module")
def benchmark() -> Any:
    spec = importlib.util.spec_from_file_location("audit_benchmark", HOME / "benchmarks" / "audit.py")
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


@pytest.fixture
def story(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, benchmark: Any) -> Path:
    """Real prompts drawn again into eleven files, of which 77% are coding, as benchmarks/audit.py does.

    The classifier's quality is what it is on these prompts, so that this tests the audit and not the labelled set.
    """
    prompts = benchmark.known_prompts()
    measured = [[0] * len(CATEGORIES) for _ in CATEGORIES]
    for category, of in prompts.items():
        read = Normaliser("messages", None, None, keep_original=False, auto=True).rows(of, range(len(of)))
        for found in classify_rows([one or "[]" for one in read.messages], read.tools):
            measured[CATEGORIES.index(category)][CATEGORIES.index(found)] += 1
    monkeypatch.setattr(audit_shares, "adjusted_shares", partial(adjusted_shares, confusion=measured))
    return corpus_of(prompts, tmp_path, benchmark)


def corpus_of(prompts: Any, folder: Path, benchmark: Any) -> Path:
    (folder / "old").mkdir()
    assert benchmark.make_corpus(folder / "old", prompts, 7, rows=4000)["coding"] == 0.77
    return folder / "old"


def test_the_quality_that_is_shipped_finds_it_too(run: Run, tmp_path: Path, benchmark: Any) -> None:
    corpus_of(benchmark.known_prompts(), tmp_path, benchmark)
    asked = ("old", "--rows", 956, "--shares", INTENDED, "--fail-on-skew", "5%", "--format", "json")
    ran = run(*asked)
    found = told(ran)
    coding = share(found, "coding")
    assert (ran[0], found["verdict"], found["worst"]) == (3, "skewed", "coding")
    assert coding["low"] <= 0.77 <= coding["high"]


@pytest.mark.usefixtures("story")
def test_the_skew_of_the_story_is_found(run: Run) -> None:
    code, out, err = run("old", "--rows", 956, "--shares", INTENDED, "--fail-on-skew", "5%")
    assert code == 3
    first = out.splitlines()[0]
    assert re.fullmatch(r"coding (7\d|8[01])\.\d% \(\d\d\.\d to \d\d\.\d\), target 46\.5%: skewed", first)
    assert "all 11 are mostly coding:" in out
    assert err.splitlines()[-1] == "audit: skewed by more than 5%: exit 3"
    assert run("old", "--rows", 956, "--shares", INTENDED)[0] == 0  # without the option it only says so
    covers = 0
    for seed in range(5):
        found = told(run("old", "--rows", 956, "--shares", INTENDED, "--seed", seed, "--format", "json"))
        coding = share(found, "coding")
        covers += coding["low"] <= 0.77 <= coding["high"]
        assert (found["verdict"], found["worst"], found["read"], found["rows"]) == ("skewed", "coding", 956, 4000)
    assert covers >= 4


def test_reasons_are_counted_by_rule_and_words_where_they_weigh_most(run: Run, tmp_path: Path) -> None:
    lines(tmp_path / "a.jsonl", asked("Sharks, whales and dolphins: who is who?", 3) + asked(CODE, 2))
    found = told(run("a.jsonl", "--explain", "--format", "json"))
    assert found["why"]["general"] == {"its words": 3}
    assert found["why"]["coding"]["asks for a program"] == found["why"]["coding"]["its words"] == 2


def test_words_are_no_reason_where_something_else_weighs_more() -> None:
    assert _kinds(["a rule", f"{ITS_WORDS}: one, two", "another rule"]) == ["a rule", "another rule"]
    assert _kinds([f"{ITS_WORDS}: one, two", "a rule"]) == ["a rule", ITS_WORDS]
    assert _kinds([]) == ["no rule spoke"]


def test_what_is_as_intended_or_cannot_be_told_does_not_fail(run: Run, tmp_path: Path) -> None:
    lines(
        tmp_path / "half.jsonl",
        [row for pair in zip(asked(CODE, 4000), asked(CHAT, 4000), strict=True) for row in pair],
    )
    both = ("half.jsonl", "--shares", "coding=1,general=1")
    code, out, _ = run(*both, "--fail-on-skew", "20%", "-n", 2000)
    assert code == 0
    assert out.startswith("no category is off by more than ")
    code, out, _ = run(*both, "--fail-on-skew", "0.5%", "-n", 40, "--seed", 4)
    assert code == 0
    assert out.splitlines()[0].endswith(("cannot tell to ± 0.5 points", "may be skewed"))
    code, _, err = run(*both, "--fail-on-skew", "0.5%", "-n", 40, "--seed", 4, "--strict")
    assert code == 3
    assert re.search(r"audit: (may be|cannot tell whether it is) skewed by more than 0\.5%: exit 3$", err.rstrip())
    assert run(*both, "--fail-on-skew", "20%", "-n", 2000, "--strict")[0] == 0
    assert "More rows tell more: --rows 160, or --all." in out
    code, out, _ = run("half.jsonl")
    assert "no target was given" in out.splitlines()[0]


# what is read


def test_a_small_file_is_seen_and_does_not_count_for_more_than_it_is(run: Run, tmp_path: Path) -> None:
    lines(tmp_path / "c" / "big.jsonl", asked(CODE, 9900))
    lines(tmp_path / "c" / "odd.jsonl", asked(CHAT, 100))
    found = told(run("c", "--rows", 200, "--format", "json"))
    assert {part["name"]: part["read"] for part in found["parts"]} == {"big.jsonl": 170, "odd.jsonl": 30}
    assert share(found, "coding")["as_put"] == pytest.approx(0.99)
    assert found["parts"][1]["shares"] == {"general": 1.0}
    assert found["all"]["prompt_chars_p50"] > 60  # by rows of the corpus: 30 of 200 would not move it, but p5 would


def test_the_same_seed_reads_the_same_rows(run: Run, tmp_path: Path) -> None:
    lines(tmp_path / "a.jsonl", [{"prompt": (CODE if i % 3 else CHAT).format(i)} for i in range(3000)])
    one = run("a.jsonl", "--rows", 100, "--examples", 3)
    assert one == run("a.jsonl", "--rows", 100, "--examples", 3)
    assert one[1] != run("a.jsonl", "--rows", 100, "--examples", 3, "--seed", 1)[1]


def test_all_rows_are_read_where_that_is_asked(run: Run, tmp_path: Path) -> None:
    rows = asked(CODE, 300) + asked(CHAT, 100)
    lines(tmp_path / "a.jsonl", [*rows, {"prompt": ""}])
    pl.DataFrame(rows).write_parquet(tmp_path / "b.parquet", row_group_size=50)
    for file, bad in (("a.jsonl", 1), ("b.parquet", 0)):
        found = told(run(file, "--all", "--format", "json"))
        sampled = told(run(file, "--rows", 5000, "--format", "json"))
        assert (found["rows"], found["read"], found["prompts"]) == (400 + bad, 400 + bad, 400)
        assert found["categories"] == sampled["categories"]
        assert share(found, "coding")["as_put_low"] == share(found, "coding")["as_put_high"] == 0.75
        assert found["all"] == sampled["all"]


TROUBLE: list[Any] = [
    {"messages": [{"role": "user", "content": [{"type": "text", "text": "Fix my Python function."}]}]},
    {"conversations": [{"from": "human", "value": "Who was Galileo?"}, {"from": "gpt", "value": "A man."}],
     "tools": '[{"name": "f", "parameters": {}}]'},
    {"messages": [{"role": "user", "content": "weather?"},
                  {"role": "assistant", "content": None,
                   "tool_calls": [{"id": "1", "type": "function", "function": {"name": "w", "arguments": {"a": 1}}}]},
                  {"role": "tool", "tool_call_id": "1", "content": "sun"}]},
    {"messages": [{"role": "user", "content": "weather?"},
                  {"role": "assistant", "content": None,
                   "tool_calls": [{"id": "1", "type": "function", "function": {"name": "w", "arguments": "{}"}}]},
                  {"role": "tool", "tool_call_id": "1", "content": "rain"}]},
    {"instruction": "Tell me a story.", "input": "", "output": "Once."},
    {"prompt": "word" * 300_000},
    {"messages": [{"role": "assistant", "content": "Hello!"}, {"role": "user", "content": "Hi, who are you?"}]},
    {"messages": []},
    {"messages": [{"role": "assistant", "content": "alone"}]},
    {"messages": [{"role": "user", "content": "   "}]},
    {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}]},
    {"note": "nothing here"},
]  # fmt: skip


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.jsonl.gz"])
def test_rows_that_mean_trouble_are_read_or_counted(name: str, run: Run, tmp_path: Path) -> None:
    surrogate = '{"messages": [{"role": "user", "content": "\\ud800 half a pair"}]}'
    text = [json.dumps(row) for row in TROUBLE] + [surrogate]
    if name == "a.json":
        (tmp_path / name).write_text(f"[{', '.join(text)}]")
    elif name == "a.jsonl":
        (tmp_path / name).write_text("\n".join([*text, "not json"]))
    else:
        (tmp_path / name).write_bytes(gzip.compress("\n".join([*text, "not json"]).encode()))
    found = told(run(name, "--format", "json"))
    bad = 0 if name == "a.json" else 1
    assert (found["read"], found["prompts"]) == (13 + bad, 7)
    assert sum(found["no_prompt"].values()) == 6 + bad
    assert found["no_prompt"].get("not_json", 0) == bad
    assert {"empty_conversation", "no_user_turn", "empty_prompt", "not_text"} <= found["no_prompt"].keys()
    assert found["all"]["with_tools"] == 0.4286  # 3 of 7, to a hundredth of a point


def test_a_folder_of_several_shapes_and_kinds_is_one_corpus(run: Run, tmp_path: Path) -> None:
    where = tmp_path / "mixed"
    lines(where / "chat.jsonl", [{"messages": [{"role": "user", "content": CHAT.format(i)}]} for i in range(20)])
    lines(where / "misnamed.json", [{"instruction": CODE.format(i), "output": "1"} for i in range(20)])
    pl.DataFrame({"question": [CHAT.format(i) for i in range(20)]}).write_parquet(where / "q.parquet")
    (where / "x.csv").write_text("prompt\n" + "\n".join(CODE.format(i) for i in range(20)))
    lines(where / "stats.jsonl", [{"loss": 1.5}] * 3)
    found = told(run("mixed", "--format", "json"))
    assert (found["rows"], found["prompts"], found["no_prompt"]) == (83, 80, {"unknown_format": 3})
    assert {part["name"]: list(part["shares"]) for part in found["parts"]} == {
        "chat.jsonl": ["general"], "misnamed.json": ["coding"], "q.parquet": ["general"], "stats.jsonl": [],
        "x.csv": ["coding"],
    }  # fmt: skip
    assert run("mixed/chat.jsonl", "mixed/q.parquet")[0] == 0


def test_a_saved_dataset_is_read(run: Run, tmp_path: Path) -> None:
    rows = [{"messages": [{"role": "user", "content": CODE.format(i)}, {"role": "assistant", "content": "1"}]}
            for i in range(30)]  # fmt: skip
    whole = datasets.Dataset.from_list(rows)
    whole.save_to_disk(str(tmp_path / "saved"), num_shards=2)
    datasets.DatasetDict({"train": whole, "test": whole.select(range(5))}).save_to_disk(str(tmp_path / "splits"))
    assert told(run("saved", "--format", "json"))["rows"] == 30
    assert told(run("splits", "--split", "test", "--format", "json"))["rows"] == 5
    assert told(run("saved", "--all", "--format", "json"))["all"]["with_answer"] == 1.0


def test_a_workspaces_responses_and_pools_are_read(run: Run, world: World) -> None:
    world.tell(world.manifest())
    root = world.workspace.root
    code, out, _ = run(root / "responses", "--format", "json")
    found = told((code, out, ""))
    shards = pl.concat(pl.read_parquet(f, columns=["state"]) for f in (root / "responses").glob("*.parquet"))
    assert found["rows"] == shards.height
    assert found["prompts"] == shards.filter(pl.col("state") == "accepted").height > 0
    assert found["all"]["with_answer"] == 1.0
    pools = told(run(root / "pools", "--format", "json"))
    assert (pools["rows"], pools["prompts"], len(pools["parts"])) == (80, 80, 2)
    code, _, err = run(root)
    assert code == 2
    assert "is a workspace" in err
    alone = world.root / "alone"
    alone.mkdir()
    for shard in (root / "responses").glob("*.parquet"):
        (alone / shard.name).write_bytes(shard.read_bytes())
    code, _, err = run(alone)
    assert (code, "inside its workspace" in err) == (2, True)


# labels, columns, shapes


def test_labels_are_used_as_they_are(run: Run, tmp_path: Path) -> None:
    rows = [{"prompt": CODE.format(i), "kind": "chat" if i % 4 else None} for i in range(400)]
    lines(tmp_path / "a.jsonl", rows)
    found = told(run("a.jsonl", "--label", "kind", "--rows", 100, "--format", "json"))
    assert [one["category"] for one in found["categories"]] == ["chat", "(no label)"]
    assert (found["errors"], found["classifier"]) == (["sampling"], None)
    whole = told(run("a.jsonl", "--label", "kind", "--all", "--format", "json"))
    assert (share(whole, "chat")["low"], share(whole, "chat")["high"]) == (0.75, 0.75)
    code, _, err = run("a.jsonl", "--label", "kind", "--shares", "coding=1,math=1")
    assert (code, err) == (
        2, "draftmill: audit: column kind holds (no label), chat; shares name none of them. Use the same names.\n"
    )  # fmt: skip
    assert run("a.jsonl", "--label", "kind", "--shares", "chat=1", "--fail-on-skew", "5")[0] == 3


def test_a_source_column_is_told_apart(run: Run, tmp_path: Path) -> None:
    rows = [{"prompt": CODE.format(i), "source": f"site-{i % 3}", "score": i} for i in range(300)]
    lines(tmp_path / "a.jsonl", rows)
    _, out, _ = run("a.jsonl")
    assert "all 3 are mostly coding:" in out
    assert "site-2" in out
    found = told(run("a.jsonl", "--by", "score", "--format", "json"))
    assert len(found["by"]["score"]) == 201  # and the others together
    assert sum(one["read"] for one in found["by"]["score"]) == 300


def test_a_column_and_a_shape_can_be_forced(run: Run, tmp_path: Path) -> None:
    rows = [{"prompt": CHAT.format(i), "mine": CODE.format(i)} for i in range(30)]
    lines(tmp_path / "a.jsonl", rows)
    pl.DataFrame(rows).write_parquet(tmp_path / "a.parquet")
    for file in ("a.jsonl", "a.parquet"):
        assert told(run(file, "--format", "json"))["worst"] == "general"
        assert told(run(file, "--field", "mine", "--format", "json"))["worst"] == "coding"
    assert told(run("a.jsonl", "--shape", "prompt", "--format", "json"))["prompts"] == 30
    assert "not_messages" in run("a.jsonl", "--shape", "messages")[2]


# refusals


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("missing.jsonl",), "no file there"),
        (("empty",), "the folder and those below hold none"),
        (("nobody/nothing",), "so the Hub was asked"),
        (("empty.jsonl",), "no rows there"),
        (
            ("stats.jsonl",),
            "none of the 3 rows that were read holds a prompt (3 unknown_format). Columns are loss; name",
        ),
        (("cut.jsonl.gz",), "cut.jsonl.gz: breaks off in row"),
        (("a.jsonl", "--field", "no"), "no row has the column no; columns are prompt."),
        (("a.jsonl", "--label", "no"), "no row has the column no; columns are prompt."),
        (("a.parquet", "--by", "no"), "no row has the column no; columns are"),
        (("a.jsonl", "--shares", "coding=1", "--strict"), "--strict says when --fail-on-skew exits 3; add"),
        (("a.jsonl", "--fail-on-skew", "5%"), "--fail-on-skew needs intended shares; add --manifest FILE or"),
        (("a.jsonl", "--shares", "coding=1", "--fail-on-skew", "0.05"), "may be 5 points or 0.05 of one"),
        (("a.jsonl", "--shares", "coding=1", "--fail-on-skew", "x"), "write percentage points, such as 5%"),
        (("a.jsonl", "--shares", "coding=1", "--fail-on-skew", "0%"), "lies between 0% and 100%"),
        (("a.jsonl", "--shares", "coding=1", "--fail-on-skew", "150"), "lies between 0% and 100%"),
        (("a.jsonl", "--shares", "coding"), "write CATEGORY=WEIGHT"),
        (("a.jsonl", "--shares", "coding=0"), "are all zero"),
        (("a.jsonl", "--shares", "coding=" + "9" * 400), "write CATEGORY=WEIGHT"),
        (("a.jsonl", "--shares", f"coding={10**308},math={10**308}"), "write smaller weights"),
        (("notes.txt",), "notes.txt: files of this kind are not read. Read are .parquet, .jsonl"),
        (("*.txt",), "notes.txt: files of this kind are not read"),
        (("a.jsonl", "--shares", "coding=1,coding=2"), "names coding twice"),
        (("a.jsonl", "--shares", "codign=1"), "which the classifier does not know"),
        (("a.jsonl", "--manifest", "no.yaml"), "no such manifest file"),
        (("a.jsonl", "--manifest", "no.yaml", "--shares", "coding=1"), "give one"),
        (("a.jsonl", "--field", "prompt", "--shape", "prompt"), "Give one"),
        (("a.jsonl", "--label", "prompt", "--explain"), "Give one"),
    ],
)
def test_what_cannot_be_done_is_one_line(arguments: tuple[str, ...], said: str, run: Run, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty.jsonl").write_text("")
    (tmp_path / "notes.txt").write_text("hello")
    lines(tmp_path / "a.jsonl", asked(CODE, 5))
    pl.DataFrame(asked(CODE, 5)).write_parquet(tmp_path / "a.parquet")
    lines(tmp_path / "stats.jsonl", [{"loss": 1.0}] * 3)
    whole = gzip.compress("".join(json.dumps({"prompt": os.urandom(99).hex()}) + "\n" for _ in range(99)).encode())
    (tmp_path / "cut.jsonl.gz").write_bytes(whole[: len(whole) // 2])
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    line = err.splitlines()[-1]
    assert said in line
    assert line.startswith("draftmill: ")
    assert "source audit" not in line


def test_of_hundreds_of_labels_the_later_ones_are_one(run: Run, tmp_path: Path) -> None:
    rows = [{"prompt": CODE.format(i), "kind": f"label {i}"} for i in range(MOST_LABELS + 100)]
    lines(tmp_path / "a.jsonl", rows)
    found = told(run("a.jsonl", "--label", "kind", "--all", "--format", "json"))
    counts = {one["category"]: one["prompts"] for one in found["categories"]}
    assert len(counts) == MOST_LABELS + 1
    assert counts[OTHERS] == 100


@pytest.mark.parametrize("kind", [pa.timestamp("us"), pa.timestamp("s", "UTC"), pa.date32(), pa.list_(pa.date32())])
def test_a_time_that_python_has_not_ends_nothing(kind: Any, run: Run, tmp_path: Path) -> None:
    far = pa.array([2**31 - 1] * 40, pa.int32())
    if pa.types.is_timestamp(kind):
        times = pa.array([2**60 // (1 if kind.unit == "us" else 10**6)] * 40, pa.int64()).cast(kind)
    else:
        times = far.cast(pa.date32())
        times = times if kind == pa.date32() else pa.FixedSizeListArray.from_arrays(times, 1).cast(kind)
    table = pa.table({"prompt": [CODE.format(i) for i in range(40)], "made": times})
    pq.write_table(table, tmp_path / "far.parquet")
    assert told(run("far.parquet", "--all", "--by", "made", "--format", "json"))["prompts"] == 40


def test_few_prompts_are_said_to_be_few(run: Run, tmp_path: Path) -> None:
    lines(tmp_path / "few.jsonl", asked(CODE, 3))
    lines(tmp_path / "more.jsonl", asked(CODE, 60))
    assert "3 prompts are few: shares of less than 30 say little." in run("few.jsonl")[1]
    assert "1 prompt is few" in run("few.jsonl", "--rows", "1")[1]
    assert "few" not in run("more.jsonl")[1]


def test_a_manifest_says_what_is_intended(run: Run, world: World) -> None:
    world.write()
    lines(world.root / "a.jsonl", asked(CODE, 300))
    code, out, _ = run(world.root / "a.jsonl", "-m", world.root / "mix.yaml", "--fail-on-skew", "5%")
    assert code == 3
    assert "target 50%: skewed" in out.splitlines()[0]


def test_nothing_is_written(run: Run, tmp_path: Path) -> None:
    lines(tmp_path / "a.jsonl", asked(CODE, 50))
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    run("a.jsonl", "--examples", 2, "--explain")
    run("a.jsonl", "--format", "csv")
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


# how it is told

HOSTILE = (
    "\x1b[31mred\x1b[0m \u202etxet\u202c <script>alert(1)</script> | `x` **b** [l](http://e) \x07\x9b2J\r\nWrite Python"
)


def test_hostile_text_steers_nothing(run: Run, tmp_path: Path) -> None:
    rows = [{"prompt": HOSTILE, "source": HOSTILE, "kind": HOSTILE} for _ in range(5)]
    rows += [{"prompt": "w" * 1_000_000, "source": "=cmd()", "kind": "=cmd()"}]
    lines(tmp_path / "\u202eevil\x1b[31m.jsonl", rows)
    lines(tmp_path / "other.jsonl", rows)
    for extra in ((), ("--label", "kind"), ("--by", "source")):
        for form in ("text", "csv", "markdown", "json"):
            more = ("--explain",) if "--label" not in extra else ()
            code, out, _ = run(".", "--examples", 2, *more, *extra, *(() if form == "text" else ("--format", form)))
            assert code == 0
            shown = out.replace("\n", "")
            assert shown.isprintable(), (form, [ch for ch in shown if not ch.isprintable()])
            if form == "markdown":
                assert "<script" not in out
                assert "&lt;script&gt;" in out
            if form == "csv":
                assert not any(cell.startswith("=") for row in csv.reader(io.StringIO(out)) for cell in row)


def test_a_hostile_name_steers_nothing_in_an_error(run: Run, tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "a\x1b[2J\u202e.jsonl.gz").write_bytes(gzip.compress(b'{"prompt": "a"}\n' * 99)[:20])
    code, _, err = run("x")
    assert (code, err.count("\n")) == (2, 1)
    assert err.rstrip("\n").isprintable()


def test_examples_and_reasons_are_shown(run: Run, tmp_path: Path) -> None:
    lines(tmp_path / "a.jsonl", asked(CODE, 20) + asked(CHAT, 20))
    _, out, _ = run("a.jsonl", "--examples", 2, "--explain")
    assert "why coding (of 20 prompts)" in out
    assert out.count("[a.jsonl:") == 4
    assert "coding: asks for a program" in out
    found = told(run("a.jsonl", "--examples", 2, "--format", "json"))
    assert {len(examples) for examples in found["examples"].values()} == {2}
    assert all(found["examples"][name][0]["asked"] for name in ("coding", "general"))


def test_csv_and_markdown_hold_categories_and_files(run: Run, tmp_path: Path) -> None:
    lines(tmp_path / "c" / "a.jsonl", asked(CODE, 20))
    lines(tmp_path / "c" / "b.jsonl", asked(CHAT, 20))
    _, out, _ = run("c", "--shares", "coding=1,general=3", "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert {row["name"] for row in rows if row["scope"] == "file"} == {"a.jsonl", "b.jsonl"}
    shares = {row["category"]: float(row["share"]) for row in rows if row["scope"] == "corpus"}
    assert sum(shares.values()) == pytest.approx(1)
    assert [row["target"] for row in rows if row["category"] == "coding" and row["scope"] == "corpus"] == ["0.250000"]
    _, out, _ = run("c", "--shares", "coding=1,general=3", "--format", "markdown")
    assert re.match(r"\*\*(coding|general) \d\d\.\d% ", out)
    assert "| category | share | 95% interval | target | off |" in out
    assert "| a.jsonl | 20 | 20 | 100.0% coding |" in out


def test_repeated_prompts_and_turns_are_counted(run: Run, tmp_path: Path) -> None:
    turns = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Yo"},
        {"role": "user", "content": "Go"},
    ]
    rows = [*asked(CHAT, 8), {"prompt": CHAT.format(1).upper() + " "}, {"messages": turns}]
    lines(tmp_path / "a.jsonl", rows)
    found = told(run("a.jsonl", "--format", "json"))["all"]
    assert (found["repeated_in_sample"], found["several_turns"]) == (1, pytest.approx(0.1))


def test_many_small_files_are_told_by_folder(run: Run, tmp_path: Path) -> None:
    for folder, text in (("chat", CHAT), ("code", CODE)):
        for i in range(60):
            path = tmp_path / "traces" / folder / f"{i}.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps({"messages": [{"role": "user", "content": text.format(i)}]}))
    found = told(run("traces", "--format", "json"))
    assert [(part["name"], part["rows"]) for part in found["parts"]] == [
        ("chat/ (60 files)", 60), ("code/ (60 files)", 60)
    ]  # fmt: skip
    assert share(told(run("traces", "--rows", 60, "--format", "json")), "coding")["as_put"] == pytest.approx(0.5)


def test_the_commands_of_the_page_do_what_it_says(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (HOME / "docs" / "auditing.md").read_text()
    block = re.search(r"^```bash\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert block is not None
    monkeypatch.chdir(HOME)
    for line in block[1].splitlines():
        program, command, *arguments = line.split()
        assert (program, command) == ("draftmill", "audit")
        assert run(*arguments)[0] == 0
    for words in ("skewed", "may be skewed", "cannot tell", "as intended"):
        assert f"| {words}" in page
    code, _, _ = run("manifests/demo", "--manifest", "manifests/demo.yaml", "--fail-on-skew", "5%")
    assert code == 3
