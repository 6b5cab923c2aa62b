"""`launch --on`: the same training on every worker of a TPU, or on machines of yours."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

import tpuctl
from tpuctl.cloud.models import Node
from tpuctl.cloud.tpu import known_type
from tpuctl.errors import MissingExtraError, NotFoundError, UsageError
from tpuctl.hardware.types import generation
from tpuctl.progress import OnProgress, silent
from tpuctl.remote.access import Access
from tpuctl.remote.barrier import Probe, check_workers
from tpuctl.remote.copy import copy
from tpuctl.remote.copy_plan import CopyPlan, CopyResults, Direction
from tpuctl.remote.hosts import EMULATED_PORT, Host
from tpuctl.remote.jobs import StartedJob, start_job, stop_job
from tpuctl.remote.logs import Logs, read_logs
from tpuctl.remote.output import Sink
from tpuctl.remote.run import Command
from tpuctl.training import snippets
from tpuctl.training.catalog import Template
from tpuctl.training.environment import Change, plan_environment
from tpuctl.training.plan import RUNNER, LaunchPlan, find_script, pick_choice, plan_launch
from tpuctl.training.strategy import (
    Choice,
    Situation,
    choose,
    choose_jax,
    choose_tensorflow,
    choose_torch,
)

FOLDER = "tpuctl-launch"
"""Where a script is put on a worker that comes without a folder of its own."""

LIBRARY = ".tpuctl"
"""Where tpuctl itself is put beside it, if the script is to run inside of our runner."""

PYTHON = "python3"
_PJRT = "F30"


@dataclass(frozen=True)
class RemotePlan(LaunchPlan):
    """A training on workers before it starts: `folder` is where it runs there.

    `copies` are pairs of a path here and the folder that it goes to over there; the hosts are
    those that start it: where one of them drives all the others, only that one.
    """

    on: str
    folder: str
    copies: tuple[tuple[str, str], ...]
    hosts: tuple[Host, ...] = field(metadata={"internal": True})

    @property
    def command(self) -> Command:
        """The job to start on each of the hosts."""
        removed = [word for name in self.unset for word in ("-u", name)]
        argv = ("env", *removed, *self.argv) if removed else self.argv
        return Command(argv, self.env, self.folder)


@dataclass(frozen=True)
class Surroundings:
    """What is known of the workers: their number, the first one, and the TPU that they are of."""

    workers: int
    probe: Probe
    node: Node | None = None

    @property
    def emulated(self) -> bool:
        """Whether they are processes of this machine, with pretended chips."""
        return self.node is not None and EMULATED_PORT in self.node.metadata


def situation_of(there: Surroundings) -> Situation:
    """What the choice of a strategy depends on, as far as it can be seen from here."""
    probe, packages = there.probe, there.probe.packages
    kind = known_type(there.node.accelerator_type) if there.node else None
    is_tpu = probe.chips > 0 and not there.emulated
    image = there.node.runtime_version if there.node else ""
    tensorflow = any(name.startswith("tensorflow") for name in packages)
    sees_tpu = is_tpu and ("tensorflow-tpu" in packages or image.startswith("tpu-vm-tf-"))
    known = generation(kind.generation) if kind else None
    return Situation(
        accelerator="tpu" if is_tpu else "none",
        runtime="tpu-vm" if is_tpu else "workstation",
        devices=(kind.devices_per_worker if kind else probe.chips) if is_tpu else 1,
        hosts=there.workers if is_tpu else 1,
        remote=there.node.name if there.node and is_tpu and there.workers > 1 else None,
        needs_pjrt_variables=is_tpu and known is not None and "pjrt" in known.needs,
        tensorflow_build=("tpu" if sees_tpu else "cpu") if tensorflow else None,
        jax_build=("tpu" if is_tpu else "cpu") if "jax" in packages else None,
        torch_build="cpu" if "torch" in packages else None,
        has_torch_xla="torch_xla" in packages,
        has_keras_3=packages.get("keras", "0").split(".")[0].isdecimal()
        and int(packages.get("keras", "0").split(".")[0]) >= 3,
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
    """Look at the first worker, and plan a training for all of them.

    Raises why that worker cannot be asked, and what `plan_launch` raises.
    """
    seen = check_workers(hosts[:1], access)
    if not seen.workers:
        raise seen.failures[0]
    there = Surroundings(len(hosts), seen.workers[0], node)
    script = find_script(target)
    place, name, copied = _place(script, code)
    choice = _choice(script, there, hosts[0], framework=framework, strategy=strategy)
    plan = plan_launch(
        replace(script, path=name),
        choice,
        settings,
        arguments,
        devices=max(1, situation_of(there).devices) * situation_of(there).hosts,
        changes=changes_for(choice, there),
        python=PYTHON,
    )
    copies, added = [copied], dict(env or {})
    if RUNNER in plan.argv:
        copies.append((str(Path(tpuctl.__file__).parent), f"{place}/{LIBRARY}/tpuctl"))
        added["PYTHONPATH"] = LIBRARY
    known = {each.name: getattr(plan, each.name) for each in fields(LaunchPlan)}
    started_on = hosts[:1] if choice.strategy == "tpu-name" else hosts
    said = (f"{len(hosts)} emulated workers have no chips: each trains on its CPU",)
    known |= {
        "env": {**plan.env, **added},
        "workers": len(started_on),
        "because": (*(said if there.emulated else ()), *plan.because),
    }
    return RemotePlan(
        **known, on=hosts[0].target, folder=place, copies=tuple(copies), hosts=started_on
    )


def changes_for(choice: Choice, there: Surroundings) -> tuple[Change, ...]:
    """What must be set on the workers before the framework starts there."""
    situation = situation_of(there)
    problems = {_PJRT} if situation.needs_pjrt_variables else set()
    changes = plan_environment(choice, problems, {}, libtpu=there.probe.libtpu)
    if choice.strategy == "tpu-name" and there.node:
        why = "one worker drives all of them by the TPU's name"
        changes += (Change("TPU_NAME", there.node.name, why),)
    return changes


def _place(script: Template, code: Path | None) -> tuple[str, str, tuple[str, str]]:
    """The folder over there, the script's name in it, and what is copied where."""
    path = Path(script.path)
    if code is None:
        return FOLDER, path.name, (str(path), f"{FOLDER}/")
    root = code.expanduser().resolve()
    if not root.is_dir():
        raise NotFoundError(f"There is no folder {code} to copy.")
    try:
        name = path.resolve().relative_to(root)
    except ValueError as error:
        raise UsageError(
            f"{path} is not in the folder {code}.", hint="--code takes the folder that it is in."
        ) from error
    place = root.name or FOLDER
    return place, str(name), (str(root), place)


