"""Programs that are watched run, end and exit exactly as they do alone."""

import ast
import contextlib
import json
import os
import pty
import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import cycle, product
from pathlib import Path

import pytest

import tpuctl
from tests.waiting import wait_until
from tpuctl.codec import to_plain
from tpuctl.profiling.program.run import ITS_WORDS, NO_STEPS, _no_steps
from tpuctl.profiling.program.watch import Steps
from tpuctl.remote.agent.chips import DEVICES

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
import sys
sys.modules["jax"] = None  # Grain works without it, and imports three times as fast.
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
    "jax": """
import os
os.environ["JAX_PLATFORMS"] = "cpu"
import jax
import numpy as np

@jax.jit
def step(weights, batch):
    return weights + batch.sum(), batch

def batches():
    weights = np.zeros(3)
    for at in range(0, 64, 4):
        weights, batch = step(weights, np.array([work(index) for index in range(at, at + 4)]))
        yield batch
""",
    "keras": """
import os
os.environ["KERAS_BACKEND"] = "jax"
import keras
import numpy as np

class Numbers(keras.utils.PyDataset):
    def __len__(self):
        return 16

    def __getitem__(self, at):
        counted.append([work(index) for index in range(4 * at, 4 * at + 4)])
        return np.ones((4, 2), "float32"), np.ones((4, 1), "float32")

counted, callbacks = [], []
model = keras.Sequential([keras.layers.Dense(1)])
model.compile("sgd", "mse")

def batches():
    counted.clear()
    model.fit(Numbers(), verbose=0, callbacks=callbacks)
    return counted[-16:]
""",
}
START = """
import sys
import time

def work(index):
    end = time.perf_counter() + 0.0005
    while time.perf_counter() < end:
        pass
    return index

{loader}

def train(epochs=3):
    seen = 0
    for _ in range(epochs):
        for batch in batches():
            seen += len(batch)
    sys.stdout.write(f"trained on {{seen}}\\n")
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
CALLBACK = """
import tpuctl
callbacks.append(tpuctl.ProfileCallback())
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
            for method in ("fork", "spawn", "forkserver"):
                with multiprocessing.get_context(method).Pool(1) as pool:
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
    "reads its input": "import sys; train(1); print(input(), repr(sys.stdin.read().upper()))",
    "exits in every way": """
        import os, sys
        train(1)
        for value in (0, 3, 256, -1, True, None, "bad", (1, 2), OSError("full")):
            if not (child := os.fork()):
                train(1); sys.exit(value)
            print(value, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
        sys.exit(41)
    """,
    "is interrupted": "import os, signal; train(); os.kill(os.getpid(), signal.SIGINT); train()",
    "is interrupted in a batch": """
        def work(index):
            if index == 20:
                raise KeyboardInterrupt
            return index
        train()
    """,
    "leaves output unwritten": "import os; train(); print('lost in a pipe'); os._exit(0)",
    "parses arguments": """
        import argparse
        train(1)
        parser = argparse.ArgumentParser(description="Train.")
        parser.add_argument("--steps", type=int, required=True)
        parser.parse_args()
    """,
    "crashes": """
        import faulthandler
        faulthandler.enable(all_threads=False)
        train(); faulthandler._sigsegv()
    """,
    "reads a wake-up descriptor": """
        import signal, socket
        here, there = socket.socketpair()
        here.setblocking(False); there.setblocking(False)
        signal.signal(signal.SIGUSR1, lambda *_: None)
        signal.set_wakeup_fd(there.fileno())
        train(); signal.raise_signal(signal.SIGUSR1); train()
        print(list(here.recv(1000)), signal.set_wakeup_fd(-1) == there.fileno())
    """,
    "reads a wake-up descriptor in a batch": """
        import signal, socket
        here, there = socket.socketpair()
        here.setblocking(False); there.setblocking(False)
        here.settimeout(0.05)
        usual = work
        def work(index):
            if index == 20:
                signal.set_wakeup_fd(there.fileno())
            return usual(index)
        train()
        try:
            print(here.recv(1000))
        except TimeoutError:
            print("no signal")
    """,
    "blocks signals": """
        import os, signal
        train(1); signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        train(); os.kill(os.getpid(), signal.SIGUSR1); train(1)
        print(signal.sigpending(), signal.sigwait({signal.SIGUSR1}), signal.sigpending())
    """,
    "blocks signals in a batch": """
        import signal
        usual = work
        def work(index):
            if index == 20:
                signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals())
                [usual(index) for _ in range(50)]
                print(signal.sigpending(), signal.sigtimedwait(signal.valid_signals(), 0.05))
            return usual(index)
        train()
    """,
    "waits for a signal in a batch": """
        import signal
        signal.signal(signal.SIGALRM, lambda *_: print("rung", flush=True))
        usual = work
        def work(index):
            if index == 20:
                signal.setitimer(signal.ITIMER_REAL, 0.2); signal.pause(); print("woke")
            return usual(index)
        train()
    """,
    "takes signals in a thread": """
        import os, signal, threading
        train(1); signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        waits = threading.Thread(target=lambda: print(signal.sigwait({signal.SIGTERM})))
        waits.start(); os.kill(os.getpid(), signal.SIGTERM); waits.join(); train(1)
    """,
    "resets every handler": """
        import signal
        def reset():
            for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
                if signal.getsignal(number) is not None:
                    print(number, signal.signal(number, signal.SIG_DFL))
        train(1); reset(); train()
        usual = work
        def work(index):
            if index == 20:
                reset()
            return usual(index)
        train()
    """,
    "takes every real-time signal": """
        import signal
        taken = []
        usual = work
        def work(index):
            if index == 20:
                for number in range(signal.SIGRTMIN, signal.SIGRTMAX + 1):
                    print(signal.signal(number, lambda got, _: taken.append(got)))
                    signal.raise_signal(number)
            return usual(index)
        train(1); train(2); print(taken)
    """,
    "runs asyncio": """
        import asyncio, os, signal, sys
        async def main():
            asked = asyncio.Event()
            asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, asked.set)
            train(1)
            ticks = asyncio.create_task(asyncio.sleep(0.05, "ticked"))
            for batch in batches():
                await asyncio.sleep(0)
            os.kill(os.getpid(), signal.SIGUSR1); await asked.wait()
            child = await asyncio.create_subprocess_exec(sys.executable, "-c", "exit(4)")
            print(await ticks, await child.wait(), await asyncio.to_thread(sum, [1, 2]))
        asyncio.run(main()); train(1)
    """,
}
# Those with which one would notice threads, hooks or modules of ours; the first with a loader that
# the hook knows and that takes seconds to import, and the others with it only in `make soak`.
HOOKED = (
    "ends",
    "starts threads",
    "resets every handler",
    "starts processes",
    "is interrupted",
    "blocks signals",
)
HOOKED_PLAIN = (
    "fails",
    "forks strictly",
    "has sub-interpreters",
    OWN_MODULES,
    "executes another",
    "looks around",
    "leaves output unwritten",
    "runs asyncio",
)
CLI = [str(Path(sys.executable).with_name("tpuctl"))]
MODES = {
    "launch": [*CLI, "launch", "train.py"],
    "run": [*CLI, "profile", "run", "--", sys.executable, "train.py"],
    "watch": [*CLI, "profile", "watch", "--", sys.executable, "train.py"],
}
# A traceback shows the functions of tpuctl through which an error came, as docs/training.md says.
_OWN_FRAME = re.compile(rf'^  File "{Path(tpuctl.__file__).parent}/.*\n(    .*\n)+', re.M)
IN_JAX = ("ends", "raises", "looks around", "raises in a batch")
ONCE_IN_JAX = {("raises", "run"), ("looks around", "watch")}
IN_FIT = ("blocks signals", "fails", "ends", "cleans up", "sets an alarm", "looks around")


