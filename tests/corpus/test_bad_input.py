"""Files that are broken: each ends in one line that names source and row or file.

Where the manifest says `on_bad_row: skip`, every row that cannot be read is a drop with its reason, and the counts
add up.
"""

from __future__ import annotations

import gzip
import io
import json
import random
import resource
from collections import Counter
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from corpus import lines, pieces
from corpus.building import commit_build
from corpus.errors import UserError
from corpus.ledger.query import query
from corpus.ledger.writer import open_ledger
from corpus.readers import Piece, Reading, SourceFile, read_pieces

World = Any


def rows(count: int, start: int = 0) -> list[dict[str, Any]]:
    return [{"id": str(i), "prompt": f"question {i} {i * 7919 % 104729}"} for i in range(start, start + count)]


def jsonl(count: int = 2000) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows(count)).encode()


def parquet(count: int = 2000, groups: int = 4, checksums: bool = False) -> bytes:
    buffer = io.BytesIO()
    table = pa.Table.from_pylist(rows(count))
    pq.write_table(table, buffer, row_group_size=count // groups, use_dictionary=False, compression="zstd",
                   write_page_checksum=checksums)  # fmt: skip
    return buffer.getvalue()


def damaged(data: bytes, group: int) -> bytes:
    """A parquet file with a flipped byte in a data page of one row group."""
    column = pq.read_metadata(io.BytesIO(data)).row_group(group).column(1)
    place = column.data_page_offset + column.total_compressed_size - 20
    return data[:place] + bytes([data[place] ^ 0x55]) + data[place + 1 :]


def text_that_is_none(kind: str) -> bytes:
    """Three rows, of which the second prompt is not UTF-8."""
    values = [b"one", b"caf\xe9", b"three"]
    offsets = pa.py_buffer(pa.array([0, 3, 7, 12], pa.int32()).buffers()[1])
    column = pa.Array.from_buffers(pa.string(), 3, [None, offsets, pa.py_buffer(b"".join(values))])
    table, buffer = pa.table({"prompt": column}), io.BytesIO()
    if kind == "parquet":
        pq.write_table(table, buffer)
    else:
        with pa.ipc.new_stream(buffer, table.schema) as writer:
            writer.write_table(table)
    return buffer.getvalue()


def arrow(count: int = 2000) -> bytes:
    buffer, table = io.BytesIO(), pa.Table.from_pylist(rows(count))
    with pa.ipc.new_stream(buffer, table.schema) as writer:
        writer.write_table(table, max_chunksize=500)
    return buffer.getvalue()


def zstd(data: bytes) -> bytes:
    return bytes(pa.compress(data, codec="zstd", asbytes=True))


def noise(count: int) -> bytes:
    draw = random.Random(1)
    return "".join(json.dumps({"prompt": f"question {draw.getrandbits(64):x}"}) + "\n" for _ in range(count)).encode()


