"""A tf.data service on other machines, over SSH: they need TensorFlow, and nothing of ours."""

import json
import secrets
from pathlib import Path
from typing import NoReturn

from tpuctl.datasets import serve_agent
from tpuctl.datasets.serve_models import PORT, ServiceFailedError, plan_servers
from tpuctl.datasets.serving import OnNote, OnService, Watch, check_workers
from tpuctl.remote.access import Access
from tpuctl.remote.each import STDOUT, run_each
from tpuctl.remote.hosts import Host
from tpuctl.remote.run import Command

_AGENT = Path(serve_agent.__file__)
# Of this service alone: a dispatcher would go on with the workers that an older one had.
_WORK_DIR = "/tmp/tpuctl-serve-{}"


def serve_on_hosts(
    hosts: tuple[Host, ...],
    access: Access,
    *,
    workers: int | None = None,
    port: int | None = None,
    python: str = "python3",
    on_ready: OnService,
    on_note: OnNote,
) -> NoReturn:
    """Keep a dispatcher on the first machine and workers on all until a server gives up.

    One worker per machine by default, for each uses all vCPUs. They end with this process, or when
    the connection breaks. Raises ServiceFailedError, what kept a machine from being reached, and
    KeyboardInterrupt when all was stopped.
    """
    port, workers = port or PORT, check_workers(len(hosts) if workers is None else workers)
    addresses = [f"[{host.address}]" if ":" in host.address else host.address for host in hosts]
    work_dir = _WORK_DIR.format(secrets.token_hex(6))
    plans = plan_servers(addresses, workers=workers, port=port, work_dir=work_dir)
    watch = Watch(plans, on_ready, on_note)

    def on_line(worker: int, stream: int, line: str) -> bool:
        if stream == STDOUT:
            watch.take(line)
        else:
            on_note(f"[{worker}] {line}")
        return watch.error is None

    commands = {
        host.index: Command((python, "-c", _AGENT.read_text(), json.dumps({"servers": plan})), {})
        for host, plan in zip(hosts, plans, strict=True)
    }
    ends = run_each(hosts, commands, access, on_line=on_line)
    failed = next((end.failure for end in ends if end.failure), None)
    raise watch.error or failed or ServiceFailedError("The tf.data service ended without a word.")
