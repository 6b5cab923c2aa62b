"""What a compiled program costs: its memory, and the work of one step. Pure."""

import re
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import replace

from tpuctl.compile.hlo import Array, Computation, Instruction, Module, parse
from tpuctl.compile.matmuls import read_matmul
from tpuctl.compile.models import Kernel, Matmul, PallasKernel, Program, Tensor
from tpuctl.errors import CompilerError, first_line
from tpuctl.units import GIB, KIB, MIB

MOST_TENSORS = 8
# libtpu 0.0.42.1: "... the total memory required for HLO temporaries (45.72G) exceeds available HBM
# (15.75G)". Earlier ones: "Used 45.72G of 15.75G hbm".
_MISSING = (
    re.compile(r"required for HLO temporaries \(([\d.]+)([BKMGT]?)\) exceeds available HBM "
               r"\(([\d.]+)([BKMGT]?)\)"),
    re.compile(r"Used ([\d.]+)([BKMGT]?) of ([\d.]+)([BKMGT]?) hbm"),
)  # fmt: skip
# libtpu 0.0.42.1 to 0.0.52, for a kernel over its limit, over all of the memory, and for a single
# buffer that is.
_VMEM = (
    re.compile(r"Scoped allocation with size ([\d.]+)([BKMG]?) and limit ([\d.]+)([BKMG]?)"),
    re.compile(r"Used ([\d.]+)([BKMG]?) of ([\d.]+)([BKMG]?) vmem"),
    re.compile(r"Allocation \(size=(\d+)()\) would exceed memory \(size=(\d+)()\).*=vmem", re.S),
)  # fmt: skip
_SCOPED = re.compile(r'"(used_)?scoped_memory_configs":\[\{[^\]]*?"size":"(\d+)"')
_OP_NAME = re.compile(r'op_name="([^"]*)"')
_UNITS = {"": 1, "B": 1, "K": KIB, "M": MIB, "G": GIB, "T": 1024 * GIB}
_LINE = re.compile(r"^\s*\S+\(\s*\d+%\);\s*([\d.]+)([KMGT]?)i?B?;\s*\d+;\s*\d+; (.+)$", re.M)
SLICES = ("dynamic-slice", "slice", "gather")
# They only rename memory, or wait for a transfer that was counted where it started.
FREE = (
    "parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "partition-id",
    "replica-id", "while", "conditional", "call", "opt-barrier", "iota",
)  # fmt: skip
_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_AGAIN = re.compile(r"_\d+$")
_NUMBER = re.compile(r"^\s*(-?\d+)\b")
COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")


def read_out_of_memory(message: str) -> tuple[int, int] | None:
    """Read the bytes needed and available from an error; None for any other error."""
    for pattern in _MISSING:
        if found := pattern.search(message):
            needed, needed_unit, there, there_unit = found.groups()
            return _bytes(needed, needed_unit), _bytes(there, there_unit)
    return None


def read_vmem_overflow(message: str) -> tuple[PallasKernel, bool] | None:
    """Read which kernel needs how much of its limit, and whether that is all that it needs."""
    for number, pattern in enumerate(_VMEM):
        if found := pattern.search(message):
            needed, needed_unit, limit, limit_unit = found.groups()
            sizes = _bytes(needed, needed_unit), _bytes(limit, limit_unit)
            return PallasKernel(_kernel_name(message), *sizes), number < 2
    return None


def _kernel_name(text: str) -> str:
    """Return the name that the user gave a kernel: `jit(step)/attention/pallas_call`."""
    found = _OP_NAME.search(text)
    parts = found[1].split("/") if found else [text.rpartition(" :: ")[2].strip()]
    named = [part for part in parts if part != "pallas_call" and "(" not in part]
    return named[-1] if named and len(named[-1]) < 80 else "pallas_call"


def _custom_kernel(instruction: Instruction) -> PallasKernel:
    sizes = {used: int(size) for used, size in _SCOPED.findall(instruction.text)}
    return PallasKernel(_kernel_name(instruction.text), sizes.get("used_", 0), sizes.get(""))


