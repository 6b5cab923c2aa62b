"""Count the calls of a program's compiled JAX functions, for loops whose input is not seen.

JAX calls a hook after every compiled function. Where it is set is private to JAX.
"""

import contextlib
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import CodeType, ModuleType
from typing import Any

from tpuctl.profiling.frameworks.stacks import is_library, location_of_code
from tpuctl.profiling.program.watch import WARM_STEPS, Steps, Watch


@dataclass
class _Function:
    """A compiled function: how much it returns, and when its calls after the warm-up ended."""

    name: str
    result_bytes: int
    examples: int
    count: int = 0
    first_s: float = 0.0
    last_s: float = 0.0

    def called(self) -> None:
        self.count += 1
        self.last_s = time.perf_counter()
        if self.count == WARM_STEPS:
            self.first_s = self.last_s

    def steps(self) -> Steps:
        step_s = (self.last_s - self.first_s) / (self.count - WARM_STEPS)
        return Steps(self.name, self.count, step_s * 1e3, self.examples or None)


def hook_jax(watch: Watch, module: ModuleType) -> None:
    """Count calls from now on, unless the program has such a hook of its own (jax_debug_nans)."""
    jax: Any = module
    functions: dict[CodeType, _Function | None] = {}
    library = os.path.join(os.path.dirname(os.path.dirname(jax.__file__)), "")
    main = threading.main_thread().ident

    def called(function: Any, arguments: Any, named: Any, result: Any) -> None:
        code = getattr(getattr(function, "__wrapped__", None), "__code__", None)
        if code is None or threading.get_ident() != main or not watch.is_on:
            return
        if code not in functions:
            functions[code] = None
            if not code.co_filename.startswith(library):
                with contextlib.suppress(Exception):  # the program must not notice
                    functions[code] = _described(jax, code, (arguments, named), result)
        if found := functions[code]:
            found.called()

    def steps() -> Steps | None:
        """The calls of the function that returns most, which are the parameters."""
        own = [each for each in functions.values() if each and each.count > WARM_STEPS + 1]
        return max(own, key=lambda each: each.result_bytes).steps() if own else None

    # Another release may have it elsewhere: then nothing is counted.
    with contextlib.suppress(AttributeError):
        _install(jax, called)
    watch.other_steps = steps


def _install(jax: Any, called: Callable[..., None]) -> None:
    if hasattr(jax, "_post_hook_state"):
        if jax._post_hook_state.value is None:
            jax._post_hook_state.set_global(called)
    elif (older := jax.jax_jit.global_state()).post_hook is None:
        older.post_hook = called


def _described(jax: Any, code: CodeType, arguments: Any, result: Any) -> _Function:
    # What comes from the host is a batch.
    hosts = [leaf for leaf in jax.tree_leaves(arguments) if type(leaf).__module__ == "numpy"]
    examples = max((leaf.shape[0] for leaf in hosts if leaf.ndim), default=0)
    size = sum(getattr(leaf, "nbytes", 0) for leaf in jax.tree_leaves(result))
    where = "" if is_library(code.co_filename) else f" at {location_of_code(code)}"
    return _Function(f"{code.co_name}{where}", size, examples)
