"""What does `tpuctl fit` cost beside JAX's own ahead-of-time compilation of the same function?

Whole commands, in turns: wall time, and the memory of the largest process. Then the same question
again, answered from the cache, beside the start of tpuctl.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from tpuctl.compile.fit import ENVIRONMENT

ROUNDS = 3
PROGRAM = Path(__file__).with_name("fit_program.py")
BARE = """
import sys
sys.path.insert(0, sys.argv[1])
import jax, numpy as np
from jax.experimental import topologies
from fit_program import make
topology = topologies.get_topology_desc(
    platform="tpu", topology_name="v5e:1x1", chips_per_host_bounds=[1, 1, 1]
)
device = topology.devices[0]
step, arguments = make()
place = jax.sharding.SingleDeviceSharding(device)
there = lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=place)
compiled = step.lower(*jax.tree.map(there, arguments)).compile()
print(compiled.memory_analysis(), compiled.cost_analysis()["flops"])
"""


def run(command: Sequence[str], cache: str) -> tuple[float, float]:
    """Wall seconds, and the MiB of the largest process that it was."""
    env = {
        **os.environ,
        "TPUCTL_CACHE_DIR": cache,
        **ENVIRONMENT,
        "JAX_PLATFORMS": "cpu",
    }
    start = time.perf_counter()
    process = subprocess.Popen(
        command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{' '.join(command[:4])} ended with {process.returncode}")
    return time.perf_counter() - start, usage.ru_maxrss / 1024


def main() -> None:
    bare = [sys.executable, "-c", BARE, str(PROGRAM.parent)]
    tpuctl = [sys.executable, "-m", "tpuctl"]
    fit = [*tpuctl, "fit", f"{PROGRAM}:make", "--type", "v5e-1"]
    theirs, ours, cached, start = [], [], [], []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(ROUNDS):
            cache = f"{folder}/{number}"
            theirs.append(run(bare, cache))
            ours.append(run(fit, cache))
            cached.append(run(fit, cache)[0])
            start.append(run([*tpuctl, "--help"], cache)[0])
    bare_s, fit_s = (median(seconds for seconds, _ in runs) for runs in (theirs, ours))
    bare_mib, fit_mib = (median(mib for _, mib in runs) for runs in (theirs, ours))
    share = fit_s / bare_s - 1
    print(
        f"fit: compile alone {bare_s:.1f} s, fit {fit_s:.1f} s: {share:+.0%} (at most 10 % or 2 s)"
    )
    print(
        f"fit: memory {fit_mib:.0f} MiB, alone {bare_mib:.0f} MiB: "
        f"{fit_mib / bare_mib:.2f} (at most 1.5)"
    )
    extra_s = median(cached) - median(start)
    print(f"fit: from the cache, beyond the start of tpuctl: {extra_s:.2f} s (at most 1 s)")


if __name__ == "__main__":
    main()
