"""Traces as bytes: what is written is what is read, and what is damaged is told, never raised."""

import contextlib
import gzip
import random
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import xspaces
from tests.xspaces import Event, Line, Plane, chip, host, pipeline, session, training
from tpuctl.errors import InvalidInputError, NotFoundError, TpuctlError
from tpuctl.profiling.models import Verdict
from tpuctl.profiling.trace.events import LONGEST_FAST
from tpuctl.profiling.trace.files import find_capture, open_trace
from tpuctl.profiling.trace.intervals import FEW, Intervals, subtract, union
from tpuctl.profiling.trace.profile import profile_trace
from tpuctl.profiling.trace.xspace import Events, read_space
from tpuctl.protobuf_wire import (
    LANE_BITS,
    LANE_BYTES,
    Damaged,
    add_lanes,
    decode_lanes,
    fields,
    varint,
    varint_bytes,
)

TRAINING = xspaces.space(training(6, wait_ms=30) + pipeline(16) + [session(10**18, 2 * 10**18)])


def write(folder: Path, data: bytes, name: str = "host.xplane.pb") -> Path:
    place = folder / name
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(data)
    return place


@given(st.lists(st.integers(0, 2**LANE_BITS - 1), max_size=50))
def test_many_numbers_at_once_are_the_numbers_one_by_one(values: list[int]) -> None:
    encoded = [varint_bytes(value) for value in values]
    lanes = b"".join(each.ljust(LANE_BYTES, b"\0") for each in encoded)
    assert list(decode_lanes(lanes)) == values
    assert [varint(each, 0, len(each))[0] for each in encoded] == values


@given(st.lists(st.tuples(st.integers(0, 2**61), st.integers(0, 2**61))))
def test_columns_added_as_huge_integers_are_the_sums_one_by_one(
    pairs: list[tuple[int, int]],
) -> None:
    a, b = (array("Q", [pair[side] for pair in pairs]) for side in (0, 1))
    assert list(add_lanes(a, b)) == [x + y for x, y in pairs]


def test_fields_are_handed_out_as_far_as_they_go() -> None:
    data = xspaces.message(1, b"abcdef")[:-2]
    walk = fields(data, 0, len(data))
    assert next(walk) == (1, 2, 2, len(data))
    with pytest.raises(Damaged, match="2 bytes are missing"):
        next(walk)


@given(st.binary(max_size=200))
def test_bytes_that_are_no_message_end_in_damaged_and_nothing_else(data: bytes) -> None:
    with contextlib.suppress(Damaged):
        assert all(end <= len(data) for _, _, _, end in fields(data, 0, len(data)))


def test_events_are_read_with_their_times_names_and_statistics() -> None:
    events = [
        Event("a", 1.5, 0.25, {"id": 7, "rate": 2.5, "text": "x"}),
        Event("b", 2.0, 0.0, {"name": "ref:shared"}),
        Event("long", 3.0, 1.0, {"text": "y" * LONGEST_FAST}),
        Event("a", 4.0, 1.0),
    ]
    space = read_space(xspaces.space([Plane("/host:CPU", [Line("main", events, 1_000_000)])]))
    (line,) = space.planes[0].lines
    read = list(line.detail(line.events(), range(len(events))))
    assert [event.name for event in read] == ["a", "b", "long", "a"]
    assert [event.start_ps for event in read] == [2.5e9, 3e9, 4e9, 5e9]
    assert [event.duration_ps for event in read] == [0.25e9, 0, 1e9, 1e9]
    assert read[0].stats == {"id": 7, "rate": 2.5, "text": "x"}
    assert read[1].stats == {"name": "shared"}
    assert space.damage == []


def test_fields_in_another_order_are_read_too() -> None:
    body = xspaces.number(3, 5) + xspaces.number(2, 9) + xspaces.number(1, 1)
    head = xspaces.message(2, b"main")
    plane = xspaces.message(2, b"/host:CPU") + xspaces.message(3, head + xspaces.message(4, body))
    (line,) = read_space(xspaces.message(1, plane)).planes[0].lines
    assert list(line.events().rows()) == [(1, 9, 14)]


def test_a_line_of_events_in_another_order_is_read_in_one_walk() -> None:
    odd = xspaces.number(3, 5) + xspaces.number(2, 9) + xspaces.number(1, 1)
    usual = xspaces.number(1, 1) + xspaces.number(2, 9) + xspaces.number(3, 5)
    events = b"".join(xspaces.message(4, body) for body in (usual, odd, odd) * 10_000)
    plane = xspaces.message(3, xspaces.message(2, b"x") + events)
    (line,) = read_space(xspaces.message(1, plane)).planes[0].lines
    assert set(line.events().rows()) == {(1, 9, 14)}
    assert len(line.events()) == 30_000


