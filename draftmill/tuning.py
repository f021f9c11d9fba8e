"""`draftmill tune`: the search over engine settings joined to a session, told as a table, and its advice as YAML.

Plans, measures, says what it found on stderr and gives the engine section on stdout. Takes no lock and writes nothing
to the ledger: a run may go on beside it, on other devices. Only `write` changes a file, the manifest's engine section.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from io import StringIO
from statistics import median
from textwrap import wrap
from typing import Any

from ruamel.yaml import YAML

from corpus.columns import table
from corpus.errors import UserError
from corpus.manifest import Engine, Manifest
from corpus.manifest_edit import edit_manifest
from draftmill.interrupted import StoppedEarly
from draftmill.placement import Placement, place
from draftmill.selecting import selection_plan
from draftmill.session import Session
from draftmill.stage_run import reader
from draftmill.terminal import INDENT, WIDTH, Screen, clock, say, say_below
from fleet.devices import Device
from fleet.interrupt import Interrupt, run_interruptible
from generation.tune_run import Rounds, TuneRun, rounds_for
from generation.tune_sample import load_sample
from generation.tuning import (
    Advice,
    Outcome,
    Search,
    Setting,
    advise,
    changes,
    exactness,
    not_shown,
    present_rates,
    search_for,
    when_present_is_best,
)

HEADER = ("setting", "seqs", "tok/step", "KV cache", "tokens/s", "min", "max", "start", "gain")
GAIN = "gain: tokens/s over those of the present engine section, each the median of its rounds"


@dataclass(frozen=True)
class Options:
    """What the command line says of a search."""

    kv_cache_dtypes: tuple[str, ...] = ()
    settings: int = 6
    rounds: int = 3
    prompts: int | None = None
    max_tokens: int = 256
    write: bool = False


def search_of(session: Session, placement: Placement, options: Options) -> Search:
    """The search around the session's engine section, on the placement's first device.

    Raises:
        UserError: there is no room for what was asked for.
    """
    device = placement.devices[0]
    memory_bytes = min(one.memory_bytes for one in device.members or (device,))
    search = search_for(
        session.manifest.engine, placement.fit, device.kind, memory_bytes, session.manifest.target.max_model_len,
        options.kv_cache_dtypes, options.settings,
    )  # fmt: skip
    least = 1 + len(search.kv_cache_dtypes)
    if options.settings < least:
        raise UserError(
            f"--settings {options.settings} leaves no room for the present engine section and the KV cache dtypes "
            f"asked for ({', '.join(search.kv_cache_dtypes)}). Give at least --settings {least}."
        )
    return search


def plan_lines(session: Session, options: Options) -> list[str]:
    """What would be tried, for a person."""
    placement = place(session)
    search = search_of(session, placement, options)
    rounds = rounds_for(search, options.rounds, options.prompts)
    rows = [_row(number, setting, search)[:4] for number, setting in enumerate(when_present_is_best(search), 1)]
    return [
        *table(HEADER[:4], rows),
        *wrap(
            "This is what is tried if none of it beats the present section. When one does, the settings after it "
            "vary that one instead, and the present section is measured once more at the end.",
            WIDTH,
        ),
        *wrap(
            f"{rounds.count} rounds of {rounds.prompts:,} prompts each; {_cut(session.manifest, options)}; on "
            + ", ".join(device.label for device in _measuring(placement)),
            WIDTH,
        ),
    ]


def tune(session: Session, options: Options, give: Callable[[str], None]) -> None:
    """Measure, say what was found, and give the engine section that is recommended.

    Raises:
        StoppedEarly: an interrupt ended it; what was measured is said.
        UserError: the build has no prompt that can be asked, no setting ran, or the manifest cannot be edited.
    """
    build = selection_plan(session)
    placement = place(session)
    say_below(*placement.lines())
    search = search_of(session, placement, options)
    rounds = rounds_for(search, options.rounds, options.prompts)
    sample = load_sample(
        session.manifest, session.target, session.renderer, build, reader(session), rounds.wanted(search),
        options.max_tokens,
    )  # fmt: skip
    if not sample.asks:
        raise UserError(
            f"{session.manifest.name}: none of {sample.left_out:,} prompts leaves room for an answer. "
            "Raise target.max_model_len."
        )
    target = session.target_with_weights
    log_dir = session.workspace.cache / "tune"
    shutil.rmtree(log_dir, ignore_errors=True)  # a worker reads its own last words
    run = TuneRun(search, rounds, sample, session.manifest, target, log_dir)
    measuring = _measuring(placement)
    _say_plan(run, rounds, options, measuring)

    async def main(interrupt: Interrupt) -> bool:
        with Screen("starting the first engine") as screen:
            return await run.run(measuring, interrupt, screen.update, _say_outcome)

    finished = run_interruptible(main)
    for line in result_table(search, run.outcomes):
        say(line)
    if run.outcomes:
        say_below(GAIN)
    say_below(*result_notes(search, run.outcomes))
    if not finished:
        raise StoppedEarly("tuning stopped; nothing is recommended, and no file was changed.")
    advice = advise(search, run.outcomes)
    if advice is None:
        why = next(one.error for one in run.outcomes if one.error is not None)
        raise UserError(
            f"{session.manifest.name}: no engine setting ran that may be recommended; the first: {why}. Lower "
            "engine.max_num_seqs or engine.gpu_memory_utilization; `draftmill doctor MANIFEST` says what fits."
        )
    say_below(advice_line(search, advice, run.outcomes))
    values = changes(session.manifest.engine, search, advice.setting)
    if "kv_cache_dtype" in values:
        say_below("engine.kv_cache_dtype is part of the recipe: answers made with another are not reused")
    give(engine_yaml(session.manifest.engine, values))
    if options.write and values:
        edit_manifest(session.manifest_path, "engine", values)
        say(f"{'':<{INDENT}}written to {session.manifest_path}")
    elif options.write:
        say(f"{'':<{INDENT}}{session.manifest_path} stays as it is")


def result_table(search: Search, outcomes: Sequence[Outcome]) -> list[str]:
    """What was measured, in the order in which it came."""
    if not outcomes:
        return []
    present = present_rates(search, outcomes)
    rate = median(present) if present else 0.0
    return table(HEADER, [_measured(number, one, search, rate) for number, one in enumerate(outcomes, 1)])


def result_notes(search: Search, outcomes: Sequence[Outcome]) -> list[str]:
    """A sentence for each setting that failed, or whose KV dtype had to be compared."""
    notes = []
    for number, one in enumerate(outcomes, 1):
        if one.error is not None:
            notes.append(f"{number} {'did not start' if one.start_s is None else 'failed'}: {one.error}")
        elif one.setting.kv_cache_dtype != search.present.kv_cache_dtype:
            notes.append(f"{number} is {_exact(search, one, outcomes)}")
    return notes


def advice_line(search: Search, advice: Advice, outcomes: Sequence[Outcome]) -> str:
    """The recommendation in a sentence."""
    if advice.setting == search.present:
        return _stays(search, outcomes)
    gain = (
        "the present section did not run" if advice.gain is None else f"{advice.gain:.2f} times the present section"
    )  # fmt: skip
    return f"recommended: {advice.setting}; {gain}"


def _stays(search: Search, outcomes: Sequence[Outcome]) -> str:
    """Why the present section is the advice."""
    faster = not_shown(search, outcomes)
    if faster is None:
        return "the present engine section is as good as any that was tried"
    rates = present_rates(search, outcomes)
    return (
        f"the present engine section stays: {outcomes.index(faster) + 1} had {faster.tokens_per_s:,.0f} tokens/s to "
        f"its {median(rates):,.0f}, but that is not beyond the spread (its slowest round {min(faster.rates):,.0f}, the "
        f"present one's fastest {max(rates):,.0f}). More --rounds or --prompts may tell"
    )


def _cut(manifest: Manifest, options: Options) -> str:
    """How long answers may be: the option, or less where the manifest wants less."""
    most = max(manifest.generation.for_category(name).max_tokens or 0 for name in manifest.mix.shares)
    if most <= options.max_tokens:
        return f"answers of at most {most:,} tokens, as in the manifest"
    return f"answers cut at {options.max_tokens:,} tokens"


def engine_yaml(engine: Engine, values: dict[str, Any]) -> str:
    """The engine section with these values, as YAML: what a manifest had stays."""
    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style = False
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    stream = StringIO()
    yaml.dump({"engine": engine.model_dump(mode="json", exclude_unset=True) | values}, stream)
    return stream.getvalue().rstrip("\n")


def _measuring(placement: Placement) -> tuple[Device, ...]:
    """Cores share caches and memory, and an engine leaves one to the coordinator; cards do not disturb each other."""
    return placement.devices if placement.devices[0].kind == "cuda" else placement.devices[:1]


def _row(number: int, setting: Setting, search: Search) -> tuple[str, ...]:
    tokens = "auto" if setting.max_num_batched_tokens is None else f"{setting.max_num_batched_tokens:,}"
    name = f"{number} present" if setting == search.present else str(number)
    return name, f"{setting.max_num_seqs:,}", tokens, setting.kv_cache_dtype


def _measured(number: int, one: Outcome, search: Search, present_rate: float) -> tuple[str, ...]:
    start = "-" if one.start_s is None else clock(one.start_s)
    if not one.rates:
        return (*_row(number, one.setting, search), "-", "-", "-", start, "-")
    gain = f"{one.tokens_per_s / present_rate:.2f}" if present_rate else "-"
    rates = (one.tokens_per_s, min(one.rates), max(one.rates))
    return (*_row(number, one.setting, search), *(f"{rate:,.0f}" for rate in rates), start, gain)


def _exact(search: Search, one: Outcome, outcomes: Sequence[Outcome]) -> str:
    exact, present = exactness(search, one, outcomes), search.present.kv_cache_dtype
    if exact is None:
        return f"not recommended: there are no answers of {present} to compare its own with"
    enough = "exact enough" if exact.enough else "not exact enough"
    return f"{enough}: {exact.agreement:.1%} of greedy tokens as {present}, {present} itself {exact.itself:.1%}"


def _say_plan(run: TuneRun, rounds: Rounds, options: Options, measuring: Sequence[Device]) -> None:
    say_below(
        f"at most {run.search.settings} settings, each {rounds.count} rounds of {rounds.prompts:,} prompts; "
        f"{_cut(run.manifest, options)}; measured on {', '.join(one.label for one in measuring)}"
    )
    if run.sample.left_out:
        say_below(f"{run.sample.left_out:,} prompts cannot be asked and are left out")
    if run.repeats:
        say_below(
            f"the build has {len(run.sample.asks):,} prompts to ask, fewer than the rounds need: they are asked "
            "again, with prefix caching off for all settings"
        )


def _say_outcome(one: Outcome) -> None:
    if one.error is None:
        say_below(f"{one.setting}: {one.tokens_per_s:,.0f} tokens/s ({min(one.rates):,.0f} to {max(one.rates):,.0f})")
    else:
        say_below(f"{one.setting}: {'did not start' if one.start_s is None else 'failed'}")
