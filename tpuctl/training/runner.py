"""Run a plain Keras script inside a strategy and count the steps of each device.

    python -m tpuctl.training.runner --framework tensorflow --strategy mirrored SCRIPT [ARGS...]

`tpuctl launch` uses this for scripts without strategy code. The script runs as `__main__`, as if it
had been started directly.
"""

import argparse
import os
import runpy
import sys
from pathlib import Path

from tpuctl.training.devices import COUNTS_VARIABLE, Executed, write_counts


def main(arguments: list[str] | None = None) -> None:
    """Open the devices, run the script in their scope and write the counts."""
    parser = argparse.ArgumentParser(prog="python -m tpuctl.training.runner")
    parser.add_argument("--framework", choices=["tensorflow", "jax"], required=True)
    parser.add_argument("--strategy", required=True)
    parser.add_argument("--cpu-devices", type=int)
    parser.add_argument("script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    args = parser.parse_args(arguments)
    os.environ["KERAS_BACKEND"] = args.framework
    if args.framework == "jax":
        from tpuctl.training._jax import counting_steps, open_devices
    else:
        from tpuctl.training._tensorflow import counting_steps, open_devices, split_cpu

        if args.cpu_devices:
            split_cpu(args.cpu_devices)
    with open_devices(args.strategy, remote=os.environ.get("TPU_NAME")) as devices:
        counts: list[Executed] = []
        try:
            with devices.scope(), counting_steps(devices, counts):
                # As `python SCRIPT ARGS` does: with the script's folder first on the path.
                sys.argv = [args.script, *args.arguments]
                sys.path.insert(0, str(Path(args.script).resolve().parent))
                runpy.run_path(args.script, run_name="__main__")
        finally:
            if file := os.environ.get(COUNTS_VARIABLE):
                write_counts(Path(file), counts)
            else:
                names = ", ".join(map(str, counts)) or "no device"
                sys.stderr.write(f"steps executed by: {names}\n")


if __name__ == "__main__":
    main()
