"""What can be mended safely: reversible, shown before, and checked again afterwards."""

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from tpuctl.diagnosis.finding import View
from tpuctl.diagnosis.report import Problem
from tpuctl.errors import TpuctlError
from tpuctl.runtime.machine import LOCKFILE
from tpuctl.storage.local import write_atomically

HUGEPAGES = "/sys/kernel/mm/transparent_hugepage/enabled"


@dataclass(frozen=True)
class Repair:
    """One thing that tpuctl can mend: what it does, how to undo it, and how it went."""

    code: str
    what: str
    undo: str
    done: bool = False
    verified: bool | None = None
    error: str | None = None


@dataclass(frozen=True)
class Plan:
    """A repair together with the act itself."""

    repair: Repair
    act: Callable[[], None]


def plan_repairs(
    view: View, problems: tuple[Problem, ...], *, root: Path = Path("/")
) -> list[Plan]:
    """List the repairs that this process may make; variables of its parent are not among them."""
    plans = (
        planner(view, root)
        for problem in problems
        if (planner := _PLANNERS.get(problem.code)) is not None
    )
    return [plan for plan in plans if plan is not None]


def carry_out(plan: Plan) -> Repair:
    """Do one repair; what goes wrong is part of the answer."""
    try:
        plan.act()
    except (OSError, TpuctlError) as error:
        return replace(plan.repair, error=str(error))
    return replace(plan.repair, done=True)


def verify(repairs: tuple[Repair, ...], problems: tuple[Problem, ...]) -> tuple[Repair, ...]:
    """Say of each repair whether its problem is gone."""
    left = {problem.code for problem in problems}
    return tuple(
        replace(repair, verified=repair.code not in left) if repair.done else repair
        for repair in repairs
    )


def _free_lockfile(view: View, root: Path) -> Plan | None:
    """F02: move a lock file aside that nobody holds."""
    if view.found.state.lock_pids or view.found.state.holders or view.found.state.uninspected:
        return None
    source, target = _below(root, LOCKFILE), _below(root, f"{LOCKFILE}.stale")
    return Plan(
        Repair("F02", f"move {LOCKFILE} to {target}", f"mv {target} {source}"),
        lambda: os.replace(source, target),
    )


def _hugepages(view: View, root: Path) -> Plan | None:
    """F13: switch transparent hugepages on, until the next boot."""
    path = _below(root, HUGEPAGES)
    before = re.search(r"\[(\w+)\]", view.machine.read(HUGEPAGES) or "")
    if view.is_hosted or before is None or not os.access(path, os.W_OK):
        return None
    return Plan(
        Repair("F13", f"write 'always' to {HUGEPAGES}", f"echo {before[1]} > {HUGEPAGES}"),
        lambda: _write_value(path, "always"),
    )


def _keras_backend(view: View, root: Path) -> Plan | None:
    """F35: let Keras' own configuration name JAX; the old file stays beside it."""
    home = view.value("KERAS_HOME") or f"{view.value('HOME')}/.keras"
    path = _below(root, f"{home}/keras.json")
    if view.value("KERAS_BACKEND") or not view.has("jax"):
        return None
    backup = path.with_suffix(".json.before-tpuctl")
    return Plan(
        Repair("F35", f'set "backend": "jax" in {path}', f"mv {backup} {path}"),
        lambda: _rewrite_backend(path, backup),
    )


_PLANNERS: dict[str, Callable[[View, Path], Plan | None]] = {
    "F02": _free_lockfile,
    "F13": _hugepages,
    "F35": _keras_backend,
}


def _rewrite_backend(path: Path, backup: Path) -> None:
    text = path.read_text(encoding="utf-8")
    write_atomically(backup, text)
    write_atomically(path, re.sub(r'("backend"\s*:\s*)"\w+"', r'\1"jax"', text))


def _write_value(path: Path, value: str) -> None:
    # A kernel attribute is written in place: there is no renaming in sysfs.
    with open(path, "w", encoding="utf-8") as file:
        file.write(value)


def _below(root: Path, path: str) -> Path:
    return root / path.lstrip("/")
