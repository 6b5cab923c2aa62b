"""The devices of a trace: when they computed, in which steps, how many FLOPs."""

import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tpuctl.profiling.trace.intervals import Interval, Intervals, clip, length, merge_columns, union
from tpuctl.profiling.trace.xspace import Line, Plane, Space

# SparseCores and the like have separate planes; only the main plane of a chip counts.
_DEVICE = re.compile(r"/device:(TPU|GPU|CUSTOM)[:\w]*:(\d+)$")
OPERATIONS, MODULES, STEPS = "XLA Ops", "XLA Modules", "Steps"
_XLA_ON_CPU = re.compile(r"tf_XLA(Eigen|\w*Cpu\w*)/")
_NO_WORK = re.compile(
    r"ThreadpoolListener|end: |ThunkExecutor::Execute \(wait|SlinkyThreadPool::Await"
)
# Operations in which a device only waits for its host.
_HOST_WAITS = (("infeed", re.compile(r"%?infeed")), ("outfeed", re.compile(r"%?outfeed")))
_COPIES = (
    ("to_device", re.compile(r"Memcpy(H2D|HtoD)")),
    ("from_device", re.compile(r"Memcpy(D2H|DtoH)")),
)
# Their FLOPs are those of the operations inside them.
_CONTAINERS = ("while", "conditional", "call")
_PEAK_FLOPS = 1e12
# A program that was launched less often does not show the period of a step.
FEWEST_LAUNCHES = 3
# A first or last step this much shorter than any other was cut off by the capture.
CUT_OFF = 0.9


@dataclass
class Device:
    """One chip: when it computed, and when it waited or copied, in picoseconds."""

    plane: Plane
    name: str
    kind: str
    accelerator: str | None = None
    operations: int = 0
    busy: Intervals = field(default_factory=list)
    waits: dict[str, Intervals] = field(default_factory=dict)
    first_ps: int | None = None
    last_ps: int | None = None
    steps: Intervals = field(default_factory=list)
    launches: dict[str, Intervals] = field(default_factory=dict)
    peak_flops: float | None = None
    counts: "Counter[int]" = field(default_factory=Counter)

    def busy_ps(self, start: int, end: int) -> int:
        """How long it computed between two times."""
        return length(clip(self.busy, start, end))


def read_devices(space: Space) -> list[Device]:
    """Read every active device of a trace; without any, XLA on the CPU counts as one."""
    devices = [device for plane in space.planes if (device := _read_device(plane))]
    return devices or [device for plane in space.planes if (device := _read_cpu(plane))]


def _read_device(plane: Plane) -> Device | None:
    match = _DEVICE.match(plane.name)
    if not match:
        return None
    kind = "GPU" if "GPU" in plane.name else "TPU"
    device = Device(plane, f"{kind}:{match[2]}", kind)
    for line in _busy_lines(plane):
        _add_work(device, line, _HOST_WAITS if kind == "TPU" else _COPIES)
    stats = plane.stats()
    name = stats.get("device_type_string") or stats.get("device_name")
    device.accelerator = name if isinstance(name, str) else None
    peak = stats.get("peak_teraflops_per_second")
    device.peak_flops = peak * _PEAK_FLOPS if isinstance(peak, float) and peak > 0 else None
    device.steps = [(start, end) for _, start, end in _named(plane, STEPS)]
    launches: dict[str, Intervals] = defaultdict(list)
    for name, start, end in _named(plane, MODULES):
        launches[name.partition("(")[0]].append((start, end))
    device.launches = dict(launches)
    return device if device.operations else None


def _busy_lines(plane: Plane) -> list[Line]:
    """The lines whose events are the device's work, without lines derived from them."""
    streams = [line for line in plane.lines if line.name.startswith("Stream")]
    for name in (OPERATIONS, "TensorFlow Ops", MODULES):
        if found := streams or [line for line in plane.lines if line.name == name]:
            return found
    return []


def _read_cpu(plane: Plane) -> Device | None:
    """Treat the threads on which XLA runs operations as a device."""
    device = Device(plane, "CPU", "CPU", "XLA on the CPU")
    for line in plane.lines:
        if _XLA_ON_CPU.match(line.name):
            _add_work(device, line, ())
    return device if device.operations else None


