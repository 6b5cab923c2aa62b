"""libtpu's compiler behind jaxlib: the one place that touches what is not a stable API.

Public are only jax.experimental.topologies and `lower().compile()`; to compile a module that JAX
did not trace, and to read what came out, jaxlib's inside is needed. It changes from release to
release, so versions that were not tested are refused (tested.json).
"""

import contextlib
import re
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from jax._src import compiler
from jax._src.interpreters import mlir
from jax._src.lib import xla_client  # type: ignore[attr-defined]
from jax.experimental import topologies
from jaxlib.mlir import ir

from tpuctl.compile.hlo import parse
from tpuctl.compile.models import Compilation, Program, Tensor, Work
from tpuctl.compile.program import name_layers, read_out_of_memory, read_report, summarise
from tpuctl.compile.slices import Slice, load_facts
from tpuctl.errors import CompilerError

Options = dict[str, str]


@dataclass(frozen=True)
class Versions:
    """What is installed."""

    jax: str
    jaxlib: str
    libtpu: str


def check_versions() -> Versions:
    """Raise CompilerError where these versions have never been tried together."""
    here = Versions(version("jax"), version("jaxlib"), version("libtpu"))
    tested = load_facts("tested.json")
    pairs = [Versions(**pair) for pair in tested["adapter"]]
    if here in pairs:
        return here
    known = "; ".join(f"jax {pair.jax} with libtpu {pair.libtpu}" for pair in pairs)
    newest = pairs[-1]
    raise CompilerError(
        f"Compiling uses jaxlib's inside, which changes with every release: jax {here.jax}, jaxlib "
        f"{here.jaxlib} and libtpu {here.libtpu} were not tested together. "
        f"Tested as of {tested['as_of']}: {known}.",
        hint="In an environment of its own: pip install tpuctl "
        f"jax=={newest.jax} jaxlib=={newest.jaxlib} libtpu=={newest.libtpu}",
    )


def open_devices(slice_: Slice) -> list[Any]:
    """Make the devices of a TPU that is not here; raises CompilerError where libtpu knows none."""
    try:
        topology = topologies.get_topology_desc(
            platform="tpu", topology_name=slice_.topology, **slice_.options
        )
    except (RuntimeError, ValueError) as error:
        raise CompilerError(
            f"libtpu cannot compile for {slice_.accelerator_type} ({slice_.topology}): "
            f"{_first_line(error)}"
        ) from error
    devices = list(topology.devices)
    if len(devices) != slice_.devices:
        raise CompilerError(
            f"libtpu counts {len(devices)} devices in a {slice_.accelerator_type}; the facts of "
            f"tpuctl say {slice_.devices}.",
            hint="Please report it with the versions that tpuctl fit -v shows.",
        )
    return devices


def compile_module(
    module: ir.Module, devices: list[Any], options: Options | None, *, shardy: bool
) -> Any:
    """Compile a module that says itself how it is spread over the devices."""
    count = len(devices)
    given = compiler.get_compile_options(1, count, np.array([devices]))
    build = given.executable_build_options
    build.use_shardy_partitioner = shardy
    # Results stay cut where their inputs were, as in a program of JAX's own.
    build.allow_spmd_sharding_propagation_to_output = [True]
    if options:
        given.env_option_overrides = list(options.items())
    backend = devices[0].client
    listed = xla_client.DeviceList(tuple(devices))
    return backend.compile(module, executable_devices=listed, compile_options=given)


@contextlib.contextmanager
def module_context() -> Iterator[None]:
    """What MLIR modules are read and changed in."""
    with mlir.make_ir_context(), ir.Location.unknown():
        yield


def run_compiler(work: Work, slice_: Slice, *, report: bool) -> Compilation:
    """Compile, or find out how much memory is missing.

    Raises CompilerError for every other refusal. `report` asks for the largest tensors and the
    products of a program that does not fit, which takes a second compilation.
    """
    start = time.perf_counter()
    try:
        executable = work.compile(None)
    except (RuntimeError, NotImplementedError, ValueError) as error:
        missing = read_out_of_memory(str(error))
        if missing is None:
            raise CompilerError(
                f"The compiler refused the program for {slice_.accelerator_type}: "
                f"{_first_line(error)}"
            ) from error
        answer = _too_large(work, *missing, report=report)
    else:
        answer = _read(executable, work)
    return replace(answer, compile_s=time.perf_counter() - start)


def _read(executable: Any, work: Work) -> Compilation:
    memory = executable.get_compiled_memory_stats()
    text = executable.hlo_modules()[0].to_string()
    program = name_layers(summarise(parse(text)), work.layers)
    counted = float(executable.cost_analysis().get("flops", 0.0))
    needed_bytes = (
        memory.argument_size_in_bytes
        + memory.output_size_in_bytes
        - memory.alias_size_in_bytes
        + memory.temp_size_in_bytes
        + memory.generated_code_size_in_bytes
    )
    # XLA counts the body of a loop once.
    flops = max(0.0, counted) + program.repeated_flops
    return _compilation(work, program, fits=True, flops=flops, hbm_needed_bytes=needed_bytes)


def _too_large(work: Work, needed_bytes: int, available_bytes: int, *, report: bool) -> Compilation:
    program, tensors = _look_closer(work.compile) if report else (None, ())
    program = name_layers(program or Program((), (), 0, 0, 0, 0), work.layers)
    return _compilation(
        work,
        program,
        fits=False,
        flops=float(sum(matmul.flops * matmul.times for matmul in program.matmuls)),
        hbm_needed_bytes=needed_bytes,
        hbm_available_bytes=available_bytes,
        tensors=tensors,
    )


def _compilation(
    work: Work,
    program: Program,
    *,
    fits: bool,
    flops: float,
    hbm_needed_bytes: int,
    hbm_available_bytes: int | None = None,
    tensors: tuple[Tensor, ...] = (),
) -> Compilation:
    versions = check_versions()
    return Compilation(
        fits=fits,
        flops=flops,
        hbm_needed_bytes=hbm_needed_bytes,
        hbm_available_bytes=hbm_available_bytes,
        fixed_bytes=work.fixed_bytes,
        program=program,
        tensors=tensors,
        examples=work.examples,
        framework=work.framework,
        notes=work.notes,
        compile_s=0.0,
        jaxlib=versions.jaxlib,
        libtpu=versions.libtpu,
    )


def _look_closer(
    compile_: Callable[[Options], Any],
) -> tuple[Program | None, tuple[Tensor, ...]]:
    """Compile once more and have the compiler write down what takes the memory."""
    with tempfile.TemporaryDirectory(prefix="tpuctl-fit-") as folder:
        with contextlib.suppress(RuntimeError):
            compile_({"xla_dump_to": folder})
        reports = sorted(Path(folder).glob("*after_optimizations-memory-usage-report.txt"))
        programs = sorted(Path(folder).glob("*after_optimizations.txt"))
        tensors = read_report(reports[-1].read_text("utf-8")) if reports else ()
        program = summarise(parse(programs[-1].read_text("utf-8"))) if programs else None
        return program, tensors


def _first_line(error: BaseException) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return re.sub(r"^[A-Z_]+: ", "", lines[0])[:400]
