"""From "train this here" to one command: which script, which arguments, which environment."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from tpuctl.errors import UsageError
from tpuctl.launch.catalog import Template, describe_script, find_template
from tpuctl.outcome import Outcome

KERAS_BACKENDS = {"tensorflow": "tensorflow", "jax": "jax", "torch": "torch"}


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


@dataclass(frozen=True)
class Choice:
    """The framework and strategy to use on this machine, and the reasons."""

    framework: str
    strategy: str
    devices: int
    because: tuple[str, ...]


def find_script(target: str) -> Template:
    """A template by name, or the user's own script by path; raises NotFoundError."""
    is_path = target.endswith(".py") or "/" in target
    return describe_script(Path(target) if is_path else find_template(target))


def plan_launch(
    script: Template,
    choice: Choice,
    settings: Sequence[str] = (),
    arguments: Sequence[str] = (),
    *,
    python: str = sys.executable,
) -> LaunchPlan:
    """Turn `--set K=V` settings and a choice of strategy into a command.

    Raises UsageError for a setting that is not `K=V` or that the script has no flag for.
    """
    names = {flag.name for flag in script.flags}
    argv = [python, script.path]
    for setting in settings:
        argv += _flag(setting, names, script)
    because = list(choice.because)
    given = {word.split("=")[0] for word in (*argv, *arguments)}
    if "--strategy" in names and "--strategy" not in given:
        argv += ["--strategy", choice.strategy]
    elif "--strategy" not in names:
        because.append(f"{script.name} takes no --strategy; it decides for itself.")
    return LaunchPlan(
        script=script.path,
        argv=(*argv, *arguments),
        env={"KERAS_BACKEND": KERAS_BACKENDS[choice.framework]},
        framework=choice.framework,
        strategy=choice.strategy,
        devices=choice.devices,
        workers=1,
        because=tuple(because),
    )


def _flag(setting: str, names: set[str], script: Template) -> list[str]:
    key, equals, value = setting.partition("=")
    flag = f"--{key.strip().lstrip('-').replace('_', '-')}"
    if not equals or not key.strip():
        raise UsageError(f"--set {setting} is not of the form K=V.", hint="Like: --set epochs=2")
    if flag not in names:
        near = get_close_matches(flag, names, 1)
        meant = f"Did you mean --set {near[0][2:]}={value}? " if near else ""
        raise UsageError(
            f"{script.name} has no flag {flag} for --set {setting}.",
            hint=f"{meant}Its flags: {', '.join(sorted(names)) or 'none'}.",
        )
    return [flag, value]