def in_turn(names: Sequence[object], modes: Iterable[str]) -> list[object]:
    """Every program in every mode, all but one of them only in `make soak`."""
    chosen = dict(zip(names, cycle(modes)))
    return [
        pytest.param(name, mode, marks=() if chosen[name] == mode else pytest.mark.soak)
        for name, mode in product(names, modes)
    ]


@dataclass(frozen=True)
class Ended:
    """How a program ended, and what it wrote."""

    returncode: int
    stdout: str
    stderr: str = ""


def run(command: list[str], folder: Path, **env: str) -> Ended:
    """Run a program with something on its stdin."""
    done = subprocess.run(
        command,
        cwd=folder,
        input="some\ninput",
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, **env},
    )
    # A shell reports death by signal N as 128 + N, and so does tpuctl.
    code = done.returncode if done.returncode >= 0 else 128 - done.returncode
    shown = (_OWN_FRAME.sub("", text or "") for text in (done.stdout, done.stderr))
    shown = (re.sub("0x[0-9a-f]{8,}", "0x", text) for text in shown)
    return Ended(code, *shown)


def write(folder: Path, name: str, loader: str, *, block: bool = False) -> list[str]:
    """Write a program, with what watches it from inside if `block`, and say how to run it."""
    body = textwrap.dedent(PROGRAMS[name])
    start = START.format(loader=LOADERS[loader])
    inside = CALLBACK if loader == "keras" else BLOCK
    # As many lines either way, since tracebacks show their numbers.
    start += inside if block else "\n" * inside.count("\n")
    if loader != "keras":
        start = start if block else start[:-1] + "if True:\n"
        body = textwrap.indent(body.strip(), "    ")
    compile(start + body, "train.py", "exec")
    (folder / "train.py").write_text(start + body)
    if name == OWN_MODULES:
        for module in ("statistics", "graphlib"):
            (folder / f"{module}.py").write_text("OWN = 'the program has its own'\n")
    return [sys.executable, "train.py"]


