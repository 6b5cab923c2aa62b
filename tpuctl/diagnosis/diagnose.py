"""`tpuctl doctor`: run every check on a machine and report what it finds."""

import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from tpuctl.diagnosis import check_environment as environment
from tpuctl.diagnosis import check_hardware as hardware
from tpuctl.diagnosis import check_packages as packages
from tpuctl.diagnosis.catalogue import failures
from tpuctl.diagnosis.report import Answers, Diagnosis, Finding, MachineView, Problem
from tpuctl.errors import UsageError, WriteError
from tpuctl.runtime.detect import detect
from tpuctl.runtime.frameworks import LIBTPU_DISTS, TENSORFLOW_DISTS
from tpuctl.runtime.live import LiveMachine, live_machine
from tpuctl.runtime.machine import Machine
from tpuctl.runtime.redact import redact
from tpuctl.runtime.topology import training_tasks
from tpuctl.runtime.versions import tables
from tpuctl.training.choose import (
    FRAMEWORKS,
    Choice,
    Situation,
    choose,
    choose_keras,
    choose_strategy,
)

# Checks by the code of the failure that they detect, which `data/failures` describes.
CHECKS: dict[str, Callable[[MachineView], Finding | None]] = {
    "F01": hardware.lock_held,
    "F02": hardware.foreign_lockfile,
    "F03": hardware.unseen_lock,
    "F04": hardware.accel_owned,
    "F05": hardware.vfio_busy,
    "F07": hardware.own_notebook,
    "F08": hardware.no_chip_to_open,
    "F09": hardware.v6e_without_driver,
    "F10": hardware.v5e_without_nodes,
    "F11": hardware.vbar_out_of_reach,
    "F12": hardware.chips_kept_from_container,
    "F13": hardware.hugepages_off,
    "F14": hardware.mixed_chips,
    "F15": packages.without_libtpu,
    "F16": environment.platforms_contradict,
    "F17": packages.tpu_demanded_without_libtpu,
    "F18": packages.ancient_jaxlib,
    "F19": packages.jaxlib_mismatch,
    "F20": packages.libtpu_of_tensorflow,
    "F21": packages.empty_accelerator_type,
    "F22": packages.libtpu_mismatch,
    "F24": packages.torch_xla_mismatch,
    "F25": packages.tensorflow_beside_torch_xla,
    "F26": packages.two_libtpus,
    "F27": packages.colab_without_tensorflow,
    "F29": packages.tensorflow_without_tpu,
    "F30": packages.pjrt_variables_missing,
    "F32": packages.several_tensorflows,
    "F33": packages.protobuf_out_of_range,
    "F34": packages.keras_mismatch,
    "F35": environment.keras_on_cpu,
    "F36": environment.library_path_missing,
    "F37": packages.lightning_without_xla,
    "F38": packages.libtpu_sdk_unusable,
    "F41": packages.jax_on_a_tpu_node,
    "F42": environment.old_tpu_driver,
    "F43": environment.metadata_silent,
    "F44": environment.torch_xla_without_metadata,
    "F45": environment.bounds_missing,
    "F46": environment.type_unreadable,
    "F47": environment.hostnames_are_a_sentence,
    "F48": environment.no_google_client,
    "F49": environment.preempted,
    "F50": environment.name_is_local,
    "F53": environment.too_few_addresses,
    "F54": environment.addresses_without_port,
    "F55": environment.several_hosts,
    "F61": environment.accelerate_misdirected,
    "F64": environment.bucket_scope_missing,
    "F69": environment.precision_variables,
    "F72": hardware.p100_without_kernels,
    "F74": hardware.busy_and_unseen,
    "accelerator_type_unknown": packages.torch_xla_too_old,
    "libtpu_package_without_file": packages.empty_libtpu,
    "tpu_env_keys": environment.type_missing,
    "xla_tpu_legacy": packages.torch_xla_on_a_tpu_node,
}
_SEVERITIES = ("blocking", "warning", "note")
_REPORTED_PACKAGES = (
    *TENSORFLOW_DISTS, *LIBTPU_DISTS, "jax", "jaxlib", "torch", "torch-xla", "torch-tpu", "keras",
    "tf-keras", "flax", "protobuf", "numpy", "tpu-info", "accelerate", "lightning",
)  # fmt: skip


def diagnose(machine: Machine) -> Diagnosis:
    """Report where we run and what is wrong, without touching the accelerator."""
    found = detect(machine)
    view = MachineView(machine, found)
    now = situation(view)
    strategies = (*(choose_strategy(name, now) for name in FRAMEWORKS), choose_keras(now))
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
        packages={n: machine.packages[n] for n in _REPORTED_PACKAGES if n in machine.packages},
        strategy_tf=strategies[0].strategy,
        strategy_jax=strategies[1].strategy,
        strategy_torch=strategies[2].strategy,
        strategy_keras=strategies[3].strategy,
        strategies=strategies,
        recommended=choose(now),
        holders=state.holders,
        uninspected_processes=state.uninspected,
        problems=find_problems(view),
    )


