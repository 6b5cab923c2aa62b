"""Profile a training from inside the program: with a `with` block or a Keras callback."""

import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

from tpuctl.errors import TargetError
from tpuctl.profiling.frameworks.iterables import iterate, watched
from tpuctl.profiling.frameworks.stacks import name_producer
from tpuctl.profiling.models import Profile
from tpuctl.profiling.program.recording import Recording
from tpuctl.profiling.program.run import FEW_BATCHES, conclude
from tpuctl.profiling.program.start import start_recording
from tpuctl.usercode.scratch_cleanup import remove

FEW = "Train for a few steps inside the block; iterate data sets there, or through p.watch(loader)."


class ProfileBlock:
    """Profiles the training inside a block: `with tpuctl.profile() as p: train()`, then `p.result`.

    Iterators of tf.data, PyTorch and Grain that are created inside the block are found; pass any
    other iterable through `watch`.
    """

    def __init__(self) -> None:
        self._recording: Recording | None = None
        self._result: Profile | None = None
        self._folder = ""
        self._batches = 0

    def __enter__(self) -> "ProfileBlock":
        self._folder = tempfile.mkdtemp(prefix="tpuctl-profile-")
        self._recording = start_recording(self._folder, command="this program")
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
        series = recording.watch.main()
        self._batches = series.count + 1 if series else 0
        recording.stop()
        # The hooks stay installed and write into the folder of the first block.
        for folder in {self._folder, recording.sampler.folder}:
            remove(folder)
        if measured is not None:
            self._result = conclude(measured, target="this program")

    def watch(self, iterable: Iterable[Any]) -> Iterator[Any]:
        """Iterate any iterable and record how long its elements take."""
        recording = self._recording
        if recording is None:
            return iterate(iterable)
        series = recording.watch.of(iterable, lambda: watched(iterable, recording.sampler))
        return recording.watch.wrapped(series, name_producer(iterable, iterate(iterable)))

    @property
    def result(self) -> Profile:
        """The profile of the block; raises TargetError if it had no training steps."""
        if self._result is None:
            if self._batches:
                raise TargetError(
                    f"Only {self._batches} batches were taken in the profiled block.",
                    hint=FEW_BATCHES,
                )
            raise TargetError("No training step was seen in the profiled block.", hint=FEW)
        return self._result

    def __repr__(self) -> str:
        return "<tpuctl profile: no result yet>" if self._result is None else repr(self._result)

    def _repr_html_(self) -> str | None:
        return None if self._result is None else self._result._repr_html_()

    def to_dict(self) -> dict[str, Any]:
        """Return the `data` of the profile, as in its JSON."""
        return self.result.to_dict()

    def save(self, path: str | Path) -> Path:
        """Write the profile as .tpuprof, .html or .json."""
        return self.result.save(path)


_open: list[ProfileBlock] = []


def current() -> ProfileBlock:
    """The innermost open block, or a block that does nothing."""
    return _open[-1] if _open else ProfileBlock()


def profile() -> ProfileBlock:
    """Profile the training inside a `with` block, and find out what its steps wait for."""
    return ProfileBlock()
