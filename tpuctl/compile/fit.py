"""`tpuctl fit`: compile a program for TPUs that are not here, and say whether it fits."""

import importlib.util
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

from tpuctl.codec import from_plain, to_plain
from tpuctl.compile.batch_search import BatchTrial, LargestBatch, find_largest
from tpuctl.compile.cache import Cache, open_cache
from tpuctl.compile.estimate import advise, build_fit
from tpuctl.compile.models import (
    Comparison,
    Compilation,
    CompileRequest,
    Dtype,
    Fit,
    Rejection,
    Suggestion,
    Target,
)
from tpuctl.compile.slices import find_slice
from tpuctl.diagnosis.catalogue import failures
from tpuctl.diagnosis.explain import first_claim
from tpuctl.errors import (
    CompilerError,
    InvalidInputError,
    MissingExtraError,
    NotFoundError,
    TpuctlError,
    UsageError,
)
from tpuctl.hardware.types import describe
from tpuctl.progress import OnProgress, Progress, silent
from tpuctl.training.catalog import describe_script, find_template
from tpuctl.usercode.child import Child, start_child
from tpuctl.usercode.function import Function, parse_function, try_alone

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
    match = first_claim(str(error)) if isinstance(error, TpuctlError) else None
    if isinstance(error, TpuctlError) and match and failures()[match.code].kind == "cause":
        error.hint = f"{match.title} ({match.code}): {match.fix}"
    return error


SUPPORTED = (
    "module:function or path.py:function, a .mlir or .stablehlo file, or the name of a template"
)
FILE_SUFFIXES = (".mlir", ".stablehlo")
TEMPLATE_FUNCTION = "make_example"
TIMEOUT_S = 300.0


def parse_target(text: str) -> Target:
    """Interpret the argument TARGET; raises NotFoundError or InvalidInputError."""
    if function := parse_function(text):
        return Target("function", text, function=function)
    path = Path(text)
    if path.suffix in FILE_SUFFIXES:
        if not path.is_file():
            raise NotFoundError(
                f"Could not compile {text}: the file does not exist.",
                hint=f"Give its path relative to {Path.cwd()}.",
            )
        return Target("file", text, path=str(path.resolve()))
    if path.is_file():
        hint = f"{text}:function" if path.suffix == ".py" else SUPPORTED
        raise InvalidInputError(f"{text} is a file; fit takes {SUPPORTED}.", hint=hint)
    try:
        script = find_template(text)
    except NotFoundError as error:
        hint = f"fit takes {SUPPORTED}. {error.hint}"
        raise NotFoundError(f"{text!r} is not a target that fit can compile.", hint=hint) from error
    if not {"tensorflow", "jax"} & {*describe_script(script).frameworks}:
        raise InvalidInputError(
            f"{text} is a PyTorch program; fit compiles TensorFlow and JAX.",
            hint="Choose another template: tpuctl templates list",
        )
    return Target("template", text, function=Function(str(script), TEMPLATE_FUNCTION))


def fit(
    target: str,
    accelerator_type: str,
    *,
    batch_size: int | None = None,
    max_batch: bool = False,
    dtype: Dtype | None = None,
    training: bool = True,
    verify: bool = False,
    image_size: int | None = None,
    timeout_s: float = TIMEOUT_S,
    cache: Cache | None = None,
    on_progress: OnProgress = silent,
    session: Session | None = None,
) -> Fit:
    """Compile a program for a TPU that is not here, in a child process.

    Takes seconds to minutes, or a second if the result is cached. `timeout_s` bounds the user's
    code, not the compiler. A `session` brings its own cache, timeout and progress. Raises
    TpuctlError for what cannot be compiled.
    """
    parsed = parse_target(target)
    _check(parsed, batch_size, max_batch, dtype)
    request = CompileRequest(
        target=parsed,
        slice=find_slice(accelerator_type),
        batch_size=batch_size,
        dtype=dtype,
        training=training,
        image_size=image_size,
    )
    with ExitStack() as stack:
        running = session or stack.enter_context(
            Session(cache or open_cache(), timeout_s=timeout_s, on_progress=on_progress)
        )
        return _compile(request, running, max_batch=max_batch, verify=verify)


