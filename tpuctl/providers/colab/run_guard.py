"""The program of a guard, which `guard.start_guard` starts."""

import argparse
import signal
import sys
from contextlib import suppress
from datetime import timedelta

from tpuctl.clock import Clock, WallClock
from tpuctl.errors import TpuctlError, TryAgainError
from tpuctl.providers.colab.api import ColabApi
from tpuctl.providers.colab.create import open_api
from tpuctl.providers.colab.guard import IGNORED, LOCK, LOOK_S, Guard, next_check_s
from tpuctl.providers.colab.job import fetch_output
from tpuctl.providers.colab.provider import job_states
from tpuctl.providers.colab.records import Records
from tpuctl.storage.local import locked

SLICE_S = 2.0


def main() -> None:
    """Guard one runtime until it is gone."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name")
    name = parser.parse_args().name
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)
    records = Records()
    api: ColabApi | None = None
    with suppress(TryAgainError), locked(records.lock(name, LOCK), wait_s=0, busy="guarded"):
        last = ""
        while True:
            record = records.find(name)
            if record is None:
                return
            try:
                # The API is opened again after a failure: the login may have been renewed.
                api = api or open_api(record.plane)
                if not Guard(records, api, name, job_states, fetch_output).check():
                    return
                last = ""
            except TpuctlError as error:
                if str(error) != last:
                    sys.stderr.write(f"{error}\n")
                last = str(error)
                if not isinstance(error, TryAgainError):
                    api = None
                # Not by Colab's clock: past a deadline, or emulated, that would be at once.
                WallClock().sleep(SLICE_S)
            wait_s = next_check_s(record, api.clock.now()) if api else LOOK_S
            _wait(records, name, wait_s, api.clock if api else WallClock())


def _wait(records: Records, name: str, wait_s: float, clock: Clock) -> None:
    """Wait, but not for a runtime that was deleted meanwhile."""
    end = clock.now() + timedelta(seconds=wait_s)
    while records.find(name) and (left := (end - clock.now()).total_seconds()) > 0:
        clock.sleep(min(left, SLICE_S))
