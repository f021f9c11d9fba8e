"""Makes third-prompts.jsonl.gz again, byte for byte: prompts like those of the sets before, from other packages.

    python -m tests.labelled.third_set --packages DIR --out tests/labelled

DIR holds packages as second_set.py has them. A package lies in one half as a whole, by a hash of its name. A prompt
that an earlier set has, or that comes again, is left out; third/mended_*.py say which rows are labelled against their
file, third/read_again.py what became of those that a second reader saw otherwise.
"""

from __future__ import annotations

from tests.labelled.second_set import folders, unlike
from tests.labelled.sets import FIRST, SECOND, THIRD, write_set
from tests.labelled.third import code, code_more, general, general_more
from tests.labelled.third.read_again import READ_AGAIN


def main() -> None:
    packages, out = folders("The third labelled set, from unpacked packages.")
    drawn = [row for module in (code, general, code_more, general_more) for row in module.rows(packages)]
    rows = unlike(drawn, (FIRST, SECOND))
    for name, category in READ_AGAIN.items():
        rows[name]["category"] = category
    write_set(out / THIRD.name, rows)


if __name__ == "__main__":
    main()