def half(data: bytes) -> bytes:
    return data[: len(data) // 2]


LONG = 3 << 20
Case = tuple[str, bytes, str, dict[str, int], int]
"""Name, bytes, what stop says, the reasons under skip, and the fewest rows that are kept then."""
CASES: dict[str, Case] = {
    "a line that is no JSON": (
        "x.jsonl", jsonl(3) + b'{"prompt": \n' + jsonl(2), "row 3 (line 4) is not valid JSON", {"not_json": 1}, 3
    ),
    "a line of another kind": ("x.jsonl", b'[1]\n{"prompt": "a"}\n7\n', "row 0 holds list", {"not_json": 2}, 1),
    "a line that is not UTF-8": (
        "x.jsonl", jsonl(3) + b'{"prompt": "caf\xe9"}\n' + jsonl(2), "row 3 (line 4) is not valid JSON",
        {"not_utf8": 1}, 3,
    ),
    "a line that is too long": (
        "x.jsonl", jsonl(3) + b'{"prompt": "' + b"x" * LONG + b'"}\n' + b'{"prompt": "behind"}\n',
        "row 3 (line 4) is longer than", {"line_too_long": 1}, 4,
    ),
    "a line that is too long and last": (
        "x.jsonl.gz", gzip.compress(jsonl(3) + b"x" * LONG), "row 3 (line 4) is longer than", {"line_too_long": 1}, 3
    ),
    "half a gzip": ("x.jsonl.gz", half(gzip.compress(jsonl())), "breaks off in row ", {"unreadable": 1}, 500),
    "half a zstd": ("x.jsonl.zst", half(zstd(noise(40_000))), "breaks off in row ", {"unreadable": 1}, 10_000),
    "a damaged row group": (
        "x.parquet", damaged(parquet(), 2), "row group 2 (rows 1000 to 1499) cannot be read", {"unreadable": 500}, 1500
    ),
    "a damaged footer": ("x.parquet", parquet()[:-20], "not a readable parquet file", {"unreadable": 1}, 0),
    "no parquet": ("x.parquet", b"PAR1 and so on", "not a readable parquet file", {"unreadable": 1}, 0),
    "half a gzip of parquet": (
        "x.parquet.gz", half(gzip.compress(parquet())), "not a readable parquet file", {"unreadable": 1}, 0
    ),
    "parquet text that is not UTF-8": (
        "x.parquet", text_that_is_none("parquet"), "row 1 holds text that is not UTF-8", {"not_utf8": 1}, 2
    ),
    "arrow text that is not UTF-8": (
        "x.arrow", text_that_is_none("arrow"), "row 1 holds text that is not UTF-8", {"not_utf8": 1}, 2
    ),
    "half an arrow": ("x.arrow", half(arrow()), "breaks off after row 999", {"unreadable": 1}, 1000),
    "no arrow": ("x.arrow", b"no arrow at all", "not a readable arrow file", {"unreadable": 1}, 0),
    "a csv row with too many fields": (
        "x.csv", b"id,prompt\n1,a\n2,b,c\n3,d\n", "row 1 has 3 fields, the header has 2", {"ragged": 1}, 2
    ),
    "a csv row that is not UTF-8": ("x.csv", b"id,prompt\n1,caf\xe9\n3,d\n", "row 0 holds text", {"not_utf8": 1}, 1),
    "a csv that ends in a quote": (
        "x.csv", b'id,prompt\n1,a\n2,"b\n', "csv breaks off in row 1", {"unreadable": 1}, 1
    ),
    "half a gzip of csv": (
        "x.csv.gz", half(gzip.compress(b"prompt\n" + b"".join(b"question %d\n" % (i * 7919) for i in range(5000)))),
        "csv breaks off in row ", {"unreadable": 1}, 1000,
    ),
    "a document that is cut": ("x.json", json.dumps(rows(5)).encode()[:-9], "not valid JSON", {"not_json": 1}, 0),
    "a document that is not UTF-8": ("x.json", b'[{"prompt": "caf\xe9"}]', "not valid JSON", {"not_utf8": 1}, 0),
    "a document with a number in it": (
        "x.json", b'[{"prompt": "a"}, 7, {"prompt": "b"}]', "row 1 holds int", {"not_json": 1}, 2
    ),
    "half a gzip of a document": (
        "x.json.gz", half(gzip.compress(json.dumps(rows(2000)).encode())), "cannot be read to its end",
        {"unreadable": 1}, 0,
    ),
}  # fmt: skip


@pytest.fixture(autouse=True)
def short_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "MAX_LINE_BYTES", 2 << 20)
    monkeypatch.setattr(lines, "PIECE_BYTES", 1 << 20)


def build(world: World, on_bad_row: str, **source: Any) -> None:
    sources = [
        {"name": "bad", "path": "data", "category": "coding", **source},
        {"name": "good", "path": world.prompts("good", 20), "category": "coding"},
    ]
    mix = {"total": 5, "shares": {"coding": 1}}
    manifest = world.manifest(sources=sources, mix=mix, on_bad_row=on_bad_row)
    with open_ledger(world.workspace, "test") as ledger:
        commit_build(world.plan(manifest), world.workspace, ledger)


def funnel(world: World) -> Counter[str]:
    found = Counter(dict(query(world.workspace, "SELECT reason, rows FROM funnel WHERE source = 'bad'").rows()))
    assert found["read"] == found.total() - found["read"] - found["left_out"]
    return found


