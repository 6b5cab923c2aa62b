"""The parent's side of compiling: a child process that is started when first needed."""

import importlib.util
import os
import sys
from contextlib import ExitStack
from types import TracebackType

from tpuctl.codec import from_plain, to_plain
from tpuctl.compile.cache import Cache
from tpuctl.compile.models import Compilation, CompileRequest
from tpuctl.diagnosis.explain import explain
from tpuctl.errors import CompilerError, MissingExtraError, TpuctlError
from tpuctl.progress import OnProgress, Progress
from tpuctl.usercode.child import Child, start_child
from tpuctl.usercode.function import try_alone

OLDEST_PYTHON = (3, 11)
# Limits of the phases that are not the user's code; --timeout bounds the others.
LIMITS_S = {"starting": 300.0, "starting the compiler": 300.0, "compiling": float("inf")}
MORE_TIME = "If it is only slow, allow more time with --timeout."
# Without them libtpu would wait for a metadata server, and take a TPU that others may need.
ENVIRONMENT = {"TPU_SKIP_MDS_QUERY": "1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}


class Session:
    """Compiles, or reads the cache; a context manager that ends the child process."""

    def __init__(self, cache: Cache, *, timeout_s: float, on_progress: OnProgress) -> None:
        self.cache, self._timeout_s, self._on_progress = cache, timeout_s, on_progress
        self._child: Child | None = None
        self._stack = ExitStack()
        self.compilations = 0

    def __enter__(self) -> "Session":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def compile(self, request: CompileRequest) -> Compilation:
        """Compile one program, unless the cache has it.

        Raises what the child raised, MissingExtraError, and TargetError when it hangs or dies.
        """
        if known := self.cache.load(request):
            return known
        child = self._child or self._start()
        child.ask(to_plain(request))
        for message in child.listen(LIMITS_S, self._timeout_s, more_time=MORE_TIME):
            if "result" in message:
                result = message["result"]
                compilation = from_plain(Compilation, result["compilation"])
                self.cache.save(request, compilation, result["files"])
                self.compilations += 1
                return compilation
            if "error" in message:
                raise explained(child.error(message))
            seconds = round(message["done_s"], 1)
            step = message["phase"]
            if step == "compiling":
                batch = f", batch {request.batch_size:,}" if request.batch_size else ""
                step = f"compiling for a {request.slice.accelerator_type}{batch}"
            self._on_progress(Progress("fit", seconds, None, "s", step))
        function = request.target.function
        raise child.exit_error("compiling", hint=try_alone(function) if function else None)

    def _start(self) -> Child:
        for module in ("jax", "libtpu"):
            if importlib.util.find_spec(module) is None:
                raise missing(module, sys.version_info[:2])
        env = dict(ENVIRONMENT)
        if importlib.util.find_spec("tensorflow") is None and not os.environ.get("KERAS_BACKEND"):
            env["KERAS_BACKEND"] = "jax"
        self._child = self._stack.enter_context(start_child("tpuctl.compile.child", env=env))
        return self._child


def missing(module: str, python: tuple[int, int]) -> MissingExtraError:
    """Make the error for a missing module; the extra installs nothing on an older Python."""
    error = MissingExtraError("Compiling for a TPU", extra="aot", module=module)
    if python < OLDEST_PYTHON:
        here, needed = (".".join(map(str, version)) for version in (python, OLDEST_PYTHON))
        error.hint = f"It needs Python {needed} or newer, and this is {here}: {error.hint} there."
    return error


def explained(error: Exception) -> Exception:
    """Add a hint from the catalogue of failures to an error of the compiler or of tracing."""
    if isinstance(error, CompilerError) and error.hint:
        return error  # it was read from the compiler's own words
    matches = explain(str(error)).matches if isinstance(error, TpuctlError) else ()
    if isinstance(error, TpuctlError) and matches and matches[0].confidence != "low":
        error.hint = f"{matches[0].title} ({matches[0].code}): {matches[0].fix}"
    return error