def _choice(
    script: Template, there: Surroundings, host: Host, *, framework: str, strategy: str
) -> Choice:
    situation = situation_of(there)
    offered = [chooser(situation) for chooser in (choose_tensorflow, choose_jax, choose_torch)]
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
        install = snippets.install_line(situation.accelerator, known)
        raise NotFoundError(
            f"{script.name} runs on {wanted}, which {host.label} does not have.",
            hint=f"Install it on all of them: tpuctl run {host.target} -- {install}",
        ) from error


def copy_to_workers(
    plan: RemotePlan, access: Access, *, on_progress: OnProgress = silent
) -> CopyResults | None:
    """Bring everything over that the plan names; the copy that failed, if one did."""
    for source, target in plan.copies:
        way = CopyPlan(Direction.UP, None, target, source)
        copied = copy(plan.hosts, access, way, on_progress=on_progress)
        if copied.failed:
            return copied
    return None


def train_on_workers(
    plan: RemotePlan,
    access: Access,
    *,
    job: str | None = None,
    check: bool = True,
    detach: bool = False,
    sink: Sink,
    note: Callable[[str], None],
    progress: Callable[[], AbstractContextManager[OnProgress]] = lambda: nullcontext(silent),
) -> CopyResults | StartedJob | Logs:
    """Copy, start on every worker, and follow to the end, unless it is to go on alone.

    The training survives a broken connection. Ctrl-C ends it on every worker, and goes on.
    """
    with progress() as on_progress:
        failed = copy_to_workers(plan, access, on_progress=on_progress)
    if failed:
        return failed
    started = start_job(plan.hosts, plan.command, access, job=job, check=check)
    if detach or started.failed:
        return started
    try:
        return read_logs(plan.hosts, access, sink=sink, note=note, job=started.job, follow=True)
    except KeyboardInterrupt:
        stop_job(plan.hosts, access, job=started.job)
        raise
