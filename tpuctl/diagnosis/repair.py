"""Safe repairs: reversible, shown beforehand, and verified afterwards."""

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from tpuctl.diagnosis.report import MachineView, Problem
from tpuctl.errors import TpuctlError
from tpuctl.runtime.machine import LOCKFILE
from tpuctl.storage.local import write_atomically

HUGEPAGES = "/sys/kernel/mm/transparent_hugepage/enabled"


@dataclass(frozen=True)
class Repair:
    """A repair: what it does, how to undo it, and how it went."""

    code: str
    what: str
    undo: str
    act: Callable[[], None] = field(metadata={"internal": True})
    done: bool = False
    verified: bool | None = None
    error: str | None = None


def plan_repairs(
    view: MachineView, problems: tuple[Problem, ...], *, root: Path = Path("/")
) -> list[Repair]:
    """List the repairs that this process can make; it cannot change its parent's variables."""
    planners = (_PLANNERS.get(problem.code) for problem in problems)
    repairs = (planner(view, root) for planner in planners if planner)
    return [repair for repair in repairs if repair]


def apply_repair(repair: Repair) -> Repair:
    """Make one repair; an error becomes part of the result."""
    try:
        repair.act()
    except (OSError, TpuctlError) as error:
        return replace(repair, error=str(error))
    return replace(repair, done=True)


def verify(repairs: list[Repair], problems: tuple[Problem, ...]) -> tuple[Repair, ...]:
    """Record for every repair made whether its problem is gone."""
    left = {problem.code for problem in problems}
    return tuple(
        replace(repair, verified=repair.code not in left) if repair.done else repair
        for repair in repairs
    )


def _free_lockfile(view: MachineView, root: Path) -> Repair | None:
    """F02: rename a lock file that no process holds."""
    if (
        view.detected.state.lock_pids
        or view.detected.state.holders
        or view.detected.state.uninspected
    ):
        return None
    source, target = _below(root, LOCKFILE), _below(root, f"{LOCKFILE}.stale")
    return Repair(
        "F02",
        f"move {LOCKFILE} to {target}",
        f"mv {target} {source}",
        lambda: os.replace(source, target),
    )


def _enable_hugepages(view: MachineView, root: Path) -> Repair | None:
    """F13: enable transparent hugepages until the next boot."""
    path = _below(root, HUGEPAGES)
    before = re.search(r"\[(\w+)\]", view.machine.read(HUGEPAGES) or "")
    if view.is_hosted or before is None or not os.access(path, os.W_OK):
        return None
    return Repair(
        "F13",
        f"write 'always' to {HUGEPAGES}",
        f"echo {before[1]} > {HUGEPAGES}",
        lambda: _write_value(path, "always"),
    )


def _set_keras_backend(view: MachineView, root: Path) -> Repair | None:
    """F35: set the backend in Keras' configuration to JAX, and keep the old file."""
    home = view.value("KERAS_HOME") or f"{view.value('HOME')}/.keras"
    path = _below(root, f"{home}/keras.json")
    if view.value("KERAS_BACKEND") or not view.has("jax"):
        return None
    backup = path.with_suffix(".json.before-tpuctl")

    def rewrite() -> None:
        text = path.read_text(encoding="utf-8")
        write_atomically(backup, text)
        write_atomically(path, re.sub(r'("backend"\s*:\s*)"\w+"', r'\1"jax"', text))

    return Repair("F35", f'set "backend": "jax" in {path}', f"mv {backup} {path}", rewrite)


_PLANNERS: dict[str, Callable[[MachineView, Path], Repair | None]] = {
    "F02": _free_lockfile,
    "F13": _enable_hugepages,
    "F35": _set_keras_backend,
}


def _write_value(path: Path, value: str) -> None:
    # In place: sysfs has no rename, so this cannot be an atomic write.
    path.write_text(value, encoding="utf-8")


def _below(root: Path, path: str) -> Path:
    return root / path.lstrip("/")
