"""A tf.data service: which servers it has, where, and the line of code that uses it."""

from dataclasses import dataclass
from typing import Any

from tpuctl.outcome import Outcome

PORT = 5050


@dataclass(frozen=True)
class Server:
    """One server: `dispatcher` or `worker-N`, its address, and how often it was started anew."""

    name: str
    address: str
    restarts: int = 0


@dataclass(frozen=True)
class Service(Outcome):
    """A tf.data service that runs."""

    target: str
    servers: tuple[Server, ...]
    line: str
    seconds: float


def line_of(target: str) -> str:
    """What to write in the training: between the pipeline and its consumer."""
    return (
        "dataset = dataset.apply(tf.data.experimental.service.distribute("
        f'processing_mode=tf.data.experimental.service.ShardingPolicy.OFF, service="{target}"))'
    )


def plan_servers(
    addresses: list[str], *, workers: int, port: int, work_dir: str
) -> list[list[dict[str, Any]]]:
    """Which servers each machine keeps: the dispatcher on the first, workers dealt out to all."""
    dispatcher = f"{addresses[0]}:{port}"
    plans: list[list[dict[str, Any]]] = [[] for _ in addresses]
    plans[0].append(
        {
            "name": "dispatcher",
            "role": "dispatcher",
            "port": port,
            "work_dir": work_dir,
            "address": addresses[0],
        }
    )
    for number in range(workers):
        machine = number % len(addresses)
        plans[machine].append(
            {
                "name": f"worker-{number}",
                "role": "worker",
                "dispatcher": dispatcher,
                "address": addresses[machine],
                # Not even two machines share a port: they may be two names of one.
                "port": port + 1 + number,
            }
        )
    return plans
