"""Run a plain Keras script inside a strategy and count the steps of each device.

    python -m tpuctl.training.runner --framework tensorflow --strategy mirrored SCRIPT [ARGS...]

`tpuctl launch` uses this for scripts without strategy code. The script runs as `__main__`, as if it
had been started directly.
"""

import argparse
import builtins
import os
import sys
import threading
from contextlib import ExitStack
from importlib import import_module
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

from tpuctl.profiling.program.hook.tpuctl_after_import import AfterImport
from tpuctl.training.devices import COUNTS_VARIABLE, Executed, write_counts

# They connect to other hosts, which must precede everything else.
_AT_START = ("distributed+mesh", "multiworker-mirrored", "tpu-grpc", "tpu-name")
# What a script creates first, in Keras 3; devices are opened when an older Keras is imported.
_FIRST = {
    "keras.src.layers.layer": ("Layer", "__new__"),
    "keras.src.backend.common.variables": ("Variable", "__init__"),
    "keras.src.engine.base_layer": None,
    "keras.engine.base_layer": None,
    "tf_keras.src.engine.base_layer": None,
}


def main(arguments: list[str] | None = None) -> None:
    """Run the script in the scope of the devices and write the counts."""
    parser = argparse.ArgumentParser(prog="python -m tpuctl.training.runner")
    parser.add_argument("--framework", choices=["tensorflow", "jax"], required=True)
    parser.add_argument("--strategy", required=True)
    parser.add_argument("--cpu-devices", type=int)
    parser.add_argument("script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    args = parser.parse_args(arguments)
    os.environ["KERAS_BACKEND"] = args.framework
    adapter = import_module(f"tpuctl.training._{args.framework}")
    if args.cpu_devices and args.framework == "tensorflow":
        adapter.split_cpu(args.cpu_devices)
    counts: list[Executed] = []
    file = os.environ.get(COUNTS_VARIABLE)
    try:
        with ExitStack() as stack:
            opening = _Opening(adapter, args.strategy, counts, stack)
            if args.strategy in _AT_START:
                opening.open()
            else:
                sys.meta_path.insert(0, AfterImport(_FIRST, opening.hook))
            run_as_main(args.script, args.arguments)
    finally:
        if file:
            write_counts(Path(file), counts)
        else:
            names = ", ".join(map(str, counts)) or "no device"
            sys.stderr.write(f"steps executed by: {names}\n")


class _Opening:
    """Opens the devices when the script creates its first layer or variable.

    Until then the script can configure its framework, whose devices must not be in use for that.
    """

    def __init__(
        self, adapter: Any, strategy: str, counts: list[Executed], stack: ExitStack
    ) -> None:
        self._adapter, self._strategy = adapter, strategy
        self._counts, self._stack = counts, stack
        self._plain: list[tuple[Any, str, Any]] = []

    def hook(self, module: ModuleType) -> None:
        """Open the devices before the first call of a method of this module."""
        if (found := _FIRST[module.__name__]) is None:
            return self.open()
        kind, name = getattr(module, found[0]), found[1]
        plain = vars(kind)[name]
        call = getattr(kind, name)

        def first(*arguments: Any, **named: Any) -> Any:
            if self._plain and threading.current_thread() is threading.main_thread():
                self.open()
            return call(*arguments, **named)

        self._plain.append((kind, name, plain))
        setattr(kind, name, staticmethod(first) if isinstance(plain, staticmethod) else first)

    def open(self) -> None:
        """Open the devices, enter their scope and count their steps from now on."""
        while self._plain:
            setattr(*self._plain.pop())
        remote = os.environ.get("TPU_NAME")
        devices = self._stack.enter_context(
            self._adapter.open_devices(self._strategy, remote=remote)
        )
        # Kept and not left again, since the script may be inside a scope of its own now.
        self._scope = devices.scope()
        self._scope.__enter__()
        self._stack.enter_context(self._adapter.counting_steps(devices, self._counts))


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
    exec(code, module.__dict__)  # noqa: S102 (the user's own script)


if __name__ == "__main__":
    main()
