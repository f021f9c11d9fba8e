"""Sections of a report on where a build comes from: what changed since the one before, its runs, how to make it again.

Pure: facts in, blocks out.
"""

from __future__ import annotations

from collections import defaultdict

from draftmill.looking.answers import minute
from draftmill.looking.report_blocks import MOST_ROWS, Block, Code, Items, Listing, Section, table, words
from draftmill.looking.report_facts import Facts, Run

MOST_RUNS = 40
MOST_LINES = 60
MOST_LOCK_CHARS = 400_000


def changes_section(facts: Facts) -> Section:
    """This build against the one before it."""
    title = "What changed since the last build"
    changes = facts.changes
    if changes is None:
        why = "An import has no build before it." if facts.build.imported else "No build was made here before this one."
        return Section("changes", title, (words(why),))
    before = changes.before
    blocks: list[Block] = [
        words("Against ", Code(before.build_id), f" ({before.name}), made {minute(before.created_at, '')} UTC.")
    ]
    lines = changes.lines
    if lines:
        more = (f"… and {len(lines) - MOST_LINES:,} more changes",) if len(lines) > MOST_LINES else ()
        blocks.append(Items((*lines[:MOST_LINES], *more)))
    else:
        blocks.append(words("The manifests select and judge alike."))
    body = [(name, f"{kept:,}", f"{added:,}", f"{removed:,}") for name, kept, added, removed in changes.prompts]
    total = ["all", *(f"{sum(amounts):,}" for amounts in zip(*(row[1:] for row in changes.prompts), strict=True))]
    blocks += [
        table(("prompts of", "#kept", "#added", "#removed"), body[:MOST_ROWS], total),
        words(f"{changes.reused:,} of the accepted answers were wanted by the build before too."),
    ]
    return Section("changes", title, tuple(blocks))


def runs_section(facts: Facts) -> Section:
    """Executions of stages, and what happened in them."""
    if not facts.runs:
        return Section("runs", "Runs", (words("No stage was run for this build yet."),))
    newest = facts.runs[:MOST_RUNS]
    body = [
        (
            one.run_id, one.command, minute(one.started_at, ""), _took(one), one.outcome or "not ended",
            _count(one.answers), _count(one.response_tokens), f"{one.events:,}",
        )
        for one in newest
    ]  # fmt: skip
    left = (
        f'{len(facts.runs) - MOST_RUNS:,} older ones: draftmill sql "FROM runs"' if len(facts.runs) > MOST_RUNS else ""
    )
    header = ("$run", "command", "started (UTC)", "#took", "outcome", "#attempts", "#tokens", "#events")
    blocks: list[Block] = [table(header, body, rest=left)]
    if facts.events:
        kinds: dict[tuple[str, str], int] = defaultdict(int)
        for one in facts.events:
            kinds[one.name, one.reason] += one.rows
        blocks += [
            words("Events by kind; ", Code('draftmill sql "FROM events"'), " has what they say."),
            table(("command", "event", "#times"), [(*key, f"{n:,}") for key, n in kinds.items()][:MOST_ROWS]),
        ]
    return Section("runs", "Runs", tuple(blocks))


def reproduce_section(facts: Facts) -> Section:
    """Ids, versions, recipes, commands and the lock."""
    build = facts.build
    ids = [("build", build.build_id), ("candidates", build.candidates_id)]
    ids += [("capture", one.capture_id) for one in facts.captures]
    ids += [("drafter", one.drafter_id) for one in facts.drafters if one.own]
    settings = [("seed", "" if build.seed is None else str(build.seed)), ("shortage", build.shortage)]
    settings += [("tolerance", "" if build.tolerance is None else f"{build.tolerance:g} points")]
    settings += [("draftmill of this report", facts.version)]
    engines = sorted({one.name for rates in facts.rates for one in rates.engines if rates.command == "generate"})
    settings += [("engine", name) for name in engines]
    blocks: list[Block] = [
        table(("what", "$id"), ids[:MOST_ROWS]),
        table(("setting", "value"), [row for row in settings if row[1]]),
    ]
    used = [one for one in facts.recipes if one.answers] or list(facts.recipes)
    if used:
        blocks.append(
            table(
                ("$recipe", "$model", "$revision", "dtype", "thinking", "#temperature", "#most tokens", "#answers"),
                [
                    (
                        one.recipe_id, one.model, one.revision or "", one.dtype or "",
                        "" if one.thinking is None else "on" if one.thinking else "off",
                        "" if one.temperature is None else f"{one.temperature:g}", _count(one.max_tokens),
                        f"{one.answers:,}",
                    )
                    for one in used[:MOST_ROWS]
                ],
            )
        )  # fmt: skip
    if facts.captures:
        blocks.append(
            table(
                ("$capture", "layers (0-based)", "final state", "dtype", "#hidden size", "#rows", "#tokens"),
                [
                    (
                        one.capture_id, ", ".join(map(str, one.layer_ids)), one.final_state, one.dtype,
                        _count(one.hidden_size), f"{one.rows:,}", f"{one.tokens:,}",
                    )
                    for one in facts.captures
                ],
            )
        )  # fmt: skip
    if build.imported:
        blocks.append(words("An import is made again by ", Code("draftmill import"), " from the same files."))
        return Section("reproduce", "How to make it again", tuple(blocks))
    blocks += [
        words(
            "Save the manifest below and run the commands beside the files that it names. What it reads from the Hub "
            "is named by its commit: with the same local files it selects the same prompts. Answers that are sampled "
            "are others of the same distribution."
        ),
        *_not_told(facts),
        Listing(
            "draftmill build manifest.yaml --dry-run   # the plan: shares, prompts, what is available\n"
            "draftmill run manifest.yaml               # everything; the same command resumes\n"
            "draftmill verify manifest.yaml            # proves the accounts",
            "bash",
        ),
    ]
    if facts.lock:
        lock = _manifest_of(facts.lock)
        cut = len(lock) > MOST_LOCK_CHARS
        shown = lock[:MOST_LOCK_CHARS] + ("\n… cut here: builds/*/manifest.lock.yaml has it whole" if cut else "")
        blocks.append(Listing(shown, "json", "The manifest with every default filled in (JSON is YAML)"))
    else:
        blocks.append(words("The build's lock is gone or damaged; ", Code("draftmill build"), " writes it again."))
    return Section("reproduce", "How to make it again", tuple(blocks))


def _not_told(facts: Facts) -> list[Block]:
    """What has to be put into the printed manifest before it runs elsewhere."""
    blocks: list[Block] = []
    if facts.lock and facts.cut_paths:
        keys = [piece for key in facts.cut_paths[:MOST_ROWS] for piece in (", ", Code(key))][1:]
        blocks.append(words("Of paths of this machine it has the last parts alone; put them back: ", *keys, "."))
    if facts.lock and not facts.target_pinned:
        told = " is not known before the first answer; what is printed may mean another commit later."
        blocks.append(words("The commit for ", Code("target.revision"), told))
    return blocks


def _manifest_of(lock: str) -> str:
    import json

    return json.dumps(json.loads(lock)["manifest"], indent=1)


def _count(number: int | None) -> str:
    return "" if number is None else f"{number:,}"


def _took(run: Run) -> str:
    if run.started_at is None or run.ended_at is None:
        return ""
    seconds = max(0, round((run.ended_at - run.started_at).total_seconds()))
    return f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}"
