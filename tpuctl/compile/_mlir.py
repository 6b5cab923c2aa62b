"""Programs as MLIR: from TensorFlow or from a file, made fit for the compiler.

Changes go through MLIR's bindings. TensorFlow leaves `mhlo.copy` behind, which libtpu does not
know; an identity reshape says the same. Which argument may share memory with which result stands
in one attribute of the module there, and on each argument here.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from tpuctl.compile._libtpu import compile_module, module_context
from tpuctl.compile.models import LoweredProgram, refuse_uneven
from tpuctl.errors import InvalidInputError

MAGIC = b"ML\xefR"


def work_of(
    program: str | bytes,
    devices: list[Any],
    *,
    batched: Sequence[int | None],
    examples: int | None,
    framework: str,
    notes: tuple[str, ...] = (),
) -> LoweredProgram:
    """Make a program ready; `batched` has the dimension of the batch for its first arguments."""
    with module_context():
        module = parse(program)
        main = _main(module)
        types = [ir.RankedTensorType(kind) for kind in main.type.inputs]
        _replace_copies(module)
        shardy = _place(module, main, types, batched, len(devices))
        module.operation.verify()
        text = str(module)
        # The locations are the names of the user's layers.
        named = module.operation.get_asm(enable_debug_info=True)
        fixed = sum(
            _bytes(kind)
            for kind, at in zip(types, _padded(batched, len(types)), strict=True)
            if at is None
        )

    def compile_(options: dict[str, str] | None) -> Any:
        with module_context():
            return compile_module(ir.Module.parse(str(named)), devices, options, shardy=shardy)

    return LoweredProgram(framework, compile_, text, examples, fixed, notes)


def read_file(path: Path) -> str | bytes:
    """Read MLIR, as text or as bytecode; raises InvalidInputError for what is neither."""
    try:
        content = path.read_bytes()
        return content if content.startswith(MAGIC) else content.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInputError(f"Could not read {path} as MLIR: {error}") from error


def parse(program: str | bytes) -> ir.Module:
    """Parse text, bytecode or a portable StableHLO artifact; raises InvalidInputError."""
    try:
        if isinstance(program, bytes):
            return stablehlo.deserialize_portable_artifact(ir.Context.current, program)
        return ir.Module.parse(program)
    except (ir.MLIRError, ValueError) as error:
        raise InvalidInputError(
            f"The program is no StableHLO that can be read: {_first_line(error)}",
            hint="In JAX: open('step.mlir', 'w').write(jax.jit(step).lower(*args).as_text())",
        ) from error


def batched_by_size(program: str | bytes, batch_size: int) -> list[int | None]:
    """Take for examples the arguments whose first dimension is the batch; the file says no more."""
    with module_context():
        kinds = _main(parse(program)).type.inputs
        shapes = [ir.RankedTensorType(kind).shape for kind in kinds]
    return [0 if shape and shape[0] == batch_size else None for shape in shapes]


def _main(module: ir.Module) -> Any:
    for operation in module.body.operations:
        name = operation.operation.attributes.get("sym_name") if _is_function(operation) else None
        if name is not None and ir.StringAttr(name).value == "main":
            return operation
    raise InvalidInputError("The program has no function main.")


def _is_function(operation: Any) -> bool:
    return bool(operation.operation.name == "func.func")


def _replace_copies(module: ir.Module) -> None:
    for copy in list(_named(module, "mhlo.copy")):
        with ir.InsertionPoint(copy), copy.location:
            same = stablehlo.ReshapeOp(copy.results[0].type, copy.operands[0])
        copy.results[0].replace_all_uses_with(same.result)
        copy.operation.erase()


def _named(module: ir.Module, name: str) -> Iterator[Any]:
    found: list[Any] = []

    def visit(operation: Any) -> ir.WalkResult:
        if operation.name == name:
            found.append(operation)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    return iter(found)


def _place(
    module: ir.Module, main: Any, types: list[Any], batched: Sequence[int | None], devices: int
) -> bool:
    """Write down how arguments lie on the devices; True where a JAX program has said so itself."""
    if _says_itself(module, main):
        _check_partitions(module, devices)
        return any(_named(module, "sdy.mesh"))
    aliases = dict(_aliases(module))
    attributes = []
    for index, (kind, at) in enumerate(zip(types, _padded(batched, len(types)), strict=True)):
        said = _given(main, index)
        said["mhlo.sharding"] = ir.StringAttr.get(_sharding(kind, at, devices))
        if index in aliases:
            number = ir.IntegerType.get_signless(32)
            said["tf.aliasing_output"] = ir.IntegerAttr.get(number, aliases[index])
        attributes.append(ir.DictAttr.get(said))
    main.attributes["arg_attrs"] = ir.ArrayAttr.get(attributes)
    # A program that JAX lowered for one device says so, and would be done whole by each.
    parts = ir.IntegerAttr.get(ir.IntegerType.get_signless(32), devices)
    module.operation.attributes["mhlo.num_partitions"] = parts
    return False


def _given(main: Any, index: int) -> dict[str, Any]:
    if "arg_attrs" not in main.attributes:
        return {}
    said = ir.DictAttr(ir.ArrayAttr(main.attributes["arg_attrs"])[index])
    named = (said[position] for position in range(len(said)))
    return {one.name: one.attr for one in named}


def _says_itself(module: ir.Module, main: Any) -> bool:
    text = str(main.attributes["arg_attrs"]) if "arg_attrs" in main.attributes else ""
    return "sharding" in text


def _check_partitions(module: ir.Module, devices: int) -> None:
    attributes = module.operation.attributes
    if "mhlo.num_partitions" not in attributes:
        return
    partitions = ir.IntegerAttr(attributes["mhlo.num_partitions"]).value
    if partitions != devices:
        raise InvalidInputError(
            f"The program is cut into {partitions} parts and the TPU has {devices} devices.",
            hint=f"Name a type with {partitions} devices: tpuctl types",
        )


def _sharding(kind: Any, at: int | None, devices: int) -> str:
    if at is None or devices == 1:
        return "{replicated}"
    refuse_uneven(kind.shape[at], devices)
    cuts = ",".join(str(devices if axis == at else 1) for axis in range(len(kind.shape)))
    return f"{{devices=[{cuts}]<=[{devices}]}}"


def _aliases(module: ir.Module) -> Iterator[tuple[int, int]]:
    """Pairs of an argument and the result that may take its memory."""
    attributes = module.operation.attributes
    if "mhlo.input_output_alias" not in attributes:
        return
    for entry in ir.ArrayAttr(attributes["mhlo.input_output_alias"]):
        pair = ir.DictAttr(entry)
        number = ir.IntegerAttr(ir.DictAttr(pair["alias"])["parameter_number"]).value
        index = list(ir.DenseI64ArrayAttr(pair["output_index"]))
        yield number, index[0] if index else 0


def _padded(batched: Sequence[int | None], length: int) -> list[int | None]:
    return [*batched, *[None] * length][:length]


def _bytes(kind: Any) -> int:
    size = 1
    for length in kind.shape:
        size *= length
    element = kind.element_type
    width = getattr(element, "width", None) or 32
    return int(size * width // 8)


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    useful = [line for line in lines if "Unable to parse" not in line and "Failure" not in line]
    return (useful or lines or [type(error).__name__])[0][:300]
