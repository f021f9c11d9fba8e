"""`draftmill suggest`: what the ledger has measured and a manifest, joined to a suggestion and to the next manifest.

Reads the published ledger alone, takes no lock. The manifest that it starts from is never written to.
"""

from __future__ import annotations

import json
import logging
import math
import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from corpus.artefacts import write_atomically
from corpus.errors import UserError, first_line
from corpus.identity import drafter_training
from corpus.ledger.query import LedgerReader
from corpus.manifest_edit import with_values
from corpus.manifest_file import load_manifest
from corpus.suggestions import nearest
from corpus.workspace import Workspace
from draftmill.suggestion import Build, Measured, Suggestion, relative_growth, suggest
from draftmill.table import printable
from draftmill.terminal import laid_out
from draftmill.verifying import named_build
from training.begun import Asked, all_begun, asked_of, differences
from training.outlook import named

if TYPE_CHECKING:
    from corpus.ledger.writer import Readable
    from corpus.manifest import Manifest

log = logging.getLogger("draftmill")

AS_SERVED = ("walk", "vllm")
"""What predicts serving; where intervals are equally many, vLLM's own counters are taken."""

TRAINED = """
SELECT n.category, n.rows, a.acceptance_length, a.low, a.high, a.rows
FROM drafters d
JOIN (
    SELECT r.drafter_id, b.build_id, b.category, count(*) AS rows
    FROM drafter_responses r JOIN build_responses b USING (response_id) GROUP BY ALL
) n ON n.drafter_id = d.drafter_id AND n.build_id = d.build_id
JOIN acceptance_by_category a ON a.drafter_id = d.drafter_id AND a.build_id = d.build_id AND a.category = n.category
WHERE list_contains(?::VARCHAR[], d.drafter_id) AND a.measured_by = ? AND a.acceptance_length IS NOT NULL
ORDER BY ALL
"""
"""Rows and acceptance of drafters, each on its own build."""
RESULTS = {"best_step", "mask_token_id"}
"""Keys of a drafter's training that a run found, and nobody asked for."""


@dataclass(frozen=True)
class Evidence:
    """One drafter's measurements on held-out rows of one build, and what builds before it tell of growth."""

    drafter_id: str
    build_id: str
    measured_by: str
    rows: int
    measured: Mapping[str, Measured]
    builds: Mapping[str, Sequence[Build]]


@dataclass(frozen=True)
class NextMix:
    """A suggestion, what it rests on, and the text and place of the manifest that has it."""

    manifest: Path
    evidence: Evidence
    traffic: Mapping[str, float] | None
    suggestion: Suggestion
    text: str
    out: Path
    notes: tuple[str, ...] = ()
    """Whose measurements these are, where they are not of the manifest's own drafter."""

    def lines(self) -> list[str]:
        """For a person, at most 80 columns each."""
        evidence, found = self.evidence, self.suggestion
        given = "as stated" if self.traffic else "not stated: the manifest's own shares"
        grown = f"measured for {len(found.grown)} categories" if found.grown else "taken as equal: not measured"
        lines = [
            *laid_out(self.notes, below="  "),
            f"drafter {evidence.drafter_id[:12]} on build {evidence.build_id[:12]}, by {evidence.measured_by}, "
            f"{evidence.rows:,} held-out rows",
            f"traffic {given}; mean τ over it {found.mean:.2f}",
            *self._unnamed(),
            f"growth of τ with rows {grown}",
            "",
            *found.lines(),
        ]
        return lines if found.moved else [*lines, "", "no share changes"]

    def _unnamed(self) -> list[str]:
        """Categories that stated traffic leaves out: they count as none, which may not be what is meant."""
        left = [one.category for one in self.suggestion.changes if self.traffic and one.category not in self.traffic]
        told = [f"not in the stated traffic, so counted as 0: {', '.join(left)}"] if left else []
        return list(laid_out(told, below="  "))


