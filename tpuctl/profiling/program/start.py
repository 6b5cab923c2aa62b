"""Start recording in this process: hooks are installed as soon as a framework is imported."""

import atexit
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from tpuctl.profiling.frameworks.stacks import StackSampler
from tpuctl.profiling.program.recording import Recording
from tpuctl.profiling.program.watch import Watch

Then = Callable[[ModuleType], None]


class AfterImport(importlib.abc.MetaPathFinder):
    """A finder that calls a function right after a module was imported, whoever imports it."""

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


WORKER_WORDS = ("--multiprocessing-fork", "from multiprocessing.resource_tracker import main")


def begin_here(folder: str) -> Recording | None:
    """Record this process unless it is a worker of another program."""
    if any(word in argument for argument in sys.orig_argv for word in WORKER_WORDS):
        return None
    command = " ".join(os.path.basename(word) for word in sys.orig_argv[1:3])
    recording = begin(folder, command=command)
    atexit.register(_last, recording, os.getpid())
    return recording


@dataclass
class _Process:
    """What a process has once: its hooks stay installed when a recording ends."""

    watch: Watch
    sampler: StackSampler
    collectors: list[Callable[[], None]]


_process: list[_Process] = []


def begin(folder: str, *, command: str = "") -> Recording:
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
    here = _Process(watch, sampler, [])

    tensorflow = _TensorFlow(watch, here.collectors)

    def torch(module: ModuleType) -> None:
        from tpuctl.profiling.program._hooks import hook_torch

        hook_torch(watch, module, folder, sampler)

    def grain(module: ModuleType) -> None:
        from tpuctl.profiling.program._hooks import hook_grain

        hook_grain(watch, module, folder)

    def keras(module: ModuleType) -> None:
        from tpuctl.profiling.program._hooks import hook_keras

        hook_keras(watch, module)

    finder = AfterImport(
        {
            "tensorflow.python.data.ops.iterator_ops": tensorflow.hook("iterators"),
            "tensorflow.python.data.ops.dataset_autograph": tensorflow.hook("loops"),
            "tensorflow.python.data.ops.dataset_ops": tensorflow.hook("arguments"),
            "tensorflow.python.distribute.input_lib": tensorflow.hook("distributed"),
            "keras.src.backend.jax.trainer": keras,
            "torch.utils.data.dataloader": torch,
            "grain._src.python.dataset.dataset": grain,
        }
    )
    sys.meta_path.insert(0, finder)
    return here


class _TensorFlow:
    """The hooks of TensorFlow, installed as its modules are imported."""

    def __init__(self, watch: Watch, collectors: list[Callable[[], None]]) -> None:
        self._watch, self._collectors = watch, collectors
        self._hooks: Any = None

    def hook(self, part: str) -> Callable[[ModuleType], None]:
        """Return what to do after the import of the module that a part is about."""

        def then(module: ModuleType) -> None:
            if self._hooks is None:
                from tpuctl.profiling.program._tf import TensorFlowHooks

                self._hooks = TensorFlowHooks(self._watch)
                self._collectors.append(self._hooks.collect)
            getattr(self._hooks, part)(module)

        return then


def _last(recording: Recording, pid: int) -> None:
    if os.getpid() == pid:
        recording.finish()
