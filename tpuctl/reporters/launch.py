"""A planned or finished training as text."""

import shlex
from collections.abc import Mapping
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from tpuctl.launch.plan import LaunchPlan
from tpuctl.launch.run import Training
from tpuctl.units import format_duration


def plan(result: LaunchPlan) -> str:
    """The command to paste, in one line however long, and why it looks like this."""
    reasons = (f"# {reason}" for reason in result.because)
    return "\n".join([*reasons, command_line(result.env, result.argv)])


def training(result: Training) -> RenderableType:
    """How the training went, in one line: the script has said the rest itself."""
    took = f"after {format_duration(result.seconds)}"
    if result.returncode:
        return Text(f"Stopped {took}.")
    if result.result is None:
        return Text(f"Finished {took}.")
    said = "; ".join(f"{name} {value}" for name, value in figures(result.result))
    return Text(f"Finished {took}: {said}.")


def figures(result: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What a template's result says, as (name, text) pairs; what it lacks is left out."""
    step = result.get("step_ms") or {}
    last = (result.get("epochs") or [{}])[-1]
    rate = result.get("examples_per_s")
    pairs = [
        ("devices used", ", ".join(result.get("devices", []))),
        ("replicas", str(result.get("replicas") or "")),
        ("step", f"{step['p50']:.1f} ms (median)" if step else ""),
        ("speed", f"{rate:,.0f} examples/s" if rate else ""),
        ("loss", f"{last['loss']:.3f}" if "loss" in last else ""),
        ("accuracy", f"{last['accuracy']:.1%} on its own data" if "accuracy" in last else ""),
    ]
    return [(name, text) for name, text in pairs if text]


def command_line(env: Mapping[str, str], argv: tuple[str, ...]) -> str:
    """Something that can be pasted into a shell."""
    variables = [f"{name}={shlex.quote(value)}" for name, value in env.items()]
    return " ".join([*variables, shlex.join(argv)])
