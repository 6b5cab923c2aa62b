"""From "train this here" to one command: which script, which arguments, which environment."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path

from tpuctl.errors import NotFoundError, UsageError
from tpuctl.launch.catalog import Template, describe_script, find_template
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
    exist or that the script cannot use, and NotFoundError where none of its frameworks is
    installed.
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
        raise NotFoundError(
            f"{script.name} needs {' or '.join(wanted)}, and none of them is installed here.",
            hint=f"pip install {wanted[0]}",
        )
    order = (preferred, *can_use)
    best = min(usable, key=lambda c: (c.strategy == _ON_CPU_ONLY, order.index(c.framework)))
    if strategy != "auto":
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
        argv += _flag(setting, names, script)
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