def test_an_event_without_times_beside_one_with_an_impossible_one_is_read() -> None:
    events = [xspaces.message(4, xspaces.number(1, 3)), xspaces.message(4, xspaces.number(2, -1))]
    plane = xspaces.message(3, xspaces.message(2, b"x") + b"".join(events))
    (line,) = read_space(xspaces.message(1, plane)).planes[0].lines
    assert list(line.events().rows()) == [(3, 0, 0)]


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 10**14), st.integers(0, 10**12))))
def test_any_events_are_read_as_they_were_written(rows: list[tuple[int, int, int]]) -> None:
    encoded = b"".join(
        xspaces.message(
            4, b"".join(xspaces.number(i, value) for i, value in enumerate(row, 1) if value)
        )
        for row in rows
    )
    plane = xspaces.message(3, xspaces.message(2, b"x") + encoded + xspaces.message(11, b"tail"))
    space = read_space(xspaces.message(1, xspaces.message(2, b"/host:CPU") + plane))
    (line,) = space.planes[0].lines
    assert list(line.events().rows()) == [(i, a, a + b) for i, a, b in rows]
    assert space.damage == []


def test_times_from_1970_are_counted_from_the_start_of_the_capture() -> None:
    early, late = 1_741_722_099_000_000_000, 1_741_722_100_000_000_000
    lines = [Line("a", [Event("x", 0, 1)], early), Line("b", [Event("x", 0, 1)], late)]
    space = read_space(xspaces.space([Plane("/host:CPU", lines)]))
    starts = [line.events().starts_ps[0] for line in space.planes[0].lines]
    assert starts[1] - starts[0] == 10**12


def test_an_event_with_an_impossible_time_is_left_out_and_counted() -> None:
    events = [Event("a", 0, 1), Event("a", 5e9, 1), Event("b", 2, 1, {"id": 7})]
    space = read_space(xspaces.space([Plane("/host:CPU", [Line("main", events)])]))
    (line,) = space.planes[0].lines
    assert [event.name for event in line.detail(line.events(), range(2))] == ["a", "b"]
    assert [event.stats for event in line.detail(line.events(), [1])] == [{"id": 7}]
    assert space.implausible == 1


MOMENTS = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 9)), max_size=8).map(
    lambda pairs: union((start, start + length) for start, length in pairs)
)


@given(MOMENTS, st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20))))
def test_events_in_some_moments_are_those_that_overlap_with_one(
    moments: Intervals, times: list[tuple[int, int]]
) -> None:
    starts, ends = array("q", [a for a, _ in times]), array("q", [a + b for a, b in times])
    events = Events(array("Q", [1] * len(times)), starts, ends, range(len(times)))
    overlapping = [
        (1, start, end)
        for start, end in zip(starts, ends, strict=True)
        if any(start < b and a < end for a, b in moments)
    ]
    assert list(events.rows_in(moments)) == overlapping


MANY = [(start, start + 1) for start in range(0, 70, 2)]


@given(MOMENTS, MOMENTS | st.just(MANY))
def test_moments_that_are_subtracted_are_gone_and_no_others(a: Intervals, b: Intervals) -> None:
    left, given, taken = (
        {x for pair in pairs for x in range(*pair)} for pairs in (subtract(a, b), a, b)
    )
    assert left == given - taken
    assert len(MANY) > FEW


ANSWERS = {*get_args(Verdict), "invalid"}


def outcome(place: Path) -> str:
    """What a user would get: a verdict or one clear error; anything else fails the test."""
    try:
        return profile_trace(place).verdict
    except TpuctlError as error:
        return error.code if place.name in str(error) else "an error that names no file"


@pytest.mark.parametrize("every", [97])
def test_a_trace_cut_anywhere_gives_an_answer_or_one_error(tmp_path: Path, every: int) -> None:
    outcomes = set()
    for end in range(0, len(TRAINING), every):
        place = write(tmp_path, TRAINING[:end])
        outcomes.add(outcome(place))
    assert "invalid" in outcomes
    assert len(outcomes) > 1
    assert outcomes <= ANSWERS


def test_a_trace_cut_in_the_middle_says_how_much_is_missing(tmp_path: Path) -> None:
    profile = profile_trace(write(tmp_path, TRAINING[: len(TRAINING) // 2]))
    assert profile.status == "partial"
    assert any("bytes are missing" in note for note in profile.notes)


def test_a_whole_trace_is_not_called_damaged(tmp_path: Path) -> None:
    profile = profile_trace(write(tmp_path, TRAINING))
    assert profile.status == "ok"
    assert profile.notes == ()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(150))
def test_a_trace_with_flipped_bytes_gives_an_answer_or_one_error(tmp_path: Path, seed: int) -> None:
    rng, data = random.Random(seed), bytearray(TRAINING)
    for _ in range(rng.choice((1, 3, 30))):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    assert outcome(write(tmp_path, bytes(data))) in ANSWERS


@given(data=st.binary(max_size=400))
def test_any_bytes_give_an_answer_or_one_error(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    place = write(tmp_path_factory.getbasetemp(), data, "any.xplane.pb")
    assert outcome(place) in ANSWERS


def as_text(data: bytes) -> bytes:
    return data.decode("utf-8", "replace").encode()


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "it is empty"),
        (b"\0" * 4096, "it is empty"),
        (as_text(TRAINING), "replaced by U+FFFD"),
        (b'{"traceEvents": []}', "looks like JSON"),
        (gzip.compress(b'{"traceEvents": []}', mtime=0), "looks like JSON"),
        (b"<!doctype html>", "web page"),
        (b"PK\x03\x04....", "zip archive"),
        (b"version https://git-lfs.github.com/spec/v1\noid x", "git lfs pull"),
        (b"\x7fELF" + bytes(range(256)), "another format"),
        (xspaces.message(1, xspaces.message(1, b"v5e")), "another format"),
    ],
)
def test_a_file_that_is_no_trace_is_one_error_that_says_what_it_is(
    tmp_path: Path, data: bytes, words: str
) -> None:
    with pytest.raises(InvalidInputError) as caught:
        profile_trace(write(tmp_path, data))
    assert words in str(caught.value)
    assert caught.value.hint