def watch_from_outside(folder: Path, mode: str, bare: list[str]) -> None:
    """Run a program alone and in a mode, and compare."""
    alone, watched = run(bare, folder), run(MODES[mode], folder)
    assert watched.stdout == alone.stdout
    # Beside the rows of `watch`, which come in between.
    rest = iter(watched.stderr.splitlines())
    assert [line for line in alone.stderr.splitlines() if line not in rest] == []
    if mode == "launch" or alone.returncode:
        assert watched.returncode == alone.returncode


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in PROGRAMS if name != OWN_MODULES])
def test_a_block_around_a_program_changes_nothing(tmp_path: Path, name: str) -> None:
    bare = run(write(tmp_path, name, "plain"), tmp_path)
    watched = run(write(tmp_path, name, "plain", block=True), tmp_path)
    assert watched == bare


@pytest.mark.tf
@pytest.mark.parametrize(
    "name", [IN_FIT[0], *(pytest.param(name, marks=pytest.mark.soak) for name in IN_FIT[1:])]
)
def test_a_callback_in_fit_changes_nothing(tmp_path: Path, name: str) -> None:
    bare = run(write(tmp_path, name, "keras"), tmp_path)
    watched = run(write(tmp_path, name, "keras", block=True), tmp_path)
    # What libtpu says on stderr has the time in it.
    assert (watched.returncode, watched.stdout) == (bare.returncode, bare.stdout)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "mode"), in_turn(HOOKED, MODES))
def test_a_program_with_grain_is_left_alone(tmp_path: Path, name: str, mode: str) -> None:
    watch_from_outside(tmp_path, mode, write(tmp_path, name, "grain"))