def _compile(request: CompileRequest, session: Session, *, max_batch: bool, verify: bool) -> Fit:
    before = session.compilations
    largest = _find_max(request, session) if max_batch else None
    if largest:
        request = _at(request, largest.best.per_device if largest.best else 1)
    compilation = session.compile(request)
    session.cache.remember(request)
    advice: tuple[Suggestion, ...] = ()
    if not compilation.fits:
        advice = tuple(advise(request, compilation))
        advice = tuple(_verified(advice, request, session)) if verify else advice
    return build_fit(request, compilation, largest, advice, session.compilations - before)


def fit_types(
    target: str,
    accelerator_types: Sequence[str],
    *,
    timeout_s: float = TIMEOUT_S,
    cache: Cache | None = None,
    on_progress: OnProgress = silent,
    **options: Any,
) -> Fit | Comparison:
    """Compile for one type, or compare several; `options` are those of `fit`.

    One name can list several types: `v5e-8,v6e-4`. Raises UsageError if no type is given, and
    CompilerError if the compiler rejects the program for all of them.
    """
    names = [name for names in accelerator_types for name in names.split(",") if name.strip()]
    for name in names:
        find_slice(name)
    if not names:
        raise UsageError(
            "fit needs the type of TPU to compile for.",
            hint="Add --accelerator-type v5e-8; see: tpuctl types",
        )
    given = cache or open_cache()
    with Session(given, timeout_s=timeout_s, on_progress=on_progress) as session:
        fits, rejected, last = [], [], None
        for name in dict.fromkeys(map(str.strip, names)):
            try:
                fits.append(fit(target, name, session=session, **options))
            except CompilerError as error:
                rejected.append(Rejection(describe(name).accelerator_type, str(error), error.hint))
                last = error
    if last and not fits:
        raise last
    return fits[0] if len(fits) == 1 and not rejected else Comparison(tuple(fits), tuple(rejected))


def _check(target: Target, batch_size: int | None, max_batch: bool, dtype: str | None) -> None:
    if batch_size is not None and batch_size < 1:
        raise UsageError(f"--batch must be at least 1, not {batch_size}.")
    if batch_size is not None and max_batch:
        raise UsageError("--batch and --max-batch exclude each other.", hint="Choose one of them.")
    if dtype not in (None, "bf16", "f32"):
        raise UsageError(f"Unknown dtype {dtype!r}.", hint="Use bf16 or f32.")
    if target.kind == "file" and (max_batch or dtype):
        flag = "--max-batch" if max_batch else "--dtype"
        raise UsageError(
            f"{flag} needs a function that builds the program; {target.text} is a finished one.",
            hint="Name the function that builds it: path.py:function",
        )


def _find_max(request: CompileRequest, session: Session) -> LargestBatch:
    slice_ = request.slice

    def attempt(per_device: int) -> BatchTrial:
        compilation = session.compile(replace(_at(request, per_device), report=False))
        if compilation.examples != per_device * slice_.devices:
            raise InvalidInputError(
                f"{request.target.text} has a batch size of {compilation.examples} instead of the "
                f"requested {per_device * slice_.devices}.",
                hint="Give the function a parameter: def make(batch): ...",
            )
        there = compilation.hbm_available_bytes or slice_.hbm_available_bytes
        return BatchTrial(per_device, compilation.fits, compilation.hbm_needed_bytes, there)

    return find_largest(attempt)


def _at(request: CompileRequest, per_device: int) -> CompileRequest:
    return replace(request, batch_size=per_device * request.slice.devices)


def _verified(
    advice: Sequence[Suggestion], request: CompileRequest, session: Session
) -> Iterator[Suggestion]:
    """Compile every change that does not need the user to edit a step."""
    for one in advice:
        changed = _changed(one, request, session)
        if changed is None:
            yield replace(one, why_not="only you can change your own step")
            continue
        try:
            compilation: Compilation = session.compile(replace(changed, report=False))
        except TpuctlError as error:
            yield replace(one, why_not=str(error))
            continue
        yield replace(one, fits=compilation.fits, hbm_needed_bytes=compilation.hbm_needed_bytes)


def _changed(one: Suggestion, request: CompileRequest, session: Session) -> CompileRequest | None:
    if one.code == "smaller-batch":
        return replace(request, batch_size=int(one.change.split()[-1]))
    if one.code == "bf16":
        return replace(request, dtype="bf16")
    return replace(request, remat=True) if "keras" in one.change else None