def next_mix(
    manifest: Path, workspace: Workspace, traffic: Mapping[str, float] | None, drafter: str | None, out: Path | None
) -> NextMix:
    """The next mix of a manifest.

    Args:
        traffic: weights by category, what is served; the manifest's shares where it is None.
        drafter: an id, or its first digits. Where it is None the manifest's own, if that is measured, else the newest
            measured one of its build, which is said.
        out: where the next manifest shall be; beside the manifest where it is None.

    Raises:
        UserError: nothing was measured, or what was asked for is not there.
    """
    parsed = load_manifest(manifest)
    shares = parsed.mix.shares
    if traffic is not None:
        _check_traffic(traffic, parsed, manifest)
        largest = max(traffic.values())  # weights of any size: only their shares count, and their sum must be a number
        traffic = {name: weight / largest for name, weight in traffic.items()}
    build_id = None if drafter else named_build(str(manifest), workspace)
    ledger = LedgerReader(workspace)
    own = own_drafter(manifest, workspace, ledger, build_id) if build_id else None
    measured = own is not None and _is_measured(ledger, own.drafter_id)
    evidence = read_evidence(ledger, own.drafter_id if own and measured else drafter, build_id, manifest)
    notes = () if drafter or measured else (another_note(evidence.drafter_id, own, workspace),)
    try:
        found = suggest(shares, evidence.measured, traffic, relative_growth(evidence.builds))
    except ValueError:
        raise UserError(
            f"{manifest}: drafter {evidence.drafter_id[:12]} was measured in {', '.join(sorted(evidence.measured))}, "
            "of which none has traffic. Name another with --drafter, or state other traffic."
        ) from None
    text = manifest.read_bytes().decode("utf-8")
    if found.moved:
        values = {name: int(part) if part == int(part) else part for name, part in found.rounded.items()}
        text = with_values(text, "mix.shares", values, str(manifest))
    place = out or manifest.with_name(f"{manifest.stem}-next{manifest.suffix}")
    return NextMix(manifest, evidence, traffic, found, text, place, notes)


@dataclass(frozen=True)
class OwnDrafter:
    """The drafter that the manifest names as it is now."""

    drafter_id: str
    asked: Asked


def own_drafter(manifest: Path, workspace: Workspace, ledger: Readable, build_id: str) -> OwnDrafter | None:
    """The manifest's own drafter of its build, as export and serve-check take it; None where it cannot be told here.

    That is where the target is not on this machine, or no row of the build is captured any more: what was measured is
    in the ledger all the same.
    """
    from draftmill.drafting import training_plan
    from draftmill.session import Session

    session = Session(manifest, workspace)
    try:
        plan = training_plan(session, ledger, build_id)
    except UserError as error:
        log.info("%s: its own drafter is not known here (%s)", manifest, first_line(error))
        return None
    return OwnDrafter(plan.drafter_id, asked_of(plan, session.manifest))


def another_note(taken: str, own: OwnDrafter | None, workspace: Workspace) -> str:
    """The one loud line: the measurements are of another drafter than the manifest's, and in what it differs."""
    if own is None:
        return (
            f"NOTE: the manifest's own drafter cannot be told here (target or states are not there); drafter "
            f"{taken[:12]} is the newest measured one of its build. --drafter names another"
        )
    other = next((one for one in all_begun(workspace) if one.drafter_id == taken), None)
    differs = f"; it differs in {named(differences(other.asked, own.asked))}" if other else ""
    return (
        f"NOTE: the manifest's own drafter {own.drafter_id[:12]} is not measured; drafter {taken[:12]} is the newest "
        f"of its build that is{differs}. Train, or name one with --drafter"
    )


def _is_measured(ledger: Readable, drafter_id: str) -> bool:
    return bool(
        ledger.rows(
            "SELECT 1 FROM acceptance_by_category WHERE drafter_id = ? AND list_contains(?, measured_by) "
            "AND acceptance_length IS NOT NULL LIMIT 1",
            drafter_id,
            list(AS_SERVED),
        )
    )


