"""The command `draftmill`: checks that its packages are its own, then hands over to the commands.

Exit codes: 0 fine, 1 a bug or a failed run, 2 the user must act, 3 a check said no. Errors that a person must act
on are one line on stderr without a traceback; anything else is a bug and shows where.
"""

from __future__ import annotations

import importlib.util
import signal
import sys
from pathlib import Path

PACKAGES = ("corpus", "generation", "extraction", "training", "fleet")


def main() -> None:
    """Run the command line."""
    problem = shadowed_package()
    if problem:
        sys.stderr.write(f"draftmill: {problem}\n")
        raise SystemExit(2)
    from draftmill.app import run_app

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: cleaned up, and one line
    code = run_app(sys.argv[1:])
    # Ctrl-C inside an exec (every import of a dataclass is one) leaves a mark in the interpreter, which then ends by
    # SIGINT whatever the exit code; the next exec takes the mark away
    exec("")  # noqa: S102
    raise SystemExit(code)


def shadowed_package() -> str | None:
    """One line if a package of the user's own stands before one of draftmill's, else None."""
    home = Path(__file__).resolve().parent.parent
    for name in PACKAGES:
        spec = importlib.util.find_spec(name)
        origin = spec and (spec.origin or next(iter(spec.submodule_search_locations or ()), None))
        if not origin or Path(origin).resolve() not in (home / name, home / name / "__init__.py"):
            return (
                f"the package {name} is {origin or 'missing'}, expected in {home}. "
                "Run draftmill from another folder, or rename yours."
            )
    return None


if __name__ == "__main__":
    main()
