"""Profile a training from inside: a `with` around it, or a callback for Keras."""

import tempfile
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Any

from tpuctl.errors import TargetError
from tpuctl.profiling.frameworks.iterables import iterate, location_of, sampled_costs
from tpuctl.profiling.frameworks.stacks import giving
from tpuctl.profiling.models import ChainNode, Profile
from tpuctl.profiling.program.recording import Recording
from tpuctl.profiling.program.run import conclude
from tpuctl.profiling.program.start import begin
from tpuctl.profiling.program.watching import Origin
from tpuctl.usercode.scratch_cleanup import remove

FEW = "Train for a few steps inside the block; iterate data sets there, or through p.watch(loader)."


class ProfileBlock:
    """What `tpuctl.profile()` gives: `with tpuctl.profile() as p: train()`, then `p.result`.

    Iterators of tf.data, PyTorch and Grain that are made inside the block are found; any other
    iterable is given to `watch`.
    """

    def __init__(self) -> None:
        self._recording: Recording | None = None
        self._result: Profile | None = None
        self._folder = ""

    def __enter__(self) -> "ProfileBlock":
        self._folder = tempfile.mkdtemp(prefix="tpuctl-profile-")
        self._recording = begin(self._folder, command="this program")
        _open.append(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        recording, self._recording = self._recording, None
        if recording is None:
            return
        _open.remove(self)
        measured = recording.finish()
        recording.stop()
        # The hooks write where they were told at first, into the folder of the first block.
        for folder in {self._folder, recording.sampler.folder}:
            remove(folder)
        if measured is not None:
            self._result = conclude(measured, target="this program")

    def watch(self, iterable: Iterable[Any]) -> Iterator[Any]:
        """Iterate something of your own and write down how long its elements take to come."""
        recording = self._recording
        if recording is None:
            return iterate(iterable)
        series = recording.watch.of(iterable, lambda: _origin(iterable, recording))
        return recording.watch.wrapped(series, giving(iterable, iterate(iterable)))

    @property
    def result(self) -> Profile:
        """The profile of the block; raises TargetError where it had no training steps."""
        if self._result is None:
            raise TargetError("No training step was seen in the profiled block.", hint=FEW)
        return self._result


_open: list[ProfileBlock] = []


def current() -> ProfileBlock:
    """The innermost open block, for code inside it; where there is none, one that does nothing."""
    return _open[-1] if _open else ProfileBlock()


def profile() -> ProfileBlock:
    """Profile what is trained inside a `with` block: what its steps waited for."""
    return ProfileBlock()


def _origin(iterable: Any, recording: Recording) -> Origin:
    sampler = recording.sampler
    name = getattr(iterable, "__name__", type(iterable).__name__)
    return Origin(
        kind="iterable",
        chain=ChainNode("Iterable", name, location=location_of(iterable), runs_python=True),
        lanes=1,
        runs_ahead=False,
        begin=sampler.start,
        costs=lambda: sampled_costs(sampler.folder, lanes=1, own=sampler),
    )
