"""A planned or finished training as text."""

import shlex
from collections.abc import Mapping
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from tpuctl.remote.hosts import name_workers
from tpuctl.remote.jobs import StartedJob
from tpuctl.remote.results import Results
from tpuctl.reporters.workers import started
from tpuctl.training.plan import LaunchPlan
from tpuctl.training.remote_launch import RemotePlan
from tpuctl.training.run import Training
from tpuctl.units import format_duration


def plan(result: LaunchPlan) -> str:
    """The command to paste, in one line however long, and why it looks like this."""
    reasons = (f"# {reason}" for reason in result.because)
    return "\n".join([*reasons, command_line(result)])


def remote_plan(result: RemotePlan) -> str:
    """The same for workers: what is copied there first, and where it runs."""
    copies = (f"# copies {source} to {target}" for source, target in result.copies)
    where = f"# in the folder {result.folder} of {name_workers(h.index for h in result.hosts)}"
    return "\n".join([*copies, f"{where}, on {result.on}", plan(result)])


def on_workers(result: Results) -> RenderableType | None:
    """A job that goes on alone; otherwise the workers have said it themselves."""
    return started(result) if isinstance(result, StartedJob) else None


def training(result: Training) -> RenderableType:
    """How the training went: the script has said the rest itself."""
    took = f"after {format_duration(result.seconds)}"
    if result.returncode:
        return Text(f"Stopped {took}.")
    said = "; ".join(f"{name} {value}" for name, value in figures(result))
    lines = [f"Finished {took}: {said}." if said else f"Finished {took}."]
    if result.executed:
        lines.append(f"Steps executed by: {', '.join(map(str, result.executed))}.")
    return Text("\n".join(lines))


def figures(training: Training) -> list[tuple[str, str]]:
    """What is known of a training, as (name, text) pairs: its own words, else what was seen."""
    result: Mapping[str, Any] = training.result or {}
    step = result.get("step_ms") or {}
    last = (result.get("epochs") or [{}])[-1]
    rate, wait, seen = result.get("examples_per_s"), training.input_wait_fraction, training.watched
    step_ms = f"{step['p50']:.1f} ms (median)" if step else ""
    if seen and not step:
        step_ms, rate = f"{seen.step_ms:.1f} ms (mean)", seen.examples_per_s
    pairs = [
        ("devices used", ", ".join(result.get("devices", []))),
        ("replicas", str(result.get("replicas") or "")),
        ("step", step_ms),
        ("speed", f"{rate:,.0f} examples/s" if rate else ""),
        ("input wait", f"{wait:.0%}" if wait is not None else ""),
        ("loss", f"{last['loss']:.3f}" if "loss" in last else ""),
        ("accuracy", f"{last['accuracy']:.1%} on its own data" if "accuracy" in last else ""),
    ]
    return [(name, text) for name, text in pairs if text]


def command_line(plan: LaunchPlan) -> str:
    """Something that can be pasted into a shell."""
    removed = [word for name in plan.unset for word in ("-u", name)]
    variables = [f"{name}={shlex.quote(value)}" for name, value in plan.env.items()]
    return " ".join([*(["env"] if removed else []), *removed, *variables, shlex.join(plan.argv)])
