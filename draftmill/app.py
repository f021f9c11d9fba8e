"""All commands under one name, and what every one of them shares: logging, errors, exit codes.

Importing this module costs no torch, vllm, duckdb or polars: `draftmill --help` is fast.
"""

from __future__ import annotations

import io
import logging
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from typer.exceptions import TyperException

from corpus.artefacts import full_disk
from corpus.errors import UserError
from draftmill.commands import (
    asking,
    auditing,
    corpus,
    exchanging,
    exploring,
    importing,
    ledger,
    looking,
    machine,
    planning,
    publishing,
    reporting,
    stages,
    suggesting,
    tuning,
)
from draftmill.commands.contents import Grouped, give_phrases
from draftmill.interrupted import StoppedEarly
from draftmill.version import installed_version

EXIT_FAILED = 1
EXIT_USER = 2
TYPERS_INTERRUPT = 130  # it catches KeyboardInterrupt, and says nothing

app = typer.Typer(
    name="draftmill",
    cls=Grouped,
    help="From a mix manifest to a drafter, with the provenance of every row.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
stages.register(app)
importing.register(app)
asking.register(app)
auditing.register(app)
looking.register(app)
corpus.register(app)
exchanging.register(app)
exploring.register(app)
publishing.register(app)
machine.register(app)
planning.register(app)
tuning.register(app)
suggesting.register(app)
reporting.register(app)
app.add_typer(ledger.app, name="ledger")
give_phrases(app)


def _say_version(asked: bool) -> None:
    if asked:
        typer.echo(f"draftmill {installed_version()}")
        raise typer.Exit


@app.callback()
def _whole(
    version: Annotated[
        bool, typer.Option("--version", callback=_say_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """What the command takes before any of its commands."""


def _open_streams() -> None:
    """Streams that whoever started us closed lead nowhere, and the work goes on; data is UTF-8 under any locale."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115, PTH123
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.encoding.lower().replace("-", "") != "utf8":
        sys.stdout.reconfigure(encoding="utf-8")


def _tell(said: object) -> None:
    """Write why the command ends. What data or a library had to say stands in it, so nothing of it steers."""
    from draftmill.table import printable_lines

    sys.stderr.write(f"draftmill: {printable_lines(str(said))}\n")


class _Plain(logging.Formatter):
    """Log lines for a terminal, likewise."""

    def format(self, record: logging.LogRecord) -> str:
        from draftmill.table import printable_lines

        return printable_lines(super().format(record))


def _log_to_stderr() -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Plain("draftmill: %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    level = os.environ.get("DRAFTMILL_LOG", "INFO").upper()
    logging.getLogger("draftmill").setLevel(level if level in logging.getLevelNamesMapping() else "INFO")


def run_app(arguments: Sequence[str]) -> int:
    """Run one command line; returns the exit code."""
    _open_streams()
    _log_to_stderr()
    from fleet.devices import DeviceError
    from fleet.interrupt import Interrupted

    try:
        code = app(args=list(arguments), standalone_mode=False)  # of a command that exits, its exit code
        if code == TYPERS_INTERRUPT:
            raise KeyboardInterrupt
    except (UserError, DeviceError) as error:
        _tell(error)
        return EXIT_USER
    except StoppedEarly as stop:
        _tell(stop)
        return EXIT_FAILED
    except typer.Exit as stop:
        return stop.exit_code
    except typer.Abort:
        return EXIT_FAILED
    except (KeyboardInterrupt, Interrupted):
        sys.stderr.write("draftmill: stopped. What was committed is kept; run the same command to go on.\n")
        return EXIT_FAILED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILED
    except OSError as error:
        reason = full_disk(error, Path(error.filename) if isinstance(error.filename, str) else Path("standard output"))
        if reason is None:
            raise
        with suppress(OSError):
            _tell(reason)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_USER
    except TyperException as error:  # a wrong option or argument
        cast(Any, error).show()
        return EXIT_USER
    return code if isinstance(code, int) else 0
