"""From a script and a diagnosed machine to the plan of its training."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace

from tpuctl.diagnosis.report import Diagnosis
from tpuctl.errors import UsageError
from tpuctl.launch.catalog import Template
from tpuctl.launch.environment import Change, find_libtpu, plan_environment
from tpuctl.launch.plan import LaunchPlan, find_script, pick_choice, plan_launch
from tpuctl.launch.strategy import Choice

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
