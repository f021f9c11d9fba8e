"""`draftmill status --watch`: the run of another shell, for as long as it goes on.

Follows whoever coordinates the workspace through its stages, and ends with it, saying how the last stage ended. It
looks at a few small files and, where a stage publishes no progress, at the snapshot, seldom. Takes no lock.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from shutil import get_terminal_size

from corpus.errors import UserError
from corpus.workspace import Workspace
from draftmill.progress_block import flow, progress_lines, stopping_note
from draftmill.scene import (
    Owner,
    Scene,
    SeenRun,
    began_under,
    ended_line,
    going_line,
    late_words,
    look,
    newest_run,
    read_run,
)
from draftmill.status import build_lines, status_lines
from draftmill.table import cut
from draftmill.terminal import Screen, draws, workspace_flag

DRAWN_EVERY_S = 2.0
PRINTED_EVERY_S = 60.0
ASK_EVERY_S = 30.0
"""The snapshot of a large ledger takes seconds to ask, and the run needs the cores."""


def watch(workspace: Workspace, every_s: float | None = None, pause: Callable[[float], object] = time.sleep) -> None:
    """Show the run that goes on, until it ends; on stdout.

    Args:
        every_s: seconds between two looks on a terminal, between two lines elsewhere.

    Raises:
        UserError: nothing runs, and nothing is published there.
    """
    scene = look(workspace)
    if scene.owner is None:
        _print(f"nothing runs in {workspace.root}")
        sys.stdout.write("".join(f"{line}\n" for line in status_lines(workspace)))
        return
    who, last = scene.who, scene.run
    drawn = draws(sys.stdout)
    step_s = every_s or (DRAWN_EVERY_S if drawn else PRINTED_EVERY_S)
    with WatchScreen(workspace, step_s) as screen:
        while scene.owner is not None and _same(who, scene.who):
            who = who or scene.who
            if last and (scene.run is None or scene.run.run_id != last.run_id):
                last = _again(workspace, last)
                _print(ended_line(last, time.time()))
            last = scene.run or last
            screen.see(scene)
            pause(min(step_s, DRAWN_EVERY_S))
            scene = look(workspace)
    ended = newest_run(workspace, before=scene.who.since if scene.owner and scene.who else None)
    if ended is None or (who and not began_under(ended, who)):
        _print(f"`draftmill {who.command}` ended; no stage of it ran" if who else "ended; no stage ran")
        return
    _print(ended_line(ended, time.time()))
    if ended.body.outcome == "failed":
        where = f"run_id = '{ended.run_id}' AND kind = 'ended'"
        _print(f'why: draftmill sql{workspace_flag(workspace.root)} "SELECT message FROM events WHERE {where}"')


def _same(one: Owner | None, other: Owner | None) -> bool:
    """One coordinator: a name that cannot be read (it is being written) is no other one's."""
    return one is None or other is None or one == other


def _again(workspace: Workspace, run: SeenRun) -> SeenRun:
    return read_run(workspace.run(run.run_id)) or run


def _print(line: str) -> None:
    lines = flow([line], get_terminal_size().columns) if draws(sys.stdout) else [line]
    sys.stdout.write("\n".join(lines) + "\n")
    sys.stdout.flush()


class WatchScreen(Screen):
    """The block of a run in another process."""

    def __init__(self, workspace: Workspace, plain_every_s: float) -> None:
        super().__init__("", stream="stdout", plain_every_s=plain_every_s, indent=0)
        self._workspace = workspace
        self._scene: Scene | None = None
        self._stage: str | None = ""
        self._status: list[str] = []
        self._asked_s: float | None = None

    def see(self, scene: Scene) -> None:
        """Show this from now on."""
        stage = scene.run.run_id if scene.run else None
        self.update(going_line(scene, time.time()), now=stage != self._stage)
        if self._live is not None and not (scene.run and scene.run.progress):
            self._ask(anew=stage != self._stage)
        self._scene, self._stage = scene, stage

    def _ask(self, anew: bool) -> None:
        if anew or self._asked_s is None or time.monotonic() - self._asked_s > ASK_EVERY_S:
            try:
                self._status = build_lines(self._workspace)
            except UserError:
                self._status = ["nothing is published yet"]
            self._asked_s = time.monotonic()

    def lines(self, width: int, height: int) -> list[str]:
        """Who runs, and the block; or the plain status, where the stage publishes no progress."""
        scene, now = self._scene, time.time()
        if scene is None or scene.owner is None:
            return []
        run = scene.run
        head = flow(scene.owner.split(", "), width)
        if run is not None and run.progress is not None and run.body.outcome is None:
            block = progress_lines(run.progress, width, height - len(head), _notes(scene, now))
        else:
            block = [*flow([going_line(scene, now)], width), *(cut(line, width) for line in self._status)]
        return [*head, *block][:height]


def _notes(scene: Scene, now: float) -> list[str]:
    run = scene.run
    if run is None or run.progress is None:
        return []
    notes = [f"warning: {warning}" for warning in run.progress.warnings]
    notes += [stopping_note(run.progress)] if run.progress.stopping else []
    late = late_words(run, now)
    return [*notes, late] if late else notes
