"""From a machine to a diagnosis: detection, checks, strategies."""

import json

from tpuctl.diagnosis.catalogue import failures
from tpuctl.diagnosis.check_environment import stray_addresses
from tpuctl.diagnosis.check_packages import libtpu_differences
from tpuctl.diagnosis.checks import CHECKS
from tpuctl.diagnosis.finding import Finding, View
from tpuctl.diagnosis.report import Answers, Diagnosis, HolderLine, Problem, Recommended
from tpuctl.launch.strategy import (
    Choice,
    Situation,
    choose,
    choose_jax,
    choose_keras,
    choose_tensorflow,
    choose_torch,
)
from tpuctl.runtime.detect import detect
from tpuctl.runtime.frameworks import LIBTPU_DISTS, TENSORFLOW_DISTS
from tpuctl.runtime.holders import Holder
from tpuctl.runtime.machine import Machine, variable
from tpuctl.runtime.redact import redact

_ORDER = ("blocking", "warning", "note")
_SHOWN = (
    *TENSORFLOW_DISTS, *LIBTPU_DISTS, "jax", "jaxlib", "torch", "torch-xla", "keras", "tf-keras",
    "flax", "protobuf", "numpy", "tpu-info", "accelerate", "lightning",
)  # fmt: skip


def diagnose(machine: Machine) -> Diagnosis:
    """Say where we are and what is wrong, without touching the accelerator."""
    found = detect(machine)
    view = View(machine, found)
    problems = find_problems(view)
    now = situation(view)
    strategies = (choose_tensorflow(now), choose_jax(now), choose_torch(now), choose_keras(now))
    return _report(view, problems, strategies, _recommended(choose(now)))


def _report(
    view: View,
    problems: tuple[Problem, ...],
    strategies: tuple[Choice, ...],
    recommended: Recommended,
) -> Diagnosis:
    machine, found = view.machine, view.found
    answers = _answers(view, strategies)
    chips, place, state = found.chips, found.topology, found.state
    return Diagnosis(
        runtime=found.runtime,
        accelerator=found.accelerator,
        generation=found.generation,
        chips=chips.count,
        cores=chips.cores,
        devices=chips.devices,
        hosts=place.hosts,
        slices=place.slices,
        remote_chips=found.remote_chips,
        remote_cores=found.remote_cores,
        usable=chips.usable if chips.count else (True if found.gpus.count else None),
        free=None if not chips.count else not state.holders,
        worker=place.worker,
        container=found.container is not None,
        gpus=found.gpus.count,
        gpu_names=found.gpus.names,
        evidence=(*answers.platform, *answers.hardware, *answers.frameworks, *answers.state),
        answers=answers,
        host=machine.host,
        packages={n: machine.packages[n] for n in _SHOWN if n in machine.packages},
        strategy_tf=strategies[0].strategy,
        strategy_jax=strategies[1].strategy,
        strategy_torch=strategies[2].strategy,
        strategy_keras=strategies[3].strategy,
        strategies=strategies,
        recommended=recommended,
        holders=tuple(map(_holder_line, state.holders)),
        uninspected_processes=state.uninspected,
        problems=problems,
    )


def find_problems(view: View) -> tuple[Problem, ...]:
    """Run every check; the gravest problems come first."""
    findings = ((code, check(view)) for code, check in CHECKS.items())
    problems = [_problem(code, finding) for code, finding in findings if finding]
    return tuple(sorted(problems, key=lambda problem: _ORDER.index(problem.severity)))


def situation(view: View) -> Situation:
    """Reduce what was found to what the choice of a strategy depends on."""
    found, frameworks = view.found, view.found.frameworks
    return Situation(
        accelerator=found.accelerator,
        runtime=found.runtime,
        devices=found.chips.devices,
        hosts=found.topology.hosts,
        slices=found.topology.slices,
        gpus=found.gpus.count,
        remote=found.platform.remote,
        needs_pjrt_variables=found.chips.needs("pjrt"),
        tensorflow_build=frameworks.tensorflow_build,
        jax_build=frameworks.jax_build,
        torch_build=frameworks.torch_build,
        has_torch_xla=frameworks.torch_xla is not None,
        has_keras_3=frameworks.is_keras_3,
        tensorflow_workers=_tensorflow_workers(view.machine),
        stray_process_addresses=stray_addresses(view),
    )


def _problem(code: str, finding: Finding) -> Problem:
    known = failures()[code]
    return Problem(
        code=code,
        severity=finding.severity or known.severity,
        summary=known.title,
        evidence=tuple(redact(line) for line in finding.evidence if line),
        fix=finding.fix or known.fix,
        fix_command=finding.fix_command or known.fix_command,
    )


def _holder_line(holder: Holder) -> HolderLine:
    return HolderLine(
        pid=holder.pid,
        user=holder.user,
        command=holder.command,
        device=holder.device,
        is_this_notebook=holder.is_this_notebook,
        seen_by=holder.seen_by,
    )


def _recommended(choice: Choice) -> Recommended:
    return Recommended(choice.framework, choice.strategy, choice.because, choice.snippet)


def _answers(view: View, strategies: tuple[Choice, ...]) -> Answers:
    found = view.found
    state = [
        f"held by pid {h.pid} ({h.command or 'unknown'}): {h.device}, by {h.seen_by}"
        for h in found.state.holders
    ]
    if found.chips.count and not state:
        state.append("no holder of the TPU was seen")
    if found.state.uninspected:
        state.append(f"{found.state.uninspected} processes could not be inspected")
    unsure = () if found.platform.sure else ("low confidence: nothing names the platform",)
    container = (f"in a container: {found.container}",) if found.container else ()
    hardware = (*found.chips.because, *found.gpus.because, *found.topology.because)
    return Answers(
        platform=_clean((*found.platform.because, *unsure, *container)),
        hardware=_clean(hardware),
        frameworks=_clean(
            (
                *found.frameworks.because,
                *libtpu_differences(view),
                *(f"{c.framework}: {c.because}" for c in strategies),
            )
        ),
        state=_clean((*state, *found.state.sick)),
    )


def _clean(lines: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(redact(line) for line in lines)


def _tensorflow_workers(machine: Machine) -> int:
    """How many workers TF_CONFIG names; 1 for anything that is not a cluster."""
    try:
        cluster = json.loads(variable(machine, "TF_CONFIG") or "{}")["cluster"]
        return max(1, sum(len(cluster.get(job, [])) for job in ("chief", "worker")))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return 1
