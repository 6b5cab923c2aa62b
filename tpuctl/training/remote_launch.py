"""`launch --on`: run a training on every worker of a TPU, or on your own hosts."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import tpuctl
from tpuctl.cloud.models import Node
from tpuctl.cloud.tpu import known_type
from tpuctl.errors import MissingExtraError, NotFoundError, UsageError
from tpuctl.hardware.types import generation
from tpuctl.progress import OnProgress
from tpuctl.remote.access import Access
from tpuctl.remote.barrier import Probe, check_workers
from tpuctl.remote.copy import copy
from tpuctl.remote.copy_plan import CopyPlan, CopyResults, Direction
from tpuctl.remote.hosts import EMULATED_PORT, Host
from tpuctl.remote.jobs import StartedJob, start_job, stop_job
from tpuctl.remote.logs import Logs, read_logs
from tpuctl.remote.output import Sink
from tpuctl.remote.run import Command
from tpuctl.runtime.versions import minor
from tpuctl.training import snippets
from tpuctl.training.catalog import Template
from tpuctl.training.choose import FRAMEWORKS, Choice, Situation, choose, choose_strategy
from tpuctl.training.environment import Change, plan_environment
from tpuctl.training.plan import RUNNER, LaunchPlan, find_script, pick_choice, plan_launch

FOLDER = "tpuctl-launch"
"""Folder on the workers for a single script."""

LIBRARY = ".tpuctl-library"
"""Folder in the home folder for tpuctl itself, which measures the script's steps."""

PYTHON = "python3"
_OLDEST_PYTHON = (3, 10)
_START = f"../{LIBRARY}/tpuctl/start_python.py"
_MEASURED = (PYTHON, _START, "tpuctl.training.hosted_job", "--")


@dataclass(frozen=True)
class RemotePlan(LaunchPlan):
    """A training on workers before it starts; `folder` is its working directory.

    `copies` are pairs of a local path and its target on the workers. `hosts` are those that start
    the program: only one if it drives all the others. `is_measured` is whether tpuctl runs around
    it and measures its steps.
    """

    on: str
    folder: str
    copies: tuple[tuple[str, str], ...]
    hosts: tuple[Host, ...] = field(metadata={"internal": True})
    is_measured: bool = field(default=True, metadata={"internal": True})

    @property
    def command(self) -> Command:
        """The command to run on each of the hosts."""
        removed = [word for name in self.unset for word in ("-u", name)]
        argv = ("env", *removed, *self.argv) if removed else self.argv
        return Command((*(_MEASURED if self.is_measured else ()), *argv), self.env, self.folder)


@dataclass(frozen=True)
class WorkerSetup:
    """Facts about the workers: their number, a probe of the first one, and their TPU."""

    workers: int
    probe: Probe
    node: Node | None = None

    @property
    def emulated(self) -> bool:
        """Whether they are emulated, so that their chips are not real."""
        return self.node is not None and EMULATED_PORT in self.node.metadata


def situation_of(setup: WorkerSetup) -> Situation:
    """Derive the inputs of the strategy choice from the probe and the TPU."""
    probe, packages = setup.probe, setup.probe.packages
    kind = known_type(setup.node.accelerator_type) if setup.node else None
    is_tpu = probe.chips > 0 and not setup.emulated
    image = setup.node.runtime_version if setup.node else ""
    tensorflow = any(name.startswith("tensorflow") for name in packages)
    sees_tpu = is_tpu and ("tensorflow-tpu" in packages or image.startswith("tpu-vm-tf-"))
    known = generation(kind.generation) if kind else None
    return Situation(
        accelerator="tpu" if is_tpu else "none",
        runtime="tpu-vm" if is_tpu else "workstation",
        devices=(kind.devices_per_worker if kind else probe.chips) if is_tpu else 1,
        hosts=setup.workers if is_tpu else 1,
        remote=setup.node.name if setup.node and is_tpu and setup.workers > 1 else None,
        needs_pjrt_variables=is_tpu and known is not None and "pjrt" in known.needs,
        tensorflow_build=("tpu" if sees_tpu else "cpu") if tensorflow else None,
        jax_build=("tpu" if is_tpu else "cpu") if "jax" in packages else None,
        torch_build="cpu" if "torch" in packages else None,
        has_torch_xla="torch_xla" in packages,
        has_torch_tpu="torch_tpu" in packages,
        has_keras_3=minor(packages.get("keras", "0")) >= (3, 0),
    )


