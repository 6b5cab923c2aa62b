"""Run a program and profile its training."""

import contextlib
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from tpuctl.codec import from_plain, read_json
from tpuctl.errors import EXIT_INTERRUPTED, NotFoundError, TargetError, UsageError
from tpuctl.profiling.case import IN_TRAINING
from tpuctl.profiling.conclude import build_profile
from tpuctl.profiling.models import Device, Measurement, Profile
from tpuctl.profiling.program.copy_cost import with_copying
from tpuctl.profiling.program.watch import WARM_STEPS, Steps
from tpuctl.start_python import (
    how_it_ended,
    program_environment,
    shell_code,
    signals_passed_on,
    stop_process,
)
from tpuctl.usercode.scratch import scratch_folder

# The first is like Ctrl-C.
_STOP = ((signal.SIGINT, 5.0), (signal.SIGTERM, 2.0), (signal.SIGKILL, 10.0))
LOOK_EVERY_S = 0.25
SHOW_EVERY_S = 1.0
TELL_AFTER_S = 60.0
HOOK = Path(__file__).with_name("hook")
FOLDER = "TPUCTL_PROFILE_FOLDER"
FEW_BATCHES = (
    f"Train for more than a second and on more than {WARM_STEPS + 2} batches; "
    "the first ones are left out."
)
NO_STEPS = (
    "tf.data, Keras fit, PyTorch and Grain loaders are found after a few steps; for another loop: "
    "with tpuctl.profile() as p: for batch in p.watch(batches): ..."
)
ITS_WORDS = "Its output above says why. To compare, run it without tpuctl."
UNSEEN = f"The program continues until it ends or you press Ctrl-C. {NO_STEPS}"


def is_program(words: Sequence[str]) -> bool:
    """Whether the words of a command line are a program rather than a target."""
    if len(words) > 1:
        return True
    path = Path(words[0])
    return path.is_file() and (path.suffix == ".py" or os.access(path, os.X_OK))


def refuse_for_programs(flags: Mapping[str, object]) -> None:
    """Raise UsageError for flags that do not apply to a program that trains."""
    given = [flag for flag, value in flags.items() if value is not None and value is not False]
    if given:
        raise UsageError(
            f"{given[0]} cannot be used with a program: its own steps are measured.",
            hint=f"Leave {given[0]} out, or profile the pipeline alone: path.py:function",
        )


def profile_program(
    command: Sequence[str],
    *,
    steps: int | None = None,
    seconds: float | None = None,
    limit_s: float | None = None,
    log: int | None = None,
    on_look: Callable[[Profile], None] | None = None,
) -> Profile:
    """Run a program, and find out what its training waits for.

    With `steps` or `seconds`, it is stopped after that much training, and after `limit_s` in any
    case; otherwise it runs to its end. `log` is the file descriptor for its stdout, by default this
    process's. Raises NotFoundError if the program does not exist, and TargetError if no training
    step was found. If the program fails, the error or the profile has its exit code.
    """
    name = " ".join(command)
    with (
        scratch_folder("tpuctl-profile-") as scratch,
        _started(command, str(scratch.path), log) as process,
    ):
        measured, last_s, end_s = None, 0.0, time.monotonic() + (limit_s or math.inf)
        tell_s = time.monotonic() + TELL_AFTER_S
        while process.poll() is None and not _is_enough(measured, steps, seconds):
            if (left_s := end_s - time.monotonic()) <= 0:
                break
            time.sleep(min(LOOK_EVERY_S, left_s))
            seen = read_result(scratch.path)
            if seen and measured is None and seconds:
                # From now on, a hanging program would report no more steps.
                end_s = min(end_s, time.monotonic() + seconds)
            measured = seen or measured
            if measured is None and time.monotonic() > tell_s:
                tell_s = math.inf
                sys.stderr.write(f"tpuctl: no training step in {TELL_AFTER_S:g} s. {UNSEEN}\n")
            if on_look and measured and time.monotonic() - last_s >= SHOW_EVERY_S:
                last_s = time.monotonic()
                on_look(conclude(measured, target=name))
        stopped = process.poll() is None
        if stopped:
            sys.stderr.write("tpuctl: interrupting the program, as Ctrl-C would.\n")
        stop_process(process, *_STOP)
        measured = read_result(scratch.path) or measured
        code = 0 if stopped else process.returncode
        if measured is None:
            how = f"ran for {limit_s:g} s" if stopped else how_it_ended(code)
            hint = f"Give it longer: --seconds. {NO_STEPS}" if stopped else NO_STEPS
            failed = code and shell_code(code) != EXIT_INTERRUPTED
            error = _no_steps(f"{name} {how}", scratch.path, hint=ITS_WORDS if failed else hint)
            error.exit_code = shell_code(code) or error.exit_code
            raise error
        profile = conclude(with_copying(measured), target=name)
        if code:
            unmet = (*profile.unmet, f"{name} {how_it_ended(code)}.")
            profile = replace(profile, unmet=unmet, program_code=shell_code(code))
        return profile