@pytest.mark.slow
def test_a_program_that_has_not_parsed_its_flags_still_has_not(tmp_path: Path) -> None:
    """Grain's workers fail without; a program that works only when it is watched helps nobody."""
    loader = START.format(loader=LOADERS["grain"])
    shown = "from absl import flags; train(); print(flags.FLAGS.is_parsed())"
    (tmp_path / "train.py").write_text(f"{loader}{shown}\n")
    watch_from_outside(tmp_path, "launch", [sys.executable, "train.py"])


@pytest.mark.soak
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", HOOKED_PLAIN)
def test_any_program_with_grain_is_left_alone(tmp_path: Path, name: str, mode: str) -> None:
    watch_from_outside(tmp_path, mode, write(tmp_path, name, "grain"))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "mode"), in_turn(HOOKED_PLAIN, MODES))
def test_a_program_whose_loader_is_not_known_is_left_alone(
    tmp_path: Path, name: str, mode: str
) -> None:
    watch_from_outside(tmp_path, mode, write(tmp_path, name, "plain"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "mode"),
    [
        pytest.param(*each, marks=() if each in ONCE_IN_JAX else pytest.mark.soak)
        for each in product(IN_JAX, MODES)
    ],
)
def test_a_plain_jax_loop_is_left_alone(tmp_path: Path, name: str, mode: str) -> None:
    pytest.importorskip("jax")
    watch_from_outside(tmp_path, mode, write(tmp_path, name, "jax"))


@pytest.mark.slow
def test_a_program_that_clears_its_environment_is_still_profiled(tmp_path: Path) -> None:
    pytest.importorskip("jax")
    clear = "import os; os.environ.clear()\n"
    write(tmp_path, "ends", "jax")
    (tmp_path / "train.py").write_text(clear + (tmp_path / "train.py").read_text())
    stderr = run(MODES["launch"], tmp_path).stderr
    assert "is not profiled" not in stderr
    assert " ms (mean); speed " in stderr, stderr


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tpuctl.py", "tpuctl/__init__.py"])
def test_a_program_keeps_its_own_module_named_tpuctl(tmp_path: Path, name: str) -> None:
    pytest.importorskip("grain")
    write(tmp_path, "ends", "grain")
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("OWN = 'the program has its own'\n")
    with (tmp_path / "train.py").open("a") as program:
        program.write("\nimport tpuctl; print(tpuctl.OWN)\n")
    ended = run(MODES["launch"], tmp_path)
    assert (ended.returncode, ended.stdout) == (0, "trained on 192\nthe program has its own\n")
    assert "not profiled: the program has a module of its own named tpuctl" in ended.stderr


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_a_program_has_the_descriptors_of_its_shell_and_no_others(
    tmp_path: Path, mode: str
) -> None:
    (tmp_path / "train.py").write_text(
        "import os; print(sorted(map(int, os.listdir('/proc/self/fd')))); print(os.read(7, 9))"
    )
    shell = ["bash", "-c", 'exec "$@" 7< <(echo given)', "bash"]
    alone = run([*shell, sys.executable, "train.py"], tmp_path)
    assert "given" in alone.stdout
    watched = run([*shell, *MODES[mode]], tmp_path)
    assert alone.stdout == watched.stdout


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_a_program_has_the_environment_of_its_shell(tmp_path: Path, mode: str) -> None:
    """Relative places too, which tpuctl itself leaves out, and sizes that it cannot use."""
    hooks = ("PYTHONPATH", "TPUCTL_PROFILE_FOLDER")
    (tmp_path / "train.py").write_text(
        f"import os; print({{k: v for k, v in os.environ.items() if k not in {hooks}}})"
    )
    shell = ["env", "-u", "HOME", f"PATH=bin::{os.environ['PATH']}", "COLUMNS=999", "LINES=1"]
    alone = run([*shell, sys.executable, "train.py"], tmp_path)
    assert "bin::" in alone.stdout
    assert run([*shell, *MODES[mode]], tmp_path).stdout == alone.stdout


