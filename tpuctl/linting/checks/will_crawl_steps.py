"""What makes the steps themselves slow: small shapes, waiting for the device, compiling again."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tpuctl.linting.checks.gone_hosted import STRATEGIES
from tpuctl.linting.models import Hit, Severity
from tpuctl.linting.program import COMPILERS, Program
from tpuctl.linting.scope import FUNCTIONS, argument, has_keyword, has_stars

# Layers with the position and the name of their width.
_WIDTHS = {
    "Dense": (0, "units"), "Conv2D": (0, "filters"), "Conv1D": (0, "filters"),
    "SeparableConv2D": (0, "filters"), "LSTM": (0, "units"), "GRU": (0, "units"),
    "Embedding": (1, "output_dim"), "Conv": (0, "features"), "Linear": (1, "out_features"),
}  # fmt: skip
_LAYER_ROOTS = ("tf.keras.layers.", "keras.layers.", "flax.linen.", "torch.nn.")
# Fewer outputs than this are classes or scalars.
_FEWEST = 32
_WASTE = 0.1
_PER_CORE = 8
_READS = ("item", "numpy", "tolist")
_WAITS = ("builtins.float", "builtins.int", "numpy.asarray", "numpy.array", "jax.device_get")
_SYNCS = ("torch_xla.core.xla_model.mark_step", "torch_xla.sync")
_LOADERS = (
    "torch_xla.distributed.parallel_loader.MpDeviceLoader",
    "torch_xla.distributed.parallel_loader.ParallelLoader",
)
_COMPILE_CALLS = (*COMPILERS, "tf.function", "torch.compile", "torch_xla.compile")
_RARE = 100


def small_batches(program: Program) -> Iterator[Hit]:
    """Find batches below 8 per core, or not a multiple of 8."""
    # Examples of language models are sequences, and one of them is many rows.
    if not program.aims_at_tpu or "jax" in program.modules:
        return
    for call, node in _batch_arguments(program):
        size: float | None = program.per_replica(node)
        whole = program.number(node)
        if program.path(call.func).endswith("DataLoader"):
            # Each process of PyTorch has a loader of its own, and each core a process.
            size = whole if whole != 1 else None
        elif size is None and program.target.is_known and whole:
            size = whole / max(1, program.target.situation.devices)
        if node is not None and size is not None and (size < _PER_CORE or size % _PER_CORE):
            message = f"{size:g} examples per core: a core works on multiples of 8."
            yield Hit("T407", node, message, "warning" if size < _PER_CORE else "maybe")


def _batch_arguments(program: Program) -> Iterator[tuple[ast.Call, ast.expr | None]]:
    for call in program.methods("fit"):
        yield call, argument(call, None, "batch_size")
    for call in program.methods("batch"):
        yield call, argument(call, 0, "batch_size")
    for call in program.calls_of("torch.utils.data.DataLoader"):
        yield call, argument(call, 1, "batch_size")


def odd_widths(program: Program) -> Iterator[Hit]:
    """Find layers whose width fills the matrix unit badly."""
    if not program.aims_at_tpu:
        return
    side = program.target.width
    for call in program.calls:
        path = program.path(call.func)
        kind = path.rpartition(".")[2]
        if kind not in _WIDTHS or not path.startswith(_LAYER_ROOTS):
            continue
        node = argument(call, *_WIDTHS[kind])
        width = program.number(node)
        if node is None or width is None or width < _FEWEST or _is_output(program, call):
            continue
        padded = -(-width // side) * side
        if 1 - width / padded > _WASTE:
            message = (
                f"{kind} of width {width:,}: the matrix unit computes {padded:,}"
                f" and throws away {round(100 * (1 - width / padded))} %."
            )
            yield Hit("T408", node, message, "maybe")


def _is_output(program: Program, call: ast.Call) -> bool:
    """Whether a layer is the last of a model, whose width is that of the answer."""
    activation = program.constant(argument(call, 1, "activation"))
    parent = program.parents.get(call)
    last = isinstance(parent, (ast.List, ast.Tuple)) and parent.elts[-1] is call
    return last or activation in ("softmax", "sigmoid")


def waiting_every_step(program: Program) -> Iterator[Hit]:
    """Find results that are fetched from the device in every step."""
    if not program.aims_at_tpu and "jax" not in program.modules:
        return
    made = _made_in_loops(program)
    for call in program.calls:
        value = _fetched(program, call)
        loops = program.loops(call) if value is not None else []
        if value is None or not loops or _is_conditional(program, call, loops[0]):
            continue
        if (value.id, loops[0]) in made and program.trains(loops[0]):
            shown = ast.unparse(call)
            message = f"{shown if len(shown) < 40 else 'This'} waits for the device in every step."
            yield Hit("T409", call, message)


def _fetched(program: Program, call: ast.Call) -> ast.Name | None:
    """Return the name whose value, or what is computed from it, a call brings to the host."""
    node: ast.expr | None = None
    if isinstance(call.func, ast.Attribute) and call.func.attr in _READS and not call.args:
        node = call.func.value
    elif program.path(call.func) in _WAITS and len(call.args) == 1:
        node = call.args[0]
    while isinstance(node, (ast.Attribute, ast.Subscript, ast.Call)):
        if not isinstance(node, ast.Call):
            node = node.value
        elif program.called(node) in _WAITS:
            return None  # fetched there already
        elif program.path(node.func):  # such as xm.all_reduce("sum", loss)
            values = [each for each in node.args if not isinstance(each, ast.Constant)]
            node = values[0] if len(values) == 1 else None
        else:
            node = node.func.value if isinstance(node.func, ast.Attribute) else None
    return node if isinstance(node, ast.Name) else None


def _is_conditional(program: Program, node: ast.AST, loop: ast.AST) -> bool:
    inside = node
    for outer in program.ancestors(node):
        if outer is loop:
            return False
        if isinstance(outer, (ast.If, ast.IfExp)) and inside is not outer.test:
            return True
        inside = outer
    return False


def _made_in_loops(program: Program) -> set[tuple[str, ast.AST]]:
    """Return the names that hold the result of a call, with the loop in which it is made."""
    found: set[tuple[str, ast.AST]] = set()
    for assign in program.nodes[ast.Assign]:
        value, loops = assign.value, program.loops(assign)
        on_host = program.called(value).startswith(("numpy.", "builtins.", "time."))
        if loops and isinstance(value, (ast.Call, ast.BinOp)) and not on_host:
            names = (n for target in assign.targets for n in ast.walk(target))
            found |= {(name.id, loops[0]) for name in names if isinstance(name, ast.Name)}
    return found


def short_executions(program: Program) -> Iterator[Hit]:
    """Find compile() without steps_per_execution under TPUStrategy."""
    if not any(path in STRATEGIES for _, path in program.paths):
        return
    for call in program.methods("compile"):
        given = argument(call, None, "steps_per_execution")
        is_keras = has_keyword(call, "optimizer", "loss", "metrics")
        if is_keras and not has_stars(call) and (given is None or program.number(given) == 1):
            message = "compile() without steps_per_execution: the host starts every step."
            yield Hit("T410", call, message, "maybe")


def batch_loops(program: Program) -> Iterator[Hit]:
    """Find loops over train_on_batch."""
    severity: Severity | None = None if program.aims_at_tpu else "maybe"
    for call in program.methods("train_on_batch"):
        if program.loops(call):
            message = "train_on_batch in a loop: the host starts and waits for every step."
            yield Hit("T411", call, message, severity)


def compiled_in_loop(program: Program) -> Iterator[Hit]:
    """Find functions that are compiled again in every turn of a loop."""
    for call in program.calls_of(*_COMPILE_CALLS):
        if not program.loops(call) or not call.args or _is_decorator(program, call):
            continue
        given = call.args[0]
        new = isinstance(given, (ast.Lambda, ast.Call)) or any(
            program.loops(function) for function in (program.definition(given),) if function
        )
        name = program.path(call.func)
        message = f"{name} in a loop" + (" compiles again in every turn." if new else ".")
        yield Hit("T413", call, message, None if new else "maybe")
    for node in program.nodes[ast.FunctionDef]:
        decorated = [d for d in node.decorator_list if program.compiles(d)]
        if decorated and program.loops(node):
            yield Hit("T413", decorated[0], "A jitted function defined in a loop compiles again.")


def _is_decorator(program: Program, call: ast.Call) -> bool:
    parent = program.parents.get(call)
    return isinstance(parent, FUNCTIONS) and call in getattr(parent, "decorator_list", ())


def changing_shapes(program: Program) -> Iterator[Hit]:
    """Find compiled functions that get another shape, or static value, in every turn of a loop."""
    compiled = _compiled_names(program)
    targets: dict[ast.AST, set[str]] = {}
    for call in program.calls:
        if not isinstance(call.func, ast.Name) or call.func.id not in compiled:
            continue
        loops = program.loops(call)
        if loops and loops[0] not in targets:
            targets[loops[0]] = _targets(loops)
        turns = targets[loops[0]] if loops else set()
        static = compiled[call.func.id]
        for position, given in enumerate(call.args):
            if isinstance(given, ast.Subscript) and _grows(given.slice, turns):
                message = "Each turn of the loop passes another shape, and compiles again."
                yield Hit("T414", given, message)
            elif position in static and isinstance(given, ast.Name) and given.id in turns:
                message = f"{given.id} is static: each of its values compiles again."
                yield Hit("T414", given, message)


def _compiled_names(program: Program) -> dict[str, set[int]]:
    """Return the names of compiled functions with the positions of their static arguments."""
    found: dict[str, set[int]] = {}
    for assign in program.nodes[ast.Assign]:
        if isinstance(assign.value, ast.Call) and program.called(assign.value) in COMPILERS:
            for target in assign.targets:
                if isinstance(target, ast.Name):
                    found[target.id] = _static(program, assign.value)
    for node in program.nodes[ast.FunctionDef]:
        for decorator in node.decorator_list:
            if program.compiles(decorator):
                found[node.name] = (
                    _static(program, decorator) if isinstance(decorator, ast.Call) else set()
                )
    return found


def _static(program: Program, call: ast.Call) -> set[int]:
    given = argument(call, None, "static_argnums")
    nodes = given.elts if isinstance(given, (ast.Tuple, ast.List)) else [given]
    return {number for node in nodes if (number := program.number(node)) is not None}


def _targets(loops: list[ast.AST]) -> set[str]:
    targets = [loop.target for loop in loops if isinstance(loop, (ast.For, ast.AsyncFor))]
    return {n.id for target in targets for n in ast.walk(target) if isinstance(n, ast.Name)}


def _grows(index: ast.expr, turns: set[str]) -> bool:
    """Whether a slice has one end that moves with the loop, and one that does not."""
    if isinstance(index, ast.Tuple):
        return any(_grows(part, turns) for part in index.elts)
    if not isinstance(index, ast.Slice):
        return False
    moves = [
        any(isinstance(n, ast.Name) and n.id in turns for n in ast.walk(end)) if end else False
        for end in (index.lower, index.upper)
    ]
    return moves[0] != moves[1]


def step_markers(program: Program) -> Iterator[Hit]:
    """Find mark_step where a loader or the optimizer already does it, or twice in a step."""
    if "torch_xla" not in program.modules:
        return
    barriers = {
        loop
        for call in program.methods("optimizer_step")
        if has_keyword(call, "barrier")
        for loop in program.loops(call)
    }
    loops: dict[ast.AST, list[ast.Call]] = {}
    for call in program.calls_of(*_SYNCS):
        around = program.loops(call)
        if around and not _is_conditional(program, call, around[0]):
            loops.setdefault(around[0], []).append(call)
    for loop, calls in loops.items():
        for call in calls[1:]:
            yield Hit("T415", call, "A second mark_step in a step cuts the graph in two.")
        if isinstance(loop, ast.For) and _is_device_loader(program, loop.iter):
            message = "The device loader marks each step itself; this cuts the graph again."
            yield Hit("T415", calls[0], message)
        elif loop in barriers:
            yield Hit("T415", calls[0], "optimizer_step(barrier=True) marks the step itself.")


def _is_device_loader(program: Program, node: ast.expr) -> bool:
    if isinstance(node, ast.Call):
        inner = node.args[0] if node.args else None
        if program.called(node) in _LOADERS:
            return True
        if program.called(node) == "builtins.enumerate" and inner is not None:
            return _is_device_loader(program, inner)
        func = node.func
        return isinstance(func, ast.Attribute) and func.attr == "per_device_loader"
    if isinstance(node, ast.Name):
        value = program.last_value(node)
        return value is not None and program.called(value) in _LOADERS
    return False


def frequent_checkpoints(program: Program) -> Iterator[Hit]:
    """Find checkpoints that are written to a bucket every few steps."""
    for call in program.calls:
        path = program.path(call.func)
        if path.endswith("callbacks.ModelCheckpoint"):
            name = program.text(argument(call, 0, "filepath"))
            often = program.number(argument(call, None, "save_freq"))
            if name and name.startswith("gs://") and often is not None and often < _RARE:
                message = f"A checkpoint to a bucket every {often} steps."
                yield Hit("T417", call, message)
            continue
        function = call.func
        saves = isinstance(function, ast.Attribute) and function.attr.startswith("save")
        loops = program.loops(call) if saves or path.endswith(".save") else []
        if loops and program.trains(loops[0]) and not _is_conditional(program, call, loops[0]):
            names = [program.text(given) for given in call.args]
            manager = _directory(program, function) if isinstance(function, ast.Attribute) else None
            if any(name and name.startswith("gs://") for name in (*names, manager)):
                yield Hit("T417", call, "A checkpoint to a bucket in every step.")


def _directory(program: Program, function: ast.Attribute) -> str | None:
    """Return the folder of a checkpoint manager."""
    if isinstance(function.value, ast.Name):
        value = program.last_value(function.value)
        if isinstance(value, ast.Call) and program.called(value).endswith("CheckpointManager"):
            return program.text(argument(value, 1, "directory")) or program.text(
                argument(value, 0, "directory")
            )
    return None


CHECKS = (
    small_batches,
    odd_widths,
    waiting_every_step,
    short_executions,
    batch_loops,
    compiled_in_loop,
    changing_shapes,
    step_markers,
    frequent_checkpoints,
)
