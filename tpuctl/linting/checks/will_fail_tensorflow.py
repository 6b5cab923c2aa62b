"""What fails under TPUStrategy, or in a Keras model that is compiled for a TPU."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator

from tpuctl.linting.checks.gone_hosted import RESOLVERS, STRATEGIES
from tpuctl.linting.models import Edit, Hit, Severity
from tpuctl.linting.pipelines import PYTHON_FUNCTIONS, repeats_forever
from tpuctl.linting.program import Program
from tpuctl.linting.scope import argument, has_stars

_READERS = ("tf.data.TFRecordDataset", "tf.data.TextLineDataset", "tf.data.Dataset.list_files")
_WRITERS = {
    "tf.train.CheckpointManager": (1, "directory"),
    "tf.keras.callbacks.TensorBoard": (0, "log_dir"),
    "tf.keras.callbacks.ModelCheckpoint": (0, "filepath"),
    "tf.summary.create_file_writer": (0, "logdir"),
    "tf.summary.FileWriter": (0, "logdir"),
}
_ON_CLIENT = (".h5", ".hdf5", ".keras", ".json")
_MODELS = (
    "tf.keras.Sequential", "tf.keras.models.Sequential", "tf.keras.Model", "tf.keras.models.Model",
    "tf.keras.models.load_model", "tf.keras.models.clone_model",
)  # fmt: skip
_DATA_DEPENDENT = ("tf.boolean_mask", "tf.unique", "tf.unique_with_counts", "tf.where")
_SINGLE_LIMIT = 1


def remote_paths(program: Program) -> Iterator[Hit]:
    """Find local paths in a program whose TPU is another machine."""
    if not _is_remote(program):
        return
    for call in program.calls_of(*_READERS):
        yield from _local(program, call.args[0] if call.args else None, "reads")
    for path, (position, name) in _WRITERS.items():
        for call in program.calls_of(path):
            yield from _local(program, argument(call, position, name), "writes")
    for call in program.methods("save"):
        saver = len(call.args) > 1
        yield from _local(program, call.args[saver] if call.args else None, "writes")
    for call in program.calls:
        for keyword in call.keywords:
            if keyword.arg == "model_dir":
                yield from _local(program, keyword.value, "writes")


def _is_remote(program: Program) -> bool:
    for call in program.calls_of(*RESOLVERS):
        given = argument(call, 0, "tpu")
        if given is not None and program.text(given) not in ("local", ""):
            return True
    return any("tpu.TPUEstimator" in path for _, path in program.paths)


def _local(program: Program, node: ast.expr | None, verb: str) -> Iterator[Hit]:
    if isinstance(node, (ast.List, ast.Tuple)) and node.elts:
        node = node.elts[0]
    path = program.text(node)
    if node is None or not path or "://" in path or path.endswith(_ON_CLIENT):
        return
    yield Hit("T301", node, f"A remote TPU {verb} this path on its own disk: {path!r}.")


def float16(program: Program) -> Iterator[Hit]:
    """Find float16, which TPUs have no arithmetic for."""
    constants = program.nodes[ast.Constant]
    # A program that names both policies chooses by the device.
    if program.is_for_gpu or any(node.value == "mixed_bfloat16" for node in constants):
        return
    for node in constants:
        if node.value == "mixed_float16" and not isinstance(program.parents[node], ast.Expr):
            severity: Severity | None = None if program.aims_at_tpu else "maybe"
            if _sets_policy(program, node):
                edit = Edit(node, "replace", '"mixed_bfloat16"')
                message = "mixed_float16 on a TPU: it has no float16 arithmetic."
                yield Hit("T302", node, message, severity, edits=(edit,))


def _sets_policy(program: Program, node: ast.AST) -> bool:
    """Whether the name of a policy is used as one, and not only compared or listed."""
    parent = program.parents[node]
    if isinstance(parent, ast.Call):
        return program.path(parent.func).endswith(("policy", "Policy"))
    return isinstance(parent, ast.Assign) or (
        isinstance(parent, ast.keyword) and "dtype" in (parent.arg or "")
    )


def resolver_without_local(program: Program) -> Iterator[Hit]:
    """Find a resolver that does not say that the chips are in this machine."""
    target = program.target
    if target.is_hosted or target.situation.several_hosts:
        return
    for call in program.calls_of(*RESOLVERS[:1], RESOLVERS[2]):
        given = argument(call, 0, "tpu")
        empty = (
            given is None
            or program.constant(given) == ""
            or (isinstance(given, ast.Constant) and given.value is None)
        )
        if not empty or has_stars(call):
            continue
        tried = any(isinstance(outer, ast.Try) for outer in program.ancestors(call))
        edits = (
            (Edit(call, "keyword", 'tpu="local"'),)
            if given is None
            else (Edit(given, "replace", '"local"'),)
        )
        then = "so this trains without the TPU" if tried else "and raises ValueError"
        message = f'Without tpu="local" the resolver looks for a TPU elsewhere, {then}.'
        yield Hit("T304", call, message, "warning" if tried else None, edits=edits)


def strategy_names(program: Program) -> dict[str, int]:
    """Return the names that hold a TPUStrategy, with the line of the first assignment."""
    found: dict[str, int] = {}
    for assign in program.nodes[ast.Assign]:
        if program.called(assign.value) in STRATEGIES:
            for target in assign.targets:
                if isinstance(target, ast.Name):
                    found.setdefault(target.id, assign.lineno)
    return found


def in_scope(program: Program, node: ast.AST) -> bool:
    """Whether a node is in `with strategy.scope()`, or in a function that is called there."""
    outer = [node, *program.ancestors(node)]
    for each in outer:
        if isinstance(each, ast.With):
            for item in each.items:
                call = item.context_expr
                func = call.func if isinstance(call, ast.Call) else None
                if isinstance(func, ast.Attribute) and func.attr in ("scope", "__enter__"):
                    return True
    return False


def _called_in_scope(program: Program) -> set[str]:
    """Return the functions that may be called in a scope, by others too, or in another module."""
    uses: dict[str, list[ast.AST]] = defaultdict(list)
    inside: dict[str, list[str]] = defaultdict(list)
    for name in program.references:
        if isinstance(name, ast.Name):
            uses[name.id].append(name)
            inside[getattr(program.function(name), "name", "")].append(name.id)
    left = [
        function.name
        for function in program.nodes[ast.FunctionDef]
        if function.name not in uses
        or any(isinstance(outer, ast.ClassDef) for outer in program.ancestors(function))
    ]
    left += [name for name, places in uses.items() if any(in_scope(program, p) for p in places)]
    found: set[str] = set()
    while left:
        if (name := left.pop()) not in found:
            found.add(name)
            left += inside[name]
    return found


def outside_scope(program: Program) -> Iterator[Hit]:
    """Find models, optimizers and weights that are made outside the strategy's scope."""
    names = strategy_names(program)
    if not names:
        return
    first, reached = min(names.values()), _called_in_scope(program)
    for call in program.calls:
        path = program.path(call.func)
        loads = isinstance(call.func, ast.Attribute) and call.func.attr == "load_weights"
        model = path in _MODELS or (
            path.startswith("tf.keras.applications.") and path[-1].isalnum()
        )
        model = model and not path.endswith(("preprocess_input", "decode_predictions"))
        optimizer = path.startswith("tf.keras.optimizers.") and ".schedules." not in path
        early = program.function(call) is None and call.lineno < first
        if early or not (loads or model or optimizer):
            continue
        function = program.function(call)
        if in_scope(program, call) or isinstance(function, ast.Lambda):
            continue
        if function is not None and function.name in reached:
            continue
        if loads:
            # It mostly assigns to variables that are there, but may create those of an optimizer.
            message = "load_weights() outside strategy.scope(): what it creates is not on the TPU."
            yield Hit("T305", call, message, "maybe")
            continue
        what = path.rpartition(".")[2]
        message = f"{what} outside strategy.scope(): its variables are not on the TPU."
        is_model = model and not path.endswith("load_model")
        yield Hit("T305", call, message, None if is_model else "warning")


