"""What fails in JAX and PyTorch/XLA: shapes, precision, processes, and the order of start-up."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tpuctl.linting.models import Edit, Hit, Severity
from tpuctl.linting.program import Program
from tpuctl.linting.scope import argument, has_keyword
from tpuctl.linting.targets import UNKNOWN

_DATA_DEPENDENT = ("nonzero", "flatnonzero", "argwhere", "unique", "extract", "where")
_DOUBLE = ("jax.numpy.float64", "jax.numpy.int64", "jax.numpy.uint64", "jax.numpy.complex128")
_WIDTHS = {
    **dict.fromkeys(
        ("torch.float64", "torch.double"), ("T310", "float64 on a TPU is emulated and slow.")
    ),
    **dict.fromkeys(
        ("torch.float16", "torch.half"), ("T302", "float16 on a TPU: it has no float16 arithmetic.")
    ),
}
_ABOUT_DEVICES = re.compile(r"cuda|[gtx]pu|xla|devic|backend|platform|nccl|accel", re.IGNORECASE)
_CUDA = re.compile(r"cuda(:\d+)?")
_BACKENDS = ("torch.distributed.init_process_group", "jax.devices", "jax.local_devices")
_PRECISION = ("XLA_USE_BF16", "XLA_DOWNCAST_BF16", "XLA_USE_FP16", "XLA_DOWNCAST_FP16")
_TOUCHES = (
    "torch_xla.core.xla_model.xla_device", "torch_xla.device", "torch_xla.devices",
    "torch_xla.core.xla_model.get_xla_supported_devices", "torch_xla.real_devices",
    "torch_xla.core.xla_model.xla_real_devices", "torch_xla.runtime.world_size",
    "torch_xla.runtime.global_device_count", "torch_xla.core.xla_model.xla_device_hw",
)  # fmt: skip
_SPAWN = ("torch_xla.distributed.xla_multiprocessing.spawn", "torch_xla.launch")
_FORKS = (
    "os.fork", "multiprocessing.Process", "multiprocessing.Pool", "multiprocessing.pool.Pool",
    "concurrent.futures.ProcessPoolExecutor",
)  # fmt: skip


def data_dependent_shapes(program: Program) -> Iterator[Hit]:
    """Find functions in compiled code whose result depends on the data in its shape."""
    for name in _DATA_DEPENDENT:
        for call in program.calls_of(f"jax.numpy.{name}"):
            one = len(call.args) + len(call.keywords) == 1
            if has_keyword(call, "size") or (name == "where" and not one):
                continue
            if program.is_compiled(call):
                message = f"jnp.{name} in a compiled function: its shape depends on the data."
                yield Hit("T309", call, message)
    if "jax" not in program.modules:
        return
    for node in program.references:
        parent = program.parents.get(node)
        if isinstance(parent, ast.Subscript) and isinstance(parent.slice, ast.Compare):
            loaded = isinstance(parent.ctx, ast.Load) and parent.value is node
            if loaded and _masks(parent) and program.is_compiled(parent):
                message = "A boolean mask in a compiled function: its shape depends on the data."
                yield Hit("T309", parent, message)


def _masks(node: ast.Subscript) -> bool:
    """Whether a value is compared with something to choose from it."""
    of = ast.unparse(node.value)
    parts = (n for n in ast.walk(node.slice) if isinstance(n, (ast.Name, ast.Attribute)))
    return any(ast.unparse(part) == of for part in parts)


def double_precision_in_jax(program: Program) -> Iterator[Hit]:
    """Find 64-bit types where JAX has 32 bits, and where a TPU must emulate them."""
    enabled = [
        call
        for call in program.calls_of("jax.config.update")
        if call.args and program.constant(call.args[0]) == "jax_enable_x64"
    ]
    for call in enabled:
        on = len(call.args) > 1 and program.constant(call.args[1]) is True
        if on and program.aims_at_tpu:
            message = "jax_enable_x64: TPUs emulate float64, many times slower."
            yield Hit("T310", call, message, "maybe")
    if enabled or program.by_path.get("jax.enable_x64"):
        return
    for node, path in program.paths:
        if path in _DOUBLE and not isinstance(program.parents.get(node), ast.Compare):
            yield _silently(node, path.rpartition(".")[2])
    for call in program.calls:
        kind = argument(call, None, "dtype")
        name = program.constant(kind) if isinstance(kind, ast.Constant) else None
        is_double = isinstance(name, str) and f"jax.numpy.{name}" in _DOUBLE
        if kind is not None and is_double and program.path(call.func).startswith("jax."):
            yield _silently(kind, str(name))


def half_precision_in_jax(program: Program) -> Iterator[Hit]:
    """Find float16 where a program for TPUs chooses a type."""
    if not program.aims_at_tpu:
        return
    for node, path in program.paths:
        parent = program.parents.get(node)
        chosen = isinstance(parent, ast.keyword) and str(parent.arg).endswith("dtype")
        if isinstance(parent, ast.Call) and isinstance(parent.func, ast.Attribute):
            chosen = parent.func.attr == "astype"
        if chosen and path == "jax.numpy.float16" and isinstance(node, ast.Attribute):
            new = Edit(node, "replace", f"{ast.unparse(node.value)}.bfloat16")
            message = "float16 on a TPU: it has no float16 arithmetic."
            severity: Severity = "warning" if program.target.is_known else "maybe"
            yield Hit("T302", node, message, severity, edits=(new,))


def numbers_in_torch(program: Program) -> Iterator[Hit]:
    """Find float64 and float16 in PyTorch/XLA programs."""
    if "torch_xla" not in program.modules:
        return
    sure = program.torch_xla_sureness
    for node, path in program.paths:
        # An argument, and not only compared or listed.
        if path in _WIDTHS and isinstance(program.parents.get(node), (ast.Call, ast.keyword)):
            code, message = _WIDTHS[path]
            new = Edit(node, "replace", "torch.bfloat16")
            renames = code == "T302" and isinstance(node, ast.Attribute)
            yield Hit(code, node, message, sure, edits=(new,) if renames else ())
    for call in program.methods("double", "half"):
        if not call.args and isinstance(call.func, ast.Attribute):
            code, message = _WIDTHS[f"torch.{call.func.attr}"]
            new = Edit(call.func, "replace", f"{ast.unparse(call.func.value)}.bfloat16")
            yield Hit(code, call, message, sure, edits=(new,) if code == "T302" else ())


def cuda(program: Program) -> Iterator[Hit]:
    """Find what needs an NVIDIA GPU in a program for a TPU, unless a condition guards it."""
    meant = program.target.is_known
    # PyTorch/XLA also ran on GPUs, and a program that imports it if it is there may be for both.
    if not meant and program.torch_xla_sureness == "maybe":
        return
    severity: Severity = "error" if meant else "maybe"
    for node, what in _uses_of_cuda(program):
        conditions = (o.test for o in program.ancestors(node) if isinstance(o, (ast.If, ast.IfExp)))
        if not any(_ABOUT_DEVICES.search(ast.unparse(test)) for test in conditions):
            message = f"{what} fails: a machine with a TPU has no CUDA."
            yield Hit("T317", node, message, severity)


def _uses_of_cuda(program: Program) -> Iterator[tuple[ast.AST, str]]:
    for call in program.methods("cuda"):
        if not program.path(call.func):
            yield call, f"{ast.unparse(call.func)}()"
    for call in program.calls_of("torch.cuda.set_device", "torch.cuda.current_device"):
        yield call, program.called(call)
    for call in program.calls_of(*_BACKENDS):
        backend = argument(call, 0, "backend")
        if backend is not None and program.constant(backend) in ("nccl", "gpu", "cuda"):
            yield backend, f"{program.called(call)}({ast.unparse(backend)})"
    for node in program.nodes[ast.Constant]:
        parent = program.parents.get(node)
        chosen = isinstance(parent, ast.keyword) and parent.arg in ("device", "device_map")
        if isinstance(parent, ast.Call):
            to = isinstance(parent.func, ast.Attribute) and parent.func.attr == "to"
            chosen = to or program.called(parent) == "torch.device"
        if chosen and _CUDA.fullmatch(str(node.value)):
            yield node, f"{node.value!r}"


def _silently(node: ast.AST, name: str) -> Hit:
    made = name.replace("64", "32").replace("128", "64")
    return Hit("T310", node, f"{name} is silently {made} in JAX.", "warning")


def precision_variables(program: Program) -> Iterator[Hit]:
    """Find environment variables that changed the precision of PyTorch/XLA."""
    found: list[tuple[ast.AST | tuple[int, int], str]] = [
        (node, node.value)
        for node in program.nodes[ast.Constant]
        if node.value in _PRECISION and program.environment_use(node)
    ]
    for command in program.document.commands:
        text = command.text.replace(" ", "=")
        place = (command.line, command.column)
        found += [(place, name) for name in _PRECISION if f"{name}=" in text]
    for node, name in found:
        message = f"{name} is deprecated since torch_xla 2.6, and torch_tpu ignores it."
        yield Hit("T303", node, message)


def _spawns(program: Program) -> list[ast.Call]:
    return [
        call
        for call in program.calls_of(*_SPAWN)
        if program.constant(argument(call, 2, "nprocs")) != 1
        and program.constant(argument(call, None, "debug_single_process")) is not True
    ]


def touched_before_spawn(program: Program) -> Iterator[Hit]:
    """Find the device, or a checkpoint on it, used by the parent before it starts processes."""
    spawns = _spawns(program)
    if not spawns:
        return
    last = max(call.lineno for call in spawns)
    for call in program.calls:
        path = program.path(call.func)
        if call.lineno > last or program.function(call) is not None:
            continue
        if path in _TOUCHES:
            message = f"{path.rpartition('.')[2]}() before the processes start: spawn then raises."
            yield Hit("T311", call, message)
        elif path == "torch.load" and not has_keyword(call, "map_location") and len(call.args) < 2:
            message = "torch.load without map_location before the processes start."
            edit = Edit(call, "keyword", 'map_location="cpu"')
            yield Hit("T312", call, message, edits=(edit,))
    for call in program.calls_of("torch.load"):
        if program.function(call) and len(call.args) < 2 and not has_keyword(call, "map_location"):
            message = "torch.load without map_location puts tensors where they were saved."
            edit = Edit(call, "keyword", 'map_location="cpu"')
            yield Hit("T312", call, message, "maybe", edits=(edit,))


def distributed_on_one_host(program: Program) -> Iterator[Hit]:
    """Find jax.distributed.initialize where there is one host."""
    target = program.target
    for call in program.calls_of("jax.distributed.initialize"):
        if target.name.startswith("kaggle"):
            message = "jax.distributed.initialize() hangs on Kaggle, which is one host."
            yield Hit("T313", call, message, edits=_statement_removal(program, call))
        elif call.args or call.keywords or target.situation.several_hosts:
            continue
        elif target.situation.accelerator != "tpu":
            message = "jax.distributed.initialize() where there is no cluster raises ValueError."
            yield Hit("T313", call, message, edits=_statement_removal(program, call))
        elif (program.document.is_notebook or target.name != UNKNOWN) and not any(
            isinstance(outer, ast.If) for outer in program.ancestors(call)
        ):
            message = "jax.distributed.initialize() on one host: there is nothing to join."
            yield Hit("T313", call, message, "maybe")


def _statement_removal(program: Program, call: ast.Call) -> tuple[Edit, ...]:
    parent = program.parents.get(call)
    return (Edit(parent, "remove"),) if isinstance(parent, ast.Expr) else ()


def forks(program: Program) -> Iterator[Hit]:
    """Find processes that are forked from one in which JAX has started its threads."""
    if "jax" not in program.modules or _starts_afresh(program):
        return
    for call in program.calls_of(*_FORKS):
        if not has_keyword(call, "mp_context"):
            name = program.path(call.func)
            yield Hit("T314", call, f"{name} forks a process in which JAX has threads.")
    for call in program.calls_of("torch.utils.data.DataLoader"):
        workers = program.number(argument(call, 5, "num_workers"))
        if workers and not has_keyword(call, "multiprocessing_context"):
            message = f"DataLoader(num_workers={workers}) forks a process in which JAX has threads."
            yield Hit("T314", call, message, "maybe")


def _starts_afresh(program: Program) -> bool:
    calls = program.calls_of(
        "multiprocessing.set_start_method", "torch.multiprocessing.set_start_method"
    )
    return any(
        call.args and program.constant(call.args[0]) in ("spawn", "forkserver") for call in calls
    )


CHECKS = (
    data_dependent_shapes,
    double_precision_in_jax,
    half_precision_in_jax,
    numbers_in_torch,
    cuda,
    precision_variables,
    touched_before_spawn,
    distributed_on_one_host,
    forks,
)
