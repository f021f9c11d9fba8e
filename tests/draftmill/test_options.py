from __future__ import annotations

import pytest
import typer

from draftmill.commands.options import size_bytes


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1000", 1000), ("500GB", 500 * 10**9), ("1.5 tb", 1_500 * 10**9), ("2TiB", 2 << 40), ("3KiB", 3 << 10),
        ("7m", 7_000_000), ("0.5GiB", 1 << 29),
    ],
)  # fmt: skip
def test_a_size_is_read_as_it_is_written(text: str, size: int) -> None:
    assert size_bytes(text) == size


@pytest.mark.parametrize("text", ["", "GB", "-1GB", "1e9", "5 PB", "1,5TB"])
def test_another_size_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(typer.BadParameter, match=r"500GB, 1\.5TB or 2TiB"):
        size_bytes(text)
