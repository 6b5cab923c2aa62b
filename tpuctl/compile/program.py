"""What the compiler's final program does in one step: products, memory traffic, loops. Pure.

XLA's own analysis counts the body of a loop once and does not tell HBM from the core's vector
memory; both matter here, so both are counted from the program itself.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import replace

from tpuctl.compile.hlo import Computation, Instruction, Module
from tpuctl.compile.models import Kernel, Matmul, Program
from tpuctl.compile.products import read_matmul
from tpuctl.compile.traffic import count_bytes

_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_AGAIN = re.compile(r"_\d+$")
_NUMBER = re.compile(r"^\s*(-?\d+)\b")
COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")


def summarise(module: Module) -> Program:
    """Add up what one device does in one step."""
    kernels: Counter[tuple[int, int]] = Counter()
    matmuls: Counter[Matmul] = Counter()
    loops = repeated_flops = collective_bytes = custom_kernels = 0
    for computation, times in _in_sequence(module, module.entry, 1):
        for instruction in computation.instructions:
            loops += instruction.operation == "while" and rounds(module, instruction) is None
            custom_kernels += "tpu_custom_call" in instruction.text
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
        custom_kernels=custom_kernels,
    )


def name_layers(program: Program, known: Collection[str]) -> Program:
    """Say where products are in the names that are known: `functional_1/dense_2/MatMul`, dense.

    TensorFlow adds a number to a name that it meets again.
    """
    if not known:
        return program

    def name(layer: str) -> str:
        parts = [(part, _AGAIN.sub("", part)) for part in layer.split("/")]
        found = [part if part in known else bare for part, bare in parts if {part, bare} & {*known}]
        return "/".join(found) or layer

    matmuls = tuple(replace(matmul, layer=name(matmul.layer)) for matmul in program.matmuls)
    return replace(program, matmuls=matmuls)


def rounds(module: Module, loop: Instruction) -> int | None:
    """How often a loop turns: `i < constant` counted from 0, as scan and fori_loop give it."""
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
    """The entry, the bodies of its loops and the heaviest of its branches; how often each runs."""
    yield computation, times
    for instruction in computation.instructions:
        if instruction.operation == "while":
            turns = rounds(module, instruction)
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
    """The products in an instruction, those of fused computations included."""
    if instruction.operation == "convolution":
        if matmul := read_matmul(instruction, within, module.place_of(instruction)):
            yield matmul
        return
    called = module.computations.get(instruction.called("calls") or "")
    for inner in called.instructions if called else ():
        yield from _matmuls(module, called or within, inner)


def _collected(instruction: Instruction) -> int:
    """The bytes that take part in an exchange between devices, counted where it begins."""
    if instruction.operation.endswith("-done"):
        return 0
    parts = 2 if instruction.operation.endswith("-start") else 1
    return instruction.bytes // parts
