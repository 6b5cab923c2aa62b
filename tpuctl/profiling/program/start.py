"""Start recording in this process: frameworks are patched as soon as they are imported."""

import atexit
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from tpuctl.profiling.frameworks.stacks import StackSampler
from tpuctl.profiling.program.hook.tpuctl_after_import import HOOKS, AfterImport
from tpuctl.profiling.program.recording import Recording
from tpuctl.profiling.program.watch import Watch


@dataclass
class _Process:
    """State that a process has only once: its hooks stay installed when a recording ends."""

    watch: Watch
    sampler: StackSampler
    collectors: list[Callable[[], None]] = field(default_factory=list)
    tensorflow: Any = None
    hooked: set[str] = field(default_factory=set)

    def hook(self, module: ModuleType) -> None:
        """Patch a framework's module that has been imported."""
        if module.__name__ in self.hooked:
            return
        self.hooked.add(module.__name__)
        framework, _, part = HOOKS[module.__name__].partition("_")
        if framework == "tensorflow":
            if self.tensorflow is None:
                from tpuctl.profiling.program._tf import TensorFlowHooks

                self.tensorflow = TensorFlowHooks(self.watch)
                self.collectors.append(self.tensorflow.collect)
            getattr(self.tensorflow, part)(module)
        elif framework == "jax":
            from tpuctl.profiling.program._jax import hook_jax

            hook_jax(self.watch, module)
        else:
            from tpuctl.profiling.program import _hooks

            getattr(_hooks, f"hook_{framework}")(self.watch, module, self.sampler)


_process: list[_Process] = []


def hook_program(module: ModuleType, folder: str) -> None:
    """Patch a module of this program, and record it from the first one on."""
    is_first = not _process
    here = _only(folder)
    if is_first:
        command = " ".join(os.path.basename(word) for word in sys.orig_argv[1:3])
        atexit.register(_finish, _record(here, folder, command), os.getpid())
    here.hook(module)


def start_recording(folder: str, *, command: str = "") -> Recording:
    """Record every iterator created from now on; `folder` is for counters and results."""
    here = _only(folder)
    if not any(isinstance(each, AfterImport) for each in sys.meta_path):
        sys.meta_path.insert(0, AfterImport(HOOKS, here.hook))
    return _record(here, folder, command)


def _record(here: _Process, folder: str, command: str) -> Recording:
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


def _only(folder: str) -> _Process:
    if not _process:
        watch = Watch()
        watch.sampler = StackSampler(folder, everywhere=False)
        os.register_at_fork(after_in_child=watch.leave)
        _process.append(_Process(watch, watch.sampler))
    return _process[0]


def _finish(recording: Recording, pid: int) -> None:
    # Not in processes that the program forked.
    if os.getpid() == pid:
        recording.finish()
        recording.stop()