def read_report(text: str) -> tuple[Tensor, ...]:
    """Read the largest allocations in HBM from a memory usage report, largest first."""
    start = text.find("Memory Space: default")
    end = text.find("Memory Space:", start + 1)
    part = text[start : end if end > 0 else None] if start >= 0 else ""
    tensors = [Tensor(_bytes(size, unit), shapes) for size, unit, shapes in _LINE.findall(part)]
    return tuple(sorted(tensors, key=lambda t: -t.size_bytes)[:MOST_TENSORS])


def _bytes(number: str, unit: str) -> int:
    return int(float(number) * _UNITS[unit])


def count_bytes(module: Module, within: Computation, instruction: Instruction) -> int:
    """Count the bytes that an instruction reads from HBM and writes to it."""
    operation = instruction.operation
    if operation in FREE or operation.endswith("-done"):
        return 0
    if operation.endswith("-start"):
        return _copied_bytes(instruction)
    fused = module.computations.get(instruction.called("calls") or "")
    if fused is None:
        return _unfused_bytes(within, instruction)
    read = sum(
        _read_inside(module, fused, position)
        for position, name in enumerate(instruction.operands)
        if _is_in_hbm(within, name)
    )
    # An update in place only writes the slice, which is counted where its target is read.
    is_update = fused.root.operation == "dynamic-update-slice"
    return read + (0 if is_update else _in_hbm(instruction.arrays))


def _copied_bytes(instruction: Instruction) -> int:
    """Count an asynchronous copy; its value is (to, from, ...), but (from, to, ...) of a slice."""
    if instruction.operation not in ("copy-start", "slice-start"):
        return 0
    # HBM traffic is one end of the copy or both; the other end may be the core's own memory.
    first, second = instruction.arrays[:2]
    to, source = (first, second) if instruction.operation == "copy-start" else (second, first)
    return to.bytes * ((to.space == 0) + (source.space == 0))


def _unfused_bytes(within: Computation, instruction: Instruction) -> int:
    if instruction.operation == "dynamic-update-slice":
        return 2 * _bytes_of(within, instruction.operands[1])
    written = _in_hbm(instruction.arrays)
    if instruction.operation in SLICES:
        return 2 * written  # it reads only what it writes
    return written + sum(
        _bytes_of(within, name) for name in instruction.operands if _is_in_hbm(within, name)
    )


def _read_inside(module: Module, fused: Computation, position: int) -> int:
    """Count what a fused computation reads of the operand at a position."""
    parameter = fused.parameter(position)
    if parameter is None:
        return 0
    read = 0
    for user in fused.users(parameter.name):
        inner = module.computations.get(user.called("calls") or "")
        if user.operation in SLICES:
            read += user.bytes
        elif user.operation == "dynamic-update-slice" and user.operands[0] == parameter.name:
            read += 2 * _bytes_of(fused, user.operands[1])
        elif inner:
            read += _read_inside(module, inner, user.operands.index(parameter.name))
        else:
            return parameter.bytes
    # Overlapping slices cannot read more than there is.
    return min(read, parameter.bytes)


def _in_hbm(arrays: tuple[Array, ...]) -> int:
    return sum(array.bytes for array in arrays if array.space == 0)


def _bytes_of(within: Computation, name: str) -> int:
    found = within.by_name.get(name)
    return found.bytes if found else 0


def _is_in_hbm(within: Computation, name: str) -> bool:
    """Whether a value is an array in HBM; the parts of a tuple are counted elsewhere."""
    found = within.by_name.get(name)
    return found is not None and len(found.arrays) == 1 and found.arrays[0].space == 0


def read_program(text: str) -> Program:
    """Summarise a program that the compiler wrote down; raises CompilerError if it is another."""
    try:
        return summarise(parse(text))
    except (ValueError, LookupError, ArithmeticError, RecursionError) as error:
        raise CompilerError(
            f"Could not read the program that the TPU compiler wrote: {first_line(error)}.",
            hint="Compile with a version of libtpu that tpuctl knows: tpuctl fit --help",
        ) from error