def indivisible_batches(program: Program) -> Iterator[Hit]:
    """Find batch sizes that the replicas cannot share."""
    replicas = program.target.situation.devices if program.target.is_known else 8
    used = {path for _, path in program.paths}
    several = used & {*STRATEGIES, "keras.distribution.DataParallel", "jax.pmap"}
    if replicas < 2 or not program.aims_at_tpu or not several:
        return
    severity: Severity | None = None if program.target.is_known else "maybe"
    given = program.methods("fit", "predict", "evaluate")
    sizes = [(call, argument(call, None, "batch_size")) for call in given]
    sizes += [(call, argument(call, 0, "batch_size")) for call in program.methods("batch")]
    for call, node in sizes:
        size = program.number(node)
        if node is None or size is None or size % replicas == 0 or size <= _SINGLE_LIMIT:
            continue
        name = call.func.attr if isinstance(call.func, ast.Attribute) else "batch"
        message = f"{name}: a batch of {size:,} does not divide among {replicas} replicas."
        yield Hit("T306", node, message, severity)


def partial_batches(program: Program) -> Iterator[Hit]:
    """Find batches whose last one may be smaller, so that it has another shape."""
    if not any(path in STRATEGIES for _, path in program.paths):
        return
    for call, pipeline in program.pipelines.calls:
        step = pipeline.steps[-1]
        if step.name not in ("batch", "padded_batch") or has_stars(call):
            continue
        # As arrays on the host, batches may have any shape.
        if getattr(program.parents.get(call), "attr", "") == "as_numpy_iterator":
            continue
        position = 1 if step.name == "batch" else 3
        if argument(call, position, "drop_remainder") is None and not repeats_forever(
            pipeline.before(call)
        ):
            message = "batch() without drop_remainder=True: the last batch has another shape."
            yield Hit("T307", call, message)


