"""Run a planned training on this machine and collect its result."""

import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import IO, Any

from tpuctl.codec import read_json
from tpuctl.diagnosis.explain import Match
from tpuctl.errors import ScriptFailedError, TpuctlError
from tpuctl.outcome import Status
from tpuctl.start_python import (
    child_environment,
    how_it_ended,
    program_environment,
    python_command,
    shell_code,
    signals_passed_on,
    stop_process,
    wait_for,
)
from tpuctl.storage.local import open_own, translated_write_errors
from tpuctl.training.catalog import is_template
from tpuctl.training.devices import COUNTS_VARIABLE, Executed, idle_devices, read_counts
from tpuctl.training.plan import RUNNER, LaunchPlan

STOP_S = 15
# Below this, a faster input pipeline makes no noticeable difference.
NOTABLE_WAIT = 0.1
# TensorFlow 2.21 prints these at every start, whatever its log level (2026-11-20).
_START_UP = re.compile(r"[IWE]\d{4} |WARNING: All log messages before absl")


@dataclass(frozen=True)
class Watched:
    """Measured training steps, without compilation and evaluation.

    `slowest` is the bottleneck stage of the input pipeline. `mxu_idle_fraction` counts on any
    device; `has_mxu` is whether it has one. The wait is None if the input was not seen.
    """

    steps: int
    step_ms: float
    examples_per_s: float | None
    input_wait_fraction: float | None
    slowest: str | None
    mxu_idle_fraction: float | None = None
    has_mxu: bool = False


@dataclass(frozen=True)
class Training(LaunchPlan):
    """A finished training run: its plan, exit code and measurements.

    `result` is the script's own `result.json`; `watched` is None if no steps were seen;
    `explanation` is the known failure that its error is.
    """

    returncode: int
    result: Mapping[str, Any] | None
    executed: tuple[Executed, ...]
    seconds: float
    watched: Watched | None = None
    explanation: Match | None = None
    last_words: tuple[str, ...] = field(default=(), metadata={"internal": True})
    few: int = field(default=0, metadata={"internal": True})
    unseen: str = field(default="", metadata={"internal": True})
    stopped: bool = field(default=False, metadata={"internal": True})

    @property
    def status(self) -> Status:
        """Error if the script failed, attention if a device was idle or waited for input."""
        return "attention" if self.warnings else super().status

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings about idle devices and a slow input pipeline."""
        if self.returncode:
            return ()
        found = (idle_devices(self.executed, self.devices), self._input_wait())
        return tuple(sentence for sentence in found if sentence)

    @property
    def reported(self) -> Mapping[str, Any]:
        """The figures of a template; in another script's `result.json`, keys may mean anything."""
        return self.result if self.result and "template" in self.result else {}

    @property
    def input_wait_fraction(self) -> float | None:
        """Share of time the device waited for input; the template's own figure takes precedence."""
        reported = self.reported.get("input_wait_fraction")
        if isinstance(reported, float):
            return reported
        return self.watched.input_wait_fraction if self.watched else None

    @property
    def idle_shares(self) -> dict[str, float]:
        """The input wait and the idle time of the matrix unit, by name; empty if unknown."""
        wait, seen = self.input_wait_fraction, self.watched
        if wait is None:
            return {}
        devices = str(self.reported.get("devices", "")).lower()
        has_mxu = "tpu" in devices or bool(seen and seen.has_mxu)
        idle = max(wait, (seen and seen.mxu_idle_fraction) or 0.0)
        return {"input wait": wait, "MXU idle" if has_mxu else "MXU would be idle": idle}

    @property
    def exit_code(self) -> int:
        """The script's exit code, or 128 + N for signal N as in a shell."""
        return shell_code(self.returncode)

    @property
    def reasons(self) -> tuple[str, ...]:
        """Empty, because the plan's reasons were shown before the run."""
        return ()

    @property
    def failures(self) -> tuple[TpuctlError, ...]:
        """The script's failure, if it failed."""
        if not self.returncode:
            return ()
        how = how_it_ended(self.returncode)
        last = f": {self.last_words[-1].strip()}" if self.last_words else "."
        alone = (self.argv[0], *self.argv[self.argv.index(self.script) :])
        hint = f"Run it without tpuctl: {shlex.join(alone)}"
        if is_template(self.script):
            hint = "Its output above says why."
        elif self.stopped:
            hint = "It was asked to stop; run the same command again to continue."
        if known := self.explanation:
            command = f" Run: {known.fix_command}" if known.fix_command else ""
            hint = f"{known.code}: {known.title}. {known.fix}{command}"
        return (ScriptFailedError(f"{self.script} {how}{last}", hint=hint),)

    def _input_wait(self) -> str | None:
        fraction = self.input_wait_fraction
        if fraction is None or fraction < NOTABLE_WAIT:
            return None
        slowest = self.watched and self.watched.slowest
        where = f"; the slowest stage is {slowest}" if slowest else ""
        python, *words = self.argv
        argv = ("python" if python == sys.executable else python, *words)
        again = replace(self, argv=argv).in_shell("tpuctl", "profile", "run", "--")
        return (
            f"The device waited for input {fraction:.0%} of the time{where}. "
            f"To find the fix: {again}"
        )


