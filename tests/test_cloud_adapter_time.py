"""The service's clock, our pace and our patience: pure, with a clock that only we move."""

import threading
from datetime import datetime, timedelta, timezone
from email.utils import format_datetime
from typing import Any

import pytest
from google.cloud import tpu_v2
from hypothesis import given
from hypothesis import strategies as st

from tests.tpu_service import TpuService
from tpuctl.clock import ManualClock
from tpuctl.cloud.api import TpuApi
from tpuctl.cloud.connect import connect
from tpuctl.cloud.retry import RETRIES, RateLimiter, load_request_limits, with_retries
from tpuctl.cloud.service_clock import (
    EMULATED_SCALE,
    EMULATED_TIME,
    ServerTime,
    ServiceClock,
    read_time,
)
from tpuctl.errors import NotFoundError, RateLimitedError, UnavailableError

NOON = datetime(2026, 11, 20, 12, 0, tzinfo=timezone.utc)
DAY = timedelta(days=1)


@pytest.fixture
def local() -> ManualClock:
    return ManualClock(NOON)


def test_before_the_first_reply_it_is_the_machines_time(local: ManualClock) -> None:
    assert ServiceClock(local).now() == NOON


def test_a_reply_sets_the_clock_and_the_machine_moves_it_on(local: ManualClock) -> None:
    clock = ServiceClock(local)
    clock.observe(ServerTime(NOON - DAY), sent=NOON)
    local.sleep(7)
    assert clock.now() == NOON - DAY + timedelta(seconds=7)


def test_a_slow_reply_does_not_move_a_clock_that_may_be_right(local: ManualClock) -> None:
    clock = ServiceClock(local)
    local.sleep(10)
    for told_s in (0, 3, 10):
        clock.observe(ServerTime(NOON + timedelta(seconds=told_s)), sent=NOON)
        assert clock.now() == NOON + timedelta(seconds=10)


def test_a_date_cut_to_seconds_does_not_turn_the_clock_back(local: ManualClock) -> None:
    clock = ServiceClock(local)
    local.sleep(0.9)
    clock.observe(ServerTime(NOON, resolution_s=1.0), sent=local.now())
    assert clock.now() == NOON + timedelta(seconds=0.9)


@given(st.floats(-1e6, 1e6), st.floats(0, 100), st.floats(0, 100))
def test_after_a_reply_the_error_is_less_than_the_reply_took(
    wrong_by: float, out_s: float, back_s: float
) -> None:
    local = ManualClock(NOON)
    clock, sent = ServiceClock(local), local.now()
    local.sleep(out_s)
    told = local.now() + timedelta(seconds=wrong_by)
    local.sleep(back_s)
    clock.observe(ServerTime(told), sent=sent)
    truth = local.now() + timedelta(seconds=wrong_by)
    assert abs(clock.now() - truth) <= timedelta(seconds=out_s + back_s, microseconds=2)


def test_an_emulators_minute_may_be_a_second_of_ours(local: ManualClock) -> None:
    clock = ServiceClock(local)
    clock.observe(ServerTime(NOON + DAY, scale=60), sent=NOON)
    clock.sleep(120)
    assert local.now() == NOON + timedelta(seconds=2)
    assert clock.now() == NOON + DAY + timedelta(seconds=120)
    assert clock.elapsed_s() == 120


def test_time_that_has_passed_does_not_jump_with_what_time_it_is(local: ManualClock) -> None:
    clock = ServiceClock(local)
    local.sleep(5)
    clock.observe(ServerTime(NOON - DAY), sent=local.now())
    clock.observe(ServerTime(NOON + DAY, scale=10), sent=local.now())
    local.sleep(2)
    assert clock.elapsed_s() == 5 + 20


def test_googles_date_header_sets_the_clock(local: ManualClock) -> None:
    service = TpuService()
    service.answer("GetNode", tpu_v2.Node(name="projects/p/locations/z/nodes/t1"))
    service.headers = (("date", format_datetime(NOON + DAY, usegmt=True)),)
    with service.serve() as address:
        api = connect(None, endpoint=address, clock=local)
        api.get_node("t1", zone="z")
    assert api.clock.now() == NOON + DAY


@pytest.mark.parametrize(
    ("date", "time", "scale"),
    [
        ("yesterday", "", ""),
        ("Fri, 20 Nov 12026 12:00:00 GMT", "", ""),
        ("", "noon", ""),
        ("", "2026-11-20T12:00:00", ""),
        ("", "0001-01-01T00:00:00Z", ""),
        ("", "2026-11-20T12:00:00Z", "fast"),
        ("", "2026-11-20T12:00:00Z", "0"),
        ("", "2026-11-20T12:00:00Z", "-1"),
        ("", "2026-11-20T12:00:00Z", "nan"),
        ("", "2026-11-20T12:00:00Z", "inf"),
    ],
)
def test_a_time_that_is_none_is_not_believed(date: str, time: str, scale: str) -> None:
    headers = {"date": date, EMULATED_TIME: time, EMULATED_SCALE: scale}
    assert read_time({name: value for name, value in headers.items() if value}) is None


