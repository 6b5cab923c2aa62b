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
from collections.abc import Mapping
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


def absolute_entries(path: str) -> str:
    """Leave out the entries of a search path that depend on the current folder."""
    # An empty PATH means the current folder too.
    return os.pathsep.join(filter(os.path.isabs, path.split(os.pathsep))) or os.defpath


def leave_out_current_folder() -> None:
    """Remove the current folder from where this process looks for modules and programs.

    `python -m tpuctl` and an empty entry of PYTHONPATH put it there. It stays if PYTHONPATH names
    it, and if it holds tpuctl or Python itself. Without a home folder, `~` would be a name there.
    """
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
    rest = [entry for entry in sys.path if entry not in (here, ROOT)]
    # tpuctl comes from here, but its neighbours must not hide modules of the standard library.
    sys.path[:] = [ROOT, *rest]
    import tpuctl  # noqa: F401

    sys.path[:] = [*rest, ROOT]
    if sys.version_info < (3, 11):
        # These versions do not know PYTHONSAFEPATH, and workers get their path from the parent.
        util: Any = importlib.import_module("multiprocessing.util")
        util._args_from_interpreter_flags = lambda: ["-I"]
    del sys.argv[0]
    importlib.import_module(sys.argv[0]).main()


if __name__ == "__main__":
    main()
