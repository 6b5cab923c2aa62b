"""libtpu's compiler, used through jaxlib: the one module that needs unstable interfaces.

Only jax.experimental.topologies and `lower().compile()` are public. Compiling a module that JAX
did not trace, and reading the compiled program, needs jaxlib's internals. They change with every
release, so versions that were not tested are rejected (tested.json).
"""

import contextlib
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from jax._src import compiler
from jax._src.interpreters import mlir
from jax._src.lib import xla_client  # type: ignore[attr-defined]
from jax.experimental import topologies
from jaxlib.mlir import ir

from tpuctl.compile.models import (
    Compilation,
    CompilerVersions,
    LoweredProgram,
    PallasKernel,
    Program,
    Tensor,
)
from tpuctl.compile.program import (
    name_layers,
    read_out_of_memory,
    read_program,
    read_report,
    read_vmem_overflow,
)
from tpuctl.compile.slices import Slice, is_tested, known_generations, load_facts
from tpuctl.errors import CompilerError, first_line
from tpuctl.units import MIB, format_bytes

Options = dict[str, str]
_EMPTY = Program((), (), 0, 0, 0, ())


def check_versions() -> CompilerVersions:
    """Return the installed versions; raises CompilerError if they were not tested together."""
    jax, jaxlib, libtpu = map(version, ("jax", "jaxlib", "libtpu"))
    if is_tested(jax, jaxlib, libtpu):
        return CompilerVersions(libtpu, jaxlib, known_generations(libtpu))
    tested = load_facts("tested.json")
    known = "; ".join(
        f"jax {one['jax']} with libtpu {' to '.join(one['libtpu'])}" for one in tested["adapter"]
    )
    python = sys.version_info[:2]
    best = [one for one in tested["adapter"] if tuple(one["python"]) <= python][-1]
    raise CompilerError(
        f"Compiling uses internals of jaxlib, which change with every release: jax {jax}, "
        f"jaxlib {jaxlib} and libtpu {libtpu} were not tested together. "
        f"Tested as of {tested['as_of']}: {known}.",
        hint="In a separate environment: pip install tpuctl "
        f"jax=={best['jax']} jaxlib=={best['jax']} libtpu=={best['libtpu'][-1]}",
    )


def open_devices(slice_: Slice) -> list[Any]:
    """Describe the devices of a TPU to the compiler; raises CompilerError if libtpu cannot."""
    try:
        topology = topologies.get_topology_desc(
            platform="tpu", topology_name=slice_.topology, **slice_.options
        )
    except (RuntimeError, ValueError) as error:
        raise CompilerError(
            f"libtpu cannot compile for {slice_.accelerator_type} ({slice_.topology}): "
            f"{_reason(error)}"
        ) from error
    devices = list(topology.devices)
    if len(devices) != slice_.devices:
        raise CompilerError(
            f"libtpu counts {len(devices)} devices in a {slice_.accelerator_type}, but tpuctl "
            f"expects {slice_.devices}.",
            hint="Please report it with the versions that tpuctl fit -v shows.",
        )
    return devices


def compile_module(
    module: ir.Module, devices: list[Any], options: Options | None, *, shardy: bool
) -> Any:
    """Compile a module that contains its own sharding."""
    compile_options = compiler.get_compile_options(1, len(devices), np.array([devices]))
    build = compile_options.executable_build_options
    build.use_shardy_partitioner = shardy
    # Results keep the sharding of their inputs, as in a program that JAX traced.
    build.allow_spmd_sharding_propagation_to_output = [True]
    if options:
        compile_options.env_option_overrides = list(options.items())
    listed = xla_client.DeviceList(tuple(devices))
    client = devices[0].client
    return client.compile(module, executable_devices=listed, compile_options=compile_options)


@contextlib.contextmanager
def module_context() -> Iterator[None]:
    """Enter the context in which MLIR modules are read and changed."""
    with mlir.make_ir_context(), ir.Location.unknown():
        yield


