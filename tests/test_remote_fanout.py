"""The fold of many workers' output: pure, so the time is a number that the test chooses."""

from collections import defaultdict

import hypothesis.strategies as st
import pytest
from hypothesis import given

from tpuctl.remote.hosts import Host
from tpuctl.remote.output import (
    LONGEST_LINE_BYTES,
    WINDOW_S,
    Line,
    LineMerger,
    LinePrefixes,
    LineSplitter,
)
from tpuctl.remote.results import CommandResult, ExitReport, command_result


def shown(lines: list[Line], workers: int = 4) -> list[str]:
    prefixes = LinePrefixes(tuple(range(workers)))
    return [prefixes.of(line).decode() for line in lines]


def test_a_line_that_all_say_is_shown_once_and_at_once() -> None:
    fold = LineMerger(4)
    assert [fold.add(worker, 1, b"ready", 0.0) for worker in range(3)] == [[], [], []]
    assert shown(fold.add(3, 1, b"ready", 0.0)) == ["all 4 workers: ready\n"]


def test_a_line_that_one_worker_does_not_say_is_shown_after_the_window() -> None:
    fold = LineMerger(32)
    for worker in range(31):
        assert fold.add(worker, 1, b"step 1", 0.0) == []
    assert fold.due(WINDOW_S / 2) == []
    assert shown(fold.due(WINDOW_S), 32) == ["31 of 32 workers (not 31): step 1\n"]


def test_nobody_waits_for_a_worker_that_has_ended() -> None:
    fold = LineMerger(2)
    fold.add(0, 1, b"a", 0.0)
    fold.leave(1)
    assert shown(fold.due(0.0), 2) == ["[0] a\n"]


def test_stdout_and_stderr_are_not_joined() -> None:
    fold = LineMerger(2)
    fold.add(0, 1, b"a", 0.0)
    fold.add(1, 2, b"a", 0.0)
    assert [line.stream for line in fold.finish()] == [1, 2]


def test_the_same_line_twice_from_one_worker_stays_two_lines() -> None:
    fold = LineMerger(2)
    for worker in (0, 0, 1):
        fold.add(worker, 1, b"tick", 0.0)
    assert shown(fold.finish(), 2) == ["[0] tick\n"]


def test_too_many_waiting_lines_are_shown_before_their_time() -> None:
    fold, lines = LineMerger(2), []
    for number in range(10_000):
        lines += fold.add(0, 1, b"%d" % number, 0.0)
    assert len(lines) > 5_000
    assert [line.text for line in lines + fold.finish()] == [b"%d" % n for n in range(10_000)]


def test_too_many_waiting_bytes_are_shown_before_their_time() -> None:
    fold = LineMerger(2)
    lines = [line for _ in range(100) for line in fold.add(0, 1, b"x" * LONGEST_LINE_BYTES, 0.0)]
    assert lines


SAID = st.lists(st.tuples(st.integers(0, 3), st.sampled_from([b"a", b"b", b"c"])), max_size=60)


@given(SAID, st.integers(0, 5))
def test_every_worker_is_heard_in_its_own_order_and_nothing_is_lost_or_doubled(
    said: list[tuple[int, bytes]], pace: int
) -> None:
    fold, lines = LineMerger(4), []
    for moment, (worker, text) in enumerate(said):
        lines += fold.add(worker, 1, text, moment * pace * WINDOW_S / 4)
    lines += fold.finish()
    spoken, heard = defaultdict(list), defaultdict(list)
    for worker, text in said:
        spoken[worker].append(text)
    for line in lines:
        for worker in line.workers:
            heard[worker].append(line.text)
    assert heard == spoken


@given(st.lists(st.binary(max_size=30)), st.binary(max_size=50))
def test_lines_do_not_depend_on_how_the_bytes_arrive(chunks: list[bytes], more: bytes) -> None:
    data = b"".join(chunks) + more
    pieces, whole = LineSplitter(), LineSplitter()
    cut = [line for chunk in [*chunks, more] for line in pieces.feed(chunk)] + pieces.finish()
    assert cut == whole.feed(data) + whole.finish()


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"a\nb\n", [b"a", b"b"]),
        (b"a\r\nb", [b"a", b"b"]),
        (b"10%\r20%\r30%\n", [b"10%", b"20%", b"30%"]),
        (b"no end", [b"no end"]),
        (b"\xff\x00\n", [b"\xff\x00"]),
        (b"\n\n", [b"", b""]),
        (b"", []),
    ],
)
def test_lines_end_as_programs_and_progress_bars_end_them(data: bytes, lines: list[bytes]) -> None:
    splitter = LineSplitter()
    assert splitter.feed(data) + splitter.finish() == lines


def test_a_line_without_end_comes_in_pieces() -> None:
    splitter = LineSplitter()
    lines = splitter.feed(b"x" * (3 * LONGEST_LINE_BYTES + 1))
    assert [len(line) for line in lines] == [LONGEST_LINE_BYTES] * 3
    assert splitter.finish() == [b"x"]


@pytest.mark.parametrize(
    ("workers", "prefix"),
    [
        ({7}, "[ 7] "),
        (set(range(12)), "all 12 workers: "),
        (set(range(12)) - {3, 5}, "10 of 12 workers (not 3,5): "),
        ({0, 1, 2, 9}, "4 of 12 workers (0-2,9): "),
    ],
)
def test_a_prefix_says_whose_line_it_is(workers: set[int], prefix: str) -> None:
    line = Line(1, b"x", frozenset(workers))
    assert shown([line], 12) == [f"{prefix}x\n"]


@pytest.mark.parametrize(("number", "asks"), [(15, False), (2, False), (9, True), (11, True)])
def test_the_kernel_is_asked_about_a_program_that_nobody_has_ended(number: int, asks: bool) -> None:
    host, report = Host(0, "10.0.0.1", "me", 22, target="t1"), ExitReport(None, number, False)
    end = command_result(CommandResult, host, "The job", report)
    assert end.code == 128 + number
    assert end.failure
    assert ("dmesg" in (end.failure.hint or "")) is asks
