"""From a script and a diagnosed machine to the plan of its training."""

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any

from tpuctl.diagnosis.diagnose import diagnose
from tpuctl.diagnosis.report import Diagnosis
from tpuctl.errors import InvalidInputError, NotFoundError, UsageError
from tpuctl.runtime.live import live_machine
from tpuctl.training import snippets
from tpuctl.training.catalog import Template
from tpuctl.training.environment import Change, apply_changes, find_libtpu, plan_environment
from tpuctl.training.plan import LaunchPlan, find_script, pick_choice, plan_launch
from tpuctl.training.schedules import scaled_rate
from tpuctl.training.strategy import FRAMEWORKS, Choice

_OVER_CPUS = {"tensorflow": "mirrored", "jax": "mesh", "torch": "xla-spmd"}


def plan_training(
    target: str,
    here: Diagnosis,
    *,
    framework: str = "auto",
    strategy: str = "auto",
    settings: Sequence[str] = (),
    arguments: Sequence[str] = (),
    cpu_devices: int | None = None,
    env: Mapping[str, str] = os.environ,
) -> LaunchPlan:
    """Plan the training of a template or a script on a machine, environment included.

    `cpu_devices` splits the CPU into so many pretended devices, to practise with several. Raises
    what `find_script`, `pick_choice` and `plan_launch` raise.
    """
    script = find_script(target)
    offered = here.strategies
    if cpu_devices and cpu_devices > 1:
        offered = tuple(_over_cpus(choice, cpu_devices) for choice in offered)
    preferred = here.recommended.framework
    choice = pick_choice(
        script,
        offered,
        preferred=preferred,
        framework=framework,
        strategy=strategy,
        accelerator=here.accelerator,
    )
    codes = {problem.code for problem in here.problems}
    changes = {c.variable: c for c in plan_environment(choice, codes, env, libtpu=find_libtpu())}
    if cpu_devices:
        changes |= {c.variable: c for c in _pretend(choice, script, here, cpu_devices, env)}
    return plan_launch(
        script,
        choice,
        settings,
        arguments,
        devices=here.devices or here.gpus or 1,
        cpu_devices=cpu_devices,
        changes=tuple(changes.values()),
    )


def _over_cpus(choice: Choice, count: int) -> Choice:
    spread = _OVER_CPUS.get(choice.framework)
    if spread is None or choice.strategy == "not-installed":
        return choice
    return replace(choice, strategy=spread, because=f"{count} pretended CPU devices")


def _pretend(
    choice: Choice, script: Template, here: Diagnosis, count: int, env: Mapping[str, str]
) -> list[Change]:
    """Hide accelerators, and tell JAX how many devices the CPU is to be: it reads that once."""
    why = f"{count} pretended CPU devices"
    takes_flag = any(flag.name == "--cpu-devices" for flag in script.flags)
    named = {"tensorflow": "TensorFlow", "torch": "PyTorch"}.get(choice.framework)
    if named and not (takes_flag or script.is_plain_keras):
        raise UsageError(
            f"{script.name} takes no --cpu-devices, so its {named} cannot be split from here.",
            hint="Leave --cpu-devices out, or split the CPU in the script.",
        )
    hidden = [Change("CUDA_VISIBLE_DEVICES", "-1", why)] if here.gpus else []
    if choice.framework != "jax":
        return hidden
    flags = f"{env.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={count}".strip()
    return [*hidden, Change("XLA_FLAGS", flags, why), Change("JAX_PLATFORMS", "cpu", why)]


BASE_BATCH_SIZE = 32
_NOWHERE = frozenset({"not-installed", "none-on-tpu"})


@dataclass(frozen=True)
class Devices:
    """What an adapter opened: `native` is the framework's own strategy or mesh."""

    names: tuple[str, ...]
    replicas: int
    scope: Callable[[], AbstractContextManager[Any]]
    native: Any


@dataclass(frozen=True)
class Strategy:
    """Connected devices, and the figures that follow from their number.

    `batch_size` is global: over all replicas together. `native` is TensorFlow's strategy or JAX's
    mesh. `changes` are the environment variables that were repaired on the way.
    """

    framework: str
    name: str
    because: str
    devices: tuple[str, ...]
    replicas: int
    batch_size: int
    learning_rate: float | None
    changes: tuple[Change, ...]
    native: Any
    scope: Callable[[], AbstractContextManager[Any]]

    @property
    def per_replica_batch_size(self) -> int:
        """How many examples of a batch one replica gets."""
        return self.batch_size // self.replicas

    def __str__(self) -> str:
        """Everything that was decided, a line each, ready to print before the training."""
        rate = f"learning rate: {self.learning_rate:g}" if self.learning_rate is not None else ""
        lines = (
            f"strategy: {self.name} on {self.framework} ({self.because})",
            f"devices: {', '.join(self.devices)} ({self.replicas} replicas)",
            f"batch: {self.batch_size} global, {self.per_replica_batch_size} per replica",
            rate,
            *(f"environment: {change}" for change in self.changes),
        )
        return "\n".join(line for line in lines if line)


