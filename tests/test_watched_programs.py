"""Programs that are watched run, end and exit exactly as they do alone."""

import os
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest

from tpuctl.profiling.program.run import hooked

# Trainings whose batches come from the user's Python code in the main thread.
LOADERS = {
    "torch": """
from torch.utils.data import DataLoader, Dataset

class Numbers(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return work(index)

def batches():
    return iter(DataLoader(Numbers(), batch_size=4))
""",
    "grain": """
import grain

def batches():
    data = grain.MapDataset.range(64).map(lambda index: work(index)).batch(4)
    options = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
    return iter(data.to_iter_dataset(options))
""",
    "plain": """
def batches():
    for at in range(0, 64, 4):
        yield [work(index) for index in range(at, at + 4)]
""",
}
START = """
import sys
import time

def work(index):
    end = time.perf_counter() + 0.001
    while time.perf_counter() < end:
        pass
    return index

{loader}

def train(epochs=3):
    seen = 0
    for _ in range(epochs):
        for batch in batches():
            seen += len(batch)
    sys.stdout.write(f"trained on {{seen}}\n")
    sys.stdout.flush()

"""
# What `tpuctl.profile()` asks of a program with a loader that no hook knows.
BLOCK = """
import tpuctl
block = tpuctl.profile()
plain = batches

def batches():
    return block.watch(plain())

with block:
"""
OWN_MODULES = "has modules named as the standard library's"
PROGRAMS = {
    "ends": "train()",
    "fails": "train(); raise SystemExit('bad data')",
    "raises": "train(); 1 / 0",
    "raises in a batch": """
        for number, batch in enumerate(batches()):
            if number == 5:
                raise KeyError("five")
    """,
    "exits at once": "train(); import os; os._exit(7)",
    "cleans up": """
        import atexit
        atexit.register(lambda: (train(1), print("cleaned up", flush=True)))
        train()
    """,
    "is terminated": "train(); import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
    "handles a signal": """
        import os, signal
        signal.signal(signal.SIGTERM, lambda *_: print("asked to stop", flush=True))
        train(); os.kill(os.getpid(), signal.SIGTERM); train(1)
    """,
    "sets an alarm": """
        import signal
        rings = []
        signal.signal(signal.SIGALRM, lambda *_: rings.append(1))
        signal.setitimer(signal.ITIMER_REAL, 0.5)
        train(1)
        if not rings:
            signal.pause()
        train(1); print(len(rings), signal.getitimer(signal.ITIMER_REAL))
    """,
    "dies of its alarm": """
        import signal, time
        train(); signal.setitimer(signal.ITIMER_REAL, 0.05); time.sleep(60)
    """,
    "times its batches": """
        import signal
        class Late(Exception): pass
        def late(*_): raise Late
        signal.signal(signal.SIGALRM, late)
        kept = 0
        for batch in batches():
            signal.setitimer(signal.ITIMER_REAL, 60); kept += len(batch)
            signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGPROF, late); signal.setitimer(signal.ITIMER_PROF, 0.05)
        try:
            while True: pass
        except Late:
            print("kept", kept)
    """,
    "executes another": """
        import os, sys
        train()
        os.execv(sys.executable, [sys.executable, "-c", "print('next')"])
    """,
    "executes another in a batch": """
        import os, sys
        def work(index):
            os.execv(sys.executable, [sys.executable, "-c", "print('next')"])
        train()
    """,
    "forks": """
        import os
        train(1)
        if not (child := os.fork()):
            train(2); os._exit(3)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])); train(1)
    """,
    "forks in a batch": """
        import os
        def work(index):
            if index == 20:
                if not (child := os.fork()):
                    end = time.perf_counter() + 0.1
                    while time.perf_counter() < end: pass
                    os._exit(5)
                print("child", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
            return index
        train()
    """,
    "forks strictly": """
        import os, sys, warnings
        warnings.simplefilter("error", DeprecationWarning)
        train(1)
        children = [os.fork() or os._exit(0) for _ in range(3)]
        print([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children])
    """,
    "starts processes": """
        import multiprocessing
        def square(number):
            return number * number
        if __name__ == "__main__":
            train(1)
            for method in ("fork", "spawn"):
                with multiprocessing.get_context(method).Pool(2) as pool:
                    print(method, pool.map(square, range(5)))
    """,
    "starts threads": """
        import threading
        train(1)
        others = [threading.Thread(target=train, args=(1,)) for _ in range(2)]
        [each.start() for each in others]; [each.join() for each in others]
        print(threading.active_count(), [each.name for each in threading.enumerate()])
    """,
    "leaves a thread": """
        import threading, time
        threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
        train()
    """,
    "runs commands": """
        import subprocess, sys
        train(1)
        print(subprocess.run(["sleep", "0.1"]).returncode)
        code = "import signal; print(signal.getsignal(signal.SIGALRM), signal.getsignal(40))"
        print(subprocess.check_output([sys.executable, "-c", code], text=True))
    """,
    "has sub-interpreters": """
        try:
            import _interpreters as interpreters
        except ImportError:
            import _xxsubinterpreters as interpreters
        train(1)
        other = interpreters.create()
        interpreters.run_string(other, "print('inside', flush=True)")
        interpreters.destroy(other); train(1)
    """,
    OWN_MODULES: """
        train(1)
        import statistics, graphlib
        print(statistics.OWN, graphlib.OWN)
    """,
    "looks around": """
        import signal, sys
        train(1)
        print(sys.path, sys.argv, __name__, sys.getswitchinterval())
        print(signal.getsignal(signal.SIGALRM), signal.getsignal(signal.SIGPROF))
        print(signal.getitimer(signal.ITIMER_REAL), signal.getitimer(signal.ITIMER_PROF))
    """,
    "reads its input": "import sys; train(1); print(sys.stdin.read().upper())",
}
# Those in which threads, hooks or modules of ours could show.
HOOKED = (
    "ends",
    "forks strictly",
    "starts processes",
    "starts threads",
    "has sub-interpreters",
    OWN_MODULES,
    "executes another",
    "looks around",
)
CLI = [str(Path(sys.executable).with_name("tpuctl"))]
MODES = {
    "launch": [*CLI, "launch", "--", "train.py"],
    "profile run": [*CLI, "profile", "run", "--", sys.executable, "train.py"],
}


