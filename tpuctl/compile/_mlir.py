"""Programs as MLIR, from TensorFlow or from a file, prepared for the compiler.

They are changed through MLIR's bindings. TensorFlow emits `mhlo.copy`, which libtpu does not know;
an identity reshape means the same. TensorFlow states which result may reuse the memory of which
argument in one attribute of the module; the compiler expects it on each argument.
"""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from tpuctl.codec import read_limited
from tpuctl.compile._libtpu import compile_module, module_context
from tpuctl.compile.models import LoweredProgram, require_even_batch
from tpuctl.errors import InvalidInputError

BYTECODE_MAGIC = b"ML\xefR"


def lower_module(
    program: str | bytes,
    devices: list[Any],
    *,
    batched: Sequence[int | None],
    examples: int | None,
    framework: str,
    notes: tuple[str, ...] = (),
) -> LoweredProgram:
    """Prepare a program; `batched` has the batch dimensions of its first arguments."""
    with module_context():
        module = parse(program)
        main = _main(module)
        types = [ir.RankedTensorType(kind) for kind in main.type.inputs]
        dimensions = [*batched, *[None] * len(types)][: len(types)]
        _replace_copies(module)
        shardy = _shard(module, main, types, dimensions, len(devices))
        module.operation.verify()
        # The debug locations carry the names of the user's layers.
        text = str(module.operation.get_asm(enable_debug_info=True))
        pairs = zip(types, dimensions, strict=True)
        fixed_bytes = sum(_size_bytes(kind) for kind, dimension in pairs if dimension is None)

    def compile_(options: dict[str, str] | None) -> Any:
        with module_context():
            return compile_module(ir.Module.parse(text), devices, options, shardy=shardy)

    return LoweredProgram(framework, compile_, examples, fixed_bytes, notes)


# Weights may stand in a program as constants.
_MOST_BYTES = 2 << 30


def read_file(path: Path) -> str | bytes:
    """Read MLIR as text or bytecode; raises InvalidInputError for anything else."""
    try:
        content = read_limited(path, _MOST_BYTES)
        return content if content.startswith(BYTECODE_MAGIC) else content.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInputError(f"Could not read {path} as MLIR: {error}") from error


def parse(program: str | bytes) -> ir.Module:
    """Parse text, bytecode or a portable StableHLO artifact; raises InvalidInputError."""
    try:
        if isinstance(program, bytes):
            return stablehlo.deserialize_portable_artifact(ir.Context.current, program)
        return ir.Module.parse(program)
    except (ir.MLIRError, ValueError) as error:
        # Not errors.first_line: MLIR says only "Unable to parse", the cause is a diagnostic below.
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        causes = [ln for ln in lines if "Unable to parse" not in ln and "Failure" not in ln]
        cause = (causes or lines or [type(error).__name__])[0][:300]
        raise InvalidInputError(
            f"The program is not valid StableHLO: {cause}",
            hint="In JAX: open('step.mlir', 'w').write(jax.jit(step).lower(*args).as_text())",
        ) from error


def find_batched(program: str | bytes, batch_size: int) -> list[int | None]:
    """Take arguments whose first dimension is the batch size for examples."""
    with module_context():
        kinds = _main(parse(program)).type.inputs
        shapes = [ir.RankedTensorType(kind).shape for kind in kinds]
    return [0 if shape and shape[0] == batch_size else None for shape in shapes]


def _main(module: ir.Module) -> Any:
    for operation in module.body.operations:
        if operation.operation.name == "func.func":
            name = operation.operation.attributes.get("sym_name")
            if name is not None and ir.StringAttr(name).value == "main":
                return operation
    raise InvalidInputError("The program has no function main.")


def _replace_copies(module: ir.Module) -> None:
    for copy in _find_operations(module, "mhlo.copy"):
        with ir.InsertionPoint(copy), copy.location:
            same = stablehlo.ReshapeOp(copy.results[0].type, copy.operands[0])
        copy.results[0].replace_all_uses_with(same.result)
        copy.operation.erase()


def _find_operations(module: ir.Module, name: str) -> list[Any]:
    found: list[Any] = []

    def visit(operation: Any) -> ir.WalkResult:
        if operation.name == name:
            found.append(operation)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    return found


def _shard(
    module: ir.Module, main: Any, types: list[Any], batched: list[int | None], devices: int
) -> bool:
    """Annotate the arguments with their sharding; True if the program uses Shardy's own."""
    given = ir.ArrayAttr(main.attributes["arg_attrs"]) if "arg_attrs" in main.attributes else None
    if "sharding" in str(given):
        _check_partitions(module, devices)
        return bool(_find_operations(module, "sdy.mesh"))
    aliases = dict(_aliases(module))
    int32 = ir.IntegerType.get_signless(32)
    arguments = []
    for index, (kind, dimension) in enumerate(zip(types, batched, strict=True)):
        entries = ir.DictAttr(given[index]) if given else ()
        named = (entries[position] for position in range(len(entries)))
        attributes = {entry.name: entry.attr for entry in named}
        attributes["mhlo.sharding"] = ir.StringAttr.get(_sharding(kind, dimension, devices))
        if index in aliases:
            attributes["tf.aliasing_output"] = ir.IntegerAttr.get(int32, aliases[index])
        arguments.append(ir.DictAttr.get(attributes))
    main.attributes["arg_attrs"] = ir.ArrayAttr.get(arguments)
    # A program that JAX lowered for one device says so; every device would do all of it.
    module.operation.attributes["mhlo.num_partitions"] = ir.IntegerAttr.get(int32, devices)
    return False


def _check_partitions(module: ir.Module, devices: int) -> None:
    attributes = module.operation.attributes
    if "mhlo.num_partitions" not in attributes:
        return
    partitions = ir.IntegerAttr(attributes["mhlo.num_partitions"]).value
    if partitions != devices:
        raise InvalidInputError(
            f"The program has {partitions} partitions, but the TPU has {devices} devices.",
            hint=f"Choose a type with {partitions} devices: tpuctl types",
        )


def _sharding(kind: Any, dimension: int | None, devices: int) -> str:
    if dimension is None or devices == 1:
        return "{replicated}"
    require_even_batch(kind.shape[dimension], devices)
    axes = range(len(kind.shape))
    tiles = ",".join(str(devices if axis == dimension else 1) for axis in axes)
    return f"{{devices=[{tiles}]<=[{devices}]}}"


def _aliases(module: ir.Module) -> Iterator[tuple[int, int]]:
    """Yield pairs of an argument and the result that may reuse its memory."""
    attributes = module.operation.attributes
    if "mhlo.input_output_alias" not in attributes:
        return
    for entry in ir.ArrayAttr(attributes["mhlo.input_output_alias"]):
        pair = ir.DictAttr(entry)
        number = ir.IntegerAttr(ir.DictAttr(pair["alias"])["parameter_number"]).value
        index = list(ir.DenseI64ArrayAttr(pair["output_index"]))
        yield number, index[0] if index else 0


def _size_bytes(kind: Any) -> int:
    bits = getattr(kind.element_type, "width", None) or 32
    return int(math.prod(kind.shape) * bits // 8)
