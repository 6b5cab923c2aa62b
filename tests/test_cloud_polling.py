"""Looking again and again: not too often, not for ever, and never giving up on an old look."""

from datetime import datetime, timezone

from tpuctl.clock import ManualClock
from tpuctl.cloud.retry import Polling
from tpuctl.errors import DeadlineError


def looks_until_given_up(*, timeout_s: float, look_takes_s: float) -> list[float]:
    """At what second each look begins, before it is enough."""
    clock = ManualClock(datetime(2026, 11, 20, 9, tzinfo=timezone.utc))
    polling = Polling(clock, timeout_s=timeout_s)
    looks: list[float] = []
    while len(looks) < 100:
        looks.append(polling.waited_s)
        clock.sleep(look_takes_s)
        try:
            polling.pause("It is not gone", hint="")
        except DeadlineError:
            return looks
    raise AssertionError("this goes on for ever")


def test_the_last_look_is_at_the_deadline() -> None:
    assert looks_until_given_up(timeout_s=25, look_takes_s=0) == [0, 10, 20, 25]
    assert looks_until_given_up(timeout_s=25, look_takes_s=1) == [0, 11, 22, 25]


def test_a_look_that_took_past_the_deadline_is_not_the_last() -> None:
    assert looks_until_given_up(timeout_s=25, look_takes_s=60) == [0, 60]
    assert looks_until_given_up(timeout_s=25, look_takes_s=12) == [0, 22, 34]
