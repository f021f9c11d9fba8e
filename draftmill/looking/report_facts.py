"""Everything that a report of one build says, as plain values: no frame, no connection, no markup.

`report_reading` fills it from the ledger, `report_sections` puts it into words and tables. Counts are of rows outside
the holdout unless a field says otherwise; tokens are the target's; times are UTC.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta

STAGES = ("selected", "generated", "accepted", "captured", "trained")
TARGET = "target"


@dataclass(frozen=True)
class Build:
    """A build, or an import."""

    build_id: str
    candidates_id: str
    name: str
    seed: int | None
    unit: str
    total: int
    selected: int
    held_out: int
    shortage: str
    tolerance: float | None
    """Percentage points."""
    created_at: datetime | None
    imported: bool


@dataclass(frozen=True)
class Part:
    """A category at one stage, all its sources together."""

    stage: str
    category: str
    prompts: int
    rows: int
    prompt_tokens: int | None
    response_tokens: int | None


@dataclass(frozen=True)
class Source:
    """Where prompts come from."""

    name: str
    dataset: str
    config: str | None
    split: str | None
    revision: str | None
    license: str | None
    category_rule: str
    """A category, or how it is found."""
    selected: int
    accepted: int
    """Answers."""
    response_tokens: int


@dataclass(frozen=True)
class Lengths:
    """Prompt or response tokens of a category's accepted answers."""

    category: str
    kind: str
    """prompt or response."""
    rows: int
    mean: float
    least: float
    p50: float
    p90: float
    p99: float
    most: float
    bins: tuple[tuple[int, int], ...] = ()
    """(bin, rows): bin b holds 2^(b/2) up to 2^((b+1)/2) tokens."""


@dataclass(frozen=True)
class Counted:
    """How many rows something became of: up to two names."""

    name: str
    reason: str
    rows: int


@dataclass(frozen=True)
class Recipe:
    """How answers were made."""

    recipe_id: str
    model: str
    revision: str | None
    dtype: str | None
    thinking: bool | None
    temperature: float | None
    max_tokens: int | None
    answers: int
    imported_from: str | None


@dataclass(frozen=True)
class Run:
    """One execution of a stage."""

    run_id: str
    command: str
    started_at: datetime | None
    ended_at: datetime | None
    outcome: str | None
    events: int
    answers: int | None = None
    response_tokens: int | None = None
    """Of all attempts."""


@dataclass(frozen=True)
class Engine:
    """One engine's rate over a command's runs, laid end to end."""

    command: str
    name: str
    device: str
    samples: int
    mean: float
    """Tokens a second, over its samples."""
    peak: float
    running: float | None
    kv_use: float | None
    prefix_hits: float | None
    points: tuple[tuple[float, float | None], ...]
    """(seconds since the first sample, mean tokens a second of that bin)."""


@dataclass(frozen=True)
class Rates:
    """The engines of one command."""

    command: str
    seconds: float
    """From first to last sample, without the time between runs."""
    total: tuple[tuple[float, float | None], ...]
    """All engines together."""
    engines: tuple[Engine, ...]
    breaks: tuple[float, ...]
    """Seconds at which another run begins."""


@dataclass(frozen=True)
class Drafter:
    """A drafter that was trained on this build, or measured on its held-out prompts."""

    drafter_id: str
    algorithm: str | None
    steps: int | None
    rows: int | None
    created_at: datetime | None
    own: bool
    """Trained on this build."""


@dataclass(frozen=True)
class Acceptance:
    """An acceptance length τ; category is empty for all of them pooled."""

    drafter_id: str
    category: str
    measured_by: str
    tau: float
    low: float | None
    high: float | None
    drafts: int
    rows: int


@dataclass(frozen=True)
class Capture:
    """Which states were taken."""

    capture_id: str
    layer_ids: tuple[int, ...]
    final_state: str
    dtype: str
    hidden_size: int | None
    rows: int
    tokens: int


@dataclass(frozen=True)
class SameRows:
    """Rows of a source that another one's prompt was kept for, and how their categories compare."""

    source: str
    winner: str
    rows: int
    alike: int
    """Of them, rows whose source has the category that the kept prompt has."""


@dataclass(frozen=True)
class Changes:
    """This build against the one made before it."""

    before: Build
    lines: tuple[str, ...]
    """What changed in the manifest and what is read, in words."""
    prompts: tuple[tuple[str, int, int, int], ...]
    """(category, kept, added, removed)."""
    reused: int
    """Accepted answers that the build before wanted too."""


@dataclass(frozen=True)
class Facts:
    """One build."""

    build: Build
    made_at: datetime
    published_at: datetime | None
    """Of the snapshot that was read; None for the ledger itself."""
    writing: str | None
    """Who writes there meanwhile."""
    version: str
    shares: dict[str, float]
    """Declared, normalised."""
    target_tokens: dict[str, int]
    """Planned response tokens, where they are the unit."""
    composition: tuple[Part, ...]
    funnel: tuple[Counted, ...]
    sources: tuple[Source, ...]
    lengths: tuple[Lengths, ...]
    finish: tuple[Counted, ...]
    """(category, finish_reason)."""
    unfinished: tuple[Counted, ...]
    """(category, why): answers that are wanted and not there, held-out ones too."""
    attempts: tuple[Counted, ...]
    """('', reason): rejected attempts, held-out ones too."""
    set_aside: tuple[Counted, ...]
    """(capture, reason)."""
    labels: tuple[tuple[str, str, str, int], ...]
    """(source, its own label, category, candidates)."""
    shared: tuple[SameRows, ...]
    recipes: tuple[Recipe, ...]
    runs: tuple[Run, ...]
    events: tuple[Counted, ...]
    """(command, kind)."""
    rates: tuple[Rates, ...]
    drafters: tuple[Drafter, ...]
    acceptance: tuple[Acceptance, ...]
    captures: tuple[Capture, ...]
    changes: Changes | None
    lock: str = field(default="", repr=False)
    """manifest.lock.yaml at the commits that were read, without this machine's paths; empty where it is gone."""
    cut_paths: tuple[str, ...] = ()
    """Keys of its manifest whose paths of this machine were cut."""
    target_pinned: bool = True
    """Whether the target is of this machine, or its commit is known."""

    @property
    def age(self) -> timedelta | None:
        """How old the snapshot was."""
        return None if self.published_at is None else self.made_at - self.published_at

    def of_stage(self, stage: str) -> dict[str, Part]:
        """Parts of a stage by category."""
        return {part.category: part for part in self.composition if part.stage == stage}

    def reached(self) -> list[str]:
        """The stages that have rows."""
        return [stage for stage in STAGES if any(part.rows for part in self.of_stage(stage).values())]

    def categories(self) -> list[str]:
        """Every category, declared or found, the largest share first."""
        found = set(self.shares) | {part.category for part in self.composition}
        largest = self.of_stage("selected")
        rows = {name: part.rows for name, part in largest.items()}
        return sorted(found, key=lambda name: (-self.shares.get(name, 0.0), -rows.get(name, 0), name))
