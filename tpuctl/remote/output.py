"""Output of many workers as one text: whole lines, each with its workers, equal ones folded.

Pure: bytes and the time go in, bytes come out. What one worker prints stays in its order; a line
waits at most `WINDOW_S` for the same line of the others, and what waits is bounded.
"""

from bisect import bisect_right
from collections import defaultdict, deque
from dataclasses import dataclass, field
from operator import attrgetter

from tpuctl.remote.hosts import ranges

WINDOW_S = 0.25
"""How long a line waits for the same line of other workers."""

LONGEST_LINE_BYTES = 1 << 16
"""A longer line is cut into pieces of this size, so that no worker can fill our memory."""

_WAITING_LINES = 4096
_WAITING_BYTES = 4 << 20
_NAMED_ABSENT = 3


class LineSplitter:
    """Cuts a stream into lines at `\\n`, `\\r\\n` and the `\\r` of progress bars."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that are whole now, without their ends."""
        # A \\r at the very end may be half of \\r\\n.
        text = self._rest + data
        held = b"\r" if text.endswith(b"\r") else b""
        text = text[: len(text) - len(held)]
        if b"\r" in text:
            text = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *lines, rest = text.split(b"\n")
        while len(rest) > LONGEST_LINE_BYTES:
            lines.append(rest[:LONGEST_LINE_BYTES])
            rest = rest[LONGEST_LINE_BYTES:]
        self._rest = rest + held
        return lines

    def finish(self) -> list[bytes]:
        """What is left at the end of the stream, as a last line."""
        rest, self._rest = self._rest.rstrip(b"\r"), b""
        return [rest] if rest else []


@dataclass(frozen=True)
class Line:
    """A line that some workers printed; `stream` is 1 or 2."""

    stream: int
    text: bytes
    workers: frozenset[int]


@dataclass
class _Group:
    number: int
    stream: int
    text: bytes
    since_s: float
    workers: set[int] = field(default_factory=set)


_number = attrgetter("number")


class LineMerger:
    """Joins equal lines of different workers that come within a moment of each other."""

    def __init__(self, workers: int) -> None:
        self._all = workers
        self._waiting: deque[_Group] = deque()
        self._by_text: dict[tuple[int, bytes], list[_Group]] = defaultdict(list)
        self._last_number: dict[int, int] = {}
        self._next_number = 0
        self._waiting_bytes = 0

    def add(self, worker: int, stream: int, text: bytes, now_s: float) -> list[Line]:
        """Take a line; the lines that are ready to be shown."""
        group = self._group_for(worker, stream, text)
        if group is None:
            group = _Group(self._next_number, stream, text, now_s)
            self._next_number += 1
            self._waiting.append(group)
            self._by_text[stream, text].append(group)
            self._waiting_bytes += len(text)
        group.workers.add(worker)
        self._last_number[worker] = group.number
        return self.due(now_s)

    def _group_for(self, worker: int, stream: int, text: bytes) -> _Group | None:
        """The first line waiting that this may join without overtaking an earlier one of it."""
        last = self._last_number.get(worker, -1)
        waiting = self._by_text.get((stream, text), [])
        place = bisect_right(waiting, last, key=_number)
        return waiting[place] if place < len(waiting) else None

    def due(self, now_s: float) -> list[Line]:
        """The lines that everybody has said, that waited long enough, or that are too many."""
        lines = []
        while self._waiting and self._is_due(self._waiting[0], now_s):
            lines.append(self._take())
        return lines

    def finish(self) -> list[Line]:
        """Every line that still waits."""
        return [self._take() for _ in range(len(self._waiting))]

    @property
    def next_due_s(self) -> float | None:
        """When to ask again; None when nothing waits."""
        return self._waiting[0].since_s + WINDOW_S if self._waiting else None

    def leave(self, worker: int) -> None:
        """Wait no longer for a worker that has ended."""
        self._all -= 1

    def _is_due(self, group: _Group, now_s: float) -> bool:
        return (
            len(group.workers) >= self._all
            or now_s >= group.since_s + WINDOW_S
            or len(self._waiting) > _WAITING_LINES
            or self._waiting_bytes > _WAITING_BYTES
        )

    def _take(self) -> Line:
        group = self._waiting.popleft()
        same = self._by_text[group.stream, group.text]
        same.pop(0)
        if not same:
            del self._by_text[group.stream, group.text]
        self._waiting_bytes -= len(group.text)
        return Line(group.stream, group.text, frozenset(group.workers))


class LinePrefixes:
    """Says in front of a line whose it is."""

    def __init__(self, workers: tuple[int, ...]) -> None:
        self._workers = workers
        self._width = len(str(max(workers, default=0)))
        self._known: dict[frozenset[int], bytes] = {}

    def of(self, line: Line) -> bytes:
        """The line as it is shown, with its end."""
        prefix = self._known.get(line.workers)
        if prefix is None:
            if len(self._known) > _WAITING_LINES:
                self._known.clear()
            prefix = self._known[line.workers] = self._name(line.workers).encode()
        return prefix + line.text + b"\n"

    def _name(self, workers: frozenset[int]) -> str:
        if len(workers) == 1:
            return f"[{min(workers):>{self._width}}] "
        absent = set(self._workers) - workers
        if not absent:
            return f"all {len(workers)} workers: "
        if len(absent) <= _NAMED_ABSENT and len(absent) < len(workers):
            return f"{len(workers)} of {len(self._workers)} workers (not {ranges(absent)}): "
        return f"{len(workers)} of {len(self._workers)} workers ({ranges(workers)}): "