def refuse_out(plan: NextMix) -> None:
    """Refuse a place that the next manifest cannot have.

    Raises:
        UserError: something is there, or its relative paths would lead elsewhere.
    """
    if os.path.lexists(plan.out):
        raise UserError(f"{plan.out}: is there already; it is not changed. Name another file with --out.")
    here, there = plan.manifest.parent.resolve(), plan.out.parent.resolve()
    if here != there:
        raise UserError(
            f"{plan.out}: is in another folder than {plan.manifest}, from which its relative paths start. "
            f"Name a file in {here} with --out."
        )


def write_next(plan: NextMix) -> str:
    """Write the next manifest; returns what to do with it.

    Raises:
        UserError: as refuse_out, or it cannot be written.
    """
    refuse_out(plan)

    def write(temporary: Path) -> None:
        temporary.write_bytes(plan.text.encode("utf-8"))

    try:
        write_atomically(plan.out, write)
    except OSError as error:
        raise UserError(f"{plan.out}: cannot be written ({error.strerror}).") from error
    return f"wrote {plan.out}; draftmill diff {plan.manifest} {plan.out} tells what it costs"


def stated_traffic(parts: Sequence[str], file: Path | None) -> dict[str, float] | None:
    """What --traffic CATEGORY=WEIGHT and --traffic-file say; None if neither was given.

    Raises:
        UserError: it is no mapping of categories to weights, or both were given.
    """
    if file is not None and parts:
        raise UserError("suggest: --traffic and --traffic-file were both given; give one.")
    if file is not None:
        return _read_traffic(file)
    stated: dict[str, float] = {}
    for part in parts:
        name, equals, weight = part.rpartition("=")
        if not equals or not name:
            raise UserError(f"suggest: --traffic is {part}; it is CATEGORY=WEIGHT, such as coding=40.")
        if name in stated:
            raise UserError(f"suggest: --traffic names {name} twice.")
        stated[name] = _weight(weight, f"--traffic {name}")
    return stated or None


def read_evidence(ledger: Readable, drafter: str | None, build_id: str | None, manifest: Path) -> Evidence:
    """What was measured of a drafter, or of the newest one of a build.

    Args:
        manifest: what the build is of, for errors.

    Raises:
        UserError: nothing was.
    """
    drafter_id, measured_on = _measured_last(ledger, drafter, build_id, manifest)
    rows = ledger.rows(
        "SELECT measured_by, category, acceptance_length, low, high, rows FROM acceptance_by_category "
        "WHERE drafter_id = ? AND build_id IS NOT DISTINCT FROM ? AND acceptance_length IS NOT NULL "
        "AND list_contains(?, measured_by) ORDER BY ALL",
        drafter_id,
        measured_on,
        list(AS_SERVED),
    )
    by: dict[str, dict[str, Measured]] = defaultdict(dict)
    counts: dict[str, int] = defaultdict(int)
    for measured_by, category, tau, low, high, count in rows:
        _check_measured(drafter_id, measured_by, category, (tau, low, high))
        by[measured_by][category] = Measured(tau, low, high, count)
        counts[measured_by] += count or 0
    chosen = max(by, key=lambda one: (sum(m.low is not None for m in by[one].values()), AS_SERVED.index(one)))
    builds: dict[str, list[Build]] = defaultdict(list)
    for category, trained, tau, low, high, count in ledger.rows(TRAINED, trained_alike(ledger, drafter_id), chosen):
        builds[category].append(Build(trained, Measured(tau, low, high, count)))
    return Evidence(drafter_id, measured_on or "", chosen, counts[chosen], by[chosen], builds)


