"""The stages of a tf.data pipeline in a host trace, each with the work it caused on any thread.

The elapsed time of an iterator is mostly waiting for the stage below, so it is not used if stages
run in parallel. Instead the work is followed from the function that a stage starts (`FunctionRun`,
flow `_p`) to the executor that runs it (`ExecutorState::Process`, same flow `_c`) on any thread,
and to the operations inside.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from tpuctl.profiling.trace.idle import host_planes
from tpuctl.profiling.trace.intervals import Coverage, Intervals, compact, length, union
from tpuctl.profiling.trace.xspace import Event, Line, Space, Value

ITERATOR, ROOT = "Iterator::", "Iterator::Root"
# TensorFlow's placeholder for a number that was locked at that time.
UNAVAILABLE = "unavailable"
EXECUTOR, FUNCTION = "ExecutorState::Process", "FunctionRun"
_PRODUCE = re.compile(r"\w+Produce$")
# On some CPUs TensorFlow replaces operations, such as MatMul by _MklMatMul.
_OPERATION = re.compile(r"[^:]+:_?(?:Mkl(?:Native)?)?([A-Z]\w+)$")
# Iterators that return what other threads produced: their own time is waiting.
_WAITING = re.compile(r"Prefetch|Parallel|MapAndBatch|Root|MemoryCache|Distribute|ModelDataset")
# Decoding an event with its statistics takes 100 times as long as decoding its times alone.
MOST_EVENTS = 300_000


@dataclass
class StageWork:
    """One transformation: its elements, the work that it caused, and its settings."""

    path: str
    settings: dict[str, Value] = field(default_factory=dict)
    elements: int = 0
    calls: int = 0
    work_ps: int = 0
    operations: "Counter[str]" = field(default_factory=Counter)

    @property
    def op(self) -> str:
        """The type of transformation."""
        return self.path.rpartition("::")[2]

    @property
    def depth(self) -> int:
        """The distance from the output."""
        return self.path.count("::")


@dataclass
class InputPipeline:
    """An input pipeline in a trace, in picoseconds; the loop waited for it during `root`."""

    stages: list[StageWork]
    unlinked_ps: int
    root: Intervals
    root_settings: dict[str, Value]
    first_ps: int
    last_ps: int
    shortened: bool
    work_while_waiting_ps: int

    @property
    def threads_while_waiting(self) -> float:
        """How many threads worked at a time while the loop waited; over all if it never did."""
        waited = length(self.root)
        if waited:
            return self.work_while_waiting_ps / waited
        return sum(stage.work_ps for stage in self.stages) / max(1, self.last_ps - self.first_ps)

    @property
    def batch_size(self) -> int | None:
        """Examples per element of the output, if a stage has that setting."""
        sizes = (stage.settings.get("batch_size") for stage in self.stages)
        return next((size for size in sizes if isinstance(size, int) and size > 0), None)

    @property
    def vcpus(self) -> int | None:
        """The vCPUs that the runtime planned with."""
        budget = self.root_settings.get("cpu_budget")
        return budget if isinstance(budget, int) and budget > 0 else None


@dataclass
class _Found:
    """What is collected from all threads."""

    paths: dict[Value, str] = field(default_factory=dict)
    stages: dict[str, StageWork] = field(default_factory=dict)
    flows: dict[Value, str] = field(default_factory=dict)
    work: list[tuple[Event, "Counter[str]"]] = field(default_factory=list)
    root: Intervals = field(default_factory=list)
    root_settings: dict[str, Value] = field(default_factory=dict)

    def stage(self, path: str) -> StageWork:
        return self.stages.setdefault(path, StageWork(path))


def read_pipeline(space: Space) -> InputPipeline | None:
    """Find the stages of the input pipeline; None if the trace has no tf.data events."""
    planes = (
        plane
        for plane in host_planes(space)
        if any(name.startswith(ITERATOR) for name in plane.names().values())
    )
    chosen = [_Thread(line) for plane in planes for line in plane.lines]
    count = sum(len(thread.wanted) for thread in chosen)
    if not count:
        return None
    first = min(thread.events.starts_ps[thread.wanted[0]] for thread in chosen if thread.wanted)
    last = max(thread.events.starts_ps[thread.wanted[-1]] for thread in chosen if thread.wanted)
    # Cut by time and not by count, so that all threads end at the same moment.
    if shortened := count > MOST_EVENTS:
        last = first + (last - first) * MOST_EVENTS // count
    found = _Found()
    for thread in chosen:
        _walk(found, thread.until(last))
    return _link(found, first, last, shortened)


class _Thread:
    """The relevant events of one thread in order of time, callers first."""

    def __init__(self, line: Line) -> None:
        self.line, self.events = line, line.events()
        events = self.events
        relevant = {each for each in set(events.ids) if _matters(line.plane.name_of(each))}
        self.wanted = [index for index, each in enumerate(events.ids) if each in relevant]
        self.wanted.sort(key=lambda i: (events.starts_ps[i], -events.ends_ps[i]))

    def until(self, last: int) -> Iterator[Event]:
        starts, name_of = self.events.starts_ps, self.line.plane.name_of
        for index in self.wanted:
            if starts[index] > last:
                return
            name = name_of(self.events.ids[index])
            if _OPERATION.match(name):
                yield Event(name, starts[index], self.events.ends_ps[index] - starts[index], {})
            else:
                yield from self.line.detail(self.events, [index])


def _matters(name: str) -> bool:
    return (
        name.startswith(ITERATOR)
        or name in (EXECUTOR, FUNCTION)
        or bool(_PRODUCE.match(name) or _OPERATION.match(name))
    )


@dataclass
class _Frame:
    """An event with others nested inside, and the stage that they work for."""

    event: Event
    path: str | None
    inside_ps: int = 0
    operations: "Counter[str] | None" = None


def _walk(found: _Found, events: Iterable[Event]) -> None:
    """Follow one thread with a stack of the events that are open."""
    stack: list[_Frame] = []
    for event in events:
        while stack and stack[-1].event.end_ps <= event.start_ps:
            _leave(found, stack.pop())
        frame = _enter(found, event, stack)
        if frame:
            stack.append(frame)
    while stack:
        _leave(found, stack.pop())


def _enter(found: _Found, event: Event, stack: list[_Frame]) -> _Frame | None:
    above = stack[-1] if stack else None
    if event.name.startswith(ITERATOR):
        return _enter_iterator(found, event, stack)
    if event.name == EXECUTOR:
        # A nested executor is part of the outer one.
        if any(frame.operations is not None for frame in stack):
            return None
        if above:
            above.inside_ps += event.duration_ps
        return _Frame(event, above.path if above else None, operations=Counter())
    if event.name == FUNCTION:
        if above and above.path and "_p" in event.stats:
            found.flows[event.stats["_p"]] = above.path
            found.stage(above.path).calls += 1
        return None
    if _PRODUCE.match(event.name):
        return _Frame(event, None)
    operation = _OPERATION.match(event.name)
    runs = next((frame.operations for frame in stack if frame.operations is not None), None)
    if operation and runs is not None:
        runs[operation[1]] += event.duration_ps
    return None


def _enter_iterator(found: _Found, event: Event, stack: list[_Frame]) -> _Frame:
    path = event.name
    stage = found.stage(path)
    stage.elements += 1
    stage.settings.update((k, v) for k, v in event.stats.items() if v != UNAVAILABLE)
    found.paths[event.stats.get("id", path)] = path
    if path == ROOT:
        found.root.append((event.start_ps, event.end_ps))
        found.root_settings.update(event.stats)
    if stack:
        stack[-1].inside_ps += event.duration_ps
        if _PRODUCE.match(stack[-1].event.name):
            # The next output is made from this element, by the stage above it.
            stack[-1].path = path.rpartition("::")[0]
    return _Frame(event, path)


def _leave(found: _Found, frame: _Frame) -> None:
    if frame.operations is not None:
        found.work.append((frame.event, frame.operations))
    elif frame.event.name.startswith(ITERATOR) and frame.path:
        stage = found.stage(frame.path)
        if not _WAITING.search(stage.op):
            stage.work_ps += max(0, frame.event.duration_ps - frame.inside_ps)


def _link(found: _Found, first: int, last: int, shortened: bool) -> InputPipeline:
    """Credit the work of all executors to the stages that started it."""
    unlinked = while_waiting = 0
    root = union(compact(found.root))
    waited = Coverage(root)
    for event, operations in found.work:
        while_waiting += waited.between(event.start_ps, event.end_ps)
        path = found.flows.get(event.stats.get("_c", ""))
        if path is None:
            unlinked += event.duration_ps
            continue
        stage = found.stage(path)
        stage.work_ps += event.duration_ps
        stage.operations.update(operations)
    stages = sorted(
        (stage for stage in found.stages.values() if stage.path != ROOT),
        key=lambda stage: (-stage.depth, stage.path),
    )
    return InputPipeline(
        stages=stages,
        unlinked_ps=unlinked,
        root=root,
        root_settings=found.root_settings,
        first_ps=first,
        last_ps=last,
        shortened=shortened,
        work_while_waiting_ps=while_waiting,
    )


def by_operation(stages: Iterable[StageWork]) -> dict[str, float]:
    """The share of each type of operation in all work, largest first."""
    total: Counter[str] = Counter()
    for stage in stages:
        total.update(stage.operations)
    whole = sum(total.values()) or 1
    return {name: time_ps / whole for name, time_ps in total.most_common()}