def test_the_services_time_may_be_in_any_zone() -> None:
    told = read_time({EMULATED_TIME: "2026-11-20T14:00:00.500000+02:00"})
    assert told is not None
    assert told.time == NOON + timedelta(seconds=0.5)


@given(st.dictionaries(st.sampled_from(["date", EMULATED_TIME, EMULATED_SCALE]), st.text()))
def test_no_header_is_a_reason_to_fail(headers: dict[str, str]) -> None:
    read_time(headers)


def test_so_many_requests_pass_at_once_and_then_one_at_a_time(local: ManualClock) -> None:
    pace = RateLimiter(ServiceClock(local), per_minute=60, at_once=3)
    passed = []
    for _ in range(5):
        pace.wait()
        passed.append((local.now() - NOON).total_seconds())
    assert passed == [0, 0, 0, 1, 2]


@given(st.lists(st.floats(0, 30), max_size=80))
def test_no_minute_has_more_than_the_rate_and_one_burst(pauses: list[float]) -> None:
    local = ManualClock(NOON)
    pace = RateLimiter(ServiceClock(local), per_minute=20, at_once=5)
    times = []
    for pause_s in pauses:
        local.sleep(pause_s)
        pace.wait()
        times.append((local.now() - NOON).total_seconds())
    for start in times:
        assert sum(start <= time < start + 59.99 for time in times) <= 20 + 5


def test_a_stop_holds_those_too_that_had_their_turn(local: ManualClock) -> None:
    pace = RateLimiter(ServiceClock(local), per_minute=60, at_once=1)
    pace.wait()
    pace.stop_for(30)
    pace.wait()
    assert local.now() == NOON + timedelta(seconds=30)
    pace.stop_for(5)
    pace.stop_for(0)
    pace.wait()
    assert local.now() == NOON + timedelta(seconds=35)


class FlakyApi:
    """Fails as planned, then answers."""

    project, endpoint, emulated = "p", "here", True

    def __init__(self, clock: ServiceClock, *failures: Exception) -> None:
        self.clock, self.failures, self.asked = clock, list(failures), 0

    def list_zones(self) -> tuple[str, ...]:
        self.asked += 1
        if self.failures:
            raise self.failures.pop(0)
        return ("z",)


def patient(local: ManualClock, *failures: Exception, chance: float = 1.0) -> Any:
    clock = ServiceClock(local)
    api: Any = FlakyApi(clock, *failures)
    return api, with_retries(api, load_request_limits(), clock, chance=lambda: chance)


def test_waits_double_up_to_a_bound(local: ManualClock) -> None:
    _, api = patient(local, *[UnavailableError("away")] * 5)
    assert api.list_zones() == ("z",)
    assert local.now() - NOON == timedelta(seconds=0.5 + 1 + 2 + 4 + 8)


def test_waits_are_anything_up_to_their_bound(local: ManualClock) -> None:
    _, api = patient(local, UnavailableError("away"), chance=0.1)
    api.list_zones()
    assert local.now() - NOON == timedelta(seconds=0.05)


def test_patience_ends(local: ManualClock) -> None:
    flaky, api = patient(local, *[UnavailableError("away")] * 100)
    with pytest.raises(UnavailableError, match="away"):
        api.list_zones()
    assert flaky.asked == 6
    assert local.now() - NOON < timedelta(seconds=30)


def test_a_refusal_for_the_rate_is_outlasted_longer_but_not_for_ever(local: ManualClock) -> None:
    flaky, api = patient(local, *[RateLimitedError("fast", retry_after_s=60)] * 100)
    with pytest.raises(RateLimitedError):
        api.list_zones()
    assert timedelta(minutes=14) <= local.now() - NOON <= timedelta(minutes=15)
    assert flaky.asked == 16


def test_an_answer_is_an_answer_also_when_it_is_no(local: ManualClock) -> None:
    flaky, api = patient(local, NotFoundError("none"))
    with pytest.raises(NotFoundError):
        api.list_zones()
    assert flaky.asked == 1


def test_threads_never_share_a_slot(local: ManualClock) -> None:
    pace = RateLimiter(ServiceClock(local), per_minute=6000, at_once=1)
    threads = [threading.Thread(target=pace.wait) for _ in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert local.now() - NOON >= timedelta(seconds=0.49)


def test_every_call_of_the_port_has_a_retry_policy() -> None:
    assert set(RETRIES) == {name for name in vars(TpuApi) if not name.startswith("_")}