def run_training(
    plan: LaunchPlan,
    *,
    log: int | None = None,
    errors: Path | None = None,
    stdin: int | None = None,
    extra_env: Mapping[str, str] | None = None,
    on_start: Callable[[], object] = lambda: None,
) -> Training:
    """Run the plan's command, wait for it, and read the `result.json` in its output folder.

    `extra_env` is added to the plan's environment. `log` is the file descriptor for the script's
    stdout, `errors` a file for its stderr, whose end is shown if it fails; both default to this
    process's. The script handles Ctrl-C and SIGTERM as it does alone; if it ends by them,
    KeyboardInterrupt or what the handler of this process raises follows.
    """
    start_s = time.monotonic()
    result_path = _output_folder(plan) / "result.json"
    before = _stamp(result_path)
    with _open_errors(errors) as stderr, tempfile.TemporaryDirectory(prefix="tpuctl-") as folder:
        counts = Path(folder) / "counts.json"
        # What a script of one's own prints is buffered as without tpuctl.
        ours = {**child_environment(), "PYTHONUNBUFFERED": "1"}
        env = ours if is_template(plan.script) else program_environment()
        env = {name: value for name, value in env.items() if name not in plan.unset}
        env |= {**plan.env, **(extra_env or {})}
        if RUNNER in plan.argv:
            env[COUNTS_VARIABLE] = str(counts)
        streams = {"stdin": stdin, "stdout": log, "stderr": stderr}
        # The script keeps descriptors that a shell has opened, as in `--data <(zcat file)`.
        start = partial(subprocess.Popen, _command(plan), env=env, close_fds=False, **streams)
        with signals_passed_on(start) as (child, received):
            try:
                on_start()
                returncode = wait_for(child)
            except BaseException:
                stop_process(child, (signal.SIGTERM, STOP_S), (signal.SIGKILL, STOP_S))
                raise
        fresh = _stamp(result_path) != before
        result = _read_result(result_path) if fresh and not returncode else None
        executed = read_counts(counts, result)
    return Training(
        **vars(plan),
        returncode=returncode,
        seconds=time.monotonic() - start_s,
        result=result,
        executed=executed,
        last_words=_last_lines(errors) if errors and returncode else (),
        stopped=bool(received),
    )


def _command(plan: LaunchPlan) -> list[str]:
    """Return the plan's command; modules of tpuctl are started like all its processes."""
    python, *words = plan.argv
    if words[:1] == ["-m"]:
        return python_command(*words[1:], python=python)
    return [python, *words]


@contextmanager
def _open_errors(path: Path | None) -> Iterator[IO[bytes] | None]:
    if path is None:
        yield None
        return
    with translated_write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        file = open_own(path, "wb")
    with file:
        yield file


def _last_lines(path: Path) -> tuple[str, ...]:
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    return tuple(line for line in lines if line.strip() and not _START_UP.match(line))[-15:]


def _output_folder(plan: LaunchPlan) -> Path:
    found = plan.out
    for word, after in pairwise([*plan.argv, ""]):  # the last one counts
        if word == "--out":
            found = after
        elif word.startswith("--out="):
            found = word.partition("=")[2]
    return Path(found)


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ino


def _read_result(path: Path) -> dict[str, Any] | None:
    """Read what a script wrote; None for a file of that name with something else in it."""
    try:
        result = read_json(path)
    except (OSError, ValueError, RecursionError):
        return None
    return result if isinstance(result, dict) else None