def plan_on_workers(
    target: str,
    hosts: tuple[Host, ...],
    access: Access,
    *,
    node: Node | None = None,
    code: Path | None = None,
    framework: str = "auto",
    strategy: str = "auto",
    settings: Sequence[str] = (),
    arguments: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
) -> RemotePlan:
    """Probe the first worker and plan a training for all of them.

    Raises the worker's error if it cannot be probed, and what `plan_launch` raises.
    """
    probed = check_workers(hosts[:1], access)
    if not probed.workers:
        raise probed.failures[0]
    setup = WorkerSetup(len(hosts), probed.workers[0], node)
    script = find_script(target)
    folder, name, copied = _target(script, code)
    choice = _choice(script, setup, hosts[0], framework=framework, strategy=strategy)
    plan = plan_launch(
        replace(script, path=name),
        choice,
        settings,
        arguments,
        devices=max(1, situation_of(setup).devices) * situation_of(setup).hosts,
        changes=changes_for(choice, setup),
        python=PYTHON,
    )
    copies, added = [copied], dict(env or {})
    is_measured = minor(setup.probe.python or "0") >= _OLDEST_PYTHON
    if RUNNER in plan.argv:
        added["PYTHONPATH"] = f"../{LIBRARY}"
    if RUNNER in plan.argv or is_measured:
        copies.append((str(Path(tpuctl.__file__).parent), f"{LIBRARY}/tpuctl"))
    started_on = hosts[:1] if choice.strategy == "tpu-name" else hosts
    emulated = (f"{len(hosts)} emulated workers have no chips: each trains on its CPU",)
    planned = replace(
        plan,
        env={**plan.env, **added},
        workers=len(started_on),
        because=(*(emulated if setup.emulated else ()), *plan.because),
    )
    return RemotePlan(
        **vars(planned),
        on=hosts[0].target,
        folder=folder,
        copies=tuple(copies),
        hosts=started_on,
        is_measured=is_measured,
    )


def changes_for(choice: Choice, setup: WorkerSetup) -> tuple[Change, ...]:
    """The environment changes on the workers before the framework starts."""
    situation = situation_of(setup)
    problems = {"F30"} if situation.needs_pjrt_variables else set()
    changes = plan_environment(choice, problems, {}, libtpu=setup.probe.libtpu)
    if choice.strategy == "tpu-name" and setup.node:
        why = "one worker drives all of them through the TPU's name"
        changes += (Change("TPU_NAME", setup.node.name, why),)
    return changes


def place_script(script: Path, code: Path | None) -> tuple[str, tuple[Path, str]]:
    """Return the script's place on the machine, and what to send: it, or the folder that holds it.

    Raises UsageError for a script outside of the folder.
    """
    if not code:
        return f"./{script.name}", (script, "")
    root = code.expanduser().resolve()
    if not root.is_dir():
        raise NotFoundError(
            f"The folder {code} does not exist.", hint="--code takes a local folder."
        )
    if root not in script.resolve().parents:
        raise UsageError(
            f"{script} is not in the folder {code}.",
            hint="--code takes the folder that contains it.",
        )
    return f"./{script.resolve().relative_to(root)}", (root, "")


def _target(script: Template, code: Path | None) -> tuple[str, str, tuple[str, str]]:
    """Return the folder on the workers, the script's path in it, and what to copy there."""
    name, (source, _) = place_script(Path(script.path), code)
    place = (source.name or FOLDER) if code else FOLDER
    return place, name.removeprefix("./"), (str(source), place if code else f"{FOLDER}/")


def _choice(
    script: Template, setup: WorkerSetup, host: Host, *, framework: str, strategy: str
) -> Choice:
    situation = situation_of(setup)
    offered = [choose_strategy(name, situation) for name in FRAMEWORKS]
    try:
        return pick_choice(
            script,
            offered,
            preferred=choose(situation).framework,
            framework=framework,
            strategy=strategy,
        )
    except (MissingExtraError, NotFoundError) as error:
        known = (framework,) if framework != "auto" else script.frameworks or ("jax",)
        wanted = " or ".join(known)
        install = snippets.install_line(situation.accelerator, known, with_xla=script.needs_xla)
        raise NotFoundError(
            f"{script.name} needs {wanted}, which is not installed on {host.label}.",
            hint=f"Install it on all workers: tpuctl run {host.target} -- {install}",
        ) from error


def train_on_workers(
    plan: RemotePlan,
    access: Access,
    *,
    job: str | None,
    check: bool,
    detach: bool,
    include_secrets: bool,
    sink: Sink,
    note: Callable[[str], None],
    on_progress: OnProgress,
) -> CopyResults | StartedJob | Logs:
    """Copy, start on every worker and follow the log to the end, unless `detach` is set.

    The training survives a broken connection. Ctrl-C stops it on every worker.
    """
    for source, target in plan.copies:
        is_ours = target.startswith(LIBRARY)
        upload = CopyPlan(Direction.UP, None, target, source, include_secrets or is_ours)
        copied = copy(plan.hosts, access, upload, on_progress=on_progress)
        for warning in copied.warnings:
            note(warning)
        if copied.failed:
            return copied
    started = start_job(plan.hosts, plan.command, access, job=job, check=check)
    if detach or started.failed:
        return started
    try:
        return read_logs(plan.hosts, access, sink=sink, note=note, job=started.job, follow=True)
    except KeyboardInterrupt:
        stop_job(plan.hosts, access, job=started.job)
        raise
