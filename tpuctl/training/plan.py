"""Plan a training run: script, framework, strategy, arguments and environment."""

import os
import shlex
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path

from tpuctl.diagnosis.report import Diagnosis
from tpuctl.errors import MissingExtraError, NotFoundError, TpuctlError, UsageError
from tpuctl.outcome import Outcome
from tpuctl.training import snippets
from tpuctl.training.catalog import (
    Flag,
    Template,
    describe_script,
    describe_template,
    template_names,
)
from tpuctl.training.choose import FRAMEWORKS, Choice
from tpuctl.training.environment import Change, find_libtpu, keras_backend, plan_environment

RUNNER = "tpuctl.training.runner"
_NOT_INSTALLED = "not-installed"
_CPU_ONLY = "none-on-tpu"
_CPU_STRATEGIES = {"tensorflow": "mirrored", "jax": "mesh", "torch": "xla-spmd"}
ON_ALL_HOSTS = frozenset({"distributed+mesh", "multiworker-mirrored", "xla-launch-all-hosts"})


@dataclass(frozen=True)
class LaunchPlan(Outcome):
    """A training run before it starts, with the reasons for its choices.

    `env` is set and `unset` removed before the script starts, because frameworks read them on
    import.
    """

    script: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    unset: tuple[str, ...]
    framework: str
    strategy: str
    devices: int
    workers: int
    because: tuple[str, ...]
    out: str = field(default="training", kw_only=True, metadata={"internal": True})

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why this framework and strategy were chosen."""
        return self.because

    def in_shell(self, *before: str) -> str:
        """Write the command for a shell, with its variables, after the words in `before`."""
        removed = [word for name in self.unset for word in ("-u", name)]
        variables = [f"{name}={shlex.quote(value)}" for name, value in self.env.items()]
        words = shlex.join([*before, *self.argv])
        return " ".join([*(["env"] if removed else []), *removed, *variables, words])


def find_script(target: str) -> Template:
    """Find a template by name or a script by path; raises NotFoundError.

    The path stays as it was given: `-x.py` would be an option of Python, `./-x.py` is not.
    """
    if target.endswith(".ipynb"):
        raise UsageError(
            f"{target} is a notebook; launch runs scripts.",
            hint=f"Make a script of it: jupyter nbconvert --to script {shlex.quote(target)}. "
            "To profile a cell: %load_ext tpuctl, then %%tpuprofile above its code.",
        )
    is_path = target.endswith(".py") or "/" in target
    if not is_path and target not in template_names():
        is_path = Path(target).is_file()
    if not is_path:
        return describe_template(target)
    return replace(describe_script(Path(target)), path=target)


def pick_choice(
    script: Template,
    choices: Sequence[Choice],
    *,
    preferred: str,
    framework: str = "auto",
    strategy: str = "auto",
    accelerator: str = "none",
) -> Choice:
    """Pick the framework and strategy for a script from the choices of the machine.

    A framework or strategy that was requested by name is kept. `accelerator` decides which package
    a hint names. Raises UsageError for a framework that is unknown or that the script cannot use,
    and for a single-host script on several hosts; MissingExtraError or NotFoundError if none of
    its frameworks is installed.
    """
    can_use = script.frameworks or FRAMEWORKS
    if framework not in ("auto", *can_use):
        raise UsageError(
            f"{script.name} does not support {framework}.",
            hint=f"Frameworks it supports: {', '.join(can_use)}.",
        )
    wanted = can_use if framework == "auto" else (framework,)
    usable = [c for c in choices if c.framework in wanted and c.strategy != _NOT_INSTALLED]
    if not usable and not script.frameworks and framework == "auto":
        return Choice(preferred, "default", "no framework is installed; the script decides", "")
    if not usable:
        raise _missing(script, wanted, choices, accelerator)
    order = (preferred, *can_use)
    best = min(usable, key=lambda c: (c.strategy == _CPU_ONLY, order.index(c.framework)))
    if strategy != "auto":
        _check_strategy(script, best.framework, strategy)
        why = f"requested with --strategy {strategy}"
        return replace(best, strategy=strategy, because=why, is_requested=True)
    if best.strategy == _CPU_ONLY:
        return replace(best, strategy="default", because=f"{best.because}; running on the CPU")
    return _supported_by(script, best)


def plan_launch(
    script: Template,
    choice: Choice,
    settings: Sequence[str] = (),
    arguments: Sequence[str] = (),
    *,
    devices: int = 1,
    cpu_devices: int | None = None,
    changes: Sequence[Change] = (),
    python: str = sys.executable,
) -> LaunchPlan:
    """Turn `--set K=V` settings and a choice of strategy into a command.

    `changes` are applied to the environment; `cpu_devices` splits the CPU into that many
    virtual devices. Raises UsageError for a setting that is not `K=V` or has no matching flag.
    """
    given = [word for setting in settings for word in _flag(setting, script)]
    named = {word.split("=")[0] for word in (*given, *arguments)}
    spread, because = _pass_strategy(script, choice, cpu_devices, named)
    runs_inside = spread[:1] == ["-m"]
    given = [*script.arguments, *given]
    command = [*spread, script.path, *given] if runs_inside else [script.path, *given, *spread]
    # A script made for tpuctl may read there which of its frameworks was chosen.
    has_backend = script.uses_keras or script.is_for_tpuctl
    changes = [each for each in changes if has_backend or each.variable != "KERAS_BACKEND"]
    return LaunchPlan(
        script=script.path,
        argv=(python, *command, *arguments),
        env={
            **({"KERAS_BACKEND": choice.framework} if has_backend else {}),
            **{change.variable: change.value for change in changes if change.value is not None},
        },
        unset=tuple(change.variable for change in changes if change.value is None),
        framework=choice.framework,
        strategy=choice.strategy,
        devices=cpu_devices or devices,
        workers=1,
        because=(
            f"{choice.framework}, {choice.strategy}: {choice.because}",
            *because,
            *(f"environment: {change}" for change in changes),
        ),
        out=next((f.default for f in script.flags if f.name == "--out" and f.default), "training"),
    )


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
    """Plan the training of a template or script on this machine, including its environment.

    `cpu_devices` splits the CPU into that many virtual devices, for practice. Raises what
    `find_script`, `pick_choice` and `plan_launch` raise.
    """
    script = find_script(target)
    codes = {problem.code for problem in here.problems}
    told = keras_backend(env, codes)
    # A script that names its own frameworks keeps to them.
    if (
        told == "torch"
        and script.is_plain_keras
        and set(script.frameworks) == {"tensorflow", "jax"}
    ):
        script = replace(script, frameworks=("torch", *script.frameworks))
    offered = here.strategies
    if cpu_devices and cpu_devices > 1:
        offered = tuple(on_virtual_devices(choice, cpu_devices) for choice in offered)
    choice = pick_choice(
        script,
        offered,
        preferred=told or here.recommended.framework,
        framework=framework,
        strategy=strategy,
        accelerator=here.accelerator,
    )
    changes = {c.variable: c for c in plan_environment(choice, codes, env, libtpu=find_libtpu())}
    if cpu_devices:
        changes |= {c.variable: c for c in _virtual_devices(choice, script, here, cpu_devices, env)}
    return plan_launch(
        script,
        choice,
        settings,
        arguments,
        devices=here.devices or here.gpus or 1,
        cpu_devices=cpu_devices,
        changes=tuple(changes.values()),
    )


def on_virtual_devices(choice: Choice, count: int) -> Choice:
    """Spread a choice over virtual devices of the CPU."""
    spread = _CPU_STRATEGIES.get(choice.framework)
    if spread is None or choice.strategy == "not-installed":
        return choice
    return replace(choice, strategy=spread, because=f"{count} virtual CPU devices")


def _virtual_devices(
    choice: Choice, script: Template, here: Diagnosis, count: int, env: Mapping[str, str]
) -> list[Change]:
    """Hide accelerators and, for JAX, set the number of CPU devices."""
    why = f"{count} virtual CPU devices"
    takes_flag = any(flag.name == "--cpu-devices" for flag in script.flags)
    named = {"tensorflow": "TensorFlow", "torch": "PyTorch"}.get(choice.framework)
    if named and not (takes_flag or script.is_plain_keras):
        raise UsageError(
            f"{script.name} has no --cpu-devices flag, so tpuctl cannot split the CPU for {named}.",
            hint="Omit --cpu-devices, or split the CPU in the script.",
        )
    hidden = [Change("CUDA_VISIBLE_DEVICES", "-1", why)] if here.gpus else []
    if choice.framework != "jax":
        return hidden
    flags = f"{env.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={count}".strip()
    return [*hidden, Change("XLA_FLAGS", flags, why), Change("JAX_PLATFORMS", "cpu", why)]


def _pass_strategy(
    script: Template, choice: Choice, cpu_devices: int | None, named: Collection[str]
) -> tuple[list[str], list[str]]:
    """Pass the strategy to a script: through its flags, or with a runner that opens it first."""
    flags = {flag.name for flag in script.flags}
    words, because = [], []
    if script.is_plain_keras and choice.framework in ("tensorflow", "jax"):
        words = ["-m", RUNNER, "--framework", choice.framework, "--strategy", choice.strategy]
        because = [f"{script.name} has no strategy code: it runs inside {choice.strategy}"]
        flags = {"--cpu-devices"}
    elif "--strategy" not in flags:
        because = [f"{script.name} has no --strategy flag and decides by itself"]
    elif not (script.is_for_tpuctl or choice.is_requested):
        because = [f"{script.name} has its own --strategy flag and decides by itself"]
    elif "--strategy" not in named:
        words = ["--strategy", choice.strategy]
    # JAX reads the number of CPU devices from the environment instead.
    if cpu_devices and "--cpu-devices" in flags and choice.framework != "jax":
        words += ["--cpu-devices", str(cpu_devices)]
    return words, because


def _missing(
    script: Template, wanted: Sequence[str], choices: Sequence[Choice], accelerator: str
) -> TpuctlError:
    """Return the error that says which package to install for this accelerator."""
    if "tensorflow" in wanted and accelerator == "none":
        return MissingExtraError(f"Training {script.name}", extra="tf", module="tensorflow")
    line = snippets.install_line(accelerator, wanted, with_xla=script.needs_xla)
    has_jax = any(c.framework == "jax" and c.strategy != _NOT_INSTALLED for c in choices)
    if has_jax and "tensorflow-tpu" in line:  # F20
        line = f"In a new environment, since it replaces the libtpu of the installed JAX: {line}"
    return NotFoundError(
        f"{script.name} needs {' or '.join(wanted)}, which is not installed.",
        hint=line,
    )


def _supported_by(script: Template, choice: Choice) -> Choice:
    """Fall back to the CPU if the script's own --strategy does not support the choice."""
    known = next((flag.choices for flag in script.flags if flag.name == "--strategy"), ())
    if not known or choice.strategy in known or not script.is_for_tpuctl:
        return choice
    if choice.strategy in ON_ALL_HOSTS:
        raise UsageError(
            f"{script.name} trains on one host, but this TPU needs {choice.strategy}: "
            f"{choice.because}.",
            hint="The template jax-images trains on all hosts together.",
        )
    why = f"{script.name} does not support {choice.strategy} ({choice.because}); running on the CPU"
    return replace(choice, strategy="cpu" if "cpu" in known else "default", because=why)


