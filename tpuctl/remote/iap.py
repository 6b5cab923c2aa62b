"""SSH through Google's Identity-Aware Proxy, for workers without an external address.

The tunnel is gcloud's, as ssh's ProxyCommand: its protocol and its login are not documented.
"""

import shlex
import shutil
from collections.abc import Sequence
from dataclasses import replace

from tpuctl.cloud.api import TpuApi
from tpuctl.cloud.models import Node
from tpuctl.errors import NotFoundError, WorkerUnreachableError
from tpuctl.remote.hosts import Host


def through_iap(api: TpuApi, node: Node, hosts: Sequence[Host]) -> tuple[Host, ...]:
    """Return the same workers, reached through the proxy.

    Raises NotFoundError where gcloud is not installed, and WorkerUnreachableError for a worker
    whose VM is unknown.
    """
    program = shutil.which("gcloud")
    if program is None:
        raise NotFoundError(
            "--iap needs gcloud, which is not installed here.",
            hint="https://cloud.google.com/sdk/docs/install, or --jump user@ip",
        )
    names = [endpoint.vm for endpoint in node.endpoints]
    if not all(names):
        # The VMs of the Cloud TPU API are not in the project; each publishes its name.
        published = api.guest_attributes(node, "")
        names = [worker.get("hostname") for worker in published] or names
    return tuple(
        replace(host, proxy=_command(program, api, node, names[host.index])) for host in hosts
    )


def _command(program: str, api: TpuApi, node: Node, vm: str | None) -> str:
    if not vm:
        raise WorkerUnreachableError(
            f"{node.name} in {node.zone} does not publish the names of its VMs, which --iap needs.",
            hint=f"gcloud compute tpus tpu-vm ssh {node.name} --zone {node.zone} "
            "--tunnel-through-iap",
        )
    words = ["compute", "start-iap-tunnel", vm, "22", "--listen-on-stdin"]
    return shlex.join([program, *words, f"--project={api.project}", f"--zone={node.zone}"])