def refused(world: World, **source: Any) -> str:
    with pytest.raises(UserError) as caught:
        build(world, "stop", **source)
    line = str(caught.value)
    assert line.startswith("source bad: ")
    assert "\n" not in line
    assert len(line) < 600
    assert not list(world.workspace.root.glob("builds/*"))
    assert not list(world.workspace.root.rglob("*.tmp"))
    return line


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_bad_input_is_one_line_that_names_its_place_and_what_to_do(world: World, case: Case) -> None:
    name, data, said, _, _ = case
    (world.root / "data").mkdir()
    (world.root / "data" / name).write_bytes(data)
    line = refused(world)
    assert line.startswith(f"source bad: {name}: ")
    assert said in line
    assert "on_bad_row: skip" in line


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_where_bad_rows_are_skipped_each_is_a_drop_and_the_rest_is_kept(world: World, case: Case) -> None:
    name, data, _, reasons, kept = case
    (world.root / "data").mkdir()
    (world.root / "data" / name).write_bytes(data)
    world.jsonl("data/whole.jsonl", [{"prompt": f"whole {i}"} for i in range(7)])
    build(world, "skip")
    found = funnel(world)
    assert {reason: found[reason] for reason in unreadable(found)} == reasons
    assert found["read"] - sum(reasons.values()) >= kept + 7
    details = query(world.workspace, "SELECT DISTINCT file, detail FROM source_rows WHERE reason IN "
                                     "('not_json', 'not_utf8', 'line_too_long', 'unreadable', 'ragged')")  # fmt: skip
    assert details["file"].unique().to_list() == [name]
    assert details["detail"].str.len_chars().min() > 10


def unreadable(found: Counter[str]) -> set[str]:
    return set(found) & {"not_json", "not_utf8", "line_too_long", "unreadable", "ragged"}


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet", "arrow"])
def test_bad_rows_count_against_a_limit_and_none_behind_it_is_counted(world: World, kind: str) -> None:
    (world.root / "data").mkdir()
    if kind in ("parquet", "arrow"):
        (world.root / "data" / f"x.{kind}").write_bytes(text_that_is_none(kind))
    elif kind == "csv":
        (world.root / "data" / "x.csv").write_bytes(b"prompt\none\na,b\nthree\nc,d\n")
    else:
        (world.root / "data" / "x.jsonl").write_bytes(b'{"prompt": "one"}\n[]\n{"prompt": "three"}\n[]\n')
    build(world, "skip", limit=2)
    found = funnel(world)
    assert found["read"] == 2
    assert sum(found[reason] for reason in unreadable(found)) == 1


@pytest.mark.parametrize("checksums", [False, True])
def test_a_flipped_byte_in_a_row_group_gives_no_other_text(checksums: bool) -> None:
    whole = parquet(checksums=checksums)
    told = {row["id"]: row["prompt"] for row in rows(2000)}
    metadata = pq.read_metadata(io.BytesIO(whole)).row_group(1)
    draw = random.Random(3)
    for _ in range(30):
        column = metadata.column(draw.randrange(2))
        start = column.data_page_offset
        place = draw.randrange(start, start + column.total_compressed_size)
        data = whole[:place] + bytes([whole[place] ^ (1 << draw.randrange(8))]) + whole[place + 1 :]
        read = list(read_pieces(SourceFile("x.parquet", lambda data=data: io.BytesIO(data)), Reading("s", None, True)))
        seen = sorted([i for p in read for i in p.indexes] + [bad.row for p in read for bad in p.bad])
        assert seen == list(range(2000))  # every row is there, read or bad
        if checksums:
            assert all(told[row["id"]] == row["prompt"] for p in read for row in p.rows)


# a column that changes from file to file


def write_files(world: World, kind: str, first: list[dict[str, Any]], second: list[dict[str, Any]]) -> None:
    """Two files that are read in this order."""
    (world.root / "data").mkdir()
    for name, body in (("b", first), ("a", second)):  # the salted order
        path = world.root / "data" / f"{name}.{kind}"
        if kind == "parquet":
            pl.DataFrame(body).write_parquet(path)
        elif kind == "arrow":
            pl.DataFrame(body).write_ipc_stream(path)
        else:
            path.write_text("".join(json.dumps(row) + "\n" for row in body))


@pytest.mark.parametrize("kind", ["parquet", "arrow", "jsonl"])
@pytest.mark.parametrize(
    ("second", "got"),
    [([{"id": "x", "prompt": 7}], "is int"), ([{"id": "x", "prompt": 1.5}], "is float"),
     ([{"id": "x", "note": "here"}], "is not there")],
)  # fmt: skip
def test_a_column_that_changes_type_between_files_names_both(
    world: World, kind: str, second: list[dict[str, Any]], got: str
) -> None:
    write_files(world, kind, rows(3), second)
    line = refused(world)
    assert f"column prompt {got}; in " in line
    assert "it is str" in line
    assert all(f"{name}.{kind}" in line for name in ("a", "b"))
    build(world, "skip")
    assert funnel(world)["read"] == 4


@pytest.mark.parametrize("kind", ["parquet", "arrow", "jsonl"])
def test_a_file_with_another_prompt_column_is_read_as_what_it_is(world: World, kind: str) -> None:
    write_files(world, kind, rows(3), [{"id": "x", "text": "here"}])
    build(world, "stop")
    assert set(funnel(world)) == {"read", "selected", "not_needed"}


