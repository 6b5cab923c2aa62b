"""Profile a trace: read every host of the newest capture and report the one that was idle most."""

import contextlib
import gc
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tpuctl.errors import InvalidInputError
from tpuctl.profiling.models import Profile
from tpuctl.profiling.trace.models import HostTrace
from tpuctl.progress import OnProgress, Progress, silent


@dataclass(frozen=True)
class _Host:
    """The profile of one file of a capture, and when it was taken, if recorded."""

    name: str
    file: Path
    session: tuple[int, int] | None
    profile: Profile

    @property
    def idle(self) -> float:
        """How idle its devices were; below zero without devices."""
        fraction = self.profile.device_idle_fraction
        return -1.0 if fraction is None else fraction


def profile_trace(path: Path, *, on_progress: OnProgress = silent) -> Profile:
    """Read a trace, or the newest capture in a log folder, and find out what the devices wait for.

    Of several hosts the one whose devices were idle most counts: the others wait for it. Raises
    NotFoundError and InvalidInputError; a damaged trace is read as far as possible.
    """
    # Loaded here: `profile run` imports this module and reads no trace.
    from tpuctl.profiling.trace.files import find_capture

    capture = find_capture(path)
    hosts: list[_Host] = []
    failed: list[InvalidInputError] = []
    for index, file in enumerate(capture.files):
        on_progress(Progress("profile", index, len(capture.files), "traces", file.name))
        try:
            hosts.append(_read(file, target=str(path)))
        except InvalidInputError as error:
            failed.append(error)
    if not hosts:
        raise failed[0]
    together, apart = _of_one_session(hosts)
    worst = max(together, key=lambda host: host.idle)
    notes = [*worst.profile.notes, *capture.notes, *map(str, failed)]
    if apart:
        names = ", ".join(host.file.name for host in apart)
        notes.append(f"{names}: skipped, from an earlier capture in the same folder.")
    detail = worst.profile.trace
    assert detail
    traces = tuple(
        HostTrace(host.name, host.file.name, host.profile.device_idle_fraction) for host in together
    )
    return replace(worst.profile, notes=tuple(notes), trace=replace(detail, hosts=traces))


def _read(file: Path, *, target: str) -> _Host:
    from tpuctl.profiling.trace.conclude import build_profile
    from tpuctl.profiling.trace.reading import read_trace

    with _without_garbage_collection():
        reading = read_trace(file)
        profile = build_profile(reading, target=target)
        return _Host(reading.name, file, reading.session, profile)


@contextlib.contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Pause garbage collection, which halves the speed of creating millions of small tuples."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _of_one_session(hosts: Sequence[_Host]) -> tuple[list[_Host], list[_Host]]:
    """Separate the traces that overlap in time with the latest one from the others.

    Captures that start within the same second share a folder.
    """
    latest = max((host.session for host in hosts if host.session), default=None)
    together: list[_Host] = []
    apart: list[_Host] = []
    for host in hosts:
        span = host.session
        meets = not span or not latest or (span[0] < latest[1] and latest[0] < span[1])
        (together if meets else apart).append(host)
    return together, apart
