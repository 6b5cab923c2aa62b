"""Start Python and other programs so that nothing in the current folder is executed unasked.

Python puts the current folder first on its path for `-m` and `-c`. Option -P, which prevents that,
needs 3.11, and -I hides the user's own packages too. So this file is run as a script:
`python start_python.py MODULE ARGUMENTS`.
"""

import contextlib
import importlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import subprocess

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
"""The folder that holds the package tpuctl."""


def python_command(module: str, *arguments: str, python: str = sys.executable) -> list[str]:
    """Return the command that calls `main()` of a module of tpuctl in a new process."""
    return [python, os.path.abspath(__file__), module, *arguments]


def child_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment for a child process that runs code of ours.

    An empty entry of PYTHONPATH, and any relative one of PATH and LD_LIBRARY_PATH, is left out: it
    stands for the current folder. PYTHONSAFEPATH is for what the child starts with `-c` or `-m`.
    """
    env = {**os.environ, **(extra or {}), "PYTHONSAFEPATH": "1"}
    for name in {"PATH", "LD_LIBRARY_PATH"} & env.keys():
        env[name] = absolute_entries(env[name])
    named = [entry for entry in env.pop("PYTHONPATH", "").split(os.pathsep) if entry]
    return {**env, "PYTHONPATH": os.pathsep.join(named)} if named else env


def signal_name(number: int) -> str:
    """Return a name such as SIGKILL; only the number of one without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def how_it_ended(returncode: int) -> str:
    """Say how a process ended that did not succeed."""
    if returncode >= 0:
        return f"exited with code {returncode}"
    often = " (often: out of memory)" if -returncode == signal.SIGKILL else ""
    return f"was killed by {signal_name(-returncode)}{often}"


def shell_code(returncode: int) -> int:
    """Return the exit code, or 128 + N for signal N as in a shell."""
    return returncode if returncode >= 0 else 128 - returncode


def stop_process(
    process: "subprocess.Popen[Any]", *steps: tuple[int, float], group: bool = False
) -> None:
    """Send signals in turn, each with the seconds to wait for it, until a process has ended.

    With `group`, they go to all processes of its session, whether or not the first has ended.
    """
    import subprocess

    for number, wait_s in steps:
        if process.poll() is not None and not group:
            return
        with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
            if group:
                os.killpg(process.pid, number)
            else:
                process.send_signal(number)
            process.wait(wait_s)


@contextlib.contextmanager
def signals_passed_on(
    start: Callable[[], Any], *, is_raised: bool = True
) -> Iterator[tuple[Any, list[int]]]:
    """Start a program, and pass on to it the signals that reach only this process.

    The block gets the program, and a list of the signals that have come. The program ends as it
    would without this process, which does not end before it. If one of these signals ended it, that
    signal then has its usual effect here, too, unless not `is_raised`.
    """
    received: list[int] = []
    early: list[int] = []
    programs: list[Any] = []
    kept = _signal_handlers()

    def pass_on(number: int, frame: object) -> None:
        if programs and programs[0].returncode is not None and callable(kept[number]):
            kept[number](number, frame)
        received.append(number)
        if not programs:
            early.append(number)
        elif not _reached_program(number):
            programs[0].send_signal(number)

    for number in kept:
        signal.signal(number, pass_on)
    try:
        programs.append(start())
        for number in early:
            programs[0].send_signal(number)
        yield programs[0], received
    finally:
        for number, handler in kept.items():
            if signal.getsignal(number) is pass_on:
                signal.signal(number, handler)
    ended_by = shell_code(programs[0].wait()) - 128
    if is_raised and ended_by in received and ended_by in _ENDING:
        signal.raise_signal(ended_by)


def wait_for(program: "subprocess.Popen[bytes]") -> int:
    """Wait for a program that signals are passed on to; returns its exit code.

    Without a time limit, wait() sleeps on through a signal that comes just before it begins, or
    that another thread gets, until the program ends.
    """
    return program.wait(threading.TIMEOUT_MAX)


_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_FOR_PROGRAMS = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGQUIT)


def _signal_handlers() -> dict[int, Any]:
    """The handlers of the signals to pass on, other than those that this process ignores."""
    if threading.current_thread() is not threading.main_thread():
        return {}
    found: dict[int, Any] = {n: signal.getsignal(n) for n in (*_ENDING, *_FOR_PROGRAMS)}
    return {n: h for n, h in found.items() if callable(h) or (h == 0 and n in _FOR_PROGRAMS)}


def _reached_program(number: int) -> bool:
    """Whether a signal went to the whole process group: Ctrl-C, Ctrl-\\, a notebook's interrupt."""
    if number not in (signal.SIGINT, signal.SIGQUIT):
        return False
    with contextlib.suppress(OSError), open("/dev/tty") as terminal:
        return os.tcgetpgrp(terminal.fileno()) == os.getpgrp()
    return "ipykernel" in sys.modules


_given: dict[str, str] = {}


def program_environment() -> dict[str, str]:
    """Return the environment for a program of the user's: what this process was started with."""
    return dict(_given or os.environ)


def absolute_entries(path: str) -> str:
    """Leave out the entries of a search path that depend on the current folder."""
    # An empty PATH means the current folder too.
    return os.pathsep.join(filter(os.path.isabs, path.split(os.pathsep))) or os.defpath


def leave_out_current_folder() -> None:
    """Remove the current folder from where this process looks for modules and programs.

    `python -m tpuctl` and an empty entry of PYTHONPATH put it there. It stays if PYTHONPATH names
    it, and if it holds tpuctl or Python itself. Without a home folder, `~` would be a name there.
    """
    _given.update(os.environ)
    if os.path.expanduser("~") == "~":
        os.environ["HOME"] = "/nonexistent"
    os.environ["PATH"] = absolute_entries(os.environ.get("PATH", os.defpath))
    with contextlib.suppress(FileNotFoundError):
        named = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
        trusted = {ROOT, os.path.dirname(os.__file__), *map(os.path.abspath, named)}
        unasked = {"", os.getcwd()} - trusted
        sys.path[:] = [entry for entry in sys.path if entry not in unasked]


def main() -> None:
    """Call `main()` of the module that the first argument names."""
    here = os.path.dirname(os.path.abspath(__file__))
    rest = [entry for entry in sys.path if entry != here]
    # tpuctl comes from here, but its neighbours must not hide modules of the standard library.
    sys.path[:] = [ROOT, *rest]
    import tpuctl  # noqa: F401

    sys.path[:] = rest if ROOT in rest else [*rest, ROOT]
    if sys.version_info < (3, 11):
        # These versions do not know PYTHONSAFEPATH, and workers get their path from the parent.
        util: Any = importlib.import_module("multiprocessing.util")
        util._args_from_interpreter_flags = lambda: ["-I"]
    del sys.argv[0]
    importlib.import_module(sys.argv[0]).main()


if __name__ == "__main__":
    main()