def test_a_table_with_none_of_the_columns_is_one_line_or_drops(world: World) -> None:
    write_files(world, "parquet", rows(3), [{"zzz": 1}, {"zzz": 2}])
    assert "has none of the columns that the source's format looks at; columns are zzz" in refused(world)
    build(world, "skip")
    assert funnel(world)["read"] == 5


def test_a_file_of_empty_prompts_is_drops_and_no_change_of_type(world: World) -> None:
    write_files(world, "jsonl", rows(3), [{"id": "x", "prompt": None}])
    build(world, "stop")
    assert funnel(world)["read"] == 4


def test_a_column_of_texts_may_become_a_column_of_messages(world: World) -> None:
    write_files(world, "jsonl", rows(3), [{"prompt": [{"role": "user", "content": "as messages"}]}])
    build(world, "stop")
    assert funnel(world)["read"] == 4


# memory


def test_a_line_of_a_hundred_megabytes_is_read_past_in_bounded_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    path = tmp_path / "x.jsonl"
    with path.open("wb") as file:
        file.write(b'{"prompt": "before"}\n{"prompt": "')
        for _ in range(100):
            file.write(b"x" * (1 << 20))
        file.write(b'"}\n{"prompt": "behind"}\n')
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    read: list[Piece] = list(read_pieces(SourceFile("x.jsonl", lambda: path.open("rb")), Reading("s", None, True)))
    assert [(row["prompt"], i) for p in read for i, row in zip(p.indexes, p.rows, strict=True)] == [
        ("before", 0), ("behind", 2)
    ]  # fmt: skip
    assert [(bad.row, bad.reason) for p in read for bad in p.bad] == [(1, "line_too_long")]
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300 << 10  # KiB


def test_a_long_row_group_is_read_in_pieces() -> None:
    buffer = io.BytesIO()
    pq.write_table(pa.table({"prompt": [f"question {i}" for i in range(100_000)]}), buffer, row_group_size=100_000)
    read = list(read_pieces(SourceFile("x.parquet", lambda: io.BytesIO(buffer.getvalue())), Reading("s")))
    assert [len(piece.rows) for piece in read] == [pieces.PIECE_ROWS] * 10


def test_a_csv_is_read_no_further_than_it_is_asked_for() -> None:
    stream = io.BytesIO(b"prompt\n" + b"".join(b"question %d\n" % i for i in range(200_000)))
    reading = read_pieces(SourceFile("x.csv", lambda: stream), Reading("s"))
    assert len(next(reading).rows) == pieces.PIECE_ROWS
    assert stream.tell() < 1 << 20
    reading.close()


class TransportError(Exception):
    """What a network library raises: no OSError."""


class Lossy(io.BytesIO):
    """A file whose network is lost after some reads."""

    def __init__(self, data: bytes, reads: int, error: BaseException, most: int) -> None:
        super().__init__(data)
        self.left, self.error, self.most = reads, error, most

    def read(self, size: int | None = -1) -> bytes:
        self.left -= 1
        if self.left < 0:
            raise self.error
        return super().read(min(size, self.most) if size and size > 0 else size)

    read1 = read  # type: ignore[assignment]


WHOLE = {
    "x.parquet": parquet(20_000), "x.arrow": arrow(20_000), "x.jsonl": jsonl(20_000),
    "x.csv": b"prompt\n" + b"".join(b"question %d\n" % i for i in range(20_000)),
    "x.jsonl.gz": gzip.compress(jsonl(20_000)), "x.jsonl.zst": zstd(noise(20_000)),
    "x.json": json.dumps(rows(2000)).encode(),
}  # fmt: skip


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize("error", [ConnectionError("reset"), TransportError("gone"), OSError(5, "Input/output error")])
def test_a_lost_network_or_disk_is_never_a_drop(name: str, error: BaseException) -> None:
    reads = 0
    while reads < 60:
        most = 1 << 30 if name == "x.parquet" else 20_000  # what is read in order may come in parts
        lossy = Lossy(WHOLE[name], reads, error, most)
        file = SourceFile(name, lambda lossy=lossy: lossy, (TransportError,))  # type: ignore[misc]
        try:
            read = list(read_pieces(file, Reading("s", None, True)))
        except UserError as refused:
            assert str(refused).startswith(f"source s: {name}: cannot be read (")
        else:
            assert not [bad for piece in read for bad in piece.bad]
            assert reads
            return
        reads += 1 if reads < 4 else 7