def test_a_program_that_fails_after_its_steps_has_had_some(tmp_path: Path) -> None:
    (tmp_path / "1.steps").write_text(json.dumps(to_plain(Steps("step at a.py:9", 87, 3.4, 16))))
    error = _no_steps("a.py exited with code 4", tmp_path, hint=ITS_WORDS)
    assert str(error).startswith("a.py exited with code 4 after 87 calls of step at a.py:9")
    assert error.hint == ITS_WORDS
    assert _no_steps("a.py ended", tmp_path, hint="Give it longer.").hint == NO_STEPS


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
    watch_from_outside(tmp_path, mode, write(tmp_path, name, "torch"))


WORKERS = """
import sys
from torch.utils.data import DataLoader

class Numbers(list):
    def __getitem__(self, index):
        return index

if __name__ == "__main__":
    data = DataLoader(Numbers(range(64)), 4, num_workers=1, multiprocessing_context="{method}")
    print([len(batch) for batch in data], flush=True)
"""


@pytest.mark.slow
@pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed (make test-torch)")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_workers_of_a_loader_start_in_every_way(tmp_path: Path, method: str, mode: str) -> None:
    (tmp_path / "train.py").write_text(WORKERS.format(method=method))
    watch_from_outside(tmp_path, mode, [sys.executable, "train.py"])


SAVES = """
import sys
import time

{loader}

def train(epochs=3):
    for _ in range(epochs):
        for batch in batches():
            pass

times = []
try:
    train()
    print("ready", flush=True)
    while True:  # pause() would miss a signal that came just before it
        time.sleep(0.01)
except KeyboardInterrupt:
    times.append("once")
    try:
        end = time.perf_counter() + 1
        while time.perf_counter() < end:
            pass
    except KeyboardInterrupt:
        times.append("again")
print("saved", *times, flush=True)
sys.exit(7)
"""


def type_ctrl_c(command: list[str], folder: Path) -> tuple[int, str]:
    """Run a program in a terminal of its own, and press Ctrl-C when it says that it is ready."""
    pid, terminal = pty.fork()
    if not pid:
        os.chdir(folder)
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # these tests may run in the background
        os.execv(command[0], command)
    shown = b""
    with contextlib.suppress(OSError):  # the terminal is gone with its last process
        while some := os.read(terminal, 1 << 16):
            was_ready, shown = b"ready" in shown, shown + some
            if b"ready" in shown and not was_ready:
                os.write(terminal, b"\x03")
    os.close(terminal)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), shown.decode()


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_ctrl_c_reaches_a_program_once_and_it_takes_its_time(tmp_path: Path, mode: str) -> None:
    pytest.importorskip("grain")
    # `launch` has no hook, and the loader that a hook knows takes seconds to import.
    loader = LOADERS["plain" if mode == "launch" else "grain"].replace("work(index)", "index")
    (tmp_path / "train.py").write_text(SAVES.format(loader=loader))
    alone = type_ctrl_c([sys.executable, "train.py"], tmp_path)
    assert (alone[0], "saved once" in alone[1], "once again" in alone[1]) == (7, True, False)
    code, shown = type_ctrl_c(MODES[mode], tmp_path)
    assert (code, "saved once" in shown, "once again" in shown) == (7, True, False), shown
    assert ("run the same command again" in shown) == (mode == "launch")
    assert "without tpuctl" not in shown