def find_problems(view: MachineView) -> tuple[Problem, ...]:
    """Run every check; the most severe problems come first."""
    findings = ((code, check(view)) for code, check in CHECKS.items())
    problems = [_problem(code, finding) for code, finding in findings if finding]
    return tuple(sorted(problems, key=lambda problem: _SEVERITIES.index(problem.severity)))


def situation(view: MachineView) -> Situation:
    """Collect the inputs of the strategy choice."""
    found, frameworks = view.detected, view.detected.frameworks
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
        has_torch_tpu=frameworks.torch_tpu is not None
        and found.chips.generation in tables()["torch_tpu_generations"]
        and packages.torch_tpu_range(view) is None,
        has_keras_3=frameworks.is_keras_3,
        tensorflow_workers=training_tasks(view.machine)[0],
        on_nodes=frozenset(
            name for name in ("jax", "torch-xla") if packages.uses_nodes(view, name)
        ),
        stray_process_addresses=environment.has_too_few_addresses(view),
        has_pathways=environment.has_pathways(view),
    )


def _problem(code: str, finding: Finding) -> Problem:
    known = failures()[code]
    return Problem(
        code=code,
        severity=finding.severity or known.severity,
        summary=finding.summary or known.title,
        evidence=tuple(redact(line) for line in finding.evidence if line),
        fix=finding.fix or known.fix,
        fix_command=finding.fix_command or known.fix_command,
    )


def _answers(view: MachineView, strategies: tuple[Choice, ...]) -> Answers:
    found = view.detected
    state = [
        f"held by pid {h.pid} ({h.command or 'unknown'}): {h.device}, by {h.seen_by}"
        for h in found.state.holders
    ]
    if found.chips.count and not state:
        state.append("no process was seen to hold the TPU")
    if found.state.uninspected:
        state.append(f"{found.state.uninspected} processes could not be inspected")
    platform = list(found.platform.because)
    if not found.platform.sure:
        platform.append("low confidence: nothing identifies the platform")
    if found.container:
        platform.append(f"in a container: {found.container}")
    frameworks = (*found.frameworks.because, *packages.libtpu_differences(view))
    choices = (f"{choice.framework}: {choice.because}" for choice in strategies)
    return Answers(
        platform=tuple(map(redact, platform)),
        hardware=tuple(
            map(redact, (*found.chips.because, *found.gpus.because, *found.topology.because))
        ),
        frameworks=tuple(map(redact, (*frameworks, *choices))),
        state=tuple(map(redact, (*state, *found.state.sick))),
    )


Approve = Callable[[str], None]


def examine(
    *,
    record: Path | None = None,
    replay: Path | None = None,
    deep: bool = False,
    numerics: bool = False,
    approve: Approve | None = None,
    machine: LiveMachine | None = None,
) -> Diagnosis:
    """Diagnose this machine, or the recorded one in `replay`.

    `approve` enables repairs: it is called before each one and raises to refuse it. `deep` and
    `numerics` use the accelerator, in a child process. Raises UsageError for conflicting options,
    WriteError for a record in a folder that does not exist, and what `open_recorded` raises.
    """
    if replay is not None:
        if record or deep or numerics or approve:
            raise UsageError(
                "--replay diagnoses another machine and cannot be combined with other options."
            )
        from tpuctl.runtime.replay import open_recorded

        return replace(diagnose(open_recorded(replay)), is_replay=True)
    live = machine or live_machine()
    diagnosis = _recorded(live, record) if record else diagnose(live)
    if approve:
        diagnosis = _repaired(live, diagnosis, approve)
    return _tried(diagnosis, deep=deep, numerics=numerics) if deep or numerics else diagnosis


def _recorded(machine: Machine, path: Path) -> Diagnosis:
    from tpuctl.runtime.record import Recorder, to_json
    from tpuctl.storage.local import write_atomically

    if not path.parent.is_dir():
        raise WriteError(
            f"Could not write {path}: the folder {path.parent} does not exist.",
            hint=f"mkdir -p {shlex.quote(str(path.parent))}",
        )
    recorder = Recorder(machine)
    diagnosis = diagnose(recorder.machine)
    write_atomically(path, to_json(recorder.document()))
    return replace(diagnosis, recorded_to=str(path))


def _repaired(machine: LiveMachine, diagnosis: Diagnosis, approve: Approve) -> Diagnosis:
    from tpuctl.diagnosis.repair import apply_repair, plan_repairs, verify

    view = MachineView(machine, detect(machine))
    repairs = []
    for repair in plan_repairs(view, diagnosis.problems, root=machine.root):
        approve(f"{repair.code}: {repair.what}? (undo: {repair.undo})")
        repairs.append(apply_repair(repair))
    if not repairs:
        return replace(diagnosis, repairs=())
    after = diagnose(machine.refreshed())
    return replace(
        after, repairs=verify(repairs, after.problems), recorded_to=diagnosis.recorded_to
    )


def _tried(diagnosis: Diagnosis, *, deep: bool, numerics: bool) -> Diagnosis:
    from tpuctl.diagnosis.trials import try_devices, try_numerics

    if deep:
        diagnosis = replace(diagnosis, deep=try_devices(diagnosis))
    if numerics:
        diagnosis = replace(diagnosis, numerics=try_numerics(diagnosis))
    return diagnosis