def _no_steps(ended: str, folder: Path, *, hint: str) -> TargetError:
    if few := read_few(folder):
        return TargetError(f"{ended} after {few} batches: too few to measure.", hint=FEW_BATCHES)
    if steps := read_other_steps(folder):
        hint = hint if hint == ITS_WORDS else NO_STEPS
        took = f"{steps.count:,} calls of {steps.function}, one every {steps.step_ms:.3g} ms"
        return TargetError(f"{ended} after {took}; their input was not seen.", hint=hint)
    if hint != ITS_WORDS and (why := read_unseen(folder)):
        hint = why
    if hint != ITS_WORDS and (old := folder / "python.old").exists():
        hint = f"Python {old.read_text()} is not measured, 3.10 and newer are."
    return TargetError(f"{ended} and no training step was seen.", hint=hint)


def _is_enough(measured: Measurement | None, steps: int | None, seconds: float | None) -> bool:
    """Whether a program has been profiled for long enough; without limits it never has."""
    if measured is None:
        return False
    phase = measured.phases[-1]
    enough_steps = steps is not None and phase.steps >= steps
    return enough_steps or (seconds is not None and phase.wall_s >= seconds)


def conclude(measured: Measurement, *, target: str) -> Profile:
    """Build the profile of a training; step time without the wait counts as device time."""
    phase = measured.phases[-1]
    device = Device(max(1e-3, phase.device_busy_s / max(1, phase.steps) * 1e3), IN_TRAINING)
    return build_profile(measured, target=target, image_size=0, device=device)


def hook_environment(folder: str, env: Mapping[str, str]) -> dict[str, str]:
    """The environment variables that make a Python program record its steps in a folder."""
    # Only the hook's folder: the program must not see tpuctl's own libraries.
    paths = [str(HOOK), *env.get("PYTHONPATH", "").split(os.pathsep)]
    return {"PYTHONPATH": os.pathsep.join(filter(None, paths)), FOLDER: folder}


def read_result(folder: Path) -> Measurement | None:
    """The result of the process with the longest window; a program may have several."""
    found = [each for place in folder.glob("*.run.json") if (each := _read_one(place))]
    return max(found, key=lambda each: each.phases[-1].wall_s, default=None)


def _read_one(place: Path) -> Measurement | None:
    """The last result of a profiled process; None if it cannot be read."""
    try:
        document: Any = read_json(place)
        return from_plain(Measurement, document["measurement"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def read_few(folder: Path) -> int:
    """The batches of a program that used too few to measure; 0 if none were found."""
    texts = [place.read_text() for place in folder.glob("*.few")]
    # On a full disk it is empty.
    return max((int(text) for text in texts if text), default=0)


def read_other_steps(folder: Path) -> Steps | None:
    """The steps of a program whose input was not seen, of the process that took most."""
    found = []
    for place in folder.glob("*.steps"):
        with contextlib.suppress(ValueError):
            found.append(from_plain(Steps, read_json(place)))
    return max(found, key=lambda steps: steps.count, default=None)


def read_unseen(folder: Path) -> str:
    """Why the steps of a program could not be recorded; empty if unknown."""
    return next((place.read_text() for place in folder.glob("*.unseen")), "")


def read_error(folder: Path) -> str:
    """The traceback that ended the program or the last of its processes, if one did."""
    found = sorted(folder.glob("*.error"), key=lambda place: place.stat().st_mtime)
    return found[-1].read_text(encoding="utf-8", errors="replace") if found else ""


@contextlib.contextmanager
def _started(
    command: Sequence[str], folder: str, log: int | None
) -> "Iterator[subprocess.Popen[bytes]]":
    start = partial(_start, command, folder, log)
    # After Ctrl-C, the program ends in its own time, and then there is its profile.
    with signals_passed_on(start, is_raised=False) as (process, _):
        try:
            yield process
        finally:
            stop_process(process, *_STOP)


def _start(command: Sequence[str], folder: str, log: int | None) -> "subprocess.Popen[bytes]":
    words = [sys.executable, *command] if command[0].endswith(".py") else list(command)
    env = program_environment()
    env |= hook_environment(folder, env)
    try:
        # The program keeps descriptors that a shell has opened, as in `--data <(zcat file)`.
        return subprocess.Popen(words, stdout=log, env=env, close_fds=False)  # noqa: S603 (the user's)
    except OSError as error:
        raise NotFoundError(
            f"{words[0]} could not be started: {error.strerror}.",
            hint="Write the command as in a shell: tpuctl profile run -- python train.py",
        ) from error
