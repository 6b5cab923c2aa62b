"""A diagnosis in words."""

from typing import Any

from tpuctl.diagnosis.report import Diagnosis
from tpuctl.training.snippets import install_line


def text(diagnosis: Diagnosis) -> Any:
    """Show where we are, what is wrong with evidence and fix, and how to start."""
    from tpuctl.reporters.doctor_text import render  # loads rich, which --json can do without

    return render(diagnosis)


def hardware_line(diagnosis: Diagnosis) -> str:
    """The accelerator in one line."""
    if diagnosis.accelerator == "tpu":
        name = f"TPU {diagnosis.generation or 'v2 or v3'}"
        line = f"{name}: {diagnosis.chips} chips, {diagnosis.devices} devices"
        if diagnosis.hosts > 1:
            line += f" here; worker {diagnosis.worker} of {diagnosis.hosts} hosts"
        return line + ("" if diagnosis.usable else "; this process cannot open them")
    if diagnosis.accelerator == "tpu-remote":
        return f"TPU {diagnosis.generation or ''} on another machine".replace("  ", " ")
    if diagnosis.accelerator == "gpu":
        names = ", ".join(diagnosis.gpu_names) or "name unknown"
        return f"{diagnosis.gpus} GPU ({names})"
    return "none"


def start_line(diagnosis: Diagnosis) -> str:
    """What to start with, or what is missing for any start."""
    best = diagnosis.recommended
    if best.strategy != "not-installed":
        return f"Start with {best.framework} ({best.strategy}): {best.because}"
    return f"{best.because[0].upper()}{best.because[1:]} here. Install one, such as JAX:"


def start_code(diagnosis: Diagnosis) -> str:
    """The code to start with, or the command that installs a framework."""
    if diagnosis.recommended.strategy == "not-installed":
        return install_line(diagnosis.accelerator)
    return diagnosis.recommended.snippet.rstrip()


def is_well(diagnosis: Diagnosis) -> bool:
    """Whether there is nothing to mend and something to start with."""
    return not diagnosis.problems and diagnosis.recommended.strategy != "not-installed"


def state_line(diagnosis: Diagnosis) -> str:
    """Who has the accelerator, in one line."""
    if diagnosis.free is None:
        return "-"
    unseen = diagnosis.uninspected_processes
    note = f" ({unseen} processes could not be inspected)" if unseen else ""
    if diagnosis.free:
        return f"free, as far as can be seen{note}"
    lines = (
        f"pid {h.pid} {h.command or ''}{' (this notebook)' if h.is_this_notebook else ''}".strip()
        for h in diagnosis.holders
    )
    return f"held by {'; '.join(lines)}{note}"
