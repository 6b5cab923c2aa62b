"""How many bytes an instruction moves between HBM and the core. Pure.

Arrays in the core's own vector memory (memory space 1) cost nothing here; of an array that is only
sliced, the slices count.
"""

from tpuctl.compile.hlo import Array, Computation, Instruction, Module

SLICES = ("dynamic-slice", "slice", "gather")
# They give a name to memory that is there already, or wait for what was counted at its start.
FREE = (
    "parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "partition-id",
    "replica-id", "while", "conditional", "call", "opt-barrier", "iota",
)  # fmt: skip


def count_bytes(module: Module, within: Computation, instruction: Instruction) -> int:
    """The bytes that one run of an instruction reads from HBM and writes to it."""
    operation = instruction.operation
    if operation in FREE or operation.endswith("-done"):
        return 0
    if operation.endswith("-start"):
        return _started(instruction)
    fused = module.computations.get(instruction.called("calls") or "")
    if fused is None:
        return _alone(within, instruction)
    read = sum(
        _read_inside(module, fused, position)
        for position, name in enumerate(instruction.operands)
        if _is_in_hbm(within, name)
    )
    return read + _written(fused.root, instruction)


def _started(instruction: Instruction) -> int:
    """A copy that runs beside the core: its value is (to, from, ...), a slice's (from, to, ...)."""
    if instruction.operation not in ("copy-start", "slice-start"):
        return 0
    first, second = instruction.arrays[:2]
    to, source = (first, second) if instruction.operation == "copy-start" else (second, first)
    return to.bytes * ((to.space == 0) + (source.space == 0))


def _alone(within: Computation, instruction: Instruction) -> int:
    if instruction.operation == "dynamic-update-slice":
        return 2 * _bytes_of(within, instruction.operands[1])
    written = _in_hbm(instruction.arrays)
    if instruction.operation in SLICES:
        return 2 * written
    return written + sum(
        _bytes_of(within, name) for name in instruction.operands if _is_in_hbm(within, name)
    )


def _written(root: Instruction, instruction: Instruction) -> int:
    """An update in place writes only the slice, which is counted where its target is read."""
    return 0 if root.operation == "dynamic-update-slice" else _in_hbm(instruction.arrays)


def _read_inside(module: Module, fused: Computation, position: int) -> int:
    """What a fused computation reads of its operand at a position."""
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
    return min(read, parameter.bytes)


def _in_hbm(arrays: tuple[Array, ...]) -> int:
    return sum(array.bytes for array in arrays if array.space == 0)


def _bytes_of(within: Computation, name: str) -> int:
    found = within.by_name.get(name)
    return found.bytes if found else 0


def _is_in_hbm(within: Computation, name: str) -> bool:
    """Whether a value is one array in HBM; tuples only pass on what was counted elsewhere."""
    found = within.by_name.get(name)
    return found is not None and len(found.arrays) == 1 and found.arrays[0].space == 0