OTHER_SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGUSR1, signal.SIGQUIT)
# In the background, or with nohup, these signals are ignored.
HEEDING = (
    "import os, signal as s, sys; "
    "[s.signal(number, s.SIG_DFL) for number in (s.SIGINT, s.SIGHUP, s.SIGQUIT)]; "
    "os.execv(sys.argv[1], sys.argv[1:])"
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "mode"), [*product([signal.SIGTERM], MODES), *in_turn(OTHER_SIGNALS, MODES)]
)
def test_a_signal_to_tpuctl_is_one_to_the_program(
    tmp_path: Path, number: signal.Signals, mode: str
) -> None:
    place = tmp_path / "asked"
    program = f"""
        import pathlib, signal, sys, time
        asked = []
        signal.signal({int(number)}, lambda *_: asked.append(1))
        pathlib.Path({str(place)!r}).touch()
        while not asked:  # pause() would miss a signal that came before it
            time.sleep(0.01)
        print(len(asked), "asked", file=sys.stderr)
        sys.exit(7)
    """
    (tmp_path / "train.py").write_text(textwrap.dedent(program))
    words = [sys.executable, "-c", HEEDING, *MODES[mode]]
    process = subprocess.Popen(
        words, cwd=tmp_path, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    wait_until(place.exists)
    process.send_signal(number)
    _, stderr = process.communicate(timeout=120)
    assert (process.returncode, "1 asked" in stderr) == (7, True), stderr


OUTLIVES = """
import os
{loader}
[batch for _ in range(3) for batch in batches()]
with open("dev/accel0"), open("pid.new", "w") as file:
    file.write(str(os.getpid()))
    file.close()
    os.rename("pid.new", "pid")
    open("wait").read()
    [batch for _ in range(3) for batch in batches()]
    open("saved", "w").close()
"""


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["launch", "run"])
def test_a_training_outlives_a_killed_tpuctl_and_free_names_it(tmp_path: Path, mode: str) -> None:
    pytest.importorskip("grain")
    loader = LOADERS["grain"].replace("work(index)", "index")
    (tmp_path / "train.py").write_text(OUTLIVES.format(loader=loader))
    dev = tmp_path / "dev"
    dev.mkdir()
    (dev / "accel0").touch()
    os.mkfifo(tmp_path / "wait")
    # The program waits for the end of what is open here to be written.
    with (
        open(os.open(tmp_path / "wait", os.O_RDWR), "wb"),
        (tmp_path / "shown").open("wb") as shown,
    ):
        tpuctl = subprocess.Popen(MODES[mode], cwd=tmp_path, stdout=shown, stderr=shown)
        wait_until((tmp_path / "pid").exists)
        tpuctl.kill()
        tpuctl.wait()
        found = run([*CLI, "free", "local", "--dry-run", "--json"], tmp_path, **{DEVICES: str(dev)})
        (holder,) = json.loads(found.stdout)["data"]["workers"][0]["holders"]
        assert holder["pid"] == int((tmp_path / "pid").read_text())
        assert holder["command"].endswith(" train.py")
    wait_until((tmp_path / "saved").exists)
    wait_until(lambda: not Path("/proc", str(holder["pid"])).exists())
    assert "Traceback" not in (tmp_path / "shown").read_text()


def test_the_hook_only_leaves_a_note_in_a_python_that_tpuctl_does_not_know(tmp_path: Path) -> None:
    """The oldest know neither annotations nor formatted strings nor `1_000`."""
    hook = Path(tpuctl.__file__).parent / "profiling" / "program" / "hook" / "sitecustomize.py"
    assert not re.search(r"\d_\d", hook.read_text())
    for node in ast.walk(ast.parse(hook.read_text())):
        assert not isinstance(node, (ast.JoinedStr, ast.AnnAssign, ast.NamedExpr))
        if isinstance(node, ast.FunctionDef):
            assert not node.returns
            assert not [each for each in node.args.args if each.annotation]
    old = "import sys; del sys.orig_argv; sys.version_info = (3, 9); "
    ran = f"{old}exec(open(sys.argv[1]).read(), {{'__file__': sys.argv[1]}}); print(sys.meta_path)"
    done = subprocess.run(
        [sys.executable, "-S", "-c", ran, str(hook)],
        env={**os.environ, "TPUCTL_PROFILE_FOLDER": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr, "AfterImport" in done.stdout) == (0, "", False)
    unseen = _no_steps("It ended", tmp_path, hint="")
    assert f"Python {sys.version.split()[0]} is not measured" in str(unseen.hint)
