"""From "train this here" to one command: which script, which arguments, which environment."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path

from tpuctl.errors import MissingExtraError, NotFoundError, UsageError
from tpuctl.launch import snippets
from tpuctl.launch.catalog import Flag, Template, describe_script, find_template
from tpuctl.launch.strategy import FRAMEWORKS, Choice
from tpuctl.outcome import Outcome

_ABSENT = "not-installed"
_ON_CPU_ONLY = "none-on-tpu"


@dataclass(frozen=True)
class LaunchPlan(Outcome):
    """One training run before it starts, and why it looks like this."""

    script: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
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
) -> Choice:
    """Pick the framework and strategy for a script among what the machine offers.

    A framework or strategy given by name is kept; a script that does not say what it runs on may
    run without any. Raises UsageError for a framework that does not
    exist or that the script cannot use, and MissingExtraError or NotFoundError where none of its
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
    if not usable and "tensorflow" in wanted:
        raise MissingExtraError(f"Training {script.name}", extra="tf", module="tensorflow")
    if not usable:
        raise NotFoundError(
            f"{script.name} was to run on {' or '.join(wanted)}, which is not installed here.",
            hint=f"pip install {wanted[0]}",
        )
    order = (preferred, *can_use)
    best = min(usable, key=lambda c: (c.strategy == _ON_CPU_ONLY, order.index(c.framework)))
    if strategy != "auto":
        _check_strategy(script, best.framework, strategy)
        return replace(best, strategy=strategy, because=f"--strategy {strategy} was asked for")
    if best.strategy == _ON_CPU_ONLY:
        return replace(best, strategy="default", because=f"{best.because}; it runs on the CPU")
    return best


def plan_launch(
    script: Template,
    choice: Choice,
    settings: Sequence[str] = (),
    arguments: Sequence[str] = (),
    *,
    devices: int = 1,
    python: str = sys.executable,
) -> LaunchPlan:
    """Turn `--set K=V` settings and a choice of strategy into a command.

    Raises UsageError for a setting that is not `K=V` or that the script has no flag for.
    """
    names = {flag.name for flag in script.flags}
    argv = [python, script.path]
    for setting in settings:
        argv += _flag(setting, script)
    because = [f"{choice.framework}, {choice.strategy}: {choice.because}"]
    given = {word.split("=")[0] for word in (*argv, *arguments)}
    if "--strategy" not in names:
        because.append(f"{script.name} takes no --strategy; it decides for itself")
    elif "--strategy" not in given:
        argv += ["--strategy", choice.strategy]
    return LaunchPlan(
        script=script.path,
        argv=(*argv, *arguments),
        env={"KERAS_BACKEND": choice.framework},
        framework=choice.framework,
        strategy=choice.strategy,
        devices=devices,
        workers=1,
        because=tuple(because),
    )


def _check_strategy(script: Template, framework: str, strategy: str) -> None:
    flag = next((flag for flag in script.flags if flag.name == "--strategy"), None)
    if flag is None:
        raise UsageError(
            f"{script.name} takes no --strategy, so --strategy {strategy} cannot reach it.",
            hint="Leave it out, or give the script such a flag.",
        )
    known = [name for name in flag.choices if name in ("default", *snippets.known(framework))]
    if flag.choices and strategy not in known:
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
