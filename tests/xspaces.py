"""Traces written by hand: an encoder of XSpaces, and scenes whose truth is known."""

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

MS = 10**9  # picoseconds
Stat = int | float | str
SYMBOL = "ref:"  # A text that is written as a reference to the names, as profilers do.


@dataclass(frozen=True)
class Event:
    name: str
    start_ms: float
    ms: float
    stats: dict[str, Stat] = field(default_factory=dict)


@dataclass(frozen=True)
class Line:
    name: str
    events: Sequence[Event] = ()
    timestamp_ns: int = 0


@dataclass(frozen=True)
class Plane:
    name: str
    lines: Sequence[Line] = ()
    stats: Mapping[str, Stat] = field(default_factory=dict)
    stats_of: Mapping[str, Mapping[str, Stat]] = field(default_factory=dict)


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*encoded, value))


def number(field_number: int, value: int) -> bytes:
    return varint(field_number << 3) + varint(value)


def message(field_number: int, *parts: bytes) -> bytes:
    content = b"".join(parts)
    return varint(field_number << 3 | 2) + varint(len(content)) + content


class Names:
    """Numbers for names, from 1, in the order in which they are first asked for."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}

    def __getitem__(self, name: str) -> int:
        return self.numbers.setdefault(name, len(self.numbers) + 1)


def stat(names: Names, name: str, value: Stat) -> bytes:
    if isinstance(value, float):
        encoded = varint(2 << 3 | 1) + struct.pack("<d", value)
    elif isinstance(value, int):
        encoded = number(4, value)
    elif value.startswith(SYMBOL):
        encoded = number(7, names[value.removeprefix(SYMBOL)])
    else:
        encoded = message(5, value.encode())
    return number(1, names[name]) + encoded


def stats(field_number: int, names: Names, values: Mapping[str, Stat]) -> bytes:
    return b"".join(message(field_number, stat(names, *item)) for item in values.items())


def event(events: Names, names: Names, each: Event) -> bytes:
    return message(
        4,
        number(1, events[each.name]),
        number(2, round(each.start_ms * MS)),
        number(3, round(each.ms * MS)),
        stats(4, names, each.stats),
    )


def line(events: Names, names: Names, each: Line) -> bytes:
    encoded = (event(events, names, item) for item in each.events)
    head = number(1, 7) + message(2, each.name.encode()) + number(3, each.timestamp_ns)
    return message(3, head, *encoded)


def plane(each: Plane) -> bytes:
    events, names = Names(), Names()
    lines = [line(events, names, item) for item in each.lines]
    totals = stats(6, names, each.stats)
    kinds = [
        message(
            4,
            number(1, key),
            message(
                2,
                number(1, key),
                message(2, name.encode()),
                stats(5, names, each.stats_of.get(name, {})),
            ),
        )
        for name, key in events.numbers.items()
    ]
    titles = [
        message(5, number(1, key), message(2, number(1, key), message(2, name.encode())))
        for name, key in names.numbers.items()
    ]
    return message(1, message(2, each.name.encode()), *lines, *kinds, *titles, totals)


def space(planes: Iterable[Plane], *, hostname: str = "host-a") -> bytes:
    return b"".join(map(plane, planes)) + message(4, hostname.encode())


def session(start_ns: int, stop_ns: int) -> Plane:
    times: dict[str, Stat] = {"profile_start_time": start_ns, "profile_stop_time": stop_ns}
    return Plane("Task Environment", stats=times)


def chip(
    index: int, busy_ms: Iterable[tuple[float, float]], *lines: Line, op: str = "fusion"
) -> Plane:
    """A TPU chip that computes from .. to, once for every pair."""
    work = [Event(f"%{op}.{i % 3}", start, end - start) for i, (start, end) in enumerate(busy_ms)]
    return Plane(
        f"/device:TPU:{index}",
        (Line("XLA Ops", work), *lines),
        {"device_type_string": "TPU v5 Lite", "peak_teraflops_per_second": 197.0},
    )


def host(*threads: Sequence[Event]) -> Plane:
    lines = [Line(f"thread/{index}", events) for index, events in enumerate(threads)]
    return Plane("/host:CPU", lines)


def training(
    steps: int = 8, *, step_ms: float = 100.0, wait_ms: float = 0.0, wait: str = "Iterator::Root"
) -> list[Plane]:
    """A chip that computes and then waits in every step, while the host does `wait`."""
    starts = [step_ms * index for index in range(steps)]
    busy = [(start + wait_ms, start + step_ms) for start in starts]
    marks = Line("Steps", [Event(str(i), start, step_ms) for i, start in enumerate(starts)])
    waits = [Event(wait, start, wait_ms) for start in starts if wait_ms]
    return [chip(0, [(0, 0.001), *busy], marks), host(waits)]


def iterator(path: str, start_ms: float, ms: float, **values: Stat) -> Event:
    """A call of a tf.data iterator; `path` leads from the root."""
    return Event(f"Iterator::{path}", start_ms, ms, dict(values))


def pipeline(
    elements: int = 40, *, batch: int = 8, decode_ms: float = 6.0, resize_ms: float = 2.0
) -> list[Plane]:
    """tf.data on one thread of its own and two of a pool: decode, resize, batch, prefetch.

    Both maps start their function on the producing thread; the pool runs it later, linked by flow.
    The loop waits for every batch from its first to its last millisecond.
    """
    root: list[Event] = []
    producer: list[Event] = []
    pool: list[Event] = []
    clock, maps = 0.0, "Root::Prefetch::BatchV2::ParallelMapV2"
    for element in range(elements):
        flow = 1000 + element
        for stage, (path, ms) in enumerate(
            ((f"{maps}::ParallelMapV2", decode_ms), (maps, resize_ms))
        ):
            key = flow * 10 + stage
            producer += [
                Event("ParallelMapProduce", clock, 0.1),
                iterator(path + ("::TensorSlice" if not stage else "::ParallelMapV2"), clock, 0.01),
                Event("FunctionRun", clock + 0.05, 0.01, {"_p": key}),
            ]
            # The second is named as where oneDNN replaces an operation.
            operation = ("map/Decode:DecodeJpeg", "resize/Resize:_MklResizeBilinear")[stage]
            pool += [
                Event("ExecutorState::Process", clock + 0.1, ms, {"_c": key}),
                Event(operation, clock + 0.1, ms * 0.99),
            ]
            clock += ms + 0.2
        if (element + 1) % batch == 0:
            span = batch * (decode_ms + resize_ms + 0.4)
            root += [
                iterator("Root", clock - span, span, cpu_budget=1, threadpool_size=2),
                iterator("Root::Prefetch", clock - span, span),
            ]
            producer.append(iterator("Root::Prefetch::BatchV2", clock, 0.05, batch_size=batch))
            producer += [iterator(maps, clock + 0.001 * i, 0.001) for i in range(batch)]
            clock += 0.1
    return [host(root, producer, pool)]