def _check_measured(
    drafter_id: str, measured_by: str, category: str, lengths: tuple[float, float | None, float | None]
) -> None:
    """An older ledger may hold what nobody can have measured."""
    tau, low, high = lengths
    bounds = [bound for bound in (low, high) if bound is not None]
    if not all(1 <= length < math.inf for length in (tau, *bounds)) or bounds != sorted(bounds):
        raise UserError(
            f"suggest: drafter {drafter_id[:12]} has an acceptance length of {tau:g} in {printable(category)} by "
            f"{measured_by}, which cannot be. Remove drafters/{drafter_id}/acceptance.json, run `draftmill ledger "
            "rebuild` and `draftmill serve-check`."
        )


def trained_alike(ledger: Readable, drafter_id: str) -> list[str]:
    """Drafters that were trained as this one, itself among them, on whatever build."""
    rows = ledger.rows("SELECT drafter_id, algorithm, capture_id, training::VARCHAR FROM drafters ORDER BY drafter_id")

    def how(row: Sequence[Any]) -> tuple[Any, ...]:
        kept = drafter_training(json.loads(row[3]) if row[3] else {})
        asked = {key: value for key, value in kept.items() if key not in RESULTS}
        return row[1], row[2], json.dumps(asked, sort_keys=True)

    own = next((how(row) for row in rows if row[0] == drafter_id), None)
    return [row[0] for row in rows if own is not None and how(row) == own]


def _measured_last(
    ledger: Readable, drafter: str | None, build_id: str | None, manifest: Path
) -> tuple[str, str | None]:
    """The drafter and the build that it was measured on, of the newest measurement in question."""
    if drafter is not None:
        known = ledger.rows("SELECT drafter_id FROM drafters WHERE starts_with(drafter_id, ?)", drafter)
        if len(known) != 1:
            there = f"names {len(known)} drafters" if known else "names no drafter of this ledger"
            raise UserError(f"suggest: --drafter {drafter} {there}. draftmill sql 'FROM drafters' lists them.")
        where, value = "a.drafter_id = ?", known[0][0]
    else:
        where, value = "a.build_id = ? AND d.build_id = a.build_id", build_id
    newest = ledger.rows(
        f"""
        SELECT a.drafter_id, a.build_id FROM acceptance_by_category a JOIN drafters d USING (drafter_id)
        WHERE {where} AND list_contains(?, a.measured_by) AND a.acceptance_length IS NOT NULL
        ORDER BY a.measured_at DESC, a.drafter_id, a.build_id LIMIT 1
        """,
        value,
        list(AS_SERVED),
    )
    if not newest:
        what = f"drafter {drafter}" if drafter else f"a drafter of {manifest} in {ledger.workspace.root}"
        raise UserError(
            f"suggest: nothing is measured of {what} yet. `draftmill train` and `draftmill serve-check` measure "
            "held-out rows."
        )
    return newest[0][0], newest[0][1]


def _check_traffic(traffic: Mapping[str, float], manifest: Manifest, path: Path) -> None:
    shares = manifest.mix.shares
    for name in traffic:
        if name not in shares:
            has = f"mix.shares has {', '.join(sorted(shares))}.{nearest(name, shares)}"
            raise UserError(f"{path}: has no share for {name}, of which traffic is stated; {has}")
    if not max(traffic.values()) > 0:
        raise UserError("suggest: the stated traffic is 0 throughout; state how much there is of each category.")


def _read_traffic(file: Path) -> dict[str, float]:
    try:
        body: Any = YAML(typ="safe", pure=True).load(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{file}: cannot be read ({error.strerror}).") from error
    except (YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{file}: is neither YAML nor JSON ({first_line(error)}).") from error
    if not isinstance(body, dict) or not body:
        raise UserError(f"{file}: holds no mapping; it is one of category to weight, such as coding: 40.")
    return {str(name): _weight(weight, f"{file}: {name}") for name, weight in body.items()}


def _weight(value: object, where: str) -> float:
    try:
        weight = float(str(value))
    except ValueError:
        weight = math.nan
    if not 0 <= weight < math.inf:
        raise UserError(f"suggest: {where} is {value}; it must be a number of at least 0.")
    return weight
