"""Start recording in this process: hooks are installed as soon as a framework is imported."""

import atexit
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from tpuctl.profiling.frameworks.stacks import StackSampler
from tpuctl.profiling.program.recording import Recording
from tpuctl.profiling.program.watch import Watch

Then = Callable[[ModuleType], None]
# How Python starts the processes of multiprocessing, which inherit PYTHONPATH and so this hook.
WORKER_WORDS = ("--multiprocessing-fork", "from multiprocessing.resource_tracker import main")


class AfterImport(importlib.abc.MetaPathFinder):
    """A finder that calls a function right after a module was imported."""

    def __init__(self, wanted: dict[str, Then]) -> None:
        self._wanted = dict(wanted)
        for name in [name for name in self._wanted if name in sys.modules]:
            self._wanted.pop(name)(sys.modules[name])

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Wrap the loader of a wanted module."""
        if name not in self._wanted:
            return None
        then = self._wanted.pop(name)
        # `wanted` no longer has the name, so this finder is skipped and the others are asked.
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return None
        spec.loader = _Loader(spec.loader, then)
        return spec


class _Loader(importlib.abc.Loader):
    def __init__(self, loader: importlib.abc.Loader, then: Then) -> None:
        self._loader, self._then = loader, then

    def __getattr__(self, name: str) -> object:
        return getattr(self._loader, name)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        try:
            self._then(module)
        except Exception as error:
            sys.stderr.write(f"tpuctl: {module.__name__} is not profiled: {error}\n")


def record_this_process(folder: str) -> Recording | None:
    """Record this process unless it is a worker of another program."""
    if any(word in argument for argument in sys.orig_argv for word in WORKER_WORDS):
        return None
    command = " ".join(os.path.basename(word) for word in sys.orig_argv[1:3])
    recording = start_recording(folder, command=command)
    atexit.register(_finish, recording, os.getpid())
    return recording


@dataclass
class _Process:
    """What a process has once: its hooks stay installed when a recording ends."""

    watch: Watch
    sampler: StackSampler
    collectors: list[Callable[[], None]] = field(default_factory=list)
    tensorflow: Any = None


_process: list[_Process] = []


def start_recording(folder: str, *, command: str = "") -> Recording:
    """Record every iterator created from now on; `folder` is for counters and results."""
    if not _process:
        _process.append(_install(folder))
    here = _process[0]
    here.watch.reset()
    here.watch.is_on = True
    os.makedirs(here.sampler.folder, exist_ok=True)
    recording = Recording(here.watch, folder, sampler=here.sampler, command=command)
    recording.collectors = here.collectors
    if here.watch.in_graphs:
        recording.start()
    else:
        here.watch.first.append(recording.start)
    return recording


def _install(folder: str) -> _Process:
    watch = Watch()
    sampler = StackSampler(folder, only_inside=lambda: watch.is_taking)
    here = _Process(watch, sampler)

    def hook(framework: str) -> Then:
        def then(module: ModuleType) -> None:
            from tpuctl.profiling.program import _hooks

            getattr(_hooks, f"hook_{framework}")(watch, module, sampler)

        return then

    def tensorflow(part: str) -> Then:
        def then(module: ModuleType) -> None:
            if here.tensorflow is None:
                from tpuctl.profiling.program._tf import TensorFlowHooks

                here.tensorflow = TensorFlowHooks(watch)
                here.collectors.append(here.tensorflow.collect)
            getattr(here.tensorflow, part)(module)

        return then

    finder = AfterImport(
        {
            "tensorflow.python.data.ops.iterator_ops": tensorflow("iterators"),
            "tensorflow.python.data.ops.dataset_autograph": tensorflow("loops"),
            "tensorflow.python.data.ops.dataset_ops": tensorflow("arguments"),
            "tensorflow.python.distribute.input_lib": tensorflow("distributed"),
            "keras.src.backend.jax.trainer": hook("keras"),
            "torch.utils.data.dataloader": hook("torch"),
            "grain._src.python.dataset.dataset": hook("grain"),
        }
    )
    sys.meta_path.insert(0, finder)
    return here


def _finish(recording: Recording, pid: int) -> None:
    # Not in a process that the program forked.
    if os.getpid() == pid:
        recording.finish()
