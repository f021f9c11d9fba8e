"""What was read is the sum of what became of it, said in words; a sum that does not hold is said too."""

from __future__ import annotations

from typing import Any

import pytest
from rich.cells import cell_len

from corpus.errors import UserError
from corpus.ledger.query import query
from draftmill.looking.chosen import Build, chosen_build, open_reader
from draftmill.looking.funnel import Funnel, funnel_frame, read_funnels, summed
from draftmill.looking.funnel_lines import LABEL, funnel_lines
from draftmill.looking.reasons import ANSWERS, ROWS

World = Any


def funnels_of(world: World, name: str, source: str | None = None) -> tuple[Build, list[Funnel]]:
    reader = open_reader(world.workspace)
    build = chosen_build(name, world.workspace, reader)
    return build, read_funnels(reader, build, source)


def test_the_funnel_is_the_views(asked: World) -> None:
    build, funnels = funnels_of(asked, "small")
    for one in funnels:
        rows = query(
            asked.workspace,
            f"SELECT reason, rows FROM funnel WHERE build_id = '{build.build_id}' AND source = '{one.source}'",
        )
        assert one.rows == dict(rows.iter_rows())
        assert one.breaches == []
    (code, talk) = funnels
    assert code.drops == {"duplicate": 1, "empty_prompt": 1, "near_duplicate": 1}
    assert talk.read == 30
    accepted = query(
        asked.workspace,
        "SELECT count(*) FROM build_responses b JOIN accepted_responses USING (response_id) "
        f"WHERE build_id = '{build.build_id}' AND left_out IS NULL",
    )
    assert sum(one.accepted for one in funnels) == accepted.item()


@pytest.mark.parametrize("name", ["small", "larger"])
def test_what_is_missing_is_what_unfinished_says(asked: World, name: str) -> None:
    build, funnels = funnels_of(asked, name)
    unfinished = query(
        asked.workspace, f"SELECT why, count(*) FROM unfinished WHERE build_id = '{build.build_id}' GROUP BY 1"
    )
    assert summed(funnels).missing == dict(unfinished.iter_rows())


def test_lines_fit_and_say_why_in_words(asked: World) -> None:
    build, funnels = funnels_of(asked, "larger")
    lines = funnel_lines(build, funnels)
    assert all(cell_len(line) <= 80 and line.isprintable() for line in lines)
    shown = "\n".join(lines)
    assert "nearly the same as another (near_duplicate)" in shown
    assert "not answered yet" in shown
    assert shown.endswith("sums hold: each row read and each answer wanted is in one line of its source")
    assert funnel_frame(build, funnels)["count"].sum() > 0


def test_a_source_that_is_not_there_is_refused_with_the_nearest(asked: World) -> None:
    with pytest.raises(UserError, match=r"has no source cod\. Did you mean code\?"):
        funnels_of(asked, "small", "cod")
    assert [one.source for one in funnels_of(asked, "small", "code")[1]] == ["code"]


def funnel(**changes: Any) -> Funnel:
    base: dict[str, Any] = {
        "source": "a", "dataset": None, "license": None, "rows": {"read": 5, "selected": 5}, "wanted": 6,
        "missing": {"empty": 2}, "accepted": 4, "captured": 0, "trained": 0, "tokens": 9,
    }  # fmt: skip
    return Funnel(**(base | changes))


def test_what_does_not_add_up_is_a_breach() -> None:
    assert funnel().breaches == []
    assert funnel(rows={"read": 5, "selected": 4}).breaches == ["a: 5 rows were read, and 4 are accounted for"]
    assert funnel(accepted=3).breaches == ["a: 6 answers are wanted, and 5 are accounted for"]


def test_the_sum_of_sources_is_their_sum() -> None:
    both = summed([funnel(), funnel(rows={"read": 3, "held_out": 3})])
    assert both.rows == {"read": 8, "selected": 5, "held_out": 3}
    assert (both.wanted, both.accepted, both.missing) == (12, 8, {"empty": 4})


@pytest.mark.parametrize("words", [ROWS, ANSWERS], ids=["rows", "answers"])
def test_every_reason_fits_beside_its_code(words: dict[str, str]) -> None:
    assert max(len(f"    {said} ({code})") for code, said in words.items()) <= LABEL


def test_every_reason_of_the_pages_has_words() -> None:
    import re
    from pathlib import Path

    page = (Path(__file__).resolve().parents[3] / "docs" / "corpus.md").read_text()
    table = page.split("| step | reasons | |")[1].split("\n\n")[0]
    codes = set(re.findall(r"`([a-z_]+)`", "\n".join(line.rsplit("|", 2)[0] for line in table.splitlines())))
    assert len(codes) >= 20
    assert codes <= ROWS.keys()
