"""Ask the compiler: a child process that is started when first needed and asked many questions."""

import importlib.util
import os
import sys
from contextlib import ExitStack
from types import TracebackType

from tpuctl.codec import from_plain, to_plain
from tpuctl.compile.cache import Cache
from tpuctl.compile.models import Compilation, CompileRequest
from tpuctl.diagnosis.explain import explain
from tpuctl.errors import MissingExtraError, TpuctlError
from tpuctl.progress import OnProgress, Progress
from tpuctl.usercode.child import Child, start_child
from tpuctl.usercode.function import try_alone

NO_LIMIT_S = float("inf")
OLDEST_PYTHON = (3, 11)
START_S = 300.0
MORE_TIME = "If it is slow and not stuck, give it more time with --timeout."
# Asking the metadata server would wait for one; a TPU that is here must stay free for others.
ENVIRONMENT = {"TPU_SKIP_MDS_QUERY": "1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}


class Session:
    """Answers questions from the cache or by compiling; a context manager that ends the child."""

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

    def compile(self, question: CompileRequest) -> Compilation:
        """Answer one question.

        Raises what the child raised, MissingExtraError, and TargetError when it hangs or dies.
        """
        if known := self.cache.load(question):
            return known
        child = self._child or self._start()
        child.ask(to_plain(question))
        limits_s = {"starting": START_S, "starting the compiler": START_S, "compiling": NO_LIMIT_S}
        for message in child.listen(limits_s, self._timeout_s, more_time=MORE_TIME):
            if "result" in message:
                compilation = from_plain(Compilation, message["result"]["compilation"])
                self.cache.save(question, compilation, message["result"]["files"])
                self.compilations += 1
                return compilation
            if "error" in message:
                raise explained(child.error(message))
            seconds = round(message["done_s"], 1)
            self._on_progress(Progress("fit", seconds, None, "s", _say(message["phase"], question)))
        function = question.target.function
        raise child.death("compiling", hint=try_alone(function) if function else None)

    def _start(self) -> Child:
        for module in ("jax", "libtpu"):
            if importlib.util.find_spec(module) is None:
                raise missing(module, sys.version_info[:2])
        self._child = self._stack.enter_context(start_child("tpuctl.compile.child", env=_env()))
        return self._child


def missing(module: str, python: tuple[int, int]) -> MissingExtraError:
    """Say what to install; an older Python gets nothing from the extra."""
    error = MissingExtraError("Compiling for a TPU", extra="aot", module=module)
    if python < OLDEST_PYTHON:
        here, needed = (".".join(map(str, version)) for version in (python, OLDEST_PYTHON))
        error.hint = f"It needs Python {needed} or newer, and this is {here}: {error.hint} there."
    return error


def explained(error: Exception) -> Exception:
    """Add what the catalogue of failures knows about an error of the compiler or the bridge."""
    matches = explain(str(error)).matches if isinstance(error, TpuctlError) else ()
    if isinstance(error, TpuctlError) and matches:
        error.hint = f"{matches[0].title} ({matches[0].code}): {matches[0].fix}"
    return error


def _env() -> dict[str, str]:
    keras = os.environ.get("KERAS_BACKEND")
    without_tensorflow = importlib.util.find_spec("tensorflow") is None
    return {**ENVIRONMENT, **({"KERAS_BACKEND": "jax"} if without_tensorflow and not keras else {})}


def _say(phase: str, question: CompileRequest) -> str:
    batch = f", batch {question.batch_size:,}" if question.batch_size else ""
    where = question.slice.accelerator_type
    return f"{phase} for a {where}{batch}" if phase == "compiling" else phase