@dataclass(frozen=True)
class Ended:
    """How a program ended, and what it wrote."""

    returncode: int
    stdout: str
    stderr: str


def run(command: list[str], folder: Path, **env: str) -> Ended:
    """Run a program with something on its stdin."""
    done = subprocess.run(
        command,
        cwd=folder,
        input="some input",
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, **env},
    )
    # A shell reports death by signal N as 128 + N, and so does tpuctl.
    code = done.returncode if done.returncode >= 0 else 128 - done.returncode
    return Ended(code, done.stdout, done.stderr)


def write(folder: Path, name: str, loader: str, *, block: bool = False) -> list[str]:
    """Write a program and say how to run it."""
    body = textwrap.dedent(PROGRAMS[name])
    start = START.format(loader=LOADERS[loader])
    if loader == "plain":
        # As many lines either way, since tracebacks show their numbers.
        start += BLOCK if block else "\n" * (BLOCK.count("\n") - 1) + "if True:\n"
        body = textwrap.indent(body.strip(), "    ")
    (folder / "train.py").write_text(start + body)
    if name == OWN_MODULES:
        for module in ("statistics", "graphlib"):
            (folder / f"{module}.py").write_text("OWN = 'the program has its own'\n")
    return [sys.executable, "train.py"]


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in PROGRAMS if name != OWN_MODULES])
def test_a_block_around_a_program_changes_nothing(tmp_path: Path, name: str) -> None:
    bare = run(write(tmp_path, name, "plain"), tmp_path)
    watched = run(write(tmp_path, name, "plain", block=True), tmp_path)
    assert watched == bare


@pytest.mark.slow
@pytest.mark.parametrize("name", HOOKED)
def test_hooks_change_nothing(tmp_path: Path, name: str) -> None:
    command = write(tmp_path, name, "grain")
    folder = tmp_path / "hooks"
    folder.mkdir()
    assert run(command, tmp_path, **hooked(str(folder), {})) == run(command, tmp_path)


@pytest.mark.slow
def test_a_hook_that_shows_would_be_noticed(tmp_path: Path) -> None:
    command = write(tmp_path, "ends", "plain")
    (tmp_path / "sitecustomize.py").write_text("print('hooked')")
    assert run(command, tmp_path, PYTHONPATH=str(tmp_path)) != run(command, tmp_path)


@pytest.mark.slow
@pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed (make test-torch)")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_torch_program_is_left_alone(tmp_path: Path, name: str, mode: str) -> None:
    bare = run(write(tmp_path, name, "torch"), tmp_path)
    watched = run(MODES[mode], tmp_path)
    output = watched.stdout if mode == "launch" else watched.stderr
    assert output.startswith(bare.stdout)
    if mode == "launch" or bare.returncode:
        assert watched.returncode == bare.returncode
    if mode == "launch":
        assert watched.stdout == bare.stdout
