"""From "train this here" to one command: which script, which arguments, which environment."""

import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path

from tpuctl.errors import MissingExtraError, NotFoundError, TpuctlError, UsageError
from tpuctl.outcome import Outcome
from tpuctl.training import snippets
from tpuctl.training.catalog import Flag, Template, describe_script, find_template
from tpuctl.training.environment import Change
from tpuctl.training.strategy import FRAMEWORKS, Choice

RUNNER = "tpuctl.training.runner"
_ABSENT = "not-installed"
_ON_CPU_ONLY = "none-on-tpu"
ON_ALL_HOSTS = frozenset({"distributed+mesh", "multiworker-mirrored", "xla-launch-all-hosts"})


@dataclass(frozen=True)
class LaunchPlan(Outcome):
    """One training run before it starts, and why it looks like this.

    `env` is set and `unset` removed before the script starts, as frameworks read both on import.
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

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why this framework and strategy."""
        return self.because


def find_script(target: str) -> Template:
    """A template by name, or the user's own script by path; raises NotFoundError."""
    is_path = target.endswith(".py") or "/" in target
    return describe_script(Path(target) if is_path else find_template(target))


def pick_choice(
    script: Template,
    choices: Sequence[Choice],
    *,
    preferred: str,
    framework: str = "auto",
    strategy: str = "auto",
    accelerator: str = "none",
) -> Choice:
    """Pick the framework and strategy for a script among what the machine offers.

    A framework or strategy given by name is kept; a script that does not say what it runs on may
    run without any. `accelerator` is what an installation that is advised must see. Raises
    UsageError for a framework that does not exist or that the script cannot use, and for a script
    of one host where there are several; MissingExtraError or NotFoundError where none of its
    frameworks is installed.
    """
    can_use = script.frameworks or FRAMEWORKS
    if framework not in ("auto", *can_use):
        raise UsageError(
            f"{script.name} does not run on {framework}.",
            hint=f"It runs on: {', '.join(can_use)}.",
        )
    wanted = can_use if framework == "auto" else (framework,)
    usable = [c for c in choices if c.framework in wanted and c.strategy != _ABSENT]
    if not usable and not script.frameworks and framework == "auto":
        return Choice(preferred, "default", "no framework is installed; the script decides", "")
    if not usable:
        raise _missing(script, wanted, choices, accelerator)
    order = (preferred, *can_use)
    best = min(usable, key=lambda c: (c.strategy == _ON_CPU_ONLY, order.index(c.framework)))
    if strategy != "auto":
        _check_strategy(script, best.framework, strategy)
        return replace(best, strategy=strategy, because=f"--strategy {strategy} was asked for")
    if best.strategy == _ON_CPU_ONLY:
        return replace(best, strategy="default", because=f"{best.because}; it runs on the CPU")
    return _known_to(script, best)


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

    `changes` are made in the environment first; `cpu_devices` splits the CPU into so many
    pretended devices. Raises UsageError for a setting that is not `K=V` or that the script has no
    flag for.
    """
    given = [word for setting in settings for word in _flag(setting, script)]
    named = {word.split("=")[0] for word in (*given, *arguments)}
    spread, because = _spread(script, choice, cpu_devices, named)
    runs_inside = spread[:1] == ["-m"]
    command = [*spread, script.path, *given] if runs_inside else [script.path, *given, *spread]
    return LaunchPlan(
        script=script.path,
        argv=(python, *command, *arguments),
        env={
            "KERAS_BACKEND": choice.framework,
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
    )


def _spread(
    script: Template, choice: Choice, cpu_devices: int | None, named: Collection[str]
) -> tuple[list[str], list[str]]:
    """How the strategy reaches a script: by its own flags, or by a runner that opens it around."""
    flags = {flag.name for flag in script.flags}
    words, because = [], []
    if script.is_plain_keras and choice.framework in ("tensorflow", "jax"):
        words = ["-m", RUNNER, "--framework", choice.framework, "--strategy", choice.strategy]
        because = [f"{script.name} has no strategy of its own: it runs inside of {choice.strategy}"]
        flags = {"--cpu-devices"}
    elif "--strategy" not in flags:
        because = [f"{script.name} takes no --strategy; it decides for itself"]
    elif "--strategy" not in named:
        words = ["--strategy", choice.strategy]
    # JAX is told by its environment, before it starts.
    if cpu_devices and "--cpu-devices" in flags and choice.framework != "jax":
        words += ["--cpu-devices", str(cpu_devices)]
    return words, because


def _missing(
    script: Template, wanted: Sequence[str], choices: Sequence[Choice], accelerator: str
) -> TpuctlError:
    """No framework of the script is here: what to install, so that it sees the accelerator."""
    if "tensorflow" in wanted and accelerator == "none":
        return MissingExtraError(f"Training {script.name}", extra="tf", module="tensorflow")
    line = snippets.install_line(accelerator, wanted)
    has_jax = any(c.framework == "jax" and c.strategy != _ABSENT for c in choices)
    if has_jax and "tensorflow-tpu" in line:  # F20
        line = f"In an environment of its own, as it replaces the libtpu of the JAX here: {line}"
    return NotFoundError(
        f"{script.name} was to run on {' or '.join(wanted)}, which is not installed here.",
        hint=line,
    )


def _known_to(script: Template, choice: Choice) -> Choice:
    """The choice, or the CPU where the script's own --strategy has no word for it."""
    known = next((flag.choices for flag in script.flags if flag.name == "--strategy"), ())
    if not known or choice.strategy in known:
        return choice
    if choice.strategy in ON_ALL_HOSTS:
        raise UsageError(
            f"{script.name} trains on one host, and here it takes {choice.strategy}: "
            f"{choice.because}.",
            hint="On JAX the template jax-images trains on all hosts together.",
        )
    why = f"{script.name} cannot use {choice.strategy} ({choice.because}); it runs on the CPU"
    return replace(choice, strategy="cpu" if "cpu" in known else "default", because=why)