def run_compiler(lowered: LoweredProgram, slice_: Slice, *, report: bool) -> Compilation:
    """Compile a program, or find out how much memory it lacks.

    Raises CompilerError for every other rejection. `report` lists the largest tensors and the
    products of a program that does not fit, which needs a second compilation.
    """
    start = time.perf_counter()
    try:
        executable = lowered.compile(None)
    except (RuntimeError, NotImplementedError, ValueError) as error:
        if overflow := read_vmem_overflow(str(error)):
            raise _vmem_error(*overflow, slice_) from error
        sizes = read_out_of_memory(str(error))
        if sizes is None:
            raise CompilerError(
                f"The compiler rejected the program for {slice_.accelerator_type}: {_reason(error)}"
            ) from error
        compilation = _does_not_fit(lowered, *sizes, report=report)
    else:
        compilation = _fits(lowered, executable)
    return replace(compilation, compile_s=time.perf_counter() - start)


def _vmem_error(kernel: PallasKernel, is_all: bool, slice_: Slice) -> CompilerError:
    """Explain that a kernel needs more vector memory than it may use, or than there is."""
    needed, there = kernel.vmem_needed_bytes, slice_.vmem_bytes
    limit = min(kernel.vmem_limit_bytes or there, there)
    hint = "Use smaller blocks: each is held twice, so that one is copied while the other is used."
    enough = -(-needed * 1001 // 1000 // MIB) * MIB  # the compiler rounds what it says
    if is_all and limit < needed and enough <= there - MIB:
        hint = (
            "Use smaller blocks, or raise the limit: "
            f"compiler_params=pltpu.CompilerParams(vmem_limit_bytes={enough})."
        )
    return CompilerError(
        f"The kernel {kernel.name} needs {'' if is_all else 'more than '}{format_bytes(needed)} of "
        f"vector memory (VMEM) on a {slice_.accelerator_type}: its limit is {format_bytes(limit)}, "
        f"and a core has {format_bytes(there)}.",
        hint=hint,
    )


def _fits(lowered: LoweredProgram, executable: Any) -> Compilation:
    memory = executable.get_compiled_memory_stats()
    program = read_program(executable.hlo_modules()[0].to_string())
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
    return _compilation(lowered, program, flops, needed_bytes)


def _does_not_fit(
    lowered: LoweredProgram, needed_bytes: int, available_bytes: int, *, report: bool
) -> Compilation:
    program, tensors = _inspect(lowered.compile) if report else (_EMPTY, ())
    flops = float(sum(matmul.flops * matmul.times for matmul in program.matmuls))
    return replace(
        _compilation(lowered, program, flops, needed_bytes),
        fits=False,
        hbm_available_bytes=available_bytes,
        tensors=tensors,
    )


def _compilation(
    lowered: LoweredProgram, program: Program, flops: float, needed_bytes: int
) -> Compilation:
    """Collect the result for a program that fits."""
    return Compilation(
        fits=True,
        flops=flops,
        hbm_needed_bytes=needed_bytes,
        hbm_available_bytes=None,
        fixed_bytes=lowered.fixed_bytes,
        program=name_layers(program, lowered.layers),
        tensors=(),
        examples=lowered.examples,
        framework=lowered.framework,
        notes=lowered.notes,
        compile_s=0.0,
        compiler=check_versions(),
    )


def _inspect(compile_: Callable[[Options], Any]) -> tuple[Program, tuple[Tensor, ...]]:
    """Compile again with a dump of what takes the memory."""
    with tempfile.TemporaryDirectory(prefix="tpuctl-fit-") as folder:
        with contextlib.suppress(RuntimeError):
            compile_({"xla_dump_to": folder})
        reports = sorted(Path(folder).glob("*after_optimizations-memory-usage-report.txt"))
        programs = sorted(Path(folder).glob("*after_optimizations.txt"))
        tensors = read_report(reports[-1].read_text("utf-8")) if reports else ()
        program = read_program(programs[-1].read_text("utf-8")) if programs else _EMPTY
        return program, tensors


def _reason(error: BaseException) -> str:
    """Return the first line of an XLA error without its status code."""
    return re.sub(r"^[A-Z_]+: ", "", first_line(error))[:400]