def summarise(module: Module) -> Program:
    """Sum up the work of one device in one step."""
    kernels: Counter[tuple[int, int]] = Counter()
    matmuls: Counter[Matmul] = Counter()
    custom: list[PallasKernel] = []
    loops = repeated_flops = collective_bytes = 0
    for computation, times in _in_sequence(module, module.entry, 1):
        for instruction in computation.instructions:
            loops += (
                instruction.operation == "while" and count_iterations(module, instruction) is None
            )
            if "tpu_custom_call" in instruction.text:
                custom.append(_custom_kernel(instruction))
            for matmul in _matmuls(module, computation, instruction):
                matmuls[matmul] += times
                repeated_flops += matmul.flops * (times - 1)
            if instruction.operation.startswith(COLLECTIVES):
                collective_bytes += times * _collected(instruction)
                continue
            found = _CYCLES.search(instruction.text)
            cycles = int(found[1]) if found else 0
            moved = count_bytes(module, computation, instruction)
            if cycles or moved:
                kernels[cycles, moved] += times
    return Program(
        matmuls=tuple(replace(matmul, times=count) for matmul, count in matmuls.items()),
        kernels=tuple(Kernel(*key, times) for key, times in sorted(kernels.items())),
        repeated_flops=repeated_flops,
        collective_bytes=collective_bytes,
        loops_of_unknown_length=loops,
        custom_kernels=tuple(custom),
    )


def name_layers(program: Program, known: Collection[str]) -> Program:
    """Shorten the names of products to known layers: `functional_1/dense_2/MatMul` to `dense`.

    TensorFlow appends a number to a name that it has seen before.
    """
    if not known:
        return program

    def name(layer: str) -> str:
        parts = [(part, _AGAIN.sub("", part)) for part in layer.split("/")]
        found = [part if part in known else bare for part, bare in parts if {part, bare} & {*known}]
        return "/".join(found) or layer

    matmuls = tuple(replace(matmul, layer=name(matmul.layer)) for matmul in program.matmuls)
    return replace(program, matmuls=matmuls)


def count_iterations(module: Module, loop: Instruction) -> int | None:
    """Count a loop's iterations, if it runs while `i < constant` as scan and fori_loop do."""
    condition = module.computations.get(loop.called("condition") or "")
    while condition and condition.root.operation == "fusion":
        condition = module.computations.get(condition.root.called("calls") or "")
    if condition is None or "direction=LT" not in condition.root.text:
        return None
    for name in condition.root.operands:
        limit = condition.by_name.get(name)
        number = _NUMBER.match(limit.text) if limit and limit.operation == "constant" else None
        if number:
            return max(0, int(number[1]))
    return None


def _in_sequence(
    module: Module, computation: Computation, times: int
) -> Iterator[tuple[Computation, int]]:
    """Yield the entry, its loop bodies and heaviest branches, and how often each of them runs."""
    yield computation, times
    for instruction in computation.instructions:
        if instruction.operation == "while":
            turns = count_iterations(module, instruction)
            names, repeats = [instruction.called("body")], 1 if turns is None else turns
        elif instruction.operation == "call":
            names, repeats = [instruction.called("to_apply")], 1
        else:
            names, repeats = list(instruction.branches), 1
        below = [module.computations[name] for name in names if name in module.computations]
        if below:
            heaviest = max(below, key=lambda one: _flops(module, one))
            yield from _in_sequence(module, heaviest, times * repeats)


def _flops(module: Module, computation: Computation) -> int:
    instructions = computation.instructions
    return sum(m.flops for i in instructions for m in _matmuls(module, computation, i))


def _matmuls(module: Module, within: Computation, instruction: Instruction) -> Iterator[Matmul]:
    """Yield the products in an instruction, including those of fused computations."""
    if instruction.operation == "convolution":
        if matmul := read_matmul(instruction, within, module.place_of(instruction)):
            yield matmul
        return
    called = module.computations.get(instruction.called("calls") or "")
    for inner in called.instructions if called else ():
        yield from _matmuls(module, called or within, inner)


def _collected(instruction: Instruction) -> int:
    """Count the bytes of a collective, where it starts."""
    if instruction.operation.endswith("-done"):
        return 0
    # The value of a -start is a pair of its operand and its result.
    parts = 2 if instruction.operation.endswith("-start") else 1
    return instruction.bytes // parts