def _check_strategy(script: Template, framework: str, strategy: str) -> None:
    flag = next((flag for flag in script.flags if flag.name == "--strategy"), Flag("", ""))
    if script.decides_alone:
        raise UsageError(
            f"{script.name} takes no --strategy, so --strategy {strategy} cannot reach it.",
            hint="Leave it out, or give the script such a flag.",
        )
    usable = [name for name in ("default", *snippets.known(framework)) if name != _ON_CPU_ONLY]
    known = [name for name in flag.choices or dict.fromkeys(usable) if name in usable]
    if (flag.choices or script.is_plain_keras) and strategy not in known:
        raise UsageError(
            f"{script.name} knows no strategy {strategy} on {framework}.",
            hint=f"Strategies: auto, {', '.join(known)}.",
        )


def _flag(setting: str, script: Template) -> list[str]:
    flags = {flag.name: flag for flag in script.flags}
    key, equals, value = setting.partition("=")
    flag = f"--{key.strip().lstrip('-').replace('_', '-')}"
    if not equals or not key.strip():
        raise UsageError(f"--set {setting} is not of the form K=V.", hint="Like: --set epochs=2")
    if flag not in flags:
        near = get_close_matches(flag, flags, 1)
        meant = f"Did you mean --set {near[0][2:]}={value}? " if near else ""
        raise UsageError(
            f"{script.name} has no flag {flag} for --set {setting}.",
            hint=f"{meant}Its flags: {', '.join(sorted(flags)) or 'none'}.",
        )
    _check_value(flags[flag], value)
    return [flag, value]


def _check_value(flag: Flag, value: str) -> None:
    if flag.choices and value not in flag.choices:
        raise UsageError(
            f"{flag.name} cannot be {value!r}.", hint=f"It is one of: {', '.join(flag.choices)}."
        )
    kind = {"int": int, "float": float}.get(flag.type)
    try:
        if kind:
            kind(value)
    except ValueError as error:
        what = "a whole number" if kind is int else "a number"
        raise UsageError(f"{flag.name} takes {what}, not {value!r}.") from error