def _add_work(device: Device, line: Line, waits: tuple[tuple[str, "re.Pattern[str]"], ...]) -> None:
    plane, events = line.plane, line.events()
    counts = Counter(events.ids)
    idle = {
        event_id: code
        for event_id in counts
        if (code := _wait_code(plane.name_of(event_id), waits)) is not None
    }
    work = merge_columns(*events.spans(counts.keys() - idle.keys() if idle else None))
    device.busy = union(device.busy + work) if device.busy else work
    for code in set(idle.values()) - {""}:
        ids = {event_id for event_id, each in idle.items() if each == code}
        waited = merge_columns(*events.spans(ids))
        device.waits[code] = union(device.waits.get(code, []) + waited)
    device.operations += sum(
        count for event_id, count in counts.items() if idle.get(event_id) != ""
    )
    device.counts += counts
    if len(events):
        first, last = min(events.starts_ps), max(events.ends_ps)
        device.first_ps = first if device.first_ps is None else min(device.first_ps, first)
        device.last_ps = last if device.last_ps is None else max(device.last_ps, last)


def _wait_code(name: str, waits: tuple[tuple[str, "re.Pattern[str]"], ...]) -> str | None:
    """The class of an operation that only waits or copies; empty for one that does nothing."""
    if _NO_WORK.match(name):
        return ""
    return next((code for code, pattern in waits if pattern.match(name)), None)


def count_flops(device: Device) -> float:
    """The FLOPs of a device, as the compiler counted them for each operation."""
    return sum(_flops(device.plane, each) * count for each, count in device.counts.items())


def _flops(plane: Plane, event_id: int) -> float:
    stats = plane.stats_of(event_id)
    if stats.get("hlo_category") in _CONTAINERS:
        return 0.0
    flops = stats.get("model_flops") or stats.get("flops") or 0
    return float(flops) if isinstance(flops, (int, float)) and flops > 0 else 0.0


def _named(plane: Plane, line_name: str) -> Iterator[tuple[str, int, int]]:
    for line in plane.lines:
        if line.name == line_name:
            for event_id, start, end in line.events().rows():
                yield plane.name_of(event_id), start, end


@dataclass(frozen=True)
class Steps:
    """The complete steps in picoseconds, how many were cut off by the capture, and the source."""

    whole: tuple[Interval, ...] = ()
    dropped: int = 0
    source: str = "no steps were marked"

    @property
    def durations_ms(self) -> list[float]:
        """The duration of each."""
        return [(end - start) / 1e9 for start, end in self.whole]


def find_steps(devices: Sequence[Device], marked_by_host: Intervals) -> Steps:
    """Find the steps that a device recorded, else those of the program, else repeated launches."""
    by_device = next((device for device in devices if len(device.steps) > 1), None)
    if by_device:
        whole, dropped = drop_partial(sorted(by_device.steps))
        return Steps(tuple(whole), dropped, f"marked on {by_device.name}")
    if len(marked_by_host) > 1:
        return _periods(marked_by_host, "marked by the program (step_num)")
    if devices and (launches := _most_launched(devices[0])):
        name, intervals = launches
        return _periods(intervals, f"not marked; launches of {name} on {devices[0].name} counted")
    return Steps()


def drop_partial(steps: Sequence[Interval]) -> tuple[Intervals, int]:
    """Drop steps that the start or the end of the capture cut off.

    If they are averaged in, a run of 120 ms steps is reported as 96 ± 54 ms.
    """
    whole = [step for step in steps if step[1] > step[0]]
    inner = whole[1:-1]
    if not inner:
        return whole, len(steps) - len(whole)
    shortest = CUT_OFF * min(end - start for start, end in inner)
    edges = [[step] if step[1] - step[0] >= shortest else [] for step in (whole[0], whole[-1])]
    kept = [*edges[0], *inner, *edges[1]]
    return kept, len(steps) - len(kept)


def _periods(starts: Sequence[Interval], source: str) -> Steps:
    """From the start of each step to the next: work may outlive the call that started it."""
    begins = sorted(start for start, _ in starts)
    pairs = [(a, b) for a, b in itertools.pairwise(begins) if a < b]
    return Steps(tuple(pairs), 1, source)


def _most_launched(device: Device) -> tuple[str, Intervals] | None:
    launches = {
        name: pairs for name, pairs in device.launches.items() if len(pairs) >= FEWEST_LAUNCHES
    }
    if not launches:
        return None
    return max(launches.items(), key=lambda item: sum(end - start for start, end in item[1]))