def _check_strategy(script: Template, framework: str, strategy: str) -> None:
    flag = next((flag for flag in script.flags if flag.name == "--strategy"), Flag("", ""))
    if script.sets_own_strategy:
        raise UsageError(
            f"{script.name} has no --strategy flag, so --strategy {strategy} has no effect.",
            hint="Omit it, or add the flag to the script.",
        )
    usable = [name for name in ("default", *snippets.known(framework)) if name != _CPU_ONLY]
    known = [name for name in flag.choices or dict.fromkeys(usable) if name in usable]
    if (flag.choices or script.is_plain_keras) and strategy not in known:
        raise UsageError(
            f"{script.name} does not support the strategy {strategy} on {framework}.",
            hint=f"Strategies: auto, {', '.join(known)}.",
        )


def _flag(setting: str, script: Template) -> list[str]:
    flags = {flag.name: flag for flag in script.flags}
    key, equals, value = setting.partition("=")
    name = key.strip().lstrip("-")
    forms = [f"--{each}" for each in (name, name.replace("_", "-"), name.replace("-", "_"))]
    flag = next((each for each in forms if each in flags), forms[1])
    is_switch = flag in flags and flags[flag].is_switch
    if not key.strip() or not (equals or is_switch):
        raise UsageError(f"--set {setting} is not K=V.", hint="For example: --set epochs=2")
    if flag not in flags:
        near = get_close_matches(flag, flags, 1)
        meant = f"Did you mean --set {near[0][2:]}={value}? " if near else ""
        raise UsageError(
            f"{script.name} has no flag {flag} (from --set {setting}).",
            hint=f"{meant}Its flags: {', '.join(sorted(flags))}."
            if flags
            else after_dashes(script),
        )
    if is_switch:
        return _switch(flags[flag], value if equals else "true")
    _check_value(flags[flag], value)
    return [flag, value]


def after_dashes(script: Template) -> str:
    """Say how to pass arguments that tpuctl does not know to a script."""
    return f"Arguments of the script itself go after --: tpuctl launch {script.path} -- ARGS"


def _switch(flag: Flag, value: str) -> list[str]:
    if value.lower() not in ("true", "false"):
        raise UsageError(f"{flag.name} takes true or false, not {value!r}.")
    if value.lower() == "true":
        return [flag.name]
    return [f"--no-{flag.name[2:]}"] if flag.type == "yes|no" else []


def _check_value(flag: Flag, value: str) -> None:
    if flag.choices and value not in flag.choices:
        raise UsageError(
            f"{value!r} is not a valid {flag.name}.",
            hint=f"Choose from: {', '.join(flag.choices)}.",
        )
    kind = {"int": int, "float": float}.get(flag.type)
    try:
        if kind:
            kind(value)
    except ValueError as error:
        what = "a whole number" if kind is int else "a number"
        raise UsageError(f"{flag.name} takes {what}, not {value!r}.") from error