def test_a_trace_in_which_nothing_happened_is_one_error(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="is empty"):
        profile_trace(write(tmp_path, xspaces.space([session(1, 2)])))


def test_a_zipped_trace_is_read_and_one_cut_off_as_far_as_it_goes(tmp_path: Path) -> None:
    whole = gzip.compress(TRAINING)
    assert profile_trace(write(tmp_path, whole, "a.xplane.pb.gz")).status == "ok"
    cut = profile_trace(write(tmp_path, whole[: len(whole) * 9 // 10], "b.xplane.pb.gz"))
    assert cut.status == "partial"


def test_a_folder_means_its_newest_capture(tmp_path: Path) -> None:
    runs = tmp_path / "plugins" / "profile"
    write(runs / "2026_01_02_03_04_05", xspaces.space(training(wait_ms=50)))
    write(runs / "2026_01_02_03_04_06", xspaces.space(training(wait_ms=10)))
    profile = profile_trace(tmp_path)
    assert profile.device_idle_fraction == pytest.approx(0.1, abs=0.01)
    assert "2026_01_02_03_04_05" in profile.notes[0]


def test_of_several_hosts_the_one_that_was_idle_most_decides(tmp_path: Path) -> None:
    for name, wait_ms in (("a", 10.0), ("b", 60.0), ("c", 20.0)):
        planes = [*training(wait_ms=wait_ms), session(10**18, 10**18 + 10**9)]
        write(tmp_path, xspaces.space(planes, hostname=name), f"{name}.xplane.pb")
    profile = profile_trace(tmp_path)
    assert profile.device_idle_fraction == pytest.approx(0.6, abs=0.01)
    assert profile.trace
    assert [each.name for each in profile.trace.hosts] == ["a", "b", "c"]


def test_two_captures_in_one_folder_are_told_apart_by_their_times(tmp_path: Path) -> None:
    for name, start, wait_ms in (("a", 1, 90.0), ("b", 5, 20.0)):
        times = session(start * 10**18, start * 10**18 + 10**9)
        planes = [*training(wait_ms=wait_ms), times]
        write(tmp_path, xspaces.space(planes, hostname=name), f"{name}.xplane.pb")
    profile = profile_trace(tmp_path)
    assert profile.device_idle_fraction == pytest.approx(0.2, abs=0.01)
    assert any("a.xplane.pb" in note and "earlier" in note for note in profile.notes)


def test_a_host_whose_trace_cannot_be_read_is_named_and_the_others_count(tmp_path: Path) -> None:
    write(tmp_path, xspaces.space(training(wait_ms=30)), "a.xplane.pb")
    write(tmp_path, as_text(TRAINING), "b.xplane.pb")
    profile = profile_trace(tmp_path)
    assert profile.device_idle_fraction == pytest.approx(0.3, abs=0.01)
    assert any("b.xplane.pb" in note and "U+FFFD" in note for note in profile.notes)


@pytest.mark.parametrize(
    "make", [lambda path: path, lambda path: path / "gone", lambda path: path / "gone.xplane.pb"]
)
def test_nothing_to_read_is_not_found(tmp_path: Path, make: Callable[[Path], Path]) -> None:
    with pytest.raises(NotFoundError, match=r"does not exist|file found in"):
        find_capture(make(tmp_path))


def test_a_trace_without_names_still_gives_the_busy_time() -> None:
    data = xspaces.plane(chip(0, [(0, 50), (100, 150)]))
    cut = data.index(xspaces.message(2, b"%fusion.0")) - 8
    space = read_space(data[:cut])
    assert len(space.planes[0].lines[0].events()) == 2
    assert space.planes[0].name_of(1) == ""


def test_a_trace_is_opened_whatever_the_host_is_called(tmp_path: Path) -> None:
    data = xspaces.space(
        [*training(), host([])], hostname="h\udcff".encode("utf-8", "replace").decode()
    )
    assert open_trace(write(tmp_path, data)).hostnames == ["h?"]