@contextmanager
def strategy(
    name: str = "auto",
    *,
    framework: str = "auto",
    batch_size: int | None = None,
    per_replica_batch_size: int | None = None,
    learning_rate: float | None = None,
    base_batch_size: int = BASE_BATCH_SIZE,
    here: Diagnosis | None = None,
) -> Iterator[Strategy]:
    """Open the devices of this machine under the right strategy, and shut them down at the end.

        with tpuctl.strategy("auto", per_replica_batch_size=64, learning_rate=1e-3) as strategy:
            print(strategy)
            with strategy.scope():
                model = make_model(strategy.learning_rate)

    `name` is "auto", "tpu", or a strategy that `tpuctl doctor` names. Call it before the
    framework is imported: environment variables that would break it are repaired first, and listed
    in `changes`. The batch is `batch_size` in all or `per_replica_batch_size` times the replicas;
    `learning_rate` is the one that suits `base_batch_size` and comes back scaled linearly.

    Raises InvalidInputError for a strategy that does not exist here and a batch that does not
    divide over the replicas, NotFoundError where the framework is not installed.
    """
    here = here or diagnose(live_machine())
    choice = choose_for(here, name, framework)
    changes = _repair(choice, here)
    with _adapter(choice.framework)(choice.strategy, remote=os.environ.get("TPU_NAME")) as opened:
        size = _global_batch(opened.replicas, batch_size, per_replica_batch_size)
        yield Strategy(
            framework=choice.framework,
            name=choice.strategy,
            because=choice.because,
            devices=opened.names,
            replicas=opened.replicas,
            batch_size=size,
            learning_rate=learning_rate
            and scaled_rate(learning_rate, batch_size=size, base_batch_size=base_batch_size),
            changes=changes,
            native=opened.native,
            scope=opened.scope,
        )


def choose_for(here: Diagnosis, name: str, framework: str) -> Choice:
    """Pick the strategy of a name among what a machine offers."""
    able = [choice for choice in here.strategies if choice.framework in ("tensorflow", "jax")]
    if framework not in ("auto", *FRAMEWORKS):
        raise InvalidInputError(
            f"{framework!r} is no framework that tpuctl knows.", hint="Use auto, tensorflow or jax."
        )
    if framework == "torch":
        raise InvalidInputError(
            "PyTorch has no scope to open: torch_xla starts processes.",
            hint="See the code that starts them: tpuctl doctor",
        )
    wanted = _framework(here, name) if framework == "auto" else framework
    found = next((choice for choice in able if choice.framework == wanted), None)
    if found is None or found.strategy == "not-installed":
        raise NotFoundError(
            f"There is no strategy to open: {wanted} is not installed here.",
            hint=snippets.install_line(here.accelerator, (wanted,)),
        )
    if name == "auto":
        usable = "default" if found.strategy in _NOWHERE else found.strategy
        return Choice(wanted, usable, found.because, found.snippet)
    if name == "tpu":
        return _on_tpu(here, found)
    if name not in snippets.known(wanted) or name in _NOWHERE:
        known = [one for one in snippets.known(wanted) if one not in _NOWHERE]
        raise InvalidInputError(
            f"{name!r} is no strategy of {wanted}.",
            hint=f"Strategies are: auto, tpu, {', '.join(known)}.",
        )
    return Choice(wanted, name, "asked for by name", "")


def _framework(here: Diagnosis, name: str) -> str:
    """The framework that is loaded already, or that the strategy belongs to, or the best here."""
    keras = sys.modules.get("keras")
    if keras is not None:
        return str(keras.backend.backend())
    told = os.environ.get("KERAS_BACKEND", "").lower()
    if told in ("tensorflow", "jax") and all(problem.code != "F35" for problem in here.problems):
        return told
    owners = [f for f in ("tensorflow", "jax") if name in snippets.known(f)]
    recommended = here.recommended.framework
    if owners and recommended not in owners:
        return owners[0]
    return recommended if recommended in ("tensorflow", "jax") else "tensorflow"


def _on_tpu(here: Diagnosis, found: Choice) -> Choice:
    if here.accelerator in ("tpu", "tpu-remote") and found.strategy not in (*_NOWHERE, "cpu"):
        return found
    raise InvalidInputError(
        f"There is no TPU here that {found.framework} could use: {found.because}.",
        hint="See what is here: tpuctl doctor",
    )


def _repair(choice: Choice, here: Diagnosis) -> tuple[Change, ...]:
    codes = {problem.code for problem in here.problems}
    changes = plan_environment(choice, codes, os.environ, libtpu=find_libtpu())
    apply_changes(changes, os.environ)
    return changes


def _adapter(framework: str) -> Callable[..., AbstractContextManager[Devices]]:
    if framework == "jax":
        from tpuctl.training._jax import open_devices

        return open_devices
    from tpuctl.training._tensorflow import open_devices as open_tensorflow

    return open_tensorflow


def _global_batch(replicas: int, total: int | None, each: int | None) -> int:
    if total is not None and each is not None:
        raise InvalidInputError(
            "batch_size and per_replica_batch_size exclude each other.", hint="Give one of them."
        )
    size = each * replicas if each is not None else BASE_BATCH_SIZE * replicas
    size = total if total is not None else size
    if size < 1 or size % replicas:
        near = max(1, round(size / replicas)) * replicas
        raise InvalidInputError(
            f"A batch of {size} does not divide over {replicas} replicas.",
            hint=f"batch_size={near}",
        )
    return size
