"""Run a plain Keras script inside a strategy and count the steps of each device.

    python -m tpuctl.training.runner --framework tensorflow --strategy mirrored SCRIPT [ARGS...]

`tpuctl launch` uses this for scripts without strategy code. The script runs as `__main__`, as if it
had been started directly.
"""

import argparse
import builtins
import os
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

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
                run_as_main(args.script, args.arguments)
        finally:
            if file := os.environ.get(COUNTS_VARIABLE):
                write_counts(Path(file), counts)
            else:
                names = ", ".join(map(str, counts)) or "no device"
                sys.stderr.write(f"steps executed by: {names}\n")


def run_as_main(script: str, arguments: list[str]) -> None:
    """Run a script as `python SCRIPT ARGS` does.

    Unlike `runpy.run_path`, it gives it an absolute `__file__` and stays `__main__` to the end.
    """
    file = os.path.abspath(script)
    sys.argv = [script, *arguments]
    sys.path.insert(0, str(Path(file).resolve().parent))
    module = sys.modules["__main__"] = ModuleType("__main__")
    own = {"__file__": file, "__builtins__": builtins, "__annotations__": {}, "__cached__": None}
    vars(module).update(own, __loader__=SourceFileLoader("__main__", file))
    code = compile(Path(file).read_bytes(), file, "exec", dont_inherit=True)
    exec(code, module.__dict__)  # noqa: S102 (the user's own script)  # nosec B102


if __name__ == "__main__":
    main()