def python_in_model(program: Program) -> Iterator[Hit]:
    """Find calls back into Python from what is compiled for the TPU."""
    for call in program.calls_of(*PYTHON_FUNCTIONS):
        function = program.function(call)
        name = getattr(function, "name", "")
        compiled = function in program.replicated or (
            name in ("call", "train_step", "test_step")
            and isinstance(program.parents.get(function) if function else None, ast.ClassDef)
        )
        in_lambda = any(
            program.called(outer).endswith("keras.layers.Lambda")
            for outer in program.ancestors(call)
        )
        if compiled or in_lambda:
            what = program.path(call.func)
            yield Hit("T308", call, f"{what} in the model: a TPU cannot call Python.")


def dynamic_shapes(program: Program) -> Iterator[Hit]:
    """Find operations in a replica's step whose result depends on the data in its shape."""
    steps = {*program.replicated} if strategy_names(program) else set()
    for node in program.nodes[ast.FunctionDef]:
        if any(_compiles_for_xla(program, decorator) for decorator in node.decorator_list):
            steps.add(node)
    for call in program.calls_of(*_DATA_DEPENDENT):
        path = program.path(call.func)
        inside = any(outer in steps for outer in program.ancestors(call))
        if inside and not (path == "tf.where" and len(call.args) + len(call.keywords) > 1):
            yield Hit("T309", call, f"The shape of {path}'s result depends on the data.")


def _compiles_for_xla(program: Program, decorator: ast.expr) -> bool:
    return (
        isinstance(decorator, ast.Call)
        and program.called(decorator) == "tf.function"
        and program.constant(argument(decorator, None, "jit_compile")) is True
    )


def double_precision(program: Program) -> Iterator[Hit]:
    """Find float64 in Keras and TensorFlow programs for a TPU."""
    if not program.aims_at_tpu:
        return
    for call in program.calls:
        kind = program.constant(call.args[0]) if call.args else None
        if kind == "float64" and program.path(call.func).endswith("backend.set_floatx"):
            yield Hit("T310", call, "set_floatx('float64'): TPUs have no float64 units.")
    for node, path in program.paths:
        if path == "tf.float64" and program.function(node) in program.replicated:
            yield Hit("T310", node, "float64 in a step: TPUs have no float64 units.")


CHECKS = (
    remote_paths,
    float16,
    resolver_without_local,
    outside_scope,
    indivisible_batches,
    partial_batches,
    python_in_model,
    dynamic_shapes,
    double_precision,
)
