"""The machine that is measured on."""

import platform
import socket
from functools import cache

from tpuctl.pipeline import signals
from tpuctl.pipeline.cgroup import memory_limit_bytes
from tpuctl.pipeline.models import Host


def describe_host(tensorflow: str) -> Host:
    """Describe this machine."""
    import psutil

    memory = psutil.virtual_memory()
    limit = memory_limit_bytes() or memory.total
    return Host(
        name=socket.gethostname(),
        vcpus=len(signals.usable_cpus()),
        memory_bytes=min(memory.total, limit),
        memory_available_bytes=min(memory.available, limit),
        cpu_model=_cpu_model(),
        python=platform.python_version(),
        tensorflow=tensorflow,
    )


@cache
def _cpu_model() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            names = [
                line.split(":", 1)[1].strip() for line in file if line.startswith("model name")
            ]
    except OSError:
        names = []
    return names[0] if names else platform.machine()
