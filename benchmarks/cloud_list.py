"""`tpuctl list`: 40 slow zones against one call, 1,000 + 1,000 objects against a bare client."""

import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tpuctl.clock import ManualClock, WallClock
from tpuctl.cloud.connect import connect
from tpuctl.cloud.list import list_tpus
from tpuctl.cloud.models import ALL_ZONES, NodeRequest
from tpuctl.emulator.server import Emulator, serve

ZONES = {
    f"zone{number:02}-a": {"types": ["v5litepod-8"], "capacity_chips": 400, "quota_chips": 400}
    for number in range(40)
}
SLOW = {"zones": ZONES, "latency_ms": 200}
REFUSING = {
    **SLOW,
    "faults": [
        {"on": method, "zone": ALL_ZONES, "error": "zone_hidden", "every": True}
        for method in ("list_nodes", "list_queued_resources")
    ],
}
# Room for the 25 nodes that each zone gets, and none for as many queued resources.
FULL = {
    "zones": {zone: {**plan, "capacity_chips": 200} for zone, plan in ZONES.items()},
    "provision_s": 0,
}


def main() -> None:
    """Print what is promised, each as a ratio within this run."""
    for what, scenario in (("at most 3", SLOW), ("one by one: 3 and their CPU", REFUSING)):
        with serve(scenario, clock=WallClock()) as emulator:
            api = connect("practice", endpoint=emulator.endpoint)
            one_call_s = _median_s(api.list_zones)
            ratio = _median_s(lambda api=api: list_tpus(api)) / one_call_s
        print(f"cloud list: 40 zones of 200 ms / one call: {ratio:.2f} ({what})")
    with serve(FULL, clock=WallClock()) as emulator:
        _fill(emulator.endpoint)
        _measure_full(emulator)


def _measure_full(emulator: Emulator) -> None:
    api = connect("practice", endpoint=emulator.endpoint)
    bare_s = _median_s(lambda: _list_bare(emulator.endpoint))
    service_s = _median_s(lambda: list_tpus(api))
    environment = {**os.environ, "TPUCTL_TPU_ENDPOINT": emulator.endpoint}
    command = [sys.executable, "-m", "tpuctl", "list", "--json"]
    start = time.perf_counter()
    printed = subprocess.run(command, env=environment, check=True, capture_output=True).stdout
    command_s = time.perf_counter() - start
    data = json.loads(printed)["data"]
    found = len(data["tpus"]), len(data["queued_resources"])
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s, peak_mb = used.ru_utime + used.ru_stime, used.ru_maxrss / 1024
    print(f"cloud list: {found[0]:,} nodes + {found[1]:,} queued resources")
    print(f"cloud list: list_tpus / bare client, one after the other: {service_s / bare_s:.2f}")
    print(
        f"cloud list: the whole command: {command_s:.2f} s, {cpu_s:.2f} s of them its own CPU "
        "(below 3 s where the machine is idle)"
    )
    print(f"cloud list: peak memory of the command: {peak_mb:.0f} MiB (at most 200)")


def _fill(endpoint: str) -> None:
    """Fill every zone with nodes, and put as many queued resources in a line that stands still."""
    # On a clock of its own, or else the rate limit of creates would make this take half an hour.
    api = connect("practice", endpoint=endpoint, clock=ManualClock(WallClock().now()))
    for number in range(1000):
        zone = f"zone{number % len(ZONES):02}-a"
        api.create_node(_request(f"n{number}", zone))
        api.create_queued_resource(_request(f"q{number}", zone))


def _request(name: str, zone: str) -> NodeRequest:
    return NodeRequest(name, zone, "v5litepod-8", "v2-alpha-tpuv5-lite", create_id=name)


def _list_bare(endpoint: str) -> Any:
    """List with Google's client alone."""
    from google.cloud import tpu_v2
    from google.cloud.tpu_v2.services.tpu.transports import TpuGrpcTransport

    from tests.emulator_world import open_channel

    with open_channel(endpoint, Path(os.environ["TPUCTL_TPU_TOKEN_FILE"]).read_text()) as channel:
        client = tpu_v2.TpuClient(transport=TpuGrpcTransport(channel=channel))
        parent = "projects/practice/locations/-"
        return (
            list(client.list_nodes(parent=parent)),
            list(client.list_queued_resources(parent=parent)),
        )


def _median_s(task: Callable[[], object], runs: int = 5) -> float:
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        task()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


if __name__ == "__main__":
    main()
